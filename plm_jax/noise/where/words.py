"""Where to corrupt, by whole words: (key, row) -> spans. The functions need `Row.word_ids`.

Spans and words never cross a boundary: the end of a document, or a token that may not change.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.noise.draws import draw_scores
from plm_jax.noise.row import Row, Spans
from plm_jax.noise.where.counts import (
  Count,
  capacity_of_budget,
  capacity_of_share,
  draw_budget,
  number_spans,
  share_of,
  single_tokens,
)
from plm_jax.types import Array


class Words(NamedTuple):
  """The words of a row as its tokens see them; a wall ends a word.

  Attributes:
    word: int32[l], number of the token's word, from 0; a token that may not change is a word by itself.
    run: int32[l], number of the stretch without a wall that the token is in.
    starts: bool[l], True at the first token of each word that may be chosen.
    end: int32[l], the position behind the token's word.
  """

  word: Array
  run: Array
  starts: Array
  end: Array


def _touches(row: Row) -> Array:
  """bool[l], True where no wall is between a position and the one before it."""
  same = (row.segment_ids[1:] == row.segment_ids[:-1]) & row.eligible[1:] & row.eligible[:-1]
  return jnp.concatenate([jnp.zeros(1, bool), same])


def find_words(row: Row, *, user: str) -> Words:
  """The words of a row; `user` is the function that wants them, for the message where there are none."""
  if row.word_ids is None:
    raise ValueError(f'{user} needs word ids: a vocabulary that says which pieces start a word')
  length = row.ids.shape[0]
  touches = _touches(row)
  joined = touches & jnp.concatenate([jnp.zeros(1, bool), row.word_ids[1:] == row.word_ids[:-1]])
  index = jnp.arange(length, dtype=jnp.int32)
  border = jnp.where(joined, length, index)  # a word ends where the next one starts
  later = jnp.concatenate([border[1:], jnp.full(1, length, jnp.int32)])
  end = jax.lax.cummin(later, reverse=True)
  cumulate = lambda breaks: jnp.cumsum(breaks.astype(jnp.int32)) - 1  # noqa: E731
  return Words(cumulate(~joined), cumulate(~touches), row.eligible & ~joined, end)


def _merged(row: Row, chosen: Array) -> Spans:
  """Chosen positions that touch as one span."""
  before = jnp.concatenate([jnp.zeros(1, bool), chosen[:-1]])
  return number_spans(~(before & _touches(row)), chosen)


# Single tokens --------------------------------------------------------------------------------------------------------


# Words ----------------------------------------------------------------------------------------------------------------


def whole_word(
  key: Array,
  row: Row,
  *,
  rate: float = 0.15,
  max_count: int | None = None,
  count: Count = 'bert',
) -> Spans:
  """Whole words in random order until the budget is met; a word that would overshoot is passed over (BERT, 2019).

  The budget, in tokens, is that of `fixed_count` with its `count`. Each chosen word is one span.
  """
  words = find_words(row, user='whole_word')
  count_key, key = jax.random.split(key) if count == 'roberta' else (key, key)
  budget = draw_budget(row, count_key, rate=rate, count=count, max_count=max_count)
  chosen, starts = _take_grams(key, words, jnp.ones(row.ids.shape, jnp.int32), budget, most=1)
  return number_spans(starts, chosen)


def ngram(key: Array, row: Row, *, rate: float = 0.15, max_count: int | None = None, max_words: int = 3) -> Spans:
  """Runs of n whole words with p(n) ∝ 1/n, in random order until the budget is met (ALBERT §4.1 and its code).

  An n-gram that would overshoot the budget is shortened by words until it fits; one that meets a chosen word is passed
  over. The budget is that of BERT in `fixed_count`. Each n-gram is one span.

  Args:
    key: noise key of the row.
    row: clean text.
    rate: share of tokens.
    max_count: never more tokens than this.
    max_words: the longest n-gram; at the end of a run of words it is shorter.
  """
  _check_words(max_words)
  words = find_words(row, user='ngram')
  budget = draw_budget(row, key, rate=rate, max_count=max_count)
  order_key, size_key = jax.random.split(key)
  sizes = _draw_sizes(size_key, 1 / np.arange(1, max_words + 1), row.ids.shape[0])
  chosen, starts = _take_grams(order_key, words, sizes, budget, most=max_words)
  return number_spans(starts, chosen)


def _check_words(max_words: int) -> None:
  if max_words < 1:
    raise ValueError(f'max_words={max_words}: a span has at least one word')


def _draw_sizes(key: Array, weights: np.ndarray, count: int) -> Array:
  """int32[count] from 1 on, with the given relative weights."""
  borders = np.cumsum(weights)[:-1] / np.sum(weights)
  drawn = jax.random.uniform(key, (count,))
  return 1 + sum(((drawn >= np.float32(border)).astype(jnp.int32) for border in borders), jnp.zeros(count, jnp.int32))


def _take_grams(key: Array, words: Words, sizes: Array, budget: Array, *, most: int) -> tuple[Array, Array]:
  """Visits the words in random order and takes from each the n words that begin there.

  Args:
    key: of the order.
    words: of the row.
    sizes: int32[l], n at the first token of each word, at most `most`.
    budget: tokens to take; n shrinks until it fits, and a visit that takes nothing is over for good.
    most: the largest n.

  Returns:
    bool[l] chosen tokens, bool[l] where the chosen n-grams start.
  """
  length = sizes.shape[0]
  index = jnp.arange(length, dtype=jnp.int32)
  # ends[n-1]: behind the n words that begin with a token's word; less than n where a wall comes first
  ends = [words.end]
  for _ in range(most - 1):
    behind = jnp.minimum(ends[-1], length - 1)
    goes_on = (ends[-1] < length) & (words.run[behind] == words.run)
    ends.append(jnp.where(goes_on, words.end[behind], ends[-1]))
  scores, low = draw_scores(key, length)

  def take(state):
    starts, free, left, last = state
    end = jnp.zeros(length, jnp.int32)  # of what each position would take now
    for n in range(1, most + 1):
      end = jnp.where((sizes >= n) & (ends[n - 1] - index <= left), ends[n - 1], end)
    # between two n-grams that are taken nothing changes, so all candidates are judged at once
    best = jnp.where(words.starts & (end > 0) & (end <= free) & (scores < last), scores, 0).max()
    first = (best & low) - 1
    stop = jnp.where(best > 0, end[first], 0)
    got = (index >= first) & (index < stop)
    free = jnp.where(index < stop, jnp.minimum(free, jnp.maximum(index, first)), free)
    return starts | (got & (index == first)), free, left - jnp.where(best > 0, stop - first, 0), best

  free = jnp.full(length, length, jnp.int32)  # the first chosen position from here on
  start = (jnp.zeros(length, bool), free, budget, jnp.int32(2**31 - 1))
  starts, free, *_ = jax.lax.while_loop(lambda state: (state[2] > 0) & (state[3] > 0), take, start)
  return free == index, starts


def geometric_spans(
  key: Array, row: Row, *, rate: float = 0.15, probability: float = 0.2, max_words: int = 10
) -> Spans:
  """Spans of Geo(0.2) whole words, cut off at 10, until the budget is met (SpanBERT §3.1 and its code).

  The anchor of a span is uniform over the tokens not chosen yet; the span starts where the anchor's word does. Spans
  end at a wall, may overlap, and are one where they touch. The last one is cut at the budget, within a word if need be.

  Args:
    key: noise key of the row.
    row: clean text.
    rate: share of tokens; the budget is ceil(rate * ordinary tokens).
    probability: that a span ends behind a word; lengths beyond `max_words` are left out and the rest renormalised.
    max_words: the longest span before any two merge.
  """
  _check_words(max_words)
  if not 0 < probability < 1:
    raise ValueError(f'probability={probability} is not in (0, 1)')
  words = find_words(row, user='geometric_spans')
  budget = share_of(row.eligible, rate=rate)
  length = row.ids.shape[0]
  order_key, size_key = jax.random.split(key)
  scores, low = draw_scores(order_key, length)
  sizes = _draw_sizes(size_key, probability * (1 - probability) ** np.arange(max_words), length)

  def add(state):
    chosen, _, left = state
    anchor = (jnp.where(row.eligible & ~chosen, scores, 0).max() & low) - 1
    first = words.word[anchor]
    covered = (words.run == words.run[anchor]) & (words.word >= first) & (words.word < first + sizes[anchor])
    new = covered & ~chosen
    return chosen | new, new, left - new.sum()

  nothing = jnp.zeros(length, bool)
  chosen, last, left = jax.lax.while_loop(lambda state: state[2] > 0, add, (nothing, nothing, budget))
  too_many = last & (jnp.cumsum(last) > last.sum() + left)
  return _merged(row, chosen & ~too_many)


def ngram_windows(
  key: Array, row: Row, *, rate: float = 0.15, max_count: int | None = None, max_words: int = 3
) -> Spans:
  """One n-gram of whole words in each window of n * int(1 / rate) words, p(n) ∝ 1/n (DeBERTa, released data code).

  Windows follow each other through the ordinary words of the row. The n-gram starts anywhere in its window and ends
  with it, or at a wall. Words count from the left until the budget, that of BERT in `fixed_count`; the word that would
  overshoot it is left out with all behind it, where the release still takes that one.

  Args:
    key: noise key of the row.
    row: clean text.
    rate: share of tokens.
    max_count: never more tokens than this.
    max_words: the longest n-gram.
  """
  _check_words(max_words)
  words = find_words(row, user='ngram_windows')
  budget = draw_budget(row, key, rate=rate, max_count=max_count)
  length = row.ids.shape[0]
  if rate == 0:
    return single_tokens(jnp.zeros(length, bool))
  width = int(1 / rate)
  size_key, place_key = jax.random.split(key)
  number = math.ceil(length / width)
  sizes = _draw_sizes(size_key, 1 / np.arange(1, max_words + 1), number)
  rank = jnp.cumsum(words.starts.astype(jnp.int32)) - 1  # of the word among those that may be chosen, from 0
  offset = jnp.cumsum(width * sizes) - width * sizes
  context = jnp.clip(rank[-1] + 1 - offset, 0, width * sizes)
  shift = jnp.floor(jax.random.uniform(place_key, (number,)) * context).astype(jnp.int32)
  first = offset + jnp.minimum(shift, jnp.maximum(context - 1, 0))
  stop = jnp.minimum(first + sizes, offset + context)
  window = jnp.searchsorted(offset, jnp.maximum(rank, 0), side='right') - 1  # [l]
  run = jnp.zeros(length, jnp.int32).at[jnp.where(words.starts, rank, length)].set(words.run, mode='drop')
  here = (rank >= first[window]) & (rank < stop[window]) & (run[first[window]] == words.run)
  chosen = row.eligible & here
  chosen &= jnp.cumsum(chosen)[words.end - 1] <= budget
  return number_spans(words.starts & (rank == first[window]), chosen)


# Bounds ---------------------------------------------------------------------------------------------------------------


CAPACITY: Mapping[Callable[..., Spans], Callable[..., int]] = MappingProxyType(
  {
    whole_word: capacity_of_budget,
    ngram: capacity_of_budget,
    ngram_windows: capacity_of_budget,
    geometric_spans: capacity_of_share,
  }
)
"""where function -> (row length, its settings) -> slots that hold its choice; a rarer excess is counted by its user."""
