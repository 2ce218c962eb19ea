"""Precision, recall and F1 of entities in a strict scheme: in IOB2 an I that continues nothing is none (seqeval).

The scheme is `data.scheme`, or that of the letters of the labels: IOB2 for B and I, IOBES for E and S or their like.
`adapters/tag` counts spans as the shared task of CoNLL did, where such an I begins one. The two differ only if a model
predicts against its scheme. Words that were cut off a row, or have no token, count as predicted O.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from plm_jax.core import entities
from plm_jax.scores import Row

METRICS = ('strict_precision', 'strict_recall', 'strict_f1')
READS = ('labels',)
RECORDS = ('labels', 'places', 'names')
NEEDS = ('seqeval', 'scikit-learn')


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute the three over entities, 0 to 1; raise ValueError as `check_names`."""
  from seqeval import scheme
  from seqeval.metrics.v1 import precision_recall_fscore_support

  names = check_names('seqeval', records[0]['names'])
  schemes = {own.__name__: own for own in (scheme.IOB1, scheme.IOB2, scheme.IOE2, scheme.IOBES)}
  own = schemes[scheme_of(names, records[0].get('scheme'))]
  gold, predicted = [], []
  for row, record in zip(predictions, records, strict=True):
    tags = tags_of(row['labels'], {**record, 'names': names})
    labelled = [word for word, label in enumerate(record['labels']) if label >= 0]
    gold.append([names[record['labels'][word]] for word in labelled])
    predicted.append([tags[word] or 'O' for word in labelled])
  precision, recall, f1, _ = precision_recall_fscore_support(
    gold, predicted, average='micro', scheme=own, zero_division=0
  )
  return dict(zip(METRICS, map(float, (precision, recall, f1)), strict=True))


def check(records: Iterable[Row]) -> None:
  """Raise ValueError for labels that name no entities."""
  check_names('seqeval', next(iter(records))['names'])


def check_names(score: str, names: Sequence[str]) -> list[str]:
  """Check tags of entities, and return them with B, I, E, S.

  Raises ValueError, which names the score, for no names, or others than O, B-... and the like.
  """
  invalid = [name for name in names if name != 'O' and not entities.parts(name)[1]]
  if invalid or not names:
    problem = f'there is {invalid[0]!r}' if names else 'these have no names'
    raise ValueError(f'score {score!r} needs labels named O, B-... and I-..., but {problem}: remove the score')
  return ['-'.join(filter(None, entities.parts(name))) for name in names]


def scheme_of(names: Sequence[str], named: str | None = None) -> str:
  """Return the scheme of tags, as seqeval names it."""
  letters = {name[0] for name in names}
  if named is not None:
    return 'IOBES' if named == 'BILOU' else named  # names have E and S
  return 'IOB2' if letters <= set('OBI') else 'IOE2' if letters <= set('OIE') else 'IOBES'


def judged(row: Row, record: Row) -> tuple[list[int], list[int]]:
  """List the predicted and right labels of words with both, as `tags_of`."""
  # row -1 3 -1 0 -1, places 0 2; the record has labels 3 1 -1   ->   [3], [3]: word 2 has no label, word 1 was cut off
  gold = record['labels']
  pairs = [(predicted, gold[word]) for word, predicted in _by_word(row['labels'], record) if gold[word] >= 0]
  return [predicted for predicted, _ in pairs], [right for _, right in pairs]


def tags_of(labels: np.ndarray, record: Row) -> list[str | None]:
  """List the name of the predicted label of each word.

  None for a word that the batch did not label. Labels int[l] are the class at the first token of each word, else -1.
  """
  # labels -1 3 -1 0 -1, places 0 2, three words   ->   names[3], None, names[0]
  tags: list[str | None] = [None] * len(record['labels'])
  for word, label in _by_word(labels, record):
    tags[word] = record['names'][label]
  return tags


def _by_word(labels: np.ndarray, record: Row) -> Iterator[tuple[int, int]]:
  """Yield index and predicted label of labelled words, as `tags_of`."""
  labels = np.asarray(labels)
  return zip(record['places'], labels[labels >= 0].tolist(), strict=False)  # later words were cut off
