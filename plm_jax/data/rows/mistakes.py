"""Typical mistakes in labelled data, counted while rows are read, and logged before anything is tokenised."""

import functools
import logging
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from plm_jax.data.corpora import cells
from plm_jax.data.corpora.records import as_written, is_words
from plm_jax.io import files

log = logging.getLogger(__name__)

_NONE = ('nan', 'null', 'na', 'n/a', '#n/a', 'none', '<na>')  # what programs write for an empty cell
_EMPTY = ('nan', 'null', '<na>', '#n/a')  # those that are hardly a text
_SHOWN = 5
_LEAST = 20  # rows of a split whose classes are compared with their numbers
_TOLD = {
  'none': "{!r} 'nan', 'null' or '<NA>', which programs write for an empty cell: remove them, if no text is meant",
  'empty': 'an empty text in {!r}, from which nothing can be learned: remove them',
  'quoted': 'quotation marks around {!r}, which are read as a part of it: remove them, or write the table as .csv',
  'indented': 'a blank at the beginning of {!r}, which is read as a part of it: write a blank after each separator of '
  'the first line too, and none is read',
  'list': 'a list in {!r}, which is read with its brackets: write words',
}


class Mistakes:
  """Counts of the texts and labels of a split, which messages call `where`."""

  def __init__(self, where: str):
    self.where = where
    self.rows = 0
    self.lists: Counter[str] = Counter()  # field -> texts in it that spell lists of texts
    self._found: Counter[tuple[str, str]] = Counter()
    self._labels: Counter[str] = Counter()

  def see(self, texts: Mapping[str, Any], labels: Iterable[Any] = ()) -> None:
    """Count the texts of a row by field, and its labels."""
    self.rows += 1
    for field, value in texts.items():
      if not isinstance(text := as_written(value), str):
        continue
      self._found['empty', field] += not text.strip()
      self._found['none', field] += text.strip().casefold() in _EMPTY
      self._found['indented', field] += text[:1] == ' '
      quoted = len(text) > 1 and text[0] == text[-1] == '"' and '"' not in text[1:-1].replace('""', '')
      self._found['quoted', field] += quoted
      self._found['escaped', field] += quoted and '""' in text[1:-1]
      self.lists[field] += text[:1] in ('[', '(') and bool(spelt := cells.parse(text)) and is_words(spelt)
    self._labels.update(str(label) for label in map(as_written, labels) if isinstance(label, str))

  @property
  def joins(self) -> bool:
    """Return True if all texts of a field are lists, or none."""
    return any(self.lists.values()) and all(count in (0, self.rows) for count in self.lists.values())

  def tell(self, label: str, classes: Iterable[int] = (), *, fix: str = 'set data.missing={} to drop them') -> None:
    """Log what was counted; `classes` are numbers, `fix` removes a class."""
    found = {**self._found, **{('list', field): count for field, count in self.lists.items() if not self.joins}}
    for (what, field), count in found.items():
      enough = {'indented': self.rows, 'quoted': 1 if found['escaped', field] else self.rows / 2}.get(what, 1)
      if what in _TOLD and count >= max(enough, 1):
        self._warn(f'{count:,} of {self.rows:,} rows have {_TOLD[what].format(field)}')
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
    for name in sorted(self._labels):
      similar[_form(name)].append(f'{name!r} ({self._labels[name]})')
    if nearly_equal := [', '.join(names) for names in similar.values() if len(names) > 1]:
      shown = '; '.join(nearly_equal[:_SHOWN])
      self._warn(f'classes in {label!r} differ by case or blanks only, and are different classes: {shown}')
    elif padded := [name for name in self._labels if name.strip() != name]:
      self._warn(f'names of classes in {label!r} have blanks around them ({len(padded)}), which are a part of them')
    for name in (name for name in self._labels if name.strip().casefold() in _NONE):
      self._warn(
        f'{label!r} is {name!r} in {self._labels[name]:,} of {self._labels.total():,} labels, which makes it a class. '
        f'If it means no class, {fix.format(repr(name))}'
      )

  def _warn(self, message: str) -> None:
    if not files.is_temporary(self.where):  # texts of a call in Python
      _warn_once(f'{self.where}: {message}')


def _form(name: str) -> str:
  """Return a name without case, blanks and forms of letters."""
  visible = (letter for letter in unicodedata.normalize('NFKC', name) if unicodedata.category(letter) != 'Cf')
  return ' '.join(''.join(visible).casefold().split())


@functools.lru_cache(maxsize=1024)
def _warn_once(message: str) -> None:
  log.warning(message)
