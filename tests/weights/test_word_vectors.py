"""Files of vectors: gensim reads what is written and writes what is read; what is damaged is named with its line."""

import gzip
import re

import numpy as np
import pytest

from plm_jax.text import words
from plm_jax.weights import word_vectors
from plm_jax.weights.word_vectors import WordVectors
from tests import conftest

VECTORS = WordVectors(
  ('the', 'naïve', '我', '<', 'x' * 60), np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
)
FORMS = ('word2vec', 'binary', 'glove')


def same(one, other):
  return one.words == other.words and np.array_equal(one.vectors, other.vectors)


@pytest.mark.parametrize('form', FORMS)
def test_written_and_read(form, tmp_path):
  file = tmp_path / 'vectors'
  word_vectors.write(file, VECTORS, form=form)
  assert same(word_vectors.read(file, form=form), VECTORS)
  (tmp_path / 'v.gz').write_bytes(gzip.compress(file.read_bytes()))
  assert same(word_vectors.read(tmp_path / 'v.gz', form=form), VECTORS)
  word_vectors.write(tmp_path / 'own.gz', VECTORS, form=form)
  assert gzip.decompress((tmp_path / 'own.gz').read_bytes()) == file.read_bytes()
  if form != 'binary':
    assert same(word_vectors.read(file), VECTORS)  # the form is found


@pytest.mark.parametrize('form', FORMS)
def test_gensim_reads_and_writes_the_same(form, tmp_path):
  models = pytest.importorskip('gensim.models')
  file, binary, headed = tmp_path / 'vectors.bin', form == 'binary', form != 'glove'
  word_vectors.write(file, VECTORS, form=form)
  theirs = models.KeyedVectors.load_word2vec_format(str(file), binary=binary, no_header=not headed)
  assert theirs.index_to_key == list(VECTORS.words) and np.array_equal(theirs.vectors, VECTORS.vectors)
  theirs.save_word2vec_format(str(tmp_path / 'theirs'), binary=binary, write_header=headed)
  found = word_vectors.read(tmp_path / 'theirs', form=form)
  assert found.words == VECTORS.words and np.allclose(found.vectors, VECTORS.vectors, rtol=1e-6)


@pytest.mark.parametrize(
  ('content', 'form', 'said'),
  [
    ('a 1 2\nb 1\n', None, r'v, line 2: 1 .*2'),
    ('2 2\na 1 2\nb 1 2 3 x\n', None, r'v, line 3: could not convert'),
    ('3 2\na 1 2\nb 1 2\n', None, r'\bv\b.* 2 .* 3'),
    ('a 1 2\nb 1 y\n', None, r'v, line 2: could not convert'),
    ('', None, r'\bv\b.*word vectors'),
    ('0 3\n', None, r'\bv\b.*word vectors'),
    ('word\n', None, r'v, line 1: expected a word and its numbers'),
    ('a 1 2\n\n', None, r'v, line 2: 0 .*2'),
    ('a 1 nan\n', None, r'v, line 1: .*not finite'),
    ('a 1 2\n', 'word2vec', r'v, line 1: .*width'),
    ('2 2\na 12345678', 'binary', r'\bv\b.*word 2 of 2'),
    ('a b\n', 'binary', r'\bv\b.*binary'),
    ('1 2\na 12345678\n 9', 'binary', r'\bv\b.*word 1\b'),
    ('2 2\nb c 0.125 -2e-3\na 1 2\n', 'binary', r'\bv\b.*binary.*text'),
    ('a 1 2 3\nb 1 2 3 4\nc 1 2 3\n', None, r'v, line 2: .*4.*3'),
    ('2 3\na 1 2 3\nb 1 2 3 4\n', None, r'v, line 3: .*4.*3'),
    ('a 1 2 3\nb 1 2 3 4 5\n', None, r'v, line 2: .*5.*3'),
    ('-2 3\na 1 2 3\nb 1 2 3\n', None, r'v, line 1: .*-2.*3'),
    ('2 -3\na 1 2 3\nb 1 2 3\n', None, r'v, line 1: .*2.*-3'),
    ('a\t1\t2\nb\t1\t2\n', None, r'v, line 1: .*tabs.*spaces'),
    ('a,1,2\nb,1,2\n', None, r'v, line 1: .*commas.*spaces'),
    ('a, 1, 2\nb, 1, 2\n', None, r'v, line 1: .*commas.*spaces'),
    ('a\t1 2\nb\t1 2\n', None, r'v, line 1: .*tabs.*spaces'),
    ('1 2\na\t1\t2\n', None, r'v, line 2: .*tabs.*spaces'),
    ('2 99999999999999\na 12345678', 'binary', r'v, line 1: .*99,999,999,999,999'),
    (f'2 {"9" * 5000}\na 12345678', 'binary', r'\bv\b.*binary'),
    ('2 0\na b ', 'binary', r'v, line 1: .*width.* 0'),
    ('a 1e39\n', None, r'v, line 1: .*not finite'),
    ('2 2\na 1_0 0.2\nb 1 2\n', None, r"v, line 2: .*'1_0'"),
  ],
)
@pytest.mark.filterwarnings('error')
def test_damaged_files(content, form, said, tmp_path):
  (tmp_path / 'v').write_text(content)
  with pytest.raises(ValueError, match=said):
    word_vectors.read(tmp_path / 'v', form=form)


@pytest.mark.parametrize('start', ['2 2\n', ''])
def test_a_mark_of_byte_order_is_no_part_of_the_first_line(start, tmp_path):
  (tmp_path / 'v').write_text(f'{start}a 1 2\nb 3 4\n', encoding='utf-8-sig')
  assert word_vectors.read(tmp_path / 'v').words == ('a', 'b')


def test_words_of_released_files_that_have_spaces_or_are_numbers(tmp_path):
  written = ('1,000', '. . .', 'at name@domain.com', '. . . . .', '1', 'nan', '-2', '• x', 'to 1,2,a')
  (tmp_path / 'v').write_text(''.join(f'{word} 0.5 -1\n' for word in written))
  assert word_vectors.read(tmp_path / 'v').words == written


@pytest.mark.parametrize('head', ['2 2\n', ''])
def test_spaces_around_a_word_are_no_part_of_it(head, tmp_path):
  (tmp_path / 'v').write_text(f'{head}the  0.1 0.2\n cat 0.3 0.4\n')
  assert word_vectors.read(tmp_path / 'v').words == ('the', 'cat')
  rows = np.arange(4, dtype='<f4').reshape(2, 2)
  (tmp_path / 'v.bin').write_bytes(b'2 2\r\nthe ' + rows[0].tobytes() + b'\r\ncat ' + rows[1].tobytes() + b'\r\n')
  assert word_vectors.read(tmp_path / 'v.bin').words == ('the', 'cat')


def test_lines_of_fasttext_that_end_as_windows_ends_them(tmp_path):
  for name, head in (('headed', '2 2 \r\n'), ('v', '')):
    (tmp_path / name).write_bytes(f'{head}king 1 0 \r\nqueen 0 1 \r\n'.encode())
    found = word_vectors.read(tmp_path / name)
    assert found.words == ('king', 'queen') and found.vectors.tolist() == [[1, 0], [0, 1]]


def test_words_that_are_no_utf8_are_counted(tmp_path, caplog):
  (tmp_path / 'v').write_bytes(b'caf\xe9 1 0\nqueen 0 1\n')
  assert word_vectors.read(tmp_path / 'v').words == ('caf\ufffd', 'queen')
  assert '1 of 2 words' in caplog.text and '\ufffd' in caplog.text and 'iconv -f latin1 -t utf-8' in caplog.text


def test_a_binary_file_under_a_name_of_text(tmp_path):
  word_vectors.write(tmp_path / 'v.bin', VECTORS, form='binary')
  (tmp_path / 'v.bin').rename(tmp_path / 'v.txt')
  with pytest.raises(ValueError, match=r'v\.txt, line 2: .*binary'):
    word_vectors.read(tmp_path / 'v.txt')


def test_words_that_are_there_again_are_counted(tmp_path, caplog):
  (tmp_path / 'v.txt').write_text('the 1 2\na 1 2\nthe 3 4\nthe 5 6\n')
  assert word_vectors.read(tmp_path / 'v.txt').words == ('the', 'a')
  assert 'v.txt: 2 of 4 lines' in caplog.text
  caplog.clear()
  with caplog.at_level('INFO'):
    word_vectors.for_vocab(tmp_path / 'v.txt', VOCAB)
  assert ': 2 further vectors' in caplog.text or ' 2 further vectors' in caplog.text
  (tmp_path / 'v.txt').write_text('the 1 2\na 1 2\n')
  caplog.clear()
  with caplog.at_level('INFO'):
    word_vectors.read(tmp_path / 'v.txt')
    word_vectors.for_vocab(tmp_path / 'v.txt', VOCAB)
  assert ' of 4 lines' not in caplog.text and 'further' not in caplog.text


def test_a_zipped_binary_file_is_bounded_too(tmp_path):
  (tmp_path / 'v.bin.gz').write_bytes(gzip.compress(b'2 99999999999999\na 12345678'))
  with pytest.raises(ValueError, match=r'v\.bin\.gz, line 1: .*99,999,999,999,999'):
    word_vectors.read(tmp_path / 'v.bin.gz')


def test_odd_words(tmp_path):
  (tmp_path / 'v').write_text('a 1 2\n. . . 3 4\na 5 6\n')  # GloVe has words with spaces, and word2vec some twice
  found = word_vectors.read(tmp_path / 'v')
  assert found.words == ('a', '. . .') and found.vectors.tolist() == [[1, 2], [3, 4]]
  (tmp_path / 'v').write_text('. . . 3 4\na 1 2\n')  # such a word may be the first one
  again = word_vectors.read(tmp_path / 'v')
  assert again.words == ('. . .', 'a') and again.vectors.tolist() == [[3, 4], [1, 2]]
  (tmp_path / 'cut.gz').write_bytes(gzip.compress(b'a 1 2\nb 3 4\n' * 50)[:-20])
  with pytest.raises(ValueError, match=r'cut\.gz .*\.gz file'):
    word_vectors.read(tmp_path / 'cut.gz')


@pytest.mark.parametrize('form', FORMS)
def test_words_with_white_space_are_left_out_of_what_is_written(form, tmp_path, caplog):
  odd = WordVectors(('a', '. . .', 'b\xa0c', 'd'), np.arange(8, dtype=np.float32).reshape(4, 2))
  assert word_vectors.write(tmp_path / 'v', odd, form=form) == 2
  assert re.search(r"v: 2 of 4 words .*'\. \. \.'", caplog.text)
  assert same(word_vectors.read(tmp_path / 'v', form=form), WordVectors(('a', 'd'), odd.vectors[[0, 3]]))
  with pytest.raises(ValueError, match=r"none: 1 of 1 words .*'\. \. \.'"):
    word_vectors.write(tmp_path / 'none', WordVectors(('. . .',), np.ones((1, 2), np.float32)), form=form)
  assert not (tmp_path / 'none').exists()


# Rows of a vocabulary ------------------------------------------------------------------------------------------------

VOCAB = words.train(['the cat saw the dog'] * 2, size=50, min_frequency=1)
LINES = 'the 0.5 -1 2e-1\nunseen 1 2 3\ndog 4 5 6\n<unk> 7 8 9\n'


@pytest.mark.parametrize('name', ['v.txt', 'v.vec', 'v.txt.gz'])
def test_rows_are_matched_by_word_and_others_are_zero(tmp_path, name, caplog):
  text = f'4 3\n{LINES}' if name == 'v.vec' else LINES
  content = text.encode()
  (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith('.gz') else content)
  assert word_vectors.is_vectors(tmp_path / name)
  with caplog.at_level('INFO'):
    made = word_vectors.for_vocab(tmp_path / name, VOCAB)
  expected = np.zeros((VOCAB.size, 3), np.float32)
  expected[VOCAB.id('the')], expected[VOCAB.id('dog')] = (0.5, -1, 0.2), (4, 5, 6)  # a special token keeps zeros
  np.testing.assert_array_equal(made.vectors, expected)
  assert (made.hits, made.words) == (2, 4)
  assert '4 words' in caplog.text and '2 of 4 words of the vocabulary' in caplog.text


def test_words_in_capitals_have_the_vector_of_small_letters_where_they_have_none(tmp_path):
  vocab = words.train(['The THE the Cat Dog dog Zog'], size=50, min_frequency=1)
  (tmp_path / 'v.txt').write_text('the 1 1\nTHE 2 2\nthe 9 9\ndog 3 3\n')
  made = word_vectors.for_vocab(tmp_path / 'v.txt', vocab)
  own = {word: made.vectors[vocab.id(word)].tolist() for word in ('The', 'THE', 'the', 'Cat', 'Dog', 'dog', 'Zog')}
  one, two, three, none = [1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [0.0, 0.0]
  assert own == {'The': one, 'THE': two, 'the': one, 'Cat': none, 'Dog': three, 'dog': three, 'Zog': none}
  assert made.hits == 5


def test_vectors_of_no_word_of_the_vocabulary_are_refused(tmp_path):
  (tmp_path / 'v.txt').write_text('The 0.1 0.2\nCAT 0.3 0.4\n')
  with pytest.raises(ValueError, match=r"v\.txt: .*2 words.*'the'"):
    word_vectors.for_vocab(tmp_path / 'v.txt', VOCAB)


def test_glove_is_read():
  file = conftest.SHARED_DATA / 'glove' / 'glove.6B.50d.5k.txt.gz'
  if not file.is_file():
    pytest.skip(f'{file} is not there')
  made = word_vectors.for_vocab(file, VOCAB)
  assert made.vectors.shape == (VOCAB.size, 50) and made.hits == 4 and made.words > 5000
  np.testing.assert_allclose(made.vectors[VOCAB.id('the')][:3], (0.418, 0.24968, -0.41242))


def test_files_of_gensim_and_others_are_named_with_a_fix_that_works(tmp_path, monkeypatch):
  gensim = pytest.importorskip('gensim')
  sentences = [['a', 'b', 'c', 'd'], ['b', 'c', 'e', 'f']] * 9
  model = gensim.models.Word2Vec(sentences, vector_size=6, min_count=1, epochs=1)
  fast = gensim.models.FastText(sentences, vector_size=6, min_count=1, epochs=1, bucket=20)
  monkeypatch.chdir(tmp_path)
  model.save('w.model')
  model.wv.save('w.kv')
  model.wv.save('big.kv', sep_limit=0)  # with big.kv.vectors.npy
  fast.save('f.model')
  np.save('x.npy', model.wv.vectors)
  np.savez('x.npz', model.wv.vectors)
  for name in ('w.model', 'w.kv', 'big.kv', 'big.kv.vectors.npy', 'f.model'):
    assert word_vectors.is_vectors(name)
    with pytest.raises(ValueError, match=rf'^{name} is .*Write it as text: .*save_word2vec_format') as caught:
      word_vectors.read(name)
    exec(str(caught.value).split('`')[1])  # noqa: S102 (the fix of our own message)
    own = (fast if name[0] == 'f' else model).wv
    written = word_vectors.read(f'{name.removesuffix(".vectors.npy")}.vec')
    np.testing.assert_allclose(written.vectors[written.words.index('a')], own['a'], atol=1e-5)
  for name, form in (('x.npy', 'an array of NumPy, without the words'), ('x.npz', 'an archive')):
    with pytest.raises(ValueError, match=rf'{name} is {form}.*save_word2vec_format'):
      word_vectors.read(name)
  (tmp_path / 'v.txt').write_bytes(gzip.compress(b'a 1 2'))
  with pytest.raises(ValueError, match=r'v\.txt is compressed: rename it to v\.txt\.gz'):
    word_vectors.read('v.txt')
