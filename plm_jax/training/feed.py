"""Batches from a source to the devices: the share of each process, and copies ahead of the step."""

import hashlib
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from plm_jax.core import sharding
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Array, Batch, Source, Task
from plm_jax.noise.keys import noise_root, with_step
from plm_jax.training.step import EXAMPLE

FIRST = 10  # batches of which data.json holds a checksum


def host_share(layout: sharding.Layout) -> tuple[int, int]:
  """Return (index, number) of the part of a batch for this process.

  Processes whose devices hold the same rows, such as those that share one copy of a model, feed the same part. Raises
  ConfigError: the rows of this process are not next to each other in the batch.
  """
  axis = layout.rules.get('batch')
  if axis is None:
    return 0, 1
  names = (axis,) if isinstance(axis, str) else axis
  order = [layout.mesh.axis_names.index(name) for name in names]
  devices = np.moveaxis(layout.mesh.devices, order, range(len(order)))  # [replica, data, ...]
  devices = devices.reshape(math.prod(devices.shape[: len(order)]), -1)  # [places, ...]
  mine = [
    place
    for place, there in enumerate(devices)
    if any(device.process_index == jax.process_index() for device in there.flat)
  ]
  if mine[0] % len(mine) or mine[-1] - mine[0] != len(mine) - 1:
    raise ConfigError(
      f'sharding.mesh: process {jax.process_index()} has places {mine} along {" x ".join(names)}, and its rows must be '
      'next to each other: choose sizes that divide the devices of a process, or that they divide'
    )
  return mine[0] // len(mine), len(devices) // len(mine)


def simulated(mesh: Mesh) -> bool:
  """Return whether one CPU simulates several devices.

  Their threads starve if steps queue up, so the loop waits for each step.
  """
  return mesh.size > 1 and jax.default_backend() == 'cpu'


def steps_in_flight(mesh: Mesh) -> int:
  """Return how many steps may be queued: two hide the host's work."""
  return 0 if simulated(mesh) else 2


def rows_per_device(batch_size: int, *, accumulate: int, mesh: Mesh) -> int:
  """Return a device's rows at once; raise ConfigError for uneven batches."""
  devices = sharding.row_places(mesh)
  parts = accumulate * devices
  if accumulate < 1 or batch_size % parts:
    raise ConfigError(
      f'data.batch_size={batch_size} rows cannot be cut into {devices} devices x '
      f'accumulate={accumulate}: make it a multiple of {parts}'
    )
  return batch_size // parts


def check_evaluations(evaluations: Mapping[str, Mapping[str, Any]], *, mesh: Mesh) -> None:
  """Raise ConfigError if batches of an evaluation cannot be divided evenly."""
  devices = sharding.row_places(mesh)
  for name, block in evaluations.items():
    if (rows := block['data']['batch_size']) % devices:
      raise ConfigError(
        f'eval.{name}.data.batch_size={rows} rows cannot be cut into {devices} devices: make it a multiple of '
        f'{devices}, such as {whole(rows, mesh=mesh)}'
      )


def whole(batch_size: int, *, mesh: Mesh) -> int:
  """Return the smallest divisible batch size from `batch_size` on."""
  devices = sharding.row_places(mesh)
  return -(-batch_size // devices) * devices


def first_batches_digest(source: Source, *, count: int = FIRST) -> str:
  """Return `batches_digest` of the first batches."""
  return batches_digest(itertools.islice(source.read(0), count))


def batches_digest(batches: Iterable[Mapping[str, np.ndarray]]) -> str:
  """Return the SHA-256 of batches: names, shapes, dtypes and bytes."""
  digest = hashlib.sha256()
  for batch in batches:
    for name in sorted(batch):
      digest.update(f'{name} {batch[name].dtype} {batch[name].shape}'.encode())
      digest.update(np.ascontiguousarray(batch[name]).tobytes())
  return digest.hexdigest()


def to_devices(
  batches: Iterator[dict[str, np.ndarray]],
  place: NamedSharding,
  *,
  prepare: Callable[[Batch], Batch] = lambda batch: batch,
) -> Iterator[Any]:
  """Yield (host batch, global device batch), copied and prepared two batches ahead."""
  queue: deque[tuple[dict[str, np.ndarray], Batch]] = deque()

  def put(batch: dict[str, np.ndarray]) -> None:
    queue.append((batch, prepare({k: jax.make_array_from_process_local_data(place, v) for k, v in batch.items()})))

  for batch in itertools.islice(batches, 2):
    put(batch)
  while queue:
    for batch in itertools.islice(batches, 1):
      put(batch)
    yield queue.popleft()


def prepare_ahead(task: Task, key: Array, *, first: int) -> Callable[[Batch], Batch]:
  """Build a function that prepares the batches of each step in turn.

  An update on the host (`Task.update`) uses one core, and the batches of the next steps are prepared on another. Other
  tasks prepare inside of their step.
  """
  if task.update is None:
    return lambda batch: batch
  prepare = jax.jit(lambda batch, step: task.prepare(noise_root(key), with_step(batch, step)))
  steps = itertools.count(first)
  return lambda batch: {**batch, EXAMPLE: prepare(batch, next(steps))}  # type: ignore[dict-item]
