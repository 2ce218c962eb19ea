"""TensorFlow Datasets by name, 'tfds:<name>[/<config>]', or by the folder of a prepared set; read as ArrayRecord."""

from pathlib import Path

from plm_jax.data.corpora.records import Opened
from plm_jax.io import downloads, files

SUFFIXES = ()
SCHEME = 'tfds:'


def matches(folder: Path) -> bool:
  """Return True for the folder of a version of a prepared set."""
  return files.is_file(folder / 'dataset_info.json')


def open(path: str, split: str, cache: str) -> Opened:
  """Open the rows of a split; prepare a missing set by name."""
  from plm_jax.data.corpora import tfds_sets

  if path.startswith(SCHEME):
    return tfds_sets.from_name(path.removeprefix(SCHEME), split, cache=cache)
  return tfds_sets.from_folder(downloads.fetched(path, cache), split, path=path)
