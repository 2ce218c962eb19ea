"""Every line is a sentence (the corpus form of BERT: one sentence a line, a blank line between documents)."""

import re

_LINE_END = re.compile(r'[\r\n]\s*(?=\S)')


def starts(text: str) -> list[int]:
  """Return the first character of each line, without the first line."""
  return [match.end() for match in _LINE_END.finditer(text)]
