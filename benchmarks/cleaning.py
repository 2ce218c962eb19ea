"""Time the passes that clean a corpus, here and in datatrove.

    python3 -m venv .venv-cleaning && .venv-cleaning/bin/pip install -r requirements/cleaning.txt
    python -m benchmarks.cleaning --text=FILE [--megabytes=3] [--python=.venv-cleaning/bin/python]

FILE is plain text with empty lines between documents. Every pass is one process that has the documents in memory, and
is timed by its CPU seconds, without imports. datatrove reads every tenth document, and its steps of a pass run one
after another. "left out" counts documents; rules of the two differ a little (docs/decisions/0108).
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

Pass = tuple[str, Callable[[], int]]  # its name, and what runs it and counts the documents that it leaves out


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('--text', required=True, metavar='FILE')
  parser.add_argument('--megabytes', type=float, default=3.0)
  parser.add_argument('--python', default='.venv-cleaning/bin/python', help='of the environment with datatrove')
  parser.add_argument('--theirs', action='store_true', help=argparse.SUPPRESS)
  flags = parser.parse_args()
  documents = _documents(flags)
  if flags.theirs:
    print(json.dumps(times(theirs, documents[::10])))
    return
  words = [flags.python, __file__, '--theirs', f'--text={flags.text}', f'--megabytes={flags.megabytes}']
  there = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
  here = times(ours, documents)
  print('| pass | here, MB/s | left out | datatrove, MB/s | left out | ratio |\n|---|---|---|---|---|---|')
  for name in {**here, **there}:
    cells = [side.get(name, (None, None)) for side in (here, there)]
    ratio = f'{cells[0][0] / cells[1][0]:.1f}' if cells[0][0] and cells[1][0] else ''
    shown = [f'{speed:.2f} | {count:.1%}' if speed else ' | ' for speed, count in cells]
    print(f'| {name} | {" | ".join(shown)} | {ratio} |')


def _documents(flags: argparse.Namespace) -> list[str]:
  documents, size = [], 0.0
  for text in pathlib.Path(flags.text).read_text().split('\n\n'):
    documents.append(text)
    size += len(text.encode()) / 1e6
    if size > flags.megabytes:
      break
  return documents


def times(passes: Callable[[list[str]], Iterator[Pass]], documents: list[str]) -> dict[str, tuple[float, float]]:
  """Return megabytes a second of CPU time, and the share of documents that are left out, by pass."""
  found, size = {}, sum(len(text.encode()) for text in documents) / 1e6
  for name, run in passes(documents):
    start = time.process_time()
    count = run()
    seconds = time.process_time() - start
    found[name] = size / seconds, count / len(documents)
  return found


def ours(documents: list[str]) -> Iterator[Pass]:
  import sqlite3

  from plm_jax.data.corpora.cleaning import contamination, copies, quality

  yield 'Gopher', lambda: sum(bool(quality.gopher(text)[1]) for text in documents)
  yield 'C4', lambda: sum(bool(quality.c4(text)[1]) for text in documents)
  for name, threshold in (('exact copies', None), ('MinHash', 0.8)):
    seen = copies.Copies(sqlite3.connect(':memory:'), threshold=threshold)
    yield name, lambda seen=seen: sum(seen.seen(i, text) is not None for i, text in enumerate(documents))
  with tempfile.TemporaryDirectory() as folder:
    rows = ''.join(json.dumps({'text': text[500:900]}) + '\n' for text in documents[::10])
    pathlib.Path(folder, 'test.jsonl').write_text(rows)
    sets = contamination.Sets([f'{folder}:test'])
  yield 'evaluation sets', lambda: sum(bool(sets.inside(text)) for text in documents)


def theirs(documents: list[str]) -> Iterator[Pass]:
  from datatrove.data import Document
  from datatrove.pipeline import dedup, filters
  from datatrove.utils.text import split_into_words
  from loguru import logger

  logger.remove()
  split_into_words('warm up', 'eng')
  blocks = {
    'Gopher': (filters.GopherQualityFilter(), filters.GopherRepetitionFilter()),
    'C4': (filters.C4QualityFilter(min_num_sentences=3, min_words_per_line=5),),
    'FineWeb': (filters.FineWebQualityFilter(),),
  }

  def made() -> list[Document]:
    return [Document(text=text, id=str(index)) for index, text in enumerate(documents)]

  def refused(several: tuple) -> int:
    return sum(not all(block.filter(document) is True for block in several) for document in made())

  for name, several in blocks.items():
    yield name, lambda several=several: refused(several)
  with tempfile.TemporaryDirectory() as folder:
    exact = dedup.ExactDedupConfig(content_getter=lambda document: document.text)
    minhash = dedup.MinhashConfig(n_grams=5)
    spans = dedup.SentDedupConfig(n_sentences=3, min_doc_words=0)
    buckets = [
      dedup.MinhashDedupBuckets(f'{folder}/m', f'{folder}/b', config=minhash) for _ in range(minhash.num_buckets)
    ]
    chains = {
      'exact copies': (
        [dedup.ExactDedupSignature(f'{folder}/e', config=exact)],
        [dedup.ExactFindDedups(f'{folder}/e', f'{folder}/f', config=exact)],
        dedup.ExactDedupFilter(f'{folder}/f', exact),
      ),
      'MinHash': (
        [dedup.MinhashDedupSignature(f'{folder}/m', minhash)],
        [*buckets, dedup.MinhashDedupCluster(f'{folder}/b', f'{folder}/r', minhash)],
        dedup.MinhashDedupFilter(f'{folder}/r'),
      ),
      'spans of three sentences': (
        [dedup.SentenceDedupSignature(f'{folder}/s', config=spans)],
        [dedup.SentenceFindDedups(f'{folder}/s', f'{folder}/d', config=spans)],
        dedup.SentenceDedupFilter(f'{folder}/d', spans),
      ),
    }

    def run(first: list, then: list, last: Callable) -> int:
      for block in first:
        list(block.run(made()) or ())
      for rank, block in enumerate(then):
        several = isinstance(block, dedup.MinhashDedupBuckets)
        list(block.run(None, rank, minhash.num_buckets) or () if several else block.run() or ())
      return len(documents) - len(list(last.run(made())))

    for name, chain in chains.items():
      yield name, lambda chain=chain: run(*chain)


if __name__ == '__main__':
  if '--theirs' in sys.argv:
    sys.path.pop(0)  # this folder, whose names are not those of packages
  main()
