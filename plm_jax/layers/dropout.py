"""Dropout from 16 random bits per element instead of 32, which halves the generator's work on a CPU."""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p

from plm_jax.core import sharding
from plm_jax.core.types import Array


def own_bits(rng: Array, shape: tuple[int, ...], dtype: Any, *, rows: bool = True) -> Array:
  """Sample random bits for the rows of this device.

  For rows that devices compute separately (`sharding.apart`), these are the bits that a single device would sample for
  them.

  Args:
    rng: a key.
    shape: of the result.
    dtype: an unsigned integer of up to 32 bits.
    rows: the first axis counts rows of the batch. False: all devices sample the same bits.
  """
  parts, part = sharding.apart() if rows else (1, 0)
  direct = math.prod(shape) < 2**32 and jax.random.key_impl(rng) == 'threefry2x32'
  if direct and (len(shape) > 1 if parts > 1 else sharding.one_cpu()):
    return _sample_part(rng, parts, part, shape, dtype)
  if parts == 1:
    return jax.random.bits(rng, shape, dtype)
  every = jax.random.bits(rng, (parts * shape[0], *shape[1:]), dtype)
  return jax.lax.dynamic_slice_in_dim(every, part * shape[0], shape[0])


def _bits(rng: Array, shape: tuple[int, ...], *, rows: bool) -> Array:
  """Sample uint16[shape] for the rows of this device, as `own_bits`."""
  if len(shape) != 1 or not rows:
    return _halves(functools.partial(own_bits, rng, rows=rows), shape)
  parts, part = sharding.apart()  # the halves of a [b] array are rows of the batch
  every = _halves(functools.partial(jax.random.bits, rng), (parts * shape[0],))
  return jax.lax.dynamic_slice_in_dim(every, part * shape[0], shape[0])


def _halves(draw: Callable[[tuple[int, ...], Any], Array], shape: tuple[int, ...]) -> Array:
  """Sample uint16[shape], two from each 32-bit word.

  `jax.random.bits` would use one word per element. The low halves come first, then the high halves, along the second
  to last axis. This axis is a length or the queries of attention, and devices seldom cut it. For shape [b, 4, d] and
  words w[b, 2, d] the rows are low(w[:, 0]), low(w[:, 1]), high(w[:, 0]), high(w[:, 1]). Halves that alternate within
  the last axis cost a TPU 2.4 times the cycles, because pairs of 16-bit numbers are a slow layout there.
  """
  axis = len(shape) - (2 if len(shape) > 2 else 1)  # the last axis of [b, d], since devices cut the rows
  if not shape or shape[axis] % 2:
    return draw(shape, jnp.uint16)
  # [b, 4, d]: words [b, 2, d] -> low halves [b, 2, d], then high halves [b, 2, d]
  words = draw((*shape[:axis], shape[axis] // 2, *shape[axis + 1 :]), jnp.uint32)
  return jnp.concatenate([words.astype(jnp.uint16), (words >> 16).astype(jnp.uint16)], axis)


def _sample_part(rng: Array, parts: int, part: Array | int, shape: tuple[int, ...], dtype: Any) -> Array:
  """Sample one of the `parts` parts that one device would sample.

  It is part `part` along the first axis of `jax.random.bits(rng, (parts * shape[0], ...), dtype)`. Element n of a
  threefry sample is the hash of the 64-bit number n, so the other parts need not be computed.
  """
  size = math.prod(shape)
  # 1. index n of each element: the index within the part, then the offset of the part
  low = jnp.zeros(shape, jnp.uint32)
  for axis in range(len(shape)):  # a sum over axes, since the compiler cannot divide a reshape between devices
    low += jnp.uint32(math.prod(shape[axis + 1 :])) * jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
  first = np.array([divmod(index * size, 2**32) for index in range(parts)], np.uint32)  # (high, low) of each part
  first_high, first_low = jnp.asarray(first)[part]
  low += first_low
  high = first_high + (low < first_low).astype(jnp.uint32)  # the carry
  # 2. hash n
  key_high, key_low = jax.random.key_data(rng)
  if sharding.one_cpu():
    return _hash(key_high, key_low, high, low).astype(dtype)
  words = threefry2x32_p.bind(*jnp.broadcast_arrays(key_high, key_low, high, low))
  return (words[0] ^ words[1]).astype(dtype)


@jax.jit
def _hash(key_high: Array, key_low: Array, high: Array, low: Array) -> Array:
  """Compute threefry2x32 in one loop over the elements (Salmon et al. 2011).

  JAX's primitive stores both words after every fourth round on a CPU, which takes 5 times as long and to compile.
  """
  keys = key_high, key_low, key_high ^ key_low ^ jnp.uint32(0x1BD11BDA)
  high, low = high + keys[0], low + keys[1]
  for index in range(5):
    for by in ((13, 15, 26, 6), (17, 29, 16, 24))[index % 2]:
      high = high + low
      low = high ^ ((low << by) | (low >> (32 - by)))
    high, low = high + keys[(index + 1) % 3], low + keys[(index + 2) % 3] + jnp.uint32(index + 1)
  return high ^ low


def cut_of(rate: float) -> int:
  """Compute the number of elements that a rate drops, of 65,536.

  Raises:
    ValueError: a rate outside of [0, 1).
  """
  cut = round(rate * 65536) if 0.0 <= rate < 1.0 else 65536
  if cut == 65536:
    raise ValueError(f'dropout rate {rate} is not in [0, 1), or rounds to 1 (rates are multiples of 2**-16)')
  return cut


def drop(x: Array, *, rate: float, rng: Array, rows: bool = True) -> Array:
  """Zero elements with probability `rate` and rescale the others.

  The rate is rounded to a multiple of 2**-16. The others are divided by 1 - rate with the rounded rate, so the mean is
  exact.

  Args:
    x: of any shape.
    rate: 0 <= rate < 1.
    rng: a key.
    rows: the first axis of x counts rows of the batch, or parts of them in order. False for arrays that all rows share,
      such as weights and tables.

  Raises:
    ValueError: a rate outside of [0, 1).
  """
  # keep 16-bit numbers from `cut` up: of 65,536 numbers, 65,536 - cut
  cut = cut_of(rate)
  keep = _bits(rng, x.shape, rows=rows) >= cut
  return jnp.where(keep, x * jnp.asarray(65536 / (65536 - cut), x.dtype), jnp.zeros((), x.dtype))


class Dropout(nn.Module):
  """`drop` with the module's 'dropout' stream; the identity outside training."""

  rate: float

  @nn.compact
  def __call__(self, x: Array, *, train: bool, rows: bool = True) -> Array:
    if not train or self.rate == 0.0:
      return x
    return drop(x, rate=self.rate, rng=self.make_rng('dropout'), rows=rows)


class LockedDropout(nn.Module):
  """Dropout with one sample for all tokens of a row: [b, l, d] (variational dropout, Gal and Ghahramani 2016)."""

  rate: float

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    # a mask [b, 1, d], the same for all tokens
    ones = jnp.ones((x.shape[0], 1, x.shape[2]), x.dtype)
    return x * Dropout(self.rate)(ones, train=train)
