"""Measure the time to render a table of a hundred finished cells, or its false alarms.

The table has ten rows, ten columns, and three seeds of 872 test examples.

    python -m benchmarks.tables [--turns=5]
    python -m benchmarks.tables --nulls=300

The first prints seconds for the text, the numbers and the picture, and for the intervals of ten claims. The second
compares pairs of equal cells and prints how many differ "beyond noise". Their accuracy is 75 %. Seeds deviate by a
normal number of logits, examples of the two cells differ or not, and runs stay at one class with a probability.
"""

import argparse
import itertools
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
from plm_jax.studies.tables.intervals import Measured

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


def equal_cells(
  rng: np.random.Generator, *, seeds: int, tested: int, deviation: float, differ: float, collapse: float
) -> list[Measured]:
  """Sample two cells of equal accuracy; a share of `collapse` of their runs answers one class."""
  shared, both = rng.normal(1.3, 1.5, tested), []
  one_class = np.arange(tested) < 0.509 * tested
  for _ in range(2):
    level = shared + differ * rng.normal(size=tested) + deviation * rng.normal(size=(seeds, 1))
    right = rng.random((seeds, tested)) < 1 / (1 + np.exp(-level))
    rows = 100.0 * np.where(rng.random((seeds, 1)) < collapse, one_class, right)[None]
    both.append(Measured(rows.mean(-1), rows))
  return both


def is_beyond_noise(a: Measured, b: Measured) -> bool:
  """Compare two cells as a table with one claim does."""
  counts = [intervals.num_at_chance(cell, 50.9, better='max') for cell in (a, b)]
  if any(counts):
    return counts[0] != counts[1] and intervals.of_counts(counts, [a.values.size, b.values.size]).p <= 0.05
  found = intervals.difference(a, b, 'mean', draws=200)
  return found.is_sure and found.p <= 0.05


def false_alarms(trials: int) -> Shown:
  """Simulate pairs of equal cells."""
  shown = Shown(title=f'{trials} pairs of equal cells, per cent beyond noise')
  for name in ('seeds', 'examples', 'deviation of seeds', 'examples differ', 'runs at chance', 'false alarms'):
    shown.add_column(name, justify='right')
  for seeds, tested, deviation, differ, collapse in itertools.product(
    (3, 5), (872, 3_000), (0.1, 0.4), (0.0, 1.0), (0.0, 0.2)
  ):
    settings = dict(seeds=seeds, tested=tested, deviation=deviation, differ=differ, collapse=collapse)
    alarms = [is_beyond_noise(*equal_cells(np.random.default_rng(trial), **settings)) for trial in range(trials)]  # type: ignore[arg-type]
    shown.add_row(*map(str, settings.values()), f'{100 * np.mean(alarms):.1f}')
  return shown


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
  parser.add_argument('--nulls', type=int, default=0)
  arguments = parser.parse_args()
  if arguments.nulls:
    Console().print(false_alarms(arguments.nulls))
    return
  turns = arguments.turns
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
