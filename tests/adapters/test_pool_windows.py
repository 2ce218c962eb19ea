"""Texts longer than a sequence: windows whose outputs are joined, and their first and last tokens."""

import itertools
import random

import jax.numpy as jnp
import numpy as np
import pytest

import plm_jax
from plm_jax import config
from plm_jax.adapters import choose, classify
from plm_jax.commands import evaluate, predict
from plm_jax.core.errors import ConfigError
from plm_jax.models import bart
from plm_jax.training import loop
from tests import runs, tiny
from tests.adapters.running import predict as predictions_of
from tests.adapters.running import run, train
from tests.data import small
from tests.inference.test_predicting import read_lines, resolved, write_lines

WINDOWS = [3, 1, 2, 3]  # of four texts


def windows_of(batch, options=None):
  """Split the rows of a batch into texts of `WINDOWS` windows each: [b, w, l], or [b, k, w, l] of the options."""
  row, empty = iter(range(len(batch['tokens']))), jnp.zeros_like(batch['tokens'][0])
  counts = np.resize(WINDOWS, (len(WINDOWS), *([options] if options else [])))

  def fill(name):
    nonlocal row
    row = iter(range(len(batch['tokens'])))
    each = [[batch[name][next(row)] if w < count else empty for w in range(3)] for count in counts.ravel()]
    return jnp.stack([jnp.stack(text) for text in each]).reshape(*counts.shape, 3, -1)

  rest = {name: batch[name][:4] for name in ('row_id', 'epoch', 'row_weight')}
  return {**{name: fill(name) for name in ('tokens', 'segment_ids', 'type_ids')}, **rest}, counts


@pytest.mark.parametrize(
  ('kind', 'pool'),
  [('class', 'mean'), ('regression', 'mean'), ('several', 'max'), ('two layers', 'max'), ('options', 'max'),
   ('gpt', 'mean'), ('bart', 'max')],
)  # fmt: skip
def test_outputs_of_windows_are_joined(kind, pool):
  if kind == 'bart':
    trunk = bart.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=tiny.SIZES)
  else:
    trunk = tiny.make_trunk('gpt' if kind == 'gpt' else 'bert')
  settings = {
    'regression': {'kind': 'regression'}, 'several': {'several': True}, 'two layers': {'hidden': 8},
    'gpt': {'lm_weight': 0.5},
  }.get(kind, {})  # fmt: skip
  make, sizes = (choose.make, {}) if kind == 'options' else (classify.make, {'classes': 3})
  alone, joined = (make(trunk=trunk, vocab=tiny.VOCAB, **sizes, **settings, pool_windows=how) for how in (None, pool))
  count = sum(WINDOWS) * (2 if kind == 'options' else 1)
  single = tiny.make_batch(tuple((4 + k % 12,) for k in range(count)))
  batch, counts = windows_of(single, 2 if kind == 'options' else None)
  labels = {'label': jnp.array([0, 1, 1, 0]), 'classes': jnp.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])}
  if kind == 'regression':
    labels['label'] = jnp.array([0.5, -1.0, 2.0, 0.0])
  batch |= labels
  whole = {**single, 'label': jnp.zeros(count, jnp.float32 if kind == 'regression' else jnp.int32)}
  whole['classes'] = jnp.zeros((count, 3), jnp.int32)
  params = tiny.init_params(joined, batch)
  if kind == 'options':
    whole = {name: value[:, None] if value.ndim > 1 and name != 'classes' else value for name, value in whole.items()}
  outputs = np.asarray(run(alone, whole, params)[0][0], np.float64).reshape(count, -1)
  edges = np.cumsum([0, *counts.ravel()])
  expected = [getattr(outputs[a:b], pool)(axis=0) for a, b in itertools.pairwise(edges)]
  found = np.asarray(run(joined, batch, params)[0][0])
  assert tiny.worst(found.reshape(len(expected), -1), np.array(expected)) < 1e-5
  # padding windows and their number do not matter
  longer = {
    name: jnp.concatenate([batch[name], jnp.full_like(batch[name][..., :1, :], 5 * (name == 'tokens'))], axis=-2)
    for name in ('tokens', 'segment_ids', 'type_ids')
  }
  (others, _), other = run(joined, {**batch, **longer}, params)
  assert tiny.worst((others, other), (found, run(joined, batch, params)[1])) < 1e-6
  assert predictions_of(joined, batch, params).keys() == predictions_of(alone, whole, params).keys()


def test_all_windows_train():
  task = classify.make(trunk=tiny.make_trunk('bert'), vocab=tiny.VOCAB, pool_windows='mean')
  batch, _ = windows_of(tiny.make_batch(tuple((9,) for _ in range(sum(WINDOWS)))))
  batch['label'] = jnp.array([0, 1, 1, 0])
  params = tiny.init_params(task, batch)
  table = tiny.loss_and_gradient(task, params, batch)[1]['trunk']['token_embed']['table']
  for place in ((0, 0), (0, 2), (3, 2)):
    assert float(jnp.abs(table[batch['tokens'][place][4]]).max()) > 0
  train(task, batch)


# Data ----------------------------------------------------------------------------------------------------------------


def sequences(tmp_path, sizes, **settings):
  """Lay out texts of numbers: the tokens of each row without special tokens and padding."""
  rows = [{'text': ' '.join(str(20 + k) for k in range(size)), 'label': size % 2} for size in sizes]
  block = {'path': small.write_rows(tmp_path / 'train.jsonl', rows), 'split': 'train', 'fields': ('text',)}
  from plm_jax.config import build

  block |= {'name': 'labelled', 'length': 8, 'batch_size': len(sizes), **settings}
  source = build.make('data', block, vocab=small.NumberVocab(), seed=0)
  return source, [np.asarray(batch['tokens']) for batch in source.once()]


def test_windows_cover_a_text_and_the_last_is_full(tmp_path):
  _, (tokens,) = sequences(tmp_path, (3, 6, 9, 14, 30), windows=3)
  inner = tokens[..., 1:7] - 30
  assert tokens.shape == (5, 3, 8)
  assert (tokens[:2, 1:] == small.PAD).all() and (tokens[2, 2] == small.PAD).all()
  assert inner[2, :2].tolist() == [[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8]]
  assert inner[3, :, 0].tolist() == [0, 6, 8] and inner[4, :, 0].tolist() == [0, 6, 12]
  _, (strided,) = sequences(tmp_path, (14,), windows=9, stride=4)
  assert strided[0, :3, 1].tolist() == [30, 34, 38] and (strided[0, 3:] == small.PAD).all()
  # shapes: short batches hold one window
  source, batches = sequences(tmp_path, (3, 9, 4), windows=3, buckets=(6,), batch_size=1)
  assert [batch.shape for batch in batches] == [(1, 1, 6), (1, 3, 8), (1, 1, 6)]
  assert source.spec['tokens'].shape == (1, 3, 8)


def test_first_and_last_tokens(tmp_path):
  for head, expected in ((2, [0, 1, 10, 11, 12, 13]), (0, [8, 9, 10, 11, 12, 13]), (99, list(range(6)))):
    _, (tokens,) = sequences(tmp_path, (3, 14), head_tokens=head)
    assert tokens[0, 1:4].tolist() == [30, 31, 32] and (tokens[1, 1:7] - 30).tolist() == expected
  with pytest.raises(ValueError, match=r'windows=2.*head_tokens=1.*remove one'):
    sequences(tmp_path, (3,), windows=2, head_tokens=1)
  with pytest.raises(ValueError, match=r"windows does not fit kind='words'"):
    sequences(tmp_path, (3,), windows=2, kind='words', fields=('text',), label='text')


# Runs ----------------------------------------------------------------------------------------------------------------


def late(count, *, seed=1):
  """Write texts whose class is the place in their last sentence, behind 40 tokens of filler."""
  draw, rows = random.Random(seed), []
  for number in range(count):
    last = runs.sentence(draw, label=number % 2)['text']
    filler = ' '.join(runs.sentence(draw, label=draw.randrange(2))['text'] for _ in range(draw.randrange(6)))
    rows.append({'text': f'{filler} {last}', 'label': number % 2})
  return rows


CASES = {
  'windows': ('classify', {'windows': 3}, {'pool_windows': 'max'}),
  'strides': ('regress', {'windows': 4, 'stride': 9}, {'pool_windows': 'mean'}),
  'several': ('several_labels', {'windows': 3}, {'pool_windows': 'mean'}),
  'head and tail': ('classify', {'head_tokens': 6}, {}),
  'options': ('choose', {'windows': 2}, {'pool_windows': 'mean'}),
}


@pytest.mark.parametrize('case', CASES)
def test_every_door_reads_a_long_text_alike(case, data, tmp_path):
  name, block, head = CASES[case]
  rows = late(24)
  for row in rows:
    if name == 'choose':
      row |= {'context': row['text'], 'endings': ['It is here.', 'It is not there.']}
      del row['text']
    elif name == 'several_labels':
      row['labels'] = [['early', 'late'][row['label']]] * (len(row['text']) < 150)
      del row['label']
  file = write_lines(tmp_path / 'train.jsonl', rows)
  settings = resolved(name, file, data, head=head, **block)
  assert loop.train(settings, tmp_path / 'run').result['finished']
  flags = ['--config.eval.validation.data.split=train', f'--predictions={tmp_path / "scored.jsonl"}']
  assert evaluate.main([f'--workdir={tmp_path / "run"}', *flags]) == 0
  keys = ('context', 'endings') if name == 'choose' else ('text',)
  write_lines(tmp_path / 'new.jsonl', [{key: row[key] for key in keys} for row in rows])
  out = f'--out={tmp_path / "out.jsonl"}'
  assert predict.main([f'--workdir={tmp_path / "run"}', f'--file={tmp_path / "new.jsonl"}', out]) == 0
  scored, found = read_lines(tmp_path / 'scored.jsonl'), read_lines(tmp_path / 'out.jsonl')
  model = plm_jax.load(tmp_path / 'run')
  if name == 'choose':
    loaded = [each['probabilities'] for each in model.choose(*([row[key] for row in rows] for key in keys))]
    shares = [row['probabilities'] for row in found]
  elif name == 'regress':
    loaded = [each['value'] for each in model.classify([row['text'] for row in rows])]
    shares = [row['prediction'] for row in found]
  else:
    loaded = [list(each['probabilities'].values()) for each in model.classify([row['text'] for row in rows])]
    shares = [list(row['probabilities'].values()) for row in found]
  written = [row['value'] if name == 'regress' else row['probability'] for row in scored]
  np.testing.assert_allclose(loaded, written, atol=1e-6)
  np.testing.assert_allclose(shares, written, atol=1.5e-6)
  # the tokens that the end of a text holds reach the prediction
  if name == 'classify':
    begins = 'Anna is in the garden. ' * 6
    one, other = (model.classify(f'{begins}{word}.')['probabilities'] for word in ('garden', 'kitchen'))
    assert one != other


def test_one_setting_without_the_other_is_refused_before_data_is_read(data, tmp_path):
  settings = resolved('classify', write_lines(tmp_path / 'train.jsonl', late(4)), data)
  for block, head, said in (
    ({'windows': 2}, {}, r"data\.windows=2: also set adapter\.pool_windows='mean'"),
    ({}, {'pool_windows': 'max'}, r'also set data\.windows'),
  ):
    with pytest.raises(ConfigError, match=said):
      resolved('classify', tmp_path / 'train.jsonl', data, head=head, **block)
  with pytest.raises(ConfigError, match=r'without windows: remove it'):
    words = {**settings['data'], 'windows': 2, 'kind': 'words'}
    config.resolve({**settings, 'data': words, 'adapter': {'name': 'tag', 'tags': ('a', 'b')}, 'best': None})
