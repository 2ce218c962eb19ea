"""Numbers of tokens that the functions of this folder choose, and their bounds for `CAPACITY`.

Counts depend on a rate and on the length of a text. Python computes them in float64 for every length from 0 to that of
the row, and the device looks them up. So rounding does not depend on the dtype of the device.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.errors import one_of
from plm_jax.core.keywords import Count, Rate
from plm_jax.core.types import Array
from plm_jax.noise.row import Row, Spans

BudgetRule = Literal['bert', 'roberta']


def check_rate(rate: float, *, name: str = 'rate') -> None:
  """Raise ValueError unless the share called `name` is in [0, 1]."""
  if not 0.0 <= rate <= 1.0:
    raise ValueError(f'{name}={rate} is not in [0, 1]')


def round_up(rate: float, count: int) -> int:
  """Compute ceil(rate * count) without rounding errors: .07 * 100 gives 7."""
  return math.ceil(round(rate * count, 9))


def count_table(function: Callable[[int], float], length: int, dtype: type = np.int32) -> Array:
  """Tabulate `function` for 0 to `length`: [length + 1]."""
  return jnp.asarray(np.array([function(count) for count in range(length + 1)], dtype))


def _bert_count(length: int, *, rate: float, max_count: Count | None) -> int:
  """Compute min(max_count, max(1, round(rate * length))); halves to even (BERT's script)."""
  count = max(1, round(rate * length)) if rate > 0 and length > 0 else 0
  return count if max_count is None else min(max_count, count)


def draw_budget(
  row: Row, key: Array, *, rate: Rate, count: BudgetRule = 'bert', max_count: Count | None = None
) -> Array:
  """Compute the number of tokens to choose, int32[].

  `tokens.fixed_count` states the rules. The rule 'roberta' is random.

  Raises:
    ValueError: a rate outside of [0, 1] or an unknown rule.
  """
  check_rate(rate)
  one_of('count', count, BudgetRule)
  length = row.ids.shape[0]
  real = (row.segment_ids > 0).sum()
  if count == 'bert':
    return count_table(lambda n: _bert_count(n, rate=rate, max_count=max_count), length)[real]
  more = jax.random.uniform(key) < count_table(lambda n: rate * n - math.floor(rate * n), length, np.float32)[real]
  budget = count_table(lambda n: math.floor(rate * n), length)[real] + more
  return budget if max_count is None else jnp.minimum(budget, max_count)


def share_of(tokens: Array, *, rate: Rate) -> Array:
  """Compute ceil(rate * n) for the n true values of `tokens`, int32[]."""
  check_rate(rate)
  return count_table(lambda n: math.ceil(rate * n), tokens.shape[0])[tokens.sum()]


def largest_budget(length: int, *, rate: Rate, count: BudgetRule = 'bert', max_count: Count | None = None) -> int:
  """Compute the largest `draw_budget` of a row of `length` tokens."""
  if count == 'roberta':
    return largest_share(length, rate=rate, max_count=max_count)
  return min(length, _bert_count(length, rate=rate, max_count=max_count))


def largest_share(length: int, *, rate: Rate, max_count: Count | None = None) -> int:
  """Compute the largest `share_of`, at most `max_count`."""
  most = min(length, math.ceil(rate * length))
  return most if max_count is None else min(max_count, most)


def capacity_of_budget(
  length: int, *, rate: Rate = 0.15, max_count: Count | None = None, count: BudgetRule = 'bert', **others: Any
) -> int:
  """Bound the tokens of functions that choose by `draw_budget`."""
  return largest_budget(length, rate=rate, max_count=max_count, count=count)


def capacity_of_share(length: int, *, rate: Rate = 0.15, max_count: Count | None = None, **others: Any) -> int:
  """Bound the tokens of functions that choose by `share_of`."""
  return largest_share(length, rate=rate, max_count=max_count)


def capacity_of_iid(length: int, *, rate: Rate = 0.15) -> int:
  """Bound independent choices: mean plus six deviations of the binomial distribution."""
  return min(length, math.ceil(rate * length + 6 * math.sqrt(length * rate * (1 - rate))))


def number_spans(starts: Array, chosen: Array) -> Spans:
  """Index the spans of bool[l] chosen tokens from left to right.

  Each span begins at one of bool[l] `starts`.

  # chosen   0 1 1 1 0 1
  # starts   1 1 0 1 0 1     number 0 1 1 2 0 3
  """
  number = jnp.where(chosen, jnp.cumsum((starts & chosen).astype(jnp.int32)), 0)
  return Spans(number=number, insert=jnp.zeros_like(number))


def single_tokens(chosen: Array) -> Spans:
  """Make each chosen position a separate span."""
  return number_spans(chosen, chosen)
