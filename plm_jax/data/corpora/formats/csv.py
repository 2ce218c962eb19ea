"""Tables as text: comma-separated values as in RFC 4180, and tab-separated ones without quotation marks.

The first line names the fields; a first column without a name is 'column_1'. A column that holds nothing but whole
numbers, or nothing but numbers, is read as such, with None for empty cells; every other column is text. Such numbers
keep how their cells are written, since they may be meant as texts. Files that GLUE's authors publish as .tsv are of
this kind.
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
  number = Whole(cell)
  number.spelling = cell
  return number


def _real(cell: str) -> Real:
  number = Real(cell)
  number.spelling = cell
  return number


_KINDS: tuple[tuple[Callable[[str], Any], re.Pattern[str]], ...] = ((_whole, _WHOLE), (_real, _REAL))


def open(path: local.File, split: str, cache: str) -> Opened:
  """The rows of a file; all of it is read once, to find where rows end and what each column holds."""
  form = next(form for suffix, form in _FORMS.items() if path.suffix == suffix)
  csv.field_size_limit(_LONGEST_CELL)  # of the whole process; a document may be longer than the 131,072 by default
  spans = array.array('q')  # start and end by turns, 16 bytes a row
  names: list[str] = []
  fits: list[int] = []  # per column, the first of `_KINDS` that all its cells are of
  seen: list[bool] = []  # per column, whether it has a cell that is not empty
  for start, end, cells in _records(path, form):
    if not names:
      names, fits, seen = _header(cells, path), [0] * len(cells), [False] * len(cells)
      continue
    spans.extend((start, end))
    if len(cells) != len(names):
      continue  # refused when it is read
    for column, cell in enumerate(cells):
      if cell:
        seen[column] = True
        while fits[column] < len(_KINDS) and not _KINDS[fits[column]][1].fullmatch(cell):
          fits[column] += 1
  kinds = [_KINDS[fit][0] if fit < len(_KINDS) and some else None for fit, some in zip(fits, seen, strict=True)]
  parse = functools.partial(_parse, form=form, names=names, kinds=kinds)
  return Opened(local.Rows(path, zip(spans[::2], spans[1::2], strict=True), parse), f'{path.digest(cache=cache)} rows')


def _records(path: local.File, form: dict[str, Any]) -> Iterator[tuple[int, int, list[str]]]:
  """First byte, end and cells of each record that is not blank; below the header, any bytes pass for text."""
  here, read, start, line, width = 0, 0, 0, 1, 0  # width: cells of the header, once it is read

  def lines() -> Iterator[str]:
    nonlocal here, read
    for content in path.lines():
      here, read = here + len(content), read + 1
      path.check_row(here - start, number=line)  # quotation marks that are never closed
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
    if any(cells) or (cells and width == 1):  # in a table of one column, "" is an empty text
      width = width or len(cells)
      yield start, here, cells


def _header(cells: list[str], path: local.File) -> list[str]:
  names = [cell.strip() for cell in cells]
  names[0] = names[0] or 'column_1'  # numbers of rows, as pandas writes them (SWAG)
  if '' in names or len(set(names)) < len(names):
    raise ValueError(f'{path.path}: the first line has to name each field once: {", ".join(map(repr, names))}')
  return names


def _parse(text: str, *, form: dict[str, Any], names: list[str], kinds: list[Any]) -> local.Row:
  cells = next(csv.reader(io.StringIO(text, newline='\n'), **form))
  if len(cells) != len(names):
    raise local.BadRow(f'{counted(len(cells), "cell")}, and the header names {counted(len(names), "field")}')
  return {
    name: cell if kind is None else kind(cell) if cell else None
    for name, kind, cell in zip(names, kinds, cells, strict=True)
  }
