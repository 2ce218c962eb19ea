"""Duplicates in a corpus: equal texts, and similar ones by MinHash.

Everything is in a database on disk, so memory does not grow with the corpus, and an interrupted pass can continue.
"""

import hashlib
import sqlite3
from typing import NamedTuple

import numpy as np

from plm_jax.core.errors import ConfigError
from plm_jax.data.corpora.cleaning.word_sequences import key_of, words_of

PERMUTATIONS = 128
SHINGLE = 5  # words, as defined in `word_sequences`
TOGETHER = 500  # shingles that are hashed together: 512 bytes each, which a cache holds
MISTAKES = (0.1, 0.9)  # weights of false positives (a useless comparison) and false negatives (a missed duplicate)
TABLES = """
create table if not exists texts (hash blob primary key, row integer) without rowid;
create table if not exists bands (band blob, row integer, primary key (band, row)) without rowid;
create table if not exists signatures (row integer primary key, signature blob);
"""


class Copy(NamedTuple):
  """The earlier document that a document copies."""

  row: int  # index of the earlier one
  reason: str  # 'duplicate' or 'near_duplicate'


class Copies:
  """Index of the documents that were kept so far."""

  def __init__(self, database: sqlite3.Connection, *, threshold: float | None):
    """Begin or continue an index in an open database; the caller commits.

    `threshold` is the share of common runs of five words (Jaccard similarity) above which two texts are near
    duplicates; None finds equal texts only. Raises ConfigError if datasketch is not installed.
    """
    self._database, self._threshold = database, threshold
    database.executescript(TABLES)
    if threshold is not None:
      try:
        from datasketch import MinHash, MinHashLSH
      except ImportError:
        raise ConfigError(
          'near duplicates need the package datasketch: pip install -r requirements/corpus.txt, or use --exact'
        ) from None
      self._minhash = MinHash
      # Number and width of bands for this threshold: texts that share a band are compared, others are not.
      bands = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS, weights=MISTAKES)
      self._bands, self._width = bands.b, bands.r
      self._check_bands()

  def seen(self, row: int, text: str) -> Copy | None:
    """Return the earlier document that a text copies.

    None for a new text, which is added to the index. Two texts are equal apart from case, spaces and punctuation.
    """
    key = hashlib.blake2b(key_of(text).encode(), digest_size=16).digest()
    if equal := self._database.execute('select row from texts where hash = ?', (key,)).fetchone():
      return Copy(equal[0], 'duplicate')
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
    query = 'select count(*) from bands where row = (select min(row) from bands)'
    (before,) = self._database.execute(query).fetchone()
    if before not in (0, self._bands):
      raise ConfigError(
        f'the pass was begun with {before} bands of a signature but this threshold needs {self._bands}: remove the '
        'folder to begin again'
      )

  def _signature(self, text: str) -> np.ndarray:
    words = words_of(text)
    starts = range(max(1, len(words) - SHINGLE + 1))
    shingles = [*{' '.join(words[start : start + SHINGLE]).encode() for start in starts}]
    minhash = self._minhash(num_perm=PERMUTATIONS, seed=1)
    for start in range(0, len(shingles), TOGETHER):
      minhash.update_batch(shingles[start : start + TOGETHER])
    return np.asarray(minhash.hashvalues, np.uint64)

  def _cut(self, signature: np.ndarray) -> list[bytes]:
    """Return a key of each band, which begins with its index."""
    width = self._width
    return [
      index.to_bytes(2, 'little')
      + hashlib.blake2b(signature[index * width : (index + 1) * width].tobytes(), digest_size=12).digest()
      for index in range(self._bands)
    ]

  def _like(self, signature: np.ndarray, bands: list[bytes]) -> int | None:
    """Return the first document similar to `threshold` that shares a band."""
    marks = ','.join('?' * len(bands))
    query = f'select distinct row from bands where band in ({marks}) order by row'
    for (row,) in self._database.execute(query, bands).fetchall():
      (other,) = self._database.execute('select signature from signatures where row = ?', (row,)).fetchone()
      if (np.frombuffer(other, np.uint64) == signature).mean() >= self._threshold:
        return row
    return None
