"""Which tokens of two vocabularies are the same, by their text and not by their ids.

A token is known by the text that it stands for and by whether a word begins with it: '##ing' of WordPiece is 'ing' of
byte-level BPE, and 'the' of words its 'Ġthe'. A token whose bytes are no text by themselves is known by its name, and a
special token by its name or, where that is not there, by its role.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  from plm_jax.core.types import Vocab  # loads jax, which commands do without


def rows_of(new: 'Vocab', old: 'Vocab') -> np.ndarray:
  """The id in `old` of each token of `new`, int64[new.size]; -1 for those that `old` lacks.

  Of tokens of `old` that stand for the same, the first one counts.
  """
  ids: dict[Hashable, int] = {}
  for number, key in enumerate(_keys(old)):
    ids.setdefault(key, number)
  rows = np.array([ids.get(key, -1) for key in _keys(new)], np.int64)
  for own, theirs in zip(_roles(new), _roles(old), strict=True):
    if own is not None and theirs is not None and rows[own] < 0:
      rows[own] = theirs
  return rows


def _keys(vocab: 'Vocab') -> list[Hashable]:
  """What each token is known by."""
  special = set(vocab.special_ids)
  keys: list[Hashable] = []
  for number in range(vocab.size):
    text = '' if number in special else vocab.decode([number]).strip()
    if text and '\ufffd' not in text:
      keys.append((bool(vocab.starts_word[number]), text.removeprefix('##')))
    else:
      keys.append((number in special, vocab.token(number), 'name'))
  return keys


def _roles(vocab: 'Vocab') -> tuple[int | None, ...]:
  """The special tokens by what they do; a token that stands in for several is there several times."""
  ends = vocab.cls_id, vocab.sep_id, vocab.bos_id, vocab.eos_id
  return vocab.pad_id, vocab.unk_id, vocab.mask_id, *ends
