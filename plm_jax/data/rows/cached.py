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
_MAPPED = 2**22  # bytes of an array that is mapped instead of read
_HEAD = 65  # bytes of a checksum in hex and a line feed


def cached(tokens: store.Tokens, name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Return `make()`, stored as `<name>.npz` next to the tokens.

  The file has a checksum in hex, a line feed and numpy's format. Large arrays are mapped. It is made again if it is
  damaged, or from an earlier version without a checksum. One of many processes makes it.
  """
  if tokens.folder is None:
    return make()
  path = tokens.folder / f'{name}.npz'
  digest = name.rpartition('-')[2]
  if not files.exists(path):
    made.missing('rows', digest=digest, folder=path)
  with files.locked(tokens.folder / f'{name}.lock', doing='planning its rows'):
    if not (exists := (arrays := _read(path)) is not None):
      _write(path, make())
      arrays = _arrays(path)
  made.tell('rows', digest=digest, folder=path, size='', found=exists)
  assert arrays is not None
  return arrays


def _read(path: Path) -> dict[str, np.ndarray] | None:
  if files.is_file(path):
    with files.open(path, 'rb') as file:
      head = file.read(_HEAD)
      if f'{_sha256_of_rest(file)}\n'.encode() == head:
        with contextlib.suppress(ValueError, OSError, zipfile.BadZipFile):
          return _arrays(path)
    log.warning('%s is damaged, or from an earlier version: making it again.', path)
  return None


def _arrays(path: Path) -> dict[str, np.ndarray]:
  arrays = {}
  with files.open(path, 'rb') as file:
    for info in zipfile.ZipFile(file).infolist():
      file.seek(info.header_offset + 26)
      names = sum(np.frombuffer(file.read(4), '<u2').tolist())  # bytes of the name and the extra field
      file.seek(names, 1)
      if info.file_size < _MAPPED:
        array = np.lib.format.read_array(file, allow_pickle=False)
      else:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        array = files.map_array(path, dtype, offset=file.tell(), shape=shape)
      arrays[info.filename.removesuffix('.npy')] = array
  return arrays


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
