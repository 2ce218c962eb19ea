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


def bucket_starts(num_buckets: int, max_distance: int) -> list[int]:
  """The smallest distance in each bucket after the first, for distances of one sign (T5).

  Half of the buckets hold one distance each; the starts of the others grow geometrically up to `max_distance`. Found in
  integers, since logarithms in float32 may fall on the wrong side of a start.
  """
  exact = num_buckets // 2
  wide = num_buckets - exact
  if not 0 < exact < max_distance:
    raise ValueError(f'{num_buckets} buckets of one sign do not reach a distance of {max_distance}')
  starts, distance = list(range(1, exact + 1)), exact
  for step in range(1, wide):
    # ln(distance / exact) / ln(max_distance / exact) * wide >= step, without logarithms
    while distance**wide * exact**step < max_distance**step * exact**wide:
      distance += 1
    starts.append(distance)
  return starts


def relative_buckets(relative: Array, *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128) -> Array:
  """Buckets of distances (T5, Raffel et al. 2020, §2.1).

  Args:
    relative: int[...], position of the key minus position of the query.
    bidirectional: the upper half of the buckets is for keys on the right; else these fall in bucket 0 with distance 0.
    num_buckets: in all.
    max_distance: from here on, and somewhat before, all distances are in one bucket.

  Returns:
    int32[...] below `num_buckets`.
  """
  one_sign = num_buckets // 2 if bidirectional else num_buckets
  starts = jnp.asarray(bucket_starts(one_sign, max_distance), jnp.int32)
  distance = jnp.abs(relative) if bidirectional else jnp.maximum(-relative, 0)
  buckets = jnp.searchsorted(starts, distance, side='right').astype(jnp.int32)
  return buckets + one_sign * (relative > 0) if bidirectional else buckets
