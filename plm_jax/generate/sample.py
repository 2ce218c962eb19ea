"""Greedy decoding and sampling: one token per step and row."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.generate.reader import Reader
from plm_jax.generate.rules import Generated, Rules, Sampling, allow
from plm_jax.types import Array, PyTree


def _filter(logits: Array, how: Sampling) -> Array:
  """Logits f32[r, v], at -inf outside the best ones."""
  logits = logits / how.temperature
  if how.top_k is not None:
    worst = jax.lax.top_k(logits, min(how.top_k, logits.shape[1]))[0][:, -1:]
    logits = jnp.where(logits < worst, -jnp.inf, logits)
  if how.top_p is not None and how.top_p < 1:
    ordered = -jnp.sort(-logits, axis=1)
    shares = jax.nn.softmax(ordered, axis=1)
    inside = jnp.cumsum(shares, axis=1) - shares < how.top_p  # the one that goes over is in
    worst = jnp.min(jnp.where(inside, ordered, jnp.inf), axis=1, keepdims=True)
    logits = jnp.where(logits < worst, -jnp.inf, logits)
  return logits


def sample_tokens(reader: Reader, rules: Rules, how: Sampling | None, key: Array) -> Generated:
  rows = reader.token.shape[0]

  class State(NamedTuple):
    made: Array
    token: Array
    cache: PyTree
    texts: Array
    lengths: Array
    scores: Array
    open: Array

  def step(state: State) -> State:
    logits, cache = reader.read(state.token, state.made, state.cache)
    allowed = allow(logits, state.made, state.texts, reader.before, rules)
    if how is None:
      token = allowed.argmax(axis=1)
    else:
      token = jax.random.categorical(jax.random.fold_in(key, state.made), _filter(allowed, how), axis=1)
    gain = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=1), token[:, None], axis=1)[:, 0]
    token = jnp.where(state.open, token, rules.pad_id).astype(jnp.int32)
    ends = jnp.zeros_like(state.open) if rules.eos_id is None else token == rules.eos_id
    return State(
      state.made + 1,
      token,
      cache,
      jax.lax.dynamic_update_slice_in_dim(state.texts, token[:, None], state.made, axis=1),
      state.lengths + state.open,
      state.scores + jnp.where(state.open, gain, 0.0),
      state.open & ~ends,
    )

  start = State(
    jnp.zeros((), jnp.int32),
    reader.token,
    reader.cache,
    jnp.full((rows, rules.max_new), rules.pad_id, jnp.int32),
    jnp.zeros(rows, jnp.int32),
    jnp.zeros(rows),
    jnp.ones(rows, bool),
  )
  end = jax.lax.while_loop(lambda state: (state.made < rules.max_new) & state.open.any(), step, start)
  return Generated(end.texts, end.lengths, end.scores)
