"""Tables as text: comma-separated values as in RFC 4180, and tab-separated ones without quotation marks.

The first line has the names of the fields; a first column without a name is 'column_1'. A column with only whole
numbers, or only numbers, is read as numbers, with None for empty cells. Every other column is text. Such numbers keep
the spelling of their cells, since they may be meant as texts. The .tsv files of GLUE's authors have this format.
"""

import array
import csv
import functools
import io
import re
from collections.abc import Callable, Iterator
from typing import Any

from plm_jax.core.errors import counted
from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened, Real, Whole

SUFFIXES = ('.csv', '.tsv')
SCHEME = None

_FORMS: dict[str, dict[str, Any]] = {
  '.csv': {'delimiter': ',', 'strict': True},
  '.tsv': {'delimiter': '\t', 'quoting': csv.QUOTE_NONE},
}
_LONGEST_CELL = 2**31 - 1
_WHOLE = re.compile(r'-?(0|[1-9][0-9]{0,17})')
_REAL = re.compile(r'-?(0|[1-9][0-9]{0,17})(\.[0-9]+)?([eE][-+]?[0-9]+)?')


def _whole(cell: str) -> Whole:
  value = Whole(cell)
  value.spelling = cell
  return value


def _real(cell: str) -> Real:
  value = Real(cell)
  value.spelling = cell
  return value


_KINDS: tuple[tuple[Callable[[str], Any], re.Pattern[str]], ...] = ((_whole, _WHOLE), (_real, _REAL))


def open(path: local.File, split: str, cache: str) -> Opened:
  """Open the rows of a file.

  The whole file is read once, to find the bounds of rows and the types of columns.
  """
  form = next(form for suffix, form in _FORMS.items() if path.suffix == suffix)
  csv.field_size_limit(_LONGEST_CELL)  # for the whole process; the default is 131,072, and documents may be longer
  spans = array.array('q')  # pairs of start and end, 16 bytes per row
  names: list[str] = []
  fits: list[int] = []  # per column, the first of `_KINDS` that all its cells match
  seen: list[bool] = []  # per column, True if a cell is not empty
  for start, end, cells in _records(path, form):
    if not names:
      names, fits, seen = _header(cells, path), [0] * len(cells), [False] * len(cells)
      continue
    spans.extend((start, end))
    if len(cells) != len(names):
      continue  # an error when it is read
    for column, cell in enumerate(cells):
      if cell:
        seen[column] = True
        while fits[column] < len(_KINDS) and not _KINDS[fits[column]][1].fullmatch(cell):
          fits[column] += 1
  kinds = [_KINDS[fit][0] if fit < len(_KINDS) and filled else None for fit, filled in zip(fits, seen, strict=True)]
  parse = functools.partial(_parse, form=form, names=names, kinds=kinds)
  return Opened(local.Rows(path, zip(spans[::2], spans[1::2], strict=True), parse), f'{path.digest(cache=cache)} rows')


def _records(path: local.File, form: dict[str, Any]) -> Iterator[tuple[int, int, list[str]]]:
  """Yield first byte, end and cells of each nonblank record."""
  here, read, start, line, width = 0, 0, 0, 1, 0  # width: cells of the header, once it is read

  def lines() -> Iterator[str]:
    nonlocal here, read
    for content in path.lines():
      here, read = here + len(content), read + 1
      path.check_row(here - start, number=line)  # against quotation marks that are never closed
      try:
        yield local.decoded(content)
      except local.BadRow as error:
        if not width:
          raise ValueError(f'{path.path}, line {read}: {error}') from error
        yield content.decode('utf-8-sig', errors='replace')

  reader = csv.reader(lines(), **form)
  while True:
    start, line = here, read + 1
    try:
      cells = next(reader, None)
    except csv.Error as error:
      raise ValueError(f'{path.path}, line {line}: not valid {path.suffix[1:]} ({error})') from error
    if cells is None:
      return
    if any(cells) or (cells and width == 1):  # in a table with one column, "" is an empty text
      width = width or len(cells)
      yield start, here, cells


def _header(cells: list[str], path: local.File) -> list[str]:
  names = [cell.strip() for cell in cells]
  names[0] = names[0] or 'column_1'  # an index column of pandas (SWAG)
  if '' in names or len(set(names)) < len(names):
    raise ValueError(f'{path.path}: the first line must name each field once, got {", ".join(map(repr, names))}')
  return names


def _parse(text: str, *, form: dict[str, Any], names: list[str], kinds: list[Any]) -> local.Row:
  cells = next(csv.reader(io.StringIO(text, newline='\n'), **form))
  if len(cells) != len(names):
    raise local.BadRow(f'{counted(len(cells), "cell")} but the header has {counted(len(names), "field")}')
  return {
    name: cell if kind is None else kind(cell) if cell else None
    for name, kind, cell in zip(names, kinds, cells, strict=True)
  }
