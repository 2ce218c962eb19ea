"""Where a run stands still: the stacks of all threads are written to stderr once no step has ended for long.

A collective that waits for a host, a store that does not answer, a reader that is stuck: from outside they look alike.
The clock is a thread of the interpreter in C (`faulthandler`), which needs nothing that the others hold. Setting it
starts a thread, which may take milliseconds: it is set again when a twentieth of its time is over, not at each step.
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
  """Writes the stacks once for each step, batch of an evaluation or save that takes too long; the run goes on."""

  def __init__(self, *, least: float = 600.0, times: float = 20.0):
    """Nothing is timed before the context is entered.

    Args:
      least: seconds that anything may take.
      times: a step may take so many times the median of the steps before it, where that is more.
    """
    self._least, self._times, self._slack = least, times, SLACK * least
    self._seconds: deque[float] = deque(maxlen=STEPS)
    self._since = self._set = -float('inf')

  def limit(self) -> float:
    """Seconds that a step, a batch of an evaluation or a save may take now."""
    return max(self._least, self._times * statistics.median(self._seconds)) if self._seconds else self._least

  def stepped(self) -> None:
    """Called after each step."""
    self._seconds.append(time.monotonic() - self._since)
    self._restart()

  def moved(self) -> None:
    """Called before each batch of an evaluation, so that many of them do not count as one."""
    self._restart()

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """The body is no part of a step: an evaluation, a save. It is timed by itself."""
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
