"""Choices without replacement, from one random word a position."""

import math

import jax
import jax.numpy as jnp

from plm_jax.types import Array


def draw_scores(key: Array, length: int) -> tuple[Array, int]:
  """int32[l] random scores above 0 that differ, and the mask of their low bits, which hold the position plus 1."""
  low = 2 ** math.ceil(math.log2(length + 1)) - 1
  high = (jax.random.bits(key, (length,)) >> 1).astype(jnp.int32) & ~low
  return high | jnp.arange(1, length + 1, dtype=jnp.int32), low


def largest(scores: Array, count: Array) -> Array:
  """bool[l]: the `count` largest of int32[l] scores above 0 that differ; a search for the threshold, bit by bit.

  Three times as fast as `top_k` on a CPU; nothing is chosen where `count` is 0.
  """

  def try_bit(number, threshold):
    higher = threshold | (1 << (30 - number))
    # counts in float32 add up in vector registers, and exactly
    enough = (scores >= higher).astype(jnp.float32).sum() >= count
    return jnp.where(enough, higher, threshold)

  threshold = jax.lax.fori_loop(0, 31, try_bit, jnp.int32(0))
  return (scores >= threshold) & (count > 0)


def choose(key: Array, candidates: Array, count: Array) -> Array:
  """bool[l]: `count` of the candidates, uniformly without replacement; all of them where there are fewer."""
  scores, _ = draw_scores(key, candidates.shape[0])
  return largest(jnp.where(candidates, scores, 0), jnp.minimum(count, candidates.sum()))
