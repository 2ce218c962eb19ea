"""Bottlenecks: y + up(gelu(down(y))) inside the sublayers of a frozen trunk (Houlsby et al. 2019, §2.1; 1902.00751).

    adapter = dict(name='bottleneck', width=64, inner=dict(name='classify', classes=2))

A bottleneck stands behind the output projection of attention and behind the feed-forward layer, before the residual is
added; T5's paper has one behind the feed-forward layer alone (Raffel et al. 2019, §3.5.1): targets=('down',). The norms
of the trunk and the head train with it. Each has d m + m + m d + d parameters.

Differs from the released code: `up` begins at zero and not at N(0, .001), so that a run begins as the inner task
(up_std=1e-3 is theirs); dropout of the sublayer comes after the bottleneck, there before it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.adapters import wrapped
from plm_jax.adapters.wrapped import Axes
from plm_jax.core.types import Array, Count, Paper, Std, Task, Vocab
from plm_jax.layers.linear import truncated_normal

PAPER = Paper(
  year=2019, title='Houlsby et al.', architecture='any', objective_family='supervised', supervision='supervised'
)
READS = ()  # beside what the inner task reads
ADDS = 'bottleneck'


class Setup(NamedTuple):
  """Where bottlenecks stand, and how they begin; settings are explained in `make`.

  Attributes:
    targets: path of each dense layer with a bottleneck behind it -> its axes.
  """

  targets: Mapping[str, Axes]
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
  """Trains bottlenecks, the norms of the trunk and the head of the inner task.

  Args:
    trunk: any trunk.
    vocab: of the rows.
    second_vocab: of the run, for an inner task that takes one.
    inner: an adapter or an objective, and its keywords.
    width: m, between down and up; 64 for GLUE, 32 to 2048 for T5.
    targets: dense layers behind which bottlenecks stand: the last part of their path, or a regular expression of the
      whole path.
    init_std: of the truncated normal that `down` begins from.
    up_std: of the one for `up`; 0 begins as the inner task.
    trained: patterns of other parameters that train: by default everything outside the trunk, and norms.

  Raises:
    ValueError: the inner task is a wrapper or freezes its trunk, or a target is no dense layer with one output axis.
  """
  s = Setup(wrapped.named(targets, trunk, what='adapter.targets'), width, init_std, up_std)
  if odd := [path for path, axes in s.targets.items() if axes.outputs != 1]:
    raise ValueError(
      f'adapter.targets: {odd[0]} has {s.targets[odd[0]].outputs} output axes, and a bottleneck reads one'
    )
  added = wrapped.Added(ADDS, partial(add, s), partial(wrapped.grafted, grafts), tuple(trained))
  return wrapped.make_task(inner, added, trunk=trunk, vocab=vocab, second_vocab=second_vocab)


def add(s: Setup, leaves: Mapping[str, Any], key: Array) -> dict[str, Any]:
  """The two layers of every bottleneck, below the path of the layer that they stand behind."""
  added: dict[str, Any] = {}
  for path, axes in s.targets.items():
    if (kernel := leaves.get(f'{path}/kernel')) is None:
      continue
    names, shape = wrapped.axis_names(kernel), nn.unbox(kernel).shape
    count = len(shape) - axes.inputs - 1  # axes before those of the matrix
    layers, numbers, name, size = shape[:count], names[:count], names[-1], shape[-1]
    down = truncated_normal(s.init_std)(wrapped.own_key(key, f'{path}/down'), (*layers, size, s.width), jnp.float32)
    up = truncated_normal(s.up_std)(wrapped.own_key(key, f'{path}/up'), (*layers, s.width, size), jnp.float32)
    added[f'{path}/down'] = wrapped.boxed(down, (*numbers, name, None))
    added[f'{path}/down_bias'] = wrapped.boxed(jnp.zeros((*layers, s.width)), (*numbers, None))
    added[f'{path}/up'] = wrapped.boxed(up, (*numbers, None, name))
    added[f'{path}/up_bias'] = wrapped.boxed(jnp.zeros((*layers, size)), (*numbers, name))
  return added


def grafts(added: Mapping[str, Any]) -> dict[str, Any]:
  """Where the trunk reads what is added: 'trunk/layers/out/down' -> 'trunk/layers/out/bottleneck/down'."""
  return {f'{place}/{ADDS}/{part}': leaf for path, leaf in added.items() for place, _, part in [path.rpartition('/')]}
