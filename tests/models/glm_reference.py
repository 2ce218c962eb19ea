"""GLM written again in plain numpy, float64 or complex128, one document position at a time where that is clearer.

Shares no code with the package. Every function is analytic, so a gradient is the imaginary part after a step of 1e-30
along the imaginary axis: exact to rounding, without differences of large numbers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Params = Mapping[str, Any]
STEP = 1e-30


def visible(segments: np.ndarray, prefix: int) -> np.ndarray:
  """bool[l, l] of one row: which place (second) another (first) sees."""
  length = len(segments)
  seen = np.zeros((length, length), bool)
  for reader in range(length):
    for place in range(length):
      same = segments[reader] != 0 and segments[reader] == segments[place]
      seen[reader, place] = same and (place < prefix or place <= reader)
  return seen


def norm(x: np.ndarray, p: Params, epsilon: float) -> np.ndarray:
  centred = x - x.mean(-1, keepdims=True)
  return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * p['scale'] + p['bias']


def gelu(x: np.ndarray) -> np.ndarray:
  return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def attention(x: np.ndarray, p: Params, seen: np.ndarray) -> np.ndarray:
  """[l, d] -> [l, d]."""
  heads, size = p['query']['bias'].shape
  found = np.zeros((len(x), heads, size), x.dtype)
  for head in range(heads):
    query, key, value = (x @ p[name]['kernel'][:, head] + p[name]['bias'][head] for name in ('query', 'key', 'value'))
    for reader in np.flatnonzero(seen.any(1)):
      scores = query[reader] @ key[seen[reader]].T / np.sqrt(size)
      shares = np.exp(scores - scores.real.max())
      found[reader, head] = shares @ value[seen[reader]] / shares.sum()
  return found.reshape(len(x), -1) @ p['out']['kernel'].reshape(heads * size, -1) + p['out']['bias']


def feed_forward(x: np.ndarray, p: Params) -> np.ndarray:
  return gelu(x @ p['up']['kernel'] + p['up']['bias']) @ p['down']['kernel'] + p['down']['bias']


def forward(params: Params, row: Mapping[str, np.ndarray], *, placement: str, epsilon: float = 1e-5) -> dict[str, Any]:
  """States of every layer [n+1, l, d], the last after any final norm [l, d], and logits [l, v] of one row.

  Args:
    params: as the package keeps them, layers stacked.
    row: 'tokens', 'positions', 'block_positions', 'segment_ids' int[l], 'prefix' int.
    placement: 'pre', 'post' or 'deepnorm'.
    epsilon: of the norms.
  """
  table = params['token_embed']['table']
  x = table[row['tokens']] + params['position_embed']['table'][row['positions']]
  x = x + params['block_position_embed']['table'][row['block_positions']]
  seen = visible(row['segment_ids'], int(row['prefix']))
  number = len(params['layers']['query']['bias'])
  states = [x]
  for layer in range(number):
    p = slice_of(params['layers'], layer)
    sublayers = (
      (lambda y, p=p: attention(y, p, seen), 'attention_norm'),
      (lambda y, p=p: feed_forward(y, p['mlp']), 'mlp_norm'),
    )
    for sublayer, name in sublayers:
      if placement == 'pre':
        x = x + sublayer(norm(x, p[name], epsilon))
      elif placement == 'post':
        x = norm(x + sublayer(x), p[name], epsilon)
      else:
        x = norm((2 * number) ** 0.5 * x + sublayer(x), p[name], epsilon)
    states.append(x)
  hidden = norm(x, params['final_norm'], epsilon) if placement == 'pre' else x
  return {'layers': np.stack(states), 'hidden': hidden, 'logits': hidden @ table.T}


def loss(params: Params, rows: list[Mapping[str, np.ndarray]], *, placement: str) -> Any:
  """Mean nats of the targets 'ids' under 'weights' over all rows."""
  total, count = 0.0, 0
  for row in rows:
    logits = forward(params, row, placement=placement)['logits']
    for place in np.flatnonzero(row['weights']):
      scores = logits[place] - logits[place].real.max()
      total = total + np.log(np.exp(scores).sum()) - scores[row['ids'][place]]
      count += 1
  return total / count


def slice_of(tree: Params, layer: int) -> dict[str, Any]:
  return {name: slice_of(value, layer) if isinstance(value, Mapping) else value[layer] for name, value in tree.items()}


def gradient(params: Params, rows: list[Mapping[str, np.ndarray]], *, placement: str) -> dict[str, Any]:
  """Of `loss`, number by number."""

  def widen(tree: Params) -> dict[str, Any]:
    return {
      name: widen(value) if isinstance(value, Mapping) else np.asarray(value, np.complex128)
      for name, value in tree.items()
    }

  complex_params = widen(params)

  def of(tree: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
      if isinstance(value, Mapping):
        found[name] = of(dict(value))
        continue
      found[name] = np.zeros(value.shape)
      for index in np.ndindex(value.shape):
        value[index] += 1j * STEP
        found[name][index] = loss(complex_params, rows, placement=placement).imag / STEP
        value[index] = value[index].real
    return found

  return of(complex_params)
