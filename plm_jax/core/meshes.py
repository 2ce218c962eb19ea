"""Meshes of devices: sizes of the axes, and the order of devices along them."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

MeshAxes = str | tuple[str, ...]  # one axis of a mesh, or several that cut an array like a single axis
ROWS = ('replica', 'data')  # the mesh axes that cut the rows of a batch


class Sizes(NamedTuple):
  """Devices along each axis of a mesh."""

  # copies of the parameters that 'data' cuts. Only rows are cut along this axis, so devices of two copies exchange
  # nothing but sums of gradients. Slices of TPUs, which only a slow network connects, are copies
  replica: int
  data: int  # cuts rows, and under some rules parameters
  model: int  # cuts products

  def __str__(self) -> str:
    return ', '.join(f'{name}={size}' for name, size in self._asdict().items() if name != 'replica' or size > 1)


def make_mesh(shape: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
  """Build a mesh over all devices.

  Neighbours along 'model' are neighbours in the network of the chips. Slices, which only a slower network connects, are
  cut along 'replica' and 'data' alone. Along these axes the positions of one process are adjacent, because the process
  feeds their rows. The mesh has an axis 'replica' if there is more than one copy.

  Args:
    shape: mesh axis ('replica', 'data', 'model') -> devices along it (`Sizes`); one size may be -1 (the rest).
    devices: of one kind, or their descriptions; None takes those of the backend of this process.

  Raises:
    ValueError: the sizes do not multiply to the number of devices, or do not fit their network.
  """
  # 1. sizes, checked against the number of devices
  devices = list(jax.devices() if devices is None else devices)
  sizes = sizes_of(shape, len(devices))
  check_sizes(sizes, len(devices), nearest=lambda: _nearest(sizes, devices))
  # 2. devices as [replica data, model], in the order of the network
  try:
    placed = _place(sizes, devices)
  except (ValueError, NotImplementedError, AssertionError) as error:
    raise ValueError(_cannot_place(sizes, devices, why=error)) from error
  # 3. positions of one process adjacent, and 'replica' as a separate axis
  counts, names = axes_of(sizes)
  return Mesh(_by_process(placed).reshape(counts), names, axis_types=(AxisType.Auto,) * len(names))


def axes_of(sizes: Sizes) -> tuple[tuple[int, ...], tuple[str, ...]]:
  """Return shape and axis names; one copy has no axis 'replica'."""
  named = sizes._asdict() if sizes.replica > 1 else {'data': sizes.data, 'model': sizes.model}
  return tuple(named.values()), tuple(named)


def places(mesh: Mesh, axes: MeshAxes | None) -> int:
  """Count the devices along one mesh axis or several; None gives 1."""
  return math.prod(mesh.shape[name] for name in mesh_names(axes))


def mesh_names(axes: MeshAxes | None) -> set[str]:
  """Return the mesh axes that a rule names."""
  return set() if axes is None else {axes} if isinstance(axes, str) else set(axes)


def row_places(mesh: Mesh) -> int:
  """Count the parts into which a mesh cuts rows."""
  return places(mesh, tuple(name for name in ROWS if name in mesh.shape))


def sizes_of(shape: Mapping[str, int], count: int) -> Sizes:
  """Compute the sizes of a mesh over `count` devices.

  A size of -1 is filled in. `check_sizes` checks that they use all devices.

  Raises:
    ValueError: an unknown axis, or an impossible size.
  """
  sizes = dict(shape)
  unknown = set(sizes) - set(Sizes._fields)
  if unknown:
    raise ValueError(f'sharding.mesh: unknown axis {sorted(unknown)}; axes are {", ".join(Sizes._fields)}')
  free = [name for name, size in sizes.items() if size == -1]
  fixed = math.prod(size for size in sizes.values() if size != -1)
  if len(free) > 1 or fixed < 1 or any(size < 1 and size != -1 for size in sizes.values()):
    raise ValueError(f'sharding.mesh={dict(shape)}: sizes must be positive, and at most one may be -1')
  if free:
    sizes[free[0]] = max(count // fixed, 1)
  return Sizes(**{name: sizes.get(name, 1) for name in Sizes._fields})


def check_sizes(sizes: Sizes, count: int, *, slices: int = 1, nearest: Callable[[], str] | None = None) -> None:
  """Raise ValueError if a mesh does not fit devices and slices.

  The sizes have to use all devices. Slices may not be cut along 'model' or through copies.

  Args:
    slices: number of equal parts of the devices that only a slow network connects.
    nearest: describes the nearest sizes that work, if more is known than these numbers.
  """
  describe = nearest or (lambda: _nearest_of(sizes, count, lambda other: _over_slices(other, slices) == ''))
  if math.prod(sizes) != count:
    given, needs = dict(zip(*reversed(axes_of(sizes)), strict=True)), math.prod(sizes)
    wrong = f'needs {needs} of {count} devices' if needs > count else f'does not use all {count} devices'
    raise ValueError(f'sharding.mesh={given} {wrong}. Nearest that fit: {describe()}')
  if why := _over_slices(sizes, slices):
    raise ValueError(
      f'sharding.mesh {sizes} cannot be placed on {slices} slices: {why}. Nearest that can: {describe()}'
    )


def _over_slices(sizes: Sizes, slices: int) -> str:
  """Explain why a mesh does not fit these slices, if so."""
  rows = sizes.replica * sizes.data
  if rows % slices:
    what = 'data' if sizes.replica == 1 else 'replica x data'
    return f'{what} is {rows}, and only data may cross slices: make it a multiple of {slices}'
  if sizes.replica % slices and slices % sizes.replica:
    return f'replica is {sizes.replica}, and a copy needs one slice or several whole slices: make it {slices}'
  return ''


def slices_of(devices: Sequence[Any]) -> int:
  """Count the TPU slices; all other devices count as one."""
  # a single slice may have no index
  return len({getattr(device, 'slice_index', 0) if device.platform == 'tpu' else 0 for device in devices})


def _place(sizes: Sizes, devices: Sequence[Any]) -> np.ndarray:
  """Arrange devices as [replica data, model], on whole network axes if possible."""
  rows, model, slices = sizes.replica * sizes.data, sizes.model, slices_of(devices)
  if why := _over_slices(sizes, slices):
    raise ValueError(why)

  # inside a slice by its network; between slices along the rows only
  def placed(split: bool) -> np.ndarray:
    if slices == 1:
      return mesh_utils.create_device_mesh((rows, model), devices, allow_split_physical_axes=split)
    return mesh_utils.create_hybrid_device_mesh(
      (rows // slices, model), (slices, 1), devices, allow_split_physical_axes=split
    )

  try:
    return placed(split=False)
  except NotImplementedError:
    return placed(split=True)


def _cannot_place(sizes: Sizes, devices: Sequence[Any], *, why: Exception) -> str:
  """Describe a mesh that does not fit, and the nearest that do."""
  reason = str(why) if isinstance(why, ValueError) else 'their coordinates do not fill a box'
  return (
    f'sharding.mesh {sizes} cannot be placed on {len(devices)} x {devices[0].device_kind} in '
    f'{slices_of(devices)} slice(s): {reason}. Nearest that can: {_nearest(sizes, devices)}'
  )


def _nearest(sizes: Sizes, devices: Sequence[Any]) -> str:
  """Describe the two nearest meshes by size of 'model' that fit."""

  def works(candidate: Sizes) -> bool:
    try:
      _place(candidate, devices)
    except (ValueError, NotImplementedError, AssertionError):
      return False
    return True

  return _nearest_of(sizes, len(devices), works)


def _nearest_of(sizes: Sizes, count: int, works: Callable[[Sizes], bool]) -> str:
  """Describe the two nearest meshes over `count` devices that work.

  They have the same number of copies if it divides the devices, else one.
  """
  replica = sizes.replica if count % sizes.replica == 0 else 1
  each = count // replica
  # 8 devices, model=3: candidates for model by ratio are 4, 2, 8, 1
  divisors = [size for size in range(1, each + 1) if each % size == 0]
  by_ratio = sorted(divisors, key=lambda size: abs(math.log(size / max(sizes.model, 1))))
  meshes = (Sizes(replica, each // size, size) for size in by_ratio)
  return ' or '.join(map(str, itertools.islice(filter(works, meshes), 2))) or 'none'


def _by_process(placed: np.ndarray) -> np.ndarray:
  """Reorder devices [data, model] by process along data.

  The devices of each process become adjacent. A process feeds the rows of its positions as one block
  (`feed.host_share`), but the order of the network may separate its chips.
  """
  # processes at positions 0 1 0 1 2 3 2 3   order of positions 0 2 1 3 4 6 5 7
  holders = [frozenset(device.process_index for device in devices) for devices in placed]
  first = {held: position for position, held in reversed(list(enumerate(holders)))}
  return placed[sorted(range(len(placed)), key=lambda position: first[holders[position]])]
