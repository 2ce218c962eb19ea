"""Tokens and the characters of their words, for trunks that read words by their characters (text/chars.py).

A known word has the characters of the vocabulary's own spelling, an unknown word those of the text. Two unknown words
are thus read differently, while both are predicted as the unknown token (allenai/bilm-tf, bilm/data.py,
`UnicodeCharsVocabulary.encode_chars`). While sequences are assembled, every different unknown word has its own id:

    vocabulary of 9, where 1 is unknown; text     the zog saw the dax
    tokens                                        4   1   7   4   1
    ids here                                      4   9   7   4   10      rows 9 and 10 of the table are zog and dax
"""

from typing import Literal, NamedTuple

import numpy as np

from plm_jax.core.types import Vocab
from plm_jax.data.rows import store
from plm_jax.data.rows.cached import cached
from plm_jax.text import chars


class SpeltIds(NamedTuple):
  """The ids of a token store; ids from v on are unknown words."""

  ids: 'store.AnyIds'  # [n], ids of the store
  places: np.ndarray  # int64[u], positions of unknown words, ascending
  words: np.ndarray  # int32[u], the id of each
  table: np.ndarray  # uint16[v + k, 50], the characters of the vocabulary and of k unknown words
  size: int  # v
  unk_id: int  # predicted id of unknown words

  def take(self, places: np.ndarray, *, mode: Literal['raise', 'clip'] = 'raise') -> np.ndarray:
    """Return the ids at these positions, int32, as `np.ndarray.take`."""
    ids = self.ids.take(places, mode=mode).astype(np.int32)
    if not len(self.places):
      return ids
    word = np.minimum(np.searchsorted(self.places, places), len(self.places) - 1)
    return np.where(self.places[word] == places, self.words[word], ids)

  def part(self, places: range) -> 'SpeltIds':
    """Return the ids of a range of positions."""
    inside = slice(*np.searchsorted(self.places, (places.start, places.stop)))
    ids = self.ids[places.start : places.stop]
    return self._replace(ids=ids, places=self.places[inside] - places.start, words=self.words[inside])

  def tokens(self, ids: np.ndarray) -> np.ndarray:
    """Replace ids of unknown words by the unknown id, int32[...]."""
    return np.where(ids < self.size, ids, np.int32(self.unk_id))

  def characters(self, ids: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Return the characters of ids, int32[..., 50]; 0 where `real` is False."""
    return np.where(real[..., None], self.table[ids], 0).astype(np.int32)


def spell(tokens: store.Tokens, texts: store.Texts, *, vocab: Vocab) -> SpeltIds:
  """Find the unknown words of texts, and their characters.

  The result is stored next to a store on disk. Raises ValueError as `chars.table`.
  """
  own_spelling = chars.table(vocab).astype(np.uint16)
  if vocab.unk_id is None:
    unknown = _arrays([], [], {})
  else:
    unknown = cached(tokens, 'unknown', lambda: _unknown(tokens, texts, vocab))
  return SpeltIds(
    ids=tokens.ids,
    places=unknown['places'],
    words=unknown['words'] + np.int32(vocab.size),
    table=np.concatenate([own_spelling, unknown['characters']]),
    size=vocab.size,
    unk_id=vocab.pad_id if vocab.unk_id is None else vocab.unk_id,
  )


def _unknown(tokens: store.Tokens, texts: store.Texts, vocab: Vocab) -> dict[str, np.ndarray]:
  """Locate the unknown words, and spell each of them."""
  places: list[int] = []
  words: list[int] = []
  word_ids: dict[str, int] = {}
  for index, (start, end) in enumerate(zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)):
    if (np.asarray(tokens.ids[start:end]) == vocab.unk_id).any():
      for offset, word in vocab.unknown(texts[index]):
        places.append(int(start) + offset)
        words.append(word_ids.setdefault(word, len(word_ids)))
  return _arrays(places, words, word_ids)


def _arrays(places: list[int], words: list[int], word_ids: dict[str, int]) -> dict[str, np.ndarray]:
  characters = np.array([chars.of_word(word) for word in word_ids], np.uint16).reshape(-1, chars.SLOTS)
  return {'places': np.array(places, np.int64), 'words': np.array(words, np.int32), 'characters': characters}
