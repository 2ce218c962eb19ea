"""Compiled programs that a command stores for the next one, in a private folder of the user.

`JAX_COMPILATION_CACHE_DIR=` (empty) turns it off, another value replaces the folder; jax and its compiler are part of
the key of a program. A file that fails its checksum (zlib) is removed, and its program compiled again.
"""

import functools
import hashlib
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

from plm_jax.io import files

FOLDER, SECONDS, SIZE = (
  'JAX_COMPILATION_CACHE_DIR',
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS',
  'JAX_COMPILATION_CACHE_MAX_SIZE',
)
_MOST = 2 * 2**30  # bytes; the programs that were not used for the longest time are removed


def keep() -> None:
  """Set the environment of jax before its import, unless it is set."""
  if FOLDER in os.environ:
    return
  base = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  folder = files.path(base) / 'plm_jax' / 'programs' / _cpu()
  try:
    files.make_folder(folder)
    os.chmod(folder, 0o700)  # fails in a folder of another user
  except (OSError, ValueError):
    return
  os.environ[FOLDER] = str(folder)
  os.environ.setdefault(SECONDS, '0.3')
  os.environ.setdefault(SIZE, str(_MOST))
  warnings.showwarning = functools.partial(_show, warnings.showwarning, folder)


def _show(otherwise: Callable[..., None], folder: files.Path, message: Any, *about: Any, **more: Any) -> None:
  """Show a warning; remove the files of one about a stored program."""
  damaged = re.search(r"reading persistent compilation cache entry for '([^']*)'", str(message))
  if damaged is None:
    return otherwise(message, *about, **more)
  for file in files.listing(folder, f'{damaged.group(1)}-*'):
    files.remove(file)


def _cpu() -> str:
  """Return a digest of the CPU's model and instructions."""
  try:
    lines = files.read_text(files.path('/proc/cpuinfo')).splitlines()
  except OSError:
    lines = []
  about = sorted({line for line in lines if line.startswith(('model name', 'flags', 'Features', 'CPU part'))})
  return hashlib.sha256('\n'.join([os.uname().machine, *about]).encode()).hexdigest()[:12]
