"""How a text is read that is longer than what a gradient should run through (Howard and Ruder 2018, §3.3, BPT3C).

A row is read in windows, each from the state that the one before it left, and no gradient runs from one into another.
What follows pools the states of the last windows alone, so that only these are trained on.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.types import Array


def read(trunk: nn.Module, tokens: Array, segment_ids: Array, *, window: int, train: bool) -> dict[str, Any]:
  """What a trunk with a carry says of rows with padding on the right, window by window.

  Noise is drawn for each window, as in the released code. Without noise the states of real tokens are those of one
  reading.

  Args:
    trunk: takes 'carry', through which it lets no gradient.
    tokens: int[b, l].
    segment_ids: int[b, l], one text a row; 0 is padding.
    window: w, tokens of each.
    train: drops out.

  Returns:
    'hidden' [b, l, d] and 'layers' [n, b, l, d], as the trunk returns them.
  """
  # l 5, w 2:  a b c d e  ->  a b | c d | e 0
  rows, length = tokens.shape
  count = -(-length // window)

  def cut(values: Array) -> Array:
    padded = jnp.pad(values, ((0, 0), (0, count * window - length)))
    return jnp.moveaxis(padded.reshape(rows, count, window), 1, 0)

  def one(trunk: nn.Module, carry: Any, piece: tuple[Array, Array]) -> tuple[Any, tuple[Array, Array]]:
    out = trunk(piece[0], segment_ids=piece[1], carry=carry, train=train)
    return out['carry'], (out['hidden'], out['layers'])

  scan = nn.scan(one, variable_broadcast='params', split_rngs={'params': False, 'dropout': True})
  _, (hidden, layers) = scan(trunk, trunk.init_carry(rows), (cut(tokens), cut(segment_ids)))
  hidden = jnp.moveaxis(hidden, 0, 1).reshape(rows, count * window, -1)  # [windows, b, w, d]
  layers = jnp.moveaxis(layers, 0, 2)  # [windows, n, b, w, d] -> [n, b, windows, w, d]
  layers = layers.reshape(*layers.shape[:2], count * window, -1)
  return {'hidden': hidden[:, :length], 'layers': layers[:, :, :length]}


def kept(segment_ids: Array, *, window: int, last: int | None) -> Array:
  """The segments of the windows that are pooled: those whose first token is one of the `last` of its row.

  Args:
    segment_ids: int[b, l], padding on the right.
    window: tokens of each.
    last: how many tokens; None for all.

  Returns:
    int[b, l], 0 also for the tokens of earlier windows.
  """
  # w 2, last 3, segments 1 1 1 1 1 0  ->  0 0 1 1 1 0
  if last is None:
    return segment_ids
  start = jnp.arange(segment_ids.shape[1]) // window * window  # [l]
  sizes = (segment_ids > 0).sum(axis=1, keepdims=True)  # [b, 1]
  return jnp.where(sizes - start <= last, segment_ids, 0)


def turned(tokens: Array, segment_ids: Array) -> Array:
  """The tokens of rows from the last to the first, int[b, l], padding where it was, on the right."""
  # a b c 0 0  ->  c b a 0 0
  places = jnp.arange(tokens.shape[1])
  sizes = (segment_ids > 0).sum(axis=1, keepdims=True)
  return jnp.take_along_axis(tokens, jnp.where(places < sizes, sizes - 1 - places, places), axis=1)
