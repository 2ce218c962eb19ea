"""One door to text and examples: the embedded data, TensorFlow Datasets, local files.

A path is one of

    pydocs, pydocs/<task>           the embedded corpus and its tasks (`plm_jax/data/pydocs.py`)
    tfds:<name>[/<config>]          any TensorFlow Datasets set, read as ArrayRecord without TensorFlow
    <file>                          .txt, .txt.gz, .jsonl, .jsonl.gz: one split, 'train'
    <folder>                        <split>.<any of those>, with labels.json for the names of classes

and a split is a name with an optional slice, as in TFDS: 'train', 'train[:90%]', 'train[10:20]', 'train[-5%:]',
'train[:10]+test'.
"""

import dataclasses
import difflib
import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plm_jax.data.corpora import local, pydocs
from plm_jax.data.corpora.filters import FilterStats, filter_documents
from plm_jax.data.corpora.records import Opened, Records, Texts

__all__ = ['FilterStats', 'Records', 'Texts', 'documents', 'filter_documents', 'open_source']

CACHE = pydocs.CACHE

_SLICE = re.compile(r'\s*([\w.\-]+)\s*(?:\[\s*(-?\d+%?)?\s*:\s*(-?\d+%?)?\s*\])?\s*$')


def open_source(
  path: str, *, split: str = 'train', cache: str = CACHE, documents: local.Boundary = 'blank_line'
) -> Records:
  """The rows of one split.

  Args:
    path: see the module.
    split: a name and an optional slice, or several joined by '+'.
    cache: folder of everything cached and downloaded.
    documents: what ends a document of a .txt file: 'blank_line', 'line', or only the end of the 'file'.

  Raises:
    FileNotFoundError: no such file.
    ValueError: no such data set, split or suffix, an empty file, or a file that cannot be read.
    ModuleNotFoundError: a package that the data set needs is not installed.
  """
  opened = _open(path, cache=cache, documents=documents)
  pieces, digests = [], []
  for name, start, stop in _parse(split, path=path, splits=opened.splits):
    rows = opened.rows(name)
    chosen = range(_bound(start, 0, rows=len(rows), split=split), _bound(stop, len(rows), rows=len(rows), split=split))
    if not chosen:
      raise ValueError(f'split {split!r} of {path!r} holds no row: {name!r} has {len(rows):,}')
    pieces.append((rows, chosen))
    digests.append(f'{opened.digest(name)}[{chosen.start}:{chosen.stop}]')
  first = pieces[0][0][pieces[0][1][0]]
  classes = tuple(opened.labels.values())
  return Records(
    fields=tuple(first),
    digest=hashlib.sha256('\n'.join(digests).encode()).hexdigest(),
    names=opened.labels.get('label', classes[0] if len(classes) == 1 else ()),
    labels=opened.labels,
    description=f'{path} {split}: {sum(len(chosen) for _, chosen in pieces):,} rows',
    pieces=tuple(pieces),
  )


def documents(
  path: str,
  *,
  split: str = 'train',
  cache: str = CACHE,
  text: str | None = None,
  documents: local.Boundary = 'blank_line',
  quality: Mapping[str, Any] | None = None,
) -> Texts:
  """The documents of a corpus.

  Args:
    path, split, cache, documents: as for `open_source`.
    text: the field to read; by default `text`, or the only field that holds a string.
    quality: settings of `filter_documents`, by which documents are dropped; None keeps all. Reads every document once.

  Raises:
    ValueError: there is no such field or setting, or no field that is plainly meant; and as `open_source`.
  """
  records = open_source(path, split=split, cache=cache, documents=documents)
  strings = [field for field, value in records[0].items() if isinstance(value, str)]
  if text is None:
    text = 'text' if 'text' in strings else strings[0] if len(strings) == 1 else None
  if text not in strings:
    wanted = 'no single field of text' if text is None else f'no text in a field {text!r}'
    raise ValueError(
      f'{path!r} has {wanted}; text=... takes one of {", ".join(strings) or "(none)"}{_near(text, strings)}'
    )
  digest = hashlib.sha256(f'{records.digest}/{text}'.encode()).hexdigest()
  every = Texts(records, text, digest)
  return every if quality is None else _filtered(every, quality=quality)


def _filtered(texts: Texts, *, quality: Mapping[str, Any]) -> Texts:
  known = sorted(set(inspect.signature(filter_documents).parameters) - {'documents', 'text'})
  for name in quality:
    if name not in known:
      raise ValueError(f'no setting {name!r} of a filter; there are {", ".join(known)}{_near(name, known)}')
  chosen, stats = filter_documents(range(len(texts)), text=texts.__getitem__, **quality)
  settings = json.dumps(dict(quality), sort_keys=True)
  digest = hashlib.sha256(f'{texts.digest}/{settings}'.encode()).hexdigest()
  return dataclasses.replace(texts, digest=digest, chosen=chosen, stats=stats)


def _open(path: str, *, cache: str, documents: local.Boundary) -> Opened:
  if path == 'pydocs' or path.startswith('pydocs/'):
    from plm_jax.data.corpora import tfds_sets

    name = path.removeprefix('pydocs').removeprefix('/') or 'corpus'
    if name not in pydocs.SETS:
      known = ['pydocs', *(f'pydocs/{task}' for task in pydocs.SETS[1:])]
      raise ValueError(f'no embedded data {path!r}; there are {", ".join(known)}{_near(path, known)}')
    folders = pydocs.prepare(cache=cache)
    if name not in folders:
      raise ValueError(f'{path!r} holds no row')
    return tfds_sets.from_folder(folders[name])
  if path.startswith('tfds:'):
    from plm_jax.data.corpora import tfds_sets

    return tfds_sets.from_name(path.removeprefix('tfds:'), cache=cache)
  place = Path(path).expanduser()
  if not place.exists():
    raise FileNotFoundError(f'no file or folder {path!r}{_near(place.name, _siblings(place))}; {_kinds()}')
  if place.is_dir() and (place / 'dataset_info.json').exists():
    from plm_jax.data.corpora import tfds_sets

    return tfds_sets.from_folder(place)
  return _open_files(place, cache=cache, documents=documents)


def _open_files(place: Path, *, cache: str, documents: local.Boundary) -> Opened:
  files = local.split_files(place) if place.is_dir() else {'train': place}
  labels = place / 'labels.json' if place.is_dir() else place.parent / 'labels.json'
  known = json.loads(labels.read_text()) if labels.exists() else {}

  def digest(split: str) -> str:
    way = documents if local.suffix(files[split]).startswith('.txt') else 'rows'
    return f'{local.digest(files[split], cache=cache)} {way}'

  return Opened(
    splits=tuple(files),
    rows=lambda split: local.FileRows(files[split], documents=documents),
    digest=digest,
    labels={field: tuple(names) for field, names in known.items()},
  )


def _parse(split: str, *, path: str, splits: Sequence[str]) -> list[tuple[str, str | None, str | None]]:
  """(name, start, stop) of each part of a split."""
  parts = []
  for part in split.split('+'):
    match = _SLICE.match(part)
    if match is None or match[1] not in splits:
      name = part.split('[')[0].strip()
      raise ValueError(
        f'no split {split!r} in {path!r}: there are {", ".join(splits)}, each with an optional slice such as '
        f"'{splits[0]}[:90%]' or '{splits[0]}[10:20]'{_near(name, [known for known in splits if known != name])}. "
        f"To hold a part out: data.split='{splits[0]}[:95%]' and eval.NAME.data.split='{splits[0]}[95%:]'"
      )
    parts.append((match[1], match[2], match[3]))
  return parts


def _bound(given: str | None, default: int, *, rows: int, split: str) -> int:
  """A bound of a slice as a row: counts or percent, from the end where negative; percent round to the nearest row."""
  if given is None:
    return default
  number = int(given.rstrip('%'))
  count = round(rows * number / 100) if given.endswith('%') else number
  if abs(number) > (100 if given.endswith('%') else rows):
    raise ValueError(f'split {split!r} asks for row {given}, and there are {rows:,}')
  return count + rows if given.startswith('-') else count


def _near(name: str | None, known: Sequence[str]) -> str:
  close = difflib.get_close_matches(name or '', known, n=3)
  return f'; did you mean {" or ".join(map(repr, close))}?' if close else ''


def _siblings(place: Path) -> list[str]:
  return [path.name for path in place.parent.iterdir()] if place.parent.is_dir() else []


def _kinds() -> str:
  return "a path is 'pydocs', 'pydocs/<task>', 'tfds:<name>', a folder, or a file ending in " + ', '.join(
    local.SUFFIXES
  )
