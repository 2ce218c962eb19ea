"""Rows of any length in few shapes: each shape of a batch is a program of its own, which takes seconds to compile.

Rows are put together by length. A batch is as wide as the power of two, from 16 tokens on, that holds its longest row,
and has 1, 8 or `rows` rows, so that a thousand texts need no more programs than there are widths. What fills a batch up
is another row, and what belongs to it is dropped.
"""

from collections import deque
from collections.abc import Callable, Sequence

import jax
import numpy as np

from plm_jax.cli import progress
from plm_jax.core.types import PyTree
from plm_jax.data.rows import buckets

SHORTEST = 16  # tokens of the narrowest batch
ROWS = 32  # of a full batch
FEW = (1, 8)  # of a batch where there are no more rows at all
_IN_FLIGHT = 2  # batches whose results are still on the device


def widths(longest: int, *, limit: int | None = None) -> tuple[int, ...]:
  """The widths that batches with rows of up to `longest` tokens may have, rising; none above `limit` tokens."""
  found = [SHORTEST]
  while found[-1] < longest:
    found.append(2 * found[-1])
  return tuple(sorted({min(width, limit or width) for width in found}))


def rows_for(count: int, *, rows: int = ROWS) -> int:
  """Rows of a batch where there are `count` in all."""
  return next((few for few in FEW if count <= few < rows), rows)


def run(
  compute: Callable[[np.ndarray, int], PyTree],
  sizes: Sequence[int],
  *,
  limit: int | None = None,
  rows: int = ROWS,
  by_length: bool = True,
  doing: str,
) -> list[PyTree]:
  """Computes something of every row, in batches; the results are in the order of the rows.

  Args:
    compute: (numbers of the rows of a batch int64[b], its width in tokens) -> arrays on the device that lead with b.
    sizes: tokens of each row.
    limit: most tokens of a row that the network reads; None for no bound.
    rows: of a full batch.
    by_length: rows of like length make a batch; False: rows that follow each other, for results that depend on it.
    doing: what takes its time, for the bar.

  Returns:
    for each row the tree of `compute`, with arrays on the host, without the batch axis.
  """
  if not len(sizes):
    return []
  known = np.array(widths(max(sizes), limit=limit))
  bucket = np.searchsorted(known, np.asarray(sizes))
  order = bucket if by_length else np.zeros_like(bucket)
  plan = buckets.plan_epoch(order, batch_size=rows_for(len(sizes), rows=rows), key=None)
  found: list[PyTree] = [None] * len(sizes)
  waiting: deque[tuple[np.ndarray, PyTree]] = deque()

  def take() -> None:
    members, made = waiting.popleft()
    host = jax.device_get(made)
    for place, row in enumerate(members):
      if row >= 0:
        found[row] = jax.tree.map(lambda leaf, place=place: leaf[place], host)
    bar.advance(int((members >= 0).sum()))

  with progress.Waiting(len(sizes), doing) as bar:
    for members in plan[::-1]:  # the widest first: a batch that does not fit into memory is met at once
      filled = np.where(members >= 0, members, members[0])
      waiting.append((members, compute(filled, int(known[bucket[filled].max()]))))
      if len(waiting) > _IN_FLIGHT:
        take()
    while waiting:
      take()
  return found


def padded(rows: Sequence[Sequence[int]], width: int, *, filler: int) -> tuple[np.ndarray, np.ndarray]:
  """Rows of ids as int32[b, width], and their segments int32[b, width], 1 where there is a token."""
  ids = np.full((len(rows), width), filler, np.int32)
  segments = np.zeros((len(rows), width), np.int32)
  for place, row in enumerate(rows):
    ids[place, : len(row)] = row
    segments[place, : len(row)] = 1
  return ids, segments
