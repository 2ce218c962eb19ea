"""Which documents a corpus held before: the same text, or nearly the same by MinHash.

All of it lies in a database on disk, so that memory does not grow with the corpus and a pass that is stopped goes on.
"""

import hashlib
import sqlite3
from typing import NamedTuple

import numpy as np

from plm_jax.core.errors import ConfigError
from plm_jax.data.corpora.cleaning.word_sequences import key_of, words_of

PERMUTATIONS = 128
SHINGLE = 5  # words, as `words` counts them
TOGETHER = 10_000  # shingles
MISTAKES = (0.1, 0.9)  # how bad it is to compare two texts in vain, and to miss one that is nearly the same
TABLES = """
create table if not exists texts (hash blob primary key, row integer) without rowid;
create table if not exists bands (band blob, row integer, primary key (band, row)) without rowid;
create table if not exists signatures (row integer primary key, signature blob);
"""


class Copy(NamedTuple):
  """Of which earlier document another one is a copy.

  Attributes:
    row: number of the earlier one.
    reason: 'duplicate' or 'near_duplicate'.
  """

  row: int
  reason: str


class Copies:
  """What was kept so far."""

  def __init__(self, database: sqlite3.Connection, *, threshold: float | None):
    """Begins or goes on; the caller commits.

    Args:
      database: an open one.
      threshold: share of common runs of five words (Jaccard similarity) from which two texts are nearly the same; None
        looks for equal ones only.

    Raises:
      ConfigError: datasketch is not installed.
    """
    self._database, self._threshold = database, threshold
    database.executescript(TABLES)
    if threshold is not None:
      try:
        from datasketch import MinHash, MinHashLSH
      except ImportError:
        raise ConfigError(
          'near duplicates need the package datasketch: pip install -r requirements/corpus.txt; --exact does without'
        ) from None
      self._minhash = MinHash
      # their number and width for this threshold: what shares a band by chance is compared, what shares none is lost
      bands = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS, weights=MISTAKES)
      self._bands, self._width = bands.b, bands.r
      self._check_bands()

  def seen(self, row: int, text: str) -> Copy | None:
    """The earlier document that a text copies; None of one that is kept, and looked for from now on.

    Two texts are equal apart from case, spaces and punctuation.
    """
    key = hashlib.blake2b(key_of(text).encode(), digest_size=16).digest()
    if found := self._database.execute('select row from texts where hash = ?', (key,)).fetchone():
      return Copy(found[0], 'duplicate')
    if self._threshold is not None:
      signature = self._signature(text)
      bands = self._cut(signature)
      if (other := self._like(signature, bands)) is not None:
        return Copy(other, 'near_duplicate')
      self._database.execute('insert into signatures values (?, ?)', (row, signature.tobytes()))
      self._database.executemany('insert or ignore into bands values (?, ?)', [(band, row) for band in bands])
    self._database.execute('insert into texts values (?, ?)', (key, row))
    return None

  def _check_bands(self) -> None:
    """Raises ConfigError where a pass that has begun cut its signatures otherwise."""
    asked = 'select count(*) from bands where row = (select min(row) from bands)'
    (before,) = self._database.execute(asked).fetchone()
    if before not in (0, self._bands):
      raise ConfigError(
        f'the pass was begun with {before} bands of a signature, and goes on with {self._bands} at this threshold: '
        'remove the folder; the pass begins again'
      )

  def _signature(self, text: str) -> np.ndarray:
    words = words_of(text)
    shingles = {' '.join(words[start : start + SHINGLE]) for start in range(max(1, len(words) - SHINGLE + 1))}
    made = self._minhash(num_perm=PERMUTATIONS, seed=1)
    ordered = sorted(shingles)
    for start in range(0, len(ordered), TOGETHER):  # a batch takes a kilobyte a shingle
      made.update_batch([shingle.encode() for shingle in ordered[start : start + TOGETHER]])
    return np.asarray(made.hashvalues, np.uint64)

  def _cut(self, signature: np.ndarray) -> list[bytes]:
    """A key of each band of the signature, with the number of the band in front."""
    width = self._width
    return [
      number.to_bytes(2, 'little')
      + hashlib.blake2b(signature[number * width : (number + 1) * width].tobytes(), digest_size=12).digest()
      for number in range(self._bands)
    ]

  def _like(self, signature: np.ndarray, bands: list[bytes]) -> int | None:
    """The first kept document that shares a band, and by its signature a share of `threshold`."""
    marks = ','.join('?' * len(bands))
    asked = f'select distinct row from bands where band in ({marks}) order by row'
    for (row,) in self._database.execute(asked, bands).fetchall():
      (kept,) = self._database.execute('select signature from signatures where row = ?', (row,)).fetchone()
      if (np.frombuffer(kept, np.uint64) == signature).mean() >= self._threshold:
        return row
    return None
