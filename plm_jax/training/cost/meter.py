"""The speed of a run: tokens per second, model FLOPs utilisation, and waiting times."""

import contextlib
import time
from collections.abc import Iterator, Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from plm_jax.training.cost import flops, memory

CAUSES = ('setup', 'compile', 'wait', 'evaluate', 'save')


def goodput(spent: Mapping[str, float], step: int) -> dict[str, float]:
  """Return the share of a run's time in steps.

  Seconds by cause follow. 'lost' are steps that were made again after a resume, as long as the mean step; 'away' is
  the time between calls of the run. The clock starts with the first call that reached a checkpoint.

  Args:
    spent: as `context.Spent.with_this_call` returns it.
    step: number of the last step.
  """
  total = max(time.time() - spent['began'], spent['seconds'] + spent['setup'], 1e-9)
  causes = {cause: spent[cause] for cause in CAUSES}
  steps = max(spent['seconds'] - sum(causes.values()) + causes['setup'], 0.0)
  lost = spent['lost_steps'] * steps / max(step, 1)
  away = max(total - spent['seconds'] - causes['setup'] - lost, 0.0)
  seconds = {'total': total, 'steps': steps, **causes, 'lost': lost, 'away': away}
  return {'share': round(steps / total, 4), **{name: round(value, 3) for name, value in seconds.items()}}


class Meter:
  """Speed over the steps since the last reading, without padding."""

  def __init__(self, flops_per_row: float, *, dtype: str, mesh: Mesh, hosts: int):
    """Start the clock.

    `flops_per_row` counts a training step's operations, `dtype` is that of matrix products, and `hosts` cut a batch.
    """
    self._flops_per_row = flops_per_row
    self._peak = flops.peak_flops(mesh.devices.flat[0].device_kind, dtype)
    self._devices, self._own = mesh.size, mesh.local_devices
    self._hosts = hosts
    self._all_tokens = self._tokens = self._rows = self._steps = 0
    self._waited = 0.0
    # seconds of this call that are no steps; 'setup' is what came before the first one, 'compile' includes that step
    self.causes = dict.fromkeys(CAUSES, 0.0)
    self._since = time.monotonic()

  def count(self, batch: Mapping[str, np.ndarray]) -> None:
    """Count a host batch."""
    fed = int(batch['num_tokens'].sum() if 'num_tokens' in batch else np.count_nonzero(batch['segment_ids']))
    self._all_tokens += fed
    self._tokens += fed
    self._rows += batch['row_id'].shape[0]
    self._steps += 1

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Time the body, which makes the next batch (so named in traces)."""
    began = time.monotonic()
    try:
      with jax.profiler.TraceAnnotation('next batch'):
        yield
    finally:
      self._waited += time.monotonic() - began
      self.causes['wait'] += time.monotonic() - began

  def read(self) -> dict[str, float]:
    """Return what was measured since the last reading.

    Returns 'tokens_per_second' of the whole run; 'mfu' where the chip's peak is known; 'host_wait_seconds', the time
    per step that the loop of this process waited for its next batch, while the devices work on the steps in flight; and
    memory as it is now, from `memory.in_use`.
    """
    seconds = max(time.monotonic() - self._since, 1e-9)
    rates = {'tokens_per_second': self._tokens * self._hosts / seconds}
    if self._peak is not None:
      rates['mfu'] = self._rows * self._hosts * self._flops_per_row / seconds / (self._peak * self._devices)
    rates['host_wait_seconds'] = self._waited / max(self._steps, 1)
    self._tokens = self._rows = self._steps = 0
    self._waited = 0.0
    self._since = time.monotonic()
    return {**rates, **memory.in_use(self._own)}

  def all_tokens(self) -> int:
    """Return tokens fed by all hosts; every process must call it."""
    if jax.process_count() == 1:
      return self._all_tokens
    halves = np.array(divmod(self._all_tokens, 2**20), np.int32)  # jax has no int64
    fed = sum(int(high) * 2**20 + int(low) for high, low in multihost_utils.process_allgather(halves))
    return fed * self._hosts // jax.process_count()

  @contextlib.contextmanager
  def paused(self, cause: str = '') -> Iterator[None]:
    """Exclude the time of the body; it counts as a cause."""
    began = time.monotonic()
    try:
      yield
    finally:
      self._since += time.monotonic() - began
      if cause:
        self.causes[cause] += time.monotonic() - began
