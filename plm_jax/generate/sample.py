"""Greedy decoding and sampling: one token per step and row."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.generate.constraints import Constraints, Generated, Sampling, allow, is_one_of
from plm_jax.generate.reader import Cache, Reader, resize, stages


class _State(NamedTuple):
  """State of decoding."""

  num_new: Array  # int32[], number of tokens generated so far
  token: Array  # int32[b], the token to read next
  cache: Cache  # of the trunk
  texts: Array  # int32[b, max_new]
  lengths: Array  # int32[b]
  scores: Array  # f32[b], sums of log-probabilities
  open: Array  # bool[b], False after the end token


def keep_best(logits: Array, sampling: Sampling) -> Array:
  """Divide logits f32[r, v] by temperature; tokens outside top_k, top_p get -inf."""
  logits = logits / sampling.temperature
  if sampling.top_k is not None:
    worst = jax.lax.top_k(logits, min(sampling.top_k, logits.shape[1]))[0][:, -1:]
    logits = jnp.where(logits < worst, -jnp.inf, logits)
  if sampling.top_p is not None and sampling.top_p < 1:
    ordered = -jnp.sort(-logits, axis=1)
    shares = jax.nn.softmax(ordered, axis=1)
    inside = jnp.cumsum(shares, axis=1) - shares < sampling.top_p  # including the token that reaches the sum
    worst = jnp.min(jnp.where(inside, ordered, jnp.inf), axis=1, keepdims=True)
    logits = jnp.where(logits < worst, -jnp.inf, logits)
  return logits


def sample_tokens(
  reader: Reader, constraints: Constraints, sampling: Sampling | None, limits: Array, key: Array
) -> Generated:
  """Generate until texts end, with the best tokens if `sampling` is None."""
  rows = reader.token.shape[0]

  def step(state: _State) -> _State:
    logits, cache = reader.read(state.token[:, None], state.num_new, state.cache)
    logits = logits[:, 0]
    allowed = allow(logits, state.num_new, state.texts, reader.before, constraints, limits)
    if sampling is None:
      token = allowed.argmax(axis=1)
    else:
      token = jax.random.categorical(jax.random.fold_in(key, state.num_new), keep_best(allowed, sampling), axis=1)
    gain = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=1), token[:, None], axis=1)[:, 0]
    token = jnp.where(state.open, token, constraints.pad_id).astype(jnp.int32)
    ends = is_one_of(token, constraints.eos_id) | (state.num_new + 1 >= limits)
    return _State(
      num_new=state.num_new + 1,
      token=token,
      cache=cache,
      texts=jax.lax.dynamic_update_slice_in_dim(state.texts, token[:, None], state.num_new, axis=1),
      lengths=state.lengths + state.open,
      scores=state.scores + jnp.where(state.open, gain, 0.0),
      open=state.open & ~ends,
    )

  def going(state: _State, *, stop: int) -> Array:
    return (state.num_new < stop) & state.open.any()

  start = _State(
    num_new=jnp.zeros((), jnp.int32),
    token=reader.token,
    cache=reader.cache,
    texts=jnp.full((rows, constraints.max_new), constraints.pad_id, jnp.int32),
    lengths=jnp.zeros(rows, jnp.int32),
    scores=jnp.zeros(rows),
    open=jnp.ones(rows, bool),
  )
  state, used = start, reader.cache['segment_ids'].shape[1]
  for stop in stages(used, texts=1, max_new=constraints.max_new):
    state = state._replace(cache=resize(state.cache, used + stop))
    state = jax.lax.while_loop(functools.partial(going, stop=stop), step, state)
  return Generated(tokens=state.texts, lengths=state.lengths, scores=state.scores)
