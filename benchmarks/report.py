"""Measure the time and page size of a report of twenty long runs.

Twenty runs have 100,000 logged lines each, four seeds of five rates. A line has the numbers that a training of BERT
logs, first without and then with the norms of each part of the network, which a report skips by default.

    python -m benchmarks.report [--runs=20] [--lines=100000] [--turns=3]

Prints seconds of the complete command including the start of Python, CPU seconds of all cores, and the sizes of its
input and output. The runs take up to 3 GB in the folder of temporary files.
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from rich.console import Console
from rich.table import Table

DIFFERENT = 1_000  # lines after which the numbers of a run come again, so that writing them takes no minutes
EVERY = 1_000  # lines between two evaluations
SEEDS = 4
OFTEN = (
  'accuracy', 'gradient_norm', 'learning_rate', 'loss', 'skipped', 'skipped_in_a_row', 'targets_without_slot',
  'gradient_norm_max', 'perplexity', 'tokens_per_second',
)  # fmt: skip
PARTS = ('mlm', 'trunk/embed_norm', 'trunk/layers', 'trunk/position_embed', 'trunk/token_embed', 'trunk/type_embed')
NORMS = tuple(f'{kind}_norm/{part}' for kind in ('gradient', 'parameter', 'update') for part in PARTS)
SELDOM = ('validation/accuracy', 'validation/loss', 'validation/perplexity')


def write(folder: pathlib.Path, number: int, *, lines: int, names: tuple[str, ...]) -> None:
  """Write a run folder with a config and a file of metrics."""
  folder.mkdir(parents=True)
  settings = {
    'optim': {'rate': round(1e-4 * (1 + number // SEEDS), 4)},
    'seed': number % SEEDS,
    'best': ['validation/loss', 'min'],
  }
  (folder / 'config.json').write_text(json.dumps(settings))
  rng = np.random.default_rng(number)

  def numbers(names: tuple[str, ...]) -> str:
    values = rng.exponential(size=len(names)).astype(np.float32)
    return json.dumps({name: float(value) for name, value in zip(names, values, strict=True)})[1:]

  often = [numbers(names) for _ in range(DIFFERENT)]
  seldom = [numbers((*names, *SELDOM)) for _ in range(DIFFERENT)]
  with open(folder / 'metrics.jsonl', 'w') as file:
    for line in range(1, lines + 1):
      rest = seldom[line // EVERY % DIFFERENT] if line % EVERY == 0 else often[line % DIFFERENT]
      file.write(f'{{"step": {10 * line}, {rest}\n')


def report(runs: pathlib.Path, page: pathlib.Path) -> tuple[float, float]:
  """Measure wall seconds and CPU seconds of the command."""
  before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
  subprocess.run(
    [sys.executable, '-m', 'plm_jax', 'report', str(runs), f'--out={page}', '--samples=0'],
    check=True,
    capture_output=True,
  )
  spent, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
  return spent, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--runs', type=int, default=20)
  parser.add_argument('--lines', type=int, default=100_000)
  parser.add_argument('--turns', type=int, default=3)
  arguments = parser.parse_args()
  shown = Table(title=f'{arguments.runs} runs of {arguments.lines:,} lines, median of {arguments.turns}')
  for column in ('numbers a line', 'MB read', 'seconds', 'of all cores', 'MB of the page'):
    shown.add_column(column, justify='right')
  for names in (OFTEN, (*OFTEN, *NORMS)):
    with tempfile.TemporaryDirectory() as folder:
      runs, page = pathlib.Path(folder) / 'runs', pathlib.Path(folder) / 'report.html'
      for number in range(arguments.runs):
        write(runs / f'run_{number}', number, lines=arguments.lines, names=names)
      size = sum(file.stat().st_size for file in runs.rglob('*.jsonl'))
      turns = [report(runs, page) for _ in range(arguments.turns)]
      spent = [f'{statistics.median(one):.1f}' for one in zip(*turns, strict=True)]
      read, written = f'{size / 1e6:,.0f}', f'{page.stat().st_size / 1e6:.2f}'
      shown.add_row(str(1 + len(names)), read, *spent, written)
  Console().print(shown)


if __name__ == '__main__':
  main()
