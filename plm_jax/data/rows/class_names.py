"""Names of classes: listed by the data set, or found in its rows."""

import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from plm_jax.core.errors import suggest
from plm_jax.data.corpora import cells
from plm_jax.data.corpora.records import Records, as_written
from plm_jax.data.rows import entity_tags
from plm_jax.data.rows.checked import BadSplit

log = logging.getLogger(__name__)

_SHOWN = 50  # names in a message
_TRUTH = ('False', 'True')
_MOST = 1_000_000  # numbers of classes, each of which is an output
_FEW = 50  # names that are accepted in any number of rows; more need two rows each


def one_by_one(value: Any) -> Any:
  """Split a text into words or read its list; keep other values.

  A number of a table is a text of one word. Raises ValueError for a list that cannot be read.
  """
  value = as_written(value)
  return cells.words(value) if isinstance(value, str) else value


def tags_in(value: Any) -> Any:
  """Return `one_by_one`, or the tags of entities with offsets."""
  value = one_by_one(value)
  return entity_tags.types_in(value) if entity_tags.is_offsets(value) else value


def words_of(value: Any) -> Any:
  """Return `one_by_one` of words; a text such as '[1]' is words."""
  words, text = one_by_one(value), as_written(value)
  if not isinstance(text, str) or any(isinstance(word, str) for word in words):
    return words
  parts = text.split()  # '[1, 2]' is a list, since no text has '[1,' as a word
  return words if parts and parts[0][1:] and parts[0][0] in '[(' and parts[0][-1] not in '])' else parts


class ClassNames:
  """Indices of classes. Rows hold indices, or names, whose indices are their positions in the list of names.

  The list comes from the data set (TFDS, `labels.json`). Otherwise it is the sorted names of the training split, so
  that all splits have one order, or 'False' and 'True' if rows hold those. An index may be written as 1.0, as pandas
  writes a column that has had an empty cell.

  If all names are O, B-... and I-..., tags of words are read as IOB2 (`entity_tags.convert`), since CoNLL-2003 is
  published in IOB1. A list without any B-... has another scheme, and its I-... are unchanged.
  """

  def __init__(
    self,
    records: Records,
    field: str,
    *,
    several: bool = False,
    split: Callable[[Any], Any] = lambda value: value,
    missing: float | str = -1,
    counted: Callable[[Mapping[str, Any]], Sequence[bool] | None] = lambda row: None,
    scheme: entity_tags.Scheme | None = None,
  ):
    """Read nothing yet.

    Args:
      field: field with the class.
      several: the field holds the classes of several words, in a list or in a text with spaces between them.
      split: value of the field -> its class, or a list of several classes of one text.
      missing: value for no class.
      counted: which words of a row have a class; None for all. Values of the others are no names.
      scheme: in which tags of entities are written; None leaves them, except IOB1.
    """
    self.records, self.field, self.several, self.missing = records, field, several, missing
    self.split, self.counted, self.scheme = tags_in if several else split, counted, scheme
    self.listed = field in records.labels
    self._given = records.labels.get(field, ())
    self._names = self._given if scheme is None or not self._given else entity_tags.names_of(self._given, scheme)
    self._numbered = False  # a row holds an index
    self._named = False  # an index came from the list
    self._entities = several and _are_entities(self._names) and any(name.startswith('B-') for name in self._names)
    self._begun = False  # an I-X of the data became a B-X
    self._lists_checked = False  # the fields in labels.json exist
    self._compared = False  # compared with the training split, whose rows may hold names

  @property
  def names(self) -> tuple[str, ...]:
    """Return the class names once all rows are read; () for indices."""
    return self._names

  @property
  def digest(self) -> tuple[Any, ...]:
    """Return digest additions: the list used, and a mark for converted tags."""
    return (self._names,) * self._named + ('iob2',) * self._begun + (self.scheme,) * (self.scheme is not None)

  def settled(self) -> tuple[str, ...]:
    """Return `names`, or those of the training split without labels here."""
    if not self._names and not self._numbered and self.records.named_by is not None:
      self._check_lists()
      self._names = self._names_in_rows()
    return self._names

  def numbers(self, tags: Sequence[Any], index: int) -> list[int]:
    """Return the class indices of the words of a row, else -1.

    Raises ValueError as `number`, and BadSplit if an entity begins with an I-X, and the list of names lacks B-X.
    """
    if any(isinstance(tag, str) and tag for tag in tags):
      self._find()
    scheme = self.scheme or ('IOB2' if self._entities else None)
    if scheme is None:
      return [self.number(tag, index, least=-1) for tag in tags]
    given = self._given if self.listed else ()
    named = [given[tag] if isinstance(tag, int) and 0 <= tag < len(given) else tag for tag in tags]
    made = entity_tags.convert(named, scheme)
    if self.scheme is None:  # an index stays one if its name does
      made = [tag if old == new else new for tag, old, new in zip(tags, named, made, strict=True)]
      self._begun |= made != list(tags)
    for old, new in zip(named, made, strict=True):
      if isinstance(new, str) and new not in self._names and old in self._names:
        raise BadSplit(
          f'{self.records.where}: an entity begins with {old!r} in {self.field!r} (IOB1), which is read as {new!r} '
          f'(IOB2): add that name to labels.json, which has {self._few()}'
        )
    return [self.number(tag, index, least=-1) for tag in made]

  def number(self, value: Any, index: int, *, least: int = 0) -> int:
    """Return the index of a class, or a number from `least` on.

    Raises ValueError for a value that is neither such a number nor a name, or is outside of the list of names, and
    BadSplit if labels.json names another field, which does not exist. `index` is that of the row, for the message.
    """
    self._check_lists()
    if self.listed and as_written(value) is not value and as_written(value) in self._names:
      value = as_written(value)  # a name that looks like a number in a table, such as one to five stars
    if isinstance(value, bool) and not self.listed:
      self._names, value = self._names or _TRUTH, str(value)
    if isinstance(value, str) and value:
      self._find()
    if isinstance(value, float) and value.is_integer():
      value = int(value)
    if isinstance(value, int) and value >= 0 and self._training_has_names():
      self._find()  # then an index is an error
    if isinstance(value, str) and value not in self._names and value.isdecimal():
      value = int(value)  # a table column in which another cell is no number
    if isinstance(value, str) and value in self._names:
      self._named = True
      return self._names.index(value)
    whole = isinstance(value, int) and least <= value < _MOST
    if whole and value < 0:
      return int(value)
    if whole and (value < len(self._names) if self.listed else not self._names):
      self._numbered = True
      return int(value)
    where = f'row {index} of {self.records.where}: {self.field!r} holds {value!r}'
    if value == '' and least == 0:
      raise ValueError(f"{where}, no class: set data.missing='' to drop rows without one")
    if isinstance(value, int) and value >= _MOST:
      raise ValueError(
        f'{where}, too large to count outputs by: list all in labels.json, as {{"{self.field}": ["{value}"]}}'
      )
    if value == '' or not (isinstance(value, str) or whole):
      raise ValueError(f"{where}; classes are numbers from {least} or names, real values need kind='regression'")
    if not self._names:
      raise ValueError(f'{where} but other rows hold numbers: use names in all rows or in none')
    if self.listed:
      raise ValueError(f'{where} but labels.json lists {self._few()}')
    fix = f'if it is another class, list all of them in labels.json, as {{"{self.field}": ["no", "yes"]}}'
    raise ValueError(f'{where} but the training split has {self._few()}: {fix}')

  def _check_lists(self) -> None:
    """Raise BadSplit if labels.json names only fields that no row has."""
    if self._lists_checked or self.listed or not self.records.labels:
      return
    self._lists_checked = True
    if (records := self.training()) is None:
      return
    missing = dict.fromkeys(self.records.labels)
    for row in records.readable():
      missing = {name: None for name in missing if name not in row}
      if not missing:
        return
    raise BadSplit(
      f'labels.json lists classes of {", ".join(map(repr, missing))} but rows of {records.where} have '
      f'{", ".join(records.fields)}.{suggest(next(iter(missing)), records.fields)}'
    )

  def training(self) -> Records | None:
    """Return the rows that determine the classes; None without a training split."""
    try:
      return self.records if self.records.named_by is None else self.records.named_by()
    except (ValueError, FileNotFoundError):
      return None

  def _few(self) -> str:
    return ', '.join(self._names[:_SHOWN]) + (', ...' if len(self._names) > _SHOWN else '')

  def _training_has_names(self) -> bool:
    """Return True if the first training label is a name."""
    if self._compared or self.listed or self.records.named_by is None:
      return False
    self._compared = True
    if (records := self.training()) is None:
      return False
    for row in self._values(records):
      if labels := [label for label in row if label not in (None, '', -1)]:
        return any(isinstance(label, str) and not label.removesuffix('.0').isdecimal() for label in labels)
    return False

  def _values(self, records: Records) -> Iterator[list[Any]]:
    for index in range(len(records)):
      try:
        row = records[index]
        value = self.split(row.get(self.field))
        counted = self.counted(row)
      except ValueError:
        continue
      values = value if isinstance(value, list) else [value]
      yield values if counted is None else list(itertools.compress(values, counted))

  def _find(self) -> None:
    """Search the rows for names, unless a list or index exists."""
    if not self._names and not self._numbered:
      self._names = self._names_in_rows()

  def _names_in_rows(self) -> tuple[str, ...]:
    """Return the names in the rows, sorted; () if most are numbers."""
    records = self.records if (training := self.training()) is None else training
    names: set[Any] = set()
    begun: set[Any] = set()  # as IOB2
    for row in self._values(records):
      values = [name for name in row if isinstance(name, str | int)]
      names |= set(values)
      begun |= {name for name in entity_tags.convert(values, 'IOB2') if isinstance(name, str) and name}
    if names and all(isinstance(name, bool) for name in names):
      return _TRUTH
    names -= {'', -1, self.missing}
    if '-' in names and not self.several:
      log.warning(
        f"{records.where}: '-' is one of the classes in {self.field!r}. If it means no class, as in SNLI and MultiNLI, "
        "set data.missing='-' to drop these rows."
      )
    numbers = sum(isinstance(name, int) or name.isdecimal() for name in names)
    self._numbered = 2 * numbers >= len(names)
    if self._numbered:
      return ()
    names = {name for name in names if isinstance(name, str)}
    if len(names) > max(_FEW, len(records) / 2):
      raise BadSplit(
        f'{records.where}: {self.field!r} holds {len(names):,} different texts in {len(records):,} rows, too many for '
        'names of classes: set data.label to another field.'
      )
    if self.scheme is not None:
      return entity_tags.names_of(sorted(names), self.scheme)
    self._entities = self.several and _are_entities(names)
    return tuple(sorted(begun if self._entities else names))


def _are_entities(names: Collection[str]) -> bool:
  tags = [name for name in names if name != 'O']
  return all(tag[:2] in ('B-', 'I-') and tag[2:] for tag in tags) and any(tag.startswith('I-') for tag in tags)
