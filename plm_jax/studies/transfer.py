"""Compare fine-tuning with training from scratch, at several sizes of labelled data.

The engine of `plm-jax sample_efficiency`. All runs share one task and number of steps. Runs with the same learning rate
share one compiled step, so a run costs no more than its steps.

A line of `runs.jsonl` is a finished run, with a checksum of its settings and of its data and parameters (`Origins`). It
is reused if all of these are unchanged; otherwise the run is repeated, and the log names what changed. A line of an
earlier version has no such checksums, so its run is repeated as well.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.table import Table

from plm_jax import optim
from plm_jax.cli import pictures, signals, tables
from plm_jax.core import errors, sharding
from plm_jax.core.errors import ConfigError, stage
from plm_jax.core.types import Source
from plm_jax.io import checksums, files
from plm_jax.io.files import Where
from plm_jax.runs import history
from plm_jax.runs.metrics import write_json
from plm_jax.training import evaluation, feed
from plm_jax.training.before import from_data, preflight
from plm_jax.training.init_sources import check_sources, check_vocab_of, init_params_from, source_digest
from plm_jax.training.parts import Parts, make_evaluations, make_layout, make_parts, make_source, make_vocab
from plm_jax.training.step import TrainState, abstract_params, advance_first, state_maker, train_step

log = logging.getLogger(__name__)

STARTS = ('scratch', 'pretrained')
SCORES = ('validation', 'test', 'train')  # final scores of a run
EVALUATIONS = ('validation', 'test')
DIGITS = 16  # of a digest

Digests = dict[str, str]  # config key, such as 'data' or 'init_from.0' -> digest of its content


class Cell(NamedTuple):
  """One run of the study."""

  start: str  # 'scratch' or 'pretrained'
  size: int  # labelled examples per class
  seed: int  # random seed of the examples, the head, the order and dropout
  rate: float  # learning rate


def run_study(
  settings: Mapping[str, Any],
  workdir: Where,
  *,
  sizes: Sequence[int],
  seeds: int,
  rates: Sequence[float],
  metric: str = 'accuracy',
) -> dict[str, Any]:
  """Train the missing runs, print the table and plot the curves.

  Returns the content of `table.json`. Raises ConfigError: the settings do not fit, a size or rate is given twice, or a
  folder of `init_from` is missing, even if all runs are finished.

  Args:
    settings: settings of a fine-tuning run with `init_from` and evaluations `validation` and `test`.
    workdir: folder of `runs.jsonl`, `table.json` and `curves.png`.
    sizes: labelled examples per class.
    seeds: number of seeds per size and start.
    rates: learning rates; the best one on validation is reported.
    metric: metric of the evaluations; larger is better.
  """
  missing = [name for name in EVALUATIONS if name not in settings['eval']]
  if missing or not settings['init_from'] or settings['steps'] is None or 'per_class' not in settings['data']:
    raise ConfigError(
      'sample_efficiency: the config needs steps, init_from, data.per_class, and evaluations validation and test'
    )
  for flag, values in (('sizes', sizes), ('rates', rates)):
    if twice := [value for value, count in Counter(values).items() if count > 1]:
      raise ConfigError(f'--{flag}: {twice[0]:g} is given twice: remove one of them')
  settings, folder = from_data.filled(settings), files.local_path(workdir, what='--workdir')
  keys = list(itertools.product(STARTS, sizes, range(seeds)))
  cells = {
    (start, size, seed): [Cell(start=start, size=size, seed=seed, rate=rate) for rate in rates]
    for start, size, seed in keys
  }
  done = _run_missing(
    settings, [cell for at_rates in cells.values() for cell in at_rates], record=folder / 'runs.jsonl', metric=metric
  )
  chosen = {key: max((done[cell] for cell in cells[key]), key=lambda row: row['validation']) for key in keys}
  table = summarise(chosen, sizes=sizes, seeds=seeds, metric=metric)
  write_json(folder / 'table.json', table)
  print_table(table)
  draw(table, chosen, folder / 'curves.png')
  return table


def _run_missing(
  settings: Mapping[str, Any], cells: Sequence[Cell], *, record: Path, metric: str
) -> dict[Cell, dict[str, Any]]:
  """Return each cell's result; train missing ones and append them to `record`."""
  fixed = {key: value for key, value in settings.items() if key not in history.ON_ITS_WAY}
  fingerprint = hash_text(json.dumps(fixed, sort_keys=True))
  check_sources(settings['init_from'])  # without their source, finished runs cannot be verified
  origins = Origins(settings)
  done = _finished(_lines(record, fingerprint, steps=settings['steps']), cells, origins, record=record)
  left = [cell for cell in cells if cell not in done]
  if not left:
    return done
  largest = {**settings, 'data': {**settings['data'], 'per_class': max(cell.size for cell in left)}}
  preflight.check(largest, scored=(f'validation/{metric}', f'test/{metric}'))  # before the folder is made
  files.make_folder(record.parent)
  trainer = Trainer(settings, metric=metric)
  for index, cell in enumerate(left, start=1):
    began = time.monotonic()
    try:
      made_from = origins.of(cell)
      row = {'cell': cell, **trainer.run(cell), 'made_from': made_from, 'seconds': round(time.monotonic() - began, 2)}
    except signals.Interrupted:
      if not done:
        raise
      message = f'stopped by a signal: {len(done)} of {len(cells)} runs are in {record}; the same command resumes'
      raise signals.Interrupted(message, signals.STOPPED) from None
    done[cell] = row
    files.append_line(record, json.dumps(checksums.sealed({**row, 'settings': fingerprint})))
    log.info(
      f'{index}/{len(left)}  {cell.start}, {cell.size} per class, seed {cell.seed}, rate {cell.rate:g}: '
      f'validation {metric} {row["validation"]:.3f}  ({row["seconds"]:.1f} s)'
    )
  return done


def _lines(record: Path, fingerprint: str, *, steps: int) -> dict[Cell, list[dict[str, Any]]]:
  """Read the recorded runs of some settings, by cell."""
  by_cell: dict[Cell, list[dict[str, Any]]] = {}
  for number, line in enumerate(files.read_bytes(record).splitlines() if files.exists(record) else (), start=1):
    try:
      row = checksums.unsealed(files.parse_json(line.decode()))
      if row.pop('settings') == fingerprint:
        _check_row(row, steps=steps)
        by_cell.setdefault(Cell._make(row['cell']), []).append(row)
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # torn by a kill, or damaged
      log.warning('%s, line %d cannot be read (%s): its run is repeated', record, number, error)
  return by_cell


def _finished(
  lines: Mapping[Cell, Sequence[dict[str, Any]]], cells: Sequence[Cell], origins: 'Origins', *, record: Path
) -> dict[Cell, dict[str, Any]]:
  """Select the runs that need no repetition; log why others do."""
  done: dict[Cell, dict[str, Any]] = {}
  repeated: Counter[str] = Counter()
  for cell in (cell for cell in cells if cell in lines):
    now = origins.of(cell)
    if same := [row for row in lines[cell] if row.get('made_from') == now]:
      done[cell] = same[-1]
      continue
    earlier = [row['made_from'] for row in lines[cell] if isinstance(row.get('made_from'), Mapping)]
    if earlier:
      changed = min(([key for key in {**old, **now} if old.get(key) != now.get(key)] for old in earlier), key=len)
      repeated[f'{", ".join(map(origins.shown, changed))} changed'] += 1
    else:
      repeated['they are of an earlier version, which stored no checksums of their data'] += 1
  for reason, count in repeated.items():
    log.warning(f'{record}: {errors.counted(count, "finished run")} of these settings will be repeated: {reason}')
  return done


def _check_row(row: Mapping[str, Any], *, steps: int) -> None:
  """Raise ValueError for a run with missing scores."""
  missing = [name for name in SCORES if not _is_score(row.get(name))]
  if missing:
    raise ValueError(f'it has no {" and no ".join(missing)}')
  curve: Any = row.get('curve')
  pairs = isinstance(curve, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in curve)
  curve = curve if pairs else []
  if [step for step, _ in curve] != _checks(steps) or not all(_is_score(score) for _, score in curve):
    raise ValueError(f'it has no curve of (step, score) at steps {_checks(steps)}')


def _is_score(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


def _checks(steps: int) -> list[int]:
  return [*sorted({round(steps / 3), round(steps * 2 / 3)} & set(range(1, steps + 1))), steps]


def _data_of(settings: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
  return {**settings['data'], 'per_class': cell.size, 'sample_seed': cell.seed}


class Origins:
  """Checksums of the data and parameters of runs, computed once on demand, on the CPU."""

  def __init__(self, settings: Mapping[str, Any]):
    self._settings = settings
    self._rows: dict[tuple[int, int], str] = {}

  def of(self, cell: Cell) -> Digests:
    """Return a run's checksums, if pre-trained those of `init_from` too."""
    if cell[1:3] not in self._rows:
      data = _data_of(self._settings, cell)
      source = make_source(data, self._parts.vocab, seed=cell.seed, reader=self._parts)
      self._rows[cell[1:3]] = _rows_digest(source)
    start = self._start if cell.start == 'pretrained' else {}
    return {**self._shared, 'data': self._rows[cell[1:3]], **start}

  def shown(self, key: str) -> str:
    """Format a config key with its folder for messages."""
    entries = {f'init_from.{i}': entry['source'] for i, entry in enumerate(self._settings['init_from'])}
    return f'{key} ({entries[key]})' if key in entries else key

  @functools.cached_property
  def _parts(self) -> Parts:
    return make_parts(self._settings, make_vocab(self._settings))

  @functools.cached_property
  def _shared(self) -> Digests:
    vocab, second = self._parts.vocab, self._parts.second_vocab
    vocabs = {'vocab': vocab.digest[:DIGITS], **({} if second is None else {'second_vocab': second.digest[:DIGITS]})}
    sources = make_evaluations(self._settings, vocab, reader=self._parts, names=EVALUATIONS)
    return {**vocabs, **{f'eval.{name}.data': _rows_digest(source) for name, source in sources.items()}}

  @functools.cached_property
  def _start(self) -> Digests:
    by_source: dict[str, str] = {}  # entries with the same source read it once
    digests: Digests = {}
    for index, entry in enumerate(self._settings['init_from']):
      source = repr((entry['source'], entry.get('step'), entry.get('fitting')))
      with stage('init_from'):
        by_source[source] = by_source.get(source) or source_digest(entry, self._parts.vocab)[:DIGITS]
      digests[f'init_from.{index}'] = by_source[source]
    return digests


def _rows_digest(source: Source) -> str:
  """Hash an epoch of batches, including labels, and everything that determines them."""
  batches = feed.first_batches_digest(source, count=max(source.steps_per_epoch, 1))
  return hash_text(f'{source.digest} {batches}')


class Trainer:
  """Everything shared by the runs; `run` trains one of them."""

  def __init__(self, settings: Mapping[str, Any], *, metric: str):
    self._settings, self._metric = settings, metric
    signals.check()
    self._vocab = make_vocab(settings)
    self._parts = make_parts(settings, self._vocab)
    self._task = self._parts.task
    self._layout = make_layout(settings)
    self._sources = make_evaluations(settings, self._vocab, reader=self._parts, names=EVALUATIONS)
    signals.check()
    for entry in settings['init_from']:
      check_vocab_of(entry, self._vocab, self._parts.second_vocab)
    self._eval = evaluation.make_steps(self._task)
    self._scores = evaluation.scores_of(settings, self._parts, self._sources)
    self._compiled: dict[float, tuple[Any, Callable[..., Any], Any]] = {}

  def _at_rate(self, rate: float, spec: Mapping[str, jax.ShapeDtypeStruct]) -> tuple[Any, Callable[..., Any], Any]:
    """Build the optimizer, step and state maker of a learning rate."""
    if rate not in self._compiled:
      optim_settings = {**self._settings['optim'], 'rate': rate}
      with stage('optim'):
        shapes, steps = abstract_params(self._task, spec), self._settings['steps']
        tx = optim.make(params=shapes, steps=steps, trains=self._task.trains, **optim_settings)
      accumulate, random = self._settings['accumulate'], self._settings['execution']['random']
      step = functools.partial(train_step, task=self._task, tx=tx, accumulate=accumulate, random=random)
      self._compiled[rate] = tx, jax.jit(step, donate_argnums=0), state_maker(self._task, tx, spec, layout=self._layout)
    return self._compiled[rate]

  def run(self, cell: Cell) -> dict[str, Any]:
    """Train one cell.

    Returns 'curve': (step, score) on validation during training; 'validation', 'test', 'train': final scores.
    """
    steps = self._settings['steps']
    with sharding.use(self._layout):
      source = make_source(_data_of(self._settings, cell), self._vocab, seed=cell.seed, reader=self._parts)
      tx, step, maker = self._at_rate(cell.rate, source.spec)
      key = jax.random.key(cell.seed)
      state = maker.fresh(key)
      if cell.start == 'pretrained':
        with stage('init_from'):
          params, _ = init_params_from(self._settings, self._parts, state.params, names=source.names)
        state = dataclasses.replace(state, params=params)
      state = advance_first(state, maker, task=self._task)
      batches = feed.to_devices(source.read(0), sharding.batch_sharding(self._layout))
      checks = _checks(steps)[:-1]
      curve = []
      for step_number, (_, batch) in enumerate(itertools.islice(batches, steps), start=1):
        signals.check()
        state, sums = step(state, batch, key)
        if step_number in checks:
          curve.append((step_number, self._score('validation', tx, state, key)))
        elif step_number % 8 == 0 or feed.simulated(self._layout.mesh):
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


def hash_text(text: str) -> str:
  """Compute a short digest of a text."""
  return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def summarise(
  chosen: Mapping[tuple[str, int, int], Mapping[str, Any]], *, sizes: Sequence[int], seeds: int, metric: str
) -> dict[str, Any]:
  """Collect test scores of the selected runs."""
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
  """Print means, ranges over seeds, and overfitting (training minus test score)."""
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
  """Plot test scores by size, and validation curves."""
  figure = pictures.new(11, 4.2)
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
  pictures.save(figure, file, dpi=120)
