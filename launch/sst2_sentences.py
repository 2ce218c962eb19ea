"""Split the phrases of SST-2's training rows by sentence: train, some 2,000 for validation and some 20,000 for a test.

python launch/sst2_sentences.py ../shared/data/glue_sst2 runs/data/sst2_sentences
python launch/sst2_sentences.py tfds:glue/sst2 runs/data/sst2_sentences

The 67,349 rows are phrases of some 6,900 sentences: of 20,000 random rows 84 % lie word for word in another row. Here a
sentence is a row that lies in no other row. A hash of its words chooses its split, and phrases go with their sentences.
Phrases that lie in sentences of two splits are left out, so no row of a split lies in a row of another one.
"""

import collections
import hashlib
import json
import sys
from collections.abc import Iterator

from plm_jax.data.corpora import sources
from plm_jax.io import files

SHARES = {'validation': 0.035, 'test': 0.31}  # of the sentences
Words = tuple[str, ...]


def inside(words: Words) -> Iterator[Words]:
  """Yield all spans of a text, itself last."""
  for length in range(1, len(words) + 1):
    yield from (words[start : start + length] for start in range(len(words) - length + 1))


def split_of(words: Words) -> str:
  """Choose the split of a sentence."""
  share = int.from_bytes(hashlib.sha1(' '.join(words).encode()).digest()[:4], 'little') / 2**32
  return 'validation' if share < SHARES['validation'] else 'test' if share < sum(SHARES.values()) else 'train'


def splits(texts: list[str]) -> list[str]:
  """Return the split of each text; '' for those that are left out."""
  words = [tuple(text.split()) for text in texts]
  rows = set(words)
  covered = {span for one in rows for span in inside(one) if len(span) < len(one) and span in rows}
  found: dict[Words, set[str]] = collections.defaultdict(set)
  for sentence in rows - covered:
    for span in set(inside(sentence)) & rows:
      found[span].add(split_of(sentence))
  return [min(found[one]) if len(found[one]) == 1 else '' for one in words]


def main(source: str, target: str) -> None:
  """Write train, validation and test in `target` from the split 'train' of `source`."""
  rows = list(sources.open_source(source, split='train'))
  by_split: dict[str, list[str]] = {'train': [], 'validation': [], 'test': [], '': []}
  for row, split in zip(rows, splits([row['sentence'] for row in rows]), strict=True):
    by_split[split].append(json.dumps({'sentence': row['sentence'], 'label': int(row['label'])}))
  files.make_folder(files.path(target))
  for split in ('train', 'validation', 'test'):
    files.write_text(files.path(target) / f'{split}.jsonl', '\n'.join([*by_split[split], '']))
  counts = ', '.join(f'{len(lines):,} {split or "left out"}' for split, lines in by_split.items())
  print(f'{target}: {counts} of {len(rows):,} rows')


if __name__ == '__main__':
  main(*sys.argv[1:])
