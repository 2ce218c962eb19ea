"""Distillation on a task: two formulas of its loss, a teacher that keeps every bit, the student alone elsewhere."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import distil
from plm_jax.config import build
from plm_jax.layers.losses import divergence
from plm_jax.training import step
from tests import tiny

CLASSIFY = {'name': 'classify', 'classes': 3, 'dropout': 0.0}
NUMBER = {'name': 'classify', 'kind': 'regression', 'dropout': 0.0}
TEACHER = {'name': 'bert', 'variant': 'tiny', 'overrides': tiny.SIZES}
BATCH = tiny.make_batch()
KEY = jax.random.key(0)
INPUTS = {name: BATCH[name] for name in ('tokens', 'segment_ids', 'type_ids')}


def make(inner=CLASSIFY, **settings):
  trunk = tiny.make_trunk('bert', num_layers=1)
  return distil.make(trunk=trunk, vocab=tiny.VOCAB, inner=inner, teacher=TEACHER, **settings)


def outputs(params, *, layers, inner=CLASSIFY):
  task = build.make('adapters', inner, trunk=tiny.make_trunk('bert', num_layers=layers), vocab=tiny.VOCAB)
  return np.asarray(task.model.apply({'params': params}, **INPUTS)[0], np.float64)


def log_softmax(logits):
  return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def test_the_loss_equals_its_formula():
  task = make(temperature=3.0, weight=0.25)
  params = tiny.init_params(task, BATCH)
  loss, _ = tiny.loss_and_gradient(task, params, BATCH)
  student, teacher = outputs(params, layers=1), outputs(params['distil'], layers=2)
  label = np.asarray(BATCH['label'])
  nats = -log_softmax(student)[np.arange(4), label].mean()
  ours, theirs = log_softmax(student / 3), log_softmax(teacher / 3)
  divergence = 9 * (np.exp(theirs) * (theirs - ours)).sum(axis=-1).mean()
  np.testing.assert_allclose(loss.value, 0.75 * nats + 0.25 * divergence, rtol=1e-5)
  found = tiny.means(loss.metrics)
  np.testing.assert_allclose(
    [found['task_loss'], found['distil_loss'], found['loss']], [nats, divergence, loss.value], rtol=1e-5
  )


def test_numbers_are_compared_by_their_square():
  task = make(NUMBER, weight=1.0)
  batch = {**BATCH, 'label': BATCH['label'].astype(jnp.float32)}
  params = tiny.init_params(task, batch)
  loss, _ = tiny.loss_and_gradient(task, params, batch)
  values = [outputs(own, layers=layers, inner=NUMBER)[:, 0] for own, layers in ((params, 1), (params['distil'], 2))]
  np.testing.assert_allclose(loss.value, jnp.square(values[0] - values[1]).mean(), rtol=1e-5)


def test_the_teacher_keeps_every_bit_and_has_no_moments():
  task = make()
  tx = tiny.make_optimiser(task, BATCH, rate=1e-2, decay=0.1)
  first = state = tiny.make_state(task, BATCH, tx)
  update = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  for _ in range(2):
    state, _ = update(state, BATCH, KEY)
  assert tiny.same(state.params['distil'], first.params['distil'])
  assert not tiny.same(state.params['head'], first.params['head'])
  assert jax.tree.leaves(tx.split(state.params)[0]['distil']) == []


def test_it_is_scored_as_the_student_alone():
  task = make()
  params = tiny.init_params(task, BATCH)
  alone = {name: tree for name, tree in params.items() if name != 'distil'}
  plain = build.make('adapters', CLASSIFY, trunk=tiny.make_trunk('bert', num_layers=1), vocab=tiny.VOCAB)
  both = [
    jax.jit(functools.partial(step.predicting_step, task=one))(own, BATCH, (), KEY)
    for one, own in ((task, params), (plain, alone))
  ]
  assert tiny.same(both[0][0], both[1][0]) and tiny.same(both[0][2], both[1][2])


@pytest.mark.parametrize(
  'inner', [{'name': 'mlm'}, {'name': 'tag', 'tags': ('A', 'B')}, {'name': 'rtd', 'sampling': 'uniform'}]
)
def test_a_task_without_rows_to_compare_is_refused(inner):
  with pytest.raises(ValueError, match=f"adapter.inner.name='{inner['name']}'.*choose, "):
    make(inner)


@pytest.mark.parametrize('temperature', [1.0, 50.0, 1e6])
def test_an_option_that_a_row_does_not_have_stays_without_a_share(temperature):
  student, teacher = jnp.array([[0.5, 2.0, -1.0, -1e30]]), jnp.array([[3.0, 0.0, 1.0, -1e30]])
  shares = [jax.nn.softmax(logits) for logits in (student, teacher)]
  found = divergence(*distil.to_logits(*shares, temperature=temperature), temperature=temperature)
  expected = divergence(student[:, :3], teacher[:, :3], temperature=temperature)
  # T^2 times a sum of differences of size 1 / T: what float32 leaves of it
  np.testing.assert_allclose(found / temperature**2, expected / temperature**2, rtol=1e-3, atol=1e-7)
