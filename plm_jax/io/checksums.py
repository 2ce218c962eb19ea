"""Checksums of files that are read again, so that damage and edits by hand are detected.

A run folder has checksums of its settings and its result, converted weights of all small files, a vocabulary of both of
its files. They are in `SHA256SUMS` of the folder, in the format of `sha256sum -c`. Folders of earlier versions have no
checksums and are accepted without. A single file of JSON, or a line of one, has its checksum inside (`write_sealed`).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from plm_jax.core.errors import RunError
from plm_jax.io import files

SUMS = 'SHA256SUMS'
MD5 = 'md5:'  # prefix of MD5 digests


def digest(file: files.Where, *, like: str = '') -> str:
  """Compute a digest: hex sha256, or 'md5:' and hex MD5.

  Args:
    file: an object in a store gives the MD5 that the store has recorded, without reading the object.
    like: a digest to compare with; the result is of the same kind.
  """
  recorded = files.store_of(file).md5(file) if not like or like.startswith(MD5) else ''
  if recorded:
    return f'{MD5}{recorded}'
  if not like.startswith(MD5):
    return files.sha256(file)
  with files.open(file, 'rb') as stream:
    return f'{MD5}{hashlib.file_digest(stream, "md5").hexdigest()}'  # type: ignore[arg-type]


def write(folder: files.Where, contents: Mapping[str, str]) -> None:
  """Write text files of a folder and their checksums, for `check`.

  At every moment each file has one of its checksums: the old ones are kept until the new files are written. The folder
  exists; `contents` maps names to texts.
  """
  folder = files.path(folder)
  old = _sums(folder)
  before = {name: old.get(name) or _digests_of(folder / name) for name in contents}
  after = {name: [hashlib.sha256(text.encode()).hexdigest()] for name, text in contents.items()}
  _write_sums(folder, {**old, **{name: [*before[name], *after[name]] for name in contents}})
  for name, text in contents.items():
    files.write_text(folder / name, text)
  _write_sums(folder, {**old, **after})


def seal(folder: files.Where, names: Iterable[str]) -> None:
  """Write the checksums of files that are already in a folder."""
  folder = files.path(folder)
  _write_sums(folder, {name: _digests_of(folder / name) for name in names})


def check(file: files.Where) -> None:
  """Raise RunError if a file differs from its checksum in `SUMS`."""
  file = files.path(file)
  for _ in range(2):  # twice: another process may have written it in between
    expected = _sums(file.parent).get(file.name)
    if not expected or not files.is_file(file) or files.sha256(file) in expected:
      return
  raise RunError(
    f'{file} is damaged or was edited: its sha256 is not the one in {SUMS}. Restore the file; to use it as it is, copy '
    f'it to another folder or remove {SUMS}'
  )


def check_all(folder: files.Where) -> None:
  """Check every file that `SUMS` of a folder lists."""
  folder = files.path(folder)
  for name in _sums(folder):
    check(folder / name)


def read_json(file: files.Where, **default: Any) -> Any:
  """Check a file, then read it as `files.read_json`; raise what both raise."""
  check(file)
  return files.read_json(file, **default)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
  """Add the checksum of plain data to it, as 'sha256'."""
  return {**content, 'sha256': _sha256(content)}


def holds(content: Mapping[str, Any]) -> bool:
  """Check that plain data has the checksum that `sealed` added, or none."""
  return content.get('sha256', _sha256(content)) == _sha256(content)


def unsealed(content: Any) -> Any:
  """Remove the checksum of `sealed`; raise ValueError if it does not hold."""
  if not isinstance(content, Mapping):
    raise ValueError('not a JSON object')
  if not holds(content):
    raise ValueError('its sha256 is not that of its content')
  return {name: value for name, value in content.items() if name != 'sha256'}


def write_sealed(file: files.Where, content: Mapping[str, Any], *, indent: int | None = 2) -> None:
  """Write an object and its checksum to one file, for `read_sealed`."""
  files.write_json(file, sealed(content), indent=indent)


def read_sealed(file: files.Where, **default: Any) -> Any:
  """Read what `write_sealed` or older versions wrote; raise ValueError if changed."""
  return unsealed(files.read_json(file, **default))


def digest_of_plain(content: Any) -> str:
  """Compute the sha256 of plain data in a form that JSON preserves."""
  return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(content: Mapping[str, Any]) -> str:
  return digest_of_plain({name: value for name, value in content.items() if name != 'sha256'})


def _digests_of(file: Path) -> list[str]:
  return [files.sha256(file)] if files.is_file(file) else []


def _sums(folder: Path) -> dict[str, list[str]]:
  """Read `SUMS` of a folder: name -> checksums; empty without that file."""
  sums: dict[str, list[str]] = {}
  if files.is_file(folder / SUMS):
    for line in files.read_bytes(folder / SUMS).decode(errors='replace').splitlines():
      digest, _, name = line.partition('  ')
      sums.setdefault(name, []).append(digest)
  return sums


def _write_sums(folder: Path, digests: Mapping[str, Iterable[str]]) -> None:
  lines = [f'{digest}  {name}\n' for name, of_file in digests.items() for digest in dict.fromkeys(of_file)]
  files.write_text(folder / SUMS, ''.join(lines))
