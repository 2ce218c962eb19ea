"""Positions of a noun and a pronoun in a text: by words and indices as in WSC, or by a second text as in WNLI."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from plm_jax.data.rows import written
from plm_jax.data.rows.written import Row

NEAR = (0, -1, 1)  # some published indices are off by one; GLM's released code reads them in this way
PRONOUNS = ('he', 'she', 'they', 'it', 'her', 'his', 'their', 'them', 'him')
ARTICLES = ('a', 'an', 'the')
# Nouns of the published WSC, as in TensorFlow Datasets, whose words are not consecutive in their texts: their first
# word is marked.
APART = ('Kamenev and Zinoviev', 'Kamenev, Zinoviev, and Stalin')


def marked(row: Row, **marks: str) -> str:
  """Write a mark before and after spans of a text.

  A row has 'text', and for each span 'span1' or 'span2' its words '<span>_text' and its index '<span>_index'. `marks`
  have their spaces. Raises ValueError if a span is not at its index.
  """
  text = written.text_of(row, 'text')
  words = {span: written.text_of(row, f'{span}_text') for span in marks}
  words = {
    span: re.split(r'\W', part)[0] if part in APART and part not in text else part for span, part in words.items()
  }
  bounds = {span: place(text, part, written.whole_of(row, f'{span}_index'), span) for span, part in words.items()}
  for span, (start, end) in sorted(bounds.items(), key=lambda item: item[1], reverse=True):  # from the end of the text
    mark = marks[span]
    text = f'{text[:start]}{mark}{text[start:end]}{mark[::-1]}{text[end:]}'
  return text


def place(text: str, words: str, index: int, span: str) -> tuple[int, int]:
  """Locate words at word `index` from 0, or one word away.

  Case is ignored; in the text a quotation mark may precede the words, and a final full stop or line feed may be
  missing. Returns characters [start, end). Raises ValueError, with the name of the span, if they begin at none of these
  words.
  """
  text_words = list(re.finditer(r'\S+', text))
  spelt = r'\s+'.join(map(re.escape, words.rstrip('. \n').split()))
  pattern = re.compile(rf'(?<!\w){spelt}(?!\w)', re.IGNORECASE)
  for word in (index + near for near in NEAR):
    match = pattern.search(text, text_words[word].start()) if 0 <= word < len(text_words) else None
    if match and match.start() < text_words[word].end():
      return match.span()
  raise ValueError(f"'{span}_text' is {words!r} but does not begin at word {index} of {text!r}")


class Replaced(NamedTuple):
  """A pronoun of one text, and the noun at its position in another."""

  score: int  # number of words around the pronoun that are also around the noun
  pronoun: int  # index of the pronoun among the words of the first text
  noun: tuple[int, int]  # words [start, stop) of the second text


def replaced(first: str, second: str) -> tuple[str, str]:
  """Mark a pronoun, and find its noun in a second text.

    The fish ate the worm. It was tasty.    The worm was tasty.    ->    ... worm. *It* was tasty.    The worm

  Chooses the pronoun whose context agrees with the second text in most words, as `wnli_simple` of
  t5/data/preprocessors.py. Whole words are compared; the released code compares letters. Raises ValueError: the first
  text has no pronoun, or the second has no noun at its position.
  """
  words, others = first.split(), second.split()
  bare_words, bare_others = _bare(words), _bare(others)
  pronouns = [index for index, word in enumerate(bare_words) if word in PRONOUNS]
  candidates = [candidate for index in pronouns if (candidate := _replaced(bare_words, bare_others, index))]
  if not candidates:
    raise ValueError(f"'sentence2' is {second!r} and has no noun instead of a pronoun of {first!r}")
  best = max(candidates, key=lambda candidate: candidate.score)
  pronoun = words[best.pronoun]
  bare = pronoun.rstrip('.,?!')
  words[best.pronoun] = f'*{bare}*' + (f' {pronoun[len(bare) :]}' if pronoun != bare else '')
  start, stop = best.noun
  articles = [bare_others.index(word, start, stop) for word in ARTICLES if word in bare_others[start:stop]]
  article = max(articles, default=start)
  noun = ' '.join(others[article:stop]).rstrip('.,?!')
  return ' '.join(words), re.sub(r"'s?$", '', noun)


def _bare(words: Sequence[str]) -> list[str]:
  """Lower the words, and remove the punctuation mark at their ends."""
  return [re.sub(r'[.,?!]$', '', word.lower()) for word in words]


def _replaced(words: Sequence[str], others: Sequence[str], pronoun: int) -> Replaced | None:
  """Find the noun in `others` for the pronoun with most context."""
  before, after = words[:pronoun], words[pronoun + 1 :]
  left = max(size for size in range(len(before) + 1) if _positions(others, before[len(before) - size :]))
  right = max(size for size in range(len(after) + 1) if _positions(others, after[:size]))
  starts = [position + left for position in _positions(others, before[len(before) - left :])] if left else [0]
  stops = _positions(others, after[:right])[::-1] if right else [len(others)]
  nouns = [(start, stop) for start in starts for stop in stops if start < stop]
  nouns += [(0, stop) for stop in stops if right and stop > 0]  # the noun begins the other text
  nouns += [(start, len(others)) for start in starts if left and start < len(others)]  # or ends it
  return Replaced(score=left + right, pronoun=pronoun, noun=nouns[0]) if left + right and nouns else None


def _positions(words: Sequence[str], part: Sequence[str]) -> list[int]:
  return [
    position
    for position in range(len(words) - len(part) + 1)
    if list(words[position : position + len(part)]) == list(part)
  ]
