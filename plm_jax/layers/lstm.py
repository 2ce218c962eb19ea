"""Long short-term memory, read both ways along a row.

The cell is that of Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000, without peepholes; forget
biases start from 1 (Jozefowicz et al. 2015, §4.2). A state never enters another document of its row.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.errors import one_of
from plm_jax.core.types import Array, Remat
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, normal, uniform

State = tuple[Array, Array]  # h and c
FORGET = 1  # index of the forget gate among input, forget, cell and output
WINDOW = 64  # tokens that the backward pass computes again at a time


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
    projection: p, width of states h' = P (o tanh(c')), [b, l, 2, p]; 0 leaves P out.
    remat: what the backward pass keeps (`recur_over`).
  """

  features: int
  dtype: str = 'float32'
  projection: int = 0
  remat: Remat = 'none'

  @nn.compact
  def __call__(self, x: Array, segment_ids: Array) -> Array:
    width, dtype = self.features, self.dtype
    out = self.projection or width
    init, axes = normal(1 / math.sqrt(x.shape[-1])), ('embed', None, None, 'mlp')
    inputs = Dense((2, 4, width), axes=axes, kernel_init=init, use_bias=False, dtype=dtype, name='input')
    init = nn.with_logical_partitioning(normal(1 / math.sqrt(out)), (None, None, None, 'mlp'))
    recurrent = self.param('recurrent', init, (2, out, 4, width), jnp.float32).astype(dtype)
    bias = self.param('bias', nn.with_logical_partitioning(forget_one, (None, None, 'mlp')), (2, 4, width), jnp.float32)
    projection = None
    if self.projection:
      init = nn.with_logical_partitioning(normal(1 / math.sqrt(width)), (None, 'mlp', 'embed'))
      projection = self.param('projection', init, (2, width, out), jnp.float32).astype(dtype)
    fresh = jnp.stack([begins(segment_ids), begins(segment_ids[:, ::-1])], axis=-1)  # [b, l, 2]
    state = jnp.zeros((x.shape[0], 2, out), dtype), jnp.zeros((x.shape[0], 2, width), jnp.float32)
    gates_of = None
    if self.remat == 'full' and not self.is_initializing():
      gates_of = _gates_of_each(inputs, bias.astype(dtype))
      x = both_ways(jnp.stack([x, x], axis=2))
    else:
      x = both_ways(inputs(x) + bias.astype(dtype))  # [b, l, d] -> [b, l, 2, 4, f]
    keeps: dict[str, Any] = {'gates_of': gates_of, 'remat': self.remat}
    _, states = recur_over(x, recurrent, state, fresh=fresh, projection=projection, **keeps)
    return both_ways(states)


def _gates_of_each(inputs: Dense, bias: Array) -> Callable[[Array], Array]:
  """The gates of two directions that each read tokens of their own: [b, l, 2, d] -> [b, l, 2, 4, f].

  Args:
    inputs: of both, [b, l, d] -> [b, l, 2, 4, f].
    bias: [2, 4, f].
  """
  own: dict[str, Any] = nn.unbox(inputs.variables['params'])
  one = inputs.clone(features=(1, *bias.shape[1:]), parent=None)

  def gates_of(x: Array) -> Array:
    made = []
    for number in range(2):
      part = {name: leaf[:, number, None] if name.startswith('kernel') else leaf for name, leaf in own.items()}
      made.append(jnp.asarray(one.apply({'params': part}, x[:, :, number])))
    return jnp.concatenate(made, axis=2) + bias

  return gates_of


class DroppedLstm(nn.Module):
  """A layer that reads forward, with DropConnect on its recurrent weights (Merity et al. 2018, §2).

  In training each recurrent weight is left out with a probability, one draw for all rows and tokens of a step. All
  parameters start from U(-1 / sqrt(f), 1 / sqrt(f)), and gates add two biases, as those of torch.nn.LSTM.

  Attributes:
    features: f.
    weight_dropout: rate of the recurrent weights.
    dtype: of states and products; the cell c is float32.
    remat: what the backward pass keeps (`recur_over`).
  """

  features: int
  weight_dropout: float = 0.0
  dtype: str = 'float32'
  remat: Remat = 'none'

  @nn.compact
  def __call__(
    self, x: Array, state: State, *, fresh: Array, passed: Array | None = None, train: bool = False
  ) -> tuple[State, Array]:
    """The state after the row, and h after each token.

    Args:
      x: [b, l, d].
      state: h [b, f] and c f32[b, f], before the first token.
      fresh: bool[b, l], tokens before which the state is zero.
      passed: bool[b, l], tokens that leave the state as it is; None for none.
      train: drops recurrent weights.
    """
    width, dtype = self.features, self.dtype
    init = uniform(1 / math.sqrt(width))

    def param(name: str, shape: tuple[int, ...]) -> Array:
      axes = (*[None] * (len(shape) - 1), 'mlp')
      return self.param(name, nn.with_logical_partitioning(init, axes), shape, jnp.float32)

    axes = ('embed', None, 'mlp')
    inputs = Dense((4, width), axes=axes, kernel_init=init, use_bias=False, dtype=dtype, name='input')
    bias = (param('bias', (4, width)) + param('recurrent_bias', (4, width))).astype(dtype)
    recurrent = param('recurrent', (width, 4, width))
    recurrent = Dropout(self.weight_dropout)(recurrent, train=train, rows=False).astype(dtype)
    gates_of = None
    if self.remat == 'full' and not self.is_initializing():
      product: Callable[..., Any] = inputs.clone(parent=None).apply
      own = inputs.variables
      gates_of = lambda x: (product(own, x) + bias)[:, :, None]  # noqa: E731
    else:
      x = (inputs(x) + bias)[:, :, None]  # [b, l, d] -> [b, l, 1, 4, f]
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
  rows_last = lambda each: jnp.moveaxis(each, 0, -1)  # noqa: E731
  fresh, passed = jax.tree.map(rows_last, (fresh, passed))
  first = jax.tree.map(lambda part: part[..., None], begin or zeros)
  moving = Moving(rows_last(gates), None, jax.tree.map(rows_last, state), first)
  last, states = _read(Clips(cell_clip, projection_clip), fresh, passed, Weights(recurrent, projection), moving)
  return jax.tree.map(lambda each: jnp.moveaxis(each, -1, 0), (last, states))


def recur_over(
  x: Array,
  recurrent: Array,
  state: State,
  *,
  gates_of: Callable[[Array], Array] | None = None,
  fresh: Array,
  passed: Array | None = None,
  remat: Remat = 'none',
  window: int = WINDOW,
  **others: Any,
) -> tuple[State, Array]:
  """`recur` over gates that are made of x, where the backward pass keeps less and computes windows of a row again.

  Nothing is cut off: the states between windows are kept, gradients pass through all of them, and values and gradients
  are those of `recur`. 'none' keeps what each token needs, 'dots' the gates of all tokens, 'full' x; the last two keep
  the state behind each window besides, and hold what the tokens of one window need at a time.

  Memory at work in the gradient of a layer of 1,150 over 16 rows of 512 tokens (`benchmarks/lstm.py`): 712 MiB under
  'none', 489 under 'dots', 147 under 'full'; on a CPU the last two take 1.4 times as long.

  Args:
    x: [b, l, ...].
    recurrent: as of `recur`.
    state: as of `recur`.
    gates_of: x of some tokens -> their gates [b, l, c, 4, f], token by token; None where x is the gates.
    fresh: as of `recur`.
    passed: as of `recur`.
    remat: what the backward pass keeps.
    window: the most tokens that are computed again at a time.
    **others: arguments of `recur`.

  Returns:
    As `recur`.

  Raises:
    ValueError: `remat` is no choice.
  """
  one_of('execution.remat', remat, Remat)
  if gates_of is not None and remat != 'full':
    x, gates_of = gates_of(x), None
  if remat == 'none':
    return recur(x, recurrent, state, fresh=fresh, passed=passed, **others)
  length = x.shape[1]
  count = -(-length // window)
  size = -(-length // count)

  def one(state: State, tokens: tuple[Array, Array, Array | None]) -> tuple[State, Array]:
    x, fresh, passed = tokens
    gates = x if gates_of is None else gates_of(x)
    return recur(gates, recurrent, state, fresh=fresh, passed=passed, **others)

  if count == 1:
    return jax.checkpoint(one)(state, (x, fresh, passed))
  if count * size > length:  # tokens that change nothing
    passed = jnp.zeros_like(fresh) if passed is None else passed
  more = ((0, 0), (0, count * size - length))

  def cut(each: Array) -> Array:
    """[b, l, ...] -> [count, b, size, ...]."""
    each = jnp.pad(each, (*more, *[(0, 0)] * (each.ndim - 2)), constant_values=each.dtype == bool)
    return jnp.moveaxis(each.reshape(each.shape[0], count, size, *each.shape[2:]), 1, 0)

  windows = jax.tree.map(cut, (x, fresh, passed))
  last, states = jax.lax.scan(jax.checkpoint(one, prevent_cse=False), state, windows)
  states = jnp.moveaxis(states, 0, 1)  # [count, b, size, c, p] -> [b, count, size, c, p]
  return last, states.reshape(states.shape[0], count * size, *states.shape[3:])[:, :length]


# The recurrence with rows along the last axis: the weights stand on the left of each product, in the order in which it
# reads them, which is up to twice as fast on a CPU. Their gradient is not added up token by token: gradients of gates
# are collected, and one product makes it of them.


class Clips(NamedTuple):
  """The largest absolute value of a new cell, and of what a projection gives; None for any."""

  cell: float | None
  projection: float | None


class Weights(NamedTuple):
  """U [c, p, 4, f] and P [c, f, p] or None."""

  recurrent: Array
  projection: Array | None


class Moving(NamedTuple):
  """What has a gradient by the scan itself, with the rows b last.

  Attributes:
    gates: [l, c, 4, f, b].
    projected: zeros [l, c, p, b], added to what a projection gives so that there is a gradient of it; or None.
    state: h [c, p, b] and c f32[c, f, b], before the first token.
    first: h [c, p, 1] and c f32[c, f, 1], before a fresh one.
  """

  gates: Array
  projected: Array | None
  state: State
  first: State


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _read(clips: Clips, fresh: Array, passed: Array | None, weights: Weights, moving: Moving) -> tuple[State, Array]:
  """The state after the last token and h after each, [l, c, p, b]; arguments as of `_scan`."""
  return _scan(clips, fresh, passed, weights, moving)[0]


def _read_forward(
  clips: Clips, fresh: Array, passed: Array | None, weights: Weights, moving: Moving
) -> tuple[tuple[State, Array], Any]:
  """What `_read` returns, and what its gradient needs."""
  p = weights.projection
  length, c, _, _, b = moving.gates.shape
  if p is not None:
    moving = moving._replace(projected=jnp.zeros((length, c, p.shape[-1], b), p.dtype))
  out, backward, factors = jax.vjp(partial(_scan, clips, fresh, passed, weights), moving, has_aux=True)
  return out, (backward, factors)


def _read_backward(clips: Clips, kept: Any, gradient: tuple[State, Array]) -> tuple[None, None, Weights, Moving]:
  """Gradients of weights, by one product each, and of what moves."""
  del clips
  backward, (before, unprojected) = kept
  (moving,) = backward(gradient)
  recurrent = jnp.einsum('lcpb,lcgfb->cpgf', before, moving.gates)
  projection = None
  if moving.projected is not None:
    projection = jnp.einsum('lcfb,lcpb->cfp', unprojected, moving.projected)
  return None, None, Weights(recurrent, projection), moving._replace(projected=None)


_read.defvjp(_read_forward, _read_backward)


def _scan(
  clips: Clips, fresh: Array, passed: Array | None, weights: Weights, moving: Moving
) -> tuple[tuple[State, Array], tuple[Array, Array | None]]:
  """The recurrence; weights are constants to its gradient.

  Args:
    clips: of cells and projections.
    fresh: bool[l, c, b], tokens before which the state is `moving.first`.
    passed: bool[l, c, b], tokens that leave the state as it is, or None.
    weights: U and P.
    moving: the rest.

  Returns:
    (the state after the last token, h after each), and what the weights are multiplied by: h before each token
    [l, c, p, b], and o tanh(c') [l, c, f, b] or None.
  """
  c, p, _, f = weights.recurrent.shape
  up = both_forms(weights.recurrent.reshape(c, p, 4 * f))
  down = None if weights.projection is None else both_forms(weights.projection)
  # a row of gates is computed again from W x + U h + b and c: fewer numbers are kept than sigmoids and their factors
  one = jax.checkpoint(partial(cell, clip=clips.cell, axis=1), prevent_cse=False)

  def step(state: State, token: Any) -> tuple[State, Any]:
    gates, projected, fresh, passed = token
    before, c_before = (jnp.where(fresh[:, None], each, part) for each, part in zip(moving.first, state, strict=True))
    out, cells = one(gates + _times(*up, before).reshape(gates.shape), c_before)
    unprojected = None
    if down is not None:
      unprojected, out = out, _times(*down, out)
      out = out if projected is None else out + projected
      out = out if clips.projection is None else jnp.clip(out, -clips.projection, clips.projection)
    if passed is not None:
      new = zip(state, (out, cells), strict=True)
      out, cells = (jnp.where(passed[:, None], old, each) for old, each in new)
    return (out, cells), (out, before, unprojected)

  last, (states, *factors) = jax.lax.scan(step, moving.state, (moving.gates, moving.projected, fresh, passed))
  return (last, states), (factors[0], factors[1])


def both_forms(weights: Array) -> tuple[Array, Array]:
  """Weights [c, p, q] turned and as they are; turned before the loop, since XLA would do it at each token."""
  return weights.swapaxes(1, 2), weights


@jax.custom_vjp
def _times(turned: Array, weights: Array, x: Array) -> Array:
  """[c, q, p] and the same as [c, p, q], and [c, p, b] -> [c, q, b], without a gradient of the weights."""
  del weights
  return jnp.einsum('cqp,cpb->cqb', turned, x)


def _times_forward(turned: Array, weights: Array, x: Array) -> tuple[Array, Array]:
  return _times(turned, weights, x), weights


def _times_backward(weights: Array, gradient: Array) -> tuple[None, None, Array]:
  return None, None, jnp.einsum('cpq,cqb->cpb', weights, gradient)


_times.defvjp(_times_forward, _times_backward)


def cell(gates: Array, c: Array, *, clip: float | None = None, axis: int = -2) -> State:
  """One step: h' = o tanh(c') and c' = f c + i g.

  Args:
    gates: [..., 4, f], W x + U h + b: input, forget, cell, output.
    c: f32[..., f].
    clip: largest absolute value of the new cell.
    axis: of the gates.

  Returns:
    h' [..., f] in the dtype of the gates, and c' f32[..., f].
  """
  i, f, g, o = jnp.moveaxis(gates.astype(jnp.float32), axis, 0)
  c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
  c = c if clip is None else jnp.clip(c, -clip, clip)
  return (jax.nn.sigmoid(o) * jnp.tanh(c)).astype(gates.dtype), c


def begins(segment_ids: Array) -> Array:
  """Where a document, or padding, begins in a row that is read from its first index on: int[b, l] -> bool[b, l]."""
  # segments 1 1 2 2 2 0 -> x . x . . x
  return segment_ids != jnp.pad(segment_ids, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]


def apart(layers: Array) -> tuple[Array, Array]:
  """The states of layers that read both ways, [n+1, b, l, d] with words first: forward and backward, [n, b, l, d/2]."""
  forward, backward = jnp.split(layers[1:], 2, axis=-1)
  return forward, backward


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
