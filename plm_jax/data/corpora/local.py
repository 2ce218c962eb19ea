"""Local files as random-access rows, and their digests. Shared by the formats of files.

A plain file stays on disk; only the bounds of each row are stored. A gzip file has no random access and is held in
memory. Formats see no difference. `max_bytes` bounds a row, or an unzipped file.
"""

import array
import dataclasses
import gzip
import hashlib
import io
import logging
import os
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from plm_jax.io import files

log = logging.getLogger(__name__)

Row = dict[str, Any]
ZIPPED = '.gz'
MAX_BYTES = 2**30
_PIECE = 2**20  # bytes per read


class BadRow(ValueError):
  """A row that cannot be read; `line` is the index of the line within a row of several lines."""

  def __init__(self, message: str, *, line: int = 0):
    super().__init__(message)
    self.line = line


@dataclasses.dataclass(frozen=True)
class File:
  """A local file, unzipped if its name ends with .gz. May be shared by threads and sent to other processes."""

  path: Path  # path as in messages
  # unzipped content of a gzip file; None if the file is read from disk
  content: bytes | None = dataclasses.field(default=None, repr=False)
  max_bytes: int = MAX_BYTES  # most bytes of a row, and of an unzipped gzip file

  @classmethod
  def at(cls, path: Path, *, max_bytes: int = MAX_BYTES) -> 'File':
    """Open a file; raise ValueError if unreadable, incomplete or too large."""
    if not files.is_file(path):
      raise ValueError(f'{path} is not a file but a folder, a pipe, a device or a broken link')
    if not path.name.endswith(ZIPPED):
      with files.open(path, 'rb') as stream:
        files.check_narrow(stream.read(64), path)
      return cls(path, max_bytes=max_bytes)
    content = io.BytesIO()
    try:
      with files.open(path, 'rb') as zipped, gzip.GzipFile(fileobj=zipped) as stream:
        while piece := stream.read(_PIECE):
          content.write(piece)
          if content.tell() > max_bytes:
            raise ValueError(
              f'{path} holds more than {max_bytes:,} bytes, the limit of a .gz file, which is read into memory: '
              'unzip it or raise data.max_bytes'
            )
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
      raise ValueError(f'{path} is not a complete gzip file: {error}') from error
    files.check_narrow(content.getbuffer()[:64].tobytes(), path)
    return cls(path, content.getvalue(), max_bytes=max_bytes)

  @property
  def suffix(self) -> str:
    """Return the suffix of the name, without .gz."""
    return Path(self.path.name.removesuffix(ZIPPED)).suffix

  def stream(self) -> BinaryIO:
    """Open a new stream of its bytes, from the beginning."""
    return files.open(self.path, 'rb') if self.content is None else io.BytesIO(self.content)

  def lines(self) -> Iterator[bytes]:
    """Yield lines with line feeds; raise ValueError if over `max_bytes`."""
    with self.stream() as stream:
      if self.content is not None or files.size(self.path) <= self.max_bytes:
        yield from stream
        return
      line_number = 0
      while line := stream.readline(self.max_bytes + 1):
        line_number += 1
        self.check_row(len(line), number=line_number)
        yield line

  def check_row(self, size: int, *, number: int) -> None:
    """Raise ValueError if row `number` (from 1) is over `max_bytes`."""
    if size > self.max_bytes:
      raise ValueError(
        f'{self.path}, line {number}: a row of more than {self.max_bytes:,} bytes; raise data.max_bytes to allow it'
      )

  def line(self, byte: int) -> str:
    """Return name and line of a byte, for messages."""
    number, left = 1, byte
    with self.stream() as stream:
      while left > 0 and (piece := stream.read(min(left, _PIECE))):
        number, left = number + piece.count(10), left - len(piece)
    return f'{self.path}, line {number}'

  def digest(self, *, cache: str) -> str:
    """Compute the SHA-256 on disk, stored under `cache` until the file changes."""
    text = f'{os.path.abspath(self.path)}\0{files.size(self.path)}\0{files.modified_ns(self.path)}'
    stored = files.local_path(cache, what='data.cache') / 'digests' / hashlib.sha256(text.encode()).hexdigest()

    def entry(digest: str) -> str:
      return f'{digest} {hashlib.sha256(f"{text}{digest}".encode()).hexdigest()}'

    if files.is_file(stored):
      content = files.read_bytes(stored).decode(errors='replace')
      if content == entry(content[:64]):
        return content[:64]
      log.info('%s is damaged, or from an earlier version: reading %s again', stored, self.path)
    files.check_writable(cache, name='data.cache')
    result = files.sha256(self.path)
    files.make_folder(stored.parent)
    files.write_text(stored, entry(result))
    return result


class Rows(Sequence[Row]):
  """Rows of a file, each a run of its bytes. The file is opened for each row.

  Raises:
    ValueError: no rows or, on reading, a row that is not UTF-8 or that `parse` refuses; names file and line.
  """

  def __init__(self, file: File, spans: Iterable[tuple[int, int]], parse: Callable[[str], Row], *, exact: bool = False):
    """Store the spans: first byte and end of each row.

    `parse` maps the text of a row, without line feeds around it unless `exact`, to the row. It raises `BadRow`.
    """
    self.file, self.parse, self.exact = file, parse, exact
    self._spans = array.array('q')  # pairs of start and end
    for start, end in spans:
      if end - start > file.max_bytes:
        raise ValueError(f'{file.line(start)}: a row of more than {file.max_bytes:,} bytes; raise data.max_bytes')
      self._spans.extend((start, end))
    if not self._spans:
      raise ValueError(f'{file.path} holds no rows')

  def __len__(self) -> int:
    return len(self._spans) // 2

  def place(self, index: int) -> str:
    """Return file and line of a row, for messages."""
    return self.file.line(self._spans[2 * index])

  def __getitem__(self, index: int) -> Row:  # type: ignore[override]  # no slices
    start, end = self._spans[2 * index], self._spans[2 * index + 1]
    with self.file.stream() as stream:
      stream.seek(start)
      content = stream.read(end - start)
    try:
      text = decoded(content)
      return self.parse(text if self.exact else text.strip('\r\n'))
    except BadRow as error:
      byte = start + sum(len(line) + 1 for line in content.split(b'\n')[: error.line])
      raise ValueError(f'{self.file.line(byte)}: {error}') from error


def renamed(path: Path, suffix: str) -> str:
  """Return how a file gets another suffix, for messages."""
  zipped = ZIPPED * path.name.endswith(ZIPPED)
  other = path.with_name(f'{Path(path.name.removesuffix(ZIPPED)).stem}{suffix}{zipped}')
  return f'rename it, as in: mv {shlex.quote(str(path))} {shlex.quote(str(other))}'


def decoded(content: bytes) -> str:
  """Decode UTF-8 without a byte order mark, or raise BadRow."""
  try:
    return content.decode('utf-8-sig')
  except UnicodeDecodeError as error:
    line = content[: error.start].count(10)
    raise BadRow(f'not valid UTF-8 ({error.reason}); convert the file', line=line) from error


def line_spans(lines: Iterable[bytes], *, blank: bool = False) -> Iterator[tuple[int, int]]:
  """Yield first byte and end of lines, blank ones only with `blank`."""
  here = 0
  for line in lines:
    if blank or line.strip():
      yield here, here + len(line)
    here += len(line)


def block_spans(lines: Iterable[bytes]) -> Iterator[tuple[int, int]]:
  """Yield first byte and end of each run of nonblank lines."""
  start, here, inside = 0, 0, False
  for line in lines:
    blank = not line.strip()
    if inside and blank:
      yield start, here
      inside = False
    if not blank and not inside:
      start, inside = here, True
    here += len(line)
  if inside:
    yield start, here
