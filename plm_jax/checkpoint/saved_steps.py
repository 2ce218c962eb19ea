"""Saved steps on disk: what each holds, whether it is complete, which one to read.

Orbax restores damaged bytes and casts dtypes without an error. So each step folder holds a record of its files and
leaves, `digest.json`, and nothing is read from a step that differs from its record.
"""

import dataclasses
import hashlib
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
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import files, object_store

log = logging.getLogger(__name__)

ITEM, RECORD = 'state', 'digest.json'
UNSOUND = -1  # what process 0 broadcasts if it finds no further step to try
SOUND, UNREADABLE = -1, -2  # what a process says of its share of a step, where it names no damaged file
FAILURES = (OSError, ValueError, RuntimeError)  # what Orbax and TensorStore raise on a full or broken disk
MARK = 'commit_success.txt'  # written last by Orbax where nothing can be renamed
UNCHECKED = {RECORD, '_CHECKPOINT_METADATA', MARK}  # Orbax touches these later; a restore reads none
SET_ASIDE = 'set_aside'  # the folder of steps that a later save moved away
Leaves = dict[str, tuple[str, tuple[int, ...]]]
Step = Annotated[int, '0 <= x'] | Literal['newest', 'best'] | None


class CheckpointError(RunError):
  """A checkpoint could not be saved, is missing or is damaged; the message names it and what to do."""


class Damaged(Exception):
  """A step or a file is not what was written; the message names the file."""


@dataclasses.dataclass(frozen=True)
class Record:
  """The content of `digest.json` in a step folder.

  Attributes:
    step: number of the step.
    leaves: leaf path, joined by '/', -> (dtype, shape).
    metrics: the finite metrics of this step.
    score: (metric, 'min' | 'max', value) if this step may be the best one, else None.
    sums: metric -> (sum, weight) since the last line of metrics; empty in the records of earlier versions.
    files: file, relative to the step folder, -> (bytes, digest as `files.digest` gives it).
  """

  step: int
  leaves: Leaves
  metrics: Mapping[str, float]
  score: tuple[str, str, float] | None = None
  sums: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
  files: Mapping[str, tuple[int, str]] = dataclasses.field(default_factory=dict)


def place(folder: str | os.PathLike[str]) -> Path:
  """The folder as an absolute path, or an address."""
  return files.absolute(files.path(folder))


def item(folder: Path, step: int) -> epath.Path:
  """Where Orbax has the state of a step."""
  return epath.Path(for_orbax(folder) / str(step) / ITEM)


def for_orbax(folder: Path) -> Path:
  """The folder, if Orbax reads and writes there.

  Raises:
    ConfigError: an address of a store that Orbax does not know.
  """
  object_store.check_holds_checkpoints(folder)
  return folder


def write(folder: Path, record: Record) -> None:
  """Writes the record; its `files` are those that the folder holds now.

  The digests that other processes made of their files (`digests.write_own`) are taken over.
  """
  known = digests.collect(folder)
  sizes = _sizes(folder)
  made = digests.of_files({name: folder / name for name in sizes if name not in known})
  sized = {name: (known | made)[name] for name in sizes}
  # strict JSON has no NaN: the words are read back as numbers
  sums = {name: [x if math.isfinite(x) else str(x) for x in pair] for name, pair in record.sums.items()}
  content = dataclasses.asdict(dataclasses.replace(record, files=sized)) | {'sums': sums}
  files.write_text(folder / RECORD, json.dumps({'record': content, 'sha256': _sha256(content)}))


def read(folder: Path) -> Record:
  """Reads the record and compares the names and sizes of the files with it.

  Raises:
    Damaged: no record, a damaged record, a missing file or one of another size.
  """
  record, sizes = _written(folder)
  for name, (size, _) in record.files.items():
    if name not in sizes:
      raise Damaged(f'{name} is missing')
    if sizes[name] != size:
      raise Damaged(f'{name} holds {sizes[name]} bytes instead of {size}')
  return record


def _written(folder: Path) -> tuple[Record, Mapping[str, int]]:
  """The record as it was written, and the sizes of the files as they are now; raises Damaged without a sound record."""
  try:
    stored = files.read_json(folder / RECORD)
    if stored['sha256'] != _sha256(stored['record']):
      raise Damaged(f'{RECORD} does not match its own sha256')
    return _record(stored['record']), _sizes(folder)
  except object_store.StoreError:  # it says nothing about the step
    raise
  except FileNotFoundError as error:
    raise Damaged(f'{Path(error.filename).name} is missing: the step is unfinished or was changed') from error
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise Damaged(f'{RECORD} cannot be read ({type(error).__name__})') from error


def check(folder: Path) -> Record:
  """Reads the record and compares every byte of the folder with it; this process alone.

  Raises:
    Damaged: as for `read`, or the content of a file changed.
  """
  record = read(folder)
  if (name := _changed(folder, record, record.files)) is not None:
    raise Damaged(_told(record, name))
  return record


def check_together(folder: Path) -> Record:
  """`check` by all processes, each of which reads its share of the bytes; all of them call it and come to one answer.

  Raises:
    Damaged: in every process where one of them found damage.
  """
  if jax.process_count() == 1:
    return check(folder)
  record, names, said = None, [], SOUND
  try:
    record = read(folder)
    names = list(record.files)
    mine = digests.deal(record.files, jax.process_count())[jax.process_index()]
    name = _changed(folder, record, mine)
    said = SOUND if name is None else names.index(name)
  except Damaged as error:
    log.warning('%s: %s (seen by process %d)', folder, error, jax.process_index())
    said = UNREADABLE
  heard = multihost_utils.process_allgather(np.int32(said)).tolist()
  if UNREADABLE in heard or record is None:
    raise Damaged(f'process {heard.index(UNREADABLE)} cannot read it: its log says why')
  for process, number in enumerate(heard):
    if number != SOUND:
      raise Damaged(f'{_told(record, names[number])}, says process {process}')
  return record


def _told(record: Record, name: str) -> str:
  kind = 'MD5' if record.files[name][1].startswith(files.MD5) else 'sha256'
  return f'{name} has another {kind} than when it was written'


def _changed(folder: Path, record: Record, names: Iterable[str]) -> str | None:
  """The first of these files with another digest than the record has; raises Damaged where one cannot be read."""
  try:
    return digests.changed(folder, record.files, names)
  except object_store.StoreError:
    raise
  except OSError as error:
    raise Damaged(f'{error.filename} cannot be read ({error.strerror})') from error


def numbered(folder: Path) -> list[int]:
  """Every step folder, complete or not, oldest first; at an address those that Orbax has marked as complete."""
  if files.is_address(folder):
    return sorted(int(mark.parent.name) for mark in files.listing(folder, f'*/{MARK}') if mark.parent.name.isdecimal())
  return sorted(int(path.name) for path in files.listing(folder) if path.name.isdecimal() and files.is_folder(path))


def records(folder: Path) -> tuple[dict[int, Record], dict[int, Damaged]]:
  """The records of the steps that are complete by names and sizes, and what is wrong with the other steps."""
  whole, damaged = {}, {}
  for step in numbered(folder):
    try:
      whole[step] = read(folder / str(step))
    except Damaged as error:
      damaged[step] = error
  return whole, damaged


def scores(whole: Mapping[int, Record]) -> tuple[dict[int, float], str]:
  """Step -> score, of the steps with the same metric as the newest score, and 'min' or 'max'."""
  scored = {step: record.score for step, record in whole.items() if record.score is not None}
  if not scored:
    return {}, 'min'
  name, mode, _ = scored[max(scored)]
  return {step: score[2] for step, score in scored.items() if score[:2] == (name, mode)}, mode


def best_of(values: Mapping[int, float], mode: str) -> int | None:
  """The step with the best value, the earlier one of equal values; None if there is none."""
  sign = 1 if mode == 'min' else -1
  return min(values, key=lambda step: (sign * values[step], step), default=None)


def best_step(folder: str | os.PathLike[str]) -> int | None:
  """The complete step with the best score in a folder of checkpoints; None if no step has a score."""
  whole, damaged = records(place(folder))
  for step, error in damaged.items():
    log.warning('step %d in %s cannot be the best one: %s', step, folder, error)
  return best_of(*scores(whole))


def choose(folder: Path, step: Step) -> int:
  """The step to read, once every byte of it is checked. All processes call it: each checks its share.

  Args:
    folder: the folder of checkpoints. Which step it is, process 0 says.
    step: a number; 'newest', which skips damaged steps and names them in the log; 'best'; None is 'best' if steps have
      scores, else 'newest'.

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
  while (number := _agreed(candidates.pop(0) if candidates else UNSOUND)) != UNSOUND:
    try:
      check_together(folder / str(number))
    except Damaged as error:
      damaged[number] = error
      continue
    for bad, why in damaged.items():
      log.warning('step %d in %s is damaged (%s); taking step %d instead', bad, folder, why, number)
    return number
  if failure is not None:
    raise failure
  if jax.process_index():
    raise CheckpointError(f'process 0 found no sound checkpoint in {folder}: its log says why')
  raise CheckpointError(_words(folder, damaged, only=only))


def check_there(folder: str | os.PathLike[str], step: Step) -> None:
  """Raises CheckpointError, as `choose`, where there is no such step; no byte of a state is read."""
  _candidates(place(folder), step)


def _candidates(folder: Path, step: Step) -> list[int]:
  """The steps to try, one after the other; raises CheckpointError as `choose`."""
  present = numbered(folder)
  if not present:
    raise CheckpointError(f'no checkpoint in {folder}: expected folders named by step, as in <workdir>/checkpoints')
  if step is None or step == 'best':
    best = _best_as_written(folder, present)
    if best is None and step == 'best':
      raise CheckpointError(f"no step in {folder} has a score, so none is best; ask for 'newest' or one of {present}")
    step = 'newest' if best is None else best
  if step == 'newest':
    return present[::-1]
  if step not in present:
    raise CheckpointError(f'no step {step} in {folder}; there are {present}')
  return [step]


def _best_as_written(folder: Path, present: Iterable[int]) -> int | None:
  """The step with the best score, whatever became of its files; None if no step has a score.

  Raises:
    CheckpointError: a record that cannot be read, whose score may be the best one.
  """
  known = {}
  for step in present:
    try:
      known[step], _ = _written(folder / str(step))
    except Damaged as error:
      others = [number for number in present if number != step]
      cure = f"ask for 'newest', which leaves out damaged steps, or one of {others}" if others else 'there is no other'
      raise CheckpointError(
        f'step {step} in {folder} is damaged: {error}; so nobody knows which step is the best one: {cure}'
      ) from error
  return best_of(*scores(known))


def _agreed(number: int) -> int:
  """The number of process 0."""
  return number if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def _words(folder: Path, damaged: Mapping[int, Damaged], *, only: bool) -> str:
  """What is wrong with the steps that were tried; `only` where no other one could take the place of the one."""
  if only:
    [(step, error)] = damaged.items()
    others = [number for number in numbered(folder) if number != step]
    cure = f"there are also {others}, and 'newest' is the last complete one" if others else 'there is no other'
    return f'step {step} in {folder} is damaged: {error}; {cure}'
  found = '; '.join(f'step {step}: {why}' for step, why in damaged.items())
  return (
    f'every checkpoint in {folder} is damaged ({found}). Restore a copy of one, or start again in another --workdir'
  )


def _sizes(folder: Path) -> dict[str, int]:
  return {name: size for name, size in files.sizes_below(folder).items() if name not in UNCHECKED}


def _sha256(content: Any) -> str:
  return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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


def step_named(text: str) -> Step:
  """A step as a user writes it: a number, 'newest', 'best', or 'auto' for None (see `pick`)."""
  if text == 'auto':
    return None
  if text in ('newest', 'best'):
    return text  # type: ignore[return-value]
  if not text.isdecimal():
    raise ConfigError(f"--step={text}: a number, 'newest' or 'best'")
  return int(text)
