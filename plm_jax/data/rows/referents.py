"""A noun and a pronoun in a text, each by its words and the number of its first word, as WSC has them."""

import re

from plm_jax.data.rows import written
from plm_jax.data.rows.written import Row

NEAR = (0, -1, 1)  # some published rows count one word too many or too few, as GLM's released code reads them


def marked(row: Row, **marks: str) -> str:
  """The text of a row with a mark before and behind some of its spans.

  Args:
    row: with 'text', and for each span 'span1' or 'span2' its words '<span>_text' and its place '<span>_index'.
    **marks: span -> its mark, with the spaces that it has.

  Raises:
    ValueError: a span is not where the row says.
  """
  text = written.text_of(row, 'text')
  found = {span: place(text, written.text_of(row, f'{span}_text'), written.whole_of(row, f'{span}_index'), span)
           for span in marks}  # fmt: skip
  for span, (start, end) in sorted(found.items(), key=lambda one: one[1], reverse=True):  # from the end of the text
    mark = marks[span]
    text = f'{text[:start]}{mark}{text[start:end]}{mark[::-1]}{text[end:]}'
  return text


def place(text: str, words: str, index: int, span: str) -> tuple[int, int]:
  """Characters [start, end) of some words that begin in word `index` of a text, or in one beside it.

  Args:
    text: words with spaces between them.
    words: that are looked for; small and large letters are alike, and a quotation mark may stand before them.
    index: from 0.
    span: its name, for messages.

  Raises:
    ValueError: they are in none of these words.
  """
  known = list(re.finditer(r'\S+', text))
  wanted = re.compile(rf'(?<!\w){re.escape(words.strip())}(?!\w)', re.IGNORECASE)
  for number in (index + near for near in NEAR):
    found = wanted.search(text, known[number].start()) if 0 <= number < len(known) else None
    if found and found.start() < known[number].end():
      return found.span()
  raise ValueError(f"'{span}_text' is {words!r}, and does not begin in word {index} of {text!r}")
