"""The steps of a run, compiled for devices that are not there: does it fit, and what does it send.

Nothing is computed and no data is read. Rows are those of the config; where a task makes room for each document
of a row, there is one.
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
from plm_jax.runs import history
from plm_jax.training import evaluation, feed
from plm_jax.training.before import preflight
from plm_jax.training.cost import flops, sizes
from plm_jax.training.parts import Parts, Settings, make_layout, make_parts
from plm_jax.training.step import Maker, abstract_params, eval_step, init_params, state_maker, train_step

GIB = 2**30
MFU = (0.4, 0.5, 0.6)
NAMED = 3  # transfers and arrays that a plan names


class Made(NamedTuple):
  """What is compiled, without memory: parts of a run, its layout, shapes of its batches and of its state."""

  parts: Parts
  layout: Layout
  spec: Mapping[str, jax.ShapeDtypeStruct]
  tx: optim.Optimiser
  maker: Maker
  rows: int


def make(settings: Settings, vocab: Vocab, topology: Topology, devices: Sequence[Any] | None) -> Made:
  """The parts of a run on described devices.

  Args:
    settings: of the run.
    vocab: of the run.
    topology: of the devices.
    devices: from `topology.describe`; None for what is counted and not compiled.

  Raises:
    ConfigError: the run could not begin.
  """
  layout = abstract_layout(settings, topology) if devices is None else make_layout(settings, devices, described=True)
  rows = feed.rows_per_device(settings['data']['batch_size'], accumulate=settings['accumulate'], mesh=layout.mesh)
  parts = make_parts(settings, vocab)
  if parts.task.for_documents is not None:
    parts = parts._replace(task=parts.task.for_documents(1))
  spec = preflight.batch_spec(parts, settings['data'])
  with errors.stage(parts.user):
    shapes = abstract_params(parts.task, spec)
  with errors.stage('optim'):
    steps = settings['steps'] or history.MOST_STEPS
    tx = optim.make(params=shapes, steps=steps, trains=parts.task.trains, **settings['optim'])
  return Made(parts, layout, spec, tx, state_maker(parts.task, tx, spec, layout=layout), rows)


def abstract_layout(settings: Settings, topology: Topology) -> Layout:
  """The layout of the settings over so many devices, wherever they stand: enough to count with.

  Raises:
    ConfigError: the sizes do not multiply to the number of devices, or slices do not divide that of 'data'.
  """
  block = settings['sharding']
  with errors.stage('sharding'):
    sizes = sharding.sizes_of(block['mesh'], topology.devices)
    sharding.check_sizes(sizes, topology.devices, slices=topology.slices)
    shape, names = sharding.axes_of(sizes)
    mesh: Any = AbstractMesh(shape, names, axis_types=(AxisType.Auto,) * len(names))
    return sharding.make_layout(mesh, block['rules'], described=True)


# By arithmetic -------------------------------------------------------------------------------------------------------


def state(made: Made) -> dict[str, Any]:
  """Bytes of the training state on a device, of an even share, and what a device holds more of than its share.

  Returns:
    'gib', 'even_gib'; 'whole_arrays' and 'whole_gib' of all arrays that are not cut over all devices, and 'whole': the
    largest of them, with their shapes, the GiB on a device, and into how many parts they are cut; 'axes', see
    `whole_axes`.
  """
  held = even = 0.0
  whole = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(made.maker.abstract):
    size = math.prod(leaf.shape) * leaf.dtype.itemsize
    own = math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    held, even = held + own, even + size / made.layout.mesh.size
    if own * made.layout.mesh.size > size:
      whole.append({'array': path_name(path), 'shape': list(leaf.shape), 'gib': own / GIB, 'parts': size // own})
  whole.sort(key=lambda one: -one['gib'])
  return {
    'gib': held / GIB,
    'even_gib': even / GIB,
    'whole_gib': sum(one['gib'] for one in whole),
    'whole_arrays': len(whole),
    'whole': whole[:NAMED],
    'axes': whole_axes(made),
  }


def whole_axes(made: Made) -> list[str]:
  """What the rules would cut and cannot, in words: how often it is computed, and the number that would divide."""
  lines: dict[str, None] = {}
  named = jax.eval_shape(lambda key: init_params(made.parts.task, made.spec, key), jax.random.key(0))
  for leaf in jax.tree.leaves(named, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)):
    if not isinstance(leaf, nn.LogicallyPartitioned):
      continue
    for axis, size in zip(leaf.names, leaf.value.shape, strict=True):
      mesh_axis = made.layout.rules.get(axis)
      parts = sharding.places(made.layout.mesh, mesh_axis)
      if size % parts:
        # a parameter that is gathered for each product is not computed with more often; one that stays whole is
        often = f', and computed {parts} times' if mesh_axis == 'model' else ''
        would = -(-size // parts) * parts
        lines[f'{axis} of {size:,} is not cut over {mesh_axis}={parts}{often}; {would:,} would be'] = None
  return list(lines)


def hours(made: Made, settings: Settings, topology: Topology) -> dict[str, Any]:
  """Hours of the run by counted operations, by the share of the peak that it reaches; empty where no peak is known."""
  per_row = sizes.training_flops(made.parts.task, made.spec, made.maker.abstract.params)
  per_step = per_row * settings['data']['batch_size']
  peak = flops.peak_flops(topology.chip.kind, settings['execution']['dtype'])
  found: dict[str, Any] = {'tflop_per_step': per_step / 1e12}
  if peak is not None:
    seconds = {f'{100 * mfu:.0f} %': per_step / (peak * mfu * topology.devices) for mfu in MFU}
    found['seconds_per_step'] = seconds
    if settings['steps']:
      found['hours'] = {share: one * settings['steps'] / 3600 for share, one in seconds.items()}
  return found


# By the compiler -----------------------------------------------------------------------------------------------------


def compiled_train(made: Made, settings: Settings) -> dict[str, Any]:
  """What the compiler says of a training step; see `_measured`."""
  place = sharding.batch_sharding(made.layout)
  batch = {name: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=place) for name, one in made.spec.items()}
  step = functools.partial(
    train_step,
    task=made.parts.task,
    tx=made.tx,
    accumulate=settings['accumulate'],
    random=settings['execution']['random'],
  )
  places = made.maker.places
  run = jax.jit(step, in_shardings=(places, place, None), out_shardings=(places, None), donate_argnums=0)
  return _measured(made, lambda: run.lower(made.maker.abstract, batch, _key()))


def compiled_evaluation(made: Made, settings: Settings, name: str) -> dict[str, Any]:
  """What the compiler says of the step of an evaluation."""
  block = settings['eval'][name]['data']
  place = sharding.batch_sharding(made.layout)
  spec = preflight.batch_spec(made.parts, block)
  task, rows = made.parts.task, block['batch_size']

  def cut(tree: Any) -> Any:
    return jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=place), tree)

  carry = cut(jax.eval_shape(lambda: task.init_carry(rows)))
  run = jax.jit(functools.partial(eval_step, task=task, rows=evaluation.rows_at_once(settings)))
  return _measured(made, lambda: run.lower(made.maker.abstract.params, cut(dict(spec)), carry, _key()))


def noise(made: Made, step: Mapping[str, Any]) -> dict[str, Any] | None:
  """The compiler's cycles of `prepare` alone, beside those of the training step.

  Returns:
    'share' of the step's cycles; 'open_loops' of `prepare` and 'step_open_loops', which count as one round each. None
    where the compiler says nothing.
  """
  place = sharding.batch_sharding(made.layout)
  batch = {name: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=place) for name, one in made.spec.items()}
  prepare = jax.jit(lambda key, batch: made.parts.task.prepare(noise_root(key), with_step(batch, 0)))
  found = _measured(made, lambda: prepare.lower(_key(), batch))
  if not found.get('cycles') or not step.get('cycles'):
    return None
  share = found['cycles'] / step['cycles']
  return {'share': share, 'open_loops': found['open_loops'], 'step_open_loops': step['open_loops']}


def _key() -> Any:
  return jax.eval_shape(lambda: jax.random.key(0))


def _measured(made: Made, lower: Any) -> dict[str, Any]:
  """Compiles, and reads what the compiler says.

  Returns:
    'fits'; 'peak_gib' of a device, or 'needed_gib' where it does not fit; 'attention': what was taken, and why;
    what `_text_says`, or 'unread': why the text of the program cannot be read.
  """
  with sharding.use(made.layout), attention.recorded() as said:
    lowered = lower()
    try:
      compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
      if 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      return {'fits': False, 'needed_gib': needed(str(error)), 'attention': said, 'message': str(error).splitlines()[0]}
  memory = compiled.memory_analysis()
  peak = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
  peak -= memory.alias_size_in_bytes
  found = {'fits': True, 'peak_gib': peak / GIB, 'temporary_gib': memory.temp_size_in_bytes / GIB, 'attention': said}
  try:
    return {**found, **_text_says(compiled.as_text())}
  except (jax.errors.JaxRuntimeError, ValueError) as error:
    return {**found, 'unread': str(error).splitlines()[0]}


def _text_says(text: str) -> dict[str, Any]:
  """What the text of a program says of a device, with loops multiplied out.

  Returns:
    'collectives': kind -> operations, runs and GiB, and 'largest' of them; 'cycles'; 'tflop' of its products and
    'silent_kernels', the runs of kernels that do not say theirs; 'open_loops', which count as one round each.

  Raises:
    ValueError: the text is not that of a program.
  """
  transfers = hlo.collectives(text)
  table = {
    kind: {'operations': operations, 'runs': runs, 'gib': size / GIB}
    for kind, (operations, runs, size) in hlo.by_kind(transfers).items()
  }
  largest = [
    {'kind': one.kind, 'gib': one.total / GIB, 'runs': one.runs, 'source': one.source} for one in transfers[:NAMED]
  ]
  operations, silent = hlo.operations(text)
  return {
    'collectives': table,
    'largest': largest,
    'cycles': hlo.cycles(text),
    'tflop': operations / 1e12,
    'silent_kernels': silent,
    'open_loops': hlo.open_loops(text),
  }


def needed(message: str) -> float | None:
  """GiB that the compiler says a program needs where it does not fit; None where it does not say."""
  found = re.search(r'Used ([\d.]+)([KMG]) of', message) or re.search(r'temporaries \(([\d.]+)([KMG])', message)
  return float(found[1]) / {'G': 1, 'M': 2**10, 'K': 2**20}[found[2]] if found else None
