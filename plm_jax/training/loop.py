"""The training loop: `train`, to be read from top to bottom.

`training/begin.py` makes what it needs.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from plm_jax import config
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import curves, history, interval, metrics, predicted
from plm_jax.training import begin, profiling
from plm_jax.training.before import preflight
from plm_jax.training.begin import Begun, Run, Tools, Way
from plm_jax.training.evaluation import evaluate
from plm_jax.training.guards import spikes
from plm_jax.training.hosts import agreement, failures, host_facts
from plm_jax.training.outcome import DIVERGED, DONE, INTERRUPTED, Outcome, code, made, way_on
from plm_jax.training.stopping import as_loss, catch_signals

log = logging.getLogger(__name__)


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
  """Trains to the last step, from the newest checkpoint of the run folder if there is one.

  Args:
    settings: as `config.resolve` returns them.
    workdir: the run folder; made if it is missing.
    stop_at: save and end after this step; the horizon of the schedule stays as it is.
    extend: so many steps more than the run has; from here on its schedule is that of a run of so many steps in all.
      A run on its way through an extension of as many steps goes on with that one.
    profile: steps to trace.
    predictions: the file of what an evaluation predicts; each evaluation writes it anew.
    gives_up: called with each value of the metric of `best` and its step, but for the last step; True saves and ends.

  Raises:
    ConfigError: the settings do not fit each other, the folder or the data.
    RunError: a device computes or keeps wrong numbers (`verify_every`).
  """
  flags = _Flags(stop_at, extend, profile, predictions)
  part = functools.partial(_train, workdir=workdir, flags=flags, gives_up=gives_up)
  with failures.watched():
    outcome = part(settings)
    while isinstance(outcome, spikes.Spike):
      spikes.go_back(RunFolder.at(workdir), outcome)
      outcome = part({**settings, 'extend': (), 'skip': ()})  # the folder knows more of them now
  return outcome


class _Flags(NamedTuple):
  """What a call asks for beside the config, as the arguments of `train`."""

  stop_at: int | None
  extend: int | None
  profile: profiling.Steps | None
  predictions: predicted.Kept | None


def _train(
  settings: Mapping[str, Any], *, workdir: Where, flags: _Flags, gives_up: Callable[[int, float], bool]
) -> Outcome | spikes.Spike:
  """What `train` does up to its end or to a spike of the loss."""
  with contextlib.ExitStack() as stack, failures.told():
    stopping = stack.enter_context(catch_signals())
    agreement.agree(functools.partial(_asked, settings, flags))
    begun = begin.begin(settings, RunFolder.at(workdir), stack, extend=flags.extend)
    if isinstance(begun, Outcome):
      if flags.predictions and not files.is_file(files.path(flags.predictions.file)):
        file = flags.predictions.file
        log.warning(f'--predictions={file}: nothing is evaluated here; plm-jax evaluate takes it as well')
      return begun
    if begun.main:
      code()  # what is running; files may change under a long run
    data = begin.make_data(begun, stack, stopping, flags.predictions)
    start, way = begin.make_start(begun, data, stack, stopping, extend=flags.extend, stop_at=flags.stop_at)
    run = begin.compile_step(begun, data, start, way)
    tools = begin.open_tools(begun, run, stack, stopping, profile=flags.profile, predictions=flags.predictions)
    if start.restored and (broken := _broken(run.unsound(way.state))):
      log.error(f'step {start.step} holds numbers that are not finite, in {broken}')
      way.code = DIVERGED
    _make_steps(run, tools, way, gives_up=gives_up)
    start.saved.wait()
    tools.writer.flush()
    return way.spike or _end(begun, run, tools, way)


def _asked(settings: Mapping[str, Any], flags: _Flags) -> dict[str, host_facts.Answer]:
  """What all processes have to be asked for alike."""
  return {
    'code': host_facts.code(),
    'config': host_facts.settings_of(settings),
    'flags': host_facts.flags(**flags._asdict()),
    'versions': host_facts.versions(),
  }


class _Due(NamedTuple):
  """What is due at a step. It does not depend on where the run was stopped, so that a resumed run does the same."""

  interrupted: bool
  evaluating: list[str]
  watching: bool
  saving: bool
  logging: bool


def _make_steps(run: Run, tools: Tools, way: Way, *, gives_up: Callable[[int, float], bool]) -> None:
  """Makes steps until the run ends for whatever reason, which `way` has then."""
  settings, start, most = run.start.settings, run.start, run.start.settings['max_skipped']
  while way.code == DONE and way.done < start.last and not tools.patience.lost and not way.given_up:
    with tools.tracer.step(way.done + 1, way.state):
      with run.meter.waiting():
        host_batch, batch = next(tools.batches)
      step = run.step_of(history.horizon(settings, way.done))
      step = tools.check.of(step, way.done + 1)
      way.state, way.summed, sums = step(way.state, way.summed, batch, start.key)
    way.done += 1
    run.meter.count(host_batch)
    way.pending.append((way.done, sums))
    tools.watchdog.stepped()
    tools.tracer.stepped(way.done, way.state)
    due = _due(run, tools, way.done)
    _read_metrics(run, tools, way, due)
    tools.bar.advance(way.done)
    if way.spike:
      return  # nothing of it is saved
    if most is not None and way.skipped_in_a_row >= most:
      count = way.skipped_in_a_row
      log.error(f'step {way.done}: {count} updates in a row were not finite (max_skipped): training diverged')
      way.code = DIVERGED
      return
    if due.evaluating:
      _evaluate(run, tools, way, due, gives_up=gives_up)
    if due.saving:
      _save(run, tools, way, due)
    if way.code == DONE and due.interrupted:
      log.warning(f'stopped by a signal at step {way.done}; the state is saved, the same command goes on from here')
      way.code = INTERRUPTED


def _due(run: Run, tools: Tools, done: int) -> _Due:
  """What is due after step `done`."""
  settings, ends = run.start.settings, run.start.ends
  last = done == run.start.last or done in ends
  interrupted = tools.stopping.agreed(done)
  evaluating = [
    name for name in run.data.evaluations if done in ends or done % config.steps_between(settings, name) == 0
  ]
  watching = settings['best'] is not None and settings['best'][0].partition('/')[0] in evaluating
  saving = interrupted or watching or last or done % settings['save_every'] == 0
  return _Due(interrupted, evaluating, watching, saving, last or done % settings['log_every'] == 0)


def _read_metrics(run: Run, tools: Tools, way: Way, due: _Due) -> None:
  """Reads the metrics of steps that the device is done with, of all where something is due; ends at a spike."""
  settings, start = run.start.settings, run.start
  while len(way.pending) > (0 if due.evaluating or due.saving or due.logging else tools.in_flight):
    number, sums = way.pending.popleft()
    way.skipped_in_a_row = int(jax.device_get(sums['skipped_in_a_row'][0]))
    if way.skipped_in_a_row:
      log.warning(f'step {number}: a gradient was not finite, the update was skipped ({way.skipped_in_a_row} in a row)')
    if number % settings['log_every'] == 0 or number == start.last or number in start.ends:
      means = interval.means(way.summed, sums)
      _check_targets(run, way, number, sums)
      means = {**means, **run.data.parts.task.summary(means), **run.meter.read()}
      tools.writer.write(number, means)
      tools.bar.show(number, means)
    if tools.watch.on and (spike := tools.watch.see(number, spikes.loss_of(sums), start.saved)):
      way.spike = spike
      return


def _check_targets(run: Run, way: Way, number: int, sums: interval.Sums) -> None:
  """Raises ConfigError for a run that had nothing to learn from since it began."""
  way.learns = way.learns or not interval.is_empty(way.summed, sums)
  if not way.learns and number >= min(preflight.FIRST, run.start.total):
    raise ConfigError(
      f'data: no row of the first {number} steps has a target for {run.data.parts.user}, and nothing would be trained: '
      'name a longer text, or a vocabulary that knows its words'
    )


def _evaluate(run: Run, tools: Tools, way: Way, due: _Due, *, gives_up: Callable[[int, float], bool]) -> None:
  """Makes the evaluations that are due; the one of `best` may change the rate, and end the run."""
  settings, data, tx = run.start.settings, run.data, run.start.tx
  with run.meter.paused(), tools.watchdog.paused():
    params = tx.eval_params(way.state.opt_state, way.state.params)
    way.scores = {}
    for name in due.evaluating:
      kept = tools.predictions if tools.predictions and tools.predictions.evaluation == name else None
      values = evaluate(
        data.evaluations[name],
        params,
        run.start.key,
        task=data.parts.task,
        steps=run.eval_steps,
        layout=data.layout,
        units=settings['eval'][name]['units'],
        scores=data.scored_by[name],
        keep=kept is not None,
        check=tools.watchdog.moved,
      )
      if kept and jax.process_index() == 0:
        in_words = data.parts.task.in_words
        predicted.write(kept.file, values.predictions, values.records, form=None, in_words=in_words)
      way.scores |= {f'{name}/{metric}': value for metric, value in values.metrics.items()}
    tools.writer.write(way.done, way.scores)
    tools.bar.keep(way.done, way.scores)
    if due.watching:
      watched = way.scores[settings['best'][0]]
      observed = tx.observe(way.state.opt_state, as_loss(settings['best'], watched))
      way.state = dataclasses.replace(way.state, opt_state=observed)
      tools.patience.see(watched)
      way.given_up = way.done < run.start.last and gives_up(way.done, watched)


def _save(run: Run, tools: Tools, way: Way, due: _Due) -> None:
  """Saves the state, unless it holds numbers that are not finite, which may end the run."""
  settings, start = run.start.settings, run.start
  if broken := _broken(run.unsound(way.state)):
    log.error(f'step {way.done} is not saved: numbers are not finite in {broken}')
    # while updates are skipped, `max_skipped` says when it is over; else nothing would ever stop or save this run
    if not way.skipped_in_a_row or settings['max_skipped'] is None or due.interrupted or way.done == start.last:
      way.code = DIVERGED
    return
  with run.meter.paused(), tools.watchdog.paused():
    spent = tools.spent(run.meter)
    measured = {**way.scores, **spent} if due.evaluating else spent
    sums = {**interval.to_sums(way.summed, run.measures), **tools.watch.sums()}
    tools.writer.flush()
    best_allowed = way.skipped_in_a_row == 0
    start.saved.save(way.done, start.part(way.state), metrics=measured, sums=sums, best_allowed=best_allowed)


def _broken(unsound: Mapping[str, jax.Array]) -> str:
  """The arrays with a number that is not finite, for a message; empty where there are none."""
  names = [path for path, bad in jax.device_get(dict(unsound)).items() if bad]
  return ', '.join(names[:4]) + (f' and {len(names) - 4} more' if len(names) > 4 else '')


def _end(begun: Begun, run: Run, tools: Tools, way: Way) -> Outcome:
  """Says how the run ended and writes its result and its curves."""
  folder, start, done = begun.folder, run.start, way.done
  skipped = int(jax.device_get(way.state.skipped))
  if way.code == DONE and 0 < done == skipped:
    log.error(
      f'none of the {done} updates was finite, so all were skipped and nothing was trained: training diverged. Begin '
      'again in another --workdir, say with a lower optim.rate or other numbers in the config'
    )
    way.code = DIVERGED
  elif way.code == DIVERGED:
    steps = [step for step in start.saved.steps() if done > start.step or step < start.step]
    log.error(way_on(folder, steps, done))
  over = way.code == DONE and (done == start.total or tools.patience.lost)
  if start.past:
    log.info(f'the run is at step {done} of {start.total}, past the one of --stop_at: no step was made')
  elif way.code == DONE and not over:
    log.info(f'stopped at step {done} of {start.total}, as asked; the same command goes on from here')
  if tools.patience.lost:
    metric = start.settings['best'][0]
    log.info(f'early stop at step {done}: {metric} has not improved in {tools.patience.limit} evaluations')
  spent = tools.spent(run.meter)
  result = {
    'finished': over,
    'exit_code': way.code,
    'step': done,
    'steps': start.total,
    'best_step': start.saved.best_step(),
    'metrics': metrics.last(folder.root),
    'seconds': round(spent['seconds'], 3),
    'tokens': spent['tokens'],
    'skipped': skipped,
    'spikes': spikes.read(folder),
    **run.counts,
    **run.data.facts,
    'metrics_sha256': files.sha256(folder.metrics) if files.exists(folder.metrics) else None,
  }
  if begun.main:
    result |= made(run.data.layout.mesh.local_devices)
    metrics.write_json(folder.result, result)
    try:
      curves.curves(folder.root)
    except Exception as error:  # noqa: BLE001 - whatever a library that draws raises, the run is done
      log.warning(f'{folder.curves} could not be drawn: {type(error).__name__}: {error}')
  return Outcome(way.code, result)
