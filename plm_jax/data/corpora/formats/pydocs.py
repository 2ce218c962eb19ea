"""The embedded corpus, 'pydocs', and its tasks, 'pydocs/<task>' (`corpora/pydocs.py`)."""

from plm_jax.core import errors
from plm_jax.data.corpora import pydocs
from plm_jax.data.corpora.records import Opened

SUFFIXES = ()
SCHEME = 'pydocs'


def open(path: str, split: str, cache: str) -> Opened:
  """Open the rows of a split; build missing sets first."""
  from plm_jax.data.corpora import tfds_sets

  name = path.removeprefix(SCHEME).removeprefix('/') or 'corpus'
  if name not in pydocs.SETS:
    names = [SCHEME, *(f'{SCHEME}/{task}' for task in pydocs.SETS[1:])]
    raise ValueError(f'no embedded data {path!r}.{errors.suggest(path, names)} Choose from {", ".join(names)}.')
  folders = pydocs.prepare(cache=cache, sets=(name,))
  if name not in folders:
    raise ValueError(f'{path!r} holds no row')
  return tfds_sets.from_folder(folders[name], split, path=path)
