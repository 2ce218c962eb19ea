"""Digests beside files that are read again: whoever wrote them is who changes them.

The folder of a run seals its settings and its result, that of an import everything small, that of a vocabulary both of
its files. The digests are `SHA256SUMS` of the folder, in the form of `sha256sum -c`. Folders that were written before
there were digests have none, and what has none is taken as it is. A table that stands alone has its digest in itself.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from plm_jax.core.errors import RunError
from plm_jax.io import files

SUMS = 'SHA256SUMS'


def write(folder: files.Where, contents: Mapping[str, str]) -> None:
  """Writes text files of a folder and their digests, to `SUMS`, so that `check` finds any change of them.

  At every moment each file fits one of its digests: those of before stay until the new files are there.

  Args:
    folder: which exists.
    contents: name -> text.
  """
  folder = files.path(folder)
  known = _sums(folder)
  before = {name: known.get(name) or _digests_of(folder / name) for name in contents}
  after = {name: [hashlib.sha256(text.encode()).hexdigest()] for name, text in contents.items()}
  _write_sums(folder, {**known, **{name: [*before[name], *after[name]] for name in contents}})
  for name, text in contents.items():
    files.write_text(folder / name, text)
  _write_sums(folder, {**known, **after})


def seal(folder: files.Where, names: Iterable[str]) -> None:
  """Writes the digests of files that are in a folder already."""
  folder = files.path(folder)
  _write_sums(folder, {name: _digests_of(folder / name) for name in names})


def check(file: files.Where) -> None:
  """Compares a file with its digest in `SUMS` beside it; one that has none, or does not exist, passes.

  Raises:
    RunError: it was changed after it was written.
  """
  file = files.path(file)
  for _ in range(2):  # another process may have written it between the two readings
    expected = _sums(file.parent).get(file.name)
    if not expected or not files.is_file(file) or files.sha256(file) in expected:
      return
  raise RunError(
    f'{file} is not as it was written: it is damaged, or was edited (its sha256 is not the one in {SUMS} beside it). '
    f'Put back what was there; to use it as it is now, copy it to another folder, or remove {SUMS}'
  )


def check_all(folder: files.Where) -> None:
  """`check` of every file that `SUMS` of a folder names."""
  folder = files.path(folder)
  for name in _sums(folder):
    check(folder / name)


def read_json(file: files.Where, **default: Any) -> Any:
  """`files.read_json` of a file that is as it was written; raises what `check` raises, too."""
  check(file)
  return files.read_json(file, **default)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
  """Plain data with its own digest in it, as 'sha256'."""
  return {**content, 'sha256': _sha256(content)}


def holds(content: Mapping[str, Any]) -> bool:
  """Whether plain data is as `sealed` made it, or without a digest."""
  return content.get('sha256', _sha256(content)) == _sha256(content)


def _sha256(content: Mapping[str, Any]) -> str:
  """Of plain data without its own digest."""
  own = {name: value for name, value in content.items() if name != 'sha256'}
  return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def _digests_of(file: Path) -> list[str]:
  return [files.sha256(file)] if files.is_file(file) else []


def _sums(folder: Path) -> dict[str, list[str]]:
  """Name -> digests, as `SUMS` of a folder has them; empty without that file."""
  found: dict[str, list[str]] = {}
  if files.is_file(folder / SUMS):
    for line in files.read_bytes(folder / SUMS).decode(errors='replace').splitlines():
      digest, _, name = line.partition('  ')
      found.setdefault(name, []).append(digest)
  return found


def _write_sums(folder: Path, digests: Mapping[str, Iterable[str]]) -> None:
  lines = [f'{digest}  {name}\n' for name, known in digests.items() for digest in dict.fromkeys(known)]
  files.write_text(folder / SUMS, ''.join(lines))
