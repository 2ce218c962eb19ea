"""Batches on their way to the devices: which part this process feeds, and copies ahead of the step."""

import hashlib
import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from plm_jax import sharding
from plm_jax.errors import ConfigError
from plm_jax.types import Batch, Source


def host_share(layout: sharding.Layout) -> tuple[int, int]:
  """Which part of each batch this process feeds, of how many equal ones: (number, parts).

  Processes whose devices hold the same rows, as where a model is cut over several of them, feed the same part.
  """
  axis = layout.rules.get('batch')
  if axis is None:
    return 0, 1
  devices = np.moveaxis(layout.mesh.devices, layout.mesh.axis_names.index(axis), 0)  # [places, ...]
  mine = [
    place
    for place, there in enumerate(devices)
    if any(device.process_index == jax.process_index() for device in there.flat)
  ]
  if mine[0] % len(mine) or mine[-1] - mine[0] != len(mine) - 1:
    raise ConfigError(
      f'sharding.mesh: process {jax.process_index()} has places {mine} along {axis!r}, and its rows must be next to '
      'each other: choose sizes that divide the devices of a process, or that they divide'
    )
  return mine[0] // len(mine), len(devices) // len(mine)


def simulated(mesh: Mesh) -> bool:
  """Whether the devices are several of the CPU: their threads starve where steps queue up, so wait for each."""
  return mesh.size > 1 and jax.default_backend() == 'cpu'


def first_batches_digest(source: Source, *, count: int = 10) -> str:
  """SHA-256 of the first batches of a source: names, shapes, types and bytes."""
  digest = hashlib.sha256()
  for batch in itertools.islice(source.read(0), count):
    for name in sorted(batch):
      digest.update(f'{name} {batch[name].dtype} {batch[name].shape}'.encode())
      digest.update(np.ascontiguousarray(batch[name]).tobytes())
  return digest.hexdigest()


def to_devices(batches: Iterator[dict[str, np.ndarray]], place: NamedSharding, *, ahead: int = 2) -> Iterator[Any]:
  """(host batch, global device batch) pairs, with copies under way for the next `ahead` ones."""
  queue: deque[tuple[dict[str, np.ndarray], Batch]] = deque()

  def put(batch: dict[str, np.ndarray]) -> None:
    queue.append((batch, {k: jax.make_array_from_process_local_data(place, v) for k, v in batch.items()}))

  for batch in itertools.islice(batches, ahead):
    put(batch)
  while queue:
    for batch in itertools.islice(batches, 1):
      put(batch)
    yield queue.popleft()
