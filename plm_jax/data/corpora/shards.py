"""Shards: many files as one split, by a pattern or by names such as train-00000-of-00041.parquet.

Files are in the order of their paths. Each is read by the format of its suffix, one at a time: in order and in bounded
memory, also from a store. Their rows are counted once, and the counts are stored in the cache by each file's digest.
"""

import contextlib
import fnmatch
import hashlib
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened
from plm_jax.io import files, object_store

log = logging.getLogger(__name__)

_SPLITS = ('train', 'validation', 'valid', 'val', 'dev', 'test')
_SHARD = re.compile(r'(?P<rest>.*?)[-._]?(?P<index>\d+)[-_]of[-_](?P<count>\d+)(-\w+)?')
_WILD = re.compile(r'[*?[]')
_AT_ONCE = 8  # files that are counted at the same time


def is_pattern(path: str) -> bool:
  """Return True for wildcards, unless a file has this name."""
  return bool(_WILD.search(path)) and not files.exists(path)


def matching(pattern: str) -> list[Path]:
  """List a pattern's files by path; * matches within a name."""
  parts = pattern.split('/')
  wild = next(index for index, part in enumerate(parts) if _WILD.search(part))
  folder = files.path('/'.join(parts[:wild]) or ('/' if wild else '.'))
  return sorted(files.listing(folder, '/'.join(parts[wild:])), key=lambda file: str(file).split('/'))


def split_of(stem: str, *, pattern: bool) -> str:
  """Return the split of a file name without suffix.

  'train-00000-of-00041' and 'c4-train.00000-of-01024' are of 'train'. A `pattern` without such a word is 'train'.
  """
  match = _SHARD.fullmatch(stem)
  rest = match['rest'] if match else stem
  word = re.split('[-._ ]', rest)[-1]
  if (match or pattern) and word in _SPLITS:
    return word
  return 'train' if pattern else rest or 'train'


def _reading(file: Path) -> AbstractContextManager[None]:
  return object_store.reading(file) if files.is_address(file) else contextlib.nullcontext()


class Shards(Sequence[local.Row]):
  """Rows of several files in order. One file is open at a time."""

  def __init__(self, shards: Sequence[Path], counts: Sequence[int], open_shard: Callable[[Path], Opened]):
    self._shards, self._open_shard, self._ends = shards, open_shard, np.cumsum(counts)
    self._last: tuple[int, Sequence[Any]] = -1, ()

  def __len__(self) -> int:
    return int(self._ends[-1])

  def __getstate__(self) -> dict[str, Any]:
    return {**self.__dict__, '_last': (-1, ())}

  def __getitem__(self, index: int) -> local.Row:  # type: ignore[override]  # no slices
    with _reading(self._shards[0]):
      _, rows, own = self._find(index)
      return rows[own]

  def place(self, index: int) -> str:
    """Return file and line of a row, for messages."""
    shard, rows, own = self._find(index)
    locate = getattr(rows, 'place', lambda _: str(self._shards[shard]))
    return locate(own)

  def _find(self, index: int) -> tuple[int, Sequence[Any], int]:
    shard, (last, rows) = int(np.searchsorted(self._ends, index, side='right')), self._last
    if last != shard:
      rows = self._open_shard(self._shards[shard]).rows
      self._last = shard, rows
    return shard, rows, index - int(self._ends[shard - 1] if shard else 0)


def opened(shards: Sequence[Path], open_shard: Callable[[Path], Opened], *, cache: str, form: str, path: str) -> Opened:
  """Open the rows of shards; count them first, each once.

  `form` names the format and its settings. Raises ValueError that names a damaged shard.
  """

  def count(file: Path) -> str:
    def counted() -> str:
      try:
        with _reading(file):
          rows = open_shard(file)
      except local.NoRows:
        return '0 0 empty'
      return f'{len(rows.rows)} {expected_tokens(file)} {rows.digest}'

    digest = local.File(file).digest(cache=cache)
    return local.remembered(cache, f'rows of {digest} {form}', counted)

  log.info('%s: %d files, from %s to %s', path, len(shards), shards[0].name, shards[-1].name)
  with ThreadPoolExecutor(_AT_ONCE) as pool:
    about = [text.split(' ', 2) for text in pool.map(count, shards)]
  rows = [int(count) for count, _, _ in about]
  if not sum(rows):
    raise local.NoRows(f'{path} holds no rows')
  digest = hashlib.sha256('\n'.join(digest for _, _, digest in about).encode()).hexdigest()
  return Opened(Shards(shards, rows, open_shard), f'{digest} shards', tokens=sum(int(tokens) for _, tokens, _ in about))


def expected_tokens(file: Path) -> int:
  """Estimate tokens: one in four bytes, or in two compressed ones."""
  return files.size(file) // (2 if file.name.endswith(('.parquet', *local.COMPRESSED)) else 4)


def groups(stems: Mapping[Path, str], *, path: str, wild: bool) -> dict[str, list[Path]]:
  """Group the files of a folder or (`wild`) pattern by split.

  `stems` are their names without suffix. Raises ValueError if a shard is missing that the pattern would match, or two
  files of a folder are not shards.
  """
  pattern = path.rpartition('/')[2] if wild else '*'
  by_split: dict[str, list[Path]] = defaultdict(list)
  shards: dict[tuple[Path, str, int], dict[int, str]] = defaultdict(dict)
  for file, stem in stems.items():
    split, match = split_of(stem, pattern=wild), _SHARD.fullmatch(stem)
    if by_split[split] and not wild and not (match and _SHARD.fullmatch(stems[by_split[split][-1]])):
      other = by_split[split][-1].name
      raise ValueError(f'{path} holds both {other} and {file.name} for the split {split!r}: remove one')
    by_split[split].append(file)
    if match:
      shards[file.parent, match['rest'], int(match['count'])][int(match['index'])] = file.name
  for (folder, _, count), present in shards.items():
    name = next(iter(present.values()))
    digits = re.search(r'\d+(?=[-_]of[-_]\d)', name)
    first = str(next((index for index in range(count) if index not in present), ''))
    missing = f'{name[: digits.start()]}{first:>0{len(digits[0])}}{name[digits.end() :]}' if digits and first else ''
    if missing and fnmatch.fnmatchcase(missing, pattern):
      varied = [at for at, letters in enumerate(zip(*present.values(), strict=False)) if len({*letters}) > 1]
      for at in varied if len(varied) == 1 else ():  # a pattern of up to ten shards
        name = f'{name[:at]}[{"".join(sorted({own[at] for own in present.values()}))}]{name[at + 1 :]}'
      raise ValueError(
        f'{path} has {len(present):,} of {count:,} shards, without {missing}: fetch the others, or name those to read, '
        f'such as {str(folder / name)!r}'
      )
  return by_split
