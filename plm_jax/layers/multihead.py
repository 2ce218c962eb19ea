"""Multi-head attention with its four matrices (Vaswani et al. 2017, §3.2.2), for blocks that use it more than once."""

from typing import NamedTuple

import flax.linen as nn

from plm_jax.core.types import Array, Implementation
from plm_jax.layers.attention import Way, attend_in
from plm_jax.layers.linear import Initializer, from_heads, to_heads
from plm_jax.layers.masks import Mask


class Encoded(NamedTuple):
  """Inputs of cross-attention."""

  hidden: Array  # [b, m, d], states of an encoder
  mask: Mask  # of the states that a position of the decoder sees


class MultiHead(nn.Module):
  """Attention from one sequence to itself or to another."""

  num_heads: int  # h
  head_dim: int  # k; num_heads * head_dim may differ from the width of the input
  features: int  # width of the output
  query_init: Initializer  # initializer of the query kernel
  key_init: Initializer  # initializer of the key and the value kernel
  out_init: Initializer  # initializer of the output kernel
  use_bias: bool = True  # of all four
  scale: float | None = None  # of the products; 1 / sqrt(k) by default
  dropout: float = 0.0  # rate on attention weights
  dtype: str = 'float32'  # of the products
  implementation: Implementation = 'auto'  # `Execution.attention`, for `__call__`

  def setup(self) -> None:
    self.query, self.key, self.value = (
      to_heads(self.num_heads, self.head_dim, init, use_bias=self.use_bias, dtype=self.dtype)
      for init in (self.query_init, self.key_init, self.key_init)
    )
    self.out = from_heads(self.features, self.out_init, use_bias=self.use_bias, dtype=self.dtype)

  def __call__(self, x: Array, source: Array, *, mask: Mask, bias: Array | None = None, train: bool = False) -> Array:
    """Attend from the positions of `x` to those of `source`.

    [b, l, d], [b, m, d] -> [b, l, d].
    """
    key, value = self.project(source)
    return self.attend(x, key, value, mask=mask, bias=bias, train=train, implementation=self.implementation)

  def project(self, source: Array) -> tuple[Array, Array]:
    """Compute keys and values [b, m, h, k] of [b, m, d]."""
    return self.key(source), self.value(source)

  def attend(
    self,
    x: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask,
    bias: Array | None = None,
    train: bool = False,
    implementation: Way = 'auto',
  ) -> Array:
    """Attend to keys and values of `project`.

    Args:
      x: [b, l, d].
      key: [b, m, h, k]; 'cached': [b h, k, m].
      value: [b, m, h, k]; 'cached': [b h, m, k].
      bias: added to the products, broadcastable to [b, h, l, m].
      implementation: `Execution.attention`, or 'cached' in a step of generation.

    Returns:
      [b, l, d].
    """
    heads = attend_in(
      self,
      # [b, l, d] -> [b, l, h, k]
      self.query(x),
      key,
      value,
      mask=mask,
      dropout=self.dropout,
      train=train,
      implementation=implementation,
      bias=bias,
      scale=self.scale,
    )
    # [b, l, h, k] -> [b, l, d]
    return self.out(heads)
