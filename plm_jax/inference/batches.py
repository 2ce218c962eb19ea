"""Batches of few shapes for sequences of any length.

Each batch shape is compiled separately, which takes seconds. Sequences are therefore batched by length. The width of a
batch is the smallest power of two, from 16 tokens on, that holds its longest sequence. Many sequences have the widths
12, 24, 48, ... too: less padding is worth their compilation. A batch has 1, 8 or `rows` rows. An incomplete batch is
filled up with a copy of a row, whose results are dropped.
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
MANY = 1024  # sequences for which more widths are compiled
FEW = (1, 8)  # rows of a batch if there are no more in total
_IN_FLIGHT = 2  # batches whose results are still on the device


def widths(longest: int, *, limit: int | None = None, count: int = 0) -> tuple[int, ...]:
  """List rising batch widths for `count` sequences of up to `longest` tokens."""
  powers = [SHORTEST]
  while powers[-1] < longest:
    powers.append(2 * powers[-1])
  between = [3 * power // 4 for power in powers] if count >= MANY else []
  return tuple(sorted({min(width, limit or width) for width in (*powers, *between)}))


def rows_for(count: int, *, rows: int = ROWS) -> int:
  """Return the rows per batch for `count` rows in total."""
  return next((few for few in FEW if count <= few < rows), rows)


def run(
  compute: Callable[[np.ndarray, int], PyTree],
  sizes: Sequence[int],
  *,
  limit: int | None = None,
  rows: int = ROWS,
  by_length: bool = True,
  finish: Callable[[int, PyTree], PyTree] = lambda row, result: result,
  doing: str,
) -> list[PyTree]:
  """Compute a result for every row, in batches.

  Args:
    compute: (row indices of a batch int64[b], its width in tokens) -> arrays on the device with leading axis b.
    sizes: tokens of each row.
    limit: maximum tokens per row; None for no bound.
    rows: of a full batch.
    by_length: True batches rows of similar length; False batches consecutive rows, for results that depend on the
      batch.
    finish: (row index, its tree of `compute` on the host without the batch axis) -> its result.
    doing: label of the progress bar.

  Returns:
    What `finish` returns, in the order of the rows.
  """
  if not len(sizes):
    return []
  all_widths = np.array(widths(max(sizes), limit=limit, count=len(sizes)))
  bucket = np.searchsorted(all_widths, np.asarray(sizes))
  order = bucket if by_length else np.zeros_like(bucket)
  plan = buckets.plan_epoch(order, batch_size=rows_for(len(sizes), rows=rows), key=None)
  results: list[PyTree] = [None] * len(sizes)
  waiting: deque[tuple[np.ndarray, PyTree]] = deque()

  def take() -> None:
    members, computed = waiting.popleft()
    host = jax.device_get(computed)
    for index, row in enumerate(members):
      if row >= 0:
        results[row] = finish(int(row), jax.tree.map(lambda leaf, index=index: leaf[index], host))
    bar.advance(int((members >= 0).sum()))

  with progress.Waiting(len(sizes), doing) as bar:
    for members in plan[::-1]:  # widest first: running out of memory shows at once
      filled = np.where(members >= 0, members, members[0])
      waiting.append((members, compute(filled, int(all_widths[bucket[filled].max()]))))
      if len(waiting) > _IN_FLIGHT:
        take()
    while waiting:
      take()
  return results


def padded(rows: Sequence[Sequence[int]], width: int, *, filler: int) -> tuple[np.ndarray, np.ndarray]:
  """Pad rows of ids to a batch.

  Returns:
    ids int32[b, width], and segments int32[b, width]: 1 at tokens, 0 at padding.
  """
  ids = np.full((len(rows), width), filler, np.int32)
  segments = np.zeros((len(rows), width), np.int32)
  for index, row in enumerate(rows):
    ids[index, : len(row)] = row
    segments[index, : len(row)] = 1
  return ids, segments
