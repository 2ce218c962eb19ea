"""Computations that each device does for its own part of the arrays, by `shard_map` over the current layout."""

from collections.abc import Callable, Sequence

import jax
from jax.sharding import AxisType, PartitionSpec

from plm_jax.core.layouts import CURRENT, Layout, shared_mesh, spec
from plm_jax.core.meshes import mesh_names, places
from plm_jax.core.types import Array, PyTree


def on_each_device(
  function: Callable[..., Array], *arrays: Array, axes: Sequence[Sequence[str | None]], whole: Sequence[str]
) -> Array:
  """Compute `function(*arrays)`, each device for its own part.

  This is for work that the compiler cannot divide.

  Args:
    function: of arrays to one array with the axes of the first of them.
    axes: of each array.
    whole: names in `axes` at which the function needs uncut arrays.
  """
  layout = CURRENT.get()
  mesh = shared_mesh(layout)
  if layout is None or mesh is None:
    return function(*arrays)
  # cut each array by its axes, except where the function needs it whole
  specs = tuple(
    spec([None if axis in whole else axis for axis in names], array.shape, layout)
    for names, array in zip(axes, arrays, strict=True)
  )
  manual = set(mesh.axis_names) - mesh_names(layout.apart)
  cut = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs[0], axis_names=manual, check_vma=False)
  return cut(*arrays)


def row_parts(rows: int) -> int:
  """Count the equal parts into which devices cut rows, else 1."""
  layout = CURRENT.get()
  parts = 1 if layout is None else places(layout.mesh, layout.rules.get('batch'))
  return 1 if rows % parts else parts


def cut_at(index: int, shape: Sequence[int], axes: Sequence[str | None]) -> int:
  """Count the parts into which devices cut axis `index`; 1 outside `use`."""
  layout = CURRENT.get()
  if layout is None:
    return 1
  return places(layout.mesh, spec(axes, shape, layout)[index])


def each_row(function: Callable[..., PyTree], *arrays: PyTree) -> PyTree:
  """Compute `jax.vmap(function)(*arrays)` of arrays [b, ...], each device for its own rows.

  A loop inside the function does not wait for the rows of another device.
  """
  layout = CURRENT.get()
  run = jax.vmap(function)
  if layout is None or row_parts(jax.tree.leaves(arrays)[0].shape[0]) == 1:
    return run(*arrays)
  # each device vmaps over its own rows
  cut = PartitionSpec(layout.rules['batch'])
  return jax.shard_map(run, mesh=layout.mesh, in_specs=cut, out_specs=cut, check_vma=False)(*arrays)


def map_rows(
  loop: Callable[[Callable[[PyTree], PyTree], PyTree], PyTree],
  function: Callable[[PyTree], PyTree],
  arrays: PyTree,
  *,
  rows: int,
) -> PyTree:
  """Compute `loop(function, arrays)`, each device for its own rows.

  No row may need another. Arrays that `function` closes over, such as a table, are gathered once instead of in each
  round. Their gradient is summed once as well.

  Args:
    loop: (function, arrays [b, ...] each) -> arrays that lead with b.
    function: arrays that lead with `rows` -> likewise.
    arrays: [b, ...] each.
    rows: number of rows that `loop` passes to `function`.
  """
  layout = CURRENT.get()
  if layout is None or row_parts(jax.tree.leaves(arrays)[0].shape[0]) == 1:
    return loop(function, arrays)
  axis = layout.rules['batch']
  part = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), arrays)
  # 1. turn the closed-over arrays into arguments. closure_convert traces outside of shard_map, so mark these axes
  #    Manual. Unset the layout as well, because `constrain` must not cut inside of shard_map.
  manual = dict.fromkeys(mesh_names(axis), AxisType.Manual)
  token = CURRENT.set(None)
  try:
    with jax.sharding.use_abstract_mesh(layout.mesh.abstract_mesh.update_axis_types(manual)):
      converted, closed_over = jax.closure_convert(function, part)
  finally:
    CURRENT.reset(token)
  # 2. run the loop on each device's rows, with the closed-over arrays whole
  whole, cut = PartitionSpec(), PartitionSpec(axis)
  run = jax.shard_map(
    lambda arrays, closed_over: loop(lambda part: converted(part, *closed_over), arrays),
    mesh=layout.mesh,
    in_specs=(cut, whole),
    out_specs=cut,
    axis_names=mesh_names(axis),
    check_vma=False,
  )
  return run(arrays, closed_over)


def sum_over_devices(
  function: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], rows: PyTree, whole: PyTree, *, parts: int
) -> tuple[PyTree, PyTree]:
  """Compute `function(rows, whole)` and sum over devices once, at the end.

  The compiler would add a sum over rows between devices as soon as it exists: gradients in each round of a loop over
  micro-batches. This runs the function on each device's own rows instead. Each device then needs whole parameters and
  whole sums. Rules that cut parameters along a mesh axis of the rows exist to avoid both, so under such rules the
  function runs unchanged. It also runs unchanged if the devices do not divide the rows.

  Args:
    function: (rows, whole) -> (sums over the rows, arrays that lead with the rows). Only the first are added up.
    rows: arrays [b, ...] each.
    whole: arrays that every device needs whole; cuts along other mesh axes are left in place.
    parts: number of equal parts into which the function cuts its rows.
  """
  layout = CURRENT.get()
  axis = None if layout is None else layout.rules.get('batch')
  if layout is None or axis is None or not _adds_up_once(layout, jax.tree.leaves(rows)[0].shape[0], parts):
    return function(rows, whole)
  # 1. inside, rows are not cut further, and `apart` names the axis of the rows
  rules = {name: mesh_axis for name, mesh_axis in layout.rules.items() if mesh_axis != axis}
  inside = layout._replace(rules=rules, apart=axis)

  def run_own(rows: PyTree, whole: PyTree) -> tuple[PyTree, PyTree]:
    token = CURRENT.set(inside)
    try:
      sums, by_row = function(rows, whole)
    finally:
      CURRENT.reset(token)
    return jax.lax.psum(sums, axis), by_row

  # 2. run on each device's rows, with whole parameters
  alone = places(layout.mesh, axis) == layout.mesh.size
  each, every = PartitionSpec(axis), PartitionSpec()
  run = jax.shard_map(
    run_own,
    mesh=layout.mesh,
    in_specs=(each, every),
    out_specs=(every, each),
    axis_names=set(layout.mesh.axis_names) if alone else mesh_names(axis),
    check_vma=False,
  )
  return run(rows, whole)


def _adds_up_once(layout: Layout, rows: int, parts: int) -> bool:
  """Check that each device has all parameters and equal parts of rows."""
  axis = layout.rules['batch']
  cut = [name for name, other in layout.rules.items() if name != 'batch' and mesh_names(other) & mesh_names(axis)]
  devices = places(layout.mesh, axis)
  return devices > 1 and not cut and not layout.spread and rows % (devices * parts) == 0


def apart() -> tuple[int, Array | int]:
  """Count the devices that compute separately, and return this one's index.

  Each computes its own rows. Outside of `sum_over_devices` it is (1, 0).
  """
  layout = CURRENT.get()
  if layout is None or layout.apart is None:
    return 1, 0
  return places(layout.mesh, layout.apart), jax.lax.axis_index(layout.apart)
