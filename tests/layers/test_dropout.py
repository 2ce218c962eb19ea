"""Dropout: rate, mean, determinism."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

from plm_jax.core import sharding
from plm_jax.layers.dropout import Dropout, _sample_part, drop, own_bits
from tests import tiny


@pytest.mark.parametrize('rate', [0.1, 0.5, 0.9])
def test_rate_and_mean(rate):
  y = np.asarray(drop(jnp.ones((1000, 1000)), rate=rate, rng=jax.random.key(0)))
  zeros = (y == 0).mean()
  deviation = np.sqrt(rate * (1 - rate) / y.size)
  assert abs(zeros - rate) < 4 * deviation + 2**-17
  kept = np.unique(y[y > 0])
  assert kept.size == 1
  assert kept[0] == pytest.approx(1 / (1 - rate), rel=1e-3)
  # the rate is rounded to 1/65536 and the divisor with it
  assert kept[0] * (1 - round(rate * 65536) / 65536) == pytest.approx(1, rel=1e-6)
  assert y.mean() == pytest.approx(1, abs=5 * deviation / (1 - rate))


@pytest.mark.parametrize('shape', [(300, 301), (1,), (7, 1), (5, 3, 100)])
def test_any_shape_has_the_rate(shape):
  kept = np.mean([np.asarray(drop(jnp.ones(shape), rate=0.25, rng=jax.random.key(k))) > 0 for k in range(40)])
  assert kept == pytest.approx(0.75, abs=4 * np.sqrt(0.1875 / (40 * np.prod(shape))))


@pytest.mark.parametrize('width', [64, 63])
def test_positions_are_independent(width):
  y = np.asarray(drop(jnp.ones((2000, width)), rate=0.5, rng=jax.random.key(1))) > 0
  for axis in (0, 1):
    together = (y & np.roll(y, 1, axis=axis)).mean()
    assert together == pytest.approx(0.25, abs=4 * 0.5 / np.sqrt(y.size))


def test_same_key_same_bits_and_other_key_others():
  x = jax.random.normal(jax.random.key(0), (64, 64))
  first, again, other = (drop(x, rate=0.3, rng=jax.random.key(k)) for k in (1, 1, 2))
  assert tiny.same(first, again)
  assert not tiny.same(first, other)
  jitted = jax.jit(lambda x, rng: drop(x, rate=0.3, rng=rng))(x, jax.random.key(1))
  assert tiny.same(first, jitted)


@pytest.mark.parametrize('shape, axis', [((4, 6, 10), 1), ((2, 3, 8, 8), 2), ((5, 8), 1)])
@pytest.mark.parametrize('impl', ['threefry2x32', 'rbg'])
def test_order_of_the_bits(shape, axis, impl):
  """Check the order low halves, high halves, on which resumed runs rely."""
  key = jax.random.key(3, impl=impl)
  words = np.asarray(jax.random.bits(key, tuple(n // 2 if i == axis else n for i, n in enumerate(shape)), 'uint32'))
  expected = np.concatenate([words % 2**16, words // 2**16], axis) >= round(0.3 * 2**16)
  assert tiny.same(np.asarray(drop(jnp.ones(shape), rate=0.3, rng=key)) > 0, expected)


@pytest.mark.skipif(jax.device_count() != 4, reason='needs four (simulated) devices')
@pytest.mark.parametrize('shape', [(8, 6, 10), (8, 2, 8, 8), (8, 6), (8, 5), (8, 3, 7), (8,)])
@pytest.mark.parametrize('impl', ['threefry2x32', 'rbg'])
def test_rows_that_devices_compute_apart_drop_out_as_on_one(shape, impl):
  x, key = jnp.ones(shape), jax.random.key(3, impl=impl)

  def dropped(x, key):
    table = drop(jnp.ones((3, 4)), rate=0.5, rng=key, rows=False)  # the same on all devices
    return table, drop(x, rate=0.3, rng=key)

  layout = sharding.make_layout(sharding.make_mesh({'data': 4}), 'data')
  with sharding.use(layout):
    tables, apart = jax.jit(lambda x, key: sharding.sum_over_devices(dropped, x, key, parts=1))(x, key)
  table, alone = dropped(x, key)
  assert tiny.same(apart, alone)
  assert tiny.same(tables, 4 * table)


def test_bits_beyond_the_first_32_bits_of_the_count():
  """Compare a late device with jax's own hash of 64-bit numbers."""
  key, parts, shape = jax.random.key(5), 2**16, (3, 2**15 + 1)
  size, place = math.prod(shape), 43_689  # its first number is below 2**32, its last above
  numbers = place * size + np.arange(size, dtype=np.uint64)
  assert numbers[0] < 2**32 <= numbers[-1]
  halves = np.concatenate([numbers >> 32, numbers % 2**32]).astype(np.uint32)
  hashed = threefry_2x32(jax.random.key_data(key), jnp.asarray(halves))
  expected = (hashed[:size] ^ hashed[size:]).reshape(shape)
  assert tiny.same(_sample_part(key, parts, jnp.int32(place), shape, jnp.uint32), expected)


@pytest.mark.parametrize('shape', [(), (7,), (4, 6), (2, 3, 4, 5)])
@pytest.mark.parametrize('dtype', [jnp.uint8, jnp.uint16, jnp.uint32])
def test_one_cpu_hashes_the_bits_of_jax_in_one_loop(shape, dtype):
  sample = jax.jit(lambda key: own_bits(key, shape, dtype))
  assert tiny.same(sample(jax.random.key(9)), jax.random.bits(jax.random.key(9), shape, dtype))
  assert ' while(' not in sample.lower(jax.random.key(9)).compile().as_text()


def test_gradient_passes_where_a_value_passes():
  x = jnp.ones((8, 8))
  y = drop(x, rate=0.5, rng=jax.random.key(0))
  assert tiny.same(jax.grad(lambda x: drop(x, rate=0.5, rng=jax.random.key(0)).sum())(x), y)


def test_type_is_kept_and_the_faster_generator_serves():
  x = jnp.ones((512, 512), jnp.bfloat16)
  y = drop(x, rate=0.1, rng=jax.random.key(0, impl='rbg'))
  assert y.dtype == jnp.bfloat16
  assert float((y == 0).mean()) == pytest.approx(0.1, abs=0.005)


def test_module_is_the_identity_outside_training():
  x = jnp.ones((4, 4))
  assert tiny.same(Dropout(0.5).apply({}, x, train=False), x)
  assert tiny.same(Dropout(0.0).apply({}, x, train=True), x)
  assert not tiny.same(Dropout(0.5).apply({}, x, train=True, rngs={'dropout': jax.random.key(0)}), x)


@pytest.mark.parametrize('rate', [-0.1, 1.0, 1.5])
def test_a_rate_out_of_range_is_refused(rate):
  with pytest.raises(ValueError, match=r'\[0, 1\)'):
    drop(jnp.ones(3), rate=rate, rng=jax.random.key(0))


@pytest.mark.parametrize('rate', [-0.1, 1.0, 0.999995])
def test_a_rate_that_leaves_nothing_is_refused(rate):
  with pytest.raises(ValueError, match=f'rate.*{rate}'):
    drop(jnp.ones(4), rate=rate, rng=jax.random.key(0))
