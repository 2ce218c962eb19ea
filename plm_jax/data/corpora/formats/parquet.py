"""Parquet tables: rows are the rows of the table, fields its columns."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened

SUFFIXES = ('.parquet',)
SCHEME = None


def open(path: local.File, split: str, cache: str) -> Opened:
  """Open the rows of a file."""
  metadata = _read(path, lambda table: table.metadata)
  groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
  sizes = [group.num_rows for group in groups]
  _check_size(max((group.total_byte_size for group in groups), default=0), path)
  if not sum(sizes):
    raise ValueError(f'{path.path} holds no rows')
  return Opened(Rows(path, sizes), f'{path.digest(cache=cache)} rows')


class Rows(Sequence[local.Row]):
  """The rows of a file. Holds the last row group in memory, so that reading in order reads each group once."""

  def __init__(self, file: local.File, sizes: Sequence[int]):
    self.file = file
    self._ends = np.cumsum(sizes)  # [groups]
    self._last: tuple[int, Any] | None = None  # index of a row group, and its table

  def __len__(self) -> int:
    return int(self._ends[-1])

  def __getitem__(self, index: int) -> local.Row:  # type: ignore[override]  # no slices
    group = int(np.searchsorted(self._ends, index, side='right'))
    before = int(self._ends[group - 1]) if group else 0
    return self._group(group).slice(index - before, 1).to_pylist()[0]

  def __getstate__(self) -> dict[str, Any]:
    return {**self.__dict__, '_last': None}

  def _group(self, index: int) -> Any:
    """Return one row group as a table of pyarrow."""
    if self._last is None or self._last[0] != index:
      try:
        self._last = index, _read(self.file, lambda table: _group_of(table, index, self.file))
      except ValueError as error:  # of every row of the group: it is not read for each
        self._last = index, error
    if isinstance(self._last[1], ValueError):
      raise self._last[1]
    return self._last[1]


def _read(file: local.File, read: Callable[[Any], Any], *, dictionaries: Sequence[str] = ()) -> Any:
  """Call `read` with the opened file; raise ValueError if damaged."""
  import pyarrow
  from pyarrow import parquet

  try:
    with file.stream() as stream:
      return read(parquet.ParquetFile(stream, read_dictionary=list(dictionaries)))
  except (pyarrow.ArrowException, OSError, IndexError) as error:
    raise ValueError(f'{file.path} is not a complete Parquet file: {error}') from error


# Sizes: a file of some kilobytes may hold gigabytes, and its footer may deny it ---------------------------------------


def _check_size(size: int, file: local.File) -> None:
  if size > file.max_bytes:
    raise ValueError(
      f'{file.path} has a row group of {size:,} bytes or more, the limit is {file.max_bytes:,}: write smaller row '
      'groups, or raise data.max_bytes'
    )


def _group_of(table: Any, index: int, file: local.File) -> Any:
  """Read a row group of at most `max_bytes`."""
  from pyarrow import Table

  about = table.metadata.row_group(index)
  columns = [about.column(number) for number in range(about.num_columns)]
  leaves = [table.schema.column(number) for number in range(about.num_columns)]
  # 1. Sizes and values of pages as the decoder takes them, before a page is decompressed.
  pages = [_pages(file, column) for column in columns]
  sizes = [sum(size for size, _ in of_column) for of_column in pages]
  values = [sum(count for _, count in of_column) for of_column in pages]
  is_text = [leaf.physical_type == 'BYTE_ARRAY' for leaf in leaves]
  width = [0 if text else max(leaf.length or 0, 8) for text, leaf in zip(is_text, leaves, strict=True)]
  _check_size(max(sum(sizes), sum(map(operator.mul, values, width))), file)
  # 2. Texts of a dictionary, which may be repeated any number of times: their size before they are.
  repeated = [
    column.path_in_schema
    for column, text, of_column, count in zip(columns, is_text, pages, values, strict=True)
    if text and column.has_dictionary_page and of_column[0][0] * count > file.max_bytes // 8
  ]
  if repeated:
    arrays = _read(file, lambda table: table.read_row_group(index, repeated, use_threads=False), dictionaries=repeated)
    _check_size(sum(_decoded(chunk) for column in arrays.columns for chunk in column.chunks), file)
  if not any('DELTA_BYTE_ARRAY' in column.encodings for column in columns):
    return table.read_row_group(index)
  # 3. Texts that repeat their beginnings: so few rows at once that they fit if each has a whole page.
  rows = min(max(file.max_bytes // (4 * max(size for of_column in pages for size, _ in of_column) + 1), 1), 65_536)
  batches, size = [], 0
  for batch in table.iter_batches(rows, row_groups=[index], use_threads=False):
    size += batch.nbytes
    _check_size(size, file)
    batches.append(batch)
  return Table.from_batches(batches, table.schema_arrow)


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


def _pages(file: local.File, column: Any) -> list[tuple[int, int]]:
  """Read (bytes when decompressed, values) of each page of a column.

  They are in a Thrift struct before each page (parquet.thrift, PageHeader). Raise IndexError if it is damaged.
  """
  begins = [column.data_page_offset, *([column.dictionary_page_offset] if column.has_dictionary_page else [])]
  here, pages = min(begin for begin in begins if begin is not None), []
  end = here + column.total_compressed_size
  with file.stream() as stream:
    while here < end:
      stream.seek(here)
      header = _struct(stream)
      about = next((header[key] for key in (5, 7, 8) if key in header), {})  # of data, of a dictionary, of data 2
      pages.append((header.get(2, 0), about.get(1, 0)))
      here = stream.tell() + max(header.get(3, 0), 0)
  return pages


def _struct(stream: BinaryIO) -> dict[int, Any]:
  """Read a struct of Thrift's compact protocol: field -> value."""
  fields: dict[int, Any] = {}
  last = 0
  while head := stream.read(1)[0]:
    last = last + (head >> 4) if head >> 4 else _integer(stream)
    fields[last] = _value(stream, head & 15)
  return fields


def _value(stream: BinaryIO, kind: int) -> Any:
  """Read a value of the kinds that occur before pages."""
  if kind == 8:
    return stream.seek(_varint(stream), 1)  # bytes of statistics
  return kind == 1 if kind < 3 else _struct(stream) if kind == 12 else _integer(stream)


def _varint(stream: BinaryIO) -> int:
  value = shift = 0
  while (byte := stream.read(1)[0]) > 127:
    value, shift = value | (byte & 127) << shift, shift + 7
  return value | byte << shift


def _integer(stream: BinaryIO) -> int:
  number = _varint(stream)
  return number >> 1 ^ -(number & 1)
