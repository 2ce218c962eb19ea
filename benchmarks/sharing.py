"""Measure what sharing layers saves: ALBERT with each sharing mode.

    python -m benchmarks.sharing [--variant=albert-base-v1] [--rows=8] [--length=128] [--steps=5]

A shared layer is stored once and computed as often as before: there are fewer parameters for the optimizer and for
summing gradients over devices, but the same operations (Lan et al. 2019, section 3.1). Prints parameters, operations
and the time of a training step. Times are medians of alternating steps; operations are those of the matrix products of
three forward passes.
"""

import argparse
import statistics
import time

from rich.console import Console
from rich.table import Table

from benchmarks import train_step
from plm_jax.cli import malloc
from plm_jax.models import albert


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--variant', default='albert-base-v1')
  parser.add_argument('--rows', type=int, default=8)
  parser.add_argument('--length', type=int, default=128)
  parser.add_argument('--steps', type=int, default=5, help='timed steps of each, after two that are not')
  arguments = parser.parse_args()
  malloc.reuse()
  runs = {}
  for sharing in ('all', 'attention', 'ffn', 'none'):
    trunk = albert.make(vocab_size=train_step.VOCAB, variant=arguments.variant, overrides={'sharing': sharing})
    runs[sharing] = train_step.ours(trunk, arguments.rows, arguments.length, random='rbg')
  times: dict[str, list[float]] = {sharing: [] for sharing in runs}
  for turn in range(arguments.steps + 2):
    for sharing, (run, _, _) in runs.items():
      began = time.perf_counter()
      run()
      if turn >= 2:
        times[sharing].append(time.perf_counter() - began)
  whole = statistics.median(times['none'])
  table = Table(title=f'{arguments.variant}, {arguments.rows} x {arguments.length} tokens')
  for column in ('shared', 'parameters', 'GFLOP a step', 'ms a step', 'times none'):
    table.add_column(column, justify='left' if column == 'shared' else 'right')
  for sharing, (_, work, parameters) in runs.items():
    seconds = statistics.median(times[sharing])
    table.add_row(sharing, f'{parameters:,}', f'{work / 1e9:,.0f}', f'{seconds * 1e3:,.0f}', f'{seconds / whole:.2f}')
  Console(width=100).print(table)


if __name__ == '__main__':
  main()
