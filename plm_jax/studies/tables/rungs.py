"""Compare the rungs of a table: its differences over the number of parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.cli import pictures
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.studies.tables import picture, render
from plm_jax.studies.tables.file import Table
from plm_jax.studies.tables.intervals import LEVEL, Interval

Found = Mapping[str, Mapping[render.Key, tuple[Interval, bool]]]  # scale, such as '5m' -> differences


def write(rungs: Mapping[str, tuple[Table, Mapping[str, Any]]], folder: files.Path) -> None:
  """Write `rungs.md` and `rungs.png`: each difference of the claims at each scale.

  `rungs` maps a scale to its table and `cells.json`. Cells with runs at chance are not compared.
  """
  found = {scale: render.differences(*made) for scale, made in rungs.items()}
  table = next(iter(rungs.values()))[0]
  head = ['column', 'row', 'less', 'published', *found]
  rows: dict[render.Key, list[str]] = {}
  for claim in table.claims:
    key, published = (claim.column, claim.better, claim.than), render.published_difference(table, claim)
    cells = [_text(*compared[key]) if key in compared else '' for compared in found.values()]
    if any(cells):
      rows[key] = [*key, '' if published is None else f'{published:+.4g}', *cells]
  if not rows:
    raise ConfigError('--rungs: no folder has a difference of this table: name folders that it has written.')
  lines = [f'# {table.title}, by size', '', f'{table.paper}. Sizes are millions of parameters.', '']
  lines += render.markdown_table(head, [*rows.values()])
  lines += ['', f'In parentheses: intervals of {LEVEL:.0%}. Bold: beyond the noise, as in the table of that size.', '']
  files.write_text(folder / 'rungs.md', '\n'.join(lines))
  picture.save(lambda: _drawn(found, [*rows]), folder / 'rungs.png', title=f'{table.title}, by size')


def _text(interval: Interval, is_sure: bool) -> str:
  mark = '**' * is_sure
  return f'{mark}{interval.difference:+.4g}{mark} ({interval.low:+.4g} to {interval.high:+.4g})'


def _drawn(found: Found, known: Sequence[render.Key]) -> Any:
  """Plot a panel for each column; curves are pairs of rows."""
  columns, pairs = list(dict.fromkeys(key[0] for key in known)), list(dict.fromkeys(key[1:] for key in known))
  lines, across = -(-len(columns) // picture.PANELS), min(len(columns), picture.PANELS)
  figure = pictures.new(1.5 + 2.6 * across, 1.8 + 2.6 * lines)
  for place, column in enumerate(columns, 1):
    axes = figure.add_subplot(lines, across, place)
    axes.set_title(pictures.plain(column), fontsize='medium')
    axes.axhline(0, color='#888888', linewidth=1)
    for index, pair in enumerate(pairs):
      key = (column, pair[0], pair[1])
      if curve := {scale: compared[key] for scale, compared in found.items() if key in compared}:
        _curve(axes, curve, index, ' less '.join(pair))
    axes.set_xscale('log')
    axes.set_xticks([float(scale[:-1]) for scale in found], list(found), minor=False)
    axes.set_xticks([], minor=True)
  picture.add_legend(figure, columns=2)
  return figure


def _curve(axes: Any, curve: Mapping[str, tuple[Interval, bool]], index: int, label: str) -> None:
  """Plot differences and intervals; those with filled dots are sure."""
  colour, x = pictures.COLOURS[index % len(pictures.COLOURS)], [float(scale[:-1]) * 1.06**index for scale in curve]
  y, low, high = np.array([interval[:3] for interval, _ in curve.values()]).T
  axes.errorbar(x, y, (y - low, high - y), color=colour, capsize=3, label=pictures.label(label))
  faces = [colour if is_sure else 'white' for _, is_sure in curve.values()]
  axes.scatter(x, y, color=faces, edgecolors=colour, zorder=3)
