"""Parallel text, 'parallel:FOLDER': files `<split>.<field>` with parallel lines, such as train.en and train.de.

A row has a field for each file of the split: {'en': 'A dog .', 'de': 'Ein Hund .'}. Blank lines count as well, so that
lines stay aligned. The name 'newstest2014.de-en.de' has the split 'newstest2014.de-en'.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from plm_jax.data.corpora import local, splits
from plm_jax.data.corpora.records import Opened
from plm_jax.io import downloads, files

SUFFIXES = ()
SCHEME = 'parallel:'


def open(path: str, split: str, cache: str, *, max_bytes: int = local.MAX_BYTES) -> Opened:
  """Open the lines of the files of a split."""
  sides = _sides(path, split, cache=cache, max_bytes=max_bytes)
  rows = {field: local.Rows(file, local.line_spans(file.lines(), blank=True), parse) for field, file in sides.items()}
  if len({len(side) for side in rows.values()}) > 1:
    counts = ', '.join(f'{file.path} has {len(rows[field]):,}' for field, file in sides.items())
    raise ValueError(f'{path}: the files of a split must have the same number of lines but {counts}')
  digests = ' '.join(f'{field} {file.digest(cache=cache)}' for field, file in sides.items())
  return Opened(Rows(rows), f'{digests} lines')


def parse(text: str) -> local.Row:
  """Parse one line of one file."""
  return {'text': text.strip()}


class Rows(Sequence[local.Row]):
  """The lines of several files side by side."""

  def __init__(self, sides: Mapping[str, local.Rows]):
    self.sides = dict(sides)

  def __len__(self) -> int:
    return len(next(iter(self.sides.values())))

  def __getitem__(self, index: int) -> local.Row:  # type: ignore[override]  # no slices
    return {field: side[index]['text'] for field, side in self.sides.items()}

  def place(self, index: int) -> str:
    """Return file and line, of the first file or first unreadable line."""
    for side in self.sides.values():
      try:
        side[index]
      except ValueError:
        return side.place(index)
    return next(iter(self.sides.values())).place(index)


def _sides(path: str, split: str, *, cache: str, max_bytes: int) -> dict[str, local.File]:
  """Return field -> file, sorted; raise for a missing folder or split."""
  folder = files.path(path.removeprefix(SCHEME))
  if not files.is_folder(folder):
    raise FileNotFoundError(f'{path!r}: there is no folder {folder}')
  by_split: dict[str, dict[str, Path]] = defaultdict(dict)
  for file in files.listing(folder):
    name, dot, field = local.unzipped(file.name).rpartition('.')
    if name and dot and files.is_file(file):
      if field in by_split[name]:
        raise ValueError(f'{folder} holds both {by_split[name][field].name} and {file.name}: remove one')
      by_split[name][field] = file
  parallel = {name: sides for name, sides in by_split.items() if len(sides) > 1}
  splits.check(split, sorted(parallel), path=path)
  chosen = sorted(parallel[split].items())
  return {
    field: local.File.at(downloads.fetched(file, cache), max_bytes=max_bytes, whole=True) for field, file in chosen
  }
