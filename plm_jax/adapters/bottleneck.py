"""Bottlenecks: y + up(gelu(down(y))) inside the sublayers of a frozen trunk (Houlsby et al. 2019, §2.1; 1902.00751).

    adapter = dict(name='bottleneck', width=64, inner=dict(name='classify', classes=2))

A bottleneck follows the output projection of attention and the feed-forward layer, before the residual is added. T5's
paper has one after the feed-forward layer only (Raffel et al. 2019, §3.5.1): targets=('down',). The norms of the trunk
and the head train with it. Each bottleneck has d m + m + m d + d parameters.

Differences from the released code: `up` is initialised to zero instead of N(0, .001), so that a run starts as the
inner task (up_std=1e-3 is theirs). Dropout of the sublayer comes after the bottleneck instead of before it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.adapters import wrapped
from plm_jax.adapters.wrapped import Axes
from plm_jax.core.keywords import Count, Std
from plm_jax.core.types import Array, Supervised, Task, Vocab
from plm_jax.layers.linear import truncated_normal

PAPER = Supervised(year=2019, title='Houlsby et al.')
READS = ()  # in addition to the inner task
ADDS = 'bottleneck'


class BottleneckSettings(NamedTuple):
  """Targets and initialisation of bottlenecks; the settings are explained in `make`."""

  targets: Mapping[str, Axes]  # path of each dense layer that a bottleneck follows -> its axes
  width: int
  init_std: float
  up_std: float


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  second_vocab: Vocab | None = None,
  inner: Annotated[Mapping[str, Any], 'adapters | objectives'],
  width: Count = 64,
  targets: Sequence[Annotated[str, 'pattern']] = ('out', 'down'),
  init_std: Std = 1e-3,
  up_std: Std = 0.0,
  trained: Sequence[Annotated[str, 'pattern']] = wrapped.HEADS_AND_NORMS,
) -> Task:
  """Train bottlenecks, norms and the head of the inner task.

  Args:
    width: m, between down and up; 64 for GLUE, 32 to 2048 for T5.
    targets: dense layers that a bottleneck follows: the last part of their path, or a regular expression of the whole
      path.
    init_std: standard deviation of the truncated normal that initialises `down`.
    up_std: the same for `up`; 0 starts as the inner task.
    trained: patterns of other parameters that train: by default everything outside the trunk, and norms.

  Raises:
    ValueError: the inner task is a wrapper or freezes its trunk, or a target is not a dense layer with one output axis.
  """
  layers = wrapped.named(targets, trunk, what='adapter.targets')
  s = BottleneckSettings(targets=layers, width=width, init_std=init_std, up_std=up_std)
  if wide := [path for path, axes in layers.items() if axes.outputs != 1]:
    raise ValueError(
      f'adapter.targets: {wide[0]} has {layers[wide[0]].outputs} output axes and a bottleneck needs 1: '
      "name other layers, such as ('out', 'down')"
    )
  added = wrapped.Added(name=ADDS, make=partial(add, s), read=partial(wrapped.grafted, grafts), trained=tuple(trained))
  return wrapped.make_task(inner, added, trunk=trunk, vocab=vocab, second_vocab=second_vocab)


def add(s: BottleneckSettings, leaves: Mapping[str, Any], key: Array) -> dict[str, Any]:
  """Initialise every bottleneck, below the path of the layer before it."""
  added: dict[str, Any] = {}
  for path, axes in s.targets.items():
    if (kernel := leaves.get(f'{path}/kernel')) is None:
      continue
    names, shape = wrapped.axis_names(kernel), nn.unbox(kernel).shape
    count = len(shape) - axes.inputs - 1  # axes before those of the matrix
    layers, layer_names, name, size = shape[:count], names[:count], names[-1], shape[-1]
    down = truncated_normal(s.init_std)(wrapped.own_key(key, f'{path}/down'), (*layers, size, s.width), jnp.float32)
    up = truncated_normal(s.up_std)(wrapped.own_key(key, f'{path}/up'), (*layers, s.width, size), jnp.float32)
    added[f'{path}/down'] = wrapped.boxed(down, (*layer_names, name, None))
    added[f'{path}/down_bias'] = wrapped.boxed(jnp.zeros((*layers, s.width)), (*layer_names, None))
    added[f'{path}/up'] = wrapped.boxed(up, (*layer_names, None, name))
    added[f'{path}/up_bias'] = wrapped.boxed(jnp.zeros((*layers, size)), (*layer_names, name))
  return added


def grafts(added: Mapping[str, Any]) -> dict[str, Any]:
  """Rename added parameters: 'trunk/layers/out/down' -> 'trunk/layers/out/bottleneck/down'."""
  return {f'{layer}/{ADDS}/{part}': leaf for path, leaf in added.items() for layer, _, part in [path.rpartition('/')]}
