"""Choices without replacement, from one random 32-bit word per position."""

import math

import jax
import jax.numpy as jnp

from plm_jax.core.types import Array


def draw_scores(key: Array, length: int) -> tuple[Array, int]:
  """Random scores int32[l], positive and distinct, and the mask of their low bits, which hold the position plus 1."""
  low = 2 ** math.ceil(math.log2(length + 1)) - 1
  high = (jax.random.bits(key, (length,)) >> 1).astype(jnp.int32) & ~low
  return high | jnp.arange(1, length + 1, dtype=jnp.int32), low


def largest(scores: Array, count: Array) -> Array:
  """bool[l]: the `count` largest of int32[l] `scores`, which are positive and distinct; none where `count` is 0.

  Finds the threshold bit by bit; on a CPU three times as fast as `top_k`.
  """

  def try_bit(number, threshold):
    higher = threshold | (1 << (30 - number))
    # the CPU backend vectorises a sum of float32, which is exact for these counts
    enough = (scores >= higher).astype(jnp.float32).sum() >= count
    return jnp.where(enough, higher, threshold)

  threshold = jax.lax.fori_loop(0, 31, try_bit, jnp.int32(0))
  return (scores >= threshold) & (count > 0)


def choose(key: Array, candidates: Array, count: Array) -> Array:
  """bool[l]: `count` of bool[l] `candidates`, uniformly without replacement; all of them where there are fewer."""
  scores, _ = draw_scores(key, candidates.shape[0])
  return largest(jnp.where(candidates, scores, 0), jnp.minimum(count, candidates.sum()))
