"""The runs behind a table: which ones it needs, and what makes two of them the same.

A run is known by a digest of its config and of the run that it begins with, so that tables which need the same run
share it. `folders.py` says where it lies and `making.py` how it is made.
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
from plm_jax.studies.tables.file import BEFORE, BEST, Column, Row, Table

DIGITS = 12  # of a digest, in names


class Run(NamedTuple):
  """One run of `train`, or of `evaluate`.

  Attributes:
    config: the file of its config, with words.
    changes: (dotted key, value as text) pairs.
    settings: the whole config.
    source: the run whose model, vocabulary and, unless `scratch`, parameters it begins with; or, where its changes name
      `BEFORE`, the run whose folder stands there.
    scratch: whether it begins with fresh parameters.
    digest: of all of this.
    evaluates: whether it evaluates the parameters of its source as they are.
  """

  config: str
  changes: tuple[tuple[str, str], ...]
  settings: Mapping[str, Any]
  source: 'Run | None'
  scratch: bool
  digest: str
  evaluates: bool = False

  @property
  def name(self) -> str:
    """Of its folder."""
    return f'{Path(self.config.partition(":")[0]).stem}-{self.digest}'

  @property
  def names_its_source(self) -> bool:
    """Whether its changes say what it takes of its source."""
    return any(BEFORE in value for _, value in self.changes)

  @property
  def is_tuning(self) -> bool:
    """Whether it is of a task, so that there is something to predict."""
    return self.source is not None and bool(self.settings['adapter'])


class Cell(NamedTuple):
  """A row and a column."""

  row: str
  column: str


class Places(NamedTuple):
  """Where runs lie and what they read.

  Attributes:
    workdir: that of the command; runs of all tables lie below it. None where none is made.
    data: the folder of the task sets; None for the paths of the configs.
    corpus: the text that is pre-trained on; None for the paths of the configs.
    adopt: folders of runs, and folders that hold such folders.
    makes: whether token stores are made where they are needed to compare the data of a folder to adopt.
  """

  workdir: Path | None
  data: str | None = None
  corpus: str | None = None
  adopt: tuple[str, ...] = ()
  makes: bool = False


def plan(table: Table, places: Places) -> dict[Cell, list[list[Run]]]:
  """The runs of each cell that is measured, by seed of pre-training and then by seed of fine-tuning.

  Raises:
    ConfigError: a config that does not resolve; names row, column and key.
  """
  found: dict[Cell, list[list[Run]]] = {}
  for row_name, row in table.rows.items():
    if row.empty:
      continue
    for column_name, column in table.columns.items():
      if not column.empty and not column.over and column_name not in row.without:
        cell = Cell(row_name, column_name)
        found[cell] = _of_cell(table, cell, row, column, places)
        if table.summary == BEST and column.chosen_by is not None:
          for run in (run for by_seed in found[cell] for run in by_seed):
            _check_rows(column, run, f'row {row_name!r}, column {column_name!r}')
  return found


def _of_cell(table: Table, cell: Cell, row: Row, column: Column, places: Places) -> list[list[Run]]:
  runs = []
  for seed in range(table.pretraining_seeds):
    began = _pretraining(table, cell.row, places, seed)
    if column.of not in ('tuning', 'evaluation'):
      runs.append([began])
      continue
    path = {'data.path': str(files.path(places.data) / column.folder)} if places.data and column.folder else {}
    label = f'row {cell.row!r}, column {cell.column!r}'
    if column.of == 'evaluation':
      keys = {**column.keys, **path, 'seed': seed}
      runs.append([_run(column.configs[row.family], keys, label=label, source=began, evaluates=True)])
      continue
    if column.between and not row.direct:
      keys = {**column.between_keys, **row.between, **path, 'seed': seed}
      fresh = row.between_start == 'scratch'
      began = _run(column.between[row.family], keys, label=f'{label}, between', source=began, scratch=fresh)
    runs.append([
      _run(
        column.configs[row.family],
        {**column.keys, **row.tuning, **point, **path, 'seed': seed * table.tuning_seeds + number},
        label=label,
        source=began,
        scratch=row.start == 'scratch',
      )
      for number in range(table.tuning_seeds) for point in column.grid or ({},)
    ])  # fmt: skip
  return runs


def _check_rows(column: Column, run: Run, label: str) -> None:
  """Raises where the rows that choose a run are among those that are reported or learned, or of a test set."""
  assert column.chosen_by is not None
  blocks = config.of_data(run.settings)
  reported, chooses = (f'eval.{name.partition("/")[0]}.data' for name in (column.metric, column.chosen_by[0]))
  for place in (reported, chooses):
    if place not in blocks:
      there = ', '.join(run.settings['eval']) or 'none'
      raise ConfigError(f'{label}: {run.config} has no evaluation {place.split(".")[1]!r}; there are: {there}')
  if (blocks[chooses].get('split') or '').startswith('test'):
    raise ConfigError(f'{label}: chosen_by: {chooses} is a test set, by which no run is chosen: name held-out rows')
  for other in (reported, 'data'):
    with errors.stage(label):
      shares = _share_rows(blocks[chooses], blocks[other])
    if shares:
      raise ConfigError(
        f'{label}: chosen_by: {chooses} and {other} read the same rows, and a run is chosen by rows that are neither '
        "reported nor learned: cut the split, as in 'train[:90%shuffled]' and 'train[90%shuffled:]'"
      )


def _share_rows(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
  """Whether two data blocks are known to read rows of the same text that are not cut from each other."""
  if one.get('path') is None or one.get('path') != other.get('path'):
    return one == other
  mine, theirs = (splits.parse(str(block.get('split')), path=one['path']) for block in (one, other))
  return any(splits.overlap(first, second) for first in mine for second in theirs)


def _pretraining(table: Table, name: str, places: Places, seed: int) -> Run:
  """The pre-training of a row, behind that of the row that it comes after."""
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
) -> Run:
  changes = tuple((key, value if isinstance(value, str) else repr(value)) for key, value in keys.items())
  try:
    settings = _resolved(target, tuple(change for change in changes if change[0] != 'seed')) | {'seed': keys['seed']}
  except ConfigError as error:
    raise ConfigError(f'{label}: {target}: {error}') from error
  whole = [stated(settings), source and source.digest, scratch, *(['evaluation'] if evaluates else [])]
  identity = json.dumps(whole, sort_keys=True)
  digest = hashlib.sha256(identity.encode()).hexdigest()[:DIGITS]
  return Run(target, changes, settings, source, scratch, digest, evaluates)


@functools.lru_cache(maxsize=1_000)
def _resolved(target: str, changes: tuple[tuple[str, str], ...]) -> dict[str, Any]:
  """The whole config of a run but for its seed, in which the runs of a cell differ."""
  return config.resolve(overrides.apply(config.load(config_file(target)), changes)[0])


def config_file(name: str) -> str:
  """A config file as it is named from here: those of the package are found from any folder."""
  file, colon, words = name.partition(':')
  here = files.path(file)
  own = signatures.ROOT.parent / file
  return f'{own if not files.is_file(here) and files.is_file(own) else here}{colon}{words}'


def stated(settings: Mapping[str, Any]) -> dict[str, Any]:
  """What makes two runs the same: what a config says, without what may change on the way.

  A key that is None says nothing, so that runs are still found once configs have one key more.
  """

  def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
      return {key: plain(inner) for key, inner in value.items() if inner is not None}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value

  return plain({key: value for key, value in settings.items() if key not in history.ON_ITS_WAY})


def needed(plan: Mapping[Cell, Sequence[Sequence[Run]]]) -> list[Run]:
  """Every run once, behind the one that it begins with; row by row, so that a table which is cut has whole rows."""
  found: dict[str, Run] = {}
  for by_seed in plan.values():
    for run in (run for runs in by_seed for run in runs):
      for one in (*reversed(sources(run)), run):
        found.setdefault(one.digest, one)
  return list(found.values())


def sources(run: Run) -> list[Run]:
  """The run that a run begins with, the one that this begins with, and so on."""
  return [] if run.source is None else [run.source, *sources(run.source)]


def pretraining_of(run: Run) -> Run:
  """The run itself, or the one that its model is of."""
  return run if run.source is None or run.names_its_source else pretraining_of(run.source)
