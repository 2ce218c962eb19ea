"""F1 of class 1 against class 0, what GLUE reports beside accuracy for MRPC and QQP: 2 tp / (2 tp + fp + fn).

A prediction of -1, a text that is none of the labels (`adapters/sequence.py`), counts as the wrong class, as in T5's
scores.
"""

from collections.abc import Sequence

from plm_jax.scores import Row

METRICS = ('f1',)
READS = ('label',)
RECORDS = ('label',)
NEEDS = ('scikit-learn',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """F1, 0 to 1; 0 where no row of class 1 is found.

  Raises:
    ValueError: there are other classes than 0 and 1.
  """
  from sklearn.metrics import f1_score

  found, gold = map(list, zip(*judged(predictions, records), strict=True))
  if others := sorted({*gold, *found} - {0, 1}):
    raise ValueError(f"score 'f1' is of two classes, 0 and 1, and there is {others[0]}: take 'macro_f1'")
  return {'f1': float(f1_score(gold, found, zero_division=0))}


def judged(predictions: Sequence[Row], records: Sequence[Row]) -> list[tuple[int, int]]:
  """The class of two that is found and the right one, for each row; a prediction of -1 is the wrong one."""
  pairs = [(int(row['label']), int(record['label'])) for row, record in zip(predictions, records, strict=True)]
  return [(1 - right if found == -1 else found, right) for found, right in pairs]
