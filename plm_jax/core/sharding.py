"""Tables of sharding rules, and the public names of sharding.

Models name the axes of their arrays (`AXES`). A run selects one table of `RULES`, which maps an axis name to a mesh
axis that cuts arrays along it. No other part of the package mentions a mesh axis.

`meshes.py` arranges devices, `layouts.py` applies a table to arrays, `per_device.py` runs code on each device's rows.
"""

from collections.abc import Sequence

from jax.sharding import Mesh

from plm_jax.core.errors import suggest
from plm_jax.core.layouts import AXES, Layout, Rules, log_once
from plm_jax.core.layouts import batch_sharding as batch_sharding
from plm_jax.core.layouts import constrain as constrain
from plm_jax.core.layouts import device as device
from plm_jax.core.layouts import gather_length as gather_length
from plm_jax.core.layouts import one_cpu as one_cpu
from plm_jax.core.layouts import rows_of_table as rows_of_table
from plm_jax.core.layouts import scatter_length as scatter_length
from plm_jax.core.layouts import shardings as shardings
from plm_jax.core.layouts import spec as spec
from plm_jax.core.layouts import use as use
from plm_jax.core.meshes import ROWS, MeshAxes, places
from plm_jax.core.meshes import Sizes as Sizes
from plm_jax.core.meshes import axes_of as axes_of
from plm_jax.core.meshes import check_sizes as check_sizes
from plm_jax.core.meshes import make_mesh as make_mesh
from plm_jax.core.meshes import row_places as row_places
from plm_jax.core.meshes import sizes_of as sizes_of
from plm_jax.core.per_device import apart as apart
from plm_jax.core.per_device import cut_at as cut_at
from plm_jax.core.per_device import each_row as each_row
from plm_jax.core.per_device import map_rows as map_rows
from plm_jax.core.per_device import on_each_device as on_each_device
from plm_jax.core.per_device import row_parts as row_parts
from plm_jax.core.per_device import sum_over_devices as sum_over_devices

_FSDP_TENSOR: Rules = (('batch', 'data'), ('embed', 'data'), ('vocab', 'model'), ('heads', 'model'), ('mlp', 'model'))
RULES: dict[str, Rules] = {
  # rows; parameters are replicated
  'data': (('batch', 'data'),),
  # also parameters, along the hidden width
  'fsdp': (('batch', 'data'), ('embed', 'data')),
  # rows along 'data'; products along 'model', by vocabulary, heads and feed-forward width
  'tensor': (('batch', 'data'), ('vocab', 'model'), ('heads', 'model'), ('mlp', 'model')),
  # both
  'fsdp_tensor': _FSDP_TENSOR,
  # states between sublayers are also cut by position (Korthikanti et al. 2022); recurrences need them uncut
  'fsdp_tensor_sequence': (*_FSDP_TENSOR, ('length', 'model')),
  # rows, and parameters along one of several axes (`SPREAD`)
  'fsdp_any': (('batch', 'data'),),
}
# Tables that cut each parameter along 'data' at one of these axes. This is the first one that leaves `layouts.WIDE`
# columns on a device, else the one that leaves most. 'fsdp' replicates a model if the devices do not divide its hidden
# width.
SPREAD: dict[str, Sequence[str]] = {'fsdp_any': ('embed', 'mlp', 'vocab', 'embed_out', 'heads')}


def make_layout(mesh: Mesh, rules: str | Rules, *, described: bool = False) -> Layout:
  """Build a layout: a mesh with rules that fit it.

  Args:
    rules: a name of `RULES`, or pairs (axis, mesh axis or None).

  Raises:
    ValueError: an unknown table, axis or mesh axis.
  """
  # 1. a named table
  spread: Sequence[str] = ()
  if isinstance(rules, str):
    spread = SPREAD.get(rules, ())
    if rules not in RULES:
      raise ValueError(
        f'sharding.rules: there is no table {rules!r}.{suggest(rules, RULES)} Tables: {", ".join(RULES)}'
      )
    rules = RULES[rules]
  # 2. check its axes against the mesh
  table: dict[str, MeshAxes | None] = {str(axis): mesh_axis for axis, mesh_axis in rules}
  for axis, mesh_axis in table.items():
    if axis not in AXES:
      raise ValueError(f'sharding.rules: unknown axis {axis!r}.{suggest(axis, AXES)} Axes: {", ".join(AXES)}')
    if mesh_axis is not None and mesh_axis not in mesh.shape:
      raise ValueError(f'sharding.rules: {axis!r} -> unknown mesh axis {mesh_axis!r}; the mesh has {list(mesh.shape)}')
  # 3. rows also run over copies; a rule along a mesh axis of size 1 has no effect
  idle = {str(name) for name in table.values() if name is not None and places(mesh, name) == 1}
  if 'replica' in mesh.shape and table.get('batch') == 'data':
    table['batch'] = ROWS
  if mesh.size > 1 and idle:
    log_once(f'sharding.rules cut nothing along {", ".join(sorted(idle))}, which has size 1 in mesh {dict(mesh.shape)}')
  return Layout(mesh=mesh, rules=table, described=described, spread=spread)
