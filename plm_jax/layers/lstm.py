"""Long short-term memory, read both ways along a row.

The cell is that of Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000, without peepholes; forget
biases start from 1 (Jozefowicz et al. 2015, §4.2). A state never enters another document of its row.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, normal, uniform
from plm_jax.types import Array

State = tuple[Array, Array]  # h and c
FORGET = 1  # index of the forget gate among input, forget, cell and output


def forget_one(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
  """Biases [2, 4, f], 1 for the forget gate and 0 for the others."""
  del key
  return jnp.zeros(shape, dtype).at[:, FORGET].set(1)


class Lstm(nn.Module):
  """Both directions of one layer: [b, l, d] -> [b, l, 2, f], the forward states first.

  With i, f, o = sigmoid and g = tanh of W x_t + U h + b: c' = f c + i g and h' = o tanh(c'), where h and c are those of
  the token before (in the second direction, the one after), and zero where a document begins.

  Attributes:
    features: f.
    dtype: of states and products; the cell c is float32.
  """

  features: int
  dtype: str = 'float32'

  @nn.compact
  def __call__(self, x: Array, segment_ids: Array) -> Array:
    width, dtype = self.features, self.dtype
    init, axes = normal(1 / math.sqrt(x.shape[-1])), ('embed', None, None, 'mlp')
    inputs = Dense((2, 4, width), axes=axes, kernel_init=init, use_bias=False, dtype=dtype, name='input')
    init = nn.with_logical_partitioning(normal(1 / math.sqrt(width)), (None, None, None, 'mlp'))
    recurrent = self.param('recurrent', init, (2, width, 4, width), jnp.float32).astype(dtype)
    bias = self.param('bias', nn.with_logical_partitioning(forget_one, (None, None, 'mlp')), (2, 4, width), jnp.float32)
    gates = inputs(x) + bias.astype(dtype)  # [b, l, d] -> [b, l, 2, 4, f]
    fresh = jnp.stack([begins(segment_ids), begins(segment_ids[:, ::-1])], axis=-1)  # [b, l, 2]

    zero = jnp.zeros((x.shape[0], 2, width), jnp.float32)
    _, states = recur(both_ways(gates), recurrent, (zero.astype(dtype), zero), fresh=fresh)
    return both_ways(states)


class DroppedLstm(nn.Module):
  """A layer that reads forward, with DropConnect on its recurrent weights (Merity et al. 2018, §2).

  In training each recurrent weight is left out with a probability, one draw for all rows and tokens of a step. All
  parameters start from U(-1 / sqrt(f), 1 / sqrt(f)), and gates add two biases, as those of torch.nn.LSTM.

  Attributes:
    features: f.
    weight_dropout: rate of the recurrent weights.
    dtype: of states and products; the cell c is float32.
  """

  features: int
  weight_dropout: float = 0.0
  dtype: str = 'float32'

  @nn.compact
  def __call__(self, x: Array, state: State, *, fresh: Array, train: bool = False) -> tuple[State, Array]:
    """The state after the row, and h after each token.

    Args:
      x: [b, l, d].
      state: h [b, f] and c f32[b, f], before the first token.
      fresh: bool[b, l], tokens before which the state is zero.
      train: drops recurrent weights.
    """
    width, dtype = self.features, self.dtype
    init = uniform(1 / math.sqrt(width))

    def param(name: str, shape: tuple[int, ...]) -> Array:
      axes = (*[None] * (len(shape) - 1), 'mlp')
      return self.param(name, nn.with_logical_partitioning(init, axes), shape, jnp.float32)

    axes = ('embed', None, 'mlp')
    gates = Dense((4, width), axes=axes, kernel_init=init, use_bias=False, dtype=dtype, name='input')(x)
    gates = gates + (param('bias', (4, width)) + param('recurrent_bias', (4, width))).astype(dtype)  # [b, l, 4, f]
    recurrent = Dropout(self.weight_dropout)(param('recurrent', (width, 4, width)), train=train).astype(dtype)
    h, c = state
    (h, c), states = recur(
      gates[:, :, None], recurrent[None], (h[:, None].astype(dtype), c[:, None]), fresh=fresh[..., None]
    )
    return (h[:, 0], c[:, 0]), states[:, :, 0]


def recur(
  gates: Array,
  recurrent: Array,
  state: State,
  *,
  fresh: Array,
  begin: State | None = None,
  passed: Array | None = None,
  projection: Array | None = None,
  cell_clip: float | None = None,
  projection_clip: float | None = None,
) -> tuple[State, Array]:
  """c recurrences side by side over a row, each with weights of its own.

  With a projection the state is h' = P (o tanh(c')) (Sak et al. 2014, §2.1), else p = f.

  Args:
    gates: [b, l, c, 4, f], W x + b of every token, computed beforehand in one product: input, forget, cell, output.
    recurrent: [c, p, 4, f], U.
    state: h [b, c, p] in the dtype of the products and c f32[b, c, f], before the first token.
    fresh: bool[b, l, c], tokens before which the state is `begin`.
    begin: h [c, p] and c f32[c, f]; None for zeros.
    passed: bool[b, l, c], tokens that leave the state as it is, such as padding; None for none.
    projection: [c, f, p], P.
    cell_clip: largest absolute value of a new cell.
    projection_clip: and of what a projection gives.

  Returns:
    The state after the last token, and h after each: [b, l, c, p].
  """

  zeros = tuple(jnp.zeros(part.shape[1:], part.dtype) for part in state)

  def step(state: State, token: tuple[Array, Array, Array | None]) -> tuple[State, Array]:
    gates, fresh, passed = token
    pairs = zip(begin or zeros, state, strict=True)
    h, c = (jnp.where(fresh[..., None], first, part) for first, part in pairs)  # [b, c, p], [b, c, f]
    out, c = cell(gates + jnp.einsum('bcp,cpgf->bcgf', h, recurrent), c, clip=cell_clip)
    if projection is not None:
      out = jnp.einsum('bcf,cfp->bcp', out, projection)
      out = out if projection_clip is None else jnp.clip(out, -projection_clip, projection_clip)
    if passed is not None:
      out, c = (jnp.where(passed[..., None], old, new) for old, new in zip(state, (out, c), strict=True))
    return (out, c), out

  tokens = jax.tree.map(lambda each: jnp.moveaxis(each, 1, 0), (gates, fresh, passed))
  last, states = jax.lax.scan(step, state, tokens)
  return last, jnp.moveaxis(states, 0, 1)


def cell(gates: Array, c: Array, *, clip: float | None = None) -> State:
  """One step: h' = o tanh(c') and c' = f c + i g.

  Args:
    gates: [..., 4, f], W x + U h + b: input, forget, cell, output.
    c: f32[..., f].
    clip: largest absolute value of the new cell.

  Returns:
    h' [..., f] in the dtype of the gates, and c' f32[..., f].
  """
  i, f, g, o = jnp.moveaxis(gates.astype(jnp.float32), -2, 0)
  c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
  c = c if clip is None else jnp.clip(c, -clip, clip)
  return (jax.nn.sigmoid(o) * jnp.tanh(c)).astype(gates.dtype), c


def begins(segment_ids: Array) -> Array:
  """Where a document, or padding, begins in a row that is read from its first index on: int[b, l] -> bool[b, l]."""
  # segments 1 1 2 2 2 0 -> x . x . . x
  return segment_ids != jnp.pad(segment_ids, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]


def both_ways(x: Array) -> Array:
  """[b, l, 2, ...] with the second of axis 2 reversed along the row; it is its own inverse."""
  return jnp.stack([x[:, :, 0], x[:, ::-1, 1]], axis=2)


class StackedLstm(nn.Module):
  """Layers that read both ways, each what the one below says: [b, l, d] -> [b, l, 2 f] (Graves and Schmidhuber 2005).

  Attributes:
    features: f, width of the state of each direction.
    num_layers: how many.
    dropout: rate on the input of each layer.
    dtype: of states and products.
  """

  features: int
  num_layers: int
  dropout: float = 0.0
  dtype: str = 'float32'

  @nn.compact
  def __call__(self, x: Array, segment_ids: Array, *, train: bool) -> Array:
    for number in range(self.num_layers):
      x = Dropout(self.dropout, name=f'dropout_{number}')(x, train=train)
      states = Lstm(self.features, self.dtype, name=f'layer_{number}')(x, segment_ids)
      x = states.reshape(*states.shape[:2], 2 * self.features)  # [b, l, 2, f] -> [b, l, 2 f], forward states first
    return x
