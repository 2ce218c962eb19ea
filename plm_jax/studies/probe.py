"""The same probe on each layer of a frozen trunk, and on a learned mix of all: a table and a picture.

The engine of `plm-jax probe`. A probe is an ordinary run of adapter `tag` or `classify`, so that it can be
resumed, evaluated and compared as any other.
"""

import logging
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.table import Table

from plm_jax.cli import pictures, signals, tables
from plm_jax.core.errors import ConfigError
from plm_jax.io import files, run_paths
from plm_jax.io.files import Where
from plm_jax.noise.keys import with_step
from plm_jax.runs.metrics import write_json
from plm_jax.training import loop, parts
from plm_jax.training.before import from_data
from plm_jax.training.parts import Settings

log = logging.getLogger(__name__)

MIX = 'mix'
Layer = int | str  # a number, or MIX
ADAPTERS = ('tag', 'classify')


def run_study(
  settings: Settings, workdir: Where, *, layers: Sequence[Layer] | None, seeds: int, beside: Sequence[Where] = ()
) -> dict[str, Any]:
  """Trains the probes that are missing, prints the table and draws the picture.

  Args:
    settings: of a run of adapter `tag` or `classify`; the metric of `best` counts.
    workdir: where `table.json`, `layers.png` and the folders of the probes go.
    layers: which; None for all and their mix.
    seeds: probes of each layer, the seeds 0 to seeds - 1 of `config.seed`.
    beside: folders of other probes, whose curves are drawn too.

  Returns:
    The table, as `table.json` holds it.

  Raises:
    ConfigError: the settings are not those of a probe, the trunk has no such layer, or a folder has no table.
  """
  adapter = settings['adapter'] or {}
  if adapter.get('name') not in ADAPTERS or settings['best'] is None:
    raise ConfigError(f'probe needs a config with adapter {" or ".join(ADAPTERS)}, and with a metric in config.best')
  folder, (metric, better) = files.local_path(workdir, what='--workdir'), settings['best']
  run_paths.check_no_run(folder, name='--workdir')
  run_paths.check_new_folder(folder, name='--workdir')
  others = [_read(files.path(folder)) for folder in beside]
  last = _last_layer(settings)
  chosen: list[Layer] = [*range(last + 1), MIX] if layers is None else list(dict.fromkeys(layers))
  if unknown := [layer for layer in chosen if layer != MIX and not 0 <= int(layer) <= last]:
    raise ConfigError(f"--layers={unknown[0]}: the trunk has layers 0, its embeddings, to {last}; or 'mix'")
  rows = []
  for layer in chosen:
    scores = [_score(settings, folder, layer, seed=seed, last=last) for seed in range(seeds)]
    rows.append({'layer': layer, 'scores': scores, 'mean': statistics.fmean(scores)})
  table = {'name': folder.name, 'metric': metric, 'best': better, 'seeds': seeds, 'rows': rows}
  write_json(folder / 'table.json', table)
  show(table)
  draw([table, *others], folder / 'layers.png')
  return table


def probe_of(settings: Settings, layer: Layer, *, seed: int, last: int) -> Settings:
  """The settings of the probe of one layer.

  Args:
    settings: of any run of the adapter.
    layer: a number, or MIX for all with weights that are learned.
    seed: of the probe.
    last: number of the trunk's last layer.
  """
  # the last layer is read behind the trunk's last norm, where it has one
  numbers = (*range(last), -1) if layer == MIX else (-1 if layer == last else layer,)
  read = dict(layers=numbers, join='mix' if layer == MIX else 'concat')
  adapter = {**settings['adapter'], **read, 'layer_weights': (), 'frozen': True}
  if adapter['name'] == 'classify':  # its one layer, and a language model that would train the trunk
    adapter |= {'layer': -1, 'lm_weight': 0.0}
  save = 'trained' if settings['init_from'] else settings['save']  # checkpoints without the trunk
  return {**settings, 'adapter': adapter, 'seed': seed, 'save': save}


def _last_layer(settings: Settings) -> int:
  """The number of the trunk's last layer; its embeddings are 0. Nothing is computed."""
  settings = from_data.filled(settings)
  made = parts.make_parts(settings, parts.make_vocab(settings))
  spec = dict(parts.make_source(settings['data'], made.vocab, seed=settings['seed'], reader=made).spec)
  key = jax.random.key(0)
  inputs = jax.eval_shape(lambda batch: made.task.prepare(key, with_step(batch, 0)), spec).inputs
  inputs = {name: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype) for name, leaf in inputs.items()}
  out, _ = jax.eval_shape(lambda key: made.trunk.init_with_output(key, **inputs), key)
  return len(out['layers']) - 1


def _score(settings: Settings, folder: Path, layer: Layer, *, seed: int, last: int) -> float:
  """The metric of one probe, which is trained if it is not finished."""
  signals.check()
  one = probe_of(settings, layer, seed=settings['seed'] + seed, last=last)
  outcome = loop.train(one, folder / f'layer_{layer}_seed_{seed}')
  if outcome.exit_code == loop.INTERRUPTED:
    raise signals.Interrupted('stopped by a signal: the same command goes on from here', signals.STOPPED)
  if outcome.exit_code != loop.DONE:
    raise ConfigError(f'the probe in {folder / f"layer_{layer}_seed_{seed}"} diverged: lower config.optim.rate')
  metric = settings['best'][0]
  log.info(f'layer {layer}, seed {seed}: {metric} {outcome.result["metrics"][metric]:.4f}')
  return float(outcome.result['metrics'][metric])


def _read(folder: Path) -> dict[str, Any]:
  """The table of another study.

  Raises:
    ConfigError: there is none, or it is that of something else than probes.
  """
  try:
    table: dict[str, Any] = files.read_json(folder / 'table.json')
    if not _is_of_probes(table):
      raise ValueError('its table.json has no scores of layers')
  except FileNotFoundError:
    raise ConfigError(f'--beside={folder}: there is no {folder / "table.json"}, which plm-jax probe writes') from None
  except (OSError, ValueError) as error:
    raise ConfigError(f'--beside={folder}: is no folder of `plm-jax probe`: {error}') from None
  return table


def _is_of_probes(table: Any) -> bool:
  """Whether a table has a name, a metric, and rows with a layer, scores and their mean."""
  if not isinstance(table, dict) or not all(isinstance(table.get(key), str) for key in ('name', 'metric')):
    return False
  rows = table.get('rows')
  return isinstance(rows, list) and all(
    isinstance(row, dict)
    and (isinstance(row.get('layer'), int) or row.get('layer') == MIX)
    and isinstance(row.get('scores'), list)
    and all(isinstance(number, int | float) for number in (row.get('mean'), *row['scores']))
    for row in rows
  )


def show(table: Mapping[str, Any]) -> None:
  """Prints a table; the layer with the best mean is marked, the lowest or the highest as `best` of the config says."""
  choose = min if table['best'] == 'min' else max
  best = choose(table['rows'], key=lambda row: row['mean'])
  printed = Table(title=f'{table["metric"]} of the same probe on each layer, {table["seeds"]} seeds')
  for column in ('layer', 'mean', 'lowest', 'highest', ''):
    printed.add_column(column, justify='right')
  for row in table['rows']:
    numbers = (row['mean'], min(row['scores']), max(row['scores']))
    printed.add_row(str(row['layer']), *(f'{number:.4f}' for number in numbers), '<' if row is best else '')
  tables.show(printed)


def draw(all_tables: Sequence[Mapping[str, Any]], file: Path) -> None:
  """A curve over the layers for each table, and the mix of all layers as a dashed line."""
  from matplotlib.figure import Figure
  from matplotlib.ticker import MaxNLocator

  figure = Figure(figsize=(6.4, 4.2), layout='constrained')
  axes = figure.subplots()
  for number, table in enumerate(all_tables):
    colour = pictures.COLOURS[number % len(pictures.COLOURS)]
    rows = sorted((row for row in table['rows'] if row['layer'] != MIX), key=lambda row: row['layer'])
    name, metric = pictures.label(table['name']), pictures.plain(table['metric'])
    layers, means = [row['layer'] for row in rows], [row['mean'] for row in rows]
    axes.plot(layers, means, '-o', color=colour, label=f'{name}, {metric}')
    for row in rows:
      axes.plot([row['layer']] * len(row['scores']), row['scores'], '.', color=colour, alpha=0.4)
    for row in table['rows']:
      if row['layer'] == MIX:
        axes.axhline(row['mean'], linestyle='--', color=colour, label=f'{name}, mix of all')
  axes.set(xlabel='layer (0: embeddings)', ylabel='score')
  axes.xaxis.set_major_locator(MaxNLocator(integer=True))
  axes.grid(alpha=0.25)
  axes.legend(frameon=False)
  with files.replacing(file) as temporary:
    figure.savefig(temporary, format='png', dpi=120)
