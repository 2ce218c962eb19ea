"""The curves of runs: which folders are runs, what their lines of metrics hold, runs of one config, means and bands.

Lines are read in blocks by several threads, only the metrics that are wanted, by pyarrow's reader of JSON. A block
that it refuses is read line by line: damaged lines are named by their numbers, and the others count.
"""

import concurrent.futures
import functools
import itertools
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from plm_jax import config
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import history

log = logging.getLogger(__name__)

CHUNK = files.DEEPEST - 1  # lines parsed at once: so few brackets that `parse_json` need not count their levels
BLOCK = 2**23  # bytes that a thread reads at once
NAMED = 5  # damaged lines of a file that the log names one by one
POINTS = 1_000  # of a curve
ROUNDING = 1e-12  # a deviation of this share of the mean is none
SHORT = 60  # characters of the differences that name a curve
SEED = 'seed'
COPY = 'it has the config, the seed, the data and the values of %s, and counts once'
NOT_FINITE = ('nan', 'inf', '-inf')  # as metrics write them
Line = tuple[np.ndarray, np.ndarray]  # steps, values
_NO_KEY = bytes(set(range(256)) - set(b'0123456789":'))  # what does not say whether digits stand in a key
Wanted = Callable[[str], bool]


class Metrics(NamedTuple):
  """The lines of metrics of a run.

  Attributes:
    lines: metric -> steps int[n], ascending, and finite values float[n]; only metrics that are wanted.
    names: of all metrics that are numbers, sorted.
    sound: number of sound lines.
    damaged: numbers of the damaged lines, from 1.
    not_finite: metric -> step of its first value that is not finite, of metrics that are wanted.
    diverged: metric -> step from which on no value is finite, of those that end so.
    last: step of the last line; 0 where there is none.
  """

  lines: Mapping[str, Line]
  names: Sequence[str]
  sound: int
  damaged: Sequence[int]
  not_finite: Mapping[str, int]
  diverged: Mapping[str, int]
  last: int


class _Part(NamedTuple):
  """Of a block of lines: steps int[n]; metric -> float[n], NaN where a line has no such value; and as in `Metrics`.

  But `not_finite` has all steps of such values.
  """

  steps: np.ndarray
  columns: Mapping[str, np.ndarray]
  names: frozenset[str]
  damaged: Sequence[int]
  not_finite: Mapping[str, Sequence[int]]


class Described(Protocol):
  """A run that is grouped with others: its name, its folder, and the dotted keys of its config."""

  @property
  def name(self) -> str: ...
  @property
  def folder(self) -> Path: ...
  @property
  def settings(self) -> Mapping[str, Any]: ...


OfRun = TypeVar('OfRun', bound=Described)


# Folders -------------------------------------------------------------------------------------------------------------


def expanded(folder: Path) -> list[Path]:
  """A run folder, or those of a sweep.

  Raises:
    ConfigError: neither.
  """
  trials = [one for one in files.listing(folder / 'trials') if files.is_file(RunFolder(one).config)]
  if files.is_file(RunFolder(folder).config) or trials:
    return trials or [folder]
  what = 'it has no config.json, so no run began there' if files.is_folder(folder) else 'there is no such folder'
  raise ConfigError(f'{folder}: {what}; name folders of runs, or of a sweep')


def short_names(folders: Sequence[Path]) -> dict[Path, str]:
  """Each folder from the one that all of them are in; whole where some are addresses and others of this machine."""
  if len(folders) == 1:
    return {folders[0]: files.absolute(folders[0]).name}
  try:
    common = os.path.commonpath([files.absolute(folder).parent for folder in folders])
  except ValueError:
    return {folder: str(folder) for folder in folders}
  return {folder: os.path.relpath(files.absolute(folder), common) for folder in folders}


def settings_of(folder: RunFolder) -> dict[str, Any]:
  """The config of a run.

  Raises:
    ConfigError: it cannot be read, or a number in it is larger than a float.
  """
  try:
    settings = config.load(str(folder.config))
    files.json_text(settings)
  except (ConfigError, RunError, OSError, ValueError) as error:
    raise ConfigError(str(error)) from error
  return settings


# Reading -------------------------------------------------------------------------------------------------------------


def series(file: Path, metric: str) -> Line:
  """Steps and values of a metric, int[n] and float[n], without values that are not finite.

  Damaged lines are named and left out, as is a last line that is still being written.
  """
  nothing = np.array([], int), np.array([], float)
  return read([file], lambda name: name == metric)[0].lines.get(metric, nothing)


def names(file: Path) -> set[str]:
  """The metrics of a file that are numbers."""
  return set(read([file], lambda name: False)[0].names)


def read(paths: Sequence[Path], wanted: Wanted) -> list[Metrics]:
  """The lines of several files of metrics; nothing of one that does not exist. The log names damaged lines.

  Args:
    paths: the files.
    wanted: which metrics to read, by their names; 'step' is always read.
  """
  with concurrent.futures.ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as threads:
    seen: dict[bytes, set[str]] = {}
    pieces = [[threads.submit(_block, path, *span, wanted, seen) for span in _spans(path)] for path in paths]
    return [_joined(path, [one.result() for one in own]) for path, own in zip(paths, pieces, strict=True)]


def _spans(file: Path) -> Iterator[tuple[int, int]]:
  """(first byte, byte after the last) of blocks of whole lines, all but the last of about `BLOCK` bytes."""
  if not files.is_file(file):
    return
  with files.open(file, 'rb') as stream:
    start, end = 0, files.size(file)
    while start < end:
      stream.seek(start + BLOCK)
      stream.readline()
      stop = min(stream.tell(), end)
      yield start, stop
      start = stop


def _block(file: Path, start: int, stop: int, wanted: Wanted, seen: dict[bytes, set[str]]) -> _Part:
  """What the lines in a range of bytes hold; a last one without a newline is still being written, and left out."""
  with files.open(file, 'rb') as stream:
    stream.seek(start)
    content = stream.read(stop - start)
  content = content[: content.rfind(b'\n') + 1]
  try:
    return _at_once(content, wanted, seen)
  except ValueError:  # pyarrow's errors are
    with files.open(file, 'rb') as stream:
      first = 1 + sum(stream.read(size).count(b'\n') for size in _sizes(start))
    return _one_by_one(content, wanted, first=first)


def _sizes(total: int) -> list[int]:
  return [min(BLOCK, total - start) for start in range(0, total, BLOCK)]


def _at_once(content: bytes, wanted: Wanted, seen: dict[bytes, set[str]]) -> _Part:
  """The same of lines without damage.

  Raises:
    ValueError: something is unusual: a damaged line, or a metric that is no number on each line.
  """
  import pyarrow
  from pyarrow import json as reader

  content.decode()
  shapes = content.translate(None, b'0123456789').split(b'\n')[:-1]
  known = _names_in(content, shapes, seen)
  chosen = sorted(filter(wanted, known))
  odd = [word for word in (b'"nan"', b'"inf"', b'"-inf"') if any(word in shape for shape in set(shapes))]
  plain = functools.reduce(lambda text, word: text.replace(word, b'null'), odd, content)
  schema = pyarrow.schema([('step', pyarrow.int64()), *((name, pyarrow.float64()) for name in chosen)])
  table = reader.read_json(
    pyarrow.BufferReader(plain or b'{}'),
    read_options=reader.ReadOptions(use_threads=False, block_size=len(plain) + 2),
    parse_options=reader.ParseOptions(explicit_schema=schema, unexpected_field_behavior='ignore'),
  )
  if table.num_rows != len(shapes) or table['step'].null_count:
    raise ValueError('a line that is no object, or has no step')
  steps = table['step'].to_numpy()
  if len(steps) and not all(map(history.is_step, (int(steps.min()), int(steps.max())))):
    raise ValueError('a step that no run has')
  columns = {name: table[name].to_numpy().astype(float) for name in chosen}
  not_finite = _not_finite(content, chosen) if odd else {}
  return _Part(steps, columns, frozenset(known), (), not_finite)


def _names_in(content: bytes, shapes: Sequence[bytes], seen: dict[bytes, set[str]]) -> set[str]:
  """The metrics of some lines that are numbers.

  Lines with the same keys are the same once their digits are gone, so that one of them is read for all. Where a key has
  a digit this is not so, as of 'val/loss' and 'val2/loss', and all keys are looked at.

  Args:
    content: the lines.
    shapes: each of them without its digits.
    seen: such a line -> its metrics; what is new is added.
  """
  bare = content.translate(None, _NO_KEY)  # {"val2/loss": 1.5, "step": 3}   ->   "2":15"":3
  if bare.count(b'"":') != bare.count(b'":'):
    names_of_numbers = set(re.findall(rb'"([^"\\]+)" *: *(?:[-0-9]|"(?:nan|-?inf)")', content))
    return {name.decode() for name in names_of_numbers} - {'step'}
  own = set(shapes)
  for shape in own - seen.keys():
    place = shapes.index(shape)
    row = files.parse_json(content.split(b'\n', place + 1)[place].decode())
    if not _is_row(row):
      raise ValueError('no line of metrics')
    seen[shape] = {name for name, value in row.items() if name != 'step' and (_is_number(value) or value in NOT_FINITE)}
  return set().union(*(seen[shape] for shape in own))


def _not_finite(content: bytes, chosen: Sequence[str]) -> dict[str, list[int]]:
  """Metric -> steps of its values that are not finite."""
  found: dict[str, list[int]] = {}
  for line in re.findall(rb'^.*"(?:nan|inf|-inf)".*$', content, re.MULTILINE):
    row = files.parse_json(line.decode())
    for name in chosen:
      if row.get(name) in NOT_FINITE:
        found.setdefault(name, []).append(row['step'])
  return found


def _one_by_one(content: bytes, wanted: Wanted, *, first: int) -> _Part:
  """The same of lines of which some may be damaged; `first` is the number of the first one."""
  steps: list[int] = []
  values: dict[str, dict[int, float]] = {}
  known: set[str] = set()
  damaged: list[int] = []
  not_finite: dict[str, list[int]] = {}
  for number, row in enumerate(_rows(content.splitlines(keepends=True)), start=first):
    if row is None:
      damaged.append(number)
      continue
    for name, value in row.items():
      if name == 'step' or not (_is_number(value) or value in NOT_FINITE):
        continue
      known.add(name)
      if wanted(name) and _is_number(value) and math.isfinite(value):
        values.setdefault(name, {})[len(steps)] = float(value)
      elif wanted(name):
        not_finite.setdefault(name, []).append(row['step'])
    steps.append(row['step'])
  columns = {name: np.full(len(steps), np.nan) for name in values}
  for name, own in values.items():
    columns[name][list(own)] = list(own.values())
  return _Part(np.array(steps, int), columns, frozenset(known), damaged, not_finite)


def _rows(lines: Sequence[bytes]) -> Iterator[Mapping[str, Any] | None]:
  """The object of each line; None for a damaged one."""
  for start in range(0, len(lines), CHUNK):
    chunk = lines[start : start + CHUNK]
    try:
      rows = files.parse_json(f'[{b",".join(chunk).decode()}]')
    except ValueError:
      rows = []
    if len(rows) == len(chunk) and all(map(_is_row, rows)):
      yield from rows
    else:
      yield from map(_row, chunk)


def _row(line: bytes) -> Mapping[str, Any] | None:
  try:
    row = files.parse_json(line.decode())
  except ValueError:
    return None
  return row if _is_row(row) else None


def _is_row(row: Any) -> bool:
  return isinstance(row, dict) and history.is_step(row.get('step'))


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


def _joined(file: Path, parts: Sequence[_Part]) -> Metrics:
  """The blocks of a file as one; says which lines are damaged."""
  damaged = [number for part in parts for number in part.damaged]
  for number in damaged[:NAMED]:
    log.warning('%s, line %d is damaged and left out', file, number)
  if len(damaged) > NAMED:
    log.warning('%s: %d more lines are damaged and left out', file, len(damaged) - NAMED)
  lines: dict[str, Line] = {}
  for name in dict.fromkeys(name for part in parts for name in part.columns):
    own = [part for part in parts if name in part.columns]
    steps = np.concatenate([part.steps for part in own])
    values = np.concatenate([part.columns[name] for part in own])
    there = np.isfinite(values)
    order = np.argsort(steps[there], kind='stable')
    if there.any():
      lines[name] = steps[there][order], values[there][order]
  not_finite: dict[str, list[int]] = {}
  for name, steps_of in ((name, own) for part in parts for name, own in part.not_finite.items()):
    not_finite.setdefault(name, []).extend(steps_of)
  until = {name: int(own[-1]) for name, (own, _) in lines.items()}  # the last finite value
  ends = {name: [step for step in own if step > until.get(name, -1)] for name, own in not_finite.items()}
  return Metrics(
    lines,
    sorted({name for part in parts for name in part.names}),
    sum(len(part.steps) for part in parts),
    damaged,
    {name: own[0] for name, own in not_finite.items()},
    {name: min(own) for name, own in ends.items() if own},
    max((int(part.steps.max()) for part in parts if len(part.steps)), default=0),
  )


# Groups --------------------------------------------------------------------------------------------------------------


def grouped(runs: Sequence[OfRun], by: Sequence[str]) -> dict[str, list[OfRun]]:
  """Name of a curve -> its runs, in the order of the runs.

  Raises:
    ConfigError: a key of `by` that no run has.
  """
  known = list(dict.fromkeys(key for run in runs for key in run.settings))
  for key in by:
    errors.check_choice('--by', 'key', key, known)
  chosen = list(by) or differing(runs)
  found: dict[str, list[OfRun]] = {}
  for run in runs:
    name = ', '.join(f'{key}={run.settings.get(key, "not there")}' for key in chosen)
    found.setdefault(name or files.absolute(run.folder).name, []).append(run)
  return found if chosen else {files.absolute(runs[0].folder).name: list(runs)}


def named(groups: Mapping[str, list[OfRun]], by: Sequence[str]) -> dict[str, list[OfRun]]:
  """Groups by names that a legend can hold: differences while they are few, else what their folders have in common.

  Args:
    groups: from `grouped`.
    by: the keys that were asked for, whose values name a group however long they are.
  """
  if by or all(len(name) <= SHORT for name in groups):
    return dict(groups)
  found: dict[str, list[OfRun]] = {}
  for own in groups.values():
    name = own[0].name if len(own) == 1 else _common([run.name for run in own])
    free = (one for one in itertools.chain([name or own[0].name, own[0].name], _numbered(name)) if one not in found)
    found[next(free)] = own
  return found


def _common(names: Sequence[str]) -> str:
  """What names begin with, without what seeds left at its end."""
  alike = [letters[0] for letters in itertools.takewhile(lambda one: len(set(one)) == 1, zip(*names, strict=False))]
  return re.sub(r'[-_./]+(s|seed)?[-_]*\d*$', '', ''.join(alike))


def _numbered(name: str) -> Sequence[str]:
  return [f'{name} ({number})' for number in range(2, 10_000)]


def differing(runs: Sequence[Described]) -> list[str]:
  """The keys, but for the seed, in which the configs of runs differ, in the order of the configs."""
  known = dict.fromkeys(key for run in runs for key in run.settings)
  return [key for key in known if key != SEED and len({str(run.settings.get(key)) for run in runs}) > 1]


def apart(runs: Sequence[OfRun], line: Callable[[OfRun], Line | None]) -> tuple[list[OfRun], dict[Path, Path]]:
  """Runs without copies, which say nothing more: they have the config, the seed, the data and the values of another.

  A copy may have been made while the run went on, so that it ends earlier.

  Args:
    runs: in order; the longest of several copies stays, the first of equal ones.
    line: the curve of a run that is compared; None where it has none, so that nothing is known of it.

  Returns:
    The runs that stay, and folder -> folder that it is a copy of, for the others.
  """
  known = {run.folder: curve for run in runs if (curve := line(run)) is not None}
  alike: dict[str, list[OfRun]] = {}
  for run in (run for run in runs if run.folder in known):
    alike.setdefault(_identity(run), []).append(run)
  copies: dict[Path, Path] = {}
  for same in alike.values():
    originals: list[Path] = []
    for folder in sorted((run.folder for run in same), key=lambda folder: -len(known[folder][0])):
      original = next((one for one in originals if _begins_with(known[one], known[folder])), None)
      if original is None:
        originals.append(folder)
      else:
        copies[folder] = original
  return [run for run in runs if run.folder not in copies], copies


def _identity(run: Described) -> str:
  """What a run was made of: its config, and the digests of its data and its vocabulary where it has written them."""
  data = RunFolder(run.folder).data
  digests = files.read_bytes(data).hex() if files.is_file(data) else ''  # a damaged file may be no text
  return files.json_text([dict(sorted(run.settings.items())), digests])


def _begins_with(whole: Line, part: Line) -> bool:
  """Whether a curve goes on where another ends, or ends there as well."""
  return all(np.array_equal(one[: len(other)], other) for one, other in zip(whole, part, strict=True))


# Means and bands -----------------------------------------------------------------------------------------------------


def band(lines: Sequence[Line], points: int = POINTS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Steps, mean and standard deviation over runs, each float[n] with n <= `points`.

  Long curves become means of stretches. Between its steps a run counts as a straight line, and beyond them not at all;
  the deviation of a single run is 0.
  """
  thin = [(thinned(steps, points), thinned(values, points)) for steps, values in lines]
  steps = np.unique(np.concatenate([at for at, _ in thin]))
  steps = thinned(steps, points) if len(thin) > 1 else steps
  values = np.stack([np.interp(steps, at, values, left=np.nan, right=np.nan) for at, values in thin])
  count = (~np.isnan(values)).sum(axis=0)
  steps, values, count = steps[count > 0], values[:, count > 0], count[count > 0]
  scale = max(1.0, float(np.nanmax(np.abs(values))))  # of runs that diverged, whose squares are beyond a float
  mean = np.nanmean(values / scale, axis=0)
  deviation = np.sqrt(np.nansum((values / scale - mean) ** 2, axis=0) / np.maximum(count - 1, 1))
  deviation[deviation < ROUNDING * np.abs(mean)] = 0.0  # equal values have a mean that is off by its last bit
  return steps, mean * scale, np.minimum(deviation, np.finfo(float).max / scale) * scale


def thinned(values: np.ndarray, points: int = POINTS) -> np.ndarray:
  """Means of at most `points` stretches of an array."""
  if len(values) <= points:
    return values.astype(float)
  starts = np.arange(points) * len(values) // points
  return np.add.reduceat(values.astype(float), starts) / np.diff(starts, append=len(values))


def extremes(line: Line, stretches: int) -> Line:
  """The smallest and the largest value of each of some stretches of a curve, at their steps: no spike is lost.

  Args:
    line: a curve; it is returned as it is where it has no more than two points a stretch.
    stretches: number of equally long stretches of steps.
  """
  steps, values = line
  if len(steps) <= 2 * stretches:
    return line
  edges = np.linspace(steps[0], steps[-1], stretches + 1)[1:-1]
  starts = np.unique(np.concatenate([[0], np.searchsorted(steps, edges)]))
  starts = starts[starts < len(steps)]
  stretch = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(steps)))
  kept = np.unique(np.concatenate([
    _first_of_each(values == choose.reduceat(values, starts)[stretch], stretch) for choose in (np.minimum, np.maximum)
  ]))  # fmt: skip
  return steps[kept], values[kept]


def _first_of_each(there: np.ndarray, stretch: np.ndarray) -> np.ndarray:
  """The first place of each stretch where something is there, int[stretches]."""
  places = np.flatnonzero(there)
  return places[np.unique(stretch[places], return_index=True)[1]]
