"""Fill a table: run what is missing, store the results, and render it.

Several processes may fill one table. Each runs what no other process runs, and merges the results of the others.
"""

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plm_jax.cli import signals
from plm_jax.cli.progress import Waiting, clock
from plm_jax.core.errors import ConfigError, Interrupted
from plm_jax.io import files
from plm_jax.studies.tables import cells, making, render, run_folders, runs
from plm_jax.studies.tables.counting import Counts
from plm_jax.studies.tables.file import BEST, Table
from plm_jax.studies.tables.making import BUSY
from plm_jax.studies.tables.runs import Cell, Places, Run

log = logging.getLogger(__name__)


def fill(
  table: Table,
  plan: Mapping[Cell, Sequence[Sequence[Run]]],
  places: Places,
  out: Path,
  *,
  scale: str,
  command: str,
  run: bool,
  minutes: float,
) -> dict[str, Any]:
  """Makes what is missing and renders the table.

  Args:
    table: from `file.read`.
    plan: from `runs.plan`.
    places: where runs lie.
    out: the folder of `cells.json` and of what is rendered.
    scale: at which the table was read.
    command: that made it, for the reader.
    run: whether missing runs are made; else what is there is rendered.
    minutes: no run begins after so many.

  Returns:
    What `cells.json` holds.

  Raises:
    ConfigError: the file of cells is damaged, or nothing is made and it is of another scale.
    Interrupted: by a signal, with the number of runs that are left.
  """
  files.make_folder(out)
  file = out / 'cells.json'
  kept = cells.read(file)
  if run:
    _set_aside(file, kept, cells.names(plan))
  if run or not kept['cells']:
    kept |= {'scale': scale, 'cells': cells.names(plan), 'command': command}
  elif kept['scale'] not in ('', scale):
    raise ConfigError(f'{file} is of another scale: add --scale={kept["scale"]}.')
  elif kept['cells'] != cells.names(plan):
    log.warning(f'{file} is of another form of this table, which is rendered: move it away to render the one asked for')
  asked = metrics_of(table, plan)
  todo = runs.needed(plan)
  log.info(f'{table.title}: {len(todo)} runs, {sum(one.digest in kept["runs"] for one in todo)} of them known')
  lacking = [one for one in todo if asked[one.digest] and not _is_known(one, kept)]
  begun_with = {source.digest for one in lacking for source in runs.sources(one)}  # made again where they are gone
  counts = Counts()
  counts.add([one for one in todo if not asked[one.digest] and one.digest not in kept['runs']])
  failed_elsewhere: set[str] = set()  # meanwhile, so that they are not tried again
  began = time.monotonic()
  with Waiting(len(todo), 'runs') as bar:
    again = (one for one in todo if run and _is_busy(one, kept))  # read behind the others
    for number, one in enumerate(itertools.chain(todo, again)):
      late = time.monotonic() - began > 60 * minutes
      try:
        make = run and not late
        is_gone = make and one.digest in begun_with and run_folders.finished(one, places) is None
        is_left = is_gone or not _is_known(one, kept) or (make and _lacks_rows(one, kept, places))
        if is_left and one.digest not in failed_elsewhere:
          _settle(one, table, kept, places, asked[one.digest], counts, run=make)
      except Interrupted as interrupted:
        _keep(file, kept)
        left = sum(other.digest not in kept['runs'] for other in todo)
        raise Interrupted(f'{interrupted}\n{left} of {len(todo)} runs are left', interrupted.exit_code) from None
      bar.advance(number < len(todo))
      if run:
        failed_elsewhere |= _keep(file, kept)
        _say(min(number + 1, len(todo)), len(todo), one, kept, began)
  _look_at_the_reference(table, plan, kept, places)
  _keep(file, kept)
  kept = cells.read(file)  # without runs that no cell names, so that the file alone renders the same
  render.write(table, kept, out)
  return kept


def _set_aside(file: Path, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
  """Copies the cells of earlier runs that the table asks for no more, as where a config of it has changed."""
  gone = cells.digests(kept['cells']) - cells.digests(asked)
  if left := [digest for digest in gone if _has_metrics(digest, kept)]:
    before = files.unused(file.with_name('cells.previous.json'))
    files.copy(file, before)
    log.warning(f'{len(left)} measured runs are of another form of this table, and made again: {before} keeps them')


def _keep(file: Path, kept: dict[str, Any]) -> set[str]:
  """Writes the cells, with what other processes recorded in them meanwhile; returns the runs that failed there."""
  failed = set()
  with files.locked(file.with_name('.lock'), doing='writing the cells of a table'):
    there = cells.read(file)
    for digest, found in there['runs'].items():
      if 'metrics' in found and not _has_metrics(digest, kept):
        kept['runs'][digest] = found
        kept['failed'].pop(digest, None)
    for digest, why in there['failed'].items():
      if not why.endswith(BUSY) and not _has_metrics(digest, kept) and kept['failed'].get(digest, BUSY).endswith(BUSY):
        kept['failed'][digest] = why
        failed.add(digest)
    cells.write(file, kept)
  return failed


def metrics_of(table: Table, plan: Mapping[Cell, Sequence[Sequence[Run]]]) -> dict[str, tuple[str, ...]]:
  """By digest of a run: the metrics that columns ask of it; none of one that is only to be counted."""
  asked: dict[str, tuple[str, ...]] = {}
  for cell, by_seed in plan.items():
    column = table.columns[cell.column]
    for one in (one for group in by_seed for one in group):
      mine: tuple[str, ...] = ()
      if column.of != 'parameters':
        mine = (table.plateau if column.of == 'tokens' else column.metric,)
        if column.chosen_by is not None and table.summary == BEST:
          mine = (*mine, column.chosen_by[0])
      asked[one.digest] = (*asked.get(one.digest, ()), *mine)
      for source in runs.sources(one):  # made because others begin with it
        asked[source.digest] = (*asked.get(source.digest, ()), *((table.plateau,) if mine else ()))
  return asked


def _is_busy(one: Run, kept: Mapping[str, Any]) -> bool:
  return bool(kept['failed'].get(one.digest, '').endswith(BUSY))


def _is_known(one: Run, kept: Mapping[str, Any]) -> bool:
  return _has_metrics(one.digest, kept)


def _has_metrics(digest: str, kept: Mapping[str, Any]) -> bool:
  return 'metrics' in kept['runs'].get(digest, {})


def _lacks_rows(one: Run, kept: Mapping[str, Any], places: Places) -> bool:
  """Whether a run was recorded, as by a call that only prints, before its rows were predicted, and they can be."""
  known = kept['runs'].get(one.digest, {})
  return one.is_tuning and 'metrics' in known and 'rows' not in known and run_folders.finished(one, places) is not None


def _settle(
  one: Run,
  table: Table,
  kept: dict[str, Any],
  places: Places,
  asked: Sequence[str],
  counts: Counts,
  *,
  run: bool,
) -> None:
  """Records a run, once it is made."""
  signals.check()
  if not asked:
    if one.digest not in kept['runs']:
      kept['runs'][one.digest] = {'name': one.name, **_counted(one, counts)}
    return
  folder = run_folders.folder_of(one, places)
  made = run_folders.is_finished(folder) and (not one.is_tuning or files.is_file(folder.root / run_folders.PREDICTIONS))
  if run and not made:
    if one.source is not None and one.source.digest in kept['failed'].keys() - kept['runs'].keys():
      busy = _is_busy(one.source, kept)
      kept['failed'][one.digest] = (
        f'the run that it begins with, {one.source.name}{": " + BUSY if busy else ", failed"}'
      )
      return
    try:
      with files.locked(folder.root.with_name(f'{folder.root.name}.lock'), doing='making runs of a table', wait=False):
        failed = making.make(one, places, asked=asked if one.is_tuning else ())
    except BlockingIOError:
      failed = BUSY
    except OSError as error:
      if not run_folders.is_finished(folder):
        raise
      failed = ''  # an adopted run that cannot be written to
      log.warning(f'{one.name}: its rows cannot be predicted again, and intervals are made without them: {error}')
    if failed:
      kept['failed'][one.digest] = failed
      log.warning(f'{one.name}: {failed}')
      return
  if run_folders.is_finished(folder):
    kept['failed'].pop(one.digest, None)
    kept['runs'][one.digest] = found = cells.record(one, folder, asked)
    if lacking := [metric for metric in asked if metric != table.plateau and metric not in found['metrics']]:
      value = found.get('not_finite', {}).get(lacking[0])
      there = f'it has no {lacking[0]}; there are {", ".join(found["metrics"])}'
      kept['failed'][one.digest] = there if value is None else f'its {lacking[0]} is {value}'


def _counted(one: Run, counts: Counts) -> Mapping[str, int]:
  try:
    return counts.of(one)
  except ConfigError as error:
    raise ConfigError(f'{one.config}: {error}') from None


def _say(number: int, total: int, one: Run, kept: Mapping[str, Any], began: float) -> None:
  """A line on a run that was just settled, with an estimate of the time left."""
  spent = time.monotonic() - began
  left = clock(spent / number * (total - number))
  what = kept['failed'].get(one.digest) or f'{kept["runs"].get(one.digest, {}).get("seconds", 0):.0f} s'
  log.info(f'{number}/{total}  {one.name}: {what}  left {left}')


def _look_at_the_reference(
  table: Table, plan: Mapping[Cell, Sequence[Sequence[Run]]], kept: dict[str, Any], places: Places
) -> None:
  """Notes where the pre-training of the reference row stands beside word frequencies."""
  first = next((by_seed[0][0] for cell, by_seed in plan.items() if cell.row == table.reference), None)
  if first is None:
    return
  folder = run_folders.folder_of(runs.pretraining_of(first), places)
  if run_folders.is_finished(folder) and (found := cells.plateau(table, folder)):
    kept['plateau'] = found
