"""The data of a corruption: a row, the spans chosen in it, and the slots that an edit makes of them.

A corruption is *where* x *edit* x *compact*. Each is a pure function of (key, one row) with fixed shapes; `prepare` of
an objective composes them under vmap inside the compiled step. The key of a row (`noise/keys.py`) does not depend on
the rest of the batch. So a row gets the same corruption on one device and on many.

  # ids       a  b  c  d  e  f
  # number    0  1  1  0  0  2     Spans: b c and f are chosen
  # ids       a  X  X  d  e  Y     Slots of `edit.to_sentinels`
  # keep      1  1  0  1  1  1
  # compact   a  X  d  e  Y
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from plm_jax.core.types import Array


class Row(NamedTuple):
  """One row of clean text. An objective sets fields to None that its corruption does not need."""

  ids: Array  # int32[l]
  eligible: Array  # bool[l], False on special tokens and padding, which may not change
  # int32[l], index of the document in the row from 1; 0 is padding. Spans never cross a document boundary
  segment_ids: Array
  word_ids: Array | None = None  # int32[l], rises by one where a word starts
  sentence_ids: Array | None = None  # int32[l], rises by one where a sentence starts


class Spans(NamedTuple):
  """Chosen positions."""

  number: Array  # int32[l], k at the tokens of the k-th span from the left; 0 elsewhere
  insert: Array  # int32[l], number of insertions before the position (BART's spans of length 0)


class Slots(NamedTuple):
  """The output of an edit at each position."""

  before: Array  # int32[l, k], ids inserted before the position; -1 for none. k may be 0
  ids: Array  # int32[l], the id at the position
  keep: Array  # bool[l], False if the position is dropped


Where = Callable[[Array, Row], Spans]
Edit = Callable[[Array, Row, Spans], Slots]


def word_ids(ids: Array, starts_word: Array, marks: Array | None = None) -> Array:
  """Index words, int32[..., l], from bool[v] `starts_word`.

  int32[..., l] `marks` of a segmenter take precedence, see 'word_marks' of `batch.BATCH`.
  """
  starts = starts_word[ids] if marks is None else jnp.where(marks > 0, marks > 1, starts_word[ids])
  return jnp.cumsum(starts.astype(jnp.int32), axis=-1)


def sentence_ids(ids: Array, ends_sentence: Array) -> Array:
  """Index sentences, int32[..., l], from bool[v] `ends_sentence`."""
  ends = ends_sentence[ids].astype(jnp.int32)
  return jnp.cumsum(ends, axis=-1) - ends
