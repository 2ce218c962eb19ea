"""Tables as text: comma-separated values as in RFC 4180, and tab-separated ones without quotation marks.

The first line has the names of the fields; a first column without a name is 'column_1'. If it lacks the separator of
the suffix and has another one (; tab | ,), that one separates the cells, as one does that the first two lines of a .csv
have more often than commas. If all of its names in a .tsv have quotation marks, all cells may. If a blank follows each
of its separators, cells lose theirs. A first line that is an example is refused. A column with only whole numbers, or
only numbers, is read as numbers, with None for empty cells. Every other column is text. Such numbers keep the spelling
of their cells, since they may be meant as texts. The .tsv files of GLUE's authors have this format.
"""

import array
import csv
import functools
import io
import logging
import re
import shlex
from collections.abc import Iterator
from typing import Any

from plm_jax.core.errors import counted
from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened, Real, Whole

log = logging.getLogger(__name__)

SUFFIXES = ('.csv', '.tsv')
SCHEME = None

_FORMS: dict[str, dict[str, Any]] = {
  '.csv': {'delimiter': ',', 'strict': True},
  '.tsv': {'delimiter': '\t', 'quoting': csv.QUOTE_NONE},
}
_OTHERS = ',;\t|'  # separators of a file whose first line lacks its own
_SAMPLE = 100  # rows by which columns get names
# names of a header; a first line with one of them is no example
_NAMES = re.compile(
  'answers?|category|class|content|context|document|hypothesis|idx?|index|labels?|premise|question|review|score|'
  'sentence[12]?|source|summary|tags|target|text|title|tokens|words',
  re.IGNORECASE,
)
_LONGEST_CELL = 2**31 - 1
_WORDS = 3  # words of a cell that is a text
_PAIR = ('sentence1', 'sentence2')
_WHOLE = re.compile(r'-?(0|[1-9][0-9]{0,17})')
_REAL = re.compile(r'-?(0|[1-9][0-9]{0,17})(\.[0-9]+)?([eE][-+]?[0-9]+)?')

_KINDS: tuple[tuple[type[Whole | Real], re.Pattern[str]], ...] = ((Whole, _WHOLE), (Real, _REAL))


def open(path: local.File, split: str, cache: str) -> Opened:
  """Open the rows; read the file once for bounds and column types."""
  csv.field_size_limit(_LONGEST_CELL)  # for the whole process; the default is 131,072, and documents may be longer
  form = _form_of(path)
  spans = array.array('q')  # pairs of start and end, 16 bytes per row
  first: list[str] = []
  fits: list[int] = []  # per column, the first of `_KINDS` that all its cells match
  seen: list[bool] = []  # per column, True if a cell is not empty
  again: set[int] = set()  # columns in which the first cell occurs again
  padded: set[int] = set()  # columns with blanks around cells
  sample: list[list[str]] = []
  for start, end, cells in _records(path, form):
    if not first:
      first, fits, seen = cells, [0] * len(cells), [False] * len(cells)
      continue
    spans.extend((start, end))
    if len(cells) != len(first) or cells == first:
      continue  # an error when it is read
    sample += [cells] * (len(sample) < _SAMPLE)
    for column, cell in enumerate(cells):
      if number := cell.strip(' '):
        seen[column] = True
        if cell == first[column]:
          again.add(column)
        while fits[column] < len(_KINDS) and not _KINDS[fits[column]][1].fullmatch(number):
          fits[column] += 1
        if number != cell:
          padded.add(column)
  names = _header(first, again, sample, path, form['delimiter']) if first else []
  kinds = [_KINDS[fit][0] if fit < len(_KINDS) and filled else None for fit, filled in zip(fits, seen, strict=True)]
  parse = functools.partial(_parse, form=form, first=first, names=names, kinds=kinds)
  changed = f', {form}' * (form != _FORMS[path.suffix]) + ', stripped' * any(kinds[column] for column in padded)
  rows = local.Rows(path, zip(spans[::2], spans[1::2], strict=True), parse)
  return Opened(rows, f'{path.digest(cache=cache)} rows{changed}')


def _form_of(path: local.File) -> dict[str, Any]:
  """Return what separates the cells of a file, by its first line."""
  lines = (line.decode('utf-8-sig', errors='replace').rstrip('\r\n') for line in path.lines() if line.strip())
  path.check_line_ends()
  form = _FORMS[path.suffix]
  bare, below = (re.sub('"[^"]*"', '""', next(lines, '')) for _ in range(2))
  own, other = bare.count(form['delimiter']), max(_OTHERS, key=bare.count)
  as_many = path.suffix == '.csv' and below.count(other) == bare.count(other)  # "text;score, max;label"
  if bare.count(other) > own and (not own or as_many):
    log.info(f'{path.path}: {other!r} separates the cells of the first line, not {form["delimiter"]!r}')
    form = {**_FORMS['.csv'], 'delimiter': other}
  elif bare and not bare.replace(form['delimiter'], '').replace('""', ''):  # all names have quotation marks
    form = {**_FORMS['.csv'], 'delimiter': form['delimiter']}
  mark = form['delimiter']
  return form | {'skipinitialspace': True} if bare.count(mark) == bare.count(f'{mark} ') > 0 else form


def _records(path: local.File, form: dict[str, Any]) -> Iterator[tuple[int, int, list[str]]]:
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


def _header(cells: list[str], again: set[int], sample: list[list[str]], path: local.File, mark: str) -> list[str]:
  """Return the names of the first line.

  Its cells occur `again` in some columns. Raises ValueError if it is an example, or does not name each field once.
  """
  names = [cell.strip() for cell in cells]
  filled = list(filter(None, names))
  number = any(map(_REAL.fullmatch, filled)) and filled != [str(column) for column in range(len(filled))]
  sentence = any(len(cell.split()) >= _WORDS for cell in cells)
  if (number or (again and sentence)) and not any(map(_NAMES.fullmatch, names)):
    header = mark.join(_guessed(list(zip(cells, *sample, strict=True)))).replace('\t', '\\t')
    tool = 'gunzip' if path.path.name.endswith('.gz') else 'unzstd'
    file, bare = (shlex.quote(name) for name in (str(path.path), local.unzipped(str(path.path))))
    raise ValueError(
      f'{path.path}: the first line is an example. Put the names of the fields above it: '
      f"{f'{tool} {file} && ' * (file != bare)}sed -i '1i {header}' {bare}"
    )
  names[0] = names[0] or 'column_1'  # an index column of pandas (SWAG)
  if '' in names or len(set(names)) < len(names):
    raise ValueError(f'{path.path}: the first line must name each field once, got {", ".join(map(repr, names))}')
  return names


def _guessed(columns: list[tuple[str, ...]]) -> list[str]:
  """Name the text, the longest column, and a label with few values."""
  names = [f'column_{number}' for number in range(1, len(columns) + 1)]
  texts = [k for k, cells in enumerate(columns) if sum(len(cell.split()) for cell in cells) >= _WORDS * len(cells)]
  texts = texts if len(texts) == len(_PAIR) else [max(range(len(columns)), key=lambda k: sum(map(len, columns[k])))]
  for k, name in zip(texts, _PAIR if len(texts) > 1 else ('text',), strict=True):
    names[k] = name
  rest = [k for k, cells in enumerate(columns) if k not in texts and 1 < len(set(cells)) < len(cells)]
  for k in sorted(rest, key=lambda k: (not all(map(_WHOLE.fullmatch, columns[k])), len(set(columns[k]))))[:1]:
    names[k] = 'label'
  return names


def _parse(text: str, *, form: dict[str, Any], first: list[str], names: list[str], kinds: list[Any]) -> local.Row:
  cells = next(csv.reader(io.StringIO(text, newline='\n'), **form))
  if len(cells) != len(names):
    raise local.BadRow(f'{counted(len(cells), "cell")} but the header has {counted(len(names), "field")}')
  if cells == first and len(cells) > 1:
    raise local.BadRow('repeats the names of the first line, as files that are written one after another do: remove it')
  return {
    name: cell if kind is None else _number(kind, cell.strip(' ')) if cell.strip(' ') else None
    for name, kind, cell in zip(names, kinds, cells, strict=True)
  }


def _number(kind: type[Whole | Real], cell: str) -> Whole | Real:
  value = kind(cell)
  value.spelling = cell
  return value
