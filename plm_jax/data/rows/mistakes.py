"""Typical mistakes in labelled data, counted while rows are read, and logged before anything is tokenised."""

import functools
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from plm_jax.data.corpora import cells
from plm_jax.data.corpora.records import as_written, is_words

log = logging.getLogger(__name__)

_NONE = ('nan', 'null', 'na', 'n/a', 'none', '<na>')  # what programs write for an empty cell
_SHOWN = 5
_LEAST = 20  # rows of a split whose classes are compared with their numbers


class Mistakes:
  """Counts of the texts and labels of a split.

  Attributes:
    rows: rows so far.
    lists: field -> texts in it that spell lists of texts.
  """

  def __init__(self, where: str):
    """Count for the split that messages call `where`."""
    self.where = where
    self.rows = 0
    self.lists: Counter[str] = Counter()
    self._empty: Counter[str] = Counter()
    self._quoted: Counter[str] = Counter()
    self._escaped: Counter[str] = Counter()
    self._indented: Counter[str] = Counter()
    self._labels: Counter[str] = Counter()

  def see(self, texts: Mapping[str, Any], labels: Iterable[Any] = ()) -> None:
    """Count the texts of a row by field, and its labels."""
    self.rows += 1
    for field, value in texts.items():
      text = as_written(value)
      if not isinstance(text, str):
        continue
      self._empty[field] += not text.strip()
      self._indented[field] += text[:1] == ' '
      if len(text) > 1 and text[0] == text[-1] == '"':
        inner = text[1:-1].replace('""', '')
        self._quoted[field] += '"' not in inner
        self._escaped[field] += '"' not in inner and '""' in text[1:-1]
      elif text[:1] in ('[', '('):
        self.lists[field] += bool(spelt := cells.parse(text)) and is_words(spelt)
    self._labels.update(str(as_written(label)) for label in labels if isinstance(as_written(label), str))

  @property
  def joins(self) -> bool:
    """Return True if all texts of a field are lists, or none."""
    return any(self.lists.values()) and all(count in (0, self.rows) for count in self.lists.values())

  def tell(self, label: str, classes: Iterable[int] = (), *, fix: str = 'set data.missing={} to drop them') -> None:
    """Log what was counted.

    Args:
      label: field of the labels.
      classes: numbers of the classes of rows, if rows hold numbers.
      fix: what removes rows without a class.
    """
    for field, count in self._empty.items():
      if count:
        self._warn(f'{self._of(count)} have an empty text in {field!r}, from which nothing can be learned: remove them')
    for field, count in self._quoted.items():
      if 2 * count >= self.rows or self._escaped[field]:
        self._warn(
          f'{self._of(count)} have quotation marks around {field!r}, which are read as a part of it: remove them, or '
          'write the table as .csv'
        )
    for field, count in self._indented.items():
      if count == self.rows:
        self._warn(
          f'each text in {field!r} begins with a blank, which is read as a part of it: write a blank after each '
          'separator of the first line too, and none is read'
        )
    for field, count in self.lists.items():
      if self.joins and count:
        log.info(f'{self.where}: texts in {field!r} are lists, which are joined by spaces')
      elif count:
        self._warn(f'{self._of(count)} have a list in {field!r}, which is read with its brackets: write words')
    self._tell_names(label, fix)
    used = sorted(set(classes))
    unused = used[-1] + 1 - len(used) if used else 0
    if self.rows >= _LEAST and unused and (used[0] or unused >= len(used)):
      shown = ', '.join(map(str, used[:_SHOWN])) + ', ...' * (len(used) > _SHOWN)
      self._warn(
        f'classes in {label!r} are {shown}, and {unused} of the numbers 0 to {used[-1]} have no row, but an output: '
        'number the classes from 0, or write their names'
      )

  def _tell_names(self, label: str, fix: str) -> None:
    """Log class names that are nearly equal, or mean no class."""
    similar: dict[str, list[str]] = defaultdict(list)
    for name in self._labels:
      similar[name.strip().casefold()].append(name)
    if alike := [names for names in similar.values() if len(names) > 1]:
      shown = '; '.join(
        ', '.join(f'{name!r} ({self._labels[name]})' for name in sorted(names)) for names in alike[:_SHOWN]
      )
      self._warn(f'classes in {label!r} differ by case or blanks only, and are different classes: {shown}')
    elif padded := [name for name in self._labels if name.strip() != name]:
      self._warn(f'names of classes in {label!r} have blanks around them ({len(padded)}), which are a part of them')
    for key in (key for key in _NONE if key in similar):
      name = similar[key][0]
      self._warn(
        f'{label!r} is {name!r} in {self._labels[name]:,} of {self._labels.total():,} labels, a class of its own. '
        f'If it means no class, {fix.format(repr(name))}'
      )

  def _of(self, count: int) -> str:
    return f'{count:,} of {self.rows:,} rows'

  def _warn(self, message: str) -> None:
    _warn_once(f'{self.where}: {message}')


@functools.lru_cache(maxsize=1024)
def _warn_once(message: str) -> None:
  log.warning(message)
