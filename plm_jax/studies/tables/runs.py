"""Plan the runs of a table, and decide when two runs are the same.

A run is identified by a digest of its config and of the run that it starts from, so tables that need the same run share
it. `run_folders.py` finds its folder and `making.py` makes it.
"""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.config import overrides, signatures
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.data.corpora import splits
from plm_jax.io import files
from plm_jax.runs import history
from plm_jax.studies.tables.file import BEFORE, CHOSEN, Column, Row, Table

DIGITS = 12  # of a digest in names
NOT_STATED = (*history.ON_ITS_WAY, 'save_minutes')  # keys that make no other run


class Run(NamedTuple):
  """One run of `train`, or of `evaluate`."""

  config: str  # file of its config, with arguments
  changes: tuple[tuple[str, str], ...]  # (dotted key, value as text) pairs
  settings: Mapping[str, Any]  # the complete config
  # run that gives its model, vocabulary and, unless `scratch`, parameters; or, if its changes contain `BEFORE`, the run
  # whose folder replaces it
  source: 'Run | None'
  scratch: bool  # whether it starts from random parameters
  digest: str  # digest of all of these
  evaluates: bool = False  # whether it only evaluates the parameters of its source
  weights: str = ''  # folder of published weights that replace a source; '' for none

  @property
  def name(self) -> str:
    """Return the name of its folder."""
    return f'{Path(self.config.partition(":")[0]).stem}-{self.digest}'

  @property
  def names_its_source(self) -> bool:
    """Return whether its changes refer to its source."""
    return any(BEFORE in value for _, value in self.changes)

  @property
  def is_tuning(self) -> bool:
    """Return whether its labelled examples, pairs or tokens are predicted."""
    is_predicted = self.settings['adapter'] or 'good' in self.settings['data'] or (self.evaluates and self.source)
    return bool((self.source or self.weights) and is_predicted)


class Cell(NamedTuple):
  """A row and a column of a table."""

  row: str
  column: str


class Places(NamedTuple):
  """Folders of runs and data."""

  workdir: Path | None  # folder of the runs of all tables; None if none is made or read
  data: str | None = None  # folder of the task data; None for the paths of the configs
  corpus: str | None = None  # pre-training text; None for the paths of the configs
  adopt: tuple[str, ...] = ()  # folders of runs, or folders that contain such folders
  makes: bool = False  # whether token stores are built to compare the data of a folder to adopt
  weights: str | None = None  # folder of the folders of published weights; None without rows of them


def plan(table: Table, places: Places) -> dict[Cell, list[list[Run]]]:
  """Plan the runs of each measured cell.

  They are ordered by seed of pre-training and then of fine-tuning. Raises ConfigError: an invalid config; names row,
  column and key.
  """
  planned: dict[Cell, list[list[Run]]] = {}
  for row_name, row in table.rows.items():
    if row.empty:
      continue
    for column_name, column in table.columns.items():
      if not column.empty and not column.over and column_name not in row.without:
        cell = Cell(row_name, column_name)
        planned[cell] = _of_cell(table, cell, row, column, places)
        if table.summary in CHOSEN and column.chosen_by is not None:
          for run in (run for by_seed in planned[cell] for run in by_seed):
            _check_splits(column, run, f'row {row_name!r}, column {column_name!r}')
  return planned


def _of_cell(table: Table, cell: Cell, row: Row, column: Column, places: Places) -> list[list[Run]]:
  runs = []
  for index in range(table.pretraining_seeds):
    seed = table.first_seed + index
    source = None if row.weights else _pretraining(table, cell.row, places, seed)
    start: dict[str, Any] = dict(weights=row.weights, sha256=row.sha256)
    if column.of not in ('tuning', 'evaluation'):
      runs.append([source] if source else [])
      continue
    path = _path_of(column.folder, places)
    label = f'row {cell.row!r}, column {cell.column!r}'
    if column.of == 'evaluation':
      keys = {**column.keys, **path, **row.limits.get(cell.column, {}), 'seed': seed}
      runs.append([_run(column.configs[row.family], keys, label=label, source=source, evaluates=True, **start)])
      continue
    if column.between and not row.direct:
      text = _path_of(column.between_folder or column.folder, places)
      keys = {**column.between_keys, **row.between, **text, 'seed': seed}
      start |= dict(source=source, scratch=row.between_start == 'scratch')
      source, start = _run(column.between[row.family], keys, label=f'{label}, between', **start), {}
    runs.append([
      _run(
        column.configs[row.family],
        {
          **column.keys, **row.tuning, **point, **path, **row.limits.get(cell.column, {}),
          'seed': table.first_seed + index * table.tuning_seeds + tuning_seed,
        },
        label=label,
        source=source,
        scratch=row.start == 'scratch',
        **start,
      )
      for tuning_seed in range(table.tuning_seeds) for point in column.grid or ({},)
    ])  # fmt: skip
  return runs


def _path_of(folder: str, places: Places) -> dict[str, str]:
  """Return `data.path` of a folder below `--data`, if both are given."""
  return {'data.path': str(files.path(places.data) / folder)} if places.data and folder else {}


def _check_splits(column: Column, run: Run, label: str) -> None:
  assert column.chosen_by is not None
  blocks = config.of_data(run.settings)
  reported, chooses = (f'eval.{name.partition("/")[0]}.data' for name in (column.metric, column.chosen_by[0]))
  for key in (reported, chooses):
    if key not in blocks:
      names = ', '.join(run.settings['eval']) or 'none'
      raise ConfigError(f'{label}: {run.config} has no evaluation {key.split(".")[1]!r}; there are: {names}')
  if (blocks[chooses].get('split') or '').startswith('test'):
    raise ConfigError(f'{label}: chosen_by: {chooses} is a test set: use a held-out part of the training data')
  for other in (reported, 'data'):
    with errors.stage(label):
      shares = _overlap(blocks[chooses], blocks[other])
    if shares:
      raise ConfigError(
        f'{label}: chosen_by: {chooses} and {other} overlap: separate the splits, as in '
        "'train[:90%shuffled]' and 'train[90%shuffled:]'"
      )


def _overlap(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
  """Return whether two data blocks are known to read the same examples."""
  if a.get('path') is None or a.get('path') != b.get('path'):
    return a == b
  of_a, of_b = (splits.parse(str(block.get('split')), path=a['path']) for block in (a, b))
  return any(splits.overlap(first, second) for first in of_a for second in of_b)


def _pretraining(table: Table, name: str, places: Places, seed: int) -> Run:
  """Plan the pre-training of a row and those before it."""
  row = table.rows[name]
  text = places.corpus or row.keys.get('data.path')
  changed = {'data.path': text} if places.corpus else {}
  if row.corpus and text:
    changed = {'data.path': f'{text}{row.corpus}', 'eval.validation.data.path': text}
  source = _pretraining(table, row.after, places, seed) if row.after else None
  return _run(row.config, {**row.keys, **changed, 'seed': seed}, label=f'row {name!r}, pre-training', source=source)


def _run(
  target: str,
  keys: Mapping[str, Any],
  *,
  label: str,
  source: Run | None = None,
  scratch: bool = False,
  evaluates: bool = False,
  weights: str = '',
  sha256: str = '',
) -> Run:
  changes = tuple((key, value if isinstance(value, str) else repr(value)) for key, value in keys.items())
  try:
    settings = _resolved(target, tuple(change for change in changes if change[0] != 'seed')) | {'seed': keys['seed']}
  except ConfigError as error:
    raise ConfigError(f'{label}: {target}: {error}') from error
  more = [word for word in ('evaluation' if evaluates else '', sha256 or weights) if word]
  content = [stated(settings), source and source.digest, scratch, *more]
  identity = json.dumps(content, sort_keys=True)
  digest = hashlib.sha256(identity.encode()).hexdigest()[:DIGITS]
  return Run(target, changes, settings, source, scratch, digest, evaluates=evaluates, weights=weights)


@functools.lru_cache(maxsize=1_000)
def _resolved(target: str, changes: tuple[tuple[str, str], ...]) -> dict[str, Any]:
  """Resolve the complete config of a run except its seed."""
  return config.resolve(overrides.apply(config.load(config_file(target)), changes)[0])


def config_file(name: str) -> str:
  """Find a config file, here or in the package."""
  file, colon, words = name.partition(':')
  here = files.path(file)
  own = signatures.ROOT.parent / file
  return f'{own if not files.is_file(here) and files.is_file(own) else here}{colon}{words}'


def stated(settings: Mapping[str, Any]) -> dict[str, Any]:
  """Return the settings that identify a run.

  Keys that may change during a run are left out. Keys with value None are dropped, so that runs are still found after
  configs gain a key.
  """

  def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
      return {key: plain(inner) for key, inner in value.items() if inner is not None}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value

  return plain({key: value for key, value in settings.items() if key not in NOT_STATED})


def needed(plan: Mapping[Cell, Sequence[Sequence[Run]]]) -> list[Run]:
  """List every run once, after those it starts from."""
  ordered: dict[str, Run] = {}
  for by_seed in plan.values():
    for run in (run for runs in by_seed for run in runs):
      for step in (*reversed(sources(run)), run):
        ordered.setdefault(step.digest, step)
  return list(ordered.values())


def sources(run: Run) -> list[Run]:
  """List the runs that a run starts from, nearest first."""
  return [] if run.source is None else [run.source, *sources(run.source)]


def pretraining_of(run: Run) -> Run:
  """Return the pre-training whose model a run uses."""
  return run if run.source is None or run.names_its_source else pretraining_of(run.source)
