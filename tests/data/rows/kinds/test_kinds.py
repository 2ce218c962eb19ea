"""Kinds and layouts of labelled examples: the interface of every file; a new file needs no edit elsewhere."""

import sys
import textwrap

import numpy as np
import pytest

from plm_jax.config import build
from plm_jax.core.batch import BATCH
from plm_jax.data import labelled
from plm_jax.data.rows import kinds, layouts
from tests.data import small
from tests.data.small import CLS, PAD, SEP

KINDS = build.files_of('data.rows.kinds')
LAYOUTS = build.files_of('data.rows.layouts')

CHOICE = '''
"""A context with endings to choose from, and the number of the right one."""

import numpy as np

from plm_jax.data.rows import examples, store

GIVES = ('label',)


def make(*, records, asked):
  context, endings = asked.fields
  texts, labels = [], []
  for index in range(len(records)):
    for ending in records.value(index, endings):
      texts += [records.text(index, context), ending]
    labels.append(records.value(index, asked.label))
  labels = np.array(labels, np.int32)
  return examples.Examples(
    texts=examples.ListedTexts(texts, store.digest_of(records.digest, asked.fields, 'choice')),
    edges=np.arange(len(texts) + 1),
    row_ids=np.arange(len(records)),
    fields=asked.fields,
    add=lambda offsets, place: lambda chosen, width: {'label': labels[chosen]},
    classes=int(labels.max()) + 1,
    sequences=len(texts) // len(records) // 2,
  )
'''
MIRROR = '''
"""A [SEP] and nothing else."""

from plm_jax.data.rows import framing


def make(*, vocab, fields):
  return framing.Layout(framing.around(fields, between=(vocab.sep_id,), last=(vocab.sep_id,)))
'''


@pytest.mark.parametrize('name', KINDS)
def test_a_kind_gives_known_keys(name):
  assert set(KINDS[name].GIVES) <= BATCH.keys()
  assert not set(KINDS[name].GIVES) & set(labelled.GIVES), 'who gives a key is said once'


@pytest.mark.parametrize('name', sorted({*LAYOUTS} - {'tokenizer'}))  # the file of a tokenizer decides
@pytest.mark.parametrize('fields', [1, 2, 3])
def test_a_layout_frames_each_field(name, fields):
  vocab = small.NumberVocab()
  vocab.token = {0: '[gMASK]', 1: '<sop>'}.get
  layout = LAYOUTS[name].make(vocab=vocab, fields=fields)
  assert len(layout.frames) == fields
  assert not any(before for before, _ in layout.frames[1:])
  assert bool(layout.frames[-1][1]) == (name not in ('bare', 'begin', 'elmo', 'glm4')), (
    'a row has an end unless a decoder or the model adds it'
  )
  assert layout.typed or layout.last_type is None


@pytest.fixture
def plugged(tmp_path, monkeypatch):
  """Add one more kind and one more layout, in other folders."""
  for package, name, source in ((kinds, 'choice', CHOICE), (layouts, 'mirror', MIRROR)):
    place = tmp_path / package.__name__
    place.mkdir()
    (place / f'{name}.py').write_text(textwrap.dedent(source))
    monkeypatch.setattr(package, '__path__', [*package.__path__, str(place)])
  yield tmp_path
  for name in ('kinds.choice', 'layouts.mirror'):
    sys.modules.pop(f'plm_jax.data.rows.{name}', None)


@pytest.mark.parametrize(('host', 'hosts'), [(0, 1), (1, 2)])
def test_a_new_kind_with_several_sequences_per_row(plugged, host, hosts):
  rows = [{'context': f'{n}', 'endings': [f'{n + k} {k}' for k in range(3)], 'label': n % 3} for n in range(4)]
  path = small.write_rows(plugged / 'rows.jsonl', rows)
  source = labelled.make(
    vocab=small.NumberVocab(), path=path, kind='choice', fields=('context', 'endings'), length=9, buckets=(7,),
    batch_size=4, seed=0, cache=str(plugged), host=host, hosts=hosts,
  )  # fmt: skip
  assert source.spec['tokens'].shape == source.spec['type_ids'].shape == (4, 3, 9)
  (batch,) = source.once()
  chosen = range(4)[host * 4 // hosts :]
  assert batch['tokens'].tolist() == [
    [[CLS, 10 + n, SEP, 10 + n + k, 10 + k, SEP, PAD] for k in range(3)] for n in chosen
  ]
  assert batch['label'].tolist() == [n % 3 for n in chosen]
  assert batch['segment_ids'].tolist() == [[[1] * 6 + [0]] * 3] * len(chosen)
  assert batch['type_ids'].tolist() == [[[0] * 3 + [1] * 3 + [0]] * 3] * len(chosen)


def test_a_new_layout(plugged):
  path = small.write_rows(plugged / 'rows.jsonl', [{'text': '1 2', 'label': 0}])
  source = labelled.make(
    vocab=small.NumberVocab(), path=path, layout='mirror', length=4, batch_size=1, seed=0, cache=str(plugged)
  )
  np.testing.assert_array_equal(next(source.once())['tokens'], [[11, 12, SEP, PAD]])


def test_numbers_of_a_table_may_be_written_in_any_way(tmp_path):
  settings = {'vocab': small.NumberVocab(), 'length': 8, 'batch_size': 8, 'seed': 0, 'kind': 'regression'}
  path = tmp_path / 'rows.csv'

  def write(*cells):
    path.write_text('text,label\n' + ''.join(f'{number},{cell}\n' for number, cell in enumerate(cells, start=1)))
    return labelled.make(path=str(path), cache=str(tmp_path), **settings)

  source = write('.5', '+2', ' 2', '1e3', '-1', '-0.25 ')  # -1 is no label
  assert [source.record(row)['label'] for row in (0, 1, 2, 3, 5)] == [0.5, 2, 2, 1000, -0.25]
  with pytest.raises(ValueError, match=r"holds '1,5', not a finite number: write a point before decimals"):
    write('.5', '"1,5"')
  for cell in ('nan', 'inf', '1_0', '1e39', '1e999', '٣', '0x1', '.', '1 2'):
    with pytest.raises(ValueError, match=r'line 3: .*number'):
      write('.5', cell)


@pytest.mark.parametrize(
  ('rows', 'settings', 'message'),
  [
    ([{'text': '1', 'label': 0}, {'text': '2'}], {}, r"row 1 of .*rows\.jsonl \(train\) .*no field 'label'"),
    ([{'text': '1', 'label': 0}, {'label': 1}], {}, "row 1 of .* no field 'text'"),
    ([{'text': '1', 'label': 0}, {'text': 3, 'label': 1}], {}, "row 1 of .* 'text'.*3"),
    ([{'text': '1', 'label': 0}, {'text': '2', 'label': 1.5}], {}, "row 1 of .*'label' holds 1.5"),
    ([{'text': '1', 'label': 0}, {'text': '2', 'label': [1]}], {}, r"row 1 of .*'label' holds \[1\]"),
    ([{'text': '1', 'label': 0}, {'text': '2', 'label': -3}], {}, "row 1 of .*'label' holds -3"),
    ([{'text': '1', 'label': 'a'}], {'kind': 'regression'}, "row 0 of .*'label' holds 'a'"),
    ([{'text': ['1'], 'label': [0]}, {'text': ['2']}], {'kind': 'words'}, "row 1 of .* no field 'label'"),
    ([{'text': ['1', 2], 'label': [0, 0]}], {'kind': 'words'}, "row 0 of .*'text' holds"),
    ([{'text': ['1'], 'label': [-2]}], {'kind': 'words'}, "row 0 of .*'label' holds -2"),
  ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path, rows, settings, message):
  path = small.write_rows(tmp_path / 'rows.jsonl', rows)
  with pytest.raises(ValueError, match=message):
    labelled.make(
      vocab=small.NumberVocab(), path=path, fields=('text',), length=8, batch_size=1, seed=0, cache=str(tmp_path),
      **settings,
    )  # fmt: skip
