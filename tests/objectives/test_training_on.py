"""Skip-gram that trains on from a file of vectors: rows by word, others fresh, and a head start."""

import pathlib
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from plm_jax.commands import vectors
from plm_jax.text import words
from plm_jax.training import loop, step
from plm_jax.training.before import preflight
from plm_jax.training.init_sources import init_params_from
from plm_jax.training.parts import make_parts, make_vocab
from plm_jax.weights import word_vectors
from plm_jax.weights.word_vectors import WordVectors
from tests import runs

WIDTH = 8
INIT = {'from_': '', 'to': 'trunk/token_embed', 'fresh_zeros': True}


def settings(data: pathlib.Path, *, steps: int, **changes: Any) -> Any:
  if not (data / 'words').exists():
    words.train([(data / 'corpus' / 'train.txt').read_text()], size=400, min_frequency=1).save(data / 'words')
  return runs.settings(
    'mlm',
    data,
    steps=steps,
    log_every=steps,
    save_every=steps,
    eval_every=steps,
    vocab={'name': 'words', 'path': str(data / 'words')},
    model={'name': 'static', 'overrides': {'hidden_dim': WIDTH}},
    data={'layout': 'stream'},
    objective={'name': 'skipgram', 'update': 'rows', 'subsample': 0.0, 'reduction': 'mean'},
    optim={'name': 'adagrad', 'rate': 0.1, 'decay': 0.0, 'clip': None, 'warmup': 0, 'schedule': 'constant'},
    **changes,
  )


@pytest.mark.parametrize(('name', 'form'), [('v.vec', 'word2vec'), ('v.bin', 'binary'), ('v.txt', 'glove')])
def test_rows_are_found_by_their_words(name, form, data, tmp_path):
  names = ('garden', 'zebra', 'the', 'old')
  rows = np.random.default_rng(0).normal(size=(4, WIDTH)).astype(np.float32)
  word_vectors.write(tmp_path / name, WordVectors(names, rows), form=form)
  asked = settings(data, steps=2, init_from=[{'source': str(tmp_path / name), **INIT}])
  parts = make_parts(asked, make_vocab(asked))
  fresh = nn.unbox(step.init_params(parts.task, preflight.batch_spec(parts, asked['data']), jax.random.key(0)))
  params, report = init_params_from(asked, parts, fresh)
  own, was = (np.asarray(tree['trunk']['token_embed']['table']) for tree in (params, fresh))
  ids = {parts.vocab.token(number): number for number in range(parts.vocab.size)}
  assert 'zebra' not in ids
  for word, row in zip(names, rows, strict=True):
    if word in ids:
      assert np.array_equal(own[ids[word]], row)
  others = [number for word, number in ids.items() if word.lower() not in names]
  assert np.array_equal(own[others], was[others]) and was[others].any(axis=1).all()
  assert report.new == ('output/table',) and not np.asarray(params['output']['table']).any()


@pytest.mark.turns
def test_what_was_learned_is_a_head_start(data, tmp_path):
  assert loop.train(settings(data, steps=400), tmp_path / 'first').exit_code == 0
  file = tmp_path / 'v.bin'
  assert vectors.main(['save', f'--workdir={tmp_path / "first"}', f'--out={file}', '--form=binary']) == 0
  starts = {'scratch': (), 'further': [{'source': str(file), **INIT}]}
  losses = {}
  for name, init_from in starts.items():
    assert loop.train(settings(data, steps=40, seed=1, init_from=init_from), tmp_path / name).exit_code == 0
    losses[name] = runs.curve(tmp_path / name)[-1]['validation/loss']
  begin = 6 * np.log(2)  # of a pair with five negatives, while the output table is zero
  assert begin - losses['further'] > 2 * (begin - losses['scratch']) > 0
