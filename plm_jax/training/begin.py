"""What a run needs before its first step, in the order in which it is made.

The folder is held (`begin`), the data is read (`make_data`), the state is restored or made (`make_start`), the step is
compiled (`compile_step`), and what the loop reads from and writes to is opened (`open_tools`).

The state comes from, in this order: 1. the newest sound checkpoint of the run folder; 2. `init_from`, for the
parameters that it names; 3. a fresh initialisation.
"""

import contextlib
import dataclasses
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from plm_jax import checkpoint, optim
from plm_jax.checkpoint import frozen
from plm_jax.cli import progress
from plm_jax.config import consistency
from plm_jax.core import errors, sharding
from plm_jax.core.errors import ConfigError
from plm_jax.core.sharding import Layout
from plm_jax.core.types import Source, Vocab
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import history, interval, metrics, predicted, run_folder
from plm_jax.training import evaluation, feed, profiling, trained_part
from plm_jax.training.before import from_data, preflight
from plm_jax.training.cost import sizes
from plm_jax.training.cost.meter import Meter
from plm_jax.training.guards import spikes, verify
from plm_jax.training.hosts import agreement, host_facts
from plm_jax.training.hosts.watchdog import Watchdog
from plm_jax.training.outcome import DONE, Outcome
from plm_jax.training.parts import (
  Parts,
  check_rows,
  check_sources,
  check_vocab_of,
  fit,
  init_params_from,
  make_evaluations,
  make_layout,
  make_parts,
  make_source,
  make_template,
  make_vocab,
  reads_second,
)
from plm_jax.training.step import (
  Maker,
  TrainState,
  abstract_params,
  advance_first,
  logged_step,
  state_maker,
  train_step,
  unsound,
)
from plm_jax.training.stopping import Patience, Stopping

log = logging.getLogger(__name__)


class Begun(NamedTuple):
  """A run whose folder is held by this process.

  Attributes:
    settings: as the folder and the config agree.
    folder: of the run.
    main: whether this process writes.
    old: the config that the folder has; empty where no run began in it.
    finished: the result of the run if it was finished, before it is extended now; empty otherwise.
  """

  settings: dict[str, Any]
  folder: RunFolder
  main: bool
  old: Mapping[str, Any]
  finished: Mapping[str, Any] | None


class Data(NamedTuple):
  """Model, mesh and rows of a run. `share` is the part of each batch that this host reads, `scored_by` the scores of
  each evaluation; `settings` have the number of steps, `facts` are what `data.json` says."""

  settings: dict[str, Any]
  vocab: Vocab
  parts: Parts
  layout: Layout
  rows: int  # of each device, in a micro-batch
  share: tuple[int, int]
  source: Source
  evaluations: Mapping[str, Source]
  scored_by: Mapping[str, Any]
  facts: Mapping[str, Any]


class Start(NamedTuple):
  """Where a run begins or goes on: after step `step`, up to `total` in all and `last` in this call, which is not before
  `step`; `past` where this call asked for an end before `step`."""

  settings: dict[str, Any]
  saved: checkpoint.Checkpoints
  tx: optim.Optimiser
  tx_of: Callable[[int], optim.Optimiser]  # of a number of steps in all
  key: jax.Array
  maker: Maker
  part: Callable[[TrainState], Any]  # what checkpoints hold of a state
  restored: bool
  step: int
  total: int
  last: int
  past: bool
  ends: set[int]


class Run(NamedTuple):
  """Everything of a run that stays as it is while it makes steps."""

  data: Data
  start: Start
  step_of: Callable[[int], Any]  # the compiled step, of a number of steps in all
  measures: Any
  unsound: Callable[[TrainState], Any]
  eval_steps: Any
  meter: Meter
  counts: Mapping[str, int]


class Tools(NamedTuple):
  """What is open while a run makes steps."""

  stopping: Stopping
  writer: metrics.Writer
  bar: progress.Bar
  patience: Patience
  watch: spikes.Watch
  check: verify.Check
  tracer: profiling.Tracer
  watchdog: Watchdog
  batches: Iterator[Any]
  predictions: predicted.Kept | None
  in_flight: int
  began: float
  tokens_before: int
  seconds_before: float

  def spent(self, meter: Meter) -> dict[str, float]:
    """Tokens and seconds of the run, those of earlier calls included."""
    seconds = self.seconds_before + time.monotonic() - self.began
    return {'tokens': self.tokens_before + meter.all_tokens(), 'seconds': seconds}


@dataclasses.dataclass
class Way:
  """Where the loop stands. Nothing else holds the state, which each step puts into the place of the one before.

  Attributes:
    state: after step `done`.
    summed: metrics since the last line, on the device; None until the step is compiled.
    done: steps that are made.
    code: of the end, so far.
    pending: steps whose metrics are still on the device.
    skipped_in_a_row: updates that were not finite, up to the last step whose metrics were read.
    learns: whether a row had a target since the run began.
    scores: of the last evaluation.
    given_up: whether the caller wants no more steps.
    spike: the one that ends the loop.
  """

  state: TrainState
  summed: Any
  done: int
  code: int = DONE
  pending: deque[tuple[int, Any]] = dataclasses.field(default_factory=deque)
  skipped_in_a_row: int = 0
  learns: bool = False
  scores: dict[str, float] = dataclasses.field(default_factory=dict)
  given_up: bool = False
  spike: spikes.Spike | None = None


def begin(
  settings: Mapping[str, Any], folder: RunFolder, stack: contextlib.ExitStack, *, extend: int | None
) -> Begun | Outcome:
  """Holds the folder and compares the config with that of the run in it; the outcome of a run that is finished."""
  main = jax.process_index() == 0
  checkpoint.for_orbax(folder.root)
  settings = from_data.filled(settings, run_folder.begun(folder))
  if not run_folder.begun(folder):
    preflight.check(settings)  # before the folder is made
  stack.enter_context(run_folder.claim(folder, main=main))
  old = run_folder.begun(folder)
  settings, changes = run_folder.agree_with_folder(settings, old)
  _check_extend(extend, folder, old)
  if (finished := run_folder.finished(folder, old)) and extend is None:
    run_folder.check_epochs(settings, folder, old)
    log.info(_said_of_finished(folder, finished))
    return Outcome(DONE, finished)
  stack.enter_context(run_folder.log_file(folder, main=main))
  for change in changes:
    log.info(f'resuming with {change}')
  return Begun(settings, folder, main, old, finished)


def _said_of_finished(folder: RunFolder, result: Mapping[str, Any]) -> str:
  step, total = result['step'], result['steps']
  done = f'{step} steps are done' if step == total else f'it stopped early, at step {step} of {total}'
  return f'{folder.root} is finished: {done}, nothing is changed; --extend=N goes on to step {total} + N'


def _check_extend(extend: int | None, folder: RunFolder, old: Mapping[str, Any]) -> None:
  if extend is None:
    return
  if extend < 1:
    raise ConfigError(f'--extend={extend}: the number of steps to add, from 1 on')
  if not old:
    raise ConfigError(f'--extend={extend}: no run began in {folder.root}; leave the flag out, and set steps')
  if history.total(old) + extend > history.MOST_STEPS:
    raise ConfigError(f'--extend={extend}: a run has at most {history.MOST_STEPS:,} steps')


def make_data(
  begun: Begun, stack: contextlib.ExitStack, stopping: Stopping, predictions: predicted.Kept | None = None
) -> Data:
  """Vocabulary, model, mesh, data, which all processes are known to have alike then."""
  settings, folder, _, old, _ = begun
  vocab = make_vocab(settings, folder if old else None)
  parts = make_parts(settings, vocab, folder if old else None)
  predicted.check_task(parts.task, predictions, user=parts.user)
  stopping.check()
  layout = make_layout(settings)
  stack.enter_context(sharding.use(layout))
  rows = feed.rows_per_device(settings['data']['batch_size'], accumulate=settings['accumulate'], mesh=layout.mesh)
  feed.check_evaluations(settings['eval'], mesh=layout.mesh)
  share = feed.host_share(layout)
  source = make_source(settings['data'], vocab, seed=settings['seed'], share=share, reader=parts)
  stopping.check()
  evaluations = make_evaluations(settings, vocab, share=share, reader=parts)
  stopping.check()
  parts = fit(parts, [source, *evaluations.values()])
  check_rows(parts.task, {'data': source} | {f'eval.{name}.data': one for name, one in evaluations.items()})
  scored_by = evaluation.scores_of(settings, parts, evaluations)
  settings = {**settings, 'steps': run_folder.begun_steps(settings, source.steps_per_epoch, old), 'epochs': None}
  if not old:
    consistency.check_stretches(settings['optim'], settings['steps'])  # of `epochs`, which are steps from now on
  preflight.remark(settings, source)
  if not old:
    preflight.check_targets(settings, parts, source, layout=layout)
  facts = _facts(begun, settings, parts, source, alone=share[1] == 1)
  agreement.agree(lambda: {'vocabulary and data': host_facts.facts(facts)})
  stopping.check()
  return Data(settings, vocab, parts, layout, rows, share, source, evaluations, scored_by, facts)


def _facts(begun: Begun, settings: Mapping[str, Any], parts: Parts, source: Source, *, alone: bool) -> dict[str, Any]:
  """What `data.json` says of the data; `alone`: whether `source` has the rows of all hosts."""
  vocab, second = parts.vocab, parts.second_vocab
  whole = source if alone else make_source(settings['data'], vocab, seed=settings['seed'], reader=parts)
  first = feed.first_batches_digest(whole)
  return run_folder.check_data(
    begun.folder, whole, vocab, first_batches=first, second_vocab=second, begun=bool(begun.old)
  )


def make_start(
  begun: Begun,
  data: Data,
  stack: contextlib.ExitStack,
  stopping: Stopping,
  *,
  extend: int | None,
  stop_at: int | None,
) -> tuple[Start, Way]:
  """Optimiser and state; the settings and the vocabulary are in the folder then."""
  settings, task = data.settings, data.parts.task
  with errors.stage(data.parts.user):
    shapes = abstract_params(task, data.source.spec)
  with errors.stage('optim'):
    # whatever the horizon, optimisers differ in their rates only: the state is the same
    tx_of = functools.cache(
      lambda steps: optim.make(params=shapes, steps=steps, trains=task.trains, **settings['optim'])
    )
    tx = tx_of(history.total(settings))
  preflight.remark_groups(settings, shapes, task=task)
  preflight.remark_export(settings, shapes, data.parts.trunk)
  key = jax.random.key(settings['seed'])
  maker = state_maker(task, tx, data.source.spec, layout=data.layout)
  stopping.check()
  saved = stack.enter_context(
    checkpoint.Checkpoints(begun.folder.checkpoints, keep=settings['keep'], best=settings['best'])
  )
  part = functools.partial(trained_part.cut, tx=tx) if settings['save'] == 'trained' else lambda state: state
  restored = saved.restore(part(maker.abstract))
  step, state = _first_state(begun, data, restored, maker, tx, key)
  if settings['save'] == 'trained':
    frozen.write(saved.folder, tx.split(state.params)[1], main=begun.main, anew=restored is None)
  if extend is not None:
    had, settings = history.total(settings), history.extended(settings, extend, at=step, finished=bool(begun.finished))
    log.info(_said_of_schedule(settings, step, had, tx_of))
  total = history.total(settings)
  last = total if stop_at is None else max(step, min(total, stop_at))
  past = stop_at is not None and stop_at < step
  _write_folder(begun, data, settings)
  ends = history.ends(settings)
  made = (settings, saved, tx, tx_of, key, maker, part)
  start = Start(*made, restored is not None, step, total, last, past, ends)
  return start, Way(state, None, step, learns=step > 0)


def _first_state(
  begun: Begun,
  data: Data,
  restored: tuple[int, Any] | None,
  maker: Maker,
  tx: optim.Optimiser,
  key: jax.Array,
) -> tuple[int, TrainState]:
  """The step and the state that a run goes on from: those of a checkpoint, or fresh ones."""
  settings, trained = data.settings, data.settings['save'] == 'trained'
  if restored is not None:
    log.info(f'{begun.folder.root}: going on from step {restored[0]}')
    if not trained:
      return restored
  fresh = _initialise(maker.fresh(key), settings, data.parts, tx, names=data.source.names)
  fresh = advance_first(fresh, maker, task=data.parts.task)
  return (0, fresh) if restored is None else (restored[0], trained_part.joined(restored[1], fresh.params))


def _initialise(
  state: TrainState, settings: Mapping[str, Any], parts: Parts, tx: optim.Optimiser, *, names: Sequence[str]
) -> TrainState:
  """The fresh state, with the parameters that `init_from` names replaced.

  Raises:
    ConfigError: a source is not there, or lacks what checkpoints will not hold.
  """
  report = None
  if settings['init_from']:
    with errors.stage('init_from'):
      check_sources(settings['init_from'])
      for entry in settings['init_from']:
        check_vocab_of(entry, parts.vocab, parts.second_vocab)
      params, report = init_params_from(settings, parts, state.params, names=names)
    log.info(report.table())
    state = dataclasses.replace(state, params=params)
  if settings['save'] == 'trained':
    trained_part.check(report, state.params, tx)
  return state


def _said_of_schedule(
  settings: Mapping[str, Any], start: int, had: int, tx_of: Callable[[int], optim.Optimiser]
) -> str:
  """What an extension at step `start` does to a run of `had` steps."""
  total, schedule = history.total(settings), settings['optim']['schedule']
  if total == had:
    return f'--extend: the run goes on with its extension to {total} steps, which is under way'
  before, after = (float(tx_of(steps).rate(jax.numpy.int32(start))) for steps in (had, total))
  return (
    f'the run is extended from {had} to {total} steps. From step {start} on its schedule ({schedule}) is that of a run '
    f'of {total} steps: the learning rate is {after:.4g} there, and was {before:.4g}'
  )


def _write_folder(begun: Begun, data: Data, settings: Mapping[str, Any]) -> None:
  """Writes what a run is to its folder."""
  second, vocab, folder = data.parts.second_vocab, data.vocab, begun.folder
  if begun.main:  # the config comes last: a run whose folder has one has begun
    of_second = reads_second(settings)  # the template of rows is of the vocabulary that is read
    vocab.save(str(folder.vocab), template=None if of_second else make_template(settings, vocab))
    if second is not None:
      second.save(str(folder.second_vocab), template=make_template(settings, second) if of_second else None)
    metrics.write_json(folder.data, {**data.facts, 'steps_per_epoch': data.source.steps_per_epoch})
    run_folder.write_config(folder, settings)
    if begun.finished:  # it was, before it was extended
      metrics.write_json(folder.result, {**begun.finished, 'finished': False, 'steps': history.total(settings)})


def compile_step(begun: Begun, data: Data, start: Start, way: Way) -> Run:
  """The functions that are compiled, and what is counted of them."""
  settings, task, mesh, maker = start.settings, data.parts.task, data.layout.mesh, start.maker
  bound = {'task': task, 'accumulate': settings['accumulate'], 'random': settings['execution']['random']}
  # traced once: the shapes of its metrics are asked for below, and the compiled step calls it
  plain_of = functools.cache(lambda steps: jax.jit(functools.partial(train_step, tx=start.tx_of(steps), **bound)))
  everywhere = NamedSharding(mesh, PartitionSpec())
  step_of = functools.cache(
    lambda steps: jax.jit(
      functools.partial(logged_step, step=plain_of(steps), log_every=settings['log_every']),
      in_shardings=(maker.places, everywhere, sharding.batch_sharding(data.layout), None),
      out_shardings=(maker.places, everywhere, None),
      donate_argnums=(0, 1),
    )
  )
  first, spec = plain_of(history.horizon(settings, start.step)), data.source.spec
  _, measures = jax.eval_shape(first, maker.abstract, dict(spec), start.key)
  way.summed = interval.from_sums(run_folder.summed(begun.folder, start.step), measures, mesh=mesh)
  eval_steps = evaluation.make_steps(task, rows=evaluation.rows_at_once(settings))
  if settings['best'] is not None:
    name = settings['best'][0].partition('/')[0]
    asked, wanted = data.evaluations[name].spec, data.scored_by[name]
    preflight.check_best(settings['best'], asked, way.state.params, task=task, scores=wanted, step=eval_steps.plain)
  flops = sizes.training_flops(task, spec, way.state.params)
  meter = Meter(flops, dtype=settings['execution']['dtype'], mesh=mesh, hosts=data.share[1])
  counts = sizes.parameter_counts(way.state, start.tx)
  run = Run(data, start, step_of, measures, jax.jit(unsound), eval_steps, meter, counts)
  _say_sizes(run)
  return run


def _say_sizes(run: Run) -> None:
  settings, mesh, counts, start = run.start.settings, run.data.layout.mesh, run.counts, run.start
  way = '' if start.past else f'; steps {start.step} to {start.last} of {start.total}'
  log.info(
    f'{counts["parameters"]:,} parameters, {counts["trained"]:,} trained, {counts["outside_trunk"]:,} outside the trunk'
  )
  log.info(
    f'batch {settings["data"]["batch_size"]} rows = {run.data.rows} per device x {sharding.row_places(mesh)} x '
    f'{settings["accumulate"]} accumulated; {mesh.size} x {mesh.devices.flat[0].device_kind}; '
    f'{run.data.source.rows:,} rows per epoch{way}'
  )


def open_tools(
  begun: Begun,
  run: Run,
  stack: contextlib.ExitStack,
  stopping: Stopping,
  *,
  profile: profiling.Steps | None,
  predictions: predicted.Kept | None,
) -> Tools:
  """What the loop reads from and writes to."""
  folder, main, data, at = begun.folder, begun.main, run.data, run.start.step
  settings, mesh = run.start.settings, data.layout.mesh
  tokens_before, seconds_before = run_folder.spent(folder, at)
  writer = stack.enter_context(metrics.Writer(folder.root, resume_step=at, sinks=settings['log']))
  stopping.check()
  judged_by = settings['best'][0] if settings['best'] else None
  bar = stack.enter_context(progress.Bar(total=run.start.total, start=at, shown=main, best=judged_by))
  patience = Patience(settings, folder, start=at)
  watch = spikes.Watch(settings, folder, sums=run_folder.summed(folder, at))
  places = run.start.maker.places, NamedSharding(mesh, PartitionSpec())
  check = verify.Check(settings['verify_every'], places, folder=folder, saved=run.start.saved)
  paused = run.meter.paused
  tracer = stack.enter_context(profiling.Tracer(profile, folder.profile, start=at, main=main, paused=paused))
  place = sharding.batch_sharding(data.layout)
  batches = feed.to_devices(history.read(data.source, at, skip=settings['skip']), place)
  # two steps in flight hide the host's work; simulated devices starve when steps queue up
  in_flight = 0 if feed.simulated(mesh) else 2
  watchdog = stack.enter_context(Watchdog())
  began = time.monotonic()
  before = tokens_before, seconds_before
  fed = batches, predictions, in_flight
  return Tools(stopping, writer, bar, patience, watch, check, tracer, watchdog, *fed, began, *before)
