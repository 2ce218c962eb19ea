"""What counts as a word where runs of words are compared, and when two texts are the same.

In scripts that are written without spaces each letter is a word of its own. Marks belong to the letter before them: the
vowels of Hindi, accents that stand behind their letter.
"""

import re
import unicodedata

from plm_jax.text.scripts import ALONE, MARKS

_WORD = re.compile(rf'(?=\w)(?:[^\W{ALONE}]+(?:[{MARKS}]+[^\W{ALONE}]*)*|[{ALONE}][{MARKS}]*)')


def words_of(text: str) -> list[str]:
  """The words of a text in small letters, without punctuation.

  Letters of Chinese, Japanese, Thai, Lao, Khmer and Burmese are words one by one. An accent may stand on its letter or
  behind it.
  """
  # 'The cat_2 sat, 用iPhone拍'   ->   the cat_2 sat 用 iphone 拍
  if text.isascii():
    return re.findall(r'\w+', text.lower())  # the same, in a fifth of the time
  return _WORD.findall(unicodedata.normalize('NFC', text).lower())


def key_of(text: str) -> str:
  """What is the same in two texts that are equal apart from case, spaces and punctuation.

  Letters, digits, marks and pictures count: पता and पिता differ by a mark. An accent may stand on its letter or behind
  it.
  """
  if text.isascii():
    return ''.join(filter(str.isalnum, text.lower()))
  solid = unicodedata.normalize('NFC', text).lower()
  return ''.join(one for one in solid if one.isalnum() or unicodedata.category(one) in ('Mn', 'Mc', 'Me', 'So'))
