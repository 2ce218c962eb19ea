"""Parquet tables: rows are the rows of the table, fields its columns."""

import io
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened

SUFFIXES = ('.parquet',)
SCHEME = None
_BYTE_ARRAY, _DELTA_BYTE_ARRAY = 6, 7  # a type of columns, and an encoding of pages
_NOT_THRIFT = (LookupError, AttributeError, TypeError, RecursionError)
Fields = dict[int, Any]  # of a Thrift struct, by the numbers of parquet.thrift


def open(path: local.File, split: str, cache: str) -> Opened:
  """Open the rows of a file."""
  groups: list[Fields] = _read(path, lambda _, stream: _footer(stream)[4])
  _check_size(max((group[2] for group in groups), default=0), path)
  if sum(group[3] for group in groups) < 1:
    raise local.NoRows(f'{path.path} holds no rows')
  return Opened(Rows(path, groups), f'{path.digest(cache=cache)} rows')


class Rows(Sequence[local.Row]):
  """The rows of a file. Holds the last row group in memory, so that reading in order reads each group once."""

  def __init__(self, file: local.File, groups: Sequence[Fields]):
    self.file = file
    self._groups = groups
    self._ends = np.cumsum([group[3] for group in groups])
    self._last: tuple[int, Any] | None = None  # index of a row group, and its table or error

  def __len__(self) -> int:
    return int(self._ends[-1])

  def __getitem__(self, index: int) -> local.Row:  # type: ignore[override]  # no slices
    group = int(np.searchsorted(self._ends, index, side='right'))
    before = int(self._ends[group - 1]) if group else 0
    return self._group(group).slice(index - before, 1).to_pylist()[0]

  def __getstate__(self) -> dict[str, Any]:
    return {**self.__dict__, '_last': None}

  def _group(self, index: int) -> Any:
    if self._last is None or self._last[0] != index:
      try:
        about = self._groups[index]
        self._last = index, _read(self.file, lambda table, stream: _group_of(table, index, about, stream, self.file))
      except ValueError as error:  # so that a damaged group is not read again for each of its rows
        self._last = index, error
    if isinstance(self._last[1], ValueError):
      raise self._last[1]
    return self._last[1]


def _read(file: local.File, read: Callable[[Any, BinaryIO], Any]) -> Any:
  """Call `read` with the opened file; raise ValueError if damaged."""
  import pyarrow
  from pyarrow import parquet

  try:
    with file.stream() as stream:
      return read(parquet.ParquetFile(stream), stream)
  except (pyarrow.ArrowException, OSError, *_NOT_THRIFT) as error:
    raise ValueError(f'{file.path} is not a complete Parquet file: {error}') from error


# Sizes: a file of some kilobytes may hold gigabytes, and its footer may deny it ---------------------------------------


def _check_size(size: int, file: local.File) -> None:
  if size > file.max_bytes:
    raise ValueError(
      f'{file.path} has a row group of {size:,} bytes or more, the limit is {file.max_bytes:,}: write smaller row '
      'groups, or raise data.max_bytes'
    )


def _group_of(table: Any, index: int, about: Fields, stream: BinaryIO, file: local.File) -> Any:
  from pyarrow import Table
  from pyarrow.parquet import ParquetFile

  columns: list[Fields] = [chunk[3] for chunk in about[1]]
  # 1. Sizes and values of pages as the decoder takes them, before a page is decompressed.
  pages = [_pages(stream, column) for column in columns]
  size = sum(size for of_column in pages for size, _ in of_column)
  repeated, is_delta = [], False
  for number, (column, of_column) in enumerate(zip(columns, pages, strict=True)):
    values = sum(count for _, count in of_column)
    if column[1] != _BYTE_ARRAY:
      size = max(size, values * max(table.schema.column(number).length or 0, 8))
    elif column.get(11) and of_column[0][0] * values > file.max_bytes // 8:
      repeated.append(b'.'.join(column[3]).decode())
    is_delta |= column[1] == _BYTE_ARRAY and _DELTA_BYTE_ARRAY in column[2]
  _check_size(size, file)
  # 2. Texts of a dictionary, which may be repeated any number of times: their size before they are.
  if repeated:
    arrays = ParquetFile(stream, read_dictionary=repeated).read_row_group(index, repeated, use_threads=False).columns
    _check_size(sum(_decoded(chunk) for column in arrays for chunk in column.chunks), file)
  if not is_delta:
    group = table.read_row_group(index)
  else:  # 3. Texts that repeat their beginnings: so few rows at once that they fit if each has a whole page.
    rows = min(max(file.max_bytes // (4 * max(size for of_column in pages for size, _ in of_column) + 1), 1), 65_536)
    batches, size = [], 0
    for batch in table.iter_batches(rows, row_groups=[index], use_threads=False):
      size += batch.nbytes
      _check_size(size, file)
      batches.append(batch)
    group = Table.from_batches(batches, table.schema_arrow)
  if group.num_rows != about[3]:
    raise OSError(f'{group.num_rows} rows of {about[3]} in a row group')
  return group


def _decoded(array: Any) -> int:
  """Return the bytes of an array whose dictionaries are decoded."""
  from pyarrow import compute, types

  if types.is_dictionary(array.type):
    return compute.sum(compute.binary_length(array.dictionary).take(array.indices)).as_py() or 0
  if types.is_struct(array.type):
    return sum(map(_decoded, array.flatten()))
  if types.is_map(array.type):
    return _decoded(array.keys) + _decoded(array.items)
  return _decoded(array.flatten()) if types.is_nested(array.type) else array.nbytes


def _pages(stream: BinaryIO, column: Fields) -> list[tuple[int, int]]:
  """Read (bytes when decompressed, values) of each page of a column."""
  pages: list[tuple[int, int]] = []
  here = min(begin for begin in (column[9], column.get(11)) if begin)
  end = here + column[7]
  while here < end:
    stream.seek(here)
    header = _struct(stream)
    about: Fields = next((header[key] for key in (5, 7, 8) if key in header), {})  # of data, of a dictionary, of data 2
    pages.append((max(header[2], 0), max(about.get(1, 0), 0)))
    here = stream.tell() + max(header[3], 0)
  return pages


# Thrift's compact protocol: pyarrow ends the process at some damaged numbers ------------------------------------------


def _footer(stream: BinaryIO) -> Fields:
  stream.seek(-8, 2)
  length = int.from_bytes(stream.read(4), 'little')
  stream.seek(-8 - length, 2)
  return _struct(io.BytesIO(stream.read(length)))


def _struct(stream: BinaryIO) -> Fields:
  fields: Fields = {}
  last = 0
  while head := stream.read(1)[0]:
    last = last + (head >> 4) if head >> 4 else _integer(stream)
    fields[last] = head & 15 == 1 if head & 15 < 3 else _value(stream, head & 15)
  return fields


def _value(stream: BinaryIO, kind: int) -> Any:
  if kind in (9, 10):  # a list, a set
    head = stream.read(1)[0]
    return [_value(stream, head & 15) for _ in range(head >> 4 if head < 240 else _varint(stream))]
  if kind == 8:
    return stream.read(_varint(stream))
  if kind == 12:
    return _struct(stream)
  return stream.read(8)[7] if kind == 7 else stream.read(1)[0] if kind < 4 else _integer(stream)


def _varint(stream: BinaryIO) -> int:
  value = shift = 0
  while (byte := stream.read(1)[0]) > 127 and shift < 64:
    value, shift = value | (byte & 127) << shift, shift + 7
  return value | byte << shift


def _integer(stream: BinaryIO) -> int:
  number = _varint(stream)
  return number >> 1 ^ -(number & 1)
