"""Plain text: pure reading, independent of the number of hosts, each sequence once per epoch."""

import itertools
import logging

import numpy as np
import pytest

from plm_jax.data import stream
from plm_jax.data.rows import store
from plm_jax.text import chars, words
from tests.data import small
from tests.data.small import BOS, CLS, EOS, PAD, SEP, START

LAYOUTS = ('stream', 'documents', 'rows', 'full')
SIZES = np.random.default_rng(0).geometric(0.04, 150).tolist()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Write a corpus of 150 documents, with a cache for this file."""
  place = tmp_path_factory.mktemp('stream')
  small.write_text(place / 'train.txt', small.documents(SIZES))
  return place


def make(folder, **changes):
  settings = {
    'vocab': small.NumberVocab(),
    'path': str(folder),
    'length': 16,
    'batch_size': 8,
    'seed': 3,
    'cache': str(folder),
  }
  return stream.make(**(settings | changes))


@pytest.mark.parametrize('layout', ['rows', 'stream'])
def test_words_have_their_characters(tmp_path, layout):
  """Check the characters of words; tokens do not change.

  Known words have those of the vocabulary, unknown words those of the text, padding none.
  """
  vocab = words.train(['the dog saw the dax'], size=9, min_frequency=2)
  assert vocab.encode('dog dax') == [vocab.unk_id] * 2
  (tmp_path / 'train.txt').write_text('the dog\n\nsaw the dax the')
  given = {
    'path': str(tmp_path),
    'cache': str(tmp_path),
    'vocab': vocab,
    'length': 4,
    'batch_size': 2,
    'shuffle': False,
  }
  given |= {'begin': '', 'end': ''} if layout == 'rows' else {'end': ''}
  (batch,) = make(tmp_path, **given, layout=layout, characters=True).once()
  (plain,) = make(tmp_path, **given, layout=layout).once()
  assert batch['characters'].shape == (2, 4, chars.SLOTS) and 'characters' not in plain
  for key in plain:
    np.testing.assert_array_equal(batch[key], plain[key])
  text = [['the', 'dog', '', ''], ['saw', 'the', 'dax', 'the']]
  if layout == 'stream':
    text = [['the', 'dog', 'saw', 'the'], ['dax', 'the', '', '']]
  wanted = [[chars.of_word(word) if word else np.zeros(chars.SLOTS) for word in row] for row in text]
  np.testing.assert_array_equal(batch['characters'], wanted)


def take(source, start, count):
  return list(itertools.islice(source.read(start), count))


def same(left, right):
  assert left.keys() == right.keys()
  for key in left:
    assert left[key].dtype == right[key].dtype
    np.testing.assert_array_equal(left[key], right[key], err_msg=key)


@pytest.mark.parametrize('layout', LAYOUTS)
def test_batches_have_the_declared_shapes(folder, layout):
  source = make(folder, layout=layout)
  for batch in (*take(source, 0, 3), *source.once()):
    assert {key: (array.shape, array.dtype) for key, array in batch.items()} == {
      key: (leaf.shape, leaf.dtype) for key, leaf in source.spec.items()
    }
  assert set(source.spec) == {'tokens', 'segment_ids', 'row_id', 'epoch', 'row_weight'}


@pytest.mark.parametrize('layout', LAYOUTS)
def test_read_is_a_pure_function_of_the_step(folder, layout):
  batches = take(make(folder, layout=layout), 0, 40)
  again = make(folder, layout=layout)
  for start in (0, 1, 7, 31):
    for left, right in zip(take(again, start, 9), batches[start : start + 9], strict=True):
      same(left, right)


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('hosts', [2, 4, 8])
def test_hosts_together_read_the_batch_of_one(folder, layout, hosts):
  parts = [make(folder, layout=layout, host=host, hosts=hosts) for host in range(hosts)]
  whole = make(folder, layout=layout)
  for start in (0, 1_000_000):
    for batch, *pieces in zip(take(whole, start, 5), *(take(part, start, 5) for part in parts), strict=True):
      same(batch, {key: np.concatenate([piece[key] for piece in pieces]) for key in batch})
  for batch, *pieces in zip(whole.once(), *(part.once() for part in parts), strict=True):
    same(batch, {key: np.concatenate([piece[key] for piece in pieces]) for key in batch})


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('shuffle', [True, False])
def test_each_row_once_an_epoch(folder, layout, shuffle):
  source = make(folder, layout=layout, shuffle=shuffle)
  batches = take(source, 0, 3 * source.steps_per_epoch)
  ids = np.concatenate([batch['row_id'] for batch in batches])
  epochs = np.concatenate([batch['epoch'] for batch in batches])
  orders = []
  for epoch in range(2):
    orders.append(ids[epochs == epoch].tolist())
    assert sorted(orders[-1]) == list(range(source.rows))
  assert (orders[0] == orders[1]) is not shuffle
  assert (orders[0] == sorted(orders[0])) is not shuffle
  assert all((batch['row_weight'] == 1).all() for batch in batches)
  assert source.steps_per_epoch == -(-source.rows // 8)


@pytest.mark.parametrize('layout', LAYOUTS)
def test_once_is_every_row_in_order(folder, layout):
  source = make(folder, layout=layout, batch_size=7)
  batches = list(source.once())
  assert len(batches) == source.steps_per_epoch
  ids = np.concatenate([batch['row_id'] for batch in batches])
  weights = np.concatenate([batch['row_weight'] for batch in batches])
  assert ids[: source.rows].tolist() == list(range(source.rows))
  assert (ids[source.rows :] == -1).all()
  assert weights.tolist() == [1.0] * source.rows + [0.0] * (len(ids) - source.rows)
  assert all((batch['segment_ids'] > 0).any(1).all() for batch in batches), 'a row of nothing but padding'
  rows = {}
  for batch in take(source, 0, source.steps_per_epoch):
    rows |= {int(number): tokens.tolist() for number, tokens in zip(batch['row_id'], batch['tokens'], strict=True)}
  for batch in batches:
    for number, tokens in zip(batch['row_id'], batch['tokens'], strict=True):
      assert number == -1 or rows[int(number)] == tokens.tolist()


@pytest.mark.parametrize('layout', LAYOUTS)
def test_the_most_documents_of_a_row_are_known(folder, layout):
  source = make(folder, layout=layout)
  assert source.documents == max(batch['segment_ids'].max() for batch in source.once())
  assert (source.documents > 1) == (layout in ('stream', 'documents'))


@pytest.mark.parametrize('layout', LAYOUTS)
def test_every_token_is_read_once(folder, layout):
  source = make(folder, layout=layout)
  tokens = np.concatenate([batch['tokens'][batch['row_weight'] > 0] for batch in source.once()])
  found = np.sort(tokens[tokens >= len(small.SPECIAL)]) - len(small.SPECIAL)
  np.testing.assert_array_equal(found, np.arange(sum(SIZES)))


def rows_of(source):
  """Return (tokens, segment_ids) of each sequence, without padding, as lists."""
  made = []
  for batch in source.once():
    for tokens, segments, weight in zip(batch['tokens'], batch['segment_ids'], batch['row_weight'], strict=True):
      if weight:
        assert (tokens[segments == 0] == PAD).all()
        made.append((tokens[segments > 0].tolist(), segments[segments > 0].tolist()))
  return made


def t(*numbers):
  return [len(small.SPECIAL) + number for number in numbers]


def test_golden_rows_of_each_layout(tmp_path):
  path = small.write_text(tmp_path / 'text.txt', small.documents([3, 7, 2]))

  def rows(length, **settings):
    return rows_of(make(tmp_path, path=path, length=length, batch_size=1, **settings))

  assert rows(9, layout='documents') == [
    ([CLS, *t(0, 1, 2), SEP, CLS, *t(10, 11), SEP], [1] * 5 + [2] * 4),
    ([CLS, *t(3, 4, 5, 6, 7, 8, 9), SEP], [1] * 9),
  ]
  assert rows(9, layout='rows') == [
    ([CLS, *t(0, 1, 2), SEP], [1] * 5),
    ([CLS, *t(3, 4, 5, 6, 7, 8, 9), SEP], [1] * 9),
    ([CLS, *t(10, 11), SEP], [1] * 4),
  ]
  assert rows(8, layout='full') == [
    ([CLS, *t(0, 1, 2), SEP, SEP, *t(3), SEP], [1] * 8),
    ([CLS, *t(4, 5, 6, 7, 8, 9), SEP], [1] * 8),
    ([CLS, *t(10, 11), SEP], [1] * 4),
  ]
  assert rows(6, layout='stream') == [
    ([*t(0, 1, 2), EOS, *t(3, 4)], [1] * 4 + [2] * 2),
    ([*t(5, 6, 7, 8, 9), EOS], [1] * 6),
    ([*t(10, 11), EOS], [1] * 3),
  ]
  assert rows(6, layout='stream', bos=True) == [
    ([BOS, *t(0, 1, 2), EOS, BOS], [1] * 5 + [2]),
    (t(3, 4, 5, 6, 7, 8), [1] * 6),
    ([*t(9), EOS, BOS, *t(10, 11), EOS], [1] * 2 + [2] * 4),
  ]
  assert rows(6, layout='rows', begin='_start_', end='')[0] == ([START, *t(0, 1, 2)], [1] * 4)
  assert rows(12, layout='stream', end='') == [(t(*range(12)), [1] * 3 + [2] * 7 + [3] * 2)]
  without = small.NumberVocab(without=('eos',))
  assert rows(6, layout='stream', vocab=without)[0][0] == [*t(0, 1, 2), SEP, *t(3, 4)]


def test_documents_end_where_the_setting_says(tmp_path):
  path = small.write_text(tmp_path / 'text.txt', ['0 1\n2', '3'])
  for documents, expected in (('blank_line', 2), ('line', 3), ('file', 1)):
    assert make(tmp_path, path=path, layout='rows', batch_size=1, documents=documents).rows == expected


def test_a_corpus_smaller_than_a_batch_fills_it_with_later_epochs(tmp_path):
  path = small.write_text(tmp_path / 'text.txt', small.documents([3, 2, 4]))
  source = make(tmp_path, path=path, layout='rows')
  (batch,) = take(source, 0, 1)
  assert batch['epoch'].tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
  assert sorted(batch['row_id'][:3].tolist()) == sorted(batch['row_id'][3:6].tolist()) == [0, 1, 2]


def test_digest_names_text_vocabulary_and_layout(folder, tmp_path):
  other = small.write_text(tmp_path / 'train.txt', small.documents([*SIZES, 1]))
  digest = make(folder).digest
  assert make(folder, seed=4, batch_size=2, shuffle=False, host=1, hosts=2).digest == digest
  changed = [
    make(folder, length=32),
    make(folder, layout='rows'),
    make(folder, begin='<s>'),
    make(folder, vocab=small.NumberVocab(20_000)),
    make(folder, path=other),
    make(folder, split='train[:50%]'),
  ]
  assert len({digest, *(source.digest for source in changed)}) == 7


def test_seeds_have_orders_of_their_own(folder):
  orders = [take(make(folder, seed=seed), 0, 1)[0]['row_id'].tolist() for seed in (0, 1)]
  assert orders[0] != orders[1]


def test_text_and_plan_are_used_again(folder, monkeypatch):
  first = take(make(folder), 0, 1)[0]

  def fail(*_, **__):
    raise AssertionError('made again')

  monkeypatch.setattr(store, '_encode', fail)
  monkeypatch.setitem(stream.LAYOUTS, 'documents', stream.LAYOUTS['documents']._replace(plan=fail))
  same(take(make(folder), 0, 1)[0], first)


def test_says_how_full_rows_are(folder, caplog):
  caplog.set_level(logging.INFO)
  make(folder)
  (message,) = (record.message for record in caplog.records if 'filled' in record.message)
  assert f'150 documents, {sum(SIZES)} tokens' in message


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'length': 2}, 'length=2.*3 tokens|at least 3 tokens'),
    ({'length': 4, 'layout': 'full'}, 'length=4.*5 tokens|at least 5 tokens'),
    ({'batch_size': 6, 'hosts': 4}, 'batch_size=6'),
    ({'host': 2, 'hosts': 2}, 'host=2'),
    ({'layout': 'paragraphs'}, 'paragraphs.*stream, documents, rows, full'),
    ({'vocab': small.NumberVocab(without=('cls',))}, 'no begin token'),
    ({'vocab': small.NumberVocab(without=('sep',)), 'layout': 'full'}, 'no end token'),
    ({'vocab': small.NumberVocab(without=('eos', 'sep')), 'layout': 'stream'}, 'no end token'),
    ({'vocab': small.NumberVocab(without=('bos',)), 'layout': 'stream', 'bos': True}, 'no begin token'),
    ({'bos': True}, "layout='stream'"),
    ({'begin': '[BEGIN]'}, r'\[BEGIN\]'),
    ({'text': 'body'}, 'body'),
  ],
)
def test_impossible_settings_are_refused(folder, changes, message):
  with pytest.raises(ValueError, match=message):
    make(folder, **changes)


def test_an_empty_corpus_is_refused(tmp_path):
  path = small.write_rows(tmp_path / 'text.jsonl', [{'text': ''}, {'text': ' '}])
  with pytest.raises(ValueError, match=r'no text.*2 documents'):
    make(tmp_path, path=path)


@pytest.mark.parametrize(('length', 'stride'), [(16, 4), (16, 5), (16, 16), (400, 16), (4_000, 8)])
def test_windows_are_those_of_the_page_of_transformers(folder, length, stride):
  """Its loop over `begin`, `end` and the targets of each window ("Perplexity of fixed-length models")."""
  whole = make(folder, layout='stream', end='', length=10_000, batch_size=1).once()
  ids = np.concatenate([batch['tokens'][batch['segment_ids'] > 0] for batch in whole])
  expected, previous = [], 0
  for begin in range(0, len(ids), stride):
    end = min(begin + length, len(ids))
    expected.append((ids[begin:end].tolist(), end - previous))
    if (previous := end) == len(ids):
      break
  source = make(folder, layout='stream', end='', length=length, stride=stride, batch_size=3)
  found = []
  for batch in source.once():
    shared = batch.get('overlap', np.zeros(3, np.int32))
    for tokens, segments, overlap, weight in zip(
      batch['tokens'], batch['segment_ids'], shared, batch['row_weight'], strict=True
    ):
      if weight:
        window = tokens[segments > 0].tolist()
        found.append((window, len(window) - overlap))
  assert found == expected


def test_a_stride_needs_a_stream_of_longer_sequences(folder):
  for layout, stride in (('rows', 4), ('stream', 17)):
    with pytest.raises(ValueError, match=r'stride=\d+ needs layout=.stream. and at most length=16'):
      make(folder, layout=layout, stride=stride)
