"""What the folders of a report hold: runs, sweeps, tables of papers; damage is a remark and ends nothing."""

import functools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plm_jax.config.resume import leaves
from plm_jax.core.errors import STOPPED, ConfigError, RunError
from plm_jax.io import checksums, files
from plm_jax.io.run_paths import RunFolder
from plm_jax.studies import curve_sets, metric_lines
from plm_jax.studies.metric_lines import Metrics

log = logging.getLogger(__name__)

DEEPEST = 4  # folders below one that is named, which are looked at
DIVERGED = 4  # exit code of a run
DIVERGING = ('loss', 'gradient_norm')  # ends of metrics that say more than that nothing was counted
HIDDEN = ('checkpoints', 'vocab', 'second_vocab', 'cache', 'locks')
PART_NORMS = ('gradient_norm/', 'parameter_norm/', 'update_norm/')  # a metric for each part of a network
_DEVICES = re.compile(r'accumulated; (\d+ x [^;]+);')  # in the log of a run


class Run(NamedTuple):
  """A run of a report.

  Attributes:
    name: its folder, from the one that all of them are in.
    folder: of the run.
    config: as `config.load` reads it.
    settings: dotted key -> value of its config.
    result: as the run wrote it at its last end; empty where there is none.
    digests: of the data, the vocabulary and the first batches.
    devices: such as '8 x TPU v5 lite'; '' where the log does not say.
    metrics: its curves.
    remarks: what is wrong with it.
  """

  name: str
  folder: Path
  config: Mapping[str, Any]
  settings: Mapping[str, Any]
  result: Mapping[str, Any]
  digests: Mapping[str, str]
  devices: str
  metrics: Metrics
  remarks: Sequence[str]

  @property
  def best(self) -> tuple[str, str] | None:
    """The metric of `best` and 'min' or 'max'."""
    best = self.config.get('best')
    return (best[0], best[1]) if isinstance(best, list | tuple) and len(best) == 2 else None

  @property
  def step(self) -> int:
    """Of its last line of metrics."""
    return self.metrics.last

  @property
  def state(self) -> str:
    """How it stands, in words."""
    if not self.result:
      return 'no end yet'
    if self.result.get('finished') is True:
      return 'finished'
    code = self.result.get('exit_code')
    return 'diverged' if code == DIVERGED else 'stopped' if code == STOPPED else 'not finished'


class Found(NamedTuple):
  """Everything that the folders hold.

  Attributes:
    runs: in the order of their names.
    sweeps: name -> what its `table.json` holds.
    tables: name -> the text of its `table.md`.
    remarks: what could not be read.
  """

  runs: Sequence[Run]
  sweeps: Mapping[str, Mapping[str, Any]]
  tables: Mapping[str, str]
  remarks: Sequence[str]


def find(folders: Sequence[files.Where], wanted: Callable[[str], bool]) -> Found:
  """Reads the runs, sweeps and tables in some folders and in the folders below them.

  Args:
    folders: of runs, sweeps, tables, or that hold such folders.
    wanted: which metrics are read, by their names.

  Raises:
    ConfigError: there is no such folder, or nothing in it.
  """
  runs: dict[Path, None] = {}
  others: dict[Path, None] = {}
  for folder in map(files.path, folders):
    if not files.is_folder(folder):
      raise ConfigError(f'{folder}: there is no such folder; name folders of runs, sweeps or tables')
    own = list(_walk(files.absolute(folder), DEEPEST))
    if not own:
      raise ConfigError(f'{folder}: no run began there (no config.json beside metrics), and there is no sweep or table')
    runs |= dict.fromkeys(one for one in own if files.is_file(RunFolder(one).config))
    others |= dict.fromkeys(one for one in own if one not in runs)
  of_papers = [one for one in others if not files.is_folder(one / 'trials')]  # which lie elsewhere than runs and sweeps
  names = curve_sets.short_names([one for one in (*runs, *others) if one not in of_papers])
  names |= curve_sets.short_names(of_papers)
  remarks: list[str] = []
  read = metric_lines.read([RunFolder(folder).metrics for folder in runs], wanted)
  found = [_run(names[folder], folder, lines, remarks) for folder, lines in zip(runs, read, strict=True)]
  kept = sorted((run for run in found if run is not None), key=lambda run: _natural(run.name))
  sweeps = {names[one]: table for one in others if (table := _sweep(one, remarks))}
  tables = {names[one]: text for one in others if (text := _table(one, remarks))}
  if not kept and not sweeps and not tables:
    raise ConfigError('\n'.join(['nothing of these folders can be read:', *remarks]))
  return Found(kept, sweeps, tables, remarks)


def _walk(folder: Path, depth: int) -> Iterator[Path]:
  """The folders of runs, sweeps and tables, from the top."""
  own = RunFolder(folder)
  began = (own.metrics, own.result, own.data, own.log)
  trials = files.is_folder(folder / 'trials')
  if not trials and files.is_file(own.config) and any(map(files.is_file, began)):
    yield folder
    return
  if files.is_file(folder / 'table.json' if trials else folder / 'table.md'):
    yield folder
  for inner in files.listing(folder) if depth else ():
    if files.is_folder(inner) and inner.name not in HIDDEN and not inner.name.startswith('.'):
      yield from _walk(inner, depth - 1)


def _natural(name: str) -> list[tuple[int, str]]:
  """A key by which run_2 comes before run_10."""
  return [(int(part), '') if part.isdigit() else (-1, part) for part in re.split(r'(\d+)', name)]


def _run(name: str, folder: Path, metrics: Metrics, remarks: list[str]) -> Run | None:
  """A run; None where its config cannot be read, which is a remark."""
  own = RunFolder(folder)
  mine: list[str] = []
  try:
    settings = curve_sets.settings_of(own)
  except ConfigError as error:
    remarks.append(f'{name} is left out: {error}')
    return None
  result, data = _json(own.result, mine), _json(own.data, mine)
  digests = {key: str(value) for key, value in {**data, **result}.items() if key.endswith('_digest')}
  if not metrics.sound:
    mine.append('no line of metrics')
  if metrics.damaged:
    shown = ', '.join(map(str, metrics.damaged[: metric_lines.NAMED]))
    more = f' and {len(metrics.damaged) - metric_lines.NAMED} more' if len(metrics.damaged) > metric_lines.NAMED else ''
    mine.append(f'{own.metrics.name}: damaged and left out: line {shown}{more}')
  for metric, step in ((name, at) for name, at in metrics.not_finite.items() if name.endswith(DIVERGING)):
    mine.append(f'{metric} is not finite at step {step:,}')
  return Run(name, folder, settings, leaves(settings), result, digests, _devices(own.log), metrics, mine)


def _json(file: Path, remarks: list[str]) -> dict[str, Any]:
  """The object in a file; empty where there is none, or a damaged one, which is a remark."""
  try:
    value = checksums.read_json(file, default={})
    if not isinstance(value, dict):
      raise ValueError('no object')
  except (OSError, ValueError, RunError) as error:
    log.warning('%s', error)
    remarks.append(f'{file.name} cannot be read: it is damaged, or was edited')
    return {}
  return value


def _devices(file: Path) -> str:
  try:
    text = files.read_bytes(file).decode(errors='replace') if files.is_file(file) else ''
  except (OSError, ValueError):  # too large to be read whole
    return ''
  return next(reversed(_DEVICES.findall(text)), '')


def _sweep(folder: Path, remarks: list[str]) -> dict[str, Any]:
  """What the `table.json` of a sweep holds; empty where it is damaged, which is a remark."""
  if not files.is_folder(folder / 'trials'):
    return {}
  mine: list[str] = []
  table = _json(folder / 'table.json', mine)
  if not _is_of_a_sweep(table):
    mine.append('table.json is left out: it is not what a sweep writes')
    table = {}
  remarks += [f'{folder.name}: {remark}' for remark in mine]
  return table


def _is_of_a_sweep(table: Mapping[str, Any]) -> bool:
  """Whether its rows are points with numbers of trials and reasons in words."""
  rows = table.get('rows', [])
  return isinstance(rows, list) and all(
    isinstance(row, dict)
    and isinstance(row.get('point'), dict)
    and isinstance(row.get('numbers', []), list)
    and isinstance(row.get('reasons', []), list)
    and all(isinstance(reason, str) for reason in row.get('reasons', []))
    for row in rows
  )


def _table(folder: Path, remarks: list[str]) -> str:
  """The text of a table of a paper."""
  if files.is_folder(folder / 'trials') or not files.is_file(folder / 'table.md'):
    return ''
  try:
    return files.read_text(folder / 'table.md')
  except (OSError, ValueError) as error:
    remarks.append(f'{folder.name}/table.md cannot be read: {error}')
    return ''


@functools.cache
def is_headline(name: str) -> bool:
  """Whether a metric is drawn without being asked for: all but the norms of single parts of a network."""
  return not name.startswith(PART_NORMS)
