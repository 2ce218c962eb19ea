"""Ranking of windows: loss and gradient by the paper's formulas in numpy, which windows count, what is drawn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.models import static
from plm_jax.noise import keys
from plm_jax.objectives import ranking
from plm_jax.training import step
from tests import tiny

pytestmark = pytest.mark.turns

VOCAB = tiny.FakeVocab(size=40)


def make(*, width=4, **settings):
  trunk = static.make(vocab_size=VOCAB.size, variant='tiny', overrides={'hidden_dim': width})
  return ranking.make(trunk=trunk, vocab=VOCAB, **({'window': 5, 'hidden': 6} | settings))


def make_batch(lengths=((16,), (7, 5), (11,), (3, 4, 5))):
  rows = tiny.make_batch(lengths)
  return rows | {'tokens': jnp.where(rows['segment_ids'] > 0, rows['tokens'] % VOCAB.size, 0)}


def drawn_of(task, batch):
  return np.asarray(task.prepare(keys.noise_root(jax.random.key(0)), keys.with_step(batch, 0)).inputs['drawn'])


def in_numpy(params, batch, drawn, *, window):
  """Sum of the hinges of each window in turn, how many there are, how many are above, and gradients by hand."""
  table = np.asarray(params['trunk']['token_embed']['table'], np.float64)
  kernels = [np.asarray(params[name]['kernel'], np.float64) for name in ('first', 'second')]
  bias = np.asarray(params['first']['bias'], np.float64)
  found = {'table': np.zeros_like(table), 'first': np.zeros_like(kernels[0]), 'second': np.zeros_like(kernels[1])}
  found |= {'bias': np.zeros_like(bias)}
  total, number, above, clear = 0.0, 0, 0, 0
  tokens, segments = np.asarray(batch['tokens']), np.asarray(batch['segment_ids'])

  def scored(ids):
    before = np.einsum('wd,wdh->h', table[ids], kernels[0]) + bias
    return before, float(np.clip(before, -1, 1) @ kernels[1][:, 0])

  def back(ids, before, sign):
    inner = sign * kernels[1][:, 0] * (np.abs(before) < 1)
    found['second'][:, 0] += sign * np.clip(before, -1, 1)
    found['bias'] += inner
    for place, word in enumerate(ids):
      found['first'][place] += np.outer(table[word], inner)
      found['table'][word] += kernels[0][place] @ inner

  for row, place in np.ndindex(tokens.shape):
    segment = segments[row, place]
    if not segment or tokens[row, place] in VOCAB.special_ids:
      continue
    ids = []
    for near in range(place - window // 2, place + window // 2 + 1):
      inside = 0 <= near < tokens.shape[1] and segments[row, near] == segment
      ids.append(tokens[row, near] if inside else VOCAB.pad_id)
    other = list(ids)
    other[window // 2] = drawn[row, place]
    (true_before, true), (false_before, false) = scored(ids), scored(other)
    number, above = number + 1, above + (true > false)
    if 1 - true + false > 0:
      total += 1 - true + false
      back(ids, true_before, -1.0)
      back(other, false_before, 1.0)
    else:
      clear += 1
  return total, number, above, clear, found


@pytest.mark.parametrize(('window', 'update'), [(5, 'tables'), (1, 'tables'), (11, 'rows')])
def test_loss_and_gradient_are_those_of_the_paper(window, update):
  task, batch = make(window=window, update=update), make_batch()
  params = jax.tree.map(lambda leaf: 9 * leaf, tiny.init_params(task, batch))
  loss, gradient = tiny.loss_and_gradient(task, params, batch)
  total, number, above, clear, expected = in_numpy(params, batch, drawn_of(task, batch), window=window)
  assert float(loss.value) == pytest.approx(total, rel=1e-5) and number > 20 and 0 < clear < number
  assert [float(part) for part in loss.metrics['loss']] == pytest.approx([total, number], rel=1e-5)
  assert [float(part) for part in loss.metrics['accuracy']] == [above, number]
  ours = {
    'table': gradient['trunk']['token_embed']['table'],
    'first': gradient['first']['kernel'],
    'second': gradient['second']['kernel'],
    'bias': gradient['first']['bias'],
  }
  for name, leaf in expected.items():
    assert leaf.any() and np.allclose(ours[name], leaf, atol=1e-5 * max(np.abs(leaf).max(), 1)), name
  mean, _ = tiny.loss_and_gradient(make(window=window, reduction='mean'), params, batch)
  assert float(mean.value) == pytest.approx(total / number, rel=1e-5)


def test_windows_end_at_documents():
  tokens, segments = jnp.array([[7, 8, 9, 10, 11, 0]]), jnp.array([[1, 1, 1, 2, 2, 0]])
  found = ranking.windows_of(tokens, segments, window=5, pad_id=0)[0].tolist()
  assert found[:5] == [[0, 0, 7, 8, 9], [0, 7, 8, 9, 0], [7, 8, 9, 0, 0], [0, 0, 10, 11, 0], [0, 10, 11, 0, 0]]


def test_words_are_drawn_uniformly_and_none_is_special():
  task, batch = make(), make_batch()
  draw = lambda number: task.prepare(jax.random.key(2), keys.with_step(batch, number)).inputs['drawn']  # noqa: E731
  many = np.asarray(jax.vmap(draw)(jnp.arange(500)))
  share = np.bincount(many.ravel(), minlength=40) / many.size
  assert not share[:7].any() and np.abs(share[7:] - 1 / 33).max() < 0.004
  assert not np.array_equal(many[0], many[1])


def test_rows_are_updated_as_whole_tables_are():
  batch, states = make_batch(), []
  for update in ('tables', 'rows'):
    task = make(update=update)
    tx = tiny.make_optimiser(task, batch, name='adagrad', rate=0.05, accumulator=1.0)
    run = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
    state = tiny.make_state(task, batch, tx)
    for _ in range(3):
      state, _ = run(state, batch, jax.random.key(0))
    states.append(state)
  assert tiny.worst(states[1].params, states[0].params) < 1e-5
  assert tiny.worst(states[1].opt_state, states[0].opt_state) < 1e-5


def test_learns_which_word_fits_between_its_neighbours():
  """Words stand in the order of their ids; texts begin anywhere, so that a word alone says nothing."""
  first = jax.random.randint(jax.random.key(0), (16, 1), 0, 33)
  tokens = 7 + (first + jnp.arange(16)) % 33
  batch = tiny.make_batch() | {'tokens': tokens, 'segment_ids': jnp.ones_like(tokens)}
  batch |= {'row_id': jnp.arange(16), 'epoch': jnp.zeros(16, jnp.int32), 'row_weight': jnp.ones(16)}
  task = make(width=16, window=3, hidden=64, reduction='mean')
  tx = tiny.make_optimiser(task, batch, rate=1e-2)
  run, state = jax.jit(functools.partial(step.train_step, task=task, tx=tx)), tiny.make_state(task, batch, tx)
  table = state.params['trunk']['token_embed']
  table['table'] = 10 * table['table']  # N(0, 1): of smaller vectors hard tanh is linear, and sees no two words at once
  begin = tiny.means(run(state, batch, jax.random.key(1))[1])
  for _ in range(300):
    state, metrics = run(state, batch, jax.random.key(1))
  after = tiny.means(metrics)
  assert begin['loss'] > 0.9 and begin['accuracy'] < 0.7, begin
  assert after['loss'] < 0.3 and after['accuracy'] > 0.9


def test_mistakes():
  with pytest.raises(ValueError, match=r'objective\.window=4.*\b3 or 5'):
    make(window=4)
  with pytest.raises(ValueError, match=r"objective\.update='all'.*rows, tables"):
    make(update='all')
  with pytest.raises(ValueError, match=r'none.*Bert.*bidirectional'):
    ranking.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB)
  trunk = static.make(vocab_size=7, variant='tiny')
  with pytest.raises(ValueError, match=r'\b7 tokens.*special'):
    ranking.make(trunk=trunk, vocab=tiny.FakeVocab(size=7))
