"""Attention against the formula in float64, under every mask."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers.attention import attend, weights
from plm_jax.layers.masks import Mask, visible
from tests import tiny

PACKED = jnp.array([[1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2]])
MASKS = {
  'packed': Mask(PACKED, PACKED),
  'causal': Mask(PACKED, PACKED, causal=True),
  'window': Mask(PACKED, PACKED, causal=True, window=2),
  'prefix': Mask(PACKED, PACKED, causal=True, prefix=jnp.array([2, 4, 3])),
}


@functools.lru_cache
def operands(queries: int = 7, keys: int = 7, *, head_dim: int = 5):
  draw = np.random.default_rng(0)
  shapes = ((3, queries, 2, head_dim), (3, keys, 2, head_dim), (3, keys, 2, head_dim))
  return tuple(jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in shapes)


def formula(query, key, value, *, mask, bias=0.0, scale=None):
  query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
  scale = query.shape[-1] ** -0.5 if scale is None else scale
  seen = np.asarray(visible(mask))
  out = np.zeros((*query.shape[:3], value.shape[-1]))
  bias = np.broadcast_to(bias, (len(query), query.shape[2], query.shape[1], key.shape[1]))
  for row, place, head in np.ndindex(*query.shape[:3]):
    allowed = np.flatnonzero(seen[row, place])
    if allowed.size:
      logits = key[row, allowed, head] @ query[row, place, head] * scale + bias[row, head, place, allowed]
      share = np.exp(logits - logits.max())
      out[row, place, head] = share / share.sum() @ value[row, allowed, head]
  return out


@pytest.mark.parametrize('name', MASKS)
def test_equals_the_formula(name):
  mask = MASKS[name]
  assert tiny.worst(attend(*operands(), mask=mask), formula(*operands(), mask=mask)) < 1e-6


def test_bias_and_scale():
  bias = jax.random.normal(jax.random.key(0), (1, 2, 7, 7))
  mask = MASKS['causal']
  found = attend(*operands(), mask=mask, bias=bias, scale=0.3)
  assert tiny.worst(found, formula(*operands(), mask=mask, bias=np.asarray(bias, np.float64), scale=0.3)) < 1e-6


def test_queries_of_another_text():
  mask = Mask(jnp.array([[1, 1, 0], [1, 2, 2], [1, 1, 1]]), jnp.array([[1, 1, 1, 0], [1, 2, 2, 2], [2, 2, 2, 2]]))
  found = attend(*operands(3, 4), mask=mask)
  assert tiny.worst(found, formula(*operands(3, 4), mask=mask)) < 1e-6
  assert (np.asarray(found[2]) == 0).all()


def test_weights_add_up_to_one_or_to_nothing():
  query, key, _ = operands()
  shares = np.asarray(weights(query, key, mask=MASKS['packed']))
  assert shares.shape == (3, 2, 7, 7)
  real = np.asarray(PACKED > 0)
  np.testing.assert_allclose(shares.sum(-1)[np.broadcast_to(real[:, None], (3, 2, 7))], 1, atol=1e-6)
  assert (shares.sum(-1)[np.broadcast_to(~real[:, None], (3, 2, 7))] == 0).all()
  assert (shares[np.broadcast_to(~np.asarray(visible(MASKS['packed']))[:, None], shares.shape)] == 0).all()


@pytest.mark.parametrize('size', [1.0, 1e4])
def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients(size):
  nothing = jnp.zeros((3, 7), jnp.int32)
  some = nothing.at[0].set(1)
  for mask in (Mask(nothing, nothing), Mask(some, some)):
    scaled = tuple(x * size for x in operands())
    out, gradient = jax.value_and_grad(lambda args, mask=mask: jnp.square(attend(*args, mask=mask)).sum())(scaled)
    assert np.isfinite(out)
    assert all(np.isfinite(g).all() for g in gradient)
    assert (np.asarray(attend(*scaled, mask=mask))[1:] == 0).all()
    assert all((np.asarray(g)[1:] == 0).all() for g in gradient)


def test_gradient_equals_finite_differences_of_the_formula():
  mask = MASKS['window']
  query, key, value = operands()
  target = np.random.default_rng(1).normal(size=value.shape)
  gradients = jax.grad(lambda *args: (attend(*args, mask=mask) * target).sum(), argnums=(0, 1, 2))(query, key, value)
  for number, gradient in enumerate(gradients):
    for place in [(0, 1, 0, 2), (1, 4, 1, 0), (2, 5, 0, 4)]:
      shifted = []
      for sign in (1, -1):
        args = [np.array(x, np.float64) for x in (query, key, value)]
        args[number][place] += sign * 1e-5
        shifted.append((formula(*args, mask=mask) * target).sum())
      expected = (shifted[0] - shifted[1]) / 2e-5
      assert float(gradient[place]) == pytest.approx(expected, abs=2e-5)


def test_half_precision_keeps_its_type_and_sums_in_float32():
  args = tuple(x.astype(jnp.bfloat16) for x in operands())
  out = attend(*args, mask=MASKS['causal'])
  assert out.dtype == jnp.bfloat16
  assert weights(*args[:2], mask=MASKS['causal']).dtype == jnp.float32
  assert tiny.worst(out.astype(jnp.float32), formula(*args, mask=MASKS['causal'])) < 0.02


def test_dropout_acts_on_weights_and_needs_a_key():
  args = operands()
  plain = attend(*args, mask=MASKS['causal'])
  assert tiny.same(plain, attend(*args, mask=MASKS['causal'], dropout=0.5))
  dropped = [attend(*args, mask=MASKS['causal'], dropout=0.5, rng=jax.random.key(k)) for k in range(200)]
  assert not tiny.same(dropped[0], plain)
  # unbiased: 200 samples, whose deviation is about the size of the value
  assert np.abs(np.mean(dropped, axis=0) - plain).max() < 0.5
  # the first token of a row sees itself alone: all of its value twice, or nothing
  first = np.stack([np.asarray(d[1, 0]) for d in dropped])
  twice = np.isclose(first, 2 * np.asarray(args[2][1, 0])).all(axis=-1)
  assert (twice | (first == 0).all(axis=-1)).all()
  assert 0.35 < twice.mean() < 0.65
