"""Names of classes: those that the data set lists, or those that its rows hold."""

from typing import Any

from plm_jax.data.corpora.records import Records
from plm_jax.data.rows.checked import BadSplit

_SHOWN = 50  # names in a message
_TRUTH = ('False', 'True')
_FEW = 50  # so many names of classes may stand in any number of rows


def one_by_one(value: Any) -> Any:
  """A text as the list of its words; anything else as it is."""
  return value.split() if isinstance(value, str) else value


class ClassNames:
  """Numbers of classes. Rows hold them, or names, whose numbers are their places in the list of names.

  The list is that of the data set (TFDS, `labels.json`); else the names that the rows of the training split hold,
  sorted, so that all splits have one order; else 'False' and 'True' where rows hold those.

  Attributes:
    digest: what it adds to the digest of the rows: the list, if a number came from it.
  """

  def __init__(self, records: Records, field: str, *, several: bool = False):
    """Reads nothing yet.

    Args:
      records: the split.
      field: that holds the class.
      several: it holds the classes of several words, in a list or in a text with spaces between them.
    """
    self.records = records
    self.field = field
    self.several = several
    self.listed = field in records.labels
    self.digest: tuple[Any, ...] = ()
    self._known = records.labels.get(field, ())
    self._numbered = False  # a row holds a number

  @property
  def names(self) -> tuple[str, ...]:
    """The names of the classes, once all rows are read; () where rows hold numbers and there is no list."""
    return self._known

  def settled(self) -> tuple[str, ...]:
    """As `names`; where no row of the split had a label, as in a test set, those of the training split."""
    if not self._known and not self._numbered and self.records.named_by is not None:
      self._known = self._found()
    return self._known

  def number(self, value: Any, index: int, *, least: int = 0) -> int:
    """The number of a class.

    Args:
      value: what row `index` holds.
      index: of the row, for the message.
      least: the smallest number allowed.

    Raises:
      ValueError: neither a whole number from `least` on nor one of the names, or outside the list of names.
    """
    if isinstance(value, bool) and not self.listed:
      self._known, value = self._known or _TRUTH, str(value)
    if isinstance(value, str) and value and not self._known and not self._numbered:
      self._known = self._found()
    if isinstance(value, str) and value not in self._known and value.isdecimal():
      value = int(value)  # of a table in which the class of another row is no number
    if isinstance(value, str) and value in self._known:
      self.digest = (self._known,)
      return self._known.index(value)
    whole = isinstance(value, int) and value >= least
    if whole and value < 0:
      return int(value)
    if whole and (value < len(self._known) if self.listed else not self._known):
      self._numbered = True
      return int(value)
    where = f'row {index} of {self.records.where}: {self.field!r} holds {value!r}'
    if value == '' or not (isinstance(value, str) or whole):
      raise ValueError(f"{where}; classes are numbers from {least} or names, real values are kind='regression'.")
    if not self._known:
      raise ValueError(f'{where}, and other rows hold numbers: name all classes, or none')
    few = ', '.join(self._known[:_SHOWN]) + (', ...' if len(self._known) > _SHOWN else '')
    raise ValueError(f'{where}, and {"labels.json names" if self.listed else "the training split has"} {few}')

  def _found(self) -> tuple[str, ...]:
    """The names that rows hold, sorted; () where most hold numbers."""
    try:
      records = self.records if self.records.named_by is None else self.records.named_by()
    except (ValueError, FileNotFoundError):  # there is no training split
      records = self.records
    found: set[Any] = set()
    for index in range(len(records)):
      try:
        value = records[index].get(self.field)
        value = one_by_one(value) if self.several else value
      except ValueError:  # a row that cannot be read is named where it is used
        continue
      found |= {name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str | int)}
    if found and all(isinstance(name, bool) for name in found):
      return _TRUTH
    found -= {'', -1}
    numbers = sum(isinstance(name, int) or name.isdecimal() for name in found)
    self._numbered = 2 * numbers >= len(found)
    if self._numbered:
      return ()
    found = {name for name in found if isinstance(name, str)}
    if len(found) > max(_FEW, len(records) / 2):
      raise BadSplit(
        f'{records.where}: {self.field!r} holds {len(found):,} different texts in {len(records):,} rows, which are no '
        'names of classes; classes are numbers from 0, or names (label=...).'
      )
    return tuple(sorted(found))
