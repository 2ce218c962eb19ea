"""Quality filters of documents: the rules of two published corpora, and simple bounds.

A rule is a function (text) -> (text, reason). Some rules remove lines of the text. `reason` is a word with underscores
for a dropped document, and empty for one that is kept.
"""

import re
import statistics
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Annotated, NamedTuple

from plm_jax.data.corpora.filters import english, letters, out_of_bounds

Rule = Callable[[str], tuple[str, str]]

STOP_WORDS = frozenset(('the', 'be', 'to', 'of', 'and', 'that', 'have', 'with'))
BULLETS = ('•', '‣', '*', '-', '–')
ELLIPSES = ('…', '...')
ENDS = ('.', '!', '?', '"', '”', "'")
POLICIES = ('terms of use', 'privacy policy', 'cookie policy', 'uses cookies', 'use of cookies', 'use cookies')


def gopher(text: str) -> tuple[str, str]:
  """Apply the quality filters of MassiveText: Rae et al. 2021, §A.1.1.

  "Quality filtering", and of "Repetition removal" the filters of lines and paragraphs, and of the most frequent 2-, 3-
  and 4-grams, with the bounds of Table A1.
  """
  return text, _gopher_reason(text)


def _gopher_reason(text: str) -> str:
  words = text.split()
  if not 50 <= len(words) <= 100_000:
    return 'too_few_or_many_words'
  if not 3 <= statistics.fmean(map(len, words)) <= 10:
    return 'odd_word_length'
  if any(text.count(symbol) > 0.1 * len(words) for symbol in ('#', *ELLIPSES)):
    return 'many_symbols'
  lines = [line for line in text.splitlines() if line.strip()]
  if sum(line.lstrip().startswith(BULLETS) for line in lines) > 0.9 * len(lines):
    return 'bullet_points'
  if sum(line.rstrip().endswith(ELLIPSES) for line in lines) > 0.3 * len(lines):
    return 'cut_lines'
  if sum(any(map(str.isalpha, word)) for word in words) < 0.8 * len(words):
    return 'few_words_with_letters'
  if len(STOP_WORDS & {word.strip('.,;:!?"').lower() for word in words}) < 2:
    return 'no_stop_words'
  return _repeats(text, lines, words)


def _repeats(text: str, lines: list[str], words: list[str]) -> str:
  paragraphs = [part for part in re.split(r'\n\s*\n', text) if part.strip()]
  for parts in (lines, paragraphs):
    counts = Counter(part.strip() for part in parts)
    again = {part: count - 1 for part, count in counts.items() if count > 1}
    characters = sum(len(part) * count for part, count in again.items())
    if sum(again.values()) > 0.30 * len(parts) or characters > 0.20 * len(text):
      return 'repeated_lines'
  for size, most in ((2, 0.20), (3, 0.18), (4, 0.16)):
    grams = Counter(zip(*(words[start:] for start in range(size)), strict=False))
    gram, count = grams.most_common(1)[0]
    if count > 1 and count * sum(map(len, gram)) > most * sum(map(len, words)):
      return 'repeated_phrases'
  return ''


def c4(text: str) -> tuple[str, str]:
  """Apply the heuristics of C4, the Colossal Clean Crawled Corpus.

  Raffel et al. 2020, §2.2, and the released code. A line is kept if it ends in a punctuation mark, has five words, and
  does not mention JavaScript or policies. A document is kept with three sentences of such lines, without "lorem ipsum"
  and without a curly bracket. The released list of bad words is not included.
  """
  lowered = text.lower()
  if 'lorem ipsum' in lowered:
    return text, 'lorem_ipsum'
  if '{' in text:
    return text, 'curly_bracket'
  clean = '\n'.join(line for line in text.splitlines() if _is_sentence_line(line))
  if len(re.findall(r'[.!?]+["”\']?(?:\s|$)', clean)) < 3:
    return text, 'few_sentences'
  return clean, ''


def _is_sentence_line(line: str) -> bool:
  line, lowered = line.strip(), line.lower()
  ends = line.endswith(ENDS) and not line.endswith(ELLIPSES)
  return ends and len(line.split()) >= 5 and 'javascript' not in lowered and not any(map(lowered.count, POLICIES))


def plain(
  *,
  min_chars: Annotated[int, '0 <= x'] = 0,
  max_chars: Annotated[int, '1 <= x'] | None = None,
  min_alpha: Annotated[float, '0 <= x <= 1'] = 0.0,
  min_english: Annotated[float, '0 <= x <= 1'] = 0.0,
) -> Rule:
  """Build a rule from the bounds of `filters.filter_documents`."""

  def rule(text: str) -> tuple[str, str]:
    return text, out_of_bounds(
      text, min_chars=min_chars, max_chars=max_chars, min_alpha=min_alpha, min_english=min_english
    )

  return rule


RULES: dict[str, Rule] = {'gopher': gopher, 'c4': c4}


class Measured(NamedTuple):
  """Statistics of a document for `stats`."""

  chars: int
  words: int
  letters: float  # share, as in the rules
  english: float  # share, as in the rules
  script: str  # of most of its letters, such as 'LATIN' or 'CJK'; '' without a letter


def measure(text: str) -> Measured:
  """Measure length, shares of letters and of English, and the script."""
  sample = [character for character in text[:2_000] if character.isalpha()]
  scripts = Counter(unicodedata.name(character, '').partition(' ')[0] for character in sample)
  script = scripts.most_common(1)[0][0] if scripts else ''
  alphabetic, solid = letters(text)
  return Measured(len(text), len(text.split()), alphabetic / max(solid, 1), english(text), script)
