"""Optional protection of a run from loss spikes and silent data corruption.

The loop calls `Guards.wrap` before a step and `Guards.spike_at` after it. `rerun_after_spikes` calls the run again
where a spike took it back. A first reading of the loop can skip this folder.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from plm_jax.io.run_paths import RunFolder
from plm_jax.training.guards import spikes, verify
from plm_jax.training.guards.spikes import Saved, Spike

T = TypeVar('T')


@dataclasses.dataclass(frozen=True)
class Guards:
  """The guards of one run."""

  watch: spikes.Watch  # of the loss (`spikes` of the config)
  check: verify.Check  # for silent data corruption (`verify_every`)
  checkpoints: Saved  # steps that the run can go back to

  def wrap(self, step: verify.Step, number: int) -> verify.Step:
    """Return the compiled step `number`, run twice where requested."""
    return self.check.of(step, number)

  def spike_at(self, number: int, sums: Mapping[str, Any]) -> Spike | None:
    """Return the loss spike of step `number`, if the run can rewind."""
    return self.watch.see(number, spikes.loss_of(sums), self.checkpoints) if self.watch.on else None

  def sums(self) -> dict[str, tuple[float, float]]:
    """Return what a checkpoint stores of the guards."""
    return self.watch.sums()


def rerun_after_spikes(
  run: Callable[[Mapping[str, Any]], T | Spike], settings: Mapping[str, Any], folder: RunFolder
) -> T:
  """Call `run(settings)` until no loss spike takes it back."""
  outcome = run(settings)
  while isinstance(outcome, Spike):
    spikes.go_back(folder, outcome)
    outcome = run({**settings, 'extend': (), 'skip': ()})  # the folder holds the current ones
  return outcome
