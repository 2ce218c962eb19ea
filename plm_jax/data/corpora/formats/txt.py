"""Plain text: rows {'text': ...}, one per document."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, get_args

from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened

SUFFIXES = ('.txt',)
SCHEME = None

Boundary = Literal['blank_line', 'line', 'every_line', 'file']


def open(path: local.File, split: str, cache: str, *, documents: Boundary = 'blank_line') -> Opened:
  """Open the documents of a file.

  Args:
    path: the file.
    split: not used.
    cache: folder for the digest.
    documents: end of a document: a blank line; the end of a line (blank lines are skipped, or with 'every_line' are
      documents too); or only the end of the file, whose document is every character of it.
  """
  if documents not in _SPANS:
    raise ValueError(f'documents={documents!r} does not exist: choose one of {", ".join(get_args(Boundary))}')
  rows = local.Rows(path, _SPANS[documents](path.lines()), parse, exact=documents == 'file')
  kind = 'whole file' if documents == 'file' else documents  # earlier versions dropped line feeds around a 'file'
  return Opened(rows, f'{path.digest(cache=cache)} {kind}')


def parse(text: str) -> local.Row:
  """Build the row of a document."""
  return {'text': text}


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
}
