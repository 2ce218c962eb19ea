"""Topologies of TPUs that are not attached; libtpu compiles programs for them on any machine."""

import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from plm_jax.core.errors import ConfigError, check_choice, is_installed

PIP = 'pip install -r requirements/plan.txt'
# Without these the compiler queries the machine for its TPU and complains if there is none. Several processes may use
# libtpu at once.
ENVIRONMENT = {
  'TPU_SKIP_MDS_QUERY': '1',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_WORKER_ID': '0',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
  'TPU_MIN_LOG_LEVEL': '3',
}


class Chip(NamedTuple):
  """A generation of TPUs."""

  kind: str  # its `device_kind`, a key of `training.flops.PEAK`
  memory: float  # GiB per device available to a program, from the compiler's messages
  axes: int  # of a topology: 2 for a plane, 3 for a box
  largest: int  # chips of the largest slice (cloud.google.com/tpu/docs/system-architecture-tpu-vm)
  links: float  # bytes per second that a device sends over all its links at once (cloud.google.com/tpu/docs/v5e, ...)
  clock: float | None = None  # cycles per second: the published peak by the products of a cycle; None where unknown
  devices: int = 1  # jax devices per chip
  options: tuple[tuple[str, Any], ...] = ()  # further arguments that describe a topology


CHIPS = {
  'v4': Chip('TPU v4', 30.75, 3, largest=4096, links=300e9, clock=1.05e9, options=(('chip_config_name', 'megacore'),)),
  'v5e': Chip('TPU v5 lite', 15.75, 2, largest=256, links=200e9, clock=1.5e9),
  'v5p': Chip('TPU v5', 95.73, 3, largest=8960, links=600e9, clock=1.75e9),
  'v6e': Chip('TPU v6 lite', 31.24, 2, largest=256, links=400e9),
  'tpu7x': Chip('TPU7x', 94.74, 3, largest=9216, links=300e9, devices=2),
}

# The available shapes, sorted; boxes also come with all sides that are multiples of 4
# (cloud.google.com/tpu/docs/v5e, v6e, v4, v5p, tpu7x).
PLANES = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
SMALL_BOXES = ((1, 1, 1), (1, 2, 2), (2, 2, 2), (2, 2, 4), (2, 4, 4))


class Topology(NamedTuple):
  """A number of equal slices of chips."""

  name: str  # such as 'v5e:4x4'
  chip: Chip  # of `CHIPS`
  slices: int  # each has a fast network inside; a slower one connects them
  devices: int  # of all slices


def parse(name: str, *, slices: int = 1) -> Topology:
  """Parse a name such as 'v5e:4x4' without the compiler, or raise ConfigError."""
  if re.fullmatch(r'v\w+-\d+', name):  # an accelerator type
    shapes = {'v5e': PLANES, 'v6e': PLANES, 'v4': SMALL_BOXES, 'v5p': SMALL_BOXES}
    names = [f'{generation}:{"x".join(map(str, sides))}' for generation in shapes for sides in shapes[generation]]
    types = {accelerator_type(parsed): parsed for parsed in (parse(one, slices=slices) for one in names)}
    check_choice('--topology', 'accelerator type', name, types)
    return types[name]
  generation, _, shape = name.partition(':')
  check_choice('--topology', 'chip', generation, CHIPS)
  chip = CHIPS[generation]
  example = 'x'.join('4' * chip.axes)
  if not re.fullmatch(r'[1-9]\d*(x[1-9]\d*)*', shape):
    raise ConfigError(f'--topology={name}: expected a chip and its sizes, such as {generation}:{example}')
  sizes = [int(size) for size in shape.split('x')]
  if len(sizes) != chip.axes:
    raise ConfigError(f'--topology={name}: {generation} has {chip.axes} axes, such as {generation}:{example}')
  chips = math.prod(sizes)
  if chips > chip.largest:
    raise ConfigError(
      f'--topology={name}: {chips:,} chips, but the largest slice of {generation} has {chip.largest:,}; name a smaller '
      'slice, and use --slices for several'
    )
  small = PLANES if chip.axes == 2 else SMALL_BOXES
  if tuple(sorted(sizes)) not in small and (chip.axes == 2 or any(size % 4 for size in sizes)):
    raise ConfigError(
      f'--topology={name}: {generation} comes as {", ".join("x".join(map(str, sides)) for sides in small)}'
      + ('' if chip.axes == 2 else ', or with sides that are multiples of 4')
    )
  return Topology(name=name, chip=chip, slices=slices, devices=chips * chip.devices * slices)


def accelerator_type(topology: Topology) -> str:
  """Return the accelerator type of a slice; '' if it has none."""
  # v5e:4x4 is v5litepod-16; v4 and v5p count cores, two a chip
  chips = topology.devices // topology.chip.devices // topology.slices
  generation = topology.name.partition(':')[0]
  names = {'v4': f'v4-{2 * chips}', 'v5e': f'v5litepod-{chips}', 'v5p': f'v5p-{2 * chips}', 'v6e': f'v6e-{chips}'}
  return names.get(generation, '')


def installed() -> bool:
  """Return True if the TPU compiler is installed."""
  return bool(os.environ.get('TPU_LIBRARY_PATH')) or is_installed('libtpu')


def check_installed(topology: Topology) -> None:
  """Raise ConfigError if the TPU compiler is not installed."""
  if not installed():
    raise ConfigError(
      f'--topology={topology.name}: libtpu, the compiler for TPUs, is not installed: {PIP} (no TPU needed), '
      'or use --state_only'
    )


def describe(topology: Topology) -> Sequence[Any]:
  """Describe the devices of a topology, to compile for them.

  Raises:
    ConfigError: libtpu is not installed, or does not support the topology.
  """
  check_installed(topology)
  for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  options = dict(topology.chip.options)
  if topology.slices > 1:
    options['num_slices'] = topology.slices
  if set(topology.name.partition(':')[2].split('x')) == {'1'}:  # the default is a host with more chips
    options['chips_per_host_bounds'] = (1, 1, 1)
  try:
    return topologies.get_topology_desc(platform='tpu', topology_name=topology.name, **options).devices
  except jax.errors.JaxRuntimeError as error:
    raise ConfigError(f'--topology={topology.name}: the compiler rejects it: {error}') from error
