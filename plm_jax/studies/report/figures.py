"""Thin the curves of a report for its script, so that the page stays small and no spike is lost.

A long curve is the minimum and maximum of each segment of steps, and a line of means. Runs that differ only in the seed
have a mean and a band, as in `plm-jax compare`.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.studies import bands
from plm_jax.studies.metric_lines import Line
from plm_jax.studies.report import html_parts
from plm_jax.studies.report.contents import Run, is_headline

BUDGET = 3_000_000  # bytes of all curves
POINT = 12  # bytes of a point, a step and a value
SEGMENTS = (40, 400)  # fewest and most segments of a curve
SMOOTH = 160  # points of a line of means
DOTS = 30  # a curve with at most this many points shows dots
LARGEST = 1e300  # clips values, so that their sums and differences are finite
SPIKE = 30  # times the median: a larger value needs a logarithmic axis
LAST = ('learning_rate', 'gradient_norm', 'gradient_norm_max', 'tokens_per_second', 'mfu')  # after the others


def wanted(patterns: Sequence[str], metric: str | None) -> Any:
  """Build the filter of metrics: headlines, `metric`, and matches of the patterns."""
  return lambda name: (
    is_headline(name) or name == metric or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
  )


def drawn(runs: Sequence[Run], metric: str) -> list[str]:
  """List the metrics that change in a run, `metric` first."""
  names = dict.fromkeys(name for run in runs for name in run.metrics.lines)
  moving = [name for name in names if any(_moves(run.metrics.lines.get(name)) for run in runs) or name == metric]
  return sorted(moving, key=lambda name: (name != metric, _rank(name), name))


def _rank(name: str) -> int:
  """Rank a metric: losses, evaluation metrics, training metrics, optimizer metrics."""
  if name in LAST:
    return 3 + LAST.index(name)
  return 0 if name == 'loss' or name.endswith('/loss') else 1 if '/' in name else 2


def _moves(line: Line | None) -> bool:
  return line is not None and len(line[1]) > 0 and bool((line[1] != line[1][0]).any())


def make(groups: Mapping[str, Sequence[Run]], metrics: Sequence[str]) -> dict[str, Any]:
  """Build the data of the script: runs, groups, a figure a metric.

  `groups` maps the name of a curve to its runs.
  """
  runs = [run for group in groups.values() for run in group]
  group_of = [index for index, group in enumerate(groups.values()) for _ in group]
  count = sum(metric in run.metrics.lines for run in runs for metric in metrics)
  segments = int(np.clip(BUDGET / POINT / max(count, 1) / 2 - SMOOTH / 2, *SEGMENTS))
  return {
    'groups': [{'name': name, 'n': len(group)} for name, group in groups.items()],
    'runs': [{'name': run.name, 'group': group, **_pace(run)} for run, group in zip(runs, group_of, strict=True)],
    'figures': [_figure(metric, groups, runs, segments) for metric in metrics],
  }


def _pace(run: Run) -> dict[str, float]:
  """Compute the mean tokens and seconds of a step, if known."""
  totals = {key: html_parts.number(run.result.get(key)).key or 0 for key in ('tokens', 'seconds')}
  return {key: float(f'{value / run.step:.6g}') for key, value in totals.items() if 0 < value < LARGEST and run.step}


def _figure(metric: str, groups: Mapping[str, Sequence[Run]], runs: Sequence[Run], segments: int) -> dict[str, Any]:
  lines = {index: run.metrics.lines[metric] for index, run in enumerate(runs) if metric in run.metrics.lines}
  group_bands = []
  for index, group in enumerate(groups.values()):
    in_group = [run.metrics.lines[metric] for run in group if metric in run.metrics.lines]
    if len(in_group) > 1:
      steps, mean, deviation = bands.band(in_group, SMOOTH)
      group_bands.append({'group': index, 'n': len(in_group), **_points((steps, mean)), 'deviation': _short(deviation)})
  return {
    'metric': metric,
    'rare': 2 * len(lines) < len(runs),
    'log': _needs_log([values for _, values in lines.values()]),
    'dots': max((len(steps) for steps, _ in lines.values()), default=0) <= DOTS,
    'lines': [{'run': index, **_line(line, segments)} for index, line in lines.items()],
    'bands': group_bands,
  }


def _line(line: Line, segments: int) -> dict[str, Any]:
  """Thin a curve; 'smooth' has the means of a long one."""
  thinned: dict[str, Any] = _points(bands.extremes(line, segments))
  if len(line[0]) > SMOOTH:
    thinned['smooth'] = _points((bands.thinned(line[0], SMOOTH), bands.thinned(line[1], SMOOTH)))
  return thinned


def _points(line: Line) -> dict[str, list[float]]:
  """Encode steps as differences, which are short, and values with five digits."""
  steps, values = line
  return {'steps': np.diff(np.round(steps).astype(int), prepend=0).tolist(), 'values': _short(values)}


def _short(values: np.ndarray) -> list[float]:
  values = np.clip(values, -LARGEST, LARGEST)
  return [int(value) if value == int(value) and abs(value) < 1e6 else float(f'{value:.5g}') for value in values]


def _needs_log(values: Sequence[np.ndarray]) -> bool:
  joined = np.concatenate(values) if values else np.zeros(1)
  return bool(joined.min() > 0 and joined.max() > SPIKE * np.median(joined))
