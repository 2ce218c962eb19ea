"""Blanks of GLM (Du et al. 2021, §2.1 and §2.2; released code, blocklm_utils): where they are, and the row they make.

Token level: many short blanks. Sentence level: whole sentences. Document level: one long blank. `arrange` then writes
part A, the text with a mask for each blank, and part B, the blanks in random order. Each document of a packed row is
treated as a row of its own: lengths below are of a document, special tokens included.

Special tokens are never in a blank; one in the middle of a chosen stretch divides it into two blanks.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.noise.row import Row, Spans
from plm_jax.types import Array


class Arranged(NamedTuple):
  """Part A, part B and padding in a row of fixed size m.

  Attributes:
    tokens: int32[m].
    segment_ids: int32[m]; a document has the same number in both parts, 0 is padding.
    positions: int32[m], the place in A inside the document; for B that of the blank's mask.
    block_positions: int32[m], 0 in A, 1, 2, ... inside a blank.
    prefix: int32[], tokens of part A.
    targets: int32[m], what follows each token of B.
    weights: f32[m], 1 in part B.
    blanks: int32[], in the row.
    excess: int32[], blanks that found no slot and were left as text.
  """

  tokens: Array
  segment_ids: Array
  positions: Array
  block_positions: Array
  prefix: Array
  targets: Array
  weights: Array
  blanks: Array
  excess: Array


class _Documents(NamedTuple):
  """The documents of a row, numbered from 0.

  Attributes:
    of: int32[l], the document of each position.
    size: int32[l], tokens of each document; 0 behind the last.
    eligible: int32[l], those that may be in a blank.
    before: int32[l], eligible tokens of earlier documents.
  """

  of: Array
  size: Array
  eligible: Array
  before: Array


def _documents(row: Row) -> _Documents:
  segments, length = row.segment_ids, row.ids.shape[0]
  real = segments > 0
  previous = jnp.pad(segments, (1, 0))[:-1]
  of = jnp.maximum(jnp.cumsum(real & (segments != previous)) - 1, 0).astype(jnp.int32)
  count = lambda chosen: jnp.zeros(length, jnp.int32).at[of].add(chosen.astype(jnp.int32))  # noqa: E731
  eligible = count(row.eligible & real)
  return _Documents(of, count(real), eligible, jnp.cumsum(eligible) - eligible)


def _share(sizes: Array, *, rate: float) -> Array:
  """int(rate * size), as Python has it in float64 whatever the device computes in."""
  table = np.array([int(rate * size) for size in range(sizes.shape[0] + 1)], np.int32)
  return jnp.asarray(table)[sizes]


def _check_share(name: str, value: float) -> None:
  if not 0.0 < value <= 1.0:
    raise ValueError(f'{name} {value} is not in (0, 1]')


def _number(row: Row, label: Array) -> Spans:
  """Blanks from labels int[l], 0 outside of them: numbered from the left, divided at special tokens and walls."""
  label = jnp.where(row.eligible & (row.segment_ids > 0), label, 0)
  differs = (label != jnp.pad(label, (1, 0))[:-1]) | (row.segment_ids != jnp.pad(row.segment_ids, (1, 0))[:-1])
  number = jnp.where(label > 0, jnp.cumsum((label > 0) & differs), 0).astype(jnp.int32)
  return Spans(number, jnp.zeros_like(number))


def _spread(row: Row, starts: Array, lengths: Array) -> Spans:
  """Blanks at `starts` int[k], counted in eligible tokens of the row; those of length 0 are none."""
  size, there = row.ids.shape[0], lengths > 0
  edge = jnp.zeros(size + 1, jnp.int32)
  begins = edge.at[starts].add(there.astype(jnp.int32), mode='drop')
  ends = edge.at[starts + lengths].add(there.astype(jnp.int32), mode='drop')
  inside = jnp.cumsum(begins - ends) > 0
  rank = jnp.cumsum(row.eligible & (row.segment_ids > 0)) - 1  # [l], among the eligible
  return _number(row, jnp.where(inside, jnp.cumsum(begins), 0)[jnp.maximum(rank, 0)])


def length_probabilities(*, mean: float = 3.0, longest: int = 39) -> np.ndarray:
  """Poisson(mean) restricted to 1..longest, float64[longest]: 3.16 on average for mean 3."""
  sizes = range(1, longest + 1)
  weights = np.array([math.exp(size * math.log(mean) - mean - math.lgamma(size + 1)) for size in sizes])
  return weights / weights.sum()


def token_blanks(key: Array, row: Row, *, rate: float = 0.15, mean: float = 3.0, longest: int = 39) -> Spans:
  """Short blanks at random places with a token or more between any two (§2.1).

  Lengths are drawn until their sum reaches int(rate * length). In a document too short for them all, the first ones
  that fit are taken.

  Args:
    key: noise key of the row.
    row: clean text.
    rate: share of a document's tokens.
    mean: of the Poisson distribution that lengths come from.
    longest: blank.
  """
  _check_share('rate of blanks', rate)
  slots = int(rate * row.ids.shape[0])  # every blank has a token, so no row needs more
  if slots == 0:
    return _number(row, jnp.zeros_like(row.ids))
  documents = _documents(row)
  length_key, order_key, place_key = jax.random.split(key, 3)
  budget = _share(documents.size, rate=rate)
  after = jnp.cumsum(budget)
  slot = jnp.arange(slots)
  # a document owns as many slots as its budget has tokens
  owner = jnp.minimum(jnp.searchsorted(after, slot, side='right'), row.ids.shape[0] - 1)
  first = (after - budget)[owner]
  index = slot - first  # inside the document
  log_probabilities = jnp.asarray(np.log(length_probabilities(mean=mean, longest=longest)), jnp.float32)
  drawn = 1 + jax.random.categorical(length_key, log_probabilities, shape=(slots,))

  def sum_before(lengths: Array) -> Array:
    """Sums of earlier lengths of the same document."""
    total = jnp.cumsum(lengths) - lengths
    return total - total[first]

  wanted = (slot < after[-1]) & (sum_before(drawn) < budget[owner])
  fits = sum_before(drawn) + drawn + index <= documents.eligible[owner]  # `index` tokens stand between
  lengths = jnp.where(wanted & fits, drawn, 0)
  # the draw that reaches the budget is longer than the others, so the order is drawn too
  lengths = lengths[jnp.lexsort((jax.random.uniform(order_key, (slots,)), lengths == 0, owner))]
  count = jnp.zeros_like(budget).at[owner].add((lengths > 0).astype(jnp.int32))
  free = documents.eligible - jnp.zeros_like(budget).at[owner].add(lengths) - count + 1
  places = jax.random.randint(place_key, (slots,), 0, jnp.maximum(free[owner], 0) + 1)
  places = places[jnp.lexsort((places, lengths == 0, owner))]
  return _spread(row, documents.before[owner] + places + sum_before(lengths) + index, lengths)


def sentence_blanks(key: Array, row: Row, *, rate: float = 0.15) -> Spans:
  """Whole sentences in random order until they have int(rate * length) tokens, each a blank (§2.2).

  Args:
    key: noise key of the row.
    row: clean text with `sentence_ids`.
    rate: share of a document's tokens.
  """
  _check_share('rate of blanks', rate)
  if row.sentence_ids is None:
    raise ValueError('sentence_blanks needs sentence ids: a vocabulary that says which tokens end a sentence')
  length = row.ids.shape[0]
  documents = _documents(row)
  sentence = _number(row, 1 + row.sentence_ids).number  # [l], 1, 2, ... over the row
  place = jnp.where(sentence > 0, sentence - 1, length)
  size = jnp.zeros(length, jnp.int32).at[place].add(1, mode='drop')
  owner = jnp.full(length, length - 1).at[place].set(documents.of, mode='drop')
  order = jnp.lexsort((jax.random.uniform(key, (length,)), size == 0, owner))
  sizes, owners = size[order], owner[order]
  before = jnp.cumsum(sizes) - sizes
  before = before - documents.before[owners]  # every eligible token is in a sentence
  taken = (sizes > 0) & (before < _share(documents.size, rate=rate)[owners])
  chosen = jnp.zeros(length, bool).at[order].set(taken)
  return _number(row, jnp.where(chosen[jnp.maximum(sentence - 1, 0)], sentence, 0))


def document_blanks(key: Array, row: Row, *, ratio: float = 0.5, suffix: float = 0.5) -> Spans:
  """One blank of U{int(ratio * length), ..., length - 2} tokens (§2.2: half of the document to all of it).

  Args:
    key: noise key of the row.
    row: clean text.
    ratio: the shortest share of a document; .25 in the script of GLM-10B.
    suffix: how often the blank ends with the text; else its place is random.
  """
  _check_share('ratio of blanks', ratio)
  documents = _documents(row)
  length_key, kind_key, place_key = jax.random.split(key, 3)
  shape, high = documents.size.shape, documents.size - 2
  low = jnp.clip(_share(documents.size, rate=ratio), 1, jnp.maximum(high, 1))
  lengths = jax.random.randint(length_key, shape, low, jnp.maximum(high, low) + 1)
  lengths = jnp.where(high > 0, jnp.minimum(lengths, documents.eligible), 0)
  last = documents.eligible - lengths
  places = jax.random.randint(place_key, shape, 0, last + 1)
  places = jnp.where(jax.random.uniform(kind_key, shape) < suffix, last, places)
  return _spread(row, documents.before + places, lengths)


def arrange(
  key: Array,
  row: Row,
  spans: Spans,
  *,
  slots: int,
  mask_id: Array | int,
  start_id: int,
  end_id: int,
  pad_id: int,
  block_id: int,
  block_rate: Array | float = 0.0,
) -> Arranged:
  """Parts A and B of a row of l tokens, in l + 2 * slots places (§2.1, figure 2).

  A is the text with each blank as one mask. B has for each blank, in random order, the input `start, tokens` and the
  target `tokens, end`.

  Args:
    key: noise key of the row.
    row: clean text.
    spans: the blanks.
    slots: blanks that find room, at least 1; those further right are left as text.
    mask_id: stands for a blank in A, int[].
    start_id: begins a blank in B.
    end_id: the last target of a blank.
    pad_id: fills the rest.
    block_id: replaces input tokens of B.
    block_rate: share of them, f32[] (the released code's block mask).
  """
  if slots < 1:
    raise ValueError(f'slots={slots}: a row needs room for a blank')
  order_key, block_key = jax.random.split(key)
  length = row.ids.shape[0]
  size = length + 2 * slots
  real = row.segment_ids > 0
  number = jnp.where(spans.number > slots, 0, spans.number)
  begins = (number > 0) & (number != jnp.pad(number, (1, 0))[:-1])
  inside = number > 0

  # part A: [l] -> its place, or `size`, which is dropped
  in_a = real & (~inside | begins)
  place_a = jnp.cumsum(in_a) - 1
  prefix = in_a.sum()
  starts_document = real & (row.segment_ids != jnp.pad(row.segment_ids, (1, 0))[:-1])
  position = place_a - jax.lax.cummax(jnp.where(starts_document, place_a, 0))
  to_a = jnp.where(in_a, place_a, size)

  # part B: blanks in random order, one place more than tokens each
  blank = jnp.where(inside, number - 1, slots)
  tokens = jnp.zeros(slots, jnp.int32).at[blank].add(1, mode='drop')
  there = tokens > 0
  order = jnp.argsort(jnp.where(there, jax.random.uniform(order_key, (slots,)), 2.0))
  taken = jnp.where(there, tokens + 1, 0)[order]
  offset = jnp.zeros(slots, jnp.int32).at[order].set((jnp.cumsum(taken) - taken).astype(jnp.int32))
  first = jnp.zeros(slots, jnp.int32).at[jnp.where(begins, blank, slots)].set(jnp.arange(length), mode='drop')
  own = jnp.minimum(blank, slots - 1)
  step = jnp.arange(length) - first[own]  # inside the blank, from 0
  place_b = prefix + offset[own] + step  # of the target; as an input a token is one further
  to_b = jnp.where(inside, place_b + 1, size)
  to_start = jnp.where(there, prefix + offset, size)
  to_end = jnp.where(there, prefix + offset + tokens, size)

  def write(fill: int, a: Array, b: Array, start: Array) -> Array:
    out = jnp.full(size, fill, jnp.int32).at[to_a].set(a, mode='drop').at[to_b].set(b, mode='drop')
    return out.at[to_start].set(start, mode='drop')

  hidden = jax.random.uniform(block_key, (length,)) < block_rate
  read_a, read_b = jnp.where(begins, mask_id, row.ids), jnp.where(hidden, block_id, row.ids)
  targets = jnp.zeros(size, jnp.int32).at[jnp.where(inside, place_b, size)].set(row.ids, mode='drop')
  count = spans.number.max()
  index = jnp.arange(size)
  return Arranged(
    tokens=write(pad_id, read_a, read_b, jnp.asarray(start_id)),
    segment_ids=write(0, row.segment_ids, row.segment_ids, row.segment_ids[first]),
    positions=write(0, position, position, position[first]),
    block_positions=write(0, jnp.zeros_like(step), step + 2, jnp.asarray(1)),
    prefix=prefix.astype(jnp.int32),
    targets=targets.at[to_end].set(end_id, mode='drop'),
    weights=((index >= prefix) & (index < prefix + taken.sum())).astype(jnp.float32),
    blanks=count,
    excess=jnp.maximum(count - slots, 0),
  )
