"""Keys and values of what was read before, for generation.

A cache is a dictionary of arrays: 'index' int32[], the slots in use; 'segment_ids' int32[b, m], 0 in an empty slot or
for padding; 'positions' int32[b, m]; 'keys' and 'values' [n, b, m, h, k]. Models may keep more beside them.
"""

import jax
import jax.numpy as jnp

from plm_jax.layers.masks import Mask
from plm_jax.types import Array

Cache = dict[str, Array]


def empty(
  *, num_layers: int, batch_size: int, length: int, num_heads: int, head_dim: int, dtype: str = 'float32'
) -> Cache:
  """A cache of `length` slots with nothing in it."""
  places = jnp.zeros((batch_size, length), jnp.int32)
  kept = jnp.zeros((num_layers, batch_size, length, num_heads, head_dim), dtype)
  return {'index': jnp.zeros((), jnp.int32), 'segment_ids': places, 'positions': places, 'keys': kept, 'values': kept}


def put(old: Array, new: Array, index: Array, *, axis: int) -> Array:
  """`old` with `new` written from slot `index` on."""
  return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), index, axis)


def advance(cache: Cache, *, segment_ids: Array, positions: Array, together: bool = False) -> tuple[Cache, Mask]:
  """Takes s more slots, whose keys and values follow by `keep`.

  Args:
    cache: before the call.
    segment_ids: int[b, s] of the new tokens; 0 is padding.
    positions: int[b, s].
    together: new tokens see each other both ways (a prefix), else only what is at or before their own slot.

  Returns:
    The cache with the new tokens' segments and positions, and what each of them may look at.
  """
  index, new = cache['index'], segment_ids.shape[1]
  segments = put(cache['segment_ids'], segment_ids, index, axis=1)
  slots = jnp.arange(segments.shape[1])
  last = index + (jnp.full(new, new - 1) if together else jnp.arange(new))
  mask = Mask(segment_ids, segments, allowed=slots[None, None, :] <= last[None, :, None])
  taken = {
    'index': index + new,
    'segment_ids': segments,
    'positions': put(cache['positions'], positions, index, axis=1),
  }
  return cache | taken, mask


def keep(cache: Cache, *, keys: Array, values: Array) -> Cache:
  """Writes keys and values [n, b, s, h, k] to the last s slots that `advance` took."""
  start = cache['index'] - keys.shape[2]
  return cache | {
    'keys': put(cache['keys'], keys, start, axis=2),
    'values': put(cache['values'], values, start, axis=2),
  }
