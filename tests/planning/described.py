"""Device descriptions for tests: TPUs if their compiler is installed, and made-up ones."""

import dataclasses
import itertools
from typing import Any

import pytest

from plm_jax.planning import topology


def tpus(name: str, *, slices: int = 1) -> list[Any]:
  """Describe the devices of a topology; skip without a compiler."""
  if not topology.installed():
    pytest.skip(f'libtpu is not installed ({topology.PIP})')
  return list(topology.describe(topology.parse(name, slices=slices)))


@dataclasses.dataclass(frozen=True)
class Device:
  """The attributes of a device that mesh construction reads."""

  id: int
  coords: tuple[int, int, int]
  process_index: int
  slice_index: int
  platform: str = 'tpu'
  device_kind: str = 'TPU v5'
  core_on_chip: int = 0


def made_up(box: tuple[int, int, int], *, slices: int = 1) -> list[Device]:
  """Make up chips of `slices` boxes.

  The four chips of each 2 x 2 x 1 belong to one process.
  """
  x, y, _ = box
  hosts = (x // 2) * (y // 2) * box[2]
  places = list(itertools.product(*(range(size) for size in reversed(box))))  # z y x, as a process lists its devices

  def host(at: tuple[int, ...]) -> int:
    return (at[0] * (y // 2) + at[1] // 2) * (x // 2) + at[2] // 2

  return [
    Device(number * len(places) + i, (at[2], at[1], at[0]), number * hosts + host(at), number)
    for number in range(slices)
    for i, at in enumerate(places)
  ]
