"""Layouts: how the axis names of arrays become shardings over a mesh, and the layout in use."""

import contextlib
import contextvars
import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from plm_jax.core.errors import suggest
from plm_jax.core.meshes import MeshAxes, mesh_names, places
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

Rules = Sequence[tuple[str, MeshAxes | None]]
WIDE = 128  # columns of a matrix unit: with fewer, products and transfers become small


class Layout(NamedTuple):
  """A mesh with the rules that apply on it."""

  mesh: Mesh
  rules: dict[str, MeshAxes | None]  # axis -> mesh axis, or several. An axis with None, or without a rule, is not cut
  described: bool = False  # the devices are known by description only. Programs can be compiled for them but not run
  spread: Sequence[str] = ()  # axes of parameters; one of them is cut along 'data' (`sharding.SPREAD`)
  # the mesh axis or axes along which each device computes separately, inside `sum_over_devices`; no rule names them
  apart: MeshAxes | None = None


# the layout in use; None outside of `use`
CURRENT: contextvars.ContextVar[Layout | None] = contextvars.ContextVar('layout', default=None)


@contextlib.contextmanager
def use(layout: Layout) -> Iterator[None]:
  """Make `layout` the current one, for `constrain` and others, in the body."""
  token = CURRENT.set(layout)
  try:
    # code outside of a compiled function would run on the devices of the mesh, and described devices run nothing
    with contextlib.nullcontext() if layout.described else jax.set_mesh(layout.mesh):
      yield
  finally:
    CURRENT.reset(token)


@functools.cache
def log_once(message: str) -> None:
  """Log a message about sharding the first time it occurs."""
  log.info(message)


def spec(axes: Sequence[str | None], shape: Sequence[int], layout: Layout) -> PartitionSpec:
  """Compute the mesh axis that cuts each axis of one array.

  An axis is replicated if an earlier axis of the array uses its mesh axis, or if its mesh axis does not divide its
  size. `axes` are names from `AXES`, None for an axis that is never cut.
  """
  if layout.spread and 'batch' not in axes:
    return _spread(axes, shape, layout)
  # over a mesh data=2 x model=2: vocab 50257 x embed 8 -> (None, 'data'), since 2 does not divide 50257
  taken: set[str] = set()
  out: list[MeshAxes | None] = []
  for axis, size in zip(axes, shape, strict=True):
    if axis is not None and axis not in AXES:
      raise ValueError(f'unknown axis {axis!r}.{suggest(axis, AXES)} Axes: {", ".join(AXES)}')
    mesh_axis = layout.rules.get(axis) if axis is not None else None
    if mesh_axis is None or places(layout.mesh, mesh_axis) == 1:
      out.append(None)
    elif taken & mesh_names(mesh_axis):
      # states are cut by rows and by positions on purpose, so only parameters are logged
      if 'batch' not in axes:
        log_once(f'axes {tuple(axes)}: {axis!r} is replicated, mesh axis {mesh_axis!r} is already used by this array')
      out.append(None)
    elif size == 1:
      # a shape that only creates parameters, a generated token, or one head that all others share
      out.append(None)
    elif size % (parts := places(layout.mesh, mesh_axis)):
      fix = ' (model.overrides.vocab_multiple pads a vocabulary)' if axis == 'vocab' else ''
      log_once(
        f'axis {axis!r} of size {size} is replicated: {parts} devices of mesh axis {mesh_axis!r} do not divide it; '
        f'{-(-size // parts) * parts} would{fix}'
      )
      out.append(None)
    else:
      taken |= mesh_names(mesh_axis)
      out.append(mesh_axis)
  return PartitionSpec(*out)


def _spread(axes: Sequence[str | None], shape: Sequence[int], layout: Layout) -> PartitionSpec:
  """Cut a parameter along 'data' at one axis, if any fits."""
  # 1. axes that the devices divide
  parts = layout.mesh.shape['data']
  sizes = {axis: size for axis, size in zip(axes, shape, strict=True) if axis in layout.spread}
  fitting = [axis for axis in layout.spread if axis in sizes and sizes[axis] % parts == 0]
  if parts == 1 or not fitting:
    if parts > 1 and sizes:
      log_once(f'axes {tuple(axes)} of sizes {tuple(shape)} are replicated: {parts} devices divide none of them')
    return PartitionSpec(*(None,) * len(axes))
  # 2. the first axis with `WIDE` columns left per device, else the largest. Over 128 devices: embed 1600 does not fit,
  #    mlp 6400 leaves 50, heads 25 does not fit   -> mlp
  wide = [axis for axis in fitting if sizes[axis] // parts >= WIDE]
  chosen = wide[0] if wide else max(fitting, key=lambda axis: sizes[axis])
  cut = list(axes).index(chosen)
  return PartitionSpec(*('data' if i == cut else None for i in range(len(axes))))


def shardings(abstract: PyTree, *, layout: Layout) -> PyTree:
  """Compute the sharding of each leaf of a tree of shapes.

  Args:
    abstract: tree of `jax.ShapeDtypeStruct`, boxed with axis names (`nn.LogicallyPartitioned`) if a leaf has them. A
      leaf without names is replicated. An empty box stays empty.

  Returns:
    The unboxed tree with a `NamedSharding` for each leaf.
  """

  def sharding_of(leaf):
    if isinstance(leaf, nn.LogicallyPartitioned):
      # the box of a frozen parameter, which has no optimiser state
      if leaf.value is None:
        return None
      return NamedSharding(layout.mesh, spec(leaf.names, leaf.value.shape, layout))
    return NamedSharding(layout.mesh, PartitionSpec())

  return jax.tree.map(sharding_of, abstract, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def batch_sharding(layout: Layout) -> NamedSharding:
  """Return the sharding of a batch: cut by rows only."""
  return NamedSharding(layout.mesh, PartitionSpec(layout.rules.get('batch')))


def device() -> Any:
  """Return a device of the current layout, or of this process."""
  layout = CURRENT.get()
  mesh: Any = None if layout is None else layout.mesh
  # an abstract mesh has sizes but no devices
  if mesh is None or isinstance(mesh, AbstractMesh):
    return jax.devices()[0]
  return mesh.devices.flat[0]


def one_cpu() -> bool:
  """Check for a single CPU, where any reshape is free."""
  return device().platform == 'cpu' and shared_mesh(CURRENT.get()) is None


def local_device() -> Any:
  """Return the first device of this process."""
  return jax.local_devices()[0]


def shared_mesh(layout: Layout | None) -> Any:
  """Return the mesh that the compiler divides arrays over, if any."""
  if layout is None or layout.mesh.size == 1:
    return None
  if layout.apart is None:
    return layout.mesh
  alone = places(layout.mesh, layout.apart) == layout.mesh.size
  return None if alone else jax.sharding.get_abstract_mesh()


def constrain(x: Array, *axes: str | None) -> Array:
  """Shard an activation by its axes, inside `use` and over several devices."""
  layout = CURRENT.get()
  mesh = shared_mesh(layout)
  if layout is None or mesh is None:
    return x
  return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec(axes, x.shape, layout)))


def rows_of_table(x: Array, axes: Sequence[str | None], table: Sequence[int]) -> Array:
  """Cut vectors read from a table by rows of the batch.

  'data' may cut the columns of the table, and 'replica' and 'data' the rows. The compiler knows no direct way between
  the two and would replicate the vectors, so 'replica' cuts the rows first. x is [b, l, d], any other shape is returned
  unchanged. `axes` and `table` are names and sizes of the axes of the table.
  """
  layout = CURRENT.get()
  mesh = shared_mesh(layout)
  if layout is None or mesh is None or x.ndim != 3 or 'replica' not in mesh_names(layout.rules.get('batch')):
    return x
  rows, columns = spec(('batch', None, None), x.shape, layout), spec(axes, table, layout)[-1]
  if columns != 'data' or rows[0] is None:
    return x
  x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec('replica', None, columns)))
  return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, rows))


def gather_length(x: Array, outputs: Sequence[str | None], sizes: Sequence[int]) -> Array:
  """Gather all positions of states before a product with a cut kernel.

  States and kernel may be cut along the same mesh axis, so one of them has to be gathered. The compiler would choose
  the kernel in attention; this chooses the states. The gradient is cut again. x is [b, l, d], any other shape is
  returned unchanged. `outputs` are the axes of the kernel that are not contracted, of these `sizes`.
  """
  return _reshard_length(x, outputs, sizes, gather=True)


def scatter_length(x: Array, inputs: Sequence[str | None], sizes: Sequence[int]) -> Array:
  """Cut a product by positions, inverse to `gather_length`; `inputs` are contracted axes."""
  return _reshard_length(x, inputs, sizes, gather=False)


def _reshard_length(x: Array, axes: Sequence[str | None], sizes: Sequence[int], *, gather: bool) -> Array:
  """Gather or cut positions of x; its gradient the other way."""
  layout = CURRENT.get()
  mesh, along = shared_mesh(layout), None if layout is None else layout.rules.get('length')
  if layout is None or mesh is None or along is None or x.ndim != 3 or along not in spec(axes, sizes, layout):
    return x
  # rows on 'data' in both; positions whole, or cut along the mesh axis of 'length'
  gathered = NamedSharding(mesh, spec(('batch', None, None), x.shape, layout))
  cut = NamedSharding(mesh, spec(('batch', 'length', None), x.shape, layout))
  return _with_shardings(x, gathered, cut) if gather else _with_shardings(x, cut, gathered)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _with_shardings(x: Array, forward: NamedSharding, backward: NamedSharding) -> Array:
  """Shard x by `forward` and its gradient by `backward`."""
  return jax.lax.with_sharding_constraint(x, forward)


_with_shardings.defvjp(
  lambda x, forward, backward: (_with_shardings(x, forward, backward), None),
  lambda forward, backward, _, gradient: (jax.lax.with_sharding_constraint(gradient, backward),),
)
