"""From slots to a row of fixed size: later tokens move left over dropped positions and right past insertions.

# before   -  -  M  -        ids a b c d, keep 1 0 1 1, size 6
# result   a  M  c  d  P  P
# from     0  2  2  3 -1 -1
"""

import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.noise.row import Slots


def compact(slots: Slots, *, size: int, pad_id: int) -> Array:
  """int32[size]: the inserted and kept ids in order, then padding; ids beyond `size` are cut off.

  Args:
    slots: of a row of l tokens.
    size: length of the result.
    pad_id: id of the padding.
  """
  return compact_from(slots, size=size, pad_id=pad_id)[0]


def compact_from(slots: Slots, *, size: int, pad_id: int) -> tuple[Array, Array]:
  """`compact`, and int32[size]: the position in the row that each id is at or inserted before; -1 is padding."""
  ids = jnp.concatenate([slots.before, slots.ids[:, None]], axis=1)  # [l, k+1]
  there = jnp.concatenate([slots.before >= 0, slots.keep[:, None]], axis=1).reshape(-1)  # [l, k+1] -> [l (k+1)]
  place = jnp.where(there, jnp.cumsum(there) - 1, size)
  # a scatter costs a CPU more than the rest: only places are scattered, ids and positions are gathered by them
  source = jnp.full(size, -1, jnp.int32).at[place].set(jnp.arange(there.shape[0], dtype=jnp.int32), mode='drop')
  real = source >= 0
  return jnp.where(real, ids.reshape(-1)[source], pad_id), jnp.where(real, source // ids.shape[1], -1)


def total(slots: Slots) -> Array:
  """int32[]: number of inserted and kept ids, those that `compact` cuts off included."""
  return (slots.before >= 0).sum() + slots.keep.sum()
