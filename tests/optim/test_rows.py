"""Tables updated by few rows: the same as whole ones, with ids that are there several times, in parts, on devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core import param_paths, sharding
from plm_jax.core.errors import ConfigError
from plm_jax.models import static
from plm_jax.noise import keys
from plm_jax.objectives import skipgram
from plm_jax.optim import rows
from plm_jax.training import step
from tests import tiny

pytestmark = pytest.mark.turns

VOCAB = tiny.FakeVocab(size=200)
RULES = {'sgd': {'rate': 0.05}, 'adagrad': {'rate': 0.1, 'accumulator': 1.0}}


def make_task(update, **settings):
  trunk = static.make(vocab_size=VOCAB.size, variant='tiny', overrides={'hidden_dim': 8})
  settings = {'window': 2, 'negatives': 2, 'subsample': 0.0, 'update': update} | settings
  return skipgram.make(trunk=trunk, vocab=VOCAB, **settings)


def trained(update, rule, *, clip=None, accumulate=1, steps=3, places=None, batch=None, **settings):
  """The state and the metrics after some steps."""
  batch, task = batch or tiny.make_batch(), make_task(update, **settings)
  tx = tiny.make_optimiser(task, batch, name=rule, clip=clip, **RULES[rule])
  state = tiny.make_state(task, batch, tx)
  run = jax.jit(functools.partial(step.train_step, task=task, tx=tx, accumulate=accumulate))
  if places is not None:
    state = jax.device_put(state, step.state_maker(task, tx, tiny.spec(batch), layout=places).places)
  for _ in range(steps):
    state, metrics = run(state, batch, jax.random.key(1))
  return state, metrics


def test_finds_each_row_once():
  table = jnp.arange(12.0).reshape(6, 2)
  found = rows.find({'a/table': jnp.array([[3, 1], [3, 1]])}, {'a': {'table': table}})
  assert found['a/table'].tolist() == [1, 3, 6, 6]
  least = rows.find({'a/table': jnp.array([5, 0, 5, 0, 5, 5, 0, 2])}, {'a': {'table': table}})['a/table']
  assert least.tolist() == [0, 2, 5, 6, 6, 6]  # no more than the table has
  tree = {'a': {'table': table}, 'b': jnp.ones(6)}
  small = rows.take(tree, found)
  assert small['a']['table'].tolist() == [[2, 3], [6, 7], [0, 0], [0, 0]] and small['b'].shape == (6,)
  back = rows.put(tree, {'a': {'table': small['a']['table'] + 1}, 'b': jnp.zeros(6)}, found)
  expected = np.arange(12.0).reshape(6, 2)
  expected[[1, 3]] += 1
  assert np.array_equal(back['a']['table'], expected) and not back['b'].any()
  with pytest.raises(ValueError, match=r"'c'.*objective.update='tables'.*a/table"):
    rows.find({'c': jnp.array([1])}, {'a': {'table': table}})


def test_a_step_has_no_array_with_a_position_for_each_row():
  read, size = jnp.zeros(64, jnp.int32), 5003
  found = jax.make_jaxpr(rows.find)({'table': read}, {'table': jnp.zeros((size, 4))})
  assert not [line for line in found.eqns for out in line.outvars if size in out.aval.shape]
  vocab = tiny.FakeVocab(size=size)
  trunk = static.make(vocab_size=size, variant='tiny', overrides={'hidden_dim': 8})
  task, batch = skipgram.make(trunk=trunk, vocab=vocab, update='rows'), tiny.make_batch()
  tx = tiny.make_optimiser(task, batch, name='sgd', rate=0.05)
  step_of = jax.jit(functools.partial(step.train_step, task=task, tx=tx), donate_argnums=0)
  text = step_of.lower(tiny.make_state(task, batch, tx), batch, jax.random.key(1)).compile().as_text()
  made = {line.split(' = ')[1].split('(')[0].split()[-1] for line in text.splitlines() if f' = f32[{size},8]' in line}
  assert 'parameter' in made and not [kind for kind in made if kind.startswith('copy')], made


@pytest.mark.parametrize(('rule', 'architecture'), [('sgd', 'cbow'), ('adagrad', 'skipgram')])
def test_rows_are_updated_as_whole_tables_are(rule, architecture):
  (few, few_metrics), (whole, metrics) = (
    trained(update, rule, clip=0.5, architecture=architecture) for update in ('rows', 'tables')
  )
  assert tiny.worst(few.params, whole.params) < 1e-5 and tiny.worst(few.opt_state, whole.opt_state) < 1e-5
  ours, theirs = tiny.means(few_metrics), tiny.means(metrics)
  same = [name for name in theirs if name in ours]
  # a table of which few rows are read has no norm of its own
  assert {*theirs} - {*ours} == {name for name in theirs if name.startswith('parameter_norm')}
  assert {name: ours[name] for name in same} == pytest.approx({name: theirs[name] for name in same}, rel=1e-5)


def test_untouched_rows_keep_their_bits():
  task = make_task('rows')
  batch = tiny.make_batch()
  tx = tiny.make_optimiser(task, batch, name='adagrad', **RULES['adagrad'])
  before = tiny.make_state(task, batch, tx)
  after, _ = jax.jit(functools.partial(step.train_step, task=task, tx=tx))(before, batch, jax.random.key(1))
  changed = np.asarray(before.params['trunk']['token_embed']['table'] != after.params['trunk']['token_embed']['table'])
  read = np.unique(batch['tokens'])
  assert changed.any(axis=1).sum() > 10 and set(np.flatnonzero(changed.any(axis=1))) <= set(read.tolist())


def test_adagrad_gathers_the_squares_of_each_row_by_itself():
  task, batch = make_task('rows', negatives=1), tiny.make_batch()
  real = batch['segment_ids'] > 0
  halves = [jnp.where(real, first + batch['tokens'] % 90, 0) for first in (10, 105)]  # no word is in both
  tx = tiny.make_optimiser(task, batch, name='adagrad', **RULES['adagrad'])
  state, seen = tiny.make_state(task, batch, tx), []
  run = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  expected = np.full((VOCAB.size, 8), 1.0)  # `accumulator`
  for number, tokens in enumerate(halves):
    rows_of_step = batch | {'tokens': tokens}
    example = task.prepare(keys.noise_root(jax.random.key(1)), keys.with_step(rows_of_step, number))

    def loss_of(params, example=example):
      forward = step.bind(task, params, train=True, rng=jax.random.key(0))
      return task.loss(forward, example, (), jax.random.key(0)).value

    gradient = jax.grad(loss_of)(state.params)['trunk']['token_embed']['table']
    expected += np.square(np.asarray(gradient, np.float64))
    seen.append(np.unique(tokens[real]))
    before, (state, _) = gathered(state), run(state, rows_of_step, jax.random.key(1))
    others = np.setdiff1d(np.arange(VOCAB.size), seen[-1])
    assert np.array_equal(gathered(state)[others], before[others])
    assert (gathered(state)[seen[-1]] > before[seen[-1]]).any(axis=1).mean() > 0.9
  assert not set(seen[0]) & set(seen[1])
  assert np.allclose(gathered(state), expected, rtol=1e-6, atol=0)


def gathered(state):
  """AdaGrad's sums for the table of words, f32[v, d]."""
  leaves = param_paths.flat(state.opt_state)
  (name,) = (name for name in leaves if 'sum_of_squares' in name and name.endswith('trunk/token_embed/table'))
  return np.asarray(leaves[name])


def test_rows_in_parts():
  one, four = (trained('rows', 'adagrad', accumulate=count)[0] for count in (1, 4))
  assert tiny.worst(four.params, one.params) < 1e-5


@pytest.mark.skipif(jax.device_count() < 4, reason='needs four devices')
def test_rows_on_devices():
  layout = sharding.make_layout(sharding.make_mesh({'data': 2, 'model': 2}), 'fsdp_tensor')
  with sharding.use(layout):
    many = trained('rows', 'adagrad', places=layout)[0]
  assert tiny.worst(many.params, trained('tables', 'adagrad')[0].params) < 1e-5


def test_an_update_that_is_not_finite_changes_no_row():
  task, batch = make_task('rows'), tiny.make_batch()
  tx = tiny.make_optimiser(task, batch, name='adagrad', **RULES['adagrad'])
  state = tiny.make_state(task, batch, tx)
  state.params['output']['table'] = state.params['output']['table'].at[10:].set(jnp.nan)
  after, _ = jax.jit(functools.partial(step.train_step, task=task, tx=tx))(state, batch, jax.random.key(1))
  assert int(after.skipped) == 1
  for new, old in zip(jax.tree.leaves(after.params), jax.tree.leaves(state.params), strict=True):
    assert np.array_equal(new, old, equal_nan=True)


@pytest.mark.parametrize(
  ('settings', 'said'),
  [
    ({'name': 'lamb'}, r"optim\.name='lamb'.*sgd or adagrad"),
    ({'name': 'adafactor'}, "optim.name='adafactor'"),
    ({'name': 'adamw'}, "optim.name='adamw'"),
    ({'name': 'sgd', 'decay': 0.1}, 'trunk/token_embed/table.*optim.decay'),
    ({'name': 'sgd', 'ema': 0.9}, 'trunk/token_embed/table.*average'),
  ],
)
def test_what_needs_whole_tables_is_refused(settings, said):
  task, batch = make_task('rows'), tiny.make_batch()
  tx = tiny.make_optimiser(task, batch, **settings)
  state = dataclasses.replace(tiny.make_state(task, batch, tx))
  with pytest.raises(ConfigError, match=said):
    jax.eval_shape(functools.partial(step.train_step, task=task, tx=tx), state, batch, jax.random.key(1))
