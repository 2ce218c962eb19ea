"""Estimate the cost of a table: matrix-product operations, and hours if some of its runs were made."""

from collections.abc import Mapping, Sequence

from rich.table import Table as Shown

from plm_jax.cli import tables
from plm_jax.core.errors import ConfigError
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import run_folder
from plm_jax.studies.tables import run_folders, runs
from plm_jax.studies.tables.counting import Counts
from plm_jax.studies.tables.epochs import Epochs
from plm_jax.studies.tables.file import Table
from plm_jax.studies.tables.runs import Cell, Places, Run
from plm_jax.training.cost import flops

CHIP, SHARE = 'TPU v5e', 0.4  # chip of the estimate, and share of its peak
NOT_KNOWN = ('not known', '', '')


def show(table: Table, plan: Mapping[Cell, Sequence[Sequence[Run]]], places: Places, *, scale: str) -> None:
  """Print a line for each config of the table and their total.

  Times of this machine are extrapolated from the operations and times of finished runs.
  """
  by_config: dict[str, list[Run]] = {}
  needed = runs.needed(plan)
  for run in needed:
    by_config.setdefault(run.config, []).append(run)
  counts = Counts()
  counts.add([run for run in needed if not run.evaluates])
  shown = Shown(title=f'{table.title}: cost, scale {scale}')
  for column in ('config', 'runs', 'finished', 'operations', f'time of a {CHIP} at {SHARE:.0%}', 'time here'):
    shown.add_column(column, justify='left' if column == 'config' else 'right', overflow='fold')
  totals = [0, 0, 0.0]
  unknown: dict[str, list[str]] = {}  # reason -> configs
  ready = {run.digest: run_folders.finished(run, places) for run in needed}
  epochs = Epochs(needed, ready)
  seconds, done = _measured(needed, ready, counts, epochs)
  for config, same in by_config.items():
    finished = sum(ready[run.digest] is not None for run in same)
    totals = [totals[0] + len(same), totals[1] + finished, totals[2]]
    try:
      config_operations = sum(operations(run, counts, epochs) for run in same)
    except ConfigError as error:
      unknown.setdefault(str(error), []).append(config)
      shown.add_row(config, str(len(same)), str(finished), *NOT_KNOWN)
      continue
    totals[2] += config_operations
    shown.add_row(config, str(len(same)), str(finished), *_cost_cells(config_operations, seconds, done))
  all_unknown = sum(map(len, unknown.values())) == len(by_config)
  total_cells = NOT_KNOWN if all_unknown else _cost_cells(totals[2], seconds, done)
  name = 'total of known operations' if unknown and not all_unknown else 'total'
  shown.add_row(name, str(totals[0]), str(totals[1]), *total_cells)
  tables.show(shown)
  for reason, configs in unknown.items():
    more = f' and {len(configs) - 1} more' if configs[1:] else ''
    print(f'{configs[0]}{more}: {" ".join(reason.split())}')
  if epochs.estimated:
    print(f'The tokens of an epoch are estimated from some documents: {", ".join(sorted(epochs.estimated))}.')
  if not done:
    print(f'No run of this table is finished here at scale {scale}, so times of this machine are unknown.')


def operations(run: Run, counts: Counts, epochs: Epochs) -> float:
  """Count operations, three forward passes a step; ConfigError says why not."""
  if run.evaluates:
    raise ConfigError('it only evaluates, without a step')
  return 3.0 * counts.of(run)['flops'] * epochs.steps(run) * run.settings['data']['batch_size']


def _measured(
  needed: Sequence[Run], ready: Mapping[str, RunFolder | None], counts: Counts, epochs: Epochs
) -> tuple[float, float]:
  seconds, done = 0.0, 0.0
  for run in needed:
    folder = ready[run.digest]
    if folder is not None:
      try:
        done += operations(run, counts, epochs)
      except ConfigError:
        continue
      seconds += run_folder.read_result(folder)['seconds']
  return seconds, done


def _cost_cells(count: float, seconds: float, done: float) -> tuple[str, str, str]:
  here = duration(count * seconds / done) if done else ''
  return f'{count:.3g}', duration(count / (flops.PEAK[CHIP] * SHARE)), here


def duration(seconds: float) -> str:
  """Format a time, such as '3.4 min'."""
  unit, size = next((pair for pair in (('h', 3600.0), ('min', 60.0)) if seconds >= pair[1]), ('s', 1.0))
  return f'{seconds / size:,.2g} {unit}' if seconds < 100 * size else f'{seconds / size:,.0f} {unit}'
