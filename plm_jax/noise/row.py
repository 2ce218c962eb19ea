"""What a corruption reads and writes: one row, the spans chosen in it, the slots an edit leaves; and the noise keys.

A corruption is *where* x *edit* x *compact*, each a pure function of (key, one row) with fixed shapes, composed under
vmap inside the compiled step. The key of a row depends on the row and not on the batch around it, so the same row is
corrupted alike on one device or a pod, alone or among thousands.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.types import Array, Batch


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


def row_keys(root: Array, batch: Batch, *, every: Literal['step', 'epoch'], copies: int = 10) -> Array:
  """The noise key of each row, key[b].

  Args:
    root: root key of the run; a threefry key, since others draw differently under vmap.
    batch: with `row_id` and `step` or `epoch`.
    every: 'step' draws anew each time a row is seen (dynamic masking, RoBERTa §4.1); 'epoch' repeats one of `copies`
      corruptions of each row (static masking, as BERT's pre-processing writes them).
    copies: corruptions of a row under 'epoch'; BERT's data held 10.
  """
  rows = batch['row_id']
  if every == 'step':
    number = jnp.broadcast_to(jnp.asarray(batch['step']), rows.shape)
  elif every == 'epoch':
    number = batch['epoch'] % copies
  else:
    raise ValueError(f"noise is drawn every 'step' or 'epoch', not {every!r}")
  return jax.vmap(lambda row, n: jax.random.fold_in(jax.random.fold_in(root, row), n))(rows, number)


def word_ids(ids: Array, starts_word: Array) -> Array:
  """int32[..., l] that rises by one at every token that starts a word, given bool[v] per vocabulary entry."""
  return jnp.cumsum(starts_word[ids].astype(jnp.int32), axis=-1)


def sentence_ids(ids: Array, ends_sentence: Array) -> Array:
  """int32[..., l] that rises by one after every token that ends a sentence, given bool[v] per vocabulary entry."""
  ends = ends_sentence[ids].astype(jnp.int32)
  return jnp.cumsum(ends, axis=-1) - ends
