"""A mixture of objectives: what it draws, and that a drawn step is the step of that objective alone."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.config import build
from plm_jax.core.types import Labels
from plm_jax.noise import keys
from plm_jax.objectives import mixture, mlm
from plm_jax.training import step
from plm_jax.training.parts import check_labels
from tests import tiny

pytestmark = pytest.mark.turns

PARTS = {
  'bert': {'name': 'mlm'},
  'many': {'name': 'mlm', 'where': {'name': 'iid', 'rate': 0.5}, 'edit': {'name': 'to_mask'}},
}
KEY = jax.random.key(3)


@functools.cache
def make(bert: float = 3.0, many: float = 1.0):
  return mixture.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, parts=PARTS, rates={'bert': bert, 'many': many})


@functools.cache
def drawn(count: int) -> np.ndarray:
  task, batch = make(), tiny.make_batch()

  def draw(number):
    return task.prepare(keys.noise_root(KEY), keys.with_step(batch, number)).targets['drawn'][0]

  return np.asarray(jax.jit(jax.vmap(draw))(jnp.arange(count)))


@pytest.mark.parametrize('count', [4000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_parts_are_drawn_by_rate(count):
  counts = np.bincount(drawn(count), minlength=2)
  expected = count * np.array([0.75, 0.25])
  assert ((counts - expected) ** 2 / expected).sum() < 10.8  # chi-square, one degree of freedom, p = 0.001


def test_draws_do_not_follow_each_other():
  draws = drawn(4000)
  pairs = collections.Counter(zip(draws[:-1].tolist(), draws[1:].tolist(), strict=True))
  assert abs(pairs[1, 1] / (draws[:-1] == 1).sum() - 0.25) < 0.06  # 4.4 deviations


@pytest.mark.parametrize('number', [0, 1])
def test_a_drawn_step_is_that_of_the_part_alone(number):
  names = sorted(PARTS)
  at = int(np.flatnonzero(drawn(4000) == number)[0])
  batch, task = tiny.make_batch(), make()
  alone = build.make('objectives', PARTS[names[number]], trunk=tiny.make_trunk(), vocab=tiny.VOCAB)
  params = tiny.init_params(task, batch)

  def value(task, params):
    example = task.prepare(keys.noise_root(KEY), keys.with_step(batch, at))
    loss = task.loss(step.bind(task, params, train=False, rng=KEY), example, (), KEY)
    return loss.value, loss.metrics

  (ours, metrics), gradient = jax.jit(jax.value_and_grad(functools.partial(value, task), has_aux=True))(params)
  (theirs, wanted), other = jax.jit(jax.value_and_grad(functools.partial(value, alone), has_aux=True))(params)
  np.testing.assert_allclose(ours, theirs, rtol=1e-6)
  error, where = tiny.gradient_error(gradient, other)
  assert error < 1e-5, where
  for name, (total, weight) in wanted.items():
    np.testing.assert_allclose(metrics[f'{names[number]}/{name}'][0], total, rtol=1e-6)
    assert metrics[f'{names[1 - number]}/{name}'][1] == 0
    assert weight == metrics[f'{names[number]}/{name}'][1]


def test_evaluation_scores_every_part():
  batch, task = tiny.make_batch(), make()
  metrics, _ = step.eval_step(tiny.init_params(task, batch), batch, (), KEY, task=task)
  assert metrics['bert/loss'][1] > 0
  assert metrics['many/loss'][1] > metrics['bert/loss'][1]
  assert metrics['loss'][1] == metrics['bert/loss'][1] + metrics['many/loss'][1]


def test_parameters_in_common_exist_once():
  task, batch = make(), tiny.make_batch()
  alone = mlm.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB)
  assert jax.tree.structure(tiny.init_params(task, batch)) == jax.tree.structure(tiny.init_params(alone, batch))


@pytest.mark.parametrize(('rates', 'message'), [({'bert': 1.0}, r'parts'), ({'bert': 1.0, 'many': 0.0}, 'many.*0')])
def test_wrong_rates_are_refused(rates, message):
  with pytest.raises(ValueError, match=message):
    mixture.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, parts=PARTS, rates=rates)


@functools.cache
def by_part():
  return mixture.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, parts=PARTS)


@pytest.mark.parametrize('number', [0, 1])
def test_without_rates_a_step_is_that_of_the_part_of_its_rows(number):
  name, task, other = sorted(PARTS)[number], by_part(), make()
  batch = {**tiny.make_batch(), 'part': jnp.full(4, number, jnp.int32)}
  at = int(np.flatnonzero(drawn(4000) == number)[0])  # where the mixture by rate draws the same part
  params = tiny.init_params(task, batch)

  def value(task, params):
    example = task.prepare(keys.noise_root(KEY), keys.with_step(batch, at))
    loss = task.loss(step.bind(task, params, train=False, rng=KEY), example, (), KEY)
    return loss.value, loss.metrics

  ours, theirs = (jax.jit(functools.partial(value, one))(params) for one in (task, other))
  same = functools.partial(np.testing.assert_allclose, rtol=1e-6)  # two programs, whose sums a CPU may order otherwise
  jax.tree.map(same, ours, theirs)
  assert ours[1][f'{name}/loss'][1] > 0
  metrics, _ = step.eval_step(params, batch, (), KEY, task=task)
  assert (metrics['bert/loss'][1] > 0, metrics['many/loss'][1] > 0) == (number == 0, number == 1)


def test_without_rates_the_data_need_the_same_parts():
  check_labels(make(), Labels(), path='data')
  with pytest.raises(ValueError, match=r'\bparts bert, many'):
    check_labels(by_part(), Labels(), path='data')
  check_labels(by_part(), Labels(parts=dict.fromkeys(PARTS, Labels())), path='data')
