"""Keys and values of the tokens read before, for generation.

A cache is a dictionary of arrays: 'index' int32[], the number of slots in use; 'segment_ids' int32[b, m], 0 in an empty
slot and for padding; 'positions' int32[b, m]; 'keys' and 'values' [n, b, m, h, k]. Models may keep more in it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.layers.masks import Mask
from plm_jax.types import Array

Cache = dict[str, Array]


class Past(NamedTuple):
  """What one layer has read before.

  Attributes:
    keys: [b, m, h, k].
    values: [b, m, h, k].
    start: int32[], the slot of the first new token.
  """

  keys: Array
  values: Array
  start: Array


def empty(shape: tuple[int, int, int, int, int], *, dtype: str = 'float32') -> Cache:
  """A cache with nothing in it, for keys and values of shape [n, b, m, h, k] with m slots."""
  places = jnp.zeros(shape[1:3], jnp.int32)
  kept = jnp.zeros(shape, dtype)
  return {'index': jnp.zeros((), jnp.int32), 'segment_ids': places, 'positions': places, 'keys': kept, 'values': kept}


def put(old: Array, new: Array, index: Array, *, axis: int) -> Array:
  """`old` with `new` written from slot `index` on."""
  return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), index, axis)


def append(past: Past | None, key: Array, value: Array) -> tuple[Array, Array]:
  """Keys and values of one layer with the new ones after those of the past.

  Args:
    past: what was read before; None outside generation.
    key: [b, s, h, k], of the new tokens.
    value: [b, s, h, k].

  Returns:
    Keys and values [b, m, h, k], or without a past the new ones alone.
  """
  if past is None:
    return key, value
  return put(past.keys, key, past.start, axis=1), put(past.values, value, past.start, axis=1)


def advance(cache: Cache, *, segment_ids: Array, positions: Array, together: bool = False) -> tuple[Cache, Mask]:
  """Takes s more slots, whose keys and values follow by `keep`.

  Args:
    cache: before the call.
    segment_ids: int[b, s] of the new tokens; 0 is padding.
    positions: int[b, s].
    together: new tokens see each other in both directions (a prefix); otherwise each sees the slots up to its own.

  Returns:
    The cache with the segments and positions of the new tokens, and what each of them may look at.
  """
  # index 2, two new tokens, six slots     last   allowed slots
  # one after the other                    2 3    x x x . . .  and  x x x x . .
  # together                               3 3    x x x x . .  and  x x x x . .
  index, new = cache['index'], segment_ids.shape[1]
  segments = put(cache['segment_ids'], segment_ids, index, axis=1)
  slots = jnp.arange(segments.shape[1])
  last = index + (jnp.full(new, new - 1) if together else jnp.arange(new))  # [s], the last slot that each token sees
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
