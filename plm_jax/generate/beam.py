"""Beam search."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.generate.reader import Reader, row_axis
from plm_jax.generate.rules import NEVER, Beam, Generated, Rules, allow
from plm_jax.types import Array, PyTree


def beam_search(reader: Reader, rules: Rules, how: Beam) -> Generated:
  """Beam search that keeps `beams` open and `beams` finished texts a row."""
  rows, beams, size = reader.token.shape[0], how.beams, rules.max_new
  before = jnp.repeat(reader.before, beams, axis=0)

  class State(NamedTuple):
    made: Array
    token: Array  # [b, k]
    cache: PyTree
    texts: Array  # [b, k, max_new], open
    sums: Array  # [b, k], log-probabilities of open texts
    done_texts: Array
    done_scores: Array  # [b, k]
    done: Array  # bool[b, k], slots of finished texts in use
    hopeful: Array  # bool[b], an open text may still win
    going: Array  # bool[]

  def take(x: Array, index: Array) -> Array:
    return jnp.take_along_axis(x, index.reshape(*index.shape, *(1,) * (x.ndim - 2)), axis=1)

  def step(state: State) -> State:
    logits, cache = reader.read(state.token.reshape(-1), state.made, state.cache)
    gains = jax.nn.log_softmax(logits, axis=1)
    gains = allow(gains, state.made, state.texts.reshape(rows * beams, size), before, rules)
    vocab = gains.shape[1]
    sums = state.sums[:, :, None] + gains.reshape(rows, beams, vocab)
    # twice as many as beams: even if that many end here, enough stay open
    best, index = jax.lax.top_k(sums.reshape(rows, -1), min(2 * beams, beams * vocab))
    origin, token = index // vocab, (index % vocab).astype(jnp.int32)
    texts = take(state.texts, origin)
    texts = jax.lax.dynamic_update_slice_in_dim(texts, token[:, :, None], state.made, axis=2)
    ends = jnp.broadcast_to(state.made + 1 >= size, token.shape)
    if rules.eos_id is not None:
      ends = ends | (token == rules.eos_id)

    open_sums, chosen = jax.lax.top_k(best + ends * NEVER, beams)
    came_from = take(origin, chosen)
    flat = (jnp.arange(rows)[:, None] * beams + came_from).reshape(-1)
    cache = jax.tree.map(lambda x: jnp.take(x, flat, axis=row_axis(x)) if x.ndim else x, cache)

    length = (state.made + 1).astype(jnp.float32)
    # only candidates among the first `beams` may finish
    finishing = ends & (jnp.arange(best.shape[1]) < beams)
    full = state.done.all(axis=1, keepdims=True) & (how.early_stop is True)
    scores = best / length**how.length_penalty + (full | ~state.hopeful[:, None] | ~finishing) * NEVER
    done_scores, winners = jax.lax.top_k(jnp.concatenate([state.done_scores, scores], axis=1), beams)
    done_texts = take(jnp.concatenate([state.done_texts, texts], axis=1), winners)
    done = take(jnp.concatenate([state.done, finishing], axis=1), winners)

    judged = jnp.float32(size) if how.early_stop == 'never' and how.length_penalty > 0 else length
    hope = open_sums[:, 0] / judged**how.length_penalty
    worst = jnp.where(done, done_scores.min(axis=1, keepdims=True), NEVER)
    hopeful = state.hopeful & (hope[:, None] > worst).any(axis=1)
    going = hopeful.any() & ~(done.all() & (how.early_stop is True)) & ~ends.all()
    return State(
      made=state.made + 1,
      token=take(token, chosen),
      cache=cache,
      texts=take(texts, chosen),
      sums=open_sums,
      done_texts=done_texts,
      done_scores=done_scores,
      done=done,
      hopeful=hopeful,
      going=going,
    )

  empty = jnp.full((rows, beams, size), rules.pad_id, jnp.int32)
  start = State(
    jnp.zeros((), jnp.int32),
    jnp.repeat(reader.token[:, None], beams, axis=1),
    reader.cache,
    empty,
    jnp.tile(jnp.where(jnp.arange(beams) == 0, 0.0, NEVER), (rows, 1)),  # all beams are alike at first
    empty,
    jnp.full((rows, beams), NEVER),
    jnp.zeros((rows, beams), bool),
    jnp.ones(rows, bool),
    jnp.ones((), bool),
  )
  end = jax.lax.while_loop(lambda state: (state.made < size) & state.going, step, start)
  # a row without a finished text gives its best open one
  some = end.done.any(axis=1)
  tokens = jnp.where(some[:, None], end.done_texts[:, 0], end.texts[:, 0])
  scores = jnp.where(some, end.done_scores[:, 0], end.sums[:, 0])
  is_end = jnp.zeros_like(tokens, bool) if rules.eos_id is None else tokens == rules.eos_id
  after = jnp.cumsum(is_end, axis=1) - is_end > 0
  tokens = jnp.where(after | (jnp.arange(size) >= end.made), rules.pad_id, tokens)
  lengths = (~after & (jnp.arange(size) < end.made)).sum(axis=1)
  return Generated(tokens, lengths.astype(jnp.int32), scores)
