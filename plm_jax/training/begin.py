"""Everything that a run needs before its first step. `begin` lists it in order.

The state comes from, in this order: 1. the newest sound checkpoint of the run folder; 2. `init_from`, for the
parameters that it names; 3. a fresh initialisation.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from plm_jax import checkpoint, optim
from plm_jax.checkpoint import frozen
from plm_jax.cli import progress
from plm_jax.config import consistency
from plm_jax.core import errors, sharding
from plm_jax.core.sharding import Layout
from plm_jax.core.types import Source
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import history, interval, metrics, predicted, run_folder
from plm_jax.training import evaluation, feed, profiling, trained_part
from plm_jax.training.before import from_data, preflight
from plm_jax.training.context import LoopState, RunContext, RunOptions, Spent, StepCache
from plm_jax.training.cost import sizes
from plm_jax.training.cost.meter import Meter
from plm_jax.training.guards import extension, spikes, verify
from plm_jax.training.guards.guards import Guards
from plm_jax.training.hosts import agreement, host_facts
from plm_jax.training.hosts.watchdog import Watchdog
from plm_jax.training.init_sources import check_sources, check_vocab_of, init_params_from
from plm_jax.training.outcome import DONE, Outcome, code
from plm_jax.training.parts import (
  Parts,
  check_rows,
  fit,
  make_evaluations,
  make_layout,
  make_parts,
  make_source,
  make_template,
  make_vocab,
  reads_second,
)
from plm_jax.training.step import Maker, TrainState, abstract_params, advance_first, state_maker, unsound
from plm_jax.training.stopping import Patience, Stopping

log = logging.getLogger(__name__)

Settings = Mapping[str, Any]


def begin(
  settings: Settings, folder: RunFolder, options: RunOptions, stack: contextlib.ExitStack, stopping: Stopping
) -> tuple[RunContext, LoopState] | Outcome:
  """Build what a run needs before its first step.

  Args:
    settings: as `config.resolve` returns them.
    folder: of the run.
    options: of this call.
    stack: closes what is opened here.
    stopping: checked between the stages.

  Returns:
    The context and the first state of the loop, or the outcome of a run that is already finished.

  Raises:
    ConfigError: the settings do not fit each other, the folder or the data.
  """
  agreement.agree(functools.partial(_shared_facts, settings, options))
  held = hold_folder(settings, folder, stack, extend=options.extend)
  if isinstance(held, Outcome):
    if options.predictions and not files.is_file(files.path(options.predictions.file)):
      file = options.predictions.file
      log.warning(f'--predictions={file}: nothing is evaluated here; plm-jax evaluate takes it as well')
    return held
  data = load_data(held, stack, stopping, options.predictions)
  start = make_start(held, data, options, stack, stopping)
  return open_run(held, data, start, options, stack, stopping)


def _shared_facts(settings: Settings, options: RunOptions) -> dict[str, host_facts.Answer]:
  """Return facts that must agree between processes before data is read."""
  return {
    'code': host_facts.code(),
    'config': host_facts.settings_of(settings),
    'flags': host_facts.flags(
      stop_at=options.stop_at, extend=options.extend, profile=options.profile, predictions=options.predictions
    ),
    'versions': host_facts.versions(),
  }


# 1. The folder -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldFolder:
  """A run folder that this process holds.

  Attributes:
    settings: as the folder and the config agree.
    folder: of the run.
    is_main: whether this process writes to it.
    old: the config in the folder; empty for a new run.
    finished: the result of a finished run that is extended now; empty otherwise.
  """

  settings: dict[str, Any]
  folder: RunFolder
  is_main: bool
  old: Settings
  finished: Mapping[str, Any]


def hold_folder(
  settings: Settings, folder: RunFolder, stack: contextlib.ExitStack, *, extend: int | None
) -> HeldFolder | Outcome:
  """Lock the folder and compare the config with that of its run.

  Returns:
    The held folder, or the outcome of a run that is finished.
  """
  is_main = jax.process_index() == 0
  checkpoint.for_orbax(folder.root)
  settings = from_data.filled(settings, run_folder.begun(folder))
  if not run_folder.begun(folder):
    preflight.check(settings)  # before the folder is made
  stack.enter_context(run_folder.claim(folder, main=is_main))
  old = run_folder.begun(folder)
  settings, changes = run_folder.agree_with_folder(settings, old)
  extension.check(extend, folder, old)
  finished = run_folder.finished(folder, old)
  if finished and extend is None:
    run_folder.check_epochs(settings, folder, old)
    log.info(extension.how_to_extend(folder, finished))
    return Outcome(DONE, finished)
  stack.enter_context(run_folder.log_file(folder, main=is_main))
  for change in changes:
    log.info(f'resuming with {change}')
  if is_main:
    code()  # cached: files may change under a long run
  return HeldFolder(settings=settings, folder=folder, is_main=is_main, old=old, finished=finished or {})


# 2. The data - -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunData:
  """Model, mesh and data of a run; the attributes are those of `RunContext`.

  Attributes:
    settings: with `steps` instead of `epochs`.
    rows: examples of a micro-batch on each device.
    share: (index, number) of the part of each batch that this host reads.
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


def load_data(
  held: HeldFolder, stack: contextlib.ExitStack, stopping: Stopping, predictions: predicted.Kept | None = None
) -> RunData:
  """Load vocabulary and data, and build the model and the mesh.

  All processes are known to have the same afterwards.
  """
  settings, stored = held.settings, held.folder if held.old else None
  vocab = make_vocab(settings, stored)
  parts = make_parts(settings, vocab, stored)
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
  check_rows(parts.task, {'data': source} | {f'eval.{name}.data': split for name, split in evaluations.items()})
  scores = evaluation.scores_of(settings, parts, evaluations)
  settings = {**settings, 'steps': run_folder.begun_steps(settings, source.steps_per_epoch, held.old), 'epochs': None}
  if not held.old:
    consistency.check_stretches(settings['optim'], settings['steps'])  # `epochs` are steps from now on
  preflight.remark(settings, source)
  if not held.old:
    preflight.check_targets(settings, parts, source, layout=layout)
  facts = _data_facts(held, settings, parts, source, reads_all=share[1] == 1)
  agreement.agree(lambda: {'vocabulary and data': host_facts.facts(facts)})
  stopping.check()
  return RunData(
    settings=settings,
    parts=parts,
    layout=layout,
    rows=rows,
    share=share,
    source=source,
    evaluations=evaluations,
    scores=scores,
    facts=facts,
  )


def _data_facts(
  held: HeldFolder, settings: Settings, parts: Parts, source: Source, *, reads_all: bool
) -> dict[str, Any]:
  """Return the digests and class names for `data.json`.

  `reads_all`: `source` has the examples of all hosts.
  """
  if not reads_all:
    source = make_source(settings['data'], parts.vocab, seed=settings['seed'], reader=parts)
  return run_folder.check_data(
    held.folder,
    source,
    parts.vocab,
    first_batches=feed.first_batches_digest(source),
    second_vocab=parts.second_vocab,
    begun=bool(held.old),
  )


# 3. Optimiser and state ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
  """The state that a run starts or resumes from; the attributes are those of `RunContext` and `LoopState`."""

  settings: dict[str, Any]
  key: jax.Array
  checkpoints: checkpoint.Checkpoints
  make_optimiser: Callable[[int], optim.Optimiser]
  optimiser: optim.Optimiser
  maker: Maker
  to_save: Callable[[TrainState], TrainState]
  restored: bool
  step: int
  state: TrainState


def make_start(
  held: HeldFolder, data: RunData, options: RunOptions, stack: contextlib.ExitStack, stopping: Stopping
) -> Start:
  """Restore or initialise the state, and write the run folder."""
  settings, task, spec = data.settings, data.parts.task, data.source.spec
  with errors.stage(data.parts.user):
    shapes = abstract_params(task, spec)
  # optimisers of other lengths differ in their rates only, and have the same state
  make_optimiser = functools.partial(_make_optimiser, settings=settings, params=shapes, trains=task.trains)
  optimiser = make_optimiser(history.total(settings))
  preflight.remark_groups(settings, shapes, task=task)
  preflight.remark_export(settings, shapes, data.parts.trunk)
  key = jax.random.key(settings['seed'])
  maker = state_maker(task, optimiser, spec, layout=data.layout)
  stopping.check()
  checkpoints = stack.enter_context(
    checkpoint.Checkpoints(held.folder.checkpoints, keep=settings['keep'], best=settings['best'])
  )
  saves_all = settings['save'] != 'trained'
  to_save = (lambda state: state) if saves_all else functools.partial(trained_part.cut, tx=optimiser)
  restored = checkpoints.restore(to_save(maker.abstract))
  step, state = _first_state(held, data, restored, maker, optimiser, key)
  if not saves_all:
    frozen.write(checkpoints.folder, optimiser.split(state.params)[1], main=held.is_main, is_new=restored is None)
  if options.extend is not None:
    is_finished = bool(held.finished)
    settings = extension.extended(settings, options.extend, at=step, finished=is_finished, optimiser_of=make_optimiser)
  _write_folder(held, data, settings)
  return Start(
    settings=settings,
    key=key,
    checkpoints=checkpoints,
    make_optimiser=make_optimiser,
    optimiser=optimiser,
    maker=maker,
    to_save=to_save,
    restored=restored is not None,
    step=step,
    state=state,
  )


def _make_optimiser(steps: int, *, settings: Settings, params: Any, trains: Sequence[str]) -> optim.Optimiser:
  """Build the optimiser of a run of `steps` steps."""
  with errors.stage('optim'):
    return optim.make(params=params, steps=steps, trains=trains, **settings['optim'])


def _first_state(
  held: HeldFolder,
  data: RunData,
  restored: tuple[int, Any] | None,
  maker: Maker,
  optimiser: optim.Optimiser,
  key: jax.Array,
) -> tuple[int, TrainState]:
  """Return the step and state of the checkpoint, or fresh ones."""
  saves_all = data.settings['save'] != 'trained'
  if restored is not None:
    log.info(f'{held.folder.root}: going on from step {restored[0]}')
    if saves_all:
      return restored
  fresh = _initialise(maker.fresh(key), data, optimiser)
  fresh = advance_first(fresh, maker, task=data.parts.task)
  return (0, fresh) if restored is None else (restored[0], trained_part.joined(restored[1], fresh.params))


def _initialise(state: TrainState, data: RunData, optimiser: optim.Optimiser) -> TrainState:
  """Return the fresh state with the parameters that `init_from` names.

  Raises:
    ConfigError: a source does not exist, or lacks parameters that checkpoints will not hold.
  """
  settings, parts, report = data.settings, data.parts, None
  if settings['init_from']:
    with errors.stage('init_from'):
      check_sources(settings['init_from'])
      for entry in settings['init_from']:
        check_vocab_of(entry, parts.vocab, parts.second_vocab)
      params, report = init_params_from(settings, parts, state.params, names=data.source.names)
    log.info(report.table())
    state = dataclasses.replace(state, params=params)
  if settings['save'] == 'trained':
    trained_part.check(report, state.params, optimiser)
  return state


def _write_folder(held: HeldFolder, data: RunData, settings: Settings) -> None:
  """Write vocabularies, digests of the data and the config.

  The config comes last: a folder that has one holds a run that has begun.
  """
  if not held.is_main:
    return
  folder, vocab, second = held.folder, data.parts.vocab, data.parts.second_vocab
  # the template of special tokens belongs to the vocabulary that examples are read with
  read_with_second = reads_second(settings)
  vocab.save(str(folder.vocab), template=None if read_with_second else make_template(settings, vocab))
  if second is not None:
    second.save(str(folder.second_vocab), template=make_template(settings, second) if read_with_second else None)
  metrics.write_json(folder.data, {**data.facts, 'steps_per_epoch': data.source.steps_per_epoch})
  run_folder.write_config(folder, settings)
  if held.finished:  # it was, before it was extended
    metrics.write_json(folder.result, {**held.finished, 'finished': False, 'steps': history.total(settings)})


# 4. The compiled step, and what the loop reads from and writes to ----------------------------------------------------


def open_run(
  held: HeldFolder,
  data: RunData,
  start: Start,
  options: RunOptions,
  stack: contextlib.ExitStack,
  stopping: Stopping,
) -> tuple[RunContext, LoopState]:
  """Trace the train step, and open the batches, metrics and guards."""
  settings, folder, step = start.settings, held.folder, start.step
  task, mesh, spec = data.parts.task, data.layout.mesh, data.source.spec
  steps = StepCache(
    start.make_optimiser,
    parts=data.parts,
    settings=settings,
    layout=data.layout,
    state_shardings=start.maker.places,
  )
  traced = steps.get(history.horizon(settings, step)).plain
  _, measures = jax.eval_shape(traced, start.maker.abstract, dict(spec), start.key)
  summed = run_folder.summed(folder, step)
  eval_steps = evaluation.make_steps(task, rows=evaluation.rows_at_once(settings))
  _check_best(settings, data, start.state, eval_steps)
  flops = sizes.training_flops(task, spec, start.state.params)
  meter = Meter(flops, dtype=settings['execution']['dtype'], mesh=mesh, hosts=data.share[1])
  total_steps, last_step = _last_steps(settings, step, options)
  counts = sizes.parameter_counts(start.state, start.optimiser)
  _log_sizes(data, settings, counts, step=step, last_step=last_step, total_steps=total_steps, options=options)
  tokens, seconds = run_folder.spent(folder, step)
  writer = stack.enter_context(metrics.Writer(folder.root, resume_step=step, sinks=settings['log']))
  stopping.check()
  best = settings['best'][0] if settings['best'] else None
  bar = progress.Bar(total=total_steps, start=step, shown=held.is_main, best=best)
  tracer = profiling.Tracer(options.profile, folder.profile, start=step, main=held.is_main, paused=meter.paused)
  shardings = start.maker.places, NamedSharding(mesh, PartitionSpec())
  run = RunContext(
    settings=settings,
    options=options,
    folder=folder,
    is_main=held.is_main,
    key=start.key,
    parts=data.parts,
    layout=data.layout,
    source=data.source,
    facts=data.facts,
    evaluations=data.evaluations,
    scores=data.scores,
    optimiser=start.optimiser,
    steps=steps,
    eval_steps=eval_steps,
    measures=measures,
    nonfinite=jax.jit(unsound),
    checkpoints=start.checkpoints,
    to_save=start.to_save,
    restored=start.restored,
    first_step=step,
    last_step=last_step,
    total_steps=total_steps,
    boundaries=frozenset(history.ends(settings)),
    stopping=stopping,
    writer=writer,
    bar=stack.enter_context(bar),
    patience=Patience(settings, folder, start=step),
    guards=Guards(
      watch=spikes.Watch(settings, folder, sums=summed),
      check=verify.Check(settings['verify_every'], shardings, folder=folder, saved=start.checkpoints),
      checkpoints=start.checkpoints,
    ),
    tracer=stack.enter_context(tracer),
    batches=feed.to_devices(
      history.read(data.source, step, skip=settings['skip']), sharding.batch_sharding(data.layout)
    ),
    watchdog=stack.enter_context(Watchdog()),
    meter=meter,
    spent=Spent(tokens, seconds),
    counts=counts,
  )
  sums = interval.from_sums(summed, measures, mesh=mesh)
  return run, LoopState(state=start.state, interval=sums, step=step, has_targets=step > 0)


def _last_steps(settings: Settings, step: int, options: RunOptions) -> tuple[int, int]:
  """Return the last step of the run and that of this call."""
  total = history.total(settings)
  return total, total if options.stop_at is None else max(step, min(total, options.stop_at))


def _check_best(settings: Settings, data: RunData, state: TrainState, eval_steps: evaluation.Steps) -> None:
  """Raise ConfigError if the evaluation that `best` names has no such metric."""
  if settings['best'] is None:
    return
  name = settings['best'][0].partition('/')[0]
  preflight.check_best(
    settings['best'],
    data.evaluations[name].spec,
    state.params,
    task=data.parts.task,
    scores=data.scores[name],
    step=eval_steps.plain,
  )


def _log_sizes(
  data: RunData,
  settings: Settings,
  counts: Mapping[str, int],
  *,
  step: int,
  last_step: int,
  total_steps: int,
  options: RunOptions,
) -> None:
  """Log the numbers of parameters, examples, devices and steps."""
  mesh = data.layout.mesh
  has_passed = options.stop_at is not None and options.stop_at < step
  steps = '' if has_passed else f'; steps {step} to {last_step} of {total_steps}'
  log.info(
    f'{counts["parameters"]:,} parameters, {counts["trained"]:,} trained, {counts["outside_trunk"]:,} outside the trunk'
  )
  log.info(
    f'batch {settings["data"]["batch_size"]} rows = {data.rows} per device x {sharding.row_places(mesh)} x '
    f'{settings["accumulate"]} accumulated; {mesh.size} x {mesh.devices.flat[0].device_kind}; '
    f'{data.source.rows:,} rows per epoch{steps}'
  )
