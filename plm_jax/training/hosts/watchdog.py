"""A run that hangs: the stacks of all threads are written to stderr once no step has ended for long.

A collective that waits for a host, a store that does not respond, a reader that is stuck: from outside they look the
same. The clock is a thread of the interpreter in C (`faulthandler`), which needs nothing that the others hold. Setting
it starts a thread, which may take milliseconds: it is reset when a twentieth of its time is over, not at each step.
"""

import contextlib
import faulthandler
import statistics
import time
from collections import deque
from collections.abc import Iterator
from typing import Self

STDERR = 2  # the file descriptor: `sys.stderr` may be one that is drawn on
STEPS = 101  # of which the median is taken, the newest ones
SLACK = 0.05  # of `least`, by which the stacks may come late


class Watchdog:
  """Stack dumps for each step, evaluation batch or save that takes too long; the run continues."""

  def __init__(self, *, least: float = 600.0, times: float = 20.0):
    """Allow each operation `least` seconds, or `times` the median step."""
    self._least, self._times, self._slack = least, times, SLACK * least
    self._seconds: deque[float] = deque(maxlen=STEPS)
    self._since = self._set = -float('inf')

  def limit(self) -> float:
    """Return the seconds that a step, evaluation batch or save may take."""
    return max(self._least, self._times * statistics.median(self._seconds)) if self._seconds else self._least

  def stepped(self) -> None:
    """Reset the clock after a step."""
    self._seconds.append(time.monotonic() - self._since)
    self._restart()

  def moved(self) -> None:
    """Reset the clock before each batch of an evaluation."""
    self._restart()

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Time the body by itself: an evaluation or a save."""
    self._restart()
    try:
      yield
    finally:
      self._restart()

  def __enter__(self) -> Self:
    self._restart()
    return self

  def __exit__(self, *error: object) -> None:
    faulthandler.cancel_dump_traceback_later()

  def _restart(self) -> None:
    self._since = time.monotonic()
    if self._since - self._set >= self._slack:
      self._set = self._since
      faulthandler.dump_traceback_later(self.limit() + self._slack, file=STDERR)
