"""Rows of a split that cannot be used: all are found before anything is made of the others, each with file and line."""

import logging
from collections.abc import Callable, Iterable
from typing import Generic, Literal, NamedTuple, TypeVar

from plm_jax.data.corpora.records import Records

log = logging.getLogger(__name__)
T = TypeVar('T')

OnBadRow = Literal['stop', 'skip']
SHOWN = 10  # bad rows in a message; reading stops behind so many where they are not left out
MOST = 0.001  # share of the rows that is left out; where more are bad, the data is not what the config takes it for


class BadSplit(ValueError):
  """Something is wrong with a whole split, and not with one of its rows."""


class Good(NamedTuple, Generic[T]):
  """What was read of the rows that can be used.

  Attributes:
    rows: their places in the split, rising.
    values: of each of them.
  """

  rows: list[int]
  values: list[T]


class BadRows:
  """Reads rows, and collects what is wrong with those that cannot be used: `read` as often as needed, then `report`."""

  def __init__(self, records: Records, on_bad_row: OnBadRow, *, every: bool = False):
    """Reads nothing yet.

    Args:
      records: the split.
      on_bad_row: 'stop' refuses the data, 'skip' leaves up to `MOST` of the rows out and counts and lists them.
      every: each row is to be answered, as those of a test set: the message offers no skipping.
    """
    self.records = records
    self.every = every
    self.skip = on_bad_row == 'skip'
    self.found: dict[int, str] = {}

  def read(self, read: Callable[[int], T], rows: Iterable[int] | None = None) -> Good[T]:
    """What `read` makes of each row, by its place in the split; it raises a ValueError where the row cannot be used.

    Args:
      read: see above.
      rows: their places; None is all.

    Raises:
      ValueError: more bad rows than are left out, or than a message shows.
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
    """The rows that are left out, which the log counts and lists.

    Raises:
      ValueError: there are some, and rows are not left out.
    """
    if self.found and not self.skip:
      raise self._refused()
    if self.found:
      shown = ''.join(f'\n  {reason}' for reason in list(self.found.values())[:SHOWN])
      more = f'\n  and {len(self.found) - SHOWN} more' if len(self.found) > SHOWN else ''
      log.warning(f'{self._counted()} cannot be used and are left out (on_bad_row):{shown}{more}')
    return tuple(self.found)

  def _add(self, index: int, reason: str) -> None:
    place = self.records.place(index)
    named = not place or reason.startswith(place.rpartition(',')[0])  # a row that cannot be read names itself
    self.found[index] = reason if named else f'{place}: {reason}'
    if len(self.found) > MOST * len(self.records) if self.skip else len(self.found) == SHOWN:
      raise self._refused()

  def _refused(self) -> ValueError:
    first, *others = self.found.values()
    if self.skip:
      cure = f'data.on_bad_row leaves out {MOST:.1%} of the rows at most: look at the data, or at fields and label'
      return ValueError(f'{self._counted()} or more cannot be used, the first of them: {first}. {cure}')
    skip = f", or leave up to {MOST:.1%} of the rows out with data.on_bad_row='skip'"
    cure = f'Mend or remove it{"" if self.every else skip}'
    if not others:
      return ValueError(f'{first}. {cure}')
    more = ' or more' if len(self.found) == SHOWN else ''
    listed = ''.join(f'\n  {reason}' for reason in self.found.values())
    return ValueError(f'{len(self.found)}{more} rows of {self.records.where} cannot be used:{listed}\n{cure}')

  def _counted(self) -> str:
    return f'{len(self.found)} of {len(self.records):,} rows of {self.records.where}'
