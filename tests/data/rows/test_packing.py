"""Plans of sequences: each token of each document exactly once, in order, in the frame of the layout."""

import itertools

import numpy as np
import pytest

from plm_jax.data.rows import packing

B, E, PAD = 60_001, 60_002, 0  # the tokens of the documents are 1, 2, 3, ...


def corpus(seed: int, count: int = 60, mean: float = 12):
  draw = np.random.default_rng(seed)
  sizes = draw.poisson(draw.exponential(mean, count))
  offsets = np.concatenate([[0], np.cumsum(sizes)])
  return offsets, np.arange(1, offsets[-1] + 1).astype(np.uint16)


def rows(plan, ids, frames, length):
  """Return each row as lists of ids, one per piece; check the padding."""
  tokens, numbers = packing.assemble(plan, ids, np.arange(len(plan.rows) - 1), frames=frames, length=length, pad=PAD)
  assert tokens.dtype == numbers.dtype == np.int32
  assert tokens.shape == numbers.shape == (len(plan.rows) - 1, length)
  made = []
  for row, number in zip(tokens, numbers, strict=True):
    used = np.count_nonzero(number)
    assert (row[:used] != PAD).all()
    assert (row[used:] == PAD).all()
    assert (number[used:] == 0).all()
    assert set(np.diff(number[:used])) <= {0, 1}
    assert number[0] == 1
    made.append([row[number == piece].tolist() for piece in range(1, number.max() + 1)])
  return made


def test_rows_of_documents_without_a_token_are_special_tokens_alone():
  plan = packing.Plan(np.zeros(2, np.int64), np.zeros(2, np.int64), np.full(2, 3, np.uint8), np.arange(3))
  tokens, numbers = packing.assemble(
    plan, np.zeros(0, np.uint16), np.arange(2), frames=packing.frames((B,), (E,)), length=4, pad=PAD
  )
  assert tokens.tolist() == [[B, E, PAD, PAD]] * 2
  assert numbers.tolist() == [[1, 1, 0, 0]] * 2


CASES = [(seed, length, mean) for seed in range(4) for length, mean in ((8, 3), (16, 12), (16, 60), (64, 12))]


@pytest.mark.parametrize(('seed', 'length', 'mean'), CASES)
@pytest.mark.parametrize('layout', [packing.one_per_row, packing.packed])
@pytest.mark.parametrize(('before', 'after'), [((B,), (E,)), ((), (E,)), ((), ())])
def test_pieces_stay_inside_documents(seed, length, mean, layout, before, after):
  offsets, ids = corpus(seed, mean=mean)
  plan = layout(offsets, length=length, before=len(before), after=len(after))
  made = rows(plan, ids, packing.frames(before, after), length)
  pieces = [piece for row in made for piece in row]
  texts = []
  for piece in pieces:
    assert tuple(piece[: len(before)]) == before
    assert tuple(piece[len(piece) - len(after) :]) == after
    texts.append(piece[len(before) : len(piece) - len(after)])
  assert sorted(token for text in texts for token in text) == ids.tolist()
  starts = np.repeat(offsets[:-1], np.diff(offsets))
  for text in texts:
    assert text
    assert text == list(range(text[0], text[-1] + 1))
    assert starts[text[0] - 1] == starts[text[-1] - 1], 'crosses a document'
    room = length - len(before) - len(after)
    assert len(text) == room or text[-1] in offsets, 'cut too early'
  if layout is packing.one_per_row:
    assert [len(row) for row in made] == [1] * len(made)


@pytest.mark.parametrize(('seed', 'length', 'mean'), CASES)
@pytest.mark.parametrize(('before', 'after'), [((B,), (E,)), ((), (E,)), ((), ())])
def test_stream_is_all_documents_end_to_end(seed, length, mean, before, after):
  offsets, ids = corpus(seed, mean=mean)
  expected = []
  for start, end in itertools.pairwise(offsets):
    if end > start:
      expected += [*before, *ids[start:end].tolist(), *after]
  plan = packing.stream(offsets, length=length, before=len(before), after=len(after))
  made = rows(plan, ids, packing.frames(before, after), length)
  flat = [[token for piece in row for token in piece] for row in made]
  assert flat == [expected[start : start + length] for start in range(0, len(expected), length)]
  document = np.searchsorted(offsets, np.arange(len(ids)), side='right')
  for row in made:
    for piece in row:
      assert len({document[token - 1] for token in piece if token < B}) <= 1, 'a segment holds two documents'
    for left, right in itertools.pairwise(row):
      if after:
        assert left[-1] == E
      if before:
        assert right[0] == B


@pytest.mark.parametrize(('seed', 'length', 'mean'), CASES)
def test_full_rows_are_contiguous_text_in_one_frame(seed, length, mean):
  offsets, ids = corpus(seed, mean=mean)
  plan = packing.full(offsets, length=length, before=1, after=1)
  made = rows(plan, ids, packing.frames((B,), (E,), between=(E, E)), length)
  text = []
  for row in made:
    flat = [token for piece in row for token in piece]
    assert flat[0] == B
    assert flat[-1] == E
    assert flat[1] not in (B, E)
    assert flat[-2] not in (B, E)
    for before, token, after in zip(flat, flat[1:], flat[2:], strict=False):
      if before not in (B, E) and token not in (B, E):
        assert token == before + 1
        assert before not in offsets, 'no separator between two documents'
      if token == E and before != E:
        assert after == E, 'one separator where two documents meet'
    text += [token for token in flat if token not in (B, E)]
    assert len(flat) >= length - 4 or row is made[-1]
  assert text == ids.tolist()


def test_golden_rows():
  offsets = np.array([0, 3, 3, 10, 12])
  ids = np.arange(1, 13)
  one = packing.frames((B,), (E,))
  both = packing.frames((B,), (E,), between=(E, E))
  assert rows(packing.one_per_row(offsets, length=6, before=1, after=1), ids, one, 6) == [
    [[B, 1, 2, 3, E]],
    [[B, 4, 5, 6, 7, E]],
    [[B, 8, 9, 10, E]],
    [[B, 11, 12, E]],
  ]
  assert rows(packing.packed(offsets, length=9, before=1, after=1), ids, one, 9) == [
    [[B, 1, 2, 3, E], [B, 11, 12, E]],
    [[B, 4, 5, 6, 7, 8, 9, 10, E]],
  ]
  assert rows(packing.stream(offsets, length=6, before=1, after=1), ids, one, 6) == [
    [[B, 1, 2, 3, E], [B]],
    [[4, 5, 6, 7, 8, 9]],
    [[10, E], [B, 11, 12, E]],
  ]
  assert rows(packing.full(offsets, length=8, before=1, after=1), ids, both, 8) == [
    [[B, 1, 2, 3, E, E], [4, E]],
    [[B, 5, 6, 7, 8, 9, 10, E]],
    [[B, 11, 12, E]],
  ]


@pytest.mark.parametrize('mean', [20, 100, 300])
def test_best_fit_wastes_little(mean):
  sizes = np.clip(np.random.default_rng(0).exponential(mean, 20_000), 3, 512).astype(int)
  pieces, edges = packing.best_fit(sizes, length=512)
  assert sorted(pieces.tolist()) == list(range(len(sizes)))
  held = np.add.reduceat(sizes[pieces], edges[:-1])
  assert held.max() <= 512
  assert held.mean() > 0.97 * 512
  first = pieces[edges[:-1]]
  assert (np.diff(first) > 0).all()
  inside = np.delete(np.diff(pieces), edges[1:-1] - 1)
  assert (inside > 0).all()


def test_best_fit_of_nothing():
  pieces, edges = packing.best_fit(np.zeros(0, np.int64), length=8)
  assert (pieces.tolist(), edges.tolist()) == ([], [0])
