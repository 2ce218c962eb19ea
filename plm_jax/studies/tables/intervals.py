"""How far a measured difference can be trusted: a bootstrap over seeds and over the rows of the test set."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from plm_jax.studies.tables.file import Summary

DRAWS = 2_000
AT_ONCE = 100  # draws whose weights of rows are held at one time
LEVEL = 0.95


class Measured(NamedTuple):
  """The runs of a cell.

  Attributes:
    values: f64[p, t], by seed of pre-training and of fine-tuning; nan for a run without a result.
    rows: f64[p, t, rows], what each row of the test set scored, whose mean is the value; None where a value is no such
      mean.
  """

  values: np.ndarray
  rows: np.ndarray | None = None


class Interval(NamedTuple):
  """A difference and where it lies with a probability of `LEVEL`."""

  difference: float
  low: float
  high: float

  @property
  def is_sure(self) -> bool:
    """Whether zero lies outside."""
    return self.low > 0 or self.high < 0


SUMMARIES: dict[Summary, Callable[..., np.ndarray]] = {'mean': np.nanmean, 'median': np.nanmedian}


def summarise(values: np.ndarray, summary: Summary) -> float:
  """The number of a cell: the mean or the median of all its runs."""
  return float(SUMMARIES[summary](values))


def difference(a: Measured, b: Measured, summary: Summary, *, seed: int = 0, draws: int = DRAWS) -> Interval:
  """The value of one cell less that of another, with an interval.

  A hierarchical bootstrap: each draw takes seeds of pre-training with replacement, within each of them seeds of
  fine-tuning, and rows of the test set, the same for both cells (Efron and Tibshirani 1993, chapters 8 and 13). A level
  with one seed adds nothing to the interval, so that of one pre-training is a statement about that pre-training. Noise
  that rows and seeds share (a row right by chance in one run) is counted on both levels: intervals are rather too wide.

  Args:
    a: the runs of one cell.
    b: those of the other, on the same rows.
    summary: how runs become one number.
    seed: of the draws.
    draws: their number.
  """
  rng = np.random.default_rng(seed)
  paired = a.rows is not None and b.rows is not None and a.rows.shape[-1] == b.rows.shape[-1]
  found = []
  for start in range(0, draws, AT_ONCE):
    count = min(AT_ONCE, draws - start)
    weights = _weights(rng, a.rows.shape[-1], count) if paired and a.rows is not None else None
    drawn = [_draw(rng, cell, weights, count, summary) for cell in (a, b)]
    found.append(drawn[0] - drawn[1])
  edges = np.nanquantile(np.concatenate(found), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
  plain = summarise(a.values, summary) - summarise(b.values, summary)
  return Interval(plain, float(edges[0]), float(edges[1]))


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
  second = rng.integers(tunings, size=(pretrainings, tunings, draws))
  picked = values[first, second, np.arange(draws)].reshape(-1, draws)
  with warnings.catch_warnings():
    warnings.filterwarnings('ignore', 'Mean of empty slice|All-NaN slice')  # a draw of failed runs only is left out
    return SUMMARIES[summary](picked, axis=0)
