"""Names of classes: those that the data set lists, or those that its rows hold."""

import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from plm_jax.core.errors import suggest
from plm_jax.data.corpora.records import Records, as_written
from plm_jax.data.rows.checked import BadSplit

log = logging.getLogger(__name__)

_SHOWN = 50  # names in a message
_TRUTH = ('False', 'True')
_FEW = 50  # so many names of classes may stand in any number of rows


def one_by_one(value: Any) -> Any:
  """A text as the list of its words, a number of a table as one of them; anything else as it is."""
  value = as_written(value)
  return value.split() if isinstance(value, str) else value


class ClassNames:
  """Numbers of classes. Rows hold them, or names, whose numbers are their places in the list of names.

  The list is that of the data set (TFDS, `labels.json`); else the names that the rows of the training split hold,
  sorted, so that all splits have one order; else 'False' and 'True' where rows hold those. A number may be written as
  1.0, as pandas writes a column that has had an empty cell.

  Where all names are O, B-... and I-..., those of words are read as IOB2 (`as_iob2`), since CoNLL-2003 is published in
  IOB1. A list without any B-... is of another scheme, whose I-... stay.
  """

  def __init__(
    self,
    records: Records,
    field: str,
    *,
    several: bool = False,
    missing: float | str = -1,
    counted: Callable[[Mapping[str, Any]], Sequence[bool] | None] = lambda row: None,
  ):
    """Reads nothing yet.

    Args:
      records: the split.
      field: that holds the class.
      several: it holds the classes of several words, in a list or in a text with spaces between them.
      missing: what it holds where there is no class.
      counted: which words of a row have a class; None for all. What stands for the others is no name.
    """
    self.missing = missing
    self.counted = counted
    self.records = records
    self.field = field
    self.several = several
    self.listed = field in records.labels
    self._known = records.labels.get(field, ())
    self._numbered = False  # a row holds a number
    self._named = False  # a number came from the list
    self._entities = several and _are_entities(self._known) and any(name.startswith('B-') for name in self._known)
    self._begun = False  # a B-X stands for an I-X of the data
    self._looked = False  # whether labels.json names fields that there are
    self._compared = False  # with the training split, whose rows may hold names

  @property
  def names(self) -> tuple[str, ...]:
    """The names of the classes, once all rows are read; () where rows hold numbers and there is no list."""
    return self._known

  @property
  def digest(self) -> tuple[Any, ...]:
    """What this adds to the digest of the rows: the list, if a number came from it, and whether tags became IOB2."""
    return (self._known,) * self._named + ('iob2',) * self._begun

  def settled(self) -> tuple[str, ...]:
    """As `names`; where no row of the split had a label, as in a test set, those of the training split."""
    if not self._known and not self._numbered and self.records.named_by is not None:
      self._check_lists()
      self._known = self._found()
    return self._known

  def numbers(self, tags: Sequence[Any], index: int) -> list[int]:
    """The numbers of the classes of the words of row `index`, as `number` gives them; -1 for a word without one.

    Raises:
      ValueError: as `number`.
      BadSplit: an entity begins with an I-X, and the list of names lacks B-X.
    """
    if any(isinstance(tag, str) and tag for tag in tags):
      self._find()
    if not self._entities:
      return [self.number(tag, index, least=-1) for tag in tags]
    begun = as_iob2(tags, self._known if self.listed else ())
    for place, (old, new) in enumerate(zip(tags, begun, strict=True)):
      if old != new and new not in self._known:
        if f'I{new[1:]}' in self._known:
          raise BadSplit(
            f'{self.records.where}: an entity begins with {f"I{new[1:]}"!r} in {self.field!r}, as in IOB1, and is read '
            f'as IOB2, in which it begins with {new!r}: labels.json lacks that name, and has {self._few()}'
          )
        begun[place] = old  # no name either, which `number` says
    self._begun |= begun != list(tags)
    return [self.number(tag, index, least=-1) for tag in begun]

  def number(self, value: Any, index: int, *, least: int = 0) -> int:
    """The number of a class.

    Args:
      value: what row `index` holds.
      index: of the row, for the message.
      least: the smallest number allowed.

    Raises:
      ValueError: neither a whole number from `least` on nor one of the names, or outside the list of names.
      BadSplit: labels.json names another field, which there is not.
    """
    self._check_lists()
    if self.listed and as_written(value) is not value and as_written(value) in self._known:
      value = as_written(value)  # of a table: a name that is a number, as of one to five stars
    if isinstance(value, bool) and not self.listed:
      self._known, value = self._known or _TRUTH, str(value)
    if isinstance(value, str) and value:
      self._find()
    if isinstance(value, float) and value.is_integer():
      value = int(value)
    if isinstance(value, int) and value >= 0 and self._training_has_names():
      self._find()  # a number is none of them
    if isinstance(value, str) and value not in self._known and value.isdecimal():
      value = int(value)  # of a table in which the class of another row is no number
    if isinstance(value, str) and value in self._known:
      self._named = True
      return self._known.index(value)
    whole = isinstance(value, int) and value >= least
    if whole and value < 0:
      return int(value)
    if whole and (value < len(self._known) if self.listed else not self._known):
      self._numbered = True
      return int(value)
    where = f'row {index} of {self.records.where}: {self.field!r} holds {value!r}'
    if value == '' or not (isinstance(value, str) or whole):
      raise ValueError(f"{where}; classes are numbers from {least} or names, real values are kind='regression'")
    if not self._known:
      raise ValueError(f'{where}, and other rows hold numbers: name all classes, or none')
    if self.listed:
      raise ValueError(f'{where}, and labels.json names {self._few()}')
    cure = f'if it is another class, name all of them in labels.json, as in {{"{self.field}": ["no", "yes"]}}'
    raise ValueError(f'{where}, and the training split has {self._few()}: {cure}')

  def _check_lists(self) -> None:
    """Raises BadSplit where labels.json names no class of this field, but those of one that no row of training has."""
    if self._looked or self.listed or not self.records.labels:
      return
    self._looked = True
    try:
      records = self._naming()
    except (ValueError, FileNotFoundError):  # a split may lack the field if another may have it
      return
    missing = dict.fromkeys(self.records.labels)
    for index in range(len(records)):
      try:
        missing = {name: None for name in missing if name not in records[index]}
      except ValueError:  # a row that cannot be read is named where it is used
        continue
      if not missing:
        return
    raise BadSplit(
      f'labels.json names classes of {", ".join(map(repr, missing))}, and rows of {records.where} have '
      f'{", ".join(records.fields)}.{suggest(next(iter(missing)), records.fields)}'
    )

  def _naming(self) -> Records:
    """The split whose rows decide which classes there are; raises what opening it does."""
    return self.records if self.records.named_by is None else self.records.named_by()

  def _few(self) -> str:
    return ', '.join(self._known[:_SHOWN]) + (', ...' if len(self._known) > _SHOWN else '')

  def _training_has_names(self) -> bool:
    """Whether the first label of the training split is a name, which is asked once, before a first number."""
    if self._compared or self.listed or self.records.named_by is None:
      return False
    self._compared = True
    try:
      records = self._naming()
    except (ValueError, FileNotFoundError):  # there is no training split
      return False
    for held in self._held(records):
      if labels := [one for one in held if one not in (None, '', -1)]:
        return any(isinstance(one, str) and not one.removesuffix('.0').isdecimal() for one in labels)
    return False

  def _held(self, records: Records) -> Iterator[list[Any]]:
    """What the field holds, row by row, one or several; rows that cannot be read are named where they are used."""
    for index in range(len(records)):
      try:
        row = records[index]
        value = one_by_one(row.get(self.field)) if self.several else row.get(self.field)
        there = self.counted(row)
      except ValueError:
        continue
      held = value if isinstance(value, list) else [value]
      yield held if there is None else list(itertools.compress(held, there))

  def _find(self) -> None:
    """Looks for names where there is no list and no row has held a number."""
    if not self._known and not self._numbered:
      self._known = self._found()

  def _found(self) -> tuple[str, ...]:
    """The names that rows hold, sorted; () where most hold numbers."""
    try:
      records = self._naming()
    except (ValueError, FileNotFoundError):  # there is no training split
      records = self.records
    found: set[Any] = set()
    begun: set[Any] = set()  # as IOB2
    for row in self._held(records):
      held = [name for name in row if isinstance(name, str | int)]
      found |= set(held)
      begun |= {name for name in as_iob2(held) if isinstance(name, str) and name}
    if found and all(isinstance(name, bool) for name in found):
      return _TRUTH
    found -= {'', -1, self.missing}
    if '-' in found and not self.several:
      log.warning(
        f"{records.where}: '-' is one of the classes in {self.field!r}. Where it stands for no class, as in SNLI and "
        "MultiNLI, data.missing='-' leaves those rows out."
      )
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
    self._entities = self.several and _are_entities(found)
    return tuple(sorted(begun if self._entities else found))


def as_iob2(tags: Sequence[Any], names: Sequence[str] = ()) -> list[Any]:
  """Tags of the words of a text, with B-X in place of each I-X that continues no entity of type X.

  IOB1 writes B-X only between two entities of one type that touch. Tags that are IOB2 stay as they are.

  Args:
    tags: names of classes, or numbers of `names`. Words without a tag, -1 or None, are passed over.
    names: of the classes, where there is a list.
  """
  # I-x I-x B-x O I-x I-y   ->   B-x I-x B-x O B-x B-y
  made, before = [], ''
  for tag in tags:
    named = names[tag] if isinstance(tag, int) and 0 <= tag < len(names) else tag
    begins = isinstance(named, str) and named.startswith('I-') and named[2:] != before
    made.append(f'B-{named[2:]}' if begins else tag)
    if isinstance(named, str) and named:
      before = named[2:] if named[:2] in ('B-', 'I-') else ''
  return made


def _are_entities(names: Collection[str]) -> bool:
  """Whether all of some names are O, B-... or I-..., and one is I-..."""
  tags = [name for name in names if name != 'O']
  return all(tag[:2] in ('B-', 'I-') and tag[2:] for tag in tags) and any(tag.startswith('I-') for tag in tags)
