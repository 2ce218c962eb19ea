"""Arrays that are derived from a token store, and stored next to it."""

import contextlib
import hashlib
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from plm_jax.data import made
from plm_jax.data.rows import store
from plm_jax.io import files

log = logging.getLogger(__name__)
_HEAD = 65  # bytes of a checksum in hex and a line feed


def cached(tokens: store.Tokens, name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Return `make()`, stored as `<name>.npz` next to the tokens.

  The file has a checksum in hex, a line feed and numpy's format. It is made again if it is damaged, or from an earlier
  version without a checksum. One of many processes makes it.
  """
  if tokens.folder is None:
    return make()
  path = tokens.folder / f'{name}.npz'
  digest = name.rpartition('-')[2]
  if not files.exists(path):
    made.missing('rows', digest=digest, folder=path)
  with files.locked(tokens.folder / f'{name}.lock', doing='planning its rows'):
    if not (exists := (arrays := _read(path)) is not None):
      arrays = make()
      _write(path, arrays)
  made.tell('rows', digest=digest, folder=path, size='', found=exists)
  assert arrays is not None
  return arrays


def _read(path: Path) -> dict[str, np.ndarray] | None:
  if files.is_file(path):
    with files.open(path, 'rb') as file:
      head = file.read(_HEAD)
      if f'{_sha256_of_rest(file)}\n'.encode() == head:
        file.seek(_HEAD)
        with contextlib.suppress(ValueError, OSError, zipfile.BadZipFile), np.load(file, allow_pickle=False) as saved:
          return dict(saved)
    log.warning('%s is damaged, or from an earlier version: making it again.', path)
  return None


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
  with files.replacing(path) as part:
    with files.open(part, 'wb') as file:
      file.write(bytes(_HEAD))
      np.savez(file, allow_pickle=False, **arrays)
    with files.open(part, 'r+b') as file:
      file.seek(_HEAD)
      digest = _sha256_of_rest(file)
      file.seek(0)
      file.write(f'{digest}\n'.encode())


def _sha256_of_rest(file: BinaryIO) -> str:
  return hashlib.file_digest(file, 'sha256').hexdigest()  # type: ignore[arg-type]  # `open` gives BufferedIOBase
