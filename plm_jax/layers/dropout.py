"""Dropout from 16 random bits per element: half of the generator's work for the usual 32, which matters on a CPU."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.types import Array


def _bits(rng: Array, shape: tuple[int, ...]) -> Array:
  """uint16[shape], two from each 32-bit word; `jax.random.bits` would use one word per element.

  The low halves come first and the high halves after them, along the last axis but one: a length or the queries of
  attention, which devices seldom share. For shape [b, 4, d] and words w[b, 2, d] the rows are
  low(w[:, 0]), low(w[:, 1]), high(w[:, 0]), high(w[:, 1]). Halves that alternate within the last axis cost a TPU 2.4
  times the cycles, because a pair of 16-bit numbers is its least favourable layout.
  """
  axis = len(shape) - (2 if len(shape) > 2 else 1)  # of [b, d] the last: devices share the rows
  if not shape or shape[axis] % 2:
    return jax.random.bits(rng, shape, jnp.uint16)
  words = jax.random.bits(rng, (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :]), jnp.uint32)
  return jnp.concatenate([words.astype(jnp.uint16), (words >> 16).astype(jnp.uint16)], axis)


def drop(x: Array, *, rate: float, rng: Array) -> Array:
  """Zeroes elements with probability `rate` and divides the others by what is kept.

  The rate is rounded to a multiple of 2**-16; the divisor is the rounded one, so the mean is exact.
  """
  if not 0.0 <= rate < 1.0:
    raise ValueError(f'dropout rate {rate} is not in [0, 1)')
  cut = round(rate * 65536)
  keep = _bits(rng, x.shape) >= cut
  return jnp.where(keep, x * jnp.asarray(65536 / (65536 - cut), x.dtype), jnp.zeros((), x.dtype))


class Dropout(nn.Module):
  """`drop` with the module's 'dropout' stream; the identity outside training."""

  rate: float

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    if not train or self.rate == 0.0:
      return x
    return drop(x, rate=self.rate, rng=self.make_rng('dropout'))


class LockedDropout(nn.Module):
  """`Dropout` with one draw for all tokens of a row: [b, l, d] (variational dropout, Gal and Ghahramani 2016)."""

  rate: float

  @nn.compact
  def __call__(self, x: Array, *, train: bool) -> Array:
    kept = jnp.ones((x.shape[0], 1, x.shape[2]), x.dtype)
    return x * Dropout(self.rate)(kept, train=train)
