"""Files that are there whole or not at all, their digests, and locks between processes."""

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger('plm_jax')


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
  """A path to write to; at the end of the body the file is flushed to disk and takes the place of `path`."""
  temporary = path.with_name(f'{path.name}.{os.getpid()}.tmp')
  try:
    yield temporary
    with temporary.open('rb') as file:
      os.fsync(file.fileno())
    temporary.replace(path)
  finally:
    temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
  """Writes a text file so that a reader, or a killed process, sees the old one or the new one."""
  with replacing(path) as temporary:
    temporary.write_text(text, encoding='utf-8')


def sha256(path: Path) -> str:
  """The hex sha256 of a file's bytes."""
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


@contextlib.contextmanager
def locked(path: Path, *, doing: str) -> Iterator[None]:
  """Holds a lock between processes, waiting for it if need be; the system lets go of it however a process ends."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with path.open('w') as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      log.info('%s: waiting for another process that is %s', path.parent, doing)
      fcntl.flock(file, fcntl.LOCK_EX)
    yield
