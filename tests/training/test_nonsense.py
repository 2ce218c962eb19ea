"""Settings without sense are refused by name, with the bound, before a run folder is made."""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import pytest

from plm_jax import config
from plm_jax.core.errors import ConfigError
from plm_jax.training import loop
from tests import runs

CLASSIFY = {'name': 'classify', 'classes': 2}
SIZES = runs.SIZES
CHANGES: dict[str, tuple[str, Mapping[str, Any], str]] = {
  'decay': ('mlm', {'optim': {'decay': 5}}, r'optim\.decay: .*0 <= x <= 1.*\b5'),
  'decay of a group': ('mlm', {'optim': {'decay': (('.*', 5),)}}, r'optim\.decay.*5'),
  'ema': ('mlm', {'optim': {'ema': 1.0}}, r'optim\.ema'),
  'moments': ('mlm', {'optim': {'b1': 1.5}}, r'optim\.b1'),
  'dropout': ('mlm', {'model': {'overrides': {**SIZES, 'dropout': 1.0}}}, 'dropout'),
  'attention_dropout': ('mlm', {'model': {'overrides': {**SIZES, 'attention_dropout': 2.0}}}, 'dropout'),
  'extend': ('mlm', {'extend': [[900, 5]]}, r'extend: step 900 .*\b12\b'),
  'second extend': ('mlm', {'extend': [[12, 5], [18, 5]]}, r'extend: step 18 .*\b17\b'),
  'skip': ('mlm', {'skip': [[12, 5]]}, r'skip: step 12 .*\b12\b'),
  'rank': ('classify', {'adapter': {'name': 'lora', 'rank': 33, 'inner': CLASSIFY}}, r'adapter\.rank=33.*\b32\b'),
  'prefix': ('classify', {'adapter': {'name': 'prefix', 'length': 33, 'inner': CLASSIFY}}, r'length=33.*\b32\b'),
  **{
    f'mask is {token}': ('mlm', {'vocab': {'roles': {'mask': token}}}, rf"{re.escape(repr(token))}.*vocab\.roles")
    for token in ('<pad>', '<s>', '</s>')
  },
}  # fmt: skip


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return runs.write_data(tmp_path_factory.mktemp('data'))


def settings(kind: str, data: pathlib.Path, changes: Mapping[str, Any]) -> dict[str, Any]:
  others = {key: value for key, value in changes.items() if key != 'adapter'}
  adapter = {'adapter': changes['adapter']} if 'adapter' in changes else {}
  return config.resolve({**runs.settings(kind, data, **others), **adapter})


@pytest.mark.parametrize('name', CHANGES)
def test_nonsense_is_refused(name: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  kind, changes, message = CHANGES[name]
  with pytest.raises(ConfigError, match=message) as caught:
    loop.train(settings(kind, data, changes), tmp_path / 'run')
  assert len(str(caught.value).split('\n')) <= 2
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
  ('kind', 'changes'),
  [
    ('mlm', {'optim': {'decay': (('.*', 1.0),)}, 'extend': [[12, 2], [14, 2]], 'skip': [[15, 1]]}),
    ('classify', {'adapter': {'name': 'lora', 'rank': 32, 'inner': CLASSIFY}}),
    ('classify', {'adapter': {'name': 'prefix', 'length': 32, 'inner': CLASSIFY}}),
  ],
)
def test_the_bound_itself_is_accepted(
  kind: str, changes: Mapping[str, Any], data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  assert loop.train(settings(kind, data, changes), tmp_path / 'run', stop_at=1).result['step'] >= 1
