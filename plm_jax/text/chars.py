"""Words as characters, as ELMo reads them (Peters et al. 2018, §3.4; allenai/bilm-tf, bilm/data.py).

A word has 50 slots: a mark where it begins, its UTF-8 bytes, a mark where it ends, and padding. Of a word of more
bytes the first 48 are read, so that two long words may be read alike. The two ends of a sentence are words of one
character each. All numbers are one higher than those of the paper's training code, as in its released weights, so that
0 is left for places without a word.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  from plm_jax.core.types import Vocab  # loads jax, which commands do without

SLOTS = 50  # of a word
SENTENCE_BEGINS, SENTENCE_ENDS, WORD_BEGINS, WORD_ENDS, PADDING = (256 + number + 1 for number in range(5))
UNKNOWN = '<UNK>'


def of_word(word: str) -> np.ndarray:
  """int32[50]: the slots of a word.

  Raises:
    ValueError: it is empty.
  """
  if not word:
    raise ValueError('an empty string is no word: leave it out')
  return _between_marks([byte + 1 for byte in word.encode('utf-8', 'ignore')[: SLOTS - 2]])


def table(vocab: 'Vocab') -> np.ndarray:
  """int32[v, 50]: the slots of every word of a vocabulary.

  The token that begins a text and the one that ends it have their own characters, the one that pads has none, and the
  one for unknown words is spelt '<UNK>', as a vocabulary of the released code has it; in rows of text it stands for no
  word, since unknown words have their own characters there (`data/rows/spelling.py`).

  Raises:
    ValueError: the vocabulary does not tell the beginning of a text from its end.
  """
  check_ends(vocab)
  assert vocab.bos_id is not None and vocab.eos_id is not None
  own = {vocab.bos_id: boundary(SENTENCE_BEGINS), vocab.eos_id: boundary(SENTENCE_ENDS)}
  if vocab.unk_id is not None:
    own[vocab.unk_id] = of_word(UNKNOWN)
  if vocab.pad_id not in own:
    own[vocab.pad_id] = np.zeros(SLOTS, np.int32)
  return np.stack([own[number] if number in own else of_word(vocab.token(number)) for number in range(vocab.size)])


def check_ends(vocab: 'Vocab') -> None:
  """Raises ValueError where a vocabulary does not tell the beginning of a text from its end."""
  if vocab.bos_id is None or vocab.eos_id is None or vocab.bos_id == vocab.eos_id:
    raise ValueError(
      'the vocabulary has no two different tokens that begin and end a text (vocab.roles: bos and eos), which are '
      'words of their own to a model of characters'
    )


def boundary(character: int) -> np.ndarray:
  """int32[50]: the slots of `SENTENCE_BEGINS` or `SENTENCE_ENDS` as a word."""
  return _between_marks([character])


def _between_marks(characters: list[int]) -> np.ndarray:
  slots = np.full(SLOTS, PADDING, np.int32)
  word = [WORD_BEGINS, *characters, WORD_ENDS]
  slots[: len(word)] = word
  return slots
