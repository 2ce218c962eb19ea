"""The state that a run starts or resumes from, and the files that it writes first.

The state comes from, in this order: 1. the newest sound checkpoint of the run folder; 2. `init_from`, for the
parameters that it names; 3. a fresh initialisation.
"""

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax import checkpoint, optim
from plm_jax.checkpoint import frozen
from plm_jax.core import errors
from plm_jax.core.param_paths import flat
from plm_jax.core.types import Array
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import history, metrics, run_folder
from plm_jax.training import trained_part
from plm_jax.training.before import preflight
from plm_jax.training.context import RunData, RunOptions
from plm_jax.training.guards import extension
from plm_jax.training.init_sources import check_sources, check_vocab_of, init_params_from, unfinished
from plm_jax.training.parts import make_optimiser, make_template, reads_second
from plm_jax.training.step import Maker, TrainState, abstract_params, advance_first, state_maker
from plm_jax.training.stopping import Stopping

log = logging.getLogger(__name__)

Settings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldFolder:
  """A run folder that this process holds."""

  settings: dict[str, Any]  # as the folder and the config agree
  folder: RunFolder
  is_main: bool  # whether this process writes to it
  old: Settings  # the config in the folder; empty for a new run
  finished: Mapping[str, Any]  # the result of a finished run that is extended now; empty otherwise
  since: float = dataclasses.field(default_factory=time.monotonic)  # when it was taken, by the monotonic clock


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
  optimiser_of = functools.partial(make_optimiser, settings, shapes, task)
  optimiser = optimiser_of(history.total(settings))
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
    settings = extension.extended(settings, options.extend, at=step, finished=is_finished, optimiser_of=optimiser_of)
  _write_folder(held, data, settings)
  return Start(
    settings=settings,
    key=key,
    checkpoints=checkpoints,
    make_optimiser=optimiser_of,
    optimiser=optimiser,
    maker=maker,
    to_save=to_save,
    restored=restored is not None,
    step=step,
    state=state,
  )


def unsound(state: TrainState) -> dict[str, Array]:
  """Return whether each array holds a number that is not finite.

  Counters and the memory of a schedule are left out: a best metric begins as infinity. To be jitted.
  """
  arrays = {'params': state.params, 'opt_state': optim.arrays(state.opt_state), 'carry': state.carry}
  floats = {path: leaf for path, leaf in flat(arrays).items() if jnp.issubdtype(leaf.dtype, jnp.inexact)}
  return {path: ~jnp.isfinite(leaf).all() for path, leaf in floats.items()}


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
  """Apply `init_from`; raise ConfigError if a source lacks needed parameters."""
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
  elif report is not None and (lost := trained_part.new_and_frozen(report, state.params, optimiser)):
    log.warning(f'{", ".join(lost)}: neither in init_from nor trained, so random to the end of the run')
  return state


def _write_folder(held: HeldFolder, data: RunData, settings: Settings) -> None:
  """Write vocabularies, digests and last the config, which marks a run."""
  if not held.is_main:
    return
  folder, vocab, second = held.folder, data.parts.vocab, data.parts.second_vocab
  # the template of special tokens belongs to the vocabulary that examples are read with
  read_with_second = reads_second(settings)
  vocab.save(str(folder.vocab), template=None if read_with_second else make_template(settings, vocab))
  if second is not None:
    second.save(str(folder.second_vocab), template=make_template(settings, second) if read_with_second else None)
  too_soon = run_folder.read_json(folder.data).get('unfinished') if held.old else _warn_of_unfinished(settings)
  begun_from = {'unfinished': too_soon} if too_soon else {}
  metrics.write_json(folder.data, {**data.facts, 'steps_per_epoch': data.source.steps_per_epoch, **begun_from})
  run_folder.write_config(folder, settings)
  if held.finished:  # it was, before it was extended
    metrics.write_json(folder.result, {**held.finished, 'finished': False, 'steps': history.total(settings)})


def _warn_of_unfinished(settings: Settings) -> dict[str, list[int]]:
  """Return `unfinished` sources, with a warning for each."""
  found = unfinished(settings['init_from'])
  for source, (step, steps) in found.items():
    log.warning(
      f'init_from: {source} stopped at step {step} of {steps}: continue it with the command that began it, then '
      'begin here in another --workdir'
    )
  return found
