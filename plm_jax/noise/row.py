"""What a corruption reads and writes: a row, the spans chosen in it, and the slots that an edit makes of them.

A corruption is *where* x *edit* x *compact*. Each is a pure function of (key, one row) with fixed shapes; `prepare` of
an objective composes them under vmap inside the compiled step. The key of a row (`noise/keys.py`) does not depend on
the rest of the batch, so a row is corrupted in the same way on one device and on many.

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
  """One row of clean text; an objective leaves fields None that its corruption does not need.

  Attributes:
    ids: int32[l].
    eligible: bool[l], False on special tokens and padding, which may not change.
    segment_ids: int32[l], numbers the packed documents from 1; 0 is padding. Spans never cross a document boundary.
    word_ids: int32[l], rises by one where a word starts.
    sentence_ids: int32[l], rises by one where a sentence starts.
  """

  ids: Array
  eligible: Array
  segment_ids: Array
  word_ids: Array | None = None
  sentence_ids: Array | None = None


class Spans(NamedTuple):
  """Which positions are chosen.

  Attributes:
    number: int32[l], k at the tokens of the k-th span from the left; 0 elsewhere.
    insert: int32[l], number of insertions before the position (BART's spans of length 0).
  """

  number: Array
  insert: Array


class Slots(NamedTuple):
  """What an edit writes at each position.

  Attributes:
    before: int32[l, k], ids inserted before the position; -1 where there is none. k may be 0.
    ids: int32[l], the id at the position.
    keep: bool[l], False where the position is dropped.
  """

  before: Array
  ids: Array
  keep: Array


Where = Callable[[Array, Row], Spans]
Edit = Callable[[Array, Row, Spans], Slots]


def word_ids(ids: Array, starts_word: Array) -> Array:
  """int32[..., l] that rises by one at every token that starts a word, given bool[v] `starts_word`."""
  return jnp.cumsum(starts_word[ids].astype(jnp.int32), axis=-1)


def sentence_ids(ids: Array, ends_sentence: Array) -> Array:
  """int32[..., l] that rises by one after every token that ends a sentence, given bool[v] `ends_sentence`."""
  ends = ends_sentence[ids].astype(jnp.int32)
  return jnp.cumsum(ends, axis=-1) - ends
