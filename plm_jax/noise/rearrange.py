"""Other orders of the same tokens: (key, row) -> int32[l], the source index of the token at each position.

No token leaves its run (`noise/runs.py`). Special tokens and padding keep their positions.
"""

import jax
import jax.numpy as jnp

from plm_jax.core.keywords import Rate
from plm_jax.core.types import Array
from plm_jax.noise.row import Row
from plm_jax.noise.runs import Runs, find_runs, select
from plm_jax.noise.where.counts import check_rate, count_table, round_up


def permute_sentences(key: Array, row: Row, *, ratio: Rate = 1.0) -> Array:
  """Permute the sentences of each run (BART, §2.2).

  Sentence permutation (Lewis et al. 2019): ceil(ratio * sentences) sentences of each run are chosen and exchange their
  positions at random. The end of a run ends a sentence.

  # sentence   A  A  B  C  C      order C A B
  # source     3  4  0  1  2

  Args:
    row: clean text, with sentence ids. Sentences beyond the first max(64, l / 4) of the row do not move.
    ratio: share of the sentences.

  Raises:
    ValueError: a ratio outside of [0, 1], or a row without sentence ids.
  """
  check_rate(ratio, name='ratio')
  if row.sentence_ids is None:
    raise ValueError('permute_sentences needs sentence ids: use a vocabulary that marks the ends of sentences')
  length = row.ids.shape[0]
  runs = find_runs(row)
  # 1. starts of sentences
  changes = jnp.pad(row.sentence_ids[1:] != row.sentence_ids[:-1], (1, 0), constant_values=True)
  starts = runs.inside & (runs.fresh | changes)
  order_key, chosen_key = jax.random.split(key)
  # 2. sentences that move
  chosen = starts
  if ratio < 1:
    total = runs.total(starts)
    wanted = count_table(lambda count: round_up(ratio, count), length)[total]
    uniform = jax.random.uniform(chosen_key, (length,))
    chosen = select(uniform, starts, fresh=runs.fresh, wanted=wanted, total=total)
  return _permute(order_key, runs, starts, chosen, most=min(length, max(64, length // 4)))


def deshuffle(key: Array, row: Row) -> Array:
  """Shuffle the tokens of each run (T5, Raffel et al. 2020, §3.3.1)."""
  runs = find_runs(row)
  return _permute(key, runs, runs.inside, runs.inside, most=row.ids.shape[0])


def rotate(key: Array, row: Row, *, rate: Rate = 1.0) -> Array:
  """Rotate each run to a random start (BART, §2.2).

  Document rotation (Lewis et al. 2019): a uniform token of each run except the first comes first.

  # run       a b c d e      c comes first
  # source    2 3 4 0 1

  Args:
    rate: probability that a run is rotated.
  """
  check_rate(rate)
  index = jnp.arange(row.ids.shape[0])
  runs = find_runs(row)
  size = runs.size
  uniform = jax.random.uniform(key, (2, *index.shape))[:, runs.first]  # two numbers per run
  offset = 1 + (uniform[0] * (size - 1)).astype(jnp.int32)
  offset = jnp.where(uniform[1] < rate, offset, 0)
  rotated = runs.first + (index - runs.first + offset) % jnp.maximum(size, 1)
  return jnp.where(runs.inside, rotated, index)


def _permute(key: Array, runs: Runs, starts: Array, chosen: Array, *, most: int) -> Array:
  """Permute the chosen units of each run at random.

  # token     a  b  c  d  e  f     units  a b | c | d e f, all chosen, order d e f, a b, c
  # unit      0  0  1  2  2  2     begin  0 2 3, size 2 1 3
  # source    3  4  5  0  1  2     by unit 2 0 1: the new sizes are 3 2 1, the new begins 0 3 5

  Args:
    starts: bool[l], True where a unit begins.
    chosen: bool[l], the starts of the units that move.
    most: number of units of a row that can move; later ones stay.

  Returns:
    int32[l], the source index of each position.
  """
  length = starts.shape[0]
  index = jnp.arange(length, dtype=jnp.int32)
  # 1. begin and size of each unit; each token outside of a run is a unit that stays
  starts = starts | ~runs.inside
  unit = jnp.cumsum(starts.astype(jnp.int32)) - 1
  slots = jnp.where(starts, unit, length)
  begin = jnp.full(length + 1, length, jnp.int32).at[slots].set(index, mode='drop')  # [l + 1], first token of each unit
  begin = begin.at[length].set(length)
  size = begin[1:] - begin[:-1]  # [l], tokens of each unit; 0 after the last one

  # 2. units that move, from left to right (`movers`) and in random order within each run (`shuffled`): [most] each;
  #    a score has the run in its high bits and random bits below
  slot = jnp.where(chosen, jnp.cumsum(chosen.astype(jnp.int32)) - 1, most)
  movers = jnp.full(most, length, jnp.int32).at[slot].set(unit, mode='drop')
  bits = 32 - length.bit_length()
  group = jnp.full(most, length, jnp.uint32).at[slot].set(runs.group.astype(jnp.uint32), mode='drop')
  score = (group << bits) | (jax.random.bits(key, (most,), jnp.uint32) >> (32 - bits))
  _, shuffled = jax.lax.sort((score, movers), num_keys=1)

  # 3. new order of units: the unit that moves to each turn, [l]
  source = index.at[movers].set(shuffled, mode='drop')
  new_size = size[source]
  new = jnp.cumsum(new_size) - new_size
  # 4. the source of each token: the begin of its new unit, plus its index within that unit
  turn = jnp.cumsum(jnp.zeros(length, jnp.int32).at[jnp.where(new_size > 0, new, length)].add(1, mode='drop')) - 1
  return begin[source[turn]] + index - new[turn]
