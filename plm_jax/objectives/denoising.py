"""Corruption of one row for denoisers from text to text: what the encoder reads and what the decoder writes.

Functions of `noise/` (rearrange, where, edit) are applied in order; `compact` then puts the result into fixed sizes.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Array, Vocab
from plm_jax.layers.positions import from_segments
from plm_jax.noise import edit as edits
from plm_jax.noise.compact import compact_from, total
from plm_jax.noise.row import Row, Slots, Spans
from plm_jax.noise.where import counts
from plm_jax.noise.where import spans as where_spans
from plm_jax.objectives import corrupt

Target = Literal['text', 'masked', 'chosen', 'sentinels']

SENTINEL = re.compile(r'<extra_id_(\d+)>')


class Sentinels(NamedTuple):
  """The tokens that stand for spans: id of the first, difference between the ids of one and the next, how many."""

  first: int
  step: int
  number: int


class Denoiser(NamedTuple):
  """One way to corrupt a row, with its settings bound.

  Attributes:
    rearrange: functions that reorder the clean text.
    choose: function that chooses tokens.
    write: function that edits them.
    finish: functions that reorder the corrupted text.
    target: what is to be written, see the head of `denoise_seq2seq`.
    mode: ids put before each document of the inputs, at most one; rows may differ in it.
    share: of the rows, relative to the shares of the others.
    label: of its loss in the metrics.
  """

  rearrange: tuple[partial[Array], ...]
  choose: partial[Spans]
  write: partial[Slots]
  finish: tuple[partial[Array], ...]
  target: Target
  mode: tuple[int | Array, ...]
  share: float
  label: str


class VocabTables(NamedTuple):
  """What denoising needs to know of a vocabulary.

  Attributes:
    special: bool[v], tokens that may not change at either end of a document.
    starts_word: bool[v].
    ends_sentence: bool[v], or None where no denoiser needs it.
    mask_id: id of the mask token, where there is one.
    pad_id: id of the padding.
    end: ids put behind each document of inputs and targets, at most one.
    sentinels: None where no denoiser needs them.
    ordinary: int32[...], ids that may replace a mask.
    mask_random: share of the masks that become a random token.
  """

  special: np.ndarray
  starts_word: np.ndarray
  ends_sentence: np.ndarray | None
  mask_id: int | None
  pad_id: int
  end: tuple[int, ...]
  sentinels: Sentinels | None
  ordinary: np.ndarray
  mask_random: float


class Side(NamedTuple):
  """Inputs or targets of a row.

  Attributes:
    ids: int32[t].
    segment_ids: int32[t].
    weights: f32[t].
    excess: f32[], tokens for which there was no slot.
  """

  ids: Array
  segment_ids: Array
  weights: Array
  excess: Array


def find_sentinels(vocab: Vocab) -> Sentinels:
  """The tokens <extra_id_0>, <extra_id_1>, ... of a vocabulary.

  Raises:
    ValueError: there are none, or their ids are not evenly spaced.
  """
  numbered = {int(m[1]): i for i in vocab.special_ids if (m := SENTINEL.fullmatch(vocab.token(i)))}
  ids = [numbered[k] for k in sorted(numbered)]
  if sorted(numbered) != list(range(len(ids))) or not ids:
    raise ValueError(
      'objective denoise_seq2seq needs sentinels for its spans: special tokens <extra_id_0>, <extra_id_1>, ... without '
      "a gap, as vocab.extra=('<extra_id_0>', ...) adds them"
    )
  step = ids[1] - ids[0] if len(ids) > 1 else 1
  if ids != list(range(ids[0], ids[0] + step * len(ids), step)):
    raise ValueError('the ids of the sentinels <extra_id_0>, <extra_id_1>, ... are not evenly spaced')
  return Sentinels(ids[0], step, len(ids))


def find_sentence_ends(vocab: Vocab, ends: tuple[str, ...]) -> np.ndarray:
  """bool[v]: tokens that are one of `ends`, with or without the mark of a word's start or middle."""
  tokens = [vocab.token(i).removeprefix('##').lstrip('Ġ▁') for i in range(vocab.size)]
  found = np.array([token in ends for token in tokens])
  if not found.any():
    raise ValueError(f'no token of the vocabulary is one of objective.sentence_ends={ends}')
  return found


def sizes(
  denoiser: Denoiser, length: int, *, tables: VocabTables, documents: int | None = None, margin: bool = True
) -> tuple[int, int]:
  """Slots that the inputs and the targets of a row of `length` tokens need, at least one each.

  Exact where the number of chosen tokens is fixed. Otherwise the inputs are as long as the row, or hold the insertions
  of `poisson_spans`, and the targets have room for as many tokens as `corrupt.capacity` says.

  Args:
    denoiser: what happens to the row.
    length: tokens of the row.
    tables: of the vocabulary.
    documents: the most documents of a row, each with a special token at either end or without; None is a row of one
      without.
    margin: room for six standard deviations more than the expected number of insertions.
  """
  func, settings = denoiser.choose.func, denoiser.choose.keywords
  frame = 0 if documents is None else 2
  documents = documents or 1
  ends, closing = len(tables.end), func is not where_spans.exact_spans  # whose rows end in a span
  extra = ends + len(denoiser.mode)
  if func not in where_spans.COUNTS or where_spans.COUNTS[func](length, **settings) is None:
    tokens = spans = corrupt.capacity(denoiser.choose, length)
    if tables.sentinels is not None:
      spans = min(spans, documents * tables.sentinels.number)
    inserted = 0
    if func is where_spans.random_gaps:
      inserted = counts.round_up(settings.get('rate', 0.15), length) + documents - 1
    elif func is where_spans.poisson_spans and denoiser.write.func in (edits.collapse_to_mask, edits.insert):
      # what collapses grows no more than what does not
      ways = (False, True) if denoiser.write.func is edits.collapse_to_mask else (False,)
      inserted = min(most_growth(length, documents, margin=margin, collapsed=way, **settings) for way in ways)
    added = {'text': length, 'masked': length, 'chosen': tokens, 'sentinels': tokens + spans + documents * closing}
    return max(1, length + inserted + documents * extra), max(1, added[denoiser.target] + documents * ends)

  def need(size: int) -> tuple[int, int]:
    """Inputs and targets of a document of that many tokens, the most over the special tokens that it may have."""
    found = []
    for text in range(size, max(size - frame, 0) - 1, -1):
      counted = where_spans.COUNTS[func](text, **settings)
      assert counted is not None  # as above
      tokens, spans = counted
      least = most = tokens  # that are hidden
      if tables.sentinels is not None and spans > tables.sentinels.number:
        # the spans that stay, and those that are hidden, may all have one token
        least, most = tables.sentinels.number, tokens - (spans - tables.sentinels.number)
        spans = tables.sentinels.number
      dropped = {edits.drop: least, edits.to_sentinels: least - spans, edits.collapse_to_mask: least - spans}
      kept = {'text': size, 'masked': size, 'chosen': most, 'sentinels': most + spans + closing}
      found.append((size - dropped.get(denoiser.write.func, 0) + extra, kept[denoiser.target] + ends))
    return max(inputs for inputs, _ in found), max(targets for _, targets in found)

  if documents == 1:
    inputs, targets = need(length)
  else:
    needs = np.array([(0, 0), *map(need, range(1, length + 1))])
    inputs, targets = (int(most_together(needs[:, side], documents)) for side in (0, 1))
  return max(1, inputs), max(1, targets)


@functools.cache
def most_growth(length: int, documents: int, *, margin: bool, **settings: Any) -> int:
  """Tokens by which a row may be expected to grow, the most over how its documents are cut.

  Args:
    length: tokens of the row.
    documents: how many at most.
    margin: six standard deviations more.
    **settings: of `where.spans.growth`.
  """
  mean, variance = where_spans.growth(length, **settings)
  longer = np.arange(length + 1) + mean
  most = most_together(longer, documents)
  if margin:
    # 6 sd is the least 3 (k var + 1 / k) over k, which adds up over documents
    factors = np.geomspace(0.01, 100, 10)
    most = min(most_together(longer + 3 * k * variance, documents) + 3 / k for k in factors)
  return max(0, min(int(most) - length, length + documents))  # insertions stand before different tokens


def most_together(needs: np.ndarray, documents: int) -> float:
  """The most that up to so many documents need, whose tokens make up a row.

  # needs 0 2 3 4 of 0 to 3 tokens, 2 documents   2 + 3 for documents of one and two tokens

  Args:
    needs: int or float[l + 1], of a document of 0 to l tokens; the row has l.
    documents: how many at most.
  """

  if documents == 1:
    return needs[-1].item()

  def either(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.array([(one[: size + 1] + other[size::-1]).max() for size in range(len(one))])

  total, doubled = np.zeros_like(needs), needs
  while documents:  # by the binary digits of their number
    if documents % 2:
      total = either(total, doubled)
    documents //= 2
    doubled = either(doubled, doubled) if documents else doubled
  return total[-1].item()


def shift_right(ids: Array, segment_ids: Array, *, start_id: int) -> Array:
  """What the decoder reads to write int[b, t] `ids`: the token before each, `start_id` where a document begins."""
  before = jnp.pad(segment_ids, ((0, 0), (1, 0)))[:, :-1]
  tokens = jnp.pad(ids, ((0, 0), (1, 0)))[:, :-1]
  return jnp.where(segment_ids != before, start_id, tokens)


def make_row(ids: Array, segments: Array, tables: VocabTables) -> Row:
  """A row as noise reads it: of the special tokens, those at the ends of a document may not change.

  T5 and BART leave out none within a text, so that a document is corrupted as one text, and `sizes` holds.
  """
  # token    [CLS] a [SEP] b [SEP]     eligible 0 1 1 1 0
  row = corrupt.make_row(
    ids, segments, special=tables.special, starts_word=tables.starts_word, ends_sentence=tables.ends_sentence
  )
  first, last = _edges(segments)
  index = jnp.arange(ids.shape[0])
  # the first token of a document and the last one that may change, seen from the left; then the same from the right
  starts = jax.lax.cummax(jnp.where(first, index, 0))
  ends = jax.lax.cummin(jnp.where(last, index, ids.shape[0]), reverse=True)
  before = jax.lax.cummax(jnp.where(row.eligible, index, -1)) >= starts
  behind = jax.lax.cummin(jnp.where(row.eligible, index, ids.shape[0]), reverse=True) <= ends
  return row._replace(eligible=before & behind & (segments > 0))


def _edges(segments: Array) -> tuple[Array, Array]:
  """bool[l] twice: the first and the last token of a document."""
  differs = segments[1:] != segments[:-1]
  return (
    jnp.pad(differs, (1, 0), constant_values=True) & (segments > 0),
    jnp.pad(differs, (0, 1), constant_values=True) & (segments > 0),
  )


def _collect(row: Row, before: Array, kept: Array, after: Array, *, size: int, pad_id: int) -> tuple[Side, Array]:
  """Ids before each position [l, i], those kept [l] and those after it [l, j], -1 for none, in `size` slots.

  Also returns the position that each slot comes from, int32[size], -1 for padding.
  """
  slots = Slots(jnp.concatenate([before, kept[:, None], after[:, :-1]], axis=1), after[:, -1], after[:, -1] >= 0)
  # before - | kept a - c | after - - [EOS]   in 4 slots   ids a c [EOS] [PAD], source 0 2 2 -1
  ids, source = compact_from(slots, size=size, pad_id=pad_id)
  real = source >= 0
  segments = jnp.where(real, row.segment_ids[source], 0)
  excess = jnp.maximum(total(slots) - size, 0).astype(jnp.float32)
  return Side(ids, segments, real.astype(jnp.float32), excess), source


def _keep_all(row: Row, ids: Array, *, pad_id: int) -> tuple[Side, Array]:
  """`_collect` for ids int32[l] of which none is dropped and to which none is added."""
  real = row.segment_ids > 0
  side = Side(jnp.where(real, ids, pad_id), row.segment_ids, real.astype(jnp.float32), jnp.zeros(()))
  return side, jnp.where(real, jnp.arange(ids.shape[0]), -1)


def _ids_where(there: Array, ids: tuple[int | Array, ...]) -> Array:
  """int32[l, len(ids)]: these ids where `there`, else -1."""
  return jnp.where(there[:, None], jnp.asarray(ids, jnp.int32).reshape(1, -1), -1)


def _randomise_masks(key: Array, slots: Slots, *, tables: VocabTables) -> Slots:
  """Replaces a share of the masks by random tokens."""
  ids = jnp.concatenate([slots.before, slots.ids[:, None]], axis=1)
  share_key, id_key = jax.random.split(key)
  drawn = jnp.asarray(tables.ordinary)[jax.random.randint(id_key, ids.shape, 0, len(tables.ordinary))]
  replaced = (ids == tables.mask_id) & (jax.random.uniform(share_key, ids.shape) < tables.mask_random)
  ids = jnp.where(replaced, drawn, ids)
  return slots._replace(before=ids[:, :-1], ids=ids[:, -1])


class SentinelSpans(NamedTuple):
  """The chosen spans of a row, each with its sentinel.

  Attributes:
    chosen: the spans, without those for which no sentinel was left.
    starts: bool[l], the first position of a span.
    ids: int32[l], the sentinel of the span that a position is in.
    closing: int32[l], at the last token of a document the sentinel after its last span, where text follows; else -1.
    lost: f32[], spans for which no sentinel was left; they are not corrupted.
  """

  chosen: Spans
  starts: Array
  ids: Array
  closing: Array
  lost: Array


def assign_sentinels(row: Row, chosen: Spans, sentinels: Sentinels) -> SentinelSpans:
  """Gives each span a sentinel, counting from the first in each document."""
  # text a b c d, chosen number 0 1 1 0   starts 0 1 0 0   ids - X X -   closing, at d, Y; -1 if d were hidden
  first, last = _edges(row.segment_ids)
  starts = (chosen.number > 0) & (chosen.number != jnp.pad(chosen.number[:-1], (1, 0)))
  count = jnp.cumsum(starts.astype(jnp.int32))
  base = jax.lax.cummax(jnp.where(first, count - starts, 0))  # spans in the documents before
  beyond = chosen.number - base > sentinels.number
  lost = (beyond & starts).sum().astype(jnp.float32)
  chosen, starts = chosen._replace(number=jnp.where(beyond, 0, chosen.number)), starts & ~beyond
  count = jnp.minimum(count - base, sentinels.number)
  # whether the last token that could be hidden so far is hidden, in the lowest bit
  index = jnp.arange(row.ids.shape[0])
  latest = jax.lax.cummax(jnp.where(row.eligible, 2 * index + (chosen.number > 0), 0))
  closes = last & (latest % 2 == 0) & (count > 0) & (count < sentinels.number)
  return SentinelSpans(
    chosen,
    starts,
    sentinels.first + sentinels.step * (chosen.number - 1 - base),
    jnp.where(closes, sentinels.first + sentinels.step * count, -1),
    lost,
  )


class Marked(NamedTuple):
  """A row whose tokens have been chosen.

  Attributes:
    row: the reordered text.
    order: int32[l], the position of each of its tokens in the clean text.
    hidden: bool[l], the chosen tokens.
    slots: the edited text.
    spans: the spans with their sentinels, where the denoiser uses sentinels.
  """

  row: Row
  order: Array
  hidden: Array
  slots: Slots
  spans: SentinelSpans | None


def denoise(
  key: Array,
  ids: Array,
  segments: Array,
  *,
  denoiser: Denoiser,
  tables: VocabTables,
  inputs_size: int,
  targets_size: int,
) -> tuple[Side, Side, Array]:
  """Inputs, targets and the number of spans without a sentinel, f32[], of one row.

  Args:
    key: noise key of the row.
    ids: int32[l], clean text.
    segments: int32[l].
    denoiser: what to do.
    tables: of the vocabulary.
    inputs_size: slots of the inputs.
    targets_size: slots of the targets.
  """
  # text  a b c d, chosen b c, edit and target of sentinels
  # inputs  a X d   targets  X b c Y
  order_key, where_key, edit_key, mask_key = jax.random.split(key, 4)
  clean = make_row(ids, segments, tables)
  row, order = clean, jnp.arange(ids.shape[0])
  for number, rearrange in enumerate(denoiser.rearrange):
    step = rearrange(jax.random.fold_in(order_key, number), row)
    order = order[step]
    # what stands at an end now may have stood within the text
    row = make_row(row.ids[step], segments, tables)._replace(eligible=row.eligible)

  chosen, spans = denoiser.choose(where_key, row), None
  if tables.sentinels is not None:
    spans = assign_sentinels(row, chosen, tables.sentinels)
    chosen = spans.chosen
  slots = denoiser.write(edit_key, row, chosen)
  if spans is not None and denoiser.write.func is edits.to_sentinels:
    slots = slots._replace(ids=jnp.where(chosen.number > 0, spans.ids, row.ids))
  if tables.mask_random > 0:
    slots = _randomise_masks(mask_key, slots, tables=tables)

  marked = Marked(row, order, chosen.number > 0, slots, spans)
  inputs = make_inputs(order_key, marked, denoiser=denoiser, tables=tables, size=inputs_size)
  targets = make_targets(clean, marked, denoiser=denoiser, tables=tables, size=targets_size)
  return inputs, targets, jnp.zeros(()) if spans is None else spans.lost


def make_inputs(order_key: Array, marked: Marked, *, denoiser: Denoiser, tables: VocabTables, size: int) -> Side:
  """What the encoder reads, in `size` slots: mode, edited text and end token of each document, reordered at last."""
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
  for number, rearrange in enumerate(denoiser.finish, start=len(denoiser.rearrange)):
    now = make_row(inputs.ids, inputs.segment_ids, tables)._replace(eligible=movable)
    inputs = inputs._replace(ids=inputs.ids[rearrange(jax.random.fold_in(order_key, number), now)])
  return inputs


def make_targets(clean: Row, marked: Marked, *, denoiser: Denoiser, tables: VocabTables, size: int) -> Side:
  """What the decoder writes, in `size` slots."""
  length, pad_id = clean.ids.shape[0], tables.pad_id
  real = clean.segment_ids > 0
  end = _ids_where(_edges(clean.segment_ids)[1], tables.end or (-1,))
  nothing = jnp.zeros((length, 0), jnp.int32)
  if denoiser.target in ('chosen', 'sentinels'):
    before = nothing
    if denoiser.target == 'sentinels':
      assert marked.spans is not None  # as `denoise_seq2seq.make` has made sure
      before = jnp.where(marked.spans.starts, marked.spans.ids, -1)[:, None]
      end = jnp.concatenate([marked.spans.closing[:, None], end], axis=1)
    kept = jnp.where(marked.hidden, marked.row.ids, -1)
    return _collect(marked.row, before, kept, end, size=size, pad_id=pad_id)[0]
  if not tables.end and size == length:
    targets, source = _keep_all(clean, clean.ids, pad_id=pad_id)
  else:
    targets, source = _collect(clean, nothing, jnp.where(real, clean.ids, -1), end, size=size, pad_id=pad_id)
  if denoiser.target == 'text':
    return targets
  wanted = jnp.zeros(length).at[marked.order].set(marked.hidden.astype(jnp.float32))[source]
  own = ~jnp.isin(targets.ids, jnp.asarray((*tables.end, -1)))
  return targets._replace(weights=targets.weights * wanted * own)


def alike(ways: Sequence[Denoiser]) -> list[list[int]]:
  """Indices of the denoisers, grouped by everything that happens after tokens are chosen."""

  def steps_of(way: Denoiser) -> tuple[partial[Any], ...]:
    return *way.rearrange, way.write, *way.finish

  def same(one: Denoiser, other: Denoiser) -> bool:
    steps, others = steps_of(one), steps_of(other)
    return (
      (one.target, len(one.mode), len(one.rearrange), len(one.finish))
      == (other.target, len(other.mode), len(other.rearrange), len(other.finish))
    ) and all(a.func is b.func and a.keywords == b.keywords for a, b in zip(steps, others, strict=True))

  groups: list[list[int]] = []
  for number, way in enumerate(ways):
    group = next((group for group in groups if same(ways[group[0]], way)), None)
    if group is None:
      groups.append([number])
    else:
      group.append(number)
  return groups


def select(ways: Sequence[Denoiser], which: Array) -> Denoiser:
  """The denoiser number `which`, int[], of some that are `alike`.

  Under vmap all branches of a choice are computed. Here they differ in the choice of tokens only, and those by
  `exact_spans` are one branch, whose counts are looked up.
  """
  if len(ways) == 1:
    return ways[0]
  exact = [way for way in ways if way.choose.func is where_spans.exact_spans]

  def cut(key: Array, row: Row) -> Spans:
    counts = np.stack([where_spans.exact_tables(row.ids.shape[0], **way.choose.keywords) for way in exact])
    mine = np.cumsum([way in exact for way in ways]) - 1
    return where_spans.cut_spans(row, key, counts, jnp.asarray(mine)[which])

  others = (way.choose for way in ways if way not in exact)
  branches: list[Callable[[Array, Row], Spans]] = [*([cut] if exact else []), *others]
  number = iter(range(bool(exact), len(branches)))
  branch = np.array([0 if way in exact else next(number) for way in ways])

  def choose(key: Array, row: Row) -> Spans:
    return jax.lax.switch(jnp.asarray(branch)[which], branches, key, row)

  mode = tuple(jnp.asarray(ids)[which] for ids in zip(*(way.mode for way in ways), strict=True))
  return ways[0]._replace(choose=partial(choose), mode=mode)


def join(inputs: Mapping[str, Array], *, documents: int, prefix: bool) -> dict[str, Array]:
  """What a trunk without an encoder reads in place of `inputs` for one with an encoder: one row of both.

  Args:
    inputs: int[b, i] of the encoder and int[b, t] of the decoder.
    documents: the largest number of documents that a row may have.
    prefix: adds the length of the inputs.

  Returns:
    'tokens', 'segment_ids' and 'positions' int[b, i + t]; positions count through a document's inputs and targets.
    'prefix' int[b] where asked for.
  """
  read, written = inputs['encoder_segment_ids'], inputs['decoder_segment_ids']
  # read 1 1 2 0, written 1 2 2   segments 1 1 2 0 1 2 2   positions 0 1 0 0 2 1 2
  counts = jax.vmap(partial(jnp.bincount, length=documents + 1))(read)
  behind = from_segments(written) + jnp.take_along_axis(counts, written, axis=1)
  both = {
    'tokens': jnp.concatenate([inputs['encoder_tokens'], inputs['decoder_tokens']], axis=1),
    'segment_ids': jnp.concatenate([read, written], axis=1),
    'positions': jnp.concatenate([from_segments(read), jnp.where(written > 0, behind, 0)], axis=1),
  }
  return both | ({'prefix': jnp.full(len(read), read.shape[1], jnp.int32)} if prefix else {})
