"""A text that is too long for a network is read in windows that overlap by half.

A part of the text that two windows show belongs to one of them: the first half of what they share to the earlier, the
second half to the later, so that each part has about as much text around it on either side. For a network that reads
from left to right, a part belongs to the first window that shows it to the end, with at least half a window before it.

    parts a b c d e f g h i j of size 1, room for 6
    windows         a b c d e f | d e f g h i | g h i j
    own             a b c d       e f g h       i j        (left to right: a b c d e f | g h i | j)
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Window(NamedTuple):
  """Parts `start` to `stop` of a text are read, of which `first` to `last` belong to this window; ends are not in."""

  start: int
  stop: int
  first: int
  last: int


def cut(sizes: Sequence[int] | np.ndarray, *, room: int | None, causal: bool = False) -> list[Window]:
  """The windows of a text.

  Args:
    sizes: tokens of each of its parts, which are never cut: 1 for tokens, more for words.
    room: tokens of a window; None for no bound. A part that is larger stands in a window alone.
    causal: the network reads from left to right.

  Returns:
    one window or more; each part belongs to exactly one of them.
  """
  ends = np.cumsum(np.asarray(sizes, np.int64))
  count = len(ends)
  if room is None or not count or ends[-1] <= room:
    return [Window(0, count, 0, count)]
  spans, start = [], 0
  while True:
    before = int(ends[start - 1]) if start else 0
    stop = max(int(np.searchsorted(ends, before + room, side='right')), start + 1)
    spans.append((start, stop))
    if stop == count:
      break
    half = int(np.searchsorted(ends, before + room // 2, side='right'))
    fits = int(np.searchsorted(ends, ends[stop] - room, side='left')) + 1  # from here on the next part has room too
    start = min(max(half, fits, start + 1), stop)
  edges = [0]
  for (_, stop), (following, _) in itertools.pairwise(spans):
    edges.append(stop if causal else (following + stop + 1) // 2)
  edges.append(count)
  return [Window(*span, first, last) for span, first, last in zip(spans, edges[:-1], edges[1:], strict=True)]
