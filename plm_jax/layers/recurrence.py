"""The recurrence of LSTM layers over the tokens of a row, and its gradient.

The cell is that of Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000, without peepholes.
`layers/lstm.py` has the layers.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import layout

from plm_jax.core import sharding
from plm_jax.core.errors import one_of
from plm_jax.core.types import Array, Remat

State = tuple[Array, Array]  # h and c
WINDOW = 64  # tokens that the backward pass computes again at a time


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
  """Compute c recurrences side by side over a row.

  Each has its own weights.

  With a projection the state is h' = P (o tanh(c')) (Sak et al. 2014, §2.1), else p = f.

  Args:
    gates: [b, l, c, 4, f], W x + b of every token, computed before in one product: input, forget, cell, output.
    recurrent: [c, p, 4, f], U.
    state: h [b, c, p] in the dtype of the products and c f32[b, c, f], before the first token.
    fresh: bool[b, l, c], tokens before which the state is reset to `begin`.
    begin: h [c, p] and c f32[c, f]; None for zeros.
    passed: bool[b, l, c], tokens that leave the state unchanged, such as padding; None for none.
    projection: [c, f, p], P.
    cell_clip: largest absolute value of a new cell.
    projection_clip: largest absolute value of a projected state.

  Returns:
    The state after the last token, and h after each: [b, l, c, p].
  """
  zeros = tuple(jnp.zeros(part.shape[1:], part.dtype) for part in state)
  moving = Moving(gates, state, begin or (zeros[0], zeros[1]))
  return _read(Clips(cell_clip, projection_clip), fresh, passed, Weights(recurrent, projection), moving)


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
  """Compute `recur` with less memory for the backward pass.

  The gates are made of x. Gradients are not truncated. The states between windows are saved, gradients pass through all
  of them, and values and gradients equal those of `recur`. The backward pass saves

      'none'   the intermediate values of each token
      'dots'   the gates of all tokens
      'full'   x

  The last two also save the state after each window, and compute the tokens of one window again at a time.

  Working memory of the gradient of a layer of 1,150 over 16 rows of 512 tokens (`benchmarks/lstm.py`): 611 MiB under
  'none', 489 under 'dots', 153 under 'full'. On a CPU the last two take 1.4 times as long.

  Args:
    x: [b, l, ...].
    recurrent: see `recur`.
    state: see `recur`.
    gates_of: x of some tokens -> their gates [b, l, c, 4, f], token by token; None if x holds the gates.
    fresh: see `recur`.
    passed: see `recur`.
    remat: values that the backward pass saves.
    window: the most tokens that are computed again at a time.
    **others: arguments of `recur`.

  Returns:
    The same as `recur`.

  Raises:
    ValueError: an unknown `remat`.
  """
  one_of('execution.remat', remat, Remat)
  if gates_of is not None and remat != 'full':
    x, gates_of = gates_of(x), None
  if remat == 'none':
    return recur(x, recurrent, state, fresh=fresh, passed=passed, **others)
  # 1. equal windows of at most `window` tokens: 150 tokens in windows of 64 become 3 windows of 50
  length = x.shape[1]
  count = -(-length // window)
  size = -(-length // count)

  # 2. the recurrence over one window, computed again in the backward pass
  def read_window(state: State, tokens: tuple[Array, Array, Array | None]) -> tuple[State, Array]:
    x, fresh, passed = tokens
    gates = x if gates_of is None else gates_of(x)
    return recur(gates, recurrent, state, fresh=fresh, passed=passed, **others)

  if count == 1:
    return jax.checkpoint(read_window)(state, (x, fresh, passed))
  # 3. cut the row into windows and carry the state from one to the next
  if count * size > length:  # the last window is padded with tokens that change nothing
    passed = jnp.zeros_like(fresh) if passed is None else passed
  padding = ((0, 0), (0, count * size - length))

  def cut(x: Array) -> Array:  # [b, l, ...] -> [count, b, size, ...]
    x = jnp.pad(x, (*padding, *[(0, 0)] * (x.ndim - 2)), constant_values=x.dtype == bool)
    return jnp.moveaxis(x.reshape(x.shape[0], count, size, *x.shape[2:]), 1, 0)

  # x, fresh and passed as windows, the axis of the scan first
  windows = jax.tree.map(cut, (x, fresh, passed))
  last, states = jax.lax.scan(jax.checkpoint(read_window, prevent_cse=False), state, windows)
  states = jnp.moveaxis(states, 0, 1)  # [count, b, size, c, p] -> [b, count, size, c, p]
  return last, states.reshape(states.shape[0], count * size, *states.shape[3:])[:, :length]


# Inside the loop arrays are [c, b, ...]. The weights are the left side of each product, which is up to twice as fast on
# a CPU. Their gradient is not added up token by token: the backward loop writes the gradients of all products, and one
# product computes the gradient of the weights from them. Arrays for it are [c, l, b, ...], so it needs no transpose.


class Clips(NamedTuple):
  """Limits of absolute values; None for no limit."""

  cell: float | None  # of a new cell
  projection: float | None  # of a projected state


class Weights(NamedTuple):
  """Weights of c recurrences."""

  recurrent: Array  # U [c, p, 4, f]
  projection: Array | None  # P [c, f, p], or None


class Moving(NamedTuple):
  """Inputs other than weights and masks."""

  gates: Array  # [b, l, c, 4, f]
  state: State  # h [b, c, p] and c f32[b, c, f], before the first token
  first: State  # h [c, p] and c f32[c, f], before a fresh token


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _read(clips: Clips, fresh: Array, passed: Array | None, weights: Weights, moving: Moving) -> tuple[State, Array]:
  """Compute the last state, and h [b, l, c, p] by token."""
  return _forward(clips, fresh, passed, weights, moving, keep=False)[0]


def _forward(
  clips: Clips, fresh: Array, passed: Array | None, weights: Weights, moving: Moving, *, keep: bool = True
) -> tuple[tuple[State, Array], Any]:
  """Compute `_read`, and the values that its gradient needs."""
  b, length, c, _, f = moving.gates.shape
  up, down = _turned(weights.recurrent.reshape(c, -1, 4 * f)), None
  if weights.projection is not None:
    down = _turned(weights.projection)

  def step(t: Array, loop: Any) -> Any:
    state, states, kept = loop
    # 1. reset the state before a fresh token
    h, cells = before = _where(_swap(_at(fresh, t)), first, state)
    # 2. the cell
    gates = _swap(_at(moving.gates, t)).reshape(c, b, 4 * f) + _times(up, h)
    out, cells = cell(gates, cells, clip=clips.cell)
    # 3. the projection
    if down is not None:
      out = _times(down, out)
      out = out if clips.projection is None else jnp.clip(out, -clips.projection, clips.projection)
    # 4. tokens that leave the state unchanged
    after = (out, cells) if passed is None else _where(_swap(_at(passed, t)), state, (out, cells))
    return after, _put(t, states, after[0]), _put(t, kept, (*before, gates) if keep else ())

  state: State = _swap(moving.state)
  first = jax.tree.map(lambda x: x[:, None], moving.first)
  empty = lambda like, width: jnp.zeros((c, length, b, width), like.dtype)  # noqa: E731
  states = empty(state[0], state[0].shape[-1])
  kept = (states, empty(state[1], f), empty(moving.gates, 4 * f)) if keep else ()
  state, states, kept = jax.lax.fori_loop(0, length, step, (state, states, kept))
  # [c, l, b, p] -> [b, l, c, p]
  return (_swap(state), states.swapaxes(0, 2)), (fresh, passed, weights, moving.first, states, kept)


def _backward(clips: Clips, saved: Any, gradient: tuple[State, Array]) -> tuple[None, None, Weights, Moving]:
  """Compute gradients of the weights and of the moving inputs."""
  fresh, passed, weights, first, states, (h_before, c_before, gates) = saved
  c, length, b, _ = states.shape
  f, zeros = c_before.shape[-1], jax.tree.map(jnp.zeros_like, first)
  recurrent, zero = weights.recurrent.reshape(c, -1, 4 * f), jax.tree.map(lambda x: x[:, None], zeros)

  # the steps of the forward pass from the last to the first; `loop` has gradients alone
  def step(index: Array, loop: Any) -> Any:
    t, (after, d_first, factors) = length - 1 - index, loop
    after = (after[0] + _swap(_at(gradient[1], t)), after[1])
    # 4. tokens that leave the state unchanged
    d_out, d_cells = after if passed is None else _where(_swap(_at(passed, t)), zero, after)
    # 3. the projection
    (out, _), of_cell = jax.vjp(partial(cell, clip=clips.cell), _at(factors[0], t), _at(c_before, t))
    inputs: tuple[Array, ...] = ()
    if weights.projection is not None:
      if clips.projection is not None:
        d_out = jnp.where(jnp.abs(_at(states, t)) < clips.projection, d_out, 0)
      inputs, d_out = (out, d_out), _times(weights.projection, d_out)
    # 2. the cell
    d_gates, d_cells = of_cell((d_out, d_cells))
    d_before = _times(recurrent, d_gates), d_cells
    # 1. a fresh token has its state from `first`
    state = _where(_swap(_at(fresh, t)), zero, d_before)
    d_first = jax.tree.map(lambda total, all, rest: total + (all - rest).sum(1), d_first, d_before, state)
    if passed is not None:
      state = jax.tree.map(jnp.add, state, _where(_swap(_at(passed, t)), after, zero))
    return state, d_first, _put(t, factors, (d_gates, *inputs))

  factors: Any = (gates,)  # each token's gradient takes the place of its gates, which saves an array
  if weights.projection is not None:
    factors = (gates, jnp.zeros((c, length, b, f), states.dtype), jnp.zeros_like(states))
  state, d_first, factors = jax.lax.fori_loop(0, length, step, (_swap(gradient[0]), zeros, factors))
  # U and P: sums over tokens l and rows b of (input of the product) x (gradient of its output)
  d_gates, *inputs = factors
  d_recurrent = jnp.einsum('clbp,clbq->cpq', h_before, d_gates).reshape(weights.recurrent.shape)
  d_projection = jnp.einsum('clbf,clbp->cfp', *inputs) if inputs else None
  d_gates = d_gates.swapaxes(0, 2).reshape(b, length, c, 4, f)
  return None, None, Weights(d_recurrent, d_projection), Moving(d_gates, _swap(state), d_first)


_read.defvjp(_forward, _backward)


def _at(x: Array, t: Array) -> Array:
  """Read the token t: [c, l, b, ...] -> [c, b, ...]."""
  return jax.lax.dynamic_index_in_dim(x, t, 1, keepdims=False)


def _put(t: Array, x: Any, token: Any) -> Any:
  """Write the token t, [c, b, ...], into [c, l, b, ...]."""
  return jax.tree.map(lambda x, token: jax.lax.dynamic_update_index_in_dim(x, token, t, 1), x, token)


def _swap(tree: Any) -> Any:
  """Exchange the first two axes of all arrays."""
  return jax.tree.map(lambda x: x.swapaxes(0, 1), tree)


def _where(mask: Array, new: State, old: State) -> State:
  """Choose between states [c, b, ...] by bool[c, b]."""
  h, c = (jnp.where(mask[..., None], *pair) for pair in zip(new, old, strict=True))
  return h, c


def _apart(x: Array) -> Array:
  """Keep CPU loops that read x from transposing it again."""
  return jax.lax.optimization_barrier(x) if sharding.device().platform == 'cpu' else x


def _turned(weights: Array) -> Array:
  """Transpose [c, p, q] -> [c, q, p].

  It is called before the loop, because XLA would do it at each token. A CPU that may choose the layout copies twice.
  """
  weights = weights.swapaxes(1, 2)
  if sharding.device().platform != 'cpu':
    return weights
  return layout.with_layout_constraint(weights, layout.Layout(major_to_minor=(0, 1, 2)))


def _times(weights: Array, x: Array) -> Array:
  """Multiply [c, q, p] and [c, b, p] -> [c, b, q]."""
  return _apart(_apart(jnp.einsum('cqp,cbp->cqb', weights, x)).swapaxes(1, 2))


def cell(gates: Array, c: Array, *, clip: float | None = None) -> State:
  """Compute one step of the cell.

  h' = o tanh(c') and c' = f c + i g.

  Args:
    gates: [..., 4, f], W x + U h + b: input, forget, cell, output.
    c: f32[..., f].
    clip: largest absolute value of the new cell.

  Returns:
    h' [..., f] in the dtype of the gates, and c' f32[..., f].
  """
  # [..., 4, f] -> four of [..., f]; sigmoid(x) = (tanh(x / 2) + 1) / 2, so that one tanh serves all gates
  half = jnp.repeat(jnp.array([0.5, 0.5, 1, 0.5]), c.shape[-1])
  i, f, g, o = jnp.split(jnp.tanh(half * gates.reshape(*c.shape[:-1], -1).astype(jnp.float32)), 4, axis=-1)
  i, f, o = (0.5 * gate + 0.5 for gate in (i, f, o))
  c = f * c + i * g
  c = c if clip is None else jnp.clip(c, -clip, clip)
  return (o * jnp.tanh(c)).astype(gates.dtype), c
