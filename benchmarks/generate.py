"""Measure the speed of generation with GPT-2-small and a key-value cache, compared with Hugging Face.

    python -m benchmarks.generate [--variant=gpt2] [--rows=1,8] [--methods=greedy,beam] [--lengths=64,256,512,1024]

Prints a line for each method, batch size and total length (including a prompt of 32 tokens) as soon as it is measured:
seconds of complete calls including the prompt, the minimum over calls that alternate between both sides, so that other
load slows both equally. Compilation is not counted. All lines take a quarter of an hour on two cores; with --out=FILE
the benchmark can be interrupted and resumed. `of bound` compares with a step that only reads: the time to read the
weights and the filled cache once per step, at the rate of a sum over a large array in the same run, divided by our
time. After each group of lines comes the exponent a of time = c * (new tokens)^a. No token ends a text, so both sides
generate the same number of tokens; the line shows whether they are equal. Without torch and transformers only our lines
are printed.
"""

import argparse
import json
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import weights
from plm_jax.cli import malloc
from plm_jax.core.types import Execution
from plm_jax.generate import generate
from plm_jax.models import gpt
from plm_jax.weights import shapes

VOCAB = 50_257
HUGGING_FACE = 'Hugging Face'

Call = Callable[[], np.ndarray]


def models(variant: str, dtype: Any) -> tuple[Any, Any, Any]:
  """Load our trunk and its parameters, and Hugging Face's model if installed.

  Both have the same weights.
  """
  trunk = gpt.make(vocab_size=VOCAB, variant=variant, execution=Execution(dtype=dtype))
  draw = np.random.default_rng(0)
  flat = {path: draw.normal(0, 0.02, shape).astype(np.float32) for path, shape in shapes.shapes(trunk).items()}
  params: dict[str, Any] = {}
  for path, leaf in flat.items():
    *parents, name = path.split('/')
    node = params
    for parent in parents:
      node = node.setdefault(parent, {})
    node[name] = leaf + 1 if name == 'scale' else leaf
  theirs = None
  try:
    import torch  # noqa: F401
    import transformers

    with tempfile.TemporaryDirectory() as folder:
      weights.save(folder, trunk, params)
      theirs = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=dtype).eval()
    theirs = theirs.to('cuda' if jax.default_backend() == 'gpu' else 'cpu')
  except ImportError:
    print('torch or transformers is missing: no times of Hugging Face')
  return trunk, jax.device_put(params), theirs


def ours(trunk: Any, params: Any, prompts: np.ndarray, new: int, method: str, beams: int) -> Call:
  tokens, segments = jnp.asarray(prompts), jnp.ones(prompts.shape, jnp.int32)
  settings: Any = {'max_new': new, 'method': method, **({'beams': beams} if method == 'beam' else {})}
  return lambda: np.asarray(generate(trunk, params, tokens, segment_ids=segments, **settings).tokens)


def hugging_face(model: Any, prompts: np.ndarray, new: int, method: str, beams: int) -> Call:
  import torch

  tokens = torch.from_numpy(prompts).long().to(model.device)
  settings = {'max_new_tokens': new, 'do_sample': False, 'eos_token_id': None, 'pad_token_id': 0}
  settings |= {'num_beams': beams} if method == 'beam' else {}

  def call() -> np.ndarray:
    with torch.inference_mode():
      made = model.generate(tokens, attention_mask=torch.ones_like(tokens), **settings)
    return made[:, tokens.shape[1] :].cpu().numpy()

  return call


def times(calls: Mapping[str, Call], *, seconds: float, turns: int) -> tuple[dict[str, float], dict[str, np.ndarray]]:
  """Measure the least seconds of each call, and return its result.

  It takes `turns` turns, or those that start within a time limit.
  """
  calls['plm_jax']()  # compiles
  made, least = {}, dict.fromkeys(calls, float('inf'))
  began = time.perf_counter()
  for _ in range(turns):
    for name, call in calls.items():
      start = time.perf_counter()
      made[name] = call()
      least[name] = min(least[name], time.perf_counter() - start)
    if time.perf_counter() - began > seconds:
      break
  return least, made


def bandwidth() -> float:
  """Measure the highest bytes per second of a sum over 256 MB."""
  numbers = jnp.ones(2**26, jnp.float32)
  total = jax.jit(jnp.sum)
  total(numbers).block_until_ready()
  most = 0.0
  for _ in range(10):
    start = time.perf_counter()
    total(numbers).block_until_ready()
    most = max(most, numbers.nbytes / (time.perf_counter() - start))
  return most


def bytes_read(trunk: Any, params: Any, *, rows: int, texts: int, prompt: int, new: int) -> float:
  """Compute the mean bytes that a step must read.

  These are all weights except the table of positions, and the earlier keys and values.
  """
  c = trunk.config
  size = 4 if trunk.execution.dtype == 'float32' else 2
  count = sum(leaf.size for leaf in jax.tree.leaves(params)) - params['position_embed']['table'].size
  slots = prompt + texts * new / 2  # of a row, in the middle of the text
  return size * (count + 2 * rows * c.num_layers * c.hidden_dim * slots)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--variant', default='gpt2')
  parser.add_argument('--dtype', default='float32')
  parser.add_argument('--methods', default='greedy,beam')
  parser.add_argument('--beams', type=int, default=4)
  parser.add_argument('--rows', default='1,8')
  parser.add_argument('--prompt', type=int, default=32)
  parser.add_argument('--lengths', default='64,128,256,512,1024', help='total lengths')
  parser.add_argument('--turns', type=int, default=3, help='timed calls per side')
  parser.add_argument('--seconds', type=float, default=10, help='no further turn of a line after so many')
  parser.add_argument('--out', type=pathlib.Path, help='keeps each line here; a line that it has is not measured again')
  arguments = parser.parse_args()
  malloc.reuse()  # for both sides
  trunk, params, theirs = models(arguments.variant, arguments.dtype)
  draw, lengths = np.random.default_rng(1), [int(length) for length in arguments.lengths.split(',')]
  kept = _kept(arguments.out)
  rate = bandwidth()
  print(f'{arguments.variant}, {arguments.dtype}, {jax.devices()[0].device_kind}; reads {rate / 1e9:.1f} GB/s')
  print(f'{"":<16} length       s  ms/step  tokens/s  times Hugging Face  of bound  same tokens')
  for method in arguments.methods.split(','):
    for rows in map(int, arguments.rows.split(',')):
      texts = arguments.beams if method == 'beam' else 1
      lines = []
      for length in lengths:
        new = length - arguments.prompt
        key = f'{arguments.variant} {arguments.dtype} {method} {texts} {rows} {arguments.prompt} {length}'
        if key not in kept:
          given = draw.integers(0, VOCAB, (rows, arguments.prompt)), new, method, arguments.beams
          calls = {'plm_jax': ours(trunk, params, *given)}
          if theirs is not None:
            calls[HUGGING_FACE] = hugging_face(theirs, *given)
          least, made = times(calls, seconds=arguments.seconds, turns=arguments.turns)
          same = [float((made['plm_jax'] == other).mean()) for name, other in made.items() if name == HUGGING_FACE]
          size = bytes_read(trunk, params, rows=rows, texts=texts, prompt=arguments.prompt, new=new)
          kept[key] = {'key': key, 'seconds': least, 'same': same, 'bound': new * size / rate}
          if arguments.out:
            with arguments.out.open('a') as file:
              file.write(json.dumps(kept[key]) + '\n')
        lines.append(kept[key])
        _show(kept[key], f'{method}{texts if texts > 1 else ""} {rows} row{"s" if rows > 1 else ""}', length, rows, new)
      for name in lines[0]['seconds'] if len(lines) > 1 else ():
        own = np.log([line['seconds'][name] for line in lines])
        exponent = np.polyfit(np.log(np.array(lengths) - arguments.prompt), own, 1)[0]
        print(f'  {name}: time ~ (new tokens)^{exponent:.2f}', flush=True)


def _kept(file: pathlib.Path | None) -> dict[str, Any]:
  """Read the stored lines, by what they measure."""
  there = file.read_text().splitlines() if file and file.exists() else []
  return {line['key']: line for line in map(json.loads, there)}


def _show(line: Mapping[str, Any], what: str, length: int, rows: int, new: int) -> None:
  mine, other = line['seconds']['plm_jax'], line['seconds'].get(HUGGING_FACE)
  ratio, same = (f'{other / mine:.2f}', f'{line["same"][0]:.1%}') if other else ('', '')
  print(
    f'{what:<16} {length:>6} {mine:>7.2f} {mine / new * 1e3:>8.1f} {rows * new / mine:>9.1f} {ratio:>19} '
    f'{line["bound"] / mine:>9.0%} {same:>12}',
    flush=True,
  )


if __name__ == '__main__':
  main()
