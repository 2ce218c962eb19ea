"""The recurrence of LSTM layers over the tokens of a row, and its gradient.

The cell is that of Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000, without peepholes.
`layers/lstm.py` has the layers.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

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
  # 1. move the rows b to the last axis
  rows_last = lambda x: jnp.moveaxis(x, 0, -1)  # noqa: E731
  fresh, passed = jax.tree.map(rows_last, (fresh, passed))
  first = jax.tree.map(lambda part: part[..., None], begin or zeros)
  moving = Moving(gates=rows_last(gates), projected=None, state=jax.tree.map(rows_last, state), first=first)
  # 2. read the tokens
  last, states = _read(Clips(cell_clip, projection_clip), fresh, passed, Weights(recurrent, projection), moving)
  # 3. move the rows back to the first axis
  return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), (last, states))


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

  Working memory of the gradient of a layer of 1,150 over 16 rows of 512 tokens (`benchmarks/lstm.py`): 712 MiB under
  'none', 489 under 'dots', 147 under 'full'. On a CPU the last two take 1.4 times as long.

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


# The recurrence with rows along the last axis. Each product reads the weights on its left in memory order, which is up
# to twice as fast on a CPU. The gradient of the weights is not added up token by token. The scan collects the
# gradients of the gates, and one product computes the gradient of the weights from them.


class Clips(NamedTuple):
  """Limits of absolute values; None for no limit."""

  cell: float | None  # of a new cell
  projection: float | None  # of a projected state


class Weights(NamedTuple):
  """Weights of c recurrences."""

  recurrent: Array  # U [c, p, 4, f]
  projection: Array | None  # P [c, f, p], or None


class Moving(NamedTuple):
  """Inputs that the scan differentiates, with the rows b last."""

  gates: Array  # [l, c, 4, f, b]
  projected: Array | None  # zeros [l, c, p, b], added to the projected states so that these have a gradient; or None
  state: State  # h [c, p, b] and c f32[c, f, b], before the first token
  first: State  # h [c, p, 1] and c f32[c, f, 1], before a fresh token


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _read(clips: Clips, fresh: Array, passed: Array | None, weights: Weights, moving: Moving) -> tuple[State, Array]:
  """Compute the last state, and h [l, c, p, b] by token."""
  return _scan(clips, fresh, passed, weights, moving)[0]


def _read_forward(
  clips: Clips, fresh: Array, passed: Array | None, weights: Weights, moving: Moving
) -> tuple[tuple[State, Array], Any]:
  """Compute `_read`, and the values that its gradient needs."""
  p = weights.projection
  length, c, _, _, b = moving.gates.shape
  if p is not None:
    moving = moving._replace(projected=jnp.zeros((length, c, p.shape[-1], b), p.dtype))
  out, backward, factors = jax.vjp(partial(_scan, clips, fresh, passed, weights), moving, has_aux=True)
  return out, (backward, factors)


def _read_backward(clips: Clips, saved: Any, gradient: tuple[State, Array]) -> tuple[None, None, Weights, Moving]:
  """Compute gradients of the weights and of the moving inputs."""
  backward, (before, unprojected) = saved
  (moving,) = backward(gradient)
  # U and P: sums over tokens l and rows b of (input of the product) x (gradient of its output)
  recurrent = jnp.einsum('lcpb,lcgfb->cpgf', before, moving.gates)
  projection = None
  if moving.projected is not None:
    projection = jnp.einsum('lcfb,lcpb->cfp', unprojected, moving.projected)
  return None, None, Weights(recurrent, projection), moving._replace(projected=None)


_read.defvjp(_read_forward, _read_backward)


def _scan(
  clips: Clips, fresh: Array, passed: Array | None, weights: Weights, moving: Moving
) -> tuple[tuple[State, Array], tuple[Array, Array | None]]:
  """Run the recurrence; the weights are constants for its gradient.

  Args:
    clips: of cells and projected states.
    fresh: bool[l, c, b], tokens before which the state is `moving.first`.
    passed: bool[l, c, b], tokens that leave the state unchanged, or None.
    weights: U and P.
    moving: gates and states.

  Returns:
    (the state after the last token, h after each), and the inputs of the products with weights: h before each token
    [l, c, p, b], and o tanh(c') [l, c, f, b] or None.
  """
  c, p, _, f = weights.recurrent.shape
  up = both_forms(weights.recurrent.reshape(c, p, 4 * f))
  down = None if weights.projection is None else both_forms(weights.projection)
  # the backward pass computes the cell again from W x + U h + b and c, which are fewer numbers than its sigmoids
  cell_again = jax.checkpoint(partial(cell, clip=clips.cell, axis=1), prevent_cse=False)

  def step(state: State, token: Any) -> tuple[State, Any]:
    gates, projected, fresh, passed = token
    # 1. reset the state before a fresh token
    before, c_before = (jnp.where(fresh[:, None], new, old) for new, old in zip(moving.first, state, strict=True))
    # 2. the cell: [c, 4 f, p] x [c, p, b] -> [c, 4, f, b]
    out, cells = cell_again(gates + _times(*up, before).reshape(gates.shape), c_before)
    # 3. the projection: [c, p, f] x [c, f, b] -> [c, p, b]
    unprojected = None
    if down is not None:
      unprojected, out = out, _times(*down, out)
      out = out if projected is None else out + projected
      out = out if clips.projection is None else jnp.clip(out, -clips.projection, clips.projection)
    # 4. tokens that leave the state unchanged
    if passed is not None:
      new = zip(state, (out, cells), strict=True)
      out, cells = (jnp.where(passed[:, None], old, each) for old, each in new)
    return (out, cells), (out, before, unprojected)

  last, (states, *factors) = jax.lax.scan(step, moving.state, (moving.gates, moving.projected, fresh, passed))
  return (last, states), (factors[0], factors[1])


def both_forms(weights: Array) -> tuple[Array, Array]:
  """Return weights [c, p, q] transposed and unchanged.

  They are transposed before the loop, because XLA would do it at each token.
  """
  return weights.swapaxes(1, 2), weights


@jax.custom_vjp
def _times(turned: Array, weights: Array, x: Array) -> Array:
  """Multiply weights and states without a gradient of the weights.

  [c, q, p] (and the same transposed, [c, p, q]) times [c, p, b] -> [c, q, b].
  """
  return jnp.einsum('cqp,cpb->cqb', turned, x)


def _times_forward(turned: Array, weights: Array, x: Array) -> tuple[Array, Array]:
  return _times(turned, weights, x), weights


def _times_backward(weights: Array, gradient: Array) -> tuple[None, None, Array]:
  return None, None, jnp.einsum('cpq,cqb->cpb', weights, gradient)


_times.defvjp(_times_forward, _times_backward)


def cell(gates: Array, c: Array, *, clip: float | None = None, axis: int = -2) -> State:
  """Compute one step of the cell.

  h' = o tanh(c') and c' = f c + i g.

  Args:
    gates: [..., 4, f], W x + U h + b: input, forget, cell, output.
    c: f32[..., f].
    clip: largest absolute value of the new cell.
    axis: of the gates.

  Returns:
    h' [..., f] in the dtype of the gates, and c' f32[..., f].
  """
  # [..., 4, f] -> four of [..., f]
  i, f, g, o = jnp.moveaxis(gates.astype(jnp.float32), axis, 0)
  c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
  c = c if clip is None else jnp.clip(c, -clip, clip)
  return (jax.nn.sigmoid(o) * jnp.tanh(c)).astype(gates.dtype), c
