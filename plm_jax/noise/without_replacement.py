"""Samples without replacement, from one random 32-bit word per position."""

import math

import jax
import jax.numpy as jnp

from plm_jax.core.types import Array


def draw_scores(key: Array, length: int) -> tuple[Array, int]:
  """Sample random scores int32[l], positive and distinct.

  Their low bits hold the position plus 1. The second result is the mask of these bits.
  """
  low = 2 ** math.ceil(math.log2(length + 1)) - 1
  high = (jax.random.bits(key, (length,)) >> 1).astype(jnp.int32) & ~low
  return high | jnp.arange(1, length + 1, dtype=jnp.int32), low


def largest(scores: Array, count: Array) -> Array:
  """Mark the `count` largest of int32[l] `scores`: bool[l].

  Scores are positive and distinct. Finds the threshold bit by bit, which is three times as fast as `top_k` on a CPU.
  """

  def try_bit(index, threshold):
    higher = threshold | (1 << (30 - index))
    # a sum of float32 is exact for these counts, and the CPU backend vectorises it
    enough = (scores >= higher).astype(jnp.float32).sum() >= count
    return jnp.where(enough, higher, threshold)

  threshold = jax.lax.fori_loop(0, 31, try_bit, jnp.int32(0))
  return (scores >= threshold) & (count > 0)


def choose(key: Array, candidates: Array, count: Array) -> Array:
  """Choose `count` of bool[l] `candidates` uniformly, or all if fewer."""
  scores, _ = draw_scores(key, candidates.shape[0])
  return largest(jnp.where(candidates, scores, 0), jnp.minimum(count, candidates.sum()))
