"""Where to corrupt: (key, row) -> spans. Each function has a bound on how many tokens it may choose, in `CAPACITY`."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.noise.row import Row, Spans
from plm_jax.types import Array


def _check_rate(rate: float) -> None:
  if not 0.0 <= rate <= 1.0:
    raise ValueError(f'noise rate {rate} is not in [0, 1]')


def _bert_count(length: int, *, rate: float, max_count: int | None) -> int:
  """min(max_pred, max(1, round(rate * length))), with Python's rounding of halves to even (BERT's data script)."""
  count = max(1, round(rate * length)) if rate > 0 else 0
  return count if max_count is None else min(max_count, count)


def _budget(row: Row, *, rate: float, max_count: int | None) -> Array:
  """`_bert_count` of the row's number of real tokens, special ones included: int32[]."""
  length = row.ids.shape[0]
  # a table, so that the rounding is Python's in float64 whatever the device computes in
  table = np.array([0] + [_bert_count(n, rate=rate, max_count=max_count) for n in range(1, length + 1)], np.int32)
  return jnp.asarray(table)[(row.segment_ids > 0).sum()]


def _singles(chosen: Array) -> Spans:
  """Each chosen position as a span of its own."""
  number = jnp.where(chosen, jnp.cumsum(chosen.astype(jnp.int32)), 0)
  return Spans(number, jnp.zeros_like(number))


def fixed_count(key: Array, row: Row, *, rate: float = 0.15, max_count: int | None = None) -> Spans:
  """A fixed number of single tokens, uniformly without replacement (BERT §3.1 and create_pretraining_data).

  Args:
    key: noise key of the row.
    row: clean text; the count is of all its real tokens, the choice among the eligible ones.
    rate: share of tokens; the count is max(1, round(rate * tokens)).
    max_count: never more than this; BERT used 20 in rows of 128 and 77 in rows of 512.
  """
  _check_rate(rate)
  length = row.ids.shape[0]
  most = min(length, _bert_count(length, rate=rate, max_count=max_count))
  if most == 0:
    return _singles(jnp.zeros(length, bool))
  scores = jnp.where(row.eligible, jax.random.uniform(key, (length,)), -1.0)
  best, places = jax.lax.top_k(scores, most)
  taken = (jnp.arange(most) < _budget(row, rate=rate, max_count=max_count)) & (best >= 0)
  return _singles(jnp.zeros(length, bool).at[places].set(taken))


def iid(key: Array, row: Row, *, rate: float = 0.15) -> Spans:
  """Each eligible token by itself with probability `rate`."""
  _check_rate(rate)
  return _singles(row.eligible & (jax.random.uniform(key, row.ids.shape) < rate))


def whole_word(key: Array, row: Row, *, rate: float = 0.15, max_count: int | None = None) -> Spans:
  """Whole words in random order until the budget is met; a word that would overshoot is passed over (BERT, 2019).

  The budget is that of `fixed_count`. Needs `row.word_ids`; each chosen word is one span.
  """
  _check_rate(rate)
  length = row.ids.shape[0]
  if row.word_ids is None:
    raise ValueError('whole_word needs word ids: a vocabulary that says which pieces start a word')
  # a word also ends where eligibility or the document does
  joined = jnp.concatenate(
    [
      jnp.zeros(1, bool),
      (row.word_ids[1:] == row.word_ids[:-1])
      & (row.segment_ids[1:] == row.segment_ids[:-1])
      & row.eligible[1:]
      & row.eligible[:-1],
    ]
  )
  word = jnp.cumsum(~joined) - 1  # [l], from 0
  size = jnp.zeros(length, jnp.int32).at[word].add(row.eligible.astype(jnp.int32))
  scores = jnp.where(size > 0, jax.random.uniform(key, (length,)), 2.0)
  order = jnp.argsort(scores)

  def visit(left, candidate):
    fits = (size[candidate] > 0) & (size[candidate] <= left)
    return left - jnp.where(fits, size[candidate], 0), fits

  _, fits = jax.lax.scan(visit, _budget(row, rate=rate, max_count=max_count), order)
  taken = jnp.zeros(length, bool).at[order].set(fits)
  rank = jnp.where(taken, jnp.cumsum(taken), 0)  # numbers the chosen words from left to right
  number = jnp.where(row.eligible, rank[word], 0).astype(jnp.int32)
  return Spans(number, jnp.zeros_like(number))


def _exact(length: int, *, rate: float = 0.15, max_count: int | None = None) -> int:
  return min(length, _bert_count(length, rate=rate, max_count=max_count))


def _six_deviations(length: int, *, rate: float = 0.15) -> int:
  return min(length, math.ceil(rate * length + 6 * math.sqrt(length * rate * (1 - rate))))


CAPACITY: Mapping[Callable[..., Spans], Callable[..., int]] = MappingProxyType(
  {fixed_count: _exact, whole_word: _exact, iid: _six_deviations}
)
"""where function -> (row length, its settings) -> slots that hold its choice; a rarer excess is counted by its user."""
