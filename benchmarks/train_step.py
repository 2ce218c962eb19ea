"""Measure the speed of a training step of BERT-base, compared with Hugging Face.

    python -m benchmarks.train_step [--variant=bert-base] [--rows=8] [--length=128] [--dtypes=float32,bfloat16]

Both sides train a masked language model with AdamW on the same sequences, with dropout and without clipping, mask 15 %
of the tokens and update every parameter. Times are minimum and median of alternating steps, so that other load slows
both equally. The peak is the highest rate of a large matrix product, measured between the steps. It is compared with
the minimum time, since other load only lowers the one and raises the other; the ratio to Hugging Face is that of the
medians. Operations are those of matrix products in three forward passes (backward counts twice), with the head on the
predicted positions for our side and on all positions for Hugging Face, as each computes it. `--variant` takes any size
of `models/bert.py`. Without torch and transformers only our rows are printed. On a GPU, Hugging Face's model is also
timed under torch.compile, and MFU is relative to the chip's published peak.
"""

import argparse
import functools
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from plm_jax import optim
from plm_jax.cli import malloc
from plm_jax.core import sharding
from plm_jax.core.types import Execution
from plm_jax.models import bert
from plm_jax.noise.keys import noise_root, with_step
from plm_jax.objectives import mlm
from plm_jax.planning import stand_in
from plm_jax.training.cost import flops
from plm_jax.training.step import abstract_params, bind, state_maker, train_step
from plm_jax.weights import writer

VOCAB = 30_522


def ours(
  trunk: nn.Module, rows: int, length: int, *, random: str, noise: bool = True
) -> tuple[Callable[[], None], float, int]:
  """Build one step of masked language modelling.

  Also returns operations per step and parameters.
  """
  # the count of the released data script: 20 predictions in a row of 128
  where = {'name': 'fixed_count', 'rate': 0.15, 'max_count': max(1, round(0.15 * length) + 1)}
  task = mlm.make(trunk=trunk, vocab=stand_in.Words(VOCAB), where=where)
  spec = {
    'tokens': jax.ShapeDtypeStruct((rows, length), jnp.int32),
    'segment_ids': jax.ShapeDtypeStruct((rows, length), jnp.int32),
    'row_id': jax.ShapeDtypeStruct((rows,), jnp.int32),
    'epoch': jax.ShapeDtypeStruct((rows,), jnp.int32),
    'row_weight': jax.ShapeDtypeStruct((rows,), jnp.float32),
  }
  tokens = np.random.default_rng(0).integers(1000, VOCAB, (rows, length)).astype(np.int32)
  batch = {
    'tokens': tokens,
    'segment_ids': np.ones_like(tokens),
    'row_id': np.arange(rows, dtype=np.int32),
    'epoch': np.zeros(rows, np.int32),
    'row_weight': np.ones(rows, np.float32),
  }
  batch = jax.device_put(batch)
  if not noise:
    fixed = jax.device_get(jax.jit(task.prepare)(jax.random.key(0), with_step(batch, 0)))
    task = task._replace(prepare=lambda root, batch: jax.tree.map(jnp.asarray, fixed))
  tx = optim.make(params=abstract_params(task, spec), steps=1000, name='adamw', rate=1e-4, decay=0.01)
  layout = sharding.make_layout(sharding.make_mesh({'data': -1}), 'data')
  key = jax.random.key(0)
  with sharding.use(layout):
    state = state_maker(task, tx, spec, layout=layout).fresh(key)
  step = jax.jit(functools.partial(train_step, task=task, tx=tx, random=random), donate_argnums=0)
  work = 3 * flops.count(
    lambda params, batch: (
      task.loss(
        bind(task, params, train=False, rng=key), task.prepare(noise_root(key), with_step(batch, 0)), (), key
      ).value
    ),
    state.params,
    batch,
  )
  box = [state]

  def run() -> None:
    box[0], metrics = step(box[0], batch, key)
    jax.block_until_ready(metrics)

  return run, work, sum(leaf.size for leaf in jax.tree.leaves(state.params))


def hugging_face(
  trunk: nn.Module, rows: int, length: int, dtype: str, *, device: str, compiled: bool
) -> Callable[[], None]:
  """Build one step of transformers' masked language model.

  It has the same architecture, under torch, with AdamW and dropout.
  """
  import torch
  import transformers

  heads: Any = {'mlm': None}  # only names are read
  form = writer.published_form(trunk, heads, None, adapter={})
  config = transformers.AutoConfig.for_model(**form.config)
  model: Any = transformers.AutoModelForMaskedLM.from_config(config).to(device).train()
  optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
  tokens = torch.from_numpy(np.random.default_rng(0).integers(1000, VOCAB, (rows, length))).to(device)
  labels = torch.full_like(tokens, -100)
  labels[:, :: round(1 / 0.15)] = tokens[:, :: round(1 / 0.15)]
  forward = torch.compile(model) if compiled else model

  def run() -> None:
    with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == 'bfloat16'):
      loss = forward(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    if device == 'cuda':
      torch.cuda.synchronize()

  return run


def matmul_peak(
  dtype: str, *, size: int = 2048, repeats: int = 8, clock: Callable[[], float] = time.perf_counter
) -> float:
  """Measure the best operations per second of square matrix products."""
  x = jnp.ones((size, size), dtype)
  product = jax.jit(lambda x: x @ x)
  product(x).block_until_ready()
  best = float('inf')
  for _ in range(repeats):
    began = clock()
    product(x).block_until_ready()
    best = min(best, clock() - began)
  return 2 * size**3 / best


def vector_flags() -> str:
  """Read the vector instructions of the CPU, such as "avx2 avx512f fma".

  A ratio depends on them.
  """
  try:
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
  except OSError:
    return 'not known'
  flags = next((line.partition(':')[2] for line in lines if line.startswith(('flags', 'Features'))), '')
  known = [flag for flag in sorted(flags.split()) if flag.startswith(('avx', 'amx', 'fma', 'sve', 'asimd'))]
  return ' '.join(known) or 'none'


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--variant', default='bert-base')
  parser.add_argument('--rows', type=int, default=8)
  parser.add_argument('--length', type=int, default=128)
  parser.add_argument('--dtypes', default='float32,bfloat16')
  parser.add_argument('--steps', type=int, default=7, help='timed steps of each, after two that are not')
  parser.add_argument('--layers', default='scan,loop')
  parser.add_argument('--random', default='threefry2x32,rbg')
  parser.add_argument('--noise', action='store_true', help='also time the step with the noise taken out')
  arguments = parser.parse_args()
  malloc.reuse()  # serves both sides
  device = jax.devices()[0]
  try:
    import torch
    import transformers  # noqa: F401

    peer = True
    torch.set_num_threads(torch.get_num_threads())
  except ImportError:
    peer = False
  rows, length = arguments.rows, arguments.length
  runs: dict[tuple[str, str], tuple[Callable[[], None], float | None]] = {}
  for dtype in arguments.dtypes.split(','):
    for layers in arguments.layers.split(','):
      execution = Execution(dtype=dtype, layers=layers)
      trunk = bert.make(vocab_size=VOCAB, variant=arguments.variant, execution=execution)
      for random in arguments.random.split(','):
        run, work, size = ours(trunk, rows, length, random=random)
        runs[f'plm_jax, {layers}, {random}', dtype] = run, work
    if arguments.noise:
      run, work, _ = ours(trunk, rows, length, random=random, noise=False)
      runs[f'plm_jax, {layers}, {random}, no noise', dtype] = run, work
    if peer:
      torch_device = 'cuda' if device.platform == 'gpu' else 'cpu'
      runs['Hugging Face, eager', dtype] = (
        hugging_face(trunk, rows, length, dtype, device=torch_device, compiled=False), None)  # fmt: skip
      if torch_device == 'cuda':
        runs['Hugging Face, compiled', dtype] = (
          hugging_face(trunk, rows, length, dtype, device=torch_device, compiled=True), None)  # fmt: skip
  times: dict[tuple[str, str], list[float]] = {name: [] for name in runs}
  peaks = {dtype: matmul_peak(dtype) for dtype in arguments.dtypes.split(',')}
  for turn in range(arguments.steps + 2):
    for name, (run, _) in runs.items():
      began = time.perf_counter()
      run()
      if turn >= 2:
        times[name].append(time.perf_counter() - began)
    for dtype in peaks:
      peaks[dtype] = max(peaks[dtype], matmul_peak(dtype, repeats=2))
  table = Table(
    title=f'{arguments.variant}, {rows} x {length} tokens, {device.device_kind}, {size / 1e6:.1f} M parameters'
  )
  figures = ('least ms', 'median ms', 'tokens/s', 'GFLOP/s', 'of matmul peak', 'MFU', 'times Hugging Face')
  for column in ('step', 'dtype', *figures):
    table.add_column(column, justify='left' if column in ('step', 'dtype') else 'right')
  for (name, dtype), (_, work) in runs.items():
    seconds, median = min(times[name, dtype]), statistics.median(times[name, dtype])
    reference = times.get(('Hugging Face, compiled', dtype)) or times.get(('Hugging Face, eager', dtype))
    published = flops.peak_flops(device.device_kind, dtype)
    table.add_row(
      name,
      dtype,
      f'{seconds * 1e3:.0f}',
      f'{median * 1e3:.0f}',
      f'{rows * length / seconds:,.0f}',
      f'{work / seconds / 1e9:,.0f}' if work else '',
      f'{work / seconds / peaks[dtype]:.0%}' if work else '',
      f'{work / seconds / published:.1%}' if work and published else '',
      f'{statistics.median(reference) / median:.2f}' if reference else '',
    )
  Console(width=140).print(table)
  print(f'vector instructions: {vector_flags()}')
  print('matmul peak: ' + ', '.join(f'{dtype} {peak / 1e9:,.0f} GFLOP/s' for dtype, peak in peaks.items()))


if __name__ == '__main__':
  main()
