"""TensorFlow Datasets sets, read as ArrayRecord without TensorFlow.

Importing this file imports `tensorflow_datasets`.
"""

import bisect
import contextlib
import functools
import hashlib
import itertools
import logging
import os
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from plm_jax.core import errors
from plm_jax.data import made
from plm_jax.data.corpora import splits, tfds_folders
from plm_jax.data.corpora.records import Opened
from plm_jax.io import files

_FORMAT = 'array_record'
# sets that TFDS makes with Apache Beam -> their text as shards, its bytes, and hours of one core to tokenise it
_PUBLISHED = {
  'wiki40b': 'google/wiki40b/en (6 GB, 2 hours',
  'wikipedia': 'wikimedia/wikipedia/20231101.en (12 GB, 3 hours',
  'c4': 'allenai/c4/en (305 GB, 105 hours',
}


def from_folder(folder: Path, split: str, *, path: str) -> Opened:
  """Open a split of a prepared set in its version folder.

  The folder is `.../<name>/<config>/<version>`; `path` is for messages. Raises ValueError for no such split, a set
  without random access, or a folder that is damaged or names code.
  """
  tfds_folders.check(folder)
  builder = _read(lambda: tfds.builder_from_directory(str(folder)), where=folder)
  return _opened(builder, split, path=path)


def from_name(name: str, split: str, *, cache: str) -> Opened:
  """Open a split of a set by name, as in `tfds.builder`.

  Searches `<cache>/tfds`, then TFDS's own folder ($TFDS_DATA_DIR, or ~/tensorflow_datasets). A missing set is prepared
  under `<cache>/tfds`. Raises ValueError for no such set or split, a set that cannot be downloaded or read, or a folder
  that names code, and ModuleNotFoundError if a package that is needed to prepare it is not installed.
  """
  return _opened(_prepared(name, cache=cache), split, path=f'tfds:{name}')


def _prepared(name: str, *, cache: str) -> tfds.core.DatasetBuilder:
  folder = tfds_folders.check_name(name)
  own = files.local_path(cache, what='data.cache') / 'tfds'
  tell = functools.partial(made.tell, 'files of a data set', digest=name, folder=own / folder, size='')
  shared = os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets'
  for data_dir in (one for one in (own, files.path(shared)) if files.is_folder(one / folder)):
    tfds_folders.check_all(data_dir / folder)
    with quiet():
      builder = _builder(name, data_dir=data_dir)
      prepared = builder.is_prepared()
    if prepared:
      tell(found=True)
      return builder
  with quiet():
    builder = _builder(name, data_dir=own)
  if isinstance(builder, tfds.core.BeamBasedBuilder):  # takes days; C4 waits for a key press
    published = _PUBLISHED.get(builder.name)
    raise ValueError(
      f'tfds:{name} is not in {own}, and TFDS makes it with Apache Beam: bash launch/corpus.sh tfds {name}'
      + (f', or read the path hf://datasets/{published} of one core to tokenise)' if published else '')
    )
  made.missing('files of a data set', digest=name, folder=own / folder)
  command = f'python -m tensorflow_datasets.scripts.cli.main build {name} --file_format={_FORMAT} --data_dir={own}'
  with files.locked(own / f'.{builder.name}.lock', doing=f'preparing {builder.name}'), quiet():
    if not (exists := builder.is_prepared()):
      version = files.path(builder.data_path)
      for incomplete in files.listing(version.parent, f'{version.name}.incomplete*'):  # of a process that was killed
        files.remove_folder(incomplete)
      try:
        _check_network(builder)
        builder.download_and_prepare(file_format=_FORMAT)
      except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
          f'tfds:{name} needs {error.name}, which is not installed: pip install {error.name}; or run this where it is '
          f'installed and copy the folder: {command}'
        ) from error
      except (OSError, tfds.download.DownloadError, ValueError, AssertionError) as error:
        raise ValueError(f'tfds:{name} could not be prepared ({error}); prepare it with: {command}') from error
  tell(found=exists)
  return builder


def _check_network(builder: tfds.core.DatasetBuilder) -> None:
  """Raise OSError if a host is missing, which TFDS tries for minutes."""
  if not urllib.request.getproxies():
    for url in builder.url_infos or ():
      host = urllib.parse.urlsplit(url).hostname
      try:
        socket.getaddrinfo(host, None)
      except socket.gaierror as error:
        raise OSError(f'{host} cannot be reached: is there a network?') from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Hide the warnings of TFDS about folders that do not exist yet."""
  logger = logging.getLogger('absl')
  level = logger.level
  logger.setLevel(logging.ERROR)
  try:
    yield
  finally:
    logger.setLevel(level)


def _builder(name: str, *, data_dir: Path) -> tfds.core.DatasetBuilder:
  # TFDS registers the sets of these folders when they are imported.
  import tensorflow_datasets.question_answering
  import tensorflow_datasets.summarization
  import tensorflow_datasets.text
  import tensorflow_datasets.text_simplification
  import tensorflow_datasets.translate  # noqa: F401

  bare = re.split('[/:]', name)[0]
  try:
    return tfds.builder(name, data_dir=str(data_dir), file_format=_FORMAT)
  except tfds.core.DatasetNotFoundError as error:
    hint = errors.suggest(bare, tfds.list_builders(with_community_datasets=False))
    raise ValueError(f'TensorFlow Datasets has no {name!r}.{hint}') from error
  except (ValueError, AssertionError) as error:
    if tfds_folders.check_name(bare) not in tfds.list_builders(with_community_datasets=False):
      raise _damaged(error, where=f'tfds:{name} in {data_dir}') from error
    configs = ', '.join(tfds.builder_cls(bare).builder_configs) or 'none'
    raise ValueError(f'no config or version tfds:{name}; configs: {configs} ({str(error).splitlines()[0]})') from error
  except (ImportError, MemoryError):
    raise
  except Exception as error:
    raise _damaged(error, where=f'tfds:{name} in {data_dir}') from error


def _read(read: Callable[[], Any], *, where: object) -> Any:
  """Call `read`; turn any error of TFDS, which vary, into ValueError."""
  try:
    return read()
  except Exception as error:
    raise _damaged(error, where=where) from error


def _damaged(error: Exception, *, where: object) -> ValueError:
  line = next(iter(str(error).strip().splitlines()), '')
  return ValueError(
    f'{where} cannot be read ({type(error).__name__}: {line}): it is damaged; remove it and fetch it again'
  )


class _Rows(Sequence[Mapping[str, Any]]):
  """Rows of a split; an error names the row and its file. `shards` are files with their numbers of rows, in order."""

  def __init__(self, rows: Sequence[Mapping[str, Any]], *, where: str, shards: Mapping[str, int]):
    self._rows, self._where = rows, where
    self._files, self._ends = list(shards), list(itertools.accumulate(shards.values()))

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: int) -> Mapping[str, Any]:  # type: ignore[override]  # no slices
    return _read(lambda: self._rows[index], where=f'row {index} of {self._where}{self._file(index)}')

  def _file(self, index: int) -> str:
    shard = bisect.bisect_right(self._ends, index)
    return f', in {self._files[shard]},' if shard < len(self._files) else ''


def _opened(builder: tfds.core.DatasetBuilder, split: str, *, path: str) -> Opened:
  folder = files.path(builder.data_path)
  stored = _read(lambda: builder.info.file_format.value, where=folder)
  if stored != _FORMAT:
    raise ValueError(
      f'{folder} is stored as {stored}, which has no random access; make it again with '
      f'tfds.builder({builder.info.full_name!r}, data_dir=..., file_format={_FORMAT!r}).download_and_prepare()'
    )
  splits.check(split, [name for name, info in builder.info.splits.items() if info.num_examples], path=path)
  shards = [files.path(file) for file in _read(lambda: builder.info.splits[split].filepaths, where=folder)]
  for file in shards:
    tfds_folders.check_shard(file, folder)
  rows_of = dict(zip((file.name for file in shards), builder.info.splits[split].shard_lengths, strict=True))
  read = _read(lambda: builder.as_data_source(split=split), where=folder)
  return Opened(
    rows=_Rows(read, where=f'{path} ({split})', shards=rows_of),
    digest=_read(lambda: _digest(builder, split), where=folder),
    labels=_read(lambda: _labels(builder), where=folder),
    tokens=builder.info.splits[split].num_bytes // 4,
  )


def _digest(builder: tfds.core.DatasetBuilder, split: str) -> str:
  digests = (builder.info.metadata or {}).get('digests', {})
  if split in digests:
    return digests[split]
  info = builder.info.splits[split]
  features = files.read_text(files.path(builder.data_path) / 'features.json')
  description = (builder.info.full_name, features, split, info.num_examples, info.num_bytes, info.shard_lengths)
  return hashlib.sha256(repr(description).encode()).hexdigest()


def _labels(builder: tfds.core.DatasetBuilder) -> dict[str, tuple[str, ...]]:
  return {field: names for field, feature in builder.info.features.items() if (names := _names(feature))}


def _names(feature: Any) -> tuple[str, ...]:
  if isinstance(feature, tfds.features.Sequence):
    feature = feature.feature
  return tuple(feature.names) if isinstance(feature, tfds.features.ClassLabel) else ()
