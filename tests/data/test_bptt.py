"""Sequences that continue the previous one: lanes, resets, reversed sequences, second segments, hosts."""

import itertools
import math

import numpy as np
import pytest

from plm_jax.data import bptt
from plm_jax.text import chars
from tests.data import small
from tests.data.small import BOS, CLS, EOS, PAD, SEP

SIZES = np.random.default_rng(0).geometric(0.04, 60).tolist()
FORMS = {
  'lanes': {},
  'stride': {'stride': 10},
  'reversed': {'reverse_half': True},
  'backward': {'reverse': True},
  'segments': {'second_segment': True},
  'both directions': {'both_directions': True},
  'xlnet': {'second_segment': True, 'reverse_half': True, 'stride': 7},
}
every_form = pytest.mark.parametrize('form', FORMS)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Write a corpus of 60 documents, with a cache for this file."""
  place = tmp_path_factory.mktemp('bptt')
  small.write_text(place / 'train.txt', small.documents(SIZES))
  return place


def make(folder, **changes):
  settings = {
    'vocab': small.NumberVocab(),
    'path': str(folder),
    'length': 16,
    'batch_size': 4,
    'seed': 3,
    'cache': str(folder),
  }
  return bptt.make(**(settings | changes))


def take(source, start, count):
  return list(itertools.islice(source.read(start), count))


def same(left, right):
  assert left.keys() == right.keys()
  for key in left:
    assert left[key].dtype == right[key].dtype
    np.testing.assert_array_equal(left[key], right[key], err_msg=key)


def whole_stream() -> np.ndarray:
  """Return the tokens of the corpus in its order, with end tokens."""
  numbers = iter(range(sum(SIZES)))
  return np.array(
    [token for size in SIZES for token in [*(len(small.SPECIAL) + next(numbers) for _ in range(size)), EOS]]
  )


@every_form
def test_batches_have_the_declared_shapes(folder, form):
  source = make(folder, **FORMS[form])
  for batch in (*take(source, 0, 3), *source.once()):
    assert {key: (array.shape, array.dtype) for key, array in batch.items()} == {
      key: (leaf.shape, leaf.dtype) for key, leaf in source.spec.items()
    }
  assert ('type_ids' in source.spec) == ('second_segment' in FORMS[form])


@every_form
def test_read_is_a_pure_function_of_the_step(folder, form):
  batches = take(make(folder, **FORMS[form]), 0, 60)
  again = make(folder, **FORMS[form])
  for start in (0, 1, 7, 51):
    for left, right in zip(take(again, start, 9), batches[start : start + 9], strict=True):
      same(left, right)


@every_form
@pytest.mark.parametrize('hosts', [2, 4])
def test_hosts_together_read_the_batch_of_one(folder, form, hosts):
  parts = [make(folder, **FORMS[form], host=host, hosts=hosts) for host in range(hosts)]
  whole = make(folder, **FORMS[form])
  for start in (0, 1_000_000):
    for batch, *pieces in zip(take(whole, start, 3), *(take(part, start, 3) for part in parts), strict=True):
      same(batch, {key: np.concatenate([piece[key] for piece in pieces]) for key in batch})
  for batch, *pieces in zip(whole.once(), *(part.once() for part in parts), strict=True):
    same(batch, {key: np.concatenate([piece[key] for piece in pieces]) for key in batch})


def test_lanes_hold_each_token_once_and_in_order(folder):
  source = make(folder, shuffle=False)
  batches = take(source, 0, source.steps_per_epoch)
  read = [
    np.concatenate([batch['tokens'][row][batch['segment_ids'][row] > 0] for batch in batches]) for row in range(4)
  ]
  np.testing.assert_array_equal(np.concatenate(read), whole_stream())
  assert max(map(len, read)) - min(map(len, read)) <= 1
  assert [batch['reset'].tolist() for batch in batches] == [[True] * 4] + [[False] * 4] * (len(batches) - 1)
  ids = np.concatenate([batch['row_id'] for batch in batches])
  assert sorted(ids[ids >= 0].tolist()) == np.flatnonzero(ids >= 0).tolist()
  for batch in batches:
    assert (batch['tokens'][batch['segment_ids'] == 0] == PAD).all()
    assert ((batch['segment_ids'].sum(axis=1) > 0) == (batch['row_weight'] > 0)).all()
    assert ((batch['row_id'] >= 0) == (batch['row_weight'] > 0)).all()


@pytest.mark.parametrize('form', [{}, {'reverse_half': True}, {'reverse': True}])
def test_the_next_token_is_the_first_of_the_next_row(folder, form):
  source = make(folder, **form)
  batches = take(source, 0, source.steps_per_epoch + 1)
  for batch, after in itertools.pairwise(batches[:-1]):
    np.testing.assert_array_equal(batch['next_token'], after['tokens'][:, 0])
  assert (batches[-2]['next_token'] == PAD).all()
  assert batches[-1]['reset'].all() and (batches[-1]['epoch'] == 1).all()


class EndPads(small.NumberVocab):
  """A vocabulary whose end token is also the padding, as in GPT-2."""

  pad_id = EOS


def test_an_end_token_that_pads_as_well_is_still_what_follows(folder):
  """Check sequences of one token.

  The next token of each is known except at the end of a lane, end tokens included.
  """
  source = make(folder, vocab=EndPads(), length=1, shuffle=False)
  batches = take(source, 0, source.steps_per_epoch)
  rows = [[(batch['tokens'][lane, 0], batch['next_token'][lane]) for batch in batches] for lane in range(4)]
  lanes = [
    [one for one, batch in zip(row, batches, strict=True) if batch['segment_ids'][lane, 0]]
    for lane, row in enumerate(rows)
  ]
  assert [token for lane in lanes for token, _ in lane] == whole_stream().tolist()
  for lane in lanes:
    assert [after for _, after in lane] == [*(token for token, _ in lane[1:]), -1]
  assert sum(after == EOS for lane in lanes for _, after in lane) >= len(SIZES) - 4


def test_rows_of_a_stride_overlap(folder):
  source = make(folder, stride=10)
  for batch, after in itertools.pairwise(take(source, 0, source.steps_per_epoch - 2)):
    np.testing.assert_array_equal(batch['tokens'][:, 10:], after['tokens'][:, :6])
  longest = math.ceil((sum(SIZES) + len(SIZES)) / 4)
  assert source.steps_per_epoch == math.ceil(longest / 10)


def test_odd_rows_read_the_lane_backward(folder):
  source = make(folder, reverse_half=True, shuffle=False)
  batches = take(source, 0, source.steps_per_epoch)
  assert all(batch['reversed'].tolist() == [False, True, False, True] for batch in batches)
  lanes = []
  for row in range(4):
    lanes.append(np.concatenate([batch['tokens'][row][batch['segment_ids'][row] > 0] for batch in batches]))
  np.testing.assert_array_equal(lanes[0], lanes[1][::-1])
  np.testing.assert_array_equal(np.concatenate([lanes[0], lanes[2]]), whole_stream())
  np.testing.assert_array_equal(lanes[2], lanes[3][::-1])


def test_all_rows_read_their_lanes_backward(folder):
  forward, backward = (make(folder, reverse=reverse, shuffle=False) for reverse in (False, True))
  read = []
  for source in (forward, backward):
    batches = take(source, 0, source.steps_per_epoch)
    rows = [[b['tokens'][row][b['segment_ids'][row] > 0] for b in batches] for row in range(4)]
    read.append([np.concatenate(row) for row in rows])
    assert all(batch['reversed'].all() == (source is backward) for batch in batches)
  for one, other in zip(*read, strict=True):
    np.testing.assert_array_equal(one, other[::-1])
  np.testing.assert_array_equal(np.concatenate(read[0]), whole_stream())


def test_every_epoch_has_its_own_order_of_documents(folder):
  source = make(folder)
  one, two = (take(source, epoch * source.steps_per_epoch, source.steps_per_epoch) for epoch in (0, 1))
  tokens = [np.sort(np.concatenate([b['tokens'][b['segment_ids'] > 0] for b in batches])) for batches in (one, two)]
  np.testing.assert_array_equal(*tokens)
  assert (one[0]['tokens'] != two[0]['tokens']).any()
  assert (take(make(folder, seed=4), 0, 1)[0]['tokens'] != one[0]['tokens']).any()


@pytest.mark.parametrize('reverse', [False, True])
def test_a_row_with_a_second_segment(folder, reverse):
  """Check X A <sep> B <sep> <cls>.

  X continues the lane, A follows it, B follows A half of the time, and there is no padding.
  """
  source = make(folder, second_segment=True, reverse_half=reverse, length=24, stride=10, shuffle=False)
  stream = whole_stream()
  lane = {0: 0, 1: 0, 2: 1, 3: 1} if reverse else {row: row for row in range(4)}
  bounds = len(stream) * np.arange(3 if reverse else 5) // (2 if reverse else 4)
  follows, sizes = [], []
  batches = take(source, 0, source.steps_per_epoch)
  for step, batch in enumerate(batches):
    assert (batch['segment_ids'] == 1).all() and (batch['row_weight'] == 1).all()
    for row in range(4):
      tokens, types = batch['tokens'][row], batch['type_ids'][row]
      first = int(np.argmax(types == 1))  # of B
      assert types.tolist() == [0] * first + [1] * (23 - first) + [2]
      assert tokens[[first - 1, 22, 23]].tolist() == [SEP, SEP, CLS]
      back = bool(batch['reversed'][row])
      start = bounds[lane[row] + 1] - 1 - step * 10 if back else bounds[lane[row]] + step * 10
      places = (start + (-1 if back else 1) * np.arange(24)) % len(stream)
      np.testing.assert_array_equal(tokens[: first - 1], stream[places[: first - 1]])
      b = tokens[first:22]
      assert len(b) >= 1 and first - 1 > 10
      beginnings = np.flatnonzero(stream == b[0])
      pieces = [stream[(begin + (-1 if back else 1) * np.arange(len(b))) % len(stream)] for begin in beginnings]
      assert any(np.array_equal(piece, b) for piece in pieces)  # contiguous text, wherever it is from
      follows.append(np.array_equal(b, stream[places[first - 1 : 21]]))
      sizes.append(first - 11)
  assert abs(np.mean(follows) - 0.5) < 4 * 0.5 / np.sqrt(len(follows))
  assert set(sizes) == set(range(1, 11))  # A and B share 11 tokens


def test_other_settings_have_other_digests(folder):
  digest = make(folder).digest
  assert make(folder).digest == digest == make(folder, seed=4).digest
  changed = [make(folder, **settings) for settings in list(FORMS.values())[1:]]
  changed += [make(folder, length=8), make(folder, batch_size=8), make(folder, end='<s>')]
  assert len({digest, *(source.digest for source in changed)}) == 10


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'stride': 0}, 'stride=0'),
    ({'stride': 17}, 'stride=17.*16'),
    ({'stride': 12, 'second_segment': True}, 'stride=12.*11.*second_segment=True'),
    ({'reverse_half': True, 'batch_size': 3}, 'reverse_half=True.*batch_size.*3'),
    ({'reverse_half': True, 'reverse': True}, 'reverse=True.*reverse_half'),
    ({'second_segment': True, 'reverse': True}, 'reverse=True.*second_segment'),
    ({'vocab': small.NumberVocab(without=('eos', 'sep'))}, 'no end token'),
    ({'vocab': small.NumberVocab(without=('cls',)), 'second_segment': True}, 'second_segment=True'),
    ({'batch_size': 10_000}, '10,?000 lanes'),
    ({'host': 2, 'hosts': 2}, 'host=2'),
  ],
)
def test_impossible_settings_are_refused(folder, changes, message):
  with pytest.raises(ValueError, match=message):
    make(folder, **changes)


# Two streams ----------------------------------------------------------------------------------------------------------


def streams_of(sizes) -> list[np.ndarray]:
  """Return inputs and targets of bilm in each direction, by document.

  Four arrays of equal length.
  """
  found, numbers = [[], [], [], []], iter(range(sum(sizes)))
  for size in sizes:
    text = [len(small.SPECIAL) + next(numbers) for _ in range(size)]
    sentence = [BOS, *text, EOS]
    pieces = (sentence[:-1], sentence[1:], sentence[:0:-1], sentence[-2::-1])
    for stream, piece in zip(found, pieces, strict=True):
      stream.extend(piece)
  return [np.array(each) for each in found]


STREAMS = ('tokens', 'next_tokens', 'backward_tokens', 'backward_next_tokens')


def test_both_directions_read_and_predict_as_bilm_does(folder):
  source = make(folder, both_directions=True, shuffle=False)
  batches = take(source, 0, source.steps_per_epoch)
  for key, whole in zip(STREAMS, streams_of(SIZES), strict=True):
    read = [np.concatenate([one[key][row][one['segment_ids'][row] > 0] for one in batches]) for row in range(4)]
    np.testing.assert_array_equal(np.concatenate(read), whole, err_msg=key)
  assert [batch['reset'].tolist() for batch in batches] == [[True] * 4] + [[False] * 4] * (len(batches) - 1)
  table = chars.table(small.NumberVocab())
  for batch in batches:
    assert all((batch[key][batch['segment_ids'] == 0] == PAD).all() for key in STREAMS)
    for prefix in ('', 'backward_'):
      slots = np.where(batch['segment_ids'][..., None] > 0, table[batch[f'{prefix}tokens']], 0)
      np.testing.assert_array_equal(batch[f'{prefix}characters'], slots)


def test_both_directions_go_through_the_documents_in_the_order_of_the_epoch(folder):
  """Check that a window has the same positions in both directions."""
  source = make(folder, both_directions=True)
  for batch in take(source, source.steps_per_epoch, 3):
    np.testing.assert_array_equal(batch['tokens'] == BOS, batch['backward_tokens'] == EOS)
    np.testing.assert_array_equal(batch['next_tokens'] == EOS, batch['backward_next_tokens'] == BOS)
    assert (batch['epoch'][batch['row_weight'] > 0] == 1).all()


@pytest.mark.parametrize('other', [{'stride': 8}, {'second_segment': True}, {'reverse_half': True}, {'end': '</s>'}])
def test_both_directions_stand_alone(folder, other):
  with pytest.raises(ValueError, match=r'both_directions=True.*stride'):
    make(folder, both_directions=True, **other)


def test_both_directions_need_tokens_for_both_ends(folder):
  with pytest.raises(ValueError, match='bos and eos'):
    make(folder, both_directions=True, vocab=small.NumberVocab(without=('bos',)))


def test_both_directions_put_nothing_around_a_text():
  assert bptt.template(vocab=small.NumberVocab(), both_directions=True).single == (('A', 0),)


def test_places_are_found_by_their_own_documents():
  """Compare with a slow loop.

  Only the documents of the positions in a batch are read.
  """
  sizes = [3, 0, 5, 1]
  ends = np.cumsum([size + 1 for size in sizes])
  stream = bptt.Stream(np.arange(100, 109), np.cumsum([0, *sizes[:-1]]), ends, 7)
  expected, text = [], iter(range(100, 109))
  for size in sizes:
    expected += [*itertools.islice(text, size), 7]
  assert stream.at(np.arange(ends[-1])).tolist() == expected
  assert stream.at(np.array([[12, 0], [4, 3]])).tolist() == [[7, 100], [7, 7]]
