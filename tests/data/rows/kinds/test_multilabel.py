"""Several classes per example: every form of the data gives the same classes; mistakes are refused with a fix."""

import csv
import json
from typing import Any

import numpy as np
import pytest

from plm_jax.config import build
from plm_jax.core.types import Labels
from plm_jax.data import labelled
from plm_jax.data.corpora import sources
from plm_jax.data.rows import first_row
from tests.data import small

NAMES = ('anger', 'joy', 'no fear')
GOLD = [(1,), (0, 1, 2), (), (2,), (0,)]
ROWS = [{'text': f'11 12 {number + 20}', 'labels': [NAMES[index] for index in row]} for number, row in enumerate(GOLD)]
FLAGS = [[int(index in row) for index in range(3)] for row in GOLD]
COLUMNS = '{anger|joy|no fear}'


def changed(change: Any) -> list[dict[str, Any]]:
  return [{**row, 'labels': change(row['labels'])} for row in ROWS]


# form -> rows, suffix, settings, and the names that are found
FORMS = {
  'names': (ROWS, 'jsonl', {}, NAMES),
  'indices': (changed(lambda names: [NAMES.index(name) for name in names]), 'jsonl', {}, ()),
  'flags': ([{**row, 'labels': flags} for row, flags in zip(ROWS, FLAGS, strict=True)], 'jsonl', {}, ()),
  'floats': ([{**r, 'labels': list(map(float, flags))} for r, flags in zip(ROWS, FLAGS, strict=True)], 'jsonl', {}, ()),
  'truth': ([{**r, 'labels': list(map(bool, flags))} for r, flags in zip(ROWS, FLAGS, strict=True)], 'jsonl', {}, ()),
  'separator': (changed(' ; '.join), 'csv', {'separator': ';'}, NAMES),
  'json in a cell': (changed(json.dumps), 'csv', {}, NAMES),
  'python in a cell': (changed(str), 'csv', {}, NAMES),
  'indices in a cell': (
    changed(lambda names: ','.join(str(NAMES.index(name)) for name in names)),
    'csv',
    {'separator': ','},
    (),
  ),
  'columns': (
    [{'text': row['text'], **dict(zip(NAMES, flags, strict=True))} for row, flags in zip(ROWS, FLAGS, strict=True)],
    'csv',
    {'label': COLUMNS},
    NAMES,
  ),
  'columns of text': (
    [{'text': r['text'], **dict(zip(NAMES, map(bool, f), strict=True))} for r, f in zip(ROWS, FLAGS, strict=True)],
    'csv',
    {'label': COLUMNS},
    NAMES,
  ),
}  # fmt: skip


def write(file, rows):
  if file.suffix == '.jsonl':
    file.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  else:
    with file.open('w', newline='') as opened:
      writer = csv.DictWriter(opened, list(rows[0]))
      writer.writeheader()
      writer.writerows(rows)
  return str(file)


def make(path, **settings):
  block = {'name': 'labelled', 'kind': 'multilabel', 'path': path, 'fields': ('text',), 'label': 'labels', **settings}
  return build.make('data', {**block, 'length': 8, 'batch_size': 5}, vocab=small.NumberVocab(), seed=0)


@pytest.mark.parametrize('form', FORMS)
def test_every_form_gives_the_same_classes(form, tmp_path):
  rows, suffix, settings, names = FORMS[form]
  source = make(write(tmp_path / f'train.{suffix}', rows), **settings)
  (batch,) = source.once()
  assert batch['classes'].tolist() == FLAGS and batch['classes'].dtype == np.int32
  assert (source.names, source.classes) == (names, 3)
  assert [source.record(row)['classes'] for row in range(5)] == [list(row) for row in GOLD]
  records = sources.open_source(str(tmp_path / f'train.{suffix}'), split='train')
  assert first_row.find_label(records, 'multilabel') == settings.get('label', 'labels')
  assert first_row.find_fields(records, 'multilabel', settings.get('label', 'labels')) == ('text',)


def test_examples_without_labels(tmp_path):
  rows = [*ROWS[:3], {**ROWS[3], 'labels': None}]
  assert make(write(tmp_path / 'train.jsonl', rows)).rows == 3
  source = make(write(tmp_path / 'train.jsonl', rows), keep_unlabelled=True)
  (batch,) = source.once()
  assert source.unlabelled and batch['classes'][3].tolist() == [-1, -1, -1] and source.record(3)['classes'] is None
  bare = make(write(tmp_path / 'new.csv', [{'text': '11'}]), label=COLUMNS, keep_unlabelled=True)
  assert next(bare.once())['classes'][0].tolist() == [-1, -1, -1]
  # of a test set with -1 in every column nothing is known; -1 in one of them is a mistake
  table = [{'text': '11', 'anger': 1, 'joy': 0}, {'text': '11', 'anger': -1, 'joy': -1}]
  assert make(write(tmp_path / 'some.csv', table), label='{anger|joy}').rows == 1
  with pytest.raises(ValueError, match=r'0 or 1 for each of the 2 classes'):
    make(write(tmp_path / 'part.csv', [*table, {'text': '11', 'anger': -1, 'joy': 1}]), label='{anger|joy}')


def test_other_splits_have_the_classes_of_the_training_split(tmp_path):
  write(tmp_path / 'train.jsonl', FORMS['indices'][0])
  write(tmp_path / 'validation.jsonl', [{'text': '11', 'labels': [0, 1]}, {'text': '11', 'labels': [1, 0]}])
  (batch,) = make(str(tmp_path), split='validation').once()
  assert batch['classes'][:2].tolist() == [[1, 1], [1, 1]]  # indices as in the training split, not flags
  write(tmp_path / 'validation.jsonl', ROWS[:1])
  write(tmp_path / 'train.jsonl', ROWS)
  assert make(str(tmp_path), split='validation').names == NAMES


MISTAKES = {
  'a separator is missing': (changed(';'.join), {}, r"data\.separator=';'"),
  'blanks separate': (
    [{'text': '11', 'labels': one} for one in ('joy', 'fear', 'joy fear')],
    {},
    r"data\.separator=' '",
  ),
  'a class of its own': (changed(lambda names: {'joy': 1}), {}, 'list of classes'),
  'no list': (changed(lambda names: '[joy'), {}, 'list of classes'),
  'flags of another width': ([{'text': '11', 'labels': [1, 1, 0]}] * 3 + [{'text': '11', 'labels': [1, 0]}], {}, None),
  'no such column': (ROWS, {'label': '{joy|worry}'}, "no field 'joy'"),
  'a sample of classes': (ROWS, {'per_class': 1}, 'per_class=1'),
  'another kind': (ROWS, {'kind': 'class', 'separator': ';'}, "kind='multilabel'"),
}  # fmt: skip


@pytest.mark.parametrize('name', MISTAKES)
def test_mistakes_are_refused_with_the_fix(name, tmp_path):
  rows, settings, said = MISTAKES[name]
  path = write(tmp_path / 'train.jsonl', rows)
  if said is None:  # read as indices, since one list has another width
    assert make(path, **settings).classes == 2
    return
  with pytest.raises(ValueError, match=said) as error:
    make(path, **settings)
  assert max(map(len, str(error.value).replace(str(tmp_path), 'DATA').split('\n'))) < 260
  if 'separator=' in said and 'kind' not in settings:
    separator = said[-2]
    assert len(make(path, separator=separator).names) == 2 + (separator == ';')
    assert make(path, separator='').names  # one class in each cell


def test_labels_json_orders_the_classes(tmp_path):
  (tmp_path / 'labels.json').write_text(json.dumps({'labels': ['joy', 'no fear', 'anger', 'never']}))
  write(tmp_path / 'train.jsonl', ROWS)
  found = labelled.look(path=str(tmp_path), kind='multilabel', fields=('text',), label='labels')
  assert isinstance(found, Labels) and found.names == ('joy', 'no fear', 'anger', 'never')
  assert next(make(str(tmp_path)).once())['classes'][0].tolist() == [1, 0, 0, 0]


def test_classes_that_no_example_decides_are_counted(tmp_path, caplog):
  rows = [f'11 12 {number},{number % 2},0,1' for number in range(24)]
  (tmp_path / 'train.csv').write_text('text,joy,fear,anger\n' + '\n'.join(rows))
  keywords = dict(kind='multilabel', label='{joy|fear|anger}', fields=('text',))
  make(str(tmp_path), **keywords)
  assert '2 of 3 classes are in no example, or in each: fear, anger' in caplog.text
  caplog.clear()
  (tmp_path / 'train.csv').write_text('text,joy,fear,anger\n' + '\n'.join([*rows, '13 14,0,1,0']))
  make(str(tmp_path), **keywords)
  assert 'in no example' not in caplog.text
