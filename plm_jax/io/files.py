"""All file access of the package: open, list, rename and lock runs, weights, vocabularies and data.

Paths come from `path` and are local or URLs such as gs://bucket/run; `store` has both implementations. Other files of
the package only join names (`folder / 'config.json'`) and call these functions. A test forbids `open`, `shutil`,
`Path(...)` of a string and reading or writing with `pathlib` elsewhere. Text is UTF-8. `write_*` and `replacing` write
a file whole or not at all, even if the process is killed. Libraries that open files by themselves (Orbax, safetensors,
TensorBoard) get the path, or a local file that is uploaded afterwards.

Files may be untrusted or damaged: only regular files are read, at most `store.LARGEST` bytes at once, and JSON is
parsed only here (`parse_json`).
"""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Literal, TextIO, overload

from plm_jax.core.errors import ConfigError
from plm_jax.io.object_store import Where as Where
from plm_jax.io.object_store import is_address as is_address
from plm_jax.io.store import NotAFile as NotAFile
from plm_jax.io.store import check_is_file, store_of
from plm_jax.io.store import is_temporary as is_temporary
from plm_jax.io.store import named as named
from plm_jax.io.store import temporary_folder as temporary_folder

if TYPE_CHECKING:
  import numpy as np

DEEPEST = 100  # levels of nesting in JSON; the Rust libraries that read the same files stop at 127
IMPORT = 'model.json'  # of converted weights, instead of the config.json of a run
_REQUIRED = object()  # `read_json` without a default
_probe_ids = itertools.count()


def path(where: Where) -> Path:
  """Parse a path given by a user.

  '~' is the home folder, gs:// and s3:// begin a URL. Raises ConfigError: another scheme, or the client of the scheme
  is not installed.
  """
  return store_of(where).path(where)


def local_path(where: Where, *, what: str) -> Path:
  """Parse a local path; raise ConfigError naming `what` for a URL."""
  if is_address(where):
    raise ConfigError(f'{what}={where} is a URL: set {what} to a folder of this machine')
  return path(where)


def absolute(where: Where) -> Path:
  """Build the path from the root, links not followed; URLs unchanged."""
  return store_of(where).absolute(where)


def followed(where: Where) -> Path:
  """Build the path from the root, links followed. A URL is unchanged."""
  return store_of(where).followed(where)


# Whole files ------------------------------------------------------------------------------------------


def read_utf8(file: Where) -> str:
  """Read a text file; raise ValueError with the line unless UTF-8."""
  content = read_bytes(file)
  check_narrow(content[:64], path(file))
  try:
    return content.decode('utf-8')
  except UnicodeDecodeError as error:
    line = content.count(b'\n', 0, error.start) + 1
    raise ValueError(
      f'line {line} is not UTF-8: fetch the file again, or convert it, from Latin-1 by `iconv -f latin1 -t utf-8 '
      f'{path(file).name} > new`'
    ) from error


def read_text(file: Where) -> str:
  """Read a text file; raise ValueError if too large or not UTF-8."""
  return read_bytes(file).decode('utf-8')


def check_narrow(head: bytes, file: Path) -> None:
  """Raise ValueError if a file begins like UTF-16 or UTF-32."""
  marks = {b'\xff\xfe\0\0': 'UTF-32', b'\0\0\xfe\xff': 'UTF-32', b'\xff\xfe': 'UTF-16', b'\xfe\xff': 'UTF-16'}
  form = next((form for mark, form in marks.items() if head.startswith(mark)), '')
  zeros = head[::2].count(0), head[1::2].count(0)  # without a mark: of Latin letters, big-endian and little-endian
  if not form and not min(zeros) and 8 * max(zeros) > 3 * len(head) > 9:
    form = 'UTF-16LE' if zeros[1] else 'UTF-16BE'
  if form:
    name, zipped = file.name.removesuffix('.gz'), 'gunzip -c ' * file.name.endswith('.gz')
    new = shlex.quote(str(file.with_name(f'{Path(name).stem}.utf8{Path(name).suffix}')))
    convert = f'iconv -f {form} -t UTF-8 {"" if zipped else shlex.quote(str(file))}'.strip()
    pipe = f'{zipped}{shlex.quote(str(file))} | {convert}' if zipped else convert
    raise ValueError(f'{file} is {form}, not UTF-8. Convert it: {pipe} > {new}')


def read_bytes(file: Where) -> bytes:
  """Read a whole file; raise ValueError if it is larger than `store.LARGEST`."""
  return store_of(file).read_bytes(file)


def read_json(file: Where, *, default: Any = _REQUIRED) -> Any:
  """Read a JSON file; `default`, if given, replaces a missing one.

  Raises FileNotFoundError: no such file, and no default. Raises json.JSONDecodeError: the file is not JSON.
  """
  try:
    text = read_text(file)
  except FileNotFoundError:
    if default is _REQUIRED:
      raise
    return default
  except UnicodeDecodeError as error:
    raise json.JSONDecodeError(f'not UTF-8 ({error.reason})', '', error.start) from error
  return parse_json(text)


def parse_json(text: str) -> Any:
  """Parse JSON text.

  Raises json.JSONDecodeError: not JSON, or a value that Python accepts and other readers do not: more than `DEEPEST`
  levels, a number of thousands of digits, a lone surrogate (which has no UTF-8).
  """
  try:
    value = json.loads(text)
    if text.count('[') + text.count('{') > DEEPEST and _is_deep(value):
      raise RecursionError
    if '\\u' in text:
      json.dumps(value, ensure_ascii=False).encode()
  except RecursionError:
    raise json.JSONDecodeError(f'nested more than {DEEPEST} levels deep', '', 0) from None
  except json.JSONDecodeError:
    raise
  except ValueError as error:
    raise json.JSONDecodeError(f'a value that cannot be used ({error})', '', 0) from error
  return value


def _is_deep(value: Any) -> bool:
  """Check whether lists and objects are nested more than `DEEPEST` levels deep."""
  level = [value]
  for _ in range(DEEPEST):
    outer = [item.values() if isinstance(item, dict) else item for item in level]
    level = [item for items in outer for item in items if isinstance(item, (dict, list))]  # twice as fast as a union
    if not level:
      return False
  return True


def is_unicode(text: str) -> bool:
  """Check that text can be written as UTF-8: no lone surrogates."""
  return text.encode(errors='ignore').decode() == text


def write_text(file: Where, text: str) -> None:
  with replacing(file) as temporary:
    temporary.write_text(text, encoding='utf-8')


def write_bytes(file: Where, content: bytes) -> None:
  with replacing(file) as temporary:
    temporary.write_bytes(content)


def write_json(file: Where, value: Any, *, indent: int | None = 2) -> None:
  """Write strict JSON (no NaN), on one line if `indent` is None."""
  write_text(file, json_text(value, indent=indent))


def json_text(value: Any, *, indent: int | None = 2) -> str:
  """Return the text that `write_json` writes."""
  return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False) + '\n'


def append(file: Where, text: str) -> None:
  """Append text to a file, created if missing; objects are rewritten."""
  store_of(file).append(file, text)


def append_line(file: Where, line: str) -> None:
  """Append a line, after a newline if the last line is incomplete."""
  content = read_bytes(file) if is_file(file) else b''
  incomplete = content and not content.endswith(b'\n')
  append(file, f'\n{line}\n' if incomplete else f'{line}\n')


def replacing(file: Where) -> AbstractContextManager[Path]:
  """Provide a temporary path that replaces `file` after the body.

  It is flushed to disk first and locked meanwhile. Unlocked ones, which killed processes left, are removed by the next
  call. For a URL the temporary file is local and is uploaded at the end.
  """
  return store_of(file).replacing(file)


# Parts of files ----------------------------------------------------------------------------------------------------


@overload
def open(file: Where, mode: Literal['r', 'w', 'a'] = 'r') -> TextIO: ...
@overload
def open(file: Where, mode: Literal['rb', 'wb', 'ab', 'r+b']) -> BinaryIO: ...
def open(file: Where, mode: str = 'r') -> IO[Any]:
  """Open a file to read or write it in pieces.

  A killed process may leave it incomplete: see `replacing`. Raises NotAFile: a pipe, a device or a socket; mode 'w'
  accepts them, for /dev/stdout. Raises ValueError: a URL in a mode other than 'r' and 'rb'.
  """
  return store_of(file).open(file, mode)


def flush_to_disk(stream: IO[Any]) -> None:
  """Flush an open file to disk, to survive a loss of power."""
  stream.flush()
  os.fsync(stream.fileno())


def read_array(file: Where, dtype: Any, *, count: int = -1, offset: int = 0) -> 'np.ndarray':
  """Read `count` raw numbers (-1: all) from byte `offset` into memory: dtype[count]."""
  return store_of(file).read_array(file, dtype, count, offset)


def with_head(file: Where, length: int) -> AbstractContextManager[Path]:
  """Provide a local file with the same size and first bytes."""
  return store_of(file).with_head(file, length)


def map_array(file: Where, dtype: Any, *, offset: int = 0, shape: tuple[int, ...] | None = None) -> 'np.ndarray':
  """Map numbers of a local file, read-only: dtype[n], or `shape` at `offset`."""
  import numpy as np

  check_is_file(file)
  return np.memmap(file, dtype, 'r', offset, shape)


# Folders -----------------------------------------------------------------------------------------------------------


def exists(where: Where) -> bool:
  return store_of(where).exists(where)


def is_file(where: Where) -> bool:
  return store_of(where).is_file(where)


def is_folder(where: Where) -> bool:
  return store_of(where).is_folder(where)


def is_inside(file: Where, folder: Where) -> bool:
  """Check that a file is below a folder, links followed.

  Files of a snapshot of the Hugging Face hub are links to `blobs/` next to `snapshots/`, and count as inside.
  """
  return store_of(file).is_inside(file, folder)


def size(file: Where) -> int:
  """Return the size of a file in bytes."""
  return store_of(file).size(file)


def modified_ns(file: Where) -> int:
  """Return the modification time of a local file in nanoseconds since 1970."""
  return Path(file).stat().st_mtime_ns


def free_bytes(folder: Where) -> int | None:
  """Return the free space for a folder, which may not exist yet."""
  return store_of(folder).free_bytes(folder)


def listing(folder: Where, pattern: str = '*') -> list[Path]:
  """List the matches in a folder, sorted; empty without a folder."""
  return store_of(folder).listing(folder, pattern)


def files_below(folder: Where) -> list[Path]:
  """List every file in a folder and in its subfolders, sorted."""
  return store_of(folder).files_below(folder)


def sizes_below(folder: Where) -> dict[str, int]:
  """Map the relative names of all files below a folder to bytes."""
  return store_of(folder).sizes_below(folder)


def walk(folder: Where) -> Iterator[tuple[str, list[str], list[str]]]:
  """Yield (folder, subfolder names, file names) as `os.walk`, skipping removed ones."""
  return os.walk(folder)


def make_folder(folder: Where) -> None:
  """Create a folder and its parents, unless they exist."""
  store_of(folder).make_folder(folder)


def make_named_folder(folder: Where, *, name: str) -> None:
  """Create the folder of setting or flag `name`, or raise ConfigError."""
  try:
    make_folder(folder)
  except (FileExistsError, NotADirectoryError) as error:
    raise ConfigError(f'{name}={folder} cannot be made a folder ({error.strerror}): name another path') from None


def check_writable(folder: Where, *, name: str) -> None:
  """Write a test file to the folder of setting or flag `name`.

  The folder is created if missing. Raises ConfigError: it cannot be written to, or is a URL that `path` rejects.
  """
  probe = path(folder) / f'.writable.{os.getpid()}.{next(_probe_ids)}'
  try:
    make_folder(probe.parent)
    write_text(probe, '')
    remove(probe)
  except OSError as error:
    raise ConfigError(f'{name}={folder} cannot be written to ({error.strerror or error}): name another path') from error


def move(source: Where, target: Where, *, marks: Iterable[str] = ()) -> None:
  """Rename a file or a folder.

  A file at `target` is replaced; a folder there must be empty. In a store it is copied and removed; `marks` are the
  files that mark a folder as complete (`object_store.move`).
  """
  store_of(source).move(source, target, marks=marks)


def unused(where: Where) -> Path:
  """Return the first of path, path.1, path.2, ... that does not exist."""
  candidates = itertools.chain([path(where)], (path(f'{where}.{suffix}') for suffix in itertools.count(1)))
  return next(candidate for candidate in candidates if not exists(candidate))


def copy(source: Where, target: Where) -> None:
  store_of(target).copy(source, target)


def remove(file: Where) -> None:
  """Remove a file, if it exists."""
  store_of(file).remove(file)


def remove_folder(folder: Where) -> None:
  """Remove a folder and its content, if it exists; errors are ignored."""
  store_of(folder).remove_folder(folder)


# Digests and locks -------------------------------------------------------------------------------------------------


def sha256(file: Where) -> str:
  """Compute the hex sha256 of a file."""
  with open(file, 'rb') as stream:
    return hashlib.file_digest(stream, 'sha256').hexdigest()  # type: ignore[arg-type]  # `open` gives BufferedIOBase


def locked(file: Where, *, doing: str, wait: bool = True) -> AbstractContextManager[None]:
  """Hold a lock between processes while the body runs.

  The system releases it however the process ends. Raises BlockingIOError: another process holds the lock, and `wait` is
  False. In a store it takes up to `object_store.LEASE` seconds to detect this.

  Args:
    file: the lock; created with its folder if missing, and not removed.
    doing: the activity of the process that holds the lock, for the log.
    wait: until another process releases the lock.
  """
  return store_of(file).locked(file, doing=doing, wait=wait)


@contextlib.contextmanager
def locked_folder(folder: Where) -> Iterator[None]:
  """Create and lock a local folder, also renamed; BlockingIOError if held."""
  make_folder(folder)
  handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not exists(folder) or not os.path.samestat(os.fstat(handle), os.stat(folder)):
      raise BlockingIOError(errno.EWOULDBLOCK, 'renamed by another process', os.fspath(folder))
    yield
  finally:
    os.close(handle)
