"""One trial of a sweep, in a process of its own: an ordinary run, whose metric is told to the journal on the way."""

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
from plm_jax.runs import metrics, run_folder
from plm_jax.studies import curve_sets
from plm_jax.studies.sweep.space import point_of
from plm_jax.studies.sweep.worker import REASON, STOP, Sweep, agree, fail, preview
from plm_jax.training import loop
from plm_jax.training.before import preflight

log = logging.getLogger(__name__)

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


def run(sweep: Sweep, number: int) -> int:
  """Makes a trial, or goes on with it, and tells the journal how it ended.

  Args:
    sweep: what is swept.
    number: of a trial of the journal.

  Returns:
    The exit code of the process: 0 where the journal has its end, 3 where a signal stopped it.

  Raises:
    ConfigError: the trial cannot begin, and no trial is over: the cause is likely to be that of all.
    RunError: likewise, a file or a disk; and whenever the disk is full, which is no result of this trial.
  """
  with files.locked(sweep.lock(f'{number:04}.run'), doing='ending this trial'):  # of a worker that was killed
    agree(sweep)  # the files that say what is swept are read anew for each trial
    study = sweep.study()
    study.pruner = sweep.pruner()
    trial = study.get_trials(deepcopy=False)[number]
    if trial.state.is_finished():
      return 0
    try:
      return _train(sweep, study, trial)
    except Exception as error:  # whatever a config, a library or a disk raises is the result of this trial
      if isinstance(error, ConfigError | RunError) and not _any_over(study):
        raise
      if _is_of_the_disk(error):
        raise RunError(f'trial {number} is not over, since nothing can be written: {error}') from error
      log.exception('trial %d failed', number)
      fail(study, number, f'{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}'[:300])
      return 0


def check_metric(sweep: Sweep, number: int) -> None:
  """Raises ConfigError where a trial of a sweep that has not begun would not give the metric of `best`.

  Args:
    sweep: what is swept.
    number: of the trial; its point does not depend on results.
  """
  point = preview(dataclasses.replace(sweep, trials=number + 1))[number]
  preflight.check_metric_of_best(config.resolve(sweep.changed(list(point.items()))))


def _is_of_the_disk(error: BaseException | None) -> bool:
  """Whether an error comes of a disk that takes nothing more; libraries that write tensors say it in words alone."""
  if error is None:
    return False
  full = isinstance(error, OSError) and error.errno in NO_ROOM
  return full or os.strerror(errno.ENOSPC) in str(error) or _is_of_the_disk(error.__cause__ or error.__context__)


def _any_over(study: optuna.Study) -> bool:
  return any(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))


def _train(sweep: Sweep, study: optuna.Study, trial: FrozenTrial) -> int:
  storage, number = study._storage, trial.number
  folder = sweep.trial_folder(number)

  def gives_up(step: int, value: float) -> bool:
    storage.set_trial_intermediate_value(trial._trial_id, step, value)
    stop = study.pruner.prune(study, study.get_trials(deepcopy=False)[number])
    if stop:
      storage.set_trial_user_attr(trial._trial_id, STOP, step)
    return stop

  if STOP not in trial.user_attrs:  # decided, and killed before it was told
    settings = config.resolve(sweep.changed(list(point_of(trial.params, sweep.space).items())))
    metrics.drop_damaged(folder)
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
  """Ends a trial that was not worth its last step; samplers learn from it."""
  study._storage.set_trial_user_attr(study.get_trials(deepcopy=False)[number]._trial_id, REASON, reason)
  study.tell(number, state=TrialState.PRUNED)
  return 0


def _complete(sweep: Sweep, study: optuna.Study, number: int) -> int:
  """Ends a trial with the best value of its metric, that of the checkpoint which `best` keeps.

  One whose metric never was a number counts as one that diverged. A damaged line of metrics is named and left out.
  """
  folder = RunFolder.at(sweep.trial_folder(number))
  values = curve_sets.series(folder.metrics, sweep.metric)[1].tolist()
  if not values:
    return _stop(study, number, f'no value of {sweep.metric} is a number')
  result = run_folder.read_result(folder)
  for name in ('step', 'best_step', 'seconds'):
    study._storage.set_trial_user_attr(study.get_trials(deepcopy=False)[number]._trial_id, name, result.get(name))
  study.tell(number, (max if sweep.direction == 'maximize' else min)(values))
  return 0
