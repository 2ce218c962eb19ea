"""The training loop: `train`, one script to be read from top to bottom; what it calls stands below it or in the folder.

The state comes from, in this order: 1. the newest sound checkpoint of the run folder; 2. `init_from`, for the
parameters that it names; 3. a fresh initialisation.
"""

import contextlib
import dataclasses
import functools
import logging
import platform
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from plm_jax import checkpoint, errors, files, optim, sharding
from plm_jax.cli import progress
from plm_jax.errors import ConfigError
from plm_jax.files import RunFolder, Where
from plm_jax.training import curves, feed, metrics, preflight, run_folder, sizes
from plm_jax.training.evaluation import evaluate
from plm_jax.training.meter import Meter
from plm_jax.training.parts import (
  Parts,
  check_vocab_of,
  init_params_from,
  make_evaluations,
  make_parts,
  make_source,
  make_template,
  make_vocab,
)
from plm_jax.training.step import TrainState, abstract_params, eval_step, state_maker, train_step
from plm_jax.training.stopping import Patience, catch_signals

log = logging.getLogger(__name__)

DONE, INTERRUPTED, DIVERGED = 0, 3, 4


class Outcome(NamedTuple):
  """How a call of `train` ended: the exit code of the command, and what `result.json` holds."""

  exit_code: int
  result: dict[str, Any]


def train(settings: Mapping[str, Any], workdir: Where, *, stop_at: int | None = None) -> Outcome:
  """Trains to `steps`, from the newest checkpoint of the run folder if there is one.

  Args:
    settings: as `config.resolve` returns them.
    workdir: the run folder; made if it is missing.
    stop_at: save and end after this step; the horizon of the schedule stays `steps`.

  Raises:
    ConfigError: the settings do not fit each other, the folder or the data.
  """
  with contextlib.ExitStack() as stack:
    # --- run folder, vocabulary, model, task -------------------------------------------------------------------------
    main = jax.process_index() == 0
    folder = RunFolder.at(workdir)
    if not run_folder.begun(folder):
      preflight.check(settings)  # before the folder is made
    stack.enter_context(run_folder.claim(folder, main=main))
    old = run_folder.begun(folder)
    settings, changes = run_folder.agree_with_folder(settings, old)
    if finished := run_folder.finished(folder):
      log.info(f'{folder.root} is finished: {finished["step"]} steps are done, nothing is changed')
      return Outcome(DONE, finished)
    stack.enter_context(run_folder.log_file(folder, main=main))
    for change in changes:
      log.info(f'resuming with {change}')
    vocab = make_vocab(settings, folder if old else None)
    parts = make_parts(settings, vocab)
    task, execution = parts.task, settings['execution']

    # --- mesh --------------------------------------------------------------------------------------------------------
    with errors.stage('sharding'):
      mesh = sharding.make_mesh(settings['sharding']['mesh'])
      layout = sharding.make_layout(mesh, settings['sharding']['rules'])
    stack.enter_context(sharding.use(layout))
    place = sharding.batch_sharding(layout)
    rows = feed.rows_per_device(settings['data']['batch_size'], accumulate=settings['accumulate'], mesh=mesh)

    # --- data --------------------------------------------------------------------------------------------------------
    share = feed.host_share(layout)
    source = make_source(settings['data'], vocab, seed=settings['seed'], share=share, reader=parts)
    evaluations = make_evaluations(settings, vocab, share=share, reader=parts)
    every = {name: block['every'] or settings['eval_every'] for name, block in settings['eval'].items()}
    total = run_folder.total_steps(settings, source, old)
    last = total if stop_at is None else min(total, stop_at)

    # --- optimiser and state -----------------------------------------------------------------------------------------
    stopping = stack.enter_context(catch_signals())  # before compiling, where a KeyboardInterrupt might be lost
    with errors.stage(parts.user):
      shapes = abstract_params(task, source.spec)
    with errors.stage('optim'):
      tx = optim.make(params=shapes, steps=total, **settings['optim'])
    key = jax.random.key(settings['seed'])
    maker = state_maker(task, tx, source.spec, layout=layout)
    saved = stack.enter_context(
      checkpoint.Checkpoints(folder.checkpoints, keep=settings['keep'], best=settings['best'])
    )
    restored = saved.restore(maker.abstract)
    if restored is not None:
      start, state = restored
      log.info(f'{folder.root}: going on from step {start}')
    else:
      start, state = 0, _initialise(maker.fresh(key), settings, parts)
    whole = source if share[1] == 1 else make_source(settings['data'], vocab, seed=settings['seed'])
    facts = run_folder.check_data(folder, whole, vocab, begun=bool(old))
    if main:  # the config comes last: a run whose folder has one has begun
      vocab.save(str(folder.vocab), template=make_template(settings, vocab))
      metrics.write_json(folder.data, facts)
      metrics.write_json(folder.config, {**settings, 'steps': total, 'epochs': None})

    # --- compiled functions ------------------------------------------------------------------------------------------
    step_fn = jax.jit(
      functools.partial(train_step, task=task, tx=tx, accumulate=settings['accumulate'], random=execution['random']),
      in_shardings=(maker.places, place, None),
      out_shardings=(maker.places, None),
      donate_argnums=0,
    )
    eval_fn = jax.jit(functools.partial(eval_step, task=task))
    if settings['best'] is not None:
      scored = evaluations[settings['best'][0].partition('/')[0]].spec
      preflight.check_best(settings['best'], scored, state.params, task=task, step=eval_fn)
    meter = Meter(sizes.training_flops(task, source.spec, state.params), dtype=execution['dtype'], hosts=share[1])
    tokens_before, seconds_before = run_folder.spent(folder, start)
    counts = sizes.parameter_counts(state, tx)
    log.info(
      f'{counts["parameters"]:,} parameters, {counts["trained"]:,} trained, '
      f'{counts["outside_trunk"]:,} outside the trunk'
    )
    log.info(
      f'batch {settings["data"]["batch_size"]} rows = {rows} per device x {mesh.shape["data"]} x '
      f'{settings["accumulate"]} accumulated; {mesh.size} x {jax.devices()[0].device_kind}; '
      f'{source.rows:,} rows per epoch; steps {start} to {last} of {total}'
    )

    # --- the loop ----------------------------------------------------------------------------------------------------
    writer = stack.enter_context(metrics.Writer(folder.root, resume_step=start, sinks=settings['log']))
    judged_by = settings['best'][0] if settings['best'] else None
    bar = stack.enter_context(progress.Bar(total=total, start=start, shown=main, best=judged_by))
    patience = Patience(settings, folder, start=start)
    batches = feed.to_devices(source.read(start), place)
    pending: deque[tuple[int, Any]] = deque()  # steps whose metrics are still on the device
    # two steps in flight hide the host's work; simulated devices starve when steps queue up
    in_flight = 0 if feed.simulated(mesh) else 2
    skipped_in_a_row, code, done = 0, DONE, start
    scores: dict[str, float] = {}
    began = time.monotonic()
    while done < last and not patience.lost:
      host_batch, batch = next(batches)
      state, sums = step_fn(state, batch, key)
      done += 1
      meter.count(host_batch)
      pending.append((done, sums))

      # what is due at a step does not depend on where the run was stopped, so that a resumed run does the same
      interrupted = stopping.agreed(done)
      evaluating = [name for name in evaluations if done % every[name] == 0 or done == total]
      watching = settings['best'] is not None and settings['best'][0].partition('/')[0] in evaluating
      saving = interrupted or watching or done == last or done % settings['save_every'] == 0
      logging_now = done == last or done % settings['log_every'] == 0
      while len(pending) > (0 if evaluating or saving or logging_now else in_flight):
        number, sums = pending.popleft()
        skipped_in_a_row = int(jax.device_get(sums['skipped_in_a_row'][0]))
        if skipped_in_a_row:
          log.warning(f'step {number}: a gradient was not finite, the update was skipped ({skipped_in_a_row} in a row)')
        if number % settings['log_every'] == 0 or number == last:
          means = metrics.mean(jax.device_get(sums))
          means = {**means, **task.summary(means), **meter.read()}
          writer.write(number, means)
          bar.show(number, means)
      bar.advance(done)
      if settings['max_skipped'] is not None and skipped_in_a_row >= settings['max_skipped']:
        log.error(f'step {done}: {skipped_in_a_row} updates in a row were not finite (max_skipped): training diverged')
        code = DIVERGED
        break

      if evaluating:
        with meter.paused():
          params = tx.eval_params(state.opt_state, state.params)
          scores = {}
          for name in evaluating:
            units = settings['eval'][name]['units']
            values = evaluate(evaluations[name], params, key, task=task, step=eval_fn, layout=layout, units=units)
            scores |= {f'{name}/{metric}': value for metric, value in values.items()}
          writer.write(done, scores)
          bar.show(done, scores)
          if watching:
            watched = scores[settings['best'][0]]
            state = dataclasses.replace(state, opt_state=tx.observe(state.opt_state, watched))
            patience.see(watched)
      if saving:
        with meter.paused():
          spent = {'tokens': tokens_before + meter.all_tokens(), 'seconds': seconds_before + time.monotonic() - began}
          measured = {**scores, **spent} if evaluating else spent
          saved.save(done, state, metrics=measured, best_allowed=skipped_in_a_row == 0)
      if interrupted:
        log.warning(f'stopped by a signal at step {done}; the state is saved, the same command goes on from here')
        code = INTERRUPTED
        break

    # --- the result --------------------------------------------------------------------------------------------------
    saved.wait()
    over = code == DONE and (done == total or patience.lost)
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
      **counts,
      **facts,
      'versions': versions(),
    }
    if main:
      metrics.write_json(folder.result, result)
      curves.curves(folder.root)
    return Outcome(code, result)


def _initialise(state: TrainState, settings: Mapping[str, Any], parts: Parts) -> TrainState:
  """The fresh state, with the parameters that `init_from` names replaced."""
  if not settings['init_from']:
    return state
  with errors.stage('init_from'):
    for entry in settings['init_from']:
      if not files.exists(files.path(entry['source'])):
        raise ConfigError(f'init_from: there is no {entry["source"]}: name a run folder or one with saved parameters')
      check_vocab_of(entry['source'], parts.vocab)
    params, report = init_params_from(settings, parts, state.params)
  log.info(report.table())
  return dataclasses.replace(state, params=params)


def versions() -> dict[str, str]:
  """Versions of what the numbers of a run may depend on."""
  from importlib.metadata import version

  from plm_jax import __version__

  packages = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'numpy')
  return {'plm_jax': __version__, 'python': platform.python_version(), **{name: version(name) for name in packages}}


def start_processes(coordinator: str | None, processes: int | None, process: int | None) -> None:
  """Connects to the other processes of a run; without arguments there are none.

  Raises:
    ConfigError: some of the three are given and others not.
  """
  given = [value is not None for value in (coordinator, processes, process)]
  if any(given) and not all(given):
    raise ConfigError('--coordinator, --processes and --process are given together or not at all')
  if coordinator is not None:
    jax.distributed.initialize(coordinator, num_processes=processes, process_id=process)
