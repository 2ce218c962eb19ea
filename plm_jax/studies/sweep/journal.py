"""The journal of a sweep: Optuna's file of one JSON object a line, which survives kills and damaged lines.

Optuna's own `JournalFileBackend` reads nothing behind a line that is torn or damaged, and numbers trials by the lines
before them. Here such a line is named and left out, and a torn end is closed by the next writer. Every line has a
checksum, and the one that creates a trial its number, so that the others keep theirs. Where the point of a trial whose
line is damaged is known by its number, as that of a grid, the trial is read as if its line were sound. The form is
Optuna's: its other programs read the file as long as it is not damaged.
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
STUDY, CREATE_STUDY, CREATE_TRIAL = 'sweep', 0, 4  # the name of the study, and codes of Optuna's operations
NUMBER, SUM = 'number', 'crc32'  # our fields beside those of Optuna
LOST = 'its line in the journal is damaged; what it did is in its folder'
SOME_TIME = '1970-01-01T00:00:00+00:00'  # at which it began, which Optuna asks for
Lost = Callable[[int], Line | None]  # number of a trial -> the line that creates it, where it is known


class Journal(JournalFileBackend):
  """Reads and appends lines; any number of processes may do so at the same time."""

  def __init__(self, file: Path, *, direction: Direction, lost: Lost = lambda number: None):
    """Makes the file if it is missing; `direction` is for a study whose line is damaged, `lost` for such trials."""
    super().__init__(str(file))
    self._lost = lost
    self._file, self._direction = file, StudyDirection[direction.upper()].value
    self._lines: list[Line] = []  # sound, in order
    self._read, self._count, self._trials = 0, 0, 0  # bytes, lines of the file, trials so far

  def read_logs(self, log_number_from: int) -> Generator[Line, None, None]:
    """The sound lines from a number on."""
    self._refresh()
    yield from self._lines[log_number_from:]

  def append_logs(self, logs: list[Line]) -> None:
    """Adds lines, which are on disk when it returns."""
    with files.locked(self._file.with_suffix('.lock'), doing='writing the journal'):
      self._refresh()
      number, lines = self._trials, []
      for line in logs:
        creates = line['op_code'] == CREATE_TRIAL
        lines.append(_sealed({**line, NUMBER: number} if creates else line))
        number += creates
      with files.open(self._file, 'ab') as stream:
        torn = files.size(self._file) > self._read
        stream.write((('\n' if torn else '') + ''.join(lines)).encode())
        files.flush_to_disk(stream)

  def _refresh(self) -> None:
    """Reads the whole lines that were added since."""
    with files.open(self._file, 'rb') as stream:
      stream.seek(self._read)
      for line in stream:
        if not line.endswith(b'\n'):  # still being written, or torn; the next writer knows
          return
        self._read += len(line)
        self._count += 1
        try:
          self._take(_sound(line))
        except ValueError as error:
          log.warning('%s, line %d is damaged and left out: %s', self._file, self._count, error)

  def _take(self, line: Line) -> None:
    """Adds a line, behind what stands for damaged lines before it."""
    if not self._lines and line['op_code'] != CREATE_STUDY:
      self._add({'op_code': CREATE_STUDY, 'study_name': STUDY, 'directions': [self._direction]})
    mentioned = line.get(NUMBER, line.get('trial_id', -1) + 1)  # so many trials were created before this line
    while self._trials < mentioned:
      failed = {'state': optuna.trial.TrialState.FAIL.value, 'user_attrs': {'reason': LOST}}
      begun = {'op_code': CREATE_TRIAL, 'study_id': 0, 'datetime_start': SOME_TIME}
      self._add({**begun, **(self._lost(self._trials) or failed)})
    self._add(line)

  def _add(self, line: Line) -> None:
    self._lines.append({'worker_id': '', **line})
    self._trials += line['op_code'] == CREATE_TRIAL


def _sealed(line: Line) -> str:
  """The text of a line with its checksum in it."""
  return json.dumps({**line, SUM: zlib.crc32(json.dumps(line).encode())}) + '\n'


def _sound(line: bytes) -> Line:
  """The object of a line; ValueError where there is none, or another than was written."""
  value = files.parse_json(line.decode())
  if not isinstance(value, dict) or not isinstance(value.get('op_code'), int) or 'worker_id' not in value:
    raise ValueError('it is no line of a journal')
  expected = value.pop(SUM, None)
  if expected not in (None, zlib.crc32(json.dumps(value).encode())):  # Optuna's own programs write none
    raise ValueError('its checksum is that of another line')
  return value


def template_line(trial: optuna.trial.FrozenTrial) -> Line:
  """What the line that creates a trial under way says of its state and its parameters, as Optuna writes it."""
  kinds = trial.distributions
  return {
    'state': trial.state.value,
    'distributions': {name: optuna.distributions.distribution_to_json(kind) for name, kind in kinds.items()},
    'params': {name: kinds[name].to_internal_repr(value) for name, value in trial.params.items()},
  }


def quiet() -> None:
  """Keeps Optuna from telling of every study that is made in memory."""
  optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_study(file: Path, *, direction: Direction, lost: Lost = lambda number: None) -> optuna.Study:
  """The study of a journal, which is made if it is missing.

  Args:
    file: the journal.
    direction: of its metric.
    lost: what is known of trials whose lines are damaged.
  """
  quiet()
  storage = optuna.storages.JournalStorage(Journal(file, direction=direction, lost=lost))
  return optuna.create_study(storage=storage, study_name=STUDY, direction=direction, load_if_exists=True)
