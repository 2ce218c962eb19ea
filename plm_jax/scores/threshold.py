"""Two classes by the mean log-probability of a sentence's tokens and a threshold (Radford et al. 2018, §5; CoLA).

The paper does not say where its threshold comes from. Here each half of the rows, those with even and those with odd
places, is judged by the threshold that has the best Matthews correlation on the other half, so that no row has a part
in its own. The class of a row is its field 'label', 0 or 1.
"""

from collections.abc import Sequence

import numpy as np

from plm_jax.scores import Row

METRICS = ('threshold_matthews', 'threshold_accuracy')
READS = ('nats_per_token',)
RECORDS = ('row',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Matthews correlation and accuracy over all rows.

  Raises:
    ValueError: a row without a class, or fewer than two rows.
  """
  labels = np.array([record['row'].get('label') for record in records], object)
  if len(labels) < 2 or not np.isin(labels, (0, 1)).all():
    raise ValueError("score 'threshold' needs two rows or more, each with a field 'label' of 0 or 1")
  values, gold = -np.array([row['nats_per_token'] for row in predictions], float), labels.astype(bool)
  found = np.zeros(len(gold), bool)
  for half in (slice(0, None, 2), slice(1, None, 2)):
    other = np.ones(len(gold), bool)
    other[half] = False
    found[half] = values[half] >= best_threshold(values[other], gold[other])
  return dict(zip(METRICS, (float(matthews(found, gold)), float((found == gold).mean())), strict=True))


def best_threshold(values: np.ndarray, gold: np.ndarray) -> float:
  """The value from which on rows count as class 1 that has the best Matthews correlation; of several the lowest."""
  order = np.argsort(-values, kind='stable')
  ranked, right = values[order], gold[order]
  taken, true = np.arange(1, len(ranked) + 1), np.cumsum(right)  # with the threshold at each value
  ends = np.append(ranked[1:] != ranked[:-1], True)  # equal values are taken together
  found = _matthews(true, taken - true, right.sum() - true, (~right).sum() - taken + true)
  return float(ranked[np.where(ends, found, -2.0)[::-1].argmax() * -1 - 1])


def matthews(found: np.ndarray, gold: np.ndarray) -> np.ndarray:
  """Matthews correlation of bool[rows] with bool[rows]; 0 where one of them has one class."""
  return _matthews((found & gold).sum(), (found & ~gold).sum(), (~found & gold).sum(), (~found & ~gold).sum())


def _matthews(hits: np.ndarray, false: np.ndarray, missed: np.ndarray, rest: np.ndarray) -> np.ndarray:
  """From counts of true and false positives, false and true negatives."""
  product = 1.0 * (hits + false) * (hits + missed) * (rest + false) * (rest + missed)
  return (1.0 * hits * rest - 1.0 * false * missed) / np.sqrt(np.where(product > 0, product, np.inf))
