"""Accuracy on minimal pairs: the share of pairs whose good sentence is more likely, in total and by group.

Two equal sentences (seven pairs of BLiMP) count as right, as in lm-evaluation-harness. Any other tie is wrong.
`ties` is the share of both.
"""

from collections.abc import Sequence

import numpy as np

from plm_jax.scores import Row

METRICS = ('accuracy', 'ties')
READS = ('log_probability',)
RECORDS = ('groups', 'options')


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute both, and 'FIELD/VALUE', the accuracy of the pairs with this value."""
  values = np.array([row['log_probability'] for row in predictions])
  tied = values[:, 0] == values[:, 1]
  right = (values[:, 0] > values[:, 1]) | [len({*record['options']}) == 1 for record in records]
  groups: dict[str, list[bool]] = {}
  for is_right, record in zip(right.tolist(), records, strict=True):
    for field, value in record['groups'].items():
      groups.setdefault(f'{field}/{value}', []).append(is_right)
  by_group = {name: sum(each) / len(each) for name, each in sorted(groups.items())}
  return {'accuracy': right.mean(), 'ties': tied.mean()} | by_group
