"""The training loop: `train`, one script to be read from top to bottom; what it calls stands below it or in the folder.

The state comes from, in this order: 1. the newest sound checkpoint of the run folder; 2. `init_from`, for the
parameters that it names; 3. a fresh initialisation.
"""

import contextlib
import dataclasses
import functools
import logging
import platform
import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from plm_jax import checkpoint, errors, files, optim, sharding
from plm_jax.checkpoint import frozen
from plm_jax.cli import progress
from plm_jax.errors import ConfigError
from plm_jax.files import RunFolder, Where
from plm_jax.training import (
  curves,
  evaluation,
  feed,
  from_data,
  history,
  interval,
  metrics,
  preflight,
  profiling,
  run_folder,
  sizes,
  spikes,
  trained_part,
)
from plm_jax.training.evaluation import evaluate
from plm_jax.training.meter import Meter
from plm_jax.training.parts import (
  Parts,
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
)
from plm_jax.training.step import (
  TrainState,
  abstract_params,
  advance_first,
  logged_step,
  state_maker,
  train_step,
  unsound,
)
from plm_jax.training.stopping import Patience, catch_signals

log = logging.getLogger(__name__)

DONE, INTERRUPTED, DIVERGED = 0, 3, 4


class Outcome(NamedTuple):
  """How a call of `train` ended: the exit code of the command, and what `result.json` holds."""

  exit_code: int
  result: dict[str, Any]


def train(
  settings: Mapping[str, Any],
  workdir: Where,
  *,
  stop_at: int | None = None,
  extend: int | None = None,
  profile: profiling.Steps | None = None,
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
    gives_up: called with each value of the metric of `best` and its step, but for the last step; True saves and ends.

  Raises:
    ConfigError: the settings do not fit each other, the folder or the data.
  """
  part = functools.partial(_train, workdir=workdir, stop_at=stop_at, extend=extend, profile=profile, gives_up=gives_up)
  outcome = part(settings)
  while isinstance(outcome, spikes.Spike):
    spikes.go_back(RunFolder.at(workdir), outcome)
    outcome = part({**settings, 'extend': (), 'skip': ()})  # the folder knows more of them now
  return outcome


def _train(
  settings: Mapping[str, Any],
  *,
  workdir: Where,
  stop_at: int | None,
  extend: int | None,
  profile: profiling.Steps | None,
  gives_up: Callable[[int, float], bool],
) -> Outcome | spikes.Spike:
  """What `train` does up to its end or to a spike of the loss."""
  with contextlib.ExitStack() as stack:
    # --- run folder, vocabulary, model, task -------------------------------------------------------------------------
    stopping = stack.enter_context(catch_signals())
    main = jax.process_index() == 0
    folder = RunFolder.at(workdir)
    checkpoint.for_orbax(folder.root)
    settings = from_data.filled(settings, run_folder.begun(folder))
    if not run_folder.begun(folder):
      preflight.check(settings)  # before the folder is made
    stack.enter_context(run_folder.claim(folder, main=main))
    old = run_folder.begun(folder)
    settings, changes = run_folder.agree_with_folder(settings, old)
    _check_extend(extend, folder, old)
    if (finished := run_folder.finished(folder, old)) and extend is None:
      log.info(
        f'{folder.root} is finished: {finished["step"]} steps are done, nothing is changed; --extend=N makes N more'
      )
      return Outcome(DONE, finished)
    stack.enter_context(run_folder.log_file(folder, main=main))
    for change in changes:
      log.info(f'resuming with {change}')
    vocab = make_vocab(settings, folder if old else None)
    parts, execution = make_parts(settings, vocab, folder if old else None), settings['execution']
    stopping.check()

    # --- mesh --------------------------------------------------------------------------------------------------------
    layout = make_layout(settings)
    mesh = layout.mesh
    stack.enter_context(sharding.use(layout))
    place = sharding.batch_sharding(layout)
    rows = feed.rows_per_device(settings['data']['batch_size'], accumulate=settings['accumulate'], mesh=mesh)
    feed.check_evaluations(settings['eval'], mesh=mesh)

    # --- data --------------------------------------------------------------------------------------------------------
    share = feed.host_share(layout)
    source = make_source(settings['data'], vocab, seed=settings['seed'], share=share, reader=parts)
    stopping.check()
    evaluations = make_evaluations(settings, vocab, share=share, reader=parts)
    stopping.check()
    parts = fit(parts, [source, *evaluations.values()])
    task = parts.task
    scored_by = evaluation.scores_of(settings, parts, evaluations)
    every = {name: block['every'] or settings['eval_every'] for name, block in settings['eval'].items()}
    settings |= {'steps': run_folder.begun_steps(settings, source, old), 'epochs': None}
    preflight.remark(settings, source)

    # --- optimiser and state -----------------------------------------------------------------------------------------
    with errors.stage(parts.user):
      shapes = abstract_params(task, source.spec)
    with errors.stage('optim'):
      # whatever the horizon, optimisers differ in their rates only: the state is the same
      tx_of = functools.cache(
        lambda steps: optim.make(params=shapes, steps=steps, trains=task.trains, **settings['optim'])
      )
      tx = tx_of(history.total(settings))
    preflight.remark_groups(settings, shapes, task=task)
    key = jax.random.key(settings['seed'])
    maker = state_maker(task, tx, source.spec, layout=layout)
    stopping.check()
    saved = stack.enter_context(
      checkpoint.Checkpoints(folder.checkpoints, keep=settings['keep'], best=settings['best'])
    )
    part = functools.partial(trained_part.cut, tx=tx) if settings['save'] == 'trained' else lambda state: state
    restored = saved.restore(part(maker.abstract))
    if restored is not None:
      start, state = restored
      log.info(f'{folder.root}: going on from step {start}')
    if restored is None or settings['save'] == 'trained':
      fresh = _initialise(maker.fresh(key), settings, parts, tx, names=source.names)
      fresh = advance_first(fresh, maker, task=task)
      start, state = (0, fresh) if restored is None else (start, trained_part.joined(state, fresh.params))
    if settings['save'] == 'trained':
      frozen.write(saved.folder, tx.split(state.params)[1], main=main)
    if extend is not None:
      had, settings = history.total(settings), history.extended(settings, extend, at=start)
      log.info(_said_of_schedule(settings, start, had, tx_of))
    total, ends = history.total(settings), history.ends(settings)
    last = total if stop_at is None else min(total, stop_at)
    second = parts.second_vocab
    whole = (
      source if share[1] == 1 else make_source(settings['data'], vocab, seed=settings['seed'], second_vocab=second)
    )
    facts = run_folder.check_data(folder, whole, vocab, second_vocab=second, begun=bool(old))
    stopping.check()
    if main:  # the config comes last: a run whose folder has one has begun
      vocab.save(str(folder.vocab), template=None if second else make_template(settings, vocab))
      if second is not None:
        second.save(str(folder.second_vocab), template=make_template(settings, second))
      metrics.write_json(folder.data, facts)
      run_folder.write_config(folder, settings)
      if finished:  # it was, before it was extended
        metrics.write_json(folder.result, {**finished, 'finished': False, 'steps': total})

    # --- compiled functions ------------------------------------------------------------------------------------------
    bound = {'task': task, 'accumulate': settings['accumulate'], 'random': execution['random']}
    # traced once: the shapes of its metrics are asked for below, and the compiled step calls it
    plain_of = functools.cache(lambda steps: jax.jit(functools.partial(train_step, tx=tx_of(steps), **bound)))
    everywhere = NamedSharding(mesh, PartitionSpec())
    step_of = functools.cache(
      lambda steps: jax.jit(
        functools.partial(logged_step, step=plain_of(steps), log_every=settings['log_every']),
        in_shardings=(maker.places, everywhere, place, None),
        out_shardings=(maker.places, everywhere, None),
        donate_argnums=(0, 1),
      )
    )
    _, measures = jax.eval_shape(plain_of(history.horizon(settings, start)), maker.abstract, dict(source.spec), key)
    summed = interval.from_sums(run_folder.summed(folder, start), measures, mesh=mesh)
    unsound_fn = jax.jit(unsound)
    eval_steps = evaluation.make_steps(task, rows=evaluation.rows_at_once(settings))
    if settings['best'] is not None:
      name = settings['best'][0].partition('/')[0]
      spec, wanted = evaluations[name].spec, scored_by[name]
      preflight.check_best(settings['best'], spec, state.params, task=task, scores=wanted, step=eval_steps.plain)
    meter = Meter(
      sizes.training_flops(task, source.spec, state.params), dtype=execution['dtype'], mesh=mesh, hosts=share[1]
    )
    tokens_before, seconds_before = run_folder.spent(folder, start)
    counts = sizes.parameter_counts(state, tx)
    log.info(
      f'{counts["parameters"]:,} parameters, {counts["trained"]:,} trained, '
      f'{counts["outside_trunk"]:,} outside the trunk'
    )
    log.info(
      f'batch {settings["data"]["batch_size"]} rows = {rows} per device x {mesh.shape["data"]} x '
      f'{settings["accumulate"]} accumulated; {mesh.size} x {mesh.devices.flat[0].device_kind}; '
      f'{source.rows:,} rows per epoch; steps {start} to {last} of {total}'
    )

    # --- the loop ----------------------------------------------------------------------------------------------------
    writer = stack.enter_context(metrics.Writer(folder.root, resume_step=start, sinks=settings['log']))
    stopping.check()
    judged_by = settings['best'][0] if settings['best'] else None
    bar = stack.enter_context(progress.Bar(total=total, start=start, shown=main, best=judged_by))
    patience = Patience(settings, folder, start=start)
    watch = spikes.Watch(settings, folder, sums=run_folder.summed(folder, start))
    spike: spikes.Spike | None = None
    tracer = stack.enter_context(profiling.Tracer(profile, folder.profile, start=start, main=main, paused=meter.paused))
    batches = feed.to_devices(history.read(source, start, skip=settings['skip']), place)
    pending: deque[tuple[int, Any]] = deque()  # steps whose metrics are still on the device
    # two steps in flight hide the host's work; simulated devices starve when steps queue up
    in_flight = 0 if feed.simulated(mesh) else 2
    skipped_in_a_row, code, done, given_up = 0, DONE, start, False
    if restored is not None and (broken := _broken(unsound_fn(state))):
      log.error(f'step {start} holds numbers that are not finite, in {broken}')
      code = DIVERGED
    scores: dict[str, float] = {}
    began = time.monotonic()
    while code == DONE and done < last and not patience.lost and not given_up:
      with tracer.step(done + 1, state):
        with meter.waiting():
          host_batch, batch = next(batches)
        state, summed, sums = step_of(history.horizon(settings, done))(state, summed, batch, key)
      done += 1
      meter.count(host_batch)
      pending.append((done, sums))
      tracer.stepped(done, state)

      # what is due at a step does not depend on where the run was stopped, so that a resumed run does the same
      interrupted = stopping.agreed(done)
      evaluating = [name for name in evaluations if done % every[name] == 0 or done in ends]
      watching = settings['best'] is not None and settings['best'][0].partition('/')[0] in evaluating
      saving = interrupted or watching or done == last or done in ends or done % settings['save_every'] == 0
      logging_now = done == last or done in ends or done % settings['log_every'] == 0
      while len(pending) > (0 if evaluating or saving or logging_now else in_flight):
        number, sums = pending.popleft()
        skipped_in_a_row = int(jax.device_get(sums['skipped_in_a_row'][0]))
        if skipped_in_a_row:
          log.warning(f'step {number}: a gradient was not finite, the update was skipped ({skipped_in_a_row} in a row)')
        if number % settings['log_every'] == 0 or number == last or number in ends:
          means = interval.means(summed, sums)
          means = {**means, **task.summary(means), **meter.read()}
          writer.write(number, means)
          bar.show(number, means)
        if watch.on and (spike := watch.see(number, spikes.loss_of(sums), saved)):
          break
      bar.advance(done)
      if spike:
        break  # nothing of it is saved
      if settings['max_skipped'] is not None and skipped_in_a_row >= settings['max_skipped']:
        log.error(f'step {done}: {skipped_in_a_row} updates in a row were not finite (max_skipped): training diverged')
        code = DIVERGED
        break

      if evaluating:
        with meter.paused():
          params = tx.eval_params(state.opt_state, state.params)
          scores = {}
          for name in evaluating:
            units, wanted = settings['eval'][name]['units'], scored_by[name]
            values = evaluate(
              evaluations[name], params, key, task=task, steps=eval_steps, layout=layout, units=units, scores=wanted
            )
            scores |= {f'{name}/{metric}': value for metric, value in values.metrics.items()}
          writer.write(done, scores)
          bar.keep(done, scores)
          if watching:
            watched = scores[settings['best'][0]]
            state = dataclasses.replace(state, opt_state=tx.observe(state.opt_state, watched))
            patience.see(watched)
            given_up = done < last and gives_up(done, watched)
      if saving and (broken := _broken(unsound_fn(state))):
        log.error(f'step {done} is not saved: numbers are not finite in {broken}')
        # while updates are skipped, `max_skipped` says when it is over; else nothing would ever stop or save this run
        if not skipped_in_a_row or settings['max_skipped'] is None or interrupted or done == last:
          code = DIVERGED
          break
      elif saving:
        with meter.paused():
          spent = {'tokens': tokens_before + meter.all_tokens(), 'seconds': seconds_before + time.monotonic() - began}
          measured = {**scores, **spent} if evaluating else spent
          sums = {**interval.to_sums(summed, measures), **watch.sums()}
          writer.flush()
          saved.save(done, part(state), metrics=measured, sums=sums, best_allowed=skipped_in_a_row == 0)
      if interrupted:
        log.warning(f'stopped by a signal at step {done}; the state is saved, the same command goes on from here')
        code = INTERRUPTED
        break

    # --- the result --------------------------------------------------------------------------------------------------
    saved.wait()
    writer.flush()
    if spike:
      return spike
    over = code == DONE and (done == total or patience.lost)
    if code == DIVERGED:
      log.error(_way_on(folder, [step for step in saved.steps() if done > start or step < start], done))
    if code == DONE and not over:
      log.info(f'stopped at step {done} of {total}, as asked; the same command goes on from here')
    if patience.lost:
      log.info(f'early stop at step {done}: {settings["best"][0]} has not improved in {patience.limit} evaluations')
    result = {
      'finished': over,
      'exit_code': code,
      'step': done,
      'steps': total,
      'best_step': saved.best_step(),
      'metrics': metrics.last(folder.root),
      'seconds': round(seconds_before + time.monotonic() - began, 3),
      'tokens': tokens_before + meter.all_tokens(),
      'skipped': int(jax.device_get(state.skipped)),
      'spikes': spikes.read(folder),
      **counts,
      **facts,
      'metrics_sha256': files.sha256(folder.metrics) if files.exists(folder.metrics) else None,
      'versions': versions(),
    }
    if main:
      metrics.write_json(folder.result, result)
      try:
        curves.curves(folder.root)
      except Exception as error:  # noqa: BLE001 - whatever a library that draws raises, the run is done
        log.warning(f'{folder.curves} could not be drawn: {type(error).__name__}: {error}')
    return Outcome(code, result)


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


def _check_extend(extend: int | None, folder: RunFolder, old: Mapping[str, Any]) -> None:
  if extend is None:
    return
  if extend < 1:
    raise ConfigError(f'--extend={extend}: the number of steps to add, from 1 on')
  if not old:
    raise ConfigError(f'--extend={extend}: no run began in {folder.root}; leave the flag out, and set steps')
  if history.total(old) + extend > history.MOST_STEPS:
    raise ConfigError(f'--extend={extend}: a run has at most {history.MOST_STEPS:,} steps')


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


def _broken(unsound: Mapping[str, jax.Array]) -> str:
  """The arrays with a number that is not finite, for a message; empty where there are none."""
  names = [path for path, bad in jax.device_get(dict(unsound)).items() if bad]
  return ', '.join(names[:4]) + (f' and {len(names) - 4} more' if len(names) > 4 else '')


def _way_on(folder: RunFolder, steps: Sequence[int], done: int) -> str:
  """How to go on with a run that diverged at step `done`; `steps` are saved and sound."""
  if not steps:
    return f'no step of {folder.root} was saved before: begin again in another --workdir, say with a lower optim.rate'
  newest, workdir = max(steps), shlex.quote(str(folder.root))
  skip = f' --skip={done - newest}' if done > newest else ''
  return (
    f'the newest sound step is {newest} (there are {", ".join(map(str, steps))}). The same command would meet the same '
    f'batches; to leave them out, run it again after\n  python -m plm_jax.rewind --workdir={workdir} '
    f'--to_step={newest}{skip}\nor begin again in another --workdir, say with a lower optim.rate'
  )


def versions() -> dict[str, str]:
  """Versions of what the numbers of a run may depend on."""
  from importlib.metadata import version

  from plm_jax import __version__

  packages = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'numpy')
  return {'plm_jax': __version__, 'python': platform.python_version(), **{name: version(name) for name in packages}}
