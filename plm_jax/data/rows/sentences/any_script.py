"""A sentence ends at a line end of Unicode, or at a mark that ends sentences in any script, read from the text.

It ends after 。 । ؟ ። whatever follows, and after . ! ? … before a blank and no lower case, unless a full stop belongs
to a single letter or an abbreviation. Quotation marks and brackets that close are a part of it.
"""

import re

from plm_jax.data.rows.sentences.punctuation import ABBREVIATIONS

_MARKS = '。！？｡．।॥؟۔։።፧။\u17d4\u17d5\u0f0d‽'
_CLOSE = r'["\'”’»)\]}」』）】》〉〗］｝〟]*+'
_END = re.compile(
  rf'(?:[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]|(?<![{_MARKS}])[{_MARKS}]++{_CLOSE}'
  rf'|((?<![\w\'’])\w{{1,9}}|(?<![.!?…]))([.!?…]++){_CLOSE}(?=\s))\s*+(?=\S)'
)


def starts(text: str) -> list[int]:
  """Return the first character of each sentence, without the first one."""
  return [
    match.end()
    for match in _END.finditer(text.rstrip())
    if match[2] is None or _ends(text[match.end()], *match.groups(''))
  ]


def _ends(letter: str, word: str, mark: str) -> bool:
  short = (len(word) == 1 and word.isalpha()) or word.lower() in ABBREVIATIONS
  return not letter.islower() and not (short and mark == '.')
