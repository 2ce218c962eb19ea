"""One door to text and examples: the embedded data, TensorFlow Datasets, local files.

A path is one of

    pydocs, pydocs/<task>           the embedded corpus and its tasks (`corpora/pydocs.py`)
    tfds:<name>[/<config>]          any TensorFlow Datasets set, read as ArrayRecord without TensorFlow
    parallel:<folder>               files <split>.<field> with lines that belong together, as train.en and train.de
    <file>                          .txt, .jsonl, .csv, .tsv, .parquet, .conll, .conllu, .json (of SQuAD), each also
                                    with .gz behind it: one split, 'train'
    <folder>                        <split>.<any of those>, with labels.json for the names of classes; or the folder of
                                    a prepared set of TensorFlow Datasets

and a split is a name with an optional slice, as in TFDS: 'train', 'train[:90%]', 'train[10:20]', 'train[-5%:]',
'train[:10]+test'; 'train[:90%shuffled]' counts rows in an order that is drawn (`splits.py`). What a path is read with
is a file of `formats/`: the one whose scheme the path begins with, else the one that knows the folder by a mark inside
it, else the one that the suffix belongs to.
"""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plm_jax.config import build, signatures, values
from plm_jax.core import errors
from plm_jax.data.corpora import local, pydocs, splits
from plm_jax.data.corpora.filters import FilterStats, filter_documents
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.corpora.records import PROGRESS, REPORT, Opened, Records, Texts, is_words
from plm_jax.io import downloads, files

__all__ = ['Boundary', 'FilterStats', 'Records', 'Texts', 'documents', 'filter_documents', 'open_source']

CACHE = pydocs.CACHE
LABELS = 'labels.json'
_NAMING = 'train'  # the split whose rows decide which classes there are
_JUDGED_BY = ('validation', 'valid', 'val', 'dev')  # names of the split that is not trained on
_TRIED = 100  # rows
_QUICK_BYTES = 2**26  # of a file that is opened to look at it


def open_source(
  path: str,
  *,
  split: str = 'train',
  cache: str = CACHE,
  documents: Boundary = 'blank_line',
  max_bytes: int = local.MAX_BYTES,
) -> Records:
  """The rows of one split.

  Args:
    path: see the module.
    split: a name and an optional slice, or several joined by '+'.
    cache: folder of everything cached and downloaded.
    documents: what ends a document of a .txt file: 'blank_line', 'line', 'every_line' (blank ones too), or only the end
      of the 'file'.
    max_bytes: most bytes of a row, and of what a .gz file holds.

  Raises:
    FileNotFoundError: no such file.
    ValueError: no such data set, split or suffix, an empty file, or a file that cannot be read.
    ModuleNotFoundError: a package that the data set needs is not installed.
  """
  pieces, digests = [], []
  labels: dict[str, tuple[str, ...]] = {}
  for part in splits.parse(split, path=path):
    opened = _open(path, part.name, cache=cache, max_bytes=max_bytes, documents=documents)
    chosen = splits.rows_of(part, rows=len(opened.rows), split=split)
    if not chosen:
      raise ValueError(f'split {split!r} of {path!r} holds no row: {part.name!r} has {len(opened.rows):,}')
    pieces.append((opened.rows, chosen))
    bounds = f'{part.start}:{part.stop}' if part.shuffled else f'{chosen[0]}:{chosen[-1] + 1}'
    digests.append(f'{opened.digest}[{bounds}]')
    labels |= opened.labels
  classes = tuple(labels.values())
  settings: dict[str, Any] = {'cache': cache, 'documents': documents, 'max_bytes': max_bytes}
  return Records(
    fields=_first_fields(*pieces[0]),
    digest=hashlib.sha256('\n'.join(digests).encode()).hexdigest(),
    names=labels.get('label', classes[0] if len(classes) == 1 else ()),
    labels=labels,
    where=f'{path} ({split})',
    pieces=tuple(pieces),
    named_by=None if split == _NAMING else functools.partial(_naming, path, split, **settings),
  )


def _naming(path: str, split: str, **settings: Any) -> Records:
  """The rows whose classes count: those of the training split; where there is none, all of the split that is cut.

  Raises:
    ValueError, FileNotFoundError: there is neither.
  """
  try:
    return open_source(path, split=_NAMING, **settings)
  except (ValueError, FileNotFoundError):
    whole = splits.parse(split, path=path)[0].name
    if whole == split:
      raise
    return open_source(path, split=whole, **settings)


def _first_fields(rows: Sequence[Mapping[str, Any]], chosen: Sequence[int]) -> tuple[str, ...]:
  """The fields of the first row that can be read, of the first hundred.

  Raises:
    ValueError: none of them can, with the reason of the first.
  """
  failed = None
  for number in chosen[:_TRIED]:
    try:
      return tuple(rows[number])
    except ValueError as error:
      failed = failed or error
  raise failed or ValueError('no rows')


def opens_quickly(path: str, *, split: str) -> bool:
  """False for a large local file; raises what `open_source` raises for a path or a split that is not there."""
  for part in splits.parse(split, path=path):
    _, place = _find(path, part.name)
    if not isinstance(place, str) and files.size(place) > _QUICK_BYTES:
      return False
  return True


def splits_of(path: str) -> tuple[str, ...] | None:
  """The splits of a local file or folder; None for other data, which is not opened for it.

  Raises:
    FileNotFoundError: no such file or folder, or no file in it that is read.
  """
  formats = build.files_of('data.corpora.formats')
  if any(_has_scheme(path, form.SCHEME) for form in formats.values()):
    return None
  place = files.path(path)
  if not files.is_folder(place):
    return (_NAMING,)
  marked = any(form.matches(place) for form in formats.values() if getattr(form, 'matches', None))
  return None if marked else tuple(_split_files(place, formats))


def training_and_held_out(path: str) -> tuple[str, str]:
  """The split of a path that is trained on, and one to judge by: a tenth of the former where there is no other.

  Raises:
    FileNotFoundError: as `splits_of`.
  """
  names = splits_of(path)
  if names is None:
    return _NAMING, _JUDGED_BY[0]
  alone = len(names) == 1 and names[0] not in (*_JUDGED_BY, 'test')
  training = names[0] if alone else _NAMING
  if found := next((name for name in _JUDGED_BY if name in names), None):
    return training, found
  return f'{training}[:90%shuffled]', f'{training}[90%shuffled:]'


def documents(
  path: str,
  *,
  split: str = 'train',
  cache: str = CACHE,
  text: str | None = None,
  documents: Boundary = 'blank_line',
  quality: Mapping[str, Any] | None = None,
  max_bytes: int = local.MAX_BYTES,
  by_tokens: bool = False,
) -> Texts:
  """The documents of a corpus.

  Args:
    path, split, cache, documents, max_bytes: as for `open_source`.
    text: the field to read, of strings or of lists of words; by default `text`, or the only one that holds a string.
    by_tokens: take a slice by tokens, of which `Texts.split` is what the caller has to cut.
    quality: settings of `filter_documents`, by which documents are dropped; None keeps all. Reads every document once.

  Raises:
    ValueError: there is no such field or setting, or no field that is plainly meant; and as `open_source`.
  """
  rows = splits.without_tokens(split, path=path) if by_tokens else split
  records = open_source(path, split=rows, cache=cache, documents=documents, max_bytes=max_bytes)
  sample = _sample(records)
  strings = _strings(sample)
  if text is None:
    first = _strings(records[0])  # a second text that begins with null leaves no doubt of this one
    known = first if len(first) == 1 else strings
    text = 'text' if 'text' in strings else known[0] if len(known) == 1 else None
  if text is None or (text not in strings and not is_words(sample.get(text))):
    wanted = 'no single field of text' if text is None else f'no text in a field {text!r}'
    raise ValueError(
      f'{path!r} has {wanted}; text=... takes one of {", ".join(strings) or "(none)"}.'
      f'{errors.suggest(text or "", strings)}'
    )
  digest = hashlib.sha256(f'{records.digest}/{text}'.encode()).hexdigest()
  every = Texts(records, text, digest, split=None if rows == split else split)
  return every if quality is None else _filtered(every, quality=quality)


def _strings(row: Mapping[str, Any]) -> list[str]:
  return [field for field, value in row.items() if isinstance(value, str)]


def _sample(records: Records) -> dict[str, Any]:
  """The first row; a field that is null there as in the first of a hundred rows in which it is not."""
  row = records[0]
  for number in range(1, min(_TRIED, len(records))):
    if None not in row.values():
      break
    with contextlib.suppress(ValueError):  # told where it is read
      row |= {field: value for field, value in records[number].items() if row.get(field) is None}
  return row


def _filtered(texts: Texts, *, quality: Mapping[str, Any]) -> Texts:
  known = signatures.keywords('data.corpora.filters', 'filter_documents')
  del known['text']
  for name, value in quality.items():
    if name not in known:
      raise ValueError(
        f'quality: there is no setting {name!r} of a filter.{errors.suggest(name, known)} There are {", ".join(known)}'
      )
    try:
      values.coerce(known[name].annotation, value)
    except TypeError as error:
      raise ValueError(f'quality.{name}: {error}') from error
  chosen, stats = filter_documents(range(len(texts)), text=texts.__getitem__, **quality)
  settings = json.dumps(dict(quality), sort_keys=True)
  digest = hashlib.sha256(f'{texts.digest}/{settings}'.encode()).hexdigest()
  return dataclasses.replace(texts, digest=digest, chosen=chosen, stats=stats)


# Which format reads a path -----------------------------------------------------------------------------------------


def _open(path: str, split: str, *, cache: str, max_bytes: int, **settings: Any) -> Opened:
  """One whole split, opened by the format that the path belongs to.

  Raises:
    FileNotFoundError: no such file or folder.
    ValueError: no format reads it, or two do; and what the format raises.
  """
  name, place = _find(path, split)
  formats = build.files_of('data.corpora.formats')
  taken = inspect.signature(formats[name].open).parameters
  given = {key: settings[key] for key in settings if key in taken}
  for key in settings.keys() - taken.keys():
    usual = inspect.signature(open_source).parameters[key].default
    if settings[key] != usual:
      takers = [form for form in formats.values() if key in inspect.signature(form.open).parameters]
      raise ValueError(
        f'data.{key}={settings[key]!r} is for {", ".join(suffix for form in takers for suffix in form.SUFFIXES)}, and '
        f'{path!r} is read as {name}, which says itself what a row is: set {key}={usual!r}'
      )
  if isinstance(place, str):
    bound = {'max_bytes': max_bytes} if 'max_bytes' in taken else {}
    return formats[name].open(place, split, cache, **given, **bound)
  here = downloads.fetched(place, cache)
  rows = formats[name].open(local.File.at(here, max_bytes=max_bytes), split, cache, **given)
  return dataclasses.replace(rows, labels={**rows.labels, **_labels(place.parent / LABELS)})


def _find(path: str, split: str) -> tuple[str, str | Path]:
  """The format that reads a path, and what it reads: the path itself, or the local file of the split.

  Raises:
    FileNotFoundError: no such file or folder.
    ValueError: no such split of local files; no format reads them, or two do.
  """
  formats = build.files_of('data.corpora.formats')
  if name := _only(path, (name for name, form in formats.items() if _has_scheme(path, form.SCHEME))):
    return name, path
  place = files.path(path)
  if not files.exists(place):
    near = errors.suggest(place.name, [beside.name for beside in files.listing(place.parent)])
    raise FileNotFoundError(f'there is no file or folder {path!r}.{near} {_kinds(formats)}')
  if files.is_folder(place):
    if files.exists(place / PROGRESS) and not files.exists(place / REPORT):
      raise ValueError(
        f'{path!r} is not whole: a pass of `plm-jax corpus` was stopped there. The same command goes on with '
        'it; or remove the folder'
      )
    marks = {name: form.matches for name, form in formats.items() if getattr(form, 'matches', None)}
    if name := _only(path, (name for name, matches in marks.items() if matches(place))):
      return name, str(place)
    found = _split_files(place, formats)
    splits.check(split, list(found), path=path)
    place = found[split]
  else:
    splits.check(split, ('train',), path=path)
  name = _only(str(place), (name for name, form in formats.items() if _has_suffix(place, form.SUFFIXES)))
  if name is None:
    raise ValueError(f'{place} has none of the suffixes {", ".join(_suffixes(formats))} (or one of them and .gz)')
  return name, place


def _only(path: str, names: Iterable[str]) -> str | None:
  """The one format that claims a path, None where none does.

  Raises:
    ValueError: two formats claim it.
  """
  claims = list(names)
  if len(claims) > 1:
    files_of_them = ' and '.join(signatures.path(f'data.corpora.formats.{name}') for name in claims)
    raise ValueError(f'{path!r} is claimed by {files_of_them}: each path has to belong to one format')
  return claims[0] if claims else None


def _has_scheme(path: str, scheme: str | None) -> bool:
  """'tfds:' begins a path, 'pydocs' is all of it or its first name."""
  if scheme is None:
    return False
  return path == scheme or path.startswith(scheme if scheme.endswith(':') else f'{scheme}/')


def _has_suffix(file: Path, suffixes: tuple[str, ...]) -> bool:
  return file.name.removesuffix(local.ZIPPED).endswith(suffixes)


def _suffixes(formats: Mapping[str, Any]) -> tuple[str, ...]:
  return tuple(suffix for form in formats.values() for suffix in form.SUFFIXES)


def _split_files(folder: Path, formats: Mapping[str, Any]) -> dict[str, Path]:
  """Split name -> file, for a folder that holds `<split><suffix>`.

  Raises:
    FileNotFoundError: the folder holds no such file.
    ValueError: two files for one split.
  """
  known = _suffixes(formats)
  found: dict[str, Path] = {}
  for file in files.listing(folder):
    if _has_suffix(file, known) and not file.name.startswith('.') and file.name != LABELS:
      name = file.name.removesuffix(local.ZIPPED)
      split = name.removesuffix(next(suffix for suffix in known if name.endswith(suffix)))
      if split in found:
        raise ValueError(f'{folder} holds both {found[split].name} and {file.name} for the split {split!r}: remove one')
      found[split] = file
  if not found:
    raise FileNotFoundError(f'{folder} holds no file named <split>{" or <split>".join(known)}. {_kinds(formats)}')
  return found


def _labels(file: Path) -> dict[str, tuple[str, ...]]:
  """Field -> names of its classes, as labels.json has them; empty without the file.

  Raises:
    ValueError: it holds something else.
  """
  try:
    known = files.read_json(file, default={})
  except (OSError, ValueError) as error:
    raise ValueError(f'{file} is not valid JSON: {error}') from error
  lists = isinstance(known, dict) and all(isinstance(names, list) for names in known.values())
  if not lists or not all(isinstance(name, str) for names in known.values() for name in names):
    raise ValueError(f'{file} has to name the classes of each field, as in {{"label": ["no", "yes"]}}')
  return {field: tuple(names) for field, names in known.items()}


def _kinds(formats: Mapping[str, Any]) -> str:
  """What a path can be, for messages."""
  schemes = [form.SCHEME for form in formats.values() if form.SCHEME]
  named = [f"'{scheme}<name>'" if scheme.endswith(':') else f"'{scheme}'" for scheme in schemes]
  return f'A path is {", ".join(named)}, a folder, or a file ending in {", ".join(_suffixes(formats))}'
