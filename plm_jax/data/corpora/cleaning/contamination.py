"""Evaluation sets inside a corpus: common runs of words (Brown et al. 2020, appendix C).

GPT-3 searches for 13 consecutive words, in lower case and without punctuation, and cuts 200 characters on each side of
a match; here the document is dropped. An evaluation text of fewer words is searched for as a whole, if it has at least
eight words. `word_sequences` defines words.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from plm_jax.data.corpora import splits
from plm_jax.data.corpora.cleaning.word_sequences import words_of
from plm_jax.data.corpora.sources import open_source

IN_A_ROW = 13
FEWEST = 8


class Sets:
  """The runs of words of evaluation sets, in memory: 24 bytes each."""

  def __init__(self, names: Iterable[str]):
    """Read sets such as '../data/squad:validation[:10%]', each once, or raise ValueError."""
    # name of a set -> its rows, those that are not searched for (no text has eight words), digest of its content
    self.rows: dict[str, int] = {}
    self.too_short: dict[str, int] = {}
    self.digests: dict[str, str] = {}
    by_size: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for set_index, name in enumerate(dict.fromkeys(names)):
      path, split = splits.path_and_split(name)
      records = open_source(path, split=split)
      self.rows[name], self.too_short[name], self.digests[name] = len(records), 0, records.digest
      for row in range(len(records)):
        long_enough = [words for words in map(words_of, _texts(records[row])) if len(words) >= FEWEST]
        self.too_short[name] += not long_enough
        for words in long_enough:
          size = min(IN_A_ROW, len(words))
          hashes = hashed(words, size)
          by_size.setdefault(size, []).append((hashes, np.tile([set_index, row], (len(hashes), 1))))
    self._names = tuple(self.rows)
    self._by_size = {size: _in_order(parts) for size, parts in by_size.items()}

  def inside(self, text: str) -> list[tuple[str, int]]:
    """Return (set, row) pairs that share a run of words, in order."""
    words = words_of(text) if self._by_size else []
    matches: set[tuple[int, int]] = set()
    for size, (hashes, owners) in self._by_size.items():
      own = hashed(words, size)
      starts, ends = np.searchsorted(hashes, own), np.searchsorted(hashes, own, side='right')
      for start, end in zip(starts[starts < ends], ends[starts < ends], strict=True):
        matches |= {(int(set_index), int(row)) for set_index, row in owners[start:end]}
    return [(self._names[set_index], row) for set_index, row in sorted(matches)]


def _in_order(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
  hashes, owners = (np.concatenate(column) for column in zip(*parts, strict=True))
  order = np.argsort(hashes, kind='stable')
  return hashes[order], owners[order]


def _texts(value: Any) -> Iterator[str]:
  if isinstance(value, str):
    yield value
  elif isinstance(value, Mapping):
    for inner in value.values():
      yield from _texts(inner)
  elif isinstance(value, list | tuple):
    for inner in value:
      yield from _texts(inner)


def hashed(words: list[str], size: int) -> np.ndarray:
  """Hash runs of `size` words: uint64[len(words) - size + 1], or empty."""
  # a b c, 2   ->   [hash('a b'), hash('b c')]
  digests = (
    hashlib.blake2b(' '.join(words[start : start + size]).encode(), digest_size=8).digest()
    for start in range(len(words) - size + 1)
  )
  return np.frombuffer(b''.join(digests), '<u8')
