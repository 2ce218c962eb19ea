"""Parquet tables: rows are the rows of the table, fields its columns."""

from collections.abc import Callable, Sequence
from typing import Any

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
  if (largest := max((group.total_byte_size for group in groups), default=0)) > path.max_bytes:
    raise ValueError(
      f'{path.path} has a row group of {largest:,} bytes, the limit is {path.max_bytes:,}: write smaller row groups, '
      'or raise data.max_bytes'
    )
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
    last = self._last
    if last is None or last[0] != index:
      self._last = last = index, _read(self.file, lambda table: table.read_row_group(index))
    return last[1]


def _read(file: local.File, read: Callable[[Any], Any]) -> Any:
  """Call `read` with the file; raise ValueError if it is damaged."""
  import pyarrow
  from pyarrow import parquet

  try:
    with file.stream() as stream:
      return read(parquet.ParquetFile(stream))
  except (pyarrow.ArrowException, OSError) as error:
    raise ValueError(f'{file.path} is not a complete Parquet file: {error}') from error
