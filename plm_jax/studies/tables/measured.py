"""Collect the measured values of a cell from `cells.json`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.core.errors import ConfigError
from plm_jax.studies.tables import cells, intervals
from plm_jax.studies.tables.file import BEST_POINT, CHANCE, CHOSEN, COUNTED, Column, Table
from plm_jax.studies.tables.intervals import Measured


def measured(table: Table, results: Mapping[str, Any], row: str, column: str) -> Measured | None:
  """Collect the scaled runs of a cell; None without a result."""
  if parts := table.columns[column].over:
    return _mean([measured(table, results, row, part) for part in parts])
  by_seed = results['cells'].get(row, {}).get(column)
  if not by_seed:
    return None
  definition = table.columns[column]
  times, plus = definition.times, definition.plus
  runs = [[results['runs'].get(digest) for digest in digests] for digests in by_seed]
  values = np.array([[_value(run, definition) for run in of_seed] for of_seed in runs]) * times + plus
  dev = None
  if table.summary in CHOSEN and definition.chosen_by is not None:
    metric, better = definition.chosen_by
    dev = np.array([[_metric(run, metric) for run in of_seed] for of_seed in runs]) * (1 if better == 'max' else -1)
    values = np.where(np.isnan(dev), np.nan, values)  # a run that cannot be selected does not count
  if np.isnan(values).all():
    return None
  points = max(1, len(definition.grid))
  if values.shape[1] % points:
    raise ConfigError(
      f'column {column!r}: its grid has {points} points, but row {row!r} of cells.json has {values.shape[1]} runs per '
      'pre-training: the file is of another version of this table; move it away'
    )
  if table.summary == BEST_POINT and dev is not None:
    by_point = dev.reshape(-1, points)  # a line for each seed; those of which no run is made do not decide
    by_point = np.nan_to_num(by_point[~np.isnan(by_point).all(1)], nan=-np.inf)
    best, dev = int(by_point.mean(0).argmax()), None
    values, runs, points = values[:, best::points], [of_seed[best::points] for of_seed in runs], 1
  scores = [[_scores(run, definition) for run in of_seed] for of_seed in runs]
  with_scores = [run for of_seed in scores for run in of_seed if run is not None]
  is_missing = np.array([[run is None for run in of_seed] for of_seed in scores]) & ~np.isnan(values)
  if is_missing.any() or len({len(run) for run in with_scores}) != 1:
    return Measured(values=values, dev=dev, points=points)
  zeros = np.zeros(len(with_scores[0]))  # placeholder of a run without a result, whose value is nan
  rows = np.array([[zeros if run is None else run for run in of_seed] for of_seed in scores]) * times + plus
  return Measured(values=values, rows=rows, dev=dev, points=points)


def _mean(parts: Sequence[Measured | None]) -> Measured | None:
  of_columns = [part.values for part in parts if part is not None]
  if len(of_columns) < len(parts):
    return None
  values = np.mean(of_columns, axis=0)
  return None if np.isnan(values).all() else Measured(values=values)


def _scores(run: Mapping[str, Any] | None, column: Column) -> np.ndarray | None:
  recorded = run or {}
  packed = recorded.get('rows', {}).get(column.metric) or recorded.get('groups', {}).get(column.metric)
  return None if packed is None else cells.unpacked(packed)


def _value(run: Mapping[str, Any] | None, column: Column) -> float:
  if column.of not in COUNTED:
    return _metric(run, column.metric)
  count = (run or {}).get(column.of)
  return math.nan if count is None else float(count)


def _metric(run: Mapping[str, Any] | None, name: str) -> float:
  value = (run or {}).get('metrics', {}).get(name)
  return math.nan if value is None else float(value)


def constant(value: float, like: Measured) -> Measured:
  """Build a cell in which every value is the same."""
  rows = None if like.rows is None else np.full_like(like.rows, value)
  return like._replace(values=np.full_like(like.values, value), rows=rows)


def num_at_chance(cell: Measured | None, column: Column) -> int:
  """Count fine-tunings at chance; 0 if chance is unknown."""
  chance = next((column.trivial[name] for name in CHANCE if name in column.trivial), None)
  if cell is None or chance is None or column.of != 'tuning':
    return 0
  return intervals.num_at_chance(cell, chance, better=column.better)
