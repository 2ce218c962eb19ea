"""Report a sweep: its table, the best keys as a command, and two pictures.

Trials that differ only in `seed` are one row, scored by the median over its seeds. A seed that diverged, was stopped
early or never had a finite value counts as the worst one; a failed trial is left out. A trial with the point and seed
of another one, as in sweeps of earlier versions, is a repetition: only one of them counts.
"""

import logging
import math
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.trial import FrozenTrial, TrialState
from rich.table import Table

from plm_jax.cli import pictures, tables
from plm_jax.io import checksums, files
from plm_jax.studies.sweep.space import Key, Point, identity, point_of
from plm_jax.studies.sweep.worker import REASON, Sweep

log = logging.getLogger(__name__)

SEED = 'seed'
SHOWN = 50  # rows of the table; `table.json` has all
TREES = 64  # trees of the forest that measures importance
ABSENT = -0.12  # height of a missing key in the picture


class Row(NamedTuple):
  """A point without its seed."""

  point: Point  # its keys
  numbers: tuple[int, ...]  # numbers of its trials that count
  values: tuple[float, ...]  # values of its finished trials
  score: float  # median over the seeds; infinitely bad if most of them have no value
  reasons: tuple[str, ...]  # reasons why trials have no value or do not count
  seeds: int  # number of seeds in the score: all except those of failed trials


def counted(sweep: Sweep, trials: Sequence[FrozenTrial]) -> dict[int, int]:
  """Map each trial to the one that counts.

  It is the trial itself, unless it is a repetition. Of trials with the same point and seed, a finished one counts, else
  a pruned one, else the first.
  """
  order = [TrialState.COMPLETE, TrialState.PRUNED]
  groups: dict[Any, list[FrozenTrial]] = {}
  for trial in trials:
    key = identity(trial.params, sweep.space) or trial.number  # a trial with a damaged line has no parameters
    groups.setdefault(key, []).append(trial)

  def rank(trial: FrozenTrial) -> tuple[int, int]:
    return (order.index(trial.state) if trial.state in order else len(order)), trial.number

  return {trial.number: min(group, key=rank).number for group in groups.values() for trial in group}


def rows(sweep: Sweep, trials: Sequence[FrozenTrial]) -> list[Row]:
  """Rank the points of a sweep, best first, ties by best value."""
  groups: dict[tuple[tuple[str, str], ...], list[FrozenTrial]] = {}
  counts = counted(sweep, trials)
  for trial in trials:
    keys = point_of(trial.params, sweep.space).items()
    groups.setdefault(tuple((name, text) for name, text in keys if name != SEED), []).append(trial)
  worst = -math.inf if sweep.direction == 'maximize' else math.inf
  points = []
  for point, same_point in groups.items():
    group = [trial for trial in same_point if counts[trial.number] == trial.number]
    repeated = [trial.number for trial in same_point if counts[trial.number] != trial.number]
    values = tuple(_value(trial) for trial in group if trial.state == TrialState.COMPLETE)
    pruned = [worst for trial in group if trial.state == TrialState.PRUNED]
    reasons = [trial.user_attrs[REASON] for trial in group if REASON in trial.user_attrs]
    reasons += [f'trial {number} repeats trial {counts[number]} and does not count' for number in repeated]
    seeds = [*values, *pruned]
    score = statistics.median(seeds) if seeds else worst
    numbers = tuple(trial.number for trial in group)
    points.append(
      Row(point=dict(point), numbers=numbers, values=values, score=score, reasons=tuple(reasons), seeds=len(seeds))
    )
  sign = -1 if sweep.direction == 'maximize' else 1  # sign * value: less is better

  def rank(row: Row) -> tuple[float, float]:
    return sign * row.score, min((sign * value for value in row.values), default=math.inf)

  return sorted(points, key=rank)


def report(sweep: Sweep, trials: Sequence[FrozenTrial], *, command: Sequence[str]) -> dict[str, Any]:
  """Print and write the table, the best keys and the pictures.

  Writes `table.json`, `table.txt`, `importance.png` and `parallel.png`. Returns the content of `table.json`.

  Args:
    trials: all trials, finished.
    command: words of `plm-jax train` before the best keys.
  """
  ranked = rows(sweep, trials)
  best = next((row for row in ranked if row.values), None)
  shown = as_table(sweep, ranked)
  tables.show(shown)
  counting = {number for row in ranked for number in row.numbers}
  done = [trial for trial in trials if trial.state == TrialState.COMPLETE and trial.number in counting]
  chosen: dict[str, Any] = {}
  lines: list[str] = []
  if best is None:
    print('no trial was finished')
  else:
    chosen = _chosen(sweep, best, done, command)
    lines = [f'{chosen["said"]}, in {sweep.trial_folder(chosen["trial"])}; its keys:', chosen['command']]
    print('\n  '.join(lines))
  table = {
    'metric': sweep.metric,
    'direction': sweep.direction,
    'trials': {state: sum(trial.state.name == state for trial in trials) for state in ('COMPLETE', 'PRUNED', 'FAIL')},
    'best': chosen,
    'rows': [_plain(row) for row in ranked],
  }
  checksums.write_sealed(sweep.folder / 'table.json', table)
  files.write_text(sweep.folder / 'table.txt', tables.text(shown) + ''.join(f'{line}\n' for line in lines))
  if done:
    draw_parallel(sweep, done, sweep.folder / 'parallel.png')
    draw_importance(sweep, done, sweep.folder / 'importance.png')
  return table


def _chosen(sweep: Sweep, row: Row, done: Sequence[FrozenTrial], command: Sequence[str]) -> dict[str, Any]:
  """Describe the best row, its best trial, and the command for it."""
  choose = max if sweep.direction == 'maximize' else min
  trial = choose((trial for trial in done if trial.number in row.numbers), key=_value)
  point = point_of(trial.params, sweep.space)
  sentence = f'best: {sweep.metric} {row.score:.5g}'
  if not math.isfinite(row.score):
    of_seed = f', with seed {point[SEED]}' if SEED in point else ''
    sentence = f'no point finished most of its seeds; the best trial{of_seed}: {sweep.metric} {_value(trial):.5g}'
  elif SEED in point:
    over = 'of one seed' if row.seeds == 1 else f'the median over {row.seeds} seeds'
    sentence += f', {over}; the best of its trials, with seed {point[SEED]}, has {_value(trial):.5g}'
  line = shlex.join(['plm-jax', 'train', *command, *(f'--config.{name}={text}' for name, text in point.items())])
  score = row.score if math.isfinite(row.score) else None
  scores = {'score': score, 'seeds': row.seeds, 'trial': trial.number, 'value': trial.value}
  return {'point': row.point, **scores, 'seed': point.get(SEED), 'said': sentence, 'command': line}


def _value(trial: FrozenTrial) -> float:
  assert trial.value is not None  # a finished trial has one
  return trial.value


def _plain(row: Row) -> dict[str, Any]:
  score = row.score if math.isfinite(row.score) else None
  return {**row._asdict(), 'score': score, **_measured(row.values), 'n': len(row.values)}


def _measured(values: Sequence[float]) -> dict[str, float | None]:
  """Compute the mean, and the sample standard deviation of several values."""
  mean = statistics.fmean(values) if values else None
  return {'mean': mean, 'deviation': statistics.stdev(values) if len(values) > 1 else None}


def as_table(sweep: Sweep, ranked: Sequence[Row]) -> Table:
  """Format the rows, with mean and deviation if there are seeds."""
  seeds = any(key.name == SEED for key in sweep.space)
  names = [key.name for key in sweep.space if key.name != SEED]
  left_out = f'; {len(ranked) - SHOWN} more rows in table.json' if len(ranked) > SHOWN else ''
  columns = [*names, *(('median', 'mean', 'deviation', 'n') if seeds else (sweep.metric,)), 'trial', 'remarks']
  printed = tables.new(columns, title=f'{sweep.metric}, best first{left_out}', left=('remarks',))
  for row in ranked[:SHOWN]:
    measured = [row.score, *_measured(row.values).values()]
    numbers = [f'{value:.5g}' if value is not None and math.isfinite(value) else '-' for value in measured]
    cells = [*numbers, str(len(row.values))] if seeds else numbers[:1]
    remarks = '; '.join(dict.fromkeys(row.reasons))
    printed.add_row(*(row.point.get(name, '-') for name in names), *cells, ' '.join(map(str, row.numbers)), remarks)
  return printed


def draw_importance(sweep: Sweep, done: Sequence[FrozenTrial], file: Path) -> None:
  """Plot the share of the metric's variance that each key explains.

  Importance is fANOVA (Hutter et al. 2014) over finished trials. Keys that some trials lack are left out. Nothing is
  plotted if the metric does not vary.
  """
  names = [key.name for key in sweep.space if all(key.name in trial.params for trial in done)]
  names = [name for name in names if len({trial.params[name] for trial in done}) > 1]
  if len({trial.value for trial in done}) < 2 or not names:
    log.info('%s is not written: it needs two different values of the metric and of a key', file)
    return
  study = optuna.create_study(direction=sweep.direction)
  study.add_trials(done)
  evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES, seed=sweep.seed)
  importance = optuna.importance.get_param_importances(study, evaluator=evaluator, params=names)
  figure = pictures.new(6.4, 1.2 + 0.4 * len(importance))
  axes = figure.subplots()
  order = list(importance)[::-1]
  bars = axes.barh([pictures.plain(name) for name in order], [importance[name] for name in order], color='C0')
  axes.bar_label(bars, fmt='%.2f', padding=3)
  axes.set(xlim=(0, 1.1), xlabel=f'share of the variance of {pictures.plain(sweep.metric)} over {len(done)} trials')
  axes.spines[['top', 'right']].set_visible(False)
  pictures.save(figure, file)


def draw_parallel(sweep: Sweep, done: Sequence[FrozenTrial], file: Path) -> None:
  """Plot each finished trial over parallel axes of keys and the metric."""
  from matplotlib import colormaps
  from matplotlib.colors import Normalize

  keys = [key for key in sweep.space if any(key.name in trial.params for trial in done)]
  values = [_value(trial) for trial in done]
  low, high = min(values), max(values)
  norm, colours = Normalize(low, high if high > low else low + 1), colormaps['viridis']
  figure = pictures.new(max(5.0, 1.9 * (len(keys) + 1)), 4.6)
  axes = figure.subplots()
  for trial in sorted(done, key=_value, reverse=sweep.direction == 'minimize'):  # the best on top
    heights, value = [_height(key, trial.params.get(key.name)) for key in keys], norm(_value(trial))
    axes.plot(range(len(keys) + 1), [*heights, value], color=colours(value), alpha=0.8)
  for x, key in enumerate(keys):
    axes.axvline(x, color='0.6', linewidth=0.8)
    for text in key.steps() if key.values else (f'{key.low:g}', f'{key.high:g}'):
      axes.annotate(
        pictures.plain(text), (x, _height(key, text)), xytext=(4, 2), textcoords='offset points', fontsize=8
      )
    if not all(key.name in trial.params for trial in done):
      axes.annotate('none', (x, ABSENT), xytext=(4, 2), textcoords='offset points', fontsize=8)
  axes.axvline(len(keys), color='0.6', linewidth=0.8)
  for value in dict.fromkeys((low, high)):
    axes.annotate(f'{value:.4g}', (len(keys), norm(value)), xytext=(4, 2), textcoords='offset points', fontsize=8)
  names = [pictures.plain(name) for name in (*(key.name for key in keys), sweep.metric)]
  axes.set_xticks(range(len(keys) + 1), names, fontsize=9)
  axes.set_xlim(-0.1, len(keys) + 0.5)
  axes.set_yticks([])
  axes.spines[['top', 'right', 'left', 'bottom']].set_visible(False)
  pictures.save(figure, file)


def _height(key: Key, value: Any) -> float:
  """Compute the height of a value on its axis (0 to 1)."""
  if value is None:
    return ABSENT
  if key.values:
    return key.values.index(value) / max(len(key.values) - 1, 1)
  low, high, at = (math.log(float(x)) if key.scale == 'log' else float(x) for x in (key.low, key.high, value))
  return (at - low) / (high - low)
