"""Curves of many runs in one picture: runs that differ in nothing but their seed are one curve, mean and band.

The engine of `plm-jax compare`.
"""

import logging
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from plm_jax.cli import pictures, tables
from plm_jax.config.resume import leaves
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.io import files, run_paths
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.studies import bands, curve_sets, metric_lines
from plm_jax.studies.metric_lines import Line

log = logging.getLogger(__name__)


class Run(NamedTuple):
  """A run that is compared.

  Attributes:
    name: its folder, from the one that all of them are in.
    folder: of the run.
    settings: dotted key -> value of its config.
    best: the metric of `best` and 'min' or 'max'; None where the config has none.
    line: steps and values of the metric.
    diverged: its step where the metric was not finite any more, None where it ended with a number.
  """

  name: str
  folder: Path
  settings: Mapping[str, Any]
  best: tuple[str, str] | None
  line: Line
  diverged: int | None = None


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
    Runs that diverged are drawn, named in the log, and not in these numbers.

  Raises:
    ConfigError: no run, a key that no run has, a metric that no run has, or a place that cannot be written.
  """
  run_paths.check_new_folder(files.path(out).parent, name='the folder of --out')
  where = list(dict.fromkeys(found for folder in folders for found in curve_sets.expanded(files.path(folder))))
  configs = _configs(where)
  first = next(iter(configs.values())).get('best')
  metric = metric or (first[0] if first else 'loss')
  names = curve_sets.short_names(list(configs))
  lines = metric_lines.read([RunFolder(folder).metrics for folder in configs], lambda name: name == metric)
  read = [
    Run(names[folder], folder, leaves(own), own.get('best'), found.lines[metric], found.diverged.get(metric))
    for (folder, own), found in zip(configs.items(), lines, strict=True)
    if metric in found.lines and len(found.lines[metric][0])
  ]
  by_folder = zip(configs, lines, strict=True)
  never = {folder for folder, found in by_folder if metric in found.diverged and metric not in found.lines}
  for folder in sorted(never):
    log.warning('%s diverged: %s is never finite; it is neither drawn nor counted', folder, metric)
  if never and not read:
    raise ConfigError(f'--metric={metric}: no run has a finite value of it')
  if not read:
    there = sorted({name for folder in configs for name in metric_lines.names(RunFolder(folder).metrics)})
    if not there:
      raise ConfigError(f'these runs have logged nothing yet: {", ".join(map(str, configs))}')
    raise ConfigError(
      f'--metric={metric}: no run has it.{errors.suggest(metric, there)} There are: {", ".join(there)}.'
    )
  if missing := [str(folder) for folder in configs if folder not in {run.folder for run in read} | never]:
    log.warning('without %s, and left out: %s', metric, ', '.join(missing))
  read, copies = curve_sets.apart(read, lambda run: run.line)
  for copy, original in copies.items():
    log.warning('%s is left out: %s', copy, curve_sets.COPY % original)
  for run in read:
    if run.diverged is not None:
      log.warning(
        '%s diverged: %s is not finite from step %d on; it is drawn and not counted', run.folder, metric, run.diverged
      )
  groups = curve_sets.named(curve_sets.grouped(read, by), by)
  rows = [ends(name, runs, metric) for name, runs in groups.items()]
  draw({name: [run.line for run in runs] for name, runs in groups.items()}, metric, files.path(out))
  _show(rows, metric)
  return {'metric': metric, 'rows': rows}


def _configs(where: Sequence[Path]) -> dict[Path, dict[str, Any]]:
  """The configs of the runs; one that cannot be read is named, and its run left out."""
  read, damaged = {}, []
  for folder in where:
    try:
      read[folder] = curve_sets.settings_of(RunFolder(folder))
    except ConfigError as error:
      damaged.append(f'{folder} is left out: {error}')
  if not read:
    raise ConfigError('\n'.join(['nothing of these runs can be read:', *damaged]))
  for line in damaged:
    log.warning('%s', line)
  return read


# The table and the picture -------------------------------------------------------------------------------------------


def ends(name: str, runs: Sequence[Run], metric: str) -> dict[str, Any]:
  """Where the runs of a curve ended, without those that diverged: a row of the table that `compare` returns."""
  steps = sorted({int(run.line[0][-1]) for run in runs if run.diverged is None})
  if len(steps) > 1:
    log.warning(
      '%s: its runs end at steps %s, and their last values are taken together', name, ', '.join(map(str, steps))
    )
  whole = [run for run in runs if run.diverged is None]
  row: dict[str, Any] = {'name': name, 'n': len(whole), 'step': max(int(run.line[0][-1]) for run in runs)}
  row |= _measured('last', [float(run.line[1][-1]) for run in whole])
  ways = {run.best[1] for run in runs if run.best and run.best[0] == metric}
  if len(ways) == 1:
    best = np.max if ways == {'max'} else np.min
    row |= _measured('best', [float(best(run.line[1])) for run in whole])
  return row


def _measured(name: str, values: Sequence[float]) -> dict[str, float | None]:
  mean = statistics.fmean(values) if values else None
  deviation = statistics.stdev(values) if len(values) > 1 else None
  return {name: mean, f'{name}_deviation': deviation}


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


def draw(groups: Mapping[str, Sequence[Line]], metric: str, file: Path) -> None:
  """A curve for each group; where it has several runs, their mean in a band of one standard deviation."""
  from matplotlib.figure import Figure
  from matplotlib.ticker import EngFormatter

  figure = Figure(figsize=(7.6, 4.8), layout='constrained')
  axes = figure.subplots()
  for number, (name, lines) in enumerate(groups.items()):
    steps, mean, deviation = bands.band(lines)
    colour, label = f'C{number % 10}', pictures.label(f'{name} (n = {len(lines)})')
    style = ('-', '--', ':', '-.')[number // 10 % 4]
    axes.plot(steps, mean, style, color=colour, label=label, marker='o' if len(steps) < 30 else '', markersize=3)
    if len(lines) > 1:
      axes.fill_between(steps, mean - deviation, mean + deviation, color=colour, alpha=0.2, linewidth=0)
  axes.set(xlabel='step', ylabel=pictures.plain(metric))
  axes.xaxis.set_major_formatter(EngFormatter(sep=''))
  axes.grid(alpha=0.25)
  axes.spines[['top', 'right']].set_visible(False)
  axes.legend(frameon=False, fontsize=8, ncols=1 + len(groups) // 16)
  files.make_named_folder(file.parent, name='the folder of --out')
  with files.replacing(file) as temporary:
    figure.savefig(temporary, format='png', dpi=130)
