"""F1 of class 1 against class 0, reported by GLUE for MRPC and QQP in addition to accuracy: 2 tp / (2 tp + fp + fn).

A prediction of -1, a text that is none of the labels (`adapters/sequence.py`), counts as the wrong class, as in T5's
scores.
"""

from collections.abc import Iterable, Sequence

from plm_jax.scores import Row

METRICS = ('f1',)
READS = ('label',)
RECORDS = ('label',)
NEEDS = ('scikit-learn',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute F1, 0 to 1; 0 if class 1 is never predicted.

  Raises ValueError for classes other than 0 and 1.
  """
  from sklearn.metrics import f1_score

  predicted, gold = map(list, zip(*judged(predictions, records), strict=True))
  check({'label': label} for label in (*gold, *predicted))
  return {'f1': float(f1_score(gold, predicted, zero_division=0))}


def check(records: Iterable[Row]) -> None:
  """Raise ValueError for classes other than 0 and 1."""
  if others := sorted({int(record['label']) for record in records} - {0, 1}):
    raise ValueError(f"score 'f1' has two classes, 0 and 1, but there is {others[0]}: use 'macro_f1'")


def judged(predictions: Sequence[Row], records: Sequence[Row]) -> list[tuple[int, int]]:
  """Pair predicted and right classes; -1 becomes the wrong one."""
  pairs = [(int(row['label']), int(record['label'])) for row, record in zip(predictions, records, strict=True)]
  return [(1 - right if predicted == -1 else predicted, right) for predicted, right in pairs]
