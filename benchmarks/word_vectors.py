"""Measure speed and quality of skip-gram with negative sampling, compared with gensim.

    python -m benchmarks.word_vectors --data=FOLDER [--words=200000] [--size=30000] [--rounds=3] [--update=rows]
        [--clock=cpu] [--seeds=3 --epochs=5 [--near=king,good]]

FOLDER holds `train.txt` or `train.txt.gz`. gensim's Word2Vec runs with one and with two workers. Both sides train
vectors of size 100 on the same words of one vocabulary, without unknown words: windows of up to 5, 5 negatives, words
of frequency 1e-3 and more subsampled, plain gradients. Our side updates 8 sequences of 128 words at once, from prepared
batches; gensim updates pair by pair. Rounds alternate, so that other load slows all equally; medians after a warm-up
and their ratios are printed. Raw words include unknown ones, on which neither side spends time. Negatives are sampled
per pair on both sides: no objective here shares them among pairs. The clock 'cpu' counts CPU seconds of the process on
both cores, for a machine with other load.

With --seeds both sides are trained again from N seeds for --epochs, at the same constant rate, gensim with one worker.
The same code (`inference/nearest.py`) evaluates both on gensim's test files: questions-words, wordsim353, simlex999,
with the share of each that the vocabulary covers, and prints the nearest words of --near.

CPU time in milliseconds, with 5,478 ids: of 24 for a step of 1,024 words, preparing the pairs took 5. Most of the rest
wrote 24 MB of rows to memory, transposed them for a product and scattered their gradient, three fifths of it for
invalid pairs. Before `memory.reuse` as much again went to page faults. Now valid pairs come first and are scored in
blocks of 256 (`layers/table_products.py`), 5 to 6.5 in total: gather, products and scatter 2.2, derivative of the
softplus .6, the tables around them 1, sampling .2. A scatter of 51,200 rows takes 1.8; sorting their ids takes 18, and
one dense product of all rows 93. A choice among compiled lengths (`lax.switch`) took 10 to 12: it computes twice or
keeps everything.
"""

import argparse
import dataclasses
import functools
import gzip
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from gensim.models import Word2Vec
from gensim.test.utils import datapath
from rich.console import Console
from rich.table import Table

from plm_jax import optim
from plm_jax.cli import malloc
from plm_jax.inference import nearest
from plm_jax.models import static
from plm_jax.objectives import skipgram
from plm_jax.text import words
from plm_jax.text.tokenizer import Vocab
from plm_jax.training import step
from plm_jax.weights.word_vectors import WordVectors

WIDTH, WINDOW, NEGATIVES, SUBSAMPLE, RATE = 100, 5, 5, 1e-3, 0.025
ROWS, LENGTH = 8, 128
NAMES = ('plm_jax', 'gensim, 1 worker', 'gensim, 2 workers')
CLOCKS = {'wall': time.perf_counter, 'cpu': time.process_time}
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


def read(folder: Path, *, count: int, size: int) -> Text:
  """Read a vocabulary, and the first `count` known words of a text."""
  file = next((path for path in (folder / 'train.txt', folder / 'train.txt.gz') if path.exists()), None)
  if file is None:
    raise SystemExit(f'--data={folder}: there is no train.txt or train.txt.gz in it')
  with gzip.open(file, 'rt') if file.suffix == '.gz' else open(file) as stream:
    text = stream.read(12 * count)  # letters; more than that many words have
  vocab = words.train([text], size=size, lowercase=True, min_frequency=1)
  every = np.array(vocab.encode(text), np.int32)
  known = np.flatnonzero(~np.isin(every, vocab.special_ids))[:count]
  known = known[: len(known) // (ROWS * LENGTH) * ROWS * LENGTH]
  if not len(known):
    raise SystemExit(f'--data={folder}, --words={count}: a batch takes {ROWS * LENGTH} words')
  # counts of the words that are trained, from which the other side draws as well
  vocab = dataclasses.replace(vocab, counts=np.bincount(every[known], minlength=vocab.size))
  return Text(vocab, every[known].reshape(-1, ROWS, LENGTH), int(known[-1]) + 1)


def ours(text: Text, *, update: skipgram.Update) -> tuple[Side, float]:
  """Build our side from seed 0.

  Also returns the seconds of compilation.
  """
  vocab = text.vocab
  trunk = static.make(vocab_size=vocab.size, variant='word2vec', overrides={'hidden_dim': WIDTH})
  task = skipgram.make(trunk=trunk, vocab=vocab, window=WINDOW, negatives=NEGATIVES, subsample=SUBSAMPLE, update=update)
  zeros = jnp.zeros(ROWS, jnp.int32)
  fixed = {'segment_ids': jnp.ones((ROWS, LENGTH), jnp.int32), 'row_weight': jnp.ones(ROWS), 'epoch': zeros}
  rows = [number * ROWS + jnp.arange(ROWS) for number in range(len(text.batches))]
  made = [{**fixed, 'tokens': jnp.asarray(one), 'row_id': ids} for one, ids in zip(text.batches, rows, strict=True)]
  spec = {key: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for key, leaf in made[0].items()}
  tx = optim.make(params=step.abstract_params(task, spec), steps=1_000_000, name='sgd', rate=RATE, schedule='constant')
  draw = jax.jit(lambda key: nn.unbox(step.init_params(task, spec, key)))
  zero = lambda: jnp.zeros((), jnp.int32)  # noqa: E731  a step that takes over its state holds no buffer twice

  def first(seed: int) -> tuple[step.TrainState, jax.Array]:
    key = jax.random.key(seed)
    params = draw(key)
    return step.TrainState(zero(), params, tx.init(tx.split(params)[0]), zero(), zero()), key

  kept = [first(0)]
  begun = time.perf_counter()
  run = jax.jit(functools.partial(step.train_step, task=task, tx=tx), donate_argnums=0)
  run = run.lower(kept[0][0], made[0], kept[0][1]).compile()
  seconds = time.perf_counter() - begun

  def begin(seed: int) -> None:
    kept[0] = first(seed)

  def train() -> None:
    state, key = kept[0]
    for batch in made:
      state, _ = run(state, batch, key)
    kept[0] = (jax.block_until_ready(state), key)

  def vectors() -> WordVectors:
    seen = np.unique(text.batches)
    table = np.asarray(kept[0][0].params['trunk']['token_embed']['table'])
    return WordVectors(tuple(vocab.token(int(number)) for number in seen), table[seen])

  return Side(begin, train, vectors), seconds


def theirs(text: Text, *, workers: int) -> Side:
  """Build gensim's side on the same sequences, from seed 0."""
  names = [text.vocab.token(number) for number in range(text.vocab.size)]
  sentences = [[names[one] for one in row] for row in text.batches.reshape(-1, LENGTH)]
  kept: list[Word2Vec] = []

  def begin(seed: int) -> None:
    model = Word2Vec(
      vector_size=WIDTH, window=WINDOW, negative=NEGATIVES, sample=SUBSAMPLE, sg=1, hs=0, min_count=1, workers=workers,
      alpha=RATE, min_alpha=RATE, seed=seed + 1,
    )  # fmt: skip
    model.build_vocab(sentences)
    kept[:] = [model]

  def train() -> None:
    kept[0].train(sentences, total_words=text.batches.size, epochs=1)

  begin(0)
  return Side(begin, train, lambda: WordVectors(tuple(kept[0].wv.index_to_key), np.array(kept[0].wv.vectors)))


def speed(text: Text, sides: Sequence[Side], *, rounds: int, clock: str, compiled: float) -> Table:
  """Measure words per second of each side."""
  now = CLOCKS[clock]
  rates: list[list[float]] = [[] for _ in sides]
  for number in range(rounds + 1):  # the first one warms up
    for one, found in zip(sides, rates, strict=True):
      begun = now()
      one.train()
      found += [text.batches.size / (now() - begun)] if number else []
  table = Table(
    title=f'{text.batches.size:,} words of {text.raw:,}, {text.vocab.size:,} ids; {clock} time; our step compiled in '
    f'{compiled:.1f} s'
  )
  for column in ('', 'words/s', 'lowest', 'highest', 'raw words/s', 'ours / this'):
    table.add_column(column, justify='left' if not column else 'right')
  medians = [statistics.median(found) for found in rates]
  for name, found, median in zip(NAMES, rates, medians, strict=True):
    numbers = (median, min(found), max(found), median * text.raw / text.batches.size)
    table.add_row(name, *(f'{number:,.0f}' for number in numbers), f'{medians[0] / median:.3f}')
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
  parser.add_argument('--update', choices=('rows', 'tables'), default='rows', help='how our tables are updated')
  parser.add_argument('--clock', choices=CLOCKS, default='wall')
  parser.add_argument(
    '--seeds', type=int, default=0, help='of the comparison of quality; 0, the default, leaves it out'
  )
  parser.add_argument('--epochs', type=int, default=5, help='of each seed')
  parser.add_argument('--near', default='king,good,water,house', help='words whose nearest ones are printed')
  arguments = parser.parse_args()
  malloc.reuse()  # as a run does; without it half of a step is page faults
  text = read(arguments.data, count=arguments.words, size=arguments.size)
  side, compiled = ours(text, update=arguments.update)
  sides = [side, *(theirs(text, workers=workers) for workers in (1, 2))]
  Console().print(speed(text, sides, rounds=arguments.rounds, clock=arguments.clock, compiled=compiled))
  if arguments.seeds:
    compared = quality(sides[:2], seeds=arguments.seeds, epochs=arguments.epochs, near=arguments.near.split(','))
    Console().print(*compared, sep='\n')


if __name__ == '__main__':
  main()
