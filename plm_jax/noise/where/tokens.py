"""Single tokens to corrupt: (key, row) -> spans. Every chosen token is a separate span."""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.errors import one_of
from plm_jax.core.keywords import Count, Rate
from plm_jax.core.types import Array
from plm_jax.noise.row import Row, Spans
from plm_jax.noise.where.counts import (
  BudgetRule,
  capacity_of_budget,
  capacity_of_iid,
  capacity_of_share,
  check_rate,
  draw_budget,
  largest_budget,
  largest_share,
  share_of,
  single_tokens,
)
from plm_jax.noise.without_replacement import choose

Candidates = Literal['ordinary', 'all']


def fixed_count(
  key: Array,
  row: Row,
  *,
  rate: Rate = 0.15,
  max_count: Count | None = None,
  count: BudgetRule = 'bert',
  candidates: Candidates = 'ordinary',
) -> Spans:
  """Choose a fixed number of single tokens without replacement.

  BERT §3.1 and create_pretraining_data.

  Args:
    rate: share of the tokens, including special tokens, without padding.
    max_count: upper bound of the count; BERT used 20 in rows of 128 and 77 in rows of 512.
    count: 'bert' is max(1, round(rate * n)) of n tokens; 'roberta' is floor(rate * n + u) with u uniform in [0, 1)
      (fairseq).
    candidates: 'ordinary' tokens only, or 'all' except padding, so that special tokens may be chosen (fairseq's
      RoBERTa).
  """
  one_of('candidates', candidates, Candidates)
  count_key, key = jax.random.split(key) if count == 'roberta' else (key, key)
  budget = draw_budget(row, count_key, rate=rate, count=count, max_count=max_count)
  return single_tokens(choose(key, row.eligible if candidates == 'ordinary' else row.segment_ids > 0, budget))


def iid(key: Array, row: Row, *, rate: Rate = 0.15) -> Spans:
  """Choose each eligible token independently with probability `rate`."""
  check_rate(rate)
  return single_tokens(row.eligible & (jax.random.uniform(key, row.ids.shape) < rate))


def with_replacement(key: Array, row: Row, *, rate: Rate = 0.15, max_count: Count | None = None) -> Spans:
  """Sample positions with replacement (ELECTRA §3.1 and its code).

  The number of samples is the count of `fixed_count`; each is uniform over the eligible tokens. A position that is
  sampled twice is chosen once, so there may be fewer chosen tokens than samples.
  """
  length = row.ids.shape[0]
  budget = draw_budget(row, key, rate=rate, max_count=max_count)
  most = largest_budget(length, rate=rate, max_count=max_count)
  # position of the n-th eligible token: eligible 0 1 0 1 1 gives 1 3 4 0 0
  rank = jnp.where(row.eligible, jnp.cumsum(row.eligible) - 1, length)
  positions = jnp.zeros(length, jnp.int32).at[rank].set(jnp.arange(length, dtype=jnp.int32), mode='drop')
  total = row.eligible.sum()
  sampled = jax.random.randint(key, (most,), 0, jnp.maximum(total, 1))
  used = (jnp.arange(most) < budget) & (total > 0)
  return single_tokens(jnp.zeros(length, bool).at[jnp.where(used, positions[sampled], length)].set(True, mode='drop'))


def frequency(
  key: Array,
  row: Row,
  *,
  counts: np.ndarray,
  rate: Rate = 0.15,
  smoothing: Annotated[float, '0 <= x <= 100'] = 0.7,
  max_count: Count | None = None,
) -> Spans:
  """Choose rare tokens more often: p ∝ count ** -smoothing.

  Without replacement (DistilBERT, released training code). It chooses ceil(rate * tokens) of each row; the released
  code takes that share of the whole batch at once.

  Args:
    counts: int[v], occurrences of each token of the vocabulary in the training text; 0 counts as 1.
    rate: share of the tokens, including special tokens, without padding.
    smoothing: exponent; 0 is uniform.
    max_count: upper bound of the count.
  """
  length = row.ids.shape[0]
  budget = share_of(row.segment_ids > 0, rate=rate)
  most = largest_share(length, rate=rate, max_count=max_count)
  if most == 0:
    return single_tokens(jnp.zeros(length, bool))
  weights = jnp.asarray(-smoothing * np.log(np.maximum(np.asarray(counts, np.float64), 1)), jnp.float32)
  # sampling without replacement takes the largest values of log p + Gumbel noise
  scores = jnp.where(row.eligible, weights[row.ids] + jax.random.gumbel(key, (length,)), -jnp.inf)
  best, positions = jax.lax.top_k(scores, most)
  taken = (jnp.arange(most) < budget) & (best > -jnp.inf)
  return single_tokens(jnp.zeros(length, bool).at[positions].set(taken))


CAPACITY: Mapping[Callable[..., Spans], Callable[..., int]] = {
  fixed_count: capacity_of_budget,
  with_replacement: capacity_of_budget,
  frequency: capacity_of_share,
  iid: capacity_of_iid,
}
"""Function of this file -> (row length, its settings) -> slots for its choice; the caller counts tokens beyond them."""
