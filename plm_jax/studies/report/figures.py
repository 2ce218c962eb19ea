"""The curves of a report as numbers for its script: so few points that a page stays small, and no spike is lost.

A long curve is its smallest and its largest value in each of some stretches of steps, and a line of means on top; runs
that differ in nothing but the seed have a mean and a band, as `plm-jax compare` draws them.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.studies import bands
from plm_jax.studies.metric_lines import Line
from plm_jax.studies.report.found import Run, is_headline

BUDGET = 3_000_000  # bytes of all curves
POINT = 12  # bytes of a point, a step and a value
STRETCHES = (40, 400)  # fewest and most stretches of a curve
SMOOTH = 160  # points of a line of means
DOTS = 30  # points of a curve up to which each is a dot
LARGEST = 1e300  # sums and differences of what is drawn are finite
SPIKE = 30  # times the median: a value that would flatten everything else on a linear axis
LAST = ('learning_rate', 'gradient_norm', 'gradient_norm_max', 'tokens_per_second', 'mfu')  # behind the others


def wanted(patterns: Sequence[str], metric: str | None) -> Any:
  """Whether a metric is read: those that are drawn in any case, `metric`, and what the patterns name."""
  return lambda name: is_headline(name) or name == metric or any(fnmatch.fnmatchcase(name, one) for one in patterns)


def drawn(runs: Sequence[Run], metric: str) -> list[str]:
  """The metrics that are drawn, `metric` first: those that change in a run."""
  names = dict.fromkeys(name for run in runs for name in run.metrics.lines)
  moving = [name for name in names if any(_moves(run.metrics.lines.get(name)) for run in runs) or name == metric]
  return sorted(moving, key=lambda name: (name != metric, _rank(name), name))


def _rank(name: str) -> int:
  """The place of a metric: losses, what evaluations and training measure, the course of the optimiser."""
  if name in LAST:
    return 3 + LAST.index(name)
  return 0 if name == 'loss' or name.endswith('/loss') else 1 if '/' in name else 2


def _moves(line: Line | None) -> bool:
  return line is not None and len(line[1]) > 0 and bool((line[1] != line[1][0]).any())


def make(groups: Mapping[str, Sequence[Run]], metrics: Sequence[str]) -> dict[str, Any]:
  """What the script draws: names of runs and groups, and a figure for each metric.

  Args:
    groups: name of a curve -> its runs.
    metrics: from `drawn`.
  """
  runs = [run for own in groups.values() for run in own]
  group_of = [place for place, own in enumerate(groups.values()) for _ in own]
  count = sum(metric in run.metrics.lines for run in runs for metric in metrics)
  stretches = int(np.clip(BUDGET / POINT / max(count, 1) / 2 - SMOOTH / 2, *STRETCHES))
  return {
    'groups': [{'name': name, 'n': len(own)} for name, own in groups.items()],
    'runs': [{'name': run.name, 'group': group} for run, group in zip(runs, group_of, strict=True)],
    'figures': [_figure(metric, groups, runs, stretches) for metric in metrics],
  }


def _figure(metric: str, groups: Mapping[str, Sequence[Run]], runs: Sequence[Run], stretches: int) -> dict[str, Any]:
  lines = {place: run.metrics.lines[metric] for place, run in enumerate(runs) if metric in run.metrics.lines}
  bands = []
  for place, own in enumerate(groups.values()):
    there = [run.metrics.lines[metric] for run in own if metric in run.metrics.lines]
    if len(there) > 1:
      steps, mean, deviation = bands.band(there, SMOOTH)
      bands.append({'group': place, 'n': len(there), **_points((steps, mean)), 'deviation': _short(deviation)})
  return {
    'metric': metric,
    'rare': 2 * len(lines) < len(runs),
    'log': _needs_log([values for _, values in lines.values()]),
    'dots': max((len(steps) for steps, _ in lines.values()), default=0) <= DOTS,
    'lines': [{'run': place, **_line(line, stretches)} for place, line in lines.items()],
    'bands': bands,
  }


def _line(line: Line, stretches: int) -> dict[str, Any]:
  """The points of a curve; where there are many, 'smooth' has the line of means."""
  made: dict[str, Any] = _points(bands.extremes(line, stretches))
  if len(line[0]) > SMOOTH:
    made['smooth'] = _points((bands.thinned(line[0], SMOOTH), bands.thinned(line[1], SMOOTH)))
  return made


def _points(line: Line) -> dict[str, list[float]]:
  """Steps as differences, which are short, and values with five digits."""
  steps, values = line
  return {'steps': np.diff(np.round(steps).astype(int), prepend=0).tolist(), 'values': _short(values)}


def _short(values: np.ndarray) -> list[float]:
  values = np.clip(values, -LARGEST, LARGEST)
  return [int(value) if value == int(value) and abs(value) < 1e6 else float(f'{value:.5g}') for value in values]


def _needs_log(values: Sequence[np.ndarray]) -> bool:
  every = np.concatenate(values) if values else np.zeros(1)
  return bool(every.min() > 0 and every.max() > SPIKE * np.median(every))
