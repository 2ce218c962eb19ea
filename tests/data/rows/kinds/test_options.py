"""Examples with options: the content of each sequence, accepted forms of data and labels, errors."""

import numpy as np
import pytest

from plm_jax.data import labelled
from plm_jax.data.corpora import sources
from plm_jax.data.rows import first_row
from plm_jax.training import parts
from plm_jax.training.before import from_data
from tests.data import small
from tests.data.small import CLASSIFY, CLS, DELIMITER, PAD, SEP, START

SWAG = ('1', '2 {ending0|ending1}')
ENDINGS = [
  {'context': '1 2', 'endings': ['3', '4 5', '6'], 'label': 1},
  {'context': '7', 'endings': ['8 9', '10', '11'], 'label': 2},
]


def t(*numbers):
  return [len(small.SPECIAL) + number for number in numbers]


def make(folder, rows, **changes):
  settings = {
    'vocab': small.NumberVocab(), 'path': small.write_rows(folder / 'rows.jsonl', rows), 'kind': 'options',
    'length': 12, 'batch_size': len(rows), 'seed': 0, 'cache': str(folder),
  }  # fmt: skip
  return labelled.make(**(settings | changes))


def sequences(source, row=0):
  """Return the tokens of each sequence of an example, without padding."""
  (batch, *_) = source.once()
  tokens, real = batch['tokens'][row], batch['segment_ids'][row] > 0
  assert (tokens[~real] == PAD).all()
  return [ids[keep].tolist() for ids, keep in zip(tokens, real, strict=True)]


def test_a_row_has_a_sequence_for_each_option(tmp_path):
  source = make(tmp_path, ENDINGS)
  (batch,) = source.once()
  assert batch['tokens'].shape == source.spec['tokens'].shape == (2, 3, 12)
  assert sequences(source) == [[CLS, *t(1, 2), SEP, *t(*ending), SEP] for ending in ([3], [4, 5], [6])]
  assert batch['type_ids'][0, 1].tolist() == [0] * 4 + [1] * 3 + [0] * 5
  assert batch['label'].tolist() == [1, 2]
  assert (source.rows, source.classes, source.unlabelled) == (2, 3, False)
  assert source.record(1) == {'row': ENDINGS[1], 'label': 2, 'options': ['8 9', '10', '11'], 'names': ()}


def test_fields_may_be_patterns(tmp_path):
  rows = [{'sent1': '1', 'sent2': '2 3', 'ending0': '4', 'ending1': '5', 'label': 1}]
  fields = ('sent1', '{sent2} 0 {ending0|ending1}')
  expected = [[CLS, *t(1), SEP, *t(2, 3, 0, ending), SEP] for ending in (4, 5)]
  assert sequences(make(tmp_path, rows, fields=fields)) == expected
  # GPT: each field by itself, or a question directly after the passage
  assert sequences(make(tmp_path, rows, fields=('sent1', 'sent2', 'ending0|ending1'), layout='gpt')) == [
    [START, *t(1), DELIMITER, *t(2, 3), DELIMITER, *t(ending), CLASSIFY] for ending in (4, 5)
  ]
  assert sequences(make(tmp_path, rows, fields=('{sent1} {sent2}', '{ending0|ending1}'), layout='gpt')) == [
    [START, *t(1, 2, 3), DELIMITER, *t(ending), CLASSIFY] for ending in (4, 5)
  ]


@pytest.mark.parametrize(
  ('row', 'first', 'others'),
  [
    ({'context': '1', 'endings': ['2', '3'], 'label': 0}, [1], [[2], [3]]),
    (
      {'sent1': '1', 'sent2': '2', 'ending0': '3', 'ending1': '4', 'ending2': '5', 'ending3': '6', 'label': 0},
      [1],
      [[2, 3], [2, 4], [2, 5], [2, 6]],
    ),
    ({'article': '1', 'question': '2', 'options': ['3', '4'], 'label': 'B'}, [1], [[2, 3], [2, 4]]),
  ],
)
def test_the_names_that_benchmarks_use_are_found(tmp_path, row, first, others):
  assert sequences(make(tmp_path, [row])) == [[CLS, *t(*first), SEP, *t(*other), SEP] for other in others]


def test_the_fields_of_copa_are_found(tmp_path):
  class Words(small.NumberVocab):
    def encode(self, text):
      self.texts = [*getattr(self, 'texts', ()), text]
      return [11] * len(text.split())

  row = {'premise': 'It rained.', 'choice1': 'The grass was wet.', 'choice2': 'It snowed.', 'question': 'effect'}
  vocab = Words()
  make(tmp_path, [{**row, 'label': 0}], vocab=vocab, length=32)
  assert sorted(vocab.texts) == [
    'It rained.', 'What was the effect of this? It snowed.', 'What was the effect of this? The grass was wet.'
  ]  # fmt: skip
  # a run keeps them, so that new rows are read as its own were
  records = sources.open_source(str(tmp_path / 'rows.jsonl'), split='train')
  assert first_row.find_fields(records, 'options', 'label') == (
    'premise', 'What was the {question} of this? {choice1|choice2}'
  )  # fmt: skip


def test_an_article_with_several_questions_is_a_row_for_each(tmp_path):
  row = {
    'article': '1', 'questions': ['2', '3', '4'], 'options': [['5', '6'], ['7', '8'], ['9', '10']],
    'answers': ['A', 'B', 'B'], 'example_id': 'x',
  }  # fmt: skip
  other = {**row, 'article': '11', 'answers': ['B', 'A', 'A']}
  source = make(tmp_path, [row, other], label='answers', batch_size=6)
  (batch,) = source.once()
  assert batch['label'].tolist() == [0, 1, 1, 1, 0, 0]
  assert batch['row_id'].tolist() == list(range(6))
  assert sequences(source, 4) == [[CLS, *t(11), SEP, *t(3, option), SEP] for option in (7, 8)]
  assert source.record(1)['row'] == {
    'article': '1', 'questions': '3', 'options': ['7', '8'], 'answers': 'B', 'example_id': 'x'
  }  # fmt: skip


def test_rows_may_have_different_numbers_of_options(tmp_path):
  rows = [*ENDINGS[:1], {'context': '7', 'endings': ['8', '9'], 'label': 1}]
  for layout, first, last, types in (('bert', [CLS], [SEP], 2), ('xlnet', [], [SEP, CLS], 3)):
    source = make(tmp_path, rows, layout=layout)
    (batch,) = source.once()
    assert sequences(source, 1) == [[*first, *t(7), SEP, *t(option), *last] for option in (8, 9)] + [[]]
    assert not batch['segment_ids'][1, 2].any() and not batch['type_ids'][1, 2].any()
    assert batch['type_ids'].max() == types - 1
  assert source.classes == 3


@pytest.mark.parametrize(
  ('label', 'expected'), [(1, 1), ('1', 1), ('B', 1), ('4 5', 1), (['6', '4 5'], 1), (['nothing', '6'], 2), (0, 0)]
)
def test_a_label_is_a_number_a_letter_or_the_text(tmp_path, label, expected):
  (batch,) = make(tmp_path, [{**ENDINGS[0], 'label': label}]).once()
  assert batch['label'].tolist() == [expected]


def test_a_label_may_be_a_name_of_the_list(tmp_path):
  (tmp_path / 'labels.json').write_text('{"label": ["first", "second", "third"]}')
  source = make(tmp_path, [{**ENDINGS[0], 'label': 'third'}])
  assert next(source.once())['label'].tolist() == [2]
  assert source.names == ('first', 'second', 'third')


def test_options_are_places_whatever_a_list_calls_them(tmp_path):
  """Allow fewer options than the list in an evaluation, or no list."""
  three, two = ENDINGS[0], {'context': '7', 'endings': ['8', '9'], 'label': 1}
  for name, rows, listed in (('a', [three], True), ('b', [two], True), ('c', [three], False)):
    (tmp_path / name).mkdir()
    if listed:
      (tmp_path / name / 'labels.json').write_text('{"label": ["first", "second", "third"]}')
    small.write_rows(tmp_path / name / 'train.jsonl', rows)
  block = {'fields': ('context', 'endings'), 'label': 'label', 'kind': 'options', 'layout': 'bert', 'length': 16}
  found = [labelled.look(path=str(tmp_path / name), split='train', **block) for name in 'abc']
  assert all(labels.places for labels in found)
  for other in found[1:]:
    parts.check_names({'data': found[0], 'eval.x.data': other})
    parts.check_names({'data': other, 'eval.x.data': found[0]})


def test_known_fields_that_an_earlier_version_left_open_stay_open(tmp_path):
  row = {'premise': 'It rained.', 'choice1': 'Wet.', 'choice2': 'Snow.', 'question': 'effect', 'label': 0}
  for split in ('train', 'validation'):
    small.write_rows(tmp_path / f'{split}.jsonl', [row])
  data = {'name': 'labelled', 'kind': 'options', 'path': str(tmp_path), 'split': None, 'label': None, 'fields': []}
  settings = {'data': {**data, 'cache': str(tmp_path), 'max_bytes': 2**20}, 'eval': {}}
  kept = {'data': {'split': 'train', 'label': 'label', 'fields': []}}
  found = []
  for before in (kept, {}):
    made = {**settings}
    from_data._fill_data(made, before)
    found.append(made['data']['fields'])
  assert found == [[], ['premise', 'What was the {question} of this? {choice1|choice2}']]


def test_a_text_that_is_an_option_comes_before_a_name_of_the_list(tmp_path):
  (tmp_path / 'labels.json').write_text('{"label": ["3", "6", "9"]}')
  source = make(tmp_path, [{**ENDINGS[0], 'label': '6'}, {**ENDINGS[0], 'label': '9'}])
  assert next(source.once())['label'].tolist() == [2, 2]  # the third option; the third name, which is no option


def table(folder, *rows):
  """Build a source from a table whose options are numbers."""
  (folder / 'rows.csv').write_text('\n'.join(['question,a,b,c,label', *rows]) + '\n')
  fields = ('question', '{a|b|c}')
  return make(folder, ENDINGS, path=str(folder / 'rows.csv'), fields=fields, batch_size=len(rows))


def test_the_label_of_a_table_is_the_text_of_a_number(tmp_path):
  (batch,) = table(tmp_path, '1 2,10,20,30,20', '3,7,1,9,1', '4,8,9,6,2').once()
  assert batch['label'].tolist() == [1, 1, 2]  # a text, a text that is the number as well, a number


def test_a_label_of_a_table_that_means_two_options_is_refused(tmp_path):
  with pytest.raises(ValueError, match=r"'label' holds 0.*option 1"):
    table(tmp_path, '1 2,2,0,1,0')


def test_rows_without_a_label_are_left_out_or_kept(tmp_path):
  rows = [{**ENDINGS[0], 'label': label} for label in (-1, 2.0, None, '')]  # 2.0: as pandas writes it
  source = make(tmp_path, rows)
  (batch,) = source.once()
  assert (batch['label'][:1].tolist(), batch['row_id'].tolist()) == ([2], [1, -1, -1, -1])
  kept = make(tmp_path, rows, keep_unlabelled=True)
  (batch,) = kept.once()
  assert batch['label'].tolist() == [-1, 2, -1, -1]
  assert kept.unlabelled and kept.record(0)['label'] is None
  unlabelled = [{name: row[name] for name in ('context', 'endings')} for row in ENDINGS]
  assert next(make(tmp_path, unlabelled, keep_unlabelled=True).once())['label'].tolist() == [-1, -1]
  with pytest.raises(ValueError, match=r"no field 'label' \(data\.label\)"):
    make(tmp_path, unlabelled)


def test_a_draw_has_as_many_of_each_place(tmp_path):
  rows = [{**ENDINGS[0], 'context': f'{n}', 'label': n % 3} for n in range(12)]
  source = make(tmp_path, rows, per_class=2, batch_size=6)
  (batch,) = source.once()
  assert sorted(batch['label'].tolist()) == [0, 0, 1, 1, 2, 2]


def test_a_long_sequence_loses_the_end_of_its_longest_field(tmp_path):
  rows = [{'context': '1 2 3 4 5 6 7 8', 'endings': ['9', '10 11 12'], 'label': 0}]
  assert sequences(make(tmp_path, rows, length=8)) == [
    [CLS, *t(1, 2, 3, 4), SEP, *t(9), SEP],
    [CLS, *t(1, 2, 3), SEP, *t(10, 11), SEP],
  ]


def test_equal_texts_are_tokenised_once(tmp_path):
  seen = []
  rows = [{'context': '1', 'endings': ['2', '3'], 'label': 0}, {'context': '1', 'endings': ['3', '4'], 'label': 0}]
  make(tmp_path, rows, vocab=small.NumberVocab(each=seen.extend))
  assert sorted(seen) == ['1', '2', '3', '4']


def test_hosts_together_read_the_batch_of_one(tmp_path):
  rows = [{'context': f'{n}', 'endings': [f'{n + k}' for k in range(2 + n % 2)], 'label': n % 2} for n in range(8)]
  whole = make(tmp_path, rows, buckets=(7,))
  parts = [make(tmp_path, rows, buckets=(7,), host=host, hosts=2) for host in range(2)]
  for batch, *pieces in zip(whole.once(), *(part.once() for part in parts), strict=True):
    for key in batch:
      np.testing.assert_array_equal(batch[key], np.concatenate([piece[key] for piece in pieces]), err_msg=key)


@pytest.mark.parametrize(
  ('change', 'settings', 'message'),
  [
    ({'label': 3}, {}, r"row 0 of .*'label' holds 3.*3 options.*0 to 2.* C"),
    ({'label': 'D'}, {}, "'label' holds 'D'"),
    ({'label': True}, {}, "'label' holds True"),
    ({'label': 1.5}, {}, "'label' holds 1.5"),
    ({'label': ['none of them']}, {}, "'label' holds"),
    ({'endings': ['3']}, {}, '1 option'),
    ({'endings': '3'}, {}, 'no options'),
    ({'endings': ['3', 4]}, {}, r"'endings' holds \['3', 4\]"),
    ({'context': 5}, {}, "'context' holds 5"),
    ({}, {'fields': ('context', 'ending')}, r"no field 'ending'.*Did you mean 'endings'"),
    ({}, {'fields': ('context', '{endings} {more}')}, "no field 'more'"),
    ({'more': ['1', '2']}, {'fields': ('context', '{endings} {more}')}, '2 and 3'),
    ({}, {'label': 'gold'}, "no field 'gold'"),
    ({}, {'both_orders': True, 'fields': ('endings',)}, 'both_orders=True'),
    ({}, {'prefixes': ('a: ', 'b: ')}, r"prefixes.*fields=\('sentence: \{context\}', \.\.\.\)"),
    ({}, {'stride': 4}, "stride=4.*kind='spans'"),
  ],
)
def test_what_cannot_be_is_refused(tmp_path, change, settings, message):
  with pytest.raises(ValueError, match=message):
    make(tmp_path, [{**ENDINGS[0], **change}], **settings)


def test_unknown_fields_are_listed(tmp_path):
  with pytest.raises(ValueError, match=r'fields.*: stem, answers, label'):
    make(tmp_path, [{'stem': '1', 'answers': ['2', '3'], 'label': 0}])
