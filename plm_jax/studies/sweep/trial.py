"""Run one trial of a sweep in its own process and report its metric to the journal."""

import dataclasses
import errno
import logging
import os

import optuna
from optuna.trial import FrozenTrial, TrialState

from plm_jax import config
from plm_jax.cli import signals
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import run_folder
from plm_jax.studies import metric_lines
from plm_jax.studies.sweep.space import point_of
from plm_jax.studies.sweep.worker import REASON, STOP, Sweep, check_same, fail, preview
from plm_jax.training import loop
from plm_jax.training.before import from_data, preflight

log = logging.getLogger(__name__)

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


def run(sweep: Sweep, number: int) -> int:
  """Run or resume a trial of the journal, and record its result.

  Returns the exit code of the process: 0 if the journal has the result, 3 after a signal. Raises ConfigError: the trial
  cannot start and no trial is finished, so the others would fail too. Raises RunError: the same for a file or a disk;
  and always if the disk is full, which is no result of this trial.
  """
  with files.locked(sweep.lock(f'{number:04}.run'), doing='ending this trial'):  # its worker may have been killed
    check_same(sweep)  # config and space are read again for each trial
    study = sweep.study()
    study.pruner = sweep.pruner()
    trial = study.get_trials(deepcopy=False)[number]
    if trial.state.is_finished():
      return 0
    try:
      return _train(sweep, study, trial)
    except Exception as error:  # any other error is the result of this trial
      finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
      if isinstance(error, ConfigError | RunError) and not finished:
        raise
      if _is_disk_full(error):
        raise RunError(f'trial {number} is not finished: nothing can be written: {error}') from error
      log.exception('trial %d failed', number)
      fail(study, number, f'{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}'[:300])
      return 0


def check_metric(sweep: Sweep, number: int) -> None:
  """Raise ConfigError if a new sweep's trial lacks the metric in `best`.

  The point of trial `number` must not depend on results.
  """
  point = preview(dataclasses.replace(sweep, trials=number + 1))[number]
  preflight.check_metric_of_best(from_data.filled(config.resolve(sweep.changed(list(point.items())))))


def _is_disk_full(error: BaseException | None) -> bool:
  """Return True if a full disk caused an error; reads messages too."""
  if error is None:
    return False
  full = isinstance(error, OSError) and error.errno in NO_ROOM
  return full or os.strerror(errno.ENOSPC) in str(error) or _is_disk_full(error.__cause__ or error.__context__)


def _train(sweep: Sweep, study: optuna.Study, trial: FrozenTrial) -> int:
  storage, number = study._storage, trial.number
  folder = sweep.trial_folder(number)

  def gives_up(step: int, value: float) -> bool:
    storage.set_trial_intermediate_value(trial._trial_id, step, value)
    stop = study.pruner.prune(study, study.get_trials(deepcopy=False)[number])
    if stop:
      storage.set_trial_user_attr(trial._trial_id, STOP, step)
    return stop

  if STOP not in trial.user_attrs:  # decided, then killed before it was recorded
    settings = config.resolve(sweep.changed(list(point_of(trial.params, sweep.space).items())))
    outcome = loop.train(settings, folder, gives_up=gives_up)
    if outcome.exit_code == loop.INTERRUPTED:
      return signals.STOPPED
    if outcome.exit_code == loop.DIVERGED:
      return _stop(study, number, f'diverged at step {outcome.result["step"]}')
    if outcome.result['finished']:
      return _complete(sweep, study, number)
  step = study.get_trials(deepcopy=False)[number].user_attrs[STOP]
  return _stop(study, number, f'stopped at step {step}: not among the best of its rung')


def _stop(study: optuna.Study, number: int, reason: str) -> int:
  """Record a trial as pruned, so that samplers learn from it."""
  study._storage.set_trial_user_attr(study.get_trials(deepcopy=False)[number]._trial_id, REASON, reason)
  study.tell(number, state=TrialState.PRUNED)
  return 0


def _complete(sweep: Sweep, study: optuna.Study, number: int) -> int:
  """Record the best value; a trial never finite counts as diverged."""
  folder = RunFolder.at(sweep.trial_folder(number))
  values = metric_lines.series(folder.metrics, sweep.metric)[1].tolist()
  if not values:
    return _stop(study, number, f'no value of {sweep.metric} is a number')
  result = run_folder.read_result(folder)
  for name in ('step', 'best_step', 'seconds'):
    study._storage.set_trial_user_attr(study.get_trials(deepcopy=False)[number]._trial_id, name, result.get(name))
  study.tell(number, (max if sweep.direction == 'maximize' else min)(values))
  return 0
