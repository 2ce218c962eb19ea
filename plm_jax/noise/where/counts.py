"""How many tokens a function of this folder chooses, and the bounds on it."""

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.noise.row import Row, Spans
from plm_jax.types import Array

Count = Literal['bert', 'roberta']


def check_rate(rate: float) -> None:
  """Raises where a rate is no share."""
  if not 0.0 <= rate <= 1.0:
    raise ValueError(f'noise rate {rate} is not in [0, 1]')


def round_up(rate: float, count: int) -> int:
  """ceil(rate * count), blind to rounding errors of the product: .07 * 100 is 7."""
  return math.ceil(round(rate * count, 9))


def count_table(function: Callable[[int], float], length: int, dtype: type = np.int32) -> Array:
  """[length + 1]: `function` of 0 to `length`, rounded by Python in float64 whatever the device computes in."""
  return jnp.asarray(np.array([function(count) for count in range(length + 1)], dtype))


def _bert_count(length: int, *, rate: float, max_count: int | None) -> int:
  """min(max_pred, max(1, round(rate * length))), with Python's rounding of halves to even (BERT's data script)."""
  count = max(1, round(rate * length)) if rate > 0 and length > 0 else 0
  return count if max_count is None else min(max_count, count)


def draw_budget(row: Row, key: Array, *, rate: float, count: Count = 'bert', max_count: int | None = None) -> Array:
  """How many tokens to choose, int32[]; `fixed_count` has the rules."""
  check_rate(rate)
  length = row.ids.shape[0]
  real = (row.segment_ids > 0).sum()
  if count == 'bert':
    return count_table(lambda n: _bert_count(n, rate=rate, max_count=max_count), length)[real]
  if count != 'roberta':
    raise ValueError(f'count={count!r}; choices are bert, roberta')
  more = jax.random.uniform(key) < count_table(lambda n: rate * n - math.floor(rate * n), length, np.float32)[real]
  budget = count_table(lambda n: math.floor(rate * n), length)[real] + more
  return budget if max_count is None else jnp.minimum(budget, max_count)


def share_of(tokens: Array, *, rate: float) -> Array:
  """ceil(rate * tokens) of bool[l] tokens, int32[]."""
  check_rate(rate)
  return count_table(lambda n: math.ceil(rate * n), tokens.shape[0])[tokens.sum()]


def largest_budget(length: int, *, rate: float, count: Count = 'bert', max_count: int | None = None) -> int:
  """The largest `_budget` of a row of `length`."""
  if count == 'roberta':
    return largest_share(length, rate=rate, max_count=max_count)
  return min(length, _bert_count(length, rate=rate, max_count=max_count))


def largest_share(length: int, *, rate: float, max_count: int | None = None) -> int:
  most = min(length, math.ceil(rate * length))
  return most if max_count is None else min(max_count, most)


def number_spans(starts: Array, chosen: Array) -> Spans:
  """Spans of chosen tokens, numbered from left to right; each begins at one of `starts`."""
  number = jnp.where(chosen, jnp.cumsum((starts & chosen).astype(jnp.int32)), 0)
  return Spans(number, jnp.zeros_like(number))


def single_tokens(chosen: Array) -> Spans:
  """Each chosen position as a span of its own."""
  return number_spans(chosen, chosen)


def capacity_of_budget(
  length: int, *, rate: float = 0.15, max_count: int | None = None, count: Count = 'bert', **others: Any
) -> int:
  return largest_budget(length, rate=rate, max_count=max_count, count=count)


def capacity_of_share(length: int, *, rate: float = 0.15, max_count: int | None = None, **others: Any) -> int:
  return largest_share(length, rate=rate, max_count=max_count)


def capacity_of_iid(length: int, *, rate: float = 0.15) -> int:
  return min(length, math.ceil(rate * length + 6 * math.sqrt(length * rate * (1 - rate))))
