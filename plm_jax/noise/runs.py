"""Runs of eligible tokens of one document. Spans, sentences and rotations stay within a run.

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


class Runs(NamedTuple):
  """The runs of a row, by token."""

  fresh: Array  # bool[l], True at the first token of a run
  inside: Array  # bool[l], True in a run
  first: Array  # int32[l], index of the first token of the last run that began; 0 before any
  group: Array  # int32[l], index of that run from 0; -1 before any

  def total(self, values: Array) -> Array:
    """Sum int[l] `values` over each run and positions up to the next."""
    values = jnp.where(self.group >= 0, values, 0).astype(jnp.int32)
    group = jnp.maximum(self.group, 0)
    return jnp.zeros_like(group).at[group].add(values)[group]

  @property
  def size(self) -> Array:
    """Count the tokens of the run of each position: int32[l]."""
    return self.total(self.inside)


def continues_document(row: Row, before: Array) -> Array:
  """Mark positions right after bool[l] `before` in the same document: bool[l]."""
  return jnp.pad(before[:-1] & (row.segment_ids[:-1] == row.segment_ids[1:]), (1, 0))


def find_runs(row: Row) -> Runs:
  """Find the runs of a row."""
  fresh = row.eligible & ~continues_document(row, row.eligible)
  length = fresh.shape[0]
  index = jnp.arange(length, dtype=jnp.int32)
  group = jnp.cumsum(fresh.astype(jnp.int32)) - 1
  # index of the first token, by run
  first = jnp.zeros(length, jnp.int32).at[jnp.where(fresh, group, length)].set(index, mode='drop')
  return Runs(fresh=fresh, inside=row.eligible, first=first[jnp.maximum(group, 0)], group=group)


def select(uniform: Array, candidates: Array, *, fresh: Array, wanted: Array, total: Array) -> Array:
  """Select a random subset of the candidates of each group.

  As many as wanted are selected, or all; every subset has the same probability. From left to right, each candidate is
  selected with probability wanted / left (Knuth, volume 2, 3.4.2, algorithm S).

  Args:
    uniform: f32[l] in [0, 1).
    candidates: bool[l]; none is before the first group.
    fresh: bool[l], True where a group begins.
    wanted: int32[l], the same number at all positions of a group.
    total: int32[l], candidates of the group, the same number at all its positions.

  Returns:
    bool[l].
  """
  # Both select the same. A CPU loops over the tokens in a tenth of the time of a sort, but a TPU takes 13 us per
  # token.
  return jax.lax.platform_dependent(
    uniform, candidates, fresh, wanted, total, cpu=select_by_token, default=select_in_rounds
  )


def select_by_token(uniform: Array, candidates: Array, fresh: Array, wanted: Array, total: Array) -> Array:
  """Compute `select` token by token."""

  def visit(carry: tuple[Array, Array], token: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
    # a new group starts with its wanted and total counts
    random, candidate, begins, wanted, total = token
    missing, left = (jnp.where(begins, new, old) for new, old in zip((wanted, total), carry, strict=True))
    taken = candidate & (random * left < missing)
    return (missing - taken, left - candidate), taken

  zero = jnp.zeros((), jnp.int32)
  return jax.lax.scan(visit, (zero, zero), (uniform, candidates, fresh, wanted, total))[1]


def select_in_rounds(uniform: Array, candidates: Array, fresh: Array, wanted: Array, total: Array) -> Array:
  """Compute `select` for all tokens at once, in rounds.

  Each round treats the tokens on the left of a token as selected in the round before. A token is final once all on its
  left are, so the rounds end with the result of `select_by_token`. A wrong token changes another one with probability 1
  / left: 20 rounds are enough for rows of 2,048.
  """

  def before(counted: Array) -> Array:
    return jnp.cumsum(counted) - counted

  def since_group(counts: Array) -> Array:  # for results of `before`, which never fall
    return counts - jax.lax.cummax(jnp.where(fresh, counts, 0))

  # 1. each group selects as many as wanted, or all, so the number selected in earlier groups is known
  earlier = jax.lax.cummax(jnp.where(fresh, before(jnp.where(fresh, jnp.minimum(wanted, total), 0)), 0))
  # 2. uniform numbers times the candidates left
  scaled = uniform * (total - since_group(before(candidates.astype(jnp.int32))))

  # 3. select again until nothing changes
  def retake(state: tuple[Array, Array]) -> tuple[Array, Array]:
    taken, _ = state
    again = candidates & (scaled < wanted - (before(taken.astype(jnp.int32)) - earlier))
    return again, (again != taken).any()

  first = candidates & (uniform * total < wanted)
  return jax.lax.while_loop(lambda state: state[1], retake, (first, jnp.ones((), bool)))[0]
