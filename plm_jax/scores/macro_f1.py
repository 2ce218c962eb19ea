"""Mean over classes of the F1 of each against all others, what SuperGLUE reports beside accuracy for CB.

Classes that are neither a label nor predicted do not count, and -1 is none: a text that is none of the labels is a row
of its class that was not found.
"""

from collections.abc import Sequence

from plm_jax.scores import Row

METRICS = ('macro_f1',)
READS = ('label',)
RECORDS = ('label',)
NEEDS = ('scikit-learn',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """The mean, 0 to 1."""
  from sklearn.metrics import f1_score

  gold, found = [record['label'] for record in records], [int(row['label']) for row in predictions]
  labels = sorted({*gold, *found} - {-1})
  return {'macro_f1': float(f1_score(gold, found, labels=labels, average='macro', zero_division=0))}
