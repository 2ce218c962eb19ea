"""Many runs of one config whose keys are points of a space: choosing the points, making the runs, surviving kills.

The engine of `plm-jax sweep`. A worker holds the lock of the folder while it chooses a trial, and the lock of
the trial until its end is in the journal. What a killed worker left is a trial under way whose lock is free: the next
worker goes on with it. A trial is a process of its own (`sweep_trial.py`), which ends when its worker does.
"""

import contextlib
import dataclasses
import logging
import random
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from plm_jax import config
from plm_jax.cli import signals
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import checksums, files
from plm_jax.studies import child
from plm_jax.studies.sweep import space as sweep_space
from plm_jax.studies.sweep.journal import Direction, Line, open_study, quiet, template_line
from plm_jax.studies.sweep.space import Changed, Method, Point, Space

log = logging.getLogger(__name__)

DRAWS, OF_TPE = 100, 10  # draws of a point that no trial has: at most, and how many of them ask TPE; others are random
FIRST_TRIALS = 10  # that TPE draws at random (Bergstra et al. 2011 begin with 20; 10 is Optuna's)
REASON, STOP, ENDED = 'reason', 'stopped_at', 'ended_by_sigkill'  # attributes of a trial
WAIT = 1.0  # seconds between looks at trials of other workers


@dataclasses.dataclass(frozen=True)
class Sweep:
  """What all workers of a sweep agree on.

  Attributes:
    folder: of the sweep: `journal.jsonl`, `sweep.json`, `compiled/` with programs that trials share,
      `trials/0000/`, ..., each an ordinary run folder.
    space: the keys and their values.
    method: how points are chosen. 'halving' draws them at random and stops trials early (`pruner`).
    trials: how many there are; points of a grid come in its order.
    metric: the one of `best`.
    direction: of the metric.
    seed: of the choice of points.
    first_rung: steps after which 'halving' stops a trial for the first time.
    factor: one in so many goes on from each rung; the next rung is so many times as far.
    settings: of the base config, complete.
    changed: the base config with changes, not complete.
  """

  folder: Path
  space: Space
  method: Method
  trials: int
  metric: str
  direction: Direction
  seed: int
  first_rung: int
  factor: int
  settings: Mapping[str, Any]
  changed: Changed

  def study(self) -> optuna.Study:
    """The study as the journal has it now."""
    return open_study(self.folder / 'journal.jsonl', direction=self.direction, lost=self._lost)

  def _lost(self, number: int) -> Line | None:
    """The line of a trial whose own is damaged: the points of a grid are known by their numbers."""
    known = sweep_space.grid(self.space) if self.method == 'grid' else []
    return template_line(_of_grid(self.space, known[number])) if number < len(known) else None

  def trial_folder(self, number: int) -> Path:
    """The run folder of a trial."""
    return self.folder / 'trials' / f'{number:04}'

  def lock(self, name: str) -> Path:
    """A lock of the sweep or of a trial."""
    return self.folder / 'locks' / name

  def pruner(self) -> optuna.pruners.BasePruner:
    """What stops trials early: successive halving without waiting (Li et al. 2018, ASHA), or nothing."""
    if self.method != 'halving':
      return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=self.first_rung, reduction_factor=self.factor)


# Points --------------------------------------------------------------------------------------------------------------


def template(sweep: Sweep, trials: Sequence[FrozenTrial]) -> FrozenTrial:
  """The next trial, with all of its parameters, so that one line of the journal creates it.

  It depends on the number of the trial, on the points before it and, for TPE, on their values; not on which worker
  asks. No point is drawn twice: one that a trial has already is drawn anew, up to `DRAWS` times; where the points can
  be counted, one of those that are left is taken then. Where none is left, which `plm-jax sweep` refuses, it is the
  last draw, so that there is an end.
  """
  if sweep.method == 'grid':
    return _of_grid(sweep.space, sweep_space.grid(sweep.space)[len(trials)])
  taken = {sweep_space.identity(trial.params, sweep.space) for trial in trials}
  for drawn in _draws(sweep, trials, taken):
    if sweep_space.identity(drawn.params, sweep.space) not in taken:
      break
  return optuna.trial.create_trial(
    state=TrialState.RUNNING, params=dict(drawn.params), distributions=dict(drawn.distributions)
  )


def _of_grid(space: Space, point: Point) -> FrozenTrial:
  """The trial of a point of a grid."""
  kinds: dict[str, optuna.distributions.BaseDistribution] = {
    key.name: optuna.distributions.CategoricalDistribution(key.steps()) for key in space if key.name in point
  }
  return optuna.trial.create_trial(state=TrialState.RUNNING, params=dict(point), distributions=kinds)


def _draws(sweep: Sweep, trials: Sequence[FrozenTrial], taken: set[Any]) -> Iterator[optuna.trial.Trial]:
  """Points for the next trial, one after the other, the same for every worker."""
  number = len(trials)
  seed = (sweep.seed * 1_000_003 + number) % 2**32
  for draw in range(DRAWS):
    own = random.Random(f'{seed} {draw}').getrandbits(32) if draw else seed
    tpe = sweep.method == 'tpe' and draw < OF_TPE
    yield _asked(sweep, _tpe(own) if tpe else optuna.samplers.RandomSampler(seed=own), trials if tpe else ())
  left = [point for point in sweep_space.all_points(sweep.space) or () if tuple(point.items()) not in taken]
  if left:
    yield _asked(sweep, optuna.samplers.RandomSampler(seed=seed), (), point=random.Random(seed).choice(left))


def _asked(
  sweep: Sweep, sampler: optuna.samplers.BaseSampler, trials: Sequence[FrozenTrial], *, point: Point | None = None
) -> optuna.trial.Trial:
  """A trial as a sampler draws it that has seen some trials; with a point, the trial of that."""
  draft = optuna.create_study(sampler=sampler, direction=sweep.direction)
  draft.add_trials([trial for trial in trials if trial.params])  # of one whose line is lost nothing is known
  if point is not None:
    whole = {key.name for key in sweep.space if not key.values}
    draft.enqueue_trial({name: int(text) if name in whole else text for name, text in point.items()})
  asked = draft.ask()
  sweep_space.suggest(sweep.space, asked)
  return asked


def _tpe(seed: int) -> optuna.samplers.BaseSampler:
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', optuna.exceptions.ExperimentalWarning)  # of these settings
    # keys are drawn together, those of each condition apart; trials under way count as bad, so that workers spread
    return optuna.samplers.TPESampler(
      seed=seed, n_startup_trials=FIRST_TRIALS, multivariate=True, group=True, constant_liar=True
    )


def preview(sweep: Sweep) -> list[Point]:
  """The points that are known before any result: of TPE, the first ones only."""
  quiet()
  known = min(sweep.trials, FIRST_TRIALS) if sweep.method == 'tpe' else sweep.trials
  trials: list[FrozenTrial] = []
  for _ in range(known):
    trials.append(template(sweep, trials))
  return [sweep_space.point_of(trial.params, sweep.space) for trial in trials]


def check_metric(sweep: Sweep, words: Sequence[str]) -> None:
  """Asks whether the first trial has the metric of `best`, before there is a folder; nothing where a sweep has begun.

  A process of its own asks, on the CPU: this one loads no jax and leaves the accelerator to the trials.

  Args:
    sweep: what is swept.
    words: of the command of the sweep.

  Raises:
    ConfigError: it has not, or cannot begin.
    RunError: the process failed in another way.
    signals.Interrupted: a signal came.
  """
  if files.exists(sweep.folder / 'sweep.json'):
    return
  asked = [sys.executable, '-m', 'plm_jax', 'sweep', *words, '--dry_run', '--trial=0']
  with files.temporary_folder() as folder:
    with files.open(folder / 'said', 'w') as said:
      code = child.run(asked, out=said, env={'JAX_PLATFORMS': 'cpu'})
    text = files.read_bytes(folder / 'said').decode(errors='replace').strip()
  if code in (signals.STOPPED, signals.KILLED) or signals.asked():
    raise signals.Interrupted
  if code:
    raise (ConfigError if code == 2 else RunError)(text or f'the config of trial 0 was not checked: {_how(code)}')


# A worker ------------------------------------------------------------------------------------------------------------


def work(sweep: Sweep, words: Sequence[str]) -> list[FrozenTrial]:
  """Makes trials until all are over, those of other workers included.

  Args:
    sweep: what is swept.
    words: of the command of the sweep; with `--trial=N` behind them it makes one trial.

  Returns:
    The trials, by number.

  Raises:
    ConfigError: the folder holds another sweep, or the first trial cannot begin.
    signals.Interrupted: a signal came; what is under way is saved.
  """
  waiting = False
  with files.locked(sweep.lock('sweep'), doing='choosing a trial'):
    agree(sweep)
    study = sweep.study()
  while True:
    signals.check()
    with contextlib.ExitStack() as held:
      number = _claim(sweep, study, held)
      if number is not None:
        waiting = False
        _make(sweep, study, number, words)
        continue
    trials = study.get_trials(deepcopy=False)
    if all(trial.state.is_finished() for trial in trials):
      return trials
    if not waiting:
      log.info('%d trials of other workers are under way; waiting for them', len(_under_way(study)))
      waiting = True
    time.sleep(WAIT)


def agree(sweep: Sweep) -> None:
  """Writes what is swept to the folder, or compares it with what is there.

  Raises:
    ConfigError: the folder holds another sweep.
  """
  own = files.parse_json(
    files.json_text(
      {
        'space': [key._asdict() for key in sweep.space],
        'method': sweep.method,
        'seed': sweep.seed,
        'halving': [sweep.first_rung, sweep.factor] if sweep.method == 'halving' else None,
        'settings': sweep.settings,
      }
    )
  )
  old = checksums.read_json(sweep.folder / 'sweep.json', default=None)
  if old is None:
    checksums.write(sweep.folder, {'sweep.json': files.json_text(own)})
    return
  other = [name for name in own if name != 'settings' and own[name] != old.get(name)]
  if other:
    raise ConfigError(f'{sweep.folder} holds a sweep with another {", ".join(other)}: name another --workdir')
  config.check_resume(sweep.settings, old['settings'], what='sweep')


def _under_way(study: optuna.Study) -> list[FrozenTrial]:
  return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))


def _claim(sweep: Sweep, study: optuna.Study, held: contextlib.ExitStack) -> int | None:
  """A trial that this worker makes, whose lock `held` holds then: one that was left, or a new one; None: none is."""
  with files.locked(sweep.lock('sweep'), doing='choosing a trial'):
    for trial in _under_way(study):
      try:
        held.enter_context(files.locked(sweep.lock(f'{trial.number:04}'), doing='making the trial', wait=False))
      except BlockingIOError:
        continue
      if not _state(study, trial.number).is_finished():  # its worker may have ended it in between
        return trial.number
      held.close()
    trials = study.get_trials(deepcopy=False)
    if len(trials) >= sweep.trials:
      return None
    number = len(trials)
    held.enter_context(files.locked(sweep.lock(f'{number:04}'), doing='making the trial'))
    study.add_trial(template(sweep, trials))
    return number


def _state(study: optuna.Study, number: int) -> TrialState:
  return study.get_trials(deepcopy=False)[number].state


def _make(sweep: Sweep, study: optuna.Study, number: int, words: Sequence[str]) -> None:
  """Makes one trial in a process of its own, or goes on with it, and sees that its end is in the journal.

  When SIGKILL ends its process for the first time a trial stays under way, so that a worker goes on with it once more.
  """
  trial = study.get_trials(deepcopy=False)[number]
  point = sweep_space.as_flags(sweep_space.point_of(trial.params, sweep.space))
  log.info('trial %d of %d: %s', number, sweep.trials, point)
  began = time.monotonic()
  asked = [sys.executable, '-m', 'plm_jax', 'sweep', *words, f'--trial={number}']
  code = child.run(asked, compiled=sweep.folder / 'compiled')
  seconds = time.monotonic() - began
  if not _state(study, number).is_finished():
    over = sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
    if code in (signals.STOPPED, signals.KILLED) or signals.asked():
      said = f'stopped by a signal: {over} of {sweep.trials} trials are over, the same command goes on from here'
      raise signals.Interrupted(said, signals.STOPPED)
    if code == 2:
      none = '' if over else ', and none was made before it'
      raise ConfigError(f'trial {number} could not begin{none}: the message is above')
    if code == 1:  # whatever else fails is told to the journal by the process itself
      raise RunError(f'trial {number} is not over: the message is above; the same command goes on from here')
    if code == -signal.SIGKILL and ENDED not in trial.user_attrs:
      study._storage.set_trial_user_attr(trial._trial_id, ENDED, 1)
      log.warning('trial %d: %s; it goes on from its checkpoint once', number, _how(code))
      return
    fail(study, number, _how(code) + (', and so was an earlier one' if code == -signal.SIGKILL else ''))
  trial = study.get_trials(deepcopy=False)[number]
  value = 'no value' if trial.value is None else f'{sweep.metric} {trial.value:.5g}'
  remark = f', {trial.user_attrs[REASON]}' if REASON in trial.user_attrs else ''
  log.info('trial %d: %s%s, made in %.1f s', number, value, remark, seconds)


def _how(code: int) -> str:
  """How a process ended that could not say it itself."""
  if code >= 0:
    return f'its process ended with exit code {code}'
  name = signal.Signals(-code).name
  return f'its process was ended by {name}{", as by a system out of memory" if name == "SIGKILL" else ""}'


def fail(study: optuna.Study, number: int, reason: str) -> None:
  """Writes to the journal that a trial has no result, and why."""
  trial = study.get_trials(deepcopy=False)[number]
  study._storage.set_trial_user_attr(trial._trial_id, REASON, reason)
  study.tell(number, state=TrialState.FAIL)
