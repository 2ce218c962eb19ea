"""Windows of half overlap, for texts longer than a network reads.

Each part of the text belongs to one window. The earlier of two windows owns the first half of the parts that they
share, the later one the second half. So each part has similar context on both sides. If a network reads from left to
right, the first window that contains a part owns it, and later windows have at least half a window before their parts.

    parts a b c d e f g h i j of size 1, room for 6
    windows         a b c d e f | d e f g h i | g h i j
    own             a b c d       e f g h       i j        (left to right: a b c d e f | g h i | j)
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Window(NamedTuple):
  """A window of the parts [start, stop) of a text, which owns the parts [first, last)."""

  start: int
  stop: int
  first: int
  last: int


def cut(sizes: Sequence[int] | np.ndarray, *, room: int | None, causal: bool = False) -> list[Window]:
  """Split a text into windows; each part belongs to exactly one.

  Parts are never split: tokens have size 1, words more. A part larger than `room`, the tokens per window, gets one to
  itself; None for no bound. `causal`: the network reads from left to right.
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
    # the first start that leaves room for the next part
    fits = int(np.searchsorted(ends, ends[stop] - room, side='left')) + 1
    start = min(max(half, fits, start + 1), stop)
  inner = [stop if causal else (following + stop + 1) // 2 for (_, stop), (following, _) in itertools.pairwise(spans)]
  return [Window(*span, *own) for span, own in zip(spans, itertools.pairwise([0, *inner, count]), strict=True)]
