"""Quantisation-aware training: the network runs on weights rounded to 8 bits (Jacob et al. 2017, §3).

    adapter = dict(name='quantise', inner=dict(name='classify', classes=2))

Dense layers and vocabulary tables of the trunk are rounded to 8 bits in every pass, with a scale per output channel
(compression/quantise.py); gradients pass the rounding unchanged. The scales are stored outside the trunk and updated
with the weights. A run is opened, exported and used for generation with rounded weights, so
`plm-jax compress --methods=int8` writes the same network as int8, with these scales. Q8BERT (Zafrir et al. 2019) also
rounds activations, which stay in float32 here.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any

import flax.linen as nn
import numpy as np

from plm_jax.adapters import wrapped
from plm_jax.compression import quantise
from plm_jax.core.types import Array, Supervised, Task, Vocab
from plm_jax.layers.linear import Dense, Embed

PAPER = Supervised(year=2017, title='Jacob et al.', extension='compressed')
READS = ()  # in addition to the inner task
ADDS = 'quantise'

TABLES = ('token_embed', 'output')  # vocabulary tables; other tables are small, and some are read differently
Channels = Mapping[str, tuple[int, ...]]  # path of a leaf -> its axes within a channel, from the end


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  second_vocab: Vocab | None = None,
  inner: Annotated[Mapping[str, Any], 'adapters | objectives'],
) -> Task:
  """Train the inner task with the trunk's weights in 8 bits.

  Raises:
    ValueError: the inner task is a wrapper or freezes its trunk.
  """
  channels = channels_of(trunk)
  make_scales, read, update = partial(scales, channels), partial(rounded, channels), partial(advance, channels)
  added = wrapped.Added(name=ADDS, make=make_scales, read=read, trained=(f'(?!{ADDS}/).*',), advance=update)
  return wrapped.make_task(inner, added, trunk=trunk, vocab=vocab, second_vocab=second_vocab)


def channels_of(trunk: nn.Module) -> dict[str, tuple[int, ...]]:
  """Find the quantised kernels and tables of a trunk, without computing anything.

  Returns:
    path, such as 'trunk/layers/query/kernel' -> axes within a channel, counted from the end.
  """

  def is_rounded(module: Any) -> bool:
    return isinstance(module, Dense) or (isinstance(module, Embed) and module.name in TABLES)

  def within(inputs: int, outputs: int) -> tuple[int, ...]:
    return tuple(range(-inputs - outputs, -outputs)) if inputs else (-1,)  # of a table

  return {path: within(*axes) for path, axes in wrapped.matrices(trunk, is_rounded).items()}


def scales(channels: Channels, leaves: Mapping[str, Any], key: Array) -> dict[str, Any]:
  """Compute the scales of each leaf, below the path of its module."""
  added: dict[str, Any] = {}
  for path, axes in channels.items():
    if (leaf := leaves.get(path)) is None:  # unused by the inner task, such as a pooler
      continue
    scale, names = quantise.scales(nn.unbox(leaf), axes), wrapped.axis_names(leaf)
    within = {axis % len(names) for axis in axes}
    own = tuple(None if axis in within else name for axis, name in enumerate(names))
    added[_scale_path(path)] = wrapped.boxed(scale, own)
  return added


def rounded(
  channels: Channels, leaves: Mapping[str, Any], added: Mapping[str, Any], rng: Array | None = None
) -> dict[str, Any]:
  """Round the parameters in `channels` to 8 bits."""
  present = {path: added[_scale_path(path)] for path in channels if _scale_path(path) in added}
  return {**leaves, **{path: quantise.fake(leaves[path], scale) for path, scale in present.items()}}


def advance(
  channels: Channels, leaves: dict[str, Any], added: dict[str, Any], step: Array
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Recompute the scales of the parameters."""
  present = {path: axes for path, axes in channels.items() if _scale_path(path) in added}
  return leaves, {_scale_path(path): quantise.scales(leaves[path], axes) for path, axes in present.items()}


def fold(weights: np.ndarray, added: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> np.ndarray:
  """Round a kernel or table, or a layer of one."""
  return quantise.dequantise(quantise.quantise(weights, added['scale']), added['scale'])


def places_of_scales(weights: Iterable[str]) -> dict[str, str]:
  """Map paths of kernels and tables to those of saved scales."""
  return {path: f'{ADDS}/{_scale_path(path)}' for path in weights if path.endswith(('/kernel', '/table'))}


def _scale_path(path: str) -> str:
  """Map a path: 'trunk/layers/query/kernel' -> 'trunk/layers/query/scale'."""
  return f'{path.rpartition("/")[0]}/scale'
