"""The layout of labelled rows: texts cut to fit, special tokens around them, one sequence or several per row."""

from typing import Any, NamedTuple

import numpy as np

from plm_jax.core.types import Vocab
from plm_jax.data.rows import examples, packing, spelling, store
from plm_jax.data.rows.examples import Examples
from plm_jax.data.rows.order import Batch


class Laid(NamedTuple):
  """All rows of a split, put together when they are read.

  Attributes:
    tokens: of all texts.
    plans: prefix of the keys -> plan, a row of which is one sequence.
    frames: special tokens around each field.
    sequences: per row.
    sizes: int64[rows], tokens of the longest sequence of each row.
    cut: rows that lost a token.
    typed: whether fields have types.
    last_type: type of the last token of a sequence, where it has one of its own.
    pad_id: fills rows.
    apart: each field is a text of its own (`framing.Layout`).
    spelt: the ids of `tokens` with the characters of their words; None where rows have none.
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
    """A value int32 per token of all texts where the token stands in some rows; see `Examples`."""
    unlabelled = tuple(((-1,) * len(before), (-1,) * len(after)) for before, after in self.frames)
    return self._assemble(self.plans[''], values, chosen, width, frames=unlabelled, pad=-1)[0]

  def batch(self, chosen: np.ndarray, width: int) -> Batch:
    """Tokens, segments and types of some rows int64[b]: int32[b, width] each, or [b, sequences, width].

    Where words are spelt, their characters as well, with an axis of 50 behind.
    """
    made: Batch = {}
    for prefix, plan in self.plans.items():
      source = self.tokens.ids if self.spelt is None else self.spelt
      ids, numbers = self._assemble(plan, source, chosen, width, frames=self.frames, pad=self.pad_id)
      if self.spelt is not None:
        made[f'{prefix}characters'] = self.spelt.characters(ids, numbers > 0)
        ids = self.spelt.tokens(ids)
      made |= {f'{prefix}tokens': ids, f'{prefix}segment_ids': numbers if self.apart else np.minimum(numbers, 1)}
      if self.typed:
        made[f'{prefix}type_ids'] = self._types(numbers)
    return made

  def _types(self, numbers: np.ndarray) -> np.ndarray:
    """int32: the field of each token, from 0; `numbers` counts fields from 1, and is 0 for padding."""
    types = np.maximum(numbers - 1, 0)
    if self.last_type is not None:
      last = np.maximum((numbers > 0).sum(axis=-1, keepdims=True) - 1, 0)
      np.put_along_axis(types, last, self.last_type, axis=-1)
    return np.where(numbers > 0, types, 0)

  def _assemble(
    self, plan: packing.Plan, ids: 'packing.Ids', chosen: np.ndarray, width: int, **settings: Any
  ) -> tuple[np.ndarray, ...]:
    """`packing.assemble` of all sequences of some rows."""
    each = (chosen[:, None] * self.sequences + np.arange(self.sequences)).ravel()  # [b * sequences]
    shape = (len(chosen), self.sequences, width) if self.sequences > 1 else (len(chosen), width)
    return tuple(made.reshape(shape) for made in packing.assemble(plan, ids, each, length=width, **settings))


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
  """Tokenises the texts of the rows and says where each goes.

  Args:
    given: the rows.
    layout: a file of `layouts/`.
    vocab: gives ids and special tokens.
    length: tokens of the longest row.
    least: tokens of the shortest row that a batch may have.
    both_orders: also plan the fields in reverse.
    cache: folder of token stores, for data that is not held in memory.
    characters: rows have the characters of their words.

  Raises:
    ValueError: rows that are too short for the special tokens, or one field where two are needed.
  """
  columns, sequences = len(given.fields), len(given.row_ids) * given.sequences
  if both_orders and columns < 2:
    raise ValueError(f'both_orders=True needs two fields; the rows are read with fields={given.fields}.')
  style = layout.make(vocab=vocab, fields=columns)
  frames = style.frames
  specials = sum(len(before) + len(after) for before, after in frames)
  if least < specials + columns:
    raise ValueError(
      f'rows of {least} are too short for this layout with {columns} fields: at least {specials + columns} tokens per '
      'row.'
    )
  texts = examples.behind_gap(given, vocab)
  if len(given.row_ids) <= examples.IN_MEMORY:
    tokens = store.in_memory(texts, vocab=vocab)
  else:
    tokens = store.on_disk(texts, vocab=vocab, cache=cache)
  starts, ends, present = (values.reshape(sequences, columns) for values in _extents(given, tokens.offsets))
  there = present.all(axis=1)  # [sequences]
  whole = ends - starts
  counts = fit(whole, room=length - specials)
  frame = np.tile(np.arange(columns, dtype=np.uint8), int(there.sum()))
  edges = np.concatenate([[0], np.cumsum(there)]) * columns
  plans = {'': packing.Plan(starts[there].ravel(), counts[there].ravel(), frame, edges)}
  if both_orders:
    plans['swapped_'] = packing.Plan(starts[there, ::-1].ravel(), counts[there, ::-1].ravel(), frame, edges)
  return Laid(
    tokens=tokens,
    plans=plans,
    frames=frames,
    sequences=given.sequences,
    sizes=np.where(there, counts.sum(axis=1) + specials, 0).reshape(-1, given.sequences).max(axis=1),
    cut=int((counts < whole).any(axis=1).reshape(-1, given.sequences).any(axis=1).sum()),
    typed=style.typed,
    last_type=style.last_type,
    pad_id=vocab.pad_id,
    apart=style.apart,
    spelt=spelling.spell(tokens, texts, vocab=vocab) if characters else None,
  )


def _extents(given: Examples, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Where the tokens of each field begin and end, int64[rows*sequences*fields] each, and whether the row has it, bool.

  Args:
    given: the rows.
    offsets: int64[texts+1], where the tokens of each text begin.
  """
  if given.shared is None:
    edges = offsets[given.edges]
    return edges[:-1], edges[1:], np.ones(len(edges) - 1, bool)
  present = given.shared >= 0
  text = np.maximum(given.shared, 0)
  return offsets[text], np.where(present, offsets[text + 1], offsets[text]), present


def fit(sizes: np.ndarray, *, room: int) -> np.ndarray:
  """Longest-first truncation (BERT's released code): removes one token at a time from the longest field.

  Args:
    sizes: int64[rows, fields].
    room: tokens that a row has for its fields.

  Returns:
    int64[rows, fields], tokens kept of each; where fields end up equal, the earlier ones keep the tokens left over.
  """
  low, high = np.zeros(len(sizes), np.int64), np.full(len(sizes), room)
  while (low < high).any():  # binary search of the largest length to which fields can be cut so that all fit
    middle = (low + high + 1) // 2
    fits = np.minimum(sizes, middle[:, None]).sum(axis=1) <= room
    low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
  kept = np.minimum(sizes, low[:, None])
  longer = sizes > kept
  spare = room - kept.sum(axis=1, keepdims=True)
  return kept + (longer & (np.cumsum(longer, axis=1) <= spare))
