"""How fast is skip-gram with negatives? Words a second beside gensim's Word2Vec with one and with two workers.

    python -m benchmarks.word_vectors --data=FOLDER [--words=200000] [--size=30000] [--rounds=3] [--update=rows]
        [--clock=cpu]

FOLDER holds `train.txt` or `train.txt.gz`. Both sides train vectors of 100 on the same words of one vocabulary, those
without an id left out: windows of up to 5, 5 negatives, words of frequency 1e-3 and more left out at random, plain
gradients. Ours moves 8 rows of 128 words at once, from batches that lie ready; gensim moves pair by pair. A round takes
each in turn, so that a busy machine slows all alike; printed are medians, after a warm-up, and their ratios. The clock
'cpu' counts the seconds that the process itself computed, on both cores together, for a machine on which others compute
as well.

Where the time goes, in milliseconds of CPU time, 5,478 ids: of 24 for a step of 1,024 words, preparing the pairs took
5, and most of the rest wrote 24 MB of rows to memory, turned them for a product and scattered their gradient, three
fifths of it for pairs that are none; before `memory.reuse` as much again went to page faults. Now pairs stand first and
are scored in blocks of 256 (`layers/pairs.py`), 5 to 6.5 in all: gather, products and scatter 2.2, derivative of the
softplus .6, the tables around them 1, draws .2. A scatter of 51,200 rows takes 1.8 as it is; sorting their ids alone
takes 18, and one dense product of all rows 93. A choice among compiled lengths (`lax.switch`) took 10 to 12: it
computes twice or keeps all.
"""

import argparse
import functools
import gzip
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from gensim.models import Word2Vec
from rich.console import Console
from rich.table import Table

from plm_jax import optim
from plm_jax.cli import memory
from plm_jax.models import static
from plm_jax.objectives import skipgram
from plm_jax.text import words
from plm_jax.text.tokenizer import Vocab
from plm_jax.training import step

WIDTH, WINDOW, NEGATIVES, SUBSAMPLE, RATE = 100, 5, 5, 1e-3, 0.025
ROWS, LENGTH = 8, 128
NAMES = ('plm_jax', 'gensim, 1 worker', 'gensim, 2 workers')
CLOCKS = {'wall': time.perf_counter, 'cpu': time.process_time}


def read(folder: Path, *, count: int, size: int) -> tuple[Vocab, np.ndarray]:
  """A vocabulary of the text, and the first `count` of its words that have an id, int32[n, rows, length]."""
  file = next((path for path in (folder / 'train.txt', folder / 'train.txt.gz') if path.exists()), None)
  if file is None:
    raise SystemExit(f'--data={folder}: there is no train.txt or train.txt.gz in it')
  with gzip.open(file, 'rt') if file.suffix == '.gz' else open(file) as stream:
    text = stream.read(12 * count)  # letters; more than that many words have
  vocab = words.train([text], size=size, lowercase=True, min_frequency=1)
  ids = np.array(vocab.encode(text), np.int32)
  ids = ids[~np.isin(ids, vocab.special_ids)][:count]
  whole = len(ids) // (ROWS * LENGTH)
  return vocab, ids[: whole * ROWS * LENGTH].reshape(whole, ROWS, LENGTH)


def ours(vocab: Vocab, batches: np.ndarray, *, update: skipgram.Update) -> tuple[Callable[[], None], float]:
  """What trains on all batches once, and the seconds that its step took to compile."""
  trunk = static.make(vocab_size=vocab.size, variant='word2vec', overrides={'hidden_dim': WIDTH})
  task = skipgram.make(trunk=trunk, vocab=vocab, window=WINDOW, negatives=NEGATIVES, subsample=SUBSAMPLE, update=update)
  zeros = jnp.zeros(ROWS, jnp.int32)
  fixed = {'segment_ids': jnp.ones((ROWS, LENGTH), jnp.int32), 'row_weight': jnp.ones(ROWS), 'epoch': zeros}
  rows = [number * ROWS + jnp.arange(ROWS) for number in range(len(batches))]
  made = [{**fixed, 'tokens': jnp.asarray(one), 'row_id': ids} for one, ids in zip(batches, rows, strict=True)]
  spec = {key: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for key, leaf in made[0].items()}
  shapes = step.abstract_params(task, spec)
  tx = optim.make(params=shapes, steps=1_000_000, name='sgd', rate=RATE, schedule='constant')
  key = jax.random.key(0)
  params = jax.jit(lambda key: nn.unbox(step.init_params(task, spec, key)))(key)
  zero = lambda: jnp.zeros((), jnp.int32)  # noqa: E731  a step that takes over its state holds no buffer twice
  state = step.TrainState(zero(), params, tx.init(tx.split(params)[0]), zero(), zero())
  begin = time.perf_counter()
  run = jax.jit(functools.partial(step.train_step, task=task, tx=tx), donate_argnums=0)
  run = run.lower(state, made[0], key).compile()
  seconds = time.perf_counter() - begin
  kept = [state]

  def train() -> None:
    for batch in made:
      kept[0], _ = run(kept[0], batch, key)
    jax.block_until_ready(kept[0])

  return train, seconds


def theirs(vocab: Vocab, batches: np.ndarray, *, workers: int) -> Callable[[], None]:
  """What trains gensim's vectors on the same rows once."""
  names = [vocab.token(number) for number in range(vocab.size)]
  sentences = [[names[one] for one in row] for row in batches.reshape(-1, LENGTH)]
  model = Word2Vec(
    vector_size=WIDTH, window=WINDOW, negative=NEGATIVES, sample=SUBSAMPLE, sg=1, hs=0, min_count=1, workers=workers,
    alpha=RATE, min_alpha=RATE,
  )  # fmt: skip
  model.build_vocab(sentences)

  def train() -> None:
    model.train(sentences, total_words=batches.size, epochs=1)

  return train


def main() -> None:
  """Measures and prints."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', type=Path, required=True, help='a folder with train.txt or train.txt.gz')
  parser.add_argument('--words', type=int, default=200_000, help='words of an epoch')
  parser.add_argument('--size', type=int, default=30_000, help='ids of the vocabulary, at most')
  parser.add_argument('--rounds', type=int, default=3, help='epochs of each side')
  parser.add_argument('--update', choices=('rows', 'tables'), default='rows', help='how our tables are updated')
  parser.add_argument('--clock', choices=CLOCKS, default='wall')
  arguments = parser.parse_args()
  memory.reuse()  # as a run does; without it half of a step is page faults
  clock = CLOCKS[arguments.clock]
  vocab, batches = read(arguments.data, count=arguments.words, size=arguments.size)
  train, seconds = ours(vocab, batches, update=arguments.update)
  sides = [train, *(theirs(vocab, batches, workers=workers) for workers in (1, 2))]
  rates: list[list[float]] = [[], [], []]
  for number in range(arguments.rounds + 1):  # the first one warms up
    for one, found in zip(sides, rates, strict=True):
      begin = clock()
      one()
      found += [batches.size / (clock() - begin)] if number else []
  table = Table(
    title=f'{batches.size:,} words, {vocab.size:,} ids; {arguments.clock} time; our step compiled in {seconds:.1f} s'
  )
  for column in ('', 'words/s', 'lowest', 'highest', 'ours / this'):
    table.add_column(column, justify='left' if not column else 'right')
  medians = [statistics.median(found) for found in rates]
  for name, found, median in zip(NAMES, rates, medians, strict=True):
    numbers = (median, min(found), max(found))
    table.add_row(name, *(f'{number:,.0f}' for number in numbers), f'{medians[0] / median:.3f}')
  Console().print(table)


if __name__ == '__main__':
  main()
