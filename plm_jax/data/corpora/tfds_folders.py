"""Safety checks of TensorFlow Datasets folders before TFDS reads them: data must not name code or files outside.

TFDS imports any module that `features.json`, or the field `features` of `dataset_info.json`, names as the class of a
feature. Here only the feature classes of TFDS itself are accepted, under their names and aliases, so nothing is
imported. Names of features are in three places: under `pythonClassName`, under `type` in folders of older versions, and
in strings that are JSON themselves (`jsonFeature.json`, and `content` of older versions).
"""

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import tensorflow_datasets as tfds

from plm_jax.core import errors
from plm_jax.io import files

INFO, FEATURES, METADATA = 'dataset_info.json', 'features.json', 'metadata.json'

_NAME = re.compile(r'(?P<set>[a-zA-Z]\w*)(/(?P<config>\w[\w+\-.]*))?(:(\d+|\*)(\.(\d+|\*)){2})?', re.ASCII)
_CLASSES = ('pythonClassName', 'python_class_name', 'type')
_TEXTS_OF_JSON = ('json', 'content')
_FILES = ('names_file', 'labels')  # keys of ClassLabel and LabeledImage with a file that TFDS would read
_TEMPLATES = ('filepathTemplate', 'filepath_template')
_FIELD = re.compile(r'\{[A-Z_]+(:0?[1-9]d?)?\}')  # in a template; other formats may request any width
_MOST_SHARDS = 2**16  # per split; TFDS checks each when it opens a set
_PLACES = ('name', 'filepathTemplate', 'filepath_template', 'fileFormat', 'file_format')  # TFDS builds paths from them


def check_name(name: str) -> str:
  """Return the set of 'name/config:version', as TFDS spells it in folders.

  Raises ValueError for another form, such as a namespace ('huggingface:x', which TFDS reads with remote code) or
  arguments of a builder ('x/data_dir=...').
  """
  match = _NAME.fullmatch(name)
  if match is None:
    raise ValueError(
      f'{f"tfds:{name}"!r} is not supported: use tfds:<name>[/<config>][:<version>] without a namespace and arguments, '
      'or the path of the folder of a prepared set'
    )
  return re.sub(r'([a-z0-9])([A-Z])', r'\1_\2', re.sub(r'(.)([A-Z][a-z0-9]+)', r'\1_\2', match['set'])).lower()


def check_all(root: Path) -> None:
  """Check all versions of `<data_dir>/<name>`, if any; raise as `check`."""
  for depth in ('', '*/', '*/*/'):  # .config/metadata.json, <version>/..., <config>/<version>/...
    for name in (INFO, FEATURES, METADATA):
      for file in files.listing(root, f'{depth}{name}'):
        _check_file(file)


def check(folder: Path) -> None:
  """Check the folder of one version of a set.

  Raises ValueError, which names the file and the reason, if the folder names code or outside files, or has an entry
  that is no file.
  """
  for file in files.listing(folder):
    if not (files.is_file(file) or files.is_folder(file)):
      raise ValueError(f'{file} is neither a file nor a folder (a pipe, a device or a broken link): remove it')
  for name in (INFO, FEATURES, METADATA):
    if files.exists(folder / name):
      _check_file(folder / name)


def check_shard(file: Path, folder: Path) -> None:
  """Raise ValueError unless a shard is a file inside of the folder."""
  if not files.is_file(file):
    raise ValueError(f'{folder / INFO} names {file}, which is no file: the folder is incomplete, fetch it again')
  if not files.is_inside(file, folder):
    raise ValueError(f'{folder / INFO} names {file}, which lies outside of the folder: put a copy there')


@functools.cache
def known_features() -> tuple[str, ...]:
  """List the feature classes of TFDS with module path, aliases included."""
  classes = [
    feature
    for feature in vars(tfds.features).values()
    if isinstance(feature, type)
    and issubclass(feature, tfds.features.FeatureConnector)
    and feature is not tfds.features.FeatureConnector
  ]
  names = {f'{feature.__module__}.{feature.__name__}' for feature in classes}
  return tuple(sorted(names.union(*(vars(feature).get('ALIASES', ()) for feature in classes))))


def _check_file(file: Path) -> None:
  try:
    content = files.read_json(file)
    paths = list(_paths(content, file))
    _check_shards(content if file.name == INFO else {}, file)
    named = list(_named(content if file.name == FEATURES else content.get('features') if file.name == INFO else None))
  except (ValueError, AttributeError, TypeError) as error:
    raise ValueError(f'{file} is damaged ({error}): fetch it again') from error
  for path in paths:
    if isinstance(path, str) and ('..' in PurePosixPath(path).parts or PurePosixPath(path).is_absolute()):
      raise ValueError(f'{file} names {path!r}, which lies outside of the folder: put the files into it')
  for key, name in named:
    if key in _FILES:
      raise ValueError(f'{file} names the file {name!r} for the names of classes: list them in the features instead')
    if name not in known_features():
      raise ValueError(
        f'{file} names the feature {name!r}, which is code outside of TFDS and is not run. Store the set with features '
        f'of tfds.features.{errors.suggest(name, known_features())}'
      )


def _check_shards(content: Mapping[str, Any], file: Path) -> None:
  """Raise ValueError for splits that would take TFDS unbounded time or memory."""
  for block in content.get('splits', ()):
    for template in filter(None, (block.get(key) for key in _TEMPLATES)):
      if set('{}') & set(_FIELD.sub('', template)):
        raise ValueError(f'the file name template {template[:80]!r} has fields that are no plain names')
    lengths = block.get('shardLengths') or block.get('shard_lengths') or ()
    if len(lengths) > _MOST_SHARDS:
      raise ValueError(f'a split of {len(lengths)} shards, more than {_MOST_SHARDS}')


def _paths(content: Mapping[str, Any], file: Path) -> Iterator[Any]:
  """Yield the names and templates of which TFDS makes paths."""
  if file.name == METADATA:
    yield content.get('default_config_name') if file.parent.name == '.config' else None
  if file.name == INFO:
    for block in (content, *content.get('splits', ())):
      yield from (block.get(key) for key in _PLACES)


def _named(value: Any) -> Iterator[tuple[str, str]]:
  if isinstance(value, list):
    for item in value:
      yield from _named(item)
  if not isinstance(value, Mapping):
    return
  for key, item in value.items():
    if not isinstance(item, str):
      yield from _named(item)
    elif key in _CLASSES or key in _FILES:
      yield key, item
    elif key in _TEXTS_OF_JSON:
      yield from _named(files.parse_json(item))
