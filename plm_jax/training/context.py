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
  """Arguments of one call of `train` that are not part of the config."""

  stop_at: int | None = None  # step after which the call saves and ends. The schedule stays the same.
  # number of steps to add. From here on the schedule is that of the longer run. A run that is still in an extension of
  # the same length continues with that one.
  extend: int | None = None
  profile: profiling.Steps | None = None  # steps to trace
  predictions: predicted.Kept | None = None  # file for predictions, which each evaluation overwrites
  # (step, value of the metric of `best`) -> whether to save and end; not called at the last step
  gives_up: Callable[[int, float], bool] = lambda step, value: False


class CompiledStep(NamedTuple):
  """The train step of one schedule length."""

  optimiser: optim.Optimiser  # its learning rates run to that length
  plain: Callable[..., tuple[TrainState, Metrics]]  # (state, batch, key) -> (state, metrics), jitted
  # (state, interval, batch, key) -> (state, interval, metrics), jitted; donates the state and the interval
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
  """Model, mesh and data of a run."""

  settings: dict[str, Any]  # with `steps` instead of `epochs`, before an extension
  parts: Parts  # vocabulary, trunk and task
  layout: Layout  # mesh and sharding rules
  rows: int  # examples of a micro-batch on each device
  share: tuple[int, int]  # (index, number) of the part of each batch that this host reads
  source: Source  # training examples; `facts` are its digests and class names, as `data.json` holds them
  evaluations: Mapping[str, Source]  # name -> source; `scores` names the scores of each
  scores: Mapping[str, tuple[str, ...]]
  facts: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunContext:
  """Everything of a run that stays the same while it makes steps."""

  settings: Mapping[str, Any]  # the resolved config, with the number of steps and the extensions of this call
  options: RunOptions
  folder: RunFolder
  is_main: bool  # whether this process writes to the folder
  key: Array  # root key of all randomness, the same at every step
  data: RunData
  # pairs (host batch, device batch), from the first step of this call on
  batches: Iterator[tuple[Mapping[str, Any], Mapping[str, Array]]]
  optimiser: optim.Optimiser  # of the whole run; `steps` has the compiled steps
  steps: StepCache
  eval_steps: Mapping[str, evaluation.Steps]  # compiled functions of each evaluation
  measures: Any  # metric -> shape and dtype of its (sum, weight)
  # TrainState -> {path: bool[]}, whether an array holds a number that is not finite; jitted
  nonfinite: Callable[[TrainState], Mapping[str, Array]]
  checkpoints: Checkpoints  # saved steps; `to_save` selects the part of a state that they hold
  to_save: Callable[[TrainState], TrainState]
  restored: bool  # whether the first state comes from a checkpoint; `unevaluated` if its evaluations failed
  unevaluated: bool
  first_step: int  # steps done before this call
  last_step: int  # the step after which this call ends
  total_steps: int  # steps of the whole run
  boundaries: frozenset[int]  # last step of the run, before and after each extension
  stopping: Stopping  # signals that ask for a stop; `save_timer` tells when to save between steps of `save_every`
  save_timer: SaveTimer
  writer: metrics.Writer  # of metrics; `bar` shows them
  bar: progress.Bar
  patience: Patience  # early stopping
  guards: Guards  # optional protection from loss spikes and silent data corruption
  tracer: profiling.Tracer  # of profiled steps
  watchdog: Watchdog  # reports a run that hangs
  meter: Meter  # measures speed; `spent` has the tokens and seconds of earlier calls
  spent: Spent
  counts: Mapping[str, int]  # numbers of parameters


@dataclasses.dataclass
class LoopState:
  """The position of the loop. Each step replaces the training state, which nothing else holds."""

  state: TrainState  # after step `step`
  interval: Interval  # sums of metrics since the last line of metrics, on the device
  step: int  # steps done
  exit_code: int = DONE  # of the command, so far
  # (step, metrics) of steps whose metrics are still on the device
  pending: deque[tuple[int, Metrics]] = dataclasses.field(default_factory=deque)
  skipped_in_a_row: int = 0  # updates that were not finite, up to the last step whose metrics were read
  has_targets: bool = False  # whether an example had a target since the run began
  scores: dict[str, float] = dataclasses.field(default_factory=dict)  # of the last evaluation
  given_up: bool = False  # whether the caller wants no more steps
  spike: Any = None  # the loss spike that ends the loop
