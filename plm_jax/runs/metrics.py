"""Metrics of a run: means from sums, and `metrics.jsonl`. Other outputs are in `sinks.py`.

All JSON is strict. A number that JSON cannot hold is written as the string 'nan', 'inf' or '-inf', which `read` turns
back into the number.

A run appends lines to `metrics.jsonl`, so the file has no separate checksum. The result of a run stores the checksum
of the file at its end, and training warns if the file of a finished run differs. Only curves, the value of a sweep's
trial and, with `early_stop`, the patience of a resumed run are computed from these lines.
"""

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from plm_jax.core.types import Array
from plm_jax.io import checksums, downloads, files
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs.history import is_step
from plm_jax.runs.sinks import SINKS, WANDB_MISSING, Background

log = logging.getLogger(__name__)

Row = dict[str, Any]


def mean(sums: Mapping[str, tuple[Array | float, Array | float]]) -> dict[str, float]:
  """Divide sums by weights on the host; NaN for weight 0."""
  host = jax.device_get(dict(sums))
  return {name: float(total) / float(weight) if weight else math.nan for name, (total, weight) in host.items()}


# the training loss is the first of these that a step measures; the second is for sampled softmax (ELMo with negatives)
TRAINED_ON = ('loss', 'sampled_loss')


def trained_on(sums: Mapping[str, tuple[Any, Any]]) -> tuple[Any, Any] | None:
  """Return (sum, weight) of the metric of `TRAINED_ON`, or None."""
  return next((sums[name] for name in TRAINED_ON if name in sums), None)


def plain(value: Any) -> Any:
  """Convert a value for strict JSON.

  Numpy and jax scalars become numbers, tuples lists, NaN and infinity strings. Raises TypeError: the value has no JSON
  form; the message names the type.
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
    raise TypeError(f'{type(value).__name__} has no JSON form: {str(value)[:60]}')
  return value if math.isfinite(value) else str(value)


def write_json(file: Where, value: Any) -> None:
  """Replace a file by a value's `plain` form, and store its checksum."""
  path = files.path(file)
  checksums.write(path.parent, {path.name: files.json_text(plain(value))})


def read(workdir: Where) -> list[Row]:
  """Read the lines of a run's `metrics.jsonl`, oldest first.

  A missing file has no lines. Damaged lines are left out; the log names them.
  """
  file = RunFolder.at(workdir).metrics
  return [row for row, _ in _rows(file)] if files.exists(file) else []


def last(workdir: Where) -> Row:
  """Read the newest value of every metric."""
  newest: Row = {}
  for row in read(workdir):
    newest |= row
  newest.pop('step', None)
  return newest


def check_sinks(names: Sequence[str]) -> None:
  """Raise ValueError for an unknown sink or a missing package."""
  _check_names(names)
  if 'wandb' in names:
    try:
      import wandb  # noqa: F401
    except ImportError as error:
      raise ValueError(WANDB_MISSING) from error


def _check_names(names: Sequence[str]) -> None:
  if unknown := [name for name in names if name not in SINKS]:
    raise ValueError(f'unknown sink {", ".join(unknown)}; choices are {", ".join(SINKS)}')


class Writer:
  """A context manager that writes the metrics of a run; only process 0 writes.

  `metrics.jsonl` holds one object per step, in ascending order. Values written twice for a step are merged.
  """

  def __init__(
    self,
    workdir: Where,
    *,
    sinks: Sequence[str] = ('tensorboard',),
    wandb: Mapping[str, Any] | None = None,
    resume_step: int | None = None,
  ):
    """Open the files and repair `metrics.jsonl`.

    A killed run may leave a torn line, which is dropped. Raises ValueError: an unknown sink; ImportError: `wandb` is a
    sink and not installed.

    Args:
      workdir: the run folder, created if it is missing.
      sinks: outputs in addition to `metrics.jsonl`; names from `SINKS`.
      wandb: keywords of `wandb.init`, which override ours: the run is named by its folder and continued on resume.
      resume_step: the step that the run resumes from; later lines are dropped. None retains all.
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
    """Write values of a step: name -> number, or plain JSON.

    In TensorBoard a name without '/' gets 'train/' before it. Raises ValueError: the step is older than the last line.
    """
    if not self._writes:
      return
    last = self._last.get('step')
    if last is not None and step < last:
      raise ValueError(f'metrics of step {step} after those of step {last}; open the writer with resume_step={step}')
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
    """Wait until `metrics.jsonl` has every line.

    Called before a step is saved, which a resumed run starts from. A local file is always up to date. At a URL this
    call sends the whole file; between calls `downloads.Mirror.due` does.
    """
    if self._writes:
      self._mirror.send()

  def close(self) -> None:
    """Write the remaining lines; `with` calls it."""
    if self._writes:
      self._mirror.close()
    for sink in self._sinks:
      sink.close()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def _repair(self, resume_step: int | None) -> None:
    """Drop damaged lines and the lines after `resume_step`."""
    if not files.exists(self._file):
      files.append(self._file, '')
      return
    retained = [(row, line) for row, line in _rows(self._file) if resume_step is None or row['step'] <= resume_step]
    text = b''.join(line for _, line in retained)
    if text != files.read_bytes(self._file):
      files.write_text(self._file, text.decode())
    if retained:
      self._last = plain(retained[-1][0])
      self._start = len(text) - len(retained[-1][1])


def _rows(file: Path) -> Iterator[tuple[Row, bytes]]:
  """Yield (row, its line); log and leave out damage before the end."""
  lines = files.read_bytes(file).splitlines(keepends=True)
  for line_number, line in enumerate(lines, start=1):
    row = _row(line)
    if row is not None:
      yield {name: float(value) if value in ('nan', 'inf', '-inf') else value for name, value in row.items()}, line
    elif line_number < len(lines):
      log.warning('%s, line %d is damaged and left out', file, line_number)


def _row(line: bytes) -> Row | None:
  """Parse a line; None for a torn or damaged one."""
  try:
    row: Row = files.parse_json(line.decode())
    return row if line.endswith(b'\n') and is_step(row['step']) else None
  except (ValueError, KeyError, TypeError):
    return None


def _is_number(value: Any) -> bool:
  if isinstance(value, (np.ndarray, np.generic, jax.Array)):
    return value.ndim == 0
  return isinstance(value, (int, float)) and not isinstance(value, bool)
