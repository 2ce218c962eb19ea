"""Saved steps on disk: their content, completeness, and the choice of the step to read.

Orbax restores damaged bytes and casts dtypes without an error. So each step folder has a record of its files and
leaves, `digest.json`, and a step that differs from its record is never read.
"""

import dataclasses
import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from plm_jax.checkpoint import digests
from plm_jax.core.errors import RunError
from plm_jax.io import checksums, files, object_store

log = logging.getLogger(__name__)

ITEM, RECORD = 'state', 'digest.json'
UNSOUND = -1  # broadcast by process 0 if there is no further step to try
SOUND, UNREADABLE = -1, -2  # status of a process's share of a step, if not the index of a damaged file
FAILURES = (OSError, ValueError, RuntimeError)  # raised by Orbax and TensorStore on a full or broken disk
MARK = 'commit_success.txt'  # written last by Orbax in object stores, which cannot rename
UNCHECKED = {RECORD, '_CHECKPOINT_METADATA', MARK}  # Orbax touches these later; a restore reads none
SET_ASIDE = 'set_aside'  # the folder of steps that a later save moved
Leaves = dict[str, tuple[str, tuple[int, ...]]]
Step = Annotated[int, '0 <= x'] | Literal['newest', 'best'] | None


class CheckpointError(RunError):
  """A checkpoint that is missing, damaged or could not be saved; the message names it and the fix."""


class Damaged(Exception):
  """A step or a file that differs from what was written; the message names the file."""


@dataclasses.dataclass(frozen=True)
class Record:
  """The content of `digest.json` in a step folder."""

  step: int  # number of the step
  leaves: Leaves  # leaf path, joined by '/', -> (dtype, shape)
  metrics: Mapping[str, float]  # the finite metrics of this step
  # (metric, 'min' | 'max', value) if this step may be the best one, else None
  score: tuple[str, str, float] | None = None
  # metric -> (sum, weight) since the last line of metrics; empty in the records of earlier versions
  sums: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
  # file, relative to the step folder, -> (bytes, digest of `checksums.digest`)
  files: Mapping[str, tuple[int, str]] = dataclasses.field(default_factory=dict)


def place(folder: str | os.PathLike[str]) -> Path:
  """Return the folder as an absolute path, or a URL."""
  return files.absolute(files.path(folder))


def item(folder: Path, step: int) -> epath.Path:
  """Return the path where Orbax stores the state of a step."""
  return epath.Path(for_orbax(folder) / str(step) / ITEM)


def for_orbax(folder: Path) -> Path:
  """Return the folder; raise ConfigError for a store that Orbax lacks."""
  object_store.check_holds_checkpoints(folder)
  return folder


def write(folder: Path, record: Record) -> None:
  """Write the record of the folder's current files, with collected checksums."""
  collected = digests.collect(folder)
  sizes = _sizes(folder)
  computed = digests.of_files({name: folder / name for name in sizes if name not in collected})
  sized = {name: (collected | computed)[name] for name in sizes}
  # strict JSON has no NaN: strings such as 'nan' are read back as numbers
  sums = {name: [x if math.isfinite(x) else str(x) for x in pair] for name, pair in record.sums.items()}
  content = dataclasses.asdict(dataclasses.replace(record, files=sized)) | {'sums': sums}
  files.write_text(folder / RECORD, json.dumps({'record': content, 'sha256': checksums.digest_of_plain(content)}))


def read(folder: Path) -> Record:
  """Read the record; raise Damaged without one or for other file sizes."""
  record, sizes = _written(folder)
  for name, (size, _) in record.files.items():
    if name not in sizes:
      raise Damaged(f'{name} is missing')
    if sizes[name] != size:
      raise Damaged(f'{name} holds {sizes[name]} bytes instead of {size}')
  return record


def _written(folder: Path) -> tuple[Record, Mapping[str, int]]:
  """Read the record and the files' sizes; raise Damaged without a record."""
  try:
    stored = files.read_json(folder / RECORD)
    if stored['sha256'] != checksums.digest_of_plain(stored['record']):
      raise Damaged(f'{RECORD} does not match its own sha256')
    return _record(stored['record']), _sizes(folder)
  except object_store.StoreError:  # says nothing about the step
    raise
  except FileNotFoundError as error:
    raise Damaged(f'{Path(error.filename).name} is missing: the step is unfinished or was changed') from error
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise Damaged(f'{RECORD} cannot be read ({type(error).__name__})') from error


def check(folder: Path) -> Record:
  """Compare every byte with the record; raise Damaged if one differs."""
  record = read(folder)
  if (name := _changed(folder, record, record.files)) is not None:
    raise Damaged(_describe_change(record, name))
  return record


def check_together(folder: Path) -> Record:
  """Do the work of `check` in every process together.

  Each checks its share of the bytes. All processes get the same result, or raise Damaged if one of them found damage.
  """
  if jax.process_count() == 1:
    return check(folder)
  record, names, status = None, [], SOUND
  try:
    record = read(folder)
    names = list(record.files)
    mine = digests.deal(record.files, jax.process_count())[jax.process_index()]
    name = _changed(folder, record, mine)
    status = SOUND if name is None else names.index(name)
  except Damaged as error:
    log.warning('%s: %s (seen by process %d)', folder, error, jax.process_index())
    status = UNREADABLE
  statuses = multihost_utils.process_allgather(np.int32(status)).tolist()
  if UNREADABLE in statuses or record is None:
    raise Damaged(f'process {statuses.index(UNREADABLE)} cannot read it: see its log')
  for process, index in enumerate(statuses):
    if index != SOUND:
      raise Damaged(f'{_describe_change(record, names[index])}, reported by process {process}')
  return record


def _describe_change(record: Record, name: str) -> str:
  kind = 'MD5' if record.files[name][1].startswith(checksums.MD5) else 'sha256'
  return f'{name} has another {kind} than when it was written'


def _changed(folder: Path, record: Record, names: Iterable[str]) -> str | None:
  """Find the first file whose digest differs; raise Damaged if unreadable."""
  try:
    return digests.changed(folder, record.files, names)
  except object_store.StoreError:
    raise
  except OSError as error:
    raise Damaged(f'{error.filename} cannot be read ({error.strerror})') from error


def numbered(folder: Path) -> list[int]:
  """List every step folder, complete or not, oldest first.

  In an object store, only those that Orbax has marked as complete.
  """
  if files.is_address(folder):
    return sorted(int(mark.parent.name) for mark in files.listing(folder, f'*/{MARK}') if mark.parent.name.isdecimal())
  return sorted(int(path.name) for path in files.listing(folder) if path.name.isdecimal() and files.is_folder(path))


def records(folder: Path) -> tuple[dict[int, Record], dict[int, Damaged]]:
  """Read the records of complete steps; check only names and sizes."""
  whole, damaged = {}, {}
  for step in numbered(folder):
    try:
      whole[step] = read(folder / str(step))
    except Damaged as error:
      damaged[step] = error
  return whole, damaged


def scores(whole: Mapping[int, Record]) -> tuple[dict[int, float], str]:
  """Return the newest metric's scores by step, and 'min' or 'max'."""
  scored = {step: record.score for step, record in whole.items() if record.score is not None}
  if not scored:
    return {}, 'min'
  name, mode, _ = scored[max(scored)]
  return {step: score[2] for step, score in scored.items() if score[:2] == (name, mode)}, mode


def best_of(values: Mapping[int, float], mode: str) -> int | None:
  """Return the earliest step with the best value; None without any."""
  sign = 1 if mode == 'min' else -1
  return min(values, key=lambda step: (sign * values[step], step), default=None)


def best_step(folder: str | os.PathLike[str]) -> int | None:
  """Return the complete step with the best score, the earliest, or None."""
  whole, damaged = records(place(folder))
  for step, error in damaged.items():
    log.warning('step %d in %s cannot be the best one: %s', step, folder, error)
  return best_of(*scores(whole))


def choose(folder: Path, step: Step) -> int:
  """Choose the step to read, and check every byte of it.

  All processes call it: each checks its share.

  Args:
    folder: the folder of checkpoints; process 0 decides the step.
    step: a number; 'newest', which skips damaged steps and logs them; 'best'; None is 'best' if steps have scores, else
      'newest'.

  Raises:
    CheckpointError: no such step, or a damaged one.
  """
  candidates: list[int] = []
  failure = None
  if jax.process_index() == 0:
    try:
      candidates = _candidates(folder, step)
    except CheckpointError as error:
      failure = error  # the other processes wait for the broadcast
  only, damaged = len(candidates) == 1 and step != 'newest', dict[int, Damaged]()
  while (candidate := _agreed(candidates.pop(0) if candidates else UNSOUND)) != UNSOUND:
    try:
      check_together(folder / str(candidate))
    except Damaged as error:
      damaged[candidate] = error
      continue
    for bad, why in damaged.items():
      log.warning('step %d in %s is damaged (%s); taking step %d instead', bad, folder, why, candidate)
    return candidate
  if failure is not None:
    raise failure
  if jax.process_index():
    raise CheckpointError(f'process 0 found no intact checkpoint in {folder}: see its log')
  raise CheckpointError(_describe_damage(folder, damaged, only=only))


def check_there(folder: str | os.PathLike[str], step: Step) -> None:
  """Raise CheckpointError, as `choose`, if there is no such step."""
  _candidates(place(folder), step)


def _candidates(folder: Path, step: Step) -> list[int]:
  """List the steps to try in order; raise CheckpointError as `choose`."""
  present = numbered(folder)
  if not present:
    raise CheckpointError(f'no checkpoint in {folder}: expected folders named by step, as in <workdir>/checkpoints')
  if step is None or step == 'best':
    best = _best_as_written(folder, present)
    if best is None and step == 'best':
      raise CheckpointError(f"no step in {folder} has a score, so none is best; choose 'newest' or one of {present}")
    step = 'newest' if best is None else best
  if step == 'newest':
    return present[::-1]
  if step not in present:
    raise CheckpointError(f'no step {step} in {folder}; there are {present}')
  return [step]


def _best_as_written(folder: Path, present: Iterable[int]) -> int | None:
  """Return the step with the best score, even if damaged, or None.

  Raises CheckpointError: an unreadable record, whose score may be the best one.
  """
  readable = {}
  for step in present:
    try:
      readable[step], _ = _written(folder / str(step))
    except Damaged as error:
      others = [other for other in present if other != step]
      fix = f"choose 'newest', which skips damaged steps, or one of {others}" if others else 'there is no other step'
      raise CheckpointError(
        f'step {step} in {folder} is damaged: {error}; so the best step is unknown: {fix}'
      ) from error
  return best_of(*scores(readable))


def _agreed(step: int) -> int:
  """Return the step of process 0 in every process."""
  return step if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(step)))


def _describe_damage(folder: Path, damaged: Mapping[int, Damaged], *, only: bool) -> str:
  """Describe the damage of the steps tried, or of the `only` one."""
  if only:
    [(step, error)] = damaged.items()
    others = [other for other in numbered(folder) if other != step]
    fix = f"there are also {others}, and 'newest' is the last complete one" if others else 'there is no other step'
    return f'step {step} in {folder} is damaged: {error}; {fix}'
  reasons = '; '.join(f'step {step}: {why}' for step, why in damaged.items())
  return (
    f'every checkpoint in {folder} is damaged ({reasons}). Restore a copy of one, or start again in another --workdir'
  )


def _sizes(folder: Path) -> dict[str, int]:
  return {name: size for name, size in files.sizes_below(folder).items() if name not in UNCHECKED}


def _record(content: Mapping[str, Any]) -> Record:
  score = content['score']
  return Record(
    step=content['step'],
    leaves={path: (dtype, tuple(shape)) for path, (dtype, shape) in content['leaves'].items()},
    metrics=content['metrics'],
    score=None if score is None else (score[0], score[1], float(score[2])),
    sums={name: (float(total), float(weight)) for name, (total, weight) in content.get('sums', {}).items()},
    files={name: (size, digest) for name, (size, digest) in content['files'].items()},
  )
