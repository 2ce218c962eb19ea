"""Sources: splits and slices, local files, TFDS sets, errors and their messages, filters."""

import gzip
import json
import pathlib
import pickle
import re
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest

from plm_jax.data.corpora import filters, local, sources, splits
from plm_jax.data.corpora.formats import jsonl, txt


@pytest.fixture
def folder(tmp_path):
  """Write a labelled set: train (20 rows), validation (5 rows, gzip), class names."""
  for name, rows in (('train.jsonl', 20), ('validation.jsonl.gz', 5)):
    lines = [json.dumps({'text': f'{name} {n}', 'label': n % 2, 'scores': [n, 0.5]}) for n in range(rows)]
    content = ('\n'.join(lines) + '\n').encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith('.gz') else content)
  (tmp_path / 'labels.json').write_text('{"label": ["even", "odd"]}')
  (tmp_path / 'notes.md').write_text('not a split')
  return tmp_path


def texts(records):
  return [row['text'] for row in records]


# Splits.


def test_a_folder_has_a_split_for_each_file(folder):
  records = sources.open_source(str(folder), split='validation', cache=str(folder / 'cache'))
  assert len(records) == 5
  assert records[-1] == {'text': 'validation.jsonl.gz 4', 'label': 0, 'scores': [4, 0.5]}
  assert records.fields == ('text', 'label', 'scores')
  assert records.names == ('even', 'odd')
  assert records.labels == {'label': ('even', 'odd')}
  with pytest.raises(IndexError, match='row 5 of'):
    records[5]


@pytest.mark.parametrize(
  ('name', 'expected'),
  [
    ('../data/squad:validation', ('../data/squad', 'validation')),
    ('squad:validation[:10%]', ('squad', 'validation[:10%]')),
    ('squad:train[:90%shuffled]+test[5:]+dev', ('squad', 'train[:90%shuffled]+test[5:]+dev')),
    ('tfds:glue/cola:train[1:2]', ('tfds:glue/cola', 'train[1:2]')),
    ('tfds:imdb_reviews:test', ('tfds:imdb_reviews', 'test')),
    ('gs://bucket/x.jsonl:train', ('gs://bucket/x.jsonl', 'train')),
    ('odd[1:2]/x:train[:3]', ('odd[1:2]/x', 'train[:3]')),
    ('squad:train[:10', ('squad', 'train[:10')),  # the error of the slice is raised when it is read
  ],
)
def test_a_path_with_its_split(name, expected):
  assert splits.path_and_split(name) == expected


@pytest.mark.parametrize('name', ['squad', '../data/squad', 'a:', ':a', 'gs://bucket/x', ''])
def test_a_path_without_a_split(name):
  with pytest.raises(ValueError, match='PATH:SPLIT'):
    splits.path_and_split(name)


@pytest.mark.parametrize(
  ('split', 'expected'),
  [
    ('train', range(20)),
    ('train[:50%]', range(10)),
    ('train[10:13]', range(10, 13)),
    ('train[-5%:]', [19]),
    ('train[-2:]', [18, 19]),
    ('train[:-90%]', [0, 1]),
    ('train[33%:66%]', range(7, 13)),
    (' train [ 1 : 2 ] ', [1]),
    ('train[:2]+train[-1:]', [0, 1, 19]),
  ],
)
def test_slices(folder, split, expected):
  records = sources.open_source(str(folder), split=split, cache=str(folder / 'cache'))
  assert texts(records) == [f'train.jsonl {n}' for n in expected]


def test_percentages_leave_nothing_out_and_take_nothing_twice(folder):
  parts = [f'train[{start}%:{start + 7}%]' for start in range(0, 98, 7)]
  found = [text for part in [*parts, 'train[98%:]'] for text in _try(folder, part)]
  assert found == [f'train.jsonl {n}' for n in range(20)]


def _try(folder, split):
  try:
    return texts(sources.open_source(str(folder), split=split, cache=str(folder / 'cache')))
  except ValueError as error:
    assert 'no row' in str(error)
    return []


def test_a_missing_evaluation_split_is_not_said_to_be_for_training(tmp_path):
  (tmp_path / 'test.jsonl').write_text('{"text": "a cat"}\n')
  with pytest.raises(ValueError, match="Set its split, such as split='test'"):
    sources.open_source(str(tmp_path), split='validation', cache=str(tmp_path / 'cache'))
  with pytest.raises(ValueError, match="None of them is for training: set its split, such as split='test'"):
    sources.open_source(str(tmp_path), split='train', cache=str(tmp_path / 'cache'))


def test_a_folder_of_many_files_without_the_split_is_read_as_one_by_the_message(tmp_path):
  for index in range(67):  # as BLiMP is published
    (tmp_path / f'determiner_noun_agreement_{index}.jsonl').write_text('{"text": "a cat"}\n')
  with pytest.raises(ValueError) as error:
    sources.open_source(str(tmp_path), split='test', cache=str(tmp_path / 'cache'))
  message = str(error.value).replace(str(tmp_path), 'blimp')
  assert len(message) < 240 and '67 in total' in message
  path = re.search("path='(.*)' with split='train'", str(error.value))[1]
  assert len(sources.open_source(path, split='train', cache=str(tmp_path / 'cache'))) == 67


@pytest.mark.parametrize(
  ('split', 'words'),
  [
    ('trian', ["no split 'trian'", 'train, validation', "Did you mean 'train'"]),
    ('test', ["no split 'test'", 'train, validation', "Set its split, such as split='train'"]),
    ('train[3]', ['slice']),
    ('train[a:b]', ['slice']),
    ('train[5:5]', ['no row', '20']),
    ('train[:21]', ['21', '20']),
    ('train[:101%]', ['101%', '20']),
    ('', ["no split ''"]),
  ],
)
def test_a_split_that_makes_no_sense_is_refused_with_those_that_exist(folder, split, words):
  with pytest.raises(ValueError) as error:
    sources.open_source(str(folder), split=split, cache=str(folder / 'cache'))
  for word in words:
    assert word in str(error.value)


# Digests.


def test_the_digest_follows_the_content_and_the_slice(folder):
  def digest(split='train'):
    return sources.open_source(str(folder), split=split, cache=str(folder / 'cache')).digest

  first = digest()
  assert digest() == first == digest('train[:100%]')
  assert len({first, digest('validation'), digest('train[:10]'), digest('train[10:]')}) == 4
  content = (folder / 'train.jsonl').read_text()
  (folder / 'train.jsonl').write_text(content.replace('"label": 1', '"label": 0', 1))
  assert digest() != first
  (folder / 'train.jsonl').write_text(content)
  assert digest() == first


def test_a_file_is_hashed_again_only_when_it_has_changed(tmp_path, monkeypatch):
  path = tmp_path / 'a.txt'
  path.write_text('one')
  first = local.File.at(path).digest(cache=str(tmp_path))

  def refuse(*arguments):
    raise AssertionError('read again')

  monkeypatch.setattr('hashlib.file_digest', refuse)
  assert local.File.at(path).digest(cache=str(tmp_path)) == first
  path.write_text('two, longer')
  with pytest.raises(AssertionError, match='read again'):
    local.File.at(path).digest(cache=str(tmp_path))


def test_a_damaged_digest_in_the_cache_is_made_again(tmp_path, caplog):
  caplog.set_level('INFO')
  path = tmp_path / 'a.txt'
  path.write_text('one')
  first = local.File.at(path).digest(cache=str(tmp_path))
  (known,) = (tmp_path / 'digests').iterdir()
  before = known.read_bytes()
  draw = np.random.default_rng(0)
  for place in draw.integers(len(before), size=100):
    damaged = bytearray(before)
    damaged[place] ^= 1 << draw.integers(8)
    known.write_bytes(damaged)
    assert local.File.at(path).digest(cache=str(tmp_path)) == first
    assert known.read_bytes() == before
  assert caplog.text.count('is damaged') == 100
  known.write_text(first)  # as earlier versions wrote it
  assert local.File.at(path).digest(cache=str(tmp_path)) == first


# Local files.


@pytest.mark.parametrize('zipped', [False, True])
@pytest.mark.parametrize(
  ('documents', 'expected'),
  [
    ('blank_line', ['a b\nc', 'd', 'ü e']),
    ('line', ['a b', 'c', 'd', 'ü e']),
    ('every_line', ['', '', 'a b', 'c', ' ', '', 'd', '', 'ü e', '']),
    ('file', ['\n\na b\nc\n \n\nd\n\nü e\n\n']),  # every character of it
  ],
)
def test_documents_of_a_text_file(tmp_path, documents, expected, zipped):
  content = '\n\na b\nc\n \n\nd\n\nü e\n\n'.encode()
  path = tmp_path / ('text.txt.gz' if zipped else 'text.txt')
  path.write_bytes(gzip.compress(content) if zipped else content)
  found = sources.documents(str(path), cache=str(tmp_path), documents=documents)
  assert list(found) == expected
  assert len(found) == len(expected)


@pytest.mark.parametrize('documents', ['line', 'file'])
@pytest.mark.parametrize(
  ('name', 'content'),
  [
    ('train.jsonl', '{"text": "a"}'),
    ('train.csv', 'text\na'),
    ('train.tsv', 'text\na'),
    ('train.conll', 'a O\n'),
    ('train.parquet', None),
    ('train.jsonl.gz', '{"text": "a"}'),
  ],
)
def test_a_format_that_knows_its_documents_takes_no_boundary(tmp_path, name, content, documents):
  if content is None:
    pyarrow = pytest.importorskip('pyarrow')
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({'text': ['a']}), tmp_path / name)
  else:
    (tmp_path / name).write_bytes(gzip.compress(content.encode()) if name.endswith('.gz') else content.encode())
  for path in (tmp_path, tmp_path / name):
    assert len(sources.open_source(str(path), cache=str(tmp_path))) == 1
    with pytest.raises(ValueError, match=rf"data.documents='{documents}'.*.txt.*documents='blank_line'"):
      sources.open_source(str(path), cache=str(tmp_path), documents=documents)


@pytest.mark.parametrize('end', ['\r\n', '\r'])
@pytest.mark.parametrize('zipped', [False, True])
@pytest.mark.parametrize('documents', get_args(txt.Boundary))
def test_line_ends_of_other_systems_are_line_feeds(tmp_path, end, zipped, documents):
  text, read = 'one a\ntwo\n\n \nthree\n\tfour\n', {}
  for name, content in (('unix', text), ('other', text.replace('\n', end)), ('again', text)):
    path = tmp_path / f'{name}.txt{".gz" * zipped}'
    path.write_bytes(gzip.compress(content.encode(), mtime=0) if zipped else content.encode())
    read[name] = sources.documents(str(path), cache=str(tmp_path), documents=documents)
  if documents == 'exact_file':
    assert list(read['other']) == [text.replace('\n', end)]
  else:
    assert list(read['other']) == list(read['unix'])
  # a store of the text as it was read before is not taken for this one; texts with line feeds keep theirs
  assert read['other'].digest != read['unix'].digest == read['again'].digest


def test_mixed_line_ends_are_line_feeds(tmp_path):
  (tmp_path / 'a.txt').write_bytes(b'one\r\ntwo\rthree\n\r\nfour\r\r\n')
  assert list(sources.documents(str(tmp_path / 'a.txt'), cache=str(tmp_path))) == ['one\ntwo\nthree', 'four']


@pytest.mark.parametrize('suffix', ['conll', 'csv', 'tsv', 'jsonl', 'json'])
def test_line_ends_of_records_are_not_read(tmp_path, suffix):
  rows = {
    'conll': 'a N\nb V\n\nc N\n',
    'csv': 'text,label\n"a, b",1\nc,2\n',
    'tsv': 'text\tlabel\na b\t1\nc\t2\n',
    'jsonl': '{"text": "a"}\n\n{"text": "b"}\n',
    'json': '{"data": [{"paragraphs": [{"context": "a",\n"qas": [{"id": 1, "question": "b", "answers": []}]}]}]}\n',
  }
  for name, end in (('unix', '\n'), ('other', '\r\n')):
    (tmp_path / f'{name}.{suffix}').write_bytes(rows[suffix].replace('\n', end).encode())
  unix, other = (sources.open_source(str(tmp_path / f'{n}.{suffix}'), cache=str(tmp_path)) for n in ('unix', 'other'))
  assert [unix[i] for i in range(len(unix))] == [other[i] for i in range(len(other))]


def test_windows_line_ends_and_a_byte_order_mark(tmp_path):
  path = tmp_path / 'text.txt'
  path.write_bytes(b'\xef\xbb\xbfone\r\n\r\ntwo\r\n')
  assert list(sources.documents(str(path), cache=str(tmp_path))) == ['one', 'two']


def test_a_second_text_that_begins_with_null_leaves_no_doubt_of_the_first(tmp_path):
  path = tmp_path / 'text.jsonl'
  path.write_text('{"body": "one", "note": null}\n{"body": "two", "note": "x"}\n')
  assert list(sources.documents(str(path), cache=str(tmp_path))) == ['one', 'two']
  path.write_text('{"body": null, "id": 3}\n{"body": "two", "id": 4}\n')
  assert sources.documents(str(path), cache=str(tmp_path), text='body').field == 'body'


def test_how_documents_end_is_part_of_the_digest(tmp_path):
  (tmp_path / 'a.txt').write_text('one\ntwo\n')
  ways = [
    sources.documents(str(tmp_path / 'a.txt'), cache=str(tmp_path), documents=way) for way in get_args(txt.Boundary)
  ]
  assert len({way.digest for way in ways}) == 5
  with pytest.raises(ValueError, match=r'paragraph.*blank_line, line, every_line, file'):
    sources.documents(str(tmp_path / 'a.txt'), cache=str(tmp_path), documents='paragraph')


def test_a_plain_file_stays_on_disk(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text(''.join(f'{{"text": "{n:0100}"}}\n' for n in range(1000)))
  rows = jsonl.open(local.File.at(path), 'train', str(tmp_path)).rows
  assert len(pickle.dumps(rows)) < 20_000 < path.stat().st_size
  assert pickle.loads(pickle.dumps(rows))[999] == rows[999] == {'text': f'{999:0100}'}  # noqa: S301


@pytest.mark.parametrize('name', ['a.jsonl', 'a.jsonl.gz'])
@pytest.mark.parametrize(
  ('line', 'words'), [('{"text": "b"', 'not valid JSON'), ('[1]', 'object.*list'), ('"b"', 'object.*str')]
)
def test_a_broken_line_is_named(tmp_path, name, line, words):
  content = f'{{"text": "a"}}\n\n{line}\n'.encode()
  (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith('.gz') else content)
  records = sources.open_source(str(tmp_path / name), cache=str(tmp_path))
  assert len(records) == 2
  with pytest.raises(ValueError, match=rf'{name}, line 3: .*{words}'):
    records[1]


def test_bytes_that_are_no_text_are_named(tmp_path):
  (tmp_path / 'a.txt').write_bytes('grün\n\n'.encode() + 'grün\n'.encode('latin-1'))
  records = sources.documents(str(tmp_path / 'a.txt'), cache=str(tmp_path))
  with pytest.raises(ValueError, match=r'a\.txt, line 3: not valid UTF-8'):
    records[1]


def test_files_that_cannot_be_read(tmp_path, folder):
  def refused(path, kind, *words):
    with pytest.raises(kind) as error:
      sources.open_source(str(path), cache=str(tmp_path / 'cache'))
    for word in words:
      assert word in str(error.value)

  (tmp_path / 'empty.txt').write_text('\n \n')
  refused(tmp_path / 'empty.txt', ValueError, 'empty.txt holds no rows')
  (tmp_path / 'cut.txt.gz').write_bytes(gzip.compress(b'text ' * 1000)[:-20])
  refused(tmp_path / 'cut.txt.gz', ValueError, 'cut.txt.gz', 'gzip')
  refused(tmp_path / 'notes.md', ValueError, 'notes.md', '.jsonl', '.gz')
  refused(tmp_path / 'emty.txt', FileNotFoundError, "Did you mean 'empty.txt'", 'tfds:<name>')
  (tmp_path / 'bare').mkdir()
  refused(tmp_path / 'bare', FileNotFoundError, '<split>.jsonl')
  (folder / 'train.txt').write_text('a second train')
  refused(folder, ValueError, 'both train.jsonl and train.txt')
  refused('pydocs/sumarise', ValueError, "Did you mean 'pydocs/summarise'")


# Which field is the text.


def test_the_field_of_the_text(tmp_path):
  def found(row, **settings):
    (tmp_path / 'a.jsonl').write_text(json.dumps(row))
    return sources.documents(str(tmp_path / 'a.jsonl'), cache=str(tmp_path), **settings)

  assert list(found({'text': 'a', 'title': 'b'})) == ['a']
  assert list(found({'sentence': 'a', 'label': 1})) == ['a']
  assert list(found({'text': 'a', 'title': 'b'}, text='title')) == ['b']
  assert found({'text': 'a', 'title': 'b'}).digest != found({'text': 'a', 'title': 'b'}, text='title').digest
  with pytest.raises(ValueError, match=r'field.*premise, hypothesis'):
    found({'premise': 'a', 'hypothesis': 'b'})
  with pytest.raises(ValueError, match=r"field 'premis'.*Did you mean 'premise'"):
    found({'premise': 'a', 'hypothesis': 'b'}, text='premis')
  with pytest.raises(ValueError, match=r'\(none\)'):
    found({'label': 1})
  with pytest.raises(ValueError, match="field 'tags'"):
    found({'text': 'a', 'tags': [1, 2]}, text='tags')


def test_words_in_a_list_are_a_text_with_spaces(tmp_path):
  rows = [{'text': 'Do not', 'tokens': ['Do', "n't"]}, {'text': 'go', 'tokens': ['go']}]
  (tmp_path / 'a.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  found = sources.documents(str(tmp_path / 'a.jsonl'), cache=str(tmp_path), text='tokens')
  assert list(found) == ["Do n't", 'go']
  (tmp_path / 'a.jsonl').write_text('\n'.join(map(json.dumps, [rows[0], {'text': 'go', 'tokens': [1]}])))
  with pytest.raises(ValueError, match=r"row 1 of .*'tokens'.*\[1\]"):
    list(sources.documents(str(tmp_path / 'a.jsonl'), cache=str(tmp_path), text='tokens'))


# TensorFlow Datasets.


@pytest.fixture(scope='module')
def tfds_cache(tmp_path_factory):
  """Prepare a TFDS set, `small/plain`, with every kind of field."""
  import tensorflow_datasets as tfds

  class Small(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version('1.2.0')
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name='plain')]
    url_infos = None

    def _info(self):
      features = {
        'text': tfds.features.Text(),
        'label': tfds.features.ClassLabel(names=['no', 'yes']),
        'tags': tfds.features.Sequence(tfds.features.ClassLabel(names=['O', 'B'])),
        'answers': tfds.features.Sequence({'text': tfds.features.Text(), 'answer_start': np.int32}),
        'score': np.float32,
      }
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
      return {'train': self._generate_examples(12), 'test': self._generate_examples(3)}

    def _generate_examples(self, rows):
      for n in range(rows):
        answers = {'text': ['ä', 'b'], 'answer_start': [n, n + 1]}
        yield n, {'text': f'grün {n}', 'label': n % 2, 'tags': [0, 1, n % 2], 'answers': answers, 'score': 0.5}

  cache = tmp_path_factory.mktemp('cache')
  builder = Small(config='plain', data_dir=str(cache / 'tfds'), file_format='array_record')
  builder.download_and_prepare()
  return cache


def test_a_tfds_set_reads_as_plain_python(tfds_cache):
  records = sources.open_source('tfds:small/plain', split='train[:50%]', cache=str(tfds_cache))
  assert len(records) == 6
  rows = sorted(records, key=lambda row: row['text'])
  n = int(rows[0]['text'].split()[1])
  assert rows[0] == {
    'text': f'grün {n}',
    'label': n % 2,
    'tags': [0, 1, n % 2],
    'answers': {'text': ['ä', 'b'], 'answer_start': [n, n + 1]},
    'score': 0.5,
  }
  assert type(rows[0]['tags'][0]) is int
  assert records.names == ('no', 'yes')
  assert records.labels['tags'] == ('O', 'B')
  everything = sources.open_source('tfds:small/plain', split='train[:6]+train[6:]', cache=str(tfds_cache))
  assert sorted(texts(everything)) == sorted(f'grün {n}' for n in range(12))
  assert everything.digest != records.digest


def test_a_tfds_folder_is_a_path_too(tfds_cache):
  folder = tfds_cache / 'tfds' / 'small' / 'plain' / '1.2.0'
  by_path = sources.open_source(str(folder), split='test', cache=str(tfds_cache))
  by_name = sources.open_source('tfds:small/plain', split='test', cache=str(tfds_cache))
  assert list(by_path) == list(by_name)
  assert by_path.digest == by_name.digest
  with pytest.raises(ValueError, match=r'(test, train|train, test)'):
    sources.open_source('tfds:small/plain', split='validation', cache=str(tfds_cache))


def test_tfds_sets_that_cannot_be_read(tfds_cache, tmp_path, monkeypatch):
  import shutil

  def refused(path, cache, *words):
    with pytest.raises((ValueError, ModuleNotFoundError)) as error:
      sources.open_source(path, cache=str(cache))
    for word in words:
      assert word in str(error.value)

  refused('tfds:ag_news_subst', tmp_path, "Did you mean 'ag_news_subset'")
  refused('tfds:glue/sst3', tmp_path, 'glue/sst3', 'sst2', 'mrpc')
  # Without a network, and without the packages of TFDS: in both cases the message has the fix.
  monkeypatch.delenv('HTTPS_PROXY', raising=False)
  monkeypatch.setattr('urllib.request.getproxies', dict)
  monkeypatch.setattr('socket.getaddrinfo', _no_network)
  refused('tfds:ag_news_subset', tmp_path, 'ag_news_subset', '--file_format=array_record', str(tmp_path / 'tfds'))
  shutil.copytree(tfds_cache / 'tfds', tmp_path / 'tfds', dirs_exist_ok=True)
  info = tmp_path / 'tfds' / 'small' / 'plain' / '1.2.0' / 'dataset_info.json'
  info.write_text(info.read_text().replace('array_record', 'tfrecord'))
  refused(str(info.parent), tmp_path, 'tfrecord', "file_format='array_record'", 'download_and_prepare')


def _no_network(*arguments):
  import socket

  raise socket.gaierror('no network in this test')


def test_neither_jax_nor_tfds_is_imported_for_a_local_file(tmp_path):
  (tmp_path / 'a.txt').write_text('one')
  code = (
    'import sys\nfrom plm_jax.data.corpora import sources\n'
    f'print(sources.documents({str(tmp_path / "a.txt")!r}, cache={str(tmp_path)!r})[0])\n'
    "print([name for name in ('jax', 'tensorflow_datasets', 'tensorflow') if name in sys.modules])"
  )
  root = pathlib.Path(sources.__file__).parents[3]
  done = subprocess.run([sys.executable, '-c', code], cwd=root, capture_output=True, text=True, check=True)
  assert done.stdout.split('\n')[:2] == ['one', '[]']


# What people have.


@pytest.mark.parametrize(
  ('name', 'rows', 'field'),
  [
    ('trec', 5452, 'text'),
    ('squad', 11877, 'context'),
    ('universal_dependencies_en_ewt', 12544, 'text'),
    ('chinese_classics', 440, 'text'),
  ],
)
def test_shared_data(shared_data, tmp_path, name, rows, field):
  records = sources.open_source(str(shared_data(name)), cache=str(tmp_path))
  assert len(records) == rows
  assert isinstance(records[rows - 1][field], str)


# Filters.


def test_every_document_is_kept_or_counted_under_one_reason():
  documents = [
    'The cat sat on the mat and looked at the dog.',
    'short',
    'the cat SAT on the mat, and looked at the dog',
    'The cat sat on the mat and looked at the dog, which ran away.',
    'Die Katze liegt unter der Matte und schläft dort gerne lange.',
    '0.01 0.02 0.03 0.04 0.05 0.06 the end of the 0.07 0.08 0.09',
    'The whole story is a long one. ' * 10,
    'A fresh document that is about something else is kept.',
  ]
  kept, stats = filters.filter_documents(
    documents, min_chars=20, max_chars=200, min_alpha=0.6, min_english=0.1, dedup_prefix=30
  )
  assert kept == [documents[0], documents[7]]
  assert stats == filters.FilterStats(
    read=8,
    kept=2,
    kept_chars=len(documents[0]) + len(documents[7]),
    too_short=1,
    too_long=1,
    few_letters=1,
    not_english=1,
    duplicate=1,
    near_duplicate=1,
  )


def test_without_rules_a_filter_only_drops_copies():
  documents = ['a', 'b', 'A.', 'b']
  assert filters.filter_documents(documents)[0] == ['a', 'b']
  assert filters.filter_documents(documents, dedup=False)[0] == documents
  rows = [{'text': 'a', 'n': 1}, {'text': 'a', 'n': 2}]
  assert filters.filter_documents(rows, text=lambda row: row['text'])[0] == rows[:1]


def test_a_corpus_is_filtered_by_settings_that_enter_its_digest(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_text('the one of them\n\nshort\n\nThe one, of them\n\nthe other of them\n')

  def found(**quality):
    return sources.documents(str(path), cache=str(tmp_path), quality=quality)

  kept = found(min_chars=10)
  assert list(kept) == ['the one of them', 'the other of them']
  assert (kept.stats.too_short, kept.stats.duplicate) == (1, 1)
  assert kept.description.endswith('4 rows, of which 2 are kept')
  everything = sources.documents(str(path), cache=str(tmp_path))
  assert len({everything.digest, kept.digest, found(min_chars=11).digest, found().digest}) == 4
  assert found(min_chars=10).digest == kept.digest
  with pytest.raises(ValueError, match=r"'min_char'.*Did you mean 'min_chars'"):
    found(min_char=3)


def test_a_shuffled_slice_and_its_rest_are_all_rows(tmp_path):
  rows = [{'text': f'{number}', 'label': number // 50} for number in range(100)]  # sorted by class
  (tmp_path / 'train.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  kept, held_out = (
    [int(row['text']) for row in sources.open_source(str(tmp_path), split=split)]
    for split in ('train[:90%shuffled]', 'train[90%shuffled:]')
  )
  assert (len(kept), len(held_out)) == (90, 10)
  assert sorted([*kept, *held_out]) == list(range(100))
  assert kept == sorted(kept) and held_out == sorted(held_out)  # the order of the file
  assert held_out != list(range(90, 100)) and {number // 50 for number in held_out} == {0, 1}
  assert sources.training_and_held_out(str(tmp_path)) == ('train[:90%shuffled]', 'train[90%shuffled:]')
  digests = {sources.open_source(str(tmp_path), split=split).digest for split in ('train[:9]', 'train[:9shuffled]')}
  assert len(digests) == 2
  with pytest.raises(ValueError, match='bounds'):
    sources.open_source(str(tmp_path), split='train[10:90%shuffled]')


@pytest.mark.parametrize(
  ('names', 'expected'),
  [
    (['train', 'dev', 'test'], ('train', 'dev')),
    (['train', 'test'], ('train[:90%shuffled]', 'train[90%shuffled:]')),
    (['letters'], ('letters[:90%shuffled]', 'letters[90%shuffled:]')),
    (['test'], ('train[:90%shuffled]', 'train[90%shuffled:]')),  # refused when it is opened
  ],
)
def test_a_folder_says_what_is_trained_and_what_judges(tmp_path, names, expected):
  for name in names:
    (tmp_path / f'{name}.csv').write_text('text,label\na,b\n')
  assert sources.training_and_held_out(str(tmp_path)) == expected


def test_words_alone_are_sentences_without_tags(tmp_path):
  (tmp_path / 'new.conll').write_text('-DOCSTART-\n\nAnna\nsleeps\n\nYes\n')
  found = list(sources.open_source(str(tmp_path / 'new.conll')))
  assert found == [{'text': 'Anna sleeps', 'tokens': ['Anna', 'sleeps']}, {'text': 'Yes', 'tokens': ['Yes']}]


def test_a_field_of_lists_is_offered_and_read(tmp_path):
  (tmp_path / 'a.jsonl').write_text('{"id": 1, "sentences": ["Anna met", "Bob"]}\n')
  with pytest.raises(ValueError, match=r'no single field of text: set data\.text to one of sentences'):
    sources.documents(str(tmp_path / 'a.jsonl'), cache=str(tmp_path / 'cache'))
  texts = sources.documents(str(tmp_path / 'a.jsonl'), text='sentences', cache=str(tmp_path / 'cache'))
  assert list(texts) == ['Anna met Bob']
