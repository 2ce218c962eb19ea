"""Pearson's and Spearman's correlation of predicted with given values, what GLUE reports for STS-B."""

from collections.abc import Sequence

import numpy as np

from plm_jax.scores import Row

METRICS = ('pearson', 'spearman')
READS = ('value',)
RECORDS = ('label',)
NEEDS = ('scipy',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Both, -1 to 1; 0 where all values are alike, of which a correlation is not defined."""
  from scipy import stats

  gold = np.array([record['label'] for record in records], np.float64)
  found = np.array([row['value'] for row in predictions], np.float64)
  if len(gold) < 2 or np.ptp(gold) == 0 or np.ptp(found) == 0:
    return {'pearson': 0.0, 'spearman': 0.0}
  return {
    'pearson': float(stats.pearsonr(found, gold).statistic),
    'spearman': float(stats.spearmanr(found, gold).statistic),
  }
