"""LSTM layers that read a row forward or both ways.

`layers/recurrence.py` has the cell and the loop over tokens. Forget biases start from 1 (Jozefowicz et al. 2015, §4.2).
A state never enters another document of its row.
"""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.types import Array, Remat
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, normal, uniform
from plm_jax.layers.recurrence import WINDOW as WINDOW
from plm_jax.layers.recurrence import State, recur_over
from plm_jax.layers.recurrence import cell as cell
from plm_jax.layers.recurrence import recur as recur

FORGET = 1  # index of the forget gate among input, forget, cell and output


def forget_one(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
  """Initialise biases [2, 4, f]: 1 for forget gates, else 0."""
  return jnp.zeros(shape, dtype).at[:, FORGET].set(1)


class Lstm(nn.Module):
  """Both directions of one layer: [b, l, d] -> [b, l, 2, f], the forward states first.

  The gates are i, f, o = sigmoid and g = tanh of W x_t + U h + b. Then c' = f c + i g and h' = o tanh(c'). Here h and
  c are the states of the token before (in the second direction, of the token after), and zero where a document begins.
  """

  features: int  # f
  dtype: str = 'float32'  # of states and products; the cell c is float32
  projection: int = 0  # p, width of states h' = P (o tanh(c')), [b, l, 2, p]; 0 leaves P out
  remat: Remat = 'none'  # values that the backward pass saves (`recur_over`)

  @nn.compact
  def __call__(self, x: Array, segment_ids: Array) -> Array:
    width, dtype = self.features, self.dtype
    out = self.projection or width
    # 1. parameters of both directions
    init, axes = normal(1 / math.sqrt(x.shape[-1])), ('embed', None, None, 'mlp')
    inputs = Dense((2, 4, width), axes=axes, straight=True, kernel_init=init, use_bias=False, dtype=dtype, name='input')
    init = nn.with_logical_partitioning(normal(1 / math.sqrt(out)), (None, None, None, 'mlp'))
    recurrent = self.param('recurrent', init, (2, out, 4, width), jnp.float32).astype(dtype)
    bias = self.param('bias', nn.with_logical_partitioning(forget_one, (None, None, 'mlp')), (2, 4, width), jnp.float32)
    projection = None
    if self.projection:
      init = nn.with_logical_partitioning(normal(1 / math.sqrt(width)), (None, 'mlp', 'embed'))
      projection = self.param('projection', init, (2, width, out), jnp.float32).astype(dtype)
    # 2. in each direction, the tokens before which the state is zero
    fresh = jnp.stack([begins(segment_ids), begins(segment_ids[:, ::-1])], axis=-1)  # [b, l, 2]
    state = jnp.zeros((x.shape[0], 2, out), dtype), jnp.zeros((x.shape[0], 2, width), jnp.float32)
    # 3. gates of all tokens in one product, or later of one window at a time
    gates_of = None
    if self.remat == 'full' and not self.is_initializing():
      gates_of = _gates_of_each(inputs, bias.astype(dtype))
      x = both_ways(jnp.stack([x, x], axis=2))
    else:
      x = both_ways(inputs(x) + bias.astype(dtype))  # [b, l, d] -> [b, l, 2, 4, f]
    # 4. the recurrence, and its second direction back in reading order
    _, states = recur_over(x, recurrent, state, fresh=fresh, gates_of=gates_of, remat=self.remat, projection=projection)
    return both_ways(states)


def _gates_of_each(inputs: Dense, bias: Array) -> Callable[[Array], Array]:
  """Build a function for the gates of two directions with separate inputs.

  It maps [b, l, 2, d] -> [b, l, 2, 4, f].

  Args:
    inputs: of both directions, [b, l, d] -> [b, l, 2, 4, f].
    bias: [2, 4, f].
  """
  own: dict[str, Any] = nn.unbox(inputs.variables['params'])
  one_direction = inputs.clone(features=(1, *bias.shape[1:]), parent=None)

  # the kernel of one direction as a kernel for one direction of states
  def gates_of(x: Array) -> Array:
    gates = []
    for direction in range(2):
      part = {name: leaf[:, direction, None] if name.startswith('kernel') else leaf for name, leaf in own.items()}
      gates.append(jnp.asarray(one_direction.apply({'params': part}, x[:, :, direction])))
    return jnp.concatenate(gates, axis=2) + bias

  return gates_of


class DroppedLstm(nn.Module):
  """A layer that reads forward, with DropConnect on its recurrent weights (Merity et al. 2018, §2).

  Training drops each recurrent weight with a probability, with one sample for all rows and tokens of a step. All
  parameters start from U(-1 / sqrt(f), 1 / sqrt(f)), and gates add two biases, like torch.nn.LSTM.
  """

  features: int  # f
  weight_dropout: float = 0.0  # rate of the recurrent weights
  dtype: str = 'float32'  # of states and products; the cell c is float32
  remat: Remat = 'none'  # values that the backward pass saves (`recur_over`)

  @nn.compact
  def __call__(
    self, x: Array, state: State, *, fresh: Array, passed: Array | None = None, train: bool = False
  ) -> tuple[State, Array]:
    """Compute the state after the row, and h after each token.

    Args:
      x: [b, l, d].
      state: h [b, f] and c f32[b, f], before the first token.
      fresh: bool[b, l], tokens before which the state is zero.
      passed: bool[b, l], tokens that leave the state unchanged; None for none.
      train: drop recurrent weights.
    """
    width, dtype = self.features, self.dtype
    # 1. parameters, with DropConnect on U
    init = uniform(1 / math.sqrt(width))

    def param(name: str, shape: tuple[int, ...]) -> Array:
      axes = (*[None] * (len(shape) - 1), 'mlp')
      return self.param(name, nn.with_logical_partitioning(init, axes), shape, jnp.float32)

    axes = ('embed', None, 'mlp')
    inputs = Dense((4, width), axes=axes, straight=True, kernel_init=init, use_bias=False, dtype=dtype, name='input')
    bias = (param('bias', (4, width)) + param('recurrent_bias', (4, width))).astype(dtype)
    recurrent = param('recurrent', (width, 4, width))
    recurrent = Dropout(self.weight_dropout)(recurrent, train=train, rows=False).astype(dtype)
    # 2. gates of all tokens in one product, or later of one window at a time
    gates_of = None
    if self.remat == 'full' and not self.is_initializing():
      product: Callable[..., Any] = inputs.clone(parent=None).apply
      own = inputs.variables
      gates_of = lambda x: (product(own, x) + bias)[:, :, None]  # noqa: E731
    else:
      x = (inputs(x) + bias)[:, :, None]  # [b, l, d] -> [b, l, 1, 4, f]
    # 3. the recurrence, with one layer on the axis of parallel layers
    h, c = state
    (h, c), states = recur_over(
      x,
      recurrent[None],
      (h[:, None].astype(dtype), c[:, None]),
      gates_of=gates_of,
      fresh=fresh[..., None],
      passed=None if passed is None else passed[..., None],
      remat=self.remat,
    )
    return (h[:, 0], c[:, 0]), states[:, :, 0]


def begins(segment_ids: Array) -> Array:
  """Mark the first token of each document or run of padding.

  int[b, l] -> bool[b, l], for a row that is read from its first index on.
  """
  # segments 1 1 2 2 2 0 -> x . x . . x
  return segment_ids != jnp.pad(segment_ids, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]


def apart(layers: Array) -> tuple[Array, Array]:
  """Split states of both directions into forward and backward states.

  Args:
    layers: [n+1, b, l, d], with the word vectors first.

  Returns:
    Two of [n, b, l, d/2].
  """
  # [n, b, l, d] -> two of [n, b, l, d/2]
  forward, backward = jnp.split(layers[1:], 2, axis=-1)
  return forward, backward


@jax.custom_vjp
def both_ways(x: Array) -> Array:
  """Reverse the second direction along the row.

  [b, l, 2, ...] -> the same shape, with the second of axis 2 reversed. This is its own inverse.
  """
  # forward a b c, backward x y z   ->   forward a b c, backward z y x
  return jnp.stack([x[:, :, 0], x[:, ::-1, 1]], axis=2)


# the gradient is turned in the same way, in one pass
both_ways.defvjp(lambda x: (both_ways(x), None), lambda _, gradient: (both_ways(gradient),))


class StackedLstm(nn.Module):
  """Layers that read both ways, each on the states below it: [b, l, d] -> [b, l, 2 f] (Graves and Schmidhuber 2005)."""

  features: int  # f, width of the state of each direction
  num_layers: int  # number of layers
  dropout: float = 0.0  # rate on the input of each layer
  dtype: str = 'float32'  # of states and products

  @nn.compact
  def __call__(self, x: Array, segment_ids: Array, *, train: bool) -> Array:
    for layer in range(self.num_layers):
      x = Dropout(self.dropout, name=f'dropout_{layer}')(x, train=train)
      states = Lstm(self.features, self.dtype, name=f'layer_{layer}')(x, segment_ids)
      x = states.reshape(*states.shape[:2], 2 * self.features)  # [b, l, 2, f] -> [b, l, 2 f], forward states first
    return x
