"""Pearson's and Spearman's correlation of predicted with gold values, reported by GLUE for STS-B."""

from collections.abc import Sequence

import numpy as np

from plm_jax.scores import Row

METRICS = ('pearson', 'spearman')
READS = ('value',)
RECORDS = ('label',)
NEEDS = ('scipy',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute both, -1 to 1; 0 if undefined because all are equal."""
  from scipy import stats

  gold = np.array([record['label'] for record in records], np.float64)
  predicted = np.array([row['value'] for row in predictions], np.float64)
  if len(gold) < 2 or np.ptp(gold) == 0 or np.ptp(predicted) == 0:
    return {'pearson': 0.0, 'spearman': 0.0}
  return {
    'pearson': float(stats.pearsonr(predicted, gold).statistic),
    'spearman': float(stats.spearmanr(predicted, gold).statistic),
  }
