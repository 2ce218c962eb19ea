"""The steps of a run, compiled for devices that are not attached: memory and communication.

Nothing is computed and no data is read. Batches have the size of the config. If a task has a slot per document of a
sequence, one document is assumed.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax.sharding import AbstractMesh, AxisType

from plm_jax import optim
from plm_jax.core import errors, sharding
from plm_jax.core.param_paths import path_name
from plm_jax.core.sharding import Layout
from plm_jax.core.types import Vocab
from plm_jax.layers import attention
from plm_jax.noise.keys import noise_root, with_step
from plm_jax.planning import hlo
from plm_jax.planning.topology import Topology
from plm_jax.training import evaluation, feed
from plm_jax.training.before import preflight
from plm_jax.training.cost import flops, sizes
from plm_jax.training.parts import Parts, Settings, make_layout, make_parts
from plm_jax.training.step import Maker, eval_step, init_params, train_step

GIB = 2**30
MFU = (0.4, 0.5, 0.6)
NAMED = 3  # transfers and arrays that a plan lists


class AbstractRun(NamedTuple):
  """The abstract parts of a run for compilation: layout, and shapes of batches and state."""

  parts: Parts
  layout: Layout
  spec: Mapping[str, jax.ShapeDtypeStruct]
  tx: optim.Optimiser
  maker: Maker
  rows: int


def make(settings: Settings, vocab: Vocab, topology: Topology, devices: Sequence[Any] | None) -> AbstractRun:
  """Build the parts of a run for described devices.

  Args:
    vocab: of the run.
    topology: of the devices.
    devices: from `topology.describe`; None for estimates without compilation.

  Raises:
    ConfigError: the run could not start.
  """
  layout = abstract_layout(settings, topology) if devices is None else make_layout(settings, devices, described=True)
  rows = feed.rows_per_device(settings['data']['batch_size'], accumulate=settings['accumulate'], mesh=layout.mesh)
  parts = preflight.with_evaluations(settings, make_parts(settings, vocab))
  if parts.task.for_documents is not None:
    parts = parts._replace(task=parts.task.for_documents(1))
  spec = preflight.batch_spec(parts, settings['data'])
  maker, tx = preflight.abstract_maker(settings, parts, layout)
  return AbstractRun(parts=parts, layout=layout, spec=spec, tx=tx, maker=maker, rows=rows)


def abstract_layout(settings: Settings, topology: Topology) -> Layout:
  """Build the layout of the settings over abstract devices.

  Raises:
    ConfigError: the product of the mesh sizes is not the number of devices, or slices do not divide the axis 'data'.
  """
  block = settings['sharding']
  with errors.stage('sharding'):
    sizes = sharding.sizes_of(block['mesh'], topology.devices)
    sharding.check_sizes(sizes, topology.devices, slices=topology.slices)
    shape, names = sharding.axes_of(sizes)
    mesh: Any = AbstractMesh(shape, names, axis_types=(AxisType.Auto,) * len(names))
    return sharding.make_layout(mesh, block['rules'], described=True)


def state(run_parts: AbstractRun) -> dict[str, Any]:
  """Compute the bytes of the training state on a device.

  Returns:
    'gib', and 'even_gib' of an even share. 'whole_arrays' and 'whole_gib' count the arrays that are not sharded over
    all devices; 'whole' lists the largest of them with shape, GiB on a device and number of shards. 'axes', see
    `whole_axes`.
  """
  total = even = 0.0
  not_fully_sharded = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(run_parts.maker.abstract):
    size = math.prod(leaf.shape) * leaf.dtype.itemsize
    on_device = math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    total, even = total + on_device, even + size / run_parts.layout.mesh.size
    if on_device * run_parts.layout.mesh.size > size:
      not_fully_sharded.append(
        {'array': path_name(path), 'shape': list(leaf.shape), 'gib': on_device / GIB, 'parts': size // on_device}
      )
  not_fully_sharded.sort(key=lambda array: -array['gib'])
  return {
    'gib': total / GIB,
    'even_gib': even / GIB,
    'whole_gib': sum(array['gib'] for array in not_fully_sharded),
    'whole_arrays': len(not_fully_sharded),
    'whole': not_fully_sharded[:NAMED],
    'axes': whole_axes(run_parts),
  }


def whole_axes(run_parts: AbstractRun) -> list[str]:
  """Describe the axes that the mesh should divide but does not.

  A line says how often the axis is computed, and the next size that divides.
  """
  lines: dict[str, None] = {}
  named = jax.eval_shape(lambda key: init_params(run_parts.parts.task, run_parts.spec, key), jax.random.key(0))
  for leaf in jax.tree.leaves(named, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)):
    if not isinstance(leaf, nn.LogicallyPartitioned):
      continue
    for axis, size in zip(leaf.names, leaf.value.shape, strict=True):
      mesh_axis = run_parts.layout.rules.get(axis)
      parts = sharding.places(run_parts.layout.mesh, mesh_axis)
      if size % parts:
        # under tensor parallelism, an unsharded parameter repeats its products; a gathered one does not
        repeated = f', and computed {parts} times' if mesh_axis == 'model' else ''
        divisible = -(-size // parts) * parts
        lines[f'{axis} of {size:,} is not sharded over {mesh_axis}={parts}{repeated}; {divisible:,} would be'] = None
  return list(lines)


def hours(
  run_parts: AbstractRun, settings: Settings, topology: Topology, step: Any = None, epoch_tokens: float | None = None
) -> dict[str, Any]:
  """Estimate seconds and hours by operations, cycles and transfers.

  Args:
    step: the compiled training step, see `_measured`.
    epoch_tokens: tokens in an epoch, for a run of epochs.

  Returns:
    'seconds_per_step' by '40 %', ..., 'cycles' and 'links'; 'hours' the same; 'largest', a key of them.
  """
  rows, step = settings['data']['batch_size'], step or {}
  per_step = rows * sizes.training_flops(run_parts.parts.task, run_parts.spec, run_parts.maker.abstract.params)
  # products of float32 have the inputs of bfloat16 on TPUs, as jax's default precision says
  peak = topology.devices * flops.PEAK[topology.chip.kind]
  seconds = {f'{100 * mfu:.0f} %': per_step / (peak * mfu) for mfu in MFU}
  if step.get('cycles') and topology.chip.clock:
    seconds['cycles'] = step['cycles'] / topology.chip.clock
  if 'collectives' in step:
    # a sum is scattered and gathered: its bytes are sent twice
    twice = {kind: 1 + (kind == 'all-reduce') for kind in hlo.KINDS}
    sent = sum(twice.get(kind, 0) * one['gib'] * GIB for kind, one in step['collectives'].items())
    seconds['links'] = sent / topology.chip.links
  largest = max((key for key in seconds if key not in ('50 %', '60 %')), key=lambda key: seconds[key])
  estimate = {'tflop_per_step': per_step / 1e12, 'seconds_per_step': seconds, 'largest': largest}
  estimate['lost_minutes'] = lost_minutes(settings, seconds[largest])
  steps = settings['steps']
  if not steps and epoch_tokens:
    steps = settings['epochs'] * epoch_tokens / (rows * settings['data']['length'])
  if steps:
    estimate['hours'] = {key: step_seconds * steps / 3600 for key, step_seconds in seconds.items()}
  return estimate


def lost_minutes(settings: Settings, seconds_per_step: float) -> float:
  """Return the most minutes of work between two checkpoints."""
  minutes, by_step = seconds_per_step / 60, settings['save_every'] * seconds_per_step / 60
  if settings['save_minutes'] is None:
    return by_step
  logged = settings['log_every'] * minutes
  return min(by_step, math.ceil(settings['save_minutes'] / logged) * logged)


def compiled_train(run_parts: AbstractRun, settings: Settings) -> dict[str, Any]:
  """Compile a training step, see `_measured`."""
  batch_sharding = sharding.batch_sharding(run_parts.layout)
  step = functools.partial(
    train_step,
    task=run_parts.parts.task,
    tx=run_parts.tx,
    accumulate=settings['accumulate'],
    random=settings['execution']['random'],
  )
  state_sharding = run_parts.maker.places
  run = jax.jit(
    step, in_shardings=(state_sharding, batch_sharding, None), out_shardings=(state_sharding, None), donate_argnums=0
  )
  batch = _sharded(run_parts, dict(run_parts.spec))
  return _measured(run_parts, lambda: run.lower(run_parts.maker.abstract, batch, _key()))


def compiled_evaluation(run_parts: AbstractRun, settings: Settings, name: str) -> dict[str, Any]:
  """Compile a step of an evaluation, see `_measured`."""
  block = settings['eval'][name]['data']
  parts = run_parts.parts.of(name)
  task, rows = parts.task, block['batch_size']
  batch = _sharded(run_parts, dict(preflight.batch_spec(parts, block)))
  carry = _sharded(run_parts, jax.eval_shape(lambda: task.init_carry(rows)))
  run = jax.jit(functools.partial(eval_step, task=task, rows=evaluation.rows_at_once(settings)))
  return _measured(run_parts, lambda: run.lower(run_parts.maker.abstract.params, batch, carry, _key()))


def noise(run_parts: AbstractRun, step: Mapping[str, Any]) -> dict[str, Any] | None:
  """Compile `prepare` alone and compare its cycles with the training step.

  Returns:
    'share' of the step's cycles; 'open_loops' of `prepare` and 'step_open_loops', which count as one round each. None
    if the compiler gives no estimate.
  """
  prepare = jax.jit(lambda key, batch: run_parts.parts.task.prepare(noise_root(key), with_step(batch, 0)))
  batch = _sharded(run_parts, dict(run_parts.spec))
  measured = _measured(run_parts, lambda: prepare.lower(_key(), batch))
  if not measured.get('cycles') or not step.get('cycles'):
    return None
  share = measured['cycles'] / step['cycles']
  return {'share': share, 'open_loops': measured['open_loops'], 'step_open_loops': step['open_loops']}


def _sharded(run_parts: AbstractRun, tree: Any) -> Any:
  """Give shapes that lead with the rows the sharding of a batch."""
  cut = sharding.batch_sharding(run_parts.layout)
  return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=cut), tree)


def _key() -> Any:
  return jax.eval_shape(lambda: jax.random.key(0))


def _measured(run_parts: AbstractRun, lower: Any) -> dict[str, Any]:
  """Compile a step and read the compiler's report.

  Returns:
    'fits'; 'peak_gib' of a device, or 'needed_gib' if it does not fit; 'attention': the chosen implementations and the
    reasons; the keys of `_text_says`, or 'unread': the reason why the text of the program cannot be read.
  """
  with sharding.use(run_parts.layout), attention.recorded() as attention_log:
    lowered = lower()
    try:
      compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
      if 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      return {
        'fits': False,
        'needed_gib': needed(str(error)),
        'attention': attention_log,
        'message': str(error).splitlines()[0],
      }
  memory = compiled.memory_analysis()
  peak = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
  peak -= memory.alias_size_in_bytes
  report = {
    'fits': True,
    'peak_gib': peak / GIB,
    'temporary_gib': memory.temp_size_in_bytes / GIB,
    'attention': attention_log,
  }
  try:
    return {**report, **_text_says(compiled.as_text())}
  except (jax.errors.JaxRuntimeError, ValueError) as error:
    return {**report, 'unread': str(error).splitlines()[0]}


def _text_says(text: str) -> dict[str, Any]:
  """Analyse the text of a program, per device, with loops multiplied out.

  Returns:
    'collectives': kind -> operations, runs and GiB, and 'largest' of them; 'cycles', and what has none; 'tflop' of its
    products and 'silent_kernels', the runs of kernels without a cost estimate; 'open_loops', which count as one round.

  Raises ValueError if the text is not that of a program.
  """
  transfers = hlo.collectives(text)
  table = {
    kind: {'operations': operations, 'runs': runs, 'gib': size / GIB}
    for kind, (operations, runs, size) in hlo.by_kind(transfers).items()
  }
  largest = [
    {'kind': transfer.kind, 'gib': transfer.total / GIB, 'runs': transfer.runs, 'source': transfer.source}
    for transfer in transfers[:NAMED]
  ]
  operations, silent = hlo.operations(text)
  open_loops = hlo.open_loops(text)
  return {
    'collectives': table,
    'largest': largest,
    'cycles': hlo.cycles(text),
    'without_cycles': hlo.without_cycles(text) | ({'loops of unknown length': open_loops} if open_loops else {}),
    'tflop': operations / 1e12,
    'silent_kernels': silent,
    'open_loops': open_loops,
  }


def needed(message: str) -> float | None:
  """Parse the GiB needed from the compiler's error, or None."""
  match = re.search(r'Used ([\d.]+)([KMG]) of', message) or re.search(r'temporaries \(([\d.]+)([KMG])', message)
  return float(match[1]) / {'G': 1, 'M': 2**10, 'K': 2**20}[match[2]] if match else None
