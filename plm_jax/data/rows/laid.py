"""Layout of labelled examples: texts cut to fit, special tokens around them, one sequence or several per example."""

from typing import Any, NamedTuple

import numpy as np

from plm_jax.core.types import Vocab
from plm_jax.data.rows import examples, packing, spelling, store
from plm_jax.data.rows.examples import Examples
from plm_jax.data.rows.order import Batch


class Laid(NamedTuple):
  """All examples of a split, assembled when they are read.

  Attributes:
    tokens: tokens of all texts.
    plans: prefix of the keys -> plan with one sequence per row.
    frames: special tokens around each field.
    sequences: sequences per example.
    sizes: int64[rows], tokens of the longest sequence of each example.
    cut: number of examples that lost a token.
    typed: True if fields have types.
    last_type: type of the last token of a sequence, if it has its own.
    pad_id: id of padding.
    apart: True if each field is a separate text (`framing.Layout`).
    spelt: the ids of `tokens` with the characters of their words; None without characters.
  """

  tokens: store.Tokens
  plans: dict[str, packing.Plan]
  frames: tuple[packing.Frame, ...]
  sequences: int
  sizes: np.ndarray
  cut: int
  typed: bool
  last_type: int | None
  pad_id: int
  apart: bool = False
  spelt: spelling.SpeltIds | None = None

  def place(self, values: np.ndarray, chosen: np.ndarray, width: int) -> np.ndarray:
    """Place values int32 of all tokens at their positions; see `Examples`."""
    unlabelled = tuple(((-1,) * len(before), (-1,) * len(after)) for before, after in self.frames)
    return self._assemble(self.plans[''], values, chosen, width, frames=unlabelled, pad=-1)[0]

  def batch(self, chosen: np.ndarray, width: int) -> Batch:
    """Return tokens, segments and types of examples int64[b].

    Each is int32[b, width], or [b, sequences, width]. Characters, if any, have another axis of 50.
    """
    arrays: Batch = {}
    for prefix, plan in self.plans.items():
      source = self.tokens.ids if self.spelt is None else self.spelt
      ids, numbers = self._assemble(plan, source, chosen, width, frames=self.frames, pad=self.pad_id)
      if self.spelt is not None:
        arrays[f'{prefix}characters'] = self.spelt.characters(ids, numbers > 0)
        ids = self.spelt.tokens(ids)
      arrays |= {f'{prefix}tokens': ids, f'{prefix}segment_ids': numbers if self.apart else np.minimum(numbers, 1)}
      if self.typed:
        arrays[f'{prefix}type_ids'] = self._types(numbers)
    return arrays

  def _types(self, numbers: np.ndarray) -> np.ndarray:
    """Return fields from 0, int32, of `numbers` from 1 (0 pads)."""
    types = np.maximum(numbers - 1, 0)
    if self.last_type is not None:
      last = np.maximum((numbers > 0).sum(axis=-1, keepdims=True) - 1, 0)
      np.put_along_axis(types, last, self.last_type, axis=-1)
    return np.where(numbers > 0, types, 0)

  def _assemble(
    self, plan: packing.Plan, ids: 'packing.Ids', chosen: np.ndarray, width: int, **settings: Any
  ) -> tuple[np.ndarray, ...]:
    """Assemble all sequences of examples (`packing.assemble`)."""
    each = (chosen[:, None] * self.sequences + np.arange(self.sequences)).ravel()  # [b * sequences]
    shape = (len(chosen), self.sequences, width) if self.sequences > 1 else (len(chosen), width)
    return tuple(array.reshape(shape) for array in packing.assemble(plan, ids, each, length=width, **settings))


def lay_out(
  given: Examples,
  layout: Any,
  *,
  vocab: Vocab,
  length: int,
  least: int,
  both_orders: bool,
  cache: str,
  characters: bool = False,
) -> Laid:
  """Tokenise the texts of the examples, and plan their sequences.

  Args:
    given: the examples.
    layout: a file of `layouts/`.
    vocab: token ids and special tokens.
    length: tokens of the longest sequence.
    least: tokens of the shortest sequence that a batch may have.
    both_orders: also plan the fields in reverse order.
    cache: folder of token stores, for data that is too large for memory.
    characters: add the characters of each word.

  Raises:
    ValueError: sequences that are too short for the special tokens, or one field but `both_orders`.
  """
  columns, sequences = len(given.fields), len(given.row_ids) * given.sequences
  if both_orders and columns < 2:
    raise ValueError(f'both_orders=True needs two fields but fields={given.fields}: remove it or add a field.')
  style = layout.make(vocab=vocab, fields=columns)
  frames = style.frames
  specials = sum(len(before) + len(after) for before, after in frames)
  if least < specials + columns:
    raise ValueError(
      f'rows of {least} tokens are too short for {columns} fields in this layout: set data.length and data.buckets to '
      f'{specials + columns} or more.'
    )
  # 1. Tokenise.
  texts = examples.after_gap(given, vocab)
  if len(given.row_ids) <= examples.IN_MEMORY:
    tokens = store.in_memory(texts, vocab=vocab)
  else:
    tokens = store.on_disk(texts, vocab=vocab, cache=cache)
  # 2. Cut the fields to fit.
  starts, ends, present = (values.reshape(sequences, columns) for values in _extents(given, tokens.offsets))
  exists = present.all(axis=1)  # [sequences]
  sizes = ends - starts
  counts = fit(sizes, room=length - specials)
  # 3. Plan the sequences that exist.
  frame = np.tile(np.arange(columns, dtype=np.uint8), int(exists.sum()))
  edges = np.concatenate([[0], np.cumsum(exists)]) * columns
  plans = {'': packing.Plan(starts[exists].ravel(), counts[exists].ravel(), frame, edges)}
  if both_orders:
    plans['swapped_'] = packing.Plan(starts[exists, ::-1].ravel(), counts[exists, ::-1].ravel(), frame, edges)
  return Laid(
    tokens=tokens,
    plans=plans,
    frames=frames,
    sequences=given.sequences,
    sizes=np.where(exists, counts.sum(axis=1) + specials, 0).reshape(-1, given.sequences).max(axis=1),
    cut=int((counts < sizes).any(axis=1).reshape(-1, given.sequences).any(axis=1).sum()),
    typed=style.typed,
    last_type=style.last_type,
    pad_id=vocab.pad_id,
    apart=style.apart,
    spelt=spelling.spell(tokens, texts, vocab=vocab) if characters else None,
  )


def _extents(given: Examples, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Return the bounds of each field, and whether it exists.

  Args:
    given: the examples.
    offsets: int64[texts+1], first token of each text.

  Returns:
    First token int64, end int64, and bool, [rows*sequences*fields] each.
  """
  if given.shared is None:
    edges = offsets[given.edges]
    return edges[:-1], edges[1:], np.ones(len(edges) - 1, bool)
  present = given.shared >= 0
  text = np.maximum(given.shared, 0)
  return offsets[text], np.where(present, offsets[text + 1], offsets[text]), present


def fit(sizes: np.ndarray, *, room: int) -> np.ndarray:
  """Truncate the longest field first, one token at a time.

  As in BERT's released code.

  Args:
    sizes: int64[rows, fields].
    room: tokens that a sequence has for its fields.

  Returns:
    int64[rows, fields], tokens kept of each field. Among fields of equal length, the earlier ones keep the rest.
  """
  low, high = np.zeros(len(sizes), np.int64), np.full(len(sizes), room)
  # 1. Binary search of the largest length for all fields that fits.
  while (low < high).any():
    middle = (low + high + 1) // 2
    fits = np.minimum(sizes, middle[:, None]).sum(axis=1) <= room
    low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
  # 2. Give the rest of the room to the first fields that were cut.
  counts = np.minimum(sizes, low[:, None])
  longer = sizes > counts
  spare = room - counts.sum(axis=1, keepdims=True)
  return counts + (longer & (np.cumsum(longer, axis=1) <= spare))
