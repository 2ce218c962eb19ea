"""Labelled examples: input formats token by token, buckets, few-shot samples, whole epochs."""

import itertools
import json
import logging
import pathlib

import numpy as np
import pytest
import tokenizers

from plm_jax.adapters import classify, tag
from plm_jax.data import labelled
from plm_jax.data.rows import examples, laid
from plm_jax.text import byte_bpe, sentencepiece, wordpiece
from plm_jax.text import spec as specs
from plm_jax.training.parts import check_labels
from tests import tiny
from tests.data import small
from tests.data.small import BOS, CLASSIFY, CLS, DELIMITER, EOS, PAD, SEP, START


def t(*numbers):
  return [len(small.SPECIAL) + number for number in numbers]


def text(*numbers):
  return ' '.join(map(str, numbers))


PAIRS = [
  {'premise': text(1, 2, 3), 'hypothesis': text(4, 5), 'label': 1},
  {'premise': text(6), 'hypothesis': text(7, 8), 'label': -1},
  {'premise': text(*range(10, 30)), 'hypothesis': text(30, 31), 'label': 0},
]


def some_rows(count, seed=0, classes=3):
  draw = np.random.default_rng(seed)
  return [
    {'sentence': text(*([row] * draw.integers(1, 28))), 'label': int(draw.integers(-1, classes))}
    for row in range(count)
  ]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  place = tmp_path_factory.mktemp('labelled')
  small.write_rows(place / 'train.jsonl', some_rows(203))
  (place / 'labels.json').write_text('{"label": ["no", "maybe", "yes"]}')
  return place


def make(path, **changes):
  path = pathlib.Path(path)
  cache = path if path.is_dir() else path.parent
  settings = {
    'vocab': small.NumberVocab(),
    'path': str(path),
    'length': 32,
    'batch_size': 8,
    'seed': 3,
    'cache': str(cache),
  }
  return labelled.make(**(settings | changes))


def take(source, start, count):
  return list(itertools.islice(source.read(start), count))


def rows_of(source, prefix=''):
  """Return (tokens, type_ids or None) of each example, without padding."""
  made = []
  for batch in source.once():
    for row in np.flatnonzero(batch['row_weight']):
      real = batch[f'{prefix}segment_ids'][row] > 0
      assert (batch[f'{prefix}tokens'][row][~real] == PAD).all()
      types = batch[f'{prefix}type_ids'][row] if f'{prefix}type_ids' in batch else None
      assert types is None or (types[~real] == 0).all()
      made.append((batch[f'{prefix}tokens'][row][real].tolist(), None if types is None else types[real].tolist()))
  return made


GOLDEN = {
  'bert': [
    ([CLS, *t(1, 2, 3), SEP, *t(4, 5), SEP], [0] * 5 + [1] * 3),
    ([CLS, *t(10, 11, 12, 13, 14), SEP, *t(30, 31), SEP], [0] * 7 + [1] * 3),
  ],
  'roberta': [
    ([CLS, *t(1, 2, 3), SEP, SEP, *t(4, 5), SEP], None),
    ([CLS, *t(10, 11, 12, 13), SEP, SEP, *t(30, 31), SEP], None),
  ],
  'gpt': [
    ([START, *t(1, 2, 3), DELIMITER, *t(4, 5), CLASSIFY], None),
    ([START, *t(10, 11, 12, 13, 14), DELIMITER, *t(30, 31), CLASSIFY], None),
  ],
  'xlnet': [
    ([*t(1, 2, 3), SEP, *t(4, 5), SEP, CLS], [0] * 4 + [1] * 3 + [2]),
    ([*t(10, 11, 12, 13, 14), SEP, *t(30, 31), SEP, CLS], [0] * 6 + [1] * 3 + [2]),
  ],
  'plain': [
    ([BOS, *t(1, 2, 3), EOS, *t(4, 5), EOS], None),
    ([BOS, *t(10, 11, 12, 13, 14), EOS, *t(30, 31), EOS], None),
  ],
}


@pytest.mark.parametrize('layout', GOLDEN)
def test_golden_pairs(tmp_path, layout):
  source = make(small.write_rows(tmp_path / 'rows.jsonl', PAIRS), length=10, batch_size=2, layout=layout)
  assert rows_of(source) == GOLDEN[layout]
  (batch,) = source.once()
  assert batch['label'].tolist() == [1, 0]
  assert batch['row_id'].tolist() == [0, 2]
  assert set(batch['segment_ids'].ravel()) <= {0, 1}


@pytest.mark.parametrize(
  ('layout', 'expected'),
  [
    ('bert', ([CLS, *t(1, 2, 3, 4), SEP], [0] * 6)),
    ('roberta', ([CLS, *t(1, 2, 3, 4), SEP], None)),
    ('gpt', ([START, *t(1, 2, 3, 4), CLASSIFY], None)),
    ('xlnet', ([*t(1, 2, 3, 4), SEP, CLS], [0] * 5 + [2])),
    ('plain', ([BOS, *t(1, 2, 3, 4), EOS], None)),
  ],
)
def test_golden_single_texts(tmp_path, layout, expected):
  rows = [{'sentence': text(1, 2, 3, 4, 5, 6, 7), 'label': 0}]
  source = make(small.write_rows(tmp_path / 'rows.jsonl', rows), length=6, batch_size=1, layout=layout)
  assert rows_of(source) == [expected]


def test_three_fields_and_both_orders(tmp_path):
  rows = [{'passage': text(1, 2), 'question': text(3), 'option': text(4, 5, 6), 'label': 0}]
  fields = ('passage', 'question', 'option')
  path = small.write_rows(tmp_path / 'rows.jsonl', rows)
  source = make(path, length=12, batch_size=1, layout='gpt', fields=fields, both_orders=True)
  row = [START, *t(1, 2), DELIMITER, *t(3), DELIMITER, *t(4, 5, 6), CLASSIFY]
  assert rows_of(source) == [(row, None)]
  swapped = [START, *t(4, 5, 6), DELIMITER, *t(3), DELIMITER, *t(1, 2), CLASSIFY]
  assert rows_of(source, 'swapped_') == [(swapped, None)]
  assert set(source.spec) == set(next(source.once()))


def test_an_empty_field_keeps_its_frame(tmp_path):
  rows = [{'sentence1': '', 'sentence2': text(1), 'label': 0}]
  source = make(small.write_rows(tmp_path / 'rows.jsonl', rows), batch_size=1)
  assert rows_of(source) == [([CLS, SEP, *t(1), SEP], [0, 0, 1, 1])]


def test_fit_takes_one_token_at_a_time_off_the_longest():
  draw = np.random.default_rng(0)
  for fields in (1, 2, 3):
    sizes = draw.integers(0, 30, (300, fields))
    for room in (fields, 17, 24):
      expected = sizes.copy()
      for row in expected:
        while row.sum() > room:
          row[fields - 1 - np.argmax(row[::-1])] -= 1  # of equally long ones the last, as BERT does
      np.testing.assert_array_equal(laid.fit(sizes, room=room), expected)


def test_rows_without_a_label_are_left_out_and_counted(folder, caplog):
  caplog.set_level(logging.INFO)
  source = make(folder)
  kept = [number for number, row in enumerate(some_rows(203)) if row['label'] >= 0]
  assert source.rows == len(kept) < 203
  assert f'{203 - len(kept)} rows' in caplog.text
  assert np.concatenate([batch['row_id'] for batch in source.once()])[: source.rows].tolist() == kept
  assert source.names == ('no', 'maybe', 'yes')


def test_says_how_many_rows_are_cut(folder, caplog):
  caplog.set_level(logging.INFO)
  make(folder, length=12)
  long = sum(row['label'] >= 0 and len(row['sentence'].split()) > 10 for row in some_rows(203))
  assert f'{long} of them' in caplog.text


@pytest.mark.parametrize('buckets', [(), (8, 16), (4, 6, 8, 10, 12, 24)])
def test_each_row_once_an_epoch_and_only_the_last_batch_is_short(folder, buckets):
  source = make(folder, buckets=buckets)
  steps = source.steps_per_epoch
  batches = take(source, 0, 2 * steps)
  assert steps == -(-source.rows // 8)
  orders = []
  for epoch in range(2):
    mine = batches[epoch * steps : (epoch + 1) * steps]
    assert all((batch['epoch'] == epoch).all() for batch in mine)
    assert all((batch['row_weight'] == 1).all() for batch in mine[:-1])
    real = mine[-1]['row_weight'] > 0
    assert real.sum() == source.rows - 8 * (steps - 1)
    assert (mine[-1]['row_id'][~real] == -1).all()
    orders.append([int(row) for batch in mine for row in batch['row_id'] if row >= 0])
  once = [int(row) for batch in source.once() for row in batch['row_id'] if row >= 0]
  assert sorted(orders[0]) == sorted(orders[1]) == once == sorted(once)
  assert orders[0] != orders[1]


def test_buckets_are_short_and_mixed(folder):
  source = make(folder, buckets=(8, 16))
  batches = take(source, 0, source.steps_per_epoch)
  widths = [batch['tokens'].shape[1] for batch in batches]
  assert set(widths) == {8, 16, 32}
  assert widths[:-1] != sorted(widths[:-1]), 'batches come in the order of their length'
  for batch, width in zip(batches, widths, strict=True):
    longest = (batch['segment_ids'] > 0).sum(1).max()
    assert longest <= width
    assert width == min(size for size in (8, 16, 32) if size >= longest)
    short = (batch['segment_ids'] > 0).sum(1) <= width // 2
    assert width == 8 or short.sum() < 8
  plain = {
    int(row): tokens[segments > 0].tolist()
    for batch in make(folder).once()
    for row, tokens, segments in zip(batch['row_id'], batch['tokens'], batch['segment_ids'], strict=True)
  }
  for batch in batches:
    for row, tokens, segments in zip(batch['row_id'], batch['tokens'], batch['segment_ids'], strict=True):
      assert row == -1 or plain[int(row)] == tokens[segments > 0].tolist()


@pytest.mark.parametrize('buckets', [(), (8, 16)])
@pytest.mark.parametrize('hosts', [2, 4, 8])
def test_hosts_together_read_the_batch_of_one(folder, hosts, buckets):
  whole = make(folder, buckets=buckets)
  parts = [make(folder, buckets=buckets, host=host, hosts=hosts) for host in range(hosts)]
  runs = [(whole.once(), *(part.once() for part in parts))]
  runs += [[take(source, start, 30) for source in (whole, *parts)] for start in (0, 1_000_000)]
  for each in runs:
    for batch, *pieces in zip(*each, strict=True):
      for key in batch:
        np.testing.assert_array_equal(batch[key], np.concatenate([piece[key] for piece in pieces]), err_msg=key)


@pytest.mark.parametrize('buckets', [(), (8, 16)])
def test_read_is_a_pure_function_of_the_step(folder, buckets):
  batches = take(make(folder, buckets=buckets), 0, 60)
  again = make(folder, buckets=buckets)
  for start in (0, 1, 25, 50):
    for left, right in zip(take(again, start, 9), batches[start : start + 9], strict=True):
      assert left.keys() == right.keys()
      for key in left:
        np.testing.assert_array_equal(left[key], right[key], err_msg=key)


def test_without_shuffle_rows_keep_their_order(folder):
  source = make(folder, shuffle=False)
  read = [int(row) for batch in take(source, 0, source.steps_per_epoch) for row in batch['row_id']]
  assert read == [int(row) for batch in source.once() for row in batch['row_id']]


@pytest.mark.parametrize('per_class', [1, 8])
def test_per_class_draws_the_same_balanced_rows(folder, per_class):
  source = make(folder, per_class=per_class)
  assert source.rows == 3 * per_class
  batches = list(source.once())
  labels = np.concatenate([batch['label'] for batch in batches])[: source.rows]
  assert np.bincount(labels).tolist() == [per_class] * 3
  drawn = [int(row) for batch in batches for row in batch['row_id'] if row >= 0]

  def rows(**changes):
    return [int(row) for batch in make(folder, **changes).once() for row in batch['row_id'] if row >= 0]

  assert rows(per_class=per_class, seed=99, batch_size=1) == drawn == sorted(drawn)
  assert rows(per_class=per_class, sample_seed=1) != drawn
  assert set(drawn) < set(rows(per_class=2 * per_class)), 'a larger draw holds the smaller one'
  assert all(some_rows(203)[row]['label'] == label for row, label in zip(drawn, labels, strict=True))


def test_regression_takes_real_labels(tmp_path):
  rows = [{'sentence1': text(1), 'sentence2': text(2), 'label': label} for label in (2.5, 0.0, -1.0, 5.0, None)]
  source = make(small.write_rows(tmp_path / 'rows.jsonl', rows), kind='regression', batch_size=4)
  (batch,) = source.once()
  assert batch['label'].dtype == np.float32 == source.spec['label'].dtype
  assert batch['label'][:3].tolist() == [2.5, 0.0, 5.0]
  assert batch['row_weight'].tolist() == [1, 1, 1, 0]
  kept = make(small.write_rows(tmp_path / 'rows.jsonl', rows[:4]), kind='regression', missing=-9)
  assert kept.rows == 4


def test_a_number_that_stands_for_no_label_is_told(tmp_path, caplog):
  """Report that sentiments of -1, 0 and 1 would lose a class."""
  caplog.set_level(logging.INFO)
  rows = [{'sentence1': text(1), 'sentence2': text(2), 'label': label} for label in (-1, 0, 1, -1, None)]
  assert make(small.write_rows(tmp_path / 'rows.jsonl', rows)).rows == 2
  assert '3 rows' in caplog.text
  assert '2 of them' in caplog.text
  caplog.clear()
  make(small.write_rows(tmp_path / 'rows.jsonl', rows), keep_unlabelled=True)
  assert 'stands for no label' not in caplog.text


WORDS = [
  {'tokens': ['1 2', '3', '4 5 6'], 'tags': [2, 0, 1]},  # words of two, one and three pieces
  {'tokens': [], 'tags': []},
  {'tokens': ['7', '', '8 9', '10 11'], 'tags': [1, 2, -1, 2]},  # one without a piece, one without a label
]
TRAINED = {'sentencepiece': sentencepiece, 'byte_bpe': byte_bpe, 'wordpiece': wordpiece}
TAGGED = {'kind': 'words', 'fields': ('tokens',), 'label': 'tags'}


def test_minus_one_beside_a_single_class_is_refused(tmp_path):
  rows = [{'sentence1': text(1), 'sentence2': text(2), 'label': 1 if n % 2 else -1} for n in range(8)]
  with pytest.raises(ValueError, match="'label' is -1 in 4 rows"):
    make(small.write_rows(tmp_path / 'rows.jsonl', rows))


def test_the_label_of_a_word_stands_at_its_first_piece(tmp_path, caplog):
  path = small.write_rows(tmp_path / 'rows.jsonl', WORDS)
  (tmp_path / 'labels.json').write_text('{"tags": ["O", "B-a", "B-b"]}')
  source = make(path, length=10, batch_size=3, **TAGGED)
  (batch,) = source.once()
  assert rows_of(source) == [([CLS, *t(1, 2, 3, 4, 5, 6), SEP], [0] * 8), ([CLS, *t(7, 8, 9, 10, 11), SEP], [0] * 7)]
  assert batch['labels'].tolist()[:2] == [[-1, 2, -1, 0, 1, -1, -1, -1, -1, -1], [-1, 1, -1, -1, 2, -1, -1, -1, -1, -1]]
  assert 'label' not in batch
  assert batch['row_id'].tolist() == [0, 2, -1]
  assert batch['row_weight'].tolist() == [1, 1, 0]
  assert source.spec['labels'] == source.spec['tokens']
  assert (source.rows, source.names) == (2, ('O', 'B-a', 'B-b'))
  assert '1 of 7 words' in caplog.text


@pytest.mark.parametrize('kind', ['llama', 'sentencepiece', 'byte_bpe', 'wordpiece'])
def test_words_have_the_tokens_that_they_have_within_a_text(tmp_path, kind):
  """Compare with the tokenizers library on split words.

  GPT-2's tokenizer needs the setting for a space before a text.
  """
  pytest.importorskip('sentencepiece')
  texts = ['the cat sat on the mat 1 2 3'] * 20
  if kind == 'llama':
    vocab = small.llama_vocab(texts)
  else:
    vocab = TRAINED[kind].train(texts, size=300)
  row = {'tokens': ['the', 'cat', 'mat', '1'], 'tags': [0, 1, 0, 1]}
  (batch,) = make(
    small.write_rows(tmp_path / 'a.jsonl', [row]), vocab=vocab, layout='bare', batch_size=1, **TAGGED
  ).once()
  spec = json.loads(vocab.content)
  reader = tokenizers.Tokenizer.from_str(json.dumps(specs.spaced(spec)))
  expected = reader.encode(row['tokens'], is_pretokenized=True, add_special_tokens=False).ids
  assert batch['tokens'][batch['segment_ids'] > 0].tolist() == expected
  assert (batch['labels'] >= 0).sum() == len(row['tokens'])


def test_a_long_row_of_words_loses_the_last_ones(tmp_path):
  source = make(small.write_rows(tmp_path / 'rows.jsonl', WORDS[:1]), length=7, batch_size=1, **TAGGED)
  (batch,) = source.once()
  assert batch['tokens'].tolist() == [[CLS, *t(1, 2, 3, 4, 5), SEP]]
  assert batch['labels'].tolist() == [[-1, 2, -1, 0, 1, -1, -1]]


def test_other_labels_are_other_data(tmp_path):
  other = [{**row, 'tags': [0] * len(row['tags'])} for row in WORDS]
  paths = [small.write_rows(tmp_path / f'{name}.jsonl', rows) for name, rows in (('a', WORDS), ('b', other))]
  one, two = (make(path, **TAGGED).digest for path in paths)
  assert one != two


@pytest.mark.parametrize(
  ('rows', 'changes', 'message'),
  [
    (WORDS, {'fields': ()}, "kind='words'.*fields?"),
    (WORDS, {'fields': ('tokens', 'tokens')}, "kind='words'.*fields?"),
    (WORDS, {'per_class': 2}, 'per_class=2'),
    (WORDS, {'both_orders': True}, 'both_orders=True'),
    ([{'tokens': ['1', '2'], 'tags': [0]}], {}, 'row 0 of .*list of words'),
    ([{'tokens': '1 2', 'tags': [0, 1, 2]}], {}, 'row 0 of .*list of words'),
    ([{'tokens': ['1'], 'tags': ['']}], {}, "holds ''"),
    (WORDS[1:2], {}, 'none of 1 rows'),
    (WORDS, {'kind': 'word'}, "kind='word'.*arcs, class, multilabel, options, regression, spans, text, words"),
  ],
)
def test_impossible_words_are_refused(tmp_path, rows, changes, message):
  with pytest.raises(ValueError, match=message):
    make(small.write_rows(tmp_path / 'rows.jsonl', rows), **(TAGGED | changes))


def test_many_rows_go_through_the_store_and_are_the_same(folder, tmp_path, monkeypatch):
  expected = list(make(folder).once())
  monkeypatch.setattr(examples, 'IN_MEMORY', 100)
  for batch, other in zip(make(folder, cache=str(tmp_path)).once(), expected, strict=True):
    for key in other:
      np.testing.assert_array_equal(batch[key], other[key])
  assert list(tmp_path.rglob('manifest.json'))


@pytest.mark.parametrize('buckets', [(), (8, 16)])
def test_spec_is_that_of_the_longest_bucket(folder, buckets):
  source = make(folder, buckets=buckets)
  longest = max(take(source, 0, source.steps_per_epoch), key=lambda batch: batch['tokens'].shape[1])
  assert {key: (array.shape, array.dtype) for key, array in longest.items()} == {
    key: (leaf.shape, leaf.dtype) for key, leaf in source.spec.items()
  }


def test_the_spec_of_a_host_is_global(folder):
  assert make(folder, host=1, hosts=4).spec == make(folder).spec


@pytest.mark.parametrize(
  'fields',
  [
    ('sentence',),
    ('text',),
    ('sentence1', 'sentence2'),
    ('premise', 'hypothesis'),
    ('question', 'sentence'),
    ('question1', 'question2'),
  ],
)
def test_known_fields_are_found(tmp_path, fields):
  rows = [{'idx': 0, **{name: text(number) for number, name in enumerate(fields)}, 'label': 0}]
  source = make(small.write_rows(tmp_path / 'rows.jsonl', rows), batch_size=1)
  expected = [CLS]
  for number in range(len(fields)):
    expected += [*t(number), SEP]
  assert rows_of(source)[0][0] == expected


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'layout': 'albert'}, "layout='albert'.*bare, begin, bert, elmo, glm, glm4, gpt, plain, roberta, text, tok"),
    ({'fields': ('body',)}, "no field 'body'"),
    ({'label': 'class'}, "no field 'class'"),
    ({'buckets': (64,)}, '64.*length=32'),
    ({'buckets': (2,)}, 'length=2|rows of 2'),
    ({'length': 2}, 'length=2|rows of 2'),
    ({'per_class': 1000}, 'per_class=1000'),
    ({'per_class': 4, 'kind': 'regression'}, 'per_class=4.*regression'),
    ({'both_orders': True}, 'both_orders=True'),
    ({'batch_size': 6, 'hosts': 4}, 'batch_size=6'),
    ({'vocab': small.NumberVocab(without=('cls',))}, 'no .CLS. token'),
    ({'label': 'sentence'}, "'sentence'.*holds|holds.*'sentence'|sentence"),
  ],
)
def test_impossible_settings_are_refused(folder, changes, message):
  with pytest.raises(ValueError, match=message):
    make(folder, **changes)


def test_rows_that_all_lack_a_label_are_refused(tmp_path):
  path = small.write_rows(tmp_path / 'rows.jsonl', [{'text': '1', 'label': -1}])
  with pytest.raises(ValueError, match='none of 1 rows'):
    make(path)


def test_unknown_fields_are_listed(tmp_path):
  path = small.write_rows(tmp_path / 'rows.jsonl', [{'tweet': '1', 'label': 0}])
  with pytest.raises(ValueError, match=r'fields.*tweet, label'):
    make(path)


def test_labels_that_the_adapter_has_no_class_for_are_refused(folder):
  source = make(folder)
  assert (source.classes, source.names) == (3, ('no', 'maybe', 'yes'))
  model = {'trunk': tiny.make_trunk('bert'), 'vocab': tiny.VOCAB}
  for classes in (3, 4):
    check_labels(classify.make(**model, classes=classes), source, path='texts')
  with pytest.raises(ValueError, match=r' 2.* 2 classes'):
    check_labels(classify.make(**model, classes=2), source, path='texts')
  check_labels(classify.make(**model, kind='regression'), make(folder, kind='regression'), path='texts')
  check_labels(tag.make(**model, tags=('no', 'maybe', 'yes')), source, path='texts')
  with pytest.raises(ValueError, match=r"\('no', 'maybe', 'yes'\).*adapter.tags"):
    check_labels(tag.make(**model, tags=('yes', 'maybe', 'no')), source, path='texts')


# Records, and rows without a label.


def test_a_record_has_the_row_the_label_and_the_names(folder):
  source = make(folder)
  rows = some_rows(203)
  kept = [number for number, row in enumerate(rows) if row['label'] >= 0]
  for row_id in kept:
    record = source.record(row_id)
    assert record == {'row': rows[row_id], 'label': rows[row_id]['label'], 'names': ('no', 'maybe', 'yes')}
  dropped = next(number for number in range(203) if number not in kept)
  with pytest.raises(IndexError, match=f'no row {dropped}'):
    source.record(dropped)
  drawn = make(folder, per_class=5)
  for batch in drawn.once():
    for row_id, label in zip(batch['row_id'][batch['row_weight'] > 0], batch['label'], strict=False):
      assert drawn.record(int(row_id))['label'] == label


def test_rows_without_a_label_stay_where_that_is_asked(folder, tmp_path):
  rows = some_rows(203)
  source = make(folder, keep_unlabelled=True)
  assert source.unlabelled and source.rows == 203 and not make(folder).unlabelled
  labels = np.concatenate([batch['label'][batch['row_weight'] > 0] for batch in source.once()])
  assert labels.tolist() == [row['label'] for row in rows]
  assert [source.record(number)['label'] for number in range(203)] == [
    None if row['label'] < 0 else row['label'] for row in rows
  ]
  bare = small.write_rows(tmp_path / 'bare.jsonl', [{'sentence': row['sentence']} for row in rows])
  with pytest.raises(ValueError, match="no field 'label'"):
    make(bare)
  for kind in ('class', 'regression'):
    source = make(bare, keep_unlabelled=True, kind=kind)
    assert source.unlabelled and source.rows == 203
    assert source.record(7) == {'row': {'sentence': rows[7]['sentence']}, 'label': None, 'names': ()}
  assert labelled.look(path=str(bare), keep_unlabelled=True, cache=str(tmp_path)).unlabelled
  with pytest.raises(ValueError, match=r'per_class=2.*keep_unlabelled'):
    make(folder, keep_unlabelled=True, per_class=2)
  assert make(folder).digest != make(folder, keep_unlabelled=True).digest


def test_a_record_of_words_says_which_of_them_a_batch_labels(tmp_path):
  """Omit words without a token, and words after the end of a sequence."""
  given = [
    {'words': ['1', '', '2', '3'], 'tags': ['O', 'B-x', 'I-x', -1]},
    {'words': [], 'tags': []},
    {'words': ['4', '5'], 'tags': [1, 0]},
  ]
  file = small.write_rows(tmp_path / 'train.jsonl', given)
  (tmp_path / 'labels.json').write_text('{"tags": ["O", "B-x", "I-x"]}')
  settings = {'kind': 'words', 'fields': ('words',), 'label': 'tags', 'length': 8}
  source = make(file, **settings)
  assert source.record(0) == {
    'row': given[0], 'words': given[0]['words'], 'labels': [0, 1, 2, -1], 'places': [0, 2], 'names': ('O', 'B-x', 'I-x')
  }  # fmt: skip
  assert source.record(2)['labels'] == [1, 0] and source.record(2)['places'] == [0, 1]
  (batch,) = source.once()
  assert [row[row >= 0].tolist() for row in batch['labels'][batch['row_weight'] > 0]] == [[0, 2], [1, 0]]
  assert not source.unlabelled

  bare = small.write_rows(tmp_path / 'bare.jsonl', [{'words': row['words']} for row in given])
  source = make(bare, keep_unlabelled=True, **settings)
  assert source.unlabelled and source.record(0)['labels'] == [-1] * 4 and source.record(0)['places'] == [0, 2, 3]
  (batch,) = source.once()
  assert [row[row >= 0].tolist() for row in batch['labels'][batch['row_weight'] > 0]] == [[0, 0, 0], [0, 0]]
