"""Whole words to corrupt: (key, row) -> spans. The functions need `Row.word_ids`.

Spans and words never cross a boundary: the end of a document, or a token that may not change.
"""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.keywords import Count, Rate
from plm_jax.core.types import Array
from plm_jax.noise.row import Row, Spans
from plm_jax.noise.runs import continues_document
from plm_jax.noise.where.counts import (
  BudgetRule,
  capacity_of_budget,
  capacity_of_share,
  draw_budget,
  number_spans,
  share_of,
  single_tokens,
)
from plm_jax.noise.without_replacement import draw_scores

Probability = Annotated[float, '0 < x < 1']
MostWords = Annotated[int, '1 <= x <= 100']  # each is traced


class WordBounds(NamedTuple):
  """The words of a row, by token.

  # token      a ##b  c [SEP] d | e     `|` is the end of a document
  # word       0  0   1   2   3 | 4
  # run        0  0   0   1   2 | 3
  # starts     1  0   1   0   1 | 1
  # end        2  2   3   4   5 | 6
  """

  word: Array  # int32[l], index of the token's word from 0; a token that may not change is a separate word
  # int32[l], index of the token's run (`noise/runs.py`) from 0; a token that may not change is a separate run
  run: Array
  starts: Array  # bool[l], True at the first token of each word that may be chosen
  end: Array  # int32[l], the position after the token's word


def _touches(row: Row) -> Array:
  """Mark positions without a boundary on their left: bool[l]."""
  return continues_document(row, row.eligible) & row.eligible


def _numbers(begins: Array) -> Array:
  """Count the true values of `begins` from 0: int32[l]."""
  return jnp.cumsum(begins.astype(jnp.int32)) - 1


def find_words(row: Row, *, user: str) -> WordBounds:
  """Find the words of a row.

  Args:
    user: name of the function that needs them, for the message.

  Raises:
    ValueError: the row has no word ids.
  """
  if row.word_ids is None:
    raise ValueError(f'{user} needs word ids: use a vocabulary that marks the starts of words')
  length = row.ids.shape[0]
  touches = _touches(row)
  joined = touches & jnp.concatenate([jnp.zeros(1, bool), row.word_ids[1:] == row.word_ids[:-1]])
  index = jnp.arange(length, dtype=jnp.int32)
  # the end of a word is the nearest start of a word on the right: for the row above start 0 6 2 3 4 5, next_start 6 2 3
  # 4 5 6
  start = jnp.where(joined, length, index)
  next_start = jnp.concatenate([start[1:], jnp.full(1, length, jnp.int32)])
  end = jax.lax.cummin(next_start, reverse=True)
  return WordBounds(word=_numbers(~joined), run=_numbers(~touches), starts=row.eligible & ~joined, end=end)


def _join_neighbours(row: Row, chosen: Array) -> Spans:
  """Build spans; neighbours without a boundary between them are one span."""
  before = jnp.concatenate([jnp.zeros(1, bool), chosen[:-1]])
  return number_spans(~(before & _touches(row)), chosen)


def whole_word(
  key: Array, row: Row, *, rate: Rate = 0.15, max_count: Count | None = None, count: BudgetRule = 'bert'
) -> Spans:
  """Choose whole words in random order within a budget (BERT, 2019).

  A word that does not fit is not tried again. `rate`, `max_count` and `count` give the number of tokens as in
  `fixed_count`. Each chosen word is one span.
  """
  words = find_words(row, user='whole_word')
  count_key, key = jax.random.split(key) if count == 'roberta' else (key, key)
  budget = draw_budget(row, count_key, rate=rate, count=count, max_count=max_count)
  chosen, starts = _take_grams(key, words, jnp.ones(row.ids.shape, jnp.int32), budget, most=1)
  return number_spans(starts, chosen)


def ngram(
  key: Array, row: Row, *, rate: Rate = 0.15, max_count: Count | None = None, max_words: MostWords = 3
) -> Spans:
  """Choose n-grams of whole words with p(n) ∝ 1/n within a budget.

  ALBERT §4.1 and its code. N-grams are visited in random order. One that does not fit the budget is shortened by words
  until it fits; one that overlaps a chosen word is left out. The budget is that of `fixed_count` with count='bert'.
  Each n-gram is one span.

  Args:
    row: clean text, with word ids.
    rate: share of the tokens.
    max_count: upper bound of the number of tokens.
    max_words: words of the longest n-gram; an n-gram ends at a boundary.
  """
  _check_words(max_words)
  words = find_words(row, user='ngram')
  budget = draw_budget(row, key, rate=rate, max_count=max_count)
  order_key, size_key = jax.random.split(key)
  sizes = _draw_sizes(size_key, 1 / np.arange(1, max_words + 1), row.ids.shape[0])
  chosen, starts = _take_grams(order_key, words, sizes, budget, most=max_words)
  return number_spans(starts, chosen)


def _check_words(max_words: int) -> None:
  if not 1 <= max_words <= 100:
    raise ValueError(f'max_words={max_words} is not in 1 to 100')


def _draw_sizes(key: Array, weights: np.ndarray, count: int) -> Array:
  """Sample sizes from 1 to n by float[n] `weights`: int32[count]."""
  borders = np.cumsum(weights)[:-1] / np.sum(weights)
  uniform = jax.random.uniform(key, (count,))
  return 1 + sum(((uniform >= np.float32(border)).astype(jnp.int32) for border in borders), jnp.zeros(count, jnp.int32))


def _take_grams(key: Array, words: WordBounds, sizes: Array, budget: Array, *, most: int) -> tuple[Array, Array]:
  """Take n-grams of words in random order until a budget is used.

  An n-gram that does not fit the rest of the budget is shortened. One that does not fit even as one word, or that would
  overlap a chosen one, is not tried again.

  # word     a  b  c  d  e     budget 3, n of the words 2 1 3 1 1, order c a e b d, no boundary
  # visit c: takes c d e (3 words, left 0), the loop ends
  # chosen   0  0  1  1  1     starts 0 0 1 0 0

  Args:
    sizes: int32[l], n at the first token of each word, at most `most`.
    budget: int32[], tokens to take.
    most: the largest n.

  Returns:
    bool[l] chosen tokens, bool[l] first tokens of the chosen n-grams.
  """
  length = sizes.shape[0]
  index = jnp.arange(length, dtype=jnp.int32)
  # 1. ends[n-1]: the position after the n words that begin with a token's word, fewer than n before a boundary
  ends = [words.end]
  for _ in range(most - 1):
    after = jnp.minimum(ends[-1], length - 1)
    continues = (ends[-1] < length) & (words.run[after] == words.run)
    ends.append(jnp.where(continues, words.end[after], ends[-1]))
  # 2. take n-grams in the order of random scores
  scores, low = draw_scores(key, length)

  def take(state):
    starts, free, left, last = state
    end = jnp.zeros(length, jnp.int32)  # of the n-gram that each position would take now; 0 where none fits
    for n in range(1, most + 1):
      end = jnp.where((sizes >= n) & (ends[n - 1] - index <= left), ends[n - 1], end)
    # `left` and `free` change only when an n-gram is taken. So the next one taken is the first in the order that fits,
    # of the words not visited yet (scores < last).
    best = jnp.where(words.starts & (end > 0) & (end <= free) & (scores < last), scores, 0).max()
    first = (best & low) - 1
    stop = jnp.where(best > 0, end[first], 0)
    taken = (index >= first) & (index < stop)
    free = jnp.where(index < stop, jnp.minimum(free, jnp.maximum(index, first)), free)
    return starts | (taken & (index == first)), free, left - jnp.where(best > 0, stop - first, 0), best

  free = jnp.full(length, length, jnp.int32)  # [l], the first chosen position at or after each one
  start = (jnp.zeros(length, bool), free, budget, jnp.int32(2**31 - 1))
  starts, free, *_ = jax.lax.while_loop(lambda state: (state[2] > 0) & (state[3] > 0), take, start)
  return free == index, starts


def geometric_spans(
  key: Array, row: Row, *, rate: Rate = 0.15, probability: Probability = 0.2, max_words: MostWords = 10
) -> Spans:
  """Choose spans of geometric numbers of words within a budget.

  Spans of Geo(0.2) whole words, at most 10. SpanBERT §3.1 and its code. The anchor of a span is uniform over the tokens
  not chosen yet. The span starts at the first token of the anchor's word and ends at a boundary at the latest. Spans
  may overlap, and spans that touch are joined. The last span is cut at the budget, within a word if necessary.

  Args:
    rate: share of the tokens; the budget is ceil(rate * eligible tokens).
    probability: of the geometric distribution: that a span ends after a word; lengths above `max_words` are left out
      and the others renormalised.
    max_words: words of the longest span before spans are joined.

  Raises:
    ValueError: a setting out of its bounds, or a row without word ids.
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

  # add one span per round
  def add(state):
    chosen, _, left = state
    anchor = (jnp.where(row.eligible & ~chosen, scores, 0).max() & low) - 1
    first = words.word[anchor]
    covered = (words.run == words.run[anchor]) & (words.word >= first) & (words.word < first + sizes[anchor])
    new = covered & ~chosen
    return chosen | new, new, left - new.sum()

  nothing = jnp.zeros(length, bool)
  chosen, last, left = jax.lax.while_loop(lambda state: state[2] > 0, add, (nothing, nothing, budget))
  too_many = last & (jnp.cumsum(last) > last.sum() + left)  # the last -left tokens of the last span (left <= 0)
  return _join_neighbours(row, chosen & ~too_many)


def ngram_windows(
  key: Array, row: Row, *, rate: Rate = 0.15, max_count: Count | None = None, max_words: MostWords = 3
) -> Spans:
  """Choose one n-gram of whole words in each window of words.

  A window has n * int(1 / rate) words, p(n) ∝ 1/n (DeBERTa, released data code). Windows follow each other through the
  words of the row. An n-gram starts at a uniform word of its window and ends at a boundary at the latest. One that
  reaches beyond its window keeps its words, and the next window begins after it. From left to right, words are chosen
  until the budget is reached, that of `fixed_count` with count='bert'.

  Differs from the released code, which chooses the word that exceeds the budget, ignores boundaries within a row, and
  never chooses an unknown word.

  # rate 1/4, so windows of 4 n words; n 1 2, shift 2 5
  # window   0 0 0 0 1 1 1 1 1 1 1 1
  # number   0 0 1 0 0 0 0 0 0 2 2 0

  # n 2 1, shift 7 2
  # window   0 0 0 0 0 0 0 0 0 1 1 1
  # number   0 0 0 0 0 0 0 1 1 0 0 2

  Args:
    row: clean text, with word ids.
    rate: share of the tokens.
    max_count: upper bound of the number of tokens.
    max_words: words of the longest n-gram.
  """
  _check_words(max_words)
  words = find_words(row, user='ngram_windows')
  budget = draw_budget(row, key, rate=rate, max_count=max_count)
  length = row.ids.shape[0]
  if rate == 0:
    return single_tokens(jnp.zeros(length, bool))
  width = int(min(1 / rate, length))  # a window of `length` words holds all words
  size_key, shift_key = jax.random.split(key)
  num_windows = math.ceil(length / width)
  sizes = _draw_sizes(size_key, 1 / np.arange(1, max_words + 1), num_windows)
  rank = jnp.cumsum(words.starts.astype(jnp.int32)) - 1  # [l], index of the word among those that may be chosen
  # 1. by window, [w] with w = num_windows: its first word, its words in the row, the words `first` to `stop` - 1 of its
  #    n-gram
  uniform = jax.random.uniform(shift_key, (num_windows,))
  taken = jnp.maximum(width * sizes, jnp.floor(uniform * (width * sizes)).astype(jnp.int32) + sizes)
  offset = jnp.cumsum(taken) - taken
  context = jnp.clip(rank[-1] + 1 - offset, 0, width * sizes)
  first = offset + jnp.minimum(jnp.floor(uniform * context).astype(jnp.int32), jnp.maximum(context - 1, 0))
  stop = jnp.minimum(first + sizes, rank[-1] + 1)
  # 2. tokens of the n-gram of their window, without those beyond a boundary
  window = jnp.searchsorted(offset, jnp.maximum(rank, 0), side='right') - 1  # [l], of each token
  run = jnp.zeros(length, jnp.int32).at[jnp.where(words.starts, rank, length)].set(words.run, mode='drop')
  inside = (rank >= first[window]) & (rank < stop[window]) & (run[first[window]] == words.run)
  chosen = row.eligible & inside
  # 3. words that end within the budget
  chosen &= jnp.cumsum(chosen)[words.end - 1] <= budget
  return number_spans(words.starts & (rank == first[window]), chosen)


CAPACITY: Mapping[Callable[..., Spans], Callable[..., int]] = {
  whole_word: capacity_of_budget,
  ngram: capacity_of_budget,
  ngram_windows: capacity_of_budget,
  geometric_spans: capacity_of_share,
}
"""Function of this file -> (row length, its settings) -> slots for its choice; the caller counts tokens beyond them."""
