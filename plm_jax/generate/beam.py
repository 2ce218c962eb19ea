"""Beam search.

The texts of a row share one row of the cache. Each step adds a slot for every text, and a table marks the slots of each
text. A text that is continued twice copies its table, and no step moves a key or a value. When the cache is full, slots
of abandoned texts are reused.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.generate import reader as readers
from plm_jax.generate.constraints import NEVER, Beam, Constraints, Generated, allow, ids_of, is_one_of
from plm_jax.generate.reader import Cache, Reader


class _State(NamedTuple):
  """State of the search, k beams per row."""

  num_new: Array  # int32[], number of tokens generated so far
  token: Array  # int32[b, k], the token of each beam to read next
  cache: Cache  # of the trunk, b rows; its 'seen' bool[b, k, m] marks the slots of each text
  texts: Array  # int32[b, k, max_new], open texts, best first
  sums: Array  # f32[b, k], their log-probabilities
  done_texts: Array  # int32[b, k, max_new], finished texts, best first
  done_scores: Array  # f32[b, k], their log-probability / length ** length_penalty
  done: Array  # bool[b, k], True where there is a finished text
  hopeful: Array  # bool[b], True while an open text may become better than a finished one
  going: Array  # bool[], False once no row searches further


class _Candidates(NamedTuple):
  """The c best continuations of each row by one token, best first."""

  origin: Array  # int32[b, c], the beam that each continues
  token: Array  # int32[b, c], its last token
  texts: Array  # int32[b, c, max_new]
  sums: Array  # f32[b, c], log-probabilities
  ends: Array  # bool[b, c], True where the text ends with this token


def beam_search(reader: Reader, constraints: Constraints, beam: Beam, limits: Array) -> Generated:
  """Search with k open and k finished texts per row.

  It is like the beam search of Hugging Face. `limits` int32[b] are the most tokens of the texts of each row.
  """
  rows, beams, size = reader.token.shape[0], beam.beams, constraints.max_new
  before, used = jnp.repeat(reader.before, beams, axis=0), reader.cache['segment_ids'].shape[1]
  each_limit = jnp.repeat(limits, beams)

  def step(state: _State) -> _State:
    logits, cache = reader.read(state.token, state.num_new, state.cache)
    gains = jax.nn.log_softmax(logits.reshape(rows * beams, -1), axis=1)
    gains = allow(gains, state.num_new, state.texts.reshape(rows * beams, size), before, constraints, each_limit)
    candidates = _extend(state, gains.reshape(rows, beams, -1), limits, eos_id=constraints.eos_id)

    open_sums, chosen = jax.lax.top_k(candidates.sums + candidates.ends * NEVER, beams)
    origin = _take(candidates.origin, chosen)
    state = state._replace(
      token=_take(candidates.token, chosen),
      cache=cache | {'seen': _take(cache['seen'], origin)},
      texts=_take(candidates.texts, chosen),
      sums=open_sums,
    )
    return _finish(state, candidates, beam, limits)

  def going(state: _State, *, slots: int, steps: int = 1) -> Array:
    return state.going & (state.num_new < size) & (state.cache['index'] + beams * steps <= slots)

  def fill(state: _State, *, slots: int) -> _State:
    state = jax.lax.while_loop(functools.partial(going, slots=slots), step, state)
    return state._replace(cache=readers.give_back(state.cache))

  texts = jnp.full((rows, beams, size), constraints.pad_id, jnp.int32)
  start = _State(
    num_new=jnp.zeros((), jnp.int32),
    token=jnp.repeat(reader.token[:, None], beams, axis=1),
    cache=reader.cache | {'seen': jnp.ones((rows, beams, used), bool)},
    texts=texts,
    sums=jnp.tile(jnp.where(jnp.arange(beams) == 0, 0.0, NEVER), (rows, 1)),  # the first step continues only one beam
    done_texts=texts,
    done_scores=jnp.full((rows, beams), NEVER),
    done=jnp.zeros((rows, beams), bool),
    hopeful=jnp.ones(rows, bool),
    going=jnp.ones((), bool),
  )
  state = start
  *smaller, most = readers.capacities(used, rows=rows, texts=beams, max_new=size)
  for slots in smaller:
    state = state._replace(cache=readers.resize(state.cache, slots))
    enough = functools.partial(going, slots=slots, steps=readers.FEWEST_STEPS)
    state = jax.lax.while_loop(enough, functools.partial(fill, slots=slots), state)
  state = state._replace(cache=readers.resize(state.cache, most))
  return _best(jax.lax.while_loop(functools.partial(going, slots=most), step, state), constraints, limits)


def _take(x: Array, index: Array) -> Array:
  """Index axis 1: [b, n, ...], int[b, m] -> [b, m, ...]."""
  return jnp.take_along_axis(x, index.reshape(*index.shape, *(1,) * (x.ndim - 2)), axis=1)


def _extend(state: _State, gains: Array, limits: Array, *, eos_id: int | tuple[int, ...] | None) -> _Candidates:
  """Find the best next tokens by log-probabilities `gains` f32[b, k, v]."""
  rows, beams, vocab_size = gains.shape
  sums = state.sums[:, :, None] + gains
  # enough candidates that k stay open, however many end
  count = max(2, 1 + len(ids_of(eos_id))) * beams
  best, index = jax.lax.top_k(sums.reshape(rows, -1), min(count, beams * vocab_size))
  origin, token = index // vocab_size, (index % vocab_size).astype(jnp.int32)
  texts = _take(state.texts, origin)
  texts = jax.lax.dynamic_update_slice_in_dim(texts, token[:, :, None], state.num_new, axis=2)
  ends = (state.num_new + 1 >= limits)[:, None] | is_one_of(token, eos_id)
  return _Candidates(origin=origin, token=token, texts=texts, sums=best, ends=ends)


def _finish(state: _State, candidates: _Candidates, beam: Beam, limits: Array) -> _State:
  """Compare finished candidates with the finished texts; return the next state."""
  beams = state.texts.shape[1]
  length = (state.num_new + 1).astype(jnp.float32)
  # only the first k candidates may finish
  finishing = candidates.ends & (jnp.arange(candidates.sums.shape[1]) < beams)
  full = state.done.all(axis=1, keepdims=True) & (beam.early_stop is True)
  scores = candidates.sums / length**beam.length_penalty + (full | ~state.hopeful[:, None] | ~finishing) * NEVER
  done_scores, winners = jax.lax.top_k(jnp.concatenate([state.done_scores, scores], axis=1), beams)
  done_texts = _take(jnp.concatenate([state.done_texts, candidates.texts], axis=1), winners)
  done = _take(jnp.concatenate([state.done, finishing], axis=1), winners)

  # the best open text is compared at its present length, or at the length that favours it
  judged = limits.astype(jnp.float32) if beam.early_stop == 'never' and beam.length_penalty > 0 else length
  hope = state.sums[:, 0] / judged**beam.length_penalty
  worst = jnp.where(done, done_scores.min(axis=1, keepdims=True), NEVER)
  hopeful = state.hopeful & (hope[:, None] > worst).any(axis=1) & ~candidates.ends.all(axis=1)
  going = hopeful.any() & ~(done.all() & (beam.early_stop is True))
  return state._replace(
    num_new=state.num_new + 1, done_texts=done_texts, done_scores=done_scores, done=done, hopeful=hopeful, going=going
  )


def _best(end: _State, constraints: Constraints, limits: Array) -> Generated:
  """Select the best finished text of each row, or else open one."""
  finished = end.done.any(axis=1)
  tokens = jnp.where(finished[:, None], end.done_texts[:, 0], end.texts[:, 0])
  scores = jnp.where(finished, end.done_scores[:, 0], end.sums[:, 0])
  is_end = is_one_of(tokens, constraints.eos_id)
  position = jnp.arange(tokens.shape[1])
  after_end = (jnp.cumsum(is_end, axis=1) - is_end > 0) | (position >= jnp.minimum(end.num_new, limits)[:, None])
  tokens = jnp.where(after_end, constraints.pad_id, tokens)
  lengths = (~after_end).sum(axis=1)
  return Generated(tokens=tokens, lengths=lengths.astype(jnp.int32), scores=scores)
