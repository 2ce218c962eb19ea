"""A noun and a pronoun in a text: by their words and places, as WSC has them, or by a second text, as WNLI has them."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from plm_jax.data.rows import written
from plm_jax.data.rows.written import Row

NEAR = (0, -1, 1)  # some published rows count one word too many or too few, as GLM's released code reads them
PRONOUNS = ('he', 'she', 'they', 'it', 'her', 'his', 'their', 'them', 'him')
ARTICLES = ('a', 'an', 'the')
# Nouns of the published WSC whose words do not follow each other in their texts, as TensorFlow Datasets names them:
# their first word is marked.
APART = ('Kamenev and Zinoviev', 'Kamenev, Zinoviev, and Stalin')


def marked(row: Row, **marks: str) -> str:
  """The text of a row with a mark before and behind some of its spans.

  Args:
    row: with 'text', and for each span 'span1' or 'span2' its words '<span>_text' and its place '<span>_index'.
    **marks: span -> its mark, with the spaces that it has.

  Raises:
    ValueError: a span is not where the row says.
  """
  text = written.text_of(row, 'text')
  words = {span: written.text_of(row, f'{span}_text') for span in marks}
  words = {span: re.split(r'\W', one)[0] if one in APART and one not in text else one for span, one in words.items()}
  found = {span: place(text, one, written.whole_of(row, f'{span}_index'), span) for span, one in words.items()}
  for span, (start, end) in sorted(found.items(), key=lambda one: one[1], reverse=True):  # from the end of the text
    mark = marks[span]
    text = f'{text[:start]}{mark}{text[start:end]}{mark[::-1]}{text[end:]}'
  return text


def place(text: str, words: str, index: int, span: str) -> tuple[int, int]:
  """Characters [start, end) of some words that begin in word `index` of a text, or in one beside it.

  Args:
    text: words with spaces between them.
    words: that are looked for; small and large letters are alike, a quotation mark may stand before them, and a full
      stop or a line end that the text lacks in them.
    index: from 0.
    span: its name, for messages.

  Raises:
    ValueError: they are in none of these words.
  """
  known = list(re.finditer(r'\S+', text))
  spelt = r'\s+'.join(map(re.escape, words.rstrip('. \n').split()))
  wanted = re.compile(rf'(?<!\w){spelt}(?!\w)', re.IGNORECASE)
  for number in (index + near for near in NEAR):
    found = wanted.search(text, known[number].start()) if 0 <= number < len(known) else None
    if found and found.start() < known[number].end():
      return found.span()
  raise ValueError(f"'{span}_text' is {words!r}, and does not begin in word {index} of {text!r}")


class Replaced(NamedTuple):
  """A pronoun of one text, and what stands in its place in another.

  Attributes:
    score: words before and behind the pronoun that stand before and behind the noun as well.
    pronoun: its number among the words of the first text.
    noun: words [start, stop) of the second.
  """

  score: int
  pronoun: int
  noun: tuple[int, int]


def replaced(first: str, second: str) -> tuple[str, str]:
  """A text with asterisks around a pronoun, and the noun that stands in its place in a second text.

    The fish ate the worm. It was tasty.    The worm was tasty.    ->    ... worm. *It* was tasty.    The worm

  The pronoun is that whose surroundings agree with the second text in most words, as in `wnli_simple` of
  t5/data/preprocessors.py; words are compared as wholes, where the released code compares letters.

  Raises:
    ValueError: the first text has no pronoun, or nothing stands in its place.
  """
  words, others = first.split(), second.split()
  known, wanted = _bare(words), _bare(others)
  found = [one for place, word in enumerate(known) if word in PRONOUNS and (one := _replaced(known, wanted, place))]
  if not found:
    raise ValueError(f"'sentence2' is {second!r}, and has no noun in the place of a pronoun of {first!r}")
  best = max(found, key=lambda one: one.score)
  pronoun = words[best.pronoun]
  bare = pronoun.rstrip('.,?!')
  words[best.pronoun] = f'*{bare}*' + (f' {pronoun[len(bare) :]}' if pronoun != bare else '')
  start, stop = best.noun
  article = max([wanted.index(word, start, stop) for word in ARTICLES if word in wanted[start:stop]], default=start)
  noun = ' '.join(others[article:stop]).rstrip('.,?!')
  return ' '.join(words), re.sub(r"'s?$", '', noun)


def _bare(words: Sequence[str]) -> list[str]:
  """Words in small letters, without the punctuation mark at their ends."""
  return [re.sub(r'[.,?!]$', '', word.lower()) for word in words]


def _replaced(words: Sequence[str], others: Sequence[str], pronoun: int) -> Replaced | None:
  """What stands in the place of word `pronoun`, by the most words around it that `others` has too; None for nothing."""
  before, behind = words[:pronoun], words[pronoun + 1 :]
  left = max(size for size in range(len(before) + 1) if _places(others, before[len(before) - size :]))
  right = max(size for size in range(len(behind) + 1) if _places(others, behind[:size]))
  starts = [place + left for place in _places(others, before[len(before) - left :])] if left else [0]
  stops = _places(others, behind[:right])[::-1] if right else [len(others)]
  nouns = [(start, stop) for start in starts for stop in stops if start < stop]
  nouns += [(0, stop) for stop in stops if right and stop > 0]  # the noun begins the other text
  nouns += [(start, len(others)) for start in starts if left and start < len(others)]  # or ends it
  return Replaced(left + right, pronoun, nouns[0]) if left + right and nouns else None


def _places(words: Sequence[str], part: Sequence[str]) -> list[int]:
  """Where a run of words begins among others, each place."""
  return [place for place in range(len(words) - len(part) + 1) if list(words[place : place + len(part)]) == list(part)]
