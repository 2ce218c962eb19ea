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
  ],
)
def test_what_gopher_leaves_out(text, reason):
  assert quality.gopher(text)[1] == reason


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
