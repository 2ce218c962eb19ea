"""Cross-entropy against its formula, whole and in chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers.losses import chunked_cross_entropy, cross_entropy, most_likely, smoothed_cross_entropy
from tests import tiny


def formula(logits, targets):
  logits = np.asarray(logits, np.float64)
  shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
  shares /= shares.sum(axis=-1, keepdims=True)
  return -np.log(np.take_along_axis(shares, np.asarray(targets)[..., None], axis=-1)[..., 0])


def test_equals_the_formula():
  draw = np.random.default_rng(0)
  logits, targets = draw.normal(0, 4, (3, 5, 17)), draw.integers(0, 17, (3, 5))
  assert tiny.worst(cross_entropy(jnp.asarray(logits), jnp.asarray(targets)), formula(logits, targets)) < 1e-6


@pytest.mark.parametrize('smoothing', [0.0, 0.1, 1.0])
def test_smoothed_targets_are_a_mixture_with_the_uniform_ones(smoothing):
  draw = np.random.default_rng(1)
  logits, targets = draw.normal(0, 3, (4, 5)).astype(np.float32), draw.integers(0, 5, 4)
  logs = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=-1, keepdims=True))
  wanted = (1 - smoothing) * np.eye(5)[targets] + smoothing / 5
  nats, smoothed = smoothed_cross_entropy(jnp.asarray(logits), jnp.asarray(targets), smoothing=smoothing)
  np.testing.assert_allclose(nats, formula(logits, targets), rtol=1e-5)
  np.testing.assert_allclose(smoothed, -(wanted * logs).sum(axis=-1), rtol=1e-5)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_most_likely_is_the_first_of_the_largest_logits(dtype):
  draw = np.random.default_rng(0)
  logits = jnp.asarray(draw.integers(0, 4, (50, 7)), dtype)  # many are equal
  targets = jnp.asarray(draw.integers(0, 7, 50))
  found = jax.jit(most_likely)(logits, targets)
  np.testing.assert_array_equal(found, np.asarray(logits, np.float32).argmax(axis=-1) == targets)
  assert found.any() and not found.all()


@pytest.mark.parametrize('place', [0, 1, 2])
def test_nothing_is_most_likely_beside_what_is_not_a_number(place):
  logits = jnp.array([1.0, 3.0, 2.0]).at[place].set(jnp.nan)
  assert not any(most_likely(logits, jnp.array(target)) for target in range(3))


def test_uniform_logits_cost_the_log_of_the_vocabulary():
  assert float(cross_entropy(jnp.full((1, 50257), 3.0), jnp.array([7]))[0]) == pytest.approx(np.log(50257), rel=1e-6)


def test_large_logits_stay_finite_and_gradients_are_the_shares_less_the_target():
  logits = jnp.array([[1e4, -1e4, 1e4], [0.0, 1.0, 2.0]])
  targets = jnp.array([0, 2])
  np.testing.assert_allclose(cross_entropy(logits, targets), [np.log(2), 0.407606], rtol=1e-5)
  gradient = jax.grad(lambda x: cross_entropy(x, targets).sum())(logits)
  np.testing.assert_allclose(gradient, jax.nn.softmax(logits) - jax.nn.one_hot(targets, 3), atol=1e-6)


def test_half_precision_logits_are_summed_in_float32():
  logits = jax.random.normal(jax.random.key(0), (4, 5000)).astype(jnp.bfloat16)
  nats = cross_entropy(logits, jnp.arange(4))
  assert nats.dtype == jnp.float32
  assert tiny.worst(nats, formula(logits, np.arange(4))) < 1e-6


@pytest.mark.parametrize(('batch', 'rows'), [(1, 1), (7, 8), (6, 4), (11, 8), (9, 3)])
def test_chunks_change_neither_values_nor_gradients(batch, rows):
  draw = np.random.default_rng(batch)
  features = jnp.asarray(draw.normal(size=(batch, 3, 6)), jnp.float32)
  table = jnp.asarray(draw.normal(size=(13, 6)), jnp.float32)
  targets, weights = jnp.asarray(draw.integers(0, 13, (batch, 3))), jnp.asarray(draw.random((batch, 3)))

  def chunked(features, table):
    nats, correct = chunked_cross_entropy(lambda part: part @ table.T, features, targets, rows=rows)
    return (nats * weights).sum(), (nats, correct)

  def whole(features, table):
    logits = features @ table.T
    return (cross_entropy(logits, targets) * weights).sum(), (cross_entropy(logits, targets), logits)

  ours, gradient = jax.jit(jax.value_and_grad(chunked, argnums=(0, 1), has_aux=True))(features, table)
  theirs, expected = jax.jit(jax.value_and_grad(whole, argnums=(0, 1), has_aux=True))(features, table)
  assert tiny.worst((ours[0], ours[1][0]), (theirs[0], theirs[1][0])) < 1e-6
  assert tiny.worst(gradient, expected) < 1e-5
  assert tiny.same(ours[1][1], (theirs[1][1].argmax(-1) == targets).astype(jnp.float32))


def test_chunks_bound_how_many_logits_exist_at_a_time():
  def peak(rows: int) -> int:
    def loss(features, table):
      return chunked_cross_entropy(lambda part: part @ table.T, features, jnp.zeros((16, 8), int), rows=rows)[0].sum()

    shapes = (jax.ShapeDtypeStruct((16, 8, 4), jnp.float32), jax.ShapeDtypeStruct((4000, 4), jnp.float32))
    return jax.jit(jax.grad(loss, argnums=1)).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

  logits = 16 * 8 * 4000 * 4
  assert peak(16) >= logits
  assert peak(2) < logits
