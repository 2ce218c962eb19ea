"""Choose and run the trials of a sweep; the engine of `plm-jax sweep`.

A trial is a run of one config whose keys are a point of the space. A worker holds the lock of the folder while it
chooses a trial, and the lock of the trial until its result is in the journal. A killed worker leaves a running trial
whose lock is free; the next worker resumes it. Each trial is a separate process (`trial.py`) that ends with its worker.
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

MAX_SAMPLES, MAX_TPE_SAMPLES = 100, 10  # attempts to sample an unused point; after those of TPE, at random
FIRST_TRIALS = 10  # sampled at random before TPE (Bergstra et al. 2011 begin with 20; 10 is Optuna's)
REASON, STOP, ENDED = 'reason', 'stopped_at', 'ended_by_sigkill'  # attributes of a trial
WAIT = 1.0  # seconds between checks of other workers' trials


@dataclasses.dataclass(frozen=True)
class Sweep:
  """Settings shared by all workers of a sweep."""

  # folder of the sweep: `journal.jsonl`, `sweep.json`, `compiled/` with compiled programs of all trials,
  # `trials/0000/`, ..., each an ordinary run folder
  folder: Path
  space: Space  # the keys and their values
  method: Method  # search method. 'halving' samples points at random and stops trials early (`pruner`)
  trials: int  # number of trials; points of a grid come in its order
  metric: str  # metric in `best`
  direction: Direction  # whether the metric is minimized or maximized
  seed: int  # random seed of the points
  first_rung: int  # step at which 'halving' stops trials for the first time
  factor: int  # one trial in `factor` continues from each rung; the next rung is at `factor` times as many steps
  settings: Mapping[str, Any]  # the complete base config
  changed: Changed  # function from changes to the base config with these changes, without defaults

  def study(self) -> optuna.Study:
    """Open the study in its current state."""
    return open_study(self.folder / 'journal.jsonl', direction=self.direction, lost=self._lost)

  def _lost(self, number: int) -> Line | None:
    """Rebuild the damaged line of a grid's trial from its number."""
    points = sweep_space.grid(self.space) if self.method == 'grid' else []
    return template_line(_of_grid(self.space, points[number])) if number < len(points) else None

  def trial_folder(self, number: int) -> Path:
    """Return the run folder of a trial."""
    return self.folder / 'trials' / f'{number:04}'

  def lock(self, name: str) -> Path:
    """Return the lock file of the sweep or of a trial."""
    return self.folder / 'locks' / name

  def pruner(self) -> optuna.pruners.BasePruner:
    """Build the pruner of halving (ASHA, Li et al. 2018), or none."""
    if self.method != 'halving':
      return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=self.first_rung, reduction_factor=self.factor)


def template(sweep: Sweep, trials: Sequence[FrozenTrial]) -> FrozenTrial:
  """Choose the next trial, complete with its parameters.

  The choice depends on the trial's number, the earlier points and, for TPE, their values, but not on the worker. A
  point that is already used is sampled again, up to `MAX_SAMPLES` times. Then one of the unused points is chosen, if
  the space is finite. If every point is used, the last sample is returned; `plm-jax sweep` rejects this case.
  """
  if sweep.method == 'grid':
    return _of_grid(sweep.space, sweep_space.grid(sweep.space)[len(trials)])
  used = {sweep_space.identity(trial.params, sweep.space) for trial in trials}
  for sample in _samples(sweep, trials, used):
    if sweep_space.identity(sample.params, sweep.space) not in used:
      break
  return optuna.trial.create_trial(
    state=TrialState.RUNNING, params=dict(sample.params), distributions=dict(sample.distributions)
  )


def _of_grid(space: Space, point: Point) -> FrozenTrial:
  distributions: dict[str, optuna.distributions.BaseDistribution] = {
    key.name: optuna.distributions.CategoricalDistribution(key.steps()) for key in space if key.name in point
  }
  return optuna.trial.create_trial(state=TrialState.RUNNING, params=dict(point), distributions=distributions)


def _samples(sweep: Sweep, trials: Sequence[FrozenTrial], used: set[Any]) -> Iterator[optuna.trial.Trial]:
  """Yield candidates for the next trial, the same for every worker."""
  seed = (sweep.seed * 1_000_003 + len(trials)) % 2**32
  for attempt in range(MAX_SAMPLES):
    attempt_seed = random.Random(f'{seed} {attempt}').getrandbits(32) if attempt else seed
    if sweep.method == 'tpe' and attempt < MAX_TPE_SAMPLES:
      yield _sample(sweep, _tpe(attempt_seed), trials)
    else:
      yield _sample(sweep, optuna.samplers.RandomSampler(seed=attempt_seed), ())
  unused = [point for point in sweep_space.all_points(sweep.space) or () if tuple(point.items()) not in used]
  if unused:
    yield _sample(sweep, optuna.samplers.RandomSampler(seed=seed), (), point=random.Random(seed).choice(unused))


def _sample(
  sweep: Sweep, sampler: optuna.samplers.BaseSampler, trials: Sequence[FrozenTrial], *, point: Point | None = None
) -> optuna.trial.Trial:
  """Sample a trial after earlier ones, at a point if given."""
  study = optuna.create_study(sampler=sampler, direction=sweep.direction)
  study.add_trials([trial for trial in trials if trial.params])  # a trial with a damaged line has no parameters
  if point is not None:
    ranges = {key.name for key in sweep.space if not key.values}
    study.enqueue_trial({name: int(text) if name in ranges else text for name, text in point.items()})
  trial = study.ask()
  sweep_space.suggest(sweep.space, trial)
  return trial


def _tpe(seed: int) -> optuna.samplers.BaseSampler:
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', optuna.exceptions.ExperimentalWarning)  # of these settings
    # keys are sampled jointly, per condition; running trials count as bad, so that workers spread
    return optuna.samplers.TPESampler(
      seed=seed, n_startup_trials=FIRST_TRIALS, multivariate=True, group=True, constant_liar=True
    )


def preview(sweep: Sweep) -> list[Point]:
  """Return the points independent of results, of TPE the first ones."""
  quiet()
  count = min(sweep.trials, FIRST_TRIALS) if sweep.method == 'tpe' else sweep.trials
  trials: list[FrozenTrial] = []
  for _ in range(count):
    trials.append(template(sweep, trials))
  return [sweep_space.point_of(trial.params, sweep.space) for trial in trials]


def check_metric(sweep: Sweep, words: Sequence[str]) -> None:
  """Check that the first trial of a new sweep has its metric.

  A child process checks it on the CPU: this process loads no jax and leaves the accelerator to the trials. Raises
  ConfigError: the metric is missing, or the trial cannot start; RunError: the child process failed in another way;
  signals.Interrupted: stopped by a signal.
  """
  if files.exists(sweep.folder / 'sweep.json'):
    return
  command = [sys.executable, '-m', 'plm_jax', 'sweep', *words, '--dry_run', '--trial=0']
  with files.temporary_folder() as folder:
    with files.open(folder / 'output', 'w') as output:
      code = child.run(command, out=output, env={'JAX_PLATFORMS': 'cpu'})
    text = files.read_bytes(folder / 'output').decode(errors='replace').strip()
  if code in (signals.STOPPED, signals.KILLED) or signals.asked():
    raise signals.Interrupted
  if code:
    raise (ConfigError if code == 2 else RunError)(
      text or f'the config of trial 0 could not be checked: {_exit_message(code)}'
    )


def work(sweep: Sweep, words: Sequence[str]) -> list[FrozenTrial]:
  """Run trials until all are finished, including those of other workers.

  Returns the trials, by number. Raises ConfigError: the folder holds another sweep, or the first trial cannot start.
  Raises signals.Interrupted: stopped by a signal; the running trial is saved. `--trial=N` is added to `words` of the
  sweep command to run one trial.
  """
  waiting = False
  with files.locked(sweep.lock('sweep'), doing='choosing a trial'):
    check_same(sweep)
    study = sweep.study()
  while True:
    signals.check()
    with contextlib.ExitStack() as locks:
      number = _claim(sweep, study, locks)
      if number is not None:
        waiting = False
        _run_trial(sweep, study, number, words)
        continue
    trials = study.get_trials(deepcopy=False)
    if all(trial.state.is_finished() for trial in trials):
      return trials
    if not waiting:
      log.info('waiting for %d trials of other workers', len(_running(study)))
      waiting = True
    time.sleep(WAIT)


def check_same(sweep: Sweep) -> None:
  """Store a sweep's settings; raise ConfigError if others are stored."""
  new = files.parse_json(
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
    checksums.write(sweep.folder, {'sweep.json': files.json_text(new)})
    return
  different = [name for name in new if name != 'settings' and new[name] != old.get(name)]
  if different:
    raise ConfigError(f'{sweep.folder} holds a sweep with another {", ".join(different)}: choose another --workdir')
  config.check_resume(sweep.settings, old['settings'], what='sweep')


def _running(study: optuna.Study) -> list[FrozenTrial]:
  return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))


def _claim(sweep: Sweep, study: optuna.Study, locks: contextlib.ExitStack) -> int | None:
  """Choose and lock an abandoned or new trial; None for none."""
  with files.locked(sweep.lock('sweep'), doing='choosing a trial'):
    for trial in _running(study):
      try:
        locks.enter_context(files.locked(sweep.lock(f'{trial.number:04}'), doing='running the trial', wait=False))
      except BlockingIOError:
        continue
      if not _state(study, trial.number).is_finished():  # its worker may have finished it meanwhile
        return trial.number
      locks.close()
    trials = study.get_trials(deepcopy=False)
    if len(trials) >= sweep.trials:
      return None
    number = len(trials)
    locks.enter_context(files.locked(sweep.lock(f'{number:04}'), doing='running the trial'))
    study.add_trial(template(sweep, trials))
    return number


def _state(study: optuna.Study, number: int) -> TrialState:
  return study.get_trials(deepcopy=False)[number].state


def _run_trial(sweep: Sweep, study: optuna.Study, number: int, words: Sequence[str]) -> None:
  """Run or resume a trial and record it, unless killed once."""
  trial = study.get_trials(deepcopy=False)[number]
  point = sweep_space.as_flags(sweep_space.point_of(trial.params, sweep.space))
  log.info('trial %d of %d: %s', number, sweep.trials, point)
  began = time.monotonic()
  command = [sys.executable, '-m', 'plm_jax', 'sweep', *words, f'--trial={number}']
  code = child.run(command, compiled=sweep.folder / 'compiled')
  seconds = time.monotonic() - began
  if not _state(study, number).is_finished():
    _check_exit(sweep, study, number, code)
    if code == -signal.SIGKILL and ENDED not in trial.user_attrs:
      study._storage.set_trial_user_attr(trial._trial_id, ENDED, 1)
      log.warning('trial %d: %s; it resumes from its checkpoint once', number, _exit_message(code))
      return
    fail(study, number, _exit_message(code) + (' for the second time' if code == -signal.SIGKILL else ''))
  trial = study.get_trials(deepcopy=False)[number]
  value = 'no value' if trial.value is None else f'{sweep.metric} {trial.value:.5g}'
  remark = f', {trial.user_attrs[REASON]}' if REASON in trial.user_attrs else ''
  log.info('trial %d: %s%s, in %.1f s', number, value, remark, seconds)


def _check_exit(sweep: Sweep, study: optuna.Study, number: int, code: int) -> None:
  """Raise the error of an unfinished trial that ends its worker too."""
  finished = sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
  if code in (signals.STOPPED, signals.KILLED) or signals.asked():
    message = f'stopped by a signal: {finished} of {sweep.trials} trials are finished; the same command resumes'
    raise signals.Interrupted(message, signals.STOPPED)
  if code == 2:
    raise ConfigError(f'trial {number} could not start{"" if finished else " (the first one)"}: see the message above')
  if code == 1:  # the process itself reports any other failure to the journal
    raise RunError(f'trial {number} is not finished: see the message above; the same command resumes')


def _exit_message(code: int) -> str:
  if code >= 0:
    return f'its process ended with exit code {code}'
  name = signal.Signals(-code).name
  return f'killed by {name}{" (probably out of memory)" if name == "SIGKILL" else ""}'


def fail(study: optuna.Study, number: int, reason: str) -> None:
  """Record in the journal that a trial failed, and why."""
  trial = study.get_trials(deepcopy=False)[number]
  study._storage.set_trial_user_attr(trial._trial_id, REASON, reason)
  study.tell(number, state=TrialState.FAIL)
