"""Tokens of texts in any script, for scores that compare texts, and the script of references.

A score that has `TOKENIZE`, the names that `eval.NAME.tokenize` takes for it, has `chosen(records)`, the one that fits
the script of the references, and takes `tokenize` in `score` and `check`.
"""

import collections
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from plm_jax.core.scripts import ALONE, MARKS
from plm_jax.scores import Row

Script = Literal['ascii', 'letters', 'chinese', 'characters']
# Share of letters above which those beyond a to z, or of a script without spaces, decide: German has 1/50, English
# texts with foreign names 1/1000.
OTHERS, WITHOUT_SPACES = 1 / 200, 1 / 10
_KANA = '\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f'
_HANGUL = '\uac00-\ud7a3'
_WORDS = rf'(?:[^\W_%s][{MARKS}\u200c\u200d]*)+'
_LETTERS = re.compile(_WORDS % '')
_CHARACTERS = re.compile(rf'[{ALONE}{_HANGUL}][{MARKS}]*|{_WORDS % (ALONE + _HANGUL)}')
# of CMRC 2018's script: punctuation that is dropped, and what nltk splits off words
_DROPPED = '-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』'
_ALONE = re.compile(rf'([{ALONE}][{MARKS}]*)')
_SPLIT = (  # between words: the end of a sentence, punctuation, contractions
  (re.compile(r'([^.])(\.)([\])}>"\'»”’ ]*)\s*$'), r'\1 \2 \3 '),
  (re.compile(r',(?!\d)|\.{2,}|[;@#$%&?!()\[\]{}<>"]'), r' \g<0> '),
  (re.compile(r"([^' ])('[smd]?|'ll|'re|'ve|n't)(?=\s)"), r'\1 \2'),
)


def normal(text: str) -> str:
  """Normalise a text: NFKC, lower case."""
  return unicodedata.normalize('NFKC', text).lower()


def letters(text: str) -> list[str]:
  """Split a text into words of letters and digits of any script."""
  return _LETTERS.findall(normal(text))


def characters(text: str) -> list[str]:
  """Split as `letters`, and Chinese, Japanese, Thai, ... into characters."""
  return _CHARACTERS.findall(normal(text))


def mixed(text: str) -> list[str]:
  """Split as CMRC 2018's `mixed_segmentation` without punctuation.

  Characters of scripts without spaces (there: Chinese) are tokens, other text is split into words.
  """
  found: list[str] = []
  for part in _ALONE.split(without_marks(text)):
    for pattern, spaced in () if _ALONE.match(part) else _SPLIT:
      part = pattern.sub(spaced, f'{part} ')
    found += part.split()
  return found


def without_marks(text: str) -> str:
  """Drop punctuation as CMRC 2018's `remove_punctuation`."""
  return text.lower().strip().translate(dict.fromkeys(map(ord, _DROPPED)))


def script(references: Iterable[Sequence[str]]) -> Script:
  """Return what the letters of the references of examples need.

  'ascii' words of a to z, 'letters' words of others, 'chinese' and 'characters' (Japanese, Thai, ...) each character.
  """
  counts: collections.Counter[str] = collections.Counter()
  for texts in references:
    for text in texts:
      counts.update(unicodedata.normalize('NFC', text))  # a letter and its marks are not a to z
  numbers = {letter: number for letter, number in counts.items() if letter.isalpha()}
  total = sum(numbers.values())

  def share(pattern: str) -> float:
    return sum(number for letter, number in numbers.items() if re.match(pattern, letter)) / max(total, 1)

  alone = share(f'[{ALONE}]')
  if alone > WITHOUT_SPACES:
    ideographs = alone - share(f'[{_KANA}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]')
    return 'chinese' if ideographs > 0.9 * alone else 'characters'
  return 'letters' if share(r'[^\x00-\x7f]') > OTHERS else 'ascii'


def check(
  user: str,
  references: Iterable[Sequence[str]],
  split: Callable[[str], Sequence[str]],
  *,
  tokenize: str,
  other: str | None = None,
) -> None:
  """Raise ValueError for an example whose references have no token.

  `user` is the score. In the tokens `other` letters of every script count, if `tokenize` is not that.
  """
  for row, texts in enumerate(references):
    if texts and not any(split(text) for text in texts):
      written = other and other != tokenize and any(map(characters, texts))
      fix = f'set eval.NAME.tokenize=({other!r},)' if written else 'remove that row from the data'
      raise ValueError(f'score {user!r}: row {row}, {texts[0][:40]!r}, has no token by tokenize={tokenize!r}: {fix}')


def references(records: Iterable[Row]) -> list[Sequence[str]]:
  """List the references of each record; () without one."""
  return [record['references'] or () for record in records]
