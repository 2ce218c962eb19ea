"""Other orders of the same tokens: (key, row) -> int32[l], where the token of each position comes from.

No token leaves its stretch (`noise/stretches.py`); special tokens and padding keep their places.
"""

import jax
import jax.numpy as jnp

from plm_jax.core.types import Array, Rate
from plm_jax.noise.row import Row
from plm_jax.noise.stretches import Stretches, find_stretches, select
from plm_jax.noise.where.counts import check_rate, count_table, round_up


def permute_sentences(key: Array, row: Row, *, ratio: Rate = 1.0) -> Array:
  """Sentence permutation of BART (Lewis et al. 2019, §2.2).

  ceil(ratio * sentences) sentences of each stretch are chosen and exchange their places at random. The end of a stretch
  ends a sentence.

  # sentence   A  A  B  C  C      order C A B
  # source     3  4  0  1  2

  Args:
    key: noise key of the row.
    row: clean text, with sentence ids. Sentences beyond the first max(64, l / 4) of the row keep their places.
    ratio: share of the sentences.

  Raises:
    ValueError: a ratio outside of [0, 1], or a row without sentence ids.
  """
  check_rate(ratio, name='ratio')
  if row.sentence_ids is None:
    raise ValueError('permute_sentences needs sentence ids: a vocabulary that says which tokens end a sentence')
  length = row.ids.shape[0]
  stretches = find_stretches(row)
  changes = jnp.pad(row.sentence_ids[1:] != row.sentence_ids[:-1], (1, 0), constant_values=True)
  starts = stretches.inside & (stretches.fresh | changes)
  order_key, chosen_key = jax.random.split(key)
  chosen = starts
  if ratio < 1:
    total = stretches.total(starts)
    wanted = count_table(lambda count: round_up(ratio, count), length)[total]
    uniform = jax.random.uniform(chosen_key, (length,))
    chosen = select(uniform, starts, fresh=stretches.fresh, wanted=wanted, total=total)
  return _permute(order_key, stretches, starts, chosen, most=min(length, max(64, length // 4)))


def deshuffle(key: Array, row: Row) -> Array:
  """All tokens of each stretch in random order: the deshuffling objective of T5 (Raffel et al. 2020, §3.3.1)."""
  stretches = find_stretches(row)
  return _permute(key, stretches, stretches.inside, stretches.inside, most=row.ids.shape[0])


def rotate(key: Array, row: Row, *, rate: Rate = 1.0) -> Array:
  """Document rotation of BART (Lewis et al. 2019, §2.2): a uniform token of each stretch but the first comes first.

  # stretch   a b c d e      c comes first
  # source    2 3 4 0 1

  Args:
    key: noise key of the row.
    row: clean text.
    rate: probability that a stretch is rotated.
  """
  check_rate(rate)
  index = jnp.arange(row.ids.shape[0])
  stretches = find_stretches(row)
  size = stretches.size
  uniform = jax.random.uniform(key, (2, *index.shape))[:, stretches.first]  # two numbers per stretch
  offset = 1 + (uniform[0] * (size - 1)).astype(jnp.int32)
  offset = jnp.where(uniform[1] < rate, offset, 0)
  turned = stretches.first + (index - stretches.first + offset) % jnp.maximum(size, 1)
  return jnp.where(stretches.inside, turned, index)


def _permute(key: Array, stretches: Stretches, starts: Array, chosen: Array, *, most: int) -> Array:
  """int32[l]: sources of a row in which the chosen units of each stretch have exchanged their places at random.

  # token     a  b  c  d  e  f     units  a b | c | d e f, all chosen, order d e f, a b, c
  # unit      0  0  1  2  2  2     begin  0 2 3, size 2 1 3
  # source    3  4  5  0  1  2     by unit 2 0 1: the new sizes are 3 2 1, the new begins 0 3 5

  Args:
    key: of the order.
    stretches: of the row.
    starts: bool[l], where a unit begins.
    chosen: bool[l], the starts of the units that move.
    most: number of units of a row that can move; later ones stay.
  """
  length = starts.shape[0]
  index = jnp.arange(length, dtype=jnp.int32)
  starts = starts | ~stretches.inside  # each token outside of a stretch is a unit that stays
  unit = jnp.cumsum(starts.astype(jnp.int32)) - 1
  slots = jnp.where(starts, unit, length)
  begin = jnp.full(length + 1, length, jnp.int32).at[slots].set(index, mode='drop')  # [l + 1], first token of each unit
  begin = begin.at[length].set(length)
  size = begin[1:] - begin[:-1]  # [l], tokens of each unit; 0 after the last one

  # units that move, from left to right (`movers`) and in random order within each stretch (`shuffled`): [most] each;
  # a score has the stretch in its high bits and random bits below
  place = jnp.where(chosen, jnp.cumsum(chosen.astype(jnp.int32)) - 1, most)
  movers = jnp.full(most, length, jnp.int32).at[place].set(unit, mode='drop')
  bits = 32 - length.bit_length()
  group = jnp.full(most, length, jnp.uint32).at[place].set(stretches.group.astype(jnp.uint32), mode='drop')
  score = (group << bits) | (jax.random.bits(key, (most,), jnp.uint32) >> (32 - bits))
  _, shuffled = jax.lax.sort((score, movers), num_keys=1)

  source = index.at[movers].set(shuffled, mode='drop')  # [l], the unit that takes the turn of each unit
  size = size[source]
  new = jnp.cumsum(size) - size
  turn = jnp.cumsum(jnp.zeros(length, jnp.int32).at[jnp.where(size > 0, new, length)].add(1, mode='drop')) - 1
  return begin[source[turn]] + index - new[turn]
