"""Accuracy of few-shot prompts over several samples of demonstrations: mean and spread (Brown et al. 2020, §3).

An answer is right if its option is the right one or, without options, if the prediction says so ('right').
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence

from plm_jax.scores import Row

METRICS = ('draws_accuracy', 'draws_spread')
READS = ('label',)
RECORDS = ('label', 'draw')
INSTEAD = (('right',), ('draw',))
BY_ROW = ('draws_accuracy',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute mean and standard deviation over samples (divisor n - 1)."""
  right: dict[int, list[bool]] = defaultdict(list)
  for row, record in zip(predictions, records, strict=True):
    right[record['draw']].append(int(row['label']) == record['label'] if 'label' in row else bool(row['right']))
  each = [statistics.fmean(draw) for draw in right.values()]
  spread = statistics.stdev(each) if len(each) > 1 else 0.0
  return dict(zip(METRICS, (statistics.fmean(each), spread), strict=True))
