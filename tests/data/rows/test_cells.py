"""Lists in the cells of tables: as pandas, numpy, JSON and `predict --out=x.csv` write them."""

import json

import numpy as np
import pandas
import pytest

from plm_jax.data import labelled, text_to_text
from plm_jax.data.corpora import cells
from plm_jax.inference import predicting
from tests.data import small

VOCABULARY = ["Anna's met [ ] , ( ) 0 1 2 3 4 5 6 7 8 9", '"Bob" question: context: ...']
SENTENCES = [["Anna's", 'met', '"Bob"'], ['1', '2', '3'], ['[', '4', ',', ']'], ['5']]
TAGS = [['B-PER', 'O', 'B-PER'], ['O', 'O', 'O'], ['O', 'O', 'B-PER', 'O'], ['O']]
HEADS = [[2, 0, 2], [2, 0, 2], [2, 0, 2, 2], [0]]
SPELLINGS = {
  'python': str,
  'json': json.dumps,
  'numpy': lambda value: str(np.array(value)),
  'array': lambda value: repr(np.array(value, object if isinstance(value[0], str) else None)),
  'tuple': lambda value: str(tuple(value)),
  'numbers of numpy': lambda value: repr(list(np.array(value))),
}


@pytest.mark.parametrize('spelling', SPELLINGS)
def test_what_a_list_spells_is_read_back(spelling):
  for value in (*SENTENCES, *TAGS, *HEADS, ['a\\b', 'ü\n', ' ', "'", '"', 'None', 'array([1])'], [1.5, -2.0]):
    assert cells.parse(SPELLINGS[spelling](value)) == value
  assert cells.parse(str(pandas.Series([np.array(['a b', 'c'], object)]).tolist())) == [['a b', 'c']]
  answers = {'text': np.array(['x'], object), 'start': np.array([], np.int32)}
  assert cells.parse(str(answers)) == {'text': ['x'], 'start': []}


OTHERS = ['', 'a', '[', 'x]', '[Anna met]', '[ 1 , 2 ]x', "it's [1", '(a)', '(1)', '[' * 9999, "['a''b']"]


@pytest.mark.parametrize('text', OTHERS)
def test_other_texts_spell_no_list(text):
  assert cells.parse(text) is None


def served(path, make=labelled.make, **settings):
  vocab, cache = small.llama_vocab(VOCABULARY), str(path.parent)
  source = make(vocab=vocab, path=str(path), length=160, batch_size=4, seed=0, cache=cache, **settings)
  return [dict(batch) for batch in source.once()], [source.record(i) for i in range(source.rows)]


def same(tmp_path, rows, spell, write, **settings):
  """Compare rows of JSON lines with those whose lists are spelled in the cells of a table."""
  small.write_rows(tmp_path / 'lists.jsonl', rows)
  spelt = [{k: v if isinstance(v, str | int) else spell(v) for k, v in row.items()} for row in rows]
  file = tmp_path / f'table.{write}'
  lines = [spelt[0], *(row.values() for row in spelt)]
  {
    'csv': lambda: pandas.DataFrame(spelt).to_csv(file, index=False),
    'tsv': lambda: file.write_text('\n'.join('\t'.join(map(str, line)) for line in lines)),
    'parquet': lambda: pandas.DataFrame(spelt).to_parquet(file),
    'jsonl': lambda: small.write_rows(file, spelt),
  }[write]()
  (lists, records), (table, others) = (served(path, **settings) for path in (tmp_path / 'lists.jsonl', file))
  for ours, theirs in zip(table, lists, strict=True):
    assert ours.keys() == theirs.keys() and all((ours[key] == theirs[key]).all() for key in ours)
  for ours, theirs in zip(others, records, strict=True):
    assert str({**ours, 'row': 0}) == str({**theirs, 'row': 0})


@pytest.mark.parametrize('write', ['csv', 'tsv', 'parquet', 'jsonl'])
@pytest.mark.parametrize('spelling', SPELLINGS)
def test_words_and_tags_and_heads(tmp_path, spelling, write):
  rows = [{'tokens': w, 'tags': t, 'head': h} for w, t, h in zip(SENTENCES, TAGS, HEADS, strict=True)]
  same(tmp_path, rows, SPELLINGS[spelling], write, kind='words', fields=('tokens',), label='tags', layout='bare')
  same(tmp_path, rows, SPELLINGS[spelling], write, kind='arcs', fields=('tokens', 'head'), label='tags', layout='bare')


@pytest.mark.parametrize('spell', [str, json.dumps])
@pytest.mark.parametrize('write', ['csv', 'parquet'])
def test_options_and_answers(tmp_path, spell, write):
  rows = [
    {'context': '1 2', 'endings': ['3', '4 5'], 'label': 1},
    {'context': '6', 'endings': ["7 'a'", '8'], 'label': 0},
  ]
  same(tmp_path, rows, spell, write, kind='options', layout='bare')
  race = [{'article': '1', 'questions': ['2', '3'], 'options': [['4', '5'], ['6', '7']], 'answers': ['A', 'B']}]
  same(tmp_path, race, spell, write, kind='options', layout='bare', label='answers')
  one = {'text': ['2'], 'answer_start': [2]}
  for answers in (one, [{'text': '2', 'answer_start': 2}], {'text': [], 'answer_start': []}):
    questions = [{'question': '9', 'context': '1 2 3', 'answers': answers}]
    same(tmp_path, questions, spell, write, kind='spans', label='answers')
  prompts = {'make': text_to_text.make, 'form': {'name': 'template', 'inputs': '{context}', 'options': ('{endings}',)}}
  same(tmp_path, rows, spell, write, layout='bare', **prompts)
  questions = [{'question': '9', 'context': '1 2 3', 'answers': one}]
  same(tmp_path, questions, spell, write, layout='bare', **prompts | {'form': {'name': 't5', 'task': 'squad'}})


def test_an_answer_and_its_character_are_two_columns(tmp_path):
  for k, cells_ in enumerate((('2 3', 2), ("['2 3']", '[2]'), ('["2 3"]', '[2]'))):
    pandas.DataFrame([('9', '1 2 3', *cells_)], columns=['question', 'context', 'answer', 'answer_start']).to_csv(
      tmp_path / f'{k}.csv', index=False
    )
    (batch,), (record,) = served(tmp_path / f'{k}.csv', kind='spans', fields=('question', 'context'), label='answer')
    assert record['answers'] == ['2 3'] and batch['start'][0] >= 0


@pytest.mark.parametrize('spelling', ['python', 'json', 'numpy'])
def test_right_texts_of_a_target(tmp_path, spelling, caplog):
  rows = [{'text': '1 2', 'target': ['3 4', '5']}, {'text': '6', 'target': ['7']}]
  text = {'kind': 'text', 'fields': ('text',), 'label': 'target', 'layout': 'bare'}
  same(tmp_path, rows, SPELLINGS[spelling], 'csv', **text)
  assert 'brackets' not in caplog.text
  rows = [{'text': '1', 'target': '[2]'}, {'text': '6', 'target': "['7']"}, {'text': '8', 'target': '9'}]
  small.write_rows(tmp_path / 'some.jsonl', rows)
  records = served(tmp_path / 'some.jsonl', **text)[1]
  assert [record['references'] for record in records] == [['[2]'], ["['7']"], ['9']]
  assert '1 of 3 rows have a list' in caplog.text
  caplog.clear()
  form = {'name': 'template', 'inputs': '{text}', 'target': '{target}'}
  served(tmp_path / 'some.jsonl', make=text_to_text.make, form=form, layout='bare')
  assert '1 of 3 rows have a text that spells a list as target' in caplog.text


def test_what_predict_writes_is_read(tmp_path):
  rows = [{'tokens': w, 'prediction': t} for w, t in zip(SENTENCES, TAGS, strict=True)]
  predicting.write(tmp_path / 'x.csv', rows)
  settings = {'kind': 'words', 'fields': ('tokens',), 'label': 'prediction', 'layout': 'bare'}
  records = served(tmp_path / 'x.csv', **settings)[1]
  assert [record['words'] for record in records] == SENTENCES
  assert [[record['names'][tag] for tag in record['labels']] for record in records] == TAGS


@pytest.mark.parametrize(
  ('words', 'tags'),
  [
    ("['Anna', 'met", "['O', 'O']"),
    ('[Anna, met]', '[O, O]'),
    ('{Anna,met}', '{O,O}'),
    ("['Anna' ... 'met']", "['O' ... 'O']"),
    ("['Anna''s']", "['O']"),
    ("['Anna', 'met']", "['O']"),
    ('Anna met', "['O', 'O',"),
    ("['Anna', 1999]", 'O O'),
    ('[1, 2]', '[0, 1]'),
    ('[1.5 2.5]', 'O O'),
  ],
)
def test_a_list_that_cannot_be_read_stops(tmp_path, words, tags):
  small.write_rows(tmp_path / 'x.jsonl', [{'tokens': words, 'tags': tags}])
  with pytest.raises(ValueError, match=r'line 1: .*(looks like a list|a label for each|no text)'):
    served(tmp_path / 'x.jsonl', kind='words', fields=('tokens',), label='tags', layout='bare')


@pytest.mark.parametrize('words', ['[1] 2', '[ 1 , 2 ]', '(1) 2', '[...] 1', '[1]', '[1] 2 [3]'])
def test_texts_with_brackets_stay_texts(tmp_path, words):
  small.write_rows(tmp_path / 'x.jsonl', [{'tokens': words, 'tags': ' '.join('O' for _ in words.split())}])
  _, (record,) = served(tmp_path / 'x.jsonl', kind='words', fields=('tokens',), label='tags', layout='bare')
  assert record['words'] == words.split()
