"""How fast are recurrent layers? Forward and backward passes beside torch.nn.LSTM with the same sizes.

    python -m benchmarks.lstm [--rows=64] [--length=70] [--steps=5] [--only=awd_lstm]

Timed are the layers alone: states of all tokens, and gradients of their mean square for inputs and parameters, without
embeddings, softmax and dropout, in float32. Both take turns; times are medians, in ratios of one run.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from plm_jax.cli import memory
from plm_jax.layers import lstm

# name: width of the input, of the states of each layer, whether they are read both ways
STACKS = {
  'awd_lstm': (400, (1150, 1150, 400), False),
  'awd_lstm small': (128, (256, 256, 128), False),
  'both ways': (768, (576, 576), True),
}


class OneWay(nn.Module):
  """The layers of AWD-LSTM."""

  widths: tuple[int, ...]

  @nn.compact
  def __call__(self, x: jax.Array, segment_ids: jax.Array) -> jax.Array:
    for width in self.widths:
      zero = jnp.zeros((x.shape[0], width))
      _, x = lstm.DroppedLstm(width)(x, (zero, zero), fresh=lstm.begins(segment_ids))
    return x


class BothWays(nn.Module):
  """Layers of `StackedLstm`."""

  widths: tuple[int, ...]

  @nn.compact
  def __call__(self, x: jax.Array, segment_ids: jax.Array) -> jax.Array:
    return lstm.StackedLstm(self.widths[0], len(self.widths))(x, segment_ids, train=False)


def ours(x: np.ndarray, widths: tuple[int, ...], both_ways: bool) -> tuple[Callable[[], Any], int]:
  """(one step, parameters)."""
  stack, inputs = (BothWays if both_ways else OneWay)(widths), jnp.asarray(x)
  segment_ids = jnp.ones(x.shape[:2], jnp.int32)
  params = nn.unbox(jax.jit(stack.init)(jax.random.key(0), inputs, segment_ids))

  @jax.jit
  def step(params: Any, x: jax.Array) -> Any:
    return jax.grad(lambda params, x: jnp.square(stack.apply(params, x, segment_ids)).mean(), argnums=(0, 1))(params, x)

  return lambda: jax.block_until_ready(step(params, inputs)), sum(leaf.size for leaf in jax.tree.leaves(params))


def theirs(x: np.ndarray, widths: tuple[int, ...], both_ways: bool) -> Callable[[], Any]:
  """One step of torch."""
  sizes = [x.shape[2], *(width * (1 + both_ways) for width in widths)]
  layers = [
    torch.nn.LSTM(size, width, batch_first=True, bidirectional=both_ways)
    for size, width in zip(sizes, widths, strict=False)
  ]
  inputs = torch.tensor(x, requires_grad=True)

  def step() -> None:
    y = inputs
    for layer in layers:
      y, _ = layer(y)
    inputs.grad = None
    for layer in layers:
      layer.zero_grad(set_to_none=True)
    y.square().mean().backward()

  return step


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--rows', type=int, default=64)
  parser.add_argument('--length', type=int, default=70)
  parser.add_argument('--steps', type=int, default=5, help='timed steps of each, after one that is not')
  parser.add_argument('--only', choices=tuple(STACKS), help='one of the stacks')
  arguments = parser.parse_args()
  memory.reuse()
  torch.set_num_threads(os.cpu_count() or 1)
  table = Table(title=f'{arguments.rows} x {arguments.length} tokens, {os.cpu_count()} cores')
  for column in ('layers', 'parameters', 'ms', "torch's ms", 'times as fast'):
    table.add_column(column, justify='left' if column == 'layers' else 'right')
  for name in [arguments.only] if arguments.only else STACKS:
    size, widths, both_ways = STACKS[name]
    x = np.random.default_rng(0).standard_normal((arguments.rows, arguments.length, size)).astype(np.float32)
    run, parameters = ours(x, widths, both_ways)
    runs, times = (run, theirs(x, widths, both_ways)), ([], [])
    for turn in range(arguments.steps + 1):
      for one, own in zip(runs, times, strict=True):
        began = time.perf_counter()
        one()
        if turn:
          own.append(time.perf_counter() - began)
    mine, other = (statistics.median(own) * 1e3 for own in times)
    table.add_row(name, f'{parameters:,}', f'{mine:,.0f}', f'{other:,.0f}', f'{other / mine:.2f}')
  Console(width=100).print(table)


if __name__ == '__main__':
  main()
