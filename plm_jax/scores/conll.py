"""F1 of entities as in the shared task of CoNLL-2000: an I that continues nothing begins an entity.

This is the default mode of the package seqeval (Tjong Kim Sang and Buchholz 2000). `adapters/tag` counts it batch by
batch, as 'f1'; files of predictions need it here. Words that were cut off a row are not counted, as in a batch;
`seqeval`, which is strict, counts them as O.
"""

from collections.abc import Iterable, Sequence

from plm_jax.scores import Row
from plm_jax.scores.seqeval import check_names, judged

METRICS = ('f1',)
READS = ('labels',)
RECORDS = ('labels', 'places', 'names')
NEEDS = ('seqeval',)


def check(records: Iterable[Row]) -> None:
  """Raise ValueError for labels that name no entities."""
  check_names('conll', next(iter(records))['names'])


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute F1 over all entities, 0 to 1; 0 without predictions.

  Raises ValueError for labels without names, or with names other than O, B-... and I-...
  """
  from seqeval.metrics import f1_score

  names = check_names('conll', records[0]['names'])
  predicted, gold = zip(*(judged(row, record) for row, record in zip(predictions, records, strict=True)), strict=True)
  in_words = ([[names[label] for label in row] for row in rows] for rows in (gold, predicted))
  return {'f1': float(f1_score(*in_words, zero_division=0))}
