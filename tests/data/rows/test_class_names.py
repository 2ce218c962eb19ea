"""Names of classes from the data set, labels.json or the rows: the same indices in every split."""

import json

import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Labels, Source, Task
from plm_jax.data import labelled
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import metrics
from plm_jax.scores import superglue
from plm_jax.training import evaluate_saved
from plm_jax.training.parts import check_labels, check_names
from tests.data import small


def make(path, **changes):
  settings = {'length': 8, 'batch_size': 4, 'seed': 0, 'cache': str(path)} | changes
  return labelled.make(vocab=small.NumberVocab(), path=str(path), **settings)


def write(place, split, labels):
  small.write_rows(place / f'{split}.jsonl', [{'text': '1', 'label': label} for label in labels])


def labels_of(source):
  return [int(label) for batch in source.once() for label in batch['label'][batch['row_weight'] > 0]]


def test_names_in_the_data_are_sorted_and_the_training_split_decides(tmp_path):
  write(tmp_path, 'train', ['neutral', 'bad', 'good', 'bad'])
  write(tmp_path, 'validation', ['good', 'neutral'])
  names = ('bad', 'good', 'neutral')
  train, validation = make(tmp_path), make(tmp_path, split='validation')
  assert train.names == validation.names == make(tmp_path, split='train[:2]').names == names
  assert labels_of(train) == [2, 0, 1, 0]
  assert labels_of(validation) == [1, 2]
  assert train.record(0)['names'] == names
  assert [names[train.record(row)['label']] for row in range(4)] == ['neutral', 'bad', 'good', 'bad']


def test_a_name_that_training_does_not_know_is_refused(tmp_path):
  write(tmp_path, 'train', ['bad', 'good'])
  write(tmp_path, 'test', ['good', 'ugly'])
  with pytest.raises(ValueError, match=r"line 2: row 1 .*holds 'ugly'.*bad, good.*labels\.json"):
    make(tmp_path, split='test')
  (tmp_path / 'labels.json').write_text('{"label": ["bad", "good", "ugly"]}')
  assert labels_of(make(tmp_path, split='test')) == [1, 2]


def test_a_number_where_training_has_names_is_refused(tmp_path):
  """Refuse indices of an evaluation set: their order may differ, as in GLUE."""
  write(tmp_path, 'train', [None, 'entailment', 'neutral', 'contradiction'])
  write(tmp_path, 'validation', [0, 1, 2])
  with pytest.raises(ValueError, match=r'holds 0.*contradiction, entailment, neutral'):
    make(tmp_path, split='validation')
  (tmp_path / 'labels.json').write_text('{"label": ["entailment", "neutral", "contradiction"]}')
  assert labels_of(make(tmp_path, split='validation')) == [0, 1, 2]
  (tmp_path / 'numbers').mkdir()
  write(tmp_path / 'numbers', 'train', [2, 0, 1])
  write(tmp_path / 'numbers', 'validation', [0, 1, 2])
  assert labels_of(make(tmp_path / 'numbers', split='validation')) == [0, 1, 2]


def test_numbers_of_words_where_training_has_names_are_refused(tmp_path):
  small.write_rows(tmp_path / 'train.jsonl', [{'text': ['1', '2'], 'label': ['B-PER', 'O']}])
  small.write_rows(tmp_path / 'validation.jsonl', [{'text': ['1', '2'], 'label': [1, 0]}])
  with pytest.raises(ValueError, match=r'holds .*B-PER, O'):
    make(tmp_path, split='validation', kind='words', fields=('text',))


def test_truth_values_are_classes(tmp_path):
  write(tmp_path, 'train', [True, True])
  source = make(tmp_path)
  assert (labels_of(source), source.names) == ([1, 1], ('False', 'True'))


def test_digits_are_numbers(tmp_path):
  write(tmp_path, 'train', ['10', '2', '0'])
  source = make(tmp_path)
  assert (labels_of(source), source.names, source.classes) == ([10, 2, 0], (), 11)


@pytest.mark.parametrize('low', [1_000_000, 3_000_000_000, 10**17])
def test_numbers_that_name_things_are_no_indices(tmp_path, low):
  (tmp_path / 'train.csv').write_text(f'text,label\n1,{low}\n2,{low + 7}\n3,{low}\n')
  with pytest.raises(ValueError, match=rf'holds {low}, too large.*labels\.json'):
    make(tmp_path, fields=('text',))
  (tmp_path / 'labels.json').write_text(json.dumps({'label': [str(low), str(low + 7)]}))  # the fix
  assert labels_of(make(tmp_path, fields=('text',))) == [0, 1, 0]


def test_whole_numbers_may_be_written_as_real_ones(tmp_path):
  (tmp_path / 'train.csv').write_text('text,label\n1,1.0\n2,0.0\n3,2.0\n')
  source = make(tmp_path, fields=('text',))
  assert (labels_of(source), source.names, source.classes) == ([1, 0, 2], (), 3)
  small.write_rows(tmp_path / 'test.jsonl', [{'text': ['1', '2'], 'label': [1.0, -1.0]}])
  tags = make(tmp_path, split='test', kind='words', fields=('text',))
  assert next(tags.once())['labels'][0, 1:3].tolist() == [1, -1]
  (tmp_path / 'train.csv').write_text('text,label\n1,1.0\n2,0.5\n')
  with pytest.raises(ValueError, match=r"holds 0\.5.*kind='regression'"):
    make(tmp_path, fields=('text',))


def test_tags_of_words_are_named(tmp_path):
  rows = [{'tokens': ['1', '2'], 'tags': ['O', 'B-x']}, {'tokens': ['3'], 'tags': [-1]}]
  small.write_rows(tmp_path / 'train.jsonl', rows)
  source = make(tmp_path, kind='words', fields=('tokens',), label='tags')
  assert source.names == ('B-x', 'O')
  assert next(source.once())['labels'][:2, 1:3].tolist() == [[1, 0], [-1, -1]]


def tagged(path, rows, names=()):
  """Read tags with `labelled`; return their names, and those of each word."""
  small.write_rows(path / 'train.jsonl', [{'tokens': ['1'] * len(tags), 'tags': tags} for tags in rows])
  (path / 'labels.json').write_text(json.dumps({'tags': names} if names else {}))
  source = make(path, kind='words', fields=('tokens',), label='tags')
  return source.names, [[source.names[label] for label in source.record(row)['labels']] for row in range(len(rows))]


IOB1 = [['I-x', 'I-x', 'B-x', 'O', 'I-y', 'I-x'], ['O', 'I-y']]
IOB2 = [['B-x', 'I-x', 'B-x', 'O', 'B-y', 'B-x'], ['O', 'B-y']]


def test_tags_of_iob1_become_those_of_iob2(tmp_path):
  assert tagged(tmp_path, IOB1) == (('B-x', 'B-y', 'I-x', 'O'), IOB2)
  names = ('O', 'B-x', 'I-x', 'B-y', 'I-y')
  assert tagged(tmp_path, IOB1, names) == tagged(tmp_path, IOB2, names) == (names, IOB2)
  numbers = [[names.index(tag) for tag in tags] for tags in IOB1]
  assert tagged(tmp_path, numbers, names) == (names, IOB2)


@pytest.mark.parametrize(
  'tags',
  [
    ['O', 'B-x', 'I-x', 'B-x', 'B-y', 'I-y'],
    ['B-x', 'I-x', 'E-x', 'S-x', 'I-x'],  # another scheme, whatever it does
    ['NOUN', 'I-verb', 'PUNCT'],
  ],
)
def test_other_tags_stay(tags, tmp_path):
  assert tagged(tmp_path, [tags]) == (tuple(sorted(set(tags))), [tags])
  assert tagged(tmp_path, [tags], tuple(set(tags)))[1] == [tags]


def test_a_list_of_names_decides_whether_entities_begin_with_a_name_of_their_own(tmp_path):
  assert tagged(tmp_path, [['I-x', 'O', 'I-x']], ('O', 'I-x'))[1] == [['I-x', 'O', 'I-x']]
  with pytest.raises(ValueError, match=r"'I-x' in 'tags'.*IOB1.*labels.json"):
    tagged(tmp_path, IOB1, ('O', 'I-x', 'I-y', 'B-y'))


@pytest.mark.parametrize(
  ('labels', 'names'), [(['no', 'yes', 'no'], ('no', 'yes')), ([True, False, True], ('False', 'True')), ([1, 0, 1], ())]
)
def test_a_test_set_without_labels_has_the_names_of_training(labels, names, tmp_path):
  write(tmp_path, 'train', labels)
  small.write_rows(tmp_path / 'test.jsonl', [{'text': '1', 'idx': 7}, {'text': '2', 'idx': 9}])
  source = make(tmp_path, split='test', keep_unlabelled=True)
  assert source.names == source.record(0)['names'] == names
  records = [source.record(row) for row in range(2)]
  lines = superglue.submission([{'label': 1}, {'label': 0}], records).splitlines()
  said = {'no': ['yes', 'no'], 'False': ['true', 'false']}.get(names[0] if names else '', [1, 0])
  assert [json.loads(line) for line in lines] == [{'idx': 7, 'label': said[0]}, {'idx': 9, 'label': said[1]}]
  (tmp_path / 'train.jsonl').unlink()
  assert make(tmp_path, split='test', keep_unlabelled=True).names == ()


@pytest.mark.parametrize(
  ('kind', 'key', 'labels'), [('class', 'label', [1, 0, None]), ('words', 'labels', [[1], [0], [-1]])]
)
def test_an_empty_cell_beside_names_is_no_label_where_that_may_be(kind, key, labels, tmp_path):
  (tmp_path / 'train.csv').write_text('text,label\n1,pos\n2,neg\n3,\n')
  with pytest.raises(ValueError, match=r'train\.csv, line 4'):
    make(tmp_path, kind=kind, fields=('text',))
  source = make(tmp_path, kind=kind, fields=('text',), keep_unlabelled=True)
  assert (source.unlabelled, source.names) == (True, ('neg', 'pos'))
  assert [source.record(row)[key] for row in range(3)] == labels


def test_words_without_tags_have_the_names_of_training(tmp_path):
  small.write_rows(tmp_path / 'train.jsonl', [{'tokens': ['1', '2'], 'tags': ['O', 'B-x']}])
  small.write_rows(tmp_path / 'test.jsonl', [{'tokens': ['3']}])
  source = make(tmp_path, split='test', kind='words', fields=('tokens',), label='tags', keep_unlabelled=True)
  assert source.names == source.record(0)['names'] == ('B-x', 'O')


def test_texts_are_no_names(tmp_path):
  write(tmp_path, 'train', [f'a text {n}' for n in range(60)])
  with pytest.raises(ValueError, match=r'60 different .*60 rows'):
    make(tmp_path)


def test_two_sources_that_number_a_name_otherwise_are_refused():
  names = {'data': Labels(('a', 'b', 'c')), 'eval.test.data': Labels(('b', 'c'))}
  with pytest.raises(ValueError, match=r'eval\.test\.data: .*b, c.*a, b, c'):
    check_names(names)
  check_names({'data': Labels(('a', 'b')), 'eval.x.data': Labels(('a', 'b')), 'eval.y.data': Labels()})
  check_names({'data': Labels(('neg', 'pos')), 'eval.x.data': Labels(('negative', 'positive'))})


def test_an_evaluation_that_numbers_a_name_otherwise_than_the_run_is_refused(tmp_path):
  folder, source = RunFolder.at(tmp_path), Source({}, 0, lambda step: iter(()), lambda: iter(()), '')
  named = source._replace(names=('b', 'c'))
  evaluate_saved.check_names(folder, {'test': named})  # an earlier version kept no names
  metrics.write_json(folder.data, {'class_names': ['a', 'b', 'c']})
  evaluate_saved.check_names(folder, {'test': source, 'other': source._replace(names=('a', 'b', 'c'))})
  with pytest.raises(ConfigError, match=r'eval\.test\.data: .*b, c, .*data\.json.* a, b, c'):
    evaluate_saved.check_names(folder, {'test': named})
  metrics.write_json(folder.data, {'class_names': {'one': ['a', 'b', 'c']}})
  with pytest.raises(ConfigError, match=r'eval\.test\.data\.parts\.one: .*b, c'):
    evaluate_saved.check_names(folder, {'test': source._replace(parts={'one': named, 'two': named})})


def test_the_row_with_a_label_that_the_task_does_not_know_is_named(tmp_path):
  write(tmp_path, 'train', [0, 1, 0, 6, 6])
  labels = labelled.look(path=str(tmp_path), cache=str(tmp_path))
  with pytest.raises(ValueError, match=r' 6 in .*train\.jsonl, line 4.* 2 classes'):
    check_labels(Task(None, None, None, classes=2), labels, path='x')


def test_labels_json_beside_the_file_wins(tmp_path):
  write(tmp_path, 'train', ['b', 'a'])
  (tmp_path / 'labels.json').write_text(json.dumps({'label': ['b', 'a']}))
  source = make(tmp_path)
  assert (labels_of(source), source.names) == ([0, 1], ('b', 'a'))


@pytest.mark.parametrize('label', [0, 'no'])
def test_labels_json_of_a_field_that_training_lacks_is_refused(label, tmp_path):
  small.write_rows(
    tmp_path / 'train.jsonl', [{'text': '1', 'label': label}, {'text': '1', 'label': label, 'topic': 'x'}]
  )
  write(tmp_path, 'test', [label])
  (tmp_path / 'labels.json').write_text(json.dumps({'labels': ['no', 'yes']}))
  for split in ('train', 'train[:1]', 'test'):
    with pytest.raises(ValueError, match=r"labels.json.*'labels'.* text, label.*Did you mean 'label'\?"):
      make(tmp_path, split=split)
  (tmp_path / 'labels.json').write_text(json.dumps({'topic': ['x', 'y']}))
  assert [labels_of(make(tmp_path, split=split)) for split in ('train', 'test')] == [[0, 0], [0]]
  (tmp_path / 'train.jsonl').unlink()
  assert labels_of(make(tmp_path, split='test')) == [0]


def test_names_in_one_place_and_numbers_in_another_are_refused(tmp_path):
  for name, labels in (('a', ['no', 'yes', 'no']), ('b', [0, 1, 1])):
    (tmp_path / name).mkdir()
    write(tmp_path / name, 'train', labels)
  named, numbered = make(tmp_path / 'a'), make(tmp_path / 'b')
  for first, second in ((named, numbered), (numbered, named)):
    with pytest.raises(ValueError, match=r'\(no, yes\).* labels.json'):
      check_names({'data': first, 'eval.x.data': second})
  check_names({'data': named, 'eval.x.data': named._replace(names=(), classes=0)})  # rows without labels


def test_names_that_are_numbers_are_the_same_in_a_table_and_in_json(tmp_path):
  stars = [4, 2, 1, 5]
  (tmp_path / 'csv').mkdir()
  (tmp_path / 'csv' / 'train.csv').write_text('text,label\n' + ''.join(f'1,{star}\n' for star in stars))
  (tmp_path / 'json').mkdir()
  write(tmp_path / 'json', 'train', [str(star) for star in stars])
  for name in ('csv', 'json'):
    (tmp_path / name / 'labels.json').write_text(json.dumps({'label': ['1', '2', '3', '4', '5']}))
    assert labels_of(make(tmp_path / name)) == [3, 1, 0, 4]


def test_a_text_may_stand_for_no_class(tmp_path, caplog):
  """Check '-', which SNLI and MultiNLI write if annotators did not agree."""
  write(tmp_path, 'train', ['neutral', '-', 'contradiction', '-'])
  assert make(tmp_path).names == ('-', 'contradiction', 'neutral')
  assert "'-'" in caplog.text and "data.missing='-'" in caplog.text
  source = make(tmp_path, missing='-')
  assert source.names == ('contradiction', 'neutral') and labels_of(source) == [1, 0]
