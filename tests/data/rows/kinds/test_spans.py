"""Questions: windows compared with the loops of BERT's released code, characters of the text, errors."""

import json
import random

import numpy as np
import pytest

from plm_jax.data import labelled
from plm_jax.data.rows import question_windows
from plm_jax.text import byte_bpe, wordpiece
from tests import conftest
from tests.data import small
from tests.data.small import CLS, EOS, PAD, SEP


def t(*numbers):
  return [len(small.SPECIAL) + number for number in numbers]


def question(text, context, answer=None, **more):
  """Build a row with one answer, or with none."""
  found = {'text': [answer], 'answer_start': [context.index(answer)]} if answer else {'text': [], 'answer_start': []}
  return {'id': 'x', 'question': text, 'context': context, 'answers': found, **more}


def make(folder, rows, **changes):
  settings = {
    'vocab': small.NumberVocab(), 'path': small.write_rows(folder / 'rows.jsonl', rows), 'kind': 'spans', 'length': 16,
    'batch_size': 4, 'seed': 0, 'cache': str(folder), 'question_length': 4,
  }  # fmt: skip
  return labelled.make(**(settings | changes))


def rows_of(source):
  """Return each example as a dict, in order."""
  return [
    {key: values[row] for key, values in batch.items()}
    for batch in source.once()
    for row in np.flatnonzero(batch['row_weight'])
  ]


def test_a_short_text_is_one_row(tmp_path):
  source = make(tmp_path, [question('1 2', '10 11 12 13', '12 13')])
  (row,) = rows_of(source)
  assert row['tokens'].tolist() == [CLS, *t(1, 2), SEP, *t(10, 11, 12, 13), SEP, *[PAD] * 7]
  assert row['type_ids'].tolist() == [0] * 4 + [1] * 5 + [0] * 7
  assert (row['start'], row['end']) == (6, 7)
  assert row['context'].tolist() == [3, 0, 0, 0, 2, 2, 2, 2, *[0] * 8]
  record = source.record(0)
  assert (record['context'], record['answers'], record['first']) == ('10 11 12 13', ['12 13'], 4)
  assert record['characters'].tolist() == [[0, 2], [3, 5], [6, 8], [9, 11]]
  assert source.spec['start'].shape == (4,) and source.spec['context'].shape == (4, 16)


def test_a_long_text_is_read_in_windows(tmp_path):
  # 16 tokens: 3 special ones, a question of 1, 12 of the text; the second begins 5 later
  text = ' '.join(str(n) for n in range(100, 120))
  source = make(tmp_path, [question('1', text, '113 114'), question('2', '7 8', '8')], stride=5)
  first, second, third, other = rows_of(source)
  assert first['tokens'].tolist() == [CLS, *t(1), SEP, *t(*range(100, 112)), SEP]
  assert second['tokens'].tolist() == [CLS, *t(1), SEP, *t(*range(105, 117)), SEP]
  assert third['tokens'].tolist() == [CLS, *t(1), SEP, *t(*range(110, 120)), SEP, *[PAD] * 2]
  # a window that does not show the answer points at [CLS]
  assert [(row['start'], row['end']) for row in (first, second, third)] == [(0, 0), (11, 12), (6, 7)]
  assert (source.rows, [source.group(n) for n in range(4)]) == (4, [0, 0, 0, 1])
  assert source.record(2)['characters'].tolist() == [[4 * n, 4 * n + 3] for n in range(10, 20)]
  assert source.record(2)['answers'] == ['113 114'] and source.record(3)['answers'] == ['8']
  # each token is at its best in one window
  best = {(n, number): 0 for n in (0,) for number in range(100, 120)}
  for row in (first, second, third):
    for number, place in zip(row['tokens'], row['context'], strict=True):
      if place == question_windows.MAXIMUM:
        best[0, number - len(small.SPECIAL)] += 1
  assert set(best.values()) == {1}
  assert first['context'].tolist() == [3, 0, 0, *[2] * 9, *[1] * 3, 0]
  assert other['context'].tolist() == [3, 0, 0, 2, 2, *[0] * 11]


def spans_of_bert(size, room, stride):
  """Return (start, tokens) of the windows of a text, as run_squad.py does."""
  found, start = [], 0
  while start < size:
    length = min(size - start, room)
    found.append((start, length))
    if start + length == size:
      break
    start += min(length, stride)
  return found


def is_maximum(found, number, token):
  """Return True if a token has its maximum context here, as run_squad.py does."""
  best, which = None, None
  for index, (start, length) in enumerate(found):
    if start <= token < start + length:
      value = min(token - start, start + length - 1 - token) + 0.01 * length
      if best is None or value > best:
        best, which = value, index
  return which == number


@pytest.mark.parametrize('layout', ['bert', 'roberta', 'xlnet', 'plain', 'gpt'])
@pytest.mark.parametrize(('length', 'stride'), [(13, 3), (16, 5), (24, 1), (24, 40)])
def test_windows_are_those_of_released_code(tmp_path, layout, length, stride):
  draw = random.Random(length * stride)
  rows = []
  for number in range(30):
    words = [str(draw.randrange(1000)) for _ in range(draw.randint(1, 40))]
    first = draw.randrange(len(words))
    last = draw.randint(first, min(first + 3, len(words) - 1))
    context, begin = ' '.join(words), len(' '.join([*words[:first], '']))
    asked = ' '.join(['9'] * draw.randint(0, 7))
    answers = {'text': [' '.join(words[first : last + 1])], 'answer_start': [begin]} if number % 4 else {'text': [],
      'answer_start': []}  # fmt: skip
    rows.append({'question': asked, 'context': context, 'answers': answers, 'first': first, 'last': last})
  source = make(tmp_path, rows, layout=layout, length=length, stride=stride)
  given, made = iter(rows_of(source)), 0
  for number, row in enumerate(rows):
    size, asked = len(row['context'].split()), min(4, len(row['question'].split()))
    single = labelled._file('layout', layout).make(vocab=small.NumberVocab(), fields=2)
    specials = sum(len(before) + len(after) for before, after in single.frames)
    found = spans_of_bert(size, length - specials - asked, stride)
    for index, (start, count) in enumerate(found):
      got, used = next(given), specials + asked + count
      place = used - count - len(single.frames[1][1])
      null = 0 if layout in ('bert', 'roberta') else used - 1
      own = got['tokens'][place : place + count]
      assert own.tolist() == t(*(int(word) for word in row['context'].split()[start : start + count]))
      inside = number % 4 and start <= row['first'] and row['last'] < start + count
      answer = (place + row['first'] - start, place + row['last'] - start) if inside else (null, null)
      assert (got['start'], got['end']) == answer
      best = [2 if is_maximum(found, index, token) else 1 for token in range(start, start + count)]
      context = [*[0] * place, *best, *[0] * (length - place - count)]
      context[null] = 3
      assert got['context'].tolist() == context
      assert source.group(made) == number
      made += 1
  assert source.rows == made and next(given, None) is None


def test_the_text_may_stand_before_the_question(tmp_path):
  source = make(tmp_path, [question('1', '10 11', '11')], fields=('context', 'question'), layout='xlnet')
  (row,) = rows_of(source)
  assert row['tokens'][:6].tolist() == [*t(10, 11), SEP, *t(1), SEP, CLS]
  assert (row['start'], row['end'], row['context'][:6].tolist()) == (1, 1, [2, 2, 0, 0, 0, 3])


def test_a_question_without_an_answer_points_at_what_stands_for_the_row(tmp_path):
  rows = [question('1', '10 11'), question('2', '10 11', '10')]
  for layout, place in (('bert', 0), ('plain', 5)):
    source = make(tmp_path, rows, layout=layout)
    none, some = rows_of(source)
    assert (none['start'], none['end'], some['start']) == (place, place, 3)
    assert none['context'][place] == 3
    assert source.record(0)['answers'] == []
  assert none['tokens'][place] == EOS


def test_of_several_answers_the_first_is_learnt_and_all_are_kept(tmp_path):
  row = question('1', '10 11 12')
  row['answers'] = [{'text': '11 12', 'answer_start': 3}, {'text': '10', 'answer_start': 0}]
  source = make(tmp_path, [row])
  (made,) = rows_of(source)
  assert (made['start'], made['end'], source.record(0)['answers']) == (4, 5, ['11 12', '10'])


def test_rows_to_be_answered_are_kept(tmp_path):
  rows = [{'id': 'x', 'question': '1', 'context': '2 3'}]
  source = make(tmp_path, rows, keep_unlabelled=True)
  assert source.unlabelled and source.record(0)['answers'] is None
  with pytest.raises(ValueError, match="no field 'answers'"):
    make(tmp_path, rows)


TEXTS = (
  '北京大学创建于1898年，初名京师大学堂，是中国近代第一所国立大学。2000年合并。',
  'L’été à “Zürich”: naïve café,  élève\n\tde l’École—1,234.5 km² 🙂🙂 e\u0301tude ﬁn.',
  'The U.S. team (1990s) won;  "Maria Skłodowska-Curie" was  born in Warsaw.',
)


@pytest.mark.parametrize('kind', ['byte_bpe', 'wordpiece'])
def test_answers_are_parts_of_the_text(tmp_path, kind):
  """Recover every answer as the smallest run of tokens around it."""
  train = {'byte_bpe': byte_bpe.train, 'wordpiece': wordpiece.train}[kind]
  draw = random.Random(0)
  vocab = train([*TEXTS, *(conftest.story(draw) for _ in range(20))], size=400)
  rows = []
  for context in TEXTS:
    for _ in range(60):
      begin = draw.randrange(len(context))
      answer = context[begin : begin + draw.randint(1, 12)].strip()
      if answer:
        begin = context.index(answer, begin)
        rows.append({'question': 'Wo?', 'context': context, 'answers': {'text': [answer], 'answer_start': [begin]}})
  source = make(tmp_path, rows, vocab=vocab, length=40, stride=9, batch_size=8)
  seen = set()
  for row in rows_of(source):
    record = source.record(int(row['row_id']))
    question_number = source.group(int(row['row_id']))
    first, spans, (answer,) = record['first'], record['characters'], record['answers']
    if row['start']:
      begin = rows[question_number]['answers']['answer_start'][0]
      low, high = spans[row['start'] - first][0], spans[row['end'] - first][1]
      assert answer in record['context'][low:high]
      assert low <= begin and begin + len(answer) <= high
      # no smaller run holds it: the edges are within the first and the last token
      assert begin < spans[row['start'] - first][1] and begin + len(answer) > spans[row['end'] - first][0]
      seen.add(question_number)
  assert len(seen) > 0.9 * len(rows)
  assert all(0 <= low <= high <= len(record['context']) for low, high in spans)


def test_equal_texts_are_tokenised_once(tmp_path):
  seen = []

  class Counting(small.NumberVocab):
    def encode_offsets(self, text):
      seen.append(text)
      return super().encode_offsets(text)

  make(tmp_path, [question('1', '2 3', '2'), question('4', '2 3', '3')], vocab=Counting())
  assert sorted(seen) == ['1', '2 3', '4']


def test_hosts_together_read_the_batch_of_one(tmp_path):
  rows = [question('1', ' '.join(map(str, range(n, 3 * n + 5))), str(n + 1)) for n in range(9)]
  whole = make(tmp_path, rows, buckets=(10,), stride=4)
  parts = [make(tmp_path, rows, buckets=(10,), stride=4, host=host, hosts=2) for host in range(2)]
  for batch, *pieces in zip(whole.once(), *(part.once() for part in parts), strict=True):
    for key in batch:
      np.testing.assert_array_equal(batch[key], np.concatenate([piece[key] for piece in pieces]), err_msg=key)
  assert make(tmp_path, rows, stride=5).digest != make(tmp_path, rows, stride=4).digest


@pytest.mark.parametrize(
  ('answers', 'message'),
  [
    ({'text': ['11'], 'answer_start': [0]}, r"row 0 of .*answer '11'.*character 0.*'10'"),
    ({'text': ['11'], 'answer_start': [99]}, 'character 99'),
    ({'text': ['11'], 'answer_start': [-2]}, 'character -2'),
    ({'text': [''], 'answer_start': [0]}, "answer ''"),
    ({'text': ['11'], 'answer_start': []}, "'answers'"),
    ({'text': '11', 'answer_start': 3}, "'answers' holds"),
    ({'text': [11], 'answer_start': [3]}, "'answers' holds"),
    ({'text': ['11'], 'answer_start': ['3']}, "'answers' holds"),
    ('11', "'answers' holds '11'"),
  ],
)
def test_a_bad_answer_is_named(tmp_path, answers, message):
  with pytest.raises(ValueError, match=message):
    make(tmp_path, [{'question': '1', 'context': '10 11', 'answers': answers}])


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'fields': ('question',)}, 'spans.*question'),
    ({'fields': ('question', 'passage')}, "no field 'passage'"),
    ({'label': 'gold', 'fields': ('question', 'text')}, "no field 'text'"),
    ({'label': 'gold'}, "no field 'gold'"),
    ({'per_class': 1}, 'per_class=1'),
    ({'prefixes': ('question: ', '')}, 'prefixes'),
    ({'both_orders': True}, 'both_orders=True'),
    ({'question_length': 13}, r'length=16.*3 special tokens.*question_length=13'),
  ],
)
def test_what_cannot_be_is_refused(tmp_path, settings, message):
  with pytest.raises(ValueError, match=message):
    make(tmp_path, [question('1', '2')], **settings)


def test_questions_that_a_table_marks_as_unanswerable(tmp_path, caplog):
  tables = {
    'start': 'question,context,answer,answer_start\n1,10 11,11,3\n2,10 11,,-1\n',
    'flag': 'Question,Context,Answer,Answer_Start,is_impossible\n1,10 11,11,3,False\n2,10 11,,,True\n',
    'both': 'question,context,answers,is_impossible\n'
    '1,10 11,"{""text"": [""11""], ""answer_start"": [3]}",0\n2,10 11,,1\n',
  }
  for name, content in tables.items():
    (tmp_path / f'{name}.csv').write_text(content)
    names = content.split('\n')[0].split(',')
    source = make(tmp_path, [], path=str(tmp_path / f'{name}.csv'), fields=tuple(names[:2]), label=names[2])
    assert [source.record(row)['answers'] for row in range(2)] == [['11'], []] and 'dropped' not in caplog.text
  rows = [question('1', '10 11', '11'), {**question('2', '10 11'), 'answers': None}]
  assert make(tmp_path, rows).rows == 1
  assert "1 of 2 rows have no 'answers' and are dropped" in caplog.text
  assert make(tmp_path, [*rows[:1], {**rows[1], 'is_impossible': True}]).rows == 2  # the fix
  assert make(tmp_path, rows[::-1]).rows == 1  # the first row lacks answers
  with pytest.raises(ValueError, match=r"is_impossible is true, but 'answers' has the answer '11'"):
    make(tmp_path, [question('1', '10 11', '11', is_impossible=True)])


def test_files_as_they_are_published(tmp_path):
  texts = [('10 11 12', [('1', ['11']), ('2', [])]), ('13', [('3', ['13'])])]
  data = [
    {
      'title': 'Numbers',
      'paragraphs': [
        {
          'context': context,
          'qas': [
            {
              'id': f'q{asked}',
              'question': asked,
              'is_impossible': not answers,
              'answers': [{'text': answer, 'answer_start': context.index(answer)} for answer in answers],
            }
            for asked, answers in questions
          ],
        }
        for context, questions in texts
      ],
    }
  ]
  (tmp_path / 'train-v2.0.json').write_text(json.dumps({'version': 'v2.0', 'data': data}))
  (tmp_path / 'labels.json').write_text('{}')
  for path, split in ((tmp_path, 'train-v2.0'), (tmp_path / 'train-v2.0.json', 'train')):
    source = labelled.make(
      vocab=small.NumberVocab(), path=str(path), split=split, kind='spans', length=16, batch_size=3, seed=0,
      question_length=4, cache=str(tmp_path / 'cache'),
    )  # fmt: skip
    assert [(row['start'], row['end']) for row in rows_of(source)] == [(4, 4), (0, 0), (3, 3)]
    assert [source.record(n)['row']['id'] for n in range(3)] == ['q1', 'q2', 'q3']
