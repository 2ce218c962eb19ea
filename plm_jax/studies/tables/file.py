"""Table files: the rows and columns of a table of a paper, its published numbers, and its claims.

A table file has `get_table(scale)`, which returns a dict with the fields of `Table`. Its rows, columns and claims are
dicts with the fields of `Row`, `Column` and `Claim`. If it has `get_table(scale, arg='')`, arguments may
follow its name after a colon, as for a config: `small_bert.py:medium`. It may import only `experiments.common` and
`experiments/tables/shared/`.
"""

import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

from plm_jax.config import signatures
from plm_jax.config.load import call
from plm_jax.config.values import check_keywords
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.io import files

Scale = Literal['tiny', 'small', 'paper']
Of = Literal['tuning', 'evaluation', 'pretraining', 'parameters', 'tokens']
Better = Literal['max', 'min']
Summary = Literal['mean', 'median', 'best on dev', 'best point on dev']
BEST: Summary = 'best on dev'
BEST_POINT: Summary = 'best point on dev'
CHOSEN = (BEST, BEST_POINT)
Start = Literal['pretrained', 'scratch']
NESTED = ('rows', 'columns', 'claims')  # fields of a table that are checked before it
CHANCE = ('most frequent class', 'chance')  # scores in `trivial` of a network that learned nothing
COUNTED = ('parameters', 'tokens')  # columns that need no metric
Mark = Literal['A', 'B', 'C', 'D', 'none']
SCALES: tuple[str, ...] = get_args(Scale)
RUNGS = ('1m', '5m', '30m')  # scales of files that name them in SCALES: millions of parameters
PUBLISHED = 'published'  # scale of files with rows of published weights, which name it in SCALES
BEFORE = '{before}'  # in a change of a row: the folder of the run that it starts from
T = TypeVar('T')


@dataclasses.dataclass(frozen=True)
class Column:
  """A quantity measured for every row."""

  # its name in `result.json`, such as 'validation/accuracy'; unused for counts of parameters and tokens
  metric: str = ''
  over: Sequence[str] = ()  # other columns to average, run by run of each seed; such a column has no runs
  # the measured run: fine-tuning; an evaluation of the pre-trained model without an update; pre-training, or its number
  # of tokens; or no run, only the number of parameters
  of: Of = 'tuning'
  better: Better = 'max'  # whether large or small values are good
  # family of a row -> config of fine-tuning or evaluation, such as 'experiments/bert/glue.py:sst2'
  configs: Mapping[str, str] = dataclasses.field(default_factory=dict)
  keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # changes of these configs, dotted key -> value
  # more changes for fine-tuning: each seed is run with each of these dicts, and the run that is 'best on dev', or all
  # runs of the dict whose mean is, counts; empty for none
  grid: Sequence[Any] = ()
  # metric that selects the run 'best on dev', and 'max' or 'min', such as ('validation/accuracy', 'max'). It belongs to
  # another evaluation than `metric`, on other examples, and never to a test set
  chosen_by: tuple[str, Literal['min', 'max']] | None = None
  # family -> config of a second stage of pre-training on the text of this column; empty for none
  between: Mapping[str, str] = dataclasses.field(default_factory=dict)
  between_keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # changes of these configs
  between_folder: str = ''  # its data folder below `--data`; empty for `folder`
  folder: str = ''  # data folder below `--data`; empty for the path of the config
  times: float = 1.0  # factor of the measured value, such as 100 for per cent
  plus: float = 0.0  # added after `times`: times=-100 and plus=100 turn an accuracy into an error rate in per cent
  # name -> printed score of a baseline without a network, such as 'most frequent class' -> 50.9. A claim may compare a
  # row with it
  trivial: Mapping[str, float] = dataclasses.field(default_factory=dict)
  # a quantity and its value in this column, such as ('labelled texts', 250). If all measured columns have one, the
  # picture shows curves
  along: tuple[str, float] | None = None
  note: str = ''  # why the published numbers differ in kind from the measured ones
  mark: Mark | None = None  # mark of its published numbers, if it differs from that of the table
  quoted: str = ''  # source of the published numbers, if it is not the paper: 'Yang et al. 2019, Table 6'
  whole: int = 0  # number of examples that the published numbers are of; fewer are not compared with them. 0 if unknown
  unlike: str = ''  # why its published numbers are not compared with those of published weights; empty if they are
  fetch: str = ''  # command that fetches its data; empty for sets of TFDS
  empty: str = ''  # why it is not measured at this scale; empty if it is


@dataclasses.dataclass(frozen=True)
class Row:
  """A way of pre-training or initialization, or published weights."""

  config: str = ''  # config of the pre-training
  weights: str = ''  # folder of published weights (or an import, or a run) that it starts from; it then has no `config`
  folder: str = ''  # the same below `--weights`, at the scale of published weights
  id: str = ''  # name under which they are published, such as 'google-bert/bert-base-uncased'
  model: str = ''  # their `model_type`, or the name of an imported model
  sha256: str = ''  # of their file; of the lines of several, if they are split. Empty if any is accepted
  fetch: str = ''  # command that fetches them; '' for `hf download`
  # column -> changes of its config that read a part of its examples, which is not compared
  limits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # column -> why its published number is not compared
  unlike: Mapping[str, str] = dataclasses.field(default_factory=dict)
  # changes of it, dotted key -> value. '{before}' in a value stands for the folder of the run of `after`
  keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  after: str = ''  # earlier row whose pre-training this one starts from, such as the teacher of a student; '' for none
  # suffix of the path of the text, such as '_filtered' for a copy made by `plm-jax corpus`; held-out text has the path
  # without it
  corpus: str = ''
  family: str = 'bert'  # key of `Column.configs` for fine-tuning
  # changes of every second stage of pre-training of this row
  between: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  between_start: Start = 'pretrained'  # 'scratch' starts that stage from random parameters of the same sizes
  direct: bool = False  # whether this row skips the second stage
  tuning: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # changes of every fine-tuning config of this row
  start: Start = 'pretrained'  # 'scratch' fine-tunes random parameters of the same sizes
  published: Mapping[str, float] = dataclasses.field(default_factory=dict)  # column -> number in the paper
  mark: Mark | None = None  # mark of these numbers, if it differs from those of the table and the column
  marks: Mapping[str, str] = dataclasses.field(default_factory=dict)  # column -> mark of a single number
  quoted: str = ''  # source of the numbers, if it is not the paper; takes precedence over that of the column
  without: Mapping[str, str] = dataclasses.field(default_factory=dict)  # column -> why it is not measured for this row
  empty: str = ''  # why the row is not measured at this scale; empty if it is


@dataclasses.dataclass(frozen=True)
class Claim:
  """A difference on which the paper bases a conclusion."""

  column: str  # the column
  better: str  # the better row
  than: str  # the row it is compared with, or a score of `Column.trivial`
  asked: bool = False  # True for a comparison that the text of the paper does not claim


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of a paper."""

  title: str  # title with its number
  paper: str  # authors and year, and what was trained there
  # reliability of the published numbers: A from the official repository, B from the paper, C from other notes, D from
  # memory; 'none' if there are none. Rows, columns and single numbers may have their own marks
  mark: Mark
  rows: Mapping[str, Row]  # name -> row, in order
  columns: Mapping[str, Column]  # name -> column, in order
  claims: Sequence[Claim] = ()  # differences that the paper claims
  pretraining_seeds: int = 1  # number of pre-trainings of a row
  tuning_seeds: int = 3  # number of fine-tunings of each of them
  first_seed: Annotated[int, '0 <= x'] = 0  # added to every seed, for an independent replication
  # how the runs of a cell become one number: mean, median, the run that is best on development examples
  # (`Column.chosen_by`), or the mean of the runs at the point of the grid that is best there in the mean
  summary: Summary = 'mean'
  reference: str = ''  # row whose pre-training must have left the plateau; empty for none
  plateau: str = 'validation/perplexity'  # perplexity metric of that pre-training
  note: str = ''  # what differs from the paper at this scale


class Origin(NamedTuple):
  """Origin of a published number: its reliability, and another paper that it comes from, if any."""

  mark: str
  quoted: str = ''


def origin(table: Table, row: str, column: str) -> Origin:
  """Find the origin of a published number.

  The mark of the number comes first, then those of its row, column and table.
  """
  of_row, of_column = table.rows[row], table.columns[column]
  mark = of_row.marks.get(column) or of_row.mark or of_column.mark or table.mark
  return Origin(mark=mark, quoted=of_row.quoted or of_column.quoted)


def table_files() -> list[str]:
  """List the package's table files, relative to the working directory if below."""
  here, folder = files.absolute('.'), signatures.ROOT.parent / 'experiments' / 'tables'
  return [str(file).removeprefix(f'{here}/') for file in files.listing(folder, '*.py') if file.name != 'common.py']


def stem(name: str) -> str:
  """Name the folder of a table: 'small_bert_medium' for 'experiments/tables/small_bert.py:medium'."""
  file, _, words = name.partition(':')
  return '_'.join([files.path(file).stem, *(word for word in words.split(',') if word)])


def read(name: str, scale: str, *, seeds: int | None = None, first_seed: int = 0) -> Table:
  """Read the table of a file at a scale.

  Raises ConfigError: no such file, or it returns no valid table; names the row or column, and the key.

  Args:
    name: name of the file, with arguments of its `get_table` after a colon.
    scale: one of `SCALES`, or of the `SCALES` of the file.
    seeds: number of seeds of a cell, of pre-training if the table has several or fine-tunes nothing, else of
      fine-tuning; None for its own.
    first_seed: field of the table.
  """
  errors.check_choice('--scale', 'scale', scale, (*SCALES, *RUNGS, PUBLISHED))
  file, _, words = name.partition(':')
  path = files.path(file)
  if path.suffix != '.py' or not files.is_file(path):
    similar = errors.suggest(file, table_files()) or f' There are: {errors.listed(table_files())}.'
    raise ConfigError(f'{file}: there is no such table file.{similar}')
  data = call(files.followed(path), lambda module: _call(module, scale, words))
  if data is None:
    raise ConfigError(f'{name}: not a table file (it has no get_table). There are: {errors.listed(table_files())}.')
  if not isinstance(data, Mapping):
    raise ConfigError(f'{name}: get_table returned {type(data).__name__}; expected a dict.')
  claims = data.get('claims', ())
  if not isinstance(claims, list | tuple):
    raise ConfigError(f"{name}: 'claims': expected a list of dicts, got {claims!r}.")
  parts = {
    'rows': {key: _build(Row, value, f'{name}: row {key!r}') for key, value in _mapping(data, 'rows', name).items()},
    'columns': {
      key: _build(Column, value, f'{name}: column {key!r}') for key, value in _mapping(data, 'columns', name).items()
    },
    'claims': [_build(Claim, claim, f'{name}: claim {index}') for index, claim in enumerate(claims)],
  }
  table = _build(Table, {**data, **parts}, name)
  tunes = any(column.of == 'tuning' and not (column.empty or column.over) for column in table.columns.values())
  tunes |= not any(row.config for row in table.rows.values())
  of = 'tuning_seeds' if table.pretraining_seeds == 1 and tunes else 'pretraining_seeds'
  counts: dict[str, Any] = {} if seeds is None else {of: seeds}
  table = dataclasses.replace(table, first_seed=first_seed, **counts)
  _check(table, name)
  return table


def _call(module: ModuleType, scale: str, words: str) -> Any:
  """Call `get_table` of a table file; None if it has none."""
  if 'get_table' not in vars(module):
    return None
  if scale not in (scales := getattr(module, 'SCALES', SCALES)):
    raise ValueError(f'this table has no scale {scale!r}: add --scale={"|".join(scales)}.')
  if not words:
    return module.get_table(scale)
  if len(inspect.signature(module.get_table).parameters) < 2:
    raise ValueError(f'this table takes no argument: remove {words!r} and the colon.')
  return module.get_table(scale, words)


def _mapping(data: Mapping[str, Any], key: str, label: str) -> Mapping[str, Any]:
  value = data.get(key)
  if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
    raise ConfigError(f'{label}: {key!r}: expected a dict of at least one name -> dict; names are strings.')
  return value


def _build(kind: type[T], data: Any, label: str) -> T:
  """Build a dataclass from a dict of checked fields."""
  if not isinstance(data, Mapping):
    raise ConfigError(f'{label}: expected a dict, got {data!r}.')
  keywords = signatures.keywords('studies.tables.file', kind.__name__)
  nested = {key: value for key, value in data.items() if key in NESTED and kind is Table}
  plain = {key: value for key, value in data.items() if key not in nested}
  expected = {key: keyword for key, keyword in keywords.items() if key not in nested}
  return kind(**nested, **check_keywords(label, expected, plain))


def _check_keys(label: str, **changes: Mapping[str, Any]) -> None:
  for name, keys in changes.items():
    if 'seed' in keys:
      raise ConfigError(f'{label}: {name}: remove seed, which the table sets; see pretraining_seeds and tuning_seeds.')


def _check_finite(label: str, numbers: Mapping[str, float]) -> None:
  for name, number in numbers.items():
    if not math.isfinite(number):
      raise ConfigError(f'{label}: {name}: expected a finite number, got {number}.')


def _check_sign(table: Table, claim: Claim, label: str) -> None:
  better, than = (
    table.rows[row].published.get(claim.column) if row in table.rows else None for row in (claim.better, claim.than)
  )
  if better is None or than is None or claim.asked:
    return
  if not (better > than if table.columns[claim.column].better == 'max' else better < than):
    raise ConfigError(
      f'{label}: claims: {claim.better!r} is claimed better than {claim.than!r} in {claim.column!r}, but the published '
      f'numbers are {better:g} and {than:g}: swap better and than, or remove the claim.'
    )


def _check_choice(table: Table, column: Column, label: str) -> None:
  for point in column.grid:
    if not isinstance(point, Mapping) or 'seed' in point:
      raise ConfigError(f'{label}: grid: expected dicts of changes, dotted key -> value, without seed, got {point!r}.')
  if column.grid and (column.of != 'tuning' or table.summary not in CHOSEN or column.chosen_by is None):
    need = f'of={"tuning"!r}, chosen_by and summary={BEST_POINT!r} or {BEST!r}'
    raise ConfigError(f'{label}: grid needs {need}: set them, or remove grid.')
  if column.chosen_by is not None:
    reported, chooses = (metric.partition('/')[0] for metric in (column.metric, column.chosen_by[0]))
    if '/' not in column.chosen_by[0] or chooses == reported or chooses == 'test':
      raise ConfigError(
        f'{label}: chosen_by: {column.chosen_by[0]!r} cannot select a run whose {column.metric!r} is reported. '
        "Name a metric of a separate development evaluation, such as a held-out part of 'train'."
      )
  elif table.summary == BEST and column.of not in COUNTED and number_of_runs(table, column) > 1:
    raise ConfigError(f"{label}: summary={BEST!r} needs chosen_by, such as chosen_by=('validation/accuracy', 'max').")


def _check_over(table: Table, name: str, label: str) -> None:
  parts = [other for other, column in table.columns.items() if not column.over]
  for part in table.columns[name].over:
    errors.check_choice(f'{label}: over', 'column with runs', part, parts)
  if len({number_of_runs(table, table.columns[part]) for part in table.columns[name].over}) > 1:
    raise ConfigError(
      f'{label}: over: {", ".join(table.columns[name].over)} have different numbers of runs; average equal ones.'
    )
  if table.summary == BEST:
    raise ConfigError(f'{label}: over: not supported with summary={BEST!r}: remove the mean.')


def number_of_runs(table: Table, column: Column) -> int:
  """Return the number of runs of a cell."""
  return table.pretraining_seeds * (table.tuning_seeds * max(1, len(column.grid)) if column.of == 'tuning' else 1)


def _check(table: Table, label: str) -> None:
  for claim in table.claims:
    errors.check_choice(f'{label}: claims', 'column', claim.column, list(table.columns))
    errors.check_choice(f'{label}: claims', 'row', claim.better, list(table.rows))
    errors.check_choice(f'{label}: claims', 'row', claim.than, [*table.rows, *table.columns[claim.column].trivial])
    _check_sign(table, claim, label)
  if table.reference:
    errors.check_choice(f'{label}: reference', 'row', table.reference, list(table.rows))
  for field, seeds in {'pretraining_seeds': table.pretraining_seeds, 'tuning_seeds': table.tuning_seeds}.items():
    if seeds < 1:
      raise ConfigError(f'{label}: {field}: expected 1 or more, got {seeds}.')
  for name, row in table.rows.items():
    _check_row(table, name, row, f'{label}: row {name!r}')
  for name, column in table.columns.items():
    _check_column(table, name, column, f'{label}: column {name!r}')


def _check_row(table: Table, name: str, row: Row, label: str) -> None:
  _check_keys(label, keys=row.keys, between=row.between, tuning=row.tuning)
  _check_finite(f'{label}: published', row.published)
  of_columns = ('published', row.published), ('without', row.without), ('limits', row.limits), ('unlike', row.unlike)
  for field, columns in of_columns:
    for column in columns:
      errors.check_choice(f'{label}: {field}', 'column', column, list(table.columns))
  for column, mark in row.marks.items():
    errors.check_choice(f'{label}: marks', 'column with a published number', column, row.published)
    errors.check_choice(f'{label}: marks', 'mark', mark, get_args(Mark))
  if bool(row.config) + bool(row.weights or row.folder) != 1 and not row.empty:
    raise ConfigError(f'{label}: set one of config and weights, or empty (the reason why the row is not measured).')
  without = [other for other, column in table.columns.items() if column.of not in ('tuning', 'evaluation')]
  without = [other for other in without if other not in row.without and not table.columns[other].empty]
  if (row.weights or row.folder) and without and not row.empty:
    raise ConfigError(f'{label}: weights have no pre-training to measure: add {without[0]!r} to its `without`.')
  if row.after:
    earlier = [other for other in list(table.rows)[: list(table.rows).index(name)] if not table.rows[other].empty]
    errors.check_choice(f'{label}: after', 'earlier row', row.after, earlier)


def _check_column(table: Table, name: str, column: Column, label: str) -> None:
  _check_keys(label, keys=column.keys, between_keys=column.between_keys)
  _check_finite(label, {'times': column.times, 'plus': column.plus})
  _check_finite(f'{label}: trivial', column.trivial)
  if twice := table.rows.keys() & column.trivial.keys():
    raise ConfigError(f'{label}: trivial: {min(twice)!r} is also a row: rename one of them.')
  if column.empty:
    return
  if column.along is not None and column.along[1] <= 0:
    raise ConfigError(f'{label}: along: {column.along[1]:g}: expected a number above 0.')
  if column.over:
    _check_over(table, name, label)
    return
  if not column.metric and column.of not in COUNTED:
    raise ConfigError(f'{label}: set metric, such as metric={"validation/accuracy"!r}.')
  _check_choice(table, column, label)
  if column.of not in ('tuning', 'evaluation'):
    return
  filled = [row for row in table.rows.values() if not row.empty and name not in row.without]
  fresh = [other for other, row in table.rows.items() if row in filled and row.start == 'scratch']
  if column.of == 'evaluation' and fresh:
    raise ConfigError(
      f'{label}: of={column.of!r} needs trained parameters, but row {fresh[0]!r} starts from scratch: add the column '
      'to its `without`.'
    )
  stages = [('config', column.configs, filled)]
  stages += [('config between', column.between, [row for row in filled if not row.direct])] if column.between else []
  for stage, configs, rows in stages:
    if missing := {row.family for row in rows} - set(configs):
      raise ConfigError(f'{label}: no {stage} for the family {sorted(missing)[0]!r}: add it.')
