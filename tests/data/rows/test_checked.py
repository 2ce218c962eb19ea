"""Unusable rows: an error with file, line and reason before anything is tokenised, or skipped and counted."""

import gzip
import json
import logging

import pytest

from plm_jax.data import labelled
from tests.data import small

GOOD = {'text': '1 2', 'label': 1}


def make(path, **changes):
  settings = {'fields': ('text',), 'length': 8, 'batch_size': 4, 'seed': 0, 'cache': str(path.parent)} | changes
  return labelled.make(vocab=small.NumberVocab(), path=str(path), **settings)


def look(path, **changes):
  return labelled.look(**{'path': str(path), 'fields': ['text'], 'cache': str(path.parent), **changes})


def write(path, lines):
  path.write_bytes(b''.join(line if isinstance(line, bytes) else json.dumps(line).encode() + b'\n' for line in lines))
  return path


@pytest.mark.parametrize(
  ('bad', 'settings', 'reason'),
  [
    ({'label': 1}, {}, "no field 'text'"),
    ({'text': '1'}, {}, "no field 'label'"),
    ({'text': None, 'label': 1}, {}, "'text'.*None"),
    ({'text': ['1', 2], 'label': 1}, {}, "'text'"),
    ({'text': '1', 'label': 2}, {}, 'holds 2.*labels.json.*no, yes'),
    ({'text': '1', 'label': 'si'}, {}, "holds 'si'.*labels.json.*no, yes"),
    ({'text': '1', 'label': -5}, {}, 'holds -5'),
    ({'text': '1', 'label': 0.5}, {}, 'holds 0.5'),
    ({'text': '1', 'label': 'x'}, {'kind': 'regression'}, "holds 'x'"),
    ({'text': '1', 'label': ''}, {'kind': 'text'}, "'label'"),
    ({'text': '1', 'label': ['a', '']}, {'kind': 'text'}, "'label'"),
    (b'{"text": "1", "la\n', {}, 'not valid JSON'),
    (b'{"text": "caf\xe9", "label": 1}\n', {}, 'not valid UTF-8'),
    (b'["1", 1]\n', {}, 'JSON object'),
  ],
)
@pytest.mark.parametrize('first', [False, True])
def test_a_bad_row_is_named_with_file_line_and_reason(tmp_path, bad, settings, reason, first):
  path = write(tmp_path / 'train.jsonl', [bad, GOOD, GOOD] if first else [GOOD, GOOD, b'\n', bad, GOOD])
  (tmp_path / 'labels.json').write_text('{"label": ["no", "yes"]}')
  for read in (look, make):
    with pytest.raises(ValueError, match=reason) as caught:
      read(path, **settings)
    message = str(caught.value)
    assert message.startswith(f'{path}, line {1 if first else 4}: ')
    assert "data.on_bad_row='skip'" in message
    assert '\n' not in message


@pytest.mark.parametrize('suffix', ['.csv', '.tsv'])
@pytest.mark.parametrize(
  ('bad', 'reason'),
  [
    (b'3;;1\n', '1 cell.*2 fields'),
    (b'3,1,4\n', '3 cells.*2 fields'),
    (b'caf\xe9,1\n', 'not valid UTF-8'),
    (b'3,maybe\n', "holds 'maybe'"),
  ],
)
def test_a_bad_row_of_a_table_is_named(tmp_path, suffix, bad, reason):
  content = b'text,label\n1 2,1\n' + bad + b'3,0\n'
  path = tmp_path / f'train{suffix}'
  path.write_bytes(content.replace(b',', b'\t') if suffix == '.tsv' else content)
  with pytest.raises(ValueError, match=reason) as caught:
    look(path)
  assert str(caught.value).startswith(f'{path}, line 3: ')


def test_rows_of_words_are_named(tmp_path):
  path = tmp_path / 'train.conll'
  path.write_text('1 O\n2 B-x\n\n3 O\n4\n\n5 O\n')
  with pytest.raises(ValueError, match='word and a label') as caught:
    look(path, fields=['tokens'], label='tags', kind='words')
  assert str(caught.value).startswith(f'{path}, line 5: ')


def test_several_bad_rows_are_all_named(tmp_path):
  path = write(tmp_path / 'train.jsonl', [GOOD, {'label': 0}, GOOD, {'text': '1'}, b'{\n'])
  with pytest.raises(ValueError, match='3 rows') as caught:
    make(path)
  lines = str(caught.value).split('\n')
  assert [line.strip().partition(': ')[0] for line in lines[1:4]] == [f'{path}, line {n}' for n in (2, 4, 5)]


def test_after_ten_bad_rows_reading_stops(tmp_path):
  path = write(tmp_path / 'train.jsonl', [GOOD, *[{'label': 0}] * 500])
  with pytest.raises(ValueError, match='10 or more rows') as caught:
    make(path)
  assert str(caught.value).count('\n') == 11


@pytest.mark.parametrize('zipped', [False, True])
def test_skipped_rows_are_counted_and_listed_and_the_rest_is_as_without_them(tmp_path, caplog, zipped):
  rows = [{'text': f'{n}', 'label': n % 2} for n in range(3000)]
  lines = [json.dumps(row).encode() + b'\n' for row in rows]
  lines[7], lines[1500], lines[2999] = b'{"text": "7", "la\n', b'{"text": "caf\xe9", "label": 0}\n', b'{"text": "1"}\n'
  path = tmp_path / f'train.jsonl{".gz" * zipped}'
  path.write_bytes(gzip.compress(b''.join(lines)) if zipped else b''.join(lines))
  caplog.set_level(logging.WARNING)
  source = make(path, on_bad_row='skip')
  assert '3 of 3,000 rows' in caplog.text
  assert all(f'line {n}: ' in caplog.text for n in (8, 1501, 3000))
  ids = [int(row) for batch in source.once() for row in batch['row_id'] if row >= 0]
  assert ids == [n for n in range(3000) if n not in (7, 1500, 2999)]
  assert source.record(8)['row'] == rows[8]
  labels = [int(label) for batch in source.once() for label in batch['label'][batch['row_weight'] > 0]]
  assert labels == [n % 2 for n in ids]


def test_rows_of_published_sets_are_left_out_as_those_of_lines_are(tmp_path, caplog):
  """Report or skip bad rows of SuperGLUE, SQuAD and parallel files."""
  lines = [json.dumps({'text': f'{n}', 'label': n % 2}).encode() + b'\n' for n in range(1001)]
  lines[7] = b'{"text": "7", "la\n'
  (tmp_path / 'glue').mkdir()
  (tmp_path / 'glue' / 'train.jsonl').write_bytes(b''.join(lines))
  answers = [{'text': f'{n}', 'answer_start': 0} for n in range(1001)]
  del answers[9]['answer_start']
  questions = [{'id': f'q{n}', 'question': '1 2', 'answers': [answer]} for n, answer in enumerate(answers)]
  paragraphs = [{'context': f'{n} 1', 'qas': [question]} for n, question in enumerate(questions)]
  (tmp_path / 'squad.json').write_text(json.dumps({'data': [{'paragraphs': paragraphs}]}))
  (tmp_path / 'sides').mkdir()
  for name, bad in (('de', b'1\n'), ('en', b'caf\xe9\n')):
    (tmp_path / 'sides' / f'train.{name}').write_bytes(b'1\n' * 9 + bad + b'2\n' * 1000)
  for path, settings, named in (
    (f'superglue:{tmp_path}/glue', {'fields': ['text']}, 'glue/train.jsonl, line 8: not valid JSON'),
    (f'{tmp_path}/squad.json', {'kind': 'spans'}, "squad.json, question 'q9': "),
    (
      f'parallel:{tmp_path}/sides',
      {'fields': ['de'], 'label': 'en', 'kind': 'text'},
      'sides/train.en, line 10: not valid UTF-8',
    ),
  ):
    asked = {'path': path, 'cache': str(tmp_path / 'cache'), **settings}
    with pytest.raises(ValueError, match=f'^{tmp_path}/{named}') as caught:
      labelled.look(**asked)
    assert '\n' not in str(caught.value)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
      labelled.look(**asked, on_bad_row='skip')
    assert '1 of 1,0' in caplog.text and f'\n  {tmp_path}/{named}' in caplog.text


def test_more_than_a_thousandth_is_refused_also_where_rows_are_skipped(tmp_path):
  for bad, refused in ((2, False), (3, True)):
    path = write(tmp_path / f'{bad}.jsonl', [*[GOOD] * (2000 - bad), *[{'text': '1', 'label': 'x'}] * bad])
    if refused:
      with pytest.raises(ValueError, match=r'3 of 2,000 rows .*0\.1 ?%'):
        make(path, on_bad_row='skip')
    else:
      assert make(path, on_bad_row='skip').rows == 1998


def test_what_is_left_out_is_other_data_and_nothing_left_out_is_not(tmp_path):
  whole = write(tmp_path / 'whole.jsonl', [GOOD] * 1001)
  assert make(whole).digest == make(whole, on_bad_row='skip').digest
  assert look(whole, on_bad_row='skip').classes == 2
