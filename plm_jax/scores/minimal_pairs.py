"""Accuracy on minimal pairs: the share of pairs whose good sentence is more likely, in total and by group.

A tie is wrong, and `ties` is the share of them (Warstadt et al. 2020, §3).
"""

from collections.abc import Sequence

import numpy as np

from plm_jax.scores import Row

METRICS = ('accuracy', 'ties')
READS = ('log_probability',)
RECORDS = ('groups',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute both, and 'FIELD/VALUE', the accuracy of the pairs with this value."""
  values = np.array([row['log_probability'] for row in predictions])
  right, tied = values[:, 0] > values[:, 1], values[:, 0] == values[:, 1]
  groups: dict[str, list[bool]] = {}
  for is_right, record in zip(right.tolist(), records, strict=True):
    for field, value in record['groups'].items():
      groups.setdefault(f'{field}/{value}', []).append(is_right)
  by_group = {name: sum(each) / len(each) for name, each in sorted(groups.items())}
  return {'accuracy': right.mean(), 'ties': tied.mean()} | by_group
