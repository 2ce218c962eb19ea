"""What counts as a word where runs of words are compared.

In scripts that are written without spaces each letter is a word of its own, with the marks that stand on it.
"""

import re
import unicodedata

# ideographs, and from 1aff0 on rare kana; where \w leaves out what is no character yet
_RANGES = '\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U0001aff0-\U0001b16f\U00020000-\U0003ffff'
_BLOCKS = (
  (0x0E00, 0x0EFF),  # Thai, Lao
  (0x1000, 0x109F),  # Myanmar
  (0x1780, 0x17FF),  # Khmer
  (0x3040, 0x30FF),  # Hiragana, Katakana
  (0x31F0, 0x31FF),  # Katakana
  (0xA9E0, 0xA9FF),  # Myanmar
  (0xAA60, 0xAA7F),  # Myanmar
  (0xFF66, 0xFF9F),  # Katakana of half width
)


def _of(kind: str) -> str:
  """The characters of the blocks whose category begins with a letter: 'L' letters, 'M' marks."""
  every = (chr(code) for first, last in _BLOCKS for code in range(first, last + 1))
  return ''.join(character for character in every if unicodedata.category(character).startswith(kind))


_ALONE = f'{_RANGES}{_of("L")}'
WORD = re.compile(rf'(?=\w)(?:[^\W{_ALONE}]+|[{_ALONE}][{_of("M")}]*)')


def words_of(text: str) -> list[str]:
  """The words of a text in small letters, without punctuation.

  Letters of Chinese, Japanese, Thai, Lao, Khmer and Burmese are words one by one.
  """
  # 'The cat_2 sat, 用iPhone拍'   ->   the cat_2 sat 用 iphone 拍
  return WORD.findall(text.lower())
