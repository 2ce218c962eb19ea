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

  gold, found = [record['label'] for record in records], [int(row['label']) for row in predictions]
  found = [1 - right if label == -1 else label for label, right in zip(found, gold, strict=True)]
  if others := sorted({*gold, *found} - {0, 1}):
    raise ValueError(f"score 'f1' is of two classes, 0 and 1, and there is {others[0]}: take 'macro_f1'")
  return {'f1': float(f1_score(gold, found, zero_division=0))}
