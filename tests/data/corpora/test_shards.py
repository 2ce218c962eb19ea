"""Many files as one split: their order, splits by name, compressions, damage, digests, and stores."""

import gzip
import io
import json
import pathlib
import pickle
import shutil

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.data.corpora import local, sources
from plm_jax.data.corpora.formats import jsonl
from plm_jax.data.rows import store
from plm_jax.io import files, object_store
from tests.data import small


def content(*texts):
  return ''.join(json.dumps({'text': text}) + '\n' for text in texts).encode()


def zstd(raw):
  return bytes(pyarrow.Codec('zstd').compress(raw, asbytes=True))


def texts(path, cache, **settings):
  return list(sources.documents(str(path), cache=str(cache), **settings))


@pytest.fixture
def c4(tmp_path):
  """Write a folder as C4 is published: two files of train and one of validation."""
  folder = tmp_path / 'en'
  folder.mkdir()
  for index, words in enumerate((('a', 'b'), ('c',))):
    (folder / f'c4-train.{index:05}-of-00002.json.gz').write_bytes(gzip.compress(content(*words), mtime=0))
  (folder / 'c4-validation.00000-of-00001.json.gz').write_bytes(gzip.compress(content('v'), mtime=0))
  return folder


def test_shards_are_a_split_in_the_order_of_their_names(c4, tmp_path):
  for path in (c4, f'{c4}/*', f'{c4}/*.json.gz', f'{tmp_path}/*/c4-train*'):
    assert texts(path, tmp_path / 'cache') == ['a', 'b', 'c']
  assert texts(c4, tmp_path, split='validation') == ['v'] and texts(c4, tmp_path, split='train[1:]') == ['b', 'c']
  assert texts(f'{c4}/c4-train.00001-of-00002.json.gz', tmp_path) == ['c']  # lines of .json, also as one file
  assert texts(c4, tmp_path, split='c4-train.00000-of-00002') == ['a', 'b']
  assert sources.splits_of(str(c4)) == ('train', 'validation')
  assert pickle.loads(pickle.dumps(sources.open_source(str(c4), cache=str(tmp_path))))[2] == {'text': 'c'}  # noqa: S301


@pytest.mark.parametrize('suffix', ['.jsonl', '.jsonl.zst', '.json.gz', '.parquet', '.txt.zst'])
def test_a_pattern_without_splits_is_train(suffix, tmp_path):
  for index, words in enumerate((('a', 'b'), (), ('c',))):
    file = tmp_path / 'data' / f'CC-{index}' / f'000_0000{index}{suffix}'
    file.parent.mkdir(parents=True)
    raw = '\n\n'.join(words).encode() if 'txt' in suffix else content(*words)
    if suffix == '.parquet':
      pyarrow.parquet.write_table(pyarrow.table({'text': pyarrow.array(words, pyarrow.string())}), file)
    else:
      file.write_bytes(zstd(raw) if 'zst' in suffix else gzip.compress(raw) if 'gz' in suffix else raw)
  assert texts(f'{tmp_path}/data/*/*{suffix}', tmp_path / 'cache') == ['a', 'b', 'c']  # one file is empty


def test_a_missing_or_damaged_shard_is_named(c4, tmp_path):
  second = c4 / 'c4-train.00001-of-00002.json.gz'
  whole = second.read_bytes()
  second.write_bytes(whole[:-6])
  with pytest.raises(ValueError, match=r'00001-of-00002\.json\.gz is not a complete gzip file'):
    texts(c4, tmp_path / 'cache')
  second.write_bytes(gzip.compress(b'{"text": "c"}\n{"text": 1'))
  with pytest.raises(ValueError, match=r'00001-of-00002\.json\.gz, line 2: not valid JSON'):
    texts(c4, tmp_path / 'cache')
  second.unlink()
  with pytest.raises(ValueError, match=r'has 1 of 2 shards, without c4-train\.00001-of-00002\.json\.gz'):
    texts(c4, tmp_path / 'cache')
  assert texts(f'{c4}/c4-train.00000*', tmp_path / 'cache') == ['a', 'b']
  with pytest.raises(FileNotFoundError, match='matches no file'):
    texts(f'{c4}/*.parquet', tmp_path / 'cache')
  (c4 / 'c4-train.00001-of-00002.jsonl').write_bytes(content('c'))
  with pytest.raises(ValueError, match='files of one kind'):
    texts(c4, tmp_path / 'cache')


def test_the_first_shards_alone_are_read_by_the_pattern_of_the_message(tmp_path):
  (tmp_path / 'c4').mkdir()
  for index, word in enumerate('abc'):
    (tmp_path / 'c4' / f'train-0000{index}-of-01024.jsonl').write_bytes(content(word))
  with pytest.raises(ValueError, match=r'has 3 of 1,024 shards, without train-00003-of-01024\.jsonl') as caught:
    texts(tmp_path / 'c4', tmp_path / 'cache')
  pattern = str(caught.value).split("'")[1]
  assert pattern.endswith('train-0000[012]-of-01024.jsonl')
  assert texts(pattern, tmp_path / 'cache') == ['a', 'b', 'c']


def test_the_digest_is_of_the_rows_and_counts_are_kept(c4, tmp_path, monkeypatch):
  def digest(folder):
    return sources.documents(str(folder), cache=str(tmp_path / 'cache')).digest

  before = digest(c4)
  shutil.copytree(c4, tmp_path / 'copy')
  assert digest(tmp_path / 'copy') == before  # the location is not part of it
  with monkeypatch.context() as patched:
    opens = []
    patched.setattr(local.Rows, '__len__', lambda rows: opens.append(rows.file.path.name))
    digest(c4)
    assert not opens  # no file is counted again
  (tmp_path / 'copy' / 'c4-train.00001-of-00002.json.gz').write_bytes(gzip.compress(content('d')))
  assert digest(tmp_path / 'copy') != before


@pytest.mark.parametrize('zipped', ['.gz', '.zst'])
def test_a_large_compressed_file_is_read_in_order_without_holding_it(zipped, tmp_path, monkeypatch):
  monkeypatch.setattr(local, '_HELD', 100)
  monkeypatch.setattr(local, '_PIECE', 64)
  words = [f'{index:0{index % 50 + 1}}' for index in range(200)]
  file = tmp_path / f'train.jsonl{zipped}'
  file.write_bytes((zstd if zipped == '.zst' else gzip.compress)(content(*words)))
  opened = local.File.at(file)
  assert opened.content is None
  rows = jsonl.open(opened, 'train', str(tmp_path / 'cache')).rows
  for index in (0, 1, 199, 7, 7, 150):  # also back
    assert rows[index] == {'text': words[index]}
  assert texts(tmp_path, tmp_path / 'cache', split='train') == words
  file.write_bytes(file.read_bytes()[:-9])
  with pytest.raises(ValueError, match=r'is not a complete (gzip|zstd) file'):
    texts(file, tmp_path / 'cache')


class Hub(fsspec.AbstractFileSystem):
  """A replacement of the Hugging Face hub: `hf://` paths are below `root`."""

  protocol, root, opened = 'hf', pathlib.Path(), 0

  def info(self, path, **_):
    name = self._strip_protocol(path)
    file = self.root / name
    size = file.stat().st_size  # or FileNotFoundError
    return {'name': name, 'size': size, 'type': 'directory' if file.is_dir() else 'file', 'blob_id': f'id {size}'}

  def ls(self, path, detail=False, **_):
    name = self._strip_protocol(path)
    return [self.info(f'{name}/{file.name}') for file in (self.root / name).iterdir()]

  def open(self, path, mode='rb', **_):
    Hub.opened += 1
    return (self.root / self._strip_protocol(path)).open(mode)

  def cat_file(self, path, start=None, end=None, **_):
    return (self.root / self._strip_protocol(path)).read_bytes()[start:end]


@pytest.fixture
def hub(c4, tmp_path, monkeypatch):
  (tmp_path / 'hub' / 'datasets' / 'allenai' / 'c4').mkdir(parents=True)
  shutil.copytree(c4, tmp_path / 'hub' / 'datasets' / 'allenai' / 'c4' / 'en')
  before = fsspec.registry.get('hf')
  monkeypatch.setattr(Hub, 'root', tmp_path / 'hub')
  fsspec.register_implementation('hf', Hub, clobber=True)
  Hub.clear_instance_cache()
  yield 'hf://datasets/allenai/c4/en'
  if before is not None:
    fsspec.register_implementation('hf', before, clobber=True)
  Hub.clear_instance_cache()


def test_shards_of_the_hub_are_streamed(hub, tmp_path):
  cache = tmp_path / 'cache'
  for path in (hub, f'{hub}/*.json.gz', 'hf://datasets/allenai/c4/*/c4-train.*'):
    assert texts(path, cache) == ['a', 'b', 'c']
  assert texts(hub, cache, split='validation') == ['v']
  whole = sources.documents(hub, cache=str(cache))
  opened = Hub.opened
  assert list(whole) == ['a', 'b', 'c'] and Hub.opened - opened < 8  # not once per row
  assert not list(cache.glob('copies/*/c4-train*'))  # no shard is copied
  with pytest.raises(FileNotFoundError, match='there is no file or folder'):
    texts('hf://datasets/allenai/c4/enn', cache)


def test_a_connection_that_breaks_while_a_shard_is_read_is_no_bug(hub, tmp_path, monkeypatch):
  whole = sources.documents(hub, cache=str(tmp_path / 'cache'))

  class Broken(io.BytesIO):
    def read(self, *_):
      raise LookupError('connection reset')  # clients have errors of their own

  monkeypatch.setattr(Hub, 'open', lambda *_, **__: Broken())
  for read in (lambda: list(whole), lambda: texts(hub, tmp_path / 'other')):
    with pytest.raises(object_store.StoreError, match=r'hf://.*connection reset.*run the same command again'):
      read()


@pytest.mark.parametrize(
  ('name', 'published'), [('c4/en', 'allenai/c4/en (305 GB'), ('wiki40b/en', 'google/wiki40b/en')]
)
def test_a_set_of_beam_is_refused_with_its_shards(name, published, tmp_path, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  monkeypatch.setattr('builtins.input', None)  # C4 of TFDS asks for a key
  with pytest.raises(ValueError, match='Apache Beam') as error:
    sources.open_source(f'tfds:{name}', cache=str(tmp_path))
  assert f'hf://datasets/{published}' in str(error.value) and len(str(error.value).replace(str(tmp_path), '')) < 240


def test_the_disk_must_have_room_for_the_tokens(c4, tmp_path, monkeypatch):
  texts, vocab = sources.documents(str(c4), cache=str(tmp_path / 'cache')), small.NumberVocab()
  monkeypatch.setattr(files, 'free_bytes', lambda folder: 10)
  with pytest.raises(ConfigError, match=r'data\.cache=.*/cache has 0\.00 GB free'):
    store.on_disk(texts, vocab=vocab, cache=str(tmp_path / 'cache'))
  assert not (tmp_path / 'cache' / 'tokens').exists()
