"""The attention weights of every head for one text: a picture, and the distance and entropy of each head."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from plm_jax.cli import pictures, tables
from plm_jax.core.errors import ConfigError
from plm_jax.inference.opened import Opened
from plm_jax.io import files
from plm_jax.training.parts import check_length


class Maps(NamedTuple):
  """What the heads of a model look at in one text.

  Attributes:
    tokens: the text, token by token.
    weights: f32[n, h, l, l]; `weights[layer, head, query]` is a distribution over the positions.
  """

  tokens: list[str]
  weights: np.ndarray


def look(model: Opened, *, text: str) -> Maps:
  """Runs the trunk of a model on a text and keeps its attention weights.

  Args:
    model: a run, an import or a release.
    text: of a few words.

  Raises:
    ConfigError: the trunk reads something else than one text, or has no attention; or the text is longer than what it
      has positions for.
  """
  trunk = model.trunk
  if trunk.ATTENTION in ('encoder-decoder', 'none'):
    raise ConfigError(
      f'heads: the {trunk.NAME} in {model.folder} has {trunk.ATTENTION} attention; name the folder of a model with '
      'attention in one stack'
    )
  (read,) = model.read([text])
  check_length(trunk, len(read.ids), where='the text')
  names = [model.vocab.decode([token]).strip() or model.vocab.token(token) for token in read.ids]
  return Maps(names, _weights(trunk, model.params, read.ids))


def _weights(trunk: nn.Module, params: Any, ids: Sequence[int]) -> np.ndarray:
  """f32[n, h, l, l] of one row, from what the blocks sow into the collection 'attention'."""
  missing = ConfigError(f'heads: a {trunk.NAME} has no attention weights; name the folder of a model with attention')
  if 'tokens' not in trunk.INPUTS:  # it reads words by their letters, as ELMo
    raise missing
  tokens = jnp.asarray([ids])
  look = jax.jit(
    lambda params: trunk.apply({'params': params}, tokens, segment_ids=jnp.ones_like(tokens), mutable=['attention'])
  )
  _, sown = look(params)
  found = _in_order(sown.get('attention', {}))
  if not found:
    raise missing
  return np.concatenate([layers[:, 0] for layers in found])


def _in_order(sown: Mapping[str, Any]) -> list[np.ndarray]:
  """What was sown, from the first layer to the last: each f32[layers, b, h, l, l].

  Blocks of the scan are stacked, at any depth: under 'layers', or under a stack's own name. DeBERTa's blocks outside of
  the scan stand beside it under 'first' and 'last'.
  """
  places = {'first': 0, 'last': 2}
  found: list[np.ndarray] = []
  for name in sorted(sown, key=lambda name: places.get(name, 1)):
    if isinstance(sown[name], Mapping):
      found += _in_order(sown[name])
    else:
      found += [np.asarray(leaf).reshape(-1, *leaf.shape[-4:]) for leaf in jax.tree.leaves(sown[name])]
  return found


class Head(NamedTuple):
  """How one head looks.

  Attributes:
    layer: from 0.
    head: from 0.
    distance: mean distance in tokens between a query and what it looks at.
    entropy: of its weights in bits, mean over the queries.
    uniform: of weights that are equal wherever the head may look, in bits.
  """

  layer: int
  head: int
  distance: float
  entropy: float
  uniform: float


def measure(maps: Maps) -> list[Head]:
  """Distance and entropy of every head."""
  length = len(maps.tokens)
  distance = np.abs(np.arange(length)[:, None] - np.arange(length))
  heads = []
  for layer, head in np.ndindex(maps.weights.shape[:2]):
    shares = maps.weights[layer, head]  # [l, l]
    entropy = -(shares * np.log2(np.maximum(shares, 1e-30))).sum(axis=-1).mean()
    uniform = np.log2(np.maximum((shares > 0).sum(axis=-1), 1)).mean()
    heads.append(Head(layer, head, (shares * distance).sum(axis=-1).mean(), entropy, uniform))
  return heads


def show(heads: Sequence[Head], *, title: str) -> None:
  """Prints a table with a row per head."""
  table = Table(title=title)
  for column in ('layer', 'head', 'mean distance', 'entropy, bits', 'of uniform'):
    table.add_column(column, justify='right')
  for head in heads:
    share = head.entropy / max(head.uniform, 1e-9)
    table.add_row(f'{head.layer}', f'{head.head}', f'{head.distance:.1f}', f'{head.entropy:.2f}', f'{share:.0%}')
  tables.show(table)


@pictures.every_script()
def draw(maps: Maps, out: Path) -> None:
  """Writes one picture with a panel per head: queries down, keys across, darker is more."""
  from matplotlib.figure import Figure

  layers, heads, length, _ = maps.weights.shape
  side = min(4.0, max(1.6, 0.16 * length))
  figure = Figure(figsize=(side * heads + 1, side * layers + 1), layout='constrained')
  grid: Any = figure.subplots(layers, heads, squeeze=False)
  tokens, hidden = [pictures.plain(token) for token in maps.tokens], [''] * length
  for layer, head in np.ndindex(layers, heads):
    axes = grid[layer][head]
    axes.imshow(maps.weights[layer, head], cmap='Blues', vmin=0, vmax=1)
    axes.set_title(f'layer {layer}, head {head}', fontsize=8)
    axes.set_xticks(range(length), tokens if layer == layers - 1 else hidden, rotation=90, fontsize=6)
    axes.set_yticks(range(length), tokens if head == 0 else hidden, fontsize=6)
    axes.tick_params(length=0)
  with files.replacing(out) as temporary:
    figure.savefig(temporary, format=pictures.form_of(out), dpi=130)
