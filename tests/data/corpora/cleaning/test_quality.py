"""Quality rules, each on a text that breaks only this rule."""

import pytest

from plm_jax.data.corpora.cleaning import quality

GOOD = """The old house stood by the river, and nobody in the valley could say when it was built.
Every morning a man with grey hair opened its windows to let out the smell of smoke.
He had lived there since the war, they said, but that was only what people tell each other.
When winter came he carried wood from the forest until his hands were red with cold.
In spring, children would be sent to bring him bread, eggs or a letter that had come by boat."""


def test_a_good_text_stays():
  assert quality.gopher(GOOD) == (GOOD, '')


@pytest.mark.parametrize(
  ('text', 'reason'),
  [
    ('The king and the queen.', 'too_few_or_many_words'),
    ('a b c d e ' * 20, 'odd_word_length'),
    ('pneumonoultramicroscopic ' * 60, 'odd_word_length'),
    (GOOD.replace('the', '# # the'), 'many_symbols'),
    ('\n'.join(f'- {line}' for line in GOOD.splitlines()), 'bullet_points'),
    ('\n'.join(f'{line} ...' for line in GOOD.splitlines()), 'cut_lines'),
    (GOOD + ' 12 345 678' * 10, 'few_words_with_letters'),
    (' '.join(f'word{n} thing{n}' for n in range(40)), 'no_stop_words'),
    (GOOD + '\n' + '\n'.join(['Read more of the news'] * 4), 'repeated_lines'),
    (GOOD + ' and buy cheap watches' * 12, 'repeated_phrases'),
    (GOOD.replace('the', 'the… the...'), 'many_symbols'),  # 5 of one and 5 of the other
  ],
)
def test_what_gopher_leaves_out(text, reason):
  assert quality.gopher(text)[1] == reason


@pytest.mark.parametrize('size', range(5, 11))
def test_repeats_of_five_to_ten_words(size):
  """100 words with 594 letters; phrases occur twice, with a word after each."""
  words = ['the', 'and', *(f'{n:06x}' for n in range(0xABC000, 0xABC000 + 60))]
  most = int((20 - size) * 5.94 / (6 * size))
  for phrases, reason in ((most, ''), (most + 1, 'repeated_phrases')):
    repeats = [[*words[2 + 12 * n : 2 + 12 * n + size], f'{n:05}z'] for n in range(phrases)]
    text = words + [word for phrase in repeats for word in phrase]
    filler = [f'{n:06x}' for n in range(0xDEF000, 0xDEF000 + 100 - len(text))]
    assert quality.gopher(' '.join(text + filler))[1] == reason, phrases


def test_c4_keeps_the_lines_that_are_sentences():
  text = '\n'.join(
    [
      'Home | News | Contact',
      'The first line has more than five words.',
      'Too short here.',
      'Please enable JavaScript to read this page here.',
      'By this you accept our privacy policy and more.',
      'This one trails off without any real end...',
      'The second line asks a question, does it?',
      'And "the third one ends with a quotation."',
    ]
  )
  clean, reason = quality.c4(text)
  assert reason == ''
  assert clean.splitlines() == [
    'The first line has more than five words.',
    'The second line asks a question, does it?',
    'And "the third one ends with a quotation."',
  ]


@pytest.mark.parametrize(
  ('text', 'reason'),
  [
    ('One sentence with five whole words. ' * 3 + 'Lorem ipsum dolor.', 'lorem_ipsum'),
    ('One sentence with five whole words. ' * 3 + '{', 'curly_bracket'),
    ('Only this sentence is in the text.\nAnd this is the other one.', 'few_sentences'),
  ],
)
def test_what_c4_leaves_out(text, reason):
  assert quality.c4(text)[1] == reason


@pytest.mark.parametrize(
  ('bounds', 'text', 'reason'),
  [
    (dict(min_chars=5), 'four', 'too_short'),
    (dict(min_chars=4), 'four', ''),
    (dict(max_chars=3), 'four', 'too_long'),
    (dict(min_alpha=0.5), 'ab12 34', 'few_letters'),
    (dict(min_alpha=0.3), 'ab12 34', ''),
    (dict(min_english=0.2), 'der Hund und die Katze', 'not_english'),
    (dict(min_english=0.2), 'the dog and the cat', ''),
  ],
)
def test_bounds(bounds, text, reason):
  assert quality.plain(**bounds)(text) == (text, reason)


def test_what_is_measured():
  assert quality.measure('漢字とかな') == (5, 1, 1.0, 0.0, 'HIRAGANA')
  assert quality.measure('the dog 12').script == 'LATIN'
  assert quality.measure('12').script == ''
