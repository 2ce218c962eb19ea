"""How fast is text corrupted? Tokens a second for each `where` function with 80/10/10, and the parts of a choice.

    python -m benchmarks.noise [--batch=256] [--length=512] [--rounds=5]

CPU seconds are counted, not those of the clock, and the best of the rounds is shown: other work on the machine then
counts for little. Figures are tokens a second of one core; a step on several devices corrupts its own rows on each.
"""

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

VOCAB, SPECIAL = 30_522, 1000


def seconds(run: Callable[..., Any], *args: Any, rounds: int, calls: int = 5) -> float:
  """CPU seconds of one call, compilation left out."""
  import jax

  run = jax.jit(run)
  jax.block_until_ready(run(*args))
  best = float('inf')
  for _ in range(rounds):
    start = time.process_time()
    for _ in range(calls):
      jax.block_until_ready(run(*args))
    best = min(best, (time.process_time() - start) / calls)
  return best


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--batch', type=int, default=256, help='rows')
  parser.add_argument('--length', type=int, default=512, help='tokens of a row')
  parser.add_argument('--rounds', type=int, default=5, help='of which the best counts')
  flags = parser.parse_args()

  import jax
  import jax.numpy as jnp
  import numpy as np

  from plm_jax.noise import edit, spans, where
  from plm_jax.noise.row import Row

  shape = flags.batch, flags.length
  draw = np.random.default_rng(0)
  ids = jnp.asarray(draw.integers(0, VOCAB, shape), jnp.int32)
  words = jnp.asarray((draw.random(shape) < 0.75).cumsum(axis=1), jnp.int32)
  rows = Row(ids, ids >= SPECIAL, jnp.ones(shape, jnp.int32), words)
  keys = jax.random.split(jax.random.key(0), flags.batch)
  scores = jax.random.uniform(jax.random.key(1), shape)

  def corrupt(choose: Callable[..., Any]) -> Callable[..., Any]:
    write = functools.partial(edit.bert_80_10_10, mask_id=103, vocab_size=VOCAB, special_ids=range(SPECIAL))

    def one(key: Any, row: Row) -> Any:
      where_key, edit_key = jax.random.split(key)
      return write(edit_key, row, choose(where_key, row)).ids

    return jax.vmap(one)

  counts = {'counts': 1 + draw.integers(0, 10_000, VOCAB)}
  table: dict[str, float] = {}
  for function, most in {**where.CAPACITY, **spans.CAPACITY}.items():
    if not most(flags.length):
      continue  # one that only inserts
    choose = functools.partial(function, **counts) if function is where.frequency else function
    table[function.__name__] = seconds(corrupt(choose), keys, rows, rounds=flags.rounds)
  count = round(0.15 * flags.length)
  parts = {
    'random bits, 32 a token': seconds(lambda k: jax.vmap(lambda k: jax.random.bits(k, shape[1:]))(k), keys, rounds=5),
    f'top_k of {count}': seconds(lambda x: jax.lax.top_k(x, count), scores, rounds=flags.rounds),
    'sort': seconds(lambda x: jnp.sort(x, axis=1), scores, rounds=flags.rounds),
  }
  print(f'{flags.batch} x {flags.length}\n')
  for name, spent in [*table.items(), *parts.items()]:
    ratio = table['fixed_count'] / spent
    print(f'{name:<24} {ids.size / spent / 1e6:7.1f} M tokens/s a core {ratio:6.2f} of fixed_count')


if __name__ == '__main__':
  main()
