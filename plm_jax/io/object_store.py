"""Object stores, behind `files`: addresses such as gs://bucket/run, their clients, and what can be asked of them.

An object is written whole or not at all, there are no folders but the names with a slash, and nothing can be renamed.
So what has several parts is written in an order: all parts, then the one object that marks them as complete; readers
take what is marked. `files` is the only caller.

The clients are fsspec's (`requirements/buckets.txt`), which Orbax uses too, by way of `etils.epath`. They keep no
listings here, since other processes write to the same folders.
"""

import base64
import contextlib
import errno
import fnmatch
import functools
import itertools
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from plm_jax.core.errors import ConfigError, RunError

log = logging.getLogger(__name__)

Where = str | os.PathLike[str]
CLIENTS = {'gs': 'gcsfs', 's3': 's3fs'}  # scheme -> package
BEAT, LEASE = 10.0, 45.0  # seconds: a lock is written anew so often; one that was not for so long is nobody's
_SCHEME, _LOST = (
  re.compile(r'([A-Za-z][A-Za-z0-9+]+)://'),
  re.compile(r'(gs|s3|gcs|az|abfs|hf|https?|ftp|file):/(?=[^/])', re.I),
)
_AT_ONCE = 8  # objects that are copied or sent at the same time


class StoreError(OSError, RunError):
  """A store did not do what was asked: no rights, no network, no bucket. Commands exit with 1."""

  def __str__(self) -> str:
    return f'{self.filename}: {self.strerror}. Check address, rights and network, then run the same command again'


def is_address(where: Where) -> bool:
  """Whether a path names something in an object store.

  Raises:
    ConfigError: an address that has lost a slash, which would be a folder of this machine called 'gs:'.
  """
  text = os.fspath(where)
  if ':/' not in text:
    return False
  if lost := _LOST.match(text):
    cure = f'write {lost[1].lower()}://{text[lost.end() :]}'
    raise ConfigError(f'{text} is neither a folder of this machine nor an address: {cure}')
  return bool(_SCHEME.match(text))


def path(where: Where) -> Path:
  """An address as a path, whose names can be joined and taken apart as those of a folder of this machine.

  Raises:
    ConfigError: a scheme that is not known, or whose client is not installed.
  """
  text = os.fspath(where)
  scheme, _, rest = text.partition('://')
  if scheme not in CLIENTS and scheme.lower() in CLIENTS:
    raise ConfigError(f'{text}: addresses begin in small letters: write {scheme.lower()}://{rest}')
  if scheme not in CLIENTS:
    known = ', '.join(f'{name}://' for name in CLIENTS)
    raise ConfigError(f'{text}: {scheme}:// is not known; there are {known}. Others can be mounted (rclone, NFS)')
  if not rest.strip('/'):
    raise ConfigError(f'{text} names no bucket: write {scheme}://BUCKET/FOLDER')
  if not _is_installed(CLIENTS[scheme]):
    raise ConfigError(
      f'{text}: {scheme}:// needs the package {CLIENTS[scheme]}, which is not installed: '
      'bash launch/setup.sh buckets (pip install -r requirements/buckets.txt)'
    )
  from etils import epath

  _configure()
  return cast(Path, epath.Path(text.rstrip('/')))


def check_holds_checkpoints(where: Where) -> None:
  """Raises ConfigError for an address of a store that Orbax does not know; whether a client is there is not asked."""
  if is_address(where) and not os.fspath(where).startswith('gs://'):
    raise ConfigError(
      f'{where}: Orbax has checkpoints on this machine and at gs:// only. Name such a --workdir, or mount the bucket; '
      'imports and exports of weights, data and vocabularies may lie there'
    )


@functools.cache
def _is_installed(package: str) -> bool:
  from importlib import metadata

  try:
    metadata.distribution(package)
  except metadata.PackageNotFoundError:
    return False
  return True


def _key(where: Where) -> str:
  """An address as clients list it: bucket/folder."""
  return os.fspath(where).partition('://')[2].rstrip('/')


@functools.cache
def _configure() -> None:
  """Clients keep no listings, whoever makes them in this process (Orbax does by `epath`)."""
  from fsspec.config import conf

  for protocol in ('gs', 'gcs', 's3'):
    conf.setdefault(protocol, {}).setdefault('use_listings_cache', False)


def _client(where: Where) -> Any:
  """The fsspec client of an address."""
  import fsspec

  text = os.fspath(path(where))
  return fsspec.filesystem(text.partition('://')[0])


@contextlib.contextmanager
def _asking(where: Where) -> Iterator[Any]:
  """The client of an address; what it raises but for a missing object becomes a StoreError that names the address."""
  try:
    yield _client(where)
  except (FileNotFoundError, ConfigError):
    raise
  except Exception as error:  # each client, and the library of its store, has errors of its own
    number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
    raise StoreError(number, f'{type(error).__name__}: {error}', os.fspath(where)) from error


# Objects -----------------------------------------------------------------------------------------------------------


class About(NamedTuple):
  """What a store says of an object: its bytes, and its MD5 as hex, '' where it says none."""

  size: int
  md5: str


def about(where: Where) -> About:
  """What the store says of an object; a FileNotFoundError where there is none."""
  with _asking(where) as client:
    found = client.info(os.fspath(where))
  if found['type'] != 'file':
    raise FileNotFoundError(errno.ENOENT, 'no such object', os.fspath(where))
  return _about(found)


def _about(found: Any) -> About:
  tag = str(found.get('ETag', '')).strip('"')  # of S3: the MD5 of an object that was sent in one piece
  if 'md5Hash' in found:  # of Google
    return About(int(found['size']), base64.b64decode(found['md5Hash']).hex())
  return About(int(found['size'] or 0), tag if re.fullmatch('[0-9a-f]{32}', tag) else '')


def version(where: Where) -> str:
  """A text that is another one once the object was written again."""
  with _asking(where) as client:
    found = client.info(os.fspath(where))
    return str(found.get('generation') or found.get('ETag') or client.checksum(os.fspath(where)))


def is_file(where: Where) -> bool:
  return _kind(where) == 'file'


def is_folder(where: Where) -> bool:
  return _kind(where) == 'directory'


def exists(where: Where) -> bool:
  return _kind(where) is not None


def _kind(where: Where) -> str | None:
  """'file', 'directory', or None for nothing.

  The clients' own `exists` says no where a store does not answer, and a run would begin anew over an old one.
  """
  with _asking(where) as client:
    try:
      return client.info(os.fspath(where))['type']
    except FileNotFoundError:
      return None


def read(where: Where, start: int | None = None, stop: int | None = None) -> bytes:
  """The bytes [start, stop) of an object, or all."""
  if start is not None and start == stop:
    return b''
  with _asking(where) as client:
    return client.cat_file(os.fspath(where), start=start, end=stop)


def open_to_read(where: Where) -> BinaryIO:
  """A stream of the bytes of an object, which is read some megabytes at a time."""
  with _asking(where) as client:
    return client.open(os.fspath(where), 'rb')


def write(where: Where, content: bytes) -> None:
  """Writes an object; a reader sees the old one or this one."""
  with _asking(where) as client:
    client.pipe_file(os.fspath(where), content)


def create(where: Where, content: bytes) -> bool:
  """Writes an object that is not there yet; False where it is, or another process was faster."""
  with _asking(where) as client:
    try:
      client.pipe_file(os.fspath(where), content, mode='create')
    except FileExistsError:
      return False
    except Exception:
      if client.exists(os.fspath(where)):  # clients have errors of their own for what the store refused
        return False
      raise
  return True


def send(file: Where, where: Where) -> None:
  """Writes an object from a file of this machine."""
  with _asking(where) as client:
    client.put_file(os.fspath(file), os.fspath(where))


def remove(where: Where) -> None:
  """Removes an object, if it exists."""
  with contextlib.suppress(FileNotFoundError), _asking(where) as client:
    client.rm_file(os.fspath(where))


def copy(source: Where, target: Where) -> None:
  """Copies an object within a store."""
  with _asking(source) as client:
    client.cp_file(os.fspath(source), os.fspath(target))


# Folders -----------------------------------------------------------------------------------------------------------


def listing(folder: Where, pattern: str) -> list[Path]:
  """What matches a pattern in a folder, sorted; a pattern with slashes goes down one folder with each."""
  names, _, rest = pattern.partition('/')
  with _asking(folder) as client:
    try:
      found = client.ls(os.fspath(folder), detail=True)
    except (FileNotFoundError, NotADirectoryError):
      return []
  key, here = f'{_key(folder)}/', path(folder)
  inside = [entry for entry in found if entry['name'].startswith(key) and entry['name'] != key]  # not the folder itself
  kinds = {here / entry['name'].removeprefix(key).rstrip('/'): entry['type'] for entry in inside}
  matching = sorted(name for name in kinds if fnmatch.fnmatchcase(name.name, names))
  if not rest:
    return matching
  below = [name for name in matching if kinds[name] == 'directory']
  with ThreadPoolExecutor(_AT_ONCE) as pool:
    return sorted(itertools.chain.from_iterable(pool.map(lambda name: listing(name, rest), below)))


def objects(folder: Where) -> dict[str, About]:
  """Name below the folder -> what the store says, of every object in it, sorted."""
  with _asking(folder) as client:
    try:
      found = client.find(os.fspath(folder), detail=True)
    except FileNotFoundError:
      return {}
  key = f'{_key(folder)}/'
  return {
    name.removeprefix(key): _about(entry)
    for name, entry in sorted(found.items())
    if name.startswith(key) and not name.endswith('/')
  }


def remove_objects(folder: Where, names: Iterable[str]) -> None:
  """Removes objects by their names below a folder."""
  _each(lambda name: remove(path(folder) / name), names)


def move(source: Where, target: Where, *, marks: Iterable[str] = ()) -> None:
  """Copies an object or a folder and removes the source.

  A process that is killed meanwhile leaves the source whole and marked, or the target; `marks` are the names of the
  objects without which a folder is not complete: copied last, removed first.
  """
  source, target = path(source), path(target)
  if is_file(source):
    copy(source, target)
    remove(source)
    return
  marks = tuple(marks)
  names = [name for name in objects(source) if name not in marks]
  marked = [name for name in marks if is_file(source / name)]
  _each(lambda name: copy(source / name, target / name), names)
  for name in marked:
    copy(source / name, target / name)
  for name in reversed(marked):
    remove(source / name)
  remove_objects(source, names)


def _each(function: Any, names: Iterable[str]) -> None:
  with ThreadPoolExecutor(_AT_ONCE) as pool:
    for _ in pool.map(function, names):
      pass


# Locks -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(where: Where, *, doing: str, wait: bool) -> Iterator[None]:
  """As `files.locked`, of a store, where no system releases what a killed process held.

  The lock is an object that its holder writes again every `BEAT` seconds. One that stays the same for `LEASE` seconds
  is nobody's, and so is at once one of a process of this machine that is gone. Clocks are not compared.

  Raises:
    BlockingIOError: another process holds it, and `wait` is False; the message says which.
  """
  own = {'host': socket.gethostname(), 'pid': os.getpid(), 'token': uuid.uuid4().hex, 'doing': doing, 'beat': 0}
  while not create(where, json.dumps(own).encode()):
    holder = _holder_once_still(where)
    if holder is None:
      continue
    if not wait:
      text = f'{doing} on {holder.get("host")}, process {holder.get("pid")}'
      raise BlockingIOError(errno.EWOULDBLOCK, text, os.fspath(where))
    log.info('%s: waiting for another process that is %s', where, doing)
    time.sleep(BEAT)
  ended = threading.Event()
  beating = threading.Thread(target=_beat, args=(where, own, ended), name='lock in a store', daemon=True)
  beating.start()
  try:
    yield
  finally:
    ended.set()
    beating.join()
    try:
      if _read_lock(where).get('token') == own['token']:
        remove(where)
    except OSError as error:  # what the lock was for is done
      log.warning('%s could not be removed, and is free in %.0f s: %s', where, LEASE, error)


def _holder_once_still(where: Where) -> dict[str, Any] | None:
  """The holder of a lock that is alive; None once the lock of one that is not was removed, or it went by itself."""
  first = _read_lock(where)
  if not first:
    return None
  if not _gone_here(first):
    log.info('%s is held by process %s on %s: looking for %.0f s whether it is alive', where, first.get('pid'),
             first.get('host'), LEASE)  # fmt: skip
    until = time.monotonic() + LEASE
    while time.monotonic() < until:
      time.sleep(min(1.0, BEAT / 5))
      now = _read_lock(where)
      if now != first:
        return now or None
  log.warning('%s was held by a process that is gone', where)
  if _read_lock(where) == first:
    remove(where)
  return None


def _gone_here(holder: dict[str, Any]) -> bool:
  """Whether the holder was a process of this machine that has ended."""
  if holder.get('host') != socket.gethostname() or not isinstance(holder.get('pid'), int):
    return False
  try:
    os.kill(holder['pid'], 0)
  except ProcessLookupError:
    return True
  except PermissionError:
    pass
  return False


def _read_lock(where: Where) -> dict[str, Any]:
  """What a lock says; empty where there is none."""
  try:
    found = json.loads(read(where))
  except FileNotFoundError:
    return {}
  except ValueError:
    return {'token': 'unreadable'}
  return found if isinstance(found, dict) else {'token': 'unreadable'}


def _beat(where: Where, own: dict[str, Any], ended: threading.Event) -> None:
  """Writes the lock again until its holder has ended, or has lost it."""
  while not ended.wait(BEAT):
    try:
      if _read_lock(where).get('token') != own['token']:
        log.error('%s was taken by another process: two processes write to this folder, end one of them', where)
        return
      own['beat'] += 1
      write(where, json.dumps(own).encode())
    except OSError as error:  # the next beat may come through
      log.warning('%s could not be written again: %s', where, error)
