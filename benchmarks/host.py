"""Measure the host's share of a step: CPU time of the loop and of data threads.

    python -m benchmarks.host [--config=experiments/bert/base.py:quick] [--steps=400]

Trains twice, the second time for `--steps` more, and takes the difference, which removes the cost of starting,
compiling and saving. The kernel counts the time of each thread. The loop's thread requests batches, sends them, calls
the compiled step, reads metrics of finished steps and logs. Other Python threads prepare batches. The rest belongs to
XLA and is the step. A device computes while the host prepares the next steps, so the host matters only if its thread
needs longer than the step. The last lines compare it with the steps on slices named by configs
(experiments/slices.json: hours at 40 % of the peak divided by the steps of the config). Calling a step costs by the
number of arrays of a state, not by their sizes, so a tiny network with its layers in one array suffices.
"""

import argparse
import collections
import os
import pathlib
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from benchmarks import slices
from plm_jax import config
from plm_jax.training import loop

LOOP, BATCHES, XLA = "the loop's thread", 'batches', 'XLA'
TICKS = os.sysconf('SC_CLK_TCK')
BESIDE = ('bert/base.py', 'bert/large.py', 'gpt/gpt2.py:gpt2', 't5/pretrain.py')


def spent() -> dict[str, float]:
  """Measure the CPU seconds of the threads of this process."""
  seconds: dict[str, float] = collections.defaultdict(float)
  for task in pathlib.Path('/proc/self/task').iterdir():
    try:
      name, stat = (task / 'comm').read_text().strip(), (task / 'stat').read_text()
    except OSError:  # it has ended
      continue
    user, system = stat.rpartition(')')[2].split()[11:13]
    owner = LOOP if int(task.name) == os.getpid() else BATCHES if name.startswith(('python', 'pt_main')) else XLA
    seconds[owner] += (int(user) + int(system)) / TICKS
  return seconds


def trained(settings: Mapping[str, Any], folder: pathlib.Path, stop_at: int) -> tuple[dict[str, float], float]:
  """Measure CPU seconds by owner, and wall time, of some steps."""
  before, began = spent(), time.monotonic()
  loop.train(settings, folder, stop_at=stop_at)
  took = time.monotonic() - began
  after = spent()
  return {owner: after[owner] - before[owner] for owner in (LOOP, BATCHES, XLA)}, took


def of_a_step(name: str, *, steps: int) -> dict[str, float]:
  """Compute milliseconds of a step by owner, and 'clock'."""
  settings = config.load(name)
  often = {'steps': 10**6, 'eval': {}, 'best': None, 'log_every': 40, 'eval_every': 10**6, 'save_every': 10**6}
  settings = config.resolve({**settings, **often})
  with tempfile.TemporaryDirectory() as folder:
    run = pathlib.Path(folder) / 'run'
    trained(settings, run, 20)
    short, clock = trained(settings, run, 40)  # it restores and compiles, as the next does
    long, longer = trained(settings, run, 60 + steps)
  return {owner: 1e3 * (long[owner] - short[owner]) / steps for owner in short} | {
    'clock': 1e3 * (longer - clock) / steps
  }


def on_slices() -> dict[str, float]:
  """Compute milliseconds of a step at 40 % of the peak.

  They are by config and slice.
  """
  known = slices.read()['rows']
  rows = [row for row in slices.ROWS if row.config in BESIDE and known[row.name]['hours']]
  of = {row.name: config.resolve(config.load(f'experiments/{row.config}'))['steps'] for row in rows}
  return {name: 3.6e6 * known[name]['hours'] / steps for name, steps in of.items()}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--config', default='experiments/bert/base.py:quick')
  parser.add_argument('--steps', type=int, default=400)
  arguments = parser.parse_args()
  found = of_a_step(arguments.config, steps=arguments.steps)
  title = f'{arguments.config}, {jax.default_backend()}'
  table = Table('what', 'ms a step', "the loop's thread beside it", title=title)
  for name, milliseconds in found.items():
    table.add_row(name, f'{milliseconds:.2f}', f'{found[LOOP] / milliseconds:.1%}' if name == 'clock' else '')
  for name, milliseconds in on_slices().items():
    table.add_row(f'{name}, 40 % of the peak', f'{milliseconds:.0f}', f'{found[LOOP] / milliseconds:.1%}')
  Console().print(table)


if __name__ == '__main__':
  main()
