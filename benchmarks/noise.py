"""Measure the speed of text corruption, compared with Hugging Face's collators.

    python -m benchmarks.noise [--batch=256] [--length=512] [--rounds=5] [--parts]

The table has tokens per second of wall time of one process on all its cores, the best of the rounds: the compiled
`prepare` of each objective, which selects tokens, edits and compacts them and builds targets; and, if installed, the
collators of transformers, from lists of ids to a batch. `--parts` adds the where-functions alone, in CPU seconds of one
core. `benchmarks.train_step --noise` measures the cost of corruption within a training step.
"""

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

VOCAB, SPECIAL = 30_522, 1000
SHOWN = (
  'bert', 'whole_word', 'albert', 'spanbert', 'xlnet', 'glm', 'unilm', 'bart_mask', 'bart_delete', 'bart_infill',
  'bart_permute', 'bart_rotate', 'bart', 't5', 'deshuffle', 'ul2',
)  # fmt: skip


def seconds(run: Callable[..., Any], *args: Any, rounds: int, calls: int = 5) -> float:
  """Measure CPU seconds per call without compilation, the best of the rounds."""
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


def make_rows(batch: int, length: int) -> tuple[Any, np.ndarray]:
  """Generate a vocabulary and sequences int32[batch, length].

  The vocabulary has 30,000 words, pieces and a full stop; a sentence has 20 tokens.
  """
  from plm_jax.commands.noise import WordVocab

  vocab = WordVocab(' '.join(f'##w{n}' if n % 4 == 0 else f'w{n}' for n in range(VOCAB)), '.')
  draw = np.random.default_rng(0)
  ids = np.array(vocab.encode(f'w1 ##w4 {" ".join(f"w{n}" for n in range(VOCAB) if n % 4)}'))
  rows = draw.choice(ids, (batch, length))
  rows[draw.random((batch, length)) < 0.05] = vocab.id('.')
  return vocab, rows.astype(np.int32)


def ours(vocab: Any, rows: np.ndarray, *, rounds: int) -> dict[str, float]:
  """Measure seconds per call of `prepare`, by objective.

  The names are those of `inference/noise_examples.py`.
  """
  import jax

  from plm_jax.config import build
  from plm_jax.inference.noise_examples import GALLERY
  from plm_jax.noise.keys import noise_root, with_step

  batch = {
    'tokens': rows,
    'segment_ids': np.ones_like(rows),
    'row_id': np.arange(len(rows), dtype=np.int32),
    'epoch': np.zeros(len(rows), np.int32),
    'row_weight': np.ones(len(rows), np.float32),
  }
  batch, root = jax.device_put(batch), noise_root(jax.random.key(0))
  found = {}
  for show in GALLERY:
    if show.name not in SHOWN:
      continue
    trunk = build.make('models', {'name': show.model, 'variant': 'tiny'}, vocab_size=vocab.size)
    task = build.make('objectives', show.objective, trunk=trunk, vocab=vocab)
    run = functools.partial(
      jax.jit(lambda root, batch, task=task: task.prepare(root, with_step(batch, 0))), root, batch
    )
    found[show.name] = best_wall(lambda run=run: jax.block_until_ready(run()), rounds=rounds)
  return found


def peers(vocab: Any, rows: np.ndarray) -> dict[str, float]:
  """Measure seconds per call of Hugging Face's collators.

  They are by the name of our objective; empty if not installed.
  """
  try:
    import tokenizers
    import transformers
  except ImportError:
    return {}
  model = tokenizers.Tokenizer(tokenizers.models.WordLevel({vocab.token(n): n for n in range(vocab.size)}, '[UNK]'))
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=model,
    unk_token='[UNK]',
    mask_token='[MASK]',
    pad_token='[PAD]',
    cls_token='[CLS]',
    sep_token='[SEP]',
  )
  features = [{'input_ids': row} for row in rows.tolist()]
  collators = {
    'bert': transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
    'xlnet': transformers.DataCollatorForPermutationLanguageModeling(tokenizer),
  }
  return {name: best_wall(lambda run=run: run(features), rounds=2, calls=1) for name, run in collators.items()}


def best_wall(run: Callable[[], Any], *, rounds: int, calls: int = 5) -> float:
  """Measure wall seconds per call, the best of the rounds.

  The first call is not counted.
  """
  run()
  best = float('inf')
  for _ in range(rounds):
    start = time.perf_counter()
    for _ in range(calls):
      run()
    best = min(best, (time.perf_counter() - start) / calls)
  return best


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--batch', type=int, default=256, help='rows')
  parser.add_argument('--length', type=int, default=512, help='tokens per row')
  parser.add_argument('--rounds', type=int, default=5, help='rounds, of which the best counts')
  parser.add_argument('--parts', action='store_true', help='also the where-functions alone')
  flags = parser.parse_args()

  from plm_jax.cli import malloc

  malloc.reuse()  # as training does
  vocab, rows = make_rows(flags.batch, flags.length)
  found, theirs = ours(vocab, rows, rounds=flags.rounds), peers(vocab, rows)
  print(f'{flags.batch} x {flags.length} tokens, one process\n')
  for name, spent in found.items():
    line = f'{name:<16} {rows.size / spent / 1e6:7.2f} M tokens/s'
    if name in theirs:
      line += f'   Hugging Face {rows.size / theirs[name] / 1e6:6.2f} M tokens/s, {theirs[name] / spent:6.1f} times'
    print(line)
  if flags.parts:
    parts(flags)


def parts(flags: argparse.Namespace) -> None:
  """Print tokens per second and core of every where-function.

  With 80/10/10 replacement, and of the parts of a selection.
  """
  import jax
  import jax.numpy as jnp

  from plm_jax.config import build, signatures
  from plm_jax.noise import edit
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

  table: dict[str, float] = {}
  for name in signatures.places('noise.where'):
    choose: Any = build.pick('noise.where', {'name': name}, counts=1 + draw.integers(0, 10_000, VOCAB))
    if build.beside(choose.func, 'CAPACITY')[choose.func](flags.length, **choose.keywords):  # 0 where it only inserts
      table[name] = seconds(corrupt(choose), keys, rows, rounds=flags.rounds)
  count = round(0.15 * flags.length)
  parts = {
    'random bits, 32 per token': seconds(jax.vmap(lambda key: jax.random.bits(key, shape[1:])), keys, rounds=5),
    f'top_k of {count}': seconds(lambda x: jax.lax.top_k(x, count), scores, rounds=flags.rounds),
    'sort': seconds(lambda x: jnp.sort(x, axis=1), scores, rounds=flags.rounds),
  }
  print()
  for name, spent in [*table.items(), *parts.items()]:
    ratio = table['fixed_count'] / spent
    print(f'{name:<24} {ids.size / spent / 1e6:7.1f} M tokens/s per core {ratio:6.2f} of fixed_count')


if __name__ == '__main__':
  main()
