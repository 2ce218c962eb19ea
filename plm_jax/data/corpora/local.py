"""Local files as random-access rows, and their digests. What the formats of files share.

A plain file stays on disk: only where each row begins and ends is kept. A gzip file has no random access and is held in
memory. Formats see no difference between the two. `max_bytes` bounds what is held: a row, or an unzipped file.
"""

import array
import dataclasses
import gzip
import hashlib
import io
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from plm_jax.io import files

log = logging.getLogger(__name__)

Row = dict[str, Any]
ZIPPED = '.gz'
MAX_BYTES = 2**30
_PIECE = 2**20  # bytes that are unzipped at a time


class BadRow(ValueError):
  """A row that cannot be read.

  Attributes:
    line: of the row, from 0; for rows of several lines.
  """

  def __init__(self, message: str, *, line: int = 0):
    super().__init__(message)
    self.line = line


@dataclasses.dataclass(frozen=True)
class File:
  """A local file, unzipped where its name ends with .gz. May be shared by threads and sent to other processes.

  Attributes:
    path: as messages show it.
    content: of a gzip file; None where the file is read from disk.
    max_bytes: most bytes of a row, and of what a gzip file holds.
  """

  path: Path
  content: bytes | None = dataclasses.field(default=None, repr=False)
  max_bytes: int = MAX_BYTES

  @classmethod
  def at(cls, path: Path, *, max_bytes: int = MAX_BYTES) -> 'File':
    """Opens a file.

    Raises:
      ValueError: it is no file, not a whole gzip file though its name says so, or one that holds too much.
    """
    if not files.is_file(path):
      raise ValueError(f'{path} is not a file but a folder, a pipe, a device or a link to nothing')
    if not path.name.endswith(ZIPPED):
      return cls(path, max_bytes=max_bytes)
    content = bytearray()
    try:
      with files.open(path, 'rb') as zipped, gzip.GzipFile(fileobj=zipped) as stream:
        while piece := stream.read(_PIECE):
          content += piece
          if len(content) > max_bytes:
            raise ValueError(
              f'{path} holds more than {max_bytes:,} bytes, which a .gz file may hold as it is read into memory: '
              'unzip it, as a plain file stays on disk, or raise data.max_bytes'
            )
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
      raise ValueError(f'{path} is not a whole gzip file: {error}') from error
    return cls(path, bytes(content), max_bytes=max_bytes)

  @property
  def suffix(self) -> str:
    """The end of its name from the last full stop on, .gz left out."""
    return Path(self.path.name.removesuffix(ZIPPED)).suffix

  def stream(self) -> BinaryIO:
    """A new stream of its bytes, from the beginning."""
    return files.open(self.path, 'rb') if self.content is None else io.BytesIO(self.content)

  def lines(self) -> Iterator[bytes]:
    """Its lines, with the line feed at the end of each.

    Raises:
      ValueError: a line has more than `max_bytes`.
    """
    with self.stream() as stream:
      if self.content is not None or files.size(self.path) <= self.max_bytes:
        yield from stream
        return
      number = 0
      while line := stream.readline(self.max_bytes + 1):
        number += 1
        self.check_row(len(line), number=number)
        yield line

  def check_row(self, size: int, *, number: int) -> None:
    """Raises ValueError where a row has more bytes than `max_bytes`; `number` is that of its line, from 1."""
    if size > self.max_bytes:
      raise ValueError(
        f'{self.path}, line {number}: a row of more than {self.max_bytes:,} bytes; if it is meant, raise data.max_bytes'
      )

  def line(self, place: int) -> str:
    """Name and line of the byte at `place`, for messages."""
    number, left = 1, place
    with self.stream() as stream:
      while left > 0 and (piece := stream.read(min(left, _PIECE))):
        number, left = number + piece.count(10), left - len(piece)
    return f'{self.path}, line {number}'

  def digest(self, *, cache: str) -> str:
    """SHA-256 of the bytes on disk, remembered under `cache` until path, size or time of change are others."""
    text = f'{os.path.abspath(self.path)}\0{files.size(self.path)}\0{files.modified_ns(self.path)}'
    known = files.local_path(cache, what='data.cache') / 'digests' / hashlib.sha256(text.encode()).hexdigest()

    def entry(digest: str) -> str:
      return f'{digest} {hashlib.sha256(f"{text}{digest}".encode()).hexdigest()}'

    if files.is_file(known):
      found = files.read_bytes(known).decode(errors='replace')
      if found == entry(found[:64]):
        return found[:64]
      log.info('%s is damaged, or of an earlier version: reading %s again', known, self.path)
    files.check_writable(cache, name='data.cache')
    result = files.sha256(self.path)
    files.make_folder(known.parent)
    files.write_text(known, entry(result))
    return result


class Rows(Sequence[Row]):
  """The rows of a file that are each a run of its bytes. Opens the file anew for each row.

  Raises:
    ValueError: no rows or, on reading, a row that is not UTF-8 or that `parse` refuses; names file and line.
  """

  def __init__(self, file: File, spans: Iterable[tuple[int, int]], parse: Callable[[str], Row], *, exact: bool = False):
    """Keeps the spans.

    Args:
      file: the file.
      spans: first byte of each row and the one behind its last.
      parse: the text of a row, without line feeds around it -> the row. Raises `BadRow`.
      exact: the text keeps them.
    """
    self.file = file
    self.parse = parse
    self.exact = exact
    self._spans = array.array('q')  # pairs of start and end
    for start, end in spans:
      if end - start > file.max_bytes:
        raise ValueError(f'{file.line(start)}: a row of more than {file.max_bytes:,} bytes; see data.max_bytes')
      self._spans.extend((start, end))
    if not self._spans:
      raise ValueError(f'{file.path} holds no rows')

  def __len__(self) -> int:
    return len(self._spans) // 2

  def place(self, index: int) -> str:
    """File and line of a row, for messages."""
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
      place = start + sum(len(line) + 1 for line in content.split(b'\n')[: error.line])
      raise ValueError(f'{self.file.line(place)}: {error}') from error


def decoded(content: bytes) -> str:
  """Bytes as text, without a byte order mark.

  Raises:
    BadRow: they are not UTF-8.
  """
  try:
    return content.decode('utf-8-sig')
  except UnicodeDecodeError as error:
    line = content[: error.start].count(10)
    raise BadRow(f'not valid UTF-8 ({error.reason}); convert the file', line=line) from error


def line_spans(lines: Iterable[bytes], *, blank: bool = False) -> Iterator[tuple[int, int]]:
  """First byte and end of each line that is not blank; with `blank`, of every line."""
  here = 0
  for line in lines:
    if blank or line.strip():
      yield here, here + len(line)
    here += len(line)


def block_spans(lines: Iterable[bytes]) -> Iterator[tuple[int, int]]:
  """First byte and end of each run of lines that are not blank."""
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
