"""Two classes by a threshold on the mean log-probability of a sentence's tokens (Radford et al. 2018, §5; CoLA).

The paper does not describe its threshold. Here each half of the rows, those at even and at odd positions, is judged by
the threshold with the best Matthews correlation on the other half, so that no row influences its own. The class of a
row is its field 'label', 0 or 1.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from plm_jax.scores import Row

METRICS = ('threshold_matthews', 'threshold_accuracy')
READS = ('nats_per_token',)
RECORDS = ('row',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute Matthews correlation and accuracy; raise ValueError as `check`."""
  labels = check(records)
  values, gold = -np.array([row['nats_per_token'] for row in predictions], float), labels.astype(bool)
  predicted = np.zeros(len(gold), bool)
  for half in (slice(0, None, 2), slice(1, None, 2)):
    other = np.ones(len(gold), bool)
    other[half] = False
    predicted[half] = values[half] >= best_threshold(values[other], gold[other])
  return dict(zip(METRICS, (float(matthews(predicted, gold)), float((predicted == gold).mean())), strict=True))


def check(records: Iterable[Row]) -> np.ndarray:
  """Return the labels; raise ValueError for others than 0 and 1."""
  labels = np.array([record['row'].get('label') for record in records], object)
  if len(labels) < 2 or not np.isin(labels, (0, 1)).all():
    raise ValueError("score 'threshold' needs at least two rows, each with a field 'label' of 0 or 1")
  return labels


def best_threshold(values: np.ndarray, gold: np.ndarray) -> float:
  """Find the lowest value for class 1 with the best Matthews correlation."""
  order = np.argsort(-values, kind='stable')
  ranked, right = values[order], gold[order]
  taken, true = np.arange(1, len(ranked) + 1), np.cumsum(right)  # with the threshold at each value
  ends = np.append(ranked[1:] != ranked[:-1], True)  # equal values are taken together
  correlations = _matthews(true, taken - true, right.sum() - true, (~right).sum() - taken + true)
  return float(ranked[np.where(ends, correlations, -2.0)[::-1].argmax() * -1 - 1])


def matthews(predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
  """Compute Matthews correlation of bool[rows]; 0 if either has one class."""
  return _matthews(
    (predicted & gold).sum(), (predicted & ~gold).sum(), (~predicted & gold).sum(), (~predicted & ~gold).sum()
  )


def _matthews(hits: np.ndarray, false: np.ndarray, missed: np.ndarray, rest: np.ndarray) -> np.ndarray:
  """Compute it from counts of the confusion matrix: TP, FP, FN, TN."""
  product = 1.0 * (hits + false) * (hits + missed) * (rest + false) * (rest + missed)
  return (1.0 * hits * rest - 1.0 * false * missed) / np.sqrt(np.where(product > 0, product, np.inf))
