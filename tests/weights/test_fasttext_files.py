"""fastText's own files: gensim reads what is written and writes what is read, unseen words included."""

import pathlib
import struct

import numpy as np
import pytest

from plm_jax.commands import vectors
from plm_jax.core.errors import ConfigError
from plm_jax.core.subwords import Letters
from plm_jax.text import words
from plm_jax.weights import word_vectors
from plm_jax.weights.word_vectors import WordVectors

WORDS = ('</s>', 'cat', 'Zoë', '我', 'dogs')
UNSEEN = ('unseen', 'Caféteria', 'x', '我们', 'cats')
WIDTH, BUCKETS = 6, 40


def letters(shortest: int = 2, longest: int = 4) -> Letters:
  of = np.random.default_rng(0).normal(size=(len(WORDS) + BUCKETS, WIDTH)).astype(np.float32)
  return Letters(of[: len(WORDS)], of[len(WORDS) :], shortest, longest, np.array([9, 5, 4, 2, 1]))


def write(file: pathlib.Path, own: Letters) -> WordVectors:
  table = np.stack([own.vector(word, row) for row, word in enumerate(WORDS)])
  word_vectors.write(file, WordVectors(WORDS, table, own.vector, letters=own), form='fasttext')
  return word_vectors.read(file)


@pytest.mark.parametrize(('shortest', 'longest'), [(2, 4), (1, 3), (0, 0)])
def test_gensim_reads_what_is_written(shortest: int, longest: int, tmp_path: pathlib.Path) -> None:
  gensim = pytest.importorskip('gensim.models.fasttext')
  own = letters(shortest, longest)
  read = write(tmp_path / 'm.bin', own)
  theirs = gensim.load_facebook_vectors(tmp_path / 'm.bin')
  assert read.words == WORDS == tuple(theirs.index_to_key) and theirs.get_vecattr('cat', 'count') == 5
  np.testing.assert_allclose(read.vectors[1:], [theirs[word] for word in WORDS[1:]], atol=1e-6)
  np.testing.assert_allclose(read.vectors[0], own.words[0])  # which fastText does not split, and gensim does
  assert (read.unseen is None) == (longest == 0)
  for word in UNSEEN if read.unseen else ():
    np.testing.assert_allclose(read.unseen(word), theirs[word], atol=1e-6)
  word_vectors.write(tmp_path / 'again.bin', read, form='fasttext')
  assert (tmp_path / 'again.bin').read_bytes() == (tmp_path / 'm.bin').read_bytes()


def test_what_gensim_writes_is_read(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
  models = pytest.importorskip('gensim.models')
  sentences = [['a', 'Cats', 'naïve', 'dogs'], ['dogs', 'table', '我', 'run']] * 9
  model = models.FastText(sentences, vector_size=6, min_count=1, epochs=1, bucket=30, min_n=2, max_n=3)
  models.fasttext.save_facebook_model(model, str(tmp_path / 'm.bin'))
  read = word_vectors.read(tmp_path / 'm.bin')
  assert read.unseen is not None
  for word in ('a', 'naïve', '我', 'tables', 'unseen'):
    ours = read.vectors[read.words.index(word)] if word in read.words else read.unseen(word)
    np.testing.assert_allclose(ours, model.wv[word], atol=1e-6)
  vocab = words.train(['cats tables tables cats dogs zz cats dogs tables zz'], size=20, min_frequency=1)
  table = word_vectors.for_vocab(tmp_path / 'm.bin', vocab)
  for word in ('tables', 'dogs', 'cats', 'zz'):  # 'cats' is unseen; 'Cats' is another word
    np.testing.assert_allclose(table.vectors[vocab.id(word)], model.wv[word], atol=1e-6)
  assert vectors.main(['neighbours', f'--file={tmp_path / "m.bin"}', '--words=unseenword']) == 0
  assert vectors.main(['save', f'--file={tmp_path / "m.bin"}', f'--out={tmp_path / "n.bin"}', '--form=fasttext']) == 0
  np.testing.assert_array_equal(word_vectors.read(tmp_path / 'n.bin').vectors, read.vectors)
  with pytest.raises(ConfigError, match=r'form=fasttext needs a name that ends in \.bin: rename'):
    vectors.main(['save', f'--file={tmp_path / "m.bin"}', f'--out={tmp_path / "n.vec"}', '--form=fasttext'])
  (tmp_path / 'g.vec').write_text('a 1 2\nb 3 4\n')
  with pytest.raises(ConfigError, match=r"needs a run of objective 'fasttext' or fastText's \.bin: use form=binary"):
    vectors.main(['save', f'--file={tmp_path / "g.vec"}', f'--out={tmp_path / "h.bin"}', '--form=fasttext'])
  assert not (tmp_path / 'h.bin').exists()


def test_damaged_and_quantised_files(tmp_path: pathlib.Path) -> None:
  file = tmp_path / 'm.bin'
  write(file, letters())
  content = file.read_bytes()
  for size in (4, 30, 70, 100, len(content) // 2, len(content) - 1):
    file.write_bytes(content[:size])
    with pytest.raises(ValueError, match=r'm\.bin is (cut short|damaged)'):
      word_vectors.read(file)
  mark = struct.pack('<?2q', False, len(WORDS) + BUCKETS, WIDTH)
  file.write_bytes(content.replace(mark, b'\1' + mark[1:], 1))
  with pytest.raises(ValueError, match=r'is quantised \(\.ftz\), which is not supported: take the \.bin'):
    word_vectors.read(file)
  sizes = struct.pack('<3i', len(WORDS), len(WORDS), 0)
  for wrong in ((2**31 - 1, 5, 0), (5, 2**31 - 1, 0), (-1, 5, 0), (5, 4, 1)):
    file.write_bytes(content.replace(sizes, struct.pack('<3i', *wrong), 1))
    with pytest.raises(ValueError, match='is damaged'):
      word_vectors.read(file)
