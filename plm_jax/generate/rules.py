"""What generation may write, and what it returns."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.types import Array

NEVER = -1e9  # of log-probabilities: finite, so that sums of it can be compared


class Generated(NamedTuple):
  """What was made.

  Attributes:
    tokens: int32[b, max_new], `pad_id` after the end token.
    lengths: int32[b], tokens made, the end token counted.
    scores: f32[b], sum of log-probabilities; of a beam search, divided by length ** length_penalty.
  """

  tokens: Array
  lengths: Array
  scores: Array


class Rules(NamedTuple):
  """What may come next, whatever the method.

  Attributes:
    max_new: most tokens to make.
    eos_id: token that ends a text; None: nothing does.
    pad_id: stands behind the end.
    min_new: tokens to make before the end token may come.
    no_repeat: n, such that no n tokens in a row come twice in prompt and text; 0 allows everything.
    first_id: token that the text must begin with.
    last_id: token that a text of `max_new` tokens must end with.
  """

  max_new: int
  eos_id: int | None = None
  pad_id: int = 0
  min_new: int = 0
  no_repeat: int = 0
  first_id: int | None = None
  last_id: int | None = None


class Sampling(NamedTuple):
  """How to draw: logits / temperature, of which the `top_k` best, of which the best that sum to `top_p`."""

  temperature: float = 1.0
  top_k: int | None = None
  top_p: float | None = None


class Beam(NamedTuple):
  """How to search: `beams` texts at a time, compared by log-probability / length ** length_penalty.

  `early_stop` True ends when there are as many finished texts as beams; False when the best open one, at its present
  length, would not be better than the worst finished one; 'never' judges it at its greatest length.
  """

  beams: int
  length_penalty: float = 1.0
  early_stop: bool | Literal['never'] = False


def allow(scores: Array, made: Array, texts: Array, before: Array, rules: Rules) -> Array:
  """Log-probabilities (or logits) f32[r, v] with what the rules forbid at -inf.

  Args:
    scores: of the next token.
    made: int32[], tokens made so far.
    texts: int32[r, max_new], filled up to `made`.
    before: int32[r, p], -1 on padding.
    rules: what may come.
  """
  if rules.no_repeat:
    scores = jnp.where(_repeats(made, texts, before, size=rules.no_repeat, vocab=scores.shape[1]), -jnp.inf, scores)
  vocab = jnp.arange(scores.shape[1])
  if rules.eos_id is not None and rules.min_new:
    scores = jnp.where((vocab == rules.eos_id) & (made < rules.min_new), -jnp.inf, scores)
  for forced, when in ((rules.first_id, made == 0), (rules.last_id, made == rules.max_new - 1)):
    if forced is not None:
      only = jnp.where(vocab == forced, 0.0, -jnp.inf)
      scores = jnp.where(when, only, scores)
  return scores


def _repeats(made: Array, texts: Array, before: Array, *, size: int, vocab: int) -> Array:
  """bool[r, v]: tokens that would make `size` tokens in a row come a second time."""
  whole = jnp.concatenate([before, texts], axis=1)  # [r, p + max_new]
  rows, length = whole.shape
  known = before.shape[1] + made
  count = length - size + 1  # windows
  if count < 1:
    return jnp.zeros((rows, vocab), bool)
  same = jnp.broadcast_to(jnp.arange(count) + size <= known, (rows, count))
  for offset in range(size - 1):
    last = jax.lax.dynamic_slice_in_dim(whole, known - (size - 1) + offset, 1, axis=1)
    same &= (whole[:, offset : offset + count] == last) & (last >= 0)
  same &= known >= size - 1
  follows = whole[:, size - 1 :]
  return jnp.zeros((rows, vocab), bool).at[jnp.arange(rows)[:, None], follows].max(same)
