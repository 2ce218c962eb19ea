"""Checkpoints of a run: saved in the background, restored onto any devices.

Orbax writes `<workdir>/checkpoints/<step>/` in the background and gives the folder its name when all files are written.
The record of `saved_steps.py` is written before that, and older steps are deleted after it. Whenever a process is
killed, the folders named by a step are complete. A step is compared with its record before it is read. Checksums are
computed by the processes that write files, and checked by those that read them (`digests.py`).

An object store cannot rename. There Orbax writes below the final name and writes `commit_success.txt` last, after the
record. A step without this file does not exist; `saved_steps.numbered` and Orbax both look for it.
"""

import dataclasses
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, NoReturn, Self, cast

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from plm_jax.checkpoint import digests, saved_steps
from plm_jax.checkpoint.params import AVERAGES
from plm_jax.checkpoint.saved_steps import CheckpointError, Leaves, Record, Step, best_step
from plm_jax.core import sharding
from plm_jax.core.param_paths import flat
from plm_jax.core.types import PyTree
from plm_jax.io import files

log = logging.getLogger(__name__)

TIMEOUT_S = 3600
WRITTEN = 'async_write_complete'  # in the name of Orbax's barrier for the files of all processes
NOTHING = -1  # the step of a run without checkpoints


@dataclasses.dataclass
class _Keep(checkpoint_managers.PreservationPolicy):
  """A policy that keeps the newest `keep` steps without `timed` ones, the newest of all, and the best.

  Orbax's BestN loses scores when the process ends.
  """

  keep: int
  mode: str
  timed: set[int] = dataclasses.field(default_factory=set)
  scores: dict[int, float] = dataclasses.field(default_factory=dict)

  def should_preserve(
    self,
    checkpoints: Sequence[checkpoint_managers.PolicyCheckpointInfo],
    *,
    context: checkpoint_managers.PreservationContext,
  ) -> Sequence[bool]:
    here = [info.step for info in checkpoints]
    best = saved_steps.best_of({step: self.scores[step] for step in here if step in self.scores}, self.mode)
    kept = [*[step for step in here if step not in self.timed][-self.keep :], *here[-1:], best]
    return [step in kept for step in here]


class Checkpoints:
  """Checkpoints of one training run; a context manager. All processes make every call, in the same order.

  The newest `keep` steps and the best one are kept. The folder is local, mounted or at gs://, and visible to every
  process.
  """

  def __init__(
    self, folder: str | os.PathLike[str], *, keep: int, best: tuple[str, Literal['min', 'max']] | None = None
  ):
    """Create the folder and remove the rest of an interrupted save.

    Args:
      keep: number of newest steps to keep, at least 1.
      best: (name in the metrics of `save`, 'min' or 'max').

    Raises:
      CheckpointError: the folder is not writable.
    """
    if keep < 1:
      raise ValueError(f'keep={keep} must be at least 1, so that a run can resume')
    if best is not None and best[1] not in ('min', 'max'):
      raise ValueError(f"best={best!r}: the second item must be 'min' or 'max'")
    self.folder = saved_steps.for_orbax(saved_steps.place(folder))
    self._best = None if best is None else (best[0], best[1])  # JSON gives a list
    self._at: int | None = None  # the step that the run continues from; None until `restore` or `save` sets it
    self._prepared = False
    self._saving: Record | None = None
    self._began, self._took = 0.0, cast('float | None', 0.0)  # the last save; `_took` is None until it is done
    self._keep = _Keep(keep, best[1] if best else 'min')
    self._barrier = ocp.multihost.get_barrier_sync_fn()
    try:
      if jax.process_index() == 0:
        files.make_folder(self.folder)
        files.write_text(self.folder / '.writable', '')
        files.remove(self.folder / '.writable')
      self._manager = ocp.CheckpointManager(
        epath.Path(self.folder),
        options=ocp.CheckpointManagerOptions(
          preservation_policy=self._keep,
          cleanup_tmp_directories=True,
          async_options=ocp.options.AsyncOptions(
            timeout_secs=TIMEOUT_S, barrier_sync_fn=self._wait_for_others, post_finalization_callback=self._write_record
          ),
        ),
      )
    except OSError as error:
      raise CheckpointError(f'{self.folder} cannot be written to ({error}): name another --workdir') from error

  def steps(self) -> list[int]:
    """List the steps with all recorded files and sizes, oldest first."""
    return list(saved_steps.records(self.folder)[0])

  def best_step(self) -> int | None:
    """Return the complete step with the best score, the earliest, or None."""
    return best_step(self.folder)

  def save(
    self,
    step: int,
    state: PyTree,
    *,
    metrics: Mapping[str, float] | None = None,
    sums: Mapping[str, tuple[float, float]] | None = None,
    best_allowed: bool = True,
    timed: bool = False,
  ) -> None:
    """Copy the state from the devices.

    It is then written in the background. Waits until an earlier save has finished. If the run is at a saved `step`
    already, nothing is written.

    Args:
      step: number of updates; larger than all before.
      state: arrays in any PyTree; may be donated as soon as this returns.
      metrics: metrics of this step, saved with it; may include the metric of `best`.
      sums: finite, see `saved_steps.Record`.
      best_allowed: False for a state that may not be the best one.
      timed: True for a step that the next one replaces.

    Raises:
      CheckpointError: this or the previous step could not be written.
      ValueError: the folder has steps and none was restored, or this step is older than the run.
    """
    self.wait()
    if self._at is None:
      if saved_steps.numbered(self.folder):
        raise ValueError(
          f'{self.folder} already has steps {saved_steps.numbered(self.folder)}: restore one before saving another'
        )
      self._at = NOTHING
    if step < self._at:
      raise ValueError(f'step {step} cannot be saved: the run in {self.folder} is at step {self._at}; save a later one')
    if step == self._at:
      log.info('step %d is already saved', step)
      return
    self._prepare(self._at)
    self._began, self._took = time.monotonic(), None
    if timed:
      self._keep.timed.add(step)
    measured = {name: float(value) for name, value in (metrics or {}).items() if np.isfinite(value)}
    score = None
    if self._best and best_allowed and self._best[0] in measured:
      score = (*self._best, measured[self._best[0]])
      self._keep.scores[step] = score[2]
    self._saving = Record(step=step, leaves=_describe(state), metrics=measured, score=score, sums=dict(sums or {}))
    try:
      self._manager.save(step, args=ocp.args.Composite(**{saved_steps.ITEM: ocp.args.StandardSave(state)}), force=True)
    except saved_steps.FAILURES as error:
      self._give_up(error)
    self._at = step

  @property
  def seconds(self) -> float:
    """Return how long the last save took, or has taken so far."""
    return time.monotonic() - self._began if self._took is None else self._took

  def restore(self, abstract_state: PyTree, *, step: Step = 'newest') -> tuple[int, PyTree] | None:
    """Read a checkpoint as the function `restore`; the run continues from it.

    The next save moves newer steps, damaged or not, to `set_aside`.

    Returns:
      (step, state), or None if nothing was saved yet.
    """
    self.wait()
    self._prepared = False
    if step == 'newest' and not saved_steps.numbered(self.folder):
      self._at = NOTHING
      return None
    restored = restore(self.folder, abstract_state, step=step)
    self._at = restored[0]
    return restored

  def save_again(self) -> None:
    """Let the next save replace the step that was restored."""
    assert self._at is not None
    self._at, self._prepared = self._at - 1, False

  def wait(self) -> None:
    """Wait for the last save; raise CheckpointError if it failed."""
    try:
      self._manager.wait_until_finished()
    except saved_steps.FAILURES as error:
      self._give_up(error)
    self._saving = None

  def close(self) -> None:
    """Finish the last save and end the background threads."""
    try:
      self.wait()
    finally:
      self._manager.close()

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    try:
      self.close()
    except CheckpointError as failure:
      if error is None:
        raise
      log.error('%s', failure)  # only logged: the error of the body is raised

  def _prepare(self, at: int) -> None:
    """Move steps newer than `at` to `set_aside`; read the others' scores."""
    if self._prepared:
      return
    if jax.process_index() == 0:
      set_aside(self.folder, at)
    ocp.multihost.sync_global_processes('plm_jax:set_aside')
    self._manager.reload()
    whole, _ = saved_steps.records(self.folder)
    self._keep.scores = {
      step: record.score[2] for step, record in whole.items() if record.score and record.score[:2] == self._best
    }
    self._prepared = True

  def _wait_for_others(self, *, key: str, timeout_ms: int) -> None:
    """Write checksums, then wait at Orbax's barrier, which every process calls."""
    if WRITTEN in key:
      try:
        digests.write_own(self._unfinished(), process=jax.process_index(), item=saved_steps.ITEM)
      except OSError as error:  # the others wait at the barrier; process 0 fails if the disk is full
        log.warning('checksums of process %d not written (%s): process 0 computes them', jax.process_index(), error)
    self._barrier(key=key, timeout_ms=timeout_ms)

  def _write_record(self) -> None:
    """Write the step's record, before the step gets its name (Orbax's hook)."""
    assert self._saving is not None
    saved_steps.write(self._unfinished(), self._saving)
    self._took = time.monotonic() - self._began

  def _unfinished(self) -> Path:
    assert self._saving is not None
    unnamed = _unnamed(self.folder, self._saving.step)
    return unnamed if files.exists(unnamed) else self.folder / str(self._saving.step)

  def _give_up(self, error: BaseException) -> NoReturn:
    """Remove the rest of the failed save, and raise CheckpointError."""
    assert self._saving is not None
    step, self._saving = self._saving.step, None
    self._keep.scores.pop(step, None)
    self._at = max(self.steps(), default=NOTHING)
    if jax.process_index() == 0:
      files.remove_folder(_unnamed(self.folder, step))
      if files.is_address(self.folder) and step not in saved_steps.numbered(self.folder):
        files.remove_folder(self.folder / str(step))
    self._manager.reload()
    raise CheckpointError(
      f'step {step} could not be saved in {self.folder}: {error}. Complete steps there: {self.steps() or "none"}. '
      'Free some space or repair the disk, and run the same command again'
    ) from error


def restore(folder: str | os.PathLike[str], abstract_state: PyTree, *, step: Step = 'newest') -> tuple[int, PyTree]:
  """Read a checkpoint onto the requested devices and shardings.

  Args:
    folder: `<workdir>/checkpoints`; it is not changed.
    abstract_state: the state as `jax.ShapeDtypeStruct` with shardings; a leaf without one goes to `sharding.device`.
    step: see `saved_steps.choose`.

  Returns:
    (step, state), of the types of `abstract_state`, bit for bit as saved.

  Raises:
    CheckpointError: no intact checkpoint.
    ValueError: the saved state has other leaves, shapes or dtypes.
  """
  folder = saved_steps.place(folder)
  chosen = saved_steps.choose(folder, step)
  saved = saved_steps.read(folder / str(chosen)).leaves
  _compare(_describe(abstract_state), saved, where=f'step {chosen} in {folder}')
  first = jax.sharding.SingleDeviceSharding(sharding.device())
  target = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or first), abstract_state
  )
  item = saved_steps.item(folder, chosen)
  try:
    return chosen, ocp.StandardCheckpointHandler().restore(item, args=ocp.args.StandardRestore(target))
  except saved_steps.FAILURES as error:
    raise CheckpointError(f'step {chosen} in {folder} is complete but could not be read: {error}') from error


def _unnamed(folder: Path, step: int) -> Path:
  return folder / f'{step}{ocp.path.atomicity_types.TMP_DIR_SUFFIX}'


def make_aside(folder: Path) -> Path:
  """Create the folder `set_aside` in a folder of checkpoints."""
  aside = folder / saved_steps.SET_ASIDE
  files.make_folder(aside)
  if files.is_address(aside):  # Orbax removes folders without this mark, as unfinished steps
    files.write_text(aside / saved_steps.MARK, 'the steps set aside are complete\n')
  return aside


def set_aside(folder: Path, at: int) -> list[int]:
  """Move the steps newer than `at` to the folder `set_aside`, newest first."""
  newer = [step for step in reversed(saved_steps.numbered(folder)) if step > at]
  for step in newer:
    target = files.unused(make_aside(folder) / str(step))
    files.move(folder / str(step), target, marks=(saved_steps.MARK,))
    log.warning(
      'step %d is newer than the step that this run resumes from: moved to %s, which may be deleted', step, target
    )
  return newer


def arrays(folder: Path, step: int) -> dict[str, np.ndarray]:
  """Read path -> leaf of a step into memory; CheckpointError if unreadable."""
  item = saved_steps.item(folder, step)
  handler = ocp.PyTreeCheckpointHandler()
  try:
    as_numpy = jax.tree.map(lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), handler.metadata(item).tree)
    restored = handler.restore(item, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
  except saved_steps.FAILURES as error:
    raise CheckpointError(f'step {step} in {folder} is complete but could not be read: {error}') from error
  return {name: np.asarray(leaf) for name, leaf in flat(restored).items()}


def broken_leaves(folder: Path, step: int) -> list[str]:
  """List the non-finite leaves of a step, except counters and schedule state.

  The whole step is read as by `arrays`.
  """
  leaves = arrays(folder, step)
  counted = [name for name in leaves if name.startswith(('params/', 'opt_state/rule/', f'{AVERAGES}/'))]
  return [name for name in counted if not np.isfinite(np.asarray(leaves[name], np.float32)).all()]


def _describe(state: PyTree) -> Leaves:
  """Describe arrays, real or abstract: leaf path -> (dtype, shape)."""
  leaves: Leaves = {}
  for name, leaf in flat(state).items():
    if not isinstance(leaf, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
      raise TypeError(f'{name} is a {type(leaf).__name__}: a state holds only arrays')
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      raise TypeError(f'{name} is a random key: a state holds none; derive keys from the seed and the step')
    leaves[name] = (str(leaf.dtype), tuple(leaf.shape))
  return leaves


def _compare(wanted: Leaves, saved: Leaves, *, where: str) -> None:
  """Raise ValueError if two states differ in leaves, shapes or dtypes."""

  def words(leaf: tuple[str, tuple[int, ...]]) -> str:
    return f'{leaf[0]}{list(leaf[1])}'

  differences = [f'{name} is not saved' for name in wanted if name not in saved]
  differences += [f'{name} is saved, but not in this state' for name in saved if name not in wanted]
  differences += [
    f'{name} is saved as {words(saved[name])}, but {words(leaf)} here'
    for name, leaf in wanted.items()
    if name in saved and saved[name] != leaf
  ]
  if differences:
    more = f'; and {len(differences) - 8} more' if len(differences) > 8 else ''
    fix = 'Resume with the config of that run; to take parameters from it, use init_from'
    extra = [name for name in saved if name not in wanted]
    if len(extra) == len(differences) and all(name.startswith('opt_state/') and '/trunk/' in name for name in extra):
      fix = (
        'An older run, which saved optimiser state of a trunk that does not train, cannot be resumed: start another '
        'run that takes its parameters with init_from'
      )
    raise ValueError(f'{where} is another kind of state: {"; ".join(differences[:8])}{more}. {fix}')
