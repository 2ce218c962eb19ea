"""Dropout from 16 random bits per element: half of the generator's work for the usual 32, which matters on a CPU."""

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
  """Random bits; of rows that devices compute apart (`sharding.apart`), those that one device alone would draw.

  Args:
    rng: a key.
    shape: of what is drawn here.
    dtype: an unsigned integer of up to 32 bits.
    rows: the first axis counts rows of the batch; else all devices draw the same.
  """
  parts, place = sharding.apart() if rows else (1, 0)
  if parts == 1:
    return jax.random.bits(rng, shape, dtype)
  if len(shape) > 1 and math.prod(shape) < 2**32 and jax.random.key_impl(rng) == 'threefry2x32':
    return _counted(rng, parts, place, shape, dtype)
  every = jax.random.bits(rng, (parts * shape[0], *shape[1:]), dtype)
  return jax.lax.dynamic_slice_in_dim(every, place * shape[0], shape[0])


def _bits(rng: Array, shape: tuple[int, ...], *, rows: bool) -> Array:
  """uint16[shape], as `own_bits` has them."""
  if len(shape) != 1 or not rows:
    return _halves(functools.partial(own_bits, rng, rows=rows), shape)
  parts, place = sharding.apart()  # of [b] the halves are rows of the batch
  every = _halves(functools.partial(jax.random.bits, rng), (parts * shape[0],))
  return jax.lax.dynamic_slice_in_dim(every, place * shape[0], shape[0])


def _halves(draw: Callable[[tuple[int, ...], Any], Array], shape: tuple[int, ...]) -> Array:
  """uint16[shape], two from each 32-bit word; `jax.random.bits` would use one word per element.

  The low halves come first and the high halves after them, along the last axis but one: a length or the queries of
  attention, which devices seldom share. For shape [b, 4, d] and words w[b, 2, d] the rows are
  low(w[:, 0]), low(w[:, 1]), high(w[:, 0]), high(w[:, 1]). Halves that alternate within the last axis cost a TPU 2.4
  times the cycles, because a pair of 16-bit numbers is its least favourable layout.
  """
  axis = len(shape) - (2 if len(shape) > 2 else 1)  # of [b, d] the last: devices share the rows
  if not shape or shape[axis] % 2:
    return draw(shape, jnp.uint16)
  words = draw((*shape[:axis], shape[axis] // 2, *shape[axis + 1 :]), jnp.uint32)
  return jnp.concatenate([words.astype(jnp.uint16), (words >> 16).astype(jnp.uint16)], axis)


def _counted(rng: Array, parts: int, place: Array | int, shape: tuple[int, ...], dtype: Any) -> Array:
  """Part `place` of the `parts` along the first axis of `jax.random.bits(rng, (parts * shape[0], ...), dtype)`.

  Element n of what threefry draws is its hash of n, a number of 64 bits, so no other part has to be drawn.
  """
  size = math.prod(shape)
  low = jnp.zeros(shape, jnp.uint32)
  for axis in range(len(shape)):  # not reshaped, which the compiler cannot divide between devices
    low += jnp.uint32(math.prod(shape[axis + 1 :])) * jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
  first = np.array([divmod(part * size, 2**32) for part in range(parts)], np.uint32)  # (high, low) of each part
  first_high, first_low = jnp.asarray(first)[place]
  low += first_low
  high = first_high + (low < first_low).astype(jnp.uint32)  # the carry
  one, two = jax.random.key_data(rng)
  words = threefry2x32_p.bind(*jnp.broadcast_arrays(one, two, high, low))
  return (words[0] ^ words[1]).astype(dtype)


def cut_of(rate: float) -> int:
  """Of 65,536 elements how many a rate drops.

  Raises:
    ValueError: a rate that is not in [0, 1).
  """
  cut = round(rate * 65536) if 0.0 <= rate < 1.0 else 65536
  if cut == 65536:
    raise ValueError(f'dropout rate {rate} is not in [0, 1), or it drops everything when it is rounded to 2**-16')
  return cut


def drop(x: Array, *, rate: float, rng: Array, rows: bool = True) -> Array:
  """Zeroes elements with probability `rate` and divides the others by what is kept.

  The rate is rounded to a multiple of 2**-16; the divisor is the rounded one, so the mean is exact.

  Args:
    x: of any shape.
    rate: 0 <= rate < 1.
    rng: a key.
    rows: the first axis of x counts rows of the batch, or parts of them in their order; False for weights, tables and
      whatever else all rows share.

  Raises:
    ValueError: no such rate.
  """
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
  """`Dropout` with one draw for all tokens of a row: [b, l, d] (variational dropout, Gal and Ghahramani 2016)."""

  rate: float

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    kept = jnp.ones((x.shape[0], 1, x.shape[2]), x.dtype)
    return x * Dropout(self.rate)(kept, train=train)
