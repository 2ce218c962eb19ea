"""Plain text: rows {'text': ...}, one per document. Line ends of other systems, CRLF and CR, are read as line feeds."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, get_args

from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened

SUFFIXES = ('.txt',)
SCHEME = None

Boundary = Literal['blank_line', 'line', 'every_line', 'file', 'exact_file']
_EXACT: Literal['exact_file'] = 'exact_file'
_LINE = re.compile(rb'[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+')


def open(path: local.File, split: str, cache: str, *, documents: Boundary = 'blank_line') -> Opened:
  """Open the documents of a file.

  Args:
    path: the file.
    split: not used.
    cache: folder for the digest.
    documents: end of a document: a blank line; the end of a line (blank lines are skipped, or with 'every_line' are
      documents too); or only the end of the file, whose document is every character of it, with 'exact_file' CRLF and
      CR as they are.
  """
  if documents not in _SPANS:
    raise ValueError(f'documents={documents!r} does not exist: choose one of {", ".join(get_args(Boundary))}')
  folded: list[bool] = []
  lines = path.lines() if documents == _EXACT else _folded(path.lines(), folded)
  spans = _SPANS[documents](lines)
  rows = local.Rows(path, spans, parse_exact if documents == _EXACT else parse, exact=documents in ('file', _EXACT))
  kind = 'whole file' if documents == 'file' else documents  # earlier versions dropped line feeds around a 'file'
  return Opened(rows, f'{path.digest(cache=cache)} {kind}{" folded" if any(folded) else ""}')


def parse(text: str) -> local.Row:
  """Build the row of a document, with line feeds as line ends."""
  return {'text': text.replace('\r\n', '\n').replace('\r', '\n')}


def parse_exact(text: str) -> local.Row:
  """Build the row of a document as it is."""
  return {'text': text}


def _folded(lines: Iterable[bytes], folded: list[bool]) -> Iterator[bytes]:
  """Split lines at CR too; `folded` tells of one."""
  for line in lines:
    if b'\r' in line:
      folded[:] = [True]
      yield from _LINE.findall(line)
    else:
      yield line


def _whole(lines: Iterable[bytes]) -> Iterator[tuple[int, int]]:
  """Yield the bounds of a file, unless it has only blank lines."""
  size, blank = 0, True
  for line in lines:
    size, blank = size + len(line), blank and not line.strip()
  if not blank:
    yield 0, size


_SPANS: dict[Boundary, Callable[[Iterable[bytes]], Iterator[tuple[int, int]]]] = {
  'blank_line': local.block_spans,
  'line': local.line_spans,
  'every_line': functools.partial(local.line_spans, blank=True),
  'file': _whole,
  _EXACT: _whole,
}
