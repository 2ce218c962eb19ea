"""Where words begin and end: marks belong to the letters that they stand on."""

import pytest

from plm_jax.core import scripts
from plm_jax.core.errors import ConfigError
from plm_jax.inference import polysemy, replies


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('The cat_2 sat.', ['The', 'cat_2', 'sat']),
    ('हिन्दी भाषा', ['हिन्दी', 'भाषा']),
    ('cafe\u0301 now', ['cafe\u0301', 'now']),
    ('می\u200cخواهم بروم', ['می\u200cخواهم', 'بروم']),
    ('مُحَمَّد', ['مُحَمَّد']),
  ],
)
def test_marks_and_joiners_are_of_their_word(text, words):
  for pieces in (scripts.pieces(text), replies._words(text)):
    assert [text[start:end] for _, start, end in pieces if text[start:end] != '.'] == words


@pytest.mark.parametrize(
  ('word', 'text', 'span'),
  [
    ('bank', 'Banks have a bank.', (13, 17)),
    ('银行', '我去银行取钱。', (2, 4)),
    ('भाषा', 'हिन्दी भाषा', (7, 11)),
    ('ที่', 'คนที่นี่', (2, 5)),
  ],
)
def test_a_word_is_found_in_a_text(word, text, span):
  assert polysemy._span(word, text, 1) == span


@pytest.mark.parametrize(
  ('word', 'text'), [('cafe', 'a cafe\u0301'), ('हिन', 'हिन्दी'), ('bank', 'bankers'), ('ท', 'ที่')]
)
def test_a_word_is_not_found_in_another(word, text):
  with pytest.raises(ConfigError, match='word'):
    polysemy._span(word, text, 1)
