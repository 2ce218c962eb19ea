"""Where to corrupt: (key, row) -> spans. Each function has a bound on how many tokens it may choose, in `CAPACITY`.

A wall ends words and spans: the end of a document, and a token that may not change. Functions that go by whole words
need `Row.word_ids`. `noise/spans.py` has more of them, for sequence-to-sequence objectives.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.noise.draws import choose, draw_scores
from plm_jax.noise.row import Row, Spans
from plm_jax.types import Array

Count = Literal['bert', 'roberta']


# Budgets --------------------------------------------------------------------------------------------------------------


def _check_rate(rate: float) -> None:
  if not 0.0 <= rate <= 1.0:
    raise ValueError(f'noise rate {rate} is not in [0, 1]')


def _bert_count(length: int, *, rate: float, max_count: int | None) -> int:
  """min(max_pred, max(1, round(rate * length))), with Python's rounding of halves to even (BERT's data script)."""
  count = max(1, round(rate * length)) if rate > 0 and length > 0 else 0
  return count if max_count is None else min(max_count, count)


def _table(function: Callable[[int], float], length: int, dtype: type) -> Array:
  """`function` of 0 to `length`, so that the rounding is Python's in float64 whatever the device computes in."""
  return jnp.asarray(np.array([function(n) for n in range(length + 1)], dtype))


def _budget(key: Array, row: Row, *, rate: float, count: Count = 'bert', max_count: int | None = None) -> Array:
  """How many tokens to choose, int32[]; `fixed_count` has the rules."""
  _check_rate(rate)
  length = row.ids.shape[0]
  real = (row.segment_ids > 0).sum()
  if count == 'bert':
    return _table(lambda n: _bert_count(n, rate=rate, max_count=max_count), length, np.int32)[real]
  if count != 'roberta':
    raise ValueError(f'count={count!r}; choices are bert, roberta')
  more = jax.random.uniform(key) < _table(lambda n: rate * n - math.floor(rate * n), length, np.float32)[real]
  budget = _table(lambda n: math.floor(rate * n), length, np.int32)[real] + more
  return budget if max_count is None else jnp.minimum(budget, max_count)


def _share(tokens: Array, *, rate: float) -> Array:
  """ceil(rate * tokens) of bool[l] tokens, int32[]."""
  _check_rate(rate)
  return _table(lambda n: math.ceil(rate * n), tokens.shape[0], np.int32)[tokens.sum()]


def _most(length: int, *, rate: float, count: Count = 'bert', max_count: int | None = None) -> int:
  """The largest `_budget` of a row of `length`."""
  if count == 'roberta':
    return _most_of_share(length, rate=rate, max_count=max_count)
  return min(length, _bert_count(length, rate=rate, max_count=max_count))


def _most_of_share(length: int, *, rate: float, max_count: int | None = None) -> int:
  most = min(length, math.ceil(rate * length))
  return most if max_count is None else min(max_count, most)


# Words and spans ------------------------------------------------------------------------------------------------------


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


def _number(starts: Array, chosen: Array) -> Spans:
  """Spans of chosen tokens, numbered from left to right; each begins at one of `starts`."""
  number = jnp.where(chosen, jnp.cumsum((starts & chosen).astype(jnp.int32)), 0)
  return Spans(number, jnp.zeros_like(number))


def _singles(chosen: Array) -> Spans:
  """Each chosen position as a span of its own."""
  return _number(chosen, chosen)


def _merged(row: Row, chosen: Array) -> Spans:
  """Chosen positions that touch as one span."""
  before = jnp.concatenate([jnp.zeros(1, bool), chosen[:-1]])
  return _number(~(before & _touches(row)), chosen)


# Single tokens --------------------------------------------------------------------------------------------------------


def fixed_count(
  key: Array,
  row: Row,
  *,
  rate: float = 0.15,
  max_count: int | None = None,
  count: Count = 'bert',
  candidates: Literal['ordinary', 'all'] = 'ordinary',
) -> Spans:
  """A fixed number of single tokens, uniformly without replacement (BERT §3.1 and create_pretraining_data).

  Args:
    key: noise key of the row.
    row: clean text.
    rate: share of tokens.
    max_count: never more than this; BERT used 20 in rows of 128 and 77 in rows of 512.
    count: 'bert' is max(1, round(rate * real tokens)), special ones counted; 'roberta' floor(rate * real tokens + u)
      with u uniform in [0, 1) (fairseq).
    candidates: 'ordinary' tokens only, or 'all' real ones, so that special tokens may be chosen (fairseq's RoBERTa).
  """
  if candidates not in ('ordinary', 'all'):
    raise ValueError(f'candidates={candidates!r}; choices are ordinary, all')
  count_key, key = jax.random.split(key) if count == 'roberta' else (key, key)
  budget = _budget(count_key, row, rate=rate, count=count, max_count=max_count)
  return _singles(choose(key, row.eligible if candidates == 'ordinary' else row.segment_ids > 0, budget))


def iid(key: Array, row: Row, *, rate: float = 0.15) -> Spans:
  """Each eligible token by itself with probability `rate`."""
  _check_rate(rate)
  return _singles(row.eligible & (jax.random.uniform(key, row.ids.shape) < rate))


def with_replacement(key: Array, row: Row, *, rate: float = 0.15, max_count: int | None = None) -> Spans:
  """As many draws as `fixed_count` takes tokens, each uniform over the eligible ones (ELECTRA §3.1 and its code).

  A position that is drawn twice is chosen once, so that fewer tokens may be chosen than drawn.
  """
  length = row.ids.shape[0]
  budget = _budget(key, row, rate=rate, max_count=max_count)
  most = _most(length, rate=rate, max_count=max_count)
  rank = jnp.where(row.eligible, jnp.cumsum(row.eligible) - 1, length)
  places = jnp.zeros(length, jnp.int32).at[rank].set(jnp.arange(length, dtype=jnp.int32), mode='drop')
  total = row.eligible.sum()
  drawn = jax.random.randint(key, (most,), 0, jnp.maximum(total, 1))
  used = (jnp.arange(most) < budget) & (total > 0)
  return _singles(jnp.zeros(length, bool).at[jnp.where(used, places[drawn], length)].set(True, mode='drop'))


def frequency(
  key: Array, row: Row, *, counts: np.ndarray, rate: float = 0.15, smoothing: float = 0.7, max_count: int | None = None
) -> Spans:
  """Rare tokens first: drawn without replacement with p ∝ count ** -smoothing (DistilBERT, released training code).

  ceil(rate * real tokens) of each row, where the released code takes that share of the whole batch at once.

  Args:
    key: noise key of the row.
    row: clean text.
    counts: int[v], how often each token of the vocabulary is in the training text; 0 counts as 1.
    rate: share of tokens, special ones counted.
    smoothing: 0 is uniform.
    max_count: never more than this.
  """
  length = row.ids.shape[0]
  budget = _share(row.segment_ids > 0, rate=rate)
  most = _most_of_share(length, rate=rate, max_count=max_count)
  if most == 0:
    return _singles(jnp.zeros(length, bool))
  weights = jnp.asarray(-smoothing * np.log(np.maximum(np.asarray(counts, np.float64), 1)), jnp.float32)
  # the order of draws without replacement is that of log p + Gumbel noise
  scores = jnp.where(row.eligible, weights[row.ids] + jax.random.gumbel(key, (length,)), -jnp.inf)
  best, places = jax.lax.top_k(scores, most)
  taken = (jnp.arange(most) < budget) & (best > -jnp.inf)
  return _singles(jnp.zeros(length, bool).at[places].set(taken))


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
  budget = _budget(count_key, row, rate=rate, count=count, max_count=max_count)
  chosen, starts = _take_grams(key, words, jnp.ones(row.ids.shape, jnp.int32), budget, most=1)
  return _number(starts, chosen)


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
  budget = _budget(key, row, rate=rate, max_count=max_count)
  order_key, size_key = jax.random.split(key)
  sizes = _draw_sizes(size_key, 1 / np.arange(1, max_words + 1), row.ids.shape[0])
  chosen, starts = _take_grams(order_key, words, sizes, budget, most=max_words)
  return _number(starts, chosen)


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
  budget = _share(row.eligible, rate=rate)
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
  budget = _budget(key, row, rate=rate, max_count=max_count)
  length = row.ids.shape[0]
  if rate == 0:
    return _singles(jnp.zeros(length, bool))
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
  return _number(words.starts & (rank == first[window]), chosen)


# Bounds ---------------------------------------------------------------------------------------------------------------


def _of_budget(
  length: int, *, rate: float = 0.15, max_count: int | None = None, count: Count = 'bert', **others: Any
) -> int:
  return _most(length, rate=rate, max_count=max_count, count=count)


def _of_share(length: int, *, rate: float = 0.15, max_count: int | None = None, **others: Any) -> int:
  return _most_of_share(length, rate=rate, max_count=max_count)


def _six_deviations(length: int, *, rate: float = 0.15) -> int:
  return min(length, math.ceil(rate * length + 6 * math.sqrt(length * rate * (1 - rate))))


CAPACITY: Mapping[Callable[..., Spans], Callable[..., int]] = MappingProxyType(
  {
    fixed_count: _of_budget,
    with_replacement: _of_budget,
    whole_word: _of_budget,
    ngram: _of_budget,
    ngram_windows: _of_budget,
    frequency: _of_share,
    geometric_spans: _of_share,
    iid: _six_deviations,
  }
)
"""where function -> (row length, its settings) -> slots that hold its choice; a rarer excess is counted by its user."""
