"""Typical mistakes in tables are counted and told before training, in every format."""

import json
import logging
import re

import pandas
import pytest

from plm_jax.data import labelled
from plm_jax.data.corpora import sources
from plm_jax.io import files
from tests.data import small

FORMATS = ('csv', 'tsv', 'jsonl', 'parquet')


def write(folder, columns, form):
  table, file = pandas.DataFrame(columns), folder / f'train.{form}'
  if form == 'parquet':
    table.to_parquet(file)
  elif form == 'jsonl':
    file.write_text(''.join(json.dumps(row) + '\n' for row in table.to_dict('records')))
  elif form == 'csv':
    table.to_csv(file, index=False)
  else:
    file.write_text('\n'.join('\t'.join(map(str, row)) for row in [table.columns, *table.itertuples(index=False)]))
  return folder


def told(caplog, folder, **settings):
  caplog.clear()
  with caplog.at_level(logging.WARNING):
    found = labelled.look(path=str(folder), cache=str(folder / 'cache'), **settings)
  return found, '\n'.join(record.getMessage() for record in caplog.records)


MISTAKES = {
  'case': (['pos', 'Pos', 'neg'] * 8, "differ by case or blanks only.*'Pos' .8., 'pos' .8."),
  'blanks': (['pos', 'pos ', 'neg'] * 8, "differ by case or blanks only.*'pos' .8., 'pos ' .8."),
  'letters': (['caf\xe9', 'cafe\u0301', 'bar'] * 8, 'differ by case or blanks only'),  # composed or not
  'width': (['\uff41', 'a', 'neg'] * 8, 'differ by case or blanks only'),
  'unseen': (['pos\u200b', 'pos', 'neg'] * 8, 'differ by case or blanks only'),
  'between': (['so  so', 'so so', 'neg'] * 8, 'differ by case or blanks only'),
  'nan': (['pos', 'nan', 'neg'] * 8, "is 'nan' in 8 of 24 labels.*data.missing='nan'"),
  'null': (['pos', 'null', 'neg'] * 8, "is 'null' in 8 of 24 labels"),
  'a formula': (['pos', '#N/A', 'neg'] * 8, "is '#N/A' in 8 of 24 labels"),
  'NA': (['pos', 'NA', 'neg'] * 8, "is 'NA' in 8 of 24 labels"),
  'from one': ([1, 2, 3, 4, 5, 1] * 4, 'classes in .label. are 1, 2, 3, 4, 5, and 1 of the numbers 0 to 5 have no row'),
  'tens': ([0, 10, 20] * 8, 'are 0, 10, 20, and 18 of the numbers'),
  'minus one': ([-1, 0, 1] * 8, 'in 8 of them .label. is -1, which means no label'),
}


@pytest.mark.parametrize('form', FORMATS)
@pytest.mark.parametrize('name', MISTAKES)
def test_classes_are_told(name, form, tmp_path, caplog):
  labels, said = MISTAKES[name]
  folder = write(tmp_path, {'text': [f'text {k}' for k in range(24)], 'label': labels}, form)
  assert re.search(said, told(caplog, folder)[1])


@pytest.mark.parametrize('form', FORMATS)
def test_texts_are_told(form, tmp_path, caplog):
  texts = ['a', '', ' '] * 8
  said = told(caplog, write(tmp_path, {'text': texts, 'label': [0, 1] * 12}, form))[1]
  assert "16 of 24 rows have an empty text in 'text'" in said
  said = told(caplog, write(tmp_path, {'text': ['nan', 'b', '<NA>'] * 8, 'label': [0, 1] * 12}, form))[1]
  assert "16 of 24 rows have 'text' 'nan', 'null' or '<NA>'" in said
  said = told(caplog, write(tmp_path, {'sentence': ["['a', 'b']", *'cdefg'], 'label': [0, 1] * 3}, form))[1]
  assert "1 of 6 rows have a list in 'sentence'" in said
  if form != 'csv':
    quoted = [f'"{k}"' for k in range(8)]
    said = told(caplog, write(tmp_path, {'text': quoted, 'label': [0, 1] * 4}, form))[1]
    assert "8 of 8 rows have quotation marks around 'text'" in said
    said = told(caplog, write(tmp_path, {'text': ['"a ""b"""', *'cdefghi'], 'label': [0, 1] * 4}, form))[1]
    assert "1 of 8 rows have quotation marks around 'text'" in said


@pytest.mark.parametrize('form', FORMATS)
def test_sound_data_is_not_told(form, tmp_path, caplog):
  texts = ['"Good," he said', '"Yes"', "it's", *map(str, range(21))]
  for labels in (['Nancy', 'pos', 'neg'] * 8, [0, 1, 2] * 8, [0, 1, 1, 4] * 6):
    assert told(caplog, write(tmp_path, {'text': texts, 'label': labels}, form))[1] == ''


def test_texts_of_a_call_in_python_are_no_table_with_mistakes(caplog):
  with files.temporary_folder() as folder:  # as `load(...).classify` writes them
    columns = {'text': ['', ' a', '"b"'] * 8, 'label': ['pos', 'Pos', 'neg'] * 8}
    assert told(caplog, write(folder, columns, 'jsonl'), fields=('text',), label='label')[1] == ''


def test_words_and_questions_are_told(tmp_path, caplog):
  words = write(tmp_path, {'tokens': ['a b', 'c', ''], 'tags': ['B-X b-X', 'nan', '']}, 'jsonl')
  said = told(caplog, words, kind='words', fields=('tokens',), label='tags')[1]
  assert (
    "'B-X' (1), 'b-X' (1)" in said
    and "'tags' is 'nan' in 1 of 3 labels" in said
    and '1 of 3 rows have an empty text' in said
  )
  (tmp_path / 'train.jsonl').unlink()
  rows = {
    'question': ['a', ''],
    'context': ['b c', ' b'],
    'answers': [{'text': ['b'], 'answer_start': [k]} for k in (0, 1)],
  }
  said = told(caplog, write(tmp_path, rows, 'csv'), kind='spans', label='answers')[1]
  assert "1 of 2 rows have an empty text in 'question'" in said
  (tmp_path / 'train.csv').unlink()
  rows = {'context': ['a'] * 24, 'endings': ['["b", ""]', *['["b", "c"]'] * 23], 'label': [1] * 24}
  said = told(caplog, write(tmp_path, rows, 'csv'), kind='options')[1]
  assert "1 of 24 rows have an empty text in 'options'" in said and 'classes in .label. are 1'.replace('.', "'") in said


def test_the_fix_for_no_class_drops_the_rows(tmp_path, caplog):
  folder = write(tmp_path, {'text': [*'abcdef'], 'label': ['pos', 'nan', 'neg'] * 2}, 'csv')
  found, said = told(caplog, folder, missing='nan')
  assert found.rows == 4 and found.names == ('neg', 'pos') and 'nan' not in said


def test_the_fix_for_empty_cells_drops_the_rows(tmp_path, caplog):
  folder = write(tmp_path, {'text': [*'abcdef'], 'label': ['pos', None, 'neg'] * 2}, 'csv')
  with pytest.raises(ValueError, match=r"no class: set data.missing='' to drop rows without one"):
    told(caplog, folder)
  assert told(caplog, folder, missing='')[0].rows == 4


def test_a_field_of_lists_is_joined(tmp_path):
  write(tmp_path, {'tokens': ["['1', '2']", "['3']"], 'label': [0, 1]}, 'csv')
  settings = {'layout': 'bare', 'length': 8, 'batch_size': 2, 'seed': 0, 'fields': ('tokens',), 'cache': str(tmp_path)}
  source = labelled.make(vocab=small.NumberVocab(), path=str(tmp_path), **settings)
  assert next(source.once())['tokens'][:, :2].tolist() == [[11, 12], [13, 0]]


TABLES = {
  'csv': ('text,label\na b,1\n"c, d",0\n', {'text': ['a b', 'c, d'], 'label': [1, 0]}),
  'semicolons': ('text;label\na, b;1\n"c; d";0\n', {'text': ['a, b', 'c; d'], 'label': [1, 0]}),
  'quoted semicolons': ('"text";"label"\n"a, b";1\n"c; d";0\n', {'text': ['a, b', 'c; d'], 'label': [1, 0]}),
  'tabs': ('text\tlabel\na, b\t1\n"c"\t0\n', {'text': ['a, b', 'c'], 'label': [1, 0]}),
  'commas in names': ('text;score, max;label\na b;1,5;x\n', {'text': ['a b'], 'score, max': ['1,5'], 'label': ['x']}),
  'bars in names': ('text,a|b|c\n"a, b",x\n', {'text': ['a, b'], 'a|b|c': ['x']}),
  'bars': ('text|label\na|1\n', {'text': ['a'], 'label': [1]}),
  'blanks': ('text, label\na , 1\n"c, d", pos\n', {'text': ['a ', 'c, d'], 'label': ['1', 'pos']}),
  'blanks and quotes': ('id, "text"\n1, "a, b"\n', {'id': [1], 'text': ['a, b']}),
  'blanks around numbers': ('text,label\na, 1\nb,0 \n', {'text': ['a', 'b'], 'label': [1, 0]}),
  'blanks of texts': ('prompt,completion\na, b\nc, d\n', {'prompt': ['a', 'c'], 'completion': [' b', ' d']}),
  'one column': ('text\na; b\nc, d\n', None),
  'pandas without names': (',0,1\n0,a,b\n1,c,d\n', {'column_1': [0, 1], '0': ['a', 'c'], '1': ['b', 'd']}),
  'a class as name': ('comment,toxic\na,toxic\nb,clean\n', {'comment': ['a', 'b'], 'toxic': ['toxic', 'clean']}),
}


@pytest.mark.parametrize('name', TABLES)
def test_what_separates_cells_is_found(name, tmp_path):
  content, expected = TABLES[name]
  (tmp_path / 'train.csv').write_text(content)
  if expected is None:
    with pytest.raises(ValueError, match='line 3: 2 cells'):
      list(sources.open_source(str(tmp_path), cache=str(tmp_path / 'c')))
    return
  rows = list(sources.open_source(str(tmp_path), cache=str(tmp_path / 'c')))
  assert rows == [dict(zip(expected, row, strict=True)) for row in zip(*expected.values(), strict=True)]


def test_quotation_marks_of_a_tsv_whose_names_have_them(tmp_path):
  (tmp_path / 'train.tsv').write_text('"text"\t"label"\n"a ""b"" \tc"\t"pos"\n"it\'s"\tneg\n')
  rows = list(sources.open_source(str(tmp_path), cache=str(tmp_path / 'c')))
  assert rows == [{'text': 'a "b" \tc', 'label': 'pos'}, {'text': "it's", 'label': 'neg'}]
  (tmp_path / 'train.tsv').write_text('text,label\n"a, b",1\n')
  assert list(sources.open_source(str(tmp_path), cache=str(tmp_path / 'c'))) == [{'text': 'a, b', 'label': 1}]


def test_tables_that_were_joined_repeat_their_first_line(tmp_path):
  rows = ''.join(f'a {k},{k % 2},{k}.5\n' for k in range(3))
  (tmp_path / 'train.csv').write_text(f'text,label,score\n{rows}text,label,score\n{rows}')
  records = sources.open_source(str(tmp_path), cache=str(tmp_path / 'cache'))
  assert records[0] == {'text': 'a 0', 'label': 0, 'score': 0.5}
  with pytest.raises(ValueError, match=r'line 5: repeats the names of the first line'):
    records[3]


def test_rows_of_one_word_are_told(tmp_path, caplog):
  columns = {'Sentence': ['1', '', ''] * 8, 'Word': ['Anna', 'met', 'Bob'] * 8, 'Tag': ['B-PER', 'O', 'B-PER'] * 8}
  settings = {'kind': 'words', 'fields': ('Word',), 'label': 'Tag'}
  assert 'each of 24 rows has one word' in told(caplog, write(tmp_path, columns, 'csv'), **settings)[1]
