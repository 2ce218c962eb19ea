"""Average curves over runs, and thin them to the points of a picture."""

from collections.abc import Sequence

import numpy as np

from plm_jax.studies.metric_lines import Line

POINTS = 1_000  # of a curve
ROUNDING = 1e-12  # a deviation of this share of the mean is rounding error


def band(lines: Sequence[Line], points: int = POINTS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Average curves over runs.

  Returns steps, mean and standard deviation, each float[n] with n <= `points`. Long curves are averaged over segments.
  A run is interpolated linearly between its steps and ignored beyond them. The deviation of a single run is 0.
  """
  # 1. Interpolate all curves at the same steps; NaN beyond the ends of a run.
  thin = [(thinned(steps, points), thinned(values, points)) for steps, values in lines]
  steps = np.unique(np.concatenate([own_steps for own_steps, _ in thin]))
  steps = thinned(steps, points) if len(thin) > 1 else steps
  values = np.stack([np.interp(steps, *curve, left=np.nan, right=np.nan) for curve in thin])  # [runs, n]
  # 2. Drop steps without any run.
  count = (~np.isnan(values)).sum(axis=0)
  steps, values, count = steps[count > 0], values[:, count > 0], count[count > 0]
  # 3. Mean and deviation, scaled so that the squares of a diverged run do not overflow.
  scale = max(1.0, float(np.nanmax(np.abs(values))))
  mean = np.nanmean(values / scale, axis=0)
  deviation = np.sqrt(np.nansum((values / scale - mean) ** 2, axis=0) / np.maximum(count - 1, 1))
  deviation[deviation < ROUNDING * np.abs(mean)] = 0.0  # the mean of equal values can be off by its last bit
  return steps, mean * scale, np.minimum(deviation, np.finfo(float).max / scale) * scale


def thinned(values: np.ndarray, points: int = POINTS) -> np.ndarray:
  """Average an array over at most `points` segments."""
  if len(values) <= points:
    return values.astype(float)
  starts = np.arange(points) * len(values) // points
  return np.add.reduceat(values.astype(float), starts) / np.diff(starts, append=len(values))


def extremes(line: Line, stretches: int) -> Line:
  """Thin a curve to its extremes in each of `stretches` segments.

  No spike is lost. A curve of at most two points a segment is returned unchanged.
  """
  steps, values = line
  if len(steps) <= 2 * stretches:
    return line
  edges = np.linspace(steps[0], steps[-1], stretches + 1)[1:-1]
  starts = np.unique(np.concatenate([[0], np.searchsorted(steps, edges)]))
  starts = starts[starts < len(steps)]
  segment = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(steps)))  # of each point
  is_extreme = [values == choose.reduceat(values, starts)[segment] for choose in (np.minimum, np.maximum)]
  chosen = np.unique(np.concatenate([_first_of_each(mask, segment) for mask in is_extreme]))
  return steps[chosen], values[chosen]


def _first_of_each(mask: np.ndarray, segment: np.ndarray) -> np.ndarray:
  """Find the first true position of each segment, int[segments]."""
  positions = np.flatnonzero(mask)
  return positions[np.unique(segment[positions], return_index=True)[1]]
