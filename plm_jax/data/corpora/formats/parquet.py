"""Parquet tables: a row of the table is a row, its columns are the fields."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened

SUFFIXES = ('.parquet',)
SCHEME = None


def open(path: local.File, split: str, cache: str) -> Opened:
  """The rows of a file."""
  about = _read(path, lambda table: table.metadata)
  groups = [about.row_group(number) for number in range(about.num_row_groups)]
  sizes = [group.num_rows for group in groups]
  if (largest := max((group.total_byte_size for group in groups), default=0)) > path.max_bytes:
    raise ValueError(
      f'{path.path} has a group of rows of {largest:,} bytes, which is read whole, and {path.max_bytes:,} are allowed: '
      'write it with smaller groups, or raise data.max_bytes'
    )
  if not sum(sizes):
    raise ValueError(f'{path.path} holds no rows')
  return Opened(Rows(path, sizes), f'{path.digest(cache=cache)} rows')


class Rows(Sequence[local.Row]):
  """The rows of a file. Keeps the group of rows that was read last, so that reading in order reads each group once."""

  def __init__(self, file: local.File, sizes: Sequence[int]):
    self.file = file
    self._ends = np.cumsum(sizes)  # [groups]
    self._kept: tuple[int, Any] | None = None  # number of a group, and its table

  def __len__(self) -> int:
    return int(self._ends[-1])

  def __getitem__(self, index: int) -> local.Row:  # type: ignore[override]  # no slices
    number = int(np.searchsorted(self._ends, index, side='right'))
    before = int(self._ends[number - 1]) if number else 0
    return self._group(number).slice(index - before, 1).to_pylist()[0]

  def __getstate__(self) -> dict[str, Any]:
    return {**self.__dict__, '_kept': None}

  def _group(self, number: int) -> Any:
    """One group of rows as a table of pyarrow."""
    kept = self._kept
    if kept is None or kept[0] != number:
      self._kept = kept = number, _read(self.file, lambda table: table.read_row_group(number))
    return kept[1]


def _read(file: local.File, read: Callable[[Any], Any]) -> Any:
  """What `read` takes from the opened file.

  Raises:
    ValueError: the file is damaged.
  """
  import pyarrow
  from pyarrow import parquet

  try:
    with file.stream() as stream:
      return read(parquet.ParquetFile(stream))
  except (pyarrow.ArrowException, OSError) as error:
    raise ValueError(f'{file.path} is not a whole Parquet file: {error}') from error
