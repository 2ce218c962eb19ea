"""Files of word vectors: rows by word, what is missing, both text forms, files that are not sound."""

import gzip

import numpy as np
import pytest

from plm_jax.text import word_vectors, words
from tests import conftest

VOCAB = words.train(['the cat saw the dog'] * 2, size=50, min_frequency=1)
LINES = 'the 0.5 -1 2e-1\nunseen 1 2 3\ndog 4 5 6\n<unk> 7 8 9\n'


@pytest.mark.parametrize('name', ['v.txt', 'v.vec', 'v.txt.gz'])
def test_rows_are_matched_by_word_and_others_are_zero(tmp_path, name, caplog):
  text = f'4 3\n{LINES}' if name == 'v.vec' else LINES
  content = text.encode()
  (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith('.gz') else content)
  assert word_vectors.is_vectors(tmp_path / name)
  with caplog.at_level('INFO'):
    made = word_vectors.read(tmp_path / name, VOCAB)
  expected = np.zeros((VOCAB.size, 3), np.float32)
  expected[VOCAB.id('the')], expected[VOCAB.id('dog')] = (0.5, -1, 0.2), (4, 5, 6)  # a special token keeps zeros
  np.testing.assert_array_equal(made.vectors, expected)
  assert (made.hits, made.words) == (2, 4)
  assert '4 words, 3 numbers each. 2 of 4 words of the vocabulary have a vector' in caplog.text


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('the 1 2\ncat 1\n', r"v\.txt, line 2: 'cat' has 1 numbers, and the words before have 2"),
    ('the 1 2\n\n', r"v\.txt, line 2: '' has 0 numbers"),
    ('the 1 2\ncat 1 x\n', r'v\.txt, line 2: could not convert.*: mend or remove the line'),
    ('the 1 nan\n', r'v\.txt, line 1: a number is not finite'),
    ('', 'holds no word vectors'),
  ],
)
def test_a_file_that_is_not_sound_is_refused_by_line(tmp_path, text, message):
  (tmp_path / 'v.txt').write_text(text)
  with pytest.raises(ValueError, match=message):
    word_vectors.read(tmp_path / 'v.txt', VOCAB)


def test_half_a_gzip_file_is_refused(tmp_path):
  (tmp_path / 'v.txt.gz').write_bytes(gzip.compress(LINES.encode() * 100)[:40])
  with pytest.raises(ValueError, match='is not a whole gzip file'):
    word_vectors.read(tmp_path / 'v.txt.gz', VOCAB)


def test_glove_is_read():
  file = conftest.SHARED_DATA / 'glove' / 'glove.6B.50d.5k.txt.gz'
  if not file.is_file():
    pytest.skip(f'{file} is not there')
  made = word_vectors.read(file, VOCAB)
  assert made.vectors.shape == (VOCAB.size, 50) and made.hits == 4 and made.words > 5000
  np.testing.assert_allclose(made.vectors[VOCAB.id('the')][:3], (0.418, 0.24968, -0.41242))
