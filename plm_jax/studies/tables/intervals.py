"""Compute confidence intervals of differences: a bootstrap over test examples and seeds, and Welch over seeds."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from plm_jax.studies.tables.file import Summary

DRAWS = 2_000  # resamples of the bootstrap
AT_ONCE = 100  # resamples whose weights of examples are in memory at a time
LEVEL = 0.95
GROUPS = 100  # groups of examples, for a metric that is no mean over examples
DECIMALS = 10  # of an interval; further digits depend on the processor's order of additions


class Measured(NamedTuple):
  """The runs of a cell."""

  values: np.ndarray  # f64[p, t], by seed of pre-training and of fine-tuning; nan for a run without a result
  # f64[p, t, rows], score of each test example, or contribution of each group of examples, with the value as mean; None
  # if unknown
  rows: np.ndarray | None = None
  # f64[p, t], score on the development examples that select a run, more is better; None if none is selected
  dev: np.ndarray | None = None
  points: int = 1  # number of points of a grid; fine-tunings are ordered by seed and then by point

  @property
  def finite(self) -> np.ndarray:
    """Return the values of the runs with a result."""
    return self.values[~np.isnan(self.values)]


class Interval(NamedTuple):
  """A difference, its confidence interval of `LEVEL`, and its p-value."""

  difference: float
  low: float
  high: float
  p: float = 1.0

  @property
  def is_sure(self) -> bool:
    """Return whether the interval excludes zero."""
    return self.low > 0 or self.high < 0


def of_groups(score: Callable[[Sequence[int]], float], rows: int) -> np.ndarray:
  """Compute contributions of groups to a metric that is no mean.

  An example of such a metric is F1. These are the pseudo-values of a grouped jackknife, f64[groups], shifted so that
  their mean is the metric. If a bootstrap resamples them, their mean varies like the metric over other examples. This
  holds as far as the metric is nearly linear in the share of each group (Efron and Tibshirani 1993, chapters 11 and
  21). For example, examples 0 0 1 3 in two groups have the mean 1. Without examples 0 and 2 it is 1.5, without 1 and 3
  it is 0.5. The contributions are 0.5 and 1.5.

  Args:
    score: function from indices of examples to their metric.
    rows: number of examples.
  """
  groups = min(GROUPS, rows)
  total = score(range(rows))
  if groups == 1:
    return np.array([total])
  without = np.array([score([row for row in range(rows) if row % groups != group]) for group in range(groups)])
  pseudo_values = groups * total - (groups - 1) * without
  return pseudo_values + (total - pseudo_values.mean())


def _best(values: np.ndarray, dev: np.ndarray) -> np.ndarray:
  """Select f64[draws] of the first best run on dev, f64[runs, draws]."""
  comparable = np.where(np.isnan(values) | np.isnan(dev), -np.inf, dev)
  best = comparable.argmax(0)[None]  # int[1, draws]
  selected = np.take_along_axis(values, best, 0)[0]
  return np.where(np.isinf(np.take_along_axis(comparable, best, 0)[0]), np.nan, selected)


def _summary(values: np.ndarray, dev: np.ndarray | None, summary: Summary) -> np.ndarray:
  """Summarise f64[runs, draws] per draw, by mean if nothing can select."""
  if summary == 'best on dev' and dev is not None:
    return _best(values, dev)
  return np.nanmedian(values, axis=0) if summary == 'median' else np.nanmean(values, axis=0)


def summarise(cell: Measured, summary: Summary) -> float:
  """Summarise a cell by mean, median or its best run."""
  if cell.dev is None:
    return float(_summary(cell.values.reshape(-1), None, summary))
  return float(_summary(cell.values.reshape(-1, 1), cell.dev.reshape(-1, 1), summary)[0])


def difference(a: Measured, b: Measured, summary: Summary, *, seed: int = 0, draws: int = DRAWS) -> Interval:
  """Compute the difference of two cells with a confidence interval.

  The interval is the smallest that contains two others. The first is that of a hierarchical bootstrap (Efron and
  Tibshirani 1993, chapters 8 and 13). Each draw resamples seeds of pre-training, within each of them seeds of
  fine-tuning, and test examples, which are the same for both cells. It underestimates the noise of few seeds, so the
  second is Welch's interval over seeds (`_welch`). The p-value is the larger one of both. A level with one seed adds
  nothing to the interval: with one pre-training it is a statement about that pre-training. `benchmarks/tables.py`
  simulates how often equal cells differ beyond the noise.

  For a metric that is no mean over examples, groups of examples replace examples (`of_groups`). If examples are
  unknown, seeds alone count. Each point of a grid is in each draw, with its own seeds. With summary 'best on dev',
  there is only the bootstrap, in which each draw selects again among its runs. A draw contains some runs twice, so it
  selects among fewer runs than the cell, and the interval is biased to worse values. Development examples are not
  resampled.

  Args:
    a: runs of one cell.
    b: runs of the other cell, on the same examples.
  """
  estimate, ends, p_values = summarise(a, summary) - summarise(b, summary), [], []
  paired = are_paired(a, b)
  if paired or summary == 'best on dev':  # Student's t does not hold for the best of some runs
    resampled = _resampled(a, b, summary, np.random.default_rng(seed), draws, paired=paired)
    ends.append(np.nanquantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    p_values.append(_p_value(estimate, float(np.nanstd(resampled)), math.inf))
  if summary != 'best on dev':
    deviation, degrees = _welch(a, b, summary)
    half = float(stats.t.ppf((1 + LEVEL) / 2, degrees)) * deviation
    ends.append([estimate - half, estimate + half])
    p_values.append(_p_value(estimate, deviation, degrees))
  lows, highs = zip(*ends, strict=True)
  return Interval(*(round(float(number), DECIMALS) for number in (estimate, min(lows), max(highs), max(p_values))))


def _p_value(estimate: float, deviation: float, degrees: float) -> float:
  """Compute the two-sided p-value of a difference from its standard error."""
  if not deviation:
    return float(not estimate)
  return float(2 * stats.t.sf(abs(estimate) / deviation, degrees))


def _welch(a: Measured, b: Measured, summary: Summary) -> tuple[float, float]:
  """Compute standard error and degrees of freedom over seeds.

  With several pre-trainings, a seed is the mean of the fine-tunings of each (Welch 1947). A single seed adds nothing.
  For example, for values 0 1 2 and 0 0 0 they are sqrt(1/3) and 2, and the interval is 4.30 times .58 wide to each
  side.
  """
  seeds = [_by_seed(cell) for cell in (a, b)]
  freedom = np.array([max(len(values) - 1, 1) for values in seeds])
  of_means = np.array([values.var(ddof=1) / len(values) if len(values) > 1 else 0.0 for values in seeds])
  if not of_means.any():
    return 0.0, math.inf
  degrees = of_means.sum() ** 2 / (of_means**2 / freedom).sum()
  median = math.pi / 2 if summary == 'median' else 1.0  # variance of a median over that of a mean
  return math.sqrt(median * of_means.sum()), float(degrees)


def _by_seed(cell: Measured) -> np.ndarray:
  """Return the finite values by seed, of fine-tuning with one pre-training."""
  by_pretraining = [values[~np.isnan(values)] for values in cell.values if not np.isnan(values).all()]
  return by_pretraining[0] if len(by_pretraining) == 1 else np.array([values.mean() for values in by_pretraining])


def num_at_chance(cell: Measured, chance: float, *, better: str) -> int:
  """Count runs within two standard errors of their examples of chance."""
  errors = np.zeros_like(cell.values) if cell.rows is None else cell.rows.std(-1) / math.sqrt(cell.rows.shape[-1])
  above = (cell.values - chance) * (1 if better == 'max' else -1)
  return int(np.count_nonzero(above <= 2 * errors))  # nan is not


def of_counts(counts: Sequence[int], runs: Sequence[int]) -> Interval:
  """Compare the shares of runs at chance by Boschloo's exact test."""
  shares = [count / number for count, number in zip(counts, runs, strict=True)]
  table = [counts, [number - count for count, number in zip(counts, runs, strict=True)]]
  return Interval(shares[0] - shares[1], -np.inf, np.inf, float(stats.boschloo_exact(table).pvalue))  # no interval


def holm(p_values: Sequence[float]) -> list[float]:
  """Adjust p-values for the number of tests (Holm 1979).

  For example, .01 .04 .03 become .03 .06 .06.
  """
  order = np.argsort(p_values)
  scaled = np.array(p_values)[order] * np.arange(len(p_values), 0, -1)
  adjusted = np.empty(len(p_values))
  adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
  return adjusted.tolist()


def is_known(a: Measured, b: Measured) -> bool:
  """Return whether `difference` can resample examples or runs."""
  return are_paired(a, b) or min(len(a.finite), len(b.finite)) > 1


def are_paired(a: Measured, b: Measured) -> bool:
  """Return whether both cells have scores of equally many examples."""
  return a.rows is not None and b.rows is not None and a.rows.shape[-1] == b.rows.shape[-1]


def _resampled(
  a: Measured, b: Measured, summary: Summary, rng: np.random.Generator, draws: int, *, paired: bool
) -> np.ndarray:
  """Resample seeds and examples, f64[draws] of differences."""
  batches = []
  for start in range(0, draws, AT_ONCE):
    count = min(AT_ONCE, draws - start)
    weights = _weights(rng, a.rows.shape[-1], count) if paired and a.rows is not None else None
    drawn = [_draw(rng, cell, weights, count, summary) for cell in (a, b)]
    batches.append(drawn[0] - drawn[1])
  return np.concatenate(batches)


def _weights(rng: np.random.Generator, rows: int, draws: int) -> np.ndarray:
  """Sample the weight of each example in each draw, f64[rows, draws]."""
  return rng.multinomial(rows, np.full(rows, 1 / rows), size=draws).T / rows


def _draw(
  rng: np.random.Generator, cell: Measured, weights: np.ndarray | None, draws: int, summary: Summary
) -> np.ndarray:
  """Summarise a cell in each draw, f64[draws]."""
  pretrainings, tunings = cell.values.shape
  # 1. Values of the runs over the resampled examples, [p, t, draws].
  if weights is None or cell.rows is None:
    values = np.repeat(cell.values[..., None], draws, axis=-1)
  else:
    values = np.where(np.isnan(cell.values)[..., None], np.nan, cell.rows @ weights)
  # 2. Resampled seeds of pre-training and, for each of them, of fine-tuning; points of a grid stay.
  first = rng.integers(pretrainings, size=(pretrainings, 1, draws))
  second = rng.integers(tunings // cell.points, size=(pretrainings, tunings, draws))
  second = second * cell.points + (np.arange(tunings) % cell.points)[:, None]
  picked = values[first, second, np.arange(draws)].reshape(-1, draws)  # [p * t, draws]
  dev = None if cell.dev is None else cell.dev[first, second].reshape(-1, draws)
  with warnings.catch_warnings():
    warnings.filterwarnings('ignore', 'Mean of empty slice|All-NaN slice')  # a sample with only failed runs is nan
    return _summary(picked, dev, summary)
