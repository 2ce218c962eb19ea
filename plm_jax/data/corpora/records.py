"""Rows and texts of one split, read one by one, whatever they are stored in."""

import bisect
import dataclasses
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.data.corpora.filters import FilterStats


@dataclasses.dataclass(frozen=True)
class Opened:
  """A data set before a split is chosen.

  Attributes:
    splits: names of the splits.
    rows: split name -> its rows, read one by one.
    digest: split name -> hex digest of its content.
    labels: field -> names of its classes.
  """

  splits: tuple[str, ...]
  rows: Callable[[str], Sequence[Mapping[str, Any]]]
  digest: Callable[[str], str]
  labels: Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Records(Sequence[dict[str, Any]]):
  """Rows of a split as plain Python: str, int, float, lists and dicts of those.

  Attributes:
    fields: the fields of a row.
    digest: hex digest of the content.
    names: the names of the classes of the field `label`, or of the only field that has classes; else ().
    labels: field -> names of its classes, for every field that has them.
    description: path, split and number of rows, for people.
  """

  fields: tuple[str, ...]
  digest: str
  names: tuple[str, ...]
  labels: Mapping[str, tuple[str, ...]]
  description: str
  pieces: tuple[tuple[Sequence[Mapping[str, Any]], range], ...] = dataclasses.field(repr=False)

  def __len__(self) -> int:
    return sum(len(chosen) for _, chosen in self.pieces)

  def __getitem__(self, index: int) -> dict[str, Any]:  # type: ignore[override]  # no slices
    index = operator.index(index)
    place = index + len(self) if index < 0 else index
    if not 0 <= place < len(self):
      raise IndexError(f'row {index} of {self.description}')
    ends = list(itertools.accumulate(len(chosen) for _, chosen in self.pieces))
    piece = bisect.bisect_right(ends, place)
    rows, chosen = self.pieces[piece]
    return {key: _plain(value) for key, value in rows[chosen[place - ends[piece]]].items()}


@dataclasses.dataclass(frozen=True)
class Texts(Sequence[str]):
  """One string field of records: the documents of a corpus.

  Attributes:
    records: where the text stands.
    field: the field that holds it.
    digest: hex digest of the content.
    chosen: the rows that a filter kept; None for all.
    stats: what the filter dropped and why; None without one.
  """

  records: Records
  field: str
  digest: str
  chosen: Sequence[int] | None = dataclasses.field(default=None, repr=False)
  stats: FilterStats | None = None

  @property
  def description(self) -> str:
    """Path, split and number of documents, for people."""
    return f'{self.records.description}, of which {len(self):,} are kept' if self.stats else self.records.description

  def __len__(self) -> int:
    return len(self.records if self.chosen is None else self.chosen)

  def __getitem__(self, index: int) -> str:  # type: ignore[override]  # no slices
    row = index if self.chosen is None else self.chosen[index]
    text = self.records[row].get(self.field)
    if not isinstance(text, str):
      raise ValueError(f'row {row} of {self.records.description} holds no text in {self.field!r}, but {text!r}')
    return text


def _plain(value: Any) -> Any:
  """Without bytes, numpy scalars and arrays, which TFDS hands out."""
  if isinstance(value, bytes):
    return value.decode()
  if isinstance(value, np.ndarray):
    return _plain(value.tolist())
  if isinstance(value, np.generic):
    return value.item()
  if isinstance(value, Mapping):
    return {key: _plain(inner) for key, inner in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(inner) for inner in value]
  return value
