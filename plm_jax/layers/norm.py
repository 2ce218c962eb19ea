"""Normalisation over the last axis, computed in float32 whatever the compute dtype."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.types import Array


class LayerNorm(nn.Module):
  """(x - mean) / sqrt(var + epsilon) * scale + bias (Ba et al. 2016).

  Attributes:
    epsilon: added to the variance.
    dtype: of the result.
    use_bias: adds the bias.
  """

  epsilon: float
  dtype: str = 'float32'
  use_bias: bool = True

  @nn.compact
  def __call__(self, x: Array) -> Array:
    names = ('embed',)
    scale = self.param('scale', nn.with_logical_partitioning(nn.initializers.ones, names), (x.shape[-1],), jnp.float32)
    x = x.astype(jnp.float32)
    mean = x.mean(axis=-1, keepdims=True)
    centred = x - mean
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    y = centred * jax.lax.rsqrt(variance + self.epsilon) * scale
    if self.use_bias:
      init = nn.with_logical_partitioning(nn.initializers.zeros, names)
      y = y + self.param('bias', init, (x.shape[-1],), jnp.float32)
    return y.astype(self.dtype)


class RMSNorm(nn.Module):
  """x / sqrt(mean(x^2) + epsilon) * scale (Zhang & Sennrich 2019): nothing is subtracted and nothing added.

  The mean is of the squared inputs; texts that sum squared weights misprint it.

  Attributes:
    epsilon: added to the mean square.
    dtype: of the result.
  """

  epsilon: float
  dtype: str = 'float32'

  @nn.compact
  def __call__(self, x: Array) -> Array:
    scale = self.param(
      'scale', nn.with_logical_partitioning(nn.initializers.ones, ('embed',)), (x.shape[-1],), jnp.float32
    )
    x = x.astype(jnp.float32)
    y = x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + self.epsilon) * scale
    return y.astype(self.dtype)
