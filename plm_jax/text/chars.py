"""Words as characters, as ELMo reads them (Peters et al. 2018, §3.4; allenai/bilm-tf, bilm/data.py).

A word has 50 slots: a mark where it begins, its UTF-8 bytes, a mark where it ends, and padding. Only the first 48
bytes of a longer word are read, so two long words may get the same slots. The two ends of a sentence are words of one
character each. All numbers are one higher than in the paper's training code, as in its published weights, so that 0 is
free for positions without a word.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  from plm_jax.core.types import Vocab  # loads jax, which commands do without

SLOTS = 50  # of a word
SENTENCE_BEGINS, SENTENCE_ENDS, WORD_BEGINS, WORD_ENDS, PADDING = (256 + index + 1 for index in range(5))
UNKNOWN = '<UNK>'


def of_word(word: str) -> np.ndarray:
  """Encode a word as slots, int32[50]; raise ValueError if empty."""
  if not word:
    raise ValueError('an empty string is no word: remove it')
  return _between_marks([byte + 1 for byte in word.encode('utf-8', 'ignore')[: SLOTS - 2]])


def table(vocab: 'Vocab') -> np.ndarray:
  """Encode every word of a vocabulary: int32[v, 50].

  The tokens that begin and end a text have their own characters. Padding has none. The unknown token is spelt '<UNK>',
  as in a vocabulary of the published code; in texts it is not used, since unknown words have their own characters there
  (`data/rows/spelling.py`).

  Raises:
    ValueError: the vocabulary has no different tokens for the beginning and the end of a text.
  """
  check_ends(vocab)
  assert vocab.bos_id is not None and vocab.eos_id is not None
  slots_by_id = {vocab.bos_id: boundary(SENTENCE_BEGINS), vocab.eos_id: boundary(SENTENCE_ENDS)}
  if vocab.unk_id is not None:
    slots_by_id[vocab.unk_id] = of_word(UNKNOWN)
  if vocab.pad_id not in slots_by_id:
    slots_by_id[vocab.pad_id] = np.zeros(SLOTS, np.int32)
  ids = range(vocab.size)
  return np.stack([slots_by_id[index] if index in slots_by_id else of_word(vocab.token(index)) for index in ids])


def check_ends(vocab: 'Vocab') -> None:
  """Raise ValueError unless BOS and EOS are different tokens."""
  if vocab.bos_id is None or vocab.eos_id is None or vocab.bos_id == vocab.eos_id:
    raise ValueError(
      'a model of characters needs different tokens that begin and end a text: set bos and eos in vocab.roles'
    )


def boundary(character: int) -> np.ndarray:
  """Encode `SENTENCE_BEGINS` or `SENTENCE_ENDS` as a word: int32[50]."""
  return _between_marks([character])


def _between_marks(characters: list[int]) -> np.ndarray:
  slots = np.full(SLOTS, PADDING, np.int32)
  word = [WORD_BEGINS, *characters, WORD_ENDS]
  slots[: len(word)] = word
  return slots
