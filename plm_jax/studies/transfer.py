"""Fine-tuning from pre-trained parameters against training from scratch, at several sizes of labelled data.

The engine of `python -m plm_jax.sample_efficiency`. All runs share one task and one schedule length, and those with the
same learning rate one compiled step, so that a run costs no more than its steps.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.table import Table

from plm_jax import files, optim, sharding
from plm_jax.cli import pictures, signals, tables
from plm_jax.errors import ConfigError, stage
from plm_jax.files import Where
from plm_jax.training import evaluation, feed, from_data, history, preflight
from plm_jax.training.metrics import write_json
from plm_jax.training.parts import (
  check_vocab_of,
  init_params_from,
  make_evaluations,
  make_layout,
  make_parts,
  make_source,
  make_vocab,
)
from plm_jax.training.step import TrainState, abstract_params, advance_first, state_maker, train_step
from plm_jax.types import Source

log = logging.getLogger(__name__)

STARTS = ('scratch', 'pretrained')
SCORES = ('validation', 'test', 'train')  # at the end of a run


class Cell(NamedTuple):
  """One run of the study.

  Attributes:
    start: 'scratch' or 'pretrained'.
    size: labelled examples per class.
    seed: of the examples, the head, the order and the dropout.
    rate: learning rate.
  """

  start: str
  size: int
  seed: int
  rate: float


def run_study(
  settings: Mapping[str, Any],
  workdir: Where,
  *,
  sizes: Sequence[int],
  seeds: int,
  rates: Sequence[float],
  metric: str = 'accuracy',
) -> dict[str, Any]:
  """Runs what has not been run yet, prints the table and draws the curves.

  Args:
    settings: of a fine-tuning run with `init_from`; evaluations `validation` and `test`.
    workdir: where `runs.jsonl`, `table.json` and `curves.png` go.
    sizes: labelled examples per class.
    seeds: number of seeds per size and start.
    rates: learning rates; the best one on validation is reported.
    metric: of the evaluations; larger is better.

  Returns:
    The table, as `table.json` holds it.

  Raises:
    ConfigError: the settings are not those of such a study.
  """
  missing = [name for name in ('validation', 'test') if name not in settings['eval']]
  if missing or not settings['init_from'] or settings['steps'] is None or 'per_class' not in settings['data']:
    raise ConfigError(
      'sample_efficiency needs a config with steps, init_from, labelled data, and evaluations validation and test'
    )
  settings, folder = from_data.filled(settings), files.local_path(workdir, what='--workdir')
  cells = [Cell(*cell) for cell in itertools.product(STARTS, sizes, range(seeds), rates)]
  done = _run_missing(settings, cells, record=folder / 'runs.jsonl', metric=metric)
  chosen = {
    key: max((done[Cell(*key, rate)] for rate in rates), key=lambda row: row['validation'])
    for key in itertools.product(STARTS, sizes, range(seeds))
  }
  table = summarise(chosen, sizes=sizes, seeds=seeds, metric=metric)
  write_json(folder / 'table.json', table)
  print_table(table)
  draw(table, chosen, folder / 'curves.png')
  return table


def _run_missing(
  settings: Mapping[str, Any], cells: Sequence[Cell], *, record: Path, metric: str
) -> dict[Cell, dict[str, Any]]:
  """What came out of each cell: read from `record`, or run and appended to it, one JSON object per line."""
  kept = {key: value for key, value in settings.items() if key not in history.ON_ITS_WAY}
  fingerprint = hash_text(json.dumps(kept, sort_keys=True))
  done: dict[Cell, dict[str, Any]] = {}
  for number, line in enumerate(files.read_bytes(record).splitlines() if files.exists(record) else (), start=1):
    try:
      row = files.parse_json(line.decode())
      if row.pop('settings') == fingerprint:
        _check_row(row)
        done[Cell(*row['cell'])] = row
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # torn as a process was killed, or damaged
      log.warning('%s, line %d cannot be read (%s): its run is repeated', record, number, error)
  left = [cell for cell in cells if cell not in done]
  if not left:
    return done
  largest = {**settings, 'data': {**settings['data'], 'per_class': max(cell.size for cell in left)}}
  preflight.check(largest, scored=(f'validation/{metric}', f'test/{metric}'))  # before the folder is made
  files.make_folder(record.parent)
  trainer = Trainer(settings, metric=metric)
  for number, cell in enumerate(left, start=1):
    began = time.monotonic()
    try:
      row = {'cell': cell, **trainer.run(cell), 'seconds': round(time.monotonic() - began, 2)}
    except signals.Interrupted:
      if not done:
        raise
      said = f'stopped by a signal: {len(done)} of {len(cells)} runs are in {record}, the same command makes the others'
      raise signals.Interrupted(said, signals.STOPPED) from None
    done[cell] = row
    files.append_line(record, json.dumps({**row, 'settings': fingerprint}))
    log.info(
      f'{number}/{len(left)}  {cell.start}, {cell.size} per class, seed {cell.seed}, rate {cell.rate:g}: '
      f'validation {metric} {row["validation"]:.3f}  ({row["seconds"]:.1f} s)'
    )
  return done


def _check_row(row: Mapping[str, Any]) -> None:
  """Raises ValueError for a run without its curve or one of its scores."""
  missing = [name for name in SCORES if not isinstance(row.get(name), int | float)]
  missing += [] if isinstance(row.get('curve'), list) else ['curve']
  if missing:
    raise ValueError(f'it has no {" and no ".join(missing)}')


class Trainer:
  """Everything that the runs share; `run` trains one of them."""

  def __init__(self, settings: Mapping[str, Any], *, metric: str):
    self._settings, self._metric = settings, metric
    signals.check()
    self._vocab = make_vocab(settings)
    self._parts = make_parts(settings, self._vocab)
    self._task = self._parts.task
    self._layout = make_layout(settings)
    self._sources = make_evaluations(settings, self._vocab, reader=self._parts, names=('validation', 'test'))
    signals.check()
    for entry in settings['init_from']:
      check_vocab_of(entry, self._vocab, self._parts.second_vocab)
    self._eval = evaluation.make_steps(self._task)
    self._scores = evaluation.scores_of(settings, self._parts, self._sources)
    self._compiled: dict[float, tuple[Any, Callable[..., Any], Any]] = {}

  def _at_rate(self, rate: float, spec: Mapping[str, jax.ShapeDtypeStruct]) -> tuple[Any, Callable[..., Any], Any]:
    """The optimiser, the compiled step and the maker of states at a learning rate."""
    if rate not in self._compiled:
      optim_settings = {**self._settings['optim'], 'rate': rate}
      with stage('optim'):
        shapes, steps = abstract_params(self._task, spec), self._settings['steps']
        tx = optim.make(params=shapes, steps=steps, trains=self._task.trains, **optim_settings)
      step = functools.partial(
        train_step,
        task=self._task,
        tx=tx,
        accumulate=self._settings['accumulate'],
        random=self._settings['execution']['random'],
      )
      self._compiled[rate] = tx, jax.jit(step, donate_argnums=0), state_maker(self._task, tx, spec, layout=self._layout)
    return self._compiled[rate]

  def run(self, cell: Cell) -> dict[str, Any]:
    """Trains one cell.

    Returns:
      'curve': (step, score) on validation along the way; 'validation', 'test', 'train': scores at the end.
    """
    steps = self._settings['steps']
    with sharding.use(self._layout):
      data = {**self._settings['data'], 'per_class': cell.size, 'sample_seed': cell.seed}
      source = make_source(data, self._vocab, seed=cell.seed, reader=self._parts)
      tx, step, maker = self._at_rate(cell.rate, source.spec)
      key = jax.random.key(cell.seed)
      state = maker.fresh(key)
      if cell.start == 'pretrained':
        with stage('init_from'):
          params, _ = init_params_from(self._settings, self._parts, state.params, names=source.names)
        state = dataclasses.replace(state, params=params)
      state = advance_first(state, maker, task=self._task)
      batches = feed.to_devices(source.read(0), sharding.batch_sharding(self._layout))
      checks = {round(steps / 3), round(steps * 2 / 3)}
      curve = []
      for done, (_, batch) in enumerate(itertools.islice(batches, steps), start=1):
        signals.check()
        state, sums = step(state, batch, key)
        if done in checks:
          curve.append((done, self._score('validation', tx, state, key)))
        elif done % 8 == 0 or feed.simulated(self._layout.mesh):
          jax.block_until_ready(sums)
      curve.append((steps, self._score('validation', tx, state, key)))
      train = self._score(source, tx, state, key)
      return {'curve': curve, 'validation': curve[-1][1], 'test': self._score('test', tx, state, key), 'train': train}

  def _score(self, source: str | Source, tx: optim.Optimiser, state: TrainState, key: jax.Array) -> float:
    scores = self._scores[source if isinstance(source, str) else 'validation']
    source = self._sources[source] if isinstance(source, str) else source
    params = tx.eval_params(state.opt_state, state.params)
    means = evaluation.evaluate(
      source, params, key, task=self._task, steps=self._eval, layout=self._layout, scores=scores
    ).metrics
    return means[self._metric]


# The report ----------------------------------------------------------------------------------------------------------


def hash_text(text: str) -> str:
  """Short digest of the settings that a run was made under."""
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def summarise(
  chosen: Mapping[tuple[str, int, int], Mapping[str, Any]], *, sizes: Sequence[int], seeds: int, metric: str
) -> dict[str, Any]:
  """Test scores by start and size, of the runs that validation chose."""
  rows = []
  for size in sizes:
    row: dict[str, Any] = {'labels_per_class': size}
    for start in STARTS:
      runs = [chosen[start, size, seed] for seed in range(seeds)]
      row[start] = [run['test'] for run in runs]
      row[f'{start}_rates'] = [run['cell'][3] for run in runs]
      row[f'{start}_overfit'] = [run['train'] - run['test'] for run in runs]
    row['wins'] = sum(p > s for p, s in zip(row['pretrained'], row['scratch'], strict=True))
    rows.append(row)
  return {'metric': metric, 'seeds': seeds, 'rows': rows}


def print_table(table: Mapping[str, Any]) -> None:
  """Prints the table: mean and range over seeds, and by how much the training score exceeds test (overfitting)."""
  show = Table(title=f'Test {table["metric"]}, mean of {table["seeds"]} seeds (lowest to highest)')
  columns = ('labels per class', 'from scratch', 'pre-trained', 'gain', 'seeds won', 'overfit: scratch', 'pre-trained')
  for column in columns:
    show.add_column(column, justify='right', min_width=max(map(len, column.split())))

  def spread(values: Iterable[float]) -> str:
    values = list(values)
    return f'{np.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})'

  for row in table['rows']:
    show.add_row(
      str(row['labels_per_class']),
      spread(row['scratch']),
      spread(row['pretrained']),
      f'{np.mean(row["pretrained"]) - np.mean(row["scratch"]):+.3f}',
      f'{row["wins"]} of {table["seeds"]}',
      f'{np.mean(row["scratch_overfit"]):+.3f}',
      f'{np.mean(row["pretrained_overfit"]):+.3f}',
    )
  tables.show(show)


def draw(table: Mapping[str, Any], chosen: Mapping[tuple[str, int, int], Mapping[str, Any]], file: Path) -> None:
  """Left: test score by size of the labelled set. Right: validation score by training step, at the smallest size."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(11, 4.2), layout='constrained')
  left, right = figure.subplots(1, 2)
  colours = dict(zip(('pretrained', 'scratch'), pictures.COLOURS, strict=False))
  names = {'scratch': 'from scratch', 'pretrained': 'pre-trained'}
  sizes, metric = [row['labels_per_class'] for row in table['rows']], pictures.plain(table['metric'])
  for start in STARTS:
    means = [np.mean(row[start]) for row in table['rows']]
    left.plot(sizes, means, '-o', color=colours[start], label=names[start])
    for row in table['rows']:
      left.plot([row['labels_per_class']] * len(row[start]), row[start], '.', color=colours[start], alpha=0.4)
    curves = [np.array(chosen[start, sizes[0], seed]['curve']) for seed in range(table['seeds'])]
    for curve in curves:
      right.plot(curve[:, 0], curve[:, 1], color=colours[start], alpha=0.3)
    mean = np.mean([curve[:, 1] for curve in curves], axis=0)
    right.plot(curves[0][:, 0], mean, '-o', color=colours[start], label=names[start])
  left.set(xscale='log', xlabel='labelled examples per class', ylabel=f'test {metric}', ylim=(0, 1))
  left.set_xticks(sizes, [str(size) for size in sizes])
  left.minorticks_off()
  left.set_title('Test score by size of the labelled set')
  right.set(xlabel='fine-tuning step', ylabel=f'validation {metric}', ylim=(0, 1))
  right.set_title(f'Convergence with {sizes[0]} labels per class')
  for axes in (left, right):
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc='upper left')
  with files.replacing(file) as temporary:
    figure.savefig(temporary, format='png', dpi=120)
