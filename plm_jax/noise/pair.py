"""Two segments in one row: chosen, truncated and joined (Devlin et al. 2018, §3.1, task 2, and A.2; Lan et al. 2019).

The host delivers a segment, the one that follows it in the text and one of another document (`data/pairs.py`); the key
of the row decides which two become the pair.
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
  """Labels of sentence-order prediction, as in the released code of ALBERT; some texts call the correct order 1."""

  IN_ORDER = 0
  SWAPPED = 1


class Segment(NamedTuple):
  """Tokens of one segment of a row.

  Attributes:
    ids: int32[w]; ids from `length` on are not read.
    length: int32[], number of tokens.
  """

  ids: Array
  length: Array


class Pair(NamedTuple):
  """What was chosen for a row.

  Attributes:
    first: segment A.
    second: segment B.
    label: int32[], a `NextSentence` or a `SentenceOrder`.
  """

  first: Segment
  second: Segment
  label: Array


class Joined(NamedTuple):
  """A row that holds a pair.

  Attributes:
    ids: int32[l].
    type_ids: int32[l], 0 up to the separators after A, 1 from B to its separator, 0 in the padding.
    segment_ids: int32[l], 1, and 0 in the padding.
  """

  ids: Array
  type_ids: Array
  segment_ids: Array


def next_or_other(key: Array, first: Segment, following: Segment, other: Segment) -> Pair:
  """`first` with `following`, or with `other` at probability 1/2 and where `following` is empty (BERT, task 2).

  The label is one of `NextSentence`.
  """
  random = jax.random.bernoulli(key) | (following.length == 0)
  second = Segment(*(jnp.where(random, a, b) for a, b in zip(other, following, strict=True)))
  return Pair(first, second, jnp.where(random, NextSentence.RANDOM, NextSentence.IS_NEXT).astype(jnp.int32))


def in_order_or_swapped(key: Array, first: Segment, following: Segment, other: Segment) -> Pair:
  """`first` and `following` in this order or, with probability 1/2, in the reverse order (ALBERT, §3.1).

  The label is one of `SentenceOrder`. Where `following` is empty, the pair is `first` and `other` with the label
  SWAPPED, as in ALBERT's data script.
  """
  alone = following.length == 0
  swapped = jax.random.bernoulli(key) & ~alone
  second = Segment(*(jnp.where(alone, a, b) for a, b in zip(other, following, strict=True)))
  a, b = (
    Segment(*(jnp.where(swapped, theirs, ours) for ours, theirs in zip(one, two, strict=True)))
    for one, two in ((first, second), (second, first))
  )
  label = jnp.where(swapped | alone, SentenceOrder.SWAPPED, SentenceOrder.IN_ORDER)
  return Pair(a, b, label.astype(jnp.int32))


def truncate(key: Array, first: Segment, second: Segment, *, room: int) -> tuple[Segment, Segment]:
  """Removes tokens of the longer segment, of the second where both are equal, until both fit (`truncate_seq_pair`).

  Each removed token is the first or the last one of its segment with probability 1/2 (BERT's data script).

  Args:
    key: noise key of the row.
    first: segment A.
    second: segment B.
    room: most tokens of both together.

  Returns:
    A contiguous part of each.
  """
  a, b = first.length, second.length
  kept = jnp.minimum(a, jnp.maximum(room - b, -(-room // 2)))
  sizes = (kept, jnp.minimum(b, room - kept))
  parts = [
    _cut(part_key, segment, size)
    for part_key, segment, size in zip(jax.random.split(key), (first, second), sizes, strict=True)
  ]
  return parts[0], parts[1]


def _cut(key: Array, segment: Segment, size: Array) -> Segment:
  """A part of `size` tokens; each of the others is removed at the front or at the back with probability 1/2."""
  width = segment.ids.shape[0]
  throws = jax.random.bernoulli(key, shape=(width,)) & (jnp.arange(width) < segment.length - size)
  # a lookup: `jnp.roll` by a number that differs between rows becomes a loop over the rows on TPUs
  return Segment(segment.ids[(jnp.arange(width) + throws.sum()) % width], size)


def join(
  first: Segment, second: Segment, *, length: int, cls_id: int, sep_id: int, pad_id: int, separators: int = 1
) -> Joined:
  """[CLS] A [SEP] B [SEP], padded.

  Args:
    first: segment A.
    second: segment B; both fit into the row together.
    length: tokens of the row.
    cls_id: first token of the row.
    sep_id: separator after each segment.
    pad_id: id of the padding.
    separators: separators between the segments, 1 (BERT) or 2 (RoBERTa: <s> A </s> </s> B </s>).
  """
  place = jnp.arange(length)
  middle = 1 + first.length  # place of the first separator
  start = middle + separators  # of the first token of B
  end = start + second.length  # of the last separator
  in_first = (place >= 1) & (place < middle)
  in_second = (place >= start) & (place < end)
  ids = jnp.where(place <= end, sep_id, pad_id)
  ids = jnp.where(in_first, jnp.take(first.ids, place - 1, mode='clip'), ids)
  ids = jnp.where(in_second, jnp.take(second.ids, place - start, mode='clip'), ids)
  ids = jnp.where(place == 0, cls_id, ids).astype(jnp.int32)
  real = place <= end
  return Joined(ids, ((place >= start) & real).astype(jnp.int32), real.astype(jnp.int32))
