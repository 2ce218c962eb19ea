"""Other orders of the same tokens: (key, row) -> int32[l], where the token of each position comes from.

Nothing leaves its stretch, the run of eligible tokens of one document; special tokens and padding stay.
"""

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.noise.row import Row
from plm_jax.noise.where import spans
from plm_jax.noise.where.counts import check_rate, round_up
from plm_jax.noise.where.spans import Stretches
from plm_jax.types import Array


def permute_sentences(key: Array, row: Row, *, ratio: float = 1.0) -> Array:
  """Sentence permutation of BART (Lewis et al. 2019, §2.2).

  Of each stretch, ceil(ratio * sentences) sentences are chosen and put in random order into the places that they have.
  The end of a stretch ends a sentence. Needs `row.sentence_ids`.

  Args:
    key: noise key of the row.
    row: clean text. Sentences beyond 64, or beyond a quarter of the row's length where that is more, keep their place.
    ratio: share of the sentences.
  """
  check_rate(ratio)
  if row.sentence_ids is None:
    raise ValueError('permute_sentences needs sentence ids: a vocabulary that says which tokens end a sentence')
  length = row.ids.shape[0]
  runs = spans.stretches(row)
  changes = jnp.pad(row.sentence_ids[1:] != row.sentence_ids[:-1], (1, 0), constant_values=True)
  starts = runs.inside & (runs.fresh | changes)
  order_key, chosen_key = jax.random.split(key)
  chosen = starts
  if ratio < 1:
    total = runs.total(starts)
    counts = np.array([round_up(ratio, count) for count in range(length + 1)], np.int32)
    uniform = jax.random.uniform(chosen_key, (length,))
    chosen = spans.sample(uniform, starts, fresh=runs.fresh, wanted=jnp.asarray(counts)[total], total=total)
  return _permute(order_key, runs, starts, chosen, most=min(length, max(64, length // 4)))


def deshuffle(key: Array, row: Row) -> Array:
  """All tokens of each stretch in random order: the deshuffling objective of T5 (Raffel et al. 2020, §3.3.1)."""
  runs = spans.stretches(row)
  return _permute(key, runs, runs.inside, runs.inside, most=row.ids.shape[0])


def rotate(key: Array, row: Row, *, rate: float = 1.0) -> Array:
  """Document rotation of BART (Lewis et al. 2019, §2.2): each stretch begins at any of its tokens but the first.

  Args:
    key: noise key of the row.
    row: clean text.
    rate: probability that a stretch is rotated.
  """
  check_rate(rate)
  index = jnp.arange(row.ids.shape[0])
  runs = spans.stretches(row)
  size = runs.size
  uniform = jax.random.uniform(key, (2, *index.shape))[:, runs.first]  # two numbers a stretch
  offset = 1 + (uniform[0] * (size - 1)).astype(jnp.int32)
  offset = jnp.where(uniform[1] < rate, offset, 0)
  turned = runs.first + (index - runs.first + offset) % jnp.maximum(size, 1)
  return jnp.where(runs.inside, turned, index)


def _permute(key: Array, runs: Stretches, starts: Array, chosen: Array, *, most: int) -> Array:
  """The order in which the chosen units of each stretch have changed places at random.

  Args:
    key: of the order.
    runs: stretches of the row.
    starts: bool[l], where a unit begins.
    chosen: bool[l], which of these move.
    most: units of a row that can move; those after them stay.
  """
  length = starts.shape[0]
  index = jnp.arange(length, dtype=jnp.int32)
  starts = starts | ~runs.inside  # what is in no stretch is a unit that stays
  unit = jnp.cumsum(starts.astype(jnp.int32)) - 1
  slots = jnp.where(starts, unit, length)
  begin = jnp.full(length + 1, length, jnp.int32).at[slots].set(index, mode='drop')  # of unit u, [l + 1]
  begin = begin.at[length].set(length)
  size = begin[1:] - begin[:-1]  # 0 behind the last unit

  # the units that move, from left to right and in random order within their stretch: [most] each
  place = jnp.where(chosen, jnp.cumsum(chosen.astype(jnp.int32)) - 1, most)
  movers = jnp.full(most, length, jnp.int32).at[place].set(unit, mode='drop')
  bits = 32 - length.bit_length()
  group = jnp.full(most, length, jnp.uint32).at[place].set(runs.group.astype(jnp.uint32), mode='drop')
  score = (group << bits) | (jax.random.bits(key, (most,), jnp.uint32) >> (32 - bits))
  _, shuffled = jax.lax.sort((score, movers), num_keys=1)

  source = index.at[movers].set(shuffled, mode='drop')  # [l], the unit that comes at unit u's turn
  size = size[source]
  new = jnp.cumsum(size) - size
  turn = jnp.cumsum(jnp.zeros(length, jnp.int32).at[jnp.where(size > 0, new, length)].add(1, mode='drop')) - 1
  return begin[source[turn]] + index - new[turn]
