"""Ten steps of fine-tuning from real weights with the command, and the result in 8 bits."""

import json
import pathlib
from collections.abc import Callable

import numpy as np
import pytest

import plm_jax
from plm_jax import weights
from plm_jax.commands import compress, train
from tests import conftest

pytestmark = pytest.mark.released

GOOD = ('a fine film', 'we loved every minute', 'wonderful and warm', 'a great success')
BAD = ('a dull film', 'we hated every minute', 'cold and boring', 'a great failure')
STEPS = 10


@pytest.fixture(scope='module')
def tuned(released: Callable[[str], pathlib.Path], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A run of MiniLM on eight texts of two classes."""
  folder = tmp_path_factory.mktemp('tuned')
  for split in ('train', 'validation'):
    rows = [f'{text},{label}' for label, texts in (('good', GOOD), ('bad', BAD)) for text in texts]
    (folder / f'{split}.csv').write_text('\n'.join(['text,label', *rows, '']))
  changes = {
    'data.path': folder, 'model.from': released('minilm'), 'steps': STEPS, 'epochs': None, 'data.batch_size': 8,
    'data.length': 16, 'data.buckets': '()', 'optim.name': 'adamw', 'optim.rate': 1e-4, 'optim.warmup': 0,
    'log_every': 1, 'eval_every': STEPS, 'save_every': STEPS,
  }  # fmt: skip
  words = [f'--config.{key}={value}' for key, value in changes.items()]
  config = conftest.ROOT / 'experiments' / 'finetune' / 'classify.py'
  assert train.main([f'--config={config}', f'--workdir={folder / "run"}', *words]) == 0
  return folder / 'run'


def test_ten_steps_learn(tuned: pathlib.Path, released: Callable[[str], pathlib.Path]) -> None:
  lines = [json.loads(line) for line in (tuned / 'metrics.jsonl').read_text().splitlines()]
  losses = [line['loss'] for line in lines if 'loss' in line]
  assert len(losses) == STEPS
  assert losses[-1] < 0.8 * np.log(2), losses  # ln 2 is the loss of a guess
  before, after = weights.load(released('minilm'))[1], weights.load(tuned)[1]
  moved = np.abs(np.asarray(after['layers']['query']['kernel'] - before['layers']['query']['kernel']))
  assert (moved.reshape(len(moved), -1).max(1) > 1e-4).all()  # each layer
  assert moved.max() < 2 * STEPS * 1e-4  # a step of Adam is about the rate
  predicted = plm_jax.load(tuned).classify([*GOOD, *BAD])
  assert [each['label'] for each in predicted] == ['good'] * 4 + ['bad'] * 4


def test_8_bits_lose_little(tuned: pathlib.Path, tmp_path: pathlib.Path) -> None:
  assert compress.main([f'--workdir={tuned}', '--methods=int8', f'--out={tmp_path / "small"}', '--rounds=1']) == 0
  _, small = json.loads((tmp_path / 'small' / 'table.json').read_text())['rows']
  assert small['score'] == 1, small
  a, b = (plm_jax.load(folder).encode([*GOOD, *BAD]) for folder in (tuned, tmp_path / 'small' / 'int8'))
  cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
  assert cosine.min() > 0.99, cosine
