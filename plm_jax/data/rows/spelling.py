"""Tokens and the characters of their words, for trunks that read words by their characters (text/chars.py).

A known word has the characters of the vocabulary's own spelling, an unknown one those of the text, so that two unknown
words are read differently while both are predicted as the unknown token (allenai/bilm-tf, bilm/data.py,
`UnicodeCharsVocabulary.encode_chars`). While rows are put together every different unknown word has an id of its own:

    vocabulary of 9, where 1 is unknown; text     the zog saw the dax
    tokens                                        4   1   7   4   1
    ids here                                      4   9   7   4   10      rows 9 and 10 of the table are zog and dax
"""

from typing import Literal, NamedTuple

import numpy as np

from plm_jax.core.types import Vocab
from plm_jax.data.rows import store
from plm_jax.text import chars


class SpeltIds(NamedTuple):
  """The ids of a token store, with those of unknown words from v on.

  Attributes:
    ids: [n], of the store.
    places: int64[u], those of unknown words, rising.
    words: int32[u], the id of each.
    table: uint16[v + k, 50], the characters of the vocabulary and of k unknown words.
    size: v.
    unk_id: what unknown words are predicted as.
  """

  ids: 'np.ndarray | store.Ids'
  places: np.ndarray
  words: np.ndarray
  table: np.ndarray
  size: int
  unk_id: int

  def take(self, places: np.ndarray, *, mode: Literal['raise', 'clip'] = 'raise') -> np.ndarray:
    """int32: the ids at these places, as `np.ndarray.take`."""
    found = self.ids.take(places, mode=mode).astype(np.int32)
    if not len(self.places):
      return found
    at = np.minimum(np.searchsorted(self.places, places), len(self.places) - 1)
    return np.where(self.places[at] == places, self.words[at], found)

  def part(self, places: range) -> 'SpeltIds':
    """Those of a part of the store."""
    inside = slice(*np.searchsorted(self.places, (places.start, places.stop)))
    ids = self.ids[places.start : places.stop]
    return self._replace(ids=ids, places=self.places[inside] - places.start, words=self.words[inside])

  def tokens(self, ids: np.ndarray) -> np.ndarray:
    """int32[...]: ids of the vocabulary in place of those of unknown words."""
    return np.where(ids < self.size, ids, np.int32(self.unk_id))

  def characters(self, ids: np.ndarray, real: np.ndarray) -> np.ndarray:
    """int32[..., 50]: the characters of ids, 0 where `real` is False."""
    return np.where(real[..., None], self.table[ids], 0).astype(np.int32)


def spell(tokens: store.Tokens, texts: store.Texts, *, vocab: Vocab) -> SpeltIds:
  """Finds the unknown words of texts, once: what is found is kept beside a store on disk.

  Args:
    tokens: of the texts.
    texts: the same ones.
    vocab: that the tokens are of.

  Raises:
    ValueError: as `chars.table`.
  """
  known = chars.table(vocab).astype(np.uint16)
  if vocab.unk_id is None:
    found = _found([], [], {})
  else:
    found = store.cached(tokens, 'unknown', lambda: _unknown(tokens, texts, vocab))
  table = np.concatenate([known, found['characters']])
  unk_id = vocab.pad_id if vocab.unk_id is None else vocab.unk_id
  return SpeltIds(tokens.ids, found['places'], found['words'] + np.int32(vocab.size), table, vocab.size, unk_id)


def _unknown(tokens: store.Tokens, texts: store.Texts, vocab: Vocab) -> dict[str, np.ndarray]:
  """Where unknown words stand, which of them, and the characters of each."""
  places: list[int] = []
  words: list[int] = []
  numbers: dict[str, int] = {}
  for number, (start, end) in enumerate(zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)):
    if (np.asarray(tokens.ids[start:end]) == vocab.unk_id).any():
      for place, word in vocab.unknown(texts[number]):
        places.append(int(start) + place)
        words.append(numbers.setdefault(word, len(numbers)))
  return _found(places, words, numbers)


def _found(places: list[int], words: list[int], numbers: dict[str, int]) -> dict[str, np.ndarray]:
  characters = np.array([chars.of_word(word) for word in numbers], np.uint16).reshape(-1, chars.SLOTS)
  return {'places': np.array(places, np.int64), 'words': np.array(words, np.int32), 'characters': characters}
