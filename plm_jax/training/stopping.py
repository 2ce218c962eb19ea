"""Reasons to end before the last step, early stopping and signals, and to save between steps of `save_every`."""

import contextlib
import itertools
import logging
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.experimental import multihost_utils

from plm_jax.cli import notices, signals
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import metrics
from plm_jax.training.hosts import join as hosts

log = logging.getLogger(__name__)
SHARE = 0.05  # most time that checkpoints by time may take
_asked = itertools.count()


def as_loss(best: tuple[str, str], value: float) -> float:
  """Return a value of `best`, negated if larger is better."""
  return -value if best[1] == 'max' else value


class Patience:
  """Early stopping on the metric of `best`.

  Attributes:
    limit: evaluations without improvement after which the run stops; None never stops.
  """

  def __init__(self, settings: Mapping[str, Any], folder: RunFolder, *, start: int):
    """Read the metrics up to step `start`; an extension resets the wait."""
    self.limit = settings['early_stop']
    self._watched = settings['best']
    self._best, self._waited = float('inf'), 0
    if self.limit is not None:
      name = settings['best'][0]
      longer = [at for at, _ in settings['extend'] if at <= start]
      for row in metrics.read(folder.root):
        if name in row and row['step'] <= start:
          self.see(row[name])
          if row['step'] in longer:
            self._waited = 0

  def see(self, value: float) -> None:
    """Record the metric of one evaluation."""
    loss = as_loss(self._watched, value)
    better = loss < self._best
    self._best = min(self._best, loss)
    self._waited = 0 if better else self._waited + 1

  @property
  def lost(self) -> bool:
    """True if it is time to stop."""
    return self.limit is not None and self._waited >= self.limit


class Stopping:
  """Signals that ask the run to stop."""

  def agreed(self, done: int) -> bool:
    """Return whether all processes stop at this step; call at every step."""
    return signals.asked() if jax.process_count() == 1 else multihost_utils.reached_preemption_sync_point(done)

  def check(self) -> None:
    """Raise `signals.Interrupted` if a signal came before the first step.

    Several processes can only end at the same step: the others would wait for one that is gone.
    """
    if jax.process_count() == 1 and signals.asked():
      log.info('stopped by a signal before the first step; there is nothing new to save')
      signals.check()


class SaveTimer:
  """Time since the last checkpoint; process 0 decides for all."""

  def __init__(self, minutes: float | None):
    """Start the clock; None never saves."""
    self._minutes = minutes
    self.restart()

  def restart(self) -> None:
    """Count from now, when a checkpoint is written."""
    self._since = time.monotonic()

  def agreed(self, seconds: float) -> bool:
    """Return whether all processes save; call at every logged step.

    `seconds` is how long the last checkpoint took.
    """
    if self._minutes is None:
      return False
    late = time.monotonic() - self._since >= max(60 * self._minutes, seconds / SHARE)
    return hosts.from_first(f'save by time {next(_asked)}', str(late)) == str(True)


@contextlib.contextmanager
def catch_signals() -> Iterator[Stopping]:
  """Treat SIGTERM and SIGINT as requests to stop.

  A second one ends the process at once. With several processes jax handles SIGTERM and tells the others, so SIGINT is
  passed on as SIGTERM. A preemption notice does the same.
  """
  with signals.caught():
    if jax.process_count() > 1:
      signals.pass_on(signal.SIGTERM)
    with notices.watched():
      yield Stopping()
