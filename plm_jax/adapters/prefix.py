"""Prefix tuning: trained keys and values before those of every layer of a frozen trunk (Li and Liang 2021; 2101.00190).

    adapter = dict(name='prefix', length=10, mlp_dim=512, inner=dict(name='causal_lm'))

In training, one table followed by a dense layer, tanh, and a dense layer per trunk layer computes the vectors of all
layers (§4.3). The trunk reads only the keys and values, so the layers that compute them are dropped when a run is
opened to generate. Every query of every attention sees the prefix, also in encoders and in cross-attention. The prefix
has no position: T5's bias and the distance terms of DeBERTa and XLNet are 0 there, and rotary positions do not rotate
it. Attention kernels do not support such a mask: 'auto' computes the plain formula.

With w = mlp_dim, p = length and n layers of width d: p d + (d + 1) w + (w + 1) 2 n d parameters; without w, 2 n p d. A
run does not start as the inner task, because any keys take a share of the attention.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters import wrapped
from plm_jax.core.keywords import Count, NonNegativeInt, Std
from plm_jax.core.types import HEADS, Array, Supervised, Task, Vocab
from plm_jax.layers.linear import normal

PAPER = Supervised(year=2021, title='Li and Liang, prefix tuning')
READS = ()  # in addition to the inner task
ADDS = 'prefix'


class PrefixSettings(NamedTuple):
  """Attention modules and sizes of the prefix; the settings are explained in `make`."""

  modules: tuple[str, ...]  # paths of the modules with a 'key' and a 'value' layer
  hidden_dim: int  # d, width of the trunk
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
  """Train keys and values of every layer, and the head.

  Args:
    length: p, length of the prefix.
    mlp_dim: w, width between the two layers that compute the vectors; 0 trains the vectors directly.
    init_std: standard deviation of tables and kernels.
    trained: patterns of other parameters that train; by default everything outside the trunk.

  Raises:
    ValueError: the inner task is a wrapper or freezes its trunk, or the trunk has no attention.
  """
  dense = wrapped.dense_layers(trunk)
  with_keys = (path.removesuffix('/key') for path in dense if path.endswith('/key'))
  modules = tuple(path for path in with_keys if f'{path}/value' in dense)
  if not modules:
    name = type(trunk).__name__
    raise ValueError(f"adapter 'prefix' needs a trunk with attention and {name} has none: choose another model.name")
  if (tables := trunk.position_rows.values()) and length > (most := min(map(len, tables))):
    raise ValueError(f'adapter.length={length} is more than the {most} positions of the model: set at most {most}')
  s = PrefixSettings(modules=modules, hidden_dim=trunk.hidden_dim, length=length, mlp_dim=mlp_dim, init_std=init_std)
  added = wrapped.Added(name=ADDS, make=partial(add, s), read=partial(wrapped.grafted, grafts), trained=tuple(trained))
  return wrapped.make_task(inner, added, trunk=trunk, vocab=vocab, second_vocab=second_vocab)


def add(s: PrefixSettings, leaves: Mapping[str, Any], key: Array) -> dict[str, Any]:
  """Initialise the vectors of every layer, or the layers that compute them.

  These are a table, a dense layer, and a dense layer for each module.
  """
  added: dict[str, Any] = {}

  def sample(path: str, shape: tuple[int, ...], names: tuple[str | None, ...]) -> None:
    added[path] = wrapped.boxed(normal(s.init_std)(wrapped.own_key(key, path), shape, jnp.float32), names)

  def zeros(path: str, shape: tuple[int, ...], names: tuple[str | None, ...]) -> None:
    added[path] = wrapped.boxed(jnp.zeros(shape), names)

  if s.mlp_dim:
    sample('table', (s.length, s.hidden_dim), (None, 'embed'))
    sample('hidden/kernel', (s.hidden_dim, s.mlp_dim), ('embed', 'mlp'))
    zeros('hidden/bias', (s.mlp_dim,), ('mlp',))
  for module in s.modules:
    for part in ('key', 'value'):
      kernel = leaves[f'{module}/{part}/kernel']
      names, shape = wrapped.axis_names(kernel), nn.unbox(kernel).shape
      layers, heads = shape[:-3], shape[-2:]  # [n..., d, g, k]
      if s.mlp_dim:
        sample(f'{module}/{part}/kernel', (*layers, s.mlp_dim, *heads), (*names[:-3], 'mlp', *names[-2:]))
        zeros(f'{module}/{part}/bias', (*layers, *heads), (*names[:-3], *names[-2:]))
      else:
        sample(f'{module}/{part}/vectors', (*layers, s.length, *heads), (*names[:-3], None, *names[-2:]))
  return added


def grafts(added: Mapping[str, Any]) -> dict[str, Any]:
  """Compute the keys and values that attention reads, by path.

  The paths are like 'trunk/layers/prefix/key' and '.../value', the shapes [n..., p, g, k].
  """
  vectors: dict[str, Any] = {}
  with jax.default_matmul_precision('highest'):
    if 'table' in added:
      states = jnp.tanh(added['table'] @ added['hidden/kernel'] + added['hidden/bias'])  # [p, d] -> [p, w]
    for path, leaf in added.items():
      layer, _, end = path.rpartition('/')
      if not layer.startswith('trunk/') or end == 'bias':
        continue
      module, _, part = layer.rpartition('/')
      if end == 'kernel':
        bias = added[f'{layer}/bias']
        leaf = jnp.einsum('pw,...wgk->...pgk', states, leaf) + bias[..., None, :, :]
      vectors[f'{module}/{ADDS}/{part}'] = leaf
  return vectors
