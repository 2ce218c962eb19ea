"""Pruning while a network is trained: masks of its smallest weights or heads (Zhu & Gupta 2017; 1710.01878).

    adapter = dict(name='prune', sparsity=0.9, begin=100, end=600, inner=dict(name='classify', classes=2))

The masks stand beside the trunk under the paths of their kernels. They are drawn anew every so many steps until the
schedule has reached its sparsity, and then kept; what is pruned is set to 0 after every update, so that neither moments
nor weight decay bring it back, and it stays 0 in whatever is exported. The paper lets pruned weights keep their values;
here a weight that was pruned stays pruned. Biases, norms, tables and what stands outside the trunk are not pruned.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.adapters import wrapped
from plm_jax.adapters.wrapped import Axes
from plm_jax.compression import prune
from plm_jax.core import errors
from plm_jax.core.types import Array, Count, Paper, Task, Vocab, NonNegativeInt

PAPER = Paper(
  year=2017,
  title='Zhu & Gupta',
  architecture='any',
  objective_family='supervised',
  supervision='supervised',
  extension='compressed',
)
READS = ()  # beside what the inner task reads
ADDS = 'prune'

Unit = Literal['weight', 'head']
Scope = Literal['all', 'matrix']


class Setup(NamedTuple):
  """What is pruned, and when; settings are explained in `make`.

  Attributes:
    targets: path of each dense layer that is pruned -> its axes.
  """

  targets: Mapping[str, Axes]
  sparsity: float
  unit: Unit
  scope: Scope
  begin: int
  end: int
  every: int


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  second_vocab: Vocab | None = None,
  inner: Annotated[Mapping[str, Any], 'adapters | objectives'],
  sparsity: Annotated[float, '0 <= x < 1'] = 0.5,
  unit: Unit = 'weight',
  scope: Scope = 'all',
  targets: Sequence[Annotated[str, 'pattern']] = ('.*',),
  begin: NonNegativeInt = 0,
  end: NonNegativeInt = 0,
  every: Count = 100,
) -> Task:
  """Trains the inner task on what is not pruned.

  Args:
    trunk: any trunk.
    vocab: of the rows.
    second_vocab: of the run, for an inner task that takes one.
    inner: an adapter or an objective, and its keywords.
    sparsity: share of the weights (or heads) that is pruned in the end.
    unit: 'weight' prunes single weights, 'head' whole attention heads by their output projections.
    scope: 'all' compares all targets with each other, 'matrix' the weights (heads) of one matrix.
    targets: dense layers: the last part of their path, or a regular expression of the whole path; for heads they are
      those named 'out' in any case.
    begin: updates before the first mask; at 0 the network that `init_from` names is pruned before it is trained.
    end: updates at which `sparsity` is reached, along a cubic; up to `begin` all is pruned at once.
    every: updates between two masks on the way.

  Raises:
    ValueError: the inner task is a wrapper or freezes its trunk, a target is no dense layer, or there are no heads.
  """
  errors.one_of('adapter.unit', unit, Unit)
  errors.one_of('adapter.scope', scope, Scope)
  if unit == 'head':
    targets = ('out',)
  found = wrapped.named(targets, trunk, what='adapter.targets')
  if unit == 'head' and (odd := [path for path, axes in found.items() if axes.inputs != 2]):
    raise ValueError(
      f"adapter.unit='head': {odd[0]} of this {type(trunk).__name__} has no axis of heads: take 'weight'"
    )
  s = Setup(found, sparsity, unit, scope, begin, max(begin, end), every)
  added = wrapped.Added(ADDS, partial(masks, s), masked, (f'(?!{ADDS}/).*',), partial(advance, s))
  return wrapped.make_task(inner, added, trunk=trunk, vocab=vocab, second_vocab=second_vocab)


def masks(s: Setup, leaves: Mapping[str, Any], key: Array) -> dict[str, Any]:
  """A mask of ones for each target, below the path of its dense layer."""
  del key
  added: dict[str, Any] = {}
  for path in s.targets:
    if (kernel := leaves.get(f'{path}/kernel')) is None:  # a pooler, say, that the inner task has no use for
      continue
    shape, names = nn.unbox(kernel).shape, wrapped.axis_names(kernel)
    if s.unit == 'head':  # [..., h, k, d] -> [..., h, 1, 1]
      shape, names = (*shape[:-2], 1, 1), (*names[:-2], None, None)
    added[f'{path}/mask'] = wrapped.boxed(jnp.ones(shape), names)
  return added


def masked(leaves: Mapping[str, Any], added: Mapping[str, Any], rng: Array | None = None) -> dict[str, Any]:
  """The parameters of the inner model, with 0 where their masks have it; their gradient is 0 there as well."""
  del rng
  kernels = {kernel_of(path): mask for path, mask in added.items()}
  return {**leaves, **{path: jnp.where(mask > 0, leaves[path], 0.0) for path, mask in kernels.items()}}


def advance(
  s: Setup, leaves: dict[str, Any], added: dict[str, Any], step: Array
) -> tuple[dict[str, Any], dict[str, Any]]:
  """The parameters and their masks after `step` updates: the masks that are due, and 0 in what is pruned."""
  on_the_way = (step >= s.begin) & (step <= s.end)
  due = on_the_way & ((step == s.begin) | (step == s.end) | (step % s.every == 0))
  added = jax.lax.cond(due, lambda: draw(s, leaves, added, step), lambda: added)
  return masked(leaves, added), added


def draw(s: Setup, leaves: Mapping[str, Array], added: Mapping[str, Array], step: Array) -> dict[str, Array]:
  """The masks of the smallest weights or heads at the sparsity that the schedule has reached."""
  sparsity = prune.cubic(step, sparsity=s.sparsity, begin=s.begin, end=s.end)
  importance = {}
  for path in added:
    kernel = leaves[kernel_of(path)]
    importance[path] = jnp.abs(kernel) if s.unit == 'weight' else prune.head_norms(kernel)
  if s.scope == 'all':
    return prune.keep_among_all(importance, sparsity)
  return {
    path: prune.keep_in_each(one, sparsity, layers=one.ndim - sum(s.targets[path.removesuffix('/mask')]))
    for path, one in importance.items()
  }


def fold(kernel: np.ndarray, added: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> np.ndarray:
  """A kernel, or one layer of a stacked one, with 0 where its mask has it."""
  del settings
  return np.where(added['mask'] > 0, kernel, np.float32(0))


def kernel_of(path: str) -> str:
  """'trunk/layers/query/mask' -> 'trunk/layers/query/kernel'."""
  return f'{path.removesuffix("/mask")}/kernel'
