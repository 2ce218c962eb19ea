"""Metrics of a run: means from sums, and `metrics.jsonl`; other places that they go to are in `sinks.py`.

All JSON is strict. A number that JSON cannot hold is written as the string 'nan', 'inf' or '-inf', which `read` turns
back into the number.

Lines are added to `metrics.jsonl` as long as a run goes on, so they have no digest. The result of a run has that of the
file at its end, and training says so where a finished run has another file. Nothing is computed from these lines but
curves, the value of a sweep's trial and, with `early_stop`, how long a resumed run has waited.
"""

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

from plm_jax.io import downloads, files, checksums
from plm_jax.core.errors import RunError, shown
from plm_jax.io.run_paths import RunFolder
from plm_jax.io.files import Where
from plm_jax.runs.history import is_step
from plm_jax.runs.sinks import SINKS, WANDB_MISSING, Background
from plm_jax.core.types import Array

log = logging.getLogger(__name__)

Row = dict[str, Any]


def mean(sums: Mapping[str, tuple[Array | float, Array | float]]) -> dict[str, float]:
  """(sum, weight) -> sum / weight as Python floats, moved to the host at once; NaN where the weight is 0."""
  host = jax.device_get(dict(sums))
  return {name: float(total) / float(weight) if weight else math.nan for name, (total, weight) in host.items()}


# What a step trains on is the first of these that it measures: the second where words are drawn (ELMo with negatives)
TRAINED_ON = ('loss', 'sampled_loss')


def trained_on(sums: Mapping[str, tuple[Any, Any]]) -> tuple[Any, Any] | None:
  """(sum, weight) of the metric of `TRAINED_ON`; None for an objective that has none of them."""
  return next((sums[name] for name in TRAINED_ON if name in sums), None)


def plain(value: Any) -> Any:
  """The form that strict JSON can hold: numpy and jax scalars as numbers, tuples as lists, NaN and infinity as strings.

  Raises:
    TypeError: the value has no such form; the message names the type.
  """
  if isinstance(value, Mapping):
    return {str(key): plain(item) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [plain(item) for item in value]
  if value is None or isinstance(value, (bool, int, str)):
    return value
  if isinstance(value, (np.ndarray, np.generic, jax.Array)) and value.ndim == 0:
    return plain(value.item())
  if isinstance(value, os.PathLike):
    return os.fspath(value)
  if not isinstance(value, float):
    raise TypeError(f'{type(value).__name__} has no form in JSON: {str(value)[:60]}')
  return value if math.isfinite(value) else str(value)


def write_json(file: Where, value: Any) -> None:
  """Writes the `plain` form of a value, keys in their order, and its digest; a reader sees the old file or the new."""
  path = files.path(file)
  checksums.write(path.parent, {path.name: files.json_text(plain(value))})


def read(workdir: Where) -> list[Row]:
  """The lines of a run's `metrics.jsonl`, oldest first; none where there is no file. A torn last line is left out."""
  file = RunFolder.at(workdir).metrics
  return [row for row, _ in _rows(file)] if files.exists(file) else []


def drop_damaged(workdir: Where) -> None:
  """Takes damaged lines out of the `metrics.jsonl` of a run, which goes on without them; the log names them."""
  file = RunFolder.at(workdir).metrics
  if not files.exists(file):
    return
  lines = files.read_bytes(file).splitlines(keepends=True)
  whole = [_row(line) for line in lines[:-1]]  # a last one that is torn is dropped wherever a run goes on
  damaged = {number for number, row in enumerate(whole) if row is None or not is_step(row['step'])}
  if damaged:
    for number in sorted(damaged):
      log.warning('%s, line %d is damaged and left out', file, number + 1)
    files.write_bytes(file, b''.join(line for number, line in enumerate(lines) if number not in damaged))


def history(workdir: Where, name: str) -> list[float]:
  """The values of one metric, oldest first."""
  return [row[name] for row in read(workdir) if name in row]


def last(workdir: Where) -> Row:
  """The newest value of every metric."""
  newest: Row = {}
  for row in read(workdir):
    newest |= row
  newest.pop('step', None)
  return newest


def check_sinks(names: Sequence[str]) -> None:
  """Raises ValueError for a place for metrics that is not known, or whose package is not installed."""
  _check_names(names)
  if 'wandb' in names:
    try:
      import wandb  # noqa: F401
    except ImportError as error:
      raise ValueError(WANDB_MISSING) from error


def _check_names(names: Sequence[str]) -> None:
  if unknown := [name for name in names if name not in SINKS]:
    raise ValueError(f'no place for metrics is called {", ".join(unknown)}; there are {", ".join(SINKS)}')


class Writer:
  """Writes the metrics of a run; only process 0 does. A context manager.

  `metrics.jsonl` holds one object for each step, steps ascending. What is written twice for one step is merged.
  """

  def __init__(
    self,
    workdir: Where,
    *,
    sinks: Sequence[str] = ('tensorboard',),
    wandb: Mapping[str, Any] | None = None,
    resume_step: int | None = None,
  ):
    """Opens the files, and repairs `metrics.jsonl` where a killed run left a torn line.

    Args:
      workdir: the run folder, made where it is missing.
      sinks: where metrics go beside `metrics.jsonl`; names from `SINKS`.
      wandb: keywords of `wandb.init` over our own, which name the run by its folder and continue it on resume.
      resume_step: the step that the run goes on from: later lines are dropped. None keeps them all.

    Raises:
      ValueError: no such sink.
      ImportError: `wandb` is asked for and not installed.
    """
    _check_names(sinks)
    folder = RunFolder.at(workdir)
    self._writes = jax.process_index() == 0
    self._last: Row = {}
    self._start = 0  # byte at which the line of the last step begins
    self._sinks: list[Background] = []
    if not self._writes:
      return
    starts = {name: SINKS[name](folder.root, resume_step=resume_step, settings=wandb or {}) for name in sinks}
    files.make_folder(folder.root)
    self._mirror = downloads.Mirror(folder.metrics)
    self._file = self._mirror.file
    self._repair(resume_step)
    self._sinks = [Background(name, start) for name, start in starts.items()]

  def write(self, step: int, values: Mapping[str, Any]) -> None:
    """Adds the values of a step.

    Args:
      step: not smaller than the last one.
      values: name -> number, or other plain JSON. In TensorBoard a name without '/' gets 'train/' before it.

    Raises:
      ValueError: the step is older than the last line.
    """
    if not self._writes:
      return
    last = self._last.get('step')
    if last is not None and step < last:
      raise ValueError(f'metrics of step {step} after those of step {last}: open the writer with resume_step={step}')
    if step == last:
      row = self._last | plain(values)
    else:
      row = {'step': int(step), **plain(values)}
      self._start = files.size(self._file)
    line = (json.dumps(row, allow_nan=False) + '\n').encode()
    with files.named(self._file), files.open(self._file, 'r+b') as file:
      file.seek(self._start)
      file.write(line)
      file.truncate()
    self._last = row
    self._mirror.due()
    numbers = {name: value for name, value in values.items() if _is_number(value)}
    for sink in self._sinks:
      sink.write(step, numbers)

  def flush(self) -> None:
    """Returns when `metrics.jsonl` has every line; called before a step is saved, which a resumed run goes on from.

    On this machine it has them all the time. At an address the whole file is sent here, and in between by
    `copies.Mirror.due`.
    """
    if self._writes:
      self._mirror.send()

  def close(self) -> None:
    """Writes out what is left; call it, or use `with`."""
    if self._writes:
      self._mirror.close()
    for sink in self._sinks:
      sink.close()

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self.close()

  def _repair(self, resume_step: int | None) -> None:
    """Drops a torn last line and the lines after `resume_step`."""
    if not files.exists(self._file):
      files.append(self._file, '')
      return
    kept = [(row, line) for row, line in _rows(self._file) if resume_step is None or row['step'] <= resume_step]
    text = b''.join(line for _, line in kept)
    if text != files.read_bytes(self._file):
      files.write_text(self._file, text.decode())
    if kept:
      self._last = plain(kept[-1][0])
      self._start = len(text) - len(kept[-1][1])


def _rows(file: Path) -> Iterator[tuple[Row, bytes]]:
  """(row, its line) of every whole line.

  Raises:
    RunError: a line other than the last one is not a metric line; it names the line.
  """
  lines = files.read_bytes(file).splitlines(keepends=True)
  for number, line in enumerate(lines, start=1):
    row = _row(line)
    if row is None:
      if number == len(lines):
        return
      raise RunError(f'{file}, line {number} is not a line of metrics: repair or remove it')
    if not is_step(row['step']):
      raise RunError(f'{file}, line {number} has step {shown(row["step"])}, which no run has: repair or remove it')
    yield {name: _number(value) for name, value in row.items()}, line


def _row(line: bytes) -> Row | None:
  """The object of a line; None for one that is torn or damaged."""
  try:
    row: Row = files.parse_json(line.decode())
    return row if line.endswith(b'\n') and isinstance(row['step'], int) else None
  except (ValueError, KeyError, TypeError):
    return None


def _number(value: Any) -> Any:
  return float(value) if value in ('nan', 'inf', '-inf') else value


def _is_number(value: Any) -> bool:
  if isinstance(value, (np.ndarray, np.generic, jax.Array)):
    return value.ndim == 0
  return isinstance(value, (int, float)) and not isinstance(value, bool)
