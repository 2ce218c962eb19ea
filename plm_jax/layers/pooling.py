"""One vector for each row of states."""

import jax.numpy as jnp

from plm_jax.core.types import Array


def largest(hidden: Array, segment_ids: Array) -> Array:
  """The largest value of each component over the real tokens of a row: [b, l, d] -> [b, d]; of none, zeros.

  Uses argmax and gather: the gradient of `max` compares floats for equality, and a compiler may have computed the two
  sides in different ways.
  """
  real = (segment_ids > 0)[..., None]
  place = jnp.where(real, hidden, -jnp.inf).argmax(axis=1, keepdims=True)
  return jnp.where(real.any(axis=1), jnp.take_along_axis(hidden, place, axis=1)[:, 0], 0)


def last(hidden: Array, segment_ids: Array) -> Array:
  """The state of the last real token of each row, on whichever side padding stands: [b, l, d] -> [b, d].

  Of a row of padding alone, the first state.
  """
  # segments  1 1 2 0   index of a real token, else 0:  0 1 2 0   last: 2
  index = jnp.arange(segment_ids.shape[1])
  place = jnp.max(jnp.where(segment_ids > 0, index, 0), axis=1)  # [b]
  return jnp.take_along_axis(hidden, place[:, None, None], axis=1)[:, 0]


def mean(hidden: Array, segment_ids: Array) -> Array:
  """Mean of the states of the real tokens of a row: [b, l, d] -> f32[b, d]; of none, zeros."""
  real = (segment_ids > 0).astype(jnp.float32)[..., None]
  return (hidden * real).sum(axis=1) / jnp.maximum(real.sum(axis=1), 1.0)


def last_largest_and_mean(hidden: Array, segment_ids: Array) -> Array:
  """`last`, `largest` and `mean` side by side (concat pooling; Howard and Ruder 2018, eq. 4): [b, l, d] -> [b, 3 d]."""
  parts = (pool(hidden, segment_ids) for pool in (last, largest, mean))
  return jnp.concatenate([part.astype(jnp.float32) for part in parts], axis=-1)
