"""Plot a table: dots next to each other, or curves if its columns lie along a number."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.cli import pictures
from plm_jax.io import files
from plm_jax.studies.tables import intervals
from plm_jax.studies.tables.file import Column, Table
from plm_jax.studies.tables.intervals import Measured

MEASURED, PUBLISHED = pictures.COLOURS[:2]
PANELS = 6  # at most in a line
GREY = '#aaaaaa'  # of published numbers that are not compared
Cells = Mapping[tuple[str, str], Measured]  # (row, column) -> its runs, if it has a result


def draw(table: Table, cells: Cells, file: files.Path, *, remark: str = '') -> None:
  """Plot the measured cells.

  There is one panel per column, at most `PANELS` in a line: rows from top to bottom, runs as dots, published numbers as
  diamonds on the same scale, and scores without a network as lines. If all measured columns lie `along` a number, there
  is one panel per kind of number. It has a curve through the cells of each row, runs as dots, and published numbers as
  diamonds. The same versions of matplotlib and Pillow write the same bytes, independent of a user's matplotlib
  settings.
  """
  save(lambda: _drawn(table, cells), file, title=table.title, remark=remark)


def save(drawn: Callable[[], Any], file: files.Path, *, title: str, remark: str = '') -> None:
  """Write the figure that `drawn` returns, with matplotlib's default settings."""
  import matplotlib

  with matplotlib.rc_context():
    matplotlib.rcdefaults()
    figure = drawn()
    figure.suptitle('\n'.join(filter(None, [pictures.plain(title), remark])), wrap=True)
    with files.replacing(file) as temporary:
      figure.savefig(temporary, format='png', dpi=120, metadata={'Software': None})


def _drawn(table: Table, cells: Cells) -> Any:
  names = [name for name in table.columns if any((row, name) in cells for row in table.rows)]
  axis = {name: column.along[0] for name in names if (column := table.columns[name]).along is not None}
  if names and len(axis) == len(names):
    kinds = list(dict.fromkeys(axis.values()))
    figure = pictures.new(1 + 4.4 * len(kinds), 4.4)
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
      _curves(axes, table, cells, kind, [name for name in names if axis[name] == kind])
    return figure
  names = names or list(table.columns)[:1]
  rows, columns = -(-len(names) // PANELS), min(len(names), PANELS)
  figure = pictures.new(2.2 + 2.6 * columns, rows * (1.6 + 0.36 * len(table.rows)))
  panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
  heights = {row: len(table.rows) - index for index, row in enumerate(table.rows)}
  for axes, name in itertools.zip_longest(panels.flat, names):
    if name is None:
      axes.set_axis_off()
    else:
      _dots(axes, table, cells, name, heights)
  panels[0, 0].set_yticks(list(heights.values()), [pictures.plain(row) for row in heights])
  panels[0, 0].set_ylim(0.4, len(heights) + 0.6)
  add_legend(figure, columns=4)
  return figure


def add_legend(figure: Any, *, columns: int) -> None:
  """Add one legend below all panels."""
  legends = [axes.get_legend_handles_labels() for axes in figure.axes]
  labelled = {text: handle for handles, texts in legends for handle, text in zip(handles, texts, strict=True)}
  place = dict(loc='outside lower center', ncols=columns, fontsize='small', frameon=False)
  figure.legend(labelled.values(), labelled.keys(), **place)


def _dots(axes: Any, table: Table, cells: Cells, name: str, heights: Mapping[str, int]) -> None:
  """Plot one column, with each row at its height."""
  for row, height in heights.items():
    if (cell := cells.get((row, name))) is not None:
      values = cell.finite
      axes.plot(values, np.full(len(values), height + 0.12), 'o', color=MEASURED, alpha=0.35, markersize=4)
      mean = intervals.summarise(cell, table.summary)
      axes.plot(
        mean, height + 0.12, '|', color=MEASURED, markersize=14, markeredgewidth=2.5, label='measured, and its runs'
      )
    if (published := table.rows[row].published.get(name)) is not None:
      is_alike = name not in table.rows[row].unlike
      style = dict(color=PUBLISHED if is_alike else GREY, markerfacecolor='none', markersize=5, linestyle='none')
      axes.plot(published, height - 0.12, 'D', label='published' if is_alike else 'published, not compared', **style)
  _draw_levels(table, table.columns[name].trivial, axes.axvline)
  axes.set_xlabel(f'{pictures.plain(name)}\n({_better(table.columns[name])})')
  axes.margins(x=0.15)
  axes.grid(axis='y', alpha=0.25)


def _draw_levels(table: Table, levels: Mapping[str, float], line: Callable[..., Any]) -> None:
  names = list(dict.fromkeys(name for column in table.columns.values() for name in column.trivial))
  for name, value in levels.items():
    dashes = ('--', ':', '-.', (0, (8, 2)))[names.index(name) % 4]
    line(value, color='#888888', linestyle=dashes, linewidth=1, label=pictures.label(name))


def _curves(axes: Any, table: Table, cells: Cells, kind: str, names: Sequence[str]) -> None:
  columns = {name: table.columns[name] for name in names}
  along = {name: column.along[1] for name, column in columns.items() if column.along is not None}
  for index, (name_of_row, row) in enumerate(table.rows.items()):
    colour = pictures.COLOURS[index % len(pictures.COLOURS)]
    points = [(x, cells[name_of_row, name]) for name, x in along.items() if (name_of_row, name) in cells]
    points.sort(key=lambda point: point[0])
    means = [intervals.summarise(cell, table.summary) for _, cell in points]
    label = pictures.label(name_of_row) if points else None
    dashes = ('-', '--', '-.', ':')[index // len(pictures.COLOURS) % 4]
    axes.plot([x for x, _ in points], means, dashes, color=colour, label=label)
    for x, cell in points:
      axes.plot(np.full(len(cell.finite), x), cell.finite, 'o', color=colour, alpha=0.4, markersize=4)
    printed = sorted((along[name], value) for name, value in row.published.items() if name in along)
    if printed:
      axes.plot(*zip(*printed, strict=True), 'D', color=colour, markerfacecolor='none')
  _draw_levels(table, _levels(columns), axes.axhline)
  axes.set_xscale('log')
  ticks = sorted(set(along.values()))
  axes.set_xticks(ticks, [f'{x:,g}' if x < 1e6 else f'{x:g}' for x in ticks], minor=False)
  axes.set_xticks([], minor=True)
  axes.set_xlabel(pictures.plain(kind))
  axes.set_ylabel(f'measured ({_better(columns[names[0]])})')
  axes.grid(axis='y', alpha=0.25)
  axes.legend(fontsize='small', frameon=False, loc='lower center', bbox_to_anchor=(0.5, 1.0), ncols=2)  # off the curves


def _levels(columns: Mapping[str, Column]) -> dict[str, float]:
  """Find the baseline scores that are equal in all columns."""
  first, *others = (column.trivial for column in columns.values())
  return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def _better(column: Column) -> str:
  return 'more is better' if column.better == 'max' else 'less is better'
