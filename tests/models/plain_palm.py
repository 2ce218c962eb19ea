"""PaLM from the paper's equations: float64 numpy, one document, one head and one query at a time."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from plm_jax.models.palm import Config

Params = Mapping[str, Any]


def norm(x: np.ndarray, scale: np.ndarray, c: Config) -> np.ndarray:
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + c.norm_epsilon) * scale


def turn(x: np.ndarray, place: int, c: Config) -> np.ndarray:
  """A query or key of one head as complex numbers, turned by its place (RoFormer, equation 12)."""
  pairs = x[0::2] + 1j * x[1::2]
  turned = pairs * np.exp(1j * place * c.rotary_base ** (-2 * np.arange(len(pairs)) / len(x)))
  return np.stack([turned.real, turned.imag], axis=-1).reshape(-1)


def attention(y: np.ndarray, p: Params, c: Config) -> np.ndarray:
  out = np.zeros((len(y), p['out']['kernel'].shape[-1]))
  for head in range(c.num_heads):
    shared = head * c.num_kv_heads // c.num_heads
    keys = [turn(row @ p['key']['kernel'][:, shared], place, c) for place, row in enumerate(y)]
    values = [row @ p['value']['kernel'][:, shared] for row in y]
    for place, row in enumerate(y):
      query = turn(row @ p['query']['kernel'][:, head], place, c)
      logits = np.array([query @ key for key in keys[: place + 1]]) / np.sqrt(c.head_dim)
      weights = np.exp(logits - logits.max())
      found = sum(w * value for w, value in zip(weights / weights.sum(), values, strict=False))
      out[place] += found @ p['out']['kernel'][head]
  return out


def mlp(y: np.ndarray, p: Params) -> np.ndarray:
  gate = y @ p['gate']['kernel']
  return (gate / (1 + np.exp(-gate)) * (y @ p['up']['kernel'])) @ p['down']['kernel']


def forward(trunk: Params, tokens: np.ndarray, c: Config) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
  """States before each layer and after the last, the final states and the logits of a document int[l]."""
  x = trunk['token_embed']['table'][tokens]
  states = [x]
  for number in range(c.num_layers):
    p = {part: _slice(tree, number) for part, tree in trunk['layers'].items()}
    y = norm(x, p['norm']['scale'], c)
    x = x + attention(y, p, c) + mlp(y, p['mlp'])
    states.append(x)
  hidden = norm(x, trunk['final_norm']['scale'], c)
  return states, hidden, hidden @ trunk['token_embed']['table'].T / np.sqrt(c.hidden_dim)


def _slice(tree: Params, number: int) -> Params:
  return {
    name: _slice(value, number) if isinstance(value, Mapping) else np.asarray(value, np.float64)[number]
    for name, value in tree.items()
  }
