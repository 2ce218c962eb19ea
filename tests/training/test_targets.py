"""A run without anything to predict is refused: before a step where a rate says so, else in the first ten."""

import pathlib
from typing import Any

import pytest

from plm_jax import config
from plm_jax.core.errors import ConfigError
from plm_jax.io.run_paths import RunFolder
from plm_jax.text import words
from plm_jax.training import loop, parts
from plm_jax.training.before import preflight
from tests import runs

MLM = {'name': 'mlm', 'where': {'name': 'fixed_count', 'rate': 0}}
OTHER = {'name': 'mlm', 'where': {'name': 'iid', 'rate': 0}}
RATES = {'a': 0.5, 'b': 0.5}


def settings(data: pathlib.Path, objective: dict[str, Any]) -> dict[str, Any]:
  return config.resolve({**runs.settings('mlm', data, steps=2), 'objective': objective, 'best': None})


def test_a_rate_of_0_is_refused_before_a_step(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  with pytest.raises(ConfigError, match=r"objective\.where\.rate=0: objective 'mlm' has nothing to predict in"):
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


@pytest.mark.usefixtures('log')
@pytest.mark.parametrize('steps', [4, 30])
def test_texts_without_a_pair_of_words_are_refused_in_the_first_steps(steps: int, tmp_path: pathlib.Path) -> None:
  """By an objective that reads pairs; of an evaluation that has none this is told, and the run goes on."""
  (tmp_path / 'corpus').mkdir()
  asked = config.resolve(
    {
      'steps': steps, 'log_every': 2, 'eval_every': 2, 'save_every': 100, 'best': None,
      'vocab': {'name': 'words', 'path': str(tmp_path / 'vocab')},
      'model': {'name': 'static', 'variant': 'word2vec', 'overrides': {'hidden_dim': 8}},
      'objective': {'name': 'skipgram', 'subsample': 0.0},
      'data': {'name': 'stream', 'layout': 'stream', 'path': str(tmp_path / 'corpus'), 'length': 8, 'batch_size': 4},
      'optim': {'name': 'sgd', 'rate': 0.1, 'schedule': 'constant'},
      'eval': {'validation': {'data': {'split': 'validation'}}},
    }
  )  # fmt: skip
  words.train(['the cat sat on the mat'], size=20, min_frequency=1).save(tmp_path / 'vocab')
  for text in ('cat', 'ein Hund lag auf einer Matte'):  # one word, and words that the vocabulary does not know
    for split in ('train', 'validation'):
      (tmp_path / 'corpus' / f'{split}.txt').write_text(f'{text}\n')
    with pytest.raises(ConfigError, match=rf"no row of the first {min(steps, 10)} steps has a target for .*'skipgram'"):
      loop.train(asked, tmp_path / text)
    assert not list(tmp_path.glob(f'{text}/checkpoints/[0-9]*'))
    assert 'an evaluation measures nothing' in (tmp_path / text / 'log.txt').read_text()
  (tmp_path / 'corpus' / 'train.txt').write_text('the cat sat on the mat\n')
  assert loop.train(asked, tmp_path / 'whole').result['finished']
  assert 'an evaluation measures nothing' in (tmp_path / 'whole' / 'log.txt').read_text()
