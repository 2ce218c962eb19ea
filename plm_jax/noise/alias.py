"""Draws ids in proportion to their weights, each with 32 random bits and two look-ups (Walker 1977; Vose 1991).

Column i of v equally likely ones belongs to id i up to `accept[i]`, and to id `other[i]` above it:

  # weights  .5 .25 .25   accept  1 .75 .75   other  0 0 0
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Array


class Alias(NamedTuple):
  """A distribution over ids.

  Attributes:
    accept: f32[v], the share of column i that belongs to id i.
    other: int32[v], the id that the rest of column i belongs to.
  """

  accept: np.ndarray
  other: np.ndarray


def make(weights: np.ndarray) -> Alias:
  """The distribution in proportion to [v] `weights`, from 0 on; an id of weight 0 is never drawn.

  Raises:
    ValueError: no weight is above 0.
  """
  total = np.asarray(weights, np.float64).sum()
  if not total > 0:
    raise ValueError('nothing to draw: all weights are 0')
  left = np.asarray(weights, np.float64) * (len(weights) / total)
  accept, other = np.ones(len(left)), np.full(len(left), left.argmax())
  small, large = (list(np.flatnonzero(which)) for which in (left < 1, left >= 1))
  while small and large:
    taker, giver = small.pop(), large.pop()
    accept[taker], other[taker] = left[taker], giver
    left[giver] -= 1 - left[taker]
    (small if left[giver] < 1 else large).append(giver)
  for one in small:  # by rounding; an id of weight 0 is no such one
    accept[one] = float(weights[one] > 0)
  return Alias(accept.astype(np.float32), other.astype(np.int32))


def draw(key: Array, alias: Alias, shape: tuple[int, ...]) -> Array:
  """Independent ids, int32 of `shape`. What a column gives is right to 2^-31; word2vec.c's table has steps of 1e-8."""
  column, rest = _product(_bits(key, shape), len(alias.accept))
  column = column.astype(jnp.int32)
  place = (rest >> 8).astype(jnp.float32) * 2.0**-24  # in the column, from 0 on and below 1
  return jnp.where(place < jnp.asarray(alias.accept)[column], column, jnp.asarray(alias.other)[column])


def _bits(key: Array, shape: tuple[int, ...]) -> Array:
  """Random bits, uint32 of `shape`: both words of each new key, where `jax.random.bits` makes one of two words."""
  number = math.prod(shape)
  return jax.random.key_data(jax.random.split(key, -(-number // 2))).reshape(-1)[:number].reshape(shape)


def _product(bits: Array, size: int) -> tuple[Array, Array]:
  """The high and the low half of the 64 bits of `bits` times `size`, uint32 each, from products of 16 by 16 bits."""
  low, high = bits & 0xFFFF, bits >> 16
  size_low, size_high = jnp.uint32(size & 0xFFFF), jnp.uint32(size >> 16)
  first = high * size_low + (low * size_low >> 16)  # both below 2^32: no sum here runs over
  second = low * size_high + (first & 0xFFFF)
  return high * size_high + (first >> 16) + (second >> 16), bits * jnp.uint32(size)
