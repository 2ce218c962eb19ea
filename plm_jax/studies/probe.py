"""Train the same probe on each layer of a frozen trunk, and on a learned mix of all.

The engine of `plm-jax probe`. A probe is an ordinary run of adapter `tag` or `classify`, so it can be resumed,
evaluated and compared like any other run.
"""

import logging
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.cli import pictures, signals, tables
from plm_jax.core.errors import ConfigError
from plm_jax.io import checksums, files, run_paths
from plm_jax.io.files import Where
from plm_jax.noise.keys import with_step
from plm_jax.runs.metrics import write_json
from plm_jax.training import loop, parts
from plm_jax.training.before import from_data
from plm_jax.training.parts import Settings

log = logging.getLogger(__name__)

MIX = 'mix'
Layer = int | str  # index, or MIX
ADAPTERS = ('tag', 'classify')


def run_study(
  settings: Settings, workdir: Where, *, layers: Sequence[Layer] | None, seeds: int, beside: Sequence[Where] = ()
) -> dict[str, Any]:
  """Train the missing probes, print the table and plot the layers.

  Returns the content of `table.json`. Raises ConfigError: the settings are not those of a probe, the trunk has no such
  layer, or a folder has no table.

  Args:
    settings: settings of a run of adapter `tag` or `classify`; the metric in `best` is reported.
    workdir: folder of `table.json`, `layers.png` and the folders of the probes.
    layers: layers to probe; None means all and their mix.
    seeds: probes of each layer, with seeds from `config.seed` on.
    beside: folders of other probes, whose curves are plotted too.
  """
  adapter = settings['adapter'] or {}
  if adapter.get('name') not in ADAPTERS or settings['best'] is None:
    raise ConfigError(f'probe: the config needs adapter {" or ".join(ADAPTERS)}, and a metric in config.best')
  folder, (metric, better) = files.local_path(workdir, what='--workdir'), settings['best']
  run_paths.check_no_run(folder, name='--workdir')
  run_paths.check_new_folder(folder, name='--workdir')
  others = [_read(files.path(folder)) for folder in beside]
  last = _last_layer(settings)
  chosen: list[Layer] = [*range(last + 1), MIX] if layers is None else list(dict.fromkeys(layers))
  if unknown := [layer for layer in chosen if layer != MIX and not 0 <= int(layer) <= last]:
    raise ConfigError(f"--layers={unknown[0]}: expected 0 (the embeddings) to {last}, or 'mix'")
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
  """Build the settings of the probe of one layer, or MIX.

  `last` is the index of the trunk's last layer.
  """
  # -1 is the last layer after the trunk's final norm, if it has one
  indices = (*range(last), -1) if layer == MIX else (-1 if layer == last else layer,)
  inputs = dict(layers=indices, join='mix' if layer == MIX else 'concat')
  adapter = {**settings['adapter'], **inputs, 'layer_weights': (), 'frozen': True}
  # an own layer of the adapter, and a language-model loss that would train the trunk, are reset
  adapter |= {key: value for key, value in {'layer': -1, 'lm_weight': 0.0}.items() if key in adapter}
  save = 'trained' if settings['init_from'] else settings['save']  # checkpoints without the trunk
  return {**settings, 'adapter': adapter, 'seed': seed, 'save': save}


def _last_layer(settings: Settings) -> int:
  """Return the index of the last layer, from shapes alone."""
  settings = from_data.filled(settings)
  built = parts.make_parts(settings, parts.make_vocab(settings))
  spec = dict(parts.make_source(settings['data'], built.vocab, seed=settings['seed'], reader=built).spec)
  key = jax.random.key(0)
  inputs = jax.eval_shape(lambda batch: built.task.prepare(key, with_step(batch, 0)), spec).inputs
  inputs = {name: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype) for name, leaf in inputs.items()}
  out, _ = jax.eval_shape(lambda key: built.trunk.init_with_output(key, **inputs), key)
  return len(out['layers']) - 1


def _score(settings: Settings, folder: Path, layer: Layer, *, seed: int, last: int) -> float:
  """Train a probe if it is not finished, and return its metric."""
  signals.check()
  probe = probe_of(settings, layer, seed=settings['seed'] + seed, last=last)
  outcome = loop.train(probe, folder / f'layer_{layer}_seed_{seed}')
  if outcome.exit_code == loop.INTERRUPTED:
    raise signals.Interrupted('stopped by a signal: the same command resumes', signals.STOPPED)
  if outcome.exit_code != loop.DONE:
    raise ConfigError(f'the probe in {folder / f"layer_{layer}_seed_{seed}"} diverged: lower config.optim.rate')
  metric = settings['best'][0]
  log.info(f'layer {layer}, seed {seed}: {metric} {outcome.result["metrics"][metric]:.4f}')
  return float(outcome.result['metrics'][metric])


def _read(folder: Path) -> dict[str, Any]:
  """Read a study's table of probes, or raise ConfigError."""
  try:
    table: dict[str, Any] = checksums.read_json(folder / 'table.json')
    if not _is_probe_table(table):
      raise ValueError('table.json has no scores of layers')
  except FileNotFoundError:
    raise ConfigError(
      f'--beside={folder}: there is no {folder / "table.json"}; name the --workdir of a plm-jax probe'
    ) from None
  except (OSError, ValueError) as error:
    raise ConfigError(f'--beside={folder}: not the folder of a plm-jax probe: {error}') from None
  return table


def _is_probe_table(table: Any) -> bool:
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
  """Print a table; the layer with the best mean is marked."""
  choose = min if table['best'] == 'min' else max
  best = choose(table['rows'], key=lambda row: row['mean'])
  title = f'{table["metric"]} of the same probe on each layer, {table["seeds"]} seeds'
  printed = tables.new(('layer', 'mean', 'lowest', 'highest', ''), title=title)
  for row in table['rows']:
    scores = (row['mean'], min(row['scores']), max(row['scores']))
    printed.add_row(str(row['layer']), *(f'{score:.4f}' for score in scores), '<' if row is best else '')
  tables.show(printed)


def draw(all_tables: Sequence[Mapping[str, Any]], file: Path) -> None:
  """Plot each table as a curve over layers, mixes as dashed lines."""
  from matplotlib.ticker import MaxNLocator

  figure = pictures.new(6.4, 4.2)
  axes = figure.subplots()
  for index, table in enumerate(all_tables):
    colour = pictures.COLOURS[index % len(pictures.COLOURS)]
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
  pictures.save(figure, file, dpi=120)
