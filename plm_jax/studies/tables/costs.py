"""What it costs to fill a table: matrix-product operations, and hours where some of its runs were made."""

from collections.abc import Mapping, Sequence

from rich.table import Table as Shown

from plm_jax.cli import signals, tables
from plm_jax.errors import ConfigError
from plm_jax.studies.tables import runs
from plm_jax.studies.tables.file import Table
from plm_jax.studies.tables.runs import Cell, Places, Run
from plm_jax.training import flops, run_folder

CHIP, SHARE = 'TPU v5e', 0.4  # hours on one chip at this share of its peak
NOT_KNOWN = ('not known', '', '')


def show(table: Table, plan: Mapping[Cell, Sequence[Sequence[Run]]], places: Places) -> None:
  """Prints a line for each config of the table and the sum.

  Hours of runs that were made are measured; of the others they are those of the same number of operations.
  """
  lines: dict[str, list[Run]] = {}
  for run in runs.needed(plan):
    lines.setdefault(run.config, []).append(run)
  shown = Shown(title=f'{table.title}: cost')
  for column in ('config', 'runs', 'made', 'operations', f'hours of a {CHIP} at {SHARE:.0%}', 'hours here'):
    shown.add_column(column, justify='left' if column == 'config' else 'right', overflow='fold')
  totals, unknown = [0, 0, 0.0], []
  spent, done = _measured(plan, places)
  for config, same in lines.items():
    signals.check()
    made = sum(runs.is_finished(runs.folder_of(run, places)) for run in same)
    totals = [totals[0] + len(same), totals[1] + made, totals[2]]
    try:
      each = [operations(run) for run in same]
    except ConfigError as error:
      unknown.append(str(error))
      shown.add_row(config, str(len(same)), str(made), *NOT_KNOWN)
      continue
    totals[2] += sum(each)
    shown.add_row(config, str(len(same)), str(made), *_said(sum(each), spent, done))
  none = len(unknown) == len(lines)
  counted = NOT_KNOWN if none else _said(totals[2], spent, done)
  name = 'all, operations where known' if unknown and not none else 'all'
  shown.add_row(name, str(totals[0]), str(totals[1]), *counted)
  tables.show(shown)
  for reason in unknown:
    print(reason)
  if not done:
    print('No run of this table is made here, so hours of this machine are not known.')


def operations(run: Run) -> float:
  """Matrix-product operations of a run: three forward passes a row and step."""
  found, settings = runs.sizes(run), run.settings
  steps = settings['steps']
  if steps is None:
    raise ConfigError(f'{run.config} counts epochs, so its steps are known when its data are')
  return 3.0 * found['flops'] * steps * settings['data']['batch_size']


def _measured(plan: Mapping[Cell, Sequence[Sequence[Run]]], places: Places) -> tuple[float, float]:
  """Seconds and operations of the runs that were made."""
  seconds, done = 0.0, 0.0
  for run in runs.needed(plan):
    folder = runs.folder_of(run, places)
    if runs.is_finished(folder):
      try:
        done += operations(run)
      except ConfigError:
        continue
      seconds += run_folder.read_result(folder)['seconds']
  return seconds, done


def _said(count: float, spent: float, done: float) -> tuple[str, str, str]:
  hours = count / (flops.PEAK[CHIP] * SHARE) / 3600
  here = f'{count * spent / done / 3600:.2f}' if done else ''
  return f'{count:.3g}', f'{hours:.3g}', here
