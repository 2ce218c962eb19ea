"""Means of metrics over the steps since the last line of metrics, summed inside the compiled step.

An interval ends at every multiple of `log_every`. A line in between (the last step, `--stop_at`) covers the completed
part of its interval. Skipped updates do not count; the metric `skipped` counts them. A step that accumulates
micro-batches counts once, with the sums and weights of all of them.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plm_jax.core.types import Array
from plm_jax.runs import metrics

NORM, LARGEST = 'gradient_norm', 'gradient_norm_max'
OF_THE_STEP = ('learning_rate', 'skipped', 'skipped_in_a_row', 'parameter_norm')  # and metrics below these names

Sums = Mapping[str, tuple[Any, Any]]


class Interval(NamedTuple):
  """Sums over the interval so far."""

  sums: Array  # f32[m, 2], sum and weight of each metric of `averaged`
  largest: Array  # f32[], the largest gradient norm


def averaged(names: Collection[str]) -> list[str]:
  """List the metrics to average; others are those of the last step."""
  return sorted(name for name in names if name.partition('/')[0] not in OF_THE_STEP)


def add(interval: Interval, sums: Sums, *, first: Array) -> Interval:
  """Add a step's (sum, weight) pairs; `first` bool[] begins a new interval."""
  new = jnp.stack([part for name in averaged(sums) for part in sums[name]]).reshape(-1, 2)  # [m, 2]
  counts = (sums['skipped_in_a_row'][0] == 0) & (new[:, 1:] != 0)  # a metric without weight does not count
  # a skipped update does not count
  largest = jnp.where(sums['skipped_in_a_row'][0] == 0, sums[NORM][0], 0.0)
  before = jax.tree.map(lambda leaf: jnp.where(first, 0.0, leaf), interval)
  return Interval(before.sums + jnp.where(counts, new, 0.0), jnp.maximum(before.largest, largest))


def to_sums(interval: Interval, names: Collection[str]) -> dict[str, tuple[float, float]]:
  """Convert to metric -> (sum, weight) on the host.

  The largest norm has weight 1, or 0 if no update counted.
  """
  sums, largest = jax.device_get(interval)
  by_name = {name: (float(total), float(weight)) for name, (total, weight) in zip(averaged(names), sums, strict=True)}
  return by_name | {LARGEST: (float(largest), float(by_name[NORM][1] > 0))}


def from_sums(sums: Sums, names: Collection[str], *, mesh: Mesh) -> Interval:
  """Invert `to_sums` on every device; missing metrics start at 0."""
  averaged_names = averaged(names)
  values = np.array([sums.get(name, (0.0, 0.0)) for name in averaged_names], np.float32).reshape(len(averaged_names), 2)
  everywhere = NamedSharding(mesh, PartitionSpec())

  def replicate(array: np.ndarray) -> Array:
    return jax.make_array_from_callback(array.shape, everywhere, lambda index: array[index])

  return Interval(replicate(values), replicate(np.array(sums.get(LARGEST, (0.0, 0.0))[0], np.float32)))


def is_empty(interval: Interval, sums: Sums) -> bool:
  """Return True if updates counted but no example had a target."""
  by_name = to_sums(interval, sums)
  loss = metrics.trained_on(by_name)
  return by_name[NORM][1] > 0 and loss is not None and loss[1] == 0


def means(interval: Interval, sums: Sums) -> dict[str, float]:
  """Compute a line's means over the interval, others of the last step."""
  host = jax.device_get(dict(sums))
  means = metrics.mean({**host, **to_sums(interval, host)})
  return {**{name: means[name] for name in host}, LARGEST: means[LARGEST]}
