"""Local text and JSON-lines files as random-access rows, and their digests.

A plain file stays on disk: only the offset of each row is kept. A gzip file has no random access and is held in memory.
"""

import array
import contextlib
import gzip
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from plm_jax import files

SUFFIXES = ('.txt', '.txt.gz', '.jsonl', '.jsonl.gz')

Boundary = Literal['blank_line', 'line', 'file']
BOUNDARIES: tuple[Boundary, ...] = ('blank_line', 'line', 'file')


class FileRows(Sequence[dict[str, Any]]):
  """The rows of one file: the objects of a .jsonl, or `{'text': ...}` for each document of a .txt.

  Opens the file anew for each row, so it may be shared by threads and sent to other processes.

  Raises:
    ValueError: no rows, an unknown suffix, or, on reading, a row that is not valid JSON or UTF-8.
  """

  def __init__(self, path: Path, *, documents: Boundary = 'blank_line'):
    self.path = path
    self.is_json = suffix(path).startswith('.jsonl')
    self._content = _unzip(path) if path.name.endswith('.gz') else None
    # Pairs of start and end, in bytes.
    self._spans = array.array('q')
    with self._open() as file:
      for start, end in _blocks(file, 'line' if self.is_json else documents):
        self._spans.extend((start, end))
    if not self._spans:
      raise ValueError(f'{path} holds no rows')

  def __len__(self) -> int:
    return len(self._spans) // 2

  def __getitem__(self, index: int) -> dict[str, Any]:  # type: ignore[override]  # no slices
    start, end = self._spans[2 * index], self._spans[2 * index + 1]
    with self._open() as file:
      file.seek(start)
      line = file.read(end - start)
    try:
      text = line.decode('utf-8-sig').strip('\r\n')
      row = json.loads(text) if self.is_json else {'text': text}
    except UnicodeDecodeError as error:
      raise ValueError(f'{self._place(start)}: not valid UTF-8 ({error.reason}); convert the file') from error
    except json.JSONDecodeError as error:
      raise ValueError(f'{self._place(start)}: not valid JSON ({error.msg} at character {error.pos})') from error
    if not isinstance(row, dict):
      raise ValueError(f'{self._place(start)}: a JSON object is needed, got {type(row).__name__}')
    return row

  def _open(self) -> contextlib.AbstractContextManager[Any]:
    return open(self.path, 'rb') if self._content is None else io.BytesIO(self._content)

  def _place(self, start: int) -> str:
    with self._open() as file:
      return f'{self.path}, line {file.read(start).count(10) + 1}'


def suffix(path: Path) -> str:
  """The one of `SUFFIXES` that the file's name ends with.

  Raises:
    ValueError: none does.
  """
  for known in sorted(SUFFIXES, key=len, reverse=True):
    if path.name.endswith(known):
      return known
  raise ValueError(f'{path} is none of {", ".join(SUFFIXES)}')


def split_files(folder: Path) -> dict[str, Path]:
  """Split name -> file, for a folder that holds `<split>.<suffix>`.

  Raises:
    FileNotFoundError: the folder holds no such file.
    ValueError: two files for one split.
  """
  found: dict[str, Path] = {}
  for path in sorted(folder.iterdir()):
    if path.name.endswith(SUFFIXES) and not path.name.startswith('.'):
      split = path.name.removesuffix(suffix(path))
      if split in found:
        raise ValueError(f'{folder} holds both {found[split].name} and {path.name} for the split {split!r}: remove one')
      found[split] = path
  if not found:
    raise FileNotFoundError(f'{folder} holds no file named <split>{" or <split>".join(SUFFIXES)}')
  return found


def digest(path: Path, *, cache: str) -> str:
  """SHA-256 of a file's bytes; remembered under `cache` for as long as path, size and time of change stay the same."""
  status = path.stat()
  key = hashlib.sha256(f'{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}'.encode()).hexdigest()
  known = Path(cache).expanduser() / 'digests' / key
  if known.exists():
    return known.read_text()
  result = files.sha256(path)
  known.parent.mkdir(parents=True, exist_ok=True)
  files.write_text(known, result)
  return result


def _unzip(path: Path) -> bytes:
  try:
    return gzip.decompress(path.read_bytes())
  except (gzip.BadGzipFile, EOFError) as error:
    raise ValueError(f'{path} is not a whole gzip file: {error}') from error


def _blocks(file: Any, documents: Boundary) -> Iterator[tuple[int, int]]:
  """Start and end of each row: a line, the lines between blank lines, or all."""
  if documents not in BOUNDARIES:
    raise ValueError(f'documents={documents!r} is none of {", ".join(BOUNDARIES)}')
  start, here, inside = 0, 0, False
  for line in file:
    blank = not line.strip()
    if inside and documents != 'file' and (blank or documents == 'line'):
      yield start, here
      inside = False
    if not blank and not inside:
      start, inside = here, True
    here += len(line)
  if inside:
    yield start, here
