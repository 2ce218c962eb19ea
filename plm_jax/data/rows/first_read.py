"""Blocks of a large file that are compared with their digests when they are first read."""

import threading
from collections.abc import Callable

import numpy as np


class FirstRead:
  """Which blocks were checked; may be asked by several threads at once."""

  def __init__(self, count: int, check: Callable[[int], None], *, known: bool = False):
    """Checks nothing yet.

    Args:
      count: number of blocks.
      check: called once with the number of each block before it is used; where it raises, it is called again.
      known: whether all of them were checked already.
    """
    self._check = check
    self._known = np.full(count, known)
    self._lock = threading.Lock()

  @property
  def whole(self) -> bool:
    """Whether no block is left to check."""
    return bool(self._known.all())

  def see(self, numbers: np.ndarray) -> None:
    """Checks the blocks of these numbers that were not seen before."""
    if self._known[numbers].all():
      return
    with self._lock:
      for number in numbers[~self._known[numbers]]:
        self._check(int(number))
        self._known[number] = True
