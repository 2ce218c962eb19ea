"""From slots to a row of fixed size: what is dropped closes up, what is inserted pushes right."""

import jax.numpy as jnp

from plm_jax.noise.row import Slots
from plm_jax.types import Array


def compact(slots: Slots, *, size: int, pad_id: int) -> Array:
  """int32[size]: the inserted and kept ids in order, then padding; what exceeds `size` is cut.

  Args:
    slots: of a row of length l.
    size: of the result.
    pad_id: fills the rest.
  """
  ids = jnp.concatenate([slots.before, slots.ids[:, None]], axis=1)  # [l, k+1]
  return _pack(slots, ids, size=size, rest=pad_id)


def origins(slots: Slots, *, size: int) -> Array:
  """int32[size]: for each id of `compact` the position in the row that it stands at or before; -1 is padding."""
  length, inserts = slots.before.shape
  index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[:, None], (length, inserts + 1))
  return _pack(slots, index, size=size, rest=-1)


def total(slots: Slots) -> Array:
  """int32[]: how many ids there are, those that `compact` cuts included."""
  return (slots.before >= 0).sum() + slots.keep.sum()


def _pack(slots: Slots, values: Array, *, size: int, rest: int) -> Array:
  """Values [l, k+1] of the inserted and kept ids in order, then `rest`."""
  there = jnp.concatenate([slots.before >= 0, slots.keep[:, None]], axis=1).reshape(-1)  # [l, k+1] -> [l (k+1)]
  place = jnp.where(there, jnp.cumsum(there) - 1, size)
  return jnp.full(size, rest, values.dtype).at[place].set(values.reshape(-1), mode='drop')
