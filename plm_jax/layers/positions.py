"""Where a token stands."""

import jax
import jax.numpy as jnp

from plm_jax.types import Array


def from_segments(segment_ids: Array) -> Array:
  """Index of each position inside its run of equal segment ids: int32[b, l] -> int32[b, l]."""
  index = jnp.broadcast_to(jnp.arange(segment_ids.shape[1], dtype=jnp.int32), segment_ids.shape)
  before = jnp.pad(segment_ids, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
  starts = jnp.where(segment_ids != before, index, 0)
  return index - jax.lax.cummax(starts, axis=1)


def check_length(length: int, *, max_length: int, model: str) -> None:
  """Raises where a row is longer than a learned position table."""
  if length > max_length:
    raise ValueError(
      f'{model} has learned positions for {max_length} tokens and was given a row of {length}: shorten data.length, '
      f'or lengthen the table with model.overrides.max_length={length} (and init_from resize="interpolate" to '
      'start from a shorter one)'
    )
