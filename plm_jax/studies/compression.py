"""A trained network beside smaller ones that are made of it: size, speed and score, measured, in one table.

The engine of `plm-jax compress`. Each way writes a folder in the form of an import; what is measured is read
from that folder, as a user would, and the original is written and read alike.
"""

import logging
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from plm_jax import config, weights
from plm_jax.adapters import quantise as training_in_8_bits
from plm_jax.adapters import wrapped
from plm_jax.checkpoint import Step
from plm_jax.cli import signals, tables
from plm_jax.compression import prune, quantise
from plm_jax.compression.methods import Method
from plm_jax.config import build, one_part
from plm_jax.core import sharding
from plm_jax.core.errors import ConfigError, stage
from plm_jax.core.param_paths import SCALE, flat, is_stacked, nested
from plm_jax.core.types import Array, Execution, PyTree, Source, Task
from plm_jax.io import files, run_paths
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.noise.keys import noise_root, with_step
from plm_jax.runs.metrics import write_json
from plm_jax.training import evaluation, feed, parts
from plm_jax.training.evaluate_saved import placed
from plm_jax.training.parts import Parts, Settings
from plm_jax.training.step import abstract_params, bind, eval_step, step_rng
from plm_jax.weights import shapes
from plm_jax.weights.convert import save_changed

log = logging.getLogger(__name__)

ORIGINAL = 'original'
ROWS = 256  # of the training data, of which the importance of heads is a mean
Leaves = dict[str, np.ndarray]


class Network(NamedTuple):
  """A network on its way to a smaller one.

  Attributes:
    block: of its model.
    leaves: all parameters by path.
    scales: of those that were trained as 8 bits express them, by the path of the parameter (adapter 'quantise').
    errors: of each parameter that is in 8 bits, how far it is from the original.
  """

  block: Mapping[str, Any]
  leaves: Leaves
  scales: Mapping[str, np.ndarray] = {}
  errors: Mapping[str, dict[str, float]] = {}


class Subject(NamedTuple):
  """A run whose network is measured: its settings without wrappers, its open weights, and the rows that score it."""

  settings: Settings
  opened: weights.Weights
  made: Parts
  evaluation: str
  source: Source
  layout: sharding.Layout


class Measured(NamedTuple):
  """A network that was read from its folder: what was measured of it, and a call of it on one batch, to be timed."""

  row: dict[str, Any]
  call: Callable[[], Any]
  rows: int


def run_study(
  settings: Settings,
  workdir: Where,
  ways: Mapping[str, Sequence[Method]],
  *,
  out: Where,
  step: Step = None,
  name: str | None = None,
  part: str | None = None,
  beside: Sequence[str] = (),
  rounds: int = 7,
) -> dict[str, Any]:
  """Makes the smaller networks, measures all, prints the table and writes it as `table.txt` and `table.json`.

  Args:
    settings: of the run.
    workdir: its folder, which is only read.
    ways: name -> methods, done in order.
    out: folder of the results: one folder for each network, and the table.
    step: of the run; None takes the best where there is one, else the newest.
    name: of the evaluation that scores; None takes that of `best`, else the first.
    part: the task of a run that learned several, whose network is made smaller as that of a run of it alone.
    beside: folders of other runs of the same task, which are measured like the others: a network with shared layers, a
      distilled one. Of one that learned several it is the task `part`.
    rounds: how often each network is timed, in turn with the others.

  Returns:
    The table, as `table.json` holds it.

  Raises:
    ConfigError: the run has no evaluation, a folder in the way, or a method that its network does not allow.
  """
  folder = files.local_path(out, what='--out')
  _check_out(folder, files.path(workdir), [*ways, *map(_short, beside)])
  subject = open_subject(settings, workdir, step=step, name=name, part=part)
  metric = _metric(subject.settings, subject.evaluation)
  measured: dict[str, Measured] = {}
  with sharding.use(subject.layout):
    original = network_of(subject)
    networks = {ORIGINAL: original}
    for way, methods in ways.items():
      networks[way] = _changed(original, methods, subject, way=way)
    for way, network in networks.items():
      signals.check()
      measured[way] = measure(network, subject, folder / _file_name(way), metric=metric)
    for other in beside:
      signals.check()
      theirs = config.resolve(config.load(str(RunFolder.at(other).config)))
      same = part if part in one_part.names(theirs) else None
      evaluations = settings['eval'] if same else subject.settings['eval']
      one = open_subject({**theirs, 'eval': evaluations}, other, step=None, name=subject.evaluation, part=same)
      measured[_short(other)] = measure(network_of(one), one, folder / _file_name(_short(other)), metric=metric)
    _time(measured, rounds=rounds)
  of_part = {} if part is None else {'part': part}
  table = {
    'workdir': str(workdir),
    **of_part,
    'metric': f'{subject.evaluation}/{metric}',
    'rows': _with_ratios(measured),
  }
  write_json(folder / 'table.json', table)
  shown = as_table(table)
  files.write_text(folder / 'table.txt', tables.text(shown))
  tables.show(shown)
  return table


def open_subject(
  settings: Settings, workdir: Where, *, step: Step, name: str | None, part: str | None = None
) -> Subject:
  """A run, or a part of one, as it is measured; raises ConfigError where there is no such part or nothing scores it."""
  settings = one_part.settings_of(settings, part, where=f'--part={part}')
  chosen = _evaluation_name(settings, name)
  settings = build.unwrapped(settings)  # what a wrapper did is in the parameters that `weights` opens
  folder = RunFolder.at(workdir)
  made = parts.make_parts(settings, parts.make_vocab(settings, folder), folder)
  layout = parts.make_layout(settings)
  feed.check_evaluations({chosen: settings['eval'][chosen]}, mesh=layout.mesh)
  (source,) = parts.make_evaluations(settings, made.vocab, reader=made, names=(chosen,)).values()
  opened = weights.open(folder.root, step=step, part=part)
  return Subject(settings, opened, parts.fit(made, [source]), chosen, source, layout)


def network_of(subject: Subject) -> Network:
  """The network of a run, float32, with the scales that it was trained with."""
  leaves, saved = _leaves(subject), subject.opened.as_saved
  places = training_in_8_bits.places_of_scales(leaves)
  scales = {path: saved[place].read(None) for path, place in places.items() if place in saved}
  return Network(subject.opened.model.block, leaves, scales)


# The smaller networks ------------------------------------------------------------------------------------------------


def _changed(network: Network, methods: Sequence[Method], subject: Subject, *, way: str) -> Network:
  for name, share in methods:
    trunk = _trunk(network, subject)
    with stage(f'--methods: {way}'):
      if name == 'int8':
        network = in_8_bits(network, trunk)
      elif name in ('layers', 'top_layers'):
        network = without_layers(network, trunk, share, subject, highest=name == 'top_layers')
      elif name in ('prune', 'prune_matrix'):
        network = without_weights(network, trunk, share, each=name == 'prune_matrix')
      else:
        network = without_heads(network, trunk, share, subject if name == 'heads_gradient' else None)
  return network


def without_weights(network: Network, trunk: nn.Module, share: float, *, each: bool) -> Network:
  """0 for the smallest weights of the dense layers of the trunk: of each matrix, or of all of them together."""
  dense = {f'{path}/kernel': sum(axes) for path, axes in wrapped.dense_layers(trunk).items()}
  sizes = {path: jnp.abs(network.leaves[path]) for path in dense if path in network.leaves}
  if each:
    masks = {path: prune.keep_in_each(one, share, layers=one.ndim - dense[path]) for path, one in sizes.items()}
  else:
    masks = prune.keep_among_all(sizes, share)
  return _masked(network, masks)


def without_heads(network: Network, trunk: nn.Module, share: float, asked: Subject | None) -> Network:
  """0 in the output projections of the least important heads of each layer.

  Args:
    network: whose heads.
    trunk: of the network.
    share: of the heads of each layer.
    asked: the run whose training data say what the loss depends on; None goes by the norm of the projections.
  """
  kernels = {path: network.leaves[path] for path in head_kernels(trunk) if path in network.leaves}
  if not kernels:
    raise ValueError(f'this {type(trunk).__name__} has no attention heads')
  if asked is None:
    importance = {path: prune.head_norms(jnp.asarray(kernel)) for path, kernel in kernels.items()}
  else:
    importance = head_gradients(network, list(kernels), asked)
  return _masked(
    network, {path: prune.keep_in_each(one, share, layers=one.ndim - 3) for path, one in importance.items()}
  )


def head_kernels(trunk: nn.Module) -> list[str]:
  """The output projections of attention, [..., h, k, d]: dense layers named 'out' that read two axes."""
  dense = wrapped.dense_layers(trunk)
  return [f'{path}/kernel' for path, axes in dense.items() if path.endswith('/out') and axes == (2, 1)]


def head_gradients(network: Network, kernels: Sequence[str], subject: Subject) -> dict[str, Array]:
  """What the loss of a row changes with each head, f32[..., h, 1, 1]: the mean of |d loss / d gate| over training rows.

  The gate of a head multiplies what it writes and is 1 (Michel et al. 2019, §4.1; 1905.10650).
  """
  settings, task = subject.settings, subject.made.task
  source = parts.make_source(settings['data'], subject.made.vocab, seed=settings['seed'], reader=subject.made)
  key = jax.random.key(settings['seed'])
  leaves = {path: jnp.asarray(leaf) for path, leaf in network.leaves.items()}
  ones = {path: jnp.ones((*leaves[path].shape[:-2], 1, 1)) for path in kernels}

  def loss_of(gates: dict[str, Array], leaves: dict[str, Array], row: dict[str, Array]) -> Array:
    params = nested({**leaves, **{path: leaves[path] * gate for path, gate in gates.items()}})
    batch = {name: value[None] for name, value in row.items()}
    example = task.prepare(noise_root(key), with_step(batch, 0))
    rng = step_rng(key, jnp.zeros((), jnp.int32))
    return task.loss(bind(task, params, train=False, rng=rng), example, task.init_carry(1), rng).value

  @jax.jit
  def of_batch(leaves: dict[str, Array], batch: dict[str, Array]) -> dict[str, Array]:
    each = jax.lax.map(lambda row: jax.grad(loss_of)(ones, leaves, row), batch)
    return jax.tree.map(lambda gradient: jnp.abs(gradient).sum(axis=0), each)

  total, rows = jax.tree.map(jnp.zeros_like, ones), 0
  for batch in source.read(0):
    total = jax.tree.map(jnp.add, total, of_batch(leaves, {name: jnp.asarray(value) for name, value in batch.items()}))
    rows += len(batch['row_id'])
    if rows >= min(ROWS, source.rows):
      break
  return {path: one / rows for path, one in total.items()}


def without_layers(network: Network, trunk: nn.Module, share: float, subject: Subject, *, highest: bool) -> Network:
  """A trunk of fewer layers, with the parameters of those that stay."""
  layers = trunk.config.num_layers
  kept = (prune.lowest if highest else prune.every_other)(layers, share) if round(share * layers) < layers else ()
  if len(kept) in (0, layers):
    raise ValueError(f'{share:g} of {layers} layers are {round(share * layers)}: some must go, and some must stay')
  overrides = {**(network.block.get('overrides') or {}), 'num_layers': len(kept)}
  smaller = network._replace(block={**network.block, 'overrides': overrides})
  wanted = {f'trunk/{path}': shape for path, shape in shapes.shapes(_trunk(smaller, subject)).items()}
  leaves: Leaves = {}
  scales = dict(network.scales)
  for path, leaf in network.leaves.items():
    if path.startswith('trunk/') and is_stacked(path, leaf) and leaf.shape != wanted.get(path) and len(leaf) == layers:
      leaf = leaf[list(kept)]
      scales |= {path: scales[path][list(kept)]} if path in scales else {}
    if path.startswith('trunk/') and leaf.shape != wanted.get(path):
      raise ValueError(f'layers of this {type(trunk).__name__} cannot be taken out: {path} has the shape {leaf.shape}')
    leaves[path] = leaf
  return smaller._replace(leaves=leaves, scales=scales)


def in_8_bits(network: Network, trunk: nn.Module) -> Network:
  """Dense layers and vocabulary tables as int8, beside them their scales: those of training where it had some."""
  leaves, errors = dict(network.leaves), {}
  for path, axes in training_in_8_bits.channels_of(trunk).items():
    if path in leaves:
      own = leaves[path]
      scale = network.scales[path] if path in network.scales else quantise.scales(own, axes)
      leaves[path], leaves[f'{path}{SCALE}'] = quantise.quantise(own, scale), scale
      errors[path] = quantise.errors(own, leaves[path], scale)
  return network._replace(leaves=leaves, errors=errors)


def _masked(network: Network, masks: Mapping[str, Array]) -> Network:
  own = {path: np.where(np.asarray(mask) > 0, network.leaves[path], np.float32(0)) for path, mask in masks.items()}
  return network._replace(leaves={**network.leaves, **own})


def _trunk(network: Network, subject: Subject) -> nn.Module:
  execution = Execution(**subject.settings['execution'])
  return build.make('models', dict(network.block), vocab_size=subject.opened.model.vocab_size, execution=execution)


def _leaves(subject: Subject) -> Leaves:
  """The parameters of a run that its task uses, float32."""
  saved = subject.opened.params.with_sums(weights.SUMS).tree()
  wanted = abstract_params(subject.made.task, subject.source.spec)
  given = {path: np.asarray(leaf, np.float32) for path, leaf in flat(saved).items()}
  if missing := [path for path in flat(wanted) if path not in given]:
    raise ConfigError(f'{subject.opened.folder} has no {", ".join(missing[:4])}, which its task needs')
  return {path: given[path] for path in flat(wanted)}


# What is measured ----------------------------------------------------------------------------------------------------


def measure(network: Network, subject: Subject, folder: Path, *, metric: str) -> Measured:
  """Writes a network, opens its folder and measures all but the time of a row.

  Memory is what the device holds more once the parameters are on it; 'work_bytes' is what the compiled evaluation of a
  batch takes beside them, as the compiler has laid it out.
  """
  own = parts.make_template(subject.settings, subject.made.vocab) if subject.opened.task else None
  save_changed(folder, subject.opened, network.leaves, block=network.block, template=own)
  opened = weights.open(folder)
  trunk = opened.trunk(Execution(**subject.settings['execution']))
  made = parts.fit(parts.parts_of(trunk, subject.settings, subject.made.vocab), [subject.source])
  task, source, key = made.task, subject.source, jax.random.key(subject.settings['seed'])
  held = jax.live_arrays()  # so that none of them is freed in between, as what no name reaches any more may be
  devices = subject.layout.mesh.local_devices
  before = _bytes_in_use(devices)
  params = placed(opened.to_run.tree(), task, source.spec, layout=subject.layout)
  jax.block_until_ready(params)
  memory = _bytes_in_use(devices) - before
  del held
  scores = evaluation.scores_of(subject.settings, made, {subject.evaluation: source})[subject.evaluation]
  steps = evaluation.make_steps(task)
  found = evaluation.evaluate(
    source, params, key, task=task, steps=steps, layout=subject.layout, scores=scores, check=signals.check
  ).metrics
  if metric not in found:
    raise ConfigError(f'{subject.evaluation} has no {metric}, only {", ".join(found)}')
  call, rows, work = _compiled(task, source, params, key, layout=subject.layout)
  leaves = [leaf for path, leaf in network.leaves.items() if not path.endswith(SCALE)]
  row = {
    'folder': str(folder),
    'parameters': sum(leaf.size for leaf in leaves),
    'nonzero': sum(int(np.count_nonzero(leaf)) for leaf in leaves),
    'disk_bytes': sum(files.size(file) for file in files.listing(folder, 'params-*.safetensors')),
    'memory_bytes': memory,
    'work_bytes': work,
    'score': found[metric],
    'metrics': found,
  }
  return Measured(row | ({'errors': network.errors} if network.errors else {}), call, rows)


def _compiled(
  task: Task, source: Source, params: PyTree, key: Array, *, layout: sharding.Layout
) -> tuple[Callable[[], Any], int, int | None]:
  """(a call on the first batch that ends when it is computed, its rows, bytes that it takes beside its arguments)."""
  _, batch = next(feed.to_devices(source.once(), sharding.batch_sharding(layout)))
  carry = task.init_carry(source.spec['row_id'].shape[0])
  step = jax.jit(lambda params, batch, carry, key: eval_step(params, batch, carry, key, task=task))
  compiled = step.lower(params, batch, carry, key).compile()
  layout_of_memory = compiled.memory_analysis()
  work = None if layout_of_memory is None else int(layout_of_memory.temp_size_in_bytes)
  return lambda: jax.block_until_ready(compiled(params, batch, carry, key)), source.spec['row_id'].shape[0], work


def _bytes_in_use(devices: Sequence[jax.Device]) -> int:
  """Bytes of arrays on devices of this process, as these count them, or as jax counts all where they do not."""
  stats = [device.memory_stats() for device in devices]
  if all(one and 'bytes_in_use' in one for one in stats):
    return sum(one['bytes_in_use'] for one in stats if one)
  return sum(array.nbytes for array in jax.live_arrays())


def _time(measured: Mapping[str, Measured], *, rounds: int) -> None:
  """Adds 'milliseconds' per row, the median over rounds in each of which every network runs once, in turn."""
  seconds: dict[str, list[float]] = {name: [] for name in measured}
  for one in measured.values():
    one.call()
  for _ in range(rounds):
    for name, one in measured.items():
      signals.check()
      began = time.perf_counter()
      one.call()
      seconds[name].append((time.perf_counter() - began) / one.rows)
  first = next(iter(seconds.values()))
  for name, one in measured.items():
    one.row['milliseconds'] = 1e3 * statistics.median(seconds[name])
    # of the same round, so that what else the machine did falls out
    one.row['time_ratio'] = statistics.median(own / other for own, other in zip(seconds[name], first, strict=True))


# The report ----------------------------------------------------------------------------------------------------------


def _with_ratios(measured: Mapping[str, Measured]) -> list[dict[str, Any]]:
  """The rows, each with its ratios to the first; counts of bytes and parameters below 1 are smaller."""
  first = measured[ORIGINAL].row
  counted = ('parameters', 'nonzero', 'disk_bytes', 'memory_bytes', 'work_bytes')
  rows = []
  for name, one in measured.items():
    ratios = {key: one.row[key] / first[key] for key in counted if first[key] and one.row[key] is not None}
    rows.append({'method': name, **one.row, 'ratios': ratios | {'milliseconds': one.row.pop('time_ratio')}})
  return rows


def as_table(table: Mapping[str, Any]) -> Table:
  """The table for a reader: what was measured, and in brackets its ratio to the original."""
  metric = table['metric']
  network = f'{table["workdir"]}, part {table["part"]}' if 'part' in table else table['workdir']
  show = Table(title=f'{network}: {metric} and what it costs (x: beside the original)')
  for column in ('method', 'parameters', 'not zero', 'MB on disk', 'MB of memory', 'MB of work', 'ms a row', metric):
    show.add_column(column, justify='left' if column == 'method' else 'right')
  first = table['rows'][0]['score']
  for row in table['rows']:

    def cell(key: str, text: str, row: Mapping[str, Any] = row) -> str:
      ratio = row['ratios'].get(key)
      return text if ratio is None else f'{text} ({ratio:.2f}x)'

    megabytes = {key: row[key] for key in ('disk_bytes', 'memory_bytes', 'work_bytes')}
    show.add_row(
      row['method'],
      cell('parameters', f'{row["parameters"]:,}'),
      cell('nonzero', f'{row["nonzero"]:,}'),
      *(cell(key, '-' if size is None else f'{size / 1e6:.2f}') for key, size in megabytes.items()),
      cell('milliseconds', f'{row["milliseconds"]:.3f}'),
      f'{row["score"]:.4f} ({row["score"] - first:+.4f})',
    )
  return show


# Names ---------------------------------------------------------------------------------------------------------------


def _evaluation_name(settings: Settings, name: str | None) -> str:
  """The evaluation that scores: that which is asked for, that of `best`, or the first."""
  known = list(settings['eval'])
  if not known:
    raise ConfigError('compress: the run has no evaluation, so nothing would say what a smaller network is worth')
  if name is not None and name not in known:
    raise ConfigError(f'--evaluation: no {name!r} in config.eval; there are {", ".join(known)}')
  best = settings['best'][0].partition('/')[0] if settings['best'] else known[0]
  return name or best


def _metric(settings: Settings, name: str) -> str:
  """The metric of an evaluation: that of `best`, else the loss."""
  return settings['best'][0].partition('/')[2] if settings['best'] else 'loss'


def _short(folder: str) -> str:
  return files.path(folder).name


def _file_name(way: str) -> str:
  return re.sub(r'[^\w.+-]', '-', way)


def _check_out(out: Path, workdir: Path, names: Sequence[str]) -> None:
  """Raises ConfigError where results would stand in the run, or in place of something else."""
  if files.is_inside(out, workdir) or files.absolute(out) == files.absolute(workdir):
    raise ConfigError(f'--out={out} lies in the run, which is not changed: name another folder')
  run_paths.check_new_folder(out, name='--out')
  if len({*map(_file_name, names), ORIGINAL}) <= len(names):
    raise ConfigError(f'--methods and --beside give two results the same name: {", ".join([ORIGINAL, *names])}')
  for name in (ORIGINAL, *names):
    target = out / _file_name(name)
    if files.listing(target) and not files.is_file(target / 'params.index.json'):
      raise ConfigError(f'{target} is not empty, and this command did not write it: name another --out')
