"""Measure how fast data is read: tokens per second by layout and packer, resuming, and tokenizing.

    python benchmarks/data.py [--source=pydocs] [--batch=256] [--length=512]

Without a source, text is generated: words with Zipf's frequencies in documents of log-normal length. All figures count
tokens of text without padding. The other packers get the same token ids as lists and return numpy batches of the same
shape, without shuffling: `group_texts` joins and cuts documents like Hugging Face's run_clm.py (no segment ids), and
two packers are Grain's. Figures are medians of alternating rounds, so that other load slows all equally. Batches come
from the page cache.
"""

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

LAYOUTS = ('stream', 'documents', 'rows', 'full')


def generate(path: Path, characters: int) -> None:
  """Write about N characters, with a blank line between documents."""
  import numpy as np

  draw = np.random.default_rng(0)
  letters = np.array(list('etaoinshrdlcumwfgypbvk'))
  words = np.array([''.join(draw.choice(letters, draw.integers(1, 10))) for _ in range(20_000)])
  frequency = 1 / np.arange(1, len(words) + 1)
  with open(path, 'w') as file:
    while file.tell() < characters:
      sizes = np.maximum(draw.lognormal(5.5, 1, 1000).astype(int), 2)
      text = words[draw.choice(len(words), sizes.sum(), p=frequency / frequency.sum())]
      for document in np.split(text, np.cumsum(sizes)[:-1]):
        file.write(' '.join(document.tolist()) + '\n\n')


def group_texts(documents: Sequence[list[int]], end: int, *, length: int, batch: int) -> Iterator[Any]:
  """Join and cut a thousand documents at a time, like run_clm.py."""
  import numpy as np

  rows: list[list[int]] = []
  for start in itertools.cycle(range(0, len(documents), 1000)):
    joined = list(itertools.chain(*([*document, end] for document in documents[start : start + 1000])))
    rows += [joined[i : i + length] for i in range(0, len(joined) // length * length, length)]
    while len(rows) >= batch:
      yield np.array(rows[:batch], np.int32)
      rows = rows[batch:]


def grain_packer(documents: Sequence[list[int]], end: int, *, length: int, batch: int, fit: bool) -> Iterator[Any]:
  """Pack by Grain.

  It is either first fit of uncut pieces, or joining and cutting.
  """
  import grain
  import numpy as np

  pieces = [{'tokens': np.array([*document, end][:length], np.int32)} for document in documents]
  data = grain.MapDataset.source(pieces).repeat().to_iter_dataset()
  if fit:
    packed = grain.experimental.FirstFitPackIterDataset(data, length_struct={'tokens': length}, num_packing_bins=64)
  else:
    packed = grain.experimental.ConcatThenSplitIterDataset(data, length_struct={'tokens': length})
  for rows in packed.batch(batch):
    yield rows['tokens']


def rate(batches: Iterator[Any], *, pad: int, seconds: float) -> float:
  """Measure tokens of text per second, without the first batch."""
  import numpy as np

  next(batches)
  tokens, start = 0, time.perf_counter()
  while (spent := time.perf_counter() - start) < seconds:
    batch = next(batches)
    tokens += int(np.count_nonzero(batch['segment_ids'] if isinstance(batch, dict) else batch != pad))
  return tokens / spent


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--source', help='a path as data.path takes it; generated text otherwise')
  parser.add_argument('--vocab', help='a WordPiece vocabulary; otherwise one of 4,000 pieces is trained on a part')
  parser.add_argument('--batch', type=int, default=256, help='rows a batch')
  parser.add_argument('--length', type=int, default=512, help='tokens a row')
  parser.add_argument('--characters', type=int, default=20_000_000, help='of generated text')
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--seconds', type=float, default=1.5, help='of each measurement in a round')
  parser.add_argument('--cache', help='folder for stores; a temporary one otherwise')
  arguments = parser.parse_args()
  with tempfile.TemporaryDirectory() as temporary:
    measure(arguments, cache=arguments.cache or temporary, temporary=Path(temporary))


def measure(arguments: argparse.Namespace, *, cache: str, temporary: Path) -> None:
  import numpy as np
  from rich.console import Console
  from rich.table import Table

  from plm_jax.data import stream
  from plm_jax.data.corpora import sources
  from plm_jax.data.rows import store
  from plm_jax.text import wordpiece

  path = arguments.source
  if path is None:
    path = str(temporary / 'train.txt')
    generate(Path(path), arguments.characters)
  texts = sources.documents(path, cache=cache)
  part = [texts[index] for index in range(min(len(texts), 1000))]
  vocab = wordpiece.make(path=arguments.vocab) if arguments.vocab else wordpiece.train(part, size=4000)

  vocab.encode_batch(part[:2])
  wall, work = time.perf_counter(), time.process_time()
  count = sum(map(len, vocab.encode_batch(part)))
  wall, work = time.perf_counter() - wall, time.process_time() - work

  shape: dict[str, Any] = {'batch_size': arguments.batch, 'length': arguments.length}
  first: dict[str, Callable[[], Iterator[Any]]] = {}
  opened, resumed = {}, {}
  for layout in LAYOUTS:
    made = stream.make(vocab=vocab, path=path, layout=layout, seed=0, cache=cache, **shape)
    start = time.perf_counter()
    made = stream.make(vocab=vocab, path=path, layout=layout, seed=0, cache=cache, **shape)
    opened[layout] = time.perf_counter() - start
    start = time.perf_counter()
    next(iter(made.read(1_000_000)))
    resumed[layout] = time.perf_counter() - start
    first[layout] = lambda made=made: made.read(0)

  tokens = store.on_disk(texts, vocab=vocab, cache=cache)
  some = [tokens.ids[a:b].tolist() for a, b in itertools.islice(itertools.pairwise(tokens.offsets), 5000)]
  end, sizes = vocab.sep_id, {'length': arguments.length, 'batch': arguments.batch}
  first['group_texts'] = lambda: group_texts(some, end, **sizes)
  first['grain concat-then-split'] = lambda: grain_packer(some, end, fit=False, **sizes)
  first['grain first-fit'] = lambda: grain_packer(some, end, fit=True, **sizes)
  rates: dict[str, list[float]] = {name: [] for name in first}
  for _ in range(arguments.rounds):
    for name, begin in first.items():
      rates[name].append(rate(begin(), pad=vocab.pad_id, seconds=arguments.seconds))
  middle = {name: statistics.median(found) for name, found in rates.items()}

  console = Console()
  table = Table('packing', 'M tokens/s', 'ratio', 'open again, ms', 'to step 1,000,000, ms')
  peer = {'stream': 'group_texts', 'documents': 'grain first-fit'}
  for name in first:
    ours = name in LAYOUTS
    table.add_row(
      name,
      f'{middle[name] / 1e6:.2f}',
      f'{middle[name] / middle[peer[name]]:.1f} x {peer[name]}' if name in peer else '',
      f'{1e3 * opened[name]:.0f}' if ours else '',
      f'{1e3 * resumed[name]:.0f}' if ours else '',
    )
  console.print(
    f'batches of {arguments.batch} x {arguments.length}; {len(tokens.ids):,} tokens in {len(texts):,} documents'
  )
  console.print(table)
  console.print(
    f'tokenising (WordPiece, {vocab.size} pieces): {count / wall / 1e6:.2f} M tokens/s, '
    f'{count / work / 1e6:.2f} M a second of one core; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, '
    f'numpy {np.__version__}'
  )


if __name__ == '__main__':
  main()
