"""From the axis names on parameters and activations to a mesh of devices.

Models say what an axis of an array is (`AXES`); a run names one table of `RULES`, which says along which mesh axis, if
any, arrays are cut at that axis. Nothing else in the package mentions a mesh axis.
"""

import contextlib
import contextvars
import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from plm_jax.core.errors import suggest
from plm_jax.core.types import Array, PyTree

log = logging.getLogger(__name__)

AXES: dict[str, str] = {
  'batch': 'rows of a batch',
  'length': 'positions of a row',
  'vocab': 'rows of a vocabulary table',
  'positions': 'rows of a position table',
  'types': 'rows of a sentence-type table',
  'embed': 'hidden width',
  'embed_out': 'hidden width, as the output axis of a square matrix',
  'heads': 'attention heads',
  'head_dim': 'width of one head',
  'mlp': 'feed-forward width',
  'layers': 'stacked layers',
  'classes': 'labels of a task head',
}

MeshAxes = str | tuple[str, ...]  # one of a mesh, or several that an axis of an array is cut along, as if they were one
Rules = Sequence[tuple[str, MeshAxes | None]]
_FSDP_TENSOR: Rules = (('batch', 'data'), ('embed', 'data'), ('vocab', 'model'), ('heads', 'model'), ('mlp', 'model'))
RULES: dict[str, Rules] = {
  'data': (('batch', 'data'),),
  'fsdp': (('batch', 'data'), ('embed', 'data')),
  'tensor': (('batch', 'data'), ('vocab', 'model'), ('heads', 'model'), ('mlp', 'model')),
  'fsdp_tensor': _FSDP_TENSOR,
  # states between sublayers are cut as well, by position (Korthikanti et al. 2022); recurrences want them whole
  'fsdp_tensor_sequence': (*_FSDP_TENSOR, ('length', 'model')),
  'fsdp_any': (('batch', 'data'),),
}
# Tables that cut each parameter along 'data' at one of these axes: the first of which a device keeps WIDE, else the
# one of which it keeps most. 'fsdp' keeps a model whole whose hidden width the devices do not divide.
SPREAD: dict[str, Sequence[str]] = {'fsdp_any': ('embed', 'mlp', 'vocab', 'embed_out', 'heads')}
_ROWS = ('replica', 'data')  # the axes of a mesh that rows are cut along
WIDE = 128  # columns of a matrix unit: fewer make small products, and transfers of many small parts


class Layout(NamedTuple):
  """A mesh with the rules that apply on it.

  Attributes:
    mesh: of all devices.
    rules: axis -> mesh axis, or several; None, as an axis that is missing, is not cut.
    described: its devices are known by their description alone: programs can be compiled for them, and none can run.
    spread: axes of parameters of which one is cut along 'data' (`SPREAD`).
    apart: the mesh axis or axes along which each device computes for itself, inside `sum_over_devices`; no rule names
      them.
  """

  mesh: Mesh
  rules: dict[str, MeshAxes | None]
  described: bool = False
  spread: Sequence[str] = ()
  apart: MeshAxes | None = None


class Sizes(NamedTuple):
  """Of a mesh: devices along each of its axes.

  Attributes:
    replica: copies of the parameters, where 'data' cuts them. Only rows are cut along it, so that devices of two copies
      send each other nothing but sums of gradients: slices of TPUs, which only a slow network connects, are copies.
    data: along which rows are cut, and by some rules parameters.
    model: along which a product is cut.
  """

  replica: int
  data: int
  model: int

  def __str__(self) -> str:
    return ', '.join(f'{name}={size}' for name, size in self._asdict().items() if name != 'replica' or size > 1)


_LAYOUT: contextvars.ContextVar[Layout | None] = contextvars.ContextVar('layout', default=None)


@functools.cache
def _log_once(message: str) -> None:
  log.info(message)


# Meshes --------------------------------------------------------------------------------------------------------------


def make_mesh(shape: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
  """A mesh over all devices.

  Neighbours along 'model' are neighbours in the network of the chips. Slices, which only a slower network connects,
  are cut along 'replica' and 'data' alone. The places of a process along these are next to each other, since it feeds
  their rows. The mesh has an axis 'replica' where there is more than one.

  Args:
    shape: mesh axis ('replica', 'data', 'model') -> devices along it (`Sizes`); one may be -1, which takes the rest.
    devices: of one kind, or their descriptions; None takes those of this process's backend.

  Raises:
    ValueError: the sizes do not multiply to the number of devices, or do not fit how they are connected.
  """
  devices = list(jax.devices() if devices is None else devices)
  sizes = sizes_of(shape, len(devices))
  check_sizes(sizes, len(devices), nearest=lambda: _nearest(sizes, devices))
  try:
    placed = _place(sizes, devices)
  except (ValueError, NotImplementedError, AssertionError) as error:
    raise ValueError(_cannot_place(sizes, devices, why=error)) from error
  counts, names = axes_of(sizes)
  return Mesh(_by_process(placed).reshape(counts), names, axis_types=(AxisType.Auto,) * len(names))


def axes_of(sizes: Sizes) -> tuple[tuple[int, ...], tuple[str, ...]]:
  """The shape of a mesh and the names of its axes: without 'replica' where there is one copy."""
  kept = sizes._asdict() if sizes.replica > 1 else {'data': sizes.data, 'model': sizes.model}
  return tuple(kept.values()), tuple(kept)


def places(mesh: Mesh, axes: MeshAxes | None) -> int:
  """Devices along one axis of a mesh, or along several; 1 along none."""
  return math.prod(mesh.shape[name] for name in _names(axes))


def _names(axes: MeshAxes | None) -> set[str]:
  """The mesh axes that a rule names."""
  return set() if axes is None else {axes} if isinstance(axes, str) else set(axes)


def row_places(mesh: Mesh) -> int:
  """Into how many parts a mesh cuts the rows of a batch."""
  return places(mesh, tuple(name for name in _ROWS if name in mesh.shape))


def sizes_of(shape: Mapping[str, int], count: int) -> Sizes:
  """The sizes of a mesh over `count` devices; whether they use all of them is not asked.

  Raises:
    ValueError: no such axis, or no such size.
  """
  sizes = dict(shape)
  unknown = set(sizes) - set(Sizes._fields)
  if unknown:
    raise ValueError(f'sharding.mesh: unknown axis {sorted(unknown)}; axes are {", ".join(Sizes._fields)}')
  free = [name for name, size in sizes.items() if size == -1]
  fixed = math.prod(size for size in sizes.values() if size != -1)
  if len(free) > 1 or fixed < 1 or any(size < 1 and size != -1 for size in sizes.values()):
    raise ValueError(f'sharding.mesh={dict(shape)}: sizes are positive, and at most one is -1')
  if free:
    sizes[free[0]] = count // fixed
  return Sizes(**{name: sizes.get(name, 1) for name in Sizes._fields})


def check_sizes(sizes: Sizes, count: int, *, slices: int = 1, nearest: Callable[[], str] | None = None) -> None:
  """Raises ValueError where the sizes do not use `count` devices, or slices are cut along 'model' or through copies.

  Args:
    sizes: of `sizes_of`.
    count: of the devices.
    slices: equal parts of them, which only a slow network connects.
    nearest: says which sizes work, where more is known than these numbers.
  """
  found = nearest or (lambda: _nearest_of(sizes, count, lambda one: _over_slices(one, slices) == ''))
  if math.prod(sizes) != count:
    given = dict(zip(*reversed(axes_of(sizes)), strict=True))
    raise ValueError(
      f'sharding.mesh={given} does not use all {count} devices; set one size to -1. Nearest that do: {found()}'
    )
  if why := _over_slices(sizes, slices):
    raise ValueError(f'sharding.mesh {sizes} cannot be placed on {slices} slices: {why}. Nearest that can: {found()}')


def _over_slices(sizes: Sizes, slices: int) -> str:
  """Why a mesh cannot be placed over so many slices; empty where it can."""
  rows = sizes.replica * sizes.data
  if rows % slices:
    what = 'data' if sizes.replica == 1 else 'replica x data'
    return f'{what} is {rows}, and only data goes over slices: make it a multiple of {slices}'
  if sizes.replica % slices and slices % sizes.replica:
    return f'replica is {sizes.replica}, and a copy lies in one slice or in whole ones: make it {slices}'
  return ''


def slices_of(devices: Sequence[Any]) -> int:
  """Into how many slices, each with a fast network of its own, the chips of TPUs fall; 1 for all other devices."""
  # one slice alone may not number itself
  return len({getattr(device, 'slice_index', 0) if device.platform == 'tpu' else 0 for device in devices})


def _place(sizes: Sizes, devices: Sequence[Any]) -> np.ndarray:
  """Devices [replica data, model]; whole axes of the network along an axis of the mesh where possible, else parts."""
  rows, model, slices = sizes.replica * sizes.data, sizes.model, slices_of(devices)
  if why := _over_slices(sizes, slices):
    raise ValueError(why)

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
  """What a mesh was asked for, of what, and the sizes nearest to it that can be placed."""
  reason = str(why) if isinstance(why, ValueError) else 'their coordinates do not fill a box that it could cut'
  return (
    f'sharding.mesh {sizes} cannot be placed on {len(devices)} x {devices[0].device_kind} in '
    f'{slices_of(devices)} slice(s): {reason}. Nearest that can: {_nearest(sizes, devices)}'
  )


def _nearest(sizes: Sizes, devices: Sequence[Any]) -> str:
  """The two meshes that can be placed whose size of 'model' is the fewest times smaller or larger, in words."""

  def works(one: Sizes) -> bool:
    try:
      _place(one, devices)
    except (ValueError, NotImplementedError, AssertionError):
      return False
    return True

  return _nearest_of(sizes, len(devices), works)


def _nearest_of(sizes: Sizes, count: int, works: Callable[[Sizes], bool]) -> str:
  """As `_nearest`, of so many devices; with as many copies where these divide them, else with one."""
  replica = sizes.replica if count % sizes.replica == 0 else 1
  each = count // replica
  divisors = [size for size in range(1, each + 1) if each % size == 0]
  by_ratio = sorted(divisors, key=lambda size: abs(math.log(size / max(sizes.model, 1))))
  meshes = (Sizes(replica, each // size, size) for size in by_ratio)
  return ' or '.join(map(str, itertools.islice(filter(works, meshes), 2))) or 'none'


def _by_process(placed: np.ndarray) -> np.ndarray:
  """Devices [data, model] with the places along data in an order in which those of each process are together.

  A process feeds the rows of its places as one block (`feed.host_share`), and the network's order has its chips apart.
  """
  # processes at the places 0 1 0 1 2 3 2 3   order of places 0 2 1 3 4 6 5 7
  holders = [frozenset(device.process_index for device in there) for there in placed]
  first = {held: place for place, held in reversed(list(enumerate(holders)))}
  return placed[sorted(range(len(placed)), key=lambda place: first[holders[place]])]


# Where an axis is cut ------------------------------------------------------------------------------------------------


def make_layout(mesh: Mesh, rules: str | Rules, *, described: bool = False) -> Layout:
  """A mesh with rules that fit it.

  Args:
    mesh: of all devices.
    rules: a name of `RULES`, or pairs (axis, mesh axis or None).
    described: see `Layout`.

  Raises:
    ValueError: no such table, axis or mesh axis.
  """
  spread: Sequence[str] = ()
  if isinstance(rules, str):
    spread = SPREAD.get(rules, ())
    if rules not in RULES:
      raise ValueError(
        f'sharding.rules: there is no table {rules!r}.{suggest(rules, RULES)} Tables: {", ".join(RULES)}'
      )
    rules = RULES[rules]
  table: dict[str, MeshAxes | None] = {str(axis): mesh_axis for axis, mesh_axis in rules}
  for axis, mesh_axis in table.items():
    if axis not in AXES:
      raise ValueError(f'sharding.rules: unknown axis {axis!r}; axes are {", ".join(AXES)}')
    if mesh_axis is not None and mesh_axis not in mesh.shape:
      raise ValueError(f'sharding.rules: {axis!r} -> unknown mesh axis {mesh_axis!r}; the mesh has {list(mesh.shape)}')
  idle = {str(name) for name in table.values() if name is not None and places(mesh, name) == 1}
  if 'replica' in mesh.shape and table.get('batch') == 'data':
    table['batch'] = _ROWS
  if mesh.size > 1 and idle:
    _log_once(
      f'sharding.rules cut nothing along {", ".join(sorted(idle))}, which has size 1 in mesh {dict(mesh.shape)}'
    )
  return Layout(mesh, table, described, spread)


def spec(axes: Sequence[str | None], shape: Sequence[int], layout: Layout) -> PartitionSpec:
  """The mesh axis that each axis of one array is cut along.

  An axis is replicated if its mesh axis is taken by an earlier axis of the array, or does not divide its size.

  Args:
    axes: names from `AXES`, None for an axis that is never cut.
    shape: of the array.
    layout: mesh and rules.
  """
  if layout.spread and 'batch' not in axes:
    return _spread(axes, shape, layout)
  taken: set[str] = set()
  out: list[MeshAxes | None] = []
  for axis, size in zip(axes, shape, strict=True):
    if axis is not None and axis not in AXES:
      raise ValueError(f'unknown axis {axis!r}.{suggest(axis, AXES)} See sharding.AXES')
    mesh_axis = layout.rules.get(axis) if axis is not None else None
    if mesh_axis is None or places(layout.mesh, mesh_axis) == 1:
      out.append(None)
    elif taken & _names(mesh_axis):
      if 'batch' not in axes:  # states are cut by rows and by positions on purpose
        _log_once(f'axes {tuple(axes)}: {axis!r} is replicated, mesh axis {mesh_axis!r} is already used by this array')
      out.append(None)
    elif size == 1:  # a shape to make parameters with, a token that is generated, the one head that all others share
      out.append(None)
    elif size % (parts := places(layout.mesh, mesh_axis)):
      cure = ' (model.overrides.vocab_multiple pads a vocabulary)' if axis == 'vocab' else ''
      _log_once(
        f'axis {axis!r} of size {size} is replicated: {parts} devices of mesh axis {mesh_axis!r} do not divide it; '
        f'{-(-size // parts) * parts} would{cure}'
      )
      out.append(None)
    else:
      taken |= _names(mesh_axis)
      out.append(mesh_axis)
  return PartitionSpec(*out)


def _spread(axes: Sequence[str | None], shape: Sequence[int], layout: Layout) -> PartitionSpec:
  """A parameter cut along 'data' at one axis; whole where the devices divide none of them."""
  parts = layout.mesh.shape['data']
  sizes = {axis: size for axis, size in zip(axes, shape, strict=True) if axis in layout.spread}
  fitting = [axis for axis in layout.spread if axis in sizes and sizes[axis] % parts == 0]
  if parts == 1 or not fitting:
    if parts > 1 and sizes:
      _log_once(f'axes {tuple(axes)} of sizes {tuple(shape)} are replicated: {parts} devices divide none of them')
    return PartitionSpec(*(None,) * len(axes))
  # over 128 devices: embed 1600 does not fit; mlp 6400 keeps 50, heads 25 does not fit   -> mlp
  wide = [axis for axis in fitting if sizes[axis] // parts >= WIDE]
  chosen = wide[0] if wide else max(fitting, key=lambda axis: sizes[axis])
  place = list(axes).index(chosen)
  return PartitionSpec(*('data' if i == place else None for i in range(len(axes))))


def shardings(abstract: PyTree, *, layout: Layout) -> PyTree:
  """The shardings of a tree of shapes.

  Args:
    abstract: tree of `jax.ShapeDtypeStruct`, boxed with axis names (`nn.LogicallyPartitioned`) where a leaf has them;
      a leaf without names is replicated, and an empty box stays empty.

  Returns:
    The unboxed tree with a `NamedSharding` for each leaf.
  """

  def place(leaf):
    if isinstance(leaf, nn.LogicallyPartitioned):
      if leaf.value is None:  # the box of a frozen parameter, which has no optimiser state
        return None
      return NamedSharding(layout.mesh, spec(leaf.names, leaf.value.shape, layout))
    return NamedSharding(layout.mesh, PartitionSpec())

  return jax.tree.map(place, abstract, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def batch_sharding(layout: Layout) -> NamedSharding:
  """The sharding of a batch: cut by rows along the mesh axes of 'batch'."""
  return NamedSharding(layout.mesh, PartitionSpec(layout.rules.get('batch')))


# States and products under a layout ----------------------------------------------------------------------------------


@contextlib.contextmanager
def use(layout: Layout) -> Iterator[None]:
  """While the body runs, `constrain`, `on_each_device` and `device` use `layout`."""
  token = _LAYOUT.set(layout)
  try:
    # what runs outside of a compiled function would go to the devices of the mesh, and described ones run nothing
    with contextlib.nullcontext() if layout.described else jax.set_mesh(layout.mesh):
      yield
  finally:
    _LAYOUT.reset(token)


def device() -> Any:
  """A device of those that are computed for: of the layout in `use`, else of this process's backend."""
  layout = _LAYOUT.get()
  mesh: Any = None if layout is None else layout.mesh
  if mesh is None or isinstance(mesh, AbstractMesh):  # sizes to count with, of no devices
    return jax.devices()[0]
  return mesh.devices.flat[0]


def constrain(x: Array, *axes: str | None) -> Array:
  """Cuts an activation by the rules for its axes; outside `use`, or on one device, returns it as it is."""
  layout = _LAYOUT.get()
  mesh = _shared(layout)
  if layout is None or mesh is None:
    return x
  return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec(axes, x.shape, layout)))


def gather_length(x: Array, outputs: Sequence[str | None], sizes: Sequence[int]) -> Array:
  """States [b, l, d] with all positions on each device, where a kernel is cut along the mesh axis of l that they meet.

  One of both has to be gathered, and the compiler would take the kernels of attention. The gradient is cut again.

  Args:
    x: [b, l, d]; any other shape is returned as it is.
    outputs: axes of the kernel that are not contracted.
    sizes: of these axes.
  """
  return _turned(x, outputs, sizes, whole=True)


def scatter_length(x: Array, inputs: Sequence[str | None], sizes: Sequence[int]) -> Array:
  """The inverse of `gather_length` for a product, whose contracted axes are `inputs`; its gradient is gathered."""
  return _turned(x, inputs, sizes, whole=False)


def _turned(x: Array, axes: Sequence[str | None], sizes: Sequence[int], *, whole: bool) -> Array:
  """x [b, l, d] with all positions or its share of them, its gradient the other way round."""
  layout = _LAYOUT.get()
  mesh, along = _shared(layout), None if layout is None else layout.rules.get('length')
  if layout is None or mesh is None or along is None or x.ndim != 3 or along not in spec(axes, sizes, layout):
    return x
  gathered = NamedSharding(mesh, spec(('batch', None, None), x.shape, layout))
  cut = NamedSharding(mesh, spec(('batch', 'length', None), x.shape, layout))
  return _placed(x, gathered, cut) if whole else _placed(x, cut, gathered)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _placed(x: Array, place: NamedSharding, back: NamedSharding) -> Array:
  """x where `place` says, its gradient where `back` says."""
  del back
  return jax.lax.with_sharding_constraint(x, place)


_placed.defvjp(
  lambda x, place, back: (_placed(x, place, back), None),
  lambda place, back, _, gradient: (jax.lax.with_sharding_constraint(gradient, back),),
)


def _shared(layout: Layout | None) -> Any:
  """The mesh over which the compiler divides an array here; None where an array is one device's alone."""
  if layout is None or layout.mesh.size == 1:
    return None
  if layout.apart is None:
    return layout.mesh
  alone = places(layout.mesh, layout.apart) == layout.mesh.size
  return None if alone else jax.sharding.get_abstract_mesh()


def on_each_device(
  function: Callable[..., Array], *arrays: Array, axes: Sequence[Sequence[str | None]], whole: Sequence[str]
) -> Array:
  """`function(*arrays)` where the compiler cannot divide the work itself: each device computes its own part.

  Args:
    function: of arrays to one array with the axes of the first of them.
    arrays: any number.
    axes: of each array.
    whole: names in `axes` at which the function needs its arrays uncut.
  """
  layout = _LAYOUT.get()
  mesh = _shared(layout)
  if layout is None or mesh is None:
    return function(*arrays)
  specs = tuple(
    spec([None if axis in whole else axis for axis in names], array.shape, layout)
    for names, array in zip(axes, arrays, strict=True)
  )
  names = set(mesh.axis_names) - _names(layout.apart)
  cut = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs[0], axis_names=names, check_vma=False)
  return cut(*arrays)


# Each device for its own rows ----------------------------------------------------------------------------------------


def row_parts(rows: int) -> int:
  """Into how many equal parts the devices cut so many rows; 1 where they cannot, and outside `use`."""
  layout = _LAYOUT.get()
  parts = 1 if layout is None else places(layout.mesh, layout.rules.get('batch'))
  return 1 if rows % parts else parts


def cut_at(place: int, shape: Sequence[int], axes: Sequence[str | None]) -> int:
  """Into how many parts the devices cut an array at one of its axes; 1 outside `use`.

  Args:
    place: of the axis.
    shape: of the array.
    axes: of the array, as for `spec`.
  """
  layout = _LAYOUT.get()
  if layout is None:
    return 1
  return places(layout.mesh, spec(axes, shape, layout)[place])


def each_row(function: Callable[..., PyTree], *arrays: PyTree) -> PyTree:
  """`jax.vmap(function)(*arrays)`, on each device for its own rows: a loop in it waits for the rows of no other device.

  Args:
    function: of rows without their leading axis.
    arrays: [b, ...] each.
  """
  layout = _LAYOUT.get()
  run = jax.vmap(function)
  if layout is None or row_parts(jax.tree.leaves(arrays)[0].shape[0]) == 1:
    return run(*arrays)
  cut = PartitionSpec(layout.rules['batch'])
  return jax.shard_map(run, mesh=layout.mesh, in_specs=cut, out_specs=cut, check_vma=False)(*arrays)


def map_rows(
  loop: Callable[[Callable[[PyTree], PyTree], PyTree], PyTree],
  function: Callable[[PyTree], PyTree],
  arrays: PyTree,
  *,
  rows: int,
) -> PyTree:
  """`loop(function, arrays)` where no row needs another: each device loops over its own rows.

  What `function` reads beside the rows, such as a table, is gathered once and not in each round, and so is its gradient
  summed.

  Args:
    loop: (function, arrays [b, ...] each) -> arrays that lead with b.
    function: arrays that lead with `rows` -> likewise.
    arrays: [b, ...] each.
    rows: that `loop` hands to `function`.
  """
  layout = _LAYOUT.get()
  if layout is None or row_parts(jax.tree.leaves(arrays)[0].shape[0]) == 1:
    return loop(function, arrays)
  axis = layout.rules['batch']
  part = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), arrays)
  # as they are inside, where `constrain` has nothing left to say
  types = dict.fromkeys(_names(axis), AxisType.Manual)
  token = _LAYOUT.set(None)
  try:
    with jax.sharding.use_abstract_mesh(layout.mesh.abstract_mesh.update_axis_types(types)):
      closed, beside = jax.closure_convert(function, part)
  finally:
    _LAYOUT.reset(token)
  whole, cut = PartitionSpec(), PartitionSpec(axis)
  own = jax.shard_map(
    lambda arrays, beside: loop(lambda part: closed(part, *beside), arrays),
    mesh=layout.mesh,
    in_specs=(cut, whole),
    out_specs=cut,
    axis_names=_names(axis),
    check_vma=False,
  )
  return own(arrays, beside)


def sum_over_devices(
  function: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], rows: PyTree, whole: PyTree, *, parts: int
) -> tuple[PyTree, PyTree]:
  """`function(rows, whole)`, whose sums over rows are added up between devices once, at its end.

  Left to the compiler, a sum over the rows of a batch is added up between devices as soon as it is made: gradients in
  each round of a loop over micro-batches. Here each device runs the function for its own rows. That takes whole
  parameters on each device, and sums as large. Rules that cut parameters along a mesh axis of the rows are there to
  hold neither: under them, and where the rows do not divide, the function runs as it stands.

  Args:
    function: (rows, whole) -> (sums, kept): sums over the rows, which are added up; arrays that lead with them.
    rows: arrays [b, ...] each.
    whole: arrays that every device needs all of, those along other mesh axes left as they are cut.
    parts: into how many equal parts the function cuts its rows.
  """
  layout = _LAYOUT.get()
  axis = None if layout is None else layout.rules.get('batch')
  if layout is None or axis is None or not _adds_up_once(layout, jax.tree.leaves(rows)[0].shape[0], parts):
    return function(rows, whole)
  rules = {name: mesh_axis for name, mesh_axis in layout.rules.items() if mesh_axis != axis}
  inside = layout._replace(rules=rules, apart=axis)

  def own(rows: PyTree, whole: PyTree) -> tuple[PyTree, PyTree]:
    token = _LAYOUT.set(inside)
    try:
      sums, kept = function(rows, whole)
    finally:
      _LAYOUT.reset(token)
    return jax.lax.psum(sums, axis), kept

  alone = places(layout.mesh, axis) == layout.mesh.size
  each, every = PartitionSpec(axis), PartitionSpec()
  run = jax.shard_map(
    own,
    mesh=layout.mesh,
    in_specs=(each, every),
    out_specs=(every, each),
    axis_names=set(layout.mesh.axis_names) if alone else _names(axis),
    check_vma=False,
  )
  return run(rows, whole)


def _adds_up_once(layout: Layout, rows: int, parts: int) -> bool:
  """Whether each device along the axes of the rows has all parameters, and as many rows in each part."""
  axis = layout.rules['batch']
  cut = [name for name, mesh_axis in layout.rules.items() if name != 'batch' and _names(mesh_axis) & _names(axis)]
  devices = places(layout.mesh, axis)
  return devices > 1 and not cut and not layout.spread and rows % (devices * parts) == 0


def apart() -> tuple[int, Array | int]:
  """(devices that compute for themselves, each for its own rows; which of them this is): (1, 0) where none does."""
  layout = _LAYOUT.get()
  if layout is None or layout.apart is None:
    return 1, 0
  return places(layout.mesh, layout.apart), jax.lax.axis_index(layout.apart)
