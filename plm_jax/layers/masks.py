"""Which keys a query may look at, stated as conditions until an implementation of attention needs the whole matrix."""

import flax.struct
import jax.numpy as jnp

from plm_jax.core.types import Array


@flax.struct.dataclass
class Mask:
  """Every condition must hold; None or False is no condition.

  Attributes:
    query_segments: int[b, l]; 0 is padding.
    key_segments: int[b, m]; a query sees keys of its own segment only, and never padding.
    causal: a query sees keys at or before its own index.
    window: a query sees the last `window` keys at or before its own index only.
    prefix: int[b]; keys at an index below it are exempt from `causal` and `window`.
    allowed: bool[b, l, m], any other condition as a matrix.
  """

  query_segments: Array
  key_segments: Array
  causal: bool = flax.struct.field(pytree_node=False, default=False)
  window: int | None = flax.struct.field(pytree_node=False, default=None)
  prefix: Array | None = None
  allowed: Array | None = None


def visible(mask: Mask, *, first: int | Array = 0) -> Array:
  """bool[b, l, m]: True where the query may look at the key.

  Args:
    mask: what may be looked at.
    first: index of the first query, where the queries are a part of a longer row.
  """
  # segments of the keys       1 1 2 2 2 0
  # query 3, of segment 2      . . x x x .
  #   causal                   . . x x . .
  #   window=1                 . . . x . .
  #   window=1, prefix=3       . . x x . .
  query, key = mask.query_segments[:, :, None], mask.key_segments[:, None, :]
  seen = (query == key) & (key > 0)
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
  if mask.allowed is not None:
    seen &= mask.allowed
  return seen
