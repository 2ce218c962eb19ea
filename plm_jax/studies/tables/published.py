"""Rows of published weights: their folders and data, and whether a measured number is the published one."""

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scipy import stats

from plm_jax import config
from plm_jax.config import signatures
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.data import made
from plm_jax.data.corpora import sources, splits
from plm_jax.io import files, model_folders
from plm_jax.studies.tables import intervals, runs
from plm_jax.studies.tables.file import Column, Row, Table
from plm_jax.studies.tables.intervals import Measured
from plm_jax.studies.tables.runs import Places, Run
from plm_jax.training.before import from_data

# files of weights: the first kind that a folder has is what a sha256 is of; a converted checkpoint has its checksums
KINDS = ('*.safetensors', '*.bin', '*.msgpack', '*.hdf5', '*.pth', 'SHA256SUMS')
TFDS = 'tfds:'
BUILD = 'python -m tensorflow_datasets.scripts.cli.main build {} --file_format=array_record'
SAME, DIFFERS = 'same', 'differs'
# path, split, whether a missing set is made -> what is missing, number of examples
Known = dict[tuple[str, str, bool], tuple[str, int]]


def found(table: Table, places: Places, *, head: str) -> Table:
  """Check folders and data; what is missing stays empty, with its fix.

  Raises ConfigError: a folder of another architecture or checksum, or nothing to run.

  Args:
    places: folders of weights and data. Unless it `makes`, sets that are not here are not downloaded.
    head: the table file, for errors.
  """
  root = files.path(places.weights or '')
  if not files.is_folder(root):
    raise ConfigError(f'--weights={root}: there is no such folder. Name the folder that holds those of {head}.')
  present = {name: _with_weights(name, row, root) for name, row in table.rows.items()}
  known: Known = {}
  rows: dict[str, Row] = {}
  for name, row in present.items():
    without, unlike = dict(row.without), dict(row.unlike)
    for column_name, by_seed in _of_row(table, name, row, places).items():
      column = table.columns[column_name]
      missing, count = _data(by_seed[0][0], column, places, known, makes=places.makes and not row.empty)
      limit = ', '.join(map(str, row.limits.get(column_name, {}).values()))
      part = f'{errors.shown(limit)} is read' if limit else f'{count:,} of {column.whole:,} examples are here'
      if missing:
        without[column_name] = missing
      if reason := column.unlike or (part if limit or (count < column.whole and not missing) else ''):
        unlike.setdefault(column_name, reason)
    rows[name] = dataclasses.replace(row, without=without, unlike=unlike)
  table = dataclasses.replace(table, rows=rows)
  if places.makes and not runs.plan(table, places):
    lacking = next(reason for row in rows.values() for reason in (row.empty, *row.without.values()) if reason)
    raise ConfigError(f'{head}: nothing to run. {lacking}. --print lists all that is missing.')
  return table


def _of_row(table: Table, name: str, row: Row, places: Places) -> dict[str, list[list[Run]]]:
  """Plan a row, column by column, also without its folder."""
  alone = dataclasses.replace(table, rows={name: dataclasses.replace(row, empty=table.rows[name].empty)})
  return {cell.column: by_seed for cell, by_seed in runs.plan(alone, places).items()}


def _with_weights(name: str, row: Row, root: Path) -> Row:
  """Add a row's checksum, or the reason why it is empty."""
  if not row.folder or row.empty:
    return row
  place = root / row.folder
  row = dataclasses.replace(row, weights=str(place))
  fetch = row.fetch.format(place=place) or f'hf download {row.id} --local-dir {place}'
  if not files.is_folder(place):
    others = [file.parent.name for file in files.listing(root, f'*/{model_folders.CONFIG}')]
    return dataclasses.replace(row, empty=f'{place} is missing.{errors.suggest(row.folder, others)} Run: {fetch}')
  model = _model(place)
  imported = files.is_file(place / files.IMPORT) and row.model not in signatures.names('models')
  if model != row.model and not imported:
    raise ConfigError(
      f'{place}: model_type {model!r}, and row {name!r} is a {row.model!r}. Move it away and run: {fetch}'
    )
  digest = sha256(place)
  if not digest or row.sha256 not in ('', digest):
    wrong = f'sha256 {digest[:12]} is not {row.sha256[:12]}' if digest else f'no {" or ".join(KINDS[:2])}'
    raise ConfigError(f'{place}: {wrong} of row {name!r}: another version? Move it away and run: {fetch}')
  return dataclasses.replace(row, sha256=digest)


def _model(place: Path) -> Any:
  if files.is_file(place / files.IMPORT):
    return model_folders.read(place / files.IMPORT).get('model', {}).get('name')
  return model_folders.config_of(model_folders.base_of(model_folders.main_folder(place))).get('model_type')


def sha256(place: Path) -> str:
  """Compute the checksum of a folder's weights, '' without any."""
  listed: Iterator[list[Path]] = (files.listing(model_folders.main_folder(place), kind) for kind in KINDS)
  sums = [files.sha256(file) for file in next(filter(None, listed), [])]
  return sums[0] if len(sums) == 1 else hashlib.sha256('\n'.join(sums).encode()).hexdigest() if sums else ''


def _data(run: Run, column: Column, places: Places, known: Known, *, makes: bool) -> tuple[str, int]:
  """Return what a run lacks, and its number of examples."""
  skipped = {f'eval.{name}.data' for name in from_data.left_out(run.settings)} | ({'data'} if run.evaluates else set())
  counted = {'data', f'eval.{column.metric.partition("/")[0]}.data'} - skipped
  total = 0
  for key, block in config.of_data(run.settings).items():
    path, split = block.get('path'), block.get('split') or 'train'
    if path is None or key in skipped:
      continue
    if (path, split, makes) not in known:
      fetch = column.fetch.format(data=places.data or 'runs/data')
      if path.startswith(TFDS) and not fetch:
        fetch = BUILD.format(path.removeprefix(TFDS))
      known[path, split, makes] = _open(path, split, fetch, makes=makes)
    missing, count = known[path, split, makes]
    if missing:
      return missing, 0
    total += count * (key in counted)
  return '', total


def _open(path: str, split: str, fetch: str, *, makes: bool) -> tuple[str, int]:
  """Count examples, or say what is missing and what fetches it."""
  first = splits.parse(split, path=path)[0]
  try:
    with made.watching(makes=makes):
      return '', len(sources.open_source(path, split=first.name if first.by_tokens else split))
  except (FileNotFoundError, made.Unmade):
    return f'{path} ({split}) is missing. {f"Run: {fetch}" if fetch else "Name its folder with --data=DIR"}', 0
  except (OSError, ValueError, ModuleNotFoundError) as error:
    return str(error), 0


def verdict(table: Table, row: str, column: str, cell: Measured | None) -> str:
  """Compare a cell with its published number.

  Returns 'same' or 'differs', the reason why they are not compared, or '' if there is nothing to compare. An evaluation
  differs beyond the digits that the row prints, a fine-tuning outside of the prediction interval of its seeds.
  """
  published = table.rows[row].published
  if cell is None or column not in published or not table.rows[row].folder:
    return ''
  if reason := table.rows[row].unlike.get(column, ''):
    return reason
  values = cell.finite
  mean = intervals.summarise(cell, table.summary)
  if table.columns[column].of == 'evaluation' or table.columns[column].over:
    digits = max(len(f'{number:.10g}'.partition('.')[2]) for number in published.values())
    return SAME if round(mean, digits) == round(published[column], digits) else DIFFERS
  if len(values) < 2:
    return 'one run has no spread'
  half = stats.t.ppf((1 + intervals.LEVEL) / 2, len(values) - 1) * values.std(ddof=1) * math.sqrt(1 + 1 / len(values))
  return SAME if abs(mean - published[column]) <= half else DIFFERS


def facts(table: Table, verdicts: Mapping[tuple[str, str], str]) -> list[str]:
  """Describe the weights of a table, and what is not compared."""
  rows = {name: row for name, row in table.rows.items() if row.folder}
  if not rows:
    return []
  described = [f'{name} is {row.id} {row.sha256[:12]}'.strip() for name, row in rows.items()]
  by_reason: dict[str, list[str]] = {}
  for cell, reason in verdicts.items():
    if reason not in ('', SAME, DIFFERS):
      by_reason.setdefault(reason, []).append(f'{cell[0]}, {cell[1]}')
  return [
    f'Weights and their sha256: {"; ".join(described)}.',
    '**differs**: beyond the printed digits of an evaluation, or outside of the 95 % prediction interval of the seeds.',
    *(f'In parentheses, not compared: {"; ".join(cells)}: {reason}.' for reason, cells in by_reason.items()),
  ]
