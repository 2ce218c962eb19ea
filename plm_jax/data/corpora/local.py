"""Files as random-access rows, and their digests. Shared by the formats of files.

A plain file stays on disk; only the bounds of each row are stored. A small compressed file is held in memory. A large
one, and an object in a store, is read in order through one stream, and going back starts it again. Formats see no
difference. `max_bytes` bounds a row.
"""

import array
import dataclasses
import hashlib
import io
import logging
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from plm_jax.io import files, object_store

log = logging.getLogger(__name__)

Row = dict[str, Any]
ZIPPED = '.gz'
COMPRESSED = (ZIPPED, '.zst')
MAX_BYTES = 2**30
_HELD = 2**26  # largest unzipped file that is held in memory
_PIECE = 2**20  # bytes per read
_reading = threading.Lock()  # of streams that several threads share


class BadRow(ValueError):
  """A row that cannot be read; `line` is the index of the line within a row of several lines."""

  def __init__(self, message: str, *, line: int = 0):
    super().__init__(message)
    self.line = line


class NoRows(ValueError):
  """A file without a row."""


class _Unzipped(io.RawIOBase):
  """The unzipped bytes of a file, read in order. Going back starts the file again."""

  def __init__(self, path: Path):
    self._path = path
    self._begin()

  def _begin(self) -> None:
    import pyarrow

    self._here, self._file = 0, files.open(self._path, 'rb')
    self._kind = 'gzip' if self._path.name.endswith(ZIPPED) else 'zstd'
    self._unzip = pyarrow.CompressedInputStream(self._file, self._kind)

  def readable(self) -> bool:
    return True

  seekable = readable

  def readinto(self, buffer: Any) -> int:
    try:
      content = self._unzip.read(len(buffer))
    except OSError as error:
      if error.errno:  # of the disk or the store
        raise
      raise ValueError(f'{self._path} is not a complete {self._kind} file: {error}') from error
    buffer[: len(content)] = content
    self._here += len(content)
    return len(content)

  def seek(self, offset: int, whence: int = 0) -> int:
    if whence == 2:
      raise io.UnsupportedOperation('unzip it first')
    target = offset + self._here * whence
    if target < self._here:
      self._file.close()
      self._begin()
    while self._here < target and self.readinto(memoryview(bytearray(min(_PIECE, target - self._here)))):
      pass
    return self._here

  def close(self) -> None:
    self._file.close()
    super().close()


@dataclasses.dataclass(frozen=True)
class File:
  """A file, unzipped if its name ends with .gz or .zst. May be shared by threads and sent to other processes."""

  path: Path  # path as in messages
  # unzipped content of a small compressed file; None if the file is read from disk
  content: bytes | None = dataclasses.field(default=None, repr=False)
  max_bytes: int = MAX_BYTES  # most bytes of a row
  in_order: bool = False  # True if it has no random access

  @classmethod
  def at(cls, path: Path, *, max_bytes: int = MAX_BYTES, whole: bool = False) -> 'File':
    """Open a file; raise ValueError if unreadable, incomplete or too large.

    With `whole`, an unzipped file of more than `max_bytes` is too large.
    """
    if not files.is_file(path):
      raise ValueError(f'{path} is not a file but a folder, a pipe, a device or a broken link')
    zipped, away = path.name.endswith(COMPRESSED), files.is_address(path)
    file = cls(path, max_bytes=max_bytes, in_order=zipped or away)
    most = max_bytes if whole else _HELD
    with file.stream() as stream:
      content = stream.read(64)
      files.check_narrow(content, path)
      content += stream.read(most + 1 - len(content)) if zipped and not away else b''
    if whole and len(content) > most:
      raise ValueError(f'{path} holds more than {max_bytes:,} bytes: unzip it or raise data.max_bytes')
    return cls(path, content, max_bytes=max_bytes) if zipped and not away and len(content) <= most else file

  @property
  def suffix(self) -> str:
    """Return the suffix of the name, without that of a compression."""
    return Path(unzipped(self.path.name)).suffix

  def stream(self) -> BinaryIO:
    """Open a new stream of its bytes, from the beginning."""
    if self.content is not None:
      return io.BytesIO(self.content)
    if self.path.name.endswith(COMPRESSED):
      return io.BufferedReader(_Unzipped(self.path), _PIECE)  # type: ignore[return-value]  # as `files.open`
    return files.open(self.path, 'rb')

  def lines(self) -> Iterator[bytes]:
    """Yield lines with line feeds; raise ValueError if over `max_bytes`."""
    with self.stream() as stream:
      if self.content is not None or (not self.in_order and files.size(self.path) <= self.max_bytes):
        yield from stream
        return
      line_number = 0
      while line := stream.readline(self.max_bytes + 1):
        line_number += 1
        self.check_row(len(line), number=line_number)
        yield line

  def check_line_ends(self) -> None:
    """Raise ValueError if lines end in CR, as on old Macs."""
    if b'\r' in next(self.lines(), b'').rstrip(b'\r\n'):
      unzip = 'unzip it, and ' * self.path.name.endswith(COMPRESSED)
      bare = shlex.quote(unzipped(str(self.path)))
      raise ValueError(f"{self.path}: lines end in CR alone: {unzip}convert it: sed -i 's/\\r/\\n/g' {bare}")

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
    """Compute the SHA-256, stored under `cache`; of an object, its version's."""
    if files.is_address(self.path):
      return hashlib.sha256(object_store.version(self.path).encode()).hexdigest()
    text = f'{os.path.abspath(self.path)}\0{files.size(self.path)}\0{files.modified_ns(self.path)}'
    return remembered(cache, text, lambda: files.sha256(self.path))


class Rows(Sequence[Row]):
  """Rows of a file, each a run of its bytes. The file is opened for each row.

  Raises ValueError: no rows or, on reading, a row that is not UTF-8 or that `parse` refuses; names file and line.
  """

  def __init__(self, file: File, spans: Iterable[tuple[int, int]], parse: Callable[[str], Row], *, exact: bool = False):
    """Store the spans: first byte and end of each row.

    `parse` maps the text of a row, without line feeds around it unless `exact`, to the row. It raises `BadRow`.
    """
    self.file, self.parse, self.exact = file, parse, exact
    self._stream: BinaryIO | None = None  # of a file without random access
    self._last: tuple[int, bytes] = -1, b''  # start and bytes of the row that was read last from it
    self._spans = array.array('q')  # pairs of start and end
    for start, end in spans:
      if end - start > file.max_bytes:
        raise ValueError(f'{file.line(start)}: a row of more than {file.max_bytes:,} bytes; raise data.max_bytes')
      self._spans.extend((start, end))
    if not self._spans:
      raise NoRows(f'{file.path} holds no rows')

  def __getstate__(self) -> dict[str, Any]:
    return {**self.__dict__, '_stream': None}

  def __len__(self) -> int:
    return len(self._spans) // 2

  def place(self, index: int) -> str:
    """Return file and line of a row, for messages."""
    return self.file.line(self._spans[2 * index])

  def __getitem__(self, index: int) -> Row:  # type: ignore[override]  # no slices
    start, end = self._spans[2 * index], self._spans[2 * index + 1]
    if self.file.in_order:
      with _reading:
        if self._last[0] != start:
          self._stream = self._stream or self.file.stream()
          self._stream.seek(start)
          self._last = start, self._stream.read(end - start)
        content = self._last[1]
    else:
      with self.file.stream() as stream:
        stream.seek(start)
        content = stream.read(end - start)
    try:
      text = decoded(content)
      return self.parse(text if self.exact else text.strip('\r\n'))
    except BadRow as error:
      byte = start + sum(len(line) + 1 for line in content.split(b'\n')[: error.line])
      raise ValueError(f'{self.file.line(byte)}: {error}') from error


def unzipped(name: str) -> str:
  """Return a file name without the suffix of a compression."""
  return name.removesuffix(COMPRESSED[0]).removesuffix(COMPRESSED[1])


def remembered(cache: str, key: str, make: Callable[[], str]) -> str:
  """Return `make()`, stored under `cache` by a key, with a checksum."""
  stored = files.local_path(cache, what='data.cache') / 'digests' / hashlib.sha256(key.encode()).hexdigest()

  def entry(value: str) -> str:
    return f'{value} {hashlib.sha256(f"{key}{value}".encode()).hexdigest()}'

  if files.is_file(stored):
    content = files.read_bytes(stored).decode(errors='replace')
    if content == entry(value := content.rpartition(' ')[0]):
      return value
    log.info('%s is damaged, or from an earlier version: making it again', stored)
  files.check_writable(cache, name='data.cache')
  files.make_folder(stored.parent)
  files.write_text(stored, entry(result := make()))
  return result


def renamed(path: Path, suffix: str) -> str:
  """Return how a file gets another suffix, for messages."""
  bare = unzipped(path.name)
  other = path.with_name(f'{Path(bare).stem}{suffix}{path.name.removeprefix(bare)}')
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
