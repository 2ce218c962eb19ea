"""Dropout from 16 random bits per element: half of the generator's work for the usual 32, which matters on a CPU."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.types import Array


def _bits(rng: Array, shape: tuple[int, ...]) -> Array:
  """uint16[shape], two from each 32-bit word; `jax.random.bits` would use one word per element."""
  if not shape or shape[-1] % 2:
    return jax.random.bits(rng, shape, jnp.uint16)
  words = jax.random.bits(rng, (*shape[:-1], shape[-1] // 2), jnp.uint32)
  return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(shape)  # [..., d/2] -> [..., d/2, 2] -> [..., d]


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
