"""Rows and texts of one split, read one by one, whatever they are stored in."""

import bisect
import dataclasses
import datetime
import decimal
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.data.corpora.filters import FilterStats

# of a folder that a pass makes (cleaning/passes.py): how far it came, and what it did once all is there
PROGRESS, REPORT = '.pass.sqlite', 'corpus.json'


@dataclasses.dataclass(frozen=True)
class Opened:
  """One whole split, as the `open` of a format returns it.

  Attributes:
    rows: read one by one. They may be read by several threads at once.
    digest: hex digest, or another short text, that changes whenever a row changes.
    labels: field -> names of its classes, where the data set stores them.
  """

  rows: Sequence[Mapping[str, Any]]
  digest: str
  labels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Records(Sequence[dict[str, Any]]):
  """Rows of a split as plain Python: str, int, float, lists and dicts of those, and `NotText`.

  Numbers of a table are `Whole` and `Real`, equal to others.

  Attributes:
    fields: the fields of the first row.
    digest: hex digest of the content.
    names: the names of the classes of the field `label`, or of the only field that has classes; else ().
    labels: field -> names of its classes, for every field that has them.
    where: path and split, for messages.
    named_by: the split of the same data whose rows decide which classes there are, where no list names them; None
      where that is this one.
  """

  fields: tuple[str, ...]
  digest: str
  names: tuple[str, ...]
  labels: Mapping[str, tuple[str, ...]]
  where: str
  pieces: tuple[tuple[Sequence[Mapping[str, Any]], Sequence[int]], ...] = dataclasses.field(repr=False)
  named_by: 'Callable[[], Records] | None' = dataclasses.field(default=None, repr=False, compare=False)

  @property
  def description(self) -> str:
    """Path, split and number of rows, for messages."""
    return f'{self.where}: {len(self):,} rows'

  def __len__(self) -> int:
    return sum(len(chosen) for _, chosen in self.pieces)

  def __getitem__(self, index: int) -> dict[str, Any]:  # type: ignore[override]  # no slices
    rows, number = self._find(index)
    return {key: _plain(value) for key, value in rows[number].items()}

  def _find(self, index: int) -> tuple[Sequence[Mapping[str, Any]], int]:
    """The piece that a row stands in, and its number there."""
    index = operator.index(index)
    place = index + len(self) if index < 0 else index
    if not 0 <= place < len(self):
      raise IndexError(f'row {index} of {self.description}')
    ends = list(itertools.accumulate(len(chosen) for _, chosen in self.pieces))
    piece = bisect.bisect_right(ends, place)
    rows, chosen = self.pieces[piece]
    return rows, chosen[place - ends[piece]]

  def place(self, index: int) -> str:
    """File and line of a row, 'train.jsonl, line 3'; empty where what holds it has no `place`."""
    rows, number = self._find(index)
    place = getattr(rows, 'place', None)
    return '' if place is None else place(number)

  def values(self, index: int, fields: Sequence[str], *, optional: Sequence[str] = ()) -> dict[str, Any]:
    """Some fields of a row, and those of the optional ones that it has.

    Raises:
      ValueError: the row does not have one of them; names the data, the row and the fields that there are.
    """
    row = self[index]
    for field in fields:
      if field not in row:
        raise ValueError(f'row {index} of {self.where} has no field {field!r}: it has {", ".join(row)}')
    return {field: row[field] for field in (*fields, *optional) if field in row}

  def value(self, index: int, field: str) -> Any:
    """One field of a row; raises what `values` does."""
    return self.values(index, (field,))[field]

  def text(self, index: int, field: str) -> str:
    """One field of a row that has to be a string, or a number of a table.

    Raises:
      ValueError: it is missing or holds something else.
    """
    text = as_written(self.value(index, field))
    if not isinstance(text, str):
      raise ValueError(f'row {index} of {self.where} holds no text in {field!r}, but {text!r}')
    return text


@dataclasses.dataclass(frozen=True)
class Texts(Sequence[str]):
  """One string field of records: the documents of a corpus. A list of words is read with spaces between them.

  Attributes:
    records: the rows.
    field: the field that holds the text.
    digest: hex digest of the content.
    chosen: the rows that a filter kept; None for all.
    stats: what the filter dropped and why; None without one.
    split: the slice by tokens that is taken of the documents once they are tokenised; None takes all.
  """

  records: Records
  field: str
  digest: str
  chosen: Sequence[int] | None = dataclasses.field(default=None, repr=False)
  stats: FilterStats | None = None
  split: str | None = None

  @property
  def description(self) -> str:
    """Path, split and number of documents, for messages."""
    return f'{self.records.description}, of which {len(self):,} are kept' if self.stats else self.records.description

  def __len__(self) -> int:
    return len(self.records if self.chosen is None else self.chosen)

  def __getitem__(self, index: int) -> str:  # type: ignore[override]  # no slices
    row = self._row(index)
    words = self.records.value(row, self.field)
    return ' '.join(words) if is_words(words) else self.records.text(row, self.field)

  def is_null(self, index: int) -> bool:
    """Whether the row of a document is there and holds nothing, as `{"text": null}`."""
    return self.records.value(self._row(index), self.field) is None

  def _row(self, index: int) -> int:
    return index if self.chosen is None else self.chosen[index]


def is_words(value: Any) -> bool:
  """Whether a value is a list of strings."""
  return isinstance(value, list) and all(isinstance(word, str) for word in value)


class Whole(int):
  """A whole number of a table.

  Attributes:
    spelling: how its cell is written.
  """

  spelling: str


class Real(float):
  """A number of a table, as `Whole`: 5.10 and 1e3 are text of these letters where a field is read as text."""

  spelling: str


def as_written(value: Any) -> Any:
  """A number of a table as its cell is written, since a column of texts may hold numbers alone; others as they are."""
  return value.spelling if isinstance(value, Whole | Real) else value


class NotText(bytes):
  """Bytes that are not UTF-8, as of a picture: no text to what reads their field, and written as text with escapes."""

  def __repr__(self) -> str:
    return 'bytes that are not UTF-8'

  def __str__(self) -> str:
    return self.decode(errors='backslashreplace')


def _plain(value: Any) -> Any:
  """Without bytes, numpy scalars and arrays, which TFDS hands out, and without dates and decimals, as Parquet has them.

  Dates and times are written as in ISO 8601, durations are numbers of seconds.
  """
  if isinstance(value, np.ndarray | np.generic):
    value = value.tolist()
  if isinstance(value, bytes):
    return _decoded(value)
  if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
    return value.isoformat()
  if isinstance(value, datetime.timedelta):
    return value.total_seconds()
  if isinstance(value, decimal.Decimal):
    finite = value.is_finite() and math.isfinite(float(value))
    return float(value) if finite else str(value)
  if isinstance(value, Mapping):
    return {key: _plain(inner) for key, inner in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(inner) for inner in value]
  return value


def _decoded(value: bytes) -> str | NotText:
  try:
    return value.decode()
  except UnicodeDecodeError:
    return NotText(value)
