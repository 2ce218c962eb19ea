"""What came out of a sweep: its table, the best keys as a command line, and two pictures.

Trials that differ in nothing but `seed` are one row, whose score is the median of its seeds. A seed that diverged, was
stopped early or never had a number counts as the worst one; a trial that failed is left out. A trial that has point and
seed of another one, as in sweeps of earlier versions, is the same run again and no other seed: one of them counts.
"""

import logging
import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.trial import FrozenTrial, TrialState
from rich.table import Table

from plm_jax.cli import pictures, tables
from plm_jax.io import files
from plm_jax.studies.sweep.space import Key, Point, identity, point_of
from plm_jax.studies.sweep.worker import REASON, Sweep

log = logging.getLogger(__name__)

SEED = 'seed'
SHOWN = 50  # rows of the table; `table.json` has all
TREES = 64  # of the forest behind the importance
ABSENT = -0.12  # height of a key that a trial has not, in the picture


class Row(NamedTuple):
  """A point without its seed.

  Attributes:
    point: its keys.
    numbers: of its trials that count.
    values: of those that were finished.
    score: median over the seeds; the worst number there is where most of them have no value.
    reasons: why trials have no value, or do not count.
    seeds: how many the score is of: all but those of trials that failed.
  """

  point: Point
  numbers: tuple[int, ...]
  values: tuple[float, ...]
  score: float
  reasons: tuple[str, ...]
  seeds: int


def counted(sweep: Sweep, trials: Sequence[FrozenTrial]) -> dict[int, int]:
  """Number of each trial -> that of the trial which counts in its place, itself for all but repeated ones.

  Of trials with the same point and seed one that was finished counts, else one that was pruned, else the first.
  """
  order = [TrialState.COMPLETE, TrialState.PRUNED]
  groups: dict[Any, list[FrozenTrial]] = {}
  for trial in trials:
    own = identity(trial.params, sweep.space) or trial.number  # nothing is known of one whose line is lost
    groups.setdefault(own, []).append(trial)

  def rank(trial: FrozenTrial) -> tuple[int, int]:
    return (order.index(trial.state) if trial.state in order else len(order)), trial.number

  return {trial.number: min(group, key=rank).number for group in groups.values() for trial in group}


def rows(sweep: Sweep, trials: Sequence[FrozenTrial]) -> list[Row]:
  """The points of a sweep, the best first; those with equal scores by the best of their values."""
  groups: dict[tuple[tuple[str, str], ...], list[FrozenTrial]] = {}
  counts = counted(sweep, trials)
  for trial in trials:
    own = point_of(trial.params, sweep.space).items()
    groups.setdefault(tuple((name, text) for name, text in own if name != SEED), []).append(trial)
  worst = -math.inf if sweep.direction == 'maximize' else math.inf
  found = []
  for point, everything in groups.items():
    group = [trial for trial in everything if counts[trial.number] == trial.number]
    again = [trial.number for trial in everything if counts[trial.number] != trial.number]
    values = tuple(_value(trial) for trial in group if trial.state == TrialState.COMPLETE)
    without = [worst for trial in group if trial.state == TrialState.PRUNED]
    reasons = [trial.user_attrs[REASON] for trial in group if REASON in trial.user_attrs]
    reasons += [f'trial {number} is trial {counts[number]} again, and does not count' for number in again]
    seeds = [*values, *without]
    score = statistics.median(seeds) if seeds else worst
    numbers = tuple(trial.number for trial in group)
    found.append(Row(dict(point), numbers, values, score, tuple(reasons), len(seeds)))
  sign = -1 if sweep.direction == 'maximize' else 1  # with which less is better

  def rank(row: Row) -> tuple[float, float]:
    return sign * row.score, min((sign * value for value in row.values), default=math.inf)

  return sorted(found, key=rank)


def report(sweep: Sweep, trials: Sequence[FrozenTrial], *, command: Sequence[str]) -> dict[str, Any]:
  """Prints the table and the best keys, and writes `table.json`, `table.txt`, `importance.png` and `parallel.png`.

  Args:
    sweep: what was swept.
    trials: all, ended.
    command: the words that `plm-jax train` needs before the best keys.

  Returns:
    The table, as `table.json` holds it.
  """
  found = rows(sweep, trials)
  best = next((row for row in found if row.values), None)
  shown = as_table(sweep, found)
  tables.show(shown)
  once = {number for row in found for number in row.numbers}
  done = [trial for trial in trials if trial.state == TrialState.COMPLETE and trial.number in once]
  chosen: dict[str, Any] = {}
  told: list[str] = []
  if best is None:
    print('no trial was finished')
  else:
    chosen = _chosen(sweep, best, done, command)
    told = [f'{chosen["said"]}, in {sweep.trial_folder(chosen["trial"])}; its keys:', chosen['command']]
    print('\n  '.join(told))
  table = {
    'metric': sweep.metric,
    'direction': sweep.direction,
    'trials': {state: sum(one.state.name == state for one in trials) for state in ('COMPLETE', 'PRUNED', 'FAIL')},
    'best': chosen,
    'rows': [_plain(row) for row in found],
  }
  files.write_json(sweep.folder / 'table.json', table)
  files.write_text(sweep.folder / 'table.txt', tables.text(shown) + ''.join(f'{line}\n' for line in told))
  if done:
    draw_parallel(sweep, done, sweep.folder / 'parallel.png')
    draw_importance(sweep, done, sweep.folder / 'importance.png')
  return table


def _chosen(sweep: Sweep, row: Row, done: Sequence[FrozenTrial], command: Sequence[str]) -> dict[str, Any]:
  """What is told of the best row: its score, the best of its trials, and the command that makes this trial again."""
  trial = _best_trial(sweep, row, done)
  point = point_of(trial.params, sweep.space)
  said = f'best: {sweep.metric} {row.score:.5g}'
  if not math.isfinite(row.score):
    of_seed = f', with seed {point[SEED]}' if SEED in point else ''
    said = f'of no point most seeds were finished; the best trial{of_seed}: {sweep.metric} {_value(trial):.5g}'
  elif SEED in point:
    over = 'of one seed' if row.seeds == 1 else f'the median over {row.seeds} seeds'
    said += f', {over}; the best of its trials, with seed {point[SEED]}, has {_value(trial):.5g}'
  line = shlex.join(['plm-jax', 'train', *command, *_flags(point)])
  score = row.score if math.isfinite(row.score) else None
  scores = {'score': score, 'seeds': row.seeds, 'trial': trial.number, 'value': trial.value}
  return {'point': row.point, **scores, 'seed': point.get(SEED), 'said': said, 'command': line}


def _flags(point: Mapping[str, str]) -> list[str]:
  return [f'--config.{name}={text}' for name, text in point.items()]


def _best_trial(sweep: Sweep, row: Row, done: Sequence[FrozenTrial]) -> FrozenTrial:
  """The trial of a row whose value is the best."""
  choose = max if sweep.direction == 'maximize' else min
  return choose((trial for trial in done if trial.number in row.numbers), key=_value)


def _value(trial: FrozenTrial) -> float:
  assert trial.value is not None  # of a finished trial
  return trial.value


def _plain(row: Row) -> dict[str, Any]:
  """A row as JSON holds it."""
  measured = {'mean': None, 'deviation': None} if not row.values else _measured(row.values)
  score = row.score if math.isfinite(row.score) else None
  return {**row._asdict(), 'score': score, **measured, 'n': len(row.values)}


def _measured(values: Sequence[float]) -> dict[str, float | None]:
  """Mean, and the standard deviation of a sample where there are several."""
  return {'mean': statistics.fmean(values), 'deviation': statistics.stdev(values) if len(values) > 1 else None}


def as_table(sweep: Sweep, found: Sequence[Row]) -> Table:
  """The rows as they are printed; mean and deviation where there are seeds."""
  seeds = any(key.name == SEED for key in sweep.space)
  names = [key.name for key in sweep.space if key.name != SEED]
  left_out = f'; {len(found) - SHOWN} rows more in table.json' if len(found) > SHOWN else ''
  printed = Table(title=f'{sweep.metric}, the best first{left_out}')
  for column in [*names, *(('median', 'mean', 'deviation', 'n') if seeds else (sweep.metric,)), 'trial', 'remarks']:
    printed.add_column(column, justify='left' if column == 'remarks' else 'right')
  for row in found[:SHOWN]:
    measured = [row.score, *(_measured(row.values).values() if row.values else (None, None))]
    numbers = [f'{one:.5g}' if one is not None and math.isfinite(one) else '-' for one in measured]
    cells = [*numbers, str(len(row.values))] if seeds else numbers[:1]
    remarks = '; '.join(dict.fromkeys(row.reasons))
    printed.add_row(*(row.point.get(name, '-') for name in names), *cells, ' '.join(map(str, row.numbers)), remarks)
  return printed


# Pictures ------------------------------------------------------------------------------------------------------------


def draw_importance(sweep: Sweep, done: Sequence[FrozenTrial], file: Path) -> None:
  """How much of the variance of the metric each key explains: fANOVA (Hutter et al. 2014) over finished trials.

  Keys that some trials do not have are not in it. Nothing is drawn where there is no variance to explain.
  """
  names = [key.name for key in sweep.space if all(key.name in trial.params for trial in done)]
  names = [name for name in names if len({trial.params[name] for trial in done}) > 1]
  if len({trial.value for trial in done}) < 2 or not names:
    log.info('%s is not drawn: fewer than two values, or keys, that differ', file)
    return
  study = optuna.create_study(direction=sweep.direction)
  study.add_trials(done)
  evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES, seed=sweep.seed)
  found = optuna.importance.get_param_importances(study, evaluator=evaluator, params=names)
  from matplotlib.figure import Figure

  figure = Figure(figsize=(6.4, 1.2 + 0.4 * len(found)), layout='constrained')
  axes = figure.subplots()
  order = list(found)[::-1]
  bars = axes.barh([pictures.plain(name) for name in order], [found[name] for name in order], color='C0')
  axes.bar_label(bars, fmt='%.2f', padding=3)
  axes.set(xlim=(0, 1.1), xlabel=f'share of the variance of {pictures.plain(sweep.metric)} over {len(done)} trials')
  axes.spines[['top', 'right']].set_visible(False)
  with files.replacing(file) as temporary:
    figure.savefig(temporary, format='png', dpi=130)


def draw_parallel(sweep: Sweep, done: Sequence[FrozenTrial], file: Path) -> None:
  """Parallel coordinates: an axis for each key and the metric on the right, a line for each finished trial."""
  from matplotlib import colormaps
  from matplotlib.colors import Normalize
  from matplotlib.figure import Figure

  keys = [key for key in sweep.space if any(key.name in trial.params for trial in done)]
  values = [_value(trial) for trial in done]
  low, high = min(values), max(values)
  norm, colours = Normalize(low, high if high > low else low + 1), colormaps['viridis']
  figure = Figure(figsize=(max(5.0, 1.9 * (len(keys) + 1)), 4.6), layout='constrained')
  axes = figure.subplots()
  for trial in sorted(done, key=_value, reverse=sweep.direction == 'minimize'):  # the best on top
    heights, value = [_height(key, trial.params.get(key.name)) for key in keys], norm(_value(trial))
    axes.plot(range(len(keys) + 1), [*heights, value], color=colours(value), alpha=0.8)
  for place, key in enumerate(keys):
    axes.axvline(place, color='0.6', linewidth=0.8)
    for text in key.steps() if key.values else _ends(key):
      at = place, _height(key, text)
      axes.annotate(pictures.plain(text), at, xytext=(4, 2), textcoords='offset points', fontsize=8)
    if not all(key.name in trial.params for trial in done):
      axes.annotate('not there', (place, ABSENT), xytext=(4, 2), textcoords='offset points', fontsize=8)
  axes.axvline(len(keys), color='0.6', linewidth=0.8)
  for value in dict.fromkeys((low, high)):
    axes.annotate(f'{value:.4g}', (len(keys), norm(value)), xytext=(4, 2), textcoords='offset points', fontsize=8)
  names = [pictures.plain(name) for name in (*(key.name for key in keys), sweep.metric)]
  axes.set_xticks(range(len(keys) + 1), names, fontsize=9)
  axes.set_xlim(-0.1, len(keys) + 0.5)
  axes.set_yticks([])
  axes.spines[['top', 'right', 'left', 'bottom']].set_visible(False)
  with files.replacing(file) as temporary:
    figure.savefig(temporary, format='png', dpi=130)


def _ends(key: Key) -> tuple[str, str]:
  return f'{key.low:g}', f'{key.high:g}'


def _height(key: Key, value: Any) -> float:
  """Where a value stands on the axis of its key, from 0 to 1."""
  if value is None:
    return ABSENT
  if key.values:
    return key.values.index(value) / max(len(key.values) - 1, 1)
  low, high, at = (math.log(float(x)) if key.scale == 'log' else float(x) for x in (key.low, key.high, value))
  return (at - low) / (high - low)
