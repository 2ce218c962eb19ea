"""What it costs to fill a table: matrix-product operations, and hours where some of its runs were made."""

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

CHIP, SHARE = 'TPU v5e', 0.4  # hours on one chip at this share of its peak
NOT_KNOWN = ('not known', '', '')


def show(table: Table, plan: Mapping[Cell, Sequence[Sequence[Run]]], places: Places, *, scale: str) -> None:
  """Prints a line for each config of the table and the sum.

  Hours of runs that were made are measured; of the others they are those of the same number of operations.
  """
  lines: dict[str, list[Run]] = {}
  needed = runs.needed(plan)
  for run in needed:
    lines.setdefault(run.config, []).append(run)
  counts = Counts()
  counts.add(needed)
  shown = Shown(title=f'{table.title}: cost, scale {scale}')
  for column in ('config', 'runs', 'made', 'operations', f'hours of a {CHIP} at {SHARE:.0%}', 'hours here'):
    shown.add_column(column, justify='left' if column == 'config' else 'right', overflow='fold')
  totals = [0, 0, 0.0]
  unknown: dict[str, list[str]] = {}  # why -> configs
  ready = {run.digest: run_folders.finished(run, places) for run in needed}
  epochs = Epochs(needed, ready)
  spent, done = _measured(needed, ready, counts, epochs)
  for config, same in lines.items():
    made = sum(ready[run.digest] is not None for run in same)
    totals = [totals[0] + len(same), totals[1] + made, totals[2]]
    try:
      each = [operations(run, counts, epochs) for run in same]
    except ConfigError as error:
      unknown.setdefault(str(error), []).append(config)
      shown.add_row(config, str(len(same)), str(made), *NOT_KNOWN)
      continue
    totals[2] += sum(each)
    shown.add_row(config, str(len(same)), str(made), *_said(sum(each), spent, done))
  none = sum(map(len, unknown.values())) == len(lines)
  counted = NOT_KNOWN if none else _said(totals[2], spent, done)
  name = 'all, operations where known' if unknown and not none else 'all'
  shown.add_row(name, str(totals[0]), str(totals[1]), *counted)
  tables.show(shown)
  for reason, configs in unknown.items():
    more = f' and {len(configs) - 1} more' if configs[1:] else ''
    print(f'{configs[0]}{more}: {" ".join(reason.split())}')
  if epochs.estimated:
    print(f'The tokens of an epoch are estimated from some documents: {", ".join(sorted(epochs.estimated))}.')
  if not done:
    print(f'No run of this table is made here at scale {scale}, so hours of this machine are not known.')


def operations(run: Run, counts: Counts, epochs: Epochs) -> float:
  """Matrix-product operations of a run: three forward passes a row and step.

  Raises:
    ConfigError: they cannot be counted; says why.
  """
  if run.evaluates:
    raise ConfigError('it evaluates, and makes no step')
  return 3.0 * counts.of(run)['flops'] * epochs.steps(run) * run.settings['data']['batch_size']


def _measured(
  needed: Sequence[Run], ready: Mapping[str, RunFolder | None], counts: Counts, epochs: Epochs
) -> tuple[float, float]:
  """Seconds and operations of the runs that were made."""
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


def _said(count: float, spent: float, done: float) -> tuple[str, str, str]:
  hours = count / (flops.PEAK[CHIP] * SHARE) / 3600
  here = f'{count * spent / done / 3600:.2f}' if done else ''
  return f'{count:.3g}', f'{hours:.3g}', here
