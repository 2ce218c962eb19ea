"""How far a measured difference can be trusted: a bootstrap over seeds and over the rows of the test set."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from plm_jax.studies.tables.file import Summary

DRAWS = 2_000
AT_ONCE = 100  # draws whose weights of rows are held at one time
LEVEL = 0.95
GROUPS = 100  # of rows, for a number that is no mean over rows
DECIMALS = 10  # of an interval; digits behind them are those of the processor, which adds in its own order


class Measured(NamedTuple):
  """The runs of a cell.

  Attributes:
    values: f64[p, t], by seed of pre-training and of fine-tuning; nan for a run without a result.
    rows: f64[p, t, rows], what each row of the test set scored, or each group of rows, whose mean is the value; None
      where it is not known.
    dev: f64[p, t], how good each run is on the development rows by which one is chosen, more is better; None where
      none is chosen.
    points: of a grid; fine-tunings stand by seed and then by point.
  """

  values: np.ndarray
  rows: np.ndarray | None = None
  dev: np.ndarray | None = None
  points: int = 1


class Interval(NamedTuple):
  """A difference and where it lies with a probability of `LEVEL`."""

  difference: float
  low: float
  high: float

  @property
  def is_sure(self) -> bool:
    """Whether zero lies outside."""
    return self.low > 0 or self.high < 0


def of_groups(score: Callable[[Sequence[int]], float], rows: int) -> np.ndarray:
  """What groups of rows contribute to a number that is no mean over rows, such as F1: f64[groups], with it as the mean.

  The jackknife of groups: where a bootstrap draws these contributions, their mean varies as the number does over other
  rows, as far as it is near linear in the share of each group (Efron and Tibshirani 1993, chapters 11 and 21).

  Args:
    score: the number of the rows with some indices.
    rows: how many there are.
  """
  # a mean of rows 0 0 1 3 in two groups: 1 of all; without rows 0 and 2 1.5, without 1 and 3 0.5; so .5 and 1.5
  groups = min(GROUPS, rows)
  whole = score(range(rows))
  if groups == 1:
    return np.array([whole])
  without = np.array([score([row for row in range(rows) if row % groups != group]) for group in range(groups)])
  found = groups * whole - (groups - 1) * without
  return found + (whole - found.mean())


def _best(values: np.ndarray, dev: np.ndarray) -> np.ndarray:
  """Of f64[runs, draws] the values of the runs that are best on the development rows, the first of equal ones."""
  known = np.where(np.isnan(values) | np.isnan(dev), -np.inf, dev)
  place = known.argmax(0)[None]
  found = np.take_along_axis(values, place, 0)[0]
  return np.where(np.isinf(np.take_along_axis(known, place, 0)[0]), np.nan, found)


def _summary(values: np.ndarray, dev: np.ndarray | None, summary: Summary) -> np.ndarray:
  """The number of f64[runs, draws] in each draw; the mean where runs are to be chosen and nothing chooses."""
  if summary == 'best on dev' and dev is not None:
    return _best(values, dev)
  return np.nanmedian(values, axis=0) if summary == 'median' else np.nanmean(values, axis=0)


def summarise(cell: Measured, summary: Summary) -> float:
  """The number of a cell: the mean or the median of all its runs, or that of the run that is best on dev."""
  if cell.dev is None:
    return float(_summary(cell.values.reshape(-1), None, summary))
  return float(_summary(cell.values.reshape(-1, 1), cell.dev.reshape(-1, 1), summary)[0])


def difference(a: Measured, b: Measured, summary: Summary, *, seed: int = 0, draws: int = DRAWS) -> Interval:
  """The value of one cell less that of another, with an interval.

  A hierarchical bootstrap: each draw takes seeds of pre-training with replacement, within each of them seeds of
  fine-tuning, and rows of the test set, the same for both cells (Efron and Tibshirani 1993, chapters 8 and 13). A level
  with one seed adds nothing to the interval, so that of one pre-training is a statement about that pre-training. Noise
  that rows and seeds share (a row right by chance in one run) is counted on both levels, and few seeds say too little
  of their noise. Simulated with three seeds a cell and equal true means, intervals hold the truth in 99 % of cases
  where seeds do not differ beyond the noise of 872 rows, in 93 to 96 where they deviate by 2 points beside it, and in
  85 to 89 where they do so beside 3,000 rows and more: there the differences of runs say more than this interval.

  Of a number that is no mean over rows, groups of rows stand for rows (`of_groups`).

  Where rows are not known there is nothing to draw but a few seeds, of which a bootstrap says too little: the spread of
  its draws then gives the width of Welch's interval, by Student's t (`_welch`).

  Of a grid each point stays in each draw, with seeds of its own. Where the run counts that is best on development rows,
  each draw chooses again among its runs; a draw has some of them twice, so it chooses among fewer than the cell does,
  and the interval leans to worse values. Development rows are not drawn.

  Args:
    a: the runs of one cell.
    b: those of the other, on the same rows.
    summary: how runs become one number.
    seed: of the draws.
    draws: their number.
  """
  rng = np.random.default_rng(seed)
  paired = are_paired(a, b)
  found = []
  for start in range(0, draws, AT_ONCE):
    count = min(AT_ONCE, draws - start)
    weights = _weights(rng, a.rows.shape[-1], count) if paired and a.rows is not None else None
    found.append([_draw(rng, cell, weights, count, summary) for cell in (a, b)])
  drawn = np.concatenate(found, axis=-1)  # [2, draws]
  plain = summarise(a, summary) - summarise(b, summary)
  if paired or summary == 'best on dev':  # the best of some runs has no spread that Student's t would know
    low, high = np.nanquantile(drawn[0] - drawn[1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
  else:
    half = _welch(np.nanvar(drawn, axis=-1), [_seeds(a), _seeds(b)])
    low, high = plain - half, plain + half
  return Interval(*(round(float(number), DECIMALS) for number in (plain, low, high)))


def _welch(variances: np.ndarray, seeds: Sequence[int]) -> float:
  """Half the width of Welch's interval of a difference (Welch 1947).

  Args:
    variances: f64[2], of what a bootstrap draws of either cell, which has (n - 1) / n of the variance of a mean.
    seeds: n of either cell.
  """
  # values 0 1 2 and 0 0 0, n = 3:   draws vary by 2/9, the mean by 1/3; 2 degrees, t 4.30: 2.48
  free = np.maximum(np.array(seeds) - 1, 1)
  whole = variances * np.array(seeds) / free
  if not whole.any():
    return 0.0
  degrees = whole.sum() ** 2 / (whole**2 / free).sum()
  return float(stats.t.ppf((1 + LEVEL) / 2, degrees)) * math.sqrt(whole.sum())


def _seeds(cell: Measured) -> int:
  """How many seeds with a result the noise of a cell is known by: of pre-training, or of fine-tuning beside one."""
  there = ~np.isnan(cell.values)
  pretrainings = int(there.any(axis=1).sum())
  return pretrainings if pretrainings > 1 else -(-int(there.sum()) // cell.points)


def is_known(a: Measured, b: Measured) -> bool:
  """Whether `difference` has something to draw: rows of both cells, or several runs with a result of each."""
  return are_paired(a, b) or min(int(np.count_nonzero(~np.isnan(cell.values))) for cell in (a, b)) > 1


def are_paired(a: Measured, b: Measured) -> bool:
  """Whether rows of the test set are known of both cells, and are as many."""
  return a.rows is not None and b.rows is not None and a.rows.shape[-1] == b.rows.shape[-1]


def _weights(rng: np.random.Generator, rows: int, draws: int) -> np.ndarray:
  """How often each row is drawn, over their number: f64[rows, draws]."""
  return rng.multinomial(rows, np.full(rows, 1 / rows), size=draws).T / rows


def _draw(
  rng: np.random.Generator, cell: Measured, weights: np.ndarray | None, draws: int, summary: Summary
) -> np.ndarray:
  """The number of a cell in each draw, f64[draws]."""
  pretrainings, tunings = cell.values.shape
  if weights is None or cell.rows is None:
    values = np.repeat(cell.values[..., None], draws, axis=-1)
  else:
    values = np.where(np.isnan(cell.values)[..., None], np.nan, cell.rows @ weights)  # [p, t, draws]
  first = rng.integers(pretrainings, size=(pretrainings, 1, draws))
  second = rng.integers(tunings // cell.points, size=(pretrainings, tunings, draws))
  second = second * cell.points + (np.arange(tunings) % cell.points)[:, None]
  picked = values[first, second, np.arange(draws)].reshape(-1, draws)
  dev = None if cell.dev is None else cell.dev[first, second].reshape(-1, draws)
  with warnings.catch_warnings():
    warnings.filterwarnings('ignore', 'Mean of empty slice|All-NaN slice')  # a draw of failed runs only is left out
    return _summary(picked, dev, summary)
