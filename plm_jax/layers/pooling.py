"""Pooling: one vector for each row of states."""

import jax.numpy as jnp

from plm_jax.core.types import Array


def largest(hidden: Array, segment_ids: Array) -> Array:
  """Compute the largest value of each component over real tokens.

  [b, l, d] -> [b, d]; zeros for a row without tokens. It uses argmax and gather. The gradient of `max` compares floats
  for equality, and a compiler may compute the two sides in different ways.
  """
  real = (segment_ids > 0)[..., None]
  # [b, l, d] -> [b, 1, d], the token with the largest value of each component
  index = jnp.where(real, hidden, -jnp.inf).argmax(axis=1, keepdims=True)
  return jnp.where(real.any(axis=1), jnp.take_along_axis(hidden, index, axis=1)[:, 0], 0)


def last(hidden: Array, segment_ids: Array) -> Array:
  """Return the state of the last real token of each row.

  [b, l, d] -> [b, d]. Padding may be on either side. A row of padding gives its first state.
  """
  # segments  1 1 2 0   index of a real token, else 0:  0 1 2 0   last: 2
  index = jnp.arange(segment_ids.shape[1])
  final = jnp.max(jnp.where(segment_ids > 0, index, 0), axis=1)  # [b]
  return jnp.take_along_axis(hidden, final[:, None, None], axis=1)[:, 0]


def mean(hidden: Array, segment_ids: Array) -> Array:
  """Compute the mean state over the real tokens of a row.

  [b, l, d] -> f32[b, d]; zeros for a row without tokens.
  """
  # [b, l] -> [b, l, 1]
  real = (segment_ids > 0).astype(jnp.float32)[..., None]
  return (hidden * real).sum(axis=1) / jnp.maximum(real.sum(axis=1), 1.0)


def last_largest_and_mean(hidden: Array, segment_ids: Array) -> Array:
  """Concatenate `last`, `largest`, `mean` (Howard and Ruder 2018, eq. 4)."""
  parts = (pool(hidden, segment_ids) for pool in (last, largest, mean))
  return jnp.concatenate([part.astype(jnp.float32) for part in parts], axis=-1)
