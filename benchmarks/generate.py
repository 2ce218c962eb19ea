"""How fast is generation? GPT-2-small, greedy, with a key-value cache, compared with Hugging Face on the same weights.

    python -m benchmarks.generate [--variant=gpt2] [--rows=1,8] [--prompt=32] [--new=64] [--lengths=128,256,512,1024]

The first table has tokens per second of whole calls, reading the prompt included. Times are medians of calls that
alternate between the two sides, so that a busy machine slows both alike; compilation is not counted. The second table
has the time of one row for several total lengths, and the exponent a of time = c * length^a: 1 is linear, 2 is the
least without a cache. No token ends a text, so both sides make the same number of tokens; the table says whether they
are the same. Without torch and transformers only our rows are printed.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from plm_jax import weights
from plm_jax.cli import memory
from plm_jax.generate import generate
from plm_jax.models import gpt
from plm_jax.types import Execution
from plm_jax.weights import shapes

VOCAB = 50_257

Call = Callable[[], np.ndarray]


def models(variant: str, dtype: str) -> tuple[Any, Any, Any]:
  """Our trunk, its parameters on the device, and the model of Hugging Face with the same weights, if installed."""
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
    print('torch or transformers is missing: no rows of Hugging Face')
  return trunk, jax.device_put(params), theirs


def ours(trunk: Any, params: Any, prompts: np.ndarray, new: int) -> Call:
  tokens, segments = jnp.asarray(prompts), jnp.ones(prompts.shape, jnp.int32)
  return lambda: np.asarray(generate(trunk, params, tokens, segment_ids=segments, max_new=new).tokens)


def hugging_face(model: Any, prompts: np.ndarray, new: int) -> Call:
  import torch

  tokens = torch.from_numpy(prompts).long().to(model.device)
  settings = {'max_new_tokens': new, 'do_sample': False, 'eos_token_id': None, 'pad_token_id': 0}

  def call() -> np.ndarray:
    with torch.inference_mode():
      made = model.generate(tokens, attention_mask=torch.ones_like(tokens), **settings)
    return made[:, tokens.shape[1] :].cpu().numpy()

  return call


def times(calls: Mapping[str, Call], *, turns: int) -> tuple[dict[str, list[float]], dict[str, np.ndarray]]:
  """Seconds of each call, alternating between the calls after one that is not timed, and what each made."""
  made = {name: call() for name, call in calls.items()}
  seconds: dict[str, list[float]] = {name: [] for name in calls}
  for _ in range(turns):
    for name, call in calls.items():
      began = time.perf_counter()
      call()
      seconds[name].append(time.perf_counter() - began)
  return seconds, made


def agreement(made: Mapping[str, np.ndarray]) -> str:
  """The share of tokens that are the same on both sides."""
  first, *others = made.values()
  return ', '.join(f'{(first == other).mean():.1%}' for other in others)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--variant', default='gpt2')
  parser.add_argument('--dtype', default='float32')
  parser.add_argument('--rows', default='1,8')
  parser.add_argument('--prompt', type=int, default=32)
  parser.add_argument('--new', type=int, default=64, help='tokens to make, for the first table')
  parser.add_argument('--lengths', default='128,256,512,1024', help='total lengths, for the second table')
  parser.add_argument('--turns', type=int, default=5, help='timed calls per side')
  arguments = parser.parse_args()
  memory.reuse()  # for both sides
  trunk, params, theirs = models(arguments.variant, arguments.dtype)
  draw = np.random.default_rng(1)

  def calls(rows: int, new: int) -> dict[str, Call]:
    prompts = draw.integers(0, VOCAB, (rows, arguments.prompt))
    sides = {'plm_jax': ours(trunk, params, prompts, new)}
    return sides if theirs is None else sides | {'Hugging Face': hugging_face(theirs, prompts, new)}

  console, device = Console(width=130), jax.devices()[0].device_kind
  what = f'{arguments.variant}, {arguments.dtype}, {device}, prompts of {arguments.prompt} tokens'
  table = Table(title=f'{what}, {arguments.new} new')
  for column in ('side', 'rows', 's', 'ms per step', 'tokens/s', 'times Hugging Face', 'same tokens'):
    table.add_column(column, justify='left' if column == 'side' else 'right')
  for rows in map(int, arguments.rows.split(',')):
    seconds, made = times(calls(rows, arguments.new), turns=arguments.turns)
    for name, own in seconds.items():
      median = statistics.median(own)
      ratios = [b / a for a, b in zip(own, seconds.get('Hugging Face', []), strict=False)]
      table.add_row(
        name,
        str(rows),
        f'{median:.2f}',
        f'{median / arguments.new * 1e3:.1f}',
        f'{rows * arguments.new / median:.1f}',
        f'{statistics.median(ratios):.2f}' if ratios else '',
        agreement(made) if name == 'plm_jax' else '',
      )
  console.print(table)

  lengths = [int(length) for length in arguments.lengths.split(',')]
  table = Table(title=f'{what}, one row, time by total length')
  for column in ('length', 'plm_jax s', 'ms per token', 'Hugging Face s', 'times Hugging Face'):
    table.add_column(column, justify='right')
  curve: dict[str, list[float]] = {}
  for length in lengths:
    new = length - arguments.prompt
    seconds, _ = times(calls(1, new), turns=max(1, arguments.turns // 2))
    medians = {name: statistics.median(own) for name, own in seconds.items()}
    for name, median in medians.items():
      curve.setdefault(name, []).append(median)
    mine, other = medians['plm_jax'], medians.get('Hugging Face')
    table.add_row(
      str(length),
      f'{mine:.2f}',
      f'{mine / new * 1e3:.1f}',
      f'{other:.2f}' if other else '',
      f'{other / mine:.2f}' if other else '',
    )
  console.print(table)
  if len(lengths) > 1:
    made_tokens = np.log(np.array(lengths) - arguments.prompt)
    for name, own in curve.items():
      print(f'{name}: time ~ (new tokens)^{np.polyfit(made_tokens, np.log(own), 1)[0]:.2f}')


if __name__ == '__main__':
  main()
