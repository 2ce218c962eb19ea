"""Plot a table: dots next to each other, or curves if its columns lie along a number."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.cli import pictures
from plm_jax.io import files
from plm_jax.studies.tables import intervals
from plm_jax.studies.tables.file import Column, Table
from plm_jax.studies.tables.intervals import Measured

MEASURED, PUBLISHED = pictures.COLOURS[:2]
GREY = '#aaaaaa'  # of published numbers that are not compared
Cells = Mapping[tuple[str, str], Measured]  # (row, column) -> its runs, if it has a result


def draw(table: Table, cells: Cells, file: files.Path, *, remark: str = '') -> None:
  """Plot the measured cells.

  There is one panel per column: rows from top to bottom, runs as dots, published numbers as diamonds on a separate
  axis. If all measured columns lie `along` a number, there is one panel per kind of number. It has a curve through the
  cells of each row, runs as dots, and published numbers as diamonds. The same versions of matplotlib and Pillow write
  the same bytes, independent of a user's matplotlib settings.
  """
  import matplotlib

  with matplotlib.rc_context():
    matplotlib.rcdefaults()
    figure = _drawn(table, cells)
    figure.suptitle('\n'.join(filter(None, [pictures.plain(table.title), remark])), wrap=True)
    with files.replacing(file) as temporary:
      figure.savefig(temporary, format='png', dpi=120, metadata={'Software': None})


def _drawn(table: Table, cells: Cells) -> Any:
  """Build the figure without its title."""
  from matplotlib.figure import Figure

  names = [name for name in table.columns if any((row, name) in cells for row in table.rows)]
  axis = {name: column.along[0] for name in names if (column := table.columns[name]).along is not None}
  if names and len(axis) == len(names):
    kinds = list(dict.fromkeys(axis.values()))
    figure = Figure(figsize=(1 + 4.4 * len(kinds), 3.8), layout='constrained')
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
      _curves(axes, table, cells, kind, [name for name in names if axis[name] == kind])
    return figure
  names = names or list(table.columns)[:1]
  figure = Figure(figsize=(2.2 + 2.6 * len(names), 1.6 + 0.36 * len(table.rows)), layout='constrained')
  panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
  heights = {row: len(table.rows) - index for index, row in enumerate(table.rows)}
  for axes, name in zip(panels, names, strict=True):
    _dots(axes, table, cells, name, heights)
  panels[0].set_yticks(list(heights.values()), [pictures.plain(row) for row in heights])
  panels[0].set_ylim(0.4, len(heights) + 0.6)
  return figure


def _dots(axes: Any, table: Table, cells: Cells, name: str, heights: Mapping[str, int]) -> None:
  """Plot one column, with each row at its height."""
  published_axes = axes.twiny()
  for row, height in heights.items():
    if (cell := cells.get((row, name))) is not None:
      values = _runs(cell)
      axes.plot(values, np.full(len(values), height + 0.12), 'o', color=MEASURED, alpha=0.35, markersize=4)
      mean = intervals.summarise(cell, table.summary)
      axes.plot(mean, height + 0.12, '|', color=MEASURED, markersize=14, markeredgewidth=2.5)
    if (published := table.rows[row].published.get(name)) is not None:
      colour = GREY if name in table.rows[row].unlike else PUBLISHED
      published_axes.plot(published, height - 0.12, 'D', color=colour, markerfacecolor='none', markersize=5)
  axes.set_xlabel(f'{pictures.plain(name)}, measured\n({_better(table.columns[name])})', color=MEASURED)
  if any(name in row.published for row in table.rows.values()):
    published_axes.set_xlabel('published', color=PUBLISHED)
  else:
    published_axes.set_xticks([])
  axes.margins(x=0.15)
  published_axes.margins(x=0.15)
  axes.grid(axis='y', alpha=0.25)


def _curves(axes: Any, table: Table, cells: Cells, kind: str, names: Sequence[str]) -> None:
  """Plot columns along one number, on a logarithmic axis."""
  columns = {name: table.columns[name] for name in names}
  along = {name: column.along[1] for name, column in columns.items() if column.along is not None}
  for index, (name_of_row, row) in enumerate(table.rows.items()):
    colour = pictures.COLOURS[index % len(pictures.COLOURS)]
    points = [(x, cells[name_of_row, name]) for name, x in along.items() if (name_of_row, name) in cells]
    points.sort(key=lambda point: point[0])
    means = [intervals.summarise(cell, table.summary) for _, cell in points]
    label = pictures.label(name_of_row) if points else None
    axes.plot([x for x, _ in points], means, '-', color=colour, label=label)
    for x, cell in points:
      axes.plot(np.full(len(_runs(cell)), x), _runs(cell), 'o', color=colour, alpha=0.4, markersize=4)
    printed = sorted((along[name], value) for name, value in row.published.items() if name in along)
    if printed:
      axes.plot(*zip(*printed, strict=True), 'D', color=colour, markerfacecolor='none')
  for index, (line, height) in enumerate(_levels(columns).items()):
    axes.axhline(height, color='#888888', linestyle=('--', ':')[index % 2], linewidth=1, label=pictures.label(line))
  axes.set_xscale('log')
  ticks = sorted(set(along.values()))
  axes.set_xticks(ticks, [f'{x:,g}' if x < 1e6 else f'{x:g}' for x in ticks], minor=False)
  axes.set_xticks([], minor=True)
  axes.set_xlabel(pictures.plain(kind))
  axes.set_ylabel(f'measured ({_better(columns[names[0]])})')
  axes.grid(axis='y', alpha=0.25)
  axes.legend(fontsize='small', frameon=False)


def _levels(columns: Mapping[str, Column]) -> dict[str, float]:
  """Find the baseline scores that are equal in all columns."""
  first, *others = (column.trivial for column in columns.values())
  return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def _runs(cell: Measured) -> np.ndarray:
  return cell.values[~np.isnan(cell.values)]


def _better(column: Column) -> str:
  return 'more is better' if column.better == 'max' else 'less is better'
