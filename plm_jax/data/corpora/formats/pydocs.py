"""The embedded corpus, 'pydocs', and its tasks, 'pydocs/<task>' (`corpora/pydocs.py`)."""

from plm_jax.core import errors
from plm_jax.data.corpora import pydocs
from plm_jax.data.corpora.records import Opened

SUFFIXES = ()
SCHEME = 'pydocs'


def open(path: str, split: str, cache: str) -> Opened:
  """The rows of a split of one of the sets, which are all built first where they are missing."""
  from plm_jax.data.corpora import tfds_sets

  name = path.removeprefix(SCHEME).removeprefix('/') or 'corpus'
  if name not in pydocs.SETS:
    known = [SCHEME, *(f'{SCHEME}/{task}' for task in pydocs.SETS[1:])]
    raise ValueError(f'there is no embedded data {path!r}.{errors.suggest(path, known)} There are {", ".join(known)}')
  folders = pydocs.prepare(cache=cache, sets=(name,))
  if name not in folders:
    raise ValueError(f'{path!r} holds no row')
  return tfds_sets.from_folder(folders[name], split, path=path)
