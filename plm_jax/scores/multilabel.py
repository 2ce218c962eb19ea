"""Scores of several classes per example: F1 over all decisions and per class, and a score of the ranking of classes.

Micro F1 counts the decisions of all classes together, macro F1 is the mean over all classes, 0 for a class that is
neither right nor predicted. LRAP, label ranking average precision, needs no threshold: the mean over the right classes
of an example of the share of right classes among those with at least their probability; 1 without a right class.
"""

from collections.abc import Sequence

import numpy as np

from plm_jax.scores import Row

METRICS = ('micro_f1', 'macro_f1', 'lrap')
READS = ('probability', 'threshold')
RECORDS = ('classes',)
NEEDS = ('scikit-learn',)
BY_ROW = ('lrap',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute the three, 0 to 1."""
  from sklearn.metrics import label_ranking_average_precision_score

  gold, predicted, probabilities = decisions(predictions, records)
  hits, wrong = (gold & predicted).sum(axis=0), (gold != predicted).sum(axis=0)  # [classes]
  return {
    'micro_f1': float(2 * hits.sum() / max(2 * hits.sum() + wrong.sum(), 1)),
    'macro_f1': float((2 * hits / np.maximum(2 * hits + wrong, 1)).mean()),
    'lrap': float(label_ranking_average_precision_score(gold, probabilities)),
  }


def decisions(predictions: Sequence[Row], records: Sequence[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Return right and predicted classes and probabilities, [rows, classes]."""
  probabilities = np.array([row['probability'] for row in predictions], np.float64)
  gold = np.zeros(probabilities.shape, np.int64)
  for row, record in zip(gold, records, strict=True):
    row[record['classes']] = 1
  thresholds = np.array([row['threshold'] for row in predictions], np.float64)
  return gold, (probabilities > thresholds[:, None]).astype(np.int64), probabilities
