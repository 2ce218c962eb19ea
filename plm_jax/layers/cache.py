"""Keys and values of earlier tokens, for generation.

A cache is a dictionary of arrays: 'index' int32[], the number of slots in use; 'segment_ids' int32[b, m], 0 in an empty
slot and for padding; 'positions' int32[b, m]; 'keys' [n, b h, k, m] and 'values' [n, b h, m, k]. Keys and values are in
the order in which the products of attention read them, since any other order would be copied at each step. Models may
store more in it; recurrent models store 'states' and 'cells' [n, b, m, w] instead of keys and values. A search that
follows several texts of a row adds 'seen' bool[b, s, m]: the slots that belong to each of them.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.layers.masks import Mask

Cache = dict[str, Array]


class Past(NamedTuple):
  """Keys and values of earlier tokens in one layer."""

  keys: Array  # [b h, k, m]
  values: Array  # [b h, m, k]
  start: Array  # int32[], the slot of the first new token


def empty(shape: tuple[int, int, int, int, int], *, dtype: str = 'float32') -> Cache:
  """Build an empty cache for layers with keys and values.

  Args:
    shape: n layers, b rows, m slots, h heads, k components of a head.
    dtype: of keys and values.
  """
  layers, rows, slots, heads, size = shape
  # keys [n, b h, k, m], values [n, b h, m, k]
  keys = jnp.zeros((layers, rows * heads, size, slots), dtype)
  return without_keys(rows, slots) | {'keys': keys, 'values': jnp.swapaxes(keys, 2, 3)}


def without_keys(rows: int, slots: int) -> Cache:
  """Build an empty cache to which the trunk adds its arrays."""
  zeros = jnp.zeros((rows, slots), jnp.int32)
  return {'index': jnp.zeros((), jnp.int32), 'segment_ids': zeros, 'positions': zeros}


def put(old: Array, new: Array, index: Array, *, axis: int) -> Array:
  """Write `new` into `old` from slot `index`."""
  return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), index, axis)


def in_order(key: Array, value: Array) -> tuple[Array, Array]:
  """Bring two of [b, m, h, k] into cache order."""
  # [b, m, h, k] -> [b, h, k, m] -> [b h, k, m], and -> [b, h, m, k] -> [b h, m, k]
  length, size = key.shape[1], key.shape[3]
  return key.transpose(0, 2, 3, 1).reshape(-1, size, length), jnp.swapaxes(value, 1, 2).reshape(-1, length, size)


def append(past: Past | None, key: Array, value: Array) -> tuple[Array, Array]:
  """Append new keys and values to those of the past.

  Args:
    past: of earlier tokens; None outside generation.
    key: [b, s, h, k], of the new tokens.
    value: [b, s, h, k].

  Returns:
    Keys [b h, k, m] and values [b h, m, k], for `attend` with the implementation 'cached'. Without a past the new ones,
    unchanged.
  """
  if past is None:
    return key, value
  keys, values = in_order(key, value)  # transposes the new tokens only
  return put(past.keys, keys, past.start, axis=2), put(past.values, values, past.start, axis=1)


def advance(cache: Cache, *, segment_ids: Array, positions: Array, together: bool = False) -> tuple[Cache, Mask]:
  """Take s more slots, whose keys and values the layers will write.

  Args:
    cache: before the call.
    segment_ids: int[b, s] of the new tokens; 0 is padding.
    positions: int[b, s].
    together: new tokens see each other in both directions (a prefix). Otherwise each sees the slots up to its own. With
      'seen' in the cache it sees the slots that belong to its text, and its own.

  Returns:
    The cache with the segments and positions of the new tokens, and the mask of what they see.
  """
  # index 2, two new tokens, six slots: `last` and the visible slots of each new token
  # one after the other                    2 3    x x x . . .  and  x x x x . .
  # together                               3 3    x x x x . .  and  x x x x . .
  # with seen 'x.' and 'xx'                2 3    x . x . . .  and  x x . x . .
  # 1. write segments and positions into the new slots
  index, new = cache['index'], segment_ids.shape[1]
  segments = put(cache['segment_ids'], segment_ids, index, axis=1)
  slots = jnp.arange(segments.shape[1])
  own = index + jnp.arange(new)[:, None]
  last = index + new - 1 if together else own  # the last slot that each token sees
  taken = {
    'index': index + new,
    'segment_ids': segments,
    'positions': put(cache['positions'], positions, index, axis=1),
  }
  # 2. slots that each new token sees: [1 or b, s, m]
  if 'seen' in cache:
    taken['seen'] = cache['seen'] | (slots == own)
  allowed = taken.get('seen', jnp.broadcast_to(slots <= last, (1, new, len(slots))))
  return cache | taken, Mask(query_segments=segment_ids, key_segments=segments, allowed=allowed)


def within(mask: Mask, cache: Cache, positions: Array, window: int | None) -> Mask:
  """Limit the mask of `advance` to the last `window` positions.

  Args:
    mask: of the new tokens, from `advance`.
    cache: with the new tokens.
    positions: int[b, s] of the new tokens.
    window: number of visible positions, with their own; None for all.
  """
  if window is None:
    return mask
  near = cache['positions'][:, None, :] > positions[:, :, None] - window  # [b, s, m]
  return dataclasses.replace(mask, allowed=near if mask.allowed is None else mask.allowed & near)
