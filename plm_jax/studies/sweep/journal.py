"""The journal of a sweep: Optuna's JSON lines, made robust to kills and damaged lines.

Optuna's `JournalFileBackend` reads nothing after a damaged line, and numbers trials by the lines before them. This
backend skips damaged lines with a warning, and the next writer closes a torn last line. Every line has a checksum, and
the line that creates a trial its number, so that the other trials keep theirs. If the number determines the point of a
trial, as in a grid, a damaged line of creation is rebuilt. The format is Optuna's: its other programs can read the file
unless it is damaged.
"""

import json
import logging
import zlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection

from plm_jax.io import files

log = logging.getLogger(__name__)

Line = dict[str, Any]
Direction = Literal['minimize', 'maximize']
STUDY, CREATE_STUDY, CREATE_TRIAL = 'sweep', 0, 4  # name of the study, and codes of Optuna's operations
NUMBER, SUM = 'number', 'crc32'  # fields added to those of Optuna
LOST = 'its line in the journal is damaged; what it did is in its folder'
START_TIME = '1970-01-01T00:00:00+00:00'  # required by Optuna
Lost = Callable[[int], Line | None]  # number of a trial -> the line that creates it, or None


class Journal(JournalFileBackend):
  """Storage backend that several processes may read and append to at once."""

  def __init__(self, file: Path, *, direction: Direction, lost: Lost = lambda number: None):
    """Create the file if it is missing.

    `direction` is that of a study whose line is damaged. `lost` rebuilds the damaged line of a trial.
    """
    super().__init__(str(file))
    self._lost = lost
    self._file, self._direction = file, StudyDirection[direction.upper()].value
    self._lines: list[Line] = []  # valid lines, in order
    self._read, self._count, self._trials = 0, 0, 0  # bytes and lines of the file that are read, trials

  def read_logs(self, log_number_from: int) -> Generator[Line, None, None]:
    """Yield the valid lines from an index on."""
    self._refresh()
    yield from self._lines[log_number_from:]

  def append_logs(self, logs: list[Line]) -> None:
    """Append lines and flush them to disk."""
    with files.locked(self._file.with_suffix('.lock'), doing='writing the journal'):
      self._refresh()
      number, lines = self._trials, []
      for line in logs:
        creates = line['op_code'] == CREATE_TRIAL
        lines.append(_with_checksum({**line, NUMBER: number} if creates else line))
        number += creates
      with files.open(self._file, 'ab') as stream:
        torn = files.size(self._file) > self._read
        stream.write((('\n' if torn else '') + ''.join(lines)).encode())
        files.flush_to_disk(stream)

  def _refresh(self) -> None:
    """Read the complete lines that were added since the last call."""
    with files.open(self._file, 'rb') as stream:
      stream.seek(self._read)
      for line in stream:
        if not line.endswith(b'\n'):  # still being written, or torn
          return
        self._read += len(line)
        self._count += 1
        try:
          self._take(_parsed(line))
        except ValueError as error:
          log.warning('%s, line %d is damaged and left out: %s', self._file, self._count, error)

  def _take(self, line: Line) -> None:
    """Add a line, after replacements for damaged lines before it."""
    if not self._lines and line['op_code'] != CREATE_STUDY:
      self._add({'op_code': CREATE_STUDY, 'study_name': STUDY, 'directions': [self._direction]})
    earlier_trials = line.get(NUMBER, line.get('trial_id', -1) + 1)  # created before this line
    while self._trials < earlier_trials:
      failed = {'state': optuna.trial.TrialState.FAIL.value, 'user_attrs': {'reason': LOST}}
      creation = {'op_code': CREATE_TRIAL, 'study_id': 0, 'datetime_start': START_TIME}
      self._add({**creation, **(self._lost(self._trials) or failed)})
    self._add(line)

  def _add(self, line: Line) -> None:
    self._lines.append({'worker_id': '', **line})
    self._trials += line['op_code'] == CREATE_TRIAL


def _with_checksum(line: Line) -> str:
  return json.dumps({**line, SUM: zlib.crc32(json.dumps(line).encode())}) + '\n'


def _parsed(line: bytes) -> Line:
  """Parse a line; ValueError if it is damaged."""
  value = files.parse_json(line.decode())
  if not isinstance(value, dict) or not isinstance(value.get('op_code'), int) or 'worker_id' not in value:
    raise ValueError('not a line of a journal')
  expected = value.pop(SUM, None)
  if expected not in (None, zlib.crc32(json.dumps(value).encode())):  # Optuna's programs write none
    raise ValueError('wrong checksum')
  return value


def template_line(trial: optuna.trial.FrozenTrial) -> Line:
  """Build the line of a running trial, as Optuna writes it."""
  distributions = trial.distributions
  return {
    'state': trial.state.value,
    'distributions': {name: optuna.distributions.distribution_to_json(kind) for name, kind in distributions.items()},
    'params': {name: distributions[name].to_internal_repr(value) for name, value in trial.params.items()},
  }


def quiet() -> None:
  """Silence Optuna's message for every study created in memory."""
  optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_study(file: Path, *, direction: Direction, lost: Lost = lambda number: None) -> optuna.Study:
  """Open the study of a journal, created if missing; see `Journal`."""
  quiet()
  storage = optuna.storages.JournalStorage(Journal(file, direction=direction, lost=lost))
  return optuna.create_study(storage=storage, study_name=STUDY, direction=direction, load_if_exists=True)
