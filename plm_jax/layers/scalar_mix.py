"""States of several layers as one vector: concatenated, summed, or mixed by learned weights."""

from collections.abc import Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.errors import one_of
from plm_jax.core.types import Array

Join = Literal['concat', 'sum', 'weighted', 'mix']


class ScalarMix(nn.Module):
  """gamma sum_j softmax(w)_j h_j (Peters et al. 2018, eq. 1): n states [..., d] -> f32[..., d].

  w starts at 0, a plain mean, and gamma at 1.
  """

  # normalise each h_j to mean 0 and variance 1 over its d components, token by token. AllenNLP uses the mean and the
  # variance over all tokens of a batch instead, so that a token depends on the other rows.
  norm: bool = False
  epsilon: float = 1e-12  # added to the variance

  @nn.compact
  def __call__(self, states: Sequence[Array]) -> Array:
    init = nn.with_logical_partitioning(nn.initializers.zeros, (None,))
    weights = self.param('weights', init, (len(states),), jnp.float32)
    gamma = self.param('gamma', nn.with_logical_partitioning(nn.initializers.ones, ()), (), jnp.float32)
    stacked = jnp.stack([state.astype(jnp.float32) for state in states])  # [n, ..., d]
    # each state to mean 0 and variance 1 over d
    if self.norm:
      mean = stacked.mean(axis=-1, keepdims=True)
      variance = jnp.square(stacked - mean).mean(axis=-1, keepdims=True)
      stacked = (stacked - mean) * jax.lax.rsqrt(variance + self.epsilon)
    # [n] x [n, ..., d] -> [..., d]
    return gamma * jnp.tensordot(jax.nn.softmax(weights), stacked, axes=1)


class JoinedStates(nn.Module):
  """n states [..., d] as one vector."""

  # 'concat' concatenates them, [..., n d]; 'sum' adds them; 'weighted' adds them times `weights`; 'mix' is `ScalarMix`,
  # whose weights are learned
  join: Join
  weights: tuple[float, ...] = ()  # of 'weighted', one for each state; () for the others

  @nn.compact
  def __call__(self, states: Sequence[Array]) -> Array:
    if self.join == 'concat':
      return jnp.concatenate(states, axis=-1)
    if self.join == 'mix':
      return ScalarMix(name='mix')(states)
    weights = self.weights or (1.0,) * len(states)
    return jnp.tensordot(jnp.asarray(weights), jnp.stack(states).astype(jnp.float32), axes=1)


def check_join(*, layers: Sequence[int], join: str, weights: Sequence[float]) -> None:
  """Raise ValueError if the settings of `JoinedStates` do not fit.

  Args:
    layers: whose states are read.
    join: see `JoinedStates`.
    weights: see `JoinedStates`.
  """
  one_of('adapter.join', join, Join)
  if not layers:
    raise ValueError('adapter.layers=() is empty: name at least one layer; -1 is the last')
  if join == 'weighted' and len(weights) != len(layers):
    raise ValueError(
      f"adapter.layer_weights={tuple(weights)}: join='weighted' takes a number for each of adapter.layers={layers}"
    )
  if join != 'weighted' and weights:
    raise ValueError(
      f"adapter.layer_weights={tuple(weights)} needs join='weighted', not adapter.join={join!r}: remove the weights"
    )


def read_layers(out: dict[str, Any], layers: Sequence[int]) -> list[Array]:
  """Return the states [b, l, d] of some layers of a trunk.

  Args:
    out: output of the trunk.
    layers: -1 is the output of the trunk, after any final norm; 0 its embeddings.

  Raises:
    ValueError: the trunk has no such layer.
  """
  count = len(out['layers'])
  if not all(-count <= layer < count for layer in layers):
    raise ValueError(
      f'adapter.layers={tuple(layers)}: the trunk has states {-count} to {count - 1}, of which 0 is its embeddings'
    )
  return [out['hidden'] if layer == -1 else out['layers'][layer] for layer in layers]
