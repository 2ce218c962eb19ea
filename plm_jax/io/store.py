"""Files and folders of this machine and of object stores, as one interface.

`store_of` chooses the implementation by the form of a path. Both have the same methods, which take the path first. Most
are functions of `files`, the only caller, which documents them.
"""

import contextlib
import fcntl
import glob
import io
import itertools
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from plm_jax.io import object_store
from plm_jax.io.object_store import Where, is_address

if TYPE_CHECKING:
  import numpy as np

log = logging.getLogger(__name__)

LARGEST = 2**30  # bytes: the largest file that is read at once
_TEMPORARY = 'plm_jax_'  # begins the name of a temporary folder
_temporary_ids = itertools.count()


class NotAFile(OSError, ValueError):
  """A pipe, a device or a socket where a file is expected: reading it could block, or never end."""


class LocalStore:
  """Files and folders of this machine."""

  def path(self, where: Where) -> Path:
    return Path(where).expanduser()

  def absolute(self, where: Where) -> Path:
    return Path(where).absolute()

  def followed(self, where: Where) -> Path:
    return Path(where).resolve()

  def exists(self, where: Where) -> bool:
    return Path(where).exists()

  def is_file(self, where: Where) -> bool:
    return Path(where).is_file()

  def is_folder(self, where: Where) -> bool:
    return Path(where).is_dir()

  def is_inside(self, file: Where, folder: Where) -> bool:
    real, root = Path(os.path.realpath(file)), Path(os.path.realpath(folder))
    # A snapshot of the Hugging Face hub has links in snapshots/COMMIT/ to files in blobs/.
    in_hub_cache = root.parent.name == 'snapshots' and real.parent == root.parent.parent / 'blobs'
    return in_hub_cache or root in real.parents

  def size(self, file: Where) -> int:
    return Path(file).stat().st_size

  def free_bytes(self, folder: Where) -> int | None:
    candidates = (Path(folder), *Path(folder).absolute().parents)
    existing = next((candidate for candidate in candidates if candidate.exists()), None)
    return None if existing is None else shutil.disk_usage(existing).free

  def md5(self, file: Where) -> str:
    return ''

  def open(self, file: Where, mode: str) -> IO[Any]:
    if mode != 'w':
      check_is_file(file)
    return open(file, mode, encoding=None if 'b' in mode else 'utf-8')

  def read_bytes(self, file: Where) -> bytes:
    with self.open(file, 'rb') as stream:
      _check_size(file, os.fstat(stream.fileno()).st_size)
      return stream.read(LARGEST)

  def read_array(self, file: Where, dtype: Any, count: int, offset: int) -> 'np.ndarray':
    import numpy as np

    check_is_file(file)
    return np.fromfile(file, dtype, count, offset=offset)

  @contextlib.contextmanager
  def with_head(self, file: Where, length: int) -> Iterator[Path]:
    yield Path(file)

  def append(self, file: Where, text: str) -> None:
    with named(file), self.open(file, 'a') as stream:
      stream.write(text)

  @contextlib.contextmanager
  def replacing(self, file: Where) -> Iterator[Path]:
    target = Path(file)
    # 1. Remove temporary files of killed processes: those that no process has locked.
    for old in target.parent.glob(f'{glob.escape(target.name)}.*.tmp'):
      with contextlib.suppress(OSError), self.open(old, 'rb') as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        old.unlink(missing_ok=True)
    with named(target), _locked_temporary(target) as lock:
      temporary = Path(lock.name)
      try:
        # 2. The caller writes; flush to disk, then rename.
        yield temporary
        with temporary.open('rb') as stream:
          os.fsync(stream.fileno())
        temporary.replace(target)
      finally:
        temporary.unlink(missing_ok=True)

  def listing(self, folder: Where, pattern: str) -> list[Path]:
    return sorted(Path(folder).glob(pattern))

  def sizes_below(self, folder: Where) -> dict[str, int]:
    sizes = {}
    for file in self.files_below(folder):
      with contextlib.suppress(FileNotFoundError):  # another process has renamed or removed it
        sizes[file.relative_to(folder).as_posix()] = self.size(file)
    return sizes

  def files_below(self, folder: Where) -> list[Path]:
    return sorted(path for path in Path(folder).rglob('*') if path.is_file())

  def make_folder(self, folder: Where) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)

  def move(self, source: Where, target: Where, *, marks: Iterable[str]) -> None:
    os.replace(source, target)

  def copy(self, source: Where, target: Where) -> None:
    if store_of(source) is not self:
      with self.replacing(target) as temporary, REMOTE.open(source, 'rb') as stream, temporary.open('wb') as output:
        shutil.copyfileobj(stream, output, 2**22)
      return
    check_is_file(source)
    with named(target):
      shutil.copyfile(source, target)

  def remove(self, file: Where) -> None:
    Path(file).unlink(missing_ok=True)

  def remove_folder(self, folder: Where) -> None:
    shutil.rmtree(folder, ignore_errors=True)

  @contextlib.contextmanager
  def locked(self, file: Where, *, doing: str, wait: bool) -> Iterator[None]:
    lock = Path(file)
    self.make_folder(lock.parent)
    with self.open(lock, 'a') as stream:
      try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        if not wait:
          raise
        log.info('%s: waiting for another process that is %s', lock.parent, doing)
        fcntl.flock(stream, fcntl.LOCK_EX)
      yield


class RemoteStore:
  """Objects at gs:// and s3://, written whole or not at all; a folder is a common prefix of names."""

  path = absolute = followed = staticmethod(object_store.path)
  exists = staticmethod(object_store.exists)
  is_file = staticmethod(object_store.is_file)
  is_folder = staticmethod(object_store.is_folder)
  listing = staticmethod(object_store.listing)
  move = staticmethod(object_store.move)
  remove = staticmethod(object_store.remove)
  locked = staticmethod(object_store.locked)

  def is_inside(self, file: Where, folder: Where) -> bool:
    return store_of(folder).path(folder) in self.path(file).parents

  def size(self, file: Where) -> int:
    return object_store.about(file).size

  def free_bytes(self, folder: Where) -> int | None:
    return None

  def md5(self, file: Where) -> str:
    return object_store.about(file).md5

  def open(self, file: Where, mode: str) -> IO[Any]:
    if mode not in ('r', 'rb'):
      raise ValueError(f'{file} cannot be opened in mode {mode!r}: an object in a store is written as a whole')
    stream = object_store.open_to_read(file)
    return io.TextIOWrapper(stream, encoding='utf-8') if mode == 'r' else stream

  def read_bytes(self, file: Where) -> bytes:
    _check_size(file, self.size(file))
    return object_store.read(file)

  def read_array(self, file: Where, dtype: Any, count: int, offset: int) -> 'np.ndarray':
    import numpy as np

    stop = None if count < 0 else offset + count * np.dtype(dtype).itemsize
    return np.frombuffer(bytearray(object_store.read(file, offset, stop)), dtype)

  @contextlib.contextmanager
  def with_head(self, file: Where, length: int) -> Iterator[Path]:
    with temporary_folder() as folder:
      head = folder / self.path(file).name
      head.write_bytes(object_store.read(file, 0, length))
      os.truncate(head, self.size(file))  # sparse: the rest takes no disk space
      yield head

  def append(self, file: Where, text: str) -> None:
    content = self.read_bytes(file) if self.is_file(file) else b''
    with self.replacing(file) as temporary:
      temporary.write_bytes(content + text.encode())

  @contextlib.contextmanager
  def replacing(self, file: Where) -> Iterator[Path]:
    with temporary_folder() as folder:
      temporary = folder / self.path(file).name
      yield temporary
      object_store.send(temporary, file)

  def sizes_below(self, folder: Where) -> dict[str, int]:
    return {name: about.size for name, about in object_store.objects(folder).items()}

  def files_below(self, folder: Where) -> list[Path]:
    return [self.path(folder) / name for name in object_store.objects(folder)]

  def make_folder(self, folder: Where) -> None:
    """Do nothing: a store has no folders to create."""

  def copy(self, source: Where, target: Where) -> None:
    if store_of(source) is self:
      object_store.copy(source, target)
    else:
      object_store.send(source, target)

  def remove_folder(self, folder: Where) -> None:
    with contextlib.suppress(OSError):
      object_store.remove_objects(folder, object_store.objects(folder))


LOCAL, REMOTE = LocalStore(), RemoteStore()


def store_of(where: Where) -> LocalStore | RemoteStore:
  """Choose a path's store by its form; ConfigError as `object_store.is_address`."""
  return REMOTE if is_address(where) else LOCAL


# Helpers of both stores --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def named(file: Where) -> Iterator[None]:
  """Add the file name to system errors without one (full disk)."""
  try:
    yield
  except OSError as error:
    if error.filename is None:
      error.filename = os.fspath(file)
    raise


def _locked_temporary(target: Path) -> BinaryIO:
  """Create a temporary file beside `target` and lock it.

  Another process may take it for one that a killed process left, between the two: then make the next.
  """
  while True:
    name = f'{target.name}.{os.getpid()}.{next(_temporary_ids)}.tmp'
    stream = target.with_name(name).open('ab')
    fcntl.flock(stream, fcntl.LOCK_EX)
    if os.fstat(stream.fileno()).st_nlink:
      return stream
    stream.close()


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
  """Provide an empty local folder; remove it at the end."""
  with tempfile.TemporaryDirectory(prefix=_TEMPORARY) as folder:
    yield Path(folder)


def is_temporary(where: str) -> bool:
  """Return True for a path in a `temporary_folder`."""
  return where.startswith(os.path.join(tempfile.gettempdir(), _TEMPORARY))


def check_is_file(file: Where) -> None:
  """Raise NotAFile for a pipe, device or socket."""
  with contextlib.suppress(FileNotFoundError):
    mode = os.stat(file).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
      raise NotAFile(f'{file} is a pipe, a device or a socket: name a regular file')


def _check_size(file: Where, size: int) -> None:
  if size > LARGEST:
    raise ValueError(f'{file} has {size:,} bytes, more than {LARGEST:,}: too large for a file of this kind')
