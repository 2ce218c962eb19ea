"""Rows made of pieces of documents: all rows are planned at once with array operations and assembled per batch.

A piece is a run of tokens of one document together with its frame, the special tokens around it. A row is one piece or
several, one after another. Every layout here covers each token of each document exactly once, in order; its
`plan.frame` is 2 * opened + closed, an index into the table that `frames` makes: opened pieces have the tokens before,
closed pieces the tokens after.

    length 8, [CLS] before, [SEP] after; documents a b c d e | f g | h
    rows         [CLS] a b c d e [SEP] _ | [CLS] f g [SEP] [CLS] h [SEP] _
    plan.starts  0 5 7    counts 5 2 1    frame 3 3 3    rows 0 1 3
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
  from plm_jax.data.rows import store
  from plm_jax.data.rows.spelling import SpeltIds

  Ids = np.ndarray | store.Ids | SpeltIds

Frame = tuple[tuple[int, ...], tuple[int, ...]]  # ids before the piece, ids after it


class Plan(NamedTuple):
  """Which tokens make which row.

  Attributes:
    starts: int64[p], where each piece begins in the token store.
    counts: int32[p], tokens of each piece, special ones not counted.
    frame: uint8[p], index of each piece into the table of frames.
    rows: int64[r+1], row i holds pieces `rows[i]:rows[i+1]`.
  """

  starts: np.ndarray
  counts: np.ndarray
  frame: np.ndarray
  rows: np.ndarray


def frames(before: tuple[int, ...], after: tuple[int, ...], *, between: tuple[int, ...] = ()) -> tuple[Frame, ...]:
  """The table of frames: `before` for opened pieces, `after` for closed ones, `between` after those not closed."""
  return ((), between), ((), after), (before, between), (before, after)


def assemble(
  plan: Plan, ids: 'Ids', chosen: np.ndarray, *, frames: Sequence[Frame], length: int, pad: int
) -> tuple[np.ndarray, np.ndarray]:
  """Assembles rows.

  Args:
    plan: of the layout.
    ids: [n], the token store, in a form that is read by `take`.
    chosen: int64[b], rows of the plan.
    frames: special ids that `plan.frame` points at.
    length: of a row; no row of the plan may need more.
    pad: id that fills the rest.

  Returns:
    tokens int32[b, length], and int32[b, length] numbering the pieces of each row from 1; 0 is padding.
  """
  ahead = np.array([len(before) for before, _ in frames])
  around = np.array([len(before) + len(after) for before, after in frames])

  pieces = plan.rows[chosen + 1] - plan.rows[chosen]  # [b]
  row = np.repeat(np.arange(len(chosen)), pieces)  # [p]
  first = np.cumsum(pieces) - pieces  # [b]
  number = np.arange(len(row)) - first[row]  # [p], place of the piece in its row
  piece = plan.rows[chosen][row] + number
  frame = plan.frame[piece]
  size = plan.counts[piece] + around[frame]
  end = np.cumsum(size)
  begin = end - size  # [p], in the batch's tokens laid end to end

  flat = np.arange(end[-1] if len(end) else 0)
  source = flat + np.repeat(plan.starts[piece] - ahead[frame] - begin, size)
  # where a special token belongs, the take below reads some other token, which is replaced afterwards
  some = plan.counts[piece].any()  # a store may hold no token at all, of which nothing is taken
  values = ids.take(source, mode='clip').astype(np.int32) if some else np.full(len(flat), pad, np.int32)
  for index, (before, after) in enumerate(frames):
    framed = frame == index
    for place, token in enumerate(before):
      values[begin[framed] + place] = token
    for place, token in enumerate(reversed(after), start=1):
      values[end[framed] - place] = token

  target = flat + np.repeat(row * length - begin[first[row]], size)
  tokens = np.full(len(chosen) * length, pad, np.int32)
  numbers = np.zeros(len(chosen) * length, np.int32)
  tokens[target] = values
  numbers[target] = np.repeat((number + 1).astype(np.int32), size)
  return tokens.reshape(-1, length), numbers.reshape(-1, length)


def one_per_row(offsets: np.ndarray, *, length: int, before: int, after: int) -> Plan:
  """Each document cut into pieces that fit a row between `before` and `after` special tokens; one piece per row."""
  starts, counts = _cut(offsets, room=length - before - after)
  return Plan(starts, counts, np.full(len(starts), 3, np.uint8), np.arange(len(starts) + 1))


def packed(offsets: np.ndarray, *, length: int, before: int, after: int) -> Plan:
  """The pieces of `one_per_row`, several per row where they fit (`best_fit`)."""
  plan = one_per_row(offsets, length=length, before=before, after=after)
  pieces, rows = best_fit(plan.counts + before + after, length=length)
  return Plan(plan.starts[pieces], plan.counts[pieces], plan.frame, rows)


def stream(offsets: np.ndarray, *, length: int, before: int, after: int) -> Plan:
  """All documents end to end, with `before` (0 or 1) and `after` (0 or 1) special tokens each, cut every `length`.

  A piece is opened where it begins with the special token, closed where it ends with one: a cut may separate them from
  their document.
  """
  starts, sizes = _filled(offsets)
  joined = np.concatenate([[0], np.cumsum(sizes + before + after)])  # where each document begins in the stream
  document, low, high, rows = _cut_joined(joined, length=length)
  opened = before * (low == 0)
  closed = after * (high == np.diff(joined)[document])
  return Plan(
    starts[document] + np.maximum(low - before, 0),
    (high - low - opened - closed).astype(np.int32),
    (2 * opened + closed).astype(np.uint8),
    rows,
  )


def full(offsets: np.ndarray, *, length: int, before: int, after: int) -> Plan:
  """Contiguous text that may cross documents, framed once per row, with 2 * `after` separators between documents.

  The first piece of a row is opened and the last one closed. Separators that fall on the edge of a row are left out.
  """
  starts, sizes = _filled(offsets)
  joined = np.concatenate([[0], np.cumsum(sizes + 2 * after)])
  joined[-1] -= 2 * after * (len(sizes) > 0)
  document, low, high, cuts = _cut_joined(joined, length=length - before - after)
  counts = np.minimum(high, sizes[document]) - low
  keep = counts > 0
  rows = np.concatenate([[0], np.cumsum(keep)])[cuts]
  frame = np.zeros(keep.sum(), np.uint8)
  frame[rows[:-1]] += 2
  frame[rows[1:] - 1] += 1
  return Plan((starts[document] + low)[keep], counts[keep].astype(np.int32), frame, rows)


def whole_one_per_row(*, sentences: np.ndarray, heads: np.ndarray, length: int, before: int, after: int) -> Plan:
  """`one_per_row` with cuts between sentences: each piece is as many whole sentences of a document as fit.

  Args:
    sentences: int64[sentences+1], where each begins; none is longer than a row has room for.
    heads: int64[d+1], the sentence that each of the d documents with a token begins with.
    length: of a row.
    before: special tokens before a piece.
    after: special tokens after a piece.
  """
  end = np.repeat(heads[1:], np.diff(heads))  # [sentences], the sentence after the last one of its document
  fits = np.searchsorted(sentences, sentences[:-1] + length - before - after, side='right') - 1
  first = _follow(np.minimum(fits, end))
  starts = sentences[first[:-1]]
  counts = (sentences[first[1:]] - starts).astype(np.int32)
  return Plan(starts, counts, np.full(len(starts), 3, np.uint8), np.arange(len(starts) + 1))


def whole_packed(*, sentences: np.ndarray, heads: np.ndarray, length: int, before: int, after: int) -> Plan:
  """The pieces of `whole_one_per_row`, several per row where they fit (`best_fit`)."""
  plan = whole_one_per_row(sentences=sentences, heads=heads, length=length, before=before, after=after)
  pieces, rows = best_fit(plan.counts + before + after, length=length)
  return Plan(plan.starts[pieces], plan.counts[pieces], plan.frame, rows)


def whole_full(*, sentences: np.ndarray, heads: np.ndarray, length: int, before: int, after: int) -> Plan:
  """`full` with cuts between sentences: a row is as many whole sentences as fit, across documents."""
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
  """Packs pieces into rows: longest first, each into the fullest row that still has room.

  Works on the histogram of sizes, so its cost hardly depends on the number of pieces (Krell et al. 2021, "Efficient
  sequence packing without cross-contamination"). Pieces keep their order inside a row, rows that of their first piece.

  Args:
    sizes: int[p], each in 1..length.
    length: of a row.

  Returns:
    pieces int64[p], every piece once, and rows int64[r+1]: row i holds `pieces[rows[i]:rows[i+1]]`.
  """
  open_rows: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in range(length + 1)]  # by room: (rows, sizes in each)
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
      count, held = open_rows[room].pop()
      used = min(left, count)
      if used < count:
        open_rows[room].append((count - used, held))
      open_rows[room - size].append((used, (*held, size)))
      left -= used

  by_size = np.argsort(sizes, kind='stable')
  taken = np.searchsorted(sizes[by_size], np.arange(length + 1)).tolist()  # next unused piece of each size
  members, owners, made = [], [], 0
  for count, held in (group for groups in open_rows for group in groups):
    for size in held:
      members.append(by_size[taken[size] : taken[size] + count])
      owners.append(np.arange(made, made + count))
      taken[size] += count
    made += count
  if not made:
    return np.zeros(0, np.int64), np.zeros(1, np.int64)
  piece, row = np.concatenate(members), np.concatenate(owners)
  first = np.full(made, len(sizes))
  np.minimum.at(first, row, piece)
  order = np.lexsort((piece, first[row]))
  return piece[order], np.concatenate([[0], np.cumsum(np.bincount(row)[np.argsort(first)])])


def _follow(following: np.ndarray) -> np.ndarray:
  """int64: 0, following[0], following[following[0]], ... up to the length of the table."""
  reached = [0]
  while reached[-1] < len(following):
    reached.append(int(following[reached[-1]]))
  return np.array(reached, np.int64)


def _filled(offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Starts and sizes of the documents that have a token."""
  sizes = np.diff(offsets)
  return offsets[:-1][sizes > 0], sizes[sizes > 0]


def _cut(offsets: np.ndarray, *, room: int) -> tuple[np.ndarray, np.ndarray]:
  """Every document in pieces of `room` tokens, the last one shorter: starts int64[p], counts int32[p]."""
  starts, sizes = _filled(offsets)
  pieces = -(-sizes // room)
  document = np.repeat(np.arange(len(sizes)), pieces)
  skipped = room * (np.arange(len(document)) - (np.cumsum(pieces) - pieces)[document])
  return starts[document] + skipped, np.minimum(room, sizes[document] - skipped).astype(np.int32)


def _cut_joined(joined: np.ndarray, *, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Cuts joined documents at document edges and every `length` tokens: document, low and high end in it, rows."""
  edges = np.arange(0, joined[-1], length)
  cuts = np.union1d(joined, edges)
  document = np.searchsorted(joined, cuts[:-1], side='right') - 1
  low, high = cuts[:-1] - joined[document], cuts[1:] - joined[document]
  return document, low, high, np.append(np.searchsorted(cuts, edges), len(low))
