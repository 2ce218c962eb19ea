"""Masks of attention, stored as conditions until an implementation needs the whole matrix."""

import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.core.types import Array

# far below any real logit, and finite, so that a query that sees no key does not become NaN
HIDDEN = -1e30


@flax.struct.dataclass
class Mask:
  """The keys that a query sees; every condition must hold, and None or False is no condition."""

  query_segments: Array  # int[b, l]; 0 is padding
  key_segments: Array  # int[b, m]; a query sees only keys of the same segment, and never padding
  causal: bool = flax.struct.field(pytree_node=False, default=False)  # a query sees keys at or before its own index
  # a query sees only the last `window` keys at or before its own index
  window: int | None = flax.struct.field(pytree_node=False, default=None)
  prefix: Array | None = None  # int[b]; keys at an index below it are exempt from `causal` and `window`
  allowed: Array | None = None  # bool[b, l, m], any other condition as a matrix


def visible(mask: Mask, *, first: int | Array = 0) -> Array:
  """Compute the matrix of visible keys.

  Args:
    mask: conditions.
    first: index of the first query, if the queries are a part of a longer row.

  Returns:
    bool[b, l, m]: True where the query sees the key.
  """
  # segments of the keys       1 1 2 2 2 0
  # query 3, of segment 2      . . x x x .
  #   causal                   . . x x . .
  #   window=1                 . . . x . .
  #   window=1, prefix=3       . . x x . .
  # 1. segments: [b, l, 1] against [b, 1, m]
  query, key = mask.query_segments[:, :, None], mask.key_segments[:, None, :]
  seen = (query == key) & (key > 0)
  # 2. distances [l, m], except within a prefix
  if mask.causal or mask.window is not None:
    rows = first + jnp.arange(query.shape[1])[:, None]
    columns = jnp.arange(key.shape[2])[None, :]
    near = columns <= rows
    if mask.window is not None:
      near &= columns > rows - mask.window
    near = near[None]
    if mask.prefix is not None:
      near = near | (columns[None] < mask.prefix[:, None, None])
    seen &= near
  # 3. any other condition
  if mask.allowed is not None:
    seen &= mask.allowed
  return seen


def softmax_visible(logits: Array, *, mask: Mask, bias: Array | None) -> Array:
  """Compute the softmax f32[b, h, l, m] of products over visible keys."""
  if bias is not None:
    logits = logits + bias.astype(jnp.float32)
  # subtract the largest visible logit, so that no exponent overflows
  seen = visible(mask)[:, None]  # [b, 1, l, m]
  logits = jnp.where(seen, logits, HIDDEN)
  top = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
  exponents = jnp.where(seen, jnp.exp(logits - top), 0.0)
  return exponents / jnp.maximum(exponents.sum(axis=-1, keepdims=True), 1e-30)
