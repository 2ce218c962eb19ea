"""Corruption of one row for text-to-text denoisers: the inputs of the encoder and the targets of the decoder.

Functions of `noise/` (rearrange, where, edit) are applied in order; `compact` then puts the result into fixed sizes.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Array, Vocab
from plm_jax.layers.positions import from_segments
from plm_jax.noise import edit as edits
from plm_jax.noise.compact import compact_from, total
from plm_jax.noise.row import Row, Slots, Spans
from plm_jax.objectives import corrupt

Target = Literal['text', 'masked', 'chosen', 'sentinels']

SENTINEL = re.compile(r'<extra_id_(\d+)>')


class Sentinels(NamedTuple):
  """The tokens that mark spans: id of the first, difference of consecutive ids, and their number."""

  first: int
  step: int
  number: int


class Denoiser(NamedTuple):
  """One way to corrupt a row, with its settings bound."""

  rearrange: tuple[partial[Array], ...]  # functions that reorder the clean text
  choose: partial[Spans]  # function that chooses tokens
  write: partial[Slots]  # function that edits them
  finish: tuple[partial[Array], ...]  # functions that reorder the corrupted text
  target: Target  # the text to write, see the head of `denoise_seq2seq`
  mode: tuple[int | Array, ...]  # ids put before each document of the inputs, at most one; rows may differ in it
  share: float  # of the rows, relative to the shares of the others
  label: str  # of its loss in the metrics


class VocabTables(NamedTuple):
  """Tables of a vocabulary for denoising."""

  special: np.ndarray  # bool[v], tokens that may not change at either end of a document
  starts_word: np.ndarray  # bool[v]
  ends_sentence: np.ndarray | None  # bool[v], or None if no denoiser needs it
  mask_id: int | None  # id of the mask token, or None
  pad_id: int
  end: tuple[int, ...]  # ids put after each document of inputs and targets, at most one
  sentinels: Sentinels | None  # None if no denoiser needs them
  ordinary: np.ndarray  # int32[...], ids that may replace a mask
  mask_random: float  # share of the masks that become a random token


class Side(NamedTuple):
  """Inputs or targets of a row."""

  ids: Array  # int32[t]
  segment_ids: Array  # int32[t]
  weights: Array  # f32[t]
  excess: Array  # f32[], tokens without a slot


def find_sentinels(vocab: Vocab) -> Sentinels:
  """Find the tokens <extra_id_0>, ..., evenly spaced, or raise ValueError."""
  numbered = {int(m[1]): i for i in vocab.special_ids if (m := SENTINEL.fullmatch(vocab.token(i)))}
  ids = [numbered[k] for k in sorted(numbered)]
  if sorted(numbered) != list(range(len(ids))) or not ids:
    raise ValueError(
      'objective denoise_seq2seq needs sentinels: special tokens <extra_id_0>, <extra_id_1>, ... without a gap; '
      "vocab.extra=('<extra_id_0>', ...) adds them"
    )
  step = ids[1] - ids[0] if len(ids) > 1 else 1
  if ids != list(range(ids[0], ids[0] + step * len(ids), step)):
    raise ValueError('the ids of the sentinels <extra_id_0>, <extra_id_1>, ... are not evenly spaced')
  return Sentinels(ids[0], step, len(ids))


def find_sentence_ends(vocab: Vocab, ends: tuple[str, ...]) -> np.ndarray:
  """Mark tokens that are one of `ends`, apart from word marks: bool[v]."""
  tokens = [vocab.token(i).removeprefix('##').lstrip('Ġ▁') for i in range(vocab.size)]
  is_end = np.array([token in ends for token in tokens])
  if not is_end.any():
    raise ValueError(f'objective.sentence_ends={ends}: none is a token of the vocabulary; name tokens that it has')
  return is_end


def shift_right(ids: Array, segment_ids: Array, *, start_id: int) -> Array:
  """Shift targets int[b, t] right, with `start_id` before each document."""
  before = jnp.pad(segment_ids, ((0, 0), (1, 0)))[:, :-1]
  tokens = jnp.pad(ids, ((0, 0), (1, 0)))[:, :-1]
  return jnp.where(segment_ids != before, start_id, tokens)


def make_row(
  ids: Array, segments: Array, tables: VocabTables, sentences: Array | None = None, marks: Array | None = None
) -> Row:
  """Build the row that noise functions read.

  Special tokens at the ends of a document may not change. T5 and BART corrupt those inside a text like other tokens, so
  a document is corrupted as one text, and `sizes` holds.
  """
  # token    [CLS] a [SEP] b [SEP]     eligible 0 1 1 1 0
  row = corrupt.make_row(
    ids,
    segments,
    special=tables.special,
    starts_word=tables.starts_word,
    ends_sentence=tables.ends_sentence,
    marks=marks,
    sentences=sentences,
  )
  first, last = _edges(segments)
  index = jnp.arange(ids.shape[0])
  # a token lies between eligible ones if its document has one at or before it, and one at or after it
  starts = jax.lax.cummax(jnp.where(first, index, 0))
  ends = jax.lax.cummin(jnp.where(last, index, ids.shape[0]), reverse=True)
  before = jax.lax.cummax(jnp.where(row.eligible, index, -1)) >= starts
  after = jax.lax.cummin(jnp.where(row.eligible, index, ids.shape[0]), reverse=True) <= ends
  return row._replace(eligible=before & after & (segments > 0))


def _edges(segments: Array) -> tuple[Array, Array]:
  """Mark the first and the last token of each document, bool[l] twice."""
  differs = segments[1:] != segments[:-1]
  return (
    jnp.pad(differs, (1, 0), constant_values=True) & (segments > 0),
    jnp.pad(differs, (0, 1), constant_values=True) & (segments > 0),
  )


def _collect(row: Row, before: Array, kept: Array, after: Array, *, size: int, pad_id: int) -> tuple[Side, Array]:
  """Collect the ids of a row in `size` slots.

  At each position come first `before` [l, i], then `kept` [l], then `after` [l, j]; -1 means none. Also return the
  position that each slot comes from, int32[size], -1 for padding.
  """
  slots = Slots(jnp.concatenate([before, kept[:, None], after[:, :-1]], axis=1), after[:, -1], after[:, -1] >= 0)
  # before - | kept a - c | after - - [EOS]   in 4 slots   ids a c [EOS] [PAD], source 0 2 2 -1
  ids, source = compact_from(slots, size=size, pad_id=pad_id)
  real = source >= 0
  segments = jnp.where(real, row.segment_ids[source], 0)
  excess = jnp.maximum(total(slots) - size, 0).astype(jnp.float32)
  return Side(ids, segments, real.astype(jnp.float32), excess), source


def _keep_all(row: Row, ids: Array, *, pad_id: int) -> tuple[Side, Array]:
  """Do the work of `_collect` without dropped or added tokens."""
  real = row.segment_ids > 0
  side = Side(jnp.where(real, ids, pad_id), row.segment_ids, real.astype(jnp.float32), jnp.zeros(()))
  return side, jnp.where(real, jnp.arange(ids.shape[0]), -1)


def _ids_where(mask: Array, ids: tuple[int | Array, ...]) -> Array:
  """Return `ids` where `mask` is True, else -1: int32[l, len(ids)]."""
  return jnp.where(mask[:, None], jnp.asarray(ids, jnp.int32).reshape(1, -1), -1)


def _randomise_masks(key: Array, slots: Slots, *, tables: VocabTables) -> Slots:
  """Replace a share of the masks by random tokens."""
  ids = jnp.concatenate([slots.before, slots.ids[:, None]], axis=1)
  share_key, id_key = jax.random.split(key)
  random_ids = jnp.asarray(tables.ordinary)[jax.random.randint(id_key, ids.shape, 0, len(tables.ordinary))]
  replaced = (ids == tables.mask_id) & (jax.random.uniform(share_key, ids.shape) < tables.mask_random)
  ids = jnp.where(replaced, random_ids, ids)
  return slots._replace(before=ids[:, :-1], ids=ids[:, -1])


class SentinelSpans(NamedTuple):
  """The chosen spans of a row, each with its sentinel."""

  chosen: Spans  # the spans that have a sentinel
  starts: Array  # bool[l], the first position of a span
  ids: Array  # int32[l], the sentinel of the span that a position is in
  # int32[l], at the last token of a document the sentinel after its last span, if text follows it; else -1
  closing: Array
  lost: Array  # f32[], spans without a sentinel; they are not corrupted


def assign_sentinels(row: Row, chosen: Spans, sentinels: Sentinels) -> SentinelSpans:
  """Assign sentinels to spans, starting again in each document."""
  # text a b c d, chosen number 0 1 1 0   starts 0 1 0 0   ids - X X -   closing, at d, Y; -1 if d were hidden
  first, last = _edges(row.segment_ids)
  starts = (chosen.number > 0) & (chosen.number != jnp.pad(chosen.number[:-1], (1, 0)))
  count = jnp.cumsum(starts.astype(jnp.int32))
  base = jax.lax.cummax(jnp.where(first, count - starts, 0))  # spans in the documents before
  beyond = chosen.number - base > sentinels.number
  lost = (beyond & starts).sum().astype(jnp.float32)
  chosen, starts = chosen._replace(number=jnp.where(beyond, 0, chosen.number)), starts & ~beyond
  count = jnp.minimum(count - base, sentinels.number)
  # the lowest bit: is the latest eligible token hidden?
  index = jnp.arange(row.ids.shape[0])
  latest = jax.lax.cummax(jnp.where(row.eligible, 2 * index + (chosen.number > 0), 0))
  closes = last & (latest % 2 == 0) & (count > 0) & (count < sentinels.number)
  return SentinelSpans(
    chosen=chosen,
    starts=starts,
    ids=sentinels.first + sentinels.step * (chosen.number - 1 - base),
    closing=jnp.where(closes, sentinels.first + sentinels.step * count, -1),
    lost=lost,
  )


class Marked(NamedTuple):
  """A row whose tokens have been chosen."""

  row: Row  # the reordered text
  sentences: Array | None  # its sentences as the source reports them; None if it does not
  order: Array  # int32[l], the position of each of its tokens in the clean text
  hidden: Array  # bool[l], the chosen tokens
  slots: Slots  # the edited text
  spans: SentinelSpans | None  # the spans with their sentinels; None without sentinels


def denoise(
  key: Array,
  ids: Array,
  segments: Array,
  sentences: Array | None = None,
  marks: Array | None = None,
  *,
  denoiser: Denoiser,
  tables: VocabTables,
  inputs_size: int,
  targets_size: int,
) -> tuple[Side, Side, Array]:
  """Corrupt one row: inputs, targets, and f32[], spans without a sentinel.

  `ids`, `segments`, `sentences` and `marks` are int32[l], as in `corrupt.make_row`; sizes are slots.
  """
  # text  a b c d, chosen b c, edit and target of sentinels
  # inputs  a X d   targets  X b c Y
  # 1. reorder the clean text
  order_key, where_key, edit_key, mask_key = jax.random.split(key, 4)
  clean = make_row(ids, segments, tables, sentences, marks)
  row, order = clean, jnp.arange(ids.shape[0])
  for index, rearrange in enumerate(denoiser.rearrange):
    step = rearrange(jax.random.fold_in(order_key, index), row)
    order = order[step]
    # keep `eligible`: a token now at an end may come from inside the text
    moved = [None if each is None else each[order] for each in (sentences, marks)]
    row = make_row(row.ids[step], segments, tables, *moved)._replace(eligible=row.eligible)

  # 2. choose tokens and edit them
  chosen, spans = denoiser.choose(where_key, row), None
  if tables.sentinels is not None:
    spans = assign_sentinels(row, chosen, tables.sentinels)
    chosen = spans.chosen
  slots = denoiser.write(edit_key, row, chosen)
  if spans is not None and denoiser.write.func is edits.to_sentinels:
    slots = slots._replace(ids=jnp.where(chosen.number > 0, spans.ids, row.ids))
  if tables.mask_random > 0:
    slots = _randomise_masks(mask_key, slots, tables=tables)

  # 3. collect inputs and targets
  marked = Marked(row, None if sentences is None else sentences[order], order, chosen.number > 0, slots, spans)
  inputs = make_inputs(order_key, marked, denoiser=denoiser, tables=tables, size=inputs_size)
  targets = make_targets(clean, marked, denoiser=denoiser, tables=tables, size=targets_size)
  return inputs, targets, jnp.zeros(()) if spans is None else spans.lost


def make_inputs(order_key: Array, marked: Marked, *, denoiser: Denoiser, tables: VocabTables, size: int) -> Side:
  """Build the encoder's inputs in `size` slots.

  Each document is its mode, the edited text and its end token; `denoiser.finish` reorders it last.
  """
  row, slots = marked.row, marked.slots
  real = row.segment_ids > 0
  first, last = _edges(row.segment_ids)
  if denoiser.write.func in edits.IN_PLACE and not tables.end and not denoiser.mode and size == row.ids.shape[0]:
    inputs, source = _keep_all(row, slots.ids, pad_id=tables.pad_id)
  else:
    before = jnp.concatenate([_ids_where(first, denoiser.mode), slots.before], axis=1)
    kept = jnp.where(slots.keep & real, slots.ids, -1)
    end = _ids_where(last, tables.end or (-1,))
    inputs, source = _collect(row, before, kept, end, size=size, pad_id=tables.pad_id)
  if not denoiser.finish:
    return inputs
  # text and masks may move; modes, end tokens and padding may not
  fixed = jnp.isin(inputs.ids, jnp.asarray((*denoiser.mode, *tables.end, -1)))
  movable = (source >= 0) & ~fixed & (row.eligible[source] | (inputs.ids != row.ids[source]))
  for index, rearrange in enumerate(denoiser.finish, start=len(denoiser.rearrange)):
    given = None if marked.sentences is None else marked.sentences[source]
    edited = make_row(inputs.ids, inputs.segment_ids, tables, given)._replace(eligible=movable)
    step = rearrange(jax.random.fold_in(order_key, index), edited)
    inputs, source = inputs._replace(ids=inputs.ids[step]), source[step]
  return inputs


def make_targets(clean: Row, marked: Marked, *, denoiser: Denoiser, tables: VocabTables, size: int) -> Side:
  """Build the decoder's targets in `size` slots."""
  length, pad_id = clean.ids.shape[0], tables.pad_id
  real = clean.segment_ids > 0
  end = _ids_where(_edges(clean.segment_ids)[1], tables.end or (-1,))
  no_ids = jnp.zeros((length, 0), jnp.int32)
  if denoiser.target in ('chosen', 'sentinels'):
    before = no_ids
    if denoiser.target == 'sentinels':
      assert marked.spans is not None  # `denoise_seq2seq.make` checks this
      before = jnp.where(marked.spans.starts, marked.spans.ids, -1)[:, None]
      end = jnp.concatenate([marked.spans.closing[:, None], end], axis=1)
    kept = jnp.where(marked.hidden, marked.row.ids, -1)
    return _collect(marked.row, before, kept, end, size=size, pad_id=pad_id)[0]
  if not tables.end and size == length:
    targets, source = _keep_all(clean, clean.ids, pad_id=pad_id)
  else:
    targets, source = _collect(clean, no_ids, jnp.where(real, clean.ids, -1), end, size=size, pad_id=pad_id)
  if denoiser.target == 'text':
    return targets
  wanted = jnp.zeros(length).at[marked.order].set(marked.hidden.astype(jnp.float32))[source]
  own = ~jnp.isin(targets.ids, jnp.asarray((*tables.end, -1)))
  return targets._replace(weights=targets.weights * wanted * own)


def join(inputs: Mapping[str, Array], *, documents: int, prefix: bool) -> dict[str, Array]:
  """Join inputs and targets in one row, for trunks without an encoder.

  Returns 'tokens', 'segment_ids' and 'positions' int[b, i + t]; positions count through a document's inputs and
  targets. With `prefix`, also 'prefix' int[b].

  Args:
    inputs: int[b, i] of the encoder and int[b, t] of the decoder.
    documents: the largest number of documents of a row.
    prefix: add the length of the inputs.
  """
  read, written = inputs['encoder_segment_ids'], inputs['decoder_segment_ids']
  # read 1 1 2 0, written 1 2 2   segments 1 1 2 0 1 2 2   positions 0 1 0 0 2 1 2
  counts = jax.vmap(partial(jnp.bincount, length=documents + 1))(read)
  target_positions = from_segments(written) + jnp.take_along_axis(counts, written, axis=1)
  both = {
    'tokens': jnp.concatenate([inputs['encoder_tokens'], inputs['decoder_tokens']], axis=1),
    'segment_ids': jnp.concatenate([read, written], axis=1),
    'positions': jnp.concatenate([from_segments(read), jnp.where(written > 0, target_positions, 0)], axis=1),
  }
  return both | ({'prefix': jnp.full(len(read), read.shape[1], jnp.int32)} if prefix else {})
