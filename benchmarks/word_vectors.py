"""Measure speed and quality of skip-gram, CBOW and fastText with negative samples, compared with gensim.

    python -m benchmarks.word_vectors --data=FOLDER [--kind=cbow] [--words=200000] [--size=30000] [--rounds=3]
        [--update=rows --batch=8] [--generate=400000] [--shared] [--seeds=3 --epochs=5 [--near=king,good]]

FOLDER holds `train.txt` or `train.txt.gz`. --generate writes it first: words of random letters by Zipf's law, each at
least once. gensim runs with one and with two workers. Both sides train vectors of size 100 on the same words of one
vocabulary, without unknown words: windows of up to 5, 5 negatives of each pair's own, words of frequency 1e-3 and more
subsampled, plain gradients; fastText has 2,000,000 buckets. Our side reads --batch sequences of 128 words per step,
as a run does. Rounds alternate, so that other load slows all equally; medians after a warm-up and their ratios are
printed, by the clock and by the CPU seconds of both cores. Raw words include unknown ones, on which neither side spends
time.

With --seeds both sides are trained again from N seeds for --epochs, at the same constant rate, gensim with one worker.
The same code (`inference/nearest.py`) evaluates both on gensim's test files: questions-words, wordsim353, simlex999,
with the share of each that the vocabulary covers, and prints the nearest words of --near.
"""

import argparse
import dataclasses
import functools
import gzip
import itertools
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from gensim.models import FastText, Word2Vec
from gensim.test.utils import datapath
from rich.console import Console
from rich.table import Table

from plm_jax import optim
from plm_jax.cli import malloc
from plm_jax.inference import nearest
from plm_jax.models import static
from plm_jax.objectives import fasttext, skipgram
from plm_jax.text import words
from plm_jax.text.tokenizer import Vocab
from plm_jax.training import feed, step
from plm_jax.weights.word_vectors import WordVectors

WIDTH, WINDOW, NEGATIVES, SUBSAMPLE, LENGTH, BUCKETS = 100, 5, 5, 1e-3, 128, 2_000_000
RATES = {'skipgram': 0.025, 'cbow': 0.05, 'fasttext': 0.05}  # by kind
NAMES = ('plm_jax', 'gensim, 1 worker', 'gensim, 2 workers')
QUESTIONS, PAIRS = 'questions-words.txt', ('wordsim353.tsv', 'simlex999.txt')  # as gensim names them


class Text(NamedTuple):
  """What both sides train on.

  Attributes:
    vocab: of the words.
    batches: int32[n, rows, length], words that have an id.
    raw: words of the text up to the last of these, those without an id included.
  """

  vocab: Vocab
  batches: np.ndarray
  raw: int


class Side(NamedTuple):
  """One of the two.

  Attributes:
    begin: takes first values from a seed.
    train: on all batches once.
    vectors: of the words, as they are now.
  """

  begin: Callable[[int], None]
  train: Callable[[], None]
  vectors: Callable[[], WordVectors]


def generate(folder: Path, *, count: int, size: int) -> None:
  """Write `count` words of `size` different ones by Zipf's law, in any order."""
  rng = np.random.default_rng(0)
  letters = rng.integers(97, 123, (size, 8), dtype=np.uint8)
  names = [bytes(row[: 2 + number % 7]).decode() + f'{number:x}' for number, row in enumerate(letters)]
  chances = 1 / np.arange(1, size + 1)
  drawn = rng.choice(size, size=max(0, count - size), p=chances / chances.sum())
  order = rng.permutation(np.concatenate([np.arange(size), drawn]))
  folder.mkdir(parents=True, exist_ok=True)
  lines = (' '.join(names[one] for one in row) for row in np.split(order, range(20, len(order), 20)))
  (folder / 'train.txt').write_text('\n'.join(lines))


def read(folder: Path, *, count: int, size: int, rows: int) -> Text:
  """Read a vocabulary, and the first `count` known words of a text."""
  file = next((path for path in (folder / 'train.txt', folder / 'train.txt.gz') if path.exists()), None)
  if file is None:
    raise SystemExit(f'--data={folder}: there is no train.txt or train.txt.gz in it')
  with gzip.open(file, 'rt') if file.suffix == '.gz' else open(file) as stream:
    text = stream.read(12 * count)  # letters; more than that many words have
  vocab = words.train([text], size=size, lowercase=True, min_frequency=1)
  every = np.array(vocab.encode(text), np.int32)
  known = np.flatnonzero(~np.isin(every, vocab.special_ids))[:count]
  known = known[: len(known) // (rows * LENGTH) * rows * LENGTH]
  if not len(known):
    raise SystemExit(f'--data={folder}, --words={count}: a batch takes {rows * LENGTH} words')
  # counts of the words that are trained, from which the other side draws as well
  vocab = dataclasses.replace(vocab, counts=np.bincount(every[known], minlength=vocab.size))
  return Text(vocab, every[known].reshape(-1, rows, LENGTH), int(known[-1]) + 1)


def ours(text: Text, *, kind: str, update: str, shared: bool) -> tuple[Side, float]:
  """Build our side from seed 0.

  Also returns the seconds of compilation.
  """
  vocab, rows = text.vocab, text.batches.shape[1]
  trunk = static.make(vocab_size=vocab.size, variant='word2vec', overrides={'hidden_dim': WIDTH})
  settings = {'window': WINDOW, 'negatives': NEGATIVES, 'subsample': SUBSAMPLE, 'update': update}
  if kind == 'fasttext':
    task = fasttext.make(trunk=trunk, vocab=vocab, power=0.75, buckets=BUCKETS, **settings)
  else:
    task = skipgram.make(trunk=trunk, vocab=vocab, architecture=kind, shared_negatives=shared or None, **settings)
  ones = {'segment_ids': np.ones((rows, LENGTH), np.int32), 'row_weight': np.ones(rows, np.float32)}

  def batches() -> Iterator[dict[str, np.ndarray]]:
    for number, tokens in enumerate(text.batches):
      ids = number * rows + np.arange(rows, dtype=np.int32)
      yield {**ones, 'tokens': tokens, 'row_id': ids, 'epoch': np.zeros(rows, np.int32)}

  spec = {key: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for key, leaf in next(batches()).items()}
  params = step.abstract_params(task, spec)
  tx = optim.make(params=params, steps=1_000_000, name='sgd', rate=RATES[kind], schedule='constant')
  draw = jax.jit(lambda key: nn.unbox(step.init_params(task, spec, key)))
  zero = lambda: jnp.zeros((), jnp.int32)  # noqa: E731  a step that takes over its state holds no buffer twice
  place = jax.sharding.SingleDeviceSharding(jax.devices()[0])

  def first(seed: int) -> dict[str, Any]:
    key = jax.random.key(seed)
    params = draw(key)
    state = step.TrainState(zero(), params, tx.init(tx.split(params)[0]), zero(), zero())
    return {'state': state, 'key': key, 'prepare': feed.prepare_ahead(task, key, first=0)}

  kept = first(0)
  run = jax.jit(functools.partial(step.train_step, task=task, tx=tx), donate_argnums=0)

  def begin(seed: int) -> None:
    kept.clear()  # two states of fastText take gigabytes
    kept.update(first(seed))

  def train(most: int | None = None) -> None:
    for _, batch in feed.to_devices(itertools.islice(batches(), most), place, prepare=kept['prepare']):
      kept['state'], _ = run(kept['state'], batch, kept['key'])
    jax.block_until_ready(kept['state'])

  def vectors() -> WordVectors:
    seen, params = np.unique(text.batches), kept['state'].params
    if kind == 'fasttext':
      table = fasttext.word_table(params, vocab, buckets=BUCKETS).vectors
    else:
      table = np.asarray(params['trunk']['token_embed']['table'])
    return WordVectors(tuple(vocab.token(int(number)) for number in seen), table[seen])

  begun = time.perf_counter()
  train(1)
  return Side(begin, train, vectors), time.perf_counter() - begun


def theirs(text: Text, *, kind: str, workers: int) -> Side:
  """Build gensim's side on the same sequences, from seed 0."""
  names = [text.vocab.token(number) for number in range(text.vocab.size)]
  sentences = [[names[one] for one in row] for row in text.batches.reshape(-1, LENGTH)]
  kept: list[Word2Vec] = []
  make = functools.partial(FastText, bucket=BUCKETS) if kind == 'fasttext' else Word2Vec

  def begin(seed: int) -> None:
    kept.clear()
    model = make(
      vector_size=WIDTH, window=WINDOW, negative=NEGATIVES, sample=SUBSAMPLE, sg=kind != 'cbow', hs=0, min_count=1,
      workers=workers, alpha=RATES[kind], min_alpha=RATES[kind], seed=seed + 1,
    )  # fmt: skip
    model.build_vocab(sentences)
    kept[:] = [model]

  def train() -> None:
    kept[0].train(sentences, total_words=text.batches.size, epochs=1)

  begin(0)
  return Side(begin, train, lambda: WordVectors(tuple(kept[0].wv.index_to_key), np.array(kept[0].wv.vectors)))


def speed(text: Text, sides: Sequence[Side], *, kind: str, rounds: int, compiled: float) -> Table:
  """Measure words per second of each side, by the clock and by CPU time."""
  rates: list[list[tuple[float, float]]] = [[] for _ in sides]
  for number in range(rounds + 1):  # the first one warms up
    for one, found in zip(sides, rates, strict=True):
      begun = time.perf_counter(), time.process_time()
      one.train()
      spent = time.perf_counter() - begun[0], time.process_time() - begun[1]
      found += [(text.batches.size / spent[0], text.batches.size / spent[1])] if number else []
  table = Table(
    title=f'{kind}: {text.batches.size:,} words of {text.raw:,}, {text.vocab.size:,} ids; our step compiled in '
    f'{compiled:.1f} s; {platform.processor() or platform.machine()}, {os.cpu_count()} cores, load '
    f'{os.getloadavg()[0]:.1f}'
  )
  for column in ('', 'words/s', 'lowest', 'highest', 'ours / this', 'words/CPU s', 'ours / this'):
    table.add_column(column, justify='left' if not column else 'right')
  clock, cpu = ([statistics.median(rate[which] for rate in found) for found in rates] for which in (0, 1))
  for name, found, wall, own in zip(NAMES, rates, clock, cpu, strict=False):
    by_clock = [rate[0] for rate in found]
    cells = [f'{number:,.0f}' for number in (wall, min(by_clock), max(by_clock))]
    table.add_row(name, *cells, f'{clock[0] / wall:.2f}', f'{own:,.0f}', f'{cpu[0] / own:.2f}')
  return table


def scores(vectors: WordVectors) -> dict[str, tuple[float, int, int]]:
  """Score vectors by test file.

  A score is accuracy or Spearman's correlation, with the numbers of known and of all questions.
  """
  table = nearest.Table(vectors)
  shares = nearest.answer(table, datapath(QUESTIONS)).values()
  right, known, every = (sum(numbers) for numbers in zip(*shares, strict=True))
  found = {QUESTIONS: (right / known if known else float('nan'), known, every)}
  for name in PAIRS:
    spearman, *counts = nearest.agree(table, datapath(name))
    found[name] = (float('nan') if spearman is None else spearman, *counts)
  return found


def quality(sides: Sequence[Side], *, seeds: int, epochs: int, near: Sequence[str]) -> list[Table]:
  """Train both sides and print scores and nearest words.

  The nearest words are those of the first seed.
  """
  scored = Table(title=f'{epochs} epochs, {seeds} seeds: mean (lowest to highest)')
  for column in ('', 'known', *NAMES[: len(sides)]):
    scored.add_column(column, justify='left' if not column else 'right')
  neighbours = Table('word', *NAMES[: len(sides)], title='nearest words, first seed')
  found: list[list[dict[str, tuple[float, int, int]]]] = []
  nearby: list[nearest.Table] = []
  for side in sides:
    found.append([])
    for seed in range(seeds):
      side.begin(seed)
      for _ in range(epochs):
        side.train()
      found[-1].append(scores(side.vectors()))
      nearby += [nearest.Table(side.vectors())] if not seed else []
  for name, (_, known, every) in found[0][0].items():
    values = [[one[name][0] for one in own] for own in found]
    cells = [f'{statistics.fmean(own):.3f} ({min(own):.3f} to {max(own):.3f})' for own in values]
    scored.add_row(name, f'{known:,} of {every:,}', *cells)
  for word in near:
    lists = [', '.join(one.word for one in table.neighbours(word, top=5)) if word in table else '-' for table in nearby]
    neighbours.add_row(word, *lists)
  return [scored, neighbours]


def main() -> None:
  """Measure and print."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', type=Path, required=True, help='a folder with train.txt or train.txt.gz')
  parser.add_argument('--words', type=int, default=200_000, help='words of an epoch')
  parser.add_argument('--size', type=int, default=30_000, help='ids of the vocabulary, at most')
  parser.add_argument('--rounds', type=int, default=3, help='epochs of each side that are timed')
  parser.add_argument('--kind', choices=RATES, default='skipgram')
  parser.add_argument('--update', choices=('in_order', 'rows', 'tables'), default='in_order', help='of our tables')
  parser.add_argument('--shared', action='store_true', help='our negatives are per centre, of skip-gram in order')
  parser.add_argument('--batch', type=int, default=128, help='sequences of 128 words per step; 8 for other updates')
  parser.add_argument('--generate', type=int, default=0, help='different words of a text that is written first')
  parser.add_argument(
    '--seeds', type=int, default=0, help='of the comparison of quality; 0, the default, leaves it out'
  )
  parser.add_argument('--epochs', type=int, default=5, help='of each seed')
  parser.add_argument('--near', default='king,good,water,house', help='words whose nearest ones are printed')
  arguments = parser.parse_args()
  malloc.reuse()  # as a run does; without it half of a step is page faults
  if arguments.generate and not (arguments.data / 'train.txt').exists():
    generate(arguments.data, count=arguments.words, size=arguments.generate)
  size = max(arguments.size, arguments.generate + 10)
  text = read(arguments.data, count=arguments.words, size=size, rows=arguments.batch)
  side, compiled = ours(text, kind=arguments.kind, update=arguments.update, shared=arguments.shared)
  sides = [side, *(theirs(text, kind=arguments.kind, workers=workers) for workers in (1, 2))]
  Console().print(speed(text, sides, kind=arguments.kind, rounds=arguments.rounds, compiled=compiled))
  if arguments.seeds:
    compared = quality(sides[:2], seeds=arguments.seeds, epochs=arguments.epochs, near=arguments.near.split(','))
    Console().print(*compared, sep='\n')


if __name__ == '__main__':
  main()
