"""Plain text: rows {'text': ...}, one per document."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, get_args

from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened

SUFFIXES = ('.txt',)
SCHEME = None

Boundary = Literal['blank_line', 'line', 'file']


def open(path: local.File, split: str, cache: str, *, documents: Boundary = 'blank_line') -> Opened:
  """The documents of a file.

  Args:
    path: the file.
    split: not read.
    cache: remembers the digest.
    documents: what ends a document: a blank line, the end of a line, or only the end of the file.
  """
  if documents not in _SPANS:
    raise ValueError(f'documents={documents!r} is none of {", ".join(get_args(Boundary))}')
  rows = local.Rows(path, _SPANS[documents](path.lines()), parse)
  return Opened(rows, f'{path.digest(cache=cache)} {documents}')


def parse(text: str) -> local.Row:
  """One document as a row."""
  return {'text': text}


def _whole(lines: Iterable[bytes]) -> Iterator[tuple[int, int]]:
  """The bytes from the first line that is not blank to the end of the file."""
  start, here = None, 0
  for line in lines:
    if start is None and line.strip():
      start = here
    here += len(line)
  if start is not None:
    yield start, here


_SPANS: dict[Boundary, Callable[[Iterable[bytes]], Iterator[tuple[int, int]]]] = {
  'blank_line': local.block_spans,
  'line': local.line_spans,
  'file': _whole,
}
