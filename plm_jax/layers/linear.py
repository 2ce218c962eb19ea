"""Layers that own a kernel: dense layers and embedding tables, with an axis name on each dimension.

A kernel or table may also be stored in 8 bits (compression/quantise.py), with its scales in a second leaf. The product
is taken with the integers and multiplied by the scales, so no float32 copy of the weights outlives a layer.
"""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core import sharding
from plm_jax.core.param_paths import ROWS, SCALE
from plm_jax.core.types import Array

Initializer = Callable[..., Array]


def normal(std: float) -> Initializer:
  """Return an initializer for N(0, std)."""
  return nn.initializers.normal(std)


def uniform(bound: float) -> Initializer:
  """Return an initializer for U(-bound, bound)."""

  def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  return init


def truncated_normal(std: float) -> Initializer:
  """Return an initializer for N(0, std) cut at two deviations.

  It is not rescaled, so its deviation is .8796 std (TensorFlow; BERT).
  """
  return nn.initializers.truncated_normal(std, lower=-2.0, upper=2.0)


def product(x: Array, matrix: Array, *, straight: bool = False) -> Array:
  """Multiply [..., i] by [i, o] in their dtype.

  A CPU computes the gradient of the matrix as [i, o] if it is `straight`, else as [o, i], which it then turns.
  """
  if (straight or x.dtype == jnp.bfloat16) and sharding.device().platform == 'cpu':
    return _summed_in_float32(x, matrix)
  if not sharding.one_cpu():
    return x @ matrix
  # the gradient of the matrix sums over all rows as one axis: over two, XLA transposes what it reads, which takes as
  # long as the product (docs/benchmarks/finetune.md)
  return (x.reshape(-1, x.shape[-1]) @ matrix).reshape(*x.shape[:-1], matrix.shape[-1])


@jax.custom_vjp
def _summed_in_float32(x: Array, matrix: Array) -> Array:
  """Multiply in bfloat16 by a CPU's instructions for it.

  XLA uses them only for a float32 result: 5 times as fast as a bfloat16 one (docs/benchmarks/sentence_vectors.md).
  """
  return jnp.matmul(x, matrix, preferred_element_type=jnp.float32).astype(x.dtype)


def _gradients(operands: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
  x, matrix = operands
  rows, g_rows = (each.reshape(-1, each.shape[-1]) for each in (x, g))
  return _summed_in_float32(g, matrix.T), rows.T @ g_rows


_summed_in_float32.defvjp(lambda x, matrix: (_summed_in_float32(x, matrix), (x, matrix)), _gradients)


@jax.custom_vjp
def _biased(y: Array, bias: Array) -> Array:
  """Add a bias of heads, whose gradient is a product on TPUs.

  The compiler counts 7,437 cycles for the sum of bfloat16 [16, 512, 12, 64] as a product with 8 rows of ones, and
  163,952 as a sum. It joins sums over other axes with the computation of their addends.
  """
  return y + bias.astype(y.dtype)


def _biased_gradients(bias: Array, g: Array) -> tuple[Array, Array]:
  lead = range(g.ndim - bias.ndim)
  ones = jnp.ones((8, *g.shape[: len(lead)]), g.dtype)
  # [8, ...] x [..., outputs] -> [8, outputs], of which all rows are the same
  sums = jnp.tensordot(ones, g, axes=([axis + 1 for axis in lead], list(lead)), preferred_element_type=jnp.float32)
  return g, sums[0].astype(bias.dtype)


_biased.defvjp(lambda y, bias: (_biased(y, bias), bias), _biased_gradients)


class Dense(nn.Module):
  """y = x W + b over the trailing axes."""

  features: int | tuple[int, ...]  # output sizes; several for e.g. [heads, head_dim]
  axes: tuple[str | None, ...]  # a name for each kernel dimension, inputs first
  kernel_init: Initializer  # initializer of the kernel as a matrix [inputs, outputs]
  num_inputs: int = 1  # number of trailing axes of x that are contracted
  use_bias: bool = True  # add a bias of shape `features`
  dtype: str = 'float32'  # of the product; parameters stay float32
  straight: bool = False  # of `product`

  @nn.compact
  def __call__(self, x: Array) -> Array:
    # kernel [inputs..., features...]
    features = self.features if isinstance(self.features, tuple) else (self.features,)
    inputs = x.shape[x.ndim - self.num_inputs :]
    kernel = self.param(
      'kernel', nn.with_logical_partitioning(self.kernel_init, self.axes), (*inputs, *features), jnp.float32
    )
    # 1. kernel and inputs as matrices, and their product
    x = sharding.gather_length(x.astype(self.dtype), self.axes[self.num_inputs :], features)

    def multiply(x: Array, kernel: Array) -> Array:
      matrix = kernel.astype(self.dtype).reshape(math.prod(inputs), math.prod(features))
      x = x.reshape(*x.shape[: x.ndim - self.num_inputs], math.prod(inputs))
      # [..., inputs] -> [..., outputs]
      return product(x, matrix, straight=self.straight)

    # a scan over layers stores what the gradient reads: x once for all products of it, and neither as a matrix
    y = jax.checkpoint(multiply, prevent_cse=False)(x, kernel) if sharding.one_cpu() else multiply(x, kernel)
    y = sharding.scatter_length(y, self.axes[: self.num_inputs], inputs)
    if (scale := _scale(self, 'kernel')) is not None:
      y = y * scale.astype(self.dtype).reshape(-1)
    # 2. output axes and bias
    y = y.reshape(*y.shape[:-1], *features)
    if self.use_bias:
      bias_axes = self.axes[self.num_inputs :]
      bias = self.param('bias', nn.with_logical_partitioning(nn.initializers.zeros, bias_axes), features, jnp.float32)
      heads_on_tpu = bias.ndim > 1 and y.dtype == jnp.bfloat16 and sharding.device().platform == 'tpu'
      y = _biased(y, bias) if heads_on_tpu else y + bias.astype(self.dtype)
    return _through_bottleneck(self, y)


def to_heads(num_heads: int, head_dim: int, init: Initializer, **settings: Any) -> Dense:
  """Build a layer to heads: [..., d] -> [..., h, k]."""
  return Dense((num_heads, head_dim), ('embed', 'heads', 'head_dim'), init, **settings)


def from_heads(features: int, init: Initializer, **settings: Any) -> Dense:
  """Build the output layer of attention: [..., h, k] -> [..., d]."""
  return Dense(features, ('heads', 'head_dim', 'embed'), init, num_inputs=2, **settings)


def _scale(layer: nn.Module, name: str) -> Array | None:
  """Return a leaf's 8-bit scales (size 1 along inputs), or None."""
  return _companion(layer, name, SCALE)


def _companion(layer: nn.Module, name: str, ending: str) -> Array | None:
  """Return the leaf that belongs to another, if any."""
  return layer.get_variable('params', f'{name}{ending}') if layer.has_variable('params', f'{name}{ending}') else None


def _through_bottleneck(layer: nn.Module, y: Array) -> Array:
  """Add up(gelu(down(y))) to [..., d] if adapter 'bottleneck' added layers."""
  if not layer.has_variable('params', 'bottleneck'):
    return y
  leaves: dict[str, Array] = layer.get_variable('params', 'bottleneck')
  own = {name: leaf.astype(y.dtype) for name, leaf in leaves.items()}
  # [..., d] -> [..., m] -> [..., d]
  inner = nn.gelu(y @ own['down'] + own['down_bias'], approximate=False)
  return y + inner @ own['up'] + own['up_bias']


class Embed(nn.Module):
  """A table of vectors, read by id and, for tied outputs, multiplied with; a step may provide only some of its rows."""

  num_rows: int  # number of ids
  features: int  # width of a row
  axes: tuple[str | None, str | None]  # names of the two dimensions
  table_init: Initializer  # initializer of the table
  multiple: int = 1  # the table is padded to a multiple of this number of rows, so that a mesh axis divides it
  dtype: str = 'float32'  # of the result; the table stays float32

  def setup(self) -> None:
    if _companion(self, 'table', ROWS) is not None:
      self.table: Array = self.get_variable('params', 'table')
      return
    # 50,257 ids and multiple=128: 50,304 rows
    rows = -(-self.num_rows // self.multiple) * self.multiple
    self.table = self.param(
      'table', nn.with_logical_partitioning(self.table_init, self.axes), (rows, self.features), jnp.float32
    )

  def __call__(self, ids: Array) -> Array:
    ids = self.index(ids)
    # [...] -> [..., d]
    vectors = jnp.take(self.table, ids, axis=0, mode='clip').astype(self.dtype)
    vectors = sharding.rows_of_table(vectors, self.axes, self.table.shape)
    if (scale := _scale(self, 'table')) is not None:
      vectors = vectors * jnp.take(scale, ids, axis=0, mode='clip').astype(self.dtype)
    return vectors

  def index(self, ids: Array) -> Array:
    """Return the index in `rows` of each id that has a row."""
    rows = _companion(self, 'table', ROWS)
    return ids if rows is None else jnp.searchsorted(rows, ids).astype(jnp.int32)

  def rows(self) -> Array:
    """Return the rows that the step provides, f32[n, d]."""
    table, scale = self.table.astype(jnp.float32), _scale(self, 'table')
    return table if scale is None else table * scale

  def attend(self, x: Array) -> Array:
    """Compute the products of `x` with every row: f32[..., v].

    Padded rows get a logit of -1e9.

    Raises:
      ValueError: the step has only some of the rows (optim/rows.py).
    """
    if _companion(self, 'table', ROWS) is not None:
      raise ValueError('logits need all rows of this table: leave it out of `Task.rows`')
    # [..., d] x [v, d] -> [..., v], accumulated in float32
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
  """A bias for the logit of each id."""

  vocab_size: int  # ids of the vocabulary

  @nn.compact
  def __call__(self, logits: Array) -> Array:
    """Add the bias to logits f32[..., v], v padded by vocab_multiple."""
    init = nn.with_logical_partitioning(nn.initializers.zeros, ('vocab',))
    bias = self.param('bias', init, (self.vocab_size,), jnp.float32)
    return logits + jnp.pad(bias, (0, logits.shape[-1] - self.vocab_size))
