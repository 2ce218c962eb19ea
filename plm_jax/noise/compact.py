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
  return compact_from(slots, size=size, pad_id=pad_id)[0]


def compact_from(slots: Slots, *, size: int, pad_id: int) -> tuple[Array, Array]:
  """`compact`, and for each id the position in the row that it stands at or before, int32[size]; -1 is padding."""
  ids = jnp.concatenate([slots.before, slots.ids[:, None]], axis=1)  # [l, k+1]
  there = jnp.concatenate([slots.before >= 0, slots.keep[:, None]], axis=1).reshape(-1)  # [l, k+1] -> [l (k+1)]
  place = jnp.where(there, jnp.cumsum(there) - 1, size)
  # scattering costs a CPU more than all the rest: places are scattered once, and ids and positions are looked up
  source = jnp.full(size, -1, jnp.int32).at[place].set(jnp.arange(there.shape[0], dtype=jnp.int32), mode='drop')
  real = source >= 0
  return jnp.where(real, ids.reshape(-1)[source], pad_id), jnp.where(real, source // ids.shape[1], -1)


def total(slots: Slots) -> Array:
  """int32[]: how many ids there are, those that `compact` cuts included."""
  return (slots.before >= 0).sum() + slots.keep.sum()
