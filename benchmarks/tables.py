"""Measure the time to render a table of a hundred finished cells.

The table has ten rows, ten columns, and three seeds of 872 test examples.

    python -m benchmarks.tables [--turns=5]

Prints seconds for the text, the numbers and the picture, and for the intervals of ten claims.
"""

import argparse
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Shown

from plm_jax.studies.tables import cells, intervals, render
from plm_jax.studies.tables.file import Claim, Column, Row, Table

ROWS, COLUMNS, SEEDS, TESTED = 10, 10, 3, 872
METRIC = 'validation/accuracy'


def filled() -> tuple[Table, dict[str, Any]]:
  """Build a table and the results of its runs."""
  columns = {f'c{n}': Column(metric=METRIC) for n in range(COLUMNS)}
  rows = {f'r{n}': Row(config='none') for n in range(ROWS)}
  claims = [Claim(name, 'r0', 'r1') for name in columns]
  table = Table(title='A', paper='B', mark='B', rows=rows, columns=columns, claims=claims)
  rng = np.random.default_rng(0)
  kept = {**cells.EMPTY, 'cells': {}, 'runs': {}}
  for row in rows:
    kept['cells'][row] = {column: [[f'{row}{column}{seed}' for seed in range(SEEDS)]] for column in columns}
    for digest in (one for by_seed in kept['cells'][row].values() for one in by_seed[0]):
      scores = (rng.random(TESTED) < 0.8).astype(float)
      kept['runs'][digest] = {'metrics': {METRIC: scores.mean()}, 'rows': {METRIC: cells.packed(scores)}}
  return table, kept


def seconds(work: Callable[[], object], turns: int) -> float:
  """Measure the median of some turns."""
  spent = []
  for _ in range(turns):
    began = time.perf_counter()
    work()
    spent.append(time.perf_counter() - began)
  return statistics.median(spent)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--turns', type=int, default=5)
  turns = parser.parse_args().turns
  table, kept = filled()
  shown = Shown(title=f'{ROWS * COLUMNS} cells, median of {turns}')
  shown.add_column('what')
  shown.add_column('seconds', justify='right')
  a, b = (render.measured(table, kept, row, 'c0') for row in ('r0', 'r1'))
  assert a is not None
  assert b is not None
  with tempfile.TemporaryDirectory() as folder:
    parts: dict[str, Callable[[], object]] = {
      'text': lambda: render.markdown(table, kept),
      'one interval of it': lambda: intervals.difference(a, b, 'mean'),
      'numbers': lambda: render.comma_separated(table, kept),
      'picture': lambda: render.draw(table, kept, pathlib.Path(folder) / 'table.png'),
      'all': lambda: render.write(table, kept, pathlib.Path(folder)),
    }
    for name, work in parts.items():
      shown.add_row(name, f'{seconds(work, turns):.3f}')
  Console().print(shown)


if __name__ == '__main__':
  main()
