"""Quality filters of documents: the rules of two published corpora, and simple bounds.

A rule is a function (text) -> (text, reason). Some rules remove lines of the text. `reason` is a word with underscores
for a dropped document, and empty for one that is kept.
"""

import re
import statistics
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from plm_jax.data.corpora.filters import english, letters, out_of_bounds

Rule = Callable[[str], tuple[str, str]]

STOP_WORDS = frozenset(('the', 'be', 'to', 'of', 'and', 'that', 'have', 'with'))
BULLETS = ('•', '‣', '*', '-', '–')
ELLIPSES = ('…', '...')
ENDS = ('.', '!', '?', '"', '”', "'")
POLICIES = ('terms of use', 'privacy policy', 'cookie policy', 'uses cookies', 'use of cookies', 'use cookies')


def gopher(text: str) -> tuple[str, str]:
  """Apply the rules of MassiveText: Rae et al. 2021, §A.1.1, Table A1."""
  return text, _gopher_reason(text)


def _gopher_reason(text: str) -> str:
  words = text.split()
  if not 50 <= len(words) <= 100_000:
    return 'too_few_or_many_words'
  if not 3 <= statistics.fmean(map(len, words)) <= 10:
    return 'odd_word_length'
  if max(text.count('#'), sum(map(text.count, ELLIPSES))) > 0.1 * len(words):
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
  letters_of_words = sum(map(len, words))
  for size, most in ((2, 0.20), (3, 0.18), (4, 0.16)):
    grams = Counter(zip(*(words[start:] for start in range(size)), strict=False))
    gram, count = grams.most_common(1)[0]
    if count > 1 and count * sum(map(len, gram)) > most * letters_of_words:
      return 'repeated_phrases'
  longest = sorted(map(len, words), reverse=True)
  for size in range(5, 11):  # at most 15 % in repeats of 5 words, ..., 10 % of 10
    repeats = len(words) - size + 1 - len({*zip(*(words[start:] for start in range(size)), strict=False)})
    if sum(longest[: 10 * repeats]) <= 0.10 * letters_of_words:  # a bound for this size and all longer ones
      break
    if _letters_in_repeats(words, size) > (0.20 - size / 100) * letters_of_words:
      return 'repeated_phrases'
  return ''


def _letters_in_repeats(words: list[str], size: int) -> int:
  """Count letters of phrases that occurred before, each word once."""
  seen, index, total = set[tuple[str, ...]](), 0, 0
  while index <= len(words) - size:
    phrase = tuple(words[index : index + size])
    total += sum(map(len, phrase)) if phrase in seen else 0
    index += size if phrase in seen else 1
    seen.add(phrase)
  return total


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


def plain(**bounds: Any) -> Rule:
  """Build a rule from bounds of `filters.filter_documents`."""
  return lambda text: (text, out_of_bounds(text, **bounds))


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
