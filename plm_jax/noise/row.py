"""What a corruption reads and writes: one row, the spans chosen in it, the slots an edit leaves; and the noise keys.

A corruption is *where* x *edit* x *compact*, each a pure function of (key, one row) with fixed shapes, composed under
vmap inside the compiled step. The key of a row depends on the row and not on the batch around it, so the same row is
corrupted alike on one device or a pod, alone or among thousands.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from plm_jax.types import Array


class Row(NamedTuple):
  """One row of clean text; fields that no corruption in use needs are None.

  Attributes:
    ids: int32[l].
    eligible: bool[l], False on special tokens and padding: nothing there may change.
    segment_ids: int32[l], numbers the packed documents from 1; 0 is padding. A boundary is a wall to every span.
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
    number: int32[l]; 0 is untouched, k belongs to the k-th span.
    insert: int32[l]; pure insertions before this position (BART's zero-length spans).
  """

  number: Array
  insert: Array


class Slots(NamedTuple):
  """What an edit leaves at each position.

  Attributes:
    before: int32[l, k], ids inserted before the position; -1 is none. k may be 0.
    ids: int32[l], the id at the position.
    keep: bool[l], False where the position is dropped.
  """

  before: Array
  ids: Array
  keep: Array


Where = Callable[[Array, Row], Spans]
Edit = Callable[[Array, Row, Spans], Slots]


def word_ids(ids: Array, starts_word: Array) -> Array:
  """int32[..., l] that rises by one at every token that starts a word, given bool[v] per vocabulary entry."""
  return jnp.cumsum(starts_word[ids].astype(jnp.int32), axis=-1)


def sentence_ids(ids: Array, ends_sentence: Array) -> Array:
  """int32[..., l] that rises by one after every token that ends a sentence, given bool[v] per vocabulary entry."""
  ends = ends_sentence[ids].astype(jnp.int32)
  return jnp.cumsum(ends, axis=-1) - ends
