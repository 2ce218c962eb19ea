"""Normalisation in float32, over the last axis or over the rows of a batch."""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.layers.stack import recomputed


class LayerNorm(nn.Module):
  """(x - mean) / sqrt(var + epsilon) * scale + bias (Ba et al. 2016)."""

  epsilon: float  # added to the variance
  dtype: str = 'float32'  # of the result
  use_bias: bool = True  # add the bias
  use_scale: bool = True  # multiply by the scale

  @nn.compact
  def __call__(self, x: Array) -> Array:
    scale, bias = 1.0, None
    if self.use_scale:
      ones = nn.with_logical_partitioning(nn.initializers.ones, ('embed',))
      scale = self.param('scale', ones, (x.shape[-1],), jnp.float32)
    if self.use_bias:
      zeros = nn.with_logical_partitioning(nn.initializers.zeros, ('embed',))
      bias = self.param('bias', zeros, (x.shape[-1],), jnp.float32)

    def normalise(x: Array, scale: Array | float, bias: Array | None) -> Array:
      x = x.astype(jnp.float32)
      # 1. mean and variance over d: [..., d] -> [..., 1]
      mean = x.mean(axis=-1, keepdims=True)
      centred = x - mean
      variance = (centred * centred).mean(axis=-1, keepdims=True)
      # 2. normalise, scale and shift
      y = centred * jax.lax.rsqrt(variance + self.epsilon) * scale
      return (y if bias is None else y + bias).astype(self.dtype)

    return recomputed(normalise)(x, scale, bias)


class RMSNorm(nn.Module):
  """x / sqrt(mean(x^2) + epsilon) * scale (Zhang & Sennrich 2019), without a mean to subtract and without a bias.

  The mean is over the squared inputs; texts that sum squared weights misprint it.
  """

  epsilon: float  # added to the mean square
  dtype: str = 'float32'  # of the result
  axes: tuple[str, ...] = ('embed',)  # names of the last axes, over which the mean is
  from_one: bool = False  # multiply by 1 + scale, whose initial value is 0

  @nn.compact
  def __call__(self, x: Array) -> Array:
    init = nn.initializers.zeros if self.from_one else nn.initializers.ones
    last = tuple(range(-len(self.axes), 0))
    shape = tuple(x.shape[axis] for axis in last)
    scale = self.param('scale', nn.with_logical_partitioning(init, self.axes), shape, jnp.float32)

    def normalise(x: Array, scale: Array) -> Array:
      # the mean square over d: [..., d] -> [..., 1]
      x = x.astype(jnp.float32)
      y = x * jax.lax.rsqrt((x * x).mean(axis=last, keepdims=True) + self.epsilon)
      return (y * (1 + scale if self.from_one else scale)).astype(self.dtype)

    return recomputed(normalise)(x, scale)


class BatchNorm(nn.Module):
  """(x - mean) / sqrt(variance + epsilon) * scale + bias, of each feature over the rows (Ioffe and Szegedy 2015, §3).

  In training, mean and variance are those of the batch. Otherwise they are parameters that no gradient changes: running
  averages over past batches. A new batch has the weight `momentum` = .1, as in torch.nn.BatchNorm1d. The running
  variance divides by n - 1, the normalisation of a batch by n. A batch of fewer than two rows has no variance. It is
  normalised by the running averages, which do not change; torch raises an error there.
  """

  epsilon: float  # added to the variance
  momentum: float = 0.1  # weight of a new batch in the averages

  @nn.compact
  def __call__(self, x: Array, counts: Array | None = None, *, train: bool = False) -> tuple[Array, dict[str, Array]]:
    """Normalise the rows, and in training update the averages.

    Args:
      x: [b, d].
      counts: bool[b], rows that mean and variance are computed over; None for all.
      train: normalise by this batch.

    Returns:
      f32[b, d], and parameter -> its next value: 'mean' and 'variance' f32[d]; empty if `train` is False.
    """
    init = {'scale': nn.initializers.ones, 'bias': nn.initializers.zeros}
    init |= {'mean': nn.initializers.zeros, 'variance': nn.initializers.ones}
    own = {
      name: self.param(name, nn.with_logical_partitioning(initial, ('embed',)), (x.shape[-1],), jnp.float32)
      for name, initial in init.items()
    }
    x = x.astype(jnp.float32)
    if not train:
      return _normalised(x, own, own['mean'], own['variance'], self.epsilon), {}
    # 1. mean and sum of squares of this batch
    weights = jnp.ones((len(x), 1)) if counts is None else counts.astype(jnp.float32)[:, None]
    count = weights.sum()
    mean = (weights * x).sum(axis=0) / jnp.maximum(count, 1)
    squares = (weights * jnp.square(x - mean)).sum(axis=0)
    # 2. new running averages; those of a batch of one row stay unchanged
    batch = {'mean': mean, 'variance': squares / jnp.maximum(count - 1, 1)}
    several = count > 1
    share = jnp.where(several, self.momentum, 0)  # of this batch in the averages
    averages = {name: own[name] + share * (batch[name] - own[name]) for name in batch}
    # 3. normalise
    used_mean = jnp.where(several, mean, own['mean'])
    used_variance = jnp.where(several, squares / jnp.maximum(count, 1), own['variance'])
    return _normalised(x, own, used_mean, used_variance, self.epsilon), jax.lax.stop_gradient(averages)


def _normalised(x: Array, own: Mapping[str, Array], mean: Array, variance: Array, epsilon: float) -> Array:
  return (x - mean) * jax.lax.rsqrt(variance + epsilon) * own['scale'] + own['bias']
