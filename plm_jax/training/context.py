"""The two objects that the training loop works with, and the compiled steps of a run.

`RunContext` stays the same while a run makes steps. `LoopState` changes with every step. `begin.py` builds both.
"""

import dataclasses
import functools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from plm_jax import optim
from plm_jax.checkpoint import Checkpoints
from plm_jax.cli import progress
from plm_jax.core.sharding import Layout, batch_sharding
from plm_jax.core.types import Array, PyTree, Source
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import metrics, predicted
from plm_jax.runs.interval import Interval
from plm_jax.training import evaluation, profiling
from plm_jax.training.cost.meter import Meter
from plm_jax.training.guards.guards import Guards
from plm_jax.training.hosts.watchdog import Watchdog
from plm_jax.training.outcome import DONE
from plm_jax.training.parts import Parts
from plm_jax.training.step import Metrics, TrainState, logged_step, train_step
from plm_jax.training.stopping import Patience, SaveTimer, Stopping

UNEVALUATED = 'unevaluated'  # mark of a saved step whose evaluations failed


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
  """Arguments of one call of `train` that are not part of the config.

  Attributes:
    stop_at: step after which the call saves and ends. The schedule stays the same.
    extend: number of steps to add. From here on the schedule is that of the longer run. A run that is still in an
      extension of the same length continues with that one.
    profile: steps to trace.
    predictions: file for predictions, which each evaluation overwrites.
    gives_up: (step, value of the metric of `best`) -> whether to save and end; not called at the last step.
  """

  stop_at: int | None = None
  extend: int | None = None
  profile: profiling.Steps | None = None
  predictions: predicted.Kept | None = None
  gives_up: Callable[[int, float], bool] = lambda step, value: False


class CompiledStep(NamedTuple):
  """The train step of one schedule length.

  Attributes:
    optimiser: its learning rates run to that length.
    plain: (state, batch, key) -> (state, metrics), jitted.
    logged: (state, interval, batch, key) -> (state, interval, metrics), jitted; donates the state and the interval.
  """

  optimiser: optim.Optimiser
  plain: Callable[..., tuple[TrainState, Metrics]]
  logged: Callable[..., tuple[TrainState, Interval, Metrics]]


class StepCache:
  """Compiled train steps by schedule length.

  A run has one length until it is extended (`--extend`). From the step of the extension on, its learning rates are
  those of a longer run, and steps before it keep the old ones. A run that resumes before that step needs both.
  """

  def __init__(
    self,
    make_optimiser: Callable[[int], optim.Optimiser],
    *,
    parts: Parts,
    settings: Mapping[str, Any],
    layout: Layout,
    state_shardings: PyTree,
  ):
    """Compile nothing yet.

    `make_optimiser` maps a schedule length in steps to an optimiser. All of them have the same state.
    """
    self._make_optimiser = make_optimiser
    self._log_every = settings['log_every']
    self._bound = {'task': parts.task, 'accumulate': settings['accumulate'], 'random': settings['execution']['random']}
    everywhere = NamedSharding(layout.mesh, PartitionSpec())
    self._in_shardings = (state_shardings, everywhere, batch_sharding(layout), None)
    self._out_shardings = (state_shardings, everywhere, None)
    self._steps: dict[int, CompiledStep] = {}

  def get(self, total_steps: int) -> CompiledStep:
    """Return the step of a run of `total_steps`; it compiles lazily."""
    if total_steps not in self._steps:
      optimiser = self._make_optimiser(total_steps)
      # jitted by itself: `jax.eval_shape` of it and the logged step share one trace
      plain = jax.jit(functools.partial(train_step, tx=optimiser, **self._bound))
      logged = jax.jit(
        functools.partial(logged_step, step=plain, log_every=self._log_every),
        in_shardings=self._in_shardings,
        out_shardings=self._out_shardings,
        donate_argnums=(0, 1),
      )
      self._steps[total_steps] = CompiledStep(optimiser=optimiser, plain=plain, logged=logged)
    return self._steps[total_steps]


@dataclasses.dataclass(frozen=True)
class Spent:
  """What earlier calls of a run spent, see `run_folder.spent`, and the start of this call."""

  before: Mapping[str, float]
  since: float = dataclasses.field(default_factory=time.monotonic)

  def with_this_call(self, meter: Meter) -> dict[str, float]:
    """Add tokens and seconds of this call; every process must call it."""
    own = {'tokens': meter.all_tokens(), 'seconds': time.monotonic() - self.since, **meter.causes}
    return {**self.before, **{name: self.before.get(name, 0) + value for name, value in own.items()}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunData:
  """Model, mesh and data of a run.

  Attributes:
    settings: with `steps` instead of `epochs`, before an extension.
    parts: vocabulary, trunk and task.
    layout: mesh and sharding rules.
    rows: examples of a micro-batch on each device.
    share: (index, number) of the part of each batch that this host reads.
    source: training examples; `facts` are its digests and class names, as `data.json` holds them.
    evaluations: name -> source; `scores` names the scores of each.
  """

  settings: dict[str, Any]
  parts: Parts
  layout: Layout
  rows: int
  share: tuple[int, int]
  source: Source
  evaluations: Mapping[str, Source]
  scores: Mapping[str, tuple[str, ...]]
  facts: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunContext:
  """Everything of a run that stays the same while it makes steps.

  Attributes:
    settings: the resolved config, with the number of steps and the extensions of this call.
    is_main: whether this process writes to the folder.
    key: root key of all randomness, the same at every step.
    batches: pairs (host batch, device batch), from the first step of this call on.
    optimiser: of the whole run; `steps` has the compiled steps.
    eval_steps: compiled functions of each evaluation.
    measures: metric -> shape and dtype of its (sum, weight).
    nonfinite: TrainState -> {path: bool[]}, whether an array holds a number that is not finite; jitted.
    checkpoints: saved steps; `to_save` selects the part of a state that they hold.
    restored: whether the first state comes from a checkpoint; `unevaluated` if its evaluations failed.
    first_step: steps done before this call.
    last_step: the step after which this call ends.
    total_steps: steps of the whole run.
    boundaries: last step of the run, before and after each extension.
    stopping: signals that ask for a stop; `save_timer` tells when to save between steps of `save_every`.
    writer: of metrics; `bar` shows them.
    patience: early stopping.
    guards: optional protection from loss spikes and silent data corruption.
    tracer: of profiled steps.
    watchdog: reports a run that hangs.
    meter: measures speed; `spent` has the tokens and seconds of earlier calls.
    counts: numbers of parameters.
  """

  settings: Mapping[str, Any]
  options: RunOptions
  folder: RunFolder
  is_main: bool
  key: Array
  data: RunData
  batches: Iterator[tuple[Mapping[str, Any], Mapping[str, Array]]]
  optimiser: optim.Optimiser
  steps: StepCache
  eval_steps: Mapping[str, evaluation.Steps]
  measures: Any
  nonfinite: Callable[[TrainState], Mapping[str, Array]]
  checkpoints: Checkpoints
  to_save: Callable[[TrainState], TrainState]
  restored: bool
  unevaluated: bool
  first_step: int
  last_step: int
  total_steps: int
  boundaries: frozenset[int]
  stopping: Stopping
  save_timer: SaveTimer
  writer: metrics.Writer
  bar: progress.Bar
  patience: Patience
  guards: Guards
  tracer: profiling.Tracer
  watchdog: Watchdog
  meter: Meter
  spent: Spent
  counts: Mapping[str, int]


@dataclasses.dataclass
class LoopState:
  """The position of the loop. Each step replaces the training state, which nothing else holds.

  Attributes:
    state: after step `step`.
    interval: sums of metrics since the last line of metrics, on the device.
    step: steps done.
    exit_code: of the command, so far.
    pending: (step, metrics) of steps whose metrics are still on the device.
    skipped_in_a_row: updates that were not finite, up to the last step whose metrics were read.
    has_targets: whether an example had a target since the run began.
    scores: of the last evaluation.
    given_up: whether the caller wants no more steps.
    spike: the loss spike that ends the loop.
  """

  state: TrainState
  interval: Interval
  step: int
  exit_code: int = DONE
  pending: deque[tuple[int, Metrics]] = dataclasses.field(default_factory=deque)
  skipped_in_a_row: int = 0
  has_targets: bool = False
  scores: dict[str, float] = dataclasses.field(default_factory=dict)
  given_up: bool = False
  spike: Any = None
