"""Exact means over a batch that is computed in parts, such as micro-batches or parts of devices.

`prepare` sees the whole batch, so it computes the divisor: each row gets one over the total weight of the batch. The
sums of the parts then add up to the mean over the batch.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.layers.losses import perplexity


def batch_scale(weights: Array) -> Array:
  """Compute one over the sum of weights, at most 1, per row.

  f32[b] or f32[b, t] -> f32[b].
  """
  # weights  1 1 0 | 1 0 0   scale  1/3 | 1/3
  return jnp.broadcast_to(1 / jnp.maximum(weights.sum(), 1.0), weights.shape[:1])


def scaled_sum(values: Array, weights: Array, scale: Array) -> Array:
  """Compute these rows' part of a mean over the batch, f32[].

  Args:
    values: f32[b] or f32[b, t].
    weights: of the same shape.
    scale: f32[b], of `batch_scale` for the weights of the whole batch.
  """
  # values .5 2 3, weights 1 1 0, scale 1/3 each   ->   (.5 + 2) / 3
  return (values * weights * (scale if weights.ndim == 1 else scale[:, None])).sum()


def metric(values: Array, weights: Array) -> tuple[Array, Array]:
  """Build a metric of `Loss`: (weighted sum f32[], weight f32[]).

  Args:
    values: numbers or truth values, [b] or [b, t].
    weights: of the same shape.
  """
  return (values * weights).sum(), weights.sum()


def row_terms(row_weight: Array) -> dict[str, Array]:
  """Build the targets of `whole_loss`: 'row_weight', 'row_scale', f32[b] each."""
  return {'row_weight': row_weight, 'row_scale': batch_scale(row_weight)}


def whole_loss(value: Array, targets: Mapping[str, Array]) -> tuple[Array, Array]:
  """Build the metric 'loss' from terms with different divisors.

  Their sum is reported like a mean over rows, so the metrics of parts of a batch add up to it. Over several batches
  it is `exact_loss`.

  Args:
    value: f32[], the differentiated sum of terms, each divided by its own total.
    targets: with those of `row_terms`.
  """
  return value / targets['row_scale'][0], targets['row_weight'].sum()


def exact_loss(totals: Mapping[str, tuple[Any, Any]], *, terms: Mapping[str, float]) -> Mapping[str, tuple[Any, Any]]:
  """Compute a `Task.exact`: 'loss' as the sum of exact means.

  Args:
    totals: metric -> (sum, weight) over all batches.
    terms: metric of each term -> its share in the loss.
  """
  # batches with 1 and 3 tokens, nats 2 and 3 + 1 + 1: (2 + 5) / 4, not the mean of 2 and 5 / 3
  value, weight = map(float, totals['loss'])
  if math.isfinite(value):  # else a term is not finite, and so is their sum
    means = (
      share * float(totals[name][0]) / float(totals[name][1]) for name, share in terms.items() if totals[name][1]
    )
    value = sum(means) * weight
  return {**totals, 'loss': (value, weight)}


def perplexity_of(means: Mapping[str, float], *, nats: str = 'loss') -> dict[str, float]:
  """Compute 'perplexity', exp of the metric `nats`, if it exists."""
  return {'perplexity': perplexity(means[nats])} if nats in means else {}
