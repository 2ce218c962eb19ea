"""Where to corrupt, by single tokens: (key, row) -> spans."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.noise.draws import choose
from plm_jax.noise.row import Row, Spans
from plm_jax.noise.where.counts import (
  Count,
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
from plm_jax.types import Array


def fixed_count(
  key: Array,
  row: Row,
  *,
  rate: float = 0.15,
  max_count: int | None = None,
  count: Count = 'bert',
  candidates: Literal['ordinary', 'all'] = 'ordinary',
) -> Spans:
  """A fixed number of single tokens, uniformly without replacement (BERT §3.1 and create_pretraining_data).

  Args:
    key: noise key of the row.
    row: clean text.
    rate: share of tokens.
    max_count: never more than this; BERT used 20 in rows of 128 and 77 in rows of 512.
    count: 'bert' is max(1, round(rate * real tokens)), special ones counted; 'roberta' floor(rate * real tokens + u)
      with u uniform in [0, 1) (fairseq).
    candidates: 'ordinary' tokens only, or 'all' real ones, so that special tokens may be chosen (fairseq's RoBERTa).
  """
  if candidates not in ('ordinary', 'all'):
    raise ValueError(f'candidates={candidates!r}; choices are ordinary, all')
  count_key, key = jax.random.split(key) if count == 'roberta' else (key, key)
  budget = draw_budget(row, count_key, rate=rate, count=count, max_count=max_count)
  return single_tokens(choose(key, row.eligible if candidates == 'ordinary' else row.segment_ids > 0, budget))


def iid(key: Array, row: Row, *, rate: float = 0.15) -> Spans:
  """Each eligible token by itself with probability `rate`."""
  check_rate(rate)
  return single_tokens(row.eligible & (jax.random.uniform(key, row.ids.shape) < rate))


def with_replacement(key: Array, row: Row, *, rate: float = 0.15, max_count: int | None = None) -> Spans:
  """As many draws as `fixed_count` takes tokens, each uniform over the eligible ones (ELECTRA §3.1 and its code).

  A position that is drawn twice is chosen once, so that fewer tokens may be chosen than drawn.
  """
  length = row.ids.shape[0]
  budget = draw_budget(row, key, rate=rate, max_count=max_count)
  most = largest_budget(length, rate=rate, max_count=max_count)
  rank = jnp.where(row.eligible, jnp.cumsum(row.eligible) - 1, length)
  places = jnp.zeros(length, jnp.int32).at[rank].set(jnp.arange(length, dtype=jnp.int32), mode='drop')
  total = row.eligible.sum()
  drawn = jax.random.randint(key, (most,), 0, jnp.maximum(total, 1))
  used = (jnp.arange(most) < budget) & (total > 0)
  return single_tokens(jnp.zeros(length, bool).at[jnp.where(used, places[drawn], length)].set(True, mode='drop'))


def frequency(
  key: Array, row: Row, *, counts: np.ndarray, rate: float = 0.15, smoothing: float = 0.7, max_count: int | None = None
) -> Spans:
  """Rare tokens first: drawn without replacement with p ∝ count ** -smoothing (DistilBERT, released training code).

  ceil(rate * real tokens) of each row, where the released code takes that share of the whole batch at once.

  Args:
    key: noise key of the row.
    row: clean text.
    counts: int[v], how often each token of the vocabulary is in the training text; 0 counts as 1.
    rate: share of tokens, special ones counted.
    smoothing: 0 is uniform.
    max_count: never more than this.
  """
  length = row.ids.shape[0]
  budget = share_of(row.segment_ids > 0, rate=rate)
  most = largest_share(length, rate=rate, max_count=max_count)
  if most == 0:
    return single_tokens(jnp.zeros(length, bool))
  weights = jnp.asarray(-smoothing * np.log(np.maximum(np.asarray(counts, np.float64), 1)), jnp.float32)
  # the order of draws without replacement is that of log p + Gumbel noise
  scores = jnp.where(row.eligible, weights[row.ids] + jax.random.gumbel(key, (length,)), -jnp.inf)
  best, places = jax.lax.top_k(scores, most)
  taken = (jnp.arange(most) < budget) & (best > -jnp.inf)
  return single_tokens(jnp.zeros(length, bool).at[places].set(taken))


CAPACITY: Mapping[Callable[..., Spans], Callable[..., int]] = MappingProxyType(
  {
    fixed_count: capacity_of_budget,
    with_replacement: capacity_of_budget,
    frequency: capacity_of_share,
    iid: capacity_of_iid,
  }
)
"""where function -> (row length, its settings) -> slots that hold its choice; a rarer excess is counted by its user."""
