"""Measure the speed of LSTMs compared with torch.nn.LSTM, and the memory of long sequences.

    python -m benchmarks.lstm [--sizes=encoder,cove,cvt] [--rows=16] [--length=64] [--steps=7]
    taskset -c 0 python -m benchmarks.lstm --clock=cpu      one core, for a machine with other load

`elmo` has two bidirectional layers with 1,024 cells and a projection to 128 (ELMo-small), `elmo_original` 4,096 cells
and 512, `awd_lstm` three layers of 1150, 1150 and 400 (ULMFiT), `encoder` two layers of 256 that read both ways, `cove`
the same with 300 (MT-LSTM), `cvt` layers of 1,024 and 512 cells projected to 512. A step is forward, backward and Adam.
Both sides have the same matrices and compute the same states; torch's layers have a second bias, and it projects 512
cells to at most 511. `elmo_original` reads at most 16 tokens a sequence. Times are medians and minima of alternating
steps, so that other load slows both equally. The clock 'cpu' counts the CPU seconds of the process.

The second table is XLA's working memory in the gradient of a layer over sequences of 512, by `execution.remat` and by
the window that the backward pass recomputes (`layers.lstm.recur_over`).

On a TPU the same program has what matters there: input products outside the recurrence, one product for the four gates
of a step, one in the backward pass, and one product per sequence for the gradient of the weights. A step of 64
sequences of 1150 multiplies 0.7 GFLOP, 3 microseconds at 200 TFLOP/s, and reads 10.6 MB of weights in bfloat16, 13
microseconds at 800 GB/s. So further sequences are free up to about 250, and unrolling gains little. No TPU was
available to test this.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

from plm_jax.cli import malloc
from plm_jax.core.types import Array, PyTree, Remat
from plm_jax.layers.linear import product
from plm_jax.layers.lstm import WINDOW, both_ways, recur, recur_over

Step = Callable[[], Any]
ROW = 512
WARM_UP = 8  # steps; in the first few the process still gets memory from the system
KEPT: tuple[tuple[Remat, int], ...] = (('none', ROW), ('dots', WINDOW), ('full', 128), ('full', WINDOW), ('full', 32))
CLOCKS = {'wall': time.perf_counter, 'cpu': time.process_time}


class Size(NamedTuple):
  """A stack of layers.

  Attributes:
    inputs: width of what it reads.
    cells: of each layer.
    directions: 1 or 2.
    projection: width of the states; None for that of the cells.
    joined: each direction reads both of the layer below, and not its own alone.
    longest: the most tokens of a sequence.
  """

  inputs: int
  cells: tuple[int, ...]
  directions: int = 1
  projection: int | None = None
  joined: bool = False
  longest: int = ROW


SIZES = {
  'elmo': Size(128, (1024, 1024), directions=2, projection=128),
  'elmo_original': Size(512, (4096, 4096), directions=2, projection=512, longest=16),
  'awd_lstm': Size(400, (1150, 1150, 400)),
  'encoder': Size(256, (256, 256), directions=2, joined=True),
  'cove': Size(300, (300, 300), directions=2, joined=True),
  'cvt': Size(600, (1024, 512), directions=2, projection=512, joined=True),
}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--sizes', default=','.join(SIZES))
  parser.add_argument('--rows', type=int, default=16)
  parser.add_argument('--length', type=int, default=64)
  parser.add_argument('--steps', type=int, default=7, help=f'timed steps of each, after {WARM_UP} that are not')
  parser.add_argument('--clock', choices=CLOCKS, default='wall')
  parser.add_argument('--no_memory', action='store_true', help='leave out the second table')
  arguments = parser.parse_args()
  malloc.reuse()  # serves both sides
  table = Table(title=f'a step of {arguments.rows} x {arguments.length} tokens, float32, {arguments.clock} time')
  for column in ('layers', 'ms: median', 'least', 'torch: median', 'least', 'times torch: medians', 'least'):
    table.add_column(column, justify='left' if column == 'layers' else 'right')
  for name in arguments.sizes.split(','):
    size, x = SIZES[name], inputs(SIZES[name], arguments.rows, min(arguments.length, SIZES[name].longest))
    times = taken_in_turn([ours(size, x), theirs(size, x)], arguments.steps, clock=CLOCKS[arguments.clock])
    medians, least = [statistics.median(each) for each in times], [min(each) for each in times]
    ms = [f'{1e3 * each[side]:,.0f}' for side in (0, 1) for each in (medians, least)]
    table.add_row(name, *ms, *(f'{each[1] / each[0]:.2f}' for each in (medians, least)))
  Console(width=110).print(table)
  if arguments.no_memory:
    return
  table = Table(title=f'memory of the gradient of a layer of 400 to 1,150, {arguments.rows} x {ROW} tokens')
  table.add_column('remat')
  table.add_column('tokens of a window', justify='right')
  table.add_column('MiB', justify='right')
  for remat, window in KEPT:
    mib = planned(arguments.rows, remat, window) / 2**20
    table.add_row(remat, '' if remat == 'none' else str(window), f'{mib:,.0f}')
  Console(width=110).print(table)


def inputs(size: Size, rows: int, length: int) -> np.ndarray:
  """Sample random inputs, f32[b, l, d]."""
  return np.random.default_rng(0).normal(size=(rows, length, size.inputs)).astype(np.float32)


def taken_in_turn(steps: list[Step], count: int, *, clock: Callable[[], float]) -> list[list[float]]:
  """Measure alternating steps, after `WARM_UP` steps."""
  times: list[list[float]] = [[] for _ in steps]
  for turn in range(WARM_UP + count):
    for step, seconds in zip(steps, times, strict=True):
      began = clock()
      step()
      if turn >= WARM_UP:
        seconds.append(clock() - began)
  return times


# Ours ----------------------------------------------------------------------------------------------------------------


def parameters(size: Size) -> list[dict[str, Array]]:
  """Sample the parameters of each layer from N(0, 1 / f)."""
  random, made, width = np.random.default_rng(1), [], size.inputs
  c, p = size.directions, size.projection
  for f in size.cells:
    shapes = {'kernel': (width, c, 4, f), 'recurrent': (c, p or f, 4, f), 'bias': (c, 4, f)}
    shapes |= {'projection': (c, f, p)} if p else {}
    made.append({name: jnp.asarray(random.normal(size=s) / f**0.5, jnp.float32) for name, s in shapes.items()})
    width = (p or f) * (c if size.joined else 1)
  return made


def read(size: Size, params: list[dict[str, Array]], x: Array) -> Array:
  """Compute the states of the last layer.

  [b, l, d] -> [b, l, c, p] in reading order, or [b, l, c p] of joined directions.
  """
  c, (b, length, _) = size.directions, x.shape
  if not size.joined:
    x = jnp.repeat(x[:, :, None], c, axis=2)
    x = both_ways(x) if c == 2 else x
  fresh = jnp.zeros((b, length, c), bool)
  for layer in params:
    kernel, bias = layer['kernel'], layer['bias']
    if size.joined or c == 1:
      gates = product(x.reshape(b, length, -1), kernel.reshape(len(kernel), -1), straight=True)
      gates = gates.reshape(b, length, *bias.shape) + bias
    else:
      gates = jnp.einsum('blcd,dcgf->blcgf', x, kernel) + bias
    (_, p, _, f), projection = layer['recurrent'].shape, layer.get('projection')
    state = jnp.zeros((b, c, p)), jnp.zeros((b, c, f))
    gates = both_ways(gates) if size.joined else gates
    _, x = recur(gates, layer['recurrent'], state, fresh=fresh, projection=projection)
    x = both_ways(x).reshape(b, length, -1) if size.joined else x
  return x


def ours(size: Size, x: np.ndarray) -> Step:
  """Build a step of Adam on the mean square of the states."""
  params, tx = parameters(size), optax.adam(1e-3)

  @partial(jax.jit, donate_argnums=(0, 1))
  def step(params: PyTree, state: Any, x: Array) -> tuple[PyTree, Any]:
    gradient = jax.grad(lambda params: jnp.square(read(size, params, x)).mean())(params)
    updates, state = tx.update(gradient, state)
    return optax.apply_updates(params, updates), state

  box, x = [(params, tx.init(params))], jnp.asarray(x)

  def run() -> None:
    box[0] = jax.block_until_ready(step(*box[0], x))

  return run


def planned(rows: int, remat: Remat, window: int) -> int:
  """Return the working bytes of a layer's gradient.

  The backward pass keeps what `remat` names.
  """
  size = Size(400, (1150,))
  layer, x = parameters(size)[0], jnp.asarray(inputs(size, rows, ROW))
  zeros, fresh = jnp.zeros((rows, 1, size.cells[0])), jnp.zeros((rows, ROW, 1), bool)

  def loss(layer: dict[str, Array]) -> Array:
    _, states = recur_over(
      x,
      layer['recurrent'],
      (zeros, zeros),
      gates_of=lambda x: jnp.einsum('bld,dcgf->blcgf', x, layer['kernel']) + layer['bias'],
      fresh=fresh,
      remat=remat,
      window=window,
    )
    return jnp.square(states).mean()

  return jax.jit(jax.grad(loss)).lower(layer).compile().memory_analysis().temp_size_in_bytes


# torch ---------------------------------------------------------------------------------------------------------------


def theirs(size: Size, x: np.ndarray) -> Step:
  """Build the same step with torch.nn.LSTM.

  Directions that do not read each other are separate stacks.
  """
  import torch

  both = size.directions == 2
  stacks: list[list[Any]] = [[] for _ in range(2 if both and not size.joined else 1)]
  for stack in stacks:
    width = size.inputs
    for f in size.cells:
      options = dict(batch_first=True, bidirectional=size.joined, proj_size=min(size.projection or 0, f - 1))
      stack.append(torch.nn.LSTM(width, f, **options))
      width = (size.projection or f) * (2 if size.joined else 1)
  weights = [leaf for stack in stacks for layer in stack for leaf in layer.parameters()]
  optimiser, rows = torch.optim.Adam(weights, lr=1e-3, fused=True), torch.from_numpy(x)

  def run() -> None:
    total = torch.zeros(())
    for number, stack in enumerate(stacks):
      states = rows.flip(1) if number else rows
      for layer in stack:
        states, _ = layer(states)
      total = total + states.square().mean() / len(stacks)
    total.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)

  return run


if __name__ == '__main__':
  main()
