"""One vector for a row of states."""

import jax.numpy as jnp

from plm_jax.types import Array


def largest(hidden: Array, segment_ids: Array) -> Array:
  """The largest value of each component over the real tokens of a row: [b, l, d] -> [b, d]; of none, zeros.

  Taken by its place: the gradient of a maximum compares it with values that a compiler may have computed otherwise.
  """
  real = (segment_ids > 0)[..., None]
  place = jnp.where(real, hidden, -jnp.inf).argmax(axis=1, keepdims=True)
  return jnp.where(real.any(axis=1), jnp.take_along_axis(hidden, place, axis=1)[:, 0], 0)
