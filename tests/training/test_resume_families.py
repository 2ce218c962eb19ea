"""Each family of models that `test_resume.py` leaves out, in a small form of its own config: stopped, it ends with the
bits of a run that nobody stopped.

Optimiser, objective and noise are those of the paper, dropout is on, everything is float32.
"""

import pathlib
from typing import Any

import pytest

from plm_jax import config
from plm_jax.config import signatures
from plm_jax.training import loop
from tests import conftest, runs

STEPS, STOP = 7, 3  # log_every is 2: the stop cuts an interval of metrics
FAMILIES = {
  'electra': 'electra/small.py',
  'bart': 'bart/base.py',
  't5': 't5/pretrain.py',
  'deberta': 'deberta/base.py',
  'albert': 'albert/pretrain.py',
  'glm': 'glm/base.py',
  'llama': 'llama/pretrain.py',
  'palm': 'palm/pretrain.py',
  'elmo': 'elmo/pretrain.py',
  'word2vec': 'word2vec/skipgram.py',
  'glove': 'glove/glove.py',
  'fasttext': 'fasttext/fasttext.py',
  'cw': 'cw/ranking.py',
}
# what `quick` takes away: tables of which a step updates few rows, whose state is not that of whole leaves
KEPT = {'elmo': {'negatives': 20, 'update': 'rows'}}
DROPS = {'dropout', 'attention_dropout'}
SIZES = {
  'hidden_dim': 32, 'embed_dim': 16, 'head_dim': 16, 'num_layers': 2, 'num_heads': 2, 'mlp_dim': 64,
  'dropout': 0.1, 'attention_dropout': 0.1,
}  # fmt: skip

pytestmark = pytest.mark.usefixtures('log')


def settings(family: str, data: pathlib.Path) -> dict[str, Any]:
  """The config of a family in its `quick` form, smaller still."""
  found = config.load(f'{conftest.ROOT}/experiments/{FAMILIES[family]}:quick')
  for block in (found['model'], found['objective'].get('generator')):
    if block:
      known = signatures.keywords(f'models.{block["name"]}', 'Config')
      block['overrides'] = {name: size for name, size in SIZES.items() if name in known}
  found['objective'] |= KEPT.get(family, {})
  found['vocab']['path'] = str(data / 'vocab')
  found['data'] |= {'path': str(data / 'corpus'), 'cache': str(data / 'cache'), 'length': 32, 'batch_size': 8}
  found['optim']['warmup'] = 0
  every = {'log_every': 2, 'eval_every': STEPS, 'save_every': STEPS}
  return config.resolve(found | every | {'steps': STEPS, 'epochs': None, 'eval': {}, 'best': None})


def in_turn(number: int) -> Any:
  """The marks of a family: a commit runs a few of them."""
  mine = number % conftest.TURNS == conftest.part(conftest.commit() or '', conftest.TURNS)
  return () if mine else pytest.mark.slow


@pytest.mark.parametrize(
  'family', [pytest.param(family, marks=in_turn(number)) for number, family in enumerate(FAMILIES)]
)
def test_pieces_make_the_whole(family: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  asked = settings(family, data)
  overrides = asked['model']['overrides']
  drops = DROPS & set(signatures.keywords(f'models.{asked["model"]["name"]}', 'Config'))
  assert all(overrides[name] == 0.1 for name in drops) and bool(drops) == (asked['model']['name'] != 'static')
  assert asked['execution']['dtype'] == 'float32'
  whole, pieces = tmp_path / 'whole', tmp_path / 'pieces'
  assert loop.train(asked, whole).result['finished']
  assert loop.train(asked, pieces, stop_at=STOP).result['step'] == STOP
  stopped = runs.params_of(runs.saved_state(pieces))
  assert loop.train(asked, pieces).result['finished']
  assert f'going on from step {STOP}' in (pieces / 'log.txt').read_text()
  state = runs.saved_state(pieces)
  assert len(state) > 20 or not drops
  assert asked['optim']['name'] == 'sgd' or any(name.startswith('opt_state/rule/') for name in state)
  moved = runs.differing(stopped, runs.params_of(state))
  assert all(name in moved for name in stopped if name.endswith('/table'))
  assert not runs.differing(state, runs.saved_state(whole))
  on_the_way = [row for row in runs.curve(pieces) if row['step'] != STOP]
  assert [row['step'] for row in on_the_way] == [2, 4, 6, 7]
  assert str(on_the_way) == str(runs.curve(whole))  # as text: a metric without weight is nan, which equals nothing
