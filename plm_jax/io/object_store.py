"""Object stores at URLs such as gs://bucket/run, and data sets at hf://datasets/: their clients and all requests.

An object is written whole or not at all, a folder is a common prefix of names, and nothing can be renamed. So content
of several parts is written in an order: first all parts, then the object that marks them as complete. Readers only
accept marked content.

The clients are those of fsspec (`requirements/buckets.txt`), which Orbax also uses, through `etils.epath`. They do not
cache listings here, since other processes write to the same folders.
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

from plm_jax.core.errors import ConfigError, RunError, is_installed

log = logging.getLogger(__name__)

Where = str | os.PathLike[str]
CLIENTS = {'gs': 'gcsfs', 's3': 's3fs', 'hf': 'huggingface_hub'}  # scheme -> package
BEAT, LEASE = 10.0, 45.0  # seconds between two writes of a lock, and until an unchanged lock is free
_SCHEME = re.compile(r'([A-Za-z][A-Za-z0-9+]+)://')
_LOST = re.compile(r'(gs|s3|gcs|az|abfs|hf|https?|ftp|file):/(?=[^/])', re.I)
_AT_ONCE = 8  # objects copied at the same time
_is_installed = functools.cache(is_installed)


class StoreError(OSError, RunError):
  """A failed request to a store: no rights, no network, no bucket. Commands exit with 1."""

  def __str__(self) -> str:
    return (
      f'{self.filename}: {self.strerror}. Check the URL, the rights and the network, then run the same command again'
    )


def is_address(where: Where) -> bool:
  """Check that a path is a URL of an object store.

  Raises ConfigError: a URL that has lost a slash, which would be a local folder called 'gs:'.
  """
  text = os.fspath(where)
  if ':/' not in text:
    return False
  if broken := _LOST.match(text):
    raise ConfigError(f'{text} has lost a slash: write {broken[1].lower()}://{text[broken.end() :]}')
  return bool(_SCHEME.match(text))


def path(where: Where) -> Path:
  """Build a path from a URL.

  Its names can be joined and split as those of a local folder. Raises ConfigError: an unknown scheme, no bucket, or the
  client of the scheme is not installed.
  """
  text = os.fspath(where)
  scheme, _, rest = text.partition('://')
  if scheme not in CLIENTS and scheme.lower() in CLIENTS:
    raise ConfigError(f'{text}: the scheme is in lower case: write {scheme.lower()}://{rest}')
  if scheme not in CLIENTS:
    schemes = ', '.join(f'{name}://' for name in CLIENTS)
    raise ConfigError(f'{text}: unknown scheme {scheme}://; choices are {schemes}. Mount other stores (rclone, NFS)')
  if not rest.strip('/'):
    raise ConfigError(f'{text} has no bucket: write {scheme}://BUCKET/FOLDER')
  if not _is_installed(CLIENTS[scheme]):
    raise ConfigError(
      f'{text}: {scheme}:// needs the package {CLIENTS[scheme]}, which is not installed: '
      'bash launch/setup.sh buckets (pip install -r requirements/buckets.txt)'
    )
  from etils import epath

  _configure()
  return cast(Path, epath.Path(text.rstrip('/')))


def check_holds_checkpoints(where: Where) -> None:
  """Raise ConfigError for a URL that Orbax does not support."""
  if is_address(where) and not os.fspath(where).startswith('gs://'):
    raise ConfigError(
      f'{where}: checkpoints need a local folder or gs:// (Orbax supports no other store). Name such a --workdir, or '
      'mount the bucket. Weights, data and vocabularies may be at this URL'
    )


def _key(where: Where) -> str:
  """Return a URL as clients list it: bucket/folder."""
  return os.fspath(where).partition('://')[2].rstrip('/')


@functools.cache
def _configure() -> None:
  """Disable the clients' listing caches; Orbax creates its own by `epath`."""
  from fsspec.config import conf

  for protocol in ('gs', 'gcs', 's3'):
    conf.setdefault(protocol, {}).setdefault('use_listings_cache', False)


def _client(where: Where) -> Any:
  import fsspec

  text = os.fspath(path(where))
  return fsspec.filesystem(text.partition('://')[0])


@contextlib.contextmanager
def _requests_to(where: Where) -> Iterator[Any]:
  """Provide the client of a URL; errors except absence become StoreError."""
  with reading(where, besides=(FileNotFoundError, ConfigError)):
    yield _client(where)


@contextlib.contextmanager
def reading(where: Where, *, besides: tuple[type[Exception], ...] = (ValueError, FileNotFoundError)) -> Iterator[None]:
  """Turn errors of a client, except `besides`, into StoreError."""
  try:
    yield
  except Exception as error:  # each client and each store's library has its own errors
    if isinstance(error, (StoreError, *besides)):
      raise
    code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
    raise StoreError(code, f'{type(error).__name__}: {error}', os.fspath(where)) from error


class About(NamedTuple):
  """Size of an object in bytes, and its MD5 as hex, which is '' if the store reports none."""

  size: int
  md5: str


def about(where: Where) -> About:
  """Request size and MD5 of an object, or raise FileNotFoundError."""
  with _requests_to(where) as client:
    info = client.info(os.fspath(where))
  if info['type'] != 'file':
    raise FileNotFoundError(errno.ENOENT, 'no such object', os.fspath(where))
  return _about(info)


def _about(info: Any) -> About:
  tag = str(info.get('ETag', '')).strip('"')  # S3: the MD5 of an object that was uploaded in one piece
  if 'md5Hash' in info:  # Google
    return About(size=int(info['size']), md5=base64.b64decode(info['md5Hash']).hex())
  return About(size=int(info['size'] or 0), md5=tag if re.fullmatch('[0-9a-f]{32}', tag) else '')


def version(where: Where) -> str:
  """Request a string that changes when the object is written again."""
  with _requests_to(where) as client:
    info = client.info(os.fspath(where))
    known = info.get('generation') or info.get('ETag') or info.get('blob_id')
    return str(known or client.checksum(os.fspath(where)))


def is_file(where: Where) -> bool:
  return _kind(where) == 'file'


def is_folder(where: Where) -> bool:
  return _kind(where) == 'directory'


def exists(where: Where) -> bool:
  return _kind(where) is not None


def _kind(where: Where) -> str | None:
  """Request 'file', 'directory', or None for nothing.

  The clients' own `exists` returns False if a store does not respond; a run would then start over an old one.
  """
  with _requests_to(where) as client:
    try:
      return client.info(os.fspath(where))['type']
    except FileNotFoundError:
      return None


def read(where: Where, start: int | None = None, stop: int | None = None) -> bytes:
  """Download the bytes [start, stop) of an object, or all."""
  if start is not None and start == stop:
    return b''
  with _requests_to(where) as client:
    return client.cat_file(os.fspath(where), start=start, end=stop)


def open_to_read(where: Where) -> BinaryIO:
  """Open a stream of an object that reads some megabytes at once."""
  with _requests_to(where) as client:
    return client.open(os.fspath(where), 'rb')


def write(where: Where, content: bytes) -> None:
  """Write an object; a reader sees the old content or the new."""
  with _requests_to(where) as client:
    client.pipe_file(os.fspath(where), content)


def create(where: Where, content: bytes) -> bool:
  """Write an object unless it exists; return False if it does."""
  with _requests_to(where) as client:
    try:
      client.pipe_file(os.fspath(where), content, mode='create')
    except FileExistsError:
      return False
    except Exception:
      if client.exists(os.fspath(where)):  # clients raise their own errors for rejected requests
        return False
      raise
  return True


def send(file: Where, where: Where) -> None:
  with _requests_to(where) as client:
    client.put_file(os.fspath(file), os.fspath(where))


def remove(where: Where) -> None:
  """Remove an object, if it exists."""
  with contextlib.suppress(FileNotFoundError), _requests_to(where) as client:
    client.rm_file(os.fspath(where))


def copy(source: Where, target: Where) -> None:
  with _requests_to(source) as client:
    client.cp_file(os.fspath(source), os.fspath(target))


def listing(folder: Where, pattern: str) -> list[Path]:
  """List a pattern's matches, sorted; each slash goes down one folder."""
  names, _, rest = pattern.partition('/')
  with _requests_to(folder) as client:
    try:
      entries = client.ls(os.fspath(folder), detail=True)
    except (FileNotFoundError, NotADirectoryError):
      return []
  key, here = f'{_key(folder)}/', path(folder)
  inside = [entry for entry in entries if entry['name'].startswith(key) and entry['name'] != key]  # not the folder
  kinds = {here / entry['name'].removeprefix(key).rstrip('/'): entry['type'] for entry in inside}
  matching = sorted(name for name in kinds if fnmatch.fnmatchcase(name.name, names))
  if not rest:
    return matching
  below = [name for name in matching if kinds[name] == 'directory']
  with ThreadPoolExecutor(_AT_ONCE) as pool:
    return sorted(itertools.chain.from_iterable(pool.map(lambda name: listing(name, rest), below)))


def objects(folder: Where) -> dict[str, About]:
  """Map the names of all objects below a folder to their `About`."""
  with _requests_to(folder) as client:
    try:
      entries = client.find(os.fspath(folder), detail=True)
    except FileNotFoundError:
      return {}
  key = f'{_key(folder)}/'
  return {
    name.removeprefix(key): _about(entry)
    for name, entry in sorted(entries.items())
    if name.startswith(key) and not name.endswith('/')
  }


def remove_objects(folder: Where, names: Iterable[str]) -> None:
  """Remove objects by their names below a folder."""
  _for_each(lambda name: remove(path(folder) / name), names)


def move(source: Where, target: Where, *, marks: Iterable[str] = ()) -> None:
  """Copy an object or a folder, then remove the source.

  If the process is killed, either the source or the target is complete and marked. `marks` are the names of the objects
  that mark a folder as complete: copied last, removed first.
  """
  source, target = path(source), path(target)
  if is_file(source):
    copy(source, target)
    remove(source)
    return
  marks = tuple(marks)
  names = [name for name in objects(source) if name not in marks]
  marked = [name for name in marks if is_file(source / name)]
  _for_each(lambda name: copy(source / name, target / name), names)
  for name in marked:
    copy(source / name, target / name)
  for name in reversed(marked):
    remove(source / name)
  remove_objects(source, names)


def _for_each(function: Any, names: Iterable[str]) -> None:
  with ThreadPoolExecutor(_AT_ONCE) as pool:
    for _ in pool.map(function, names):
      pass


@contextlib.contextmanager
def locked(where: Where, *, doing: str, wait: bool) -> Iterator[None]:
  """Hold a lock in a store while the body runs.

  The lock is an object that its holder rewrites every `BEAT` seconds, since no system releases the locks of a killed
  process. A lock is free once it is unchanged for `LEASE` seconds, or at once if its holder is an ended process of this
  machine. Clocks are not compared. Raises BlockingIOError: another process holds it, and `wait` is False; the message
  names the process.
  """
  own = {'host': socket.gethostname(), 'pid': os.getpid(), 'token': uuid.uuid4().hex, 'doing': doing, 'beat': 0}
  while not create(where, json.dumps(own).encode()):
    holder = _live_holder(where)
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
    except OSError as error:  # the body is done: no reason to fail
      log.warning('%s could not be removed and is free in %.0f s: %s', where, LEASE, error)


def _live_holder(where: Where) -> dict[str, Any] | None:
  """Return the live holder of a lock; None once removed."""
  first = _read_lock(where)
  if not first:
    return None
  if not _has_ended_here(first):
    log.info('%s is held by process %s on %s: checking for %.0f s that it is alive', where, first.get('pid'),
             first.get('host'), LEASE)  # fmt: skip
    until = time.monotonic() + LEASE
    while time.monotonic() < until:
      time.sleep(min(1.0, BEAT / 5))
      now = _read_lock(where)
      if now != first:
        return now or None
  log.warning('%s was held by a process that has ended: the lock is removed', where)
  if _read_lock(where) == first:
    remove(where)
  return None


def _has_ended_here(holder: dict[str, Any]) -> bool:
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
  try:
    content = json.loads(read(where))
  except FileNotFoundError:
    return {}
  except ValueError:
    return {'token': 'unreadable'}
  return content if isinstance(content, dict) else {'token': 'unreadable'}


def _beat(where: Where, own: dict[str, Any], ended: threading.Event) -> None:
  """Rewrite the lock until its holder has ended or has lost it."""
  while not ended.wait(BEAT):
    try:
      if _read_lock(where).get('token') != own['token']:
        log.error('%s was taken by another process: two processes write to this folder, stop one of them', where)
        return
      own['beat'] += 1
      write(where, json.dumps(own).encode())
    except OSError as error:  # the next write may succeed
      log.warning('%s could not be written again: %s', where, error)
