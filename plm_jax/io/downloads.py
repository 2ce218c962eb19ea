"""Local files for URLs: growing files that are uploaded from time to time, and cached downloads.

Nothing can be appended to an object in a store, and libraries open local files only. So a growing file is stored here
and uploaded whole from time to time (`Mirror`). Data are copied to the local cache by downloads that can be resumed
(`fetched`).
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

EVERY = 60.0  # seconds between two automatic uploads of a growing file
SHARE = 0.05  # largest share of the time for these uploads
_PIECE, _AT_ONCE = 2**23, 8  # bytes of one download request, and requests at a time
_ABOUT = 'copied.json'


class Mirror:
  """A local file that is uploaded to a URL whole. For a local path it is that file, and nothing is uploaded.

  `send` uploads now. `due` uploads at most once in `EVERY` seconds, and less often for long files, so that uploads take
  no more than `SHARE` of the time.

  Attributes:
    file: to be read and written.
  """

  def __init__(self, file: Where):
    """Copy the file at the URL, if there is one."""
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
    """Upload the file if it is time; retry failures later."""
    if self._address is not None and time.monotonic() - self._last > max(EVERY, self._took / SHARE):
      try:
        self.send()
      except OSError as error:
        self._last = time.monotonic()
        log.warning('%s could not be uploaded and will be tried again: %s', self._address, error)

  def send(self) -> None:
    """Upload the file now; raise OSError if that fails."""
    if self._address is not None and files.is_file(self.file):
      began = time.monotonic()
      object_store.send(self.file, self._address)
      self._last = time.monotonic()
      self._took = self._last - began

  def close(self) -> None:
    """Upload the file and remove the local copy."""
    try:
      self.send()
    finally:
      self._stack.close()


def publish(folder: Path, target: Path, *, mark: str, replaced: Iterable[str] = ()) -> None:
  """Upload a local folder, `mark` last, without which readers ignore the folder.

  If the process is killed, the URL has the old content, or no mark; the same call repairs it.

  Args:
    target: the URL; files there are replaced by name.
    mark: the name of a file of `folder`.
    replaced: names of files at the URL to remove, unless `folder` has them.
  """
  names = list(files.sizes_below(folder))
  object_store.remove(target / mark)
  for name in names:
    if name != mark:
      object_store.send(folder / name, target / name)
  for name in set(replaced) - set(names):
    object_store.remove(target / name)
  object_store.send(folder / mark, target / mark)


def fetched(where: Where, cache: Where) -> Path:
  """Return a local path, or the local copy of a URL.

  Copies are stored by URL, each file with its sha256, and downloaded again if the object has changed. An interrupted
  download is resumed. Raises FileNotFoundError: nothing at the URL. Raises RunError: the downloaded bytes are not those
  of the store.

  Args:
    where: a path or a URL; a folder is copied with everything below it.
    cache: the local folder of all caches.
  """
  source = files.path(where)
  if not files.is_address(where):
    return source
  name = hashlib.sha256(str(source).encode()).hexdigest()[:24]
  folder = files.local_path(cache, what='data.cache') / 'copies' / name
  with files.locked(folder / '.lock', doing=f'copying {where}'):
    if files.is_file(source):
      return fetched_file(source, folder, source.name)
    names = object_store.objects(source)
    if not names:
      raise FileNotFoundError(f'nothing found at {where}')
    for below in names:
      fetched_file(source / below, folder, f'{source.name}/{below}')
    for gone in files.sizes_below(folder / source.name).keys() - set(names):
      files.remove(folder / source.name / gone)
    return folder / source.name


def fetched_file(source: Path, folder: Path, name: str) -> Path:
  """Copy one object to `folder / name`, unless the copy is current.

  An interrupted copy is resumed. A record of the copy is stored next to it. Two processes must not copy to one file at
  a time. It raises RunError as `fetched`.
  """
  target, record = folder / name, folder / f'{_ABOUT}.d' / f'{hashlib.sha256(name.encode()).hexdigest()[:24]}.json'
  about, version = object_store.about(source), object_store.version(source)
  recorded = _read(record)
  wanted = {'address': str(source), 'bytes': about.size, 'version': version}
  if {key: recorded.get(key) for key in wanted} == wanted and _is_whole(target, recorded):
    return target
  part = target.with_name(f'{target.name}.part')
  if {key: recorded.get(key) for key in wanted} != wanted or 'content' in recorded:
    files.remove(part)
    files.make_folder(target.parent)
    files.make_folder(record.parent)
    files.write_json(record, checksums.sealed(wanted))  # before the first byte: identifies the partial file
  _download(source, part, about)
  received = checksums.digest(part, like=checksums.MD5) if about.md5 else ''
  if about.md5 and received != f'{checksums.MD5}{about.md5}':
    files.remove(part)
    raise RunError(f'{source}: the downloaded file has another MD5 than the store reports; run the same command again')
  sha256 = files.sha256(part)
  files.move(part, target)
  files.write_json(record, checksums.sealed({**wanted, 'content': sha256, 'modified': files.modified_ns(target)}))
  log.info('%s: %d bytes in %s, sha256 %s', source, about.size, target, sha256[:12])
  return target


def _download(source: Path, part: Path, about: object_store.About) -> None:
  """Append the missing bytes to a partial file, in order."""
  files.append(part, '')
  done = files.size(part)
  if done:
    log.info('%s: resuming at byte %d of %d', source, done, about.size)
  elif about.size > _PIECE:
    log.info('%s: copying %d bytes', source, about.size)
  with files.open(part, 'ab') as stream, ThreadPoolExecutor(_AT_ONCE) as pool:
    while done < about.size:
      stops = [min(about.size, done + _PIECE * count) for count in range(1, _AT_ONCE + 1)]
      pieces = [(start, stop) for start, stop in zip([done, *stops], stops, strict=False) if start < stop]
      for content in pool.map(lambda piece: object_store.read(source, *piece), pieces):
        stream.write(content)
        done += len(content)
      files.flush_to_disk(stream)


def _is_whole(target: Path, recorded: dict[str, Any]) -> bool:
  """Check that a copy is unchanged, by its time or checksum."""
  if 'content' not in recorded or not files.is_file(target) or files.size(target) != recorded['bytes']:
    return False
  return files.modified_ns(target) == recorded['modified'] or files.sha256(target) == recorded['content']


def _read(record: Path) -> dict[str, Any]:
  try:
    content = files.read_json(record, default={})
  except ValueError:
    return {}
  return content if isinstance(content, dict) and checksums.holds(content) else {}
