"""Filters of documents: length, share of letters, English, and duplicates.

Every rule is a keyword and every dropped document is counted, so that quality can be weighed against quantity. The
rules are those of large web corpora: Raffel et al. 2020 (C4), §2.2; Rae et al. 2021 (Gopher), table A1.
"""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Annotated, NamedTuple, TypeVar

T = TypeVar('T')

FUNCTION_WORDS = frozenset(
  re.findall(
    r'\w+',
    'a an the of to in on for from by with as at is are was be been if or and not this that it its which when can '
    'will must should may has have only each any all no than then into over same other used using returns return',
  )
)


class FilterStats(NamedTuple):
  """Counts of a filter; the counts of the reasons and `kept` add up to `read`."""

  read: int  # documents read
  kept: int  # documents kept
  kept_chars: int  # characters of the kept documents
  too_short: int  # below the least number of characters
  too_long: int  # above the most
  few_letters: int  # digits, symbols or markup rather than words
  not_english: int  # too few English function words
  duplicate: int  # the same text, apart from case, spaces and punctuation, was kept before
  near_duplicate: int  # a text with the same beginning was kept before


def filter_documents(
  documents: Iterable[T],
  *,
  min_chars: Annotated[int, '0 <= x'] = 0,
  max_chars: Annotated[int, '1 <= x'] | None = None,
  min_alpha: Annotated[float, '0 <= x <= 1'] = 0.0,
  min_english: Annotated[float, '0 <= x <= 1'] = 0.0,
  dedup: bool = True,
  dedup_prefix: Annotated[int, '1 <= x'] | None = None,
  text: Callable[[T], str] = str,
) -> tuple[list[T], FilterStats]:
  """Return the documents that pass every rule, in order, and the counts.

  Args:
    documents: strings, or rows of which `text` reads the string.
    min_chars: shortest document.
    max_chars: longest document.
    min_alpha: smallest share of letters among the characters that are not spaces.
    min_english: smallest share of English function words among the words.
    dedup: drop documents that equal an earlier one apart from case, spaces and punctuation.
    dedup_prefix: also drop documents that share this many letters and digits of their beginning with an earlier one.
    text: document -> its string.
  """
  selected: list[T] = []
  seen: set[bytes] = set()
  drops = dict.fromkeys(FilterStats._fields[3:], 0)
  read, chars = 0, 0
  for document in documents:
    read += 1
    words = text(document)
    reason = out_of_bounds(
      words, min_chars=min_chars, max_chars=max_chars, min_alpha=min_alpha, min_english=min_english
    ) or (dedup and _copy(words, seen=seen, prefix=dedup_prefix))
    if reason:
      drops[reason] += 1
    else:
      selected.append(document)
      chars += len(words)
  return selected, FilterStats(read=read, kept=len(selected), kept_chars=chars, **drops)


def alphanumeric(text: str) -> str:
  """Return letters and digits in lower case, equal for duplicates."""
  return re.sub(r'[\W_]+', '', text.lower())


def english(text: str) -> float:
  """Compute the share of English function words."""
  words = re.findall(r'[^\W\d_]+', text.lower())
  return sum(word in FUNCTION_WORDS for word in words) / max(len(words), 1)


def letters(text: str) -> tuple[int, int]:
  """Count the letters, with their marks, and the non-space characters."""
  solid = re.sub(r'\s+', '', text)
  count = sum(map(str.isalpha, solid))
  if not solid.isascii():  # the vowels of many scripts are marks
    count += sum(unicodedata.category(character).startswith('M') for character in solid if not character.isalnum())
  return count, len(solid)


def out_of_bounds(
  text: str, *, min_chars: int = 0, max_chars: int | None = None, min_alpha: float = 0, min_english: float = 0
) -> str:
  """Return the `FilterStats` field that counts a bad text, or ''."""
  if len(text) < min_chars:
    return 'too_short'
  if max_chars is not None and len(text) > max_chars:
    return 'too_long'
  alphabetic, solid = letters(text) if min_alpha else (0, 0)
  if alphabetic < min_alpha * solid:
    return 'few_letters'
  return 'not_english' if min_english and english(text) < min_english else ''


def _copy(text: str, *, seen: set[bytes], prefix: int | None) -> str:
  solid = alphanumeric(text)
  whole = hashlib.blake2b(solid.encode(), digest_size=16).digest()
  if whole in seen:
    return 'duplicate'
  beginning = whole
  if prefix is not None and len(solid) > prefix:
    beginning = hashlib.blake2b(solid[:prefix].encode(), digest_size=16, person=b'prefix').digest()
    if beginning in seen:
      return 'near_duplicate'
  seen |= {whole, beginning}
  return ''
