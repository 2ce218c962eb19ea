"""Mean over classes of the F1 of each against all others, reported by SuperGLUE for CB in addition to accuracy.

Classes that are neither labels nor predicted do not count. A prediction of -1, a text that is none of the labels, is a
missed row of its class.
"""

from collections.abc import Sequence

from plm_jax.scores import Row

METRICS = ('macro_f1',)
READS = ('label',)
RECORDS = ('label',)
NEEDS = ('scikit-learn',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute the mean, 0 to 1."""
  from sklearn.metrics import f1_score

  gold, predicted = [record['label'] for record in records], [int(row['label']) for row in predictions]
  labels = sorted({*gold, *predicted} - {-1})
  return {'macro_f1': float(f1_score(gold, predicted, labels=labels, average='macro', zero_division=0))}
