"""Shares of words whose head is right (UAS), and whose relation to it is right as well (LAS), of dependency trees.

`adapters/parse` counts both batch by batch; files of predictions need them here. Punctuation counts (Buchholz and Marsi
2006, §3.2). Words that were cut off a row count as wrong, where `adapters/parse` leaves them out; words that have no
head in the data are not counted. `universal_las` looks at a relation up to its colon alone, so that 'nmod:poss' is
'nmod' (Zeman et al. 2018, §4).
"""

from collections.abc import Sequence

import numpy as np

from plm_jax.scores import Row
from plm_jax.scores.seqeval import tags_of

METRICS = ('uas', 'las', 'universal_las')
READS = ('heads', 'labels')
RECORDS = ('heads', 'labels', 'places', 'names')


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """The three over all words, 0 to 1; 0 where none has a head."""
  counts = np.zeros(len(METRICS))
  total = 0
  for row, record in zip(predictions, records, strict=True):
    heads, relations = arcs_of(row, record)
    for word, (head, relation) in enumerate(zip(record['heads'], record['labels'], strict=True)):
      if head < 0 or relation < 0:
        continue
      total += 1
      number, name = (0 if head == word else _number(head, record)), record['names'][relation]
      found = relations[word] or ''
      same = heads[word] == number
      universal = found.partition(':')[0] == name.partition(':')[0]
      counts += (same, same and found == name, same and universal)
  return dict(zip(METRICS, (counts / max(total, 1)).tolist(), strict=True))


def arcs_of(row: Row, record: Row) -> tuple[list[int | None], list[str | None]]:
  """The head and the relation of each word as CoNLL-U numbers them; None where the batch has none.

  Args:
    row: a prediction; its 'heads' int[l] are places in the row of the heads of words, -1 where no word begins, and its
      'labels' int[l] their relations.
    record: of the row, see `scores/__init__.py`.
  """
  # heads -1 2 2 -1, places 0 1   ->   2 0: the second word, at place 2, is the root
  heads, labels = np.asarray(row['heads']), np.asarray(row['labels'])
  begins = np.flatnonzero(labels >= 0)
  word_at = dict(zip(begins.tolist(), record['places'], strict=False))  # place in the row -> number of the word
  found: list[int | None] = [None] * len(record['labels'])
  for place, word in word_at.items():
    head = word_at.get(int(heads[place]))
    found[word] = None if head is None else 0 if head == word else _number(head, record)
  return found, tags_of(labels, record)


def written(row: Row, record: Row) -> list[str | None]:
  """The arcs of all words, with their heads as CoNLL-U numbers them, such as '3:case'; arguments as of `arcs_of`."""
  return [None if head is None else f'{head}:{name}' for head, name in zip(*arcs_of(row, record), strict=True)]


def _number(word: int, record: Row) -> int:
  """The number of a word among those of the tree, from 1: words without a head are not counted, unless none has one."""
  in_tree = [head >= 0 for head in record['heads']]
  return 1 + (sum(in_tree[:word]) if any(in_tree) else word)
