"""Compare a trained network with compressed ones in one table: size, speed and score.

The engine of `plm-jax compress`. Each result is written as a converted checkpoint, and everything is measured on what
is read back from that folder. The original network is treated in the same way.
"""

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.table import Table

from plm_jax import config, weights
from plm_jax.adapters import quantise as training_in_8_bits
from plm_jax.checkpoint import Step
from plm_jax.cli import signals, tables
from plm_jax.compression.methods import Method
from plm_jax.config import build, one_part
from plm_jax.core import sharding
from plm_jax.core.errors import ConfigError
from plm_jax.core.param_paths import SCALE, flat
from plm_jax.core.types import Array, Execution, PyTree, Source, Task
from plm_jax.io import files, run_paths
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs.metrics import write_json
from plm_jax.studies.compressed import Network, Subject, compress
from plm_jax.training import evaluation, feed, parts
from plm_jax.training.evaluate_saved import placed
from plm_jax.training.parts import Settings
from plm_jax.training.step import abstract_params, eval_step
from plm_jax.weights.convert import save_changed

ORIGINAL = 'original'


class Measured(NamedTuple):
  """Measurements of a network that was read from its folder."""

  row: dict[str, Any]  # its row of the table
  call: Callable[[], Any]  # computes one batch, to be timed
  batch_size: int  # examples of that batch


def run_study(
  settings: Settings,
  workdir: Where,
  recipes: Mapping[str, Sequence[Method]],
  *,
  out: Where,
  step: Step = None,
  name: str | None = None,
  part: str | None = None,
  beside: Sequence[str] = (),
  rounds: int = 7,
) -> dict[str, Any]:
  """Compress and measure; print the table and write `table.txt` and `table.json`.

  Returns the content of `table.json`. Raises ConfigError: the run has no evaluation, a folder exists already, or a
  method does not apply to the network.

  Args:
    workdir: its folder, which is only read.
    recipes: name -> methods, applied in order.
    out: folder of the results: one folder per network, and the table.
    step: step of the run; None means the best if there is one, else the newest.
    name: evaluation to score with; None means that of `best`, else the first.
    part: task of a multi-task run, compressed as a run of that task alone.
    beside: folders of other runs of the same task, measured in the same way, such as a network with shared layers or
      a distilled one. Of a multi-task run, the task `part`.
    rounds: timing repetitions per network, in turn with the others.
  """
  folder = files.local_path(out, what='--out')
  _check_out(folder, files.path(workdir), [*recipes, *(files.path(other).name for other in beside)])
  subject = open_subject(settings, workdir, step=step, name=name, part=part)
  metric = subject.settings['best'][0].partition('/')[2] if subject.settings['best'] else 'loss'
  measured: dict[str, Measured] = {}
  with sharding.use(subject.layout):
    original = network_of(subject)
    networks = {ORIGINAL: original}
    for recipe, methods in recipes.items():
      networks[recipe] = compress(original, methods, subject, label=recipe)
    for recipe, network in networks.items():
      signals.check()
      measured[recipe] = measure(network, subject, folder / _file_name(recipe), metric=metric)
    for other in beside:
      signals.check()
      peer = _open_peer(other, settings, subject, part=part)
      label = files.path(other).name
      measured[label] = measure(network_of(peer), peer, folder / _file_name(label), metric=metric)
    _time(measured, rounds=rounds)
  table = {
    'workdir': str(workdir),
    **({} if part is None else {'part': part}),
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
  """Open a run, or raise ConfigError without its task or evaluation."""
  settings = one_part.settings_of(settings, part, where=f'--part={part}')
  chosen = _evaluation_name(settings, name)
  settings = build.unwrapped(settings)  # `weights` opens parameters with wrappers applied
  folder = RunFolder.at(workdir)
  built = parts.make_parts(settings, parts.make_vocab(settings, folder), folder)
  layout = parts.make_layout(settings)
  feed.check_evaluations({chosen: settings['eval'][chosen]}, mesh=layout.mesh)
  (source,) = parts.make_evaluations(settings, built.vocab, reader=built, names=(chosen,)).values()
  opened = weights.open(folder.root, step=step, part=part)
  return Subject(
    settings=settings, opened=opened, parts=parts.fit(built, [source]), evaluation=chosen, source=source, layout=layout
  )


def _open_peer(workdir: str, settings: Settings, subject: Subject, *, part: str | None) -> Subject:
  """Open another run with the evaluation of the subject."""
  own = config.resolve(config.load(str(RunFolder.at(workdir).config)))
  own_part = part if part in one_part.names(own) else None
  evaluations = settings['eval'] if own_part else subject.settings['eval']
  return open_subject({**own, 'eval': evaluations}, workdir, step=None, name=subject.evaluation, part=own_part)


def network_of(subject: Subject) -> Network:
  """Read the network that a run's task uses, float32, with trained scales."""
  params, saved = subject.opened.params.with_sums(weights.SUMS).tree(), subject.opened.as_saved
  wanted = flat(abstract_params(subject.parts.task, subject.source.spec))
  available = {path: np.asarray(leaf, np.float32) for path, leaf in flat(params).items()}
  if missing := [path for path in wanted if path not in available]:
    raise ConfigError(f'{subject.opened.folder} lacks parameters of its task: {", ".join(missing[:4])}')
  leaves = {path: available[path] for path in wanted}
  scale_paths = training_in_8_bits.places_of_scales(leaves)
  scales = {path: saved[scale].read(None) for path, scale in scale_paths.items() if scale in saved}
  return Network(block=subject.opened.model.block, leaves=leaves, scales=scales)


def measure(network: Network, subject: Subject, folder: Path, *, metric: str) -> Measured:
  """Write a network, read it back and measure everything except time.

  Memory is the increase on the device when the parameters are placed. 'work_bytes' is the additional memory of the
  compiled evaluation of a batch, according to the compiler.
  """
  template = parts.make_template(subject.settings, subject.parts.vocab) if subject.opened.task else None
  save_changed(folder, subject.opened, network.leaves, block=network.block, template=template)
  opened = weights.open(folder)
  trunk = opened.trunk(Execution(**subject.settings['execution']))
  built = parts.fit(parts.parts_of(trunk, subject.settings, subject.parts.vocab), [subject.source])
  task, source, key = built.task, subject.source, jax.random.key(subject.settings['seed'])
  held = jax.live_arrays()  # references that prevent freeing of other arrays in between
  devices = subject.layout.mesh.local_devices
  before = _bytes_in_use(devices)
  params = placed(opened.to_run.tree(), task, source.spec, layout=subject.layout)
  jax.block_until_ready(params)
  memory = _bytes_in_use(devices) - before
  del held
  scores = evaluation.scores_of(subject.settings, built, {subject.evaluation: source})[subject.evaluation]
  steps = evaluation.make_steps(task)
  metrics = evaluation.evaluate(
    source, params, key, task=task, steps=steps, layout=subject.layout, scores=scores, check=signals.check
  ).metrics
  if metric not in metrics:
    raise ConfigError(f'evaluation {subject.evaluation!r} has no metric {metric!r}; metrics: {", ".join(metrics)}')
  call, batch_size, work = _compiled(task, source, params, key, layout=subject.layout)
  leaves = [leaf for path, leaf in network.leaves.items() if not path.endswith(SCALE)]
  row = {
    'folder': str(folder),
    'parameters': sum(leaf.size for leaf in leaves),
    'nonzero': sum(int(np.count_nonzero(leaf)) for leaf in leaves),
    'disk_bytes': sum(files.size(file) for file in files.listing(folder, 'params-*.safetensors')),
    'memory_bytes': memory,
    'work_bytes': work,
    'score': metrics[metric],
    'metrics': metrics,
  }
  row |= {'errors': network.errors} if network.errors else {}
  return Measured(row=row, call=call, batch_size=batch_size)


def _compiled(
  task: Task, source: Source, params: PyTree, key: Array, *, layout: sharding.Layout
) -> tuple[Callable[[], Any], int, int | None]:
  """Compile the evaluation of the first batch.

  Returns a blocking call on this batch, its number of examples, and its memory in bytes besides the arguments.
  """
  _, batch = next(feed.to_devices(source.once(), sharding.batch_sharding(layout)))
  carry = task.init_carry(source.spec['row_id'].shape[0])
  step = jax.jit(lambda params, batch, carry, key: eval_step(params, batch, carry, key, task=task))
  compiled = step.lower(params, batch, carry, key).compile()
  memory = compiled.memory_analysis()
  work = None if memory is None else int(memory.temp_size_in_bytes)
  return lambda: jax.block_until_ready(compiled(params, batch, carry, key)), source.spec['row_id'].shape[0], work


def _bytes_in_use(devices: Sequence[jax.Device]) -> int:
  """Count bytes in use by the devices' statistics or jax's arrays."""
  stats = [device.memory_stats() for device in devices]
  if all(device and 'bytes_in_use' in device for device in stats):
    return sum(device['bytes_in_use'] for device in stats if device)
  return sum(array.nbytes for array in jax.live_arrays())


def _time(measured: Mapping[str, Measured], *, rounds: int) -> None:
  """Add 'milliseconds' per example and 'time_ratio', medians over rounds.

  Every network runs once in each round. Ratios are of the same round, so other load on the machine cancels out.
  """
  seconds: dict[str, list[float]] = {name: [] for name in measured}
  for network in measured.values():
    network.call()  # warm up
  for _ in range(rounds):
    for name, network in measured.items():
      signals.check()
      began = time.perf_counter()
      network.call()
      seconds[name].append((time.perf_counter() - began) / network.batch_size)
  first = next(iter(seconds.values()))
  for name, network in measured.items():
    network.row['milliseconds'] = 1e3 * statistics.median(seconds[name])
    network.row['time_ratio'] = statistics.median(
      own / original for own, original in zip(seconds[name], first, strict=True)
    )


def _with_ratios(measured: Mapping[str, Measured]) -> list[dict[str, Any]]:
  """Build the rows, with ratios to the original (below 1: smaller)."""
  first = measured[ORIGINAL].row
  counted = ('parameters', 'nonzero', 'disk_bytes', 'memory_bytes', 'work_bytes')
  rows = []
  for name, network in measured.items():
    row = network.row
    ratios = {key: row[key] / first[key] for key in counted if first[key] and row[key] is not None}
    rows.append({'method': name, **row, 'ratios': ratios | {'milliseconds': row.pop('time_ratio')}})
  return rows


def as_table(table: Mapping[str, Any]) -> Table:
  """Format the table, with ratios to the original in brackets."""
  metric = table['metric']
  network = f'{table["workdir"]}, part {table["part"]}' if 'part' in table else table['workdir']
  columns = ('method', 'parameters', 'nonzero', 'MB on disk', 'MB of memory', 'MB of work', 'ms/example', metric)
  title = f'{network}: {metric} and cost (x: ratio to the original)'
  show = tables.new(columns, title=title, left=('method',))
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


def _evaluation_name(settings: Settings, name: str | None) -> str:
  """Choose the evaluation: `name`, that of `best`, or the first."""
  names = list(settings['eval'])
  if not names:
    raise ConfigError('compress: the run has no evaluation to score with: set --config.eval')
  if name is not None and name not in names:
    raise ConfigError(f'--evaluation={name}: not in config.eval; choices: {", ".join(map(repr, names))}')
  best = settings['best'][0].partition('/')[0] if settings['best'] else names[0]
  return name or best


def _file_name(recipe: str) -> str:
  return re.sub(r'[^\w.+-]', '-', recipe)


def _check_out(out: Path, workdir: Path, names: Sequence[str]) -> None:
  if files.is_inside(out, workdir) or files.absolute(out) == files.absolute(workdir):
    raise ConfigError(f'--out={out} is inside the run folder, which is never changed: choose another folder')
  run_paths.check_new_folder(out, name='--out')
  if len({*map(_file_name, names), ORIGINAL}) <= len(names):
    raise ConfigError(f'--methods and --beside: two results have the same name: {", ".join([ORIGINAL, *names])}')
  for name in (ORIGINAL, *names):
    target = out / _file_name(name)
    if files.listing(target) and not files.is_file(target / 'params.index.json'):
      raise ConfigError(f'{target} is not empty and not from this command: choose another --out')
