"""Curves of many runs in one picture: runs that differ in nothing but their seed are one curve, mean and band.

The engine of `python -m plm_jax.compare`.
"""

import logging
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from plm_jax import config, errors, files
from plm_jax.cli import tables
from plm_jax.config.resume import leaves
from plm_jax.errors import ConfigError
from plm_jax.files import RunFolder, Where

log = logging.getLogger(__name__)

CHUNK = files.DEEPEST - 1  # lines parsed at once: so few brackets that `parse_json` need not count their levels
POINTS = 1_000  # of a curve in the picture
SEED = 'seed'
Line = tuple[np.ndarray, np.ndarray]  # steps, values


class Run(NamedTuple):
  """A run that is compared.

  Attributes:
    folder: of the run.
    settings: dotted key -> value of its config.
    best: the metric of `best` and 'min' or 'max'; None where the config has none.
    line: steps and values of the metric.
  """

  folder: Path
  settings: Mapping[str, Any]
  best: tuple[str, str] | None
  line: Line


def compare(
  folders: Sequence[Where], out: Where, *, by: Sequence[str] = (), metric: str | None = None
) -> dict[str, Any]:
  """Draws the curves, prints the table and returns it.

  Args:
    folders: of runs; of a folder with `trials/`, such as that of a sweep, all runs in there.
    out: the picture.
    by: dotted keys; runs with the same values of them are one curve. Without any, those of the same config but for the
      seed.
    metric: of the lines of metrics; None takes that of `best` of the first run, else 'loss'.

  Returns:
    'metric' and 'rows': name, n, step, mean and deviation of the last values, and of the best ones where that is known.

  Raises:
    ConfigError: no run, a key that no run has, or a metric that no run has.
  """
  where = list(dict.fromkeys(found for folder in folders for found in _expanded(files.path(folder))))
  configs = {folder: _config(folder) for folder in where}
  first = configs[where[0]].get('best')
  metric = metric or (first[0] if first else 'loss')
  read = [
    Run(folder, leaves(own), own.get('best'), line)
    for folder, own in configs.items()
    if len((line := series(RunFolder(folder).metrics, metric))[0])
  ]
  if not read:
    names = sorted({name for folder in where for name in _names(RunFolder(folder).metrics)})
    raise ConfigError(
      f'--metric={metric}: no run has it.{errors.suggest(metric, names)} There are: {", ".join(names)}.'
    )
  if missing := [str(folder) for folder in where if folder not in {run.folder for run in read}]:
    log.warning('without %s, and left out: %s', metric, ', '.join(missing))
  groups = grouped(read, by)
  rows = [_row(name, runs, metric) for name, runs in groups.items()]
  draw({name: [run.line for run in runs] for name, runs in groups.items()}, metric, files.path(out))
  _show(rows, metric)
  return {'metric': metric, 'rows': rows}


def _expanded(folder: Path) -> list[Path]:
  """A run folder, or those of a sweep."""
  trials = [one for one in files.listing(folder / 'trials') if files.is_file(RunFolder(one).config)]
  if files.is_file(RunFolder(folder).config) or trials:
    return trials or [folder]
  what = 'it has no config.json, so no run began there' if files.is_folder(folder) else 'there is no such folder'
  raise ConfigError(f'{folder}: {what}; name folders of runs, or of a sweep')


def _config(folder: Path) -> dict[str, Any]:
  return config.load(str(RunFolder(folder).config))


# Reading -------------------------------------------------------------------------------------------------------------


def series(file: Path, metric: str) -> Line:
  """Steps and values of a metric, int[n] and float[n], without values that are not finite.

  Damaged lines are named and left out, as is a last line that is still being written.
  """
  steps, values = [], []
  for row in _rows(file):
    if (value := row.get(metric)) is not None and isinstance(value, int | float) and math.isfinite(value):
      steps.append(row['step'])
      values.append(value)
  return np.array(steps, int), np.array(values, float)


def _names(file: Path) -> set[str]:
  return {name for row in _rows(file) for name, value in row.items() if isinstance(value, float)}


def _rows(file: Path) -> Iterator[Mapping[str, Any]]:
  """The sound lines of a file of metrics; none where there is no file."""
  lines = files.read_bytes(file).splitlines(keepends=True) if files.is_file(file) else []
  if lines and not lines[-1].endswith(b'\n'):
    lines.pop()
  for start in range(0, len(lines), CHUNK):
    chunk = lines[start : start + CHUNK]
    try:
      rows = files.parse_json(f'[{b",".join(chunk).decode()}]')
    except ValueError:
      rows = []
    if len(rows) == len(chunk) and all(map(_is_row, rows)):
      yield from rows
    else:
      yield from _one_by_one(file, chunk, start + 1)


def _one_by_one(file: Path, lines: Sequence[bytes], first: int) -> Iterator[Mapping[str, Any]]:
  for number, line in enumerate(lines, start=first):
    try:
      row = files.parse_json(line.decode())
    except ValueError:
      row = None
    if _is_row(row):
      yield row
    else:
      log.warning('%s, line %d is damaged and left out', file, number)


def _is_row(row: Any) -> bool:
  return isinstance(row, dict) and isinstance(row.get('step'), int)


# Groups --------------------------------------------------------------------------------------------------------------


def grouped(runs: Sequence[Run], by: Sequence[str]) -> dict[str, list[Run]]:
  """Name of a curve -> its runs, in the order of the runs.

  Raises:
    ConfigError: a key of `by` that no run has.
  """
  known = list(dict.fromkeys(key for run in runs for key in run.settings))
  for key in by:
    errors.check_choice('--by', 'key', key, known)
  others = [key for key in known if key != SEED and len({str(run.settings.get(key)) for run in runs}) > 1]
  chosen = list(by) or others
  found: dict[str, list[Run]] = {}
  for run in runs:
    name = ', '.join(f'{key}={run.settings.get(key, "not there")}' for key in chosen)
    found.setdefault(name or files.absolute(run.folder).name, []).append(run)
  return found if chosen else {files.absolute(runs[0].folder).name: list(runs)}


# The table and the picture -------------------------------------------------------------------------------------------


def _row(name: str, runs: Sequence[Run], metric: str) -> dict[str, Any]:
  last = [float(run.line[1][-1]) for run in runs]
  row = {'name': name, 'n': len(runs), 'step': max(int(run.line[0][-1]) for run in runs), **_measured('last', last)}
  ways = {run.best[1] for run in runs if run.best and run.best[0] == metric}
  if len(ways) == 1:
    best = np.max if ways == {'max'} else np.min
    row |= _measured('best', [float(best(run.line[1])) for run in runs])
  return row


def _measured(name: str, values: Sequence[float]) -> dict[str, float | None]:
  deviation = statistics.stdev(values) if len(values) > 1 else None
  return {name: statistics.fmean(values), f'{name}_deviation': deviation}


def _show(rows: Sequence[Mapping[str, Any]], metric: str) -> None:
  columns = ['name', 'n', 'step', 'last', 'last_deviation', 'best', 'best_deviation']
  columns = [column for column in columns if any(column in row for row in rows)]
  printed = Table(title=f'{metric}: mean over runs, and standard deviation')
  for column in columns:
    name = column.rpartition('_')[2] if column.endswith('_deviation') else column
    printed.add_column(name, justify='left' if column == 'name' else 'right')
  for row in rows:
    cells = [row.get(column) for column in columns]
    printed.add_row(
      *('-' if cell is None else f'{cell:.5g}' if isinstance(cell, float) else str(cell) for cell in cells)
    )
  tables.show(printed)


def _cell(value: Any) -> str:
  return '-' if value is None else f'{value:.5g}' if isinstance(value, float) else str(value)


def band(lines: Sequence[Line]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Steps, mean and standard deviation over runs, each float[n] with n <= `POINTS`.

  Long curves become means of stretches. Between its steps a run counts as a straight line, and beyond them not at all;
  the deviation of a single run is 0.
  """
  thin = [(_thinned(steps), _thinned(values)) for steps, values in lines]
  steps = np.unique(np.concatenate([at for at, _ in thin]))
  steps = _thinned(steps) if len(thin) > 1 else steps
  values = np.stack([np.interp(steps, at, values, left=np.nan, right=np.nan) for at, values in thin])
  count = (~np.isnan(values)).sum(axis=0)
  steps, values, count = steps[count > 0], values[:, count > 0], count[count > 0]
  mean = np.nanmean(values, axis=0)
  squares = np.nansum((values - mean) ** 2, axis=0)
  return steps, mean, np.sqrt(squares / np.maximum(count - 1, 1))


def _thinned(values: np.ndarray) -> np.ndarray:
  """Means of at most `POINTS` stretches of an array."""
  if len(values) <= POINTS:
    return values.astype(float)
  return np.array([part.mean() for part in np.array_split(values, POINTS)])


def draw(groups: Mapping[str, Sequence[Line]], metric: str, file: Path) -> None:
  """A curve for each group; where it has several runs, their mean in a band of one standard deviation."""
  from matplotlib.figure import Figure
  from matplotlib.ticker import EngFormatter

  figure = Figure(figsize=(7.6, 4.8), layout='constrained')
  axes = figure.subplots()
  for number, (name, lines) in enumerate(groups.items()):
    steps, mean, deviation = band(lines)
    colour, label = f'C{number % 10}', f'{name} (n = {len(lines)})'
    style = ('-', '--', ':', '-.')[number // 10 % 4]
    axes.plot(steps, mean, style, color=colour, label=label, marker='o' if len(steps) < 30 else '', markersize=3)
    if len(lines) > 1:
      axes.fill_between(steps, mean - deviation, mean + deviation, color=colour, alpha=0.2, linewidth=0)
  axes.set(xlabel='step', ylabel=metric)
  axes.xaxis.set_major_formatter(EngFormatter(sep=''))
  axes.grid(alpha=0.25)
  axes.spines[['top', 'right']].set_visible(False)
  axes.legend(frameon=False, fontsize=8, ncols=1 + len(groups) // 16)
  files.make_folder(file.parent)
  with files.replacing(file) as temporary:
    figure.savefig(temporary, format='png', dpi=130)
