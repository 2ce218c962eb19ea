"""Where to corrupt, by spans: (key, row) -> spans, with counts that hold exactly in every document of a row.

A *stretch* is a run of eligible tokens of one document; each is corrupted as if it were alone in the row. Exact counts
come from one pass from left to right that takes each candidate with probability wanted / left (Knuth, volume 2, 3.4.2,
algorithm S): every choice is as likely as every other, and a pass costs a CPU a tenth of a sort.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.noise.row import Row, Spans
from plm_jax.noise.where.counts import capacity_of_iid, check_rate, count_table, round_up
from plm_jax.types import Array

Units = Literal['words', 'tokens']
_NEGLIGIBLE = 1e-7  # lengths less likely than this are not drawn (fairseq)
_ROUNDED_UP = 8  # documents a row, beyond one, whose rounding up CAPACITY leaves room for


class Stretches(NamedTuple):
  """The runs of eligible tokens of one document.

  Attributes:
    fresh: bool[l], the first token of a stretch.
    inside: bool[l], in a stretch at all.
    first: int32[l], index of the first token of the last stretch that began; 0 before any.
    group: int32[l], number of that stretch from 0.
  """

  fresh: Array
  inside: Array
  first: Array
  group: Array

  def total(self, values: Array) -> Array:
    """int32[l]: the sum of int[l] `values` over each position's stretch and what follows up to the next one."""
    values = jnp.where(self.group >= 0, values, 0).astype(jnp.int32)
    group = jnp.maximum(self.group, 0)
    return jnp.zeros_like(group).at[group].add(values)[group]

  @property
  def size(self) -> Array:
    """int32[l]: tokens of the stretch."""
    return self.total(self.inside)


def stretches(row: Row) -> Stretches:
  """The runs of eligible tokens of one document in a row."""
  before = jnp.pad(row.eligible[:-1] & (row.segment_ids[:-1] == row.segment_ids[1:]), (1, 0))
  fresh = row.eligible & ~before
  length = fresh.shape[0]
  index = jnp.arange(length, dtype=jnp.int32)
  group = jnp.cumsum(fresh.astype(jnp.int32)) - 1
  places = jnp.zeros(length, jnp.int32).at[jnp.where(fresh, group, length)].set(index, mode='drop')
  return Stretches(fresh, row.eligible, first=places[jnp.maximum(group, 0)], group=group)


def sample(uniform: Array, candidates: Array, *, fresh: Array, wanted: Array, total: Array) -> Array:
  """bool[l]: of each group's candidates as many as wanted, or all, every choice as likely as every other.

  Args:
    uniform: f32[l] in [0, 1).
    candidates: bool[l].
    fresh: bool[l], where a group begins.
    wanted: int32[l], read where a group begins.
    total: int32[l], candidates of the group, read where it begins.
  """

  def visit(carry: tuple[Array, Array], token: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
    number, candidate, begins, wanted, total = token
    missing, left = (jnp.where(begins, new, old) for new, old in zip((wanted, total), carry, strict=True))
    taken = candidate & (number * left < missing)
    return (missing - taken, left - candidate), taken

  zero = jnp.zeros((), jnp.int32)
  return jax.lax.scan(visit, (zero, zero), (uniform, candidates, fresh, wanted, total))[1]


def _unit_starts(row: Row, runs: Stretches, units: Units) -> Array:
  """bool[l]: where a unit begins; one that begins outside a stretch begins with it."""
  if units == 'tokens':
    return runs.inside
  if units != 'words':
    raise ValueError(f'units={units!r}; choices are words, tokens')
  if row.word_ids is None:
    raise ValueError("units='words' needs word ids: a vocabulary that says which pieces start a word")
  changes = jnp.pad(row.word_ids[1:] != row.word_ids[:-1], (1, 0), constant_values=True)
  return runs.inside & (runs.fresh | changes)


def _numbered(starts: Array, chosen: Array) -> Spans:
  """Spans of the chosen positions, a new one at each start."""
  number = jnp.where(chosen, jnp.cumsum(starts.astype(jnp.int32)), 0)
  return Spans(number, jnp.zeros_like(number))


# T5 -----------------------------------------------------------------------------------------------------------------


def exact_counts(length: int, *, rate: float, mean: float) -> tuple[int, int]:
  """(tokens, spans) that `exact_spans` hides in a stretch of `length` tokens.

  round(rate * length) within [1, length - 1], and round of that / mean within [1, length - tokens], with Python's
  rounding of halves to even; nothing is hidden of a single token, or at rate 0.
  """
  if rate == 0 or length < 2:
    return 0, 0
  tokens = min(max(round(rate * length), 1), length - 1)
  return tokens, min(max(round(tokens / mean), 1), length - tokens)


def raw_length(inputs_length: int, *, rate: float, mean: float) -> tuple[int, int]:
  """(tokens of a row, length of its targets) whose corrupted inputs fill `inputs_length`, by the rule of T5's code.

  Inputs and targets hold a sentinel for each span and an end token each. At a rate of one half, targets may not be
  longer than inputs. (512, .15, 3) gives rows of 568 and targets of 114.
  """

  def lengths(raw: int) -> tuple[int, int]:
    tokens, spans = exact_counts(raw, rate=rate, mean=mean)
    return raw - tokens + spans + 1, tokens + spans + 1

  if lengths(1)[0] > inputs_length:
    raise ValueError(f'inputs of {inputs_length} hold no token and its end')
  raw = 1
  while lengths(raw + 1)[0] <= inputs_length:
    raw += 1
  targets = lengths(raw)[1]
  if rate == 0.5 and targets > inputs_length:
    raw, targets = raw - 1, targets - 1
  return raw, targets


def exact_spans(key: Array, row: Row, *, rate: float = 0.15, mean: float = 3.0) -> Spans:
  """Span corruption of T5 (Raffel et al. 2020, §3.3.4): an exact number of tokens in an exact number of spans.

  Hidden tokens and the others are each cut into that many parts, all ways to cut being alike; the parts take turns,
  the text first. So a stretch begins with text and ends hidden.

  Args:
    key: noise key of the row.
    row: clean text.
    rate: share of tokens, see `exact_counts`.
    mean: mean length of a span; at least 1.
  """
  return cut_spans(row, key, exact_tables(row.ids.shape[0], rate=rate, mean=mean))


def exact_tables(length: int, *, rate: float = 0.15, mean: float = 3.0) -> Array:
  """int32[2, length + 1]: `exact_counts` of stretches of 0 to `length` tokens, tokens and then spans."""
  check_rate(rate)
  if mean < 1:
    raise ValueError(f'spans of mean length {mean} cannot be: 1 is the least')
  counts = [exact_counts(count, rate=rate, mean=mean) for count in range(length + 1)]
  return jnp.asarray(np.array(counts, np.int32).T)


def cut_spans(row: Row, key: Array, counts: Array) -> Spans:
  """`exact_spans` for counts that may differ from row to row.

  Args:
    row: clean text.
    key: noise key of the row.
    counts: int32[2, l + 1] of `exact_tables`; rows under vmap may bring tables of different rates and means.
  """
  length = row.ids.shape[0]
  runs = stretches(row)
  size = runs.size
  hidden, cuts = counts[0, size], jnp.maximum(counts[1, size] - 1, 0)

  def visit(carry: tuple[Array, ...], token: tuple[Array, ...]) -> tuple[Any, tuple[Array, Array]]:
    number, inside, begins, *fresh = token
    start = (*fresh, jnp.zeros((), bool))
    hidden, clean, hidden_cuts, clean_cuts, hiding = (
      jnp.where(begins, new, old) for new, old in zip(start, carry, strict=True)
    )
    # what is left of a kind has as many places for the cuts that are left of that kind
    left, cuts = jnp.where(hiding, hidden, clean), jnp.where(hiding, hidden_cuts, clean_cuts)
    cut = inside & ~begins & (number * left < cuts)
    turns = cut | (inside & (left == 0))
    hidden_cuts, clean_cuts = hidden_cuts - (cut & hiding), clean_cuts - (cut & ~hiding)
    hiding = hiding ^ turns
    hidden, clean = hidden - (inside & hiding), clean - (inside & ~hiding)
    return (hidden, clean, hidden_cuts, clean_cuts, hiding), (inside & hiding, turns & hiding)

  zero = jnp.zeros((), jnp.int32)
  tokens = (jax.random.uniform(key, (length,)), runs.inside, runs.fresh, hidden, size - hidden, cuts, cuts)
  _, (chosen, starts) = jax.lax.scan(visit, (zero, zero, zero, zero, jnp.zeros((), bool)), tokens)
  return _numbered(starts, chosen)


def iid_spans(key: Array, row: Row, *, rate: float = 0.15) -> Spans:
  """Each eligible token with probability `rate`; neighbours make one span (Raffel et al. 2020, §3.3.2)."""
  check_rate(rate)
  chosen = row.eligible & (jax.random.uniform(key, row.ids.shape) < rate)
  before = jnp.pad(chosen[:-1] & (row.segment_ids[:-1] == row.segment_ids[1:]), (1, 0))
  return _numbered(chosen & ~before, chosen)


def suffix_count(length: int, *, rate: float) -> int:
  """Tokens that `prefix` and `one_span` choose of a stretch: round(rate * length) within [1, length - 1]."""
  return 0 if rate == 0 or length < 2 else min(max(round(rate * length), 1), length - 1)


def prefix(key: Array, row: Row, *, rate: float | None = None) -> Spans:
  """All that follows a cut is one span: prefix language modelling (Raffel et al. 2020, §3.2.1; UL2's S-denoiser).

  Args:
    key: noise key of the row.
    row: clean text.
    rate: share of tokens behind the cut; None draws the cut uniformly, with a token or more on either side.
  """
  runs = stretches(row)
  if rate is None:
    uniform = jax.random.uniform(key, row.ids.shape)[runs.first]  # one number a stretch
    hidden = runs.size - 1 - (uniform * (runs.size - 1)).astype(jnp.int32)
    hidden = jnp.where(runs.size > 1, hidden, 0)
  else:
    check_rate(rate)
    hidden = count_table(lambda count: suffix_count(count, rate=rate), row.ids.shape[0])[runs.size]
  place = jnp.arange(row.ids.shape[0]) - runs.first
  chosen = runs.inside & (place >= runs.size - hidden)
  return _numbered(chosen & (place == runs.size - hidden), chosen)


def one_span(key: Array, row: Row, *, rate: float = 0.5) -> Spans:
  """One span of a share of the tokens, anywhere (MASS, Song et al. 2019, §3.2; BART's masked seq2seq, §4.1)."""
  check_rate(rate)
  length = row.ids.shape[0]
  runs = stretches(row)
  hidden = count_table(lambda count: suffix_count(count, rate=rate), length)[runs.size]
  uniform = jax.random.uniform(key, (length,))[runs.first]
  start = (uniform * (runs.size - hidden + 1)).astype(jnp.int32)
  place = jnp.arange(length) - runs.first
  chosen = runs.inside & (place >= start) & (place < start + hidden)
  return _numbered(chosen & (place == start), chosen)


# BART ---------------------------------------------------------------------------------------------------------------


def exact_units(key: Array, row: Row, *, rate: float = 0.15, units: Units = 'words') -> Spans:
  """ceil(rate * units) units of each stretch, each a span: BART's token masking and deletion (Lewis et al. 2019, §2.2).

  Args:
    key: noise key of the row.
    row: clean text, with word ids where units are words.
    rate: share of the units.
    units: 'words' or 'tokens'.
  """
  check_rate(rate)
  length = row.ids.shape[0]
  runs = stretches(row)
  starts = _unit_starts(row, runs, units)
  total = runs.total(starts)
  wanted = count_table(lambda count: round_up(rate, count), length)[total]
  taken = sample(jax.random.uniform(key, (length,)), starts, fresh=runs.fresh, wanted=wanted, total=total)
  start = jax.lax.cummax(jnp.where(starts, jnp.arange(length), 0))
  return _numbered(taken, runs.inside & taken[start])


def _length_table(mean: float) -> np.ndarray:
  """P(length <= 1), P(length <= 2), ... of a Poisson length that is not 0, up to where lengths are negligible."""
  weights = [math.exp(-mean)]
  while weights[-1] >= _NEGLIGIBLE or len(weights) <= mean:
    weights.append(weights[-1] * mean / len(weights))
  shares = np.cumsum(weights[1:])
  return (shares / shares[-1]).astype(np.float32)


def _gaps(row: Row, runs: Stretches, kept: Array) -> Array:
  """bool[l]: what may be put before; a kept token of a stretch, or the special token that its document goes on with."""
  after = jnp.pad(row.eligible[:-1] & (row.segment_ids[:-1] == row.segment_ids[1:]), (1, 0))
  return (runs.inside & kept) | (~runs.inside & after)


def poisson_spans(key: Array, row: Row, *, rate: float = 0.3, mean: float = 3.0, units: Units = 'words') -> Spans:
  """Text infilling of BART (Lewis et al. 2019, §2.2): spans of Poisson lengths, those of length 0 as insertions.

  In each stretch, lengths are drawn until they sum to ceil(rate * units) or more, and the last is cut to meet the sum.
  Those above 0 begin at distinct units chosen uniformly; one that runs into another makes a single span with it, one
  that runs into the end of the stretch stops there. Those of length 0 go to distinct places among what is left.

  Differs from fairseq: two insertions never share a place.

  Args:
    key: noise key of the row.
    row: clean text, with word ids where units are words.
    rate: share of the units.
    mean: of the Poisson distribution; up to 50.
    units: what lengths count and where spans begin: 'words' or 'tokens'.
  """
  check_rate(rate)
  if not 0.0 < mean <= 50.0:
    raise ValueError(f'a Poisson mean of {mean} is not in (0, 50]')
  length = row.ids.shape[0]
  runs = stretches(row)
  starts = _unit_starts(row, runs, units)
  unit = jnp.cumsum(starts.astype(jnp.int32)) - 1  # [l], the unit of each token
  total = runs.total(starts)
  budget = count_table(lambda count: round_up(rate, count), length)[total]
  bits = jax.random.bits(key, (3, length))
  length_draw, start_draw, gap_draw = (bits >> 8).astype(jnp.float32) * 2**-24
  spare = bits & 255  # what a float has no room for
  swap_draw = ((spare[0] << 16) | (spare[1] << 8) | spare[2]).astype(jnp.float32) * 2**-24

  # the draws of a stretch lie at its first units; between two lengths above 0 there is a geometric number of zeros, and
  # where a draw lies among those that give this number tells the length
  zeros = jnp.floor(-jnp.log1p(-length_draw) / mean)
  rest = (1 - (1 - length_draw) * jnp.exp(mean * zeros)) / -math.expm1(-mean)
  zeros = zeros.astype(jnp.int32)
  drawn = 1 + jnp.searchsorted(_length_table(mean)[:-1], rest, side='right', method='compare_all')
  drawn = jnp.where(starts, drawn, 0).astype(jnp.int32)
  spent = jnp.cumsum(drawn) - drawn
  spent = spent - spent[runs.first]
  used = starts & (spent < budget)
  spans = runs.total(used)
  insertions = runs.total(jnp.where(used, zeros, 0))
  of_unit = (
    jnp.zeros(length, jnp.int32)
    .at[jnp.where(starts, unit, length)]
    .set(jnp.minimum(drawn, budget - spent), mode='drop')
  )

  chosen = sample(start_draw, starts, fresh=runs.fresh, wanted=spans, total=total)
  # the j-th start takes the j-th length; the last length, which was cut, changes places with any
  rank = jnp.cumsum(chosen.astype(jnp.int32)) - chosen
  rank = rank - rank[runs.first]
  other = (swap_draw[runs.first] * spans).astype(jnp.int32)
  rank = jnp.where(rank == other, spans - 1, jnp.where(rank == spans - 1, other, rank))
  first_unit = unit[runs.first]
  end = jnp.minimum(unit + of_unit[first_unit + rank], first_unit + total)
  end = jax.lax.cummax(jnp.where(chosen, end, 0))  # units below it are covered
  covered = runs.inside & (unit < end)
  begins = chosen & (unit >= jnp.pad(end[:-1], (1, 0)))

  gaps = _gaps(row, runs, ~covered | begins)
  inserted = sample(gap_draw, gaps, fresh=runs.fresh, wanted=insertions, total=runs.total(gaps))
  return _numbered(begins, covered)._replace(insert=inserted.astype(jnp.int32))


def random_gaps(key: Array, row: Row, *, rate: float = 0.15) -> Spans:
  """Insertions only, before ceil(rate * tokens) distinct tokens of each stretch (BART's optional random insertion)."""
  check_rate(rate)
  length = row.ids.shape[0]
  runs = stretches(row)
  gaps = _gaps(row, runs, runs.inside)
  wanted = count_table(lambda count: round_up(rate, count), length)[runs.size]
  taken = sample(jax.random.uniform(key, (length,)), gaps, fresh=runs.fresh, wanted=wanted, total=runs.total(gaps))
  return Spans(jnp.zeros(length, jnp.int32), taken.astype(jnp.int32))


COUNTS: Mapping[Callable[..., Spans], Callable[..., tuple[int, int] | None]] = MappingProxyType(
  {
    exact_spans: lambda length, *, rate=0.15, mean=3.0: exact_counts(length, rate=rate, mean=mean),
    one_span: lambda length, *, rate=0.5: (suffix_count(length, rate=rate), 1),
    prefix: lambda length, *, rate=None: None if rate is None else (suffix_count(length, rate=rate), 1),
  }
)
"""where function -> (row length, its settings) -> (tokens, spans) of a row of one stretch, None where that is drawn."""


def _most_exact(length: int, *, rate: float = 0.15, mean: float = 3.0) -> int:
  return min(length, exact_counts(length, rate=rate, mean=mean)[0] + _ROUNDED_UP)


def _most_of_prefix(length: int, *, rate: float | None = None) -> int:
  return length if rate is None else min(length, suffix_count(length, rate=rate) + _ROUNDED_UP)


def _most_units(length: int, *, rate: float, units: Units) -> int:
  most = round_up(rate, length)
  if units == 'words':  # of any number of tokens: twice the share is more than any text holds
    most *= 2
  return min(length, most + _ROUNDED_UP)


CAPACITY: Mapping[Callable[..., Spans], Callable[..., int]] = MappingProxyType(
  {
    exact_spans: _most_exact,
    iid_spans: capacity_of_iid,
    prefix: _most_of_prefix,
    one_span: lambda length, *, rate=0.5: _most_of_prefix(length, rate=rate),
    exact_units: lambda length, *, rate=0.15, units='words': _most_units(length, rate=rate, units=units),
    poisson_spans: lambda length, *, rate=0.3, mean=3.0, units='words': _most_units(length, rate=rate, units=units),
    random_gaps: lambda length, *, rate=0.15: 0,
  }
)
"""where function -> (row length, its settings) -> slots that hold its choice; a rarer excess is counted by its user."""
