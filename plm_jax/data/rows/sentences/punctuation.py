"""Sentences end at punctuation, which token ids show without the text or a model.

A sentence ends after a token whose text ends in . ! ? … 。 ！ or ？, with the closing quotes, closing brackets and line
feeds that follow immediately. It does not end there if

  - the next token continues a word, as in "3.14" and "example.com" under byte-level BPE;
  - the next token begins in lower case, in a vocabulary that has capitals;
  - a lone full stop follows a single letter (J. Smith) or a known abbreviation (Dr., vs.), or is between numbers.

An empty line ends a sentence if the vocabulary keeps line feeds (WordPiece does not).
"""

import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from plm_jax.core.types import Vocab

if TYPE_CHECKING:
  from plm_jax.data.rows.store import Ids

_ENDS = tuple('.!?…。！？')
_CLOSING = frozenset('"\')]}»”’')
ABBREVIATIONS = frozenset(
  ('approx', 'ca', 'cf', 'co', 'col', 'dept', 'dr', 'eq', 'etc', 'fig', 'gen', 'gov', 'inc', 'jr', 'ltd', 'mr', 'mrs')
) | {'ms', 'prof', 'rev', 'sr', 'st', 'vol', 'vs'}
_BLOCK = 2**24  # tokens read at a time
_OVERLAP = 8  # tokens of the previous block that are read again


class Tables(NamedTuple):
  """Properties of tokens that the rule needs, bool[v] each."""

  ends: np.ndarray  # its text ends in a mark that ends sentences
  stop: np.ndarray  # it is a full stop and nothing else
  feed: np.ndarray  # it contains a line feed
  blank: np.ndarray  # it contains two line feeds
  space: np.ndarray  # it is only white space
  closes: np.ndarray  # it is only closing quotes and brackets, or white space
  continues: np.ndarray  # it continues the word of the token before it
  lower: np.ndarray  # it begins in lower case, in a vocabulary that has capitals
  digits: np.ndarray  # it is a number
  short: np.ndarray  # it is a single letter or an abbreviation, so a full stop after it belongs to it


def tables(vocab: Vocab) -> Tables:
  """Build the tables of a vocabulary; special tokens are in none."""
  special = set(vocab.special_ids)
  texts = ['' if token in special else vocab.decode([token]) for token in range(vocab.size)]
  bare = [text.strip().removeprefix('##') for text in texts]
  starts = np.asarray(vocab.starts_word)
  capitals = any(text[:1].isupper() for text in bare)

  def table(values: Iterable[bool]) -> np.ndarray:
    return np.fromiter(values, bool, vocab.size)

  space = table(text.isspace() for text in texts)
  mark = table(all(unicodedata.category(letter)[0] == 'P' for letter in text) for text in bare)  # punctuation, or empty
  return Tables(
    ends=table(text.endswith(_ENDS) for text in bare),
    stop=table(text == '.' for text in bare),
    feed=table('\n' in text for text in texts),
    blank=table(text.count('\n') > 1 for text in texts),
    space=space,
    closes=table(bool(text) and set(text) <= _CLOSING for text in bare) | space,
    continues=~starts & ~mark,
    lower=table(capitals and text[:1].islower() for text in bare),
    digits=table(text.isdecimal() for text in bare),
    short=table((len(text) == 1 and text.isalpha()) or text.lower() in ABBREVIATIONS for text in bare) & starts,
  )


def of_ids(ids: 'np.ndarray | Ids', *, vocab: Vocab) -> np.ndarray:
  """Find the positions at which a sentence starts, int64."""
  rule = tables(vocab)
  begun = [_begun(ids, low, min(low + _BLOCK, len(ids)), rule) for low in range(0, len(ids), _BLOCK)]
  return np.concatenate([*begun, np.zeros(1, np.int64)])


def _begun(ids: 'np.ndarray | Ids', low: int, high: int, rule: Tables) -> np.ndarray:
  """Find the positions in low+1..high, int64, before which a sentence ends."""
  begin = max(low - _OVERLAP, 0)
  block = np.asarray(ids[begin : high + 1]).astype(np.int64)

  def before(table: np.ndarray) -> np.ndarray:
    return np.concatenate([[False], table[block[:-1]]])

  def after(table: np.ndarray) -> np.ndarray:
    return np.concatenate([table[block[1:]], [False]])

  # 1. Full stops of abbreviations and numbers do not end a sentence.
  inner = rule.stop[block] & (before(rule.short) | (before(rule.digits) & after(rule.digits)))
  closes = rule.closes[block]
  # 2. A closing token takes the state of the last token that is not closing.
  last = np.maximum.accumulate(np.where(closes, 0, np.arange(len(block))))
  ended = (rule.ends[block] & ~inner)[last]
  # 3. The next token must begin something new; an empty line always ends a sentence.
  open_end = after(rule.closes) | after(rule.lower) | (after(rule.continues) & ~rule.space[block])
  blank = rule.blank[block] | (rule.feed[block] & before(rule.feed))
  over = (ended & ~open_end) | (blank & ~after(rule.feed))
  return np.flatnonzero(over[low - begin : high - begin]) + low + 1
