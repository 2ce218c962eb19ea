"""From slots to a row of fixed size: later tokens move left over dropped positions and right past insertions.

# before   -  -  M  -        ids a b c d, keep 1 0 1 1, size 6
# result   a  M  c  d  P  P
# from     0  2  2  3 -1 -1
"""

import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.noise.row import Slots


def compact(slots: Slots, *, size: int, pad_id: int) -> Array:
  """Write inserted and kept ids in order, then padding: int32[size].

  Ids beyond `size` are cut off.
  """
  return compact_from(slots, size=size, pad_id=pad_id)[0]


def compact_from(slots: Slots, *, size: int, pad_id: int) -> tuple[Array, Array]:
  """Compute `compact`, and the source position of each id.

  The second int32[size] is the position in the row that an id is at or inserted before; -1 is padding.
  """
  ids = jnp.concatenate([slots.before, slots.ids[:, None]], axis=1)  # [l, k+1]
  written = jnp.concatenate([slots.before >= 0, slots.keep[:, None]], axis=1).reshape(-1)  # [l, k+1] -> [l (k+1)]
  target = jnp.where(written, jnp.cumsum(written) - 1, size)
  # scatter only the indices and gather ids and positions by them, since a scatter is the slowest step on a CPU
  source = jnp.full(size, -1, jnp.int32).at[target].set(jnp.arange(written.shape[0], dtype=jnp.int32), mode='drop')
  real = source >= 0
  return jnp.where(real, ids.reshape(-1)[source], pad_id), jnp.where(real, source // ids.shape[1], -1)


def total(slots: Slots) -> Array:
  """Count inserted and kept ids, including those that `compact` cuts off."""
  return (slots.before >= 0).sum() + slots.keep.sum()
