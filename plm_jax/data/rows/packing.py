"""Sequences of pieces of documents: all are planned at once with array operations, and assembled per batch.

A piece is a run of tokens of one document with its frame, the special tokens around it. A sequence is one or more
pieces, one after another. Every layout covers each token of each document exactly once, in order. `plan.frame` is
2 * opened + closed, an index into the table that `frames` makes. Opened pieces have the tokens before, closed pieces
the tokens after.

    length 8, [CLS] before, [SEP] after; documents a b c d e | f g | h
    rows         [CLS] a b c d e [SEP] _ | [CLS] f g [SEP] [CLS] h [SEP] _
    plan.starts  0 5 7    counts 5 2 1    frame 3 3 3    rows 0 1 3
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
  from plm_jax.data.rows import store
  from plm_jax.data.rows.segments import Marked
  from plm_jax.data.rows.spelling import SpeltIds

  Ids = store.AnyIds | SpeltIds | Marked

_AT_ONCE = 2**14  # rows or offsets that are looked at together
Frame = tuple[tuple[int, ...], tuple[int, ...]]  # ids before the piece, ids after it


class Plan(NamedTuple):
  """Assignment of tokens to sequences (rows)."""

  starts: np.ndarray  # int64[p], start of each piece in the token store
  counts: np.ndarray  # int32[p], tokens of each piece, without special tokens
  frame: np.ndarray  # uint8[p], index of each piece into the table of frames
  rows: np.ndarray  # int64[r+1], row i holds pieces `rows[i]:rows[i+1]`

  def local(self, chosen: np.ndarray) -> 'tuple[Plan, np.ndarray]':
    """Return a plan that holds rows `chosen`, and their places in it."""
    return self, chosen

  def most(self) -> int:
    """Return the largest number of pieces of a row."""
    return int(np.diff(self.rows).max(initial=1))


class Joined(NamedTuple):
  """Rows cut from documents end to end. They are planned when they are read, from the offsets alone, also on disk."""

  offsets: np.ndarray  # int64[d+1], of documents that have a token
  length: int  # tokens of a row, special tokens of documents included
  stride: int  # tokens from the beginning of a row to that of the next
  before: int  # special tokens before each document: 0 or 1
  after: int  # and after it; separators between documents where rows are `framed`
  framed: bool  # True if rows are opened and closed instead of documents

  @property
  def rows(self) -> range:
    """Return the rows, and an end: one more than there are."""
    total = int(self._joined(len(self.offsets) - 1))
    return range(min(total, -(-max(total - self.length, 0) // self.stride) + 1) + 1)

  def _joined(self, document: Any) -> Any:
    starts = self.offsets[document] - self.offsets[0] + (self.before + self.after) * document
    last = (document == len(self.offsets) - 1) & self.framed & (document > 0)
    return starts - self.after * last

  def _search(self, places: np.ndarray, *, right: bool) -> np.ndarray:
    """Return `np.searchsorted` of places in the starts of documents."""
    low, high = np.zeros_like(places), np.full_like(places, len(self.offsets))
    while (left := low < high).any():
      middle = (low + high) // 2
      starts = self._joined(np.minimum(middle, len(self.offsets) - 1))
      below = (starts <= places if right else starts < places) & left
      low, high = np.where(below, middle + 1, low), np.where(left & ~below, middle, high)
    return low

  def local(self, chosen: np.ndarray) -> tuple[Plan, np.ndarray]:
    """Return the plan of rows `chosen`, and their places in it."""
    # 1. Cut at the ends of documents and of rows.
    begins = chosen.astype(np.int64) * self.stride
    ends = np.minimum(begins + self.length, self._joined(len(self.offsets) - 1))
    first = self._search(begins, right=True) - 1
    counts = self._search(ends, right=False) - first
    rows = np.concatenate([[0], np.cumsum(counts)])
    document = np.repeat(first - rows[:-1], counts) + np.arange(rows[-1])
    joined, starts = self._joined(document), np.asarray(self.offsets[document])
    low = np.maximum(joined, np.repeat(begins, counts)) - joined  # in the document with its special tokens
    high = np.minimum(self._joined(document + 1), np.repeat(ends, counts)) - joined
    sizes = self.offsets[document + 1] - starts
    # 2. Remove special tokens from the pieces, and those that have no other.
    places = np.arange(len(chosen))
    if not self.framed:
      opened = self.before * (low == 0)
      closed = self.after * (high == sizes + self.before + self.after)
      counts = (high - low - opened - closed).astype(np.int32)
      frame = (2 * opened + closed).astype(np.uint8)
      return Plan(starts + np.maximum(low - self.before, 0), counts, frame, rows), places
    counts = np.minimum(high, sizes) - low
    keep = counts > 0
    rows = np.concatenate([[0], np.cumsum(keep)])[rows]
    frame = np.zeros(keep.sum(), np.uint8)
    frame[rows[:-1]] += 2
    frame[rows[1:] - 1] += 1
    return Plan((starts + low)[keep], counts[keep].astype(np.int32), frame, rows), places

  def most(self) -> int:
    """Return the largest number of pieces of a row."""
    count = len(self.rows) - 1
    pieces = (self.local(np.arange(row, min(row + _AT_ONCE, count)))[0] for row in range(0, count, _AT_ONCE))
    return max((piece.most() for piece in pieces), default=1)


Rows = Plan | Joined


def frames(before: tuple[int, ...], after: tuple[int, ...], *, between: tuple[int, ...] = ()) -> tuple[Frame, ...]:
  """Build the table of frames.

  Opened pieces have `before`, closed pieces `after`, and other pieces `between` after them.
  """
  return ((), between), ((), after), (before, between), (before, after)


def assemble(
  plan: Rows,
  ids: 'Ids',
  chosen: np.ndarray,
  *,
  frames: Sequence[Frame],
  length: int,
  pad: int,
  gaps: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Assemble rows `chosen` int64[b] of a plan.

  `frames` has the special ids of each index in `plan.frame`. No row may need more than `length` tokens. `gaps`,
  int64[p, 2] for all pieces of the plan, are the tokens before a gap and those that are skipped there; None for none.

  Returns tokens int32[b, length], and the index from 1 of the piece of each token, int32[b, length]; 0 is padding.
  """
  plan, chosen = plan.local(chosen)
  ahead = np.array([len(before) for before, _ in frames])
  around = np.array([len(before) + len(after) for before, after in frames])

  # 1. Sizes of all pieces of the batch, p in total.
  pieces = plan.rows[chosen + 1] - plan.rows[chosen]  # [b]
  row = np.repeat(np.arange(len(chosen)), pieces)  # [p]
  first = np.cumsum(pieces) - pieces  # [b]
  index_in_row = np.arange(len(row)) - first[row]  # [p], index of the piece in its row
  piece = plan.rows[chosen][row] + index_in_row
  frame = plan.frame[piece]
  size = plan.counts[piece] + around[frame]
  end = np.cumsum(size)
  begin = end - size  # [p], in the concatenated tokens of the batch

  # 2. Read the tokens. At special tokens this reads some other token, which step 3 replaces.
  flat = np.arange(end[-1] if len(end) else 0)
  source = flat + np.repeat(plan.starts[piece] - ahead[frame] - begin, size)
  if gaps is not None:
    after, skipped = np.repeat(gaps[piece], size, axis=0).T
    source += np.where(flat - np.repeat(begin + ahead[frame], size) >= after, skipped, 0)
  nonempty = plan.counts[piece].any()  # an empty store has no token to take
  values = ids.take(source, mode='clip').astype(np.int32) if nonempty else np.full(len(flat), pad, np.int32)
  # 3. Write the special tokens.
  for index, (before, after) in enumerate(frames):
    framed = frame == index
    for offset, token in enumerate(before):
      values[begin[framed] + offset] = token
    for offset, token in enumerate(reversed(after), start=1):
      values[end[framed] - offset] = token

  # 4. Move all tokens to their rows.
  target = flat + np.repeat(row * length - begin[first[row]], size)
  tokens = np.full(len(chosen) * length, pad, np.int32)
  piece_ids = np.zeros(len(chosen) * length, np.int32)
  tokens[target] = values
  piece_ids[target] = np.repeat((index_in_row + 1).astype(np.int32), size)
  return tokens.reshape(-1, length), piece_ids.reshape(-1, length)


def one_per_row(offsets: np.ndarray, *, length: int, before: int, after: int) -> Plan:
  """Cut each document into pieces that fill a row each.

  `before` and `after` are the numbers of special tokens around a piece.
  """
  starts, counts = _cut(offsets, room=length - before - after)
  return Plan(starts, counts, np.full(len(starts), 3, np.uint8), np.arange(len(starts) + 1))


def packed(offsets: np.ndarray, *, length: int, before: int, after: int) -> Plan:
  """Pack the pieces of `one_per_row` into rows (`best_fit`)."""
  plan = one_per_row(offsets, length=length, before=before, after=after)
  pieces, rows = best_fit(plan.counts + before + after, length=length)
  return Plan(plan.starts[pieces], plan.counts[pieces], plan.frame, rows)


def stream(offsets: np.ndarray, *, length: int, before: int, after: int, stride: int | None = None) -> Joined:
  """Concatenate all documents, and cut every `length` tokens.

  A row begins `stride` tokens after the one before it (None: `length`); the last one is the first to reach the end.
  Each document has `before` (0 or 1) and `after` (0 or 1) special tokens. A piece is opened if it begins with the
  special token, and closed if it ends with one, because a cut may separate them from their document.
  """
  return Joined(_nonempty(offsets), length, stride or length, before, after, framed=False)


def full(offsets: np.ndarray, *, length: int, before: int, after: int) -> Joined:
  """Fill rows with contiguous text across documents, framed once per row.

  There are 2 * `after` separators between documents. The first piece of a row is opened and the last one closed.
  Separators at the edge of a row are dropped.
  """
  room = length - before - after
  return Joined(_nonempty(offsets), room, room, 0, 2 * after, framed=True)


def whole_one_per_row(*, sentences: np.ndarray, heads: np.ndarray, length: int, before: int, after: int) -> Plan:
  """Cut as `one_per_row`, but between sentences.

  Each piece is as many whole sentences of a document as fit. `sentences` int64[sentences+1] are their starts; none is
  longer than the room of a row. `heads` int64[d+1] is the first sentence of each of the d non-empty documents.
  """
  end = np.repeat(heads[1:], np.diff(heads))  # [sentences], the sentence after the last one of its document
  fits = np.searchsorted(sentences, sentences[:-1] + length - before - after, side='right') - 1
  first = _follow(np.minimum(fits, end))
  starts = sentences[first[:-1]]
  counts = (sentences[first[1:]] - starts).astype(np.int32)
  return Plan(starts, counts, np.full(len(starts), 3, np.uint8), np.arange(len(starts) + 1))


def whole_packed(*, sentences: np.ndarray, heads: np.ndarray, length: int, before: int, after: int) -> Plan:
  """Pack the pieces of `whole_one_per_row` into rows (`best_fit`)."""
  plan = whole_one_per_row(sentences=sentences, heads=heads, length=length, before=before, after=after)
  pieces, rows = best_fit(plan.counts + before + after, length=length)
  return Plan(plan.starts[pieces], plan.counts[pieces], plan.frame, rows)


def whole_full(*, sentences: np.ndarray, heads: np.ndarray, length: int, before: int, after: int) -> Plan:
  """Fill rows as `full`, but with whole sentences, across documents."""
  document = np.repeat(np.arange(len(heads) - 1), np.diff(heads))  # [sentences]
  begin = sentences[:-1] + 2 * after * document  # in the text joined by separators
  end = sentences[1:] + 2 * after * document
  first = _follow(np.searchsorted(end, begin + length - before - after, side='right'))
  cuts = np.union1d(first, heads)  # sentences that begin a piece, and the end
  rows = np.searchsorted(cuts, first)
  frame = np.zeros(len(cuts) - 1, np.uint8)
  frame[rows[:-1]] += 2
  frame[rows[1:] - 1] += 1
  starts = sentences[cuts[:-1]]
  return Plan(starts, (sentences[cuts[1:]] - starts).astype(np.int32), frame, rows)


def best_fit(sizes: np.ndarray, *, length: int) -> tuple[np.ndarray, np.ndarray]:
  """Pack pieces, longest first, each into the fullest row with room.

  Works on the histogram of `sizes` int[p], each in 1..length, so its cost hardly depends on the number of pieces (Krell
  et al. 2021, "Efficient sequence packing without cross-contamination"). Returns pieces int64[p], every piece once, and
  rows int64[r+1]: row i holds `pieces[rows[i]:rows[i+1]]`. Pieces keep their order within a row, and rows the order of
  their first piece.
  """
  # 1. Groups of equal rows, by their room: (number of rows, sizes of the pieces in each).
  open_rows: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in range(length + 1)]
  for size, left in reversed(list(enumerate(np.bincount(sizes, minlength=length + 1).tolist()))):
    while left:
      room = next((room for room in range(size, length + 1) if open_rows[room]), None)
      if room is None:
        each = length // size
        count, rest = divmod(left, each)
        if count:
          open_rows[length - each * size].append((count, (size,) * each))
        if rest:
          open_rows[length - rest * size].append((1, (size,) * rest))
        break
      count, contents = open_rows[room].pop()
      used = min(left, count)
      if used < count:
        open_rows[room].append((count - used, contents))
      open_rows[room - size].append((used, (*contents, size)))
      left -= used

  # 2. Assign the pieces of each size, in order, to the rows of the groups.
  by_size = np.argsort(sizes, kind='stable')
  taken = np.searchsorted(sizes[by_size], np.arange(length + 1)).tolist()  # next unused piece of each size
  members, owners, total = [], [], 0
  for count, contents in (group for groups in open_rows for group in groups):
    for size in contents:
      members.append(by_size[taken[size] : taken[size] + count])
      owners.append(np.arange(total, total + count))
      taken[size] += count
    total += count
  if not total:
    return np.zeros(0, np.int64), np.zeros(1, np.int64)
  # 3. Sort the rows by their first piece, and the pieces within a row.
  piece, row = np.concatenate(members), np.concatenate(owners)
  first = np.full(total, len(sizes))
  np.minimum.at(first, row, piece)
  order = np.lexsort((piece, first[row]))
  return piece[order], np.concatenate([[0], np.cumsum(np.bincount(row)[np.argsort(first)])])


def _follow(following: np.ndarray) -> np.ndarray:
  """Return 0, following[0], following[following[0]], ... int64, within the table."""
  reached = [0]
  while reached[-1] < len(following):
    reached.append(int(following[reached[-1]]))
  return np.array(reached, np.int64)


def _nonempty(offsets: np.ndarray) -> np.ndarray:
  pieces = (offsets[start : start + _AT_ONCE + 1] for start in range(0, len(offsets) - 1, _AT_ONCE))
  if all((np.diff(piece) > 0).all() for piece in pieces):
    return offsets
  return np.append(offsets[:-1][np.diff(offsets) > 0], offsets[-1])


def _filled(offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  sizes = np.diff(offsets)
  return offsets[:-1][sizes > 0], sizes[sizes > 0]


def _cut(offsets: np.ndarray, *, room: int) -> tuple[np.ndarray, np.ndarray]:
  """Cut documents into pieces of `room` tokens: starts int64[p], counts int32[p]."""
  starts, sizes = _filled(offsets)
  pieces = -(-sizes // room)
  document = np.repeat(np.arange(len(sizes)), pieces)
  skipped = room * (np.arange(len(document)) - (np.cumsum(pieces) - pieces)[document])
  return starts[document] + skipped, np.minimum(room, sizes[document] - skipped).astype(np.int32)
