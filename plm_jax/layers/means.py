"""Exact means over a batch that is computed in parts, such as micro-batches or parts of devices.

`prepare` sees the whole batch, so it computes the divisor: each row gets one over the total weight of the batch. The
sums of the parts then add up to the mean over the batch.
"""

from collections.abc import Mapping

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

  Their sum is reported like a mean over rows, so the metrics of parts of a batch add up to it.

  Args:
    value: f32[], the differentiated sum of terms, each divided by its own total.
    targets: with those of `row_terms`.
  """
  return value / targets['row_scale'][0], targets['row_weight'].sum()


def perplexity_of(means: Mapping[str, float], *, nats: str = 'loss') -> dict[str, float]:
  """Compute 'perplexity', exp of the metric `nats`, if it exists."""
  return {'perplexity': perplexity(means[nats])} if nats in means else {}
