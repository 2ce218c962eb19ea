"""Rows of a split that cannot be used: all are found first, and reported with file and line."""

import logging
from collections.abc import Callable, Iterable
from typing import Generic, Literal, NamedTuple, TypeVar

from plm_jax.data.corpora.records import Records

log = logging.getLogger(__name__)
T = TypeVar('T')

OnBadRow = Literal['stop', 'skip']
SHOWN = 10  # most bad rows in a message; with 'stop', reading ends after them
MOST = 0.001  # share of the rows that may be skipped; more bad rows mean that the config does not fit the data


class BadSplit(ValueError):
  """An error of a whole split, not of one row."""


class Good(NamedTuple, Generic[T]):
  """Results for the usable rows."""

  rows: list[int]  # their indices in the split, ascending
  values: list[T]  # the result of each


class BadRows:
  """Reader that collects the errors of unusable rows: call `read` as often as needed, then `report`."""

  def __init__(self, records: Records, on_bad_row: OnBadRow, *, every: bool = False):
    """Read nothing yet.

    `on_bad_row='skip'` drops up to `MOST` of the rows, and counts and lists them. With `every` each row needs an
    answer, as in a test set, and the message does not offer to skip.
    """
    self.records = records
    self.every = every
    self.skip = on_bad_row == 'skip'
    self.found: dict[int, str] = {}

  def read(self, read: Callable[[int], T], rows: Iterable[int] | None = None) -> Good[T]:
    """Call `read` with each row index; a ValueError marks an unusable row.

    Raises ValueError for more bad rows than may be skipped, or than a message shows.
    """
    good: Good[T] = Good([], [])
    for index in range(len(self.records)) if rows is None else rows:
      try:
        value = read(index)
      except BadSplit:
        raise
      except ValueError as error:
        self._add(index, str(error))
      else:
        good.rows.append(index)
        good.values.append(value)
    return good

  def report(self) -> tuple[int, ...]:
    """Log and return dropped rows; raise ValueError if they cannot be."""
    if self.found and not self.skip:
      raise self._refused()
    if self.found:
      shown = ''.join(f'\n  {reason}' for reason in list(self.found.values())[:SHOWN])
      more = f'\n  and {len(self.found) - SHOWN} more' if len(self.found) > SHOWN else ''
      log.warning(f'{self._counted()} cannot be used and are skipped (on_bad_row):{shown}{more}')
    return tuple(self.found)

  def _add(self, index: int, reason: str) -> None:
    place = self.records.place(index)
    named = not place or reason.startswith(place.rpartition(',')[0])  # errors of reading begin with the file
    self.found[index] = reason if named else f'{place}: {reason}'
    if len(self.found) > MOST * len(self.records) if self.skip else len(self.found) == SHOWN:
      raise self._refused()

  def _refused(self) -> ValueError:
    first, *others = self.found.values()
    if self.skip:
      fix = f'data.on_bad_row skips at most {MOST:.1%} of the rows: check the data, data.fields and data.label'
      return ValueError(f'{self._counted()} or more cannot be used, the first: {first}. {fix}')
    skip = f", or skip up to {MOST:.1%} of the rows with data.on_bad_row='skip'"
    fix = f'Fix or remove it{"" if self.every else skip}'
    if not others:
      return ValueError(f'{first}. {fix}')
    more = ' or more' if len(self.found) == SHOWN else ''
    listed = ''.join(f'\n  {reason}' for reason in self.found.values())
    return ValueError(f'{len(self.found)}{more} rows of {self.records.where} cannot be used:{listed}\n{fix}')

  def _counted(self) -> str:
    return f'{len(self.found)} of {len(self.records):,} rows of {self.records.where}'
