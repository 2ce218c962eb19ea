"""Everything that a run needs before its first step. `begin` lists it in order; `start.py` has the state."""

import contextlib
import functools
import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from plm_jax import checkpoint
from plm_jax.cli import progress
from plm_jax.config import consistency
from plm_jax.core import sharding
from plm_jax.core.types import Source
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import history, interval, metrics, predicted, run_folder
from plm_jax.training import evaluation, feed, profiling
from plm_jax.training.before import from_data, preflight
from plm_jax.training.context import UNEVALUATED, LoopState, RunContext, RunData, RunOptions, Spent, StepCache
from plm_jax.training.cost import sizes
from plm_jax.training.cost.meter import Meter
from plm_jax.training.guards import extension, spikes, verify
from plm_jax.training.guards.guards import Guards
from plm_jax.training.hosts import agreement, host_facts
from plm_jax.training.hosts.watchdog import Watchdog
from plm_jax.training.outcome import DONE, Outcome, code
from plm_jax.training.parts import (
  Parts,
  check_rows,
  fit,
  make_evaluations,
  make_layout,
  make_parts,
  make_source,
  make_vocab,
)
from plm_jax.training.start import HeldFolder, Start, make_start, unsound
from plm_jax.training.step import TrainState
from plm_jax.training.stopping import Patience, SaveTimer, Stopping

log = logging.getLogger(__name__)

Settings = Mapping[str, Any]


def begin(
  settings: Settings, folder: RunFolder, options: RunOptions, stack: contextlib.ExitStack, stopping: Stopping
) -> tuple[RunContext, LoopState] | Outcome:
  """Build what a run needs before its first step.

  Returns the context and the first state of the loop, or the outcome of a run that is already finished. Raises
  ConfigError: the settings do not fit each other, the folder or the data.

  Args:
    stack: closes what is opened here.
    stopping: checked between the stages.
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


def hold_folder(
  settings: Settings, folder: RunFolder, stack: contextlib.ExitStack, *, extend: int | None
) -> HeldFolder | Outcome:
  """Lock the folder and compare the config with that of its run.

  Returns the held folder, or the outcome of a run that is finished.
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


# 2. The data ---------------------------------------------------------------------------------------------------------


def load_data(
  held: HeldFolder, stack: contextlib.ExitStack, stopping: Stopping, predictions: predicted.Kept | None = None
) -> RunData:
  """Load vocabulary and data, and build the model and the mesh.

  All processes are known to have the same afterwards.
  """
  settings, stored = held.settings, held.folder if held.old else None
  # the task, from names in the config
  vocab = make_vocab(settings, stored)
  parts = preflight.with_evaluations(settings, make_parts(settings, vocab, stored))
  predicted.check_task(parts.task, predictions, user=parts.user)
  stopping.check()
  # the mesh, and the rows of each batch that this host reads
  layout = make_layout(settings)
  stack.enter_context(sharding.use(layout))
  rows = feed.rows_per_device(settings['data']['batch_size'], accumulate=settings['accumulate'], mesh=layout.mesh)
  feed.check_evaluations(settings['eval'], mesh=layout.mesh)
  share = feed.host_share(layout)
  # the rows of training and of each evaluation; this may tokenise
  source = make_source(settings['data'], vocab, seed=settings['seed'], share=share, reader=parts)
  stopping.check()
  evaluations = make_evaluations(settings, vocab, share=share, reader=parts)
  stopping.check()
  # labels, documents and scores have to fit the task
  parts = fit(parts, [source, *(split for name, split in evaluations.items() if name not in parts.others)])
  check_rows(parts, {'data': source} | {f'eval.{name}.data': split for name, split in evaluations.items()})
  scores = evaluation.scores_of(settings, parts, evaluations)
  # epochs become steps, now that the number of rows is known
  settings = {**settings, 'steps': run_folder.begun_steps(settings, source.steps_per_epoch, held.old), 'epochs': None}
  if not held.old:
    consistency.check_stretches(settings['optim'], settings['steps'])  # `epochs` are steps from now on
  preflight.remark(settings, source)
  if not held.old:
    preflight.check_targets(settings, parts, source, layout=layout)
  # all hosts compare what they have read
  first = list(itertools.islice(source.read(0), feed.FIRST))
  preflight.remark_unknown(first, vocab)
  facts = _data_facts(held, settings, parts, source, first if share[1] == 1 else None)
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
  held: HeldFolder, settings: Settings, parts: Parts, source: Source, first: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
  """Return digests and class names; `first` is None with several hosts."""
  if first is None:
    source = make_source(settings['data'], parts.vocab, seed=settings['seed'], reader=parts)
  digest = feed.first_batches_digest(source) if first is None else feed.batches_digest(first)
  return run_folder.check_data(
    held.folder, source, parts.vocab, first_batches=digest, second_vocab=parts.second_vocab, begun=bool(held.old)
  )


# 3. The compiled step, and what the loop reads from and writes to ----------------------------------------------------


def open_run(
  held: HeldFolder, data: RunData, start: Start, options: RunOptions, stack: contextlib.ExitStack, stopping: Stopping
) -> tuple[RunContext, LoopState]:
  """Trace the train step, and open the batches, metrics and guards."""
  settings, folder, step = start.settings, held.folder, start.step
  task, mesh, spec = data.parts.task, data.layout.mesh, data.source.spec
  # one trace of the step, without computing, gives the names of its metrics
  steps = StepCache(
    start.make_optimiser, parts=data.parts, settings=settings, layout=data.layout, state_shardings=start.maker.places
  )
  traced = steps.get(history.horizon(settings, step)).plain
  _, measures = jax.eval_shape(traced, start.maker.abstract, dict(spec), start.key)
  # what an interrupted interval had summed up
  summed = run_folder.summed(folder, step)
  eval_steps = evaluation.steps_of(settings, data.parts, data.evaluations)
  _check_best(settings, data, start.state, eval_steps)
  # sizes, for the log, and the measure of speed
  flops = sizes.training_flops(task, spec, start.state.params)
  meter = Meter(flops, dtype=settings['execution']['dtype'], mesh=mesh, hosts=data.share[1])
  total_steps = history.total(settings)
  last_step = total_steps if options.stop_at is None else max(step, min(total_steps, options.stop_at))
  counts = sizes.parameter_counts(start.state, start.optimiser)
  has_passed = options.stop_at is not None and options.stop_at < step
  _log_sizes(data, settings, counts, '' if has_passed else f'; steps {step} to {last_step} of {total_steps}')
  meter.causes['setup'] = time.monotonic() - held.since
  spent = {'began': time.time() - meter.causes['setup'], **run_folder.spent(folder, step)}
  # what the loop writes
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
    data=data,
    optimiser=start.optimiser,
    steps=steps,
    eval_steps=eval_steps,
    measures=measures,
    nonfinite=jax.jit(unsound),
    checkpoints=start.checkpoints,
    to_save=start.to_save,
    restored=start.restored,
    unevaluated=UNEVALUATED in summed,
    first_step=step,
    last_step=last_step,
    total_steps=total_steps,
    boundaries=frozenset(history.ends(settings)),
    stopping=stopping,
    save_timer=SaveTimer(settings['save_minutes']),
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
      history.read(data.source, step, skip=settings['skip']),
      sharding.batch_sharding(data.layout),
      prepare=feed.prepare_ahead(task, start.key, first=step),
    ),
    watchdog=stack.enter_context(Watchdog()),
    meter=meter,
    spent=Spent(spent),
    counts=counts,
  )
  sums = interval.from_sums(summed, measures, mesh=mesh)
  return run, LoopState(state=start.state, interval=sums, step=step, has_targets=step > 0)


def _check_best(
  settings: Settings, data: RunData, state: TrainState, eval_steps: Mapping[str, evaluation.Steps]
) -> None:
  if settings['best'] is None:
    return
  name = settings['best'][0].partition('/')[0]
  preflight.check_best(
    settings['best'],
    data.evaluations[name].spec,
    state.params,
    task=data.parts.of(name).task,
    scores=data.scores[name],
    step=eval_steps[name].plain,
  )


def _log_sizes(data: RunData, settings: Settings, counts: Mapping[str, int], steps: str) -> None:
  mesh = data.layout.mesh
  log.info(
    f'{counts["parameters"]:,} parameters, {counts["trained"]:,} trained, {counts["outside_trunk"]:,} outside the trunk'
  )
  log.info(
    f'batch {settings["data"]["batch_size"]} rows = {data.rows} per device x {sharding.row_places(mesh)} x '
    f'{settings["accumulate"]} accumulated; {mesh.size} x {mesh.devices.flat[0].device_kind}; '
    f'{data.source.rows:,} rows per epoch{steps}'
  )
  if (count := settings['accumulate']) > 1:
    rows = settings['data']['batch_size']
    log.info(f'accumulate={count}: an update reads {rows} rows (data.batch_size) in {count} parts of {rows // count}')
