"""Letters and marks of scripts, as classes of characters for regular expressions: where words begin and end.

`\\w` has no marks: it splits Hindi words at their vowels, and words whose accent follows its letter.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

# ideographs, and rare kana from 1aff0; with code points that \w omits because they are not assigned yet
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


def _of(kind: str, blocks: Iterable[tuple[int, int]]) -> str:
  """Collect the characters of blocks in a category: 'L' letters, 'M' marks."""
  every = (chr(code) for first, last in blocks for code in range(first, last + 1))
  return ''.join(character for character in every if unicodedata.category(character).startswith(kind))


MARKS = _of('M', [(0, 0x1FFFF), (0xE0100, 0xE01EF)])  # the planes between have none
ALONE = f'{_RANGES}{_of("L", _BLOCKS)}'
# a letter alone; or a word with the marks of its letters, and the signs that join or separate letters
_PIECE = re.compile(rf'[{ALONE}][{MARKS}]*|(?:[^\W{ALONE}][{MARKS}\u200c\u200d]*)+|[^\w\s]')


def pieces(text: str, *, whole: Sequence[str] = ()) -> list[tuple[str, int, int]]:
  """Split a text into words and punctuation, with characters [start, end).

  Characters of scripts without spaces are words. `whole` are texts that are not split.
  """
  pattern = '|'.join([*map(re.escape, whole), _PIECE.pattern])
  return [(match.group(), match.start(), match.end()) for match in re.finditer(pattern, text)]
