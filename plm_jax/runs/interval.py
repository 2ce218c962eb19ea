"""Means of metrics over the steps since the last line of metrics, summed inside the compiled step.

An interval ends at every multiple of `log_every`; a line between two of them (the last step, `--stop_at`) is about the
part of its interval that is done. Skipped updates are not in it, whatever their metrics are: they are counted by
`skipped`. A step that accumulates micro-batches counts once, with the sums and weights of all of them.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plm_jax.runs import metrics
from plm_jax.core.types import Array

NORM, LARGEST = 'gradient_norm', 'gradient_norm_max'
OF_THE_STEP = ('learning_rate', 'skipped', 'skipped_in_a_row', 'parameter_norm')  # and what stands below these names

Sums = Mapping[str, tuple[Any, Any]]


class Interval(NamedTuple):
  """What is summed so far.

  Attributes:
    sums: f32[m, 2], sum and weight of each metric of `averaged`.
    largest: f32[], the largest norm of a gradient.
  """

  sums: Array
  largest: Array


def averaged(names: Collection[str]) -> list[str]:
  """The metrics that are averaged; the others are those of the last step."""
  return sorted(name for name in names if name.partition('/')[0] not in OF_THE_STEP)


def add(interval: Interval, sums: Sums, *, first: Array) -> Interval:
  """The interval with one more step.

  Args:
    interval: so far.
    sums: metrics of the step as (sum, weight).
    first: bool[], whether the step begins a new interval.
  """
  new = jnp.stack([part for name in averaged(sums) for part in sums[name]]).reshape(-1, 2)  # [m, 2]
  counts = (sums['skipped_in_a_row'][0] == 0) & (new[:, 1:] != 0)  # a metric without weight says nothing
  largest = jnp.where(sums['skipped_in_a_row'][0] == 0, sums[NORM][0], 0.0)
  before = jax.tree.map(lambda leaf: jnp.where(first, 0.0, leaf), interval)
  return Interval(before.sums + jnp.where(counts, new, 0.0), jnp.maximum(before.largest, largest))


def to_sums(interval: Interval, names: Collection[str]) -> dict[str, tuple[float, float]]:
  """Metric -> (sum, weight) on the host; the largest norm as one of weight 1, or 0 where no update counted."""
  sums, largest = jax.device_get(interval)
  found = {name: (float(total), float(weight)) for name, (total, weight) in zip(averaged(names), sums, strict=True)}
  return found | {LARGEST: (float(largest), float(found[NORM][1] > 0))}


def from_sums(sums: Sums, names: Collection[str], *, mesh: Mesh) -> Interval:
  """The inverse of `to_sums`, on every device; a metric that is not in `sums` begins at 0."""
  wanted = averaged(names)
  values = np.array([sums.get(name, (0.0, 0.0)) for name in wanted], np.float32).reshape(len(wanted), 2)
  everywhere = NamedSharding(mesh, PartitionSpec())

  def place(array: np.ndarray) -> Array:
    return jax.make_array_from_callback(array.shape, everywhere, lambda index: array[index])

  return Interval(place(values), place(np.array(sums.get(LARGEST, (0.0, 0.0))[0], np.float32)))


def is_empty(interval: Interval, sums: Sums) -> bool:
  """Whether no row of it had a target, though updates counted."""
  found = to_sums(interval, sums)
  trained = metrics.trained_on(found)
  return found[NORM][1] > 0 and trained is not None and trained[1] == 0


def means(interval: Interval, sums: Sums) -> dict[str, float]:
  """What a line says: means over the interval, and of the last step what is not averaged (`sums` are its metrics)."""
  host = jax.device_get(dict(sums))
  means = metrics.mean({**host, **to_sums(interval, host)})
  return {**{name: means[name] for name in host}, LARGEST: means[LARGEST]}
