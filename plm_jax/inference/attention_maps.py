"""Attention weights of every head for one text: a picture, and the distance and entropy of each head."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.cli import pictures, tables
from plm_jax.core.errors import ConfigError
from plm_jax.inference.opened import Opened
from plm_jax.training.parts import check_length


class Maps(NamedTuple):
  """The attention weights of a model on one text."""

  tokens: list[str]  # the l tokens of the text
  weights: np.ndarray  # f32[n, h, l, l] for n layers; `weights[layer, head, query]` is a distribution over the keys
  layers: Sequence[int]  # indices of these n layers in the model
  heads: Sequence[int]  # indices of these h heads


def look(model: Opened, *, text: str, layer: int | None = None, head: int | None = None) -> Maps:
  """Compute the attention weights of a model on a text.

  Args:
    layer: index of the only layer to return; None returns all.

  Raises:
    ConfigError: there is no such layer or head; or the trunk does not read one text, has no attention, or has too few
      positions for the text.
  """
  trunk = model.trunk
  if trunk.ATTENTION in ('encoder-decoder', 'none'):
    raise ConfigError(
      f'heads: the {trunk.NAME} in {model.folder} has {trunk.ATTENTION} attention; name the folder of a model with '
      'a single attention stack'
    )
  (encoding,) = model.read([text])
  check_length(trunk, len(encoding.ids), where='the text')
  names = [model.vocab.decode([token]).strip() or model.vocab.token(token) for token in encoding.ids]
  weights = _weights(trunk, model.params, encoding.ids)
  layers, heads = (_chosen(*one) for one in (('layer', layer, weights.shape[0]), ('head', head, weights.shape[1])))
  return Maps(names, weights[np.ix_(layers, heads)], layers, heads)


def _chosen(name: str, index: int | None, count: int) -> Sequence[int]:
  if index is not None and not 0 <= index < count:
    raise ConfigError(f'--{name}={index}: the model has {name}s 0 to {count - 1}')
  return range(count) if index is None else [index]


def _weights(trunk: nn.Module, params: Any, ids: Sequence[int]) -> np.ndarray:
  missing = ConfigError(f'heads: a {trunk.NAME} has no attention weights; name the folder of a model with attention')
  if 'tokens' not in trunk.INPUTS:  # a character-level network such as ELMo
    raise missing
  tokens = jnp.asarray([ids])
  apply = jax.jit(
    lambda params: trunk.apply({'params': params}, tokens, segment_ids=jnp.ones_like(tokens), mutable=['attention'])
  )
  _, sown = apply(params)
  weights = _in_order(sown.get('attention', {}))
  if not weights:
    raise missing
  return np.concatenate([layers[:, 0] for layers in weights])


def _in_order(sown: Mapping[str, Any]) -> list[np.ndarray]:
  """List the sown weights from the first layer to the last.

  Each is f32[layers, b, h, l, l]. Scanned blocks are stacked, at any depth: under 'layers', or under the name of a
  stack. DeBERTa's blocks outside of the scan are stored under 'first' and 'last'.
  """
  order = {'first': 0, 'last': 2}
  weights: list[np.ndarray] = []
  for name in sorted(sown, key=lambda name: order.get(name, 1)):
    if isinstance(sown[name], Mapping):
      weights += _in_order(sown[name])
    else:
      weights += [np.asarray(leaf).reshape(-1, *leaf.shape[-4:]) for leaf in jax.tree.leaves(sown[name])]
  return weights


class Head(NamedTuple):
  """Statistics of one head."""

  layer: int
  head: int
  distance: float  # mean distance in tokens between a query and its keys, weighted by attention
  entropy: float  # of the weights in bits, mean over the queries
  uniform: float  # entropy in bits of equal weights over the keys that the head may attend to


def measure(maps: Maps) -> list[Head]:
  """Compute distance and entropy of every head."""
  length = len(maps.tokens)
  distance = np.abs(np.arange(length)[:, None] - np.arange(length))
  heads = []
  for layer, head in np.ndindex(maps.weights.shape[:2]):
    shares = maps.weights[layer, head]  # [l, l]: queries, keys
    entropy = -(shares * np.log2(np.maximum(shares, 1e-30))).sum(axis=-1).mean()
    uniform = np.log2(np.maximum((shares > 0).sum(axis=-1), 1)).mean()
    mean_distance = (shares * distance).sum(axis=-1).mean()
    index = {'layer': maps.layers[layer], 'head': maps.heads[head]}
    heads.append(Head(**index, distance=mean_distance, entropy=entropy, uniform=uniform))
  return heads


def show(heads: Sequence[Head], *, title: str) -> None:
  """Print a table with one row per head."""
  table = tables.new(('layer', 'head', 'mean distance', 'entropy, bits', 'of uniform'), title=title)
  for head in heads:
    share = head.entropy / max(head.uniform, 1e-9)
    table.add_row(f'{head.layer}', f'{head.head}', f'{head.distance:.1f}', f'{head.entropy:.2f}', f'{share:.0%}')
  tables.show(table)


@pictures.every_script()
def draw(maps: Maps, out: Path) -> None:
  """Draw one panel per head: queries down, keys across, darker is more."""
  layers, heads, length, _ = maps.weights.shape
  side = min(4.0 if layers * heads > 1 else 9.0, max(1.6, 0.16 * length))
  figure = pictures.new(side * heads + 1, side * layers + 1)
  grid: Any = figure.subplots(layers, heads, squeeze=False)
  tokens, hidden = [pictures.plain(token) for token in maps.tokens], [''] * length
  for layer, head in np.ndindex(layers, heads):
    axes = grid[layer][head]
    image = axes.imshow(maps.weights[layer, head], cmap='Blues', vmin=0, vmax=1)
    axes.set_title(f'layer {maps.layers[layer]}, head {maps.heads[head]}', fontsize=8)
    axes.set_xticks(range(length), tokens if layer == layers - 1 else hidden, rotation=90, fontsize=6)
    axes.set_yticks(range(length), tokens if head == 0 else hidden, fontsize=6)
    axes.tick_params(length=0)
  figure.supxlabel('key', fontsize=8)
  figure.supylabel('query', fontsize=8)
  figure.colorbar(image, ax=grid, label='attention weight', fraction=0.05)
  pictures.save(figure, out)
