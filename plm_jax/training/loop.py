"""The training loop: `train`, read from top to bottom; what it leans on stands below it.

State comes from, in this order: 1. the newest sound checkpoint of the run folder; 2. `init_from`, for the parameters it
names; 3. a fresh initialisation.
"""

import contextlib
import dataclasses
import functools
import logging
import pathlib
import platform
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from plm_jax import checkpoint, errors, optim, sharding, weights
from plm_jax.checkpoint import init_from
from plm_jax.cli import progress
from plm_jax.errors import ConfigError
from plm_jax.noise.keys import noise_root, with_step
from plm_jax.training import curves, feed, flops, metrics, run_folder
from plm_jax.training.evaluation import evaluate
from plm_jax.training.meter import Meter
from plm_jax.training.parts import Parts, check_vocab_of, make_evaluations, make_parts, make_source, make_vocab
from plm_jax.training.step import TrainState, abstract_params, bind, eval_step, state_maker, step_rng, train_step
from plm_jax.training.stopping import Patience, catch_signals
from plm_jax.types import Source, Task

log = logging.getLogger('plm_jax')

DONE, INTERRUPTED, DIVERGED = 0, 3, 4


class Outcome(NamedTuple):
  """How a call of `train` ended: the exit code of the command, and what `result.json` holds."""

  exit_code: int
  result: dict[str, Any]


def train(settings: Mapping[str, Any], workdir: str | pathlib.Path, *, stop_at: int | None = None) -> Outcome:
  """Trains to `steps`, going on from where the run folder stands.

  Args:
    settings: as `config.resolve` returns them.
    workdir: the run folder; made where it is missing.
    stop_at: end after this step and save; the schedule's horizon stays `steps`.

  Raises:
    ConfigError: the settings do not fit each other, the folder or the data.
  """
  with contextlib.ExitStack() as stack:
    # --- run folder, vocabulary, model, task -------------------------------------------------------------------------
    main = jax.process_index() == 0
    workdir = pathlib.Path(workdir)
    stack.enter_context(run_folder.claim(workdir, main=main))
    old = run_folder.read_json(workdir / 'config.json')
    settings, changes = run_folder.agree_with_folder(settings, old)
    if finished := run_folder.finished(workdir):
      log.info(f'{workdir} is finished: {finished["step"]} steps are done, nothing is changed')
      return Outcome(DONE, finished)
    stack.enter_context(run_folder.log_file(workdir, main=main))
    for change in changes:
      log.info(f'resuming with {change}')
    vocab = make_vocab(settings, workdir)
    parts = make_parts(settings, vocab)
    task, execution = parts.task, settings['execution']

    # --- mesh --------------------------------------------------------------------------------------------------------
    with errors.stage('sharding'):
      mesh = sharding.make_mesh(settings['sharding']['mesh'])
      layout = sharding.make_layout(mesh, settings['sharding']['rules'])
    stack.enter_context(sharding.use(layout))
    place = sharding.batch_sharding(layout)
    rows = _rows_per_device(settings['data']['batch_size'], settings['accumulate'], mesh)

    # --- data --------------------------------------------------------------------------------------------------------
    share = feed.host_share(layout)
    source = make_source(settings['data'], vocab, seed=settings['seed'], share=share, task=task)
    evaluations = make_evaluations(settings, vocab, share=share, task=task)
    every = {name: block['every'] or settings['eval_every'] for name, block in settings['eval'].items()}
    total = run_folder.total_steps(settings, source, old)
    last = total if stop_at is None else min(total, stop_at)

    # --- optimiser and state -----------------------------------------------------------------------------------------
    stopping = stack.enter_context(catch_signals())  # from here on: an exception may be lost within a compiler
    with errors.stage('optim'):
      tx = optim.make(params=abstract_params(task, source.spec), steps=total, **settings['optim'])
    key = jax.random.key(settings['seed'])
    maker = state_maker(task, tx, source.spec, layout=layout)
    saved = stack.enter_context(
      checkpoint.Checkpoints(workdir / 'checkpoints', keep=settings['keep'], best=settings['best'])
    )
    restored = saved.restore(maker.abstract)
    if restored is not None:
      start, state = restored
      log.info(f'{workdir}: going on from step {start}')
    else:
      start, state = 0, _initialise(maker.fresh(key), settings, parts)
    whole = source if share[1] == 1 else make_source(settings['data'], vocab, seed=settings['seed'])
    facts = run_folder.check_data(workdir, whole, vocab, begun=bool(old))
    if main:  # config.json comes last: a folder that has it has begun
      vocab.save(str(workdir / 'vocab'))
      metrics.write_json(workdir / 'data.json', facts)
      metrics.write_json(workdir / 'config.json', {**settings, 'steps': total, 'epochs': None})

    # --- compiled functions ------------------------------------------------------------------------------------------
    step_fn = jax.jit(
      functools.partial(train_step, task=task, tx=tx, accumulate=settings['accumulate'], random=execution['random']),
      in_shardings=(maker.places, place, None),
      out_shardings=(maker.places, None),
      donate_argnums=0,
    )
    eval_fn = jax.jit(functools.partial(eval_step, task=task))
    _check_best(settings['best'], evaluations, state, key, task=task, step=eval_fn)
    meter = Meter(_flops_per_row(task, source, state), dtype=execution['dtype'], hosts=share[1])
    tokens_before, seconds_before = run_folder.spent(workdir, start)
    sizes = parameter_counts(state, tx)
    log.info(
      f'{sizes["parameters"]:,} parameters, {sizes["trained"]:,} trained, {sizes["outside_trunk"]:,} outside the trunk'
    )
    log.info(
      f'batch {settings["data"]["batch_size"]} rows = {rows} a device x {mesh.shape["data"]} x '
      f'{settings["accumulate"]} accumulated; {mesh.size} x {jax.devices()[0].device_kind}; '
      f'{source.rows:,} rows an epoch; steps {start} to {last} of {total}'
    )

    # --- the loop ----------------------------------------------------------------------------------------------------
    writer = stack.enter_context(contextlib.closing(metrics.Writer(workdir, resume_step=start, sinks=settings['log'])))
    bar = stack.enter_context(progress.Bar(total=total, start=start, shown=main))
    patience = Patience(settings, workdir, start=start)
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

      # what is due at a step does not depend on where the run was stopped: the pieces of a run do what the whole does
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

    # --- what is left behind -----------------------------------------------------------------------------------------
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
      'metrics': metrics.last(workdir),
      'seconds': round(seconds_before + time.monotonic() - began, 3),
      'tokens': tokens_before + meter.all_tokens(),
      'skipped': int(jax.device_get(state.skipped)),
      **sizes,
      **facts,
      'versions': versions(),
    }
    if main:
      metrics.write_json(workdir / 'result.json', result)
      curves.curves(workdir)
    return Outcome(code, result)


def _initialise(state: TrainState, settings: Mapping[str, Any], parts: Parts) -> TrainState:
  """The fresh state with the parameters that `init_from` names in place of its own."""
  if not settings['init_from']:
    return state
  with errors.stage('init_from'):
    for entry in settings['init_from']:
      if not pathlib.Path(entry['source']).expanduser().exists():
        raise ConfigError(f'init_from: there is no {entry["source"]}: name a run folder or one with saved parameters')
      check_vocab_of(entry['source'], parts.vocab)
    params, report = init_from.initialise(
      state.params,
      settings['init_from'],
      open_params=lambda source, step: weights.open(source, step=step).params,
      position_rows=parts.trunk.position_rows,
    )
  log.info(report.table())
  return dataclasses.replace(state, params=params)


# Numbers about a run -------------------------------------------------------------------------------------------------


def parameter_counts(state: TrainState, tx: optim.Optimiser) -> dict[str, int]:
  """How many parameters there are, how many train, and how many the head adds to the trunk."""
  count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))  # noqa: E731
  return {
    'parameters': count(state.params),
    'trained': count(tx.split(state.params)[0]),
    'outside_trunk': count({name: tree for name, tree in state.params.items() if name != 'trunk'}),
  }


def _flops_per_row(task: Task, source: Source, state: TrainState) -> float:
  """Matrix-product operations of a training step a row of `source`: three forward passes, without recompute."""
  key = jax.random.key(0)
  rows = source.spec['row_id'].shape[0]

  def forward(params: Any, batch: Any) -> Any:
    example = task.prepare(noise_root(key), with_step(batch, 0))
    rng = step_rng(key, jnp.zeros((), jnp.int32))
    return task.loss(bind(task, params, train=False, rng=rng), example, task.init_carry(rows), rng).value

  return 3 * flops.count(forward, state.params, dict(source.spec)) / rows


def versions() -> dict[str, str]:
  """What a figure may depend on."""
  from importlib.metadata import version

  from plm_jax import __version__

  packages = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'numpy')
  return {'plm_jax': __version__, 'python': platform.python_version(), **{name: version(name) for name in packages}}


# Stopping ------------------------------------------------------------------------------------------------------------


def _check_best(
  best: tuple[str, str] | None, evaluations: Mapping[str, Source], state: TrainState, key: Any, *, task: Task, step: Any
) -> None:
  """Raises where `best` names a metric that its evaluation does not give; nothing is computed."""
  if best is None:
    return
  evaluation, _, name = best[0].partition('/')
  spec = dict(evaluations[evaluation].spec)
  carry = task.init_carry(spec['row_id'].shape[0])
  sums, _ = jax.eval_shape(step, state.params, spec, carry, key)
  known = [*sums, *task.summary(dict.fromkeys(sums, 1.0))]
  if name not in known:
    raise ConfigError(f'best: no metric {name!r} in evaluation {evaluation!r}; there are {", ".join(sorted(known))}')


# Devices -------------------------------------------------------------------------------------------------------------


def start_processes(coordinator: str | None, processes: int | None, process: int | None) -> None:
  """Joins the other processes of a run; without arguments there are none.

  Raises:
    ConfigError: some of the three are given and others not.
  """
  given = [value is not None for value in (coordinator, processes, process)]
  if any(given) and not all(given):
    raise ConfigError('--coordinator, --processes and --process are given together or not at all')
  if coordinator is not None:
    jax.distributed.initialize(coordinator, num_processes=processes, process_id=process)


def _rows_per_device(batch_size: int, accumulate: int, mesh: Mesh) -> int:
  parts = accumulate * mesh.shape['data']
  if accumulate < 1 or batch_size % parts:
    raise ConfigError(
      f'data.batch_size={batch_size} rows cannot be cut into {mesh.shape["data"]} devices x '
      f'accumulate={accumulate}: make it a multiple of {parts}'
    )
  return batch_size // parts
