"""Measure memory and time of attention as sequences grow, for each implementation.

    python benchmarks/attention.py [--lengths=512,1024,2048,4096,8192] [--heads=12] [--head_dim=64] [--tokens=8192]
      [--implementations=xla,chunked,flash,tiled,cudnn] [--bias=none|shared|rows] [--dtype=float32] [--turns=3]
      [--limit_gib=8]

A line is one layer's attention, forward and backward, on sequences of packed documents with a causal mask. The batch
has `--tokens` tokens in total, and at least one sequence, so only what is not linear in the length grows. `work MiB` is
the memory of the compiled function besides its arguments and results, according to the compiler. Times are medians of
alternating calls. The last column is the largest difference of outputs from the plain formula. Implementations without
a kernel for this device are reported and left out. Above `--limit_gib` only the memory is shown.
"""

import argparse
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from plm_jax.cli import malloc
from plm_jax.layers.attention import attend
from plm_jax.layers.masks import Mask

DOCUMENTS = 3  # in a row
MIB = 2**20


def operands(rows: int, length: int, *, heads: int, head_dim: int, bias: str, dtype: str) -> dict[str, Any]:
  """Generate random queries, keys, values, segment ids, and a bias if wanted."""
  draw = np.random.default_rng(length)
  made = {name: draw.standard_normal((rows, length, heads, head_dim)) for name in ('query', 'key', 'value')}
  given = {name: jnp.asarray(array, dtype) for name, array in made.items()}
  ids = 1 + np.arange(length) * DOCUMENTS // length
  given['segment_ids'] = jnp.broadcast_to(jnp.asarray(ids, jnp.int32), (rows, length))
  if bias != 'none':
    shape = (rows if bias == 'rows' else 1, heads, length, length)
    given['bias'] = jnp.asarray(draw.standard_normal(shape, np.float32))
  return given


def compiled(implementation: Any, given: dict[str, Any]) -> Any:
  """Compile the output and the gradients by query, key, value and bias.

  Raises ValueError if there is no such kernel.
  """

  def loss(learned: dict[str, Any], segment_ids: Any) -> Any:
    mask = Mask(segment_ids, segment_ids, causal=True)
    out = attend(**learned, mask=mask, implementation=implementation)
    return jnp.square(out.astype(jnp.float32)).sum(), out

  step = jax.jit(jax.value_and_grad(loss, has_aux=True))
  return step.lower(*parts(given)).compile()


def parts(given: dict[str, Any]) -> tuple[dict[str, Any], Any]:
  return {name: array for name, array in given.items() if name != 'segment_ids'}, given['segment_ids']


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--lengths', default='512,1024,2048,4096,8192')
  parser.add_argument('--implementations', default='xla,chunked,flash,tiled,cudnn')
  parser.add_argument('--heads', type=int, default=12)
  parser.add_argument('--head_dim', type=int, default=64)
  parser.add_argument('--tokens', type=int, default=8192, help='of all rows together')
  parser.add_argument('--bias', choices=('none', 'shared', 'rows'), default='none')
  parser.add_argument('--dtype', default='float32')
  parser.add_argument('--turns', type=int, default=3, help='timed calls of each')
  parser.add_argument('--limit_gib', type=float, default=8.0, help='what works in more is not run')
  arguments = parser.parse_args()
  malloc.reuse()
  sizes = {name: vars(arguments)[name] for name in ('heads', 'head_dim', 'bias', 'dtype')}
  device = jax.devices()[0].device_kind
  names = arguments.implementations.split(',')
  table = Table(title=f'forward and backward of one layer, {arguments.heads} heads of {arguments.head_dim}, {device}')
  for column in ('length', 'rows', 'implementation', 'work MiB', 'times xla', 'ms', 'times xla ', 'difference'):
    table.add_column(column, justify='left' if column == 'implementation' else 'right')
  refused: dict[str, str] = {}
  for length in map(int, arguments.lengths.split(',')):
    rows = max(1, arguments.tokens // length)
    given = operands(rows, length, **sizes)
    steps = {}
    for name in names:
      try:
        steps[name] = compiled(name, given)
      except ValueError as error:
        refused[name] = str(error)
    work = {name: step.memory_analysis().temp_size_in_bytes for name, step in steps.items()}
    fits = [name for name in steps if work[name] <= arguments.limit_gib * 2**30]
    outputs = {name: np.asarray(steps[name](*parts(given))[0][1], np.float32) for name in fits}
    seconds: dict[str, list[float]] = {name: [] for name in fits}
    for _ in range(arguments.turns):
      for name in fits:
        began = time.perf_counter()
        jax.block_until_ready(steps[name](*parts(given)))
        seconds[name].append(time.perf_counter() - began)
    for name in steps:
      cells = [f'{length:,}', str(rows), name, f'{work[name] / MIB:,.0f}']
      cells.append(f'{work[name] / work["xla"]:.3f}' if 'xla' in work else '')
      cells.append(f'{statistics.median(seconds[name]) * 1e3:,.0f}' if name in fits else 'too large')
      both = name in fits and 'xla' in fits
      ratios = [a / b for a, b in zip(seconds[name], seconds['xla'], strict=True)] if both else []
      cells.append(f'{statistics.median(ratios):.2f}' if both else '')
      cells.append(f'{np.abs(outputs[name] - outputs["xla"]).max():.1e}' if both else '')
      table.add_row(*cells)
  Console(width=110).print(table)
  for name, reason in refused.items():
    print(f'{name} is left out: {reason}')


if __name__ == '__main__':
  main()
