"""Loss spikes: the run goes back to a saved step and skips the batches of the spike.

Chowdhery et al. 2022 (PaLM), section 5.1: loss spikes at large scale did not come back when the run restarted about 100
steps before the spike and skipped 200 to 500 batches, those seen before and during it. They did that by hand. Here the
config asks for it (`config.schema.Spikes`), and `train` calls the engine of `plm-jax rewind`.

The watch reads the loss of every step on the host. Its memory is saved with each checkpoint, so a resumed run finds the
same spikes. Spikes so far are in `spikes.jsonl` of the run folder.
"""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
from jax.experimental import multihost_utils

from plm_jax.io import checksums, files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import metrics
from plm_jax.training.guards import rewind

log = logging.getLogger(__name__)

MEAN, VARIANCE = 'spikes/mean', 'spikes/variance'  # in the sums of a checkpoint's record
Sums = Mapping[str, tuple[float, float]]


class Spike(NamedTuple):
  """A jump of the loss."""

  step: int  # whose loss it is
  loss: float  # of this step
  bound: float  # what it was above
  back_to: int  # the saved step that the run goes back to
  skip: int  # batches that the run leaves out behind that step


class Saved(Protocol):
  """Part of `checkpoint.Checkpoints` that the watch uses."""

  def wait(self) -> None:
    """Wait until pending saves are done."""

  def steps(self) -> Sequence[int]:
    """Return the saved steps."""


class Watch:
  """Running mean and deviation of the loss, and the losses above them.

  The weight of a step falls by 1 - 1 / memory with every later step. Mean and variance are corrected for missing steps,
  as Adam corrects its moments.
  """

  def __init__(self, settings: Mapping[str, Any], folder: RunFolder, *, sums: Sums):
    """Start from the checkpoint's `sums`; nothing is watched without `spikes`."""
    self._settings, self._every = settings['spikes'], settings['save_every']
    self._mean, self._count = sums.get(MEAN, (0.0, 0.0))
    self._variance, _ = sums.get(VARIANCE, (0.0, 0.0))
    self._left = self._settings['most'] - len(read(folder)) if self._settings else 0

  @property
  def on(self) -> bool:
    """True if the config asks for it."""
    return self._settings is not None

  def sums(self) -> dict[str, tuple[float, float]]:
    """Return the memory for a checkpoint."""
    return {MEAN: (self._mean, self._count), VARIANCE: (self._variance, self._count)} if self._settings else {}

  def bound(self) -> float:
    """Return the next loss's upper bound, infinite for the first `memory` steps."""
    if self._settings is None or self._count < self._settings['memory']:
      return math.inf
    there = 1 - (1 - 1 / self._settings['memory']) ** self._count
    mean = self._mean / there
    return mean + self._settings['deviations'] * math.sqrt(max(self._variance / there - mean**2, 0.0))

  def see(self, step: int, loss: float, saved: Saved) -> Spike | None:
    """Record a loss; return a spike if the run can rewind.

    A loss that is not finite is left to `max_skipped`.
    """
    if self._settings is None or not math.isfinite(loss):
      return None
    bound = self.bound()
    if loss > bound:
      said = f'step {step}: the loss of {loss:.4g} is above {bound:.4g}, a spike'
      saved.wait()
      places = [one for one in saved.steps() if one <= step - self._settings['back']]
      if self._left > 0 and places:
        # a step that was saved because the run was stopped there is taken only where there is no other
        back_to = max([one for one in places if one % self._every == 0] or places)
        log.warning('%s: the run goes back to step %d', said, back_to)
        return Spike(step, loss, bound, back_to, step - back_to + self._settings['after'])
      why = f'it went back {self._settings["most"]} times already' if places else 'no older step is saved'
      log.warning('%s. The run continues, since %s', said, why)
    share = 1 / self._settings['memory']
    self._mean += share * (loss - self._mean)
    self._variance += share * (loss**2 - self._variance)  # of the second moment about 0
    self._count += 1
    return None


def loss_of(sums: Mapping[str, tuple[jax.Array, jax.Array]]) -> float:
  """Return the mean loss of a step; NaN if there is none."""
  total, weight = jax.device_get(metrics.trained_on(sums) or (0.0, 0.0))
  return float(total) / float(weight) if weight else math.nan


def go_back(folder: RunFolder, spike: Spike) -> None:
  """Rewind the run to the step of a spike and record it.

  Every process waits for process 0. The spike is recorded first, so that it counts even if the run is killed here. Such
  a run resumes from its newest step and meets the same spike again; a spike equal to the last one counts once.
  """
  if jax.process_index() == 0:
    rows = read(folder)
    if rows[-1:] != [spike._asdict()]:
      lines = [json.dumps(checksums.sealed(row)) for row in [*rows, spike._asdict()]]
      files.write_text(folder.spikes, '\n'.join([*lines, '']))
    rewind.rewind(folder.root, spike.back_to, skip=spike.skip)
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(f'spike at step {spike.step}')


def read(folder: RunFolder) -> list[dict[str, Any]]:
  """Return the spikes that the run went back for, oldest first."""
  if not files.exists(folder.spikes):
    return []
  rows = []
  for number, line in enumerate(files.read_bytes(folder.spikes).splitlines(), start=1):
    try:
      rows.append(checksums.unsealed(files.parse_json(line.decode())))
    except ValueError:
      log.warning('%s, line %d is damaged and left out', folder.spikes, number)
  return rows
