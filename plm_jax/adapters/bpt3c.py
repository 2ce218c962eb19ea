"""Backpropagation through time for text classification, for long texts (BPT3C; Howard and Ruder 2018, §3.3).

A text is read in windows. Each window starts from the final state of the previous one, and no gradient passes between
windows. The head pools the states of the last windows only, so that only these are trained on.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.types import Array


def read(trunk: nn.Module, tokens: Array, segment_ids: Array, *, window: int, train: bool) -> dict[str, Any]:
  """Run a trunk with a carry over texts, window by window.

  Dropout is sampled for each window, as in the released code. Without dropout the states of real tokens are the same
  as for whole texts. The trunk takes 'carry' and stops its gradient. Tokens and segments int[b, l] have one text per
  sequence, padded on the right. The result has 'hidden' [b, l, d] and 'layers' [n, b, l, d].
  """
  # l 5, w 2:  a b c d e  ->  a b | c d | e 0
  batch_size, length = tokens.shape
  count = -(-length // window)

  def cut(values: Array) -> Array:
    padded = jnp.pad(values, ((0, 0), (0, count * window - length)))
    return jnp.moveaxis(padded.reshape(batch_size, count, window), 1, 0)  # [b, l] -> [windows, b, w]

  def read_window(trunk: nn.Module, carry: Any, piece: tuple[Array, Array]) -> tuple[Any, tuple[Array, Array]]:
    out = trunk(piece[0], segment_ids=piece[1], carry=carry, train=train)
    return out['carry'], (out['hidden'], out['layers'])

  # 1. scan over the windows
  scan = nn.scan(read_window, variable_broadcast='params', split_rngs={'params': False, 'dropout': True})
  _, (hidden, layers) = scan(trunk, trunk.init_carry(batch_size), (cut(tokens), cut(segment_ids)))
  # 2. join the windows and drop the padding
  hidden = jnp.moveaxis(hidden, 0, 1).reshape(batch_size, count * window, -1)  # [windows, b, w, d]
  layers = jnp.moveaxis(layers, 0, 2)  # [windows, n, b, w, d] -> [n, b, windows, w, d]
  layers = layers.reshape(*layers.shape[:2], count * window, -1)
  return {'hidden': hidden[:, :length], 'layers': layers[:, :, :length]}


def pooled_windows(segment_ids: Array, *, window: int, last: int | None) -> Array:
  """Select the windows that are pooled.

  A window is pooled if its first token is one of the `last` tokens of its text; None pools all. Segments int[b, l],
  padded on the right -> int[b, l], also 0 for the tokens of earlier windows.
  """
  # w 2, last 3, segments 1 1 1 1 1 0  ->  0 0 1 1 1 0
  if last is None:
    return segment_ids
  start = jnp.arange(segment_ids.shape[1]) // window * window  # [l]
  sizes = (segment_ids > 0).sum(axis=1, keepdims=True)  # [b, 1]
  return jnp.where(sizes - start <= last, segment_ids, 0)


def reversed_tokens(tokens: Array, segment_ids: Array) -> Array:
  """Reverse the tokens int[b, l] of texts; padding stays on the right."""
  # a b c 0 0  ->  c b a 0 0
  positions = jnp.arange(tokens.shape[1])
  sizes = (segment_ids > 0).sum(axis=1, keepdims=True)
  return jnp.take_along_axis(tokens, jnp.where(positions < sizes, sizes - 1 - positions, positions), axis=1)
