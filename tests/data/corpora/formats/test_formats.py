"""Storage formats: rows, digests and errors; a new format file serves everything that reads data."""

import copy
import csv
import datetime
import decimal
import gzip
import io
import json
import pickle
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from plm_jax.commands import vocab
from plm_jax.config import build
from plm_jax.data import bptt, labelled, pairs, stream
from plm_jax.data.corpora import formats, local, records, sources
from plm_jax.data.rows import examples
from plm_jax.text import tokenizer
from tests.data import small

FORMATS = build.files_of('data.corpora.formats')
ROWS = [
  {'text': 'one "quoted", two', 'label': 1, 'score': 0.5},
  {'text': 'three', 'label': 0, 'score': 2.0},
  {'text': 'vier grün\nund mehr', 'label': 1, 'score': -1.0},
]
SENTENCES = [{'tokens': ['The', 'Hague', '#1'], 'tags': ['O', 'B-LOC', 'O']}, {'tokens': ['grün'], 'tags': ['O']}]


def parquet(rows) -> bytes:
  import pyarrow
  from pyarrow import parquet

  stream = io.BytesIO()
  parquet.write_table(pyarrow.Table.from_pylist(rows), stream, row_group_size=2)
  return stream.getvalue()


def table(rows, **form) -> bytes:
  stream = io.StringIO()
  writer = csv.DictWriter(stream, list(rows[0]), lineterminator='\n', **form)
  writer.writeheader()
  writer.writerows(rows)
  return stream.getvalue().encode()


def tabs(rows) -> bytes:
  lines = [list(rows[0]), *(row.values() for row in rows)]
  return ''.join('\t'.join(map(str, line)) + '\n' for line in lines).encode()


PLAIN = [{**row, 'text': row['text'].replace('\n', ' ')} for row in ROWS]
# suffix -> rows, and a file that holds them
EXAMPLES = {
  '.txt': ([{'text': row['text']} for row in ROWS], '\n\n'.join(row['text'] for row in ROWS).encode()),
  '.jsonl': (ROWS, ''.join(json.dumps(row) + '\n' for row in ROWS).encode()),
  '.csv': (ROWS, table(ROWS)),
  '.tsv': (PLAIN, tabs(PLAIN)),
  '.parquet': (ROWS, parquet(ROWS)),
  '.conll': (
    [{'text': ' '.join(row['tokens']), **row} for row in SENTENCES],
    '-DOCSTART- -X-\n\nThe\tO\nHague\tB-LOC\n#1\tO\n\n\ngrün\tO\n'.encode(),
  ),
  '.conllu': (
    [{
      'text': 'It is', 'tokens': ['It', 'is'], 'lemmas': ['it', 'be'], 'upos': ['PRON', 'AUX'], 'xpos': ['PRP', 'VBZ'],
      'feats': ['_', '_'], 'head': [2, 0], 'deprel': ['nsubj', 'root'],
    }],
    b"# text = It's\n1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_\n1\tIt\tit\tPRON\tPRP\t_\t2\tnsubj\t_\t_\n"
    b'2\tis\tbe\tAUX\tVBZ\t_\t0\troot\t_\t_\n2.1\tx\tx\tX\tX\t_\t_\t_\t_\t_\n',
  ),
}  # fmt: skip
ABOUT = 'Die grüne Stadt.'
QUESTIONS = [
  {'id': 'a', 'title': 'Stadt', 'context': ABOUT, 'question': 'Was?',
   'answers': {'text': ['Stadt'], 'answer_start': [10]}},
  {'id': 'b', 'title': 'Stadt', 'context': ABOUT, 'question': 'Wer?', 'answers': {'text': [], 'answer_start': []},
   'is_impossible': True},
  {'id': 'c', 'title': '', 'context': 'x', 'question': 'y'},
]  # fmt: skip
PUBLISHED = {
  'version': 'v2.0',
  'data': [
    {'title': 'Stadt', 'paragraphs': [{'context': ABOUT, 'qas': [
      {'id': 'a', 'question': 'Was?', 'answers': [{'text': 'Stadt', 'answer_start': 10}]},
      {'id': 'b', 'question': 'Wer?', 'answers': [], 'is_impossible': True},
    ]}]},
    {'paragraphs': [{'context': 'x', 'qas': [{'id': 'c', 'question': 'y'}]}]},
  ],
}  # fmt: skip
EXAMPLES['.json'] = QUESTIONS, json.dumps(PUBLISHED, ensure_ascii=False).encode()
SUFFIXES = sorted({suffix for form in FORMATS.values() for suffix in form.SUFFIXES})
every_suffix = pytest.mark.parametrize('suffix', SUFFIXES)


@pytest.mark.parametrize('name', FORMATS)
def test_a_format_has_what_is_asked_of_it(name):
  form = FORMATS[name]
  assert form.__doc__
  assert form.SCHEME is None or form.SCHEME.endswith(':') or form.SCHEME.isidentifier()
  assert all(suffix.startswith('.') and not suffix.endswith(local.ZIPPED) for suffix in form.SUFFIXES)
  assert form.SCHEME or form.SUFFIXES


def test_every_suffix_has_an_example():
  assert sorted(EXAMPLES) == SUFFIXES


@every_suffix
@pytest.mark.parametrize('zipped', [False, True])
def test_rows_of_a_file(tmp_path, suffix, zipped):
  rows, content = EXAMPLES[suffix]
  path = tmp_path / f'train{suffix}{local.ZIPPED * zipped}'
  path.write_bytes(gzip.compress(content) if zipped else content)
  for where in (path, tmp_path):
    records = sources.open_source(str(where), cache=str(tmp_path / 'cache'))
    assert list(records) == rows
    assert list(records)[::-1] == [records[index] for index in reversed(range(len(rows)))]
    assert len(sources.open_source(str(where), split='train[:1]', cache=str(tmp_path / 'cache'))) == 1
  assert list(pickle.loads(pickle.dumps(records))) == rows  # noqa: S301
  with pytest.raises(ValueError, match="no split 'test'"):
    sources.open_source(str(tmp_path), split='test', cache=str(tmp_path / 'cache'))


@every_suffix
def test_the_digest_follows_the_content(tmp_path, suffix):
  _, content = EXAMPLES[suffix]
  digests = []
  for name, made in (('a', content), ('b', content), ('c', re.sub(rb'\bgr', b'kr', content).replace(b'It\t', b'He\t'))):
    (tmp_path / f'{name}{suffix}').write_bytes(made)
    digests.append(sources.open_source(str(tmp_path / f'{name}{suffix}'), cache=str(tmp_path / 'cache')).digest)
  assert digests[0] == digests[1] != digests[2]


@every_suffix
def test_a_damaged_file_is_named(tmp_path, suffix):
  path = tmp_path / f'bad{suffix}'
  path.write_bytes(b'\xff\xfe\t\xff\n' + EXAMPLES[suffix][1][-20:])
  with pytest.raises(ValueError, match=f'bad{suffix}'):
    list(sources.open_source(str(path), cache=str(tmp_path / 'cache')))
  path.write_bytes(b'')
  with pytest.raises(ValueError, match=f'bad{suffix}'):
    sources.open_source(str(path), cache=str(tmp_path / 'cache'))


@pytest.mark.parametrize('zipped', ['', '.gz'])
@pytest.mark.parametrize('form', ['utf-16', 'utf-16-le', 'utf-16-be', 'utf-32'])
@pytest.mark.parametrize('suffix', ['.txt', '.csv', '.tsv', '.jsonl', '.json', '.conll'])
def test_text_of_another_width_is_named_with_the_command_that_converts_it(tmp_path, suffix, form, zipped):
  text = EXAMPLES[suffix][1].decode()
  (tmp_path / f'a b{suffix}{zipped}').write_bytes((gzip.compress if zipped else bytes)(text.encode(form)))
  with pytest.raises(ValueError, match=r'is UTF-(16|32).*, not UTF-8') as refused:
    sources.open_source(str(tmp_path / f'a b{suffix}{zipped}'), cache=str(tmp_path / 'cache'))
  assert len(str(refused.value).replace(str(tmp_path), '')) <= 240
  subprocess.run(str(refused.value).partition('Convert it: ')[2], shell=True, check=True)
  assert (tmp_path / f'a b.utf8{suffix}').read_bytes() == text.encode()


@pytest.mark.parametrize(
  ('name', 'content', 'message'),
  [
    ('a.csv', 'x,y\n1,2\n3\n', r'a\.csv, line 3: 1 cell.*2 fields'),
    ('a.csv', 'x,y\n1,2\n\n3,"4\n5",6\n', r'a\.csv, line 4: 3 cells'),
    ('a.csv', 'x,y\n1,"2"3\n', r'a\.csv, line 2: .*csv'),
    ('a.csv', 'x,x\n1,2\n', r'a\.csv.*field'),
    ('a.csv', 'x,y\n', r'a\.csv.*no rows'),
    ('a.tsv', 'x\ty\n1\t2\t3\n', r'a\.tsv, line 2: 3 cells'),
    ('a.conll', 'a\tO\n\nb\tO\nc\n', r"a\.conll, line 4: .*'c'"),
    ('a.conll', 'a x O\nb O\n', r'a\.conll, line 2: 2 columns'),
    ('a.conllu', '# x\n1\ta\n', r'a\.conllu, line 2: 10 columns'),
    ('a.json', '{"data": [\n}', r'a\.json, line 2: not valid JSON'),
    ('a.json', '[]', r'a\.json.*SQuAD'),
    ('a.json', '{"data": []}', r'a\.json.*no questions'),
    ('a.json', '{"data": [{"paragraphs": [{"qas": [{}]}]}]}', r"SQuAD.*'id'"),
    ('a.conllu', '1\ta\ta\tX\tX\t_\tz\tx\t_\t_\n', r"a\.conllu, line 1: column 7 .*'z'"),
  ],
)  # fmt: skip
def test_a_bad_row_is_named(tmp_path, name, content, message):
  (tmp_path / name).write_text(content)
  with pytest.raises(ValueError, match=message):
    list(sources.open_source(str(tmp_path / name), cache=str(tmp_path / 'cache')))


def test_columns_of_a_table_are_numbers_only_if_all_cells_are(tmp_path):
  (tmp_path / 'a.csv').write_text('\ufeffa,b,c,d,e,f\n1,1.5,007,x,,-2\n2,2,8,3,,\n')
  records = sources.open_source(str(tmp_path / 'a.csv'), cache=str(tmp_path / 'cache'))
  assert records[0] == {'a': 1, 'b': 1.5, 'c': '007', 'd': 'x', 'e': '', 'f': -2}
  assert records[1] == {'a': 2, 'b': 2.0, 'c': '8', 'd': '3', 'e': '', 'f': None}


def test_numbers_of_a_table_keep_how_they_are_written(tmp_path):
  (tmp_path / 'a.csv').write_text('a,b,c\n-0,5.10,x\n12,1e3,y\n,,z\n')
  rows = list(sources.open_source(str(tmp_path / 'a.csv'), cache=str(tmp_path / 'cache')))
  cells = [['-0', '5.10', 'x'], ['12', '1e3', 'y'], [None, None, 'z']]
  for given in (rows, copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))):  # noqa: S301
    assert [[records.as_written(cell) for cell in row.values()] for row in given] == cells
    assert given == [{'a': 0, 'b': 5.1, 'c': 'x'}, {'a': 12, 'b': 1000, 'c': 'y'}, {'a': None, 'b': None, 'c': 'z'}]
  assert np.array([row['b'] for row in rows[:2]]).dtype == np.float64
  assert json.dumps(rows[1]) == '{"a": 12, "b": 1000.0, "c": "y"}'  # in files that are not for the person's own rows


KINDS = {
  'class': ({}, 'text,label', ['7,1', '2024,0'], ['7', '2024']),
  'pairs': (
    {'kind': 'regression', 'fields': ('a', 'b')}, 'a,b,label', ['7,1e3,1', '2,5.10,0'], ['7', '1e3', '2', '5.10'],
  ),
  'words': ({'kind': 'words', 'fields': ('text',)}, 'text,label', ['7,1', '12,0'], [' 7', ' 12']),
  'options': (
    {'kind': 'options', 'fields': ('q', '{a|b}')}, 'q,a,b,label', ['5,5.10,6,1', '6,1e3,5,0'],
    ['5', '5.10', '6', '1e3'],
  ),
}  # fmt: skip


@pytest.mark.parametrize(('settings', 'header', 'lines', 'texts'), KINDS.values(), ids=KINDS)
def test_texts_of_a_table_that_are_numbers_are_read_as_written(tmp_path, settings, header, lines, texts):
  (tmp_path / 'train.csv').write_text('\n'.join([header, *lines, '']))
  opened = sources.open_source(str(tmp_path), cache=str(tmp_path / 'cache'))
  asked = examples.asked(**settings)
  found = build.files_of('data.rows.kinds')[settings.get('kind', 'class')].make(records=opened, asked=asked)
  assert [found.texts[place] for place in range(len(found.texts))] == texts


def test_an_empty_cell_in_quotation_marks_is_a_row_of_a_table_of_one_column(tmp_path):
  (tmp_path / 'a.csv').write_text('text\n""\n\nx\n""\n')
  rows = sources.open_source(str(tmp_path / 'a.csv'), cache=str(tmp_path / 'cache'))
  assert list(rows) == [{'text': ''}, {'text': 'x'}, {'text': ''}]
  (tmp_path / 'b.csv').write_text('text,id\n,\nx,1\n,\n')  # what a spreadsheet leaves below a table
  rows = sources.open_source(str(tmp_path / 'b.csv'), cache=str(tmp_path / 'cache'))
  assert list(rows) == [{'text': 'x', 'id': 1}]


def test_a_first_column_without_a_name_has_a_number(tmp_path):
  (tmp_path / 'a.csv').write_text(',x\n0,a\n1,b\n')
  rows = sources.open_source(str(tmp_path / 'a.csv'), cache=str(tmp_path / 'cache'))
  assert list(rows) == [{'column_1': 0, 'x': 'a'}, {'column_1': 1, 'x': 'b'}]
  (tmp_path / 'b.csv').write_text('x,\n0,a\n')
  with pytest.raises(ValueError, match='field'):
    sources.open_source(str(tmp_path / 'b.csv'), cache=str(tmp_path / 'cache'))


def test_lines_of_superglue_that_are_laid_out_otherwise_are_named(tmp_path):
  flat, nested = {'premise': 'a', 'label': 'entailment'}, {'idx': 0, 'qas': [{'query': 'x'}]}
  (tmp_path / 'val.jsonl').write_text(f'{json.dumps(flat)}\n{json.dumps(nested)}\n{{"premise\n{json.dumps(flat)}')
  rows = sources.open_source(f'superglue:{tmp_path}', split='val', cache=str(tmp_path / 'cache'))
  assert (len(rows), rows[0], rows[3]) == (4, flat, flat)
  with pytest.raises(ValueError, match=r"val\.jsonl, line 2.*'passage'"):
    rows[1]
  with pytest.raises(ValueError, match=r'val\.jsonl, line 3: not valid JSON'):
    rows[2]
  (tmp_path / 'val.jsonl').write_text(json.dumps(flat))
  assert list(sources.open_source(f'superglue:{tmp_path}', split='val', cache=str(tmp_path / 'cache'))) == [flat]
  with pytest.raises(FileNotFoundError, match='no folder'):
    sources.open_source('superglue:nowhere', cache=str(tmp_path / 'cache'))


def test_entities_of_superglue_are_in_the_order_of_tfds(tmp_path):
  spans = [{'start': 8, 'end': 10}, {'start': 0, 'end': 2}, {'start': 8, 'end': 10}]
  asked = {'idx': 3, 'query': '@placeholder', 'answers': [{'text': 'Eve'}, {'text': 'Bob'}, {'text': 'Eve'}]}
  line = {'idx': 1, 'passage': {'text': 'Bob met Eve', 'entities': spans}, 'qas': [asked]}
  (tmp_path / 'val.jsonl').write_text(json.dumps(line))
  (row,) = sources.open_source(f'superglue:{tmp_path}', split='val', cache=str(tmp_path / 'cache'))
  assert (row['entities'], row['answers']) == (['Bob', 'Eve'], ['Bob', 'Eve'])


def test_questions_that_are_laid_out_otherwise_are_named(tmp_path):
  lacking = {'id': 'd', 'question': 'Wo?', 'answers': [{'text': 'Stadt'}]}
  asked = [*PUBLISHED['data'][0]['paragraphs'][0]['qas'], lacking, {'question': 'Wie?'}]
  whole = {'data': [{'title': 'Stadt', 'paragraphs': [{'context': ABOUT, 'qas': asked}]}]}
  (tmp_path / 'a.json').write_text(json.dumps(whole))
  rows = sources.open_source(str(tmp_path / 'a.json'), cache=str(tmp_path / 'cache'))
  assert [rows[0], rows[1], len(rows)] == [*QUESTIONS[:2], 4]
  for index, message in ((2, r"question 'd': .*'answer_start'"), (3, r"question 4: .*'id'")):
    with pytest.raises(ValueError, match=rf'a\.json, {message}'):
      rows[index]


def test_quotation_marks_of_tsv_are_text(tmp_path):
  (tmp_path / 'a.tsv').write_bytes(b'sentence\tlabel\r\n"Ah, he said\t1\r\nno "end\t0\r\n')
  records = sources.open_source(str(tmp_path / 'a.tsv'), cache=str(tmp_path / 'cache'))
  assert [row['sentence'] for row in records] == ['"Ah, he said', 'no "end']


def test_long_cells_are_read(tmp_path):
  (tmp_path / 'a.csv').write_text(f'text\n"{"word " * 50_000}"\n')
  (text,) = sources.documents(str(tmp_path / 'a.csv'), cache=str(tmp_path / 'cache'))
  assert len(text) == 250_000


def test_more_columns_have_numbers(tmp_path):
  (tmp_path / 'bare.conll').write_text('10\u00a0000\nhabitants\n')
  (row,) = sources.open_source(str(tmp_path / 'bare.conll'), cache=str(tmp_path / 'cache'))
  assert row['tokens'] == ['10\u00a0000', 'habitants']
  (tmp_path / 'tags.conll').write_text('10\u00a0000 B-x\nhabitants  O \n')
  (row,) = sources.open_source(str(tmp_path / 'tags.conll'), cache=str(tmp_path / 'cache'))
  assert (row['tokens'], row['tags']) == (['10\u00a0000', 'habitants'], ['B-x', 'O'])
  (tmp_path / 'a.conll').write_text('EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n')
  (row,) = sources.open_source(str(tmp_path / 'a.conll'), cache=str(tmp_path / 'cache'))
  assert row == {
    'text': 'EU rejects',
    'tokens': ['EU', 'rejects'],
    'column_2': ['NNP', 'VBZ'],
    'column_3': ['B-NP', 'B-VP'],
    'tags': ['B-ORG', 'O'],
  }


def test_values_that_json_lacks_are_plain_in_a_row(tmp_path):
  day = datetime.datetime(2020, 1, 2, 3, 4)
  row = {
    'text': 'a', 'day': day.date(), 'then': day, 'hour': day.time(), 'took': datetime.timedelta(minutes=1.5),
    'price': decimal.Decimal('5.10'), 'picture': b'\xff\xd8', 'label': 1,
  }  # fmt: skip
  (tmp_path / 'train.parquet').write_bytes(parquet([row, {**row, 'label': 0}]))
  about = {'path': str(tmp_path / 'train.parquet'), 'cache': str(tmp_path / 'cache'), 'kind': 'class'}
  found = sources.open_source(about['path'], cache=about['cache'])[0]
  assert found.pop('picture') == b'\xff\xd8'
  assert found == {
    'text': 'a', 'day': '2020-01-02', 'then': '2020-01-02T03:04:00', 'hour': '03:04:00', 'took': 90.0, 'price': 5.1,
    'label': 1,
  }  # fmt: skip
  assert labelled.look(**about, split='train').classes == 2
  with pytest.raises(ValueError, match=r"'picture'.*UTF-8"):
    labelled.look(**about, split='train', fields=('picture',))


@pytest.mark.parametrize(('written', 'plain'), [('NaN', 'NaN'), ('1e400', '1E+400'), ('sNaN', 'sNaN')])
def test_a_decimal_that_is_no_finite_number_is_text(written, plain):
  assert records._plain(decimal.Decimal(written)) == plain


def test_groups_of_a_parquet_file_are_read_once_in_order(tmp_path, monkeypatch):
  rows = [{'text': f'{n}'} for n in range(9)]
  (tmp_path / 'a.parquet').write_bytes(parquet(rows))
  records = sources.open_source(str(tmp_path / 'a.parquet'), cache=str(tmp_path / 'cache'))
  opened = []
  stream = local.File.stream
  monkeypatch.setattr(local.File, 'stream', lambda file: opened.append(file) or stream(file))
  assert list(records) == rows
  assert len(opened) == 4, 'the first group is kept from opening'


def test_labels_that_are_names_are_numbered_by_the_list(tmp_path):
  (tmp_path / 'train.csv').write_text('sentence,label\n1 2,pos\n3,neg\n4 5,pos\n')
  settings = dict(vocab=small.NumberVocab(), path=str(tmp_path), length=8, batch_size=3, seed=0, cache=str(tmp_path))
  source = labelled.make(**settings)  # without a list: sorted
  assert (source.names, next(source.once())['label'].tolist()) == (('neg', 'pos'), [1, 0, 1])
  (tmp_path / 'labels.json').write_text('{"label": ["neg"]}')
  with pytest.raises(ValueError, match=r"row 0 of .*holds 'pos'.*labels.json.*neg"):
    labelled.make(**settings)
  (tmp_path / 'labels.json').write_text('{"label": ["neg", "pos"]}')
  source = labelled.make(**settings)
  assert next(source.once())['label'].tolist() == [1, 0, 1]
  assert (source.names, source.classes) == (('neg', 'pos'), 2)
  (tmp_path / 'labels.json').write_text('{"label": ["pos", "neg"]}')
  assert labelled.make(**settings).digest != source.digest


def test_columns_of_words_are_rows_of_words(tmp_path):
  (tmp_path / 'train.conll').write_text('1 B-x\n2 I-x\n\n3 O\n')
  (tmp_path / 'labels.json').write_text('{"tags": ["O", "B-x", "I-x"]}')
  settings = dict(vocab=small.NumberVocab(), path=str(tmp_path), length=6, batch_size=2, seed=0, cache=str(tmp_path))
  source = labelled.make(**settings, kind='words', fields=('tokens',), label='tags')
  (batch,) = source.once()
  assert batch['labels'].tolist() == [[-1, 1, 2, -1, -1, -1], [-1, 0, -1, -1, -1, -1]]
  assert source.names == ('O', 'B-x', 'I-x')


@pytest.mark.parametrize(('content', 'message'), [('[', 'labels.json is not valid JSON'), ('["a"]', 'labels.json')])
def test_a_bad_list_of_names_is_named(tmp_path, content, message):
  small.write_rows(tmp_path / 'train.jsonl', [{'text': '1', 'label': 0}])
  (tmp_path / 'labels.json').write_text(content)
  with pytest.raises(ValueError, match=message):
    sources.open_source(str(tmp_path), cache=str(tmp_path))


# A new format.

DASHES = '''
"""Rows between lines of dashes: a label, then text."""

import pathlib

from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened

SUFFIXES = ('.dashes',)
SCHEME = 'dashes:'


def matches(folder):
  return (folder / 'dashes.mark').exists()


def open(path, split, cache):
  if isinstance(path, str):
    name = path.removeprefix(SCHEME)
    path = local.File.at(pathlib.Path(name) / f'{split}.dashes')
  with path.stream() as stream:
    parts = stream.read().decode().split('---\\n')
  rows = [{'text': text, 'label': int(label)} for label, text in (part.split(' ', 1) for part in parts)]
  return Opened(rows, path.digest(cache=cache))
'''


@pytest.fixture
def with_dashes(tmp_path, monkeypatch):
  """Build a package folder with one more format, and data in it."""
  place = tmp_path / 'plugins'
  place.mkdir()
  (place / 'dashes.py').write_text(textwrap.dedent(DASHES))
  monkeypatch.setattr(formats, '__path__', [*formats.__path__, str(place)])
  data = tmp_path / 'data'
  data.mkdir()
  texts = [text.replace(' ', '\n', 1) for text in small.documents([7, 5, 9, 4, 6, 8])]  # two lines each
  (data / 'train.dashes').write_text('---\n'.join(f'{n % 2} {text}' for n, text in enumerate(texts)))
  yield data
  sys.modules.pop('plm_jax.data.corpora.formats.dashes', None)


@pytest.mark.parametrize('form', ['scheme', 'mark', 'suffix'])
@pytest.mark.parametrize(
  ('source', 'settings'),
  [(stream, {}), (bptt, {}), (pairs, {'sentences': 'line'}), (labelled, {'fields': ('text',)})],
  ids=['stream', 'bptt', 'pairs', 'labelled'],
)
def test_a_new_format_serves_every_source(with_dashes, form, source, settings):
  if form == 'mark':
    (with_dashes / 'dashes.mark').write_text('')
    (with_dashes / 'train.txt').write_text('another file for the same split')
  path = {'scheme': f'dashes:{with_dashes}', 'mark': with_dashes, 'suffix': with_dashes / 'train.dashes'}[form]
  made = source.make(
    vocab=small.NumberVocab(), path=str(path), length=12, batch_size=2, seed=0, cache=str(with_dashes), **settings
  )
  texts = ('tokens', 'first', 'next', 'other')
  parts = [batch[name].ravel() for batch in made.once() for name in texts if name in batch]
  tokens = np.concatenate(parts)
  assert {len(small.SPECIAL), len(small.SPECIAL) + 38} <= set(tokens.tolist())


def test_a_new_format_serves_the_vocabulary_trainer(with_dashes, tmp_path):
  out = tmp_path / 'vocab'
  words = ['--name=wordpiece', '--size=60', f'--out={out}', f'--cache={tmp_path}']
  assert vocab.main(['train', f'--source={with_dashes}', *words]) == 0
  assert tokenizer.load(out).record['documents'] == 6


@pytest.mark.parametrize('claim', ["SUFFIXES = ('.txt',)", "SCHEME = 'tfds:'"])
def test_two_formats_that_claim_a_path_are_named(tmp_path, monkeypatch, claim):
  (tmp_path / 'plugins').mkdir()
  (tmp_path / 'plugins' / 'second.py').write_text(f'SUFFIXES = ()\nSCHEME = None\n{claim}\n')
  monkeypatch.setattr(formats, '__path__', [*formats.__path__, str(tmp_path / 'plugins')])
  (tmp_path / 'a.txt').write_text('text')
  path = str(tmp_path / 'a.txt') if 'SUFFIXES' in claim else 'tfds:glue/sst2'
  with pytest.raises(ValueError, match=r'claimed by .*second.*(txt|tfds)|claimed by .*(txt|tfds).*second'):
    sources.open_source(path, cache=str(tmp_path))
  sys.modules.pop('plm_jax.data.corpora.formats.second', None)
