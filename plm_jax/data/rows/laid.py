"""Layout of labelled examples: texts cut to fit, special tokens around them, one sequence or several per example."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from plm_jax.core.types import Vocab
from plm_jax.data.rows import examples, packing, spelling, store
from plm_jax.data.rows.examples import Examples
from plm_jax.data.rows.order import Batch


class Laid(NamedTuple):
  """All examples of a split, assembled when they are read."""

  tokens: store.Tokens  # tokens of all texts
  plans: dict[str, packing.Plan]  # prefix of the keys -> plan with one sequence per row
  frames: tuple[packing.Frame, ...]  # special tokens around each field
  sequences: int  # sequences per example
  sizes: np.ndarray  # int64[rows], tokens of the longest sequence of each example
  cut: int  # number of examples that lost a token
  typed: bool  # True if fields have types
  last_type: int | None  # type of the last token of a sequence, if it has its own
  pad_id: int  # id of padding
  length: int  # tokens of the longest sequence
  apart: bool = False  # True if each field is a separate text (`framing.Layout`)
  # the ids of `tokens` with the characters of their words; None without characters
  spelt: spelling.SpeltIds | None = None
  # windows per sequence of the widest batches, if long sequences are read in windows. Narrower batches hold examples of
  # one window
  windows: int | None = None
  # prefix of the keys -> gaps of the pieces of its plan, see `packing.assemble`
  gaps: Mapping[str, np.ndarray] = MappingProxyType({})

  def place(self, values: np.ndarray, chosen: np.ndarray, width: int) -> np.ndarray:
    """Place values int32 of all tokens at their positions; see `Examples`."""
    unlabelled = tuple(((-1,) * len(before), (-1,) * len(after)) for before, after in self.frames)
    return self._assemble('', values, chosen, width, frames=unlabelled, pad=-1)[0]

  def batch(self, chosen: np.ndarray, width: int) -> Batch:
    """Return tokens, segments and types of examples int64[b].

    Each is int32[b, width], or [b, sequences, windows, width] with several of them. Characters, if any, have another
    axis of 50.
    """
    arrays: Batch = {}
    for prefix in self.plans:
      source = self.tokens.ids if self.spelt is None else self.spelt
      ids, numbers = self._assemble(prefix, source, chosen, width, frames=self.frames, pad=self.pad_id)
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
    self, prefix: str, ids: 'packing.Ids', chosen: np.ndarray, width: int, **settings: Any
  ) -> tuple[np.ndarray, ...]:
    kept = self.windows or 1 if width == self.length else 1
    sequence = chosen[:, None] * self.sequences + np.arange(self.sequences)  # [b, sequences]
    each = (sequence[..., None] * (self.windows or 1) + np.arange(kept)).ravel()
    several = (self.sequences,) * (self.sequences > 1) + (kept,) * (self.windows is not None)
    shape = (len(chosen), *several, width)
    settings |= {'length': width, 'gaps': self.gaps.get(prefix)}
    return tuple(array.reshape(shape) for array in packing.assemble(self.plans[prefix], ids, each, **settings))


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
  windows: int | None = None,
  stride: int | None = None,
  head_tokens: int | None = None,
) -> Laid:
  """Tokenise the texts of the examples, and plan their sequences.

  `layout` is a file of `layouts/`. Sequences have up to `length` tokens, in a batch at least `least`. `both_orders`
  also plans the fields in reverse order. `characters` adds those of each word. `cache` is the folder of token stores,
  for data that is too large for memory.

  `windows` is the most windows of a sequence whose longest field is read in windows, `stride` tokens apart (None: side
  by side); None cuts it. A field that is cut keeps `head_tokens` of its beginning, the others of its end; None for all.

  Raises ValueError for sequences that are too short for the special tokens, or one field but `both_orders`.
  """
  columns, sequences = len(given.fields), len(given.row_ids) * given.sequences
  if both_orders and columns < 2:
    raise ValueError(f'both_orders=True needs two fields but fields={given.fields}: remove it or add a field.')
  style = layout.make(vocab=vocab, fields=columns)
  specials = _count_specials(style.frames, columns, least=least)
  # 1. Tokenise.
  texts = examples.after_gap(given, vocab)
  small = len(given.row_ids) <= examples.IN_MEMORY
  tokens = store.in_memory(texts, vocab=vocab) if small else store.on_disk(texts, vocab=vocab, cache=cache)
  # 2. Cut the fields to fit.
  starts, ends, present = (values.reshape(sequences, columns) for values in _extents(given, tokens.offsets))
  exists = np.asarray(present.all(axis=1))  # [sequences]
  sizes = ends - starts
  counts = fit(sizes, room=length - specials)
  longest, shortened = np.where(exists, counts.sum(axis=1) + specials, 0), (counts < sizes).any(axis=1)
  if windows is not None:
    starts, counts, exists, shortened = _windowed(starts, sizes, counts, exists, windows=windows, stride=stride)
  # 3. Plan the sequences that exist.
  frame = np.tile(np.arange(columns, dtype=np.uint8), int(exists.sum()))
  edges = np.concatenate([[0], np.cumsum(exists)]) * columns
  orders = {'': slice(None)} | ({'swapped_': slice(None, None, -1)} if both_orders else {})
  pieces = {name: [values[exists][:, order].ravel() for values in (starts, counts)] for name, order in orders.items()}
  plans = {name: packing.Plan(own[0], own[1], frame, edges) for name, own in pieces.items()}
  gaps = {}
  if head_tokens is not None:
    own_gaps = np.stack([np.minimum(counts, head_tokens), sizes - counts], axis=-1)[exists]
    gaps = {name: own_gaps[:, order].reshape(-1, 2) for name, order in orders.items()}
  return Laid(
    tokens=tokens,
    plans=plans,
    frames=style.frames,
    sequences=given.sequences,
    sizes=longest.reshape(-1, given.sequences).max(axis=1),
    cut=int(shortened.reshape(-1, given.sequences).any(axis=1).sum()),
    windows=windows,
    gaps=gaps,
    length=length,
    typed=style.typed,
    last_type=style.last_type,
    pad_id=vocab.pad_id,
    apart=style.apart,
    spelt=spelling.spell(tokens, texts, vocab=vocab) if characters else None,
  )


def _count_specials(frames: tuple[packing.Frame, ...], columns: int, *, least: int) -> int:
  """Count special tokens; raise ValueError if `least` has no room."""
  specials = sum(len(before) + len(after) for before, after in frames)
  if least < specials + columns:
    raise ValueError(
      f'rows of {least} tokens are too short for {columns} fields in this layout: set data.length and data.buckets to '
      f'{specials + columns} or more.'
    )
  return specials


def _windowed(
  starts: np.ndarray, sizes: np.ndarray, counts: np.ndarray, exists: np.ndarray, *, windows: int, stride: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Cut the longest field of each sequence into windows.

  The last window ends with the field, and is as long as the others. Other fields are the same in every window. Returns
  starts, counts and existence of the windows, [sequences*windows, ...], and True for a sequence that lost tokens.
  """
  # field a b c d e f g, room 3, stride None:   a b c | d e f | e f g
  field = sizes.argmax(axis=1)[:, None]  # [sequences, 1]
  size, room = np.take_along_axis(sizes, field, axis=1), np.take_along_axis(counts, field, axis=1)
  step = np.maximum(np.minimum(stride or room, room), 1)
  needed = 1 + -(-(size - room) // step)
  index = np.arange(windows)  # [windows]
  is_field = (np.arange(sizes.shape[1]) == field)[:, None]  # [sequences, 1, fields]
  offsets = np.minimum(index * step, size - room)[..., None] * is_field
  lost = (needed > windows)[:, 0] | ((counts < sizes) & ~is_field[:, 0]).any(axis=1)
  starts = (starts[:, None] + offsets).reshape(-1, sizes.shape[1])
  return starts, np.repeat(counts, windows, axis=0), (exists[:, None] & (index < needed)).ravel(), lost


def _extents(given: Examples, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Return bounds of each field, and whether it exists, [rows*sequences*fields] each.

  `offsets` int64[texts+1] are the first tokens of texts. The bounds are int64.
  """
  if given.shared is None:
    edges = offsets[given.edges]
    return edges[:-1], edges[1:], np.ones(len(edges) - 1, bool)
  present = given.shared >= 0
  text = np.maximum(given.shared, 0)
  return offsets[text], np.where(present, offsets[text + 1], offsets[text]), present


def fit(sizes: np.ndarray, *, room: int) -> np.ndarray:
  """Truncate the longest field first, token by token, as BERT's code.

  Returns the tokens kept of each field, int64[rows, fields], at most `room` per row. Among fields of equal length, the
  earlier ones keep the rest.
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
