"""The training loop.

Start reading at `train`. `begin.py` builds what the loop needs, and `step.py` has the compiled step.
"""

import contextlib
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from plm_jax import config
from plm_jax.cli import progress
from plm_jax.core.errors import ConfigError
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import history, interval, predicted
from plm_jax.training import begin, profiling
from plm_jax.training.before import preflight
from plm_jax.training.context import UNEVALUATED, LoopState, RunContext, RunOptions
from plm_jax.training.evaluation import evaluate
from plm_jax.training.feed import steps_in_flight
from plm_jax.training.finish import finish
from plm_jax.training.guards.guards import rerun_after_spikes
from plm_jax.training.guards.spikes import Spike
from plm_jax.training.hosts import failures
from plm_jax.training.outcome import DIVERGED, DONE, INTERRUPTED, Outcome
from plm_jax.training.step import Metrics
from plm_jax.training.stopping import as_loss, catch_signals

log = logging.getLogger(__name__)
_FAILED = {UNEVALUATED: (1.0, 1.0)}


def train(
  settings: Mapping[str, Any],
  workdir: Where,
  *,
  stop_at: int | None = None,
  extend: int | None = None,
  profile: profiling.Steps | None = None,
  predictions: predicted.Kept | None = None,
  gives_up: Callable[[int, float], bool] = lambda step, value: False,
) -> Outcome:
  """Train to the last step, from the newest checkpoint if any.

  Raises ConfigError: the settings do not fit each other, the folder or the data; RunError: a device computes or stores
  wrong numbers (`verify_every`).

  Args:
    workdir: the run folder, which is made if it is missing.
    stop_at, extend, profile, predictions, gives_up: see `RunOptions`.
  """
  options = RunOptions(stop_at=stop_at, extend=extend, profile=profile, predictions=predictions, gives_up=gives_up)
  run_once = functools.partial(_train_once, workdir=workdir, options=options)
  with failures.watched():
    return rerun_after_spikes(run_once, settings, RunFolder.at(workdir))


def _train_once(settings: Mapping[str, Any], *, workdir: Where, options: RunOptions) -> Outcome | Spike:
  with contextlib.ExitStack() as stack, failures.told():
    stopping = stack.enter_context(catch_signals())
    begun = begin.begin(settings, RunFolder.at(workdir), options, stack, stopping)
    if isinstance(begun, Outcome):  # the run was finished before
      return begun
    run, loop = begun
    # a state that is not finite is never trained on
    if run.restored and (paths := _nonfinite(run, loop)):
      log.error(f'step {loop.step} holds numbers that are not finite, in {paths}')
      loop.exit_code = DIVERGED
    if run.unevaluated and loop.exit_code == DONE:  # the evaluation of this step failed, and its state was saved
      due = _due(run, loop.step)
      _evaluate(run, loop, due)
      run.checkpoints.save_again()
      _save(run, loop, due)
    # read a batch, update, evaluate and save
    while loop.exit_code == DONE and loop.step < run.last_step and not run.patience.lost and not loop.given_up:
      _make_step(run, loop)
      due = _due(run, loop.step)
      _read_metrics(run, loop, due)
      run.bar.advance(loop.step)
      if loop.spike or _has_diverged(run, loop):
        break  # this state is not saved
      if due.evaluations:
        _evaluate_or_save(run, loop, due)
      if due.save:
        _save(run, loop, due)
      if loop.exit_code == DONE and due.interrupted:
        log.warning(f'stopped by a signal at step {loop.step}; the state is saved, the same command resumes')
        loop.exit_code = INTERRUPTED
    # saves run in the background
    run.checkpoints.wait()
    run.writer.flush()
    return loop.spike or finish(run, loop)


def _make_step(run: RunContext, loop: LoopState) -> None:
  """Read the next batch and update the state, metrics on the device."""
  number, began = loop.step + 1, time.monotonic()
  with run.tracer.step(number, loop.state):
    with run.meter.waiting():
      host_batch, batch = next(run.batches)
    # the schedule of an extended run has another horizon
    step = run.steps.get(history.horizon(run.settings, loop.step)).logged
    step = run.guards.wrap(step, number)
    loop.state, loop.interval, sums = step(loop.state, loop.interval, batch, run.key)
  loop.step = number
  loop.pending.append((number, sums))
  run.meter.count(host_batch)
  run.watchdog.stepped()
  run.tracer.stepped(number, loop.state)
  if number <= run.first_step + 2:
    jax.block_until_ready(sums)
    if number == run.first_step + 1:
      run.meter.causes |= {'wait': 0.0, 'compile': time.monotonic() - began}
    _log_pace(run, number, time.monotonic() - began)


def _log_pace(run: RunContext, step: int, seconds: float) -> None:
  """Log the times of the first two steps; the first compiles."""
  if step == run.first_step + 1:
    log.info(f'step {step} of {run.total_steps}, with its compilation: {seconds:.1f} s')
  else:
    left = progress.clock(seconds * (run.last_step - step))
    log.info(f'step {step} of {run.total_steps}: {seconds:.2g} s, so about {left} for the steps that are left')


class _Due(NamedTuple):
  """Actions after a step. A resumed run takes the same ones, except that it saves by time at other steps."""

  interrupted: bool  # all processes agreed to stop
  evaluations: list[str]  # names of those to make
  watched: bool  # whether the metric of `best` is among them
  save: bool  # whether to save the state; `timed` if only because of `save_minutes`
  timed: bool
  log: bool  # whether to write a line of metrics


def _due(run: RunContext, step: int) -> _Due:
  """Return what is due after `step`."""
  settings = run.settings
  is_boundary = step in run.boundaries
  is_last = step == run.last_step or is_boundary
  interrupted = run.stopping.agreed(step)
  evaluations = [
    name for name in run.data.evaluations if is_boundary or step % config.steps_between(settings, name) == 0
  ]
  watched = settings['best'] is not None and settings['best'][0].partition('/')[0] in evaluations
  save = interrupted or watched or is_last or step % settings['save_every'] == 0
  logged = is_last or step % settings['log_every'] == 0
  timed = logged and not save and run.save_timer.agreed(run.checkpoints.seconds)
  return _Due(
    interrupted=interrupted, evaluations=evaluations, watched=watched, save=save or timed, timed=timed, log=logged
  )


def _read_metrics(run: RunContext, loop: LoopState, due: _Due) -> None:
  """Write lines of finished steps' metrics; of all when something is due."""
  most_pending = 0 if due.evaluations or due.save or due.log else steps_in_flight(run.data.layout.mesh)
  while len(loop.pending) > most_pending:
    step, sums = loop.pending.popleft()
    loop.skipped_in_a_row = int(jax.device_get(sums['skipped_in_a_row'][0]))
    if loop.skipped_in_a_row:
      log.warning(f'step {step}: a gradient was not finite, the update was skipped ({loop.skipped_in_a_row} in a row)')
    if step % run.settings['log_every'] == 0 or step == run.last_step or step in run.boundaries:
      _check_targets(run, loop, step, sums)
      means = interval.means(loop.interval, sums)
      means = {**means, **run.data.parts.task.summary(means), **run.meter.read()}
      run.writer.write(step, means)
      run.bar.show(step, means)
    loop.spike = run.guards.spike_at(step, sums)
    if loop.spike:
      return


def _check_targets(run: RunContext, loop: LoopState, step: int, sums: Metrics) -> None:
  """Raise ConfigError if no example had a target so far."""
  loop.has_targets = loop.has_targets or not interval.is_empty(loop.interval, sums)
  if not loop.has_targets and step >= min(preflight.FIRST, run.total_steps):
    raise ConfigError(
      f'data: no row of the first {step} steps has a target for {run.data.parts.user}, and nothing would be trained: '
      'name a longer text, or a vocabulary that knows its words'
    )


def _has_diverged(run: RunContext, loop: LoopState) -> bool:
  """Return whether too many updates in a row were skipped."""
  most = run.settings['max_skipped']
  if most is None or loop.skipped_in_a_row < most:
    return False
  log.error(
    f'step {loop.step}: {loop.skipped_in_a_row} updates in a row were not finite (max_skipped): training diverged'
  )
  loop.exit_code = DIVERGED
  return True


def _evaluate_or_save(run: RunContext, loop: LoopState, due: _Due) -> None:
  """Make the evaluations that are due; save the state if one fails.

  The saved step is marked, and a resumed run begins with its evaluations.
  """
  try:
    _evaluate(run, loop, due)
  except Exception as error:
    if jax.process_count() > 1 and not isinstance(error, ConfigError):
      raise  # one process cannot save alone, and all meet errors of data only
    log.error(f'an evaluation failed at step {loop.step}: the state is saved, the same command evaluates it again')
    loop.scores = {}
    _save(run, loop, due._replace(evaluations=[]), failed=True)
    raise


def _evaluate(run: RunContext, loop: LoopState, due: _Due) -> None:
  """Make the evaluations due, which may change rate or end run."""
  settings, kept = run.settings, run.options.predictions
  with run.meter.paused('evaluate'), run.watchdog.paused():
    # an average of the parameters, if the optimiser keeps one
    params = run.optimiser.eval_params(loop.state.opt_state, loop.state.params)
    loop.scores = {}
    for name in due.evaluations:
      # predictions of one evaluation may be kept
      task, output = run.data.parts.of(name).task, kept if kept is not None and kept.evaluation == name else None
      result = evaluate(
        run.data.evaluations[name],
        params,
        run.key,
        task=task,
        steps=run.eval_steps[name],
        layout=run.data.layout,
        units=settings['eval'][name]['units'],
        scores=run.data.scores[name],
        keep=output is not None,
        check=run.watchdog.moved,
      )
      if output is not None and jax.process_index() == 0:
        predicted.write(output.file, result.predictions, result.records, form=None, in_words=task.in_words)
      loop.scores |= {f'{name}/{metric}': value for metric, value in result.metrics.items()}
    # to metrics.jsonl, the sinks and the terminal
    run.writer.write(loop.step, loop.scores)
    run.bar.keep(loop.step, loop.scores)
    if due.watched:
      value = loop.scores[settings['best'][0]]
      if not math.isfinite(value):
        log.warning(f'step {loop.step}: {settings["best"][0]} is {value}, so its checkpoint cannot become the best')
      # schedule 'plateau' and rule 'asgd' act on the metric, then early stopping
      observed = run.optimiser.observe(loop.state.opt_state, as_loss(settings['best'], value))
      loop.state = dataclasses.replace(loop.state, opt_state=observed)
      run.patience.see(value)
      loop.given_up = loop.step < run.last_step and run.options.gives_up(loop.step, value)


def _save(run: RunContext, loop: LoopState, due: _Due, *, failed: bool = False) -> None:
  """Save a finite state, or end; mark it if evaluations failed."""
  run.save_timer.restart()
  if due.timed:
    log.info(f'step {loop.step} is saved by time (save_minutes)')
  if paths := _nonfinite(run, loop):
    log.error(f'step {loop.step} is not saved: numbers are not finite in {paths}')
    # while updates are skipped, `max_skipped` decides when to end; otherwise nothing would ever end or save the run
    may_recover = loop.skipped_in_a_row and run.settings['max_skipped'] is not None
    if not may_recover or due.interrupted or loop.step == run.last_step:
      loop.exit_code = DIVERGED
    return
  with run.meter.paused('save'), run.watchdog.paused():
    spent = run.spent.with_this_call(run.meter)
    run.writer.flush()
    run.checkpoints.save(
      loop.step,
      run.to_save(loop.state),
      metrics={**loop.scores, **spent} if due.evaluations else spent,
      sums={**interval.to_sums(loop.interval, run.measures), **run.guards.sums(), **(_FAILED if failed else {})},
      best_allowed=loop.skipped_in_a_row == 0,
      timed=due.timed,
    )


def _nonfinite(run: RunContext, loop: LoopState) -> str:
  """Return paths of arrays that are not finite, for a message."""
  paths = [path for path, is_bad in jax.device_get(dict(run.nonfinite(loop.state))).items() if is_bad]
  return ', '.join(paths[:4]) + (f' and {len(paths) - 4} more' if len(paths) > 4 else '')
