"""Read the folders of a report: runs, sweeps and tables of papers; damage becomes a remark."""

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

MAX_DEPTH = 4  # levels of folders below a named one
DIVERGED = 4  # exit code of a run
DIVERGING = ('loss', 'gradient_norm')  # suffixes of metrics whose non-finite values are reported
HIDDEN = ('checkpoints', 'vocab', 'second_vocab', 'cache', 'locks')
PART_NORMS = ('gradient_norm/', 'parameter_norm/', 'update_norm/')  # one metric for each part of a network
_DEVICES = re.compile(r'accumulated; (\d+ x [^;]+);')  # in the log of a run


class Run(NamedTuple):
  """A run of a report."""

  name: str  # its folder, relative to the common folder
  folder: Path  # the run folder
  config: Mapping[str, Any]  # config as `config.load` reads it
  settings: Mapping[str, Any]  # dotted key -> value of its config
  result: Mapping[str, Any]  # content of `result.json`; empty if there is none
  digests: Mapping[str, str]  # checksums of the data, the vocabulary and the first batches
  devices: str  # such as '8 x TPU v5 lite'; '' if unknown
  metrics: Metrics  # its curves
  remarks: Sequence[str]  # problems with the run

  @property
  def best(self) -> tuple[str, str] | None:
    """Return the metric in `best` and 'min' or 'max'."""
    best = self.config.get('best')
    return (best[0], best[1]) if isinstance(best, list | tuple) and len(best) == 2 else None

  @property
  def step(self) -> int:
    """Return the step of its last line of metrics."""
    return self.metrics.last

  @property
  def state(self) -> str:
    """Describe the state of the run."""
    if not self.result:
      return 'no result yet'
    if self.result.get('finished') is True:
      return 'finished'
    code = self.result.get('exit_code')
    return 'diverged' if code == DIVERGED else 'stopped' if code == STOPPED else 'not finished'


class Contents(NamedTuple):
  """The contents of the folders of a report."""

  runs: Sequence[Run]  # runs in the order of their names
  sweeps: Mapping[str, Mapping[str, Any]]  # name -> content of its `table.json`
  tables: Mapping[str, str]  # name -> text of its `table.md`
  remarks: Sequence[str]  # what could not be read


def find(folders: Sequence[files.Where], wanted: Callable[[str], bool]) -> Contents:
  """Read the runs, sweeps and tables in some folders and below them.

  `wanted` tells whether a metric is read. Raises ConfigError: a folder does not exist or contains nothing to report.
  """
  runs: dict[Path, None] = {}
  others: dict[Path, None] = {}
  for folder in map(files.path, folders):
    if not files.is_folder(folder):
      raise ConfigError(f'{folder}: there is no such folder; name folders of runs, sweeps or tables')
    below = list(_walk(files.absolute(folder), MAX_DEPTH))
    if not below:
      raise ConfigError(f'{folder}: no run (a config.json next to metrics), sweep or table in it; name another folder')
    runs |= dict.fromkeys(path for path in below if files.is_file(RunFolder(path).config))
    others |= dict.fromkeys(path for path in below if path not in runs)
  paper_tables = [path for path in others if not files.is_folder(path / 'trials')]
  names = curve_sets.short_names([path for path in (*runs, *others) if path not in paper_tables])
  names |= curve_sets.short_names(paper_tables)
  remarks: list[str] = []
  metrics = metric_lines.read([RunFolder(folder).metrics for folder in runs], wanted)
  read = [_read_run(names[folder], folder, lines, remarks) for folder, lines in zip(runs, metrics, strict=True)]
  readable = sorted((run for run in read if run is not None), key=lambda run: _natural(run.name))
  sweeps = {names[path]: table for path in others if (table := _sweep(path, remarks))}
  tables = {names[path]: text for path in others if (text := _table(path, remarks))}
  if not readable and not sweeps and not tables:
    raise ConfigError('\n'.join(['nothing in these folders can be read:', *remarks]))
  return Contents(runs=readable, sweeps=sweeps, tables=tables, remarks=remarks)


def _walk(folder: Path, depth: int) -> Iterator[Path]:
  """Yield the folders of runs, sweeps and tables, from the top."""
  own = RunFolder(folder)
  run_files = (own.metrics, own.result, own.data, own.log)
  trials = files.is_folder(folder / 'trials')
  if not trials and files.is_file(own.config) and any(map(files.is_file, run_files)):
    yield folder
    return
  if files.is_file(folder / 'table.json' if trials else folder / 'table.md'):
    yield folder
  for inner in files.listing(folder) if depth else ():
    if files.is_folder(inner) and inner.name not in HIDDEN and not inner.name.startswith('.'):
      yield from _walk(inner, depth - 1)


def _natural(name: str) -> list[tuple[int, str]]:
  """Build a sort key that orders run_2 before run_10."""
  return [(int(part), '') if part.isdigit() else (-1, part) for part in re.split(r'(\d+)', name)]


def _read_run(name: str, folder: Path, metrics: Metrics, remarks: list[str]) -> Run | None:
  """Read a run; None and a remark if its config is unreadable."""
  own = RunFolder(folder)
  run_remarks: list[str] = []
  try:
    settings = curve_sets.settings_of(own)
  except ConfigError as error:
    remarks.append(f'{name} is left out: {error}')
    return None
  result, data = _json(own.result, run_remarks), _json(own.data, run_remarks)
  digests = {key: str(value) for key, value in {**data, **result}.items() if key.endswith('_digest')}
  if not metrics.sound:
    run_remarks.append('no line of metrics')
  if metrics.damaged:
    shown = ', '.join(map(str, metrics.damaged[: metric_lines.NAMED]))
    more = f' and {len(metrics.damaged) - metric_lines.NAMED} more' if len(metrics.damaged) > metric_lines.NAMED else ''
    run_remarks.append(f'{own.metrics.name}: damaged and left out: line {shown}{more}')
  for metric, step in ((metric, step) for metric, step in metrics.not_finite.items() if metric.endswith(DIVERGING)):
    run_remarks.append(f'{metric} is not finite at step {step:,}')
  return Run(name, folder, settings, leaves(settings), result, digests, _devices(own.log), metrics, run_remarks)


def _json(file: Path, remarks: list[str]) -> dict[str, Any]:
  """Read a JSON object; empty if missing or, with a remark, damaged."""
  try:
    value: dict[str, Any] = checksums.unsealed(checksums.read_json(file, default={}))
  except (OSError, ValueError, RunError) as error:
    log.warning('%s', error)
    remarks.append(f'{file.name} is damaged or was edited')
    return {}
  return value


def _devices(file: Path) -> str:
  try:
    text = files.read_bytes(file).decode(errors='replace') if files.is_file(file) else ''
  except (OSError, ValueError):  # too large to read at once
    return ''
  return next(reversed(_DEVICES.findall(text)), '')


def _sweep(folder: Path, remarks: list[str]) -> dict[str, Any]:
  if not files.is_folder(folder / 'trials'):
    return {}
  sweep_remarks: list[str] = []
  table = _json(folder / 'table.json', sweep_remarks)
  if not _is_sweep(table):
    sweep_remarks.append('table.json is left out: a sweep did not write it')
    table = {}
  remarks += [f'{folder.name}: {remark}' for remark in sweep_remarks]
  return table


def _is_sweep(table: Mapping[str, Any]) -> bool:
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
  """Read the text of a table of a paper."""
  if files.is_folder(folder / 'trials') or not files.is_file(folder / 'table.md'):
    return ''
  try:
    return files.read_text(folder / 'table.md')
  except (OSError, ValueError) as error:
    remarks.append(f'{folder.name}/table.md cannot be read: {error}')
    return ''


@functools.cache
def is_headline(name: str) -> bool:
  """Return whether a metric is always plotted: no norm of a part."""
  return not name.startswith(PART_NORMS)
