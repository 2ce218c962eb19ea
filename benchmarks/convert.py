"""How much memory does an import or an export of published weights take? A GPT-2 of made-up numbers goes both ways.

    python -m benchmarks.convert [--width=2048] [--layers=38] [--dtype=float32] [--folder=FOLDER]

The peak of each command's process is shown above that of one that imports the same modules and does nothing, beside
the largest tensor of the source. The default is a source of 7.9 GiB; a folder on disk needs about three times its size.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOCAB = 50_257
# of the process itself: what `getrusage` says begins with the size of the parent. Linux alone has it
_REPORT = "print('PEAK', next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
_IDLE = """
from plm_jax import build, convert, files, logs, param_files, tensor_files, weights
from plm_jax.weights import release
import jax, numpy
jax.devices()
weights.architectures()
"""


def write_source(folder: Path, *, width: int, layers: int, dtype: str, vocab_size: int = VOCAB) -> int:
  """Writes a GPT-2 in the form of Hugging Face, some rows at a time; returns the bytes of its largest tensor."""
  import numpy as np

  from plm_jax import tensor_files
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
  """Bytes of memory of a new process that runs `code`, at most."""
  script = f'{code}\n{_REPORT}'
  done = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, check=False)
  if done.returncode:
    raise RuntimeError(done.stderr)
  return int(done.stdout.split('PEAK')[1]) * 1024


def peaks(folder: Path) -> dict[str, int]:
  """Bytes above an idle process of an import of `folder`/hf and of an export of what it makes."""
  idle = peak(_IDLE)
  commands = {'import': ('hf', 'ours'), 'export': ('ours', 'back')}
  out = {}
  for name, (source, target) in commands.items():
    words = [name, str(folder / source), str(folder / target)]
    out[name] = peak(f'{_IDLE}\nassert convert.main({words!r}) == 0') - idle
  return out


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--width', type=int, default=2048)
  parser.add_argument('--layers', type=int, default=38)
  parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
  parser.add_argument('--folder', type=Path, help='on a disk with room; a temporary one by default')
  flags = parser.parse_args()
  with tempfile.TemporaryDirectory(dir=flags.folder) as name:
    folder = Path(name)
    largest = write_source(folder / 'hf', width=flags.width, layers=flags.layers, dtype=flags.dtype)
    source = sum(file.stat().st_size for file in (folder / 'hf').glob('*.safetensors'))
    found = {'source': source, 'largest_tensor': largest, **peaks(folder)}
  print(json.dumps({key: f'{value / 2**20:,.0f} MiB' for key, value in found.items()}, indent=2))


if __name__ == '__main__':
  main()
