"""Gradual pruning in training: masks of the smallest weights or heads (Zhu & Gupta 2017; 1710.01878).

    adapter = dict(name='prune', sparsity=0.9, begin=100, end=600, inner=dict(name='classify', classes=2))

The masks are stored outside the trunk under the paths of their kernels. They are recomputed every `every` steps until
the schedule has reached its sparsity, and then fixed. Pruned weights are set to 0 after every update, so neither
moments nor weight decay restore them, and they stay 0 in exports. In the paper pruned weights retain their values; here
a pruned weight stays pruned. Biases, norms, tables and parameters outside the trunk are not pruned.
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
from plm_jax.core.keywords import Count, NonNegativeInt
from plm_jax.core.types import Array, Supervised, Task, Vocab

PAPER = Supervised(year=2017, title='Zhu & Gupta', extension='compressed')
READS = ()  # in addition to the inner task
ADDS = 'prune'

Unit = Literal['weight', 'head']
Scope = Literal['all', 'matrix']


class PruneSettings(NamedTuple):
  """Targets and schedule; the settings are explained in `make`."""

  targets: Mapping[str, Axes]  # path of each pruned dense layer -> its axes
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
  """Train the inner task while pruning the trunk.

  Args:
    sparsity: final share of pruned weights (or heads).
    unit: 'weight' prunes single weights, 'head' whole attention heads by their output projections.
    scope: 'all' compares all targets with each other, 'matrix' the weights (heads) of one matrix.
    targets: dense layers: the last part of their path, or a regular expression of the whole path; for heads always
      those named 'out'.
    begin: updates before the first mask; at 0 the network that `init_from` names is pruned before training.
    end: updates at which `sparsity` is reached, on a cubic schedule; up to `begin` everything is pruned at once.
    every: updates between two masks.

  Raises:
    ValueError: the inner task is a wrapper or freezes its trunk, a target is not a dense layer, or there are no heads.
  """
  errors.one_of('adapter.unit', unit, Unit)
  errors.one_of('adapter.scope', scope, Scope)
  layers = wrapped.named(('out',) if unit == 'head' else targets, trunk, what='adapter.targets')
  if unit == 'head' and (flat := [path for path, axes in layers.items() if axes.inputs != 2]):
    raise ValueError(
      f"adapter.unit='head': {flat[0]} of {type(trunk).__name__} has no axis of heads: set adapter.unit='weight'"
    )
  s = PruneSettings(
    targets=layers, sparsity=sparsity, unit=unit, scope=scope, begin=begin, end=max(begin, end), every=every
  )
  added = wrapped.Added(
    name=ADDS, make=partial(masks, s), read=masked, trained=(f'(?!{ADDS}/).*',), advance=partial(advance, s)
  )
  return wrapped.make_task(inner, added, trunk=trunk, vocab=vocab, second_vocab=second_vocab)


def masks(s: PruneSettings, leaves: Mapping[str, Any], key: Array) -> dict[str, Any]:
  """Initialise a mask of ones for each target, below its path."""
  added: dict[str, Any] = {}
  for path in s.targets:
    if (kernel := leaves.get(f'{path}/kernel')) is None:  # unused by the inner task, such as a pooler
      continue
    shape, names = nn.unbox(kernel).shape, wrapped.axis_names(kernel)
    if s.unit == 'head':  # [..., h, k, d] -> [..., h, 1, 1]
      shape, names = (*shape[:-2], 1, 1), (*names[:-2], None, None)
    added[f'{path}/mask'] = wrapped.boxed(jnp.ones(shape), names)
  return added


def masked(leaves: Mapping[str, Any], added: Mapping[str, Any], rng: Array | None = None) -> dict[str, Any]:
  """Set pruned weights, and so their gradients, to 0."""
  kernels = {kernel_of(path): mask for path, mask in added.items()}
  return {**leaves, **{path: jnp.where(mask > 0, leaves[path], 0.0) for path, mask in kernels.items()}}


def advance(
  s: PruneSettings, leaves: dict[str, Any], added: dict[str, Any], step: Array
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Update due masks and apply them to the parameters."""
  in_schedule = (step >= s.begin) & (step <= s.end)
  due = in_schedule & ((step == s.begin) | (step == s.end) | (step % s.every == 0))
  added = jax.lax.cond(due, lambda: new_masks(s, leaves, added, step), lambda: added)
  return masked(leaves, added), added


def new_masks(
  s: PruneSettings, leaves: Mapping[str, Array], added: Mapping[str, Array], step: Array
) -> dict[str, Array]:
  """Compute masks of the smallest weights or heads at the current sparsity."""
  sparsity = prune.cubic(step, sparsity=s.sparsity, begin=s.begin, end=s.end)
  importance = {}
  for path in added:
    kernel = leaves[kernel_of(path)]
    importance[path] = jnp.abs(kernel) if s.unit == 'weight' else prune.head_norms(kernel)
  if s.scope == 'all':
    return prune.keep_among_all(importance, sparsity)
  return {
    path: prune.keep_in_each(values, sparsity, layers=values.ndim - sum(s.targets[path.removesuffix('/mask')]))
    for path, values in importance.items()
  }


def fold(kernel: np.ndarray, added: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> np.ndarray:
  """Apply the mask to a kernel or to a layer of one."""
  return np.where(added['mask'] > 0, kernel, np.float32(0))


def kernel_of(path: str) -> str:
  """Map a path: 'trunk/layers/query/mask' -> 'trunk/layers/query/kernel'."""
  return f'{path.removesuffix("/mask")}/kernel'
