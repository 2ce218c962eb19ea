"""Matching of the tokens of two vocabularies by their text instead of their ids.

A token is identified by its text and its position in a word (`starts_word`): '##ing' of WordPiece is 'ing' of
byte-level BPE, and 'the' of words its 'Ġthe'. A token whose bytes are no text by themselves is identified by its name,
and a special token by its name or else by its role.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  from plm_jax.core.types import Vocab  # loads jax, which commands do without


def rows_of(new: 'Vocab', old: 'Vocab') -> np.ndarray:
  """Find the id in `old` of each token of `new`: int64[new.size].

  It is -1 for missing tokens. Of several tokens of `old` with the same text, the first one is used.
  """
  ids: dict[Hashable, int] = {}
  for token_id, key in enumerate(_keys(old)):
    ids.setdefault(key, token_id)
  rows = np.array([ids.get(key, -1) for key in _keys(new)], np.int64)
  for own, theirs in zip(_roles(new), _roles(old), strict=True):
    if own is not None and theirs is not None and rows[own] < 0:
      rows[own] = theirs
  return rows


def _keys(vocab: 'Vocab') -> list[Hashable]:
  special = set(vocab.special_ids)
  keys: list[Hashable] = []
  for token_id in range(vocab.size):
    text = '' if token_id in special else vocab.decode([token_id]).strip()
    if text and '\ufffd' not in text:
      keys.append((bool(vocab.starts_word[token_id]), text.removeprefix('##')))
    else:
      keys.append((token_id in special, vocab.token(token_id), 'name'))
  return keys


def _roles(vocab: 'Vocab') -> tuple[int | None, ...]:
  """Return the special tokens by role, repeated for several roles."""
  ends = vocab.cls_id, vocab.sep_id, vocab.bos_id, vocab.eos_id
  return vocab.pad_id, vocab.unk_id, vocab.mask_id, *ends
