"""Blanks of GLM (Du et al. 2021, §2.1 and §2.2; released code, blocklm_utils): their choice, and the row with blanks.

Three functions choose: `token_blanks` many short blanks, `sentence_blanks` whole sentences, `document_blanks` one long
blank. `arrange` then writes part A, the text with one mask per blank, and part B, the blanks in random order. Each
document of a packed row is treated as a separate row; the lengths below are of a document, including special tokens.

Special tokens are never in a blank: a special token within a chosen span divides it into two blanks.
"""

import math
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.keywords import Count
from plm_jax.core.types import Array
from plm_jax.noise.row import Row, Spans

Share = Annotated[float, '0 < x <= 1']
Mean = Annotated[float, '0 < x <= 50']
BEYOND = 1000  # the probability of longer blanks is 0 in float64 for every mean


class Arranged(NamedTuple):
  """Part A, part B and padding in a row of fixed size m."""

  tokens: Array  # int32[m]
  segment_ids: Array  # int32[m]; a document has the same number in both parts, 0 is padding
  positions: Array  # int32[m], in A the position in the document, in B that of the blank's mask
  block_positions: Array  # int32[m], 0 in A; 1, 2, ... within a blank of B
  prefix: Array  # int32[], number of tokens of part A
  targets: Array  # int32[m], the id that follows each token of B
  weights: Array  # f32[m], 1 in part B, 0 elsewhere
  blanks: Array  # int32[], number of chosen blanks
  excess: Array  # int32[], number of blanks without a slot, which remain text


class _Documents(NamedTuple):
  """The documents of a row, numbered from 0."""

  of: Array  # int32[l], the document of each position
  size: Array  # int32[l] by document, its number of tokens; 0 after the last document
  eligible: Array  # int32[l] by document, its number of eligible tokens
  before: Array  # int32[l] by document, number of eligible tokens of the documents before it


def _documents(row: Row) -> _Documents:
  segments, length = row.segment_ids, row.ids.shape[0]
  real = segments > 0
  previous = jnp.pad(segments, (1, 0))[:-1]
  of = jnp.maximum(jnp.cumsum(real & (segments != previous)) - 1, 0).astype(jnp.int32)
  count = lambda chosen: jnp.zeros(length, jnp.int32).at[of].add(chosen.astype(jnp.int32))  # noqa: E731
  eligible = count(row.eligible & real)
  return _Documents(of=of, size=count(real), eligible=eligible, before=jnp.cumsum(eligible) - eligible)


def _share(sizes: Array, *, rate: float) -> Array:
  """Compute int(rate * size) of int32[l] sizes, by Python in float64."""
  table = np.array([int(rate * size) for size in range(sizes.shape[0] + 1)], np.int32)
  return jnp.asarray(table)[sizes]


def _check_share(name: str, value: float) -> None:
  if not 0.0 < value <= 1.0:
    raise ValueError(f'{name}={value} is not in (0, 1]')


def _check_lengths(mean: float, longest: int) -> None:
  if not 0.0 < mean <= 50.0 or longest < 1:
    raise ValueError(f'mean={mean} of the lengths of blanks must be in (0, 50] and longest={longest} at least 1')


def _number(row: Row, label: Array) -> Spans:
  """Index the blanks of a row from the left.

  `label` int[l] is 0 outside of blanks. A blank is divided at special tokens and at the end of a document.

  # label    5 5 0 2 2 2 | 2     the last document begins at `|`
  # eligible 1 1 1 1 0 1 | 1
  # number   1 1 0 2 0 3 | 4
  """
  label = jnp.where(row.eligible & (row.segment_ids > 0), label, 0)
  differs = (label != jnp.pad(label, (1, 0))[:-1]) | (row.segment_ids != jnp.pad(row.segment_ids, (1, 0))[:-1])
  number = jnp.where(label > 0, jnp.cumsum((label > 0) & differs), 0).astype(jnp.int32)
  return Spans(number=number, insert=jnp.zeros_like(number))


def _spread(row: Row, starts: Array, lengths: Array) -> Spans:
  """Build blanks from starts and lengths int[k].

  Both count eligible tokens of the row; length 0 is no blank.

  # starts 1 4, lengths 2 1     begins - ends   0  1  0 -1  1 -1
  # rank       0 1 2 3 4        label           0  1  1  0  2
  """
  size, real = row.ids.shape[0], lengths > 0
  edge = jnp.zeros(size + 1, jnp.int32)
  begins = edge.at[starts].add(real.astype(jnp.int32), mode='drop')
  ends = edge.at[starts + lengths].add(real.astype(jnp.int32), mode='drop')
  inside = jnp.cumsum(begins - ends) > 0
  rank = jnp.cumsum(row.eligible & (row.segment_ids > 0)) - 1  # [l], index among the eligible tokens
  return _number(row, jnp.where(inside, jnp.cumsum(begins), 0)[jnp.maximum(rank, 0)])


def length_probabilities(*, mean: float = 3.0, longest: int = 39) -> np.ndarray:
  """Compute the probabilities of lengths from 1 to `longest`.

  float64[longest]: Poisson(mean) restricted to these lengths; the average is 3.16 for mean 3. Lengths beyond `BEYOND`,
  of probability 0, are left out.

  Raises:
    ValueError: a setting out of its bounds.
  """
  _check_lengths(mean, longest)
  sizes = range(1, min(longest, BEYOND) + 1)
  weights = np.array([math.exp(size * math.log(mean) - mean - math.lgamma(size + 1)) for size in sizes])
  return weights / weights.sum()


def token_blanks(key: Array, row: Row, *, rate: Share = 0.15, mean: Mean = 3.0, longest: int = 39) -> Spans:
  """Choose short blanks at random, with a token between any two (§2.1).

  Lengths are sampled until their sum reaches int(rate * length). In a document too short for all of them, the first
  ones that fit are used.

  Args:
    rate: share of a document's tokens.
    mean: of the Poisson distribution of the lengths.
    longest: tokens of the longest blank.

  Raises:
    ValueError: a setting out of its bounds.
  """
  _check_share('rate', rate)
  _check_lengths(mean, longest)
  slots = int(rate * row.ids.shape[0])  # enough, since every blank has at least one token
  if slots == 0:
    return _number(row, jnp.zeros_like(row.ids))
  documents = _documents(row)
  length_key, order_key, start_key = jax.random.split(key, 3)
  budget = _share(documents.size, rate=rate)
  after = jnp.cumsum(budget)
  slot = jnp.arange(slots)
  # 1. a document has one slot per token of its budget; by slot: its document, the first slot and its index there
  owner = jnp.minimum(jnp.searchsorted(after, slot, side='right'), row.ids.shape[0] - 1)
  first = (after - budget)[owner]
  index = slot - first
  # 2. lengths by inverse transform; a categorical sample needs a random number per length, which dominates on a CPU
  bounds = np.cumsum(length_probabilities(mean=mean, longest=longest))[:-1].astype(np.float32)
  drawn = 1 + (jax.random.uniform(length_key, (slots,))[:, None] >= bounds).sum(axis=-1, dtype=jnp.int32)

  def sum_before(lengths: Array) -> Array:
    """Sum the lengths of earlier slots of the same document: int32[slots]."""
    total = jnp.cumsum(lengths) - lengths
    return total - total[first]

  # 3. take lengths until they reach the budget, as far as they fit
  before = sum_before(drawn)
  wanted = (slot < after[-1]) & (before < budget[owner])
  taken = wanted & (before + drawn + index <= documents.eligible[owner])  # with `index` tokens between the blanks
  # 4. swap the last length with a random one. It reaches the budget, so it is longer on average; the order of the
  #    others is random already.
  count = jnp.zeros_like(budget).at[owner].add(taken.astype(jnp.int32))
  last = count[owner] - 1
  other = (jax.random.uniform(order_key, (slots,))[first] * count[owner]).astype(jnp.int32)
  swapped = first + jnp.where(index == last, other, jnp.where(index == other, last, index))
  lengths = jnp.where(taken, drawn[jnp.minimum(swapped, slots - 1)], 0)
  # 5. starts: sorted numbers from 0 to the free tokens, plus the lengths and the tokens between the blanks before
  free = documents.eligible - jnp.zeros_like(budget).at[owner].add(lengths) - count + 1
  gaps = jax.random.randint(start_key, (slots,), 0, jnp.maximum(free[owner], 0) + 1)
  gaps = _sort_within(owner, gaps, taken, most=row.ids.shape[0])
  return _spread(row, documents.before[owner] + gaps + sum_before(lengths) + index, lengths)


def _sort_within(owner: Array, values: Array, taken: Array, *, most: int) -> Array:
  """Sort values int32[k] within each owner, those not taken last.

  Owners int32[k] rise; values are at most `most`.
  """
  bits = (most + 1).bit_length()
  if 2 * bits + 1 > 32:
    return values[jnp.lexsort((values, ~taken, owner))]
  # owner, not taken, value from the high bits to the low ones
  packed = (owner << (bits + 1)) | (~taken).astype(jnp.int32) << bits | values
  return (jnp.sort(packed.astype(jnp.uint32)) & np.uint32(2**bits - 1)).astype(jnp.int32)


def sentence_blanks(key: Array, row: Row, *, rate: Share = 0.15) -> Spans:
  """Choose random whole sentences as blanks up to a budget (§2.2).

  Sentences are taken in random order until they have int(rate * length) tokens. The first one is always taken, even in
  a document so short that the product is 0 (released code).

  Args:
    row: clean text, with sentence ids.
    rate: share of a document's tokens.

  Raises:
    ValueError: a rate outside of (0, 1], or a row without sentence ids.
  """
  _check_share('rate', rate)
  if row.sentence_ids is None:
    raise ValueError('sentence_blanks needs sentence ids: use a vocabulary that marks the ends of sentences')
  length = row.ids.shape[0]
  documents = _documents(row)
  sentence = _number(row, 1 + row.sentence_ids).number  # [l], 1, 2, ... in the row; 0 on special tokens
  # 1. by sentence: its size and its document
  index = jnp.where(sentence > 0, sentence - 1, length)
  size = jnp.zeros(length, jnp.int32).at[index].add(1, mode='drop')
  owner = jnp.full(length, length - 1).at[index].set(documents.of, mode='drop')
  # 2. random order within each document
  order = jnp.lexsort((jax.random.uniform(key, (length,)), size == 0, owner))
  sizes, owners = size[order], owner[order]
  before = jnp.cumsum(sizes) - sizes
  before = before - documents.before[owners]  # [l], tokens of the earlier sentences of the document in this order
  # 3. take sentences until the budget is reached
  taken = (sizes > 0) & (before < jnp.maximum(_share(documents.size, rate=rate), 1)[owners])
  chosen = jnp.zeros(length, bool).at[order].set(taken)
  return _number(row, jnp.where(chosen[jnp.maximum(sentence - 1, 0)], sentence, 0))


def document_blanks(key: Array, row: Row, *, ratio: Share = 0.5, suffix: float = 0.5) -> Spans:
  """Choose one long blank per document.

  Its length is U{int(ratio * length), ..., length - 2} tokens (§2.2: half of the document to all of it).

  Args:
    ratio: share of the document in the shortest blank; .25 in the script of GLM-10B.
    suffix: probability that the blank ends with the text; otherwise its position is uniform.

  Raises:
    ValueError: a setting out of its bounds.
  """
  _check_share('ratio', ratio)
  if not 0.0 <= suffix <= 1.0:
    raise ValueError(f'suffix={suffix} is not in [0, 1]: it is the probability that a blank ends with the text')
  documents = _documents(row)
  length_key, kind_key, start_key = jax.random.split(key, 3)
  shape, high = documents.size.shape, documents.size - 2
  # 1. the length of each document's blank
  low = jnp.clip(_share(documents.size, rate=ratio), 1, jnp.maximum(high, 1))
  lengths = jax.random.randint(length_key, shape, low, jnp.maximum(high, low) + 1)
  lengths = jnp.where(high > 0, jnp.minimum(lengths, documents.eligible), 0)
  # 2. its start, in eligible tokens of the document
  last = documents.eligible - lengths
  starts = jax.random.randint(start_key, shape, 0, last + 1)
  starts = jnp.where(jax.random.uniform(kind_key, shape) < suffix, last, starts)
  return _spread(row, documents.before + starts, lengths)


class _PartA(NamedTuple):
  """Positions of the tokens of a row in part A."""

  target: Array  # int32[l], index in the written row; its size, which is dropped, for tokens that are not in A
  position: Array  # int32[l], in the document
  prefix: Array  # int32[], tokens of part A


def _part_a(row: Row, inside: Array, begins: Array, *, size: int) -> _PartA:
  """Compute part A of a row.

  bool[l] `inside` marks tokens in blanks. Each blank has its mask at one of bool[l] `begins`.
  """
  real = row.segment_ids > 0
  in_a = real & (~inside | begins)
  index = jnp.cumsum(in_a) - 1
  starts_document = real & (row.segment_ids != jnp.pad(row.segment_ids, (1, 0))[:-1])
  position = index - jax.lax.cummax(jnp.where(starts_document, index, 0))
  return _PartA(target=jnp.where(in_a, index, size), position=position, prefix=in_a.sum())


class _Blanks(NamedTuple):
  """The blanks of a row, by slot in the order of the text."""

  own: Array  # int32[l], the slot of the token's blank; any slot outside of blanks
  tokens: Array  # int32[slots], tokens of each blank; 0 is no blank
  first: Array  # int32[slots], position of the first token
  # int32[slots], start of the blank in part B. Blanks are in random order, and each takes one more position than it has
  # tokens
  offset: Array


def _shuffle_blanks(key: Array, number: Array, begins: Array, *, slots: int) -> _Blanks:
  """Shuffle the blanks int32[l] `number`, 0 outside, for part B.

  # number   0 1 1 0 2     tokens 2 1, first 1 4
  # order    2 then 1      offset 2 0: blank 2 has the positions 0 and 1 of B, blank 1 the positions 2, 3 and 4
  """
  length = number.shape[0]
  blank = jnp.where(number > 0, number - 1, slots)
  tokens = jnp.zeros(slots, jnp.int32).at[blank].add(1, mode='drop')
  real = tokens > 0
  order = jnp.argsort(jnp.where(real, jax.random.uniform(key, (slots,)), 2.0))
  taken = jnp.where(real, tokens + 1, 0)[order]
  offset = jnp.zeros(slots, jnp.int32).at[order].set((jnp.cumsum(taken) - taken).astype(jnp.int32))
  first = jnp.zeros(slots, jnp.int32).at[jnp.where(begins, blank, slots)].set(jnp.arange(length), mode='drop')
  return _Blanks(own=jnp.minimum(blank, slots - 1), tokens=tokens, first=first, offset=offset)


def arrange(
  key: Array,
  row: Row,
  spans: Spans,
  *,
  slots: Count,
  mask_id: Array | int,
  start_id: int,
  end_id: int,
  pad_id: int,
  block_id: int,
  block_rate: Array | float = 0.0,
) -> Arranged:
  """Write parts A and B of a row (§2.1, figure 2).

  A row of l tokens becomes m = l + 2 * slots positions. A is the text with one mask per blank. B has for each blank, in
  random order, the input `start, tokens` and the target `tokens, end`.

  # token            a b c d e     blanks b c and e, order e, b c; M mask, S start, E end
  # tokens           a M d M | S e S b c
  # targets                  | e E b c E
  # positions        0 1 2 3 | 3 3 1 1 1
  # block_positions  0 0 0 0 | 1 2 1 2 3

  Args:
    slots: largest number of blanks; blanks further right remain text.
    mask_id: id of a blank's mask in A, int[].
    start_id: first input of a blank in B.
    end_id: last target of a blank.
    block_id: id that replaces input tokens of B.
    block_rate: probability that it does, f32[] (the block mask of the released code).

  Raises:
    ValueError: no slots.
  """
  if slots < 1:
    raise ValueError(f'slots={slots}: a row needs at least one slot for a blank')
  order_key, block_key = jax.random.split(key)
  length = row.ids.shape[0]
  size = length + 2 * slots
  number = jnp.where(spans.number > slots, 0, spans.number)
  begins = (number > 0) & (number != jnp.pad(number, (1, 0))[:-1])
  inside = number > 0
  # 1. part A: index of each token in it
  to_a, position, prefix = _part_a(row, inside, begins, size=size)
  # 2. part B: the index of a token as a target; as an input it is one further right
  blanks = _shuffle_blanks(order_key, number, begins, slots=slots)
  real, first = blanks.tokens > 0, blanks.first
  step = jnp.arange(length) - first[blanks.own]  # [l], index in the blank, from 0
  target_b = prefix + blanks.offset[blanks.own] + step
  to_b = jnp.where(inside, target_b + 1, size)
  to_start = jnp.where(real, prefix + blanks.offset, size)
  to_end = jnp.where(real, prefix + blanks.offset + blanks.tokens, size)

  # 3. write each array: part A, part B, and the start of each blank
  def write(fill: int, a: Array, b: Array, start: Array) -> Array:
    out = jnp.full(size, fill, jnp.int32).at[to_a].set(a, mode='drop').at[to_b].set(b, mode='drop')
    return out.at[to_start].set(start, mode='drop')

  hidden = jax.random.uniform(block_key, (length,)) < block_rate
  read_a, read_b = jnp.where(begins, mask_id, row.ids), jnp.where(hidden, block_id, row.ids)
  targets = jnp.zeros(size, jnp.int32).at[jnp.where(inside, target_b, size)].set(row.ids, mode='drop')
  count = spans.number.max()
  index = jnp.arange(size)
  end = prefix + jnp.where(real, blanks.tokens + 1, 0).sum()
  return Arranged(
    tokens=write(pad_id, read_a, read_b, jnp.asarray(start_id)),
    segment_ids=write(0, row.segment_ids, row.segment_ids, row.segment_ids[first]),
    positions=write(0, position, position, position[first]),
    block_positions=write(0, jnp.zeros_like(step), step + 2, jnp.asarray(1)),
    prefix=prefix.astype(jnp.int32),
    targets=targets.at[to_end].set(end_id, mode='drop'),
    weights=((index >= prefix) & (index < end)).astype(jnp.float32),
    blanks=count,
    excess=jnp.maximum(count - slots, 0),
  )
