"""Where to corrupt, by spans whose counts are exact in every document: (key, row) -> spans.

Each stretch (`noise/stretches.py`) is corrupted as if it were alone in the row.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.errors import one_of
from plm_jax.core.types import Array, Rate
from plm_jax.noise.cuts import cut
from plm_jax.noise.row import Row, Spans
from plm_jax.noise.stretches import Stretches, continues_document, find_stretches, select
from plm_jax.noise.where.counts import capacity_of_iid, check_rate, count_table, number_spans, round_up

Units = Literal['words', 'tokens']
MeanLength = Annotated[float, '1 <= x']
PoissonMean = Annotated[float, '0 < x <= 50']
_NEGLIGIBLE = 1e-7  # lengths with a smaller probability are not drawn (fairseq)
_ROUNDED_UP = 8  # CAPACITY has room for the rounding up of this many documents per row, beyond one


def _unit_starts(row: Row, stretches: Stretches, units: Units) -> Array:
  """bool[l]: where a unit begins; a word that reaches into a stretch begins with the stretch."""
  one_of('units', units, Units)
  if units == 'tokens':
    return stretches.inside
  if row.word_ids is None:
    raise ValueError("units='words' needs word ids: a vocabulary that says which pieces start a word")
  changes = jnp.pad(row.word_ids[1:] != row.word_ids[:-1], (1, 0), constant_values=True)
  return stretches.inside & (stretches.fresh | changes)


# T5 -----------------------------------------------------------------------------------------------------------------


def exact_counts(length: int, *, rate: Rate, mean: MeanLength) -> tuple[int, int]:
  """(tokens, spans) that `exact_spans` hides in a stretch of `length` tokens.

  tokens is round(rate * length) within [1, length - 1], spans is round(tokens / mean) within [1, length - tokens], with
  Python's rounding of halves to even. Both are 0 for a single token and for rate 0.
  """
  if rate == 0 or length < 2:
    return 0, 0
  tokens = min(max(round(rate * length), 1), length - 1)
  return tokens, min(max(round(tokens / mean), 1), length - tokens)


def raw_length(inputs_length: int, *, rate: Rate, mean: MeanLength) -> tuple[int, int]:
  """(tokens of a row, length of its targets) so that the corrupted inputs fill `inputs_length` (T5's released code).

  Inputs and targets each hold one sentinel per span and one end token. At rate 1/2 targets may not be longer than
  inputs. (512, .15, 3) gives rows of 568 and targets of 114.

  Raises:
    ValueError: `inputs_length` has no room for a token and the end token, or rows of any length fit.
  """
  check_rate(rate)
  if rate == 1:
    raise ValueError('rate=1.0 hides all tokens but one, so that rows of any length fit: choose one below 1')

  def lengths(raw: int) -> tuple[int, int]:
    tokens, spans = exact_counts(raw, rate=rate, mean=mean)
    return raw - tokens + spans + 1, tokens + spans + 1

  if lengths(1)[0] > inputs_length:
    raise ValueError(f'inputs of length {inputs_length} have no room for a token and the end token')
  raw = 1
  while lengths(raw + 1)[0] <= inputs_length:
    raw += 1
  targets = lengths(raw)[1]
  if rate == 0.5 and targets > inputs_length:
    raw, targets = raw - 1, targets - 1
  return raw, targets


def exact_spans(key: Array, row: Row, *, rate: Rate = 0.15, mean: MeanLength = 3.0) -> Spans:
  """Span corruption of T5 (Raffel et al. 2020, §3.3.4): an exact number of tokens in an exact number of spans.

  Hidden tokens and the others are each cut into that number of parts, every cut with the same probability. The parts
  alternate, text first, so a stretch begins with text and ends with a hidden span.

  # stretch  a b c d e f     3 hidden tokens in 2 spans: text a | d e, hidden b c | f
  # number   0 1 1 0 0 2

  Args:
    key: noise key of the row.
    row: clean text.
    rate: share of tokens, see `exact_counts`.
    mean: mean length of a span; at least 1.
  """
  return cut_spans(row, key, exact_tables(row.ids.shape[0], rate=rate, mean=mean)[None])


def exact_tables(length: int, *, rate: Rate = 0.15, mean: MeanLength = 3.0) -> np.ndarray:
  """int32[2, length + 1]: `exact_counts` of stretches of 0 to `length` tokens, tokens and then spans."""
  check_rate(rate)
  if mean < 1:
    raise ValueError(f'mean={mean}: the mean length of a span must be at least 1')
  counts = [exact_counts(count, rate=rate, mean=mean) for count in range(length + 1)]
  return np.array(counts, np.int32).T


def cut_spans(row: Row, key: Array, counts: np.ndarray, which: Array | int = 0) -> Spans:
  """`exact_spans` for counts that may differ from row to row.

  Args:
    row: clean text.
    key: noise key of the row.
    counts: int32[n, 2, l + 1], tables of `exact_tables`.
    which: int[], the table of the row.
  """
  stretches = find_stretches(row)
  # one table after the other, so that a row looks up a number for each token and copies no table
  place = which * counts.shape[-1] + stretches.size
  hidden, spans = (jnp.asarray(counts[:, kind].reshape(-1))[place] for kind in range(2))
  chosen, starts = cut(jax.random.uniform(key, row.ids.shape), stretches, hidden, jnp.maximum(spans - 1, 0))
  return number_spans(starts, chosen)


def iid_spans(key: Array, row: Row, *, rate: Rate = 0.15) -> Spans:
  """Each eligible token with probability `rate`; neighbours make one span (Raffel et al. 2020, §3.3.2)."""
  check_rate(rate)
  chosen = row.eligible & (jax.random.uniform(key, row.ids.shape) < rate)
  return number_spans(chosen & ~continues_document(row, chosen), chosen)


def suffix_count(length: int, *, rate: Rate) -> int:
  """Tokens that `prefix` and `one_span` choose of a stretch: round(rate * length) within [1, length - 1]."""
  return 0 if rate == 0 or length < 2 else min(max(round(rate * length), 1), length - 1)


def prefix(key: Array, row: Row, *, rate: Rate | None = None) -> Spans:
  """One span from a cut to the end: prefix language modelling (Raffel et al. 2020, §3.2.1; UL2's S-denoiser).

  Each stretch has its own cut; the whole text of a document is one in `objectives/denoising.py`.

  Args:
    key: noise key of the row.
    row: clean text.
    rate: share of tokens after the cut; None draws the cut uniformly, with at least one token on either side.
  """
  stretches = find_stretches(row)
  if rate is None:
    uniform = jax.random.uniform(key, row.ids.shape)[stretches.first]  # one number per stretch
    hidden = stretches.size - 1 - (uniform * (stretches.size - 1)).astype(jnp.int32)
    hidden = jnp.where(stretches.size > 1, hidden, 0)
  else:
    check_rate(rate)
    hidden = count_table(lambda count: suffix_count(count, rate=rate), row.ids.shape[0])[stretches.size]
  place = jnp.arange(row.ids.shape[0]) - stretches.first
  chosen = stretches.inside & (place >= stretches.size - hidden)
  return number_spans(chosen & (place == stretches.size - hidden), chosen)


def one_span(key: Array, row: Row, *, rate: Rate = 0.5) -> Spans:
  """One span of a share of the tokens at a random place (MASS, Song et al. 2019, §3.2; BART, §4.1).

  Each stretch has its own; see `prefix`.
  """
  check_rate(rate)
  length = row.ids.shape[0]
  stretches = find_stretches(row)
  hidden = count_table(lambda count: suffix_count(count, rate=rate), length)[stretches.size]
  uniform = jax.random.uniform(key, (length,))[stretches.first]
  start = (uniform * (stretches.size - hidden + 1)).astype(jnp.int32)
  place = jnp.arange(length) - stretches.first
  chosen = stretches.inside & (place >= start) & (place < start + hidden)
  return number_spans(chosen & (place == start), chosen)


# BART ---------------------------------------------------------------------------------------------------------------


def exact_units(key: Array, row: Row, *, rate: Rate = 0.15, units: Units = 'words') -> Spans:
  """ceil(rate * units) units of each stretch, each a span: BART's token masking and deletion (Lewis et al. 2019, §2.2).

  Args:
    key: noise key of the row.
    row: clean text, with word ids where units are words.
    rate: share of the units.
    units: 'words' or 'tokens'.
  """
  check_rate(rate)
  length = row.ids.shape[0]
  stretches = find_stretches(row)
  starts = _unit_starts(row, stretches, units)
  total = stretches.total(starts)
  wanted = count_table(lambda count: round_up(rate, count), length)[total]
  taken = select(jax.random.uniform(key, (length,)), starts, fresh=stretches.fresh, wanted=wanted, total=total)
  start = jax.lax.cummax(jnp.where(starts, jnp.arange(length), 0))
  return number_spans(taken, stretches.inside & taken[start])


def _length_table(mean: MeanLength) -> np.ndarray:
  """P(length <= 1), P(length <= 2), ... of a Poisson length given that it is not 0, up to negligible lengths."""
  weights = [math.exp(-mean)]
  while weights[-1] >= _NEGLIGIBLE or len(weights) <= mean:
    weights.append(weights[-1] * mean / len(weights))
  shares = np.cumsum(weights[1:])
  return (shares / shares[-1]).astype(np.float32)


def _gaps(row: Row, stretches: Stretches, kept: Array) -> Array:
  """bool[l]: positions that may get an insertion: kept tokens of a stretch, and the special token right after it."""
  return (stretches.inside & kept) | (~stretches.inside & continues_document(row, row.eligible))


def _draw_lengths(
  uniform: Array, stretches: Stretches, starts: Array, *, mean: float, budget: Array
) -> tuple[Array, Array, Array]:
  """Poisson lengths for each stretch, drawn until they sum to its budget; the last one is cut to meet the sum.

  The n-th number of a stretch, at its n-th unit, gives the n-th length above 0 and how many lengths of 0 precede it:
  that number of zeros is geometric, and the place of the draw among those with the same number of zeros gives the
  length.

  Args:
    uniform: f32[l] in [0, 1).
    stretches: of the row.
    starts: bool[l], where a unit begins.
    mean: of the Poisson distribution.
    budget: int32[l], units to cover in each stretch.

  Returns:
    int32[l] lengths above 0 by unit of the row, int32[l] spans and int32[l] insertions of each stretch.
  """
  length = starts.shape[0]
  unit = jnp.cumsum(starts.astype(jnp.int32)) - 1
  zeros = jnp.floor(-jnp.log1p(-uniform) / mean)
  rest = (1 - (1 - uniform) * jnp.exp(mean * zeros)) / -math.expm1(-mean)
  zeros = zeros.astype(jnp.int32)
  drawn = 1 + jnp.searchsorted(_length_table(mean)[:-1], rest, side='right', method='compare_all')
  drawn = jnp.where(starts, drawn, 0).astype(jnp.int32)
  spent = jnp.cumsum(drawn) - drawn
  spent = spent - spent[stretches.first]
  used = starts & (spent < budget)
  by_unit = (
    jnp.zeros(length, jnp.int32)
    .at[jnp.where(starts, unit, length)]
    .set(jnp.minimum(drawn, budget - spent), mode='drop')
  )
  return by_unit, stretches.total(used), stretches.total(jnp.where(used, zeros, 0))


def poisson_spans(key: Array, row: Row, *, rate: Rate = 0.3, mean: PoissonMean = 3.0, units: Units = 'words') -> Spans:
  """Text infilling of BART (Lewis et al. 2019, §2.2): spans of Poisson lengths, those of length 0 as insertions.

  In each stretch, lengths are drawn until they sum to ceil(rate * units) or more, and the last is cut to meet the sum.
  Spans of length above 0 begin at distinct units chosen uniformly; a span that reaches the start of another one is
  joined with it, and a span that reaches the end of its stretch ends there. Spans of length 0 become insertions at
  distinct places that no span covers.

  # word     a b c d e f g h     budget 4, drawn lengths 3 0 2: spans of 3 and 1, one insertion
  # number   0 1 1 1 0 0 2 0
  # insert   0 0 0 0 0 1 0 0

  Differs from fairseq: two insertions never share a place.

  Args:
    key: noise key of the row.
    row: clean text, with word ids where units are words.
    rate: share of the units.
    mean: of the Poisson distribution.
    units: what lengths count and where spans begin: 'words' or 'tokens'.

  Raises:
    ValueError: a setting out of its bounds, or units of words and a row without word ids.
  """
  check_rate(rate)
  if not 0.0 < mean <= 50.0:
    raise ValueError(f'mean={mean}: the mean of the Poisson distribution is not in (0, 50]')
  length = row.ids.shape[0]
  stretches = find_stretches(row)
  starts = _unit_starts(row, stretches, units)
  unit = jnp.cumsum(starts.astype(jnp.int32)) - 1  # [l], the unit of each token
  total = stretches.total(starts)
  budget = count_table(lambda count: round_up(rate, count), length)[total]
  bits = jax.random.bits(key, (3, length))
  length_draw, start_draw, gap_draw = (bits >> 8).astype(jnp.float32) * 2**-24
  spare = bits & 255  # the bits that a float32 in [0, 1) does not hold
  swap_draw = ((spare[0] << 16) | (spare[1] << 8) | spare[2]).astype(jnp.float32) * 2**-24

  lengths, spans, insertions = _draw_lengths(length_draw, stretches, starts, mean=mean, budget=budget)
  chosen = select(start_draw, starts, fresh=stretches.fresh, wanted=spans, total=total)
  # the n-th chosen start gets the n-th length; the last length, which was cut, changes places with a random one
  rank = jnp.cumsum(chosen.astype(jnp.int32)) - chosen
  rank = rank - rank[stretches.first]
  other = (swap_draw[stretches.first] * spans).astype(jnp.int32)
  rank = jnp.where(rank == other, spans - 1, jnp.where(rank == spans - 1, other, rank))
  first_unit = unit[stretches.first]
  end = jnp.minimum(unit + lengths[first_unit + rank], first_unit + total)
  end = jax.lax.cummax(jnp.where(chosen, end, 0))  # units below `end` are covered
  covered = stretches.inside & (unit < end)
  begins = chosen & (unit >= jnp.pad(end[:-1], (1, 0)))

  gaps = _gaps(row, stretches, ~covered | begins)
  inserted = select(gap_draw, gaps, fresh=stretches.fresh, wanted=insertions, total=stretches.total(gaps))
  return number_spans(begins, covered)._replace(insert=inserted.astype(jnp.int32))


def growth(
  length: int, *, rate: Rate = 0.3, mean: PoissonMean = 3.0, units: Units = 'words', collapsed: bool = True
) -> np.ndarray:
  """float64[2, length + 1]: by how many tokens `poisson_spans` makes a text longer, mean and variance.

  Of texts of 0 to `length` tokens that are a unit each; longer units grow less. Spans that overlap are counted as where
  their starts are independent of each other.

  # rate .3, 512 tokens   mean 3: 93 tokens fewer, with a standard deviation of 7   mean 1: 4 more, with one of 13

  Args:
    length: of the longest text.
    rate: as in `poisson_spans`.
    mean: likewise.
    units: likewise.
    collapsed: each span becomes one token; else spans stay as they are.
  """
  del units
  budgets = np.array([round_up(rate, count) for count in range(length + 1)])
  if rate == 0:
    return np.zeros((2, length + 1))
  shares = np.diff(_length_table(mean).astype(np.float64), prepend=0.0)
  lengths = np.arange(1, len(shares) + 1)
  expected = float(shares @ lengths)
  # spans until their lengths reach a budget: one, and those that the rest of the budget asks for
  spans, squares = np.zeros((2, budgets[-1] + 1))
  for budget in range(1, budgets[-1] + 1):
    own = shares[: budget - 1]
    rest = budget - 1 - np.arange(len(own))
    spans[budget] = 1 + own @ spans[rest]
    squares[budget] = 1 + own @ (2 * spans[rest] + squares[rest])
  count, variance = spans[budgets], (squares - spans**2)[budgets]
  zeros = 1 / math.expm1(mean)  # insertions before a span, of a geometric law
  noise = count * zeros * (1 + zeros)
  if not collapsed:
    return np.stack([count * zeros, variance * zeros**2 + noise])
  # a span ends before the next start, which any token is with the same probability
  start = min(rate / expected, 1 - 1e-6)
  apart = float(shares @ (1 - start) ** (lengths - 1))  # that a span does not reach the next one
  dropped = (1 - (1 - start) * apart) / start - apart
  overlap = max(expected - 1 - dropped, 0.0)
  return np.stack([count * (zeros - dropped), variance * (1 + zeros) ** 2 + noise + count * overlap * expected])


def random_gaps(key: Array, row: Row, *, rate: Rate = 0.15) -> Spans:
  """Insertions only, before ceil(rate * tokens) distinct tokens of each stretch (BART's optional random insertion)."""
  check_rate(rate)
  length = row.ids.shape[0]
  stretches = find_stretches(row)
  gaps = _gaps(row, stretches, stretches.inside)
  wanted = count_table(lambda count: round_up(rate, count), length)[stretches.size]
  taken = select(
    jax.random.uniform(key, (length,)), gaps, fresh=stretches.fresh, wanted=wanted, total=stretches.total(gaps)
  )
  return Spans(jnp.zeros(length, jnp.int32), taken.astype(jnp.int32))


COUNTS: Mapping[Callable[..., Spans], Callable[..., tuple[int, int] | None]] = MappingProxyType(
  {
    exact_spans: lambda length, *, rate=0.15, mean=3.0: exact_counts(length, rate=rate, mean=mean),
    one_span: lambda length, *, rate=0.5: (suffix_count(length, rate=rate), 1),
    prefix: lambda length, *, rate=None: None if rate is None else (suffix_count(length, rate=rate), 1),
  }
)
"""where-function -> (row length, its settings) -> (tokens, spans) of a row of one stretch; None where drawn."""


def _capacity_of_exact(length: int, *, rate: Rate = 0.15, mean: MeanLength = 3.0) -> int:
  return min(length, exact_counts(length, rate=rate, mean=mean)[0] + _ROUNDED_UP)


def _capacity_of_prefix(length: int, *, rate: Rate | None = None) -> int:
  return length if rate is None else min(length, suffix_count(length, rate=rate) + _ROUNDED_UP)


def _capacity_of_units(length: int, *, rate: Rate, units: Units = 'words') -> int:
  most = round_up(rate, length)
  if units == 'words':  # words differ in length: the chosen ones may hold up to twice the share of the tokens
    most *= 2
  return min(length, most + _ROUNDED_UP)


CAPACITY: Mapping[Callable[..., Spans], Callable[..., int]] = MappingProxyType(
  {
    exact_spans: _capacity_of_exact,
    iid_spans: capacity_of_iid,
    prefix: _capacity_of_prefix,
    one_span: lambda length, *, rate=0.5: _capacity_of_prefix(length, rate=rate),
    exact_units: lambda length, *, rate=0.15, **units: _capacity_of_units(length, rate=rate, **units),
    poisson_spans: lambda length, *, rate=0.3, mean=3.0, **units: _capacity_of_units(length, rate=rate, **units),
    random_gaps: lambda length, *, rate=0.15: 0,
  }
)
"""where-function -> (row length, its settings) -> slots that hold its choice; its user counts what exceeds them."""
