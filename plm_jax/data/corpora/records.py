"""Rows and texts of one split, read one by one from any storage format."""

import bisect
import dataclasses
import datetime
import decimal
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.data.corpora.filters import FilterStats

# files in the folder of a pass (cleaning/passes.py): progress, and the report of a complete pass
PROGRESS, REPORT = '.pass.sqlite', 'corpus.json'


@dataclasses.dataclass(frozen=True)
class Opened:
  """A whole split, as `open` of a format returns it."""

  rows: Sequence[Mapping[str, Any]]  # the rows, read one by one; safe to read from several threads
  digest: str  # hex digest, or another short text, that changes whenever a row changes
  # field -> names of its classes, if the data set stores them
  labels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
  tokens: int = 0  # expected number, by the size of the files; 0 if unknown


@dataclasses.dataclass(frozen=True)
class Records(Sequence[dict[str, Any]]):
  """Rows of a split as plain Python: str, int, float, lists and dicts of those, and `NotText`.

  Numbers of a table are `Whole` and `Real`, which equal other numbers.
  """

  fields: tuple[str, ...]  # the fields of the first row
  digest: str  # hex digest of the content
  names: tuple[str, ...]  # names of the classes of the field `label`, or of the only field with classes; else ()
  labels: Mapping[str, tuple[str, ...]]  # field -> names of its classes, for every field with classes
  where: str  # path and split, for messages
  # parts of the split: rows, and indices of those that belong to it
  pieces: tuple[tuple[Sequence[Mapping[str, Any]], Sequence[int]], ...] = dataclasses.field(repr=False)
  # split of the same data whose rows determine the classes, if no list names them; None for this one
  named_by: 'Callable[[], Records] | None' = dataclasses.field(default=None, repr=False, compare=False)
  tokens: int = 0  # expected number, by the size of the files

  @property
  def description(self) -> str:
    """Return path, split and number of rows, for messages."""
    return f'{self.where}: {len(self):,} rows'

  def __len__(self) -> int:
    return sum(len(chosen) for _, chosen in self.pieces)

  def __getitem__(self, index: int) -> dict[str, Any]:  # type: ignore[override]  # no slices
    rows, own = self._find(index)
    return {key: _plain(value) for key, value in rows[own].items()}

  def _find(self, index: int) -> tuple[Sequence[Mapping[str, Any]], int]:
    index = operator.index(index)
    position = index + len(self) if index < 0 else index
    if not 0 <= position < len(self):
      raise IndexError(f'row {index} of {self.description}')
    ends = list(itertools.accumulate(len(chosen) for _, chosen in self.pieces))
    piece = bisect.bisect_right(ends, position)
    rows, chosen = self.pieces[piece]
    return rows, chosen[position - ends[piece]]

  def readable(self, most: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the readable ones among the first `most` rows, or all."""
    for index in range(len(self))[:most]:
      try:
        row = self[index]
      except ValueError:  # reported when all rows are read
        continue
      yield row

  def place(self, index: int) -> str:
    """Return 'train.jsonl, line 3' of a row, or '' without `place`."""
    rows, own = self._find(index)
    locate = getattr(rows, 'place', None)
    return '' if locate is None else locate(own)

  def values(self, index: int, fields: Sequence[str], *, optional: Sequence[str] = ()) -> dict[str, Any]:
    """Return fields of a row, and the optional fields that it has.

    Raises ValueError that names data, row and its fields, if the row lacks one of `fields`.
    """
    row = self[index]
    for field in fields:
      if field not in row:
        raise ValueError(f'row {index} of {self.where} has no field {field!r}: it has {", ".join(row)}')
    return {field: row[field] for field in (*fields, *optional) if field in row}

  def value(self, index: int, field: str) -> Any:
    """Return one field of a row; raises as `values`."""
    return self.values(index, (field,))[field]

  def text(self, index: int, field: str, *, words: bool = False) -> str:
    """Return a string, a table's number, or joined `words`; else raise ValueError."""
    text = as_written(self.value(index, field))
    if words and is_words(text):
      return ' '.join(text)
    if not isinstance(text, str):
      raise ValueError(f'row {index} of {self.where} holds no text in {field!r} but {text!r}')
    return text


@dataclasses.dataclass(frozen=True)
class Texts(Sequence[str]):
  """One string field of records: the documents of a corpus. A list of words is joined by spaces."""

  records: Records  # the rows
  field: str  # field with the text
  digest: str  # hex digest of the content
  # indices of the rows that a filter kept; None for all
  chosen: Sequence[int] | None = dataclasses.field(default=None, repr=False)
  stats: FilterStats | None = None  # counts of the filter; None without one
  split: str | None = None  # slice by tokens, applied after tokenising; None for all

  @property
  def description(self) -> str:
    """Return path, split and number of documents, for messages."""
    return f'{self.records.description}, of which {len(self):,} are kept' if self.stats else self.records.description

  @property
  def tokens(self) -> int:
    """Return the expected number of tokens, 0 if unknown."""
    return self.records.tokens

  def __len__(self) -> int:
    return len(self.records if self.chosen is None else self.chosen)

  def __getitem__(self, index: int) -> str:  # type: ignore[override]  # no slices
    return self.records.text(self._row(index), self.field, words=True)

  def is_null(self, index: int) -> bool:
    """Return True if the field of a document is null."""
    return self.records.value(self._row(index), self.field) is None

  def _row(self, index: int) -> int:
    return index if self.chosen is None else self.chosen[index]


def is_words(value: Any) -> bool:
  """Return True for a list of strings."""
  return isinstance(value, list) and all(isinstance(word, str) for word in value)


class Whole(int):
  """A whole number of a table."""

  spelling: str  # text of its cell


class Real(float):
  """A number of a table with its spelling, as `Whole`: text fields read 5.10 and 1e3 with these letters."""

  spelling: str


def as_written(value: Any) -> Any:
  """Return a number's spelling in a table; other values unchanged."""
  return value.spelling if isinstance(value, Whole | Real) else value


class NotText(bytes):
  """Bytes that are not UTF-8, such as a picture. They are not a text, and written with escapes."""

  def __repr__(self) -> str:
    return 'bytes that are not UTF-8'

  def __str__(self) -> str:
    return self.decode(errors='backslashreplace')


def _plain(value: Any) -> Any:
  """Convert a value of TFDS or Parquet to plain Python.

  Bytes, numpy scalars and arrays are from TFDS, dates and decimals from Parquet. Dates and times are in ISO 8601,
  durations in seconds.
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
