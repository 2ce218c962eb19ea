"""DeBERTa and its mask decoder from the paper's equations: float64 numpy, one document at a time."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from plm_jax.models.deberta import Config

erf = np.vectorize(math.erf)
Params = Mapping[str, Any]


def dense(x: np.ndarray, params: Params) -> np.ndarray:
  kernel = np.asarray(params['kernel'], np.float64)
  return np.tensordot(x, kernel, 1) + (np.asarray(params['bias'], np.float64) if 'bias' in params else 0)


def norm(x: np.ndarray, params: Params, c: Config) -> np.ndarray:
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + c.norm_epsilon)
  return x * np.asarray(params['scale'], np.float64) + np.asarray(params['bias'], np.float64)


def gelu(x: np.ndarray) -> np.ndarray:
  return x * (1 + erf(x / math.sqrt(2))) / 2


def delta(i: int, j: int, c: Config) -> int:
  """Equation 3, or its buckets."""
  half = c.position_buckets or c.max_distance
  distance = i - j
  middle = c.position_buckets // 2
  if c.position_buckets and abs(distance) > middle:
    share = math.log(abs(distance) / middle) / math.log((c.max_distance - 1) / middle)
    distance = (math.ceil(share * (middle - 1)) + middle) * (1 if distance > 0 else -1)
  if distance <= -half:
    return 0
  return 2 * half - 1 if distance >= half else distance + half


def block(params: Params, table: np.ndarray, queries: np.ndarray, states: np.ndarray, c: Config) -> np.ndarray:
  """One layer of one document: [l, d] queries, [l, d] keys and values."""
  length, size = len(states), c.hidden_dim // c.num_heads
  query, key, value = dense(queries, params['query']), dense(states, params['key']), dense(states, params['value'])
  far_key = dense(table, params['key' if c.share_projections else 'position_key']) if 'c2p' in c.terms else None
  far_query = dense(table, params['query' if c.share_projections else 'position_query']) if 'p2c' in c.terms else None
  mixed = np.zeros_like(value)
  for h in range(c.num_heads):
    for i in range(length):
      scores = np.zeros(length)
      for j in range(length):
        score = query[i, h] @ key[j, h]
        if far_key is not None:
          score += query[i, h] @ far_key[delta(i, j, c), h]
        if far_query is not None:
          row = delta(i, j, c) if c.reading == 'code' else delta(j, i, c)
          score += key[j, h] @ far_query[row, h]
        scores[j] = score / math.sqrt((1 + len(c.terms)) * size)
      share = np.exp(scores - scores.max())
      mixed[i, h] = (share / share.sum()) @ value[:, h]
  out = np.tensordot(mixed, np.asarray(params['out']['kernel'], np.float64), 2) + np.asarray(params['out']['bias'])
  x = norm(queries + out, params['attention_norm'], c)
  y = dense(gelu(dense(x, params['mlp']['up'])), params['mlp']['down'])
  return norm(x + y, params['mlp_norm'], c)


def convolved(params: Params, x: np.ndarray, inputs: np.ndarray, c: Config) -> np.ndarray:
  kernel = np.asarray(params['dense']['kernel'], np.float64)
  y = np.zeros_like(x) + np.asarray(params['dense']['bias'])
  for i in range(len(x)):
    for tap in range(c.conv_kernel):
      if 0 <= (j := i + tap - c.conv_kernel // 2) < len(x):
        y[i] += inputs[j] @ kernel[tap]
  return norm(x + gelu(y), params['norm'], c)


def relative(trunk: Params, c: Config) -> np.ndarray:
  table = np.asarray(trunk['relative_embed']['table'], np.float64)
  return norm(table, trunk['relative_norm'], c) if c.table_norm else table


def states(trunk: Params, tokens: np.ndarray, c: Config) -> list[np.ndarray]:
  """Embeddings and what each layer makes of them, [n + 1] of [l, d], for one document."""
  x = np.asarray(trunk['token_embed']['table'], np.float64)[tokens]
  if c.absolute == 'input':
    x = x + np.asarray(trunk['position_embed']['table'], np.float64)[: len(x)]
  out = [norm(x, trunk['embed_norm'], c)]
  table = relative(trunk, c)
  if c.conv_kernel:
    y = block(trunk['first'], table, out[0], out[0], c)
    out.append(convolved(trunk['convolution'], y, out[0], c))
  for layer in range(c.num_layers - len(out)):
    params = _layer(trunk['layers'], layer)
    out.append(block(params, table, out[-1], out[-1], c))
  out.append(block(trunk['last'], table, out[-1], out[-1], c))
  return out


def _layer(tree: Any, layer: int) -> Any:
  return {name: _layer(value, layer) for name, value in tree.items()} if isinstance(tree, Mapping) else tree[layer]


def decoded(params: Params, tokens: np.ndarray, c: Config, *, steps: int = 2) -> np.ndarray:
  """Logits [l, v] of the enhanced mask decoder for one document."""
  trunk = params['trunk']
  hidden = states(trunk, tokens, c)[-2]
  queries = hidden + np.asarray(params['position_embed']['table'], np.float64)[: len(tokens)]
  for _ in range(steps):
    queries = block(trunk['last'], relative(trunk, c), queries, hidden, c)
  head = params['mlm']
  features = norm(gelu(dense(queries, head['dense'])), head['norm'], c)
  return features @ np.asarray(trunk['token_embed']['table'], np.float64).T + np.asarray(head['bias'], np.float64)
