"""Measure the memory of importing and exporting a checkpoint, with a GPT-2 of random numbers.

    python -m benchmarks.convert [--width=2048] [--layers=8] [--dtype=float32] [--folder=FOLDER]

The peak of each command's process is shown relative to a process that imports the same modules, traces a tiny trunk and
does nothing more, next to the largest tensor of the source. The aim is at most twice that tensor. The default source
has 2 GB; a folder on disk needs about three times its size. The exported tensors are compared with the source, byte by
byte.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

VOCAB = 50_257
# of the process itself: what `getrusage` says begins with the size of the parent. Linux alone has it
_REPORT = "print('PEAK', next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
_IDLE = """
from plm_jax.commands import convert
from plm_jax.cli import logs
from plm_jax.config import build
from plm_jax.weights import convert as conversions, shapes, table
import jax, numpy
jax.devices()
table.architectures()
shapes.shapes(build.make('models', {'name': 'gpt', 'variant': 'tiny'}, vocab_size=8))
"""


def write_source(folder: Path, *, width: int, layers: int, dtype: str, vocab_size: int = VOCAB) -> int:
  """Write a GPT-2 in Hugging Face's format, some rows at a time.

  Returns the bytes of its largest tensor.
  """
  import numpy as np

  from plm_jax.checkpoint import tensor_files
  from plm_jax.weights import release

  kind = {'float32': tensor_files.DTYPES['F32'], 'bfloat16': tensor_files.DTYPES['BF16']}[dtype]
  block = {
    'attn.c_attn': (width, 3 * width), 'attn.c_proj': (width, width), 'mlp.c_fc': (width, 4 * width),
    'mlp.c_proj': (4 * width, width), 'ln_1': (width,), 'ln_2': (width,),
  }  # fmt: skip
  shapes: dict[str, tuple[int, ...]] = {'transformer.wte.weight': (vocab_size, width)}
  shapes['transformer.wpe.weight'] = (64, width)
  for layer in range(layers):
    for name, shape in block.items():
      shapes[f'transformer.h.{layer}.{name}.weight'] = shape
      shapes[f'transformer.h.{layer}.{name}.bias'] = shape[-1:]
  shapes |= {'transformer.ln_f.weight': (width,), 'transformer.ln_f.bias': (width,)}

  def rows(shape: tuple[int, ...], seed: int) -> Iterator[Any]:
    draw = np.random.default_rng(seed)
    step = max(1, 2**20 // max(1, shape[-1])) if len(shape) > 1 else shape[0]
    for start in range(0, shape[0], step):
      yield draw.random((min(step, shape[0] - start), *shape[1:]), np.float32).astype(kind)

  plans = {
    name: tensor_files.Plan(kind, shape, lambda shape=shape, seed=seed: rows(shape, seed))
    for seed, (name, shape) in enumerate(shapes.items())
  }
  config = {'model_type': 'gpt2', 'vocab_size': vocab_size, 'n_embd': width, 'n_layer': layers}
  release.write(folder, config | {'n_head': width // 64, 'n_positions': 64}, plans)
  return max(plan.size for plan in plans.values())


def peak(code: str) -> int:
  """Measure the peak memory in bytes of a process running `code`."""
  script = f'{code}\n{_REPORT}'
  done = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, check=False)
  if done.returncode:
    raise RuntimeError(done.stderr)
  return int(done.stdout.split('PEAK')[1]) * 1024


class Measured(NamedTuple):
  """Bytes of memory above an idle process at the peak, and seconds including the start, of a command."""

  memory: int
  seconds: float


def measure(folder: Path) -> dict[str, Measured]:
  """Import `folder`/hf, and export the result to `folder`/back."""
  idle = peak(_IDLE)
  commands = {'import': ('hf', 'ours'), 'export': ('ours', 'back')}
  out = {}
  for name, (source, target) in commands.items():
    words = [name, str(folder / source), str(folder / target)]
    start = time.perf_counter()
    most = peak(f'{_IDLE}\nassert convert.main({words!r}) == 0')
    out[name] = Measured(most - idle, time.perf_counter() - start)
  return out


def same_tensors(one: Path, other: Path) -> bool:
  """Return whether two folders have the same tensors, as float32."""
  import numpy as np

  from plm_jax.weights import release

  a, b = release.Release(one), release.Release(other)
  return set(a) == set(b) and all(np.array_equal(a.read(name).astype(np.float32), b.read(name)) for name in a)


def main() -> None:
  from rich.console import Console
  from rich.table import Table

  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--width', type=int, default=2048)
  parser.add_argument('--layers', type=int, default=8)
  parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
  parser.add_argument('--folder', type=Path, help='on a disk with room; a temporary one by default')
  flags = parser.parse_args()
  with tempfile.TemporaryDirectory(dir=flags.folder) as name:
    folder = Path(name)
    largest = write_source(folder / 'hf', width=flags.width, layers=flags.layers, dtype=flags.dtype)
    source = sum(file.stat().st_size for file in (folder / 'hf').glob('*.safetensors'))
    measured = measure(folder)
    same = same_tensors(folder / 'hf', folder / 'back')
  table = Table(
    title=f'{flags.dtype}, {source / 2**20:,.0f} MiB, largest tensor {largest / 2**20:,.0f} MiB; '
    f'what came back is {"the same" if same else "NOT the same"}'
  )
  for column in ('command', 'peak above idle, MiB', 'of the largest tensor', 'seconds', 'source, MiB/s'):
    table.add_column(column, justify='left' if column == 'command' else 'right')
  for command, (memory, seconds) in measured.items():
    figures = (memory / 2**20, memory / largest, seconds, source / 2**20 / seconds)
    table.add_row(command, *(f'{figure:,.{digits}f}' for figure, digits in zip(figures, (0, 2, 1, 0), strict=True)))
  Console().print(table)


if __name__ == '__main__':
  main()
