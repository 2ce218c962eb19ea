"""Spans with exact counts in every document: (key, row) -> spans.

Each run (`noise/runs.py`) is corrupted as if it were alone in the row.
"""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.errors import one_of
from plm_jax.core.keywords import Rate
from plm_jax.core.types import Array
from plm_jax.noise.cuts import cut
from plm_jax.noise.row import Row, Spans
from plm_jax.noise.runs import Runs, continues_document, find_runs, select
from plm_jax.noise.where.counts import capacity_of_iid, check_rate, count_table, number_spans, round_up

Units = Literal['words', 'tokens']
MeanLength = Annotated[float, '1 <= x']
PoissonMean = Annotated[float, '0 < x <= 50']
_NEGLIGIBLE = 1e-7  # lengths with a smaller probability are left out (fairseq)
_ROUNDED_UP = 8  # tokens in CAPACITY for rounding up, one per document of a row beyond the first


def _unit_starts(row: Row, runs: Runs, units: Units) -> Array:
  """Mark the first token of each unit in its run: bool[l]."""
  one_of('units', units, Units)
  if units == 'tokens':
    return runs.inside
  if row.word_ids is None:
    raise ValueError("units='words' needs word ids: use a vocabulary that marks the starts of words, or units='tokens'")
  changes = jnp.pad(row.word_ids[1:] != row.word_ids[:-1], (1, 0), constant_values=True)
  return runs.inside & (runs.fresh | changes)


# T5 -----------------------------------------------------------------------------------------------------------------


def exact_counts(length: int, *, rate: Rate, mean: MeanLength) -> tuple[int, int]:
  """Compute the tokens and spans that `exact_spans` hides in a run.

  tokens is round(rate * length) within [1, length - 1], and spans is round(tokens / mean) within [1, length - tokens].
  Python rounds halves to even. Both are 0 for a single token and for rate 0.

  Returns:
    (tokens, spans) for a run of `length` tokens.
  """
  if rate == 0 or length < 2:
    return 0, 0
  tokens = min(max(round(rate * length), 1), length - 1)
  return tokens, min(max(round(tokens / mean), 1), length - tokens)


def exact_spans(key: Array, row: Row, *, rate: Rate = 0.15, mean: MeanLength = 3.0) -> Spans:
  """Corrupt spans as T5 does (Raffel et al. 2020, §3.3.4).

  An exact number of tokens is hidden in an exact number of spans. Hidden tokens and the others are each cut into that
  number of parts, every cut with the same probability. The parts alternate, text first, so a run begins with text and
  ends with a hidden span.

  # run      a b c d e f     3 hidden tokens in 2 spans: text a | d e, hidden b c | f
  # number   0 1 1 0 0 2

  Args:
    rate: share of tokens, see `exact_counts`.
    mean: mean length of a span; at least 1.
  """
  return cut_spans(row, key, exact_tables(row.ids.shape[0], rate=rate, mean=mean)[None])


def exact_tables(length: int, *, rate: Rate = 0.15, mean: MeanLength = 3.0) -> np.ndarray:
  """Tabulate `exact_counts` of 0 to `length` tokens: int32[2, length + 1]."""
  check_rate(rate)
  if mean < 1:
    raise ValueError(f'mean={mean}: the mean length of a span is at least 1')
  counts = [exact_counts(count, rate=rate, mean=mean) for count in range(length + 1)]
  return np.array(counts, np.int32).T


def cut_spans(row: Row, key: Array, counts: np.ndarray, which: Array | int = 0) -> Spans:
  """Compute `exact_spans` for counts that may differ between rows.

  Args:
    counts: int32[n, 2, l + 1], tables of `exact_tables`.
    which: int[], the table of the row.
  """
  runs = find_runs(row)
  # index into the concatenated tables, so that a row looks up a number per token and copies no table
  index = which * counts.shape[-1] + runs.size
  hidden, spans = (jnp.asarray(counts[:, kind].reshape(-1))[index] for kind in range(2))
  chosen, starts = cut(jax.random.uniform(key, row.ids.shape), runs, hidden, jnp.maximum(spans - 1, 0))
  return number_spans(starts, chosen)


def iid_spans(key: Array, row: Row, *, rate: Rate = 0.15) -> Spans:
  """Choose tokens with probability `rate`; neighbours are one span (T5, §3.3.2)."""
  check_rate(rate)
  chosen = row.eligible & (jax.random.uniform(key, row.ids.shape) < rate)
  return number_spans(chosen & ~continues_document(row, chosen), chosen)


def suffix_count(length: int, *, rate: Rate) -> int:
  """Compute round(rate * length) within [1, length - 1], for suffixes."""
  return 0 if rate == 0 or length < 2 else min(max(round(rate * length), 1), length - 1)


def prefix(key: Array, row: Row, *, rate: Rate | None = None) -> Spans:
  """Choose one span from a cut to the end.

  Prefix language modelling (Raffel et al. 2020, §3.2.1; UL2's S-denoiser). Each run has its own cut; in
  `objectives/denoising.py` the whole text of a document is one run.

  Args:
    rate: share of tokens after the cut; None samples the cut uniformly, with at least one token on either side.
  """
  runs = find_runs(row)
  if rate is None:
    uniform = jax.random.uniform(key, row.ids.shape)[runs.first]  # one number per run
    hidden = runs.size - 1 - (uniform * (runs.size - 1)).astype(jnp.int32)
    hidden = jnp.where(runs.size > 1, hidden, 0)
  else:
    check_rate(rate)
    hidden = count_table(lambda count: suffix_count(count, rate=rate), row.ids.shape[0])[runs.size]
  index = jnp.arange(row.ids.shape[0]) - runs.first
  # the last `hidden` tokens of the run
  chosen = runs.inside & (index >= runs.size - hidden)
  return number_spans(chosen & (index == runs.size - hidden), chosen)


def one_span(key: Array, row: Row, *, rate: Rate = 0.5) -> Spans:
  """Choose one span of a share of the tokens, anywhere.

  MASS (Song et al. 2019, §3.2; BART, §4.1). Each run has its own span.
  """
  check_rate(rate)
  length = row.ids.shape[0]
  runs = find_runs(row)
  hidden = count_table(lambda count: suffix_count(count, rate=rate), length)[runs.size]
  uniform = jax.random.uniform(key, (length,))[runs.first]
  start = (uniform * (runs.size - hidden + 1)).astype(jnp.int32)
  index = jnp.arange(length) - runs.first
  chosen = runs.inside & (index >= start) & (index < start + hidden)
  return number_spans(chosen & (index == start), chosen)


# BART ---------------------------------------------------------------------------------------------------------------


def exact_units(key: Array, row: Row, *, rate: Rate = 0.15, units: Units = 'words') -> Spans:
  """Choose ceil(rate * units) units of each run, each a span.

  BART's token masking and deletion (Lewis et al. 2019, §2.2).

  Args:
    row: clean text, with word ids if units are words.
    rate: share of the units.
    units: 'words' or 'tokens'.
  """
  check_rate(rate)
  length = row.ids.shape[0]
  runs = find_runs(row)
  starts = _unit_starts(row, runs, units)
  total = runs.total(starts)
  wanted = count_table(lambda count: round_up(rate, count), length)[total]
  taken = select(jax.random.uniform(key, (length,)), starts, fresh=runs.fresh, wanted=wanted, total=total)
  start = jax.lax.cummax(jnp.where(starts, jnp.arange(length), 0))
  return number_spans(taken, runs.inside & taken[start])


def _length_table(mean: MeanLength) -> np.ndarray:
  """Tabulate P(length <= n) for n = 1, 2, ....

  The length is Poisson, given that it is above 0. The table ends where probabilities become negligible.
  """
  weights = [math.exp(-mean)]
  while weights[-1] >= _NEGLIGIBLE or len(weights) <= mean:
    weights.append(weights[-1] * mean / len(weights))
  shares = np.cumsum(weights[1:])
  return (shares / shares[-1]).astype(np.float32)


def _gaps(row: Row, runs: Runs, remaining: Array) -> Array:
  """Mark run tokens and the special token right after: bool[l]."""
  return (runs.inside & remaining) | (~runs.inside & continues_document(row, row.eligible))


def _draw_lengths(
  uniform: Array, runs: Runs, starts: Array, *, mean: float, budget: Array
) -> tuple[Array, Array, Array]:
  """Sample Poisson lengths for each run until they sum to its budget.

  The last length is cut to meet the sum. The n-th uniform number u of a run is at its n-th unit. One inverse transform
  gives the n-th length above 0 and the number of lengths of 0 before it. A length is 0 with probability q = exp(-mean).
  With v = 1 - u,

      zeros = floor(-log(v) / mean)           P(zeros >= n) = P(v <= q^n) = q^n, the geometric law of failures before
                                              a success of probability 1 - q
      rest = (1 - v / q^zeros) / (1 - q)      given zeros, v is uniform in (q^(zeros + 1), q^zeros], so rest is uniform
                                              in [0, 1) and independent of zeros: it gives the length

  Args:
    uniform: f32[l] in [0, 1).
    starts: bool[l], True where a unit begins.
    mean: of the Poisson distribution.
    budget: int32[l], units to cover in each run.

  Returns:
    int32[l] lengths above 0 by unit of the row, int32[l] spans and int32[l] insertions of each run.
  """
  length = starts.shape[0]
  unit = jnp.cumsum(starts.astype(jnp.int32)) - 1
  # 1. zeros and the length above 0 at each unit
  zeros = jnp.floor(-jnp.log1p(-uniform) / mean)
  rest = (1 - (1 - uniform) * jnp.exp(mean * zeros)) / -math.expm1(-mean)
  zeros = zeros.astype(jnp.int32)
  drawn = 1 + jnp.searchsorted(_length_table(mean)[:-1], rest, side='right', method='compare_all')
  drawn = jnp.where(starts, drawn, 0).astype(jnp.int32)
  # 2. use lengths until they reach the budget of their run
  spent = jnp.cumsum(drawn) - drawn
  spent = spent - spent[runs.first]
  used = starts & (spent < budget)
  by_unit = (
    jnp.zeros(length, jnp.int32)
    .at[jnp.where(starts, unit, length)]
    .set(jnp.minimum(drawn, budget - spent), mode='drop')
  )
  return by_unit, runs.total(used), runs.total(jnp.where(used, zeros, 0))


def poisson_spans(key: Array, row: Row, *, rate: Rate = 0.3, mean: PoissonMean = 3.0, units: Units = 'words') -> Spans:
  """Infill text as BART does (Lewis et al. 2019, §2.2).

  Spans have Poisson lengths, and those of length 0 are insertions. In each run, lengths are sampled until they sum to
  ceil(rate * units) or more, and the last is cut to meet the sum. Spans of length above 0 begin at distinct units
  chosen uniformly. A span that reaches the start of another one is joined with it, and a span that reaches the end of
  its run ends there. Spans of length 0 become insertions at distinct positions that no span covers.

  # word     a b c d e f g h     budget 4, sampled lengths 3 0 2: spans of 3 and 1, one insertion
  # number   0 1 1 1 0 0 2 0
  # insert   0 0 0 0 0 1 0 0

  Differs from fairseq: two insertions never share a position.

  Args:
    row: clean text, with word ids if units are words.
    rate: share of the units.
    mean: of the Poisson distribution.
    units: unit of lengths and of span starts: 'words' or 'tokens'.

  Raises:
    ValueError: a setting out of its bounds, or units of words and a row without word ids.
  """
  check_rate(rate)
  if not 0.0 < mean <= 50.0:
    raise ValueError(f'mean={mean} of the Poisson distribution is not in (0, 50]')
  length = row.ids.shape[0]
  runs = find_runs(row)
  starts = _unit_starts(row, runs, units)
  unit = jnp.cumsum(starts.astype(jnp.int32)) - 1  # [l], the unit of each token
  total = runs.total(starts)
  budget = count_table(lambda count: round_up(rate, count), length)[total]
  length_uniform, start_uniform, gap_uniform, swap_uniform = _four_uniforms(key, length)

  # 1. lengths, and a start for each of them
  lengths, spans, insertions = _draw_lengths(length_uniform, runs, starts, mean=mean, budget=budget)
  chosen = select(start_uniform, starts, fresh=runs.fresh, wanted=spans, total=total)
  # 2. the n-th chosen start gets the n-th length; the last length, which was cut, is swapped with a random one
  rank = jnp.cumsum(chosen.astype(jnp.int32)) - chosen
  rank = rank - rank[runs.first]
  other = (swap_uniform[runs.first] * spans).astype(jnp.int32)
  rank = jnp.where(rank == other, spans - 1, jnp.where(rank == spans - 1, other, rank))
  # 3. the units that spans cover; overlapping spans are joined
  first_unit = unit[runs.first]
  end = jnp.minimum(unit + lengths[first_unit + rank], first_unit + total)
  end = jax.lax.cummax(jnp.where(chosen, end, 0))  # units below `end` are covered
  covered = runs.inside & (unit < end)
  begins = chosen & (unit >= jnp.pad(end[:-1], (1, 0)))

  # 4. insertions at positions that no span covers
  gaps = _gaps(row, runs, ~covered | begins)
  inserted = select(gap_uniform, gaps, fresh=runs.fresh, wanted=insertions, total=runs.total(gaps))
  return number_spans(begins, covered)._replace(insert=inserted.astype(jnp.int32))


def _four_uniforms(key: Array, length: int) -> tuple[Array, Array, Array, Array]:
  """Sample four uniform numbers f32[l] in [0, 1) from three words.

  A float32 in [0, 1) holds 24 bits, so three words of 32 bits leave 24 bits for the fourth number.
  """
  bits = jax.random.bits(key, (3, length))
  first, second, third = (bits >> 8).astype(jnp.float32) * 2**-24
  spare = bits & 255
  fourth = ((spare[0] << 16) | (spare[1] << 8) | spare[2]).astype(jnp.float32) * 2**-24
  return first, second, third, fourth


def growth(
  length: int, *, rate: Rate = 0.3, mean: PoissonMean = 3.0, units: Units = 'words', collapsed: bool = True
) -> np.ndarray:
  """Compute by how many tokens `poisson_spans` lengthens a text.

  Mean and variance, float64[2, length + 1], for texts of 0 to `length` tokens that are a unit each; longer units grow
  less. Overlaps are counted as if the starts of spans were independent. The settings are those of `poisson_spans`.

  # rate .3, 512 tokens   mean 3: 93 tokens fewer, with a standard deviation of 7   mean 1: 4 more, with one of 13

  Args:
    length: of the longest text.
    collapsed: each span becomes one token; otherwise spans keep their tokens.
  """
  budgets = np.array([round_up(rate, count) for count in range(length + 1)])
  if rate == 0:
    return np.zeros((2, length + 1))
  shares = np.diff(_length_table(mean).astype(np.float64), prepend=0.0)
  lengths = np.arange(1, len(shares) + 1)
  expected = float(shares @ lengths)
  # 1. N, the number of spans until their lengths L reach a budget b: N(b) = 1 + N(b - L), a renewal process. So
  #    E N(b) = 1 + sum_L p(L) E N(b - L), and E N(b)^2 = 1 + sum_L p(L) (2 E N(b - L) + E N(b - L)^2).
  spans, squares = np.zeros((2, budgets[-1] + 1))
  for budget in range(1, budgets[-1] + 1):
    own = shares[: budget - 1]
    rest = budget - 1 - np.arange(len(own))
    spans[budget] = 1 + own @ spans[rest]
    squares[budget] = 1 + own @ (2 * spans[rest] + squares[rest])
  count, variance = spans[budgets], (squares - spans**2)[budgets]
  # 2. insertions before a span: geometric with q = exp(-mean). Their mean is z = q / (1 - q) = 1 / (exp(mean) - 1),
  # their variance q / (1 - q)^2 = z (1 + z).
  zeros = 1 / math.expm1(mean)
  noise = count * zeros * (1 + zeros)
  if not collapsed:
    return np.stack([count * zeros, variance * zeros**2 + noise])
  # 3. any token is a start with probability s. A span of length L is not joined with the next one with probability
  #    (1 - s)^(L - 1). It covers E min(L, distance to the next start) = (1 - (1 - s)^L) / s tokens. It leaves one
  # token if it is not joined.
  start = min(rate / expected, 1 - 1e-6)
  apart = float(shares @ (1 - start) ** (lengths - 1))  # probability that a span does not reach the next one
  dropped = (1 - (1 - start) * apart) / start - apart
  overlap = max(expected - 1 - dropped, 0.0)
  return np.stack([count * (zeros - dropped), variance * (1 + zeros) ** 2 + noise + count * overlap * expected])


def random_gaps(key: Array, row: Row, *, rate: Rate = 0.15) -> Spans:
  """Choose insertions only (BART's optional random insertion).

  They are before ceil(rate * tokens) distinct tokens of each run.
  """
  check_rate(rate)
  length = row.ids.shape[0]
  runs = find_runs(row)
  gaps = _gaps(row, runs, runs.inside)
  wanted = count_table(lambda count: round_up(rate, count), length)[runs.size]
  taken = select(jax.random.uniform(key, (length,)), gaps, fresh=runs.fresh, wanted=wanted, total=runs.total(gaps))
  return Spans(number=jnp.zeros(length, jnp.int32), insert=taken.astype(jnp.int32))


COUNTS: Mapping[Callable[..., Spans], Callable[..., tuple[int, int] | None]] = {
  exact_spans: lambda length, *, rate=0.15, mean=3.0: exact_counts(length, rate=rate, mean=mean),
  one_span: lambda length, *, rate=0.5: (suffix_count(length, rate=rate), 1),
  prefix: lambda length, *, rate=None: None if rate is None else (suffix_count(length, rate=rate), 1),
}
"""Function of this file -> (row length, its settings) -> (tokens, spans) of a row of one run; None if random."""


def _capacity_of_exact(length: int, *, rate: Rate = 0.15, mean: MeanLength = 3.0) -> int:
  return min(length, exact_counts(length, rate=rate, mean=mean)[0] + _ROUNDED_UP)


def _capacity_of_prefix(length: int, *, rate: Rate | None = None) -> int:
  return length if rate is None else min(length, suffix_count(length, rate=rate) + _ROUNDED_UP)


def _capacity_of_units(length: int, *, rate: Rate, units: Units = 'words') -> int:
  most = round_up(rate, length)
  if units == 'words':  # words differ in length: allow the chosen ones twice their share of the tokens
    most *= 2
  return min(length, most + _ROUNDED_UP)


CAPACITY: Mapping[Callable[..., Spans], Callable[..., int]] = {
  exact_spans: _capacity_of_exact,
  iid_spans: capacity_of_iid,
  prefix: _capacity_of_prefix,
  one_span: lambda length, *, rate=0.5: _capacity_of_prefix(length, rate=rate),
  exact_units: lambda length, *, rate=0.15, **units: _capacity_of_units(length, rate=rate, **units),
  poisson_spans: lambda length, *, rate=0.3, mean=3.0, **units: _capacity_of_units(length, rate=rate, **units),
  random_gaps: lambda length, *, rate=0.15: 0,
}
"""Function of this file -> (row length, its settings) -> slots for its choice; the caller counts tokens beyond them."""
