"""Prefix tuning: trained keys and values before those of every layer of a frozen trunk (Li and Liang 2021; 2101.00190).

    adapter = dict(name='prefix', length=10, mlp_dim=512, inner=dict(name='causal_lm'))

In training the vectors of all layers come from one table through a dense layer, tanh, and a dense layer for each layer
of the trunk (§4.3). The trunk reads keys and values alone, so what makes them is dropped where a run is opened to
generate. Every query of every attention sees them, those of encoders and of cross-attention too. They have no position:
T5's bias and the terms of DeBERTa and XLNet for distances are 0 there, and rotary positions do not turn them. Kernels
of attention do not take such a mask: 'auto' computes the plain formula.

With w = mlp_dim, p = length and n layers of width d: p d + (d + 1) w + (w + 1) 2 n d parameters; without w, 2 n p d. A
run does not begin as the inner task: keys of any value take a share of the attention.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters import wrapped
from plm_jax.core.types import HEADS, Array, Count, Paper, Std, Task, Vocab, NonNegativeInt
from plm_jax.layers.linear import normal

PAPER = Paper(
  year=2021,
  title='Li and Liang, prefix tuning',
  architecture='any',
  objective_family='supervised',
  supervision='supervised',
)
READS = ()  # beside what the inner task reads
ADDS = 'prefix'


class Setup(NamedTuple):
  """Which attention has a prefix, and how it is made; settings are explained in `make`.

  Attributes:
    places: paths of the modules with a 'key' and a 'value' layer.
    hidden_dim: d, of the trunk.
  """

  places: tuple[str, ...]
  hidden_dim: int
  length: int
  mlp_dim: int
  init_std: float


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  second_vocab: Vocab | None = None,
  inner: Annotated[Mapping[str, Any], 'adapters | objectives'],
  length: Count = 10,
  mlp_dim: NonNegativeInt = 512,
  init_std: Std = 0.02,
  trained: Sequence[Annotated[str, 'pattern']] = HEADS,
) -> Task:
  """Trains keys and values of every layer, and the head of the inner task.

  Args:
    trunk: one with attention.
    vocab: of the rows.
    second_vocab: of the run, for an inner task that takes one.
    inner: an adapter or an objective, and its keywords.
    length: p, of the prefix.
    mlp_dim: w, width between the two layers that make the vectors; 0 trains the vectors themselves.
    init_std: of tables and kernels.
    trained: patterns of other parameters that train; by default everything outside the trunk.

  Raises:
    ValueError: the inner task is a wrapper or freezes its trunk, or the trunk has no attention.
  """
  dense = wrapped.dense_layers(trunk)
  places = [path.removesuffix('/key') for path in dense if path.endswith('/key')]
  places = [path for path in places if f'{path}/value' in dense]
  if not places:
    name = type(trunk).__name__
    raise ValueError(f"adapter 'prefix' needs a trunk with attention, and {name} has none: choose another model.name")
  s = Setup(tuple(places), trunk.hidden_dim, length, mlp_dim, init_std)
  added = wrapped.Added(ADDS, partial(add, s), partial(wrapped.grafted, grafts), tuple(trained))
  return wrapped.make_task(inner, added, trunk=trunk, vocab=vocab, second_vocab=second_vocab)


def add(s: Setup, leaves: Mapping[str, Any], key: Array) -> dict[str, Any]:
  """The vectors of every layer, or what makes them: a table, a dense layer, and a dense layer for each place."""
  added: dict[str, Any] = {}

  def draw(path: str, shape: tuple[int, ...], names: tuple[str | None, ...]) -> None:
    added[path] = wrapped.boxed(normal(s.init_std)(wrapped.own_key(key, path), shape, jnp.float32), names)

  def zeros(path: str, shape: tuple[int, ...], names: tuple[str | None, ...]) -> None:
    added[path] = wrapped.boxed(jnp.zeros(shape), names)

  if s.mlp_dim:
    draw('table', (s.length, s.hidden_dim), (None, 'embed'))
    draw('hidden/kernel', (s.hidden_dim, s.mlp_dim), ('embed', 'mlp'))
    zeros('hidden/bias', (s.mlp_dim,), ('mlp',))
  for place in s.places:
    for part in ('key', 'value'):
      kernel = leaves[f'{place}/{part}/kernel']
      names, shape = wrapped.axis_names(kernel), nn.unbox(kernel).shape
      layers, heads = shape[:-3], shape[-2:]  # [n..., d, g, k]
      if s.mlp_dim:
        draw(f'{place}/{part}/kernel', (*layers, s.mlp_dim, *heads), (*names[:-3], 'mlp', *names[-2:]))
        zeros(f'{place}/{part}/bias', (*layers, *heads), (*names[:-3], *names[-2:]))
      else:
        draw(f'{place}/{part}/vectors', (*layers, s.length, *heads), (*names[:-3], None, *names[-2:]))
  return added


def grafts(added: Mapping[str, Any]) -> dict[str, Any]:
  """Keys and values [n..., p, g, k] where blocks read them: 'trunk/layers/prefix/key' and '.../value'."""
  found: dict[str, Any] = {}
  with jax.default_matmul_precision('highest'):
    if 'table' in added:
      states = jnp.tanh(added['table'] @ added['hidden/kernel'] + added['hidden/bias'])  # [p, d] -> [p, w]
    for path, leaf in added.items():
      place, _, end = path.rpartition('/')
      if not place.startswith('trunk/') or end == 'bias':
        continue
      module, _, part = place.rpartition('/')
      if end == 'kernel':
        bias = added[f'{place}/bias']
        leaf = jnp.einsum('pw,...wgk->...pgk', states, leaf) + bias[..., None, :, :]
      found[f'{module}/{ADDS}/{part}'] = leaf
  return found
