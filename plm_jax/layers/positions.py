"""Positions of tokens: indices, buckets of distances, sinusoids, rotations, and shifted scores."""

import math
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Array

Start = Literal['normal', 'sinusoids']  # initial values of a learned table

MOST_OF_A_CONSTANT = 2**31  # bytes: programs travel as protocol buffers


def from_segments(segment_ids: Array) -> Array:
  """Compute the index of each token in its segment.

  A segment is a run of equal segment ids. int32[b, l] -> int32[b, l].
  """
  # segments  1 1 1 2 2 0   starts  0 0 0 3 0 5   running maximum  0 0 0 3 3 5   index minus that  0 1 2 0 1 0
  index = jnp.broadcast_to(jnp.arange(segment_ids.shape[1], dtype=jnp.int32), segment_ids.shape)
  before = jnp.pad(segment_ids, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
  starts = jnp.where(segment_ids != before, index, 0)
  return index - jax.lax.cummax(starts, axis=1)


def check_length(length: int, *, max_length: int, model: str) -> None:
  """Raise ValueError if a row is longer than a learned position table."""
  if length > max_length:
    raise ValueError(
      f'{model} has learned positions for {max_length} tokens and was given a row of {length}: shorten it (data.length,'
      f' text or --max_new), or set model.overrides.max_length={length} (init_from with resize="interpolate")'
    )


def bucket_starts(num_buckets: int, max_distance: int) -> list[int]:
  """Compute the smallest distance of each bucket after the first (T5).

  Distances have one sign. Half of the buckets hold one distance each. The starts of the others grow geometrically up to
  `max_distance`. They are computed in integers, because a float32 logarithm may round to the wrong side of a start.
  """
  # 8 buckets up to a distance of 32: 1 2 3 4 exact, then 4 * 8^(1/4), 4 * 8^(2/4), 4 * 8^(3/4) rounded up, 7 12 20.
  # So distance 11 is in bucket 5, and distance 12 in bucket 6.
  exact = num_buckets // 2
  wide = num_buckets - exact
  if not 0 < exact < max_distance:
    raise ValueError(
      f'{num_buckets} buckets of one sign do not reach a distance of {max_distance}: use 2 to {2 * max_distance - 1}'
    )
  starts, distance = list(range(1, exact + 1)), exact
  for step in range(1, wide):
    # ln(distance / exact) / ln(max_distance / exact) * wide >= step, without logarithms
    while distance**wide * exact**step < max_distance**step * exact**wide:
      distance += 1
    starts.append(distance)
  return starts


def relative_buckets(relative: Array, *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128) -> Array:
  """Compute buckets of distances (T5, Raffel et al. 2020, §2.1).

  Args:
    relative: int[...], position of the key minus position of the query.
    bidirectional: the upper half of the buckets is for keys on the right of the query. Otherwise these keys are in
      bucket 0, like distance 0.
    num_buckets: of both directions together.
    max_distance: this and larger distances, and some smaller ones, are in the last bucket.

  Returns:
    int32[...] below `num_buckets`.
  """
  # 16 of 32 buckets for each sign if bidirectional
  one_sign = num_buckets // 2 if bidirectional else num_buckets
  starts = jnp.asarray(bucket_starts(one_sign, max_distance), jnp.int32)
  distance = jnp.abs(relative) if bidirectional else jnp.maximum(-relative, 0)
  buckets = jnp.searchsorted(starts, distance, side='right').astype(jnp.int32)
  return buckets + one_sign * (relative > 0) if bidirectional else buckets


def log_buckets(differences: np.ndarray, *, num_buckets: int, max_distance: int) -> np.ndarray:
  """Compute signed buckets of signed distances (DeBERTa v2, §5.3).

  Buckets are exact up to num_buckets / 2, then of logarithmic width.

  Args:
    differences: int[...], query index minus key index.
    num_buckets: buckets of one direction; `max_distance` - 1 is in the last of them, and larger distances beyond it.
    max_distance: number of distances that have buckets.

  Returns:
    int[...] with the sign of `differences`, not clipped to the rows of a table.
  """
  # exact buckets up to k / 2, then k / 2 + ceil(log(distance / (k / 2)) / log((max - 1) / (k / 2)) (k / 2 - 1))
  middle = num_buckets // 2
  distance = np.maximum(np.abs(differences), middle)
  share = np.log(distance / middle) / np.log((max_distance - 1) / middle)
  far = np.ceil(share * (middle - 1)).astype(np.int64) + middle
  return np.where(np.abs(differences) <= middle, differences, np.sign(differences) * far)


def relative_rows(length: int, *, num_buckets: int, max_distance: int) -> np.ndarray:
  """Compute the table row for each difference i - j of positions.

  The row is i - j + k, clipped to [0, 2k - 1] (DeBERTa, equation 3). The first half of the table is for keys on the
  right of the query, the nearest of them last.

  Args:
    length: of a row.
    num_buckets: k by buckets of logarithmic width; 0 for one row per distance.
    max_distance: k without buckets.

  Returns:
    int32[2 l - 1], for differences from -(l - 1) to l - 1.
  """
  differences = np.arange(1 - length, length)
  half = num_buckets or max_distance
  if num_buckets:
    differences = log_buckets(differences, num_buckets=num_buckets, max_distance=max_distance)
  return np.clip(differences + half, 0, 2 * half - 1).astype(np.int32)


def skew(x: Array) -> Array:
  """Turn scores by difference into scores by key, without a gather.

  out[..., i, j] = x[..., i, j - i + l - 1].

  Args:
    x: [..., l, 2 l - 1]; row i has the score of its query with the key at j in column j - i + l - 1.

  Returns:
    [..., l, l].
  """
  length, width = x.shape[-2:]
  if width != 2 * length - 1:
    raise ValueError(f'scores have the shape {x.shape}, and skew needs [..., l, 2 l - 1]')
  # l = 3, columns are j - i = -2 -1 0 1 2:     one more column    from element l - 1 on in rows of 2 l - 1, l columns
  #   query 0   . . a b c                       . . a b c -        a b c  - .
  #   query 1   . d e f .                       . d e f . -        d e f  . -
  #   query 2   g h i . .                       g h i . . -        g h i  . .
  # reading rows of 2 l elements in rows of 2 l - 1 shifts each row by one column more
  padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)])
  flat = padded.reshape(*x.shape[:-2], 2 * length * length)[..., length - 1 :]
  return flat[..., : length * width].reshape(*x.shape[:-2], length, width)[..., :length]


def _check_size(rows: int, dim: int) -> None:
  """Raise ValueError for a table f32[rows, dim] beyond 2 GiB.

  No compiled program can hold it, so this checks before the host computes it.
  """
  if 4 * rows * dim > MOST_OF_A_CONSTANT:
    raise ValueError(
      f'a table of {rows:,} positions of width {dim} exceeds 2 GiB, the limit of a compiled program: lower data.length '
      'or the number of positions'
    )


def _sinusoids(positions: np.ndarray, *, dim: int) -> np.ndarray:
  """Compute f32[p, d] of positions [p]: all sines, then all cosines.

  Wavelengths grow from 2 pi to 20,000 pi.
  """
  angles = positions[:, None] / 10_000 ** (np.arange(0, dim, 2) / dim)  # [p, d/2]
  return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def sinusoid_table(std: float) -> nn.initializers.Initializer:
  """Return an initializer that starts a position table from sinusoids.

  The table is [l, d], with deviation `std` (Vaswani et al. 2017, §3.5). Neighbouring positions then have similar
  vectors, and attention to a fixed distance is a rotation. So a small network finds its neighbours in fewer steps than
  from random vectors.
  """

  def table(key: Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> Array:
    rows, dim = shape
    _check_size(rows, dim)
    scale = math.sqrt(2) * std  # the deviation of a sinusoid is 1 / sqrt(2)
    return jnp.asarray(scale * _sinusoids(np.arange(rows), dim=dim)[:, :dim], dtype)

  return table


def start_of(how: Start, normal: nn.initializers.Initializer, *, std: float) -> nn.initializers.Initializer:
  """Return the initializer of a learned position table: `normal`, or `sinusoid_table`."""
  return normal if how == 'normal' else sinusoid_table(std)


def relative_sinusoids(num_queries: int, num_keys: int, *, dim: int) -> np.ndarray:
  """Compute sinusoids of all distances from a query to a key.

  f32[p, d] with p = l + m (Transformer-XL, Dai et al. 2019, §3.3). The queries are the last `num_queries` of the
  `num_keys` positions. Row r has the distance num_keys - r, query minus key. Columns are all sines, then all cosines.

  Raises:
    ValueError: the table would exceed 2 GiB.
  """
  _check_size(num_keys + num_queries, dim)
  return _sinusoids(np.arange(num_keys, -num_queries, -1.0), dim=dim)


def relative_shift(scores: Array, *, num_keys: int) -> Array:
  """Turn scores by distance into scores by key.

  [..., l, p] -> [..., l, m] (Transformer-XL, appendix B). The columns are the rows of `relative_sinusoids`. Row i of
  the result starts at column l - i, which has the distance from query i to the first key.
  """
  # l = m = 3, columns are distances 3 2 1 0 -1 -2:     without the first l elements, in rows of p - 1, m columns
  #   query 0   . . . a b c                             a b c  . .
  #   query 1   . . d e f .                             d e f  . .
  #   query 2   . g h i . .                             g h i  . .
  *lead, queries, distances = scores.shape
  flat = scores.reshape(*lead, queries * distances)[..., queries:]
  return flat.reshape(*lead, queries, distances - 1)[..., :num_keys]


def relative_shift_at(scores: Array, positions: Array, *, num_queries: int, num_keys: int) -> Array:
  """Compute rows int[b, t] of `relative_shift`, [b, h, t, m]."""

  def shift_row(row: Array, position: Array) -> Array:
    return jax.lax.dynamic_slice_in_dim(row, num_queries - position, num_keys, axis=-1)  # [h, p] -> [h, m]

  return jax.vmap(jax.vmap(shift_row, in_axes=(1, 0), out_axes=1))(scores, positions)


def rotary_speeds(*, dim: int, base: float = 10_000.0) -> np.ndarray:
  """Compute the radians by which each pair turns per position.

  f64[dim / 2] (RoFormer, §3.2.2).

  Args:
    dim: components of a head that are rotated, an even number.
    base: the speed of pair i is base^(-2i / dim).
  """
  if dim % 2 or dim < 2:
    raise ValueError(f'rotary positions turn pairs of components, and {dim} is not an even number')
  return base ** (-np.arange(0, dim, 2) / dim)


def slow_down(speeds: np.ndarray, *, factor: float, low: float, high: float, length: int) -> np.ndarray:
  """Divide slow speeds, for rows longer than before.

  As `apply_scaling` of the code of LLaMA 3.1.

  Args:
    speeds: f64[r] of `rotary_speeds`.
    factor: divides the speed of pairs that turn less than `low` times in a row.
    low: see `factor`.
    high: pairs that turn more often keep their speed. Between the two, speeds are a mean of both, linear in the turns.
    length: of the longest row before, in tokens.
  """
  # full turns of each pair in a row of `length` tokens
  turns = speeds * length / (2 * np.pi)
  share = np.clip((turns - low) / (high - low), 0, 1)
  return speeds * (share + (1 - share) / factor)


def rotary_angles(positions: Array, speeds: np.ndarray) -> tuple[Array, Array]:
  """Compute cosines and sines of rotary embeddings, f32[b, l, r] each.

  RoFormer (Su et al. 2021), equation 15.

  Args:
    positions: int[b, l].
    speeds: f64[r], radians by which each pair of components turns per position.
  """
  # [b, l, 1] x [r] -> [b, l, r]
  angles = positions[..., None].astype(jnp.float32) * jnp.asarray(speeds, jnp.float32)
  return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Array, angles: tuple[Array, Array], *, layout: Literal['pairs', 'halves']) -> Array:
  """Rotate queries or keys by their positions (RoFormer, equation 34).

  Their products then depend on distances only. The two layouts differ by a fixed order of the components, which kernels
  learn: 'halves' of a permuted kernel equals 'pairs' of the kernel.

  Args:
    x: [b, l, h, k].
    angles: of `rotary_angles`; components of a head beyond the first 2 r are unchanged.
    layout: components of pair i of r: 2i and 2i + 1 ('pairs', RoFormer), or i and i + r ('halves').

  Returns:
    [b, l, h, k] in the dtype of `x`.
  """
  cosine, sine = (part[:, :, None] for part in angles)  # [b, l, 1, r]
  half = cosine.shape[-1]
  rotated, rest = x[..., : 2 * half].astype(jnp.float32), x[..., 2 * half :]
  # 1. split each pair
  if layout == 'pairs':
    first, second = rotated[..., 0::2], rotated[..., 1::2]
  else:
    first, second = rotated[..., :half], rotated[..., half:]
  # 2. rotate it
  both = first * cosine - second * sine, second * cosine + first * sine
  # 3. put the components back in their order
  out = jnp.stack(both, axis=-1).reshape(rotated.shape) if layout == 'pairs' else jnp.concatenate(both, axis=-1)
  return jnp.concatenate([out.astype(x.dtype), rest], axis=-1)
