"""Read the metrics of runs: steps and values of the chosen metrics, without damaged lines.

Several threads read blocks of lines, and only the chosen metrics, with pyarrow's JSON reader. A block that pyarrow
rejects is read line by line: damaged lines are reported by number, and the others are used.
"""

import concurrent.futures
import functools
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plm_jax.io import files
from plm_jax.runs import history

log = logging.getLogger(__name__)

CHUNK = files.DEEPEST - 1  # lines parsed at once: so few brackets that `parse_json` need not count their levels
BLOCK = 2**23  # bytes that a thread reads at once
NAMED = 5  # damaged lines of a file that the log names one by one
NOT_FINITE = ('nan', 'inf', '-inf')  # as metrics write them
Line = tuple[np.ndarray, np.ndarray]  # steps, values
_NO_KEY = bytes(set(range(256)) - set(b'0123456789":'))  # bytes that do not matter for digits in keys
Wanted = Callable[[str], bool]


class Metrics(NamedTuple):
  """The lines of metrics of a run."""

  lines: Mapping[str, Line]  # chosen metric -> steps int[n], ascending, and finite values float[n]
  names: Sequence[str]  # all numeric metrics, sorted
  sound: int  # number of undamaged lines
  damaged: Sequence[int]  # numbers of the damaged lines, from 1
  not_finite: Mapping[str, int]  # chosen metric -> step of its first non-finite value
  diverged: Mapping[str, int]  # chosen metric -> step from which no value is finite, if it ends so
  last: int  # step of the last line; 0 if there is none


class _Block(NamedTuple):
  """A block of lines: steps int[n] and metric -> float[n], NaN where a line lacks it; the rest as in `Metrics`.

  `not_finite` has the steps of all non-finite values.
  """

  steps: np.ndarray
  columns: Mapping[str, np.ndarray]
  names: frozenset[str]
  damaged: Sequence[int]
  not_finite: Mapping[str, Sequence[int]]


def series(file: Path, metric: str) -> Line:
  """Read the steps int[n] and finite values float[n] of a metric.

  Damaged lines are reported and left out; so is a last line that is still being written.
  """
  empty = np.array([], int), np.array([], float)
  return read([file], lambda name: name == metric)[0].lines.get(metric, empty)


def names(file: Path) -> set[str]:
  """Read the names of the numeric metrics of a file."""
  return set(read([file], lambda name: False)[0].names)


def read(paths: Sequence[Path], wanted: Wanted) -> list[Metrics]:
  """Read several files of metrics.

  A missing file is empty. The log reports damaged lines. `wanted` tells from the name of a metric whether it is read;
  'step' always is.
  """
  with concurrent.futures.ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as threads:
    seen: dict[bytes, set[str]] = {}
    jobs = [[threads.submit(_read_block, path, *span, wanted, seen) for span in _spans(path)] for path in paths]
    blocks = [[job.result() for job in of_file] for of_file in jobs]
  return [_joined(path, of_file) for path, of_file in zip(paths, blocks, strict=True)]


def _spans(file: Path) -> Iterator[tuple[int, int]]:
  """Yield byte ranges [start, end) of complete lines, about `BLOCK` each."""
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


def _read_block(file: Path, start: int, stop: int, wanted: Wanted, seen: dict[bytes, set[str]]) -> _Block:
  """Read a range's lines, without an unfinished last one."""
  with files.open(file, 'rb') as stream:
    stream.seek(start)
    content = stream.read(stop - start)
  content = content[: content.rfind(b'\n') + 1]
  try:
    return _parse_at_once(content, wanted, seen)
  except ValueError:  # pyarrow's errors are ValueErrors
    with files.open(file, 'rb') as stream:
      first = 1 + sum(stream.read(min(BLOCK, start - read)).count(b'\n') for read in range(0, start, BLOCK))
    return _parse_by_line(content, wanted, first=first)


def _parse_at_once(content: bytes, wanted: Wanted, seen: dict[bytes, set[str]]) -> _Block:
  """Parse lines, or raise ValueError for damage and metrics without numbers."""
  import pyarrow
  from pyarrow import json as reader

  content.decode()
  shapes = content.translate(None, b'0123456789').split(b'\n')[:-1]
  numeric = _names_in(content, shapes, seen)
  chosen = sorted(filter(wanted, numeric))
  non_finite = [word for word in (b'"nan"', b'"inf"', b'"-inf"') if any(word in shape for shape in set(shapes))]
  plain = functools.reduce(lambda text, word: text.replace(word, b'null'), non_finite, content)
  schema = pyarrow.schema([('step', pyarrow.int64()), *((name, pyarrow.float64()) for name in chosen)])
  table = reader.read_json(
    pyarrow.BufferReader(plain or b'{}'),
    read_options=reader.ReadOptions(use_threads=False, block_size=len(plain) + 2),
    parse_options=reader.ParseOptions(explicit_schema=schema, unexpected_field_behavior='ignore'),
  )
  if table.num_rows != len(shapes) or table['step'].null_count:
    raise ValueError('a line is no object, or has no step')
  steps = table['step'].to_numpy()
  if len(steps) and not all(map(history.is_step, (int(steps.min()), int(steps.max())))):
    raise ValueError('an impossible step')
  columns = {name: table[name].to_numpy().astype(float) for name in chosen}
  not_finite = _not_finite(content, chosen) if non_finite else {}
  return _Block(steps=steps, columns=columns, names=frozenset(numeric), damaged=(), not_finite=not_finite)


def _names_in(content: bytes, shapes: Sequence[bytes], seen: dict[bytes, set[str]]) -> set[str]:
  """Find the numeric metrics of some lines.

  Lines with the same keys are equal without their digits, so one of them is parsed for all. If a key contains a digit,
  such as 'val2/loss', all keys are searched instead.
  """
  bare = content.translate(None, _NO_KEY)  # {"val2/loss": 1.5, "step": 3}   ->   "2":15"":3
  if bare.count(b'"":') != bare.count(b'":'):
    matches = set(re.findall(rb'"([^"\\]+)" *: *(?:[-0-9]|"(?:nan|-?inf)")', content))
    return {name.decode() for name in matches} - {'step'}
  different = set(shapes)
  for shape in different - seen.keys():
    index = shapes.index(shape)
    row = files.parse_json(content.split(b'\n', index + 1)[index].decode())
    if not _is_row(row):
      raise ValueError('not a line of metrics')
    seen[shape] = {name for name, value in row.items() if name != 'step' and (_is_number(value) or value in NOT_FINITE)}
  return set().union(*(seen[shape] for shape in different))


def _not_finite(content: bytes, chosen: Sequence[str]) -> dict[str, list[int]]:
  """Map each metric to the steps of its non-finite values."""
  steps: dict[str, list[int]] = {}
  for line in re.findall(rb'^.*"(?:nan|inf|-inf)".*$', content, re.MULTILINE):
    row = files.parse_json(line.decode())
    for name in chosen:
      if row.get(name) in NOT_FINITE:
        steps.setdefault(name, []).append(row['step'])
  return steps


def _parse_by_line(content: bytes, wanted: Wanted, *, first: int) -> _Block:
  """Parse possibly damaged lines; `first` is the first line's number."""
  steps: list[int] = []
  values: dict[str, dict[int, float]] = {}
  numeric: set[str] = set()
  damaged: list[int] = []
  not_finite: dict[str, list[int]] = {}
  for number, row in enumerate(_rows(content.splitlines(keepends=True)), start=first):
    if row is None:
      damaged.append(number)
      continue
    for name, value in row.items():
      if name == 'step' or not (_is_number(value) or value in NOT_FINITE):
        continue
      numeric.add(name)
      if wanted(name) and _is_number(value) and math.isfinite(value):
        values.setdefault(name, {})[len(steps)] = float(value)
      elif wanted(name):
        not_finite.setdefault(name, []).append(row['step'])
    steps.append(row['step'])
  columns = {name: np.full(len(steps), np.nan) for name in values}
  for name, by_line in values.items():
    columns[name][list(by_line)] = list(by_line.values())
  return _Block(
    steps=np.array(steps, int), columns=columns, names=frozenset(numeric), damaged=damaged, not_finite=not_finite
  )


def _rows(lines: Sequence[bytes]) -> Iterator[Mapping[str, Any] | None]:
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


def _joined(file: Path, blocks: Sequence[_Block]) -> Metrics:
  """Join the blocks of a file; report damaged lines."""
  damaged = [number for block in blocks for number in block.damaged]
  for number in damaged[:NAMED]:
    log.warning('%s, line %d is damaged and left out', file, number)
  if len(damaged) > NAMED:
    log.warning('%s: %d more lines are damaged and left out', file, len(damaged) - NAMED)
  lines = _finite_lines(blocks)
  not_finite: dict[str, list[int]] = {}
  for name, steps in ((name, steps) for block in blocks for name, steps in block.not_finite.items()):
    not_finite.setdefault(name, []).extend(steps)
  last_finite = {name: int(steps[-1]) for name, (steps, _) in lines.items()}
  diverged = {name: [step for step in steps if step > last_finite.get(name, -1)] for name, steps in not_finite.items()}
  return Metrics(
    lines=lines,
    names=sorted({name for block in blocks for name in block.names}),
    sound=sum(len(block.steps) for block in blocks),
    damaged=damaged,
    not_finite={name: steps[0] for name, steps in not_finite.items()},
    diverged={name: min(steps) for name, steps in diverged.items() if steps},
    last=max((int(block.steps.max()) for block in blocks if len(block.steps)), default=0),
  )


def _finite_lines(blocks: Sequence[_Block]) -> dict[str, Line]:
  """Join the finite values of each metric, sorted by step."""
  lines: dict[str, Line] = {}
  for name in dict.fromkeys(name for block in blocks for name in block.columns):
    with_metric = [block for block in blocks if name in block.columns]
    steps = np.concatenate([block.steps for block in with_metric])
    values = np.concatenate([block.columns[name] for block in with_metric])
    finite = np.isfinite(values)
    order = np.argsort(steps[finite], kind='stable')
    if finite.any():
      lines[name] = steps[finite][order], values[finite][order]
  return lines
