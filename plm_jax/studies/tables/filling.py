"""Fill a table: run what is missing, store the results, and render it.

Several processes may fill one table. Each runs what no other process runs, and merges the results of the others.
"""

import itertools
import logging
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from plm_jax.cli import signals
from plm_jax.cli.progress import Waiting, clock
from plm_jax.core.errors import ConfigError, Interrupted
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.studies.tables import cells, making, render, run_folders, runs
from plm_jax.studies.tables.counting import Counts
from plm_jax.studies.tables.file import CHOSEN, Table
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
  """Run what is missing and render the table.

  Returns the content of `cells.json`. Raises ConfigError: `cells.json` is damaged, or is only rendered and has another
  scale. Raises Interrupted: stopped by a signal; gives the number of runs left.

  Args:
    out: folder of `cells.json` and of the rendered files.
    scale: scale of the table.
    command: command shown in the table.
    run: whether missing runs are made; otherwise existing results are rendered.
    minutes: no run starts after this many minutes.
  """
  files.make_folder(out)
  file = out / 'cells.json'
  results = _open_cells(file, plan, scale=scale, command=command, run=run)
  metrics, todo = metrics_of(table, plan), runs.needed(plan)
  log.info(f'{table.title}: {len(todo)} runs, {sum(job.digest in results["runs"] for job in todo)} of them known')
  counts = Counts()
  counts.add([job for job in todo if not metrics[job.digest] and job.digest not in results['runs']])
  missing = [job for job in todo if metrics[job.digest] and not _has_metrics(job.digest, results)]
  sources = {source.digest for job in missing for source in runs.sources(job)}
  failed_elsewhere: set[str] = set()  # during this call, so that they are not tried again
  began = time.monotonic()
  with Waiting(len(todo), 'runs') as bar:
    busy = (job for job in todo if run and _is_busy(job, results))  # evaluated after `todo`, as a second attempt
    for index, job in enumerate(itertools.chain(todo, busy)):
      may_run = run and time.monotonic() - began <= 60 * minutes
      try:
        if job.digest not in failed_elsewhere and _is_open(job, results, sources, places, may_run=may_run):
          _settle(job, table, results, places, metrics[job.digest], counts, run=may_run)
      except Interrupted as interrupted:
        _merge(file, results)
        left = sum(other.digest not in results['runs'] for other in todo)
        raise Interrupted(f'{interrupted}\n{left} of {len(todo)} runs are left', interrupted.exit_code) from None
      bar.advance(index < len(todo))
      if run:
        failed_elsewhere |= _merge(file, results)
        _log_progress(min(index + 1, len(todo)), len(todo), job, results, began)
  _add_plateau(table, plan, results, places)
  _merge(file, results)
  results = cells.read(file)  # without runs that no cell names, so that the file alone renders the same
  render.write(table, results, out)
  return results


def _open_cells(
  file: Path, plan: Mapping[Cell, Sequence[Sequence[Run]]], *, scale: str, command: str, run: bool
) -> dict[str, Any]:
  """Read earlier results and set the cells of this table."""
  results, names = cells.read(file), cells.names(plan)
  if run:
    _back_up(file, results, names)
  if run or not results['cells']:
    results |= {'scale': scale, 'cells': names, 'command': command}
  elif results['scale'] not in ('', scale):
    raise ConfigError(f'{file} has scale {results["scale"]}: add --scale={results["scale"]}.')
  elif results['cells'] != names:
    log.warning(f'{file} is of another version of this table and is rendered; move it away to render the current one')
  return results


def _is_open(job: Run, results: Mapping[str, Any], sources: Set[str], places: Places, *, may_run: bool) -> bool:
  """Return whether a run still has something to record.

  Args:
    sources: digests of runs from which missing runs start; they are made again if their folder is missing.
    may_run: whether runs are made now.
  """
  if not _has_metrics(job.digest, results):
    return True
  if not may_run:
    return False
  is_missing = job.digest in sources and run_folders.finished(job, places) is None
  return is_missing or _lacks_rows(job, results, places)


def _back_up(file: Path, results: Mapping[str, Any], names: Mapping[str, Any]) -> None:
  """Copy `cells.json` if the table no longer uses measured runs."""
  unused = cells.digests(results['cells']) - cells.digests(names)
  if measured := [digest for digest in unused if _has_metrics(digest, results)]:
    copy = files.unused(file.with_name('cells.previous.json'))
    files.copy(file, copy)
    log.warning(f'{len(measured)} measured runs are not used by this version of the table; they are saved in {copy}')


def _merge(file: Path, results: dict[str, Any]) -> set[str]:
  """Merge and write results; return the runs that failed in other processes."""
  failed = set()
  with files.locked(file.with_name('.lock'), doing='writing the cells of a table'):
    written = cells.read(file)
    for digest, run in written['runs'].items():
      if 'metrics' in run and not _has_metrics(digest, results):
        results['runs'][digest] = run
        results['failed'].pop(digest, None)
    for digest, reason in written['failed'].items():
      is_new = not _has_metrics(digest, results) and results['failed'].get(digest, BUSY).endswith(BUSY)
      if is_new and not reason.endswith(BUSY):
        results['failed'][digest] = reason
        failed.add(digest)
    cells.write(file, results)
  return failed


def metrics_of(table: Table, plan: Mapping[Cell, Sequence[Sequence[Run]]]) -> dict[str, tuple[str, ...]]:
  """Map each run's digest to its columns' metrics, () if only counted."""
  metrics: dict[str, tuple[str, ...]] = {}
  for cell, by_seed in plan.items():
    column = table.columns[cell.column]
    needed: tuple[str, ...] = ()
    if column.of != 'parameters':
      needed = (table.plateau if column.of == 'tokens' else column.metric,)
      if column.chosen_by is not None and table.summary in CHOSEN:
        needed = (*needed, column.chosen_by[0])
    for run in (run for group in by_seed for run in group):
      metrics[run.digest] = (*metrics.get(run.digest, ()), *needed)
      for source in runs.sources(run):  # made because this run starts from it
        metrics[source.digest] = (*metrics.get(source.digest, ()), *((table.plateau,) if needed else ()))
  return metrics


def _is_busy(job: Run, results: Mapping[str, Any]) -> bool:
  return bool(results['failed'].get(job.digest, '').endswith(BUSY))


def _has_metrics(digest: str, results: Mapping[str, Any]) -> bool:
  return 'metrics' in results['runs'].get(digest, {})


def _lacks_rows(job: Run, results: Mapping[str, Any], places: Places) -> bool:
  """Return whether a recorded run lacks scores of examples (after --print)."""
  if not job.is_tuning or not _has_metrics(job.digest, results) or 'rows' in results['runs'][job.digest]:
    return False
  return run_folders.finished(job, places) is not None


def _settle(
  job: Run, table: Table, results: dict[str, Any], places: Places, metrics: Sequence[str], counts: Counts, *, run: bool
) -> None:
  """Make a run, if `run`, and record its result or its failure."""
  signals.check()
  if not metrics:
    if job.digest not in results['runs']:
      results['runs'][job.digest] = {'name': job.name, **_counted(job, counts)}
    return
  folder = run_folders.folder_of(job, places)
  if reason := run_folders.begun_too_soon(folder):
    results['failed'][job.digest] = reason
    log.warning(f'{job.name}: {reason}')
    return
  is_predicted = not job.is_tuning or files.is_file(folder.root / run_folders.PREDICTIONS)
  is_made = run_folders.is_finished(folder) and is_predicted
  if run and not is_made and (failure := _failure_of_source(job, results) or _make(job, places, metrics)):
    results['failed'][job.digest] = failure
    return
  if run_folders.is_finished(folder):
    _record(job, table, results, folder, metrics)


def _failure_of_source(job: Run, results: Mapping[str, Any]) -> str:
  """Explain why the run that a run starts from failed; or ''."""
  if job.source is None or job.source.digest not in results['failed'].keys() - results['runs'].keys():
    return ''
  is_busy = _is_busy(job.source, results)
  return f'the run that it begins with, {job.source.name}{": " + BUSY if is_busy else ", failed"}'


def _make(job: Run, places: Places, metrics: Sequence[str]) -> str:
  """Make a run if no other process does; return its failure."""
  folder = run_folders.folder_of(job, places)
  lock = folder.root.with_name(f'{folder.root.name}.lock')
  try:
    with files.locked(lock, doing='making runs of a table', wait=False):
      failure = making.make(job, places, metrics=metrics if job.is_tuning else ())
  except BlockingIOError:
    failure = BUSY
  except OSError as error:  # such as an adopted run in a read-only folder
    if not run_folders.is_finished(folder):
      raise
    log.warning(f'{job.name}: examples cannot be predicted, so intervals are computed without them: {error}')
    return ''
  if failure:
    log.warning(f'{job.name}: {failure}')
  return failure


def _record(job: Run, table: Table, results: dict[str, Any], folder: RunFolder, metrics: Sequence[str]) -> None:
  """Record a finished run, and a missing metric as its failure."""
  results['failed'].pop(job.digest, None)
  results['runs'][job.digest] = recorded = cells.record(job, folder, metrics)
  measured = recorded['metrics']
  if missing := [metric for metric in metrics if metric != table.plateau and metric not in measured]:
    value = recorded.get('not_finite', {}).get(missing[0])
    without = f'it has no {missing[0]}; there are {", ".join(measured)}'
    results['failed'][job.digest] = reason = without if value is None else f'its {missing[0]} is {value}'
    log.warning(f'{job.name}: {reason}')


def _counted(job: Run, counts: Counts) -> Mapping[str, int]:
  try:
    return counts.of(job)
  except ConfigError as error:
    raise ConfigError(f'{job.config}: {error}') from None


def _log_progress(done: int, total: int, job: Run, results: Mapping[str, Any], began: float) -> None:
  left = clock((time.monotonic() - began) / done * (total - done))
  result = results['failed'].get(job.digest) or f'{results["runs"].get(job.digest, {}).get("seconds", 0):.0f} s'
  log.info(f'{done}/{total}  {job.name}: {result}  left {left}')


def _add_plateau(
  table: Table, plan: Mapping[Cell, Sequence[Sequence[Run]]], results: dict[str, Any], places: Places
) -> None:
  first = next((by_seed[0][0] for cell, by_seed in plan.items() if cell.row == table.reference), None)
  if first is None:
    return
  folder = run_folders.folder_of(runs.pretraining_of(first), places)
  if run_folders.is_finished(folder) and (plateau := cells.plateau(table, folder)):
    results['plateau'] = plateau
