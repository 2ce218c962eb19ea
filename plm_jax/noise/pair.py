"""Two segments in one row: chosen, truncated and joined (Devlin et al. 2018, §3.1, task 2, and A.2; Lan et al. 2019).

The host delivers a segment, the segment that follows it in the text, and one of another document (`data/pairs.py`). The
key of the row decides which two become the pair.
"""

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.core.types import Array


class NextSentence(enum.IntEnum):
  """Labels of next-sentence prediction, as in the released code of BERT."""

  IS_NEXT = 0
  RANDOM = 1


class SentenceOrder(enum.IntEnum):
  """Labels of sentence-order prediction, as in the released code of ALBERT; some texts use 1 for the correct order."""

  IN_ORDER = 0
  SWAPPED = 1


class Segment(NamedTuple):
  """Tokens of one segment of a row."""

  ids: Array  # int32[w]; ids from `length` on are ignored
  length: Array  # int32[], number of tokens


class Pair(NamedTuple):
  """The chosen pair of a row."""

  first: Segment  # segment A
  second: Segment  # segment B
  label: Array  # int32[], a `NextSentence` or a `SentenceOrder`


class Joined(NamedTuple):
  """A row that holds a pair."""

  ids: Array  # int32[l]
  type_ids: Array  # int32[l], 0 up to the separators after A, 1 from B to its separator, 0 in the padding
  segment_ids: Array  # int32[l], 1, and 0 in the padding


def next_or_other(key: Array, first: Segment, following: Segment, other: Segment) -> Pair:
  """Pair `first` with `following` or with `other` (BERT, task 2).

  `other` has probability 1/2, and is also used if `following` is empty. The label is one of `NextSentence`.
  """
  random = jax.random.bernoulli(key) | (following.length == 0)
  second = _select(random, other, following)
  label = jnp.where(random, NextSentence.RANDOM, NextSentence.IS_NEXT).astype(jnp.int32)
  return Pair(first=first, second=second, label=label)


def in_order_or_swapped(key: Array, first: Segment, following: Segment, other: Segment) -> Pair:
  """Pair `first` and `following`, swapped with probability 1/2 (ALBERT, §3.1).

  The label is one of `SentenceOrder`. If `following` is empty, the pair is `first` and `other` with the label SWAPPED,
  as in ALBERT's data script.
  """
  alone = following.length == 0
  swapped = jax.random.bernoulli(key) & ~alone
  second = _select(alone, other, following)
  label = jnp.where(swapped | alone, SentenceOrder.SWAPPED, SentenceOrder.IN_ORDER).astype(jnp.int32)
  return Pair(first=_select(swapped, second, first), second=_select(swapped, first, second), label=label)


def _select(condition: Array, if_true: Segment, if_false: Segment) -> Segment:
  """Select one of two segments by bool[]."""
  return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)


def truncate(key: Array, first: Segment, second: Segment, *, room: int) -> tuple[Segment, Segment]:
  """Cut both segments to `room` tokens in total, the longer first (`truncate_seq_pair`).

  If both are equally long, tokens of the second are removed. Each removed token is the first or the last one of its
  segment with probability 1/2 (BERT's data script), so a contiguous part of each stays.
  """
  a, b = first.length, second.length
  # room 10, lengths 7 and 6: 5 + 5; lengths 9 and 2: 8 + 2
  first_size = jnp.minimum(a, jnp.maximum(room - b, -(-room // 2)))
  sizes = (first_size, jnp.minimum(b, room - first_size))
  parts = [
    _cut(part_key, segment, size)
    for part_key, segment, size in zip(jax.random.split(key), (first, second), sizes, strict=True)
  ]
  return parts[0], parts[1]


def _cut(key: Array, segment: Segment, size: Array) -> Segment:
  """Cut a segment to `size` tokens, removing at both ends at random."""
  width = segment.ids.shape[0]
  removed_in_front = jax.random.bernoulli(key, shape=(width,)) & (jnp.arange(width) < segment.length - size)
  # a look-up, since `jnp.roll` by a number that differs between rows becomes a loop over rows on TPUs
  return Segment(ids=segment.ids[(jnp.arange(width) + removed_in_front.sum()) % width], length=size)


def join(
  first: Segment, second: Segment, *, length: int, cls_id: int, sep_id: int, pad_id: int, separators: int = 1
) -> Joined:
  """Write [CLS] A [SEP] B [SEP], then padding.

  # length 9   [CLS] a a [SEP] b b b [SEP] [PAD]
  # type_ids     0   0 0   0   1 1 1   1     0

  Both segments fit. Between them are `separators`: 1 (BERT) or 2 (RoBERTa: <s> A </s> </s> B </s>).
  """
  index = jnp.arange(length)
  middle = 1 + first.length  # index of the first separator
  start = middle + separators  # of the first token of B
  end = start + second.length  # of the last separator
  in_first = (index >= 1) & (index < middle)
  in_second = (index >= start) & (index < end)
  ids = jnp.where(index <= end, sep_id, pad_id)
  ids = jnp.where(in_first, jnp.take(first.ids, index - 1, mode='clip'), ids)
  ids = jnp.where(in_second, jnp.take(second.ids, index - start, mode='clip'), ids)
  ids = jnp.where(index == 0, cls_id, ids).astype(jnp.int32)
  real = index <= end
  return Joined(ids=ids, type_ids=((index >= start) & real).astype(jnp.int32), segment_ids=real.astype(jnp.int32))
