"""Sampling ids in proportion to their weights, with 32 random bits and two look-ups each (Walker 1977; Vose 1991).

There are v equally likely columns. Column i belongs to id i up to `accept[i]`, and to id `other[i]` above it:

  # weights  .5 .25 .25   accept  1 .75 .75   other  0 0 0
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Array


class Alias(NamedTuple):
  """A distribution over ids."""

  accept: np.ndarray  # f32[v], the share of column i that belongs to id i
  other: np.ndarray  # int32[v], the id of the rest of column i


def make(weights: np.ndarray) -> Alias:
  """Build the distribution in proportion to [v] `weights`.

  An id of weight 0 is never sampled.

  Raises:
    ValueError: no weight is above 0.
  """
  total = np.asarray(weights, np.float64).sum()
  if not total > 0:
    raise ValueError('cannot sample: all weights are 0')
  # 1. the weight of each id in units of a column
  left = np.asarray(weights, np.float64) * (len(weights) / total)
  accept, other = np.ones(len(left)), np.full(len(left), left.argmax())
  # 2. fill each column below 1 from an id above 1
  small, large = (list(np.flatnonzero(which)) for which in (left < 1, left >= 1))
  while small and large:
    taker, giver = small.pop(), large.pop()
    accept[taker], other[taker] = left[taker], giver
    left[giver] -= 1 - left[taker]
    (small if left[giver] < 1 else large).append(giver)
  # 3. columns that rounding left below 1 are full, unless their id has weight 0
  for column in small:
    accept[column] = float(weights[column] > 0)
  return Alias(accept=accept.astype(np.float32), other=other.astype(np.int32))


def draw(key: Array, alias: Alias, shape: tuple[int, ...]) -> Array:
  """Sample independent ids, int32 of `shape`.

  The id within a column is exact to 2^-31. The table of word2vec.c has steps of 1e-8.
  """
  column, rest = _product(_bits(key, shape), len(alias.accept))
  column = column.astype(jnp.int32)
  height = (rest >> 8).astype(jnp.float32) * 2.0**-24  # position in the column, in [0, 1)
  return jnp.where(height < jnp.asarray(alias.accept)[column], column, jnp.asarray(alias.other)[column])


def _bits(key: Array, shape: tuple[int, ...]) -> Array:
  """Sample random bits, uint32 of `shape`."""
  # uses both words of each new key, where `jax.random.bits` turns two words into one
  count = math.prod(shape)
  return jax.random.key_data(jax.random.split(key, -(-count // 2))).reshape(-1)[:count].reshape(shape)


def _product(bits: Array, size: int) -> tuple[Array, Array]:
  """Multiply `bits` by `size` into 64 bits.

  Returns the high and the low half, uint32 each. Uses products of 16 by 16 bits.
  """
  low, high = bits & 0xFFFF, bits >> 16
  size_low, size_high = jnp.uint32(size & 0xFFFF), jnp.uint32(size >> 16)
  first = high * size_low + (low * size_low >> 16)  # both below 2^32: no sum overflows
  second = low * size_high + (first & 0xFFFF)
  return high * size_high + (first >> 16) + (second >> 16), bits * jnp.uint32(size)
