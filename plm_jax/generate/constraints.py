"""Settings of generation, the constraints they set at each step, and the result of generation."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.config.aliases import hint
from plm_jax.core.errors import one_of
from plm_jax.core.types import Array

OWN = frozenset({'segment_ids', 'max_new', 'method', 'start_id', 'blank', 'rng'})  # keywords of `generate` itself
NEVER = -1e9  # log-probability of a forbidden text: finite, so that sums of it can be compared

Method = Literal['greedy', 'sample', 'beam']


class Generated(NamedTuple):
  """Generated texts.

  Attributes:
    tokens: int32[b, max_new], `pad_id` after the end token.
    lengths: int32[b], number of generated tokens, including the end token.
    scores: f32[b], sum of the log-probabilities; of a beam search, divided by length ** length_penalty.
  """

  tokens: Array
  lengths: Array
  scores: Array


class Constraints(NamedTuple):
  """Constraints on the next token, for every method."""

  max_new: int  # most tokens to generate
  eos_id: int | tuple[int, ...] | None = None  # token that ends a text, or several; None for no end token
  pad_id: int = 0  # token after the end
  min_new: int = 0  # fewest tokens before an end token
  no_repeat: int = 0  # n, so that no n-gram occurs twice in prompt and text; 0 allows every n-gram
  first_id: int | None = None  # first token of every text
  last_id: int | tuple[int, ...] | None = None  # last token of a text of the greatest length, or several to choose from
  # ids of the tokenizer; rows of the table beyond it are never generated. None allows all.
  vocab_size: int | None = None


def ids_of(value: int | tuple[int, ...] | None) -> tuple[int, ...]:
  """Return one id or several as a tuple."""
  return () if value is None else tuple(value) if isinstance(value, tuple | list) else (value,)


def is_one_of(tokens: Array, ids: int | tuple[int, ...] | None) -> Array:
  """Mark the tokens that are one of these ids."""
  return jnp.isin(tokens, jnp.array(ids_of(ids), jnp.int32))


class Sampling(NamedTuple):
  """Settings of the method 'sample'. Each filter applies to the tokens that the previous ones keep."""

  temperature: float = 1.0  # divisor of the logits, above 0
  top_k: int | None = None  # number of best tokens to sample from; None for all
  top_p: float | None = None  # samples from the best tokens whose probabilities reach this sum, in (0, 1]; None for all


class Beam(NamedTuple):
  """Settings of the method 'beam'."""

  beams: int = 4  # beam width: open texts, and finished texts, per row
  length_penalty: float = 1.0  # texts are compared by log-probability / length ** length_penalty
  # when the search of a row ends. True: once there are as many finished texts as beams. False: once the best open text,
  # at its present length, is not better than the worst finished one. 'never': as False, but at the greatest length if
  # length_penalty is positive.
  early_stop: bool | Literal['never'] = False


def group(method: str, max_new: int, settings: Mapping[str, Any]) -> tuple[Constraints, Sampling | Beam | None]:
  """Group the keywords of `generate` into the tuples that its parts read.

  The second is None for the method 'greedy'. Settings of another method are accepted and ignored.

  Raises:
    TypeError: an unknown keyword.
    ValueError: an invalid method or value.
  """
  owners: dict[str, type] = {name: kind for kind in (Constraints, Sampling, Beam) for name in kind._fields}
  for name in settings:
    if name not in owners:
      nearest = hint(name, OWN | owners.keys(), table='generate')
      raise TypeError(f'generate has no keyword {name!r}.{nearest} Keywords: {", ".join(owners)}')
  one_of('method', method, Method)

  def of(kind: type) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if owners[name] is kind}

  constraints = Constraints(max_new, **of(Constraints))
  several: Any = {name: tuple(value) for name, value in constraints._asdict().items() if isinstance(value, list)}
  constraints = constraints._replace(**several)  # hashable, as a static argument must be
  if max_new < 1 or not 0 <= constraints.min_new <= max_new:
    raise ValueError(f'max_new={max_new} must be at least 1, and min_new={constraints.min_new} in [0, max_new]')
  if constraints.min_new and not ids_of(constraints.eos_id):
    raise ValueError(f'min_new={constraints.min_new} needs the end token that it delays: set eos_id')
  if method == 'sample':
    temperature, top_k, top_p = sampling = Sampling(**of(Sampling))
    if temperature <= 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
      raise ValueError(f'temperature={temperature} and top_k={top_k} must be positive, and top_p={top_p} in (0, 1]')
    return constraints, sampling
  beams, _, stop = beam = Beam(**of(Beam)) if method == 'beam' else Beam()
  if beams < 1 or stop not in (True, False, 'never'):
    raise ValueError(f"beams={beams} must be at least 1, and early_stop={stop!r} one of True, False, 'never'")
  return constraints, beam if method == 'beam' else None


def allow(scores: Array, num_new: Array, texts: Array, before: Array, constraints: Constraints, limits: Array) -> Array:
  """Set scores f32[r, v] of forbidden next tokens to -inf.

  Of texts int32[r, max_new] the first `num_new` int32[] are filled; `before` int32[r, p] has -1 on padding; `limits`
  are int32[r].
  """
  if constraints.no_repeat:
    repeats = _repeats(num_new, texts, before, size=constraints.no_repeat, vocab_size=scores.shape[1])
    scores = jnp.where(repeats, -jnp.inf, scores)
  vocab = jnp.arange(scores.shape[1])
  if constraints.vocab_size is not None and constraints.vocab_size < len(vocab):
    scores = jnp.where(vocab < constraints.vocab_size, scores, -jnp.inf)
  if constraints.min_new:
    scores = jnp.where(is_one_of(vocab, constraints.eos_id) & (num_new < constraints.min_new), -jnp.inf, scores)
  for forced, when in ((constraints.first_id, num_new == 0), (constraints.last_id, (num_new == limits - 1)[:, None])):
    if ids_of(forced):
      only = jnp.where(is_one_of(vocab, forced), 0.0, -jnp.inf)
      scores = jnp.where(when, only, scores)
  return scores


def _repeats(num_new: Array, texts: Array, before: Array, *, size: int, vocab_size: int) -> Array:
  """Mark tokens bool[r, v] that would repeat an n-gram of `size` tokens.

  # size 3, read so far   a b c a b     the last two tokens are a b
  # windows               a b c, b c a, c a b: the first begins with a b, so c is forbidden
  """
  whole = jnp.concatenate([before, texts], axis=1)  # [r, p + max_new]
  rows, length = whole.shape
  filled = before.shape[1] + num_new
  count = length - size + 1  # windows of `size` tokens
  if count < 1:
    return jnp.zeros((rows, vocab_size), bool)
  # windows that begin like the end of the text
  same = jnp.broadcast_to(jnp.arange(count) + size <= filled, (rows, count))
  for offset in range(size - 1):
    last = jax.lax.dynamic_slice_in_dim(whole, filled - (size - 1) + offset, 1, axis=1)
    same &= (whole[:, offset : offset + count] == last) & (last >= 0)
  same &= filled >= size - 1
  follows = whole[:, size - 1 :]
  same &= follows >= 0
  return jnp.zeros((rows, vocab_size), bool).at[jnp.arange(rows)[:, None], follows].max(same)
