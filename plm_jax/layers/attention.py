"""The one door to attention: softmax(q k^T / sqrt(k) + bias) v under a mask (Vaswani et al. 2017, §3.2.1)."""

import math

import jax
import jax.numpy as jnp

from plm_jax.layers.dropout import drop
from plm_jax.layers.masks import Mask, visible
from plm_jax.types import Array

# far below any real logit, and finite: a row that sees nothing must not become NaN
HIDDEN = -1e30


def weights(query: Array, key: Array, *, mask: Mask, bias: Array | None = None, scale: float | None = None) -> Array:
  """Attention weights f32[b, h, l, m]; a query with nothing to look at gets zeros.

  Args:
    query: [b, l, h, k].
    key: [b, m, g, k] with g a divisor of h: each h / g heads in a row share a key (Shazeer 2019; Ainslie et al. 2023).
    mask: what may be looked at.
    bias: added to the scaled products, broadcastable to [b, h, l, m].
    scale: of the products; 1 / sqrt(k) by default.
  """
  scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
  query = query * jnp.asarray(scale, query.dtype)  # the query is the smaller array to scale
  # products accumulate in float32
  if (groups := key.shape[2]) == query.shape[2]:
    logits = jnp.einsum('blhk,bmhk->bhlm', query, key, preferred_element_type=jnp.float32)
  else:
    grouped = query.reshape(*query.shape[:2], groups, -1, query.shape[3])  # [b, l, g, h/g, k]
    logits = jnp.einsum('blgrk,bmgk->bgrlm', grouped, key, preferred_element_type=jnp.float32)
    logits = logits.reshape(query.shape[0], query.shape[2], *logits.shape[3:])
  if bias is not None:
    logits = logits + bias.astype(jnp.float32)
  seen = visible(mask)[:, None]  # [b, 1, l, m]
  logits = jnp.where(seen, logits, HIDDEN)
  top = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
  exponents = jnp.where(seen, jnp.exp(logits - top), 0.0)
  return exponents / jnp.maximum(exponents.sum(axis=-1, keepdims=True), 1e-30)


def attend(
  query: Array,
  key: Array,
  value: Array,
  *,
  mask: Mask,
  bias: Array | None = None,
  dropout: float = 0.0,
  rng: Array | None = None,
  scale: float | None = None,
) -> Array:
  """Weighted sums of `value`, [b, l, h, k] in the dtype of `value`.

  Args:
    query: [b, l, h, k].
    key: [b, m, g, k] with g a divisor of h: each h / g heads in a row share a key and a value.
    value: [b, m, g, k].
    mask: what may be looked at.
    bias: added to the scaled products, broadcastable to [b, h, l, m].
    dropout: rate on the weights; needs `rng`.
    rng: key of the dropout, None outside training.
    scale: of the products; 1 / sqrt(k) by default.
  """
  probabilities = weights(query, key, mask=mask, bias=bias, scale=scale).astype(value.dtype)
  if dropout and rng is not None:
    probabilities = drop(probabilities, rate=dropout, rng=rng)
  if (groups := value.shape[2]) == query.shape[2]:
    return jnp.einsum('bhlm,bmhk->blhk', probabilities, value)
  grouped = probabilities.reshape(len(query), groups, -1, *probabilities.shape[2:])  # [b, g, h/g, l, m]
  return jnp.einsum('bgrlm,bmgk->blgrk', grouped, value).reshape(*query.shape[:3], value.shape[3])
