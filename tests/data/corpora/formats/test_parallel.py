"""Parallel text: aligned lines of several files."""

import gzip
import pickle

import pytest

from plm_jax.data.corpora import sources


def opened(place, split='train', scheme='parallel:'):
  return sources.open_source(f'{scheme}{place}', split=split, cache=str(place / 'cache'))


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'train.en').write_text('A dog .\n\nTwo cats .\n')
  (tmp_path / 'train.de.gz').write_bytes(gzip.compress(b'Ein Hund .\r\nleer\r\nZwei Katzen .'))
  (tmp_path / 'newstest.de-en.en').write_text('x\n')
  (tmp_path / 'newstest.de-en.de').write_text('y\n')
  (tmp_path / 'README.md').write_text('about\n')
  return tmp_path


def test_lines_stand_beside_each_other(folder):
  records = opened(folder)
  assert records.fields == ('de', 'en')
  assert list(records) == [
    {'de': 'Ein Hund .', 'en': 'A dog .'},
    {'de': 'leer', 'en': ''},
    {'de': 'Zwei Katzen .', 'en': 'Two cats .'},
  ]
  assert list(opened(folder, 'newstest.de-en')) == [{'de': 'y', 'en': 'x'}]
  assert list(opened(folder, 'train[2:]+newstest.de-en[:1]'))[1] == {'de': 'y', 'en': 'x'}
  assert list(pickle.loads(pickle.dumps(records))) == list(records)  # noqa: S301


def test_the_digest_follows_both_sides(folder):
  digest = opened(folder).digest
  (folder / 'train.en').write_text('A dog .\n\nTwo dogs .\n')
  assert opened(folder).digest != digest


def test_mistakes_are_named(folder):
  with pytest.raises(ValueError, match=r'no split .dev. .*newstest\.de-en, train'):
    opened(folder, 'dev')
  with pytest.raises(FileNotFoundError, match='no folder'):
    opened(folder / 'nowhere')
  (folder / 'train.en').write_text('A dog .\n')
  with pytest.raises(ValueError, match=r'train\.de\.gz has 3.*train\.en has 1'):
    opened(folder)
  (folder / 'train.de').write_text('doppelt\n')
  with pytest.raises(ValueError, match=r'train\.de'):
    opened(folder)


def test_a_line_that_cannot_be_read_is_named(folder):
  (folder / 'train.en').write_bytes(b'A dog .\nfine\ncaf\xe9\n')
  with pytest.raises(ValueError, match=r'train\.en, line 3: not valid UTF-8'):
    list(opened(folder))


def test_a_folder_of_such_files_is_told_its_name(folder):
  with pytest.raises(FileNotFoundError, match='parallel:'):
    opened(folder, scheme='')


def test_the_most_bytes_of_a_zipped_file_are_those_that_are_asked_for(tmp_path):
  for field in ('de', 'en'):
    (tmp_path / f'train.{field}.gz').write_bytes(gzip.compress(b'word\n' * 100))
  assert len(sources.open_source(f'parallel:{tmp_path}', cache=str(tmp_path / 'cache'), max_bytes=600)) == 100
  with pytest.raises(ValueError, match=r'data\.max_bytes'):
    sources.open_source(f'parallel:{tmp_path}', cache=str(tmp_path / 'cache'), max_bytes=300)[0]
