"""Definition of a word."""

import re
import sys
import unicodedata

import pytest

from plm_jax.data.corpora.cleaning.word_sequences import words_of

ONE_BY_ONE = ('CJK UNIFIED', 'CJK COMPATIBILITY IDEOGRAPH', 'HIRAGANA', 'KATAKANA', 'THAI', 'LAO', 'KHMER', 'MYANMAR')

RARE = ('IDEOGRAPHIC', 'HALFWIDTH KATAKANA', 'HENTAIGANA')  # letters of these scripts too


def is_letter(character):
  """Return True for a letter of a script without spaces, by its name."""
  name = unicodedata.name(character, '')
  return unicodedata.category(character).startswith('L') and name.startswith(ONE_BY_ONE)


def test_every_letter_of_the_scripts_without_spaces_is_a_word():
  letters = [letter for letter in map(chr, range(sys.maxunicode + 1)) if is_letter(letter)]
  assert len(letters) > 90_000
  assert words_of(f'a{"".join(letters)}b') == ['a', *unicodedata.normalize('NFC', ''.join(letters)), 'b']


def test_other_characters_make_words_with_their_marks():
  """Check Latin, Greek, Cyrillic, Arabic, Hebrew, Hangul, Devanagari, digits and signs.

  Between letters and alone.
  """
  others = [other for other in map(chr, range(sys.maxunicode + 1)) if not 0xD800 <= ord(other) < 0xE000]
  others = [other for other in others if not unicodedata.name(other, '').startswith((*ONE_BY_ONE, *RARE))]
  text = unicodedata.normalize('NFC', 'xy'.join(others)).lower()
  expected, before = [''], False
  for one in text:
    before = bool(re.match(r'\w', one)) or (before and unicodedata.category(one).startswith('M'))
    if before:
      expected[-1] += one
    elif expected[-1]:
      expected.append('')
  assert words_of(text) == [word for word in expected if word]
  assert len(set(''.join(expected))) > 30_000


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('The cat_2 sat, 3.5 TIMES!', ['the', 'cat_2', 'sat', '3', '5', 'times']),
    ('나는 학교에 간다.', ['나는', '학교에', '간다']),
    ('用iPhone 15拍的，很好。', ['用', 'iphone', '15', '拍', '的', '很', '好']),
    ('スキーが好き々', ['ス', 'キ', 'ー', 'が', '好', 'き', '々']),
    ('か\u3099く', ['が', 'く']),  # a mark belongs to the letter before it
    ('cafe\u0301s', ['caf\xe9s']),
    ('हिन्दी पुस्तकें।', ['हिन्दी', 'पुस्तकें']),
    ('தமிழ், ಕನ್ನಡ', ['தமிழ்', 'ಕನ್ನಡ']),
    ('مُحَمَّد', ['مُحَمَّد']),
    ('\u0301 x', ['x']),  # a mark alone is no word
    ('ที่นี่ ๒๕๖๓', ['ที่', 'นี่', '๒๕๖๓']),
    ('ສະບາຍດີ', ['ສ', 'ະ', 'ບ', 'າ', 'ຍ', 'ດີ']),
    ('ភាសាខ្មែរ', ['ភា', 'សា', 'ខ្', 'មែ', 'រ']),
    ('မြန်မာ ၁၂', ['မြ', 'န်', 'မာ', '၁၂']),
    ('𠀀𰀀', ['𠀀', '𰀀']),
    ('', []),
  ],
)
def test_words(text, words):
  assert words_of(text) == words
