"""Leaves that own a kernel: dense layers and embedding tables, with an axis name on each dimension.

A kernel or table may also be given in 8 bits (compression/quantise.py), with its scales beside it: the product is taken
with the numbers and multiplied by the scales, so that no copy of the weights in float32 outlives a layer.
"""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core import sharding
from plm_jax.core.param_paths import PLACE, SCALE
from plm_jax.core.types import Array

Initializer = Callable[..., Array]


def normal(std: float) -> Initializer:
  """N(0, std)."""
  return nn.initializers.normal(std)


def uniform(bound: float) -> Initializer:
  """U(-bound, bound)."""

  def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  return init


def truncated_normal(std: float) -> Initializer:
  """N(0, std) cut at two standard deviations and not rescaled: its deviation is .8796 std (TensorFlow; BERT)."""
  return nn.initializers.truncated_normal(std, lower=-2.0, upper=2.0)


class Dense(nn.Module):
  """y = x W + b over the trailing axes.

  Attributes:
    features: output sizes; several for e.g. [heads, head_dim].
    axes: a name for each kernel dimension, inputs first.
    kernel_init: initializer of the kernel as a matrix [inputs, outputs].
    num_inputs: how many trailing axes of x are contracted.
    use_bias: adds a bias of shape `features`.
    dtype: of the product; parameters stay float32.
  """

  features: int | tuple[int, ...]
  axes: tuple[str | None, ...]
  kernel_init: Initializer
  num_inputs: int = 1
  use_bias: bool = True
  dtype: str = 'float32'

  @nn.compact
  def __call__(self, x: Array) -> Array:
    features = self.features if isinstance(self.features, tuple) else (self.features,)
    inputs = x.shape[x.ndim - self.num_inputs :]
    kernel = self.param(
      'kernel', nn.with_logical_partitioning(self.kernel_init, self.axes), (*inputs, *features), jnp.float32
    )
    matrix = kernel.astype(self.dtype).reshape(math.prod(inputs), math.prod(features))
    x = sharding.gather_length(x.astype(self.dtype), self.axes[self.num_inputs :], features)
    x = x.reshape(*x.shape[: x.ndim - self.num_inputs], math.prod(inputs))
    y = sharding.scatter_length(x @ matrix, self.axes[: self.num_inputs], inputs)  # [..., inputs] -> [..., outputs]
    if (scale := _scale(self, 'kernel')) is not None:
      y = y * scale.astype(self.dtype).reshape(-1)
    y = y.reshape(*y.shape[:-1], *features)
    if self.use_bias:
      bias_axes = self.axes[self.num_inputs :]
      bias = self.param('bias', nn.with_logical_partitioning(nn.initializers.zeros, bias_axes), features, jnp.float32)
      y = y + bias.astype(self.dtype)
    return _through_bottleneck(self, y)


def _scale(layer: nn.Module, name: str) -> Array | None:
  """What the numbers of a leaf in 8 bits are multiplied by, of size 1 along its inputs; None for one in float32."""
  return _beside(layer, name, SCALE)


def _beside(layer: nn.Module, name: str, ending: str) -> Array | None:
  """The leaf that stands beside another, if any."""
  return layer.get_variable('params', f'{name}{ending}') if layer.has_variable('params', f'{name}{ending}') else None


def _through_bottleneck(layer: nn.Module, y: Array) -> Array:
  """y + up(gelu(down(y))) where adapter 'bottleneck' put two layers beside the kernel; else y. [..., d] -> [..., d]."""
  if not layer.has_variable('params', 'bottleneck'):
    return y
  kept: dict[str, Array] = layer.get_variable('params', 'bottleneck')
  own = {name: leaf.astype(y.dtype) for name, leaf in kept.items()}
  inner = nn.gelu(y @ own['down'] + own['down_bias'], approximate=False)  # [..., d] -> [..., m]
  return y + inner @ own['up'] + own['up_bias']


class Embed(nn.Module):
  """A table of vectors, read by row and, for tied outputs, multiplied with; a step may hand over few of its rows.

  Attributes:
    num_rows: ids that may be asked for.
    features: width of a row.
    axes: names of the two dimensions.
    table_init: initializer of the table.
    multiple: the table is padded to a multiple of this many rows, so that a mesh axis divides it.
    dtype: of what is returned; the table stays float32.
  """

  num_rows: int
  features: int
  axes: tuple[str | None, str | None]
  table_init: Initializer
  multiple: int = 1
  dtype: str = 'float32'

  def setup(self) -> None:
    if _beside(self, 'table', PLACE) is not None:
      self.table: Array = self.get_variable('params', 'table')
      return
    rows = -(-self.num_rows // self.multiple) * self.multiple
    self.table = self.param(
      'table', nn.with_logical_partitioning(self.table_init, self.axes), (rows, self.features), jnp.float32
    )

  def __call__(self, ids: Array) -> Array:
    if (place := _beside(self, 'table', PLACE)) is not None:
      ids = jnp.take(place, ids, axis=0, mode='clip')
    vectors = jnp.take(self.table, ids, axis=0, mode='clip').astype(self.dtype)  # [...] -> [..., d]
    if (scale := _scale(self, 'table')) is not None:
      vectors = vectors * jnp.take(scale, ids, axis=0, mode='clip').astype(self.dtype)
    return vectors

  def rows(self) -> tuple[Array, Array | None]:
    """All rows that are there, f32[n, d], and where that of each id stands, int[v]; None where they stand in order."""
    table, scale = self.table.astype(jnp.float32), _scale(self, 'table')
    return table if scale is None else table * scale, _beside(self, 'table', PLACE)

  def attend(self, x: Array) -> Array:
    """Products of `x` with every row, f32[..., v]; padded rows get a logit of -1e9.

    Raises:
      ValueError: only some rows are there (optim/rows.py).
    """
    if _beside(self, 'table', PLACE) is not None:
      raise ValueError('logits over all rows of a table need all rows: leave this table out of `Task.rows`')
    logits = jnp.einsum(
      '...d,vd->...v', x.astype(self.dtype), self.table.astype(self.dtype), preferred_element_type=jnp.float32
    )
    if (scale := _scale(self, 'table')) is not None:
      logits = logits * scale[:, 0]
    rows = self.table.shape[0]
    if rows == self.num_rows:
      return logits
    return jnp.where(jnp.arange(rows) < self.num_rows, logits, -1e9)


class OutputBias(nn.Module):
  """What is added to the logit of each id.

  Attributes:
    vocab_size: ids of the vocabulary.
  """

  vocab_size: int

  @nn.compact
  def __call__(self, logits: Array) -> Array:
    """f32[..., v], v padded by vocab_multiple."""
    init = nn.with_logical_partitioning(nn.initializers.zeros, ('vocab',))
    bias = self.param('bias', init, (self.vocab_size,), jnp.float32)
    return logits + jnp.pad(bias, (0, logits.shape[-1] - self.vocab_size))
