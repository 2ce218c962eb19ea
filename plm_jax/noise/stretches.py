"""Stretches: runs of eligible tokens of one document. Spans, sentences and rotations stay within one.

# token      a  b [SEP] c  d  e | f  g [PAD]     `|` is the end of a document
# eligible   1  1   0   1  1  1 | 1  1   0
# fresh      1  0   0   1  0  0 | 1  0   0
# group      0  0   0   1  1  1 | 2  2   2
# first      0  0   0   3  3  3 | 6  6   6
# size       2  2   2   3  3  3 | 2  2   2
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.noise.row import Row


class Stretches(NamedTuple):
  """The stretches of a row, as its tokens see them.

  Attributes:
    fresh: bool[l], True at the first token of a stretch.
    inside: bool[l], True in a stretch.
    first: int32[l], index of the first token of the last stretch that began; 0 before any.
    group: int32[l], number of that stretch from 0; -1 before any.
  """

  fresh: Array
  inside: Array
  first: Array
  group: Array

  def total(self, values: Array) -> Array:
    """int32[l]: the sum of int[l] `values` over each position's stretch and what follows up to the next one."""
    values = jnp.where(self.group >= 0, values, 0).astype(jnp.int32)
    group = jnp.maximum(self.group, 0)
    return jnp.zeros_like(group).at[group].add(values)[group]

  @property
  def size(self) -> Array:
    """int32[l]: tokens of the stretch."""
    return self.total(self.inside)


def continues_document(row: Row, before: Array) -> Array:
  """bool[l]: True where bool[l] `before` holds at the position on the left and that one is in the same document."""
  return jnp.pad(before[:-1] & (row.segment_ids[:-1] == row.segment_ids[1:]), (1, 0))


def find_stretches(row: Row) -> Stretches:
  """The stretches of a row."""
  fresh = row.eligible & ~continues_document(row, row.eligible)
  length = fresh.shape[0]
  index = jnp.arange(length, dtype=jnp.int32)
  group = jnp.cumsum(fresh.astype(jnp.int32)) - 1
  places = jnp.zeros(length, jnp.int32).at[jnp.where(fresh, group, length)].set(index, mode='drop')
  return Stretches(fresh, row.eligible, first=places[jnp.maximum(group, 0)], group=group)


def select(uniform: Array, candidates: Array, *, fresh: Array, wanted: Array, total: Array) -> Array:
  """bool[l]: as many of each group's candidates as wanted, or all; every choice has the same probability.

  From left to right each candidate is taken with probability wanted / left (Knuth, volume 2, 3.4.2, algorithm S).

  Args:
    uniform: f32[l] in [0, 1).
    candidates: bool[l]; none stands before the first group.
    fresh: bool[l], where a group begins.
    wanted: int32[l], one number for all positions of a group.
    total: int32[l], candidates of the group, likewise.
  """
  # the same choice: a CPU passes over the tokens in a tenth of the time of a sort, and a TPU loses 13 us at each token
  return jax.lax.platform_dependent(
    uniform, candidates, fresh, wanted, total, cpu=select_by_token, default=select_in_rounds
  )


def select_by_token(uniform: Array, candidates: Array, fresh: Array, wanted: Array, total: Array) -> Array:
  """`select`, one token after the other."""

  def visit(carry: tuple[Array, Array], token: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
    number, candidate, begins, wanted, total = token
    missing, left = (jnp.where(begins, new, old) for new, old in zip((wanted, total), carry, strict=True))
    taken = candidate & (number * left < missing)
    return (missing - taken, left - candidate), taken

  zero = jnp.zeros((), jnp.int32)
  return jax.lax.scan(visit, (zero, zero), (uniform, candidates, fresh, wanted, total))[1]


def select_in_rounds(uniform: Array, candidates: Array, fresh: Array, wanted: Array, total: Array) -> Array:
  """`select`, all tokens at once: each as if the tokens on its left were taken as in the round before.

  A token is right for ever once all on its left are, so the rounds end with the choice of `select_by_token`. A wrong
  token changes another one with probability 1 / left: 20 rounds are enough for rows of 2,048.
  """

  def before(counted: Array) -> Array:
    return jnp.cumsum(counted) - counted

  def since_group(counts: Array) -> Array:  # of what `before` gives, which never falls
    return counts - jax.lax.cummax(jnp.where(fresh, counts, 0))

  # a group takes its wanted ones, or all: what earlier groups have taken is known
  earlier = jax.lax.cummax(jnp.where(fresh, before(jnp.where(fresh, jnp.minimum(wanted, total), 0)), 0))
  scaled = uniform * (total - since_group(before(candidates.astype(jnp.int32))))

  def retake(state: tuple[Array, Array]) -> tuple[Array, Array]:
    taken, _ = state
    again = candidates & (scaled < wanted - (before(taken.astype(jnp.int32)) - earlier))
    return again, (again != taken).any()

  first = candidates & (uniform * total < wanted)
  return jax.lax.while_loop(lambda state: state[1], retake, (first, jnp.ones((), bool)))[0]
