"""LoRA: a frozen matrix W is replaced by W + (alpha / r) A B with small trained A and B (Hu et al. 2021, §4.1).

    adapter = dict(name='lora', rank=8, alpha=16.0, targets=('query', 'value'), inner=dict(name='classify', classes=2))

A is initialised Kaiming-uniform as in the released code, B to zero, so a run starts as the inner task. Both are stored
outside the trunk under the path of their matrix: A [..., i, r] and B [..., r, o...]. In a stack of layers each layer
has its own; layers that share a matrix (ALBERT) share them. The model runs on W + (alpha / r) A B, the same matrices
that generation and export read. Each adapted matrix adds r (i + o) parameters.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.adapters import wrapped
from plm_jax.adapters.wrapped import Axes
from plm_jax.core.keywords import Count, PartRate
from plm_jax.core.types import HEADS, Array, Supervised, Task, Vocab
from plm_jax.layers.dropout import drop

PAPER = Supervised(year=2021, title='Hu et al., LoRA')
READS = ()  # in addition to the inner task
ADDS = 'lora'


class LoraSettings(NamedTuple):
  """Targets and updates; the settings are explained in `make`."""

  targets: Mapping[str, Axes]  # path of each dense layer with an update -> its axes
  rank: int
  alpha: float
  dropout: float


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  second_vocab: Vocab | None = None,
  inner: Annotated[Mapping[str, Any], 'adapters | objectives'],
  targets: Sequence[Annotated[str, 'pattern']] = ('query', 'value'),
  rank: Count = 8,
  alpha: Annotated[float, '0 < x <= 1_000_000'] = 16.0,
  dropout: PartRate = 0.0,
  trained: Sequence[Annotated[str, 'pattern']] = HEADS,
) -> Task:
  """Train low-rank updates of matrices of the trunk, and the head.

  Args:
    targets: dense layers of the trunk: the last part of their path, or a regular expression of the whole path
      ('trunk/layers/mlp/.*').
    rank: r, of each update.
    alpha: the update is multiplied by alpha / r.
    dropout: dropout rate on the inputs of an update in training. One mask holds for all positions of a call, since the
      update is part of the matrix; the released code samples a mask for each position.
    trained: patterns of other parameters that train; by default everything outside the trunk. Norms and biases as well:
      ('(?!trunk/).*', '.*/(bias|scale)').

  Raises:
    ValueError: the inner task is a wrapper or freezes its trunk, or a target is not a dense layer of the trunk.
  """
  layers = wrapped.named(targets, trunk, what='adapter.targets')
  s = LoraSettings(targets=layers, rank=rank, alpha=alpha, dropout=dropout)
  added = wrapped.Added(name=ADDS, make=partial(add, s), read=partial(updated, s), trained=tuple(trained))
  return wrapped.make_task(inner, added, trunk=trunk, vocab=vocab, second_vocab=second_vocab)


def add(s: LoraSettings, leaves: Mapping[str, Any], key: Array) -> dict[str, Any]:
  """Initialise A and B of every target, below its path."""
  added: dict[str, Any] = {}
  for path, axes in s.targets.items():
    if (kernel := leaves.get(f'{path}/kernel')) is None:  # unused by the inner task, such as a pooler
      continue
    names, shape = wrapped.axis_names(kernel), nn.unbox(kernel).shape
    layers = len(shape) - axes.inputs - axes.outputs  # axes before those of the matrix
    inputs = int(np.prod(shape[layers : layers + axes.inputs]))
    if s.rank > (most := min(inputs, int(np.prod(shape[layers + axes.inputs :])))):
      raise ValueError(f'adapter.rank={s.rank} is more than the {most} of {path}: set it to {most} or less')
    name = names[layers] if axes.inputs == 1 else None
    bound = inputs**-0.5  # Kaiming-uniform with a = sqrt(5): sqrt(6 / ((1 + 5) inputs))
    a = jax.random.uniform(wrapped.own_key(key, path), (*shape[:layers], inputs, s.rank), minval=-bound, maxval=bound)
    b = jnp.zeros((*shape[:layers], s.rank, *shape[layers + axes.inputs :]))
    added[f'{path}/a'] = wrapped.boxed(a, (*names[:layers], name, None))
    added[f'{path}/b'] = wrapped.boxed(b, (*names[:layers], None, *names[layers + axes.inputs :]))
  return added


def updated(
  s: LoraSettings, leaves: Mapping[str, Any], added: Mapping[str, Any], rng: Array | None = None
) -> dict[str, Any]:
  """Add updates to their kernels; a key applies dropout to them."""
  merged = dict(leaves)
  with jax.default_matmul_precision('highest'):
    for path in sorted({path.rpartition('/')[0] for path in added}):
      a, kernel = added[f'{path}/a'], leaves[f'{path}/kernel']
      if s.dropout and rng is not None:
        a = a * drop(jnp.ones((*a.shape[:-1], 1)), rate=s.dropout, rng=wrapped.own_key(rng, path), rows=False)
      merged[f'{path}/kernel'] = kernel + s.alpha / s.rank * product(a, added[f'{path}/b']).reshape(kernel.shape)
  return merged


def product(a: Any, b: Any) -> Any:
  """Multiply A [..., i, r] by B [..., r, o...].

  Returns [..., i, o] with all outputs in one axis; both are JAX or both NumPy arrays.
  """
  return a @ b.reshape(*b.shape[: a.ndim - 1], -1)


def fold(kernel: np.ndarray, added: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> np.ndarray:
  """Add an update to a kernel [..., i..., o...] or a layer."""
  scale = np.float32(settings['alpha'] / settings['rank'])
  return kernel + scale * product(added['a'], added['b']).reshape(kernel.shape)
