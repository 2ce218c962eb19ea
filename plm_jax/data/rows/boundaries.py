"""Where sentences end, decided from the token ids of a stored corpus; neither its text nor a model is needed.

The rule: a sentence ends after a token whose text ends in . ! ? … 。 ！ or ？, with the closing quotes, closing
brackets and line feeds that follow immediately. It does not end there if

  - the next token continues a word, as in "3.14" and "example.com" under byte-level BPE;
  - the next token begins in lower case, in a vocabulary that has capitals;
  - a lone full stop follows a single letter (J. Smith) or a known abbreviation (Dr., vs.), or stands between numbers.

An empty line ends a sentence, and so does the end of a document. A sentence of more than `longest` tokens is cut.
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
_ABBREVIATIONS = frozenset(
  ('approx', 'ca', 'cf', 'co', 'col', 'dept', 'dr', 'eq', 'etc', 'fig', 'gen', 'gov', 'inc', 'jr', 'ltd', 'mr', 'mrs')
) | {'ms', 'prof', 'rev', 'sr', 'st', 'vol', 'vs'}
_BLOCK = 2**24  # tokens read at a time
_BEHIND = 8  # tokens of the previous block that are read again


class Tables(NamedTuple):
  """The properties of tokens that the rule needs, bool[v] each.

  Attributes:
    ends: its text ends in a mark that ends sentences.
    stop: it is a full stop and nothing else.
    feed: it contains a line feed.
    blank: it contains two line feeds.
    space: it is only white space.
    closes: it is only closing quotes and brackets, or white space.
    continues: it continues the word of the token before it.
    lower: it begins in lower case, in a vocabulary that has capitals.
    digits: it is a number.
    short: a full stop after it belongs to it: it is a single letter or an abbreviation.
  """

  ends: np.ndarray
  stop: np.ndarray
  feed: np.ndarray
  blank: np.ndarray
  space: np.ndarray
  closes: np.ndarray
  continues: np.ndarray
  lower: np.ndarray
  digits: np.ndarray
  short: np.ndarray


def tables(vocab: Vocab) -> Tables:
  """The tables of a vocabulary; special tokens are in none of them."""
  special = set(vocab.special_ids)
  texts = ['' if token in special else vocab.decode([token]) for token in range(vocab.size)]
  bare = [text.strip().removeprefix('##') for text in texts]
  starts = np.asarray(vocab.starts_word)
  capitals = any(text[:1].isupper() for text in bare)

  def table(values: Iterable[bool]) -> np.ndarray:
    return np.fromiter(values, bool, vocab.size)

  space = table(text.isspace() for text in texts)
  mark = table(all(unicodedata.category(letter)[0] == 'P' for letter in text) for text in bare)  # or nothing
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
    short=table((len(text) == 1 and text.isalpha()) or text.lower() in _ABBREVIATIONS for text in bare) & starts,
  )


def sentences(ids: 'np.ndarray | Ids', offsets: np.ndarray, *, vocab: Vocab, longest: int) -> np.ndarray:
  """Where sentences begin.

  Args:
    ids: [n], documents end to end.
    offsets: int64[documents+1], where each begins.
    vocab: of the ids.
    longest: most tokens of a sentence.

  Returns:
    int64[sentences+1], rising from 0 to n; a sentence begins wherever a document begins.
  """
  rule = tables(vocab)
  found = [_begun(ids, low, min(low + _BLOCK, len(ids)), rule) for low in range(0, len(ids), _BLOCK)]
  starts = np.union1d(np.concatenate([*found, np.zeros(1, np.int64)]), offsets)
  pieces = -(-np.diff(starts) // longest)
  place = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)  # of the piece in its sentence
  return np.append(np.repeat(starts[:-1], pieces) + longest * place, starts[-1])


def documents(starts: np.ndarray, offsets: np.ndarray) -> np.ndarray:
  """int64[documents+1]: the first sentence of each document that has a token, and the number of sentences."""
  return np.searchsorted(starts, np.unique(offsets))


def _begun(ids: 'np.ndarray | Ids', low: int, high: int, rule: Tables) -> np.ndarray:
  """int64: the places in low+1..high where a sentence begins because one ends just before."""
  begin = max(low - _BEHIND, 0)
  block = np.asarray(ids[begin : high + 1]).astype(np.int64)

  def before(table: np.ndarray) -> np.ndarray:
    """Whether the token before each is in the table."""
    return np.concatenate([[False], table[block[:-1]]])

  def behind(table: np.ndarray) -> np.ndarray:
    """Whether the token after each is in the table."""
    return np.concatenate([table[block[1:]], [False]])

  inner = rule.stop[block] & (before(rule.short) | (before(rule.digits) & behind(rule.digits)))
  closes = rule.closes[block]
  # a token that closes takes the state of the last token that does not
  last = np.maximum.accumulate(np.where(closes, 0, np.arange(len(block))))
  ended = (rule.ends[block] & ~inner)[last]
  open_end = behind(rule.closes) | behind(rule.lower) | (behind(rule.continues) & ~rule.space[block])
  blank = rule.blank[block] | (rule.feed[block] & before(rule.feed))
  over = (ended & ~open_end) | (blank & ~behind(rule.feed))
  return np.flatnonzero(over[low - begin : high - begin]) + low + 1
