"""A run whose objective has nothing to predict is refused before it makes a step."""

import pathlib
from typing import Any

import pytest

from plm_jax import config
from plm_jax.errors import ConfigError
from plm_jax.files import RunFolder
from plm_jax.training import loop, parts, preflight
from tests import runs

MLM = {'name': 'mlm', 'where': {'name': 'fixed_count', 'rate': 0}}
OTHER = {'name': 'mlm', 'where': {'name': 'iid', 'rate': 0}}
RATES = {'a': 0.5, 'b': 0.5}


def settings(data: pathlib.Path, objective: dict[str, Any]) -> dict[str, Any]:
  return config.resolve({**runs.settings('mlm', data, steps=2), 'objective': objective, 'best': None})


def test_a_rate_of_0_is_refused_before_a_step(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  with pytest.raises(ConfigError, match=r"config\.objective\.where\.rate=0: objective 'mlm' has nothing to predict in"):
    loop.train(settings(data, MLM), tmp_path / 'run')
  folder = RunFolder.at(tmp_path / 'run')
  assert not folder.config.exists() and not folder.checkpoints.exists()


@pytest.mark.parametrize(
  ('objective', 'where'),
  [
    ({'name': 'mixture', 'rates': RATES, 'parts': {'a': MLM, 'b': OTHER}}, 'objective.parts.a.where.rate=0'),
    ({'name': 'mixture', 'rates': RATES, 'parts': {'a': MLM, 'b': {'name': 'mlm'}}}, ''),
    ({'name': 'rtd', 'sharing': 'all', 'where': {'name': 'with_replacement', 'rate': 0}}, ''),  # learns of all tokens
  ],
  ids=['mixture of none', 'mixture', 'rtd'],
)
def test_only_what_has_no_target_at_all_is_refused(objective: Any, where: str, data: pathlib.Path) -> None:
  chosen = settings(data, objective)
  vocab = parts.make_vocab(chosen)
  made, layout = parts.make_parts(chosen, vocab), parts.make_layout(chosen)
  source = parts.make_source(chosen['data'], vocab, seed=chosen['seed'], reader=made)
  if where:
    with pytest.raises(ConfigError, match=where):
      preflight.check_targets(chosen, made, source, layout=layout)
  else:
    preflight.check_targets(chosen, made, source, layout=layout)
