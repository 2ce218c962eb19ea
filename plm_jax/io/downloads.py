"""Files of this machine that stand for an address: what is sent there as it grows, and what is copied from there once.

Nothing can be appended to in an object store, and libraries open files of this machine only. So a file that grows is
kept here and sent whole from time to time (`Mirror`), and data are copied to the local cache by downloads that go on
where they stopped (`fetched`).
"""

import contextlib
import hashlib
import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from plm_jax.core.errors import RunError
from plm_jax.io import checksums, files, object_store
from plm_jax.io.files import Where

log = logging.getLogger(__name__)

EVERY = 60.0  # seconds between two times that a growing file is sent by itself
SHARE = 0.05  # of the time, the most that sending may take then
_PIECE, _AT_ONCE = 2**23, 8  # bytes that are asked for by one request of a download, and requests at a time
_ABOUT = 'copied.json'


class Mirror:
  """A file of this machine that is sent to an address whole: when `send` is called, and at most once in `EVERY` seconds
  by `due`, then so rarely that sending a long file takes no more than `SHARE` of the time. For a file of this machine
  it is that file, and nothing is sent.

  Attributes:
    file: to be read and written.
  """

  def __init__(self, file: Where):
    """Copies what is at the address."""
    self._stack = contextlib.ExitStack()
    self._address = files.path(file) if files.is_address(file) else None
    self._last, self._took = time.monotonic(), 0.0
    if self._address is None:
      self.file = files.path(file)
      return
    self.file = self._stack.enter_context(files.temporary_folder()) / self._address.name
    if files.is_file(self._address):
      files.copy(self._address, self.file)

  def due(self) -> None:
    """Sends the file if it is time; a store that does not answer costs a warning, as the next time may go well."""
    if self._address is not None and time.monotonic() - self._last > max(EVERY, self._took / SHARE):
      try:
        self.send()
      except OSError as error:
        self._last = time.monotonic()
        log.warning('%s could not be written and will be tried again: %s', self._address, error)

  def send(self) -> None:
    """Sends the file now; an OSError where that fails."""
    if self._address is not None and files.is_file(self.file):
      began = time.monotonic()
      object_store.send(self.file, self._address)
      self._last = time.monotonic()
      self._took = self._last - began

  def close(self) -> None:
    """Sends the file and removes it from this machine."""
    try:
      self.send()
    finally:
      self._stack.close()


def publish(folder: Path, target: Path, *, mark: str, replaced: Iterable[str] = ()) -> None:
  """Sends a folder of this machine to an address, `mark` last, without which nobody takes what is there.

  A process that is killed meanwhile leaves the folder as it was, or without its mark; the same call repairs it.

  Args:
    folder: whose files are sent.
    target: the address; what is there is replaced, name by name.
    mark: the name of a file of `folder`.
    replaced: names of files at the address that go away, if `folder` has none of that name.
  """
  names = [file.relative_to(folder).as_posix() for file in files.files_below(folder)]
  object_store.remove(target / mark)
  for name in names:
    if name != mark:
      object_store.send(folder / name, target / name)
  for name in set(replaced) - set(names):
    object_store.remove(target / name)
  object_store.send(folder / mark, target / mark)


# Downloads ---------------------------------------------------------------------------------------------------------


def fetched(where: Where, cache: Where) -> Path:
  """A file or a folder of this machine: the path itself, or of an address a copy in the cache.

  Copies are kept by address, each file with its sha256, and made again where the object is another one by now. A
  download that was cut off goes on where it stopped.

  Args:
    where: a path or an address; of a folder everything below it is copied.
    cache: the folder of all that is cached, on this machine.

  Raises:
    FileNotFoundError: nothing there.
    RunError: what arrived is not what the store has.
  """
  place = files.path(where)
  if not files.is_address(where):
    return place
  name = hashlib.sha256(str(place).encode()).hexdigest()[:24]
  folder = files.local_path(cache, what='data.cache') / 'copies' / name
  with files.locked(folder / '.lock', doing=f'copying {where}'):
    if files.is_file(place):
      return fetched_file(place, folder, place.name)
    names = object_store.objects(place)
    if not names:
      raise FileNotFoundError(f'there is nothing at {where}')
    for below in names:
      fetched_file(place / below, folder, f'{place.name}/{below}')
    for gone in set(_relative(folder / place.name)) - set(names):
      files.remove(folder / place.name / gone)
    return folder / place.name


def _relative(folder: Path) -> list[str]:
  return [file.relative_to(folder).as_posix() for file in files.files_below(folder)]


def fetched_file(source: Path, folder: Path, name: str) -> Path:
  """Copies one object to `folder / name`, unless that is a copy of it already; goes on where a call was cut off.

  What is known of the copy stays beside it. Two processes must not copy to one file at a time.

  Raises:
    RunError: what arrived is not what the store has.
  """
  target, record = folder / name, folder / f'{_ABOUT}.d' / f'{hashlib.sha256(name.encode()).hexdigest()[:24]}.json'
  about, version = object_store.about(source), object_store.version(source)
  known = _read(record)
  wanted = {'address': str(source), 'bytes': about.size, 'version': version}
  if {key: known.get(key) for key in wanted} == wanted and _is_whole(target, known):
    return target
  part = target.with_name(f'{target.name}.part')
  if {key: known.get(key) for key in wanted} != wanted or 'content' in known:
    files.remove(part)
    files.make_folder(target.parent)
    files.make_folder(record.parent)
    files.write_json(record, checksums.sealed(wanted))  # before the first byte: whose bytes these are
  _download(source, part, about)
  found = files.digest(part, like=files.MD5) if about.md5 else ''
  if about.md5 and found != f'{files.MD5}{about.md5}':
    files.remove(part)
    raise RunError(f'{source}: what arrived has another MD5 than what the store has; run the same command again')
  sha256 = files.sha256(part)
  files.move(part, target)
  files.write_json(record, checksums.sealed({**wanted, 'content': sha256, 'modified': files.modified_ns(target)}))
  log.info('%s: %d bytes in %s, sha256 %s', source, about.size, target, sha256[:12])
  return target


def _download(source: Path, part: Path, about: object_store.About) -> None:
  """Adds to a part what it lacks, some pieces at a time, in their order."""
  files.append(part, '')
  done = files.size(part)
  if done:
    log.info('%s: going on at byte %d of %d', source, done, about.size)
  elif about.size > _PIECE:
    log.info('%s: copying %d bytes', source, about.size)
  with files.open(part, 'ab') as stream, ThreadPoolExecutor(_AT_ONCE) as pool:
    while done < about.size:
      stops = [min(about.size, done + _PIECE * number) for number in range(1, _AT_ONCE + 1)]
      pieces = [(start, stop) for start, stop in zip([done, *stops], stops, strict=False) if start < stop]
      for content in pool.map(lambda piece: object_store.read(source, *piece), pieces):
        stream.write(content)
        done += len(content)
      files.flush_to_disk(stream)


def _is_whole(target: Path, known: dict[str, Any]) -> bool:
  """Whether a copy is as it was written: untouched by its time, or else by its digest."""
  if 'content' not in known or not files.is_file(target) or files.size(target) != known['bytes']:
    return False
  return files.modified_ns(target) == known['modified'] or files.sha256(target) == known['content']


def _read(record: Path) -> dict[str, Any]:
  """What is known of a copy; empty where that is nothing, or damaged."""
  try:
    known = files.read_json(record, default={})
  except ValueError:
    return {}
  return known if isinstance(known, dict) and checksums.holds(known) else {}
