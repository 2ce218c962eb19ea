"""The only door to files: runs, weights, vocabularies and data are opened, listed, renamed and locked here.

Paths come from `path`, and are of this machine or addresses such as gs://bucket/run (`stores`). Other files only join
names (`folder / 'config.json'`) and call these functions; a test refuses `open`, `shutil`, `Path(...)` of a name and
reading or writing by `pathlib` elsewhere. Text is UTF-8. What `write_*` and `replacing` write is there whole or not at
all, even if the process is killed. Libraries that open files by themselves (Orbax, safetensors, TensorBoard) get the
path, or a file of this machine that is sent to its address afterwards.

Files may come from strangers and from broken disks: only regular files are read, whole ones up to `LARGEST`, and JSON
is read here alone (`parse_json`).
"""

import builtins
import contextlib
import errno
import fcntl
import glob
import hashlib
import io
import itertools
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Literal, TextIO, overload

from plm_jax.core.errors import ConfigError
from plm_jax.io import object_store
from plm_jax.io.object_store import is_address

if TYPE_CHECKING:
  import numpy as np

log = logging.getLogger(__name__)

Where = str | os.PathLike[str]
LARGEST = 2**30  # bytes of a file that is read whole
DEEPEST = 100  # levels of nesting in JSON; the Rust libraries that read the same files stop at 127
MD5 = 'md5:'  # before a digest of that kind
IMPORT = 'model.json'  # what imported weights have in place of the config.json of a run
_REQUIRED = object()  # `read_json` without a default
_numbers = itertools.count()  # of temporary files


class NotAFile(OSError, ValueError):
  """A pipe, a device or a socket where a file is read: opening it could wait, or read, for ever."""


def path(where: Where) -> Path:
  """A path as a user writes it: '~' is the home folder, gs:// and s3:// begin an address.

  Raises:
    ConfigError: an address of another kind, or one whose client is not installed.
  """
  return object_store.path(where) if is_address(where) else Path(where).expanduser()


def local_path(where: Where, *, what: str) -> Path:
  """As `path`, for what works on folders of this machine only.

  Raises:
    ConfigError: an address; names `what`.
  """
  if is_address(where):
    raise ConfigError(f'{what}={where} has to be a folder of this machine, not an address')
  return path(where)


def absolute(where: Where) -> Path:
  """The path from the root on; links are not followed. An address is returned as it is."""
  return path(where) if is_address(where) else Path(where).absolute()


def followed(where: Where) -> Path:
  """The path from the root on, links followed. An address is returned as it is."""
  return path(where) if is_address(where) else Path(where).resolve()


# NonNegativeInt files -------------------------------------------------------------------------------------------------------


def read_utf8(file: Where) -> str:
  """The text of a file that somebody else wrote; raises ValueError with the line that is not UTF-8."""
  content = read_bytes(file)
  try:
    return content.decode('utf-8')
  except UnicodeDecodeError as error:
    line = content.count(b'\n', 0, error.start) + 1
    raise ValueError(
      f'line {line} is not written in utf-8: fetch the file again, or convert it, `iconv -f latin1 -t utf-8 '
      f'{path(file).name} > new` for a file in Latin-1'
    ) from error


def read_text(file: Where) -> str:
  """The text of a file; a ValueError where it is larger than `LARGEST`, or not UTF-8."""
  return read_bytes(file).decode('utf-8')


def read_bytes(file: Where) -> bytes:
  """The bytes of a file; a ValueError where it is larger than `LARGEST`."""
  if is_address(file):
    if (there := object_store.about(file).size) > LARGEST:
      raise ValueError(f'{file} has {there:,} bytes, which is too large for a file of this kind')
    return object_store.read(file)
  with open(file, 'rb') as stream:
    if (there := os.fstat(stream.fileno()).st_size) > LARGEST:
      raise ValueError(f'{file} has {there:,} bytes, which is too large for a file of this kind')
    return stream.read(LARGEST)


def read_json(file: Where, *, default: Any = _REQUIRED) -> Any:
  """The value in a JSON file; `default`, where one is given, if there is no such file.

  Raises:
    FileNotFoundError: no such file, and no default.
    json.JSONDecodeError: the file is not JSON.
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
  """The value of a JSON text, from a file or a line of one; every other file of the package reads JSON by this.

  Raises:
    json.JSONDecodeError: not JSON; or what Python would take and others cannot: more than `DEEPEST` levels, a number
      of thousands of digits, half a character (a lone surrogate, which has no UTF-8).
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
  """Whether lists and objects are nested more than `DEEPEST` levels deep."""
  level = [value]
  for _ in range(DEEPEST):
    outer = [item.values() if isinstance(item, dict) else item for item in level]
    level = [item for items in outer for item in items if isinstance(item, dict | list)]
    if not level:
      return False
  return True


def is_unicode(text: str) -> bool:
  """Whether a text can be written: Python holds bytes of a command line that are no UTF-8 as halves of characters."""
  try:
    text.encode()
  except UnicodeEncodeError:
    return False
  return True


def write_text(file: Where, text: str) -> None:
  """Writes a text file."""
  with replacing(file) as temporary:
    temporary.write_text(text, encoding='utf-8')


def write_bytes(file: Where, content: bytes) -> None:
  """Writes a binary file."""
  with replacing(file) as temporary:
    temporary.write_bytes(content)


def write_json(file: Where, value: Any, *, indent: int | None = 2) -> None:
  """Writes plain data as strict JSON (no NaN), keys in their order, on one line if `indent` is None."""
  write_text(file, json_text(value, indent=indent))


def json_text(value: Any, *, indent: int | None = 2) -> str:
  """What `write_json` writes."""
  return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False) + '\n'


def append(file: Where, text: str) -> None:
  """Adds text to the end of a file, which is made if it is missing. At an address all of it is written anew."""
  if is_address(file):
    write_bytes(file, (read_bytes(file) if is_file(file) else b'') + text.encode())
    return
  with named(file), open(file, 'a') as stream:
    stream.write(text)


def append_line(file: Where, line: str) -> None:
  """Adds a line to the end of a file, as `append`; a last one that a killed process left torn stays one by itself."""
  content = read_bytes(file) if is_file(file) else b''
  torn = content and not content.endswith(b'\n')
  append(file, f'\n{line}\n' if torn else f'{line}\n')


@contextlib.contextmanager
def replacing(file: Where) -> Iterator[Path]:
  """A temporary path to write to; when the body has ended, it is flushed to disk and replaces `file`.

  A lock is held on the temporary file meanwhile: what a killed process left beside `file` is removed by the next one.
  For an address the temporary file is of this machine, and is sent at the end.
  """
  if is_address(file):
    with temporary_folder() as folder:
      temporary = folder / path(file).name
      yield temporary
      object_store.send(temporary, file)
    return
  target = Path(file)
  for old in target.parent.glob(f'{glob.escape(target.name)}.*.tmp'):
    _remove_unused(old)
  temporary = target.with_name(f'{target.name}.{os.getpid()}.{next(_numbers)}.tmp')
  with named(target), builtins.open(temporary, 'ab') as held:
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
      yield temporary
      with temporary.open('rb') as stream:
        os.fsync(stream.fileno())
      temporary.replace(target)
    finally:
      temporary.unlink(missing_ok=True)


def _remove_unused(temporary: Path) -> None:
  """Removes a temporary file unless a process holds it."""
  with contextlib.suppress(OSError), open(temporary, 'rb') as stream:
    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def named(file: Where) -> Iterator[None]:
  """Puts the name of the file on errors of the system that have none, such as those of a full disk."""
  try:
    yield
  except OSError as error:
    if error.filename is None:
      error.filename = os.fspath(file)
    raise


# Parts of files ----------------------------------------------------------------------------------------------------


@overload
def open(file: Where, mode: Literal['r', 'w', 'a'] = 'r') -> TextIO: ...
@overload
def open(file: Where, mode: Literal['rb', 'wb', 'ab', 'r+b']) -> BinaryIO: ...
def open(file: Where, mode: str = 'r') -> IO[Any]:
  """Opens a file to read or write it piece by piece. A killed process may leave it half written: see `replacing`.

  Raises:
    NotAFile: something else than a file; only mode 'w' takes it, as /dev/stdout.
  """
  if is_address(file):
    if mode not in ('r', 'rb'):
      raise ValueError(f'{file} is an address, which is written whole: see replacing, write_* and Mirror')
    stream = object_store.open_to_read(file)
    return io.TextIOWrapper(stream, encoding='utf-8') if mode == 'r' else stream
  if mode != 'w':
    _check_is_file(file)
  return builtins.open(file, mode, encoding=None if 'b' in mode else 'utf-8')


def _check_is_file(file: Where) -> None:
  """Raises NotAFile for a pipe, a device or a socket; nothing and a folder are left to `open`."""
  with contextlib.suppress(FileNotFoundError):
    mode = os.stat(file).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
      raise NotAFile(f'{file} is not a file but a pipe, a device or a socket')


def flush_to_disk(stream: IO[Any]) -> None:
  """Returns when what was written to an open file would survive a loss of power."""
  stream.flush()
  os.fsync(stream.fileno())


def read_array(file: Where, dtype: Any, *, count: int = -1, offset: int = 0) -> 'np.ndarray':
  """`count` elements (-1: all) of a file of raw numbers, from byte `offset` on: dtype[count], in memory of its own."""
  import numpy as np

  if is_address(file):
    stop = None if count < 0 else offset + count * np.dtype(dtype).itemsize
    return np.frombuffer(bytearray(object_store.read(file, offset, stop)), dtype)
  _check_is_file(file)
  return np.fromfile(file, dtype, count, offset=offset)


@contextlib.contextmanager
def with_head(file: Where, length: int) -> Iterator[Path]:
  """A file of this machine with the first `length` bytes of a file and its size: for libraries that judge headers."""
  if not is_address(file):
    yield Path(file)
    return
  with temporary_folder() as folder:
    head = folder / path(file).name
    head.write_bytes(object_store.read(file, 0, length))
    os.truncate(head, size(file))  # the rest takes no room
    yield head


def map_array(file: Where, dtype: Any) -> 'np.ndarray':
  """A file of raw numbers as a read-only array dtype[n], read from disk when it is used; the file may not be empty."""
  import numpy as np

  _check_is_file(file)
  return np.memmap(file, dtype, 'r')


# Folders -----------------------------------------------------------------------------------------------------------


def exists(where: Where) -> bool:
  """Whether there is a file or a folder."""
  return object_store.exists(where) if is_address(where) else Path(where).exists()


def is_file(where: Where) -> bool:
  """Whether there is a file."""
  return object_store.is_file(where) if is_address(where) else Path(where).is_file()


def is_folder(where: Where) -> bool:
  """Whether there is a folder."""
  return object_store.is_folder(where) if is_address(where) else Path(where).is_dir()


def is_inside(file: Where, folder: Where) -> bool:
  """Whether a file lies in a folder or below it, links followed.

  Files of a snapshot of the Hugging Face hub are links to `blobs/` beside `snapshots/`, and count as inside.
  """
  if is_address(file):
    return path(folder) in path(file).parents
  real, root = Path(os.path.realpath(file)), Path(os.path.realpath(folder))
  of_hub = root.parent.name == 'snapshots' and real.parent == root.parent.parent / 'blobs'
  return of_hub or root in real.parents


def size(file: Where) -> int:
  """Bytes of a file."""
  return object_store.about(file).size if is_address(file) else Path(file).stat().st_size


def modified_ns(file: Where) -> int:
  """When a file was last written, in nanoseconds since 1970."""
  return Path(file).stat().st_mtime_ns


def free_bytes(folder: Where) -> int | None:
  """Bytes that can still be written to the disk of a folder, which need not exist yet; None where nobody knows."""
  if '://' in os.fspath(folder):
    return None
  near = next((one for one in (Path(folder), *Path(folder).absolute().parents) if one.exists()), None)
  return None if near is None else shutil.disk_usage(near).free


def listing(folder: Where, pattern: str = '*') -> list[Path]:
  """The files and folders in a folder whose names match, sorted; empty if there is no such folder."""
  return object_store.listing(folder, pattern) if is_address(folder) else sorted(Path(folder).glob(pattern))


def files_below(folder: Where) -> list[Path]:
  """Every file in a folder and in the folders below it, sorted."""
  if is_address(folder):
    return [path(folder) / name for name in object_store.objects(folder)]
  return sorted(found for found in Path(folder).rglob('*') if found.is_file())


def sizes_below(folder: Where) -> dict[str, int]:
  """Name below the folder, with slashes, -> bytes, of every file in it and in the folders below it."""
  if is_address(folder):
    return {name: about.size for name, about in object_store.objects(folder).items()}
  return {file.relative_to(folder).as_posix(): size(file) for file in files_below(folder)}


def walk(folder: Where) -> Iterator[tuple[str, list[str], list[str]]]:
  """(folder, names of its folders, names of its files), from the top, like `os.walk`: a name removed is not visited."""
  return os.walk(folder)


def make_folder(folder: Where) -> None:
  """Makes a folder and those above it; one that exists is left as it is. A store has no folders to make."""
  if is_address(folder):
    return
  Path(folder).mkdir(parents=True, exist_ok=True)


def make_named_folder(folder: Where, *, name: str) -> None:
  """As `make_folder`, for one that a user names.

  Args:
    folder: of this machine, or an address.
    name: of the setting or flag that names the folder.

  Raises:
    ConfigError: it is a file, or below one.
  """
  try:
    make_folder(folder)
  except (FileExistsError, NotADirectoryError) as error:
    raise ConfigError(f'{name}={folder} cannot be made a folder ({error.strerror}): name another place') from None


def check_writable(folder: Where, *, name: str) -> None:
  """Writes a small file into a folder, which is made where there is none, and removes it.

  Args:
    folder: of this machine, or an address.
    name: of the setting or flag that names the folder.

  Raises:
    ConfigError: it cannot be written to, or is an address as in `path`.
  """
  probe = path(folder) / f'.writable.{os.getpid()}.{next(_numbers)}'
  try:
    make_folder(probe.parent)
    write_text(probe, '')
    remove(probe)
  except OSError as error:
    raise ConfigError(
      f'{name}={folder} cannot be written to ({error.strerror or error}): name another place'
    ) from error


def move(source: Where, target: Where, *, marks: Iterable[str] = ()) -> None:
  """Renames a file or a folder. A file at `target` is replaced; a folder there must be empty.

  At an address it is copied and removed; `marks` are the files without which a folder is not complete (`stores.move`).
  """
  if is_address(source):
    object_store.move(source, target, marks=marks)
    return
  os.replace(source, target)


def unused(where: Where) -> Path:
  """The path, or with '.1', '.2', ... behind it the first where there is nothing."""
  names = itertools.chain([path(where)], (path(f'{where}.{number}') for number in itertools.count(1)))
  return next(name for name in names if not exists(name))


def copy(source: Where, target: Where) -> None:
  """Copies the bytes of a file, from or to an address as well."""
  if is_address(source) or is_address(target):
    _copy_of_store(source, target)
    return
  _check_is_file(source)
  with named(target):
    shutil.copyfile(source, target)


def _copy_of_store(source: Where, target: Where) -> None:
  if is_address(source) and is_address(target):
    object_store.copy(source, target)
  elif is_address(target):
    object_store.send(source, target)
  else:
    with replacing(target) as temporary, open(source, 'rb') as stream, temporary.open('wb') as copied:
      shutil.copyfileobj(stream, copied, 2**22)


def remove(file: Where) -> None:
  """Removes a file, if it exists."""
  if is_address(file):
    object_store.remove(file)
    return
  Path(file).unlink(missing_ok=True)


def remove_folder(folder: Where) -> None:
  """Removes a folder with everything in it, if it exists; what cannot be removed stays without an error."""
  if is_address(folder):
    with contextlib.suppress(OSError):
      object_store.remove_objects(folder, object_store.objects(folder))
    return
  shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
  """An empty folder, which is removed with everything in it at the end."""
  with tempfile.TemporaryDirectory(prefix='plm_jax_') as folder:
    yield Path(folder)


# Digests and locks -------------------------------------------------------------------------------------------------


def sha256(file: Where) -> str:
  """The hex sha256 of a file's bytes."""
  with open(file, 'rb') as stream:
    return sha256_of_rest(stream)


def digest(file: Where, *, like: str = '') -> str:
  """A digest of a file: its hex sha256; at an address 'md5:' and the hex MD5 that the store keeps, which reads nothing.

  `like` is a digest to be compared with, which says of which kind this one has to be.
  """
  known = object_store.about(file).md5 if is_address(file) and (not like or like.startswith(MD5)) else ''
  if known:
    return f'{MD5}{known}'
  if not like.startswith(MD5):
    return sha256(file)
  with open(file, 'rb') as stream:
    return f'{MD5}{hashlib.file_digest(stream, "md5").hexdigest()}'  # type: ignore[arg-type]


def sha256_of_rest(stream: BinaryIO) -> str:
  """The hex sha256 of what is left to read of an open file."""
  return hashlib.file_digest(stream, 'sha256').hexdigest()  # type: ignore[arg-type]  # `open` gives BufferedIOBase


@contextlib.contextmanager
def locked(file: Where, *, doing: str, wait: bool = True) -> Iterator[None]:
  """Holds a lock between processes while the body runs. The system releases it however the process ends.

  Args:
    file: the lock; made with its folder if it is missing, and left there.
    doing: what the process that holds the lock does, for the log.
    wait: until another process releases the lock.

  Raises:
    BlockingIOError: another process holds the lock, and `wait` is False. At an address that takes up to
      `stores.LEASE` seconds to find out (`stores.locked`).
  """
  if is_address(file):
    with object_store.locked(file, doing=doing, wait=wait):
      yield
    return
  file = Path(file)
  make_folder(file.parent)
  with open(file, 'a') as stream:
    try:
      fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      if not wait:
        raise
      log.info('%s: waiting for another process that is %s', file.parent, doing)
      fcntl.flock(stream, fcntl.LOCK_EX)
    yield


@contextlib.contextmanager
def locked_folder(folder: Where) -> Iterator[None]:
  """Makes a folder and holds a lock on it, wherever it is renamed to; a BlockingIOError where another process does."""
  make_folder(folder)
  handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not exists(folder) or not os.path.samestat(os.fstat(handle), os.stat(folder)):
      raise BlockingIOError(errno.EWOULDBLOCK, 'renamed by another process', os.fspath(folder))
    yield
  finally:
    os.close(handle)
