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
  ids = jnp.concatenate([slots.before, slots.ids[:, None]], axis=1).reshape(-1)  # [l, k+1] -> [l (k+1)]
  there = jnp.concatenate([slots.before >= 0, slots.keep[:, None]], axis=1).reshape(-1)
  place = jnp.where(there, jnp.cumsum(there) - 1, size)
  return jnp.full(size, pad_id, ids.dtype).at[place].set(ids, mode='drop')
