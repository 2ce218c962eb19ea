"""Table files: which rows and columns a table of a paper has, what was published, and what its authors claim.

A table file has `get_table(scale)`, which returns plain data: a dict with the fields of `Table`, whose rows, columns
and claims are dicts with the fields of `Row`, `Column` and `Claim`. Where it has `get_table(scale, arg='')`, words may
follow its name as they follow that of a config: `small_bert.py:medium`. It may import `experiments.common` and
`experiments.tables.common`, and nothing else.
"""

import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from plm_jax.config import signatures
from plm_jax.config.load import call
from plm_jax.config.values import check_keywords
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.io import files

Scale = Literal['tiny', 'small', 'paper']
Of = Literal['tuning', 'evaluation', 'pretraining', 'parameters', 'tokens']
Better = Literal['max', 'min']
Summary = Literal['mean', 'median', 'best on dev']
BEST: Summary = 'best on dev'
Start = Literal['pretrained', 'scratch']
MADE = ('rows', 'columns', 'claims')  # of a table, before it is
COUNTED = ('parameters', 'tokens')  # columns that need no metric
Mark = Literal['A', 'B', 'C', 'D', 'none']
SCALES: tuple[str, ...] = get_args(Scale)
BEFORE = '{before}'  # in a change of a row: the folder of the run that it begins with
T = TypeVar('T')


@dataclasses.dataclass(frozen=True)
class Column:
  """What is measured of every row.

  Attributes:
    metric: as `result.json` names it, such as 'validation/accuracy'; of numbers of parameters and tokens, anything.
    over: other columns, whose mean this one is, run by run of each seed; it has no runs of its own then.
    of: the run it is of: fine-tuning; an evaluation of what pre-training left, without an update; pre-training or how
      many tokens that one read; or no run, only the number of parameters.
    better: whether large or small values are good.
    configs: of fine-tuning or of the evaluation, by the family of a row: 'experiments/bert/glue.py:sst2'.
    keys: changes of these configs, dotted key -> value.
    grid: of fine-tuning, more changes: each seed is made with each of these dicts, and the run that is 'best on dev'
      counts; empty for none.
    chosen_by: what says which run is 'best on dev', a metric of another evaluation than that of `metric`, on other
      rows, and 'max' or 'min': ('validation/accuracy', 'max'). It is never of a test set.
    between: configs of a second stage of pre-training on the text of this column, by family; empty for none.
    between_keys: changes of these configs.
    folder: of the data, below the folder that `--data` names; empty for the path of the config.
    times: what the measured value is multiplied by, 100 where the paper prints per cent.
    plus: what is added then: times=-100 and plus=100 make an error rate in per cent of an accuracy.
    trivial: scores that need no network, as they are printed: 'most frequent class' -> 50.9. A claim may compare a row
      with one of them.
    along: what this column is one of several values of, and its value: ('labelled texts', 250). The picture has curves
      then, where every column that was measured says it.
    note: why the published numbers stand for something else than what is measured, for the reader.
    mark: of its published numbers, where it is not that of the table.
    quoted: where they come from, where that is not the paper: 'Yang et al. 2019, Table 6'.
    empty: why it is not measured at this scale; empty where it is.
  """

  metric: str = ''
  over: Sequence[str] = ()
  of: Of = 'tuning'
  better: Better = 'max'
  configs: Mapping[str, str] = dataclasses.field(default_factory=dict)
  keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  grid: Sequence[Any] = ()
  chosen_by: tuple[str, Literal['min', 'max']] | None = None
  between: Mapping[str, str] = dataclasses.field(default_factory=dict)
  between_keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  folder: str = ''
  times: float = 1.0
  plus: float = 0.0
  trivial: Mapping[str, float] = dataclasses.field(default_factory=dict)
  along: tuple[str, float] | None = None
  note: str = ''
  mark: Mark | None = None
  quoted: str = ''
  empty: str = ''


@dataclasses.dataclass(frozen=True)
class Row:
  """A way to pre-train, or to begin.

  Attributes:
    config: of the pre-training.
    keys: changes of it, dotted key -> value. The word '{before}' in a value is the folder of the run of `after`.
    after: an earlier row whose pre-training this one begins with, as a student does with its teacher; '' for none.
    corpus: what is put behind the path of the text, as '_filtered' for a copy that `plm-jax corpus` made; held-out text
      stays that of the path.
    family: of the fine-tuning configs, a key of `Column.configs`.
    between: changes of every second stage of pre-training of this row.
    between_start: 'scratch' begins that stage with fresh parameters of the same sizes.
    direct: this row leaves the second stage out.
    tuning: changes of every fine-tuning config of this row.
    start: 'scratch' fine-tunes fresh parameters of the same sizes.
    published: column -> number of the paper.
    mark: of these numbers, where it is neither that of the table nor of the column.
    marks: column -> mark of one number, where it is none of these.
    quoted: where the numbers come from, where that is not the paper, or the column says otherwise.
    without: column -> why that one is not measured of this row.
    empty: why the row is not measured at this scale; empty where it is.
  """

  config: str = ''
  keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  after: str = ''
  corpus: str = ''
  family: str = 'bert'
  between: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  between_start: Start = 'pretrained'
  direct: bool = False
  tuning: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  start: Start = 'pretrained'
  published: Mapping[str, float] = dataclasses.field(default_factory=dict)
  mark: Mark | None = None
  marks: Mapping[str, str] = dataclasses.field(default_factory=dict)
  quoted: str = ''
  without: Mapping[str, str] = dataclasses.field(default_factory=dict)
  empty: str = ''


@dataclasses.dataclass(frozen=True)
class Claim:
  """A difference that the paper draws a conclusion from.

  Attributes:
    column: where it shows.
    better: the row that does better.
    than: the row that it is compared with, or a score of `Column.trivial`.
  """

  column: str
  better: str
  than: str


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of a paper.

  Attributes:
    title: with its number.
    paper: authors and year, and what was trained there.
    mark: how sure the published numbers are: A seen in the official repository, B in the paper's text, C in another's
      notes, D remembered; 'none' where there are none, as of a comparison that a text asks for and no paper prints.
      Rows, columns and single numbers may have marks of their own.
    rows: by name, in order.
    columns: by name, in order.
    claims: differences that the paper claims.
    pretraining_seeds: number of pre-trainings of a row.
    tuning_seeds: number of fine-tunings of each of them.
    summary: how the runs of a cell become one number: their mean, their median, or the number of the one run that is
      best on development rows, those of `Column.chosen_by`.
    reference: the row whose pre-training has to have left the plateau of word frequencies; empty for none.
    plateau: the perplexity of its pre-training that says so.
    note: for the reader: what differs from the paper at this scale.
  """

  title: str
  paper: str
  mark: Mark
  rows: Mapping[str, Row]
  columns: Mapping[str, Column]
  claims: Sequence[Claim] = ()
  pretraining_seeds: int = 1
  tuning_seeds: int = 3
  summary: Summary = 'mean'
  reference: str = ''
  plateau: str = 'validation/perplexity'
  note: str = ''


class Origin(NamedTuple):
  """Where a published number comes from.

  Attributes:
    mark: how sure it is.
    quoted: the other paper that it comes from; empty for none.
  """

  mark: str
  quoted: str = ''


def origin(table: Table, row: str, column: str) -> Origin:
  """Where the published number of a cell comes from: what the number, its row, its column or the table says."""
  one, of = table.rows[row], table.columns[column]
  return Origin(one.marks.get(column) or one.mark or of.mark or table.mark, one.quoted or of.quoted)


def known() -> list[str]:
  """The table files that come with the package, as a user types them: from here where they are below."""
  here, folder = files.absolute('.'), signatures.ROOT.parent / 'experiments' / 'tables'
  return [str(file).removeprefix(f'{here}/') for file in files.listing(folder, '*.py') if file.name != 'common.py']


def stem(name: str) -> str:
  """What the folder of a table is called: 'small_bert_medium' for 'experiments/tables/small_bert.py:medium'."""
  file, _, words = name.partition(':')
  return '_'.join([files.path(file).stem, *(word for word in words.split(',') if word)])


def read(name: str, scale: str) -> Table:
  """The table of a file at a scale.

  Args:
    name: of the file, with the words that its `get_table` takes behind a colon.
    scale: one of `SCALES`.

  Raises:
    ConfigError: no such file, or what it returns is no table; names the row or column, and the key.
  """
  errors.check_choice('--scale', 'scale', scale, SCALES)
  file, _, words = name.partition(':')
  path = files.path(file)
  if path.suffix != '.py' or not files.is_file(path):
    raise ConfigError(f'{file}: there is no such table file.{errors.suggest(file, known())} There are: {_listed()}.')
  data = call(files.followed(path), lambda module: _asked(module, scale, words))
  if data is None:
    raise ConfigError(f'{name}: it has no get_table, so it is not a table file. There are: {_listed()}.')
  if not isinstance(data, Mapping):
    raise ConfigError(f'{name}: get_table returned {type(data).__name__}, and a table is a dict.')
  claims = data.get('claims', ())
  if not isinstance(claims, list | tuple):
    raise ConfigError(f"{name}: 'claims' is a list of dicts, and not {claims!r}.")
  parts = {
    'rows': {key: _made(Row, value, f'{name}: row {key!r}') for key, value in _mapping(data, 'rows', name).items()},
    'columns': {
      key: _made(Column, value, f'{name}: column {key!r}') for key, value in _mapping(data, 'columns', name).items()
    },
    'claims': [_made(Claim, claim, f'{name}: claim {place}') for place, claim in enumerate(claims)],
  }
  table = _made(Table, {**data, **parts}, name)
  _check(table, name)
  return table


def _asked(module: ModuleType, scale: str, words: str) -> Any:
  """What `get_table` of a table file returns; None where there is none."""
  if 'get_table' not in vars(module):
    return None
  if not words:
    return module.get_table(scale)
  if len(inspect.signature(module.get_table).parameters) < 2:
    raise ValueError(f'this table takes no words, and {words!r} follows the colon: leave it out.')
  return module.get_table(scale, words)


def _listed() -> str:
  return ', '.join(known()) or 'none'


def _mapping(data: Mapping[str, Any], key: str, label: str) -> Mapping[str, Any]:
  value = data.get(key)
  if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
    raise ConfigError(f'{label}: {key!r} is a dict, name -> dict, with at least one of them; names are texts.')
  return value


def _made(kind: type[T], data: Any, label: str) -> T:
  """A dataclass from a dict with its fields, which are checked as the keys of a config are."""
  if not isinstance(data, Mapping):
    raise ConfigError(f'{label}: expected a dict, got {data!r}.')
  known = signatures.keywords('studies.tables.file', kind.__name__)
  made = {key: value for key, value in data.items() if key in MADE and kind is Table}
  plain = {key: value for key, value in data.items() if key not in made}
  own = {key: keyword for key, keyword in known.items() if key not in made}
  return kind(**made, **check_keywords(label, f'a {kind.__name__.lower()}', own, plain))


def _check_keys(label: str, **changes: Mapping[str, Any]) -> None:
  """Raises ConfigError for changes of a config that would be lost: runs of a cell differ in their seeds alone."""
  for name, keys in changes.items():
    if 'seed' in keys:
      raise ConfigError(f'{label}: {name}: the table sets seed itself, from 0 on; say how many with its *_seeds.')


def _check_finite(label: str, numbers: Mapping[str, float]) -> None:
  for name, number in numbers.items():
    if not math.isfinite(number):
      raise ConfigError(f'{label}: {name}: expected a finite number, got {number}.')


def _check_sign(table: Table, claim: Claim, label: str) -> None:
  """A claim that the published numbers contradict would turn what the table says about it round."""
  better, than = (
    table.rows[row].published.get(claim.column) if row in table.rows else None for row in (claim.better, claim.than)
  )
  if better is None or than is None:
    return
  if not (better > than if table.columns[claim.column].better == 'max' else better < than):
    raise ConfigError(
      f'{label}: claims: {claim.better!r} is said to do better than {claim.than!r} in {claim.column!r}, and the '
      f'published numbers are {better:g} and {than:g}: turn the claim round, or leave it out.'
    )


def _check_choice(table: Table, column: Column, label: str) -> None:
  """Of several runs one may count that another evaluation than the reported one chooses, and none of a test set."""
  for point in column.grid:
    if not isinstance(point, Mapping) or 'seed' in point:
      raise ConfigError(
        f'{label}: grid: expected dicts of changes, dotted key -> value, without a seed, got {point!r}.'
      )
  if column.grid and (column.of != 'tuning' or table.summary != BEST):
    raise ConfigError(
      f'{label}: a grid is of fine-tuning, and the run that is best on development rows counts: set summary={BEST!r}, '
      'or leave grid out.'
    )
  if column.chosen_by is not None:
    reported, chooses = (metric.partition('/')[0] for metric in (column.metric, column.chosen_by[0]))
    if '/' not in column.chosen_by[0] or chooses == reported or chooses == 'test':
      raise ConfigError(
        f'{label}: chosen_by: {column.chosen_by[0]!r} cannot choose a run whose {column.metric!r} is reported: it has '
        'to be of another evaluation, on development rows and not on a test set. Add an evaluation to the keys of the '
        "column, such as a held-out part of 'train', and name one of its metrics."
      )
  elif table.summary == BEST and column.of not in COUNTED and number_of_runs(table, column) > 1:
    raise ConfigError(
      f"{label}: summary={BEST!r} needs chosen_by, a metric of a development evaluation and 'max' or 'min', as in "
      "chosen_by=('validation/accuracy', 'max')."
    )


def _check_over(table: Table, name: str, label: str) -> None:
  """A mean is of columns with runs of their own, as many each."""
  parts = [other for other, column in table.columns.items() if not column.over]
  for part in table.columns[name].over:
    errors.check_choice(f'{label}: over', 'column with runs of its own', part, parts)
  if len({number_of_runs(table, table.columns[part]) for part in table.columns[name].over}) > 1:
    raise ConfigError(f'{label}: over: {", ".join(table.columns[name].over)} have not equally many runs a row.')
  if table.summary == BEST:
    raise ConfigError(f'{label}: over: with summary={BEST!r} each part chooses a run of its own: leave the mean out.')


def number_of_runs(table: Table, column: Column) -> int:
  """The runs of a cell."""
  return table.pretraining_seeds * (table.tuning_seeds * max(1, len(column.grid)) if column.of == 'tuning' else 1)


def _check(table: Table, label: str) -> None:
  """Names and numbers that do not fit together."""
  for claim in table.claims:
    errors.check_choice(f'{label}: claims', 'column', claim.column, list(table.columns))
    errors.check_choice(f'{label}: claims', 'row', claim.better, list(table.rows))
    errors.check_choice(f'{label}: claims', 'row', claim.than, [*table.rows, *table.columns[claim.column].trivial])
    _check_sign(table, claim, label)
  if table.reference:
    errors.check_choice(f'{label}: reference', 'row', table.reference, list(table.rows))
  for seeds in (table.pretraining_seeds, table.tuning_seeds):
    if seeds < 1:
      raise ConfigError(f'{label}: {seeds} seeds; there is at least one.')
  for name, row in table.rows.items():
    _check_keys(f'{label}: row {name!r}', keys=row.keys, between=row.between, tuning=row.tuning)
    _check_finite(f'{label}: row {name!r}: published', row.published)
    for what, printed in [*(('published', one) for one in row.published), *(('without', one) for one in row.without)]:
      errors.check_choice(f'{label}: row {name!r}: {what}', 'column', printed, list(table.columns))
    for printed, mark in row.marks.items():
      errors.check_choice(f'{label}: row {name!r}: marks', 'column with a published number', printed, row.published)
      errors.check_choice(f'{label}: row {name!r}: marks', 'mark', mark, get_args(Mark))
    if not row.config and not row.empty:
      raise ConfigError(f'{label}: row {name!r} has neither a config nor a reason why it stays empty.')
    if row.after:
      earlier = [other for other in list(table.rows)[: list(table.rows).index(name)] if not table.rows[other].empty]
      errors.check_choice(f'{label}: row {name!r}: after', 'earlier row', row.after, earlier)
  for name, column in table.columns.items():
    _check_column(table, name, column, f'{label}: column {name!r}')


def _check_column(table: Table, name: str, column: Column, label: str) -> None:
  """What a column says of itself, and of the rows that it is measured of."""
  _check_keys(label, keys=column.keys, between_keys=column.between_keys)
  _check_finite(label, {'times': column.times, 'plus': column.plus})
  _check_finite(f'{label}: trivial', column.trivial)
  if twice := table.rows.keys() & column.trivial.keys():
    raise ConfigError(f'{label}: trivial: {min(twice)!r} is a row already; call one of them otherwise.')
  if column.empty:
    return
  if column.along is not None and column.along[1] <= 0:
    raise ConfigError(f'{label}: along: {column.along[1]:g} has no place on an axis of factors: expected x > 0.')
  if column.over:
    _check_over(table, name, label)
    return
  if not column.metric and column.of not in COUNTED:
    raise ConfigError(f'{label} has no metric.')
  _check_choice(table, column, label)
  if column.of not in ('tuning', 'evaluation'):
    return
  filled = [row for row in table.rows.values() if not row.empty and name not in row.without]
  fresh = [other for other, row in table.rows.items() if row in filled and row.start == 'scratch']
  if column.of == 'evaluation' and fresh:
    raise ConfigError(
      f'{label} evaluates without an update, and row {fresh[0]!r} begins with fresh parameters: say '
      'in its `without` why it stays empty.'
    )
  stages = [('config', column.configs, filled)]
  stages += [('config between', column.between, [row for row in filled if not row.direct])] if column.between else []
  for what, configs, asking in stages:
    if lacking := {row.family for row in asking} - set(configs):
      raise ConfigError(f'{label} has no {what} for the family {sorted(lacking)[0]!r}.')
