"""From the axis names on parameters and activations to a mesh of devices.

Models say what an axis of an array is (`AXES`); a run names one table of `RULES`, which says along which mesh axis, if
any, arrays are cut at that axis. Nothing else in the package mentions a mesh axis.
"""

import contextlib
import contextvars
import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from plm_jax.errors import suggest
from plm_jax.types import Array, PyTree

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

Rules = Sequence[tuple[str, str | None]]
RULES: dict[str, Rules] = {
  'data': (('batch', 'data'),),
  'fsdp': (('batch', 'data'), ('embed', 'data')),
  'tensor': (('batch', 'data'), ('vocab', 'model'), ('heads', 'model'), ('mlp', 'model')),
  'fsdp_tensor': (('batch', 'data'), ('embed', 'data'), ('vocab', 'model'), ('heads', 'model'), ('mlp', 'model')),
}


class Layout(NamedTuple):
  """A mesh with the rules that apply on it."""

  mesh: Mesh
  rules: dict[str, str | None]


_LAYOUT: contextvars.ContextVar[Layout | None] = contextvars.ContextVar('layout', default=None)


@functools.cache
def _log_once(message: str) -> None:
  log.info(message)


def make_mesh(shape: Mapping[str, int]) -> Mesh:
  """A mesh over all devices.

  Args:
    shape: mesh axis ('data', 'model') -> number of devices along it; one may be -1, which takes the rest.

  Raises:
    ValueError: the sizes do not multiply to the number of devices.
  """
  sizes = dict(shape)
  unknown = set(sizes) - {'data', 'model'}
  if unknown:
    raise ValueError(f'sharding.mesh: unknown axis {sorted(unknown)}; axes are data and model')
  devices = jax.device_count()
  free = [name for name, size in sizes.items() if size == -1]
  fixed = math.prod(size for size in sizes.values() if size != -1)
  if len(free) > 1 or fixed < 1 or any(size < 1 and size != -1 for size in sizes.values()):
    raise ValueError(f'sharding.mesh={dict(shape)}: sizes are positive, and at most one is -1')
  if free:
    sizes[free[0]] = devices // fixed
  if math.prod(sizes.values()) != devices:
    raise ValueError(f'sharding.mesh={dict(shape)} does not use all {devices} devices; set one size to -1')
  sizes = {'data': sizes.get('data', 1), 'model': sizes.get('model', 1)}
  return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def make_layout(mesh: Mesh, rules: str | Rules) -> Layout:
  """A mesh with rules that fit it.

  Args:
    mesh: of all devices.
    rules: a name of `RULES`, or pairs (axis, mesh axis or None).

  Raises:
    ValueError: no such table, axis or mesh axis.
  """
  if isinstance(rules, str):
    if rules not in RULES:
      raise ValueError(
        f'sharding.rules: there is no table {rules!r}.{suggest(rules, RULES)} Tables: {", ".join(RULES)}'
      )
    rules = RULES[rules]
  table = {str(axis): mesh_axis for axis, mesh_axis in rules}
  for axis, mesh_axis in table.items():
    if axis not in AXES:
      raise ValueError(f'sharding.rules: unknown axis {axis!r}; axes are {", ".join(AXES)}')
    if mesh_axis is not None and mesh_axis not in mesh.shape:
      raise ValueError(f'sharding.rules: {axis!r} -> unknown mesh axis {mesh_axis!r}; the mesh has {list(mesh.shape)}')
  idle = {name for name in table.values() if name is not None and mesh.shape[name] == 1}
  if mesh.size > 1 and idle:
    _log_once(
      f'sharding.rules cut nothing along {", ".join(sorted(idle))}, which has size 1 in mesh {dict(mesh.shape)}'
    )
  return Layout(mesh, table)


def spec(axes: Sequence[str | None], shape: Sequence[int], layout: Layout) -> PartitionSpec:
  """The mesh axis that each axis of one array is cut along.

  An axis is replicated if its mesh axis is taken by an earlier axis of the array, or does not divide its size.

  Args:
    axes: names from `AXES`, None for an axis that is never cut.
    shape: of the array.
    layout: mesh and rules.
  """
  taken: set[str] = set()
  out: list[str | None] = []
  for axis, size in zip(axes, shape, strict=True):
    if axis is not None and axis not in AXES:
      raise ValueError(f'unknown axis {axis!r}.{suggest(axis, AXES)} See sharding.AXES')
    mesh_axis = layout.rules.get(axis) if axis is not None else None
    if mesh_axis is None or layout.mesh.shape[mesh_axis] == 1:
      out.append(None)
    elif mesh_axis in taken:
      _log_once(f'axes {tuple(axes)}: {axis!r} is replicated, mesh axis {mesh_axis!r} is already used by this array')
      out.append(None)
    elif axis == 'batch' and size == 1:  # a shape to make parameters with
      out.append(None)
    elif size % (parts := layout.mesh.shape[mesh_axis]):
      cure = ' (model.overrides.vocab_multiple pads a vocabulary)' if axis == 'vocab' else ''
      _log_once(
        f'axis {axis!r} of size {size} is replicated: {parts} devices of mesh axis {mesh_axis!r} do not divide it; '
        f'{-(-size // parts) * parts} would{cure}'
      )
      out.append(None)
    else:
      taken.add(mesh_axis)
      out.append(mesh_axis)
  return PartitionSpec(*out)


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
  """The sharding of a batch: cut by rows along the mesh axis of 'batch'."""
  return NamedSharding(layout.mesh, PartitionSpec(layout.rules.get('batch')))


@contextlib.contextmanager
def use(layout: Layout) -> Iterator[None]:
  """While the body runs, `constrain` and `on_each_device` use `layout`."""
  token = _LAYOUT.set(layout)
  try:
    with jax.set_mesh(layout.mesh):
      yield
  finally:
    _LAYOUT.reset(token)


def constrain(x: Array, *axes: str | None) -> Array:
  """Cuts an activation by the rules for its axes; outside `use`, or on one device, returns it as it is."""
  layout = _LAYOUT.get()
  if layout is None or layout.mesh.size == 1:
    return x
  return jax.lax.with_sharding_constraint(x, NamedSharding(layout.mesh, spec(axes, x.shape, layout)))


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
  if layout is None or layout.mesh.size == 1:
    return function(*arrays)
  specs = tuple(
    spec([None if axis in whole else axis for axis in names], array.shape, layout)
    for names, array in zip(axes, arrays, strict=True)
  )
  cut = jax.shard_map(function, mesh=layout.mesh, in_specs=specs, out_specs=specs[0], check_vma=False)
  return cut(*arrays)
