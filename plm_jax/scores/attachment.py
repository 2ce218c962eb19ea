"""Shares of words with the right head (UAS), and with the right head and relation (LAS), of dependency trees.

`adapters/parse` counts both batch by batch; files of predictions need them here. Punctuation counts (Buchholz and Marsi
2006, §3.2). Words that were cut off a row count as wrong; `adapters/parse` leaves them out. Words without a head in the
data are not counted. `universal_las` compares relations only up to the colon, so that 'nmod:poss' is 'nmod' (Zeman et
al. 2018, §4).
"""

from collections.abc import Sequence

import numpy as np

from plm_jax.scores import Row
from plm_jax.scores.seqeval import tags_of

METRICS = ('uas', 'las', 'universal_las')
READS = ('heads', 'labels')
RECORDS = ('heads', 'labels', 'places', 'names')


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute the three shares of words, 0 without any head."""
  counts = np.zeros(len(METRICS))
  total = 0
  for row, record in zip(predictions, records, strict=True):
    heads, relations = arcs_of(row, record)
    for word, (head, relation) in enumerate(zip(record['heads'], record['labels'], strict=True)):
      if head < 0 or relation < 0:
        continue
      total += 1
      gold_head, gold_relation = (0 if head == word else _number(head, record)), record['names'][relation]
      predicted = relations[word] or ''
      same = heads[word] == gold_head
      universal = predicted.partition(':')[0] == gold_relation.partition(':')[0]
      counts += (same, same and predicted == gold_relation, same and universal)
  return dict(zip(METRICS, (counts / max(total, 1)).tolist(), strict=True))


def arcs_of(row: Row, record: Row) -> tuple[list[int | None], list[str | None]]:
  """List the head (numbered as in CoNLL-U) and relation of each word.

  None for words that the batch did not label. 'heads' int[l] of a prediction are positions in the row of the heads of
  words, -1 where no word begins, and 'labels' int[l] their relations.
  """
  # heads -1 2 2 -1, places 0 1   ->   2 0: the second word, at position 2, is the root
  heads, labels = np.asarray(row['heads']), np.asarray(row['labels'])
  begins = np.flatnonzero(labels >= 0)
  word_at = dict(zip(begins.tolist(), record['places'], strict=False))  # position in the row -> index of the word
  head_of: list[int | None] = [None] * len(record['labels'])
  for position, word in word_at.items():
    head = word_at.get(int(heads[position]))
    head_of[word] = None if head is None else 0 if head == word else _number(head, record)
  return head_of, tags_of(labels, record)


def written(row: Row, record: Row) -> list[str | None]:
  """Format arcs as '3:case'; arguments as of `arcs_of`."""
  return [None if head is None else f'{head}:{name}' for head, name in zip(*arcs_of(row, record), strict=True)]


def _number(word: int, record: Row) -> int:
  """Index a word within its tree from 1, counting words with heads."""
  in_tree = [head >= 0 for head in record['heads']]
  return 1 + (sum(in_tree[:word]) if any(in_tree) else word)
