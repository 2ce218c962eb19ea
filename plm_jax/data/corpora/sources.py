"""Access to text and labelled data: the embedded data, TensorFlow Datasets, local files.

A path is one of

    pydocs, pydocs/<task>           the embedded corpus and its tasks (`corpora/pydocs.py`)
    tfds:<name>[/<config>]          any TensorFlow Datasets set, read as ArrayRecord without TensorFlow
    parallel:<folder>               files <split>.<field> with parallel lines, such as train.en and train.de
    superglue:<folder>              MultiRC, ReCoRD and WSC as SuperGLUE publishes them
    <file>                          .txt, .jsonl, .csv, .tsv, .parquet, .conll, .conllu, .json (lines, or of SQuAD),
                                    each also with .gz or .zst after it: one split, 'train'
    <folder>                        <split>.<any of those>, with labels.json for the names of classes, or shards such as
                                    <split>-00000-of-00041.parquet; or the folder of a prepared set of TensorFlow
                                    Datasets
    <pattern>                       files by name, such as data/*/*.jsonl.zst (`shards.py`): splits by words of the
                                    names, or one split, 'train'

Files, folders and patterns are local, or at gs://, s3:// or hf://datasets/<owner>/<name>.

A split is a name with an optional slice, as in TFDS: 'train', 'train[:90%]', 'train[10:20]', 'train[-5%:]',
'train[:10]+test'. 'train[:90%shuffled]' counts rows in a random order (`splits.py`). A file of `formats/` reads the
path: the one whose scheme the path begins with, else the one that recognises the folder by a file in it, else the one
of the suffix.
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
from plm_jax.data.corpora import local, pydocs, shards, splits
from plm_jax.data.corpora.filters import FilterStats, filter_documents
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.corpora.records import PROGRESS, REPORT, Opened, Records, Texts, is_words
from plm_jax.io import downloads, files

__all__ = ['Boundary', 'FilterStats', 'Records', 'Texts', 'documents', 'filter_documents', 'open_source']

CACHE = pydocs.CACHE
LABELS = 'labels.json'
_NAMING = 'train'  # the split whose rows determine the classes
_JUDGED_BY = ('validation', 'valid', 'val', 'dev')  # names of the validation split
_TRIED = 100  # rows that are tried if the first cannot be read
_QUICK_BYTES = 2**26  # largest file that a check opens


def open_source(
  path: str,
  *,
  split: str = 'train',
  cache: str = CACHE,
  documents: Boundary = 'blank_line',
  max_bytes: int = local.MAX_BYTES,
) -> Records:
  """Open the rows of one split.

  Raises FileNotFoundError: the file does not exist. Raises ValueError: the data set, split or suffix does not exist, or
  a file is empty or cannot be read. Raises ModuleNotFoundError: a package that the data set needs is not installed.

  Args:
    path: see the module.
    split: a name and an optional slice, or several joined by '+'.
    cache: folder of everything cached and downloaded.
    documents: end of a document of a .txt file: 'blank_line', 'line', 'every_line' (including blank lines), or only the
      end of the 'file'. CRLF and CR are read as line feeds, except in an 'exact_file'.
    max_bytes: most bytes of a row.
  """
  pieces, digests, tokens = [], [], 0
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
    tokens += opened.tokens * len(chosen) // len(opened.rows)
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
    tokens=tokens,
  )


def _naming(path: str, split: str, **settings: Any) -> Records:
  """Open rows that determine classes: training, else the whole split; or raise."""
  try:
    return open_source(path, split=_NAMING, **settings)
  except (ValueError, FileNotFoundError):
    whole = splits.parse(split, path=path)[0].name
    if whole == split:
      raise
    return open_source(path, split=whole, **settings)


def _first_fields(rows: Sequence[Mapping[str, Any]], chosen: Sequence[int]) -> tuple[str, ...]:
  first_error = None
  for index in chosen[:_TRIED]:
    try:
      return tuple(rows[index])
    except ValueError as error:
      first_error = first_error or error
  raise first_error or ValueError('no rows')


def opens_quickly(path: str, *, split: str) -> bool:
  """Return False for a large local file; raise as `open_source`."""
  for part in splits.parse(split, path=path):
    _, location = _find(path, part.name)
    if isinstance(location, str):
      continue
    if (len(location) > 1 and files.is_address(path)) or sum(map(files.size, location)) > _QUICK_BYTES:
      return False
  return True


def splits_of(path: str) -> tuple[str, ...] | None:
  """List local splits, or raise FileNotFoundError; None for other data."""
  formats = build.files_of('data.corpora.formats')
  if any(_has_scheme(path, form.SCHEME) for form in formats.values()):
    return None
  folder = files.path(path)
  if shards.is_pattern(path):
    return tuple(_split_files(path, formats))
  if not files.is_folder(folder):
    return (_NAMING,)
  marked = any(form.matches(folder) for form in formats.values() if getattr(form, 'matches', None))
  return None if marked else tuple(_split_files(path, formats))


def training_and_held_out(path: str) -> tuple[str, str]:
  """Return the split for training and one for validation.

  The latter is a tenth of the former if there is no other. Raises FileNotFoundError as `splits_of`.
  """
  names = splits_of(path)
  if names is None:
    return _NAMING, _JUDGED_BY[0]
  only_split = len(names) == 1 and names[0] not in (*_JUDGED_BY, 'test')
  training = names[0] if only_split else _NAMING
  if validation := next((name for name in _JUDGED_BY if name in names), None):
    return training, validation
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
  """Open the documents of a corpus.

  Raises ValueError: a field or a setting does not exist, or several fields are possible; and as `open_source`.

  Args:
    path, split, cache, documents, max_bytes: as for `open_source`.
    text: field of strings or lists of words; by default `text`, or the only field with a string.
    by_tokens: accept a slice by tokens; `Texts.split` is the slice that the caller has to apply.
    quality: settings of `filter_documents`; None keeps all documents. Reads every document once.
  """
  rows = splits.without_tokens(split, path=path) if by_tokens else split
  records = open_source(path, split=rows, cache=cache, documents=documents, max_bytes=max_bytes)
  sample = _sample(records)
  strings = _strings(sample)
  if text is None:
    first = _strings(records[0])  # a second field whose first value is null does not count
    candidates = first if len(first) == 1 else strings
    text = 'text' if 'text' in strings else candidates[0] if len(candidates) == 1 else None
  if text is None or (text not in strings and not is_words(sample.get(text))):
    strings = strings or [field for field, value in sample.items() if is_words(value)]
    problem = 'no single field of text' if text is None else f'no text in a field {text!r}'
    raise ValueError(
      f'{path!r} has {problem}: set data.text to one of {", ".join(strings) or "(none)"}.'
      f'{errors.suggest(text or "", strings)}'
    )
  digest = hashlib.sha256(f'{records.digest}/{text}'.encode()).hexdigest()
  every = Texts(records, text, digest, split=None if rows == split else split)
  return every if quality is None else _filtered(every, quality=quality)


def _strings(row: Mapping[str, Any]) -> list[str]:
  return [field for field, value in row.items() if isinstance(value, str)]


def _sample(records: Records) -> dict[str, Any]:
  """Return the first row, with null fields filled from later rows."""
  row = records[0]
  for index in range(1, min(_TRIED, len(records))):
    if None not in row.values():
      break
    with contextlib.suppress(ValueError):  # reported when it is read
      row |= {field: value for field, value in records[index].items() if row.get(field) is None}
  return row


def _filtered(texts: Texts, *, quality: Mapping[str, Any]) -> Texts:
  keywords = signatures.keywords('data.corpora.filters', 'filter_documents')
  del keywords['text']
  for name, value in quality.items():
    if name not in keywords:
      raise ValueError(
        f'data.quality has no setting {name!r}.{errors.suggest(name, keywords)} Choose from {", ".join(keywords)}.'
      )
    try:
      values.coerce(keywords[name].annotation, value)
    except TypeError as error:
      raise ValueError(f'quality.{name}: {error}') from error
  chosen, stats = filter_documents(range(len(texts)), text=texts.__getitem__, **quality)
  settings = json.dumps(dict(quality), sort_keys=True)
  digest = hashlib.sha256(f'{texts.digest}/{settings}'.encode()).hexdigest()
  return dataclasses.replace(texts, digest=digest, chosen=chosen, stats=stats)


def _open(path: str, split: str, *, cache: str, max_bytes: int, **settings: Any) -> Opened:
  """Open one whole split in the path's only format, or raise."""
  name, location = _find(path, split)
  formats = build.files_of('data.corpora.formats')
  accepted = inspect.signature(formats[name].open).parameters
  given = {key: settings[key] for key in settings if key in accepted}
  for key in settings.keys() - accepted.keys():
    default = inspect.signature(open_source).parameters[key].default
    if settings[key] != default:
      others = [form for form in formats.values() if key in inspect.signature(form.open).parameters]
      raise ValueError(
        f'data.{key}={settings[key]!r} is only for {", ".join(suffix for form in others for suffix in form.SUFFIXES)}; '
        f'{path!r} is read as {name}: set {key}={default!r}'
      )
  if isinstance(location, str):
    bound = {'max_bytes': max_bytes} if 'max_bytes' in accepted else {}
    return formats[name].open(location, split, cache, **given, **bound)
  opened = functools.partial(_open_file, name=name, split=split, cache=cache, max_bytes=max_bytes, given=given)
  if len(location) > 1:
    rows = shards.opened(location, opened, cache=cache, form=f'{name} {max_bytes} {given}', path=path)
  else:
    file = downloads.fetched(location[0], cache)
    rows = dataclasses.replace(opened(file), tokens=shards.expected_tokens(file))
  return dataclasses.replace(rows, labels={**rows.labels, **_labels(location[0].parent / LABELS)})


def _open_file(file: Path, *, name: str, split: str, cache: str, max_bytes: int, given: Mapping[str, Any]) -> Opened:
  opened = local.File.at(file, max_bytes=max_bytes)
  return build.files_of('data.corpora.formats')[name].open(opened, split, cache, **given)


def _find(path: str, split: str) -> tuple[str, str | list[Path]]:
  """Find the format of a path and the files to read.

  Raises FileNotFoundError for a missing path, ValueError for a missing split, and if no or two formats read it.
  """
  formats = build.files_of('data.corpora.formats')
  if name := _only(path, (name for name, form in formats.items() if _has_scheme(path, form.SCHEME))):
    return name, path
  location = files.path(path)
  pattern = shards.is_pattern(path)
  if not pattern and not files.exists(location):
    near = errors.suggest(location.name, [sibling.name for sibling in files.listing(location.parent)])
    raise FileNotFoundError(f'there is no file or folder {path!r}.{near} {_kinds(formats)}')
  if not pattern and files.is_folder(location):
    if files.exists(location / PROGRESS) and not files.exists(location / REPORT):
      raise ValueError(
        f'{path!r} is incomplete: `plm-jax corpus` was stopped there. Repeat the command to continue, or remove the '
        'folder'
      )
    marks = {name: form.matches for name, form in formats.items() if getattr(form, 'matches', None)}
    if name := _only(path, (name for name, matches in marks.items() if matches(location))):
      return name, str(location)
  found = [location]
  if pattern or files.is_folder(location):
    split_files = _split_files(path, formats)
    shard = [file for found in split_files.values() for file in found if file.name.startswith(f'{split}.')]
    if split in split_files or len(shard) != 1:
      splits.check(split, list(split_files), path=path)
    found = split_files.get(split, shard)
  else:
    splits.check(split, ('train',), path=path)
  name = _only(str(found[0]), (name for name, form in formats.items() if _has_suffix(found[0], form.SUFFIXES)))
  if name is None:
    raise ValueError(
      f'{location} has none of the suffixes {", ".join(_suffixes(formats))} (or one of them and .gz or .zst)'
    )
  if other := next((file.name for file in found if not _has_suffix(file, formats[name].SUFFIXES)), None):
    raise ValueError(f'{path!r} has {found[0].name} and {other} for {split!r}: name files of one kind by a pattern')
  return name, found


def _only(path: str, names: Iterable[str]) -> str | None:
  claims = list(names)
  if len(claims) > 1:
    files_of_them = ' and '.join(signatures.path(f'data.corpora.formats.{name}') for name in claims)
    raise ValueError(f'{path!r} is claimed by {files_of_them}: each path must belong to one format')
  return claims[0] if claims else None


def _has_scheme(path: str, scheme: str | None) -> bool:
  if scheme is None:
    return False
  return path == scheme or path.startswith(scheme if scheme.endswith(':') else f'{scheme}/')


def _has_suffix(file: Path, suffixes: tuple[str, ...]) -> bool:
  return local.unzipped(file.name).endswith(suffixes)


def _suffixes(formats: Mapping[str, Any]) -> tuple[str, ...]:
  return tuple(suffix for form in formats.values() for suffix in form.SUFFIXES)


def _split_files(path: str, formats: Mapping[str, Any]) -> dict[str, list[Path]]:
  """Map splits to the files of a folder or pattern, or raise."""
  suffixes, pattern = _suffixes(formats), shards.is_pattern(path)
  stems: dict[Path, str] = {}
  for file in shards.matching(path) if pattern else files.listing(files.path(path)):
    if _has_suffix(file, suffixes) and not file.name.startswith('.') and file.name != LABELS:
      name = local.unzipped(file.name)
      stems[file] = name.removesuffix(next(suffix for suffix in suffixes if name.endswith(suffix)))
  if not stems:
    expected = 'matches no file' if pattern else f'holds no file named <split>{" or <split>".join(suffixes)}'
    raise FileNotFoundError(f'{path} {expected}. {_kinds(formats)}')
  return shards.groups(stems, path=path, wild=pattern)


def _labels(file: Path) -> dict[str, tuple[str, ...]]:
  try:
    content = files.read_json(file, default={})
  except (OSError, ValueError) as error:
    raise ValueError(f'{file} is not valid JSON: {error}') from error
  lists = isinstance(content, dict) and all(isinstance(names, list) for names in content.values())
  if not lists or not all(isinstance(name, str) for names in content.values() for name in names):
    raise ValueError(f'{file} must list the classes of each field, as in {{"label": ["no", "yes"]}}')
  return {field: tuple(names) for field, names in content.items()}


def _kinds(formats: Mapping[str, Any]) -> str:
  schemes = [form.SCHEME for form in formats.values() if form.SCHEME]
  named = [f"'{scheme}<name>'" if scheme.endswith(':') else f"'{scheme}'" for scheme in schemes]
  return f'A path is {", ".join(named)}, a folder, or a file or pattern ending in {", ".join(_suffixes(formats))}'
