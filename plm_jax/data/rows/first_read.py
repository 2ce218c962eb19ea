"""Blocks of a large file that are compared with their checksums when they are first read."""

import threading
from collections.abc import Callable

import numpy as np


class FirstRead:
  """Record of the checked blocks; safe to use from several threads."""

  def __init__(self, count: int, check: Callable[[int], None], *, known: bool = False):
    """Check nothing yet.

    `check` is called once with the index of each of `count` blocks before it is used, and again if it raises. With
    `known` all blocks have already been checked.
    """
    self._check = check
    self._checked = np.full(count, known)
    self._lock = threading.Lock()

  @property
  def whole(self) -> bool:
    """Return True if all blocks are checked."""
    return bool(self._checked.all())

  def see(self, blocks: np.ndarray) -> None:
    """Check the blocks of these indices that are not yet checked."""
    if self._checked[blocks].all():
      return
    with self._lock:
      for block in blocks[~self._checked[blocks]]:
        self._check(int(block))
        self._checked[block] = True
