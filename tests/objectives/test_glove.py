"""GloVe: loss and gradient by eq. 8 of the paper in numpy, and a table of counts that it learns by heart."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.glove import glove as glove_experiment
from plm_jax.models import static
from plm_jax.objectives import glove
from plm_jax.training import step
from tests import tiny

VOCAB = tiny.FakeVocab(size=40)
NAMES = ('trunk/token_embed', 'context', 'bias', 'context_bias')


def make(**settings):
  return glove.make(
    trunk=static.make(vocab_size=40, variant='tiny', overrides={'hidden_dim': 6}), vocab=VOCAB, **settings
  )


def make_batch():
  rows = tiny.make_batch()
  rows |= {'tokens': jnp.where(rows['segment_ids'] > 0, rows['tokens'] % 40, 0)}
  rows |= tiny.make_counted(rows)
  return rows | {'row_weight': rows['row_weight'].at[2].set(0)}


def tables(tree):
  return [
    np.asarray(functools.reduce(lambda part, name: part[name], path.split('/'), tree)['table'], np.float64)
    for path in NAMES
  ]


def dict_of(values):
  """Parameters of these tables, as `tables` reads them."""
  trunk, *others = ({'table': value} for value in values)
  return {'trunk': {'token_embed': trunk}, **dict(zip(NAMES[1:], others, strict=True))}


def in_numpy(params, batch, *, x_max, alpha):
  """Cost and gradients of each pair in turn, as glove.c computes them."""
  words, others, biases, other_biases = tables(params)
  gradients = [np.zeros_like(table) for table in (words, others, biases, other_biases)]
  cost, number = 0.0, 0
  for row, place in np.ndindex(batch['tokens'].shape):
    count = float(batch['cooccurrence'][row, place])
    if not batch['segment_ids'][row, place] or not batch['row_weight'][row]:
      continue
    i, j = int(batch['tokens'][row, place]), int(batch['neighbours'][row, place])
    diff = words[i] @ others[j] + biases[i, 0] + other_biases[j, 0] - np.log(count)
    fdiff = diff if count > x_max else (count / x_max) ** alpha * diff
    cost, number = cost + 0.5 * fdiff * diff, number + 1
    gradients[0][i] += fdiff * others[j]
    gradients[1][j] += fdiff * words[i]
    gradients[2][i] += fdiff
    gradients[3][j] += fdiff
  return cost, number, gradients


@pytest.mark.parametrize('update', ['tables', 'rows'])
def test_loss_and_gradient_are_those_of_the_released_code(update):
  task, batch = make(x_max=5.0, alpha=0.6, update=update), make_batch()
  params = jax.tree.map(lambda leaf: 5 * leaf, tiny.init_params(task, batch))
  loss, gradient = tiny.loss_and_gradient(task, params, batch)
  cost, number, expected = in_numpy(params, batch, x_max=5.0, alpha=0.6)
  assert float(loss.value) == pytest.approx(cost, rel=1e-5) and float(loss.metrics['loss'][1]) == number > 25
  for ours, theirs in zip(tables(gradient), expected, strict=True):
    assert np.allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())


def test_a_pair_moves_its_vectors_as_in_the_released_code():
  """By glove.c's rule, whose rate is a part of what AdaGrad gathers; it divides by what was gathered before."""
  whole = make_batch()
  row, place = np.argwhere(np.asarray(whole['segment_ids'] > 0) & (np.asarray(whole['row_weight']) > 0)[:, None])[0]
  alone = np.zeros_like(whole['segment_ids'])
  alone[row, place] = 1
  batch = whole | {'segment_ids': jnp.asarray(alone), 'cooccurrence': jnp.full(alone.shape, 500.0)}
  task = make(update='rows')
  config = glove_experiment.get_config()
  tx = tiny.make_optimiser(task, batch, **config.optim)
  run, state = jax.jit(functools.partial(step.train_step, task=task, tx=tx)), tiny.make_state(task, batch, tx)
  theirs = tables(state.params)
  gathered = [np.full_like(table, config.optim.accumulator) for table in theirs]
  for count in range(20):
    _, _, gradients = in_numpy(dict_of(theirs), batch, x_max=config.objective.x_max, alpha=config.objective.alpha)
    for table, own, gradient in zip(theirs, gathered, gradients, strict=True):
      update = config.optim.rate * gradient
      table -= update / np.sqrt(own)
      own += update**2
    state, _ = run(state, batch, jax.random.key(count))
  start = tables(tiny.make_state(task, batch, tx).params)
  moved = [np.abs(table - before).max() for table, before in zip(theirs, start, strict=True)]
  assert min(moved) > 0.5
  for ours, expected in zip(tables(state.params), theirs, strict=True):
    assert np.allclose(ours, expected, atol=0.03 * np.abs(expected).max())


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


def test_learns_a_table_of_counts_of_low_rank():
  draw = np.random.default_rng(0)
  factors = draw.normal(size=(2, 40, 3))
  counts = np.exp(factors[0] @ factors[1].T / 2 + draw.normal(size=(40, 1)) / 2).astype(np.float32)
  word, other = np.divmod(np.arange(1600), 40)
  rows = {'tokens': word, 'neighbours': other, 'segment_ids': np.ones(1600), 'cooccurrence': counts.ravel()}
  batch = {key: jnp.asarray(value.reshape(20, 80), jnp.int32) for key, value in rows.items()}
  batch |= {'cooccurrence': jnp.asarray(counts.reshape(20, 80)), 'row_weight': jnp.ones(20)}
  batch |= {'row_id': jnp.arange(20), 'epoch': jnp.zeros(20, jnp.int32)}
  task = make(x_max=1.0)
  tx = tiny.make_optimiser(task, batch, name='adagrad', rate=0.3, accumulator=1.0)
  run, state = jax.jit(functools.partial(step.train_step, task=task, tx=tx)), tiny.make_state(task, batch, tx)
  for _ in range(400):
    state, metrics = run(state, batch, jax.random.key(0))
  constant = 0.5 * np.var(np.log(counts))  # of the best constant
  assert tiny.means(metrics)['loss'] < 0.01 * constant
  used = glove.word_table(state.params, VOCAB).vectors
  assert np.allclose(used, sum(tables(state.params)[:2]), atol=1e-6)
