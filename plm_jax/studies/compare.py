"""Plot the curves of several runs; runs that differ only in the seed become one curve with a band.

The engine of `plm-jax compare`.
"""

import logging
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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
  """A run to compare."""

  name: str  # its folder, relative to the common folder
  folder: Path  # the run folder
  settings: Mapping[str, Any]  # dotted key -> value of its config
  best: tuple[str, str] | None  # the metric in `best` and 'min' or 'max'; None if the config has none
  line: Line  # steps and values of the metric
  diverged: int | None = None  # step from which the metric is not finite; None if its last value is


def compare(
  folders: Sequence[Where], out: Where, *, by: Sequence[str] = (), metric: str | None = None
) -> dict[str, Any]:
  """Plot the curves, print the table and return it.

  Returns 'metric' and 'rows': name, n, step, mean and deviation of the last values, and of the best ones if it is known
  whether large is good. Runs that diverged are plotted and logged, but not in these numbers. Raises ConfigError: no
  run, a key or metric that no run has, or the picture cannot be written.

  Args:
    folders: folders of runs, or folders with `trials/`, such as that of a sweep, which add all runs in it.
    out: the picture.
    by: dotted keys; runs with the same values are one curve. Without any, runs that differ only in the seed are.
    metric: a metric; None means that of `best` of the first run, else 'loss'.
  """
  run_paths.check_new_folder(files.path(out).parent, name='the folder of --out')
  run_folders = list(dict.fromkeys(path for folder in folders for path in curve_sets.expanded(files.path(folder))))
  configs = _configs(run_folders)
  first = next(iter(configs.values())).get('best')
  metric = metric or (first[0] if first else 'loss')
  runs, copies = curve_sets.apart(_read(configs, metric), lambda run: run.line)
  for copy, original in copies.items():
    log.warning('%s is left out: %s', copy, curve_sets.COPY % original)
  for run in runs:
    if run.diverged is not None:
      log.warning(
        '%s diverged: %s is not finite from step %d on; it is plotted but not counted', run.folder, metric, run.diverged
      )
  _warn_of_differences(runs, metric)
  groups = curve_sets.named(curve_sets.grouped(runs, by), by)
  rows = [ends(name, group, metric) for name, group in groups.items()]
  draw({name: [run.line for run in group] for name, group in groups.items()}, metric, files.path(out))
  _show(rows, metric)
  return {'metric': metric, 'rows': rows}


def _configs(run_folders: Sequence[Path]) -> dict[Path, dict[str, Any]]:
  """Load the configs of runs; report and leave out damaged ones."""
  configs, damaged = {}, []
  for folder in run_folders:
    try:
      configs[folder] = curve_sets.settings_of(RunFolder(folder))
    except ConfigError as error:
      damaged.append(f'{folder} is left out: {error}')
  if not configs:
    raise ConfigError('\n'.join(['none of these runs can be read:', *damaged]))
  for line in damaged:
    log.warning('%s', line)
  return configs


def _read(configs: Mapping[Path, Mapping[str, Any]], metric: str) -> list[Run]:
  names = curve_sets.short_names(list(configs))
  metrics = metric_lines.read([RunFolder(folder).metrics for folder in configs], lambda name: name == metric)
  by_folder = dict(zip(configs, metrics, strict=True))
  runs = [
    Run(names[folder], folder, leaves(config), config.get('best'), own.lines[metric], own.diverged.get(metric))
    for (folder, config), own in zip(configs.items(), metrics, strict=True)
    if metric in own.lines and len(own.lines[metric][0])
  ]
  never_finite = {folder for folder, own in by_folder.items() if metric in own.diverged and metric not in own.lines}
  for folder in sorted(never_finite):
    log.warning('%s diverged: %s is never finite; it is neither plotted nor counted', folder, metric)
  if never_finite and not runs:
    raise ConfigError(f'--metric={metric}: no run has a finite value of it: choose another metric')
  if not runs:
    raise _no_metric(configs, metric)
  if missing := [str(folder) for folder in configs if folder not in {run.folder for run in runs} | never_finite]:
    log.warning('without %s, and left out: %s', metric, ', '.join(missing))
  return runs


def _warn_of_differences(runs: Sequence[Run], metric: str) -> None:
  """Log a difference in data, vocabulary or objective."""
  about = {run.name: curve_sets.facts_of(RunFolder(run.folder)) for run in runs}
  kinds: dict[str, dict[str, Any]] = {
    'data': {name: facts.get('data_digest') for name, facts in about.items()},
    'vocabularies': {name: facts.get('vocab_digest') for name, facts in about.items()},
    'objectives': {run.name: str(_task_settings(run)) for run in runs},
  }
  for what, values in kinds.items():
    first = {value: name for name, value in reversed(values.items()) if value}
    if len(first) > 1:
      names = ', '.join(sorted(first.values())[:4])
      log.warning('%s differ, so %s of these runs may not be comparable: %s', what, metric, names)


def _task_settings(run: Run) -> list[tuple[str, Any]]:
  """List the settings that change the meaning of a loss."""
  of_adapter = ('adapter.name', 'adapter.classes', 'adapter.inner.name')
  return [pair for pair in run.settings.items() if pair[0].startswith('objective.') or pair[0] in of_adapter]


def _no_metric(run_folders: Iterable[Path], metric: str) -> ConfigError:
  names = sorted({name for folder in run_folders for name in metric_lines.names(RunFolder(folder).metrics)})
  if not names:
    return ConfigError(f'these runs have logged nothing yet: {", ".join(map(str, run_folders))}')
  return ConfigError(f'--metric={metric}: no run has it.{errors.suggest(metric, names)} Metrics: {", ".join(names)}.')


def ends(name: str, runs: Sequence[Run], metric: str) -> dict[str, Any]:
  """Summarise the last and best values of runs that did not diverge."""
  steps = sorted({int(run.line[0][-1]) for run in runs if run.diverged is None})
  if len(steps) > 1:
    log.warning(
      '%s: its runs end at different steps %s; their last values are averaged', name, ', '.join(map(str, steps))
    )
  finite = [run for run in runs if run.diverged is None]
  row: dict[str, Any] = {'name': name, 'n': len(finite), 'step': max(int(run.line[0][-1]) for run in runs)}
  row |= _measured('last', [float(run.line[1][-1]) for run in finite])
  directions = {run.best[1] for run in runs if run.best and run.best[0] == metric}
  if len(directions) == 1:
    best = np.max if directions == {'max'} else np.min
    row |= _measured('best', [float(best(run.line[1])) for run in finite])
  return row


def _measured(name: str, values: Sequence[float]) -> dict[str, float | None]:
  mean = statistics.fmean(values) if values else None
  deviation = statistics.stdev(values) if len(values) > 1 else None
  return {name: mean, f'{name}_deviation': deviation}


def _show(rows: Sequence[Mapping[str, Any]], metric: str) -> None:
  columns = ['name', 'n', 'step', 'last', 'last_deviation', 'best', 'best_deviation']
  columns = [column for column in columns if any(column in row for row in rows)]
  names = ['deviation' if column.endswith('_deviation') else column for column in columns]
  printed = tables.new(names, title=f'{metric}: mean over runs, and standard deviation', left=('name',))
  for row in rows:
    cells = [row.get(column) for column in columns]
    printed.add_row(
      *('-' if cell is None else f'{cell:.5g}' if isinstance(cell, float) else str(cell) for cell in cells)
    )
  tables.show(printed)


def draw(groups: Mapping[str, Sequence[Line]], metric: str, file: Path) -> None:
  """Plot a curve for each group, with a band of one deviation."""
  from matplotlib.ticker import EngFormatter

  figure = pictures.new(7.6, 4.8)
  axes = figure.subplots()
  for index, (name, lines) in enumerate(groups.items()):
    steps, mean, deviation = bands.band(lines)
    colour, label = f'C{index % 10}', pictures.label(f'{name} (n = {len(lines)})')
    style = ('-', '--', ':', '-.')[index // 10 % 4]
    axes.plot(steps, mean, style, color=colour, label=label, marker='o' if len(steps) < 30 else '', markersize=3)
    if len(lines) > 1:
      axes.fill_between(steps, mean - deviation, mean + deviation, color=colour, alpha=0.2, linewidth=0)
  axes.set(xlabel='step', ylabel=pictures.plain(metric))
  axes.xaxis.set_major_formatter(EngFormatter(sep=''))
  axes.grid(alpha=0.25)
  axes.spines[['top', 'right']].set_visible(False)
  axes.legend(frameon=False, fontsize=8, ncols=1 + len(groups) // 16)
  files.make_named_folder(file.parent, name='the folder of --out')
  pictures.save(figure, file)
