"""Cross-view training to its use: stopped and gone on, and saved by itself."""

import json
import random

import numpy as np
import pytest

import plm_jax
from plm_jax import config, convert
from plm_jax.text import words
from plm_jax.training import loop
from tests import conftest, runs

BIO = ('O', 'B-name')
TEXTS = ['Anna is in the kitchen', 'Boris is in the zog']
SIZES = {'word_dim': 8, 'char_dim': 4, 'filters': (0, 4), 'hidden_dim': 16, 'mlp_dims': (12, 8)}
HEAD = {'hidden': 8, 'layers': (-2, -1)}


@pytest.fixture(scope='module')
def labelled(tmp_path_factory):
  """Sentences whose first word is a name, and their vocabulary."""
  folder, draw = tmp_path_factory.mktemp('cvt'), random.Random(0)
  texts = [f'{draw.choice(conftest.NAMES)} is in the {draw.choice(conftest.PLACES)}' for _ in range(24)]
  (folder / 'tags').mkdir()
  for split in ('train', 'validation'):
    rows = [{'tokens': text.split(), 'tags': [1, *[0] * (len(text.split()) - 1)]} for text in texts]
    (folder / 'tags' / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, rows)) + '\n')
  words.train(texts, size=60, min_frequency=1).save(folder / 'vocab')
  return folder


def settings(folder, **changes):
  return {
    'steps': 6, 'log_every': 2, 'eval_every': 6, 'save_every': 3,
    'vocab': {'name': 'words', 'path': str(folder / 'vocab')},
    'model': {'name': 'cvt', 'variant': 'tiny', 'overrides': SIZES},
    'optim': {'name': 'adamw', 'rate': 1e-2, 'schedule': 'constant', 'warmup': 0},
    **changes,
  }  # fmt: skip


def rows_of(folder):
  found = {'name': 'labelled', 'kind': 'words', 'fields': ('tokens',), 'label': 'tags', 'layout': 'plain'}
  return found | {'path': str(folder / 'tags'), 'cache': str(folder / 'cache')}


@pytest.fixture(scope='module')
def trained(labelled):
  """A run that was stopped and went on, with the bits of one that nobody stopped."""
  sizes = {'length': 16, 'batch_size': 8}
  parts = {'names': rows_of(labelled), 'text': rows_of(labelled)}
  one = config.resolve(
    settings(
      labelled,
      objective={'name': 'multiview', 'tags': {'names': BIO}, **HEAD},
      data={'name': 'mixture', 'per': 'step', 'alternate': 'text', 'parts': parts, **sizes},
      eval={'validation': {'data': {'parts': {name: {**part, 'split': 'validation'} for name, part in parts.items()}}}},
      best=('validation/names/accuracy', 'max'),
    )
  )
  whole, stopped = labelled / 'WHOLE', labelled / 'CVT'
  assert loop.train(one, whole).exit_code == loop.DONE
  assert loop.train(one, stopped, stop_at=3).exit_code == loop.DONE
  assert loop.train(one, stopped).exit_code == loop.DONE
  assert not runs.differing(runs.saved_state(whole), runs.saved_state(stopped))
  return stopped


def test_what_is_saved_by_itself_says_the_same_as_the_run(trained, tmp_path):
  assert convert.main(['export', str(trained), str(tmp_path / 'out'), '--form=own', '--step=newest']) == 0
  run, alone = plm_jax.load(trained, step='newest'), plm_jax.load(tmp_path / 'out')
  np.testing.assert_array_equal(run.encode(TEXTS, pool='mean'), alone.encode(TEXTS, pool='mean'))
  assert np.abs(np.diff(run.encode(TEXTS, pool='mean'), axis=0)).max() > 1e-4
