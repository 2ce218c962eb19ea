"""Which tokens are chosen: exact counts, uniform choice, walls, and slow references in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.noise import where
from plm_jax.noise.row import Row

FUNCTIONS = {'fixed_count': where.fixed_count, 'iid': where.iid, 'whole_word': where.whole_word}


def make_row(length: int, *, real=None, eligible=None, words=None, segments=None) -> Row:
  """A row of `real` tokens and padding; every token is a word and may be chosen unless the arguments say otherwise."""
  real = length if real is None else real
  segments = (np.arange(length) < real).astype(np.int32) if segments is None else np.asarray(segments, np.int32)
  eligible = segments > 0 if eligible is None else np.asarray(eligible, bool)
  words = np.arange(length) if words is None else np.asarray(words)
  arrays = (np.full(length, 9), eligible, segments, words)
  return Row(*(jnp.asarray(x) for x in arrays))


def random_rows(count: int, length: int, seed: int = 0) -> Row:
  """Rows with several documents, words of several pieces, special tokens and padding."""
  draw = np.random.default_rng(seed)
  real = draw.integers(0, length + 1, count)
  index = np.arange(length)
  segments = np.where(index < real[:, None], 1 + (draw.random((count, length)) < 0.1).cumsum(axis=1), 0)
  eligible = (segments > 0) & (draw.random((count, length)) > 0.15)
  words = (draw.random((count, length)) < 0.6).cumsum(axis=1)
  ids = np.full((count, length), 9)
  return Row(*(jnp.asarray(x) for x in (ids, eligible, segments.astype(np.int32), words)))


def choose(function, row: Row, *, key: int = 0, **settings) -> np.ndarray:
  """bool: the chosen positions of one row."""
  spans = function(jax.random.key(key), row, **settings)
  assert spans.number.dtype == spans.insert.dtype == jnp.int32
  assert not np.asarray(spans.insert).any()
  return np.asarray(spans.number)


def over_rows(function, rows: Row, *, seed: int = 0, **settings) -> np.ndarray:
  """Span numbers of many rows, int[rows, length]."""
  keys = jax.random.split(jax.random.key(seed), len(rows.ids))
  return np.asarray(jax.jit(jax.vmap(lambda key, row: function(key, row, **settings).number))(keys, rows))


@pytest.mark.parametrize('max_count', [None, 20, 77])
def test_fixed_count_is_that_of_bert_for_every_length(max_count):
  index = np.arange(512)
  segments = jnp.asarray((index < np.arange(1, 513)[:, None]).astype(np.int32))
  rows = Row(jnp.full((512, 512), 9), segments > 0, segments)
  counts = (over_rows(where.fixed_count, rows, rate=0.15, max_count=max_count) > 0).sum(axis=1)
  expected = [min(512 if max_count is None else max_count, max(1, round(n * 0.15))) for n in range(1, 513)]
  assert counts.tolist() == expected
  # halves go to the even neighbour, as in Python: .15 * 30 = 4.5 and .15 * 50 = 7.5
  assert (counts[29], counts[49]) == (4, 8)


def test_fixed_count_counts_special_tokens_and_never_takes_them():
  eligible = np.ones(100, bool)
  eligible[[0, 50, 99]] = False
  for key in range(5):
    chosen = choose(where.fixed_count, make_row(100, eligible=eligible), key=key, rate=0.15) > 0
    assert chosen.sum() == 15
    assert not chosen[~eligible].any()
  few = np.zeros(100, bool)
  few[[3, 4]] = True
  assert np.flatnonzero(choose(where.fixed_count, make_row(100, eligible=few), rate=0.15)).tolist() == [3, 4]


def test_fixed_count_takes_the_highest_scores():
  rows = random_rows(40, 24)
  found = over_rows(where.fixed_count, rows, rate=0.3, max_count=6)
  keys = jax.random.split(jax.random.key(0), 40)
  for row in range(40):
    scores = np.asarray(jax.random.uniform(keys[row], (24,)))
    eligible, real = np.asarray(rows.eligible[row]), int((rows.segment_ids[row] > 0).sum())
    budget = min(6, max(1, round(0.3 * real))) if real else 0
    best = sorted(np.flatnonzero(eligible), key=lambda place: -scores[place])[:budget]
    assert np.flatnonzero(found[row]).tolist() == sorted(best), row
    assert found[row][found[row] > 0].tolist() == list(range(1, len(best) + 1))


def test_fixed_count_is_uniform_over_positions_and_pairs():
  rows, length, count = 6000, 20, 3
  row = make_row(length)
  repeated = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rows, *leaf.shape)), row)
  chosen = over_rows(where.fixed_count, repeated, rate=0.15) > 0
  assert (chosen.sum(axis=1) == count).all()
  # chi-square with 19 degrees of freedom, corrected for drawing without replacement; .1 % and 99.9 % quantiles
  expected = rows * count / length
  statistic = ((chosen.sum(axis=0) - expected) ** 2).sum() / (expected * (1 - count / length)) * (length - 1) / length
  assert 5.4 < statistic < 43.8
  pairs = (chosen.T.astype(int) @ chosen.astype(int))[np.triu_indices(length, 1)]
  share = count * (count - 1) / (length * (length - 1))
  assert np.abs(pairs - rows * share).max() < 4.5 * np.sqrt(rows * share)


def test_iid_has_its_rate():
  rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (2000, 64)), make_row(64, eligible=np.arange(64) % 4 > 0))
  chosen = over_rows(where.iid, rows, rate=0.15) > 0
  assert not chosen[:, ::4].any()
  trials = 2000 * 48
  assert chosen.sum() / trials == pytest.approx(0.15, abs=4 * np.sqrt(0.15 * 0.85 / trials))
  # counts spread as those of independent draws do
  assert chosen.sum(axis=1).var() == pytest.approx(48 * 0.15 * 0.85, rel=0.15)
  slots = where.CAPACITY[where.iid](64, rate=0.15)
  assert chosen.sum(axis=1).max() <= slots < 64


def slow_whole_word(scores, row, *, rate, max_count):
  """Words in the order of their scores; one that would overshoot the budget is passed over."""
  ids = [np.asarray(x) for x in (row.word_ids, row.segment_ids, row.eligible)]
  groups = []
  for place, (word, segment, eligible) in enumerate(zip(*ids, strict=True)):
    same = groups and eligible and groups[-1][1] == (word, segment) and groups[-1][2]
    if same:
      groups[-1][0].append(place)
    else:
      groups.append(([place], (word, segment), bool(eligible)))
  real = int((ids[1] > 0).sum())
  left = min(max_count or 10**6, max(1, round(rate * real))) if real else 0
  taken = []
  for number in sorted((n for n, group in enumerate(groups) if group[2]), key=lambda n: scores[n]):
    if len(groups[number][0]) <= left:
      left -= len(groups[number][0])
      taken.append(number)
  out = np.zeros(len(ids[0]), int)
  for rank, number in enumerate(sorted(taken), start=1):
    out[groups[number][0]] = rank
  return out.tolist()


@pytest.mark.parametrize(('rate', 'max_count'), [(0.15, None), (0.3, 5), (1.0, None)])
def test_whole_word_equals_a_slow_reference(rate, max_count):
  rows = random_rows(60, 24, seed=1)
  found = over_rows(where.whole_word, rows, rate=rate, max_count=max_count)
  keys = jax.random.split(jax.random.key(0), 60)
  for row in range(60):
    scores = np.asarray(jax.random.uniform(keys[row], (24,)))
    one = jax.tree.map(lambda leaf, row=row: leaf[row], rows)
    assert found[row].tolist() == slow_whole_word(scores, one, rate=rate, max_count=max_count), row


def test_whole_word_takes_all_pieces_or_none_and_keeps_the_budget():
  words = [0, 1, 1, 1, 2, 2, 3, 4, 5, 5, 5, 5, 6, 7, 7, 8]
  row = make_row(16, words=words)
  sizes = []
  for key in range(40):
    number = choose(where.whole_word, row, key=key, rate=0.25)
    for word in set(words):
      assert len({int(n) for n, w in zip(number, words, strict=True) if w == word}) == 1
    sizes.append(int((number > 0).sum()))
  assert max(sizes) == 4  # round(.25 * 16)
  assert min(sizes) >= 1


def test_a_word_ends_where_the_document_or_eligibility_does():
  row = make_row(6, words=[1, 1, 1, 1, 1, 1], segments=[1, 1, 2, 2, 2, 0], eligible=[1, 1, 1, 0, 1, 0])
  number = choose(where.whole_word, row, rate=1.0)
  assert number.tolist() == [1, 1, 2, 0, 3, 0]


def test_whole_word_needs_word_ids():
  with pytest.raises(ValueError, match='whole_word needs word ids: a vocabulary that says which pieces start a word'):
    where.whole_word(jax.random.key(0), make_row(4)._replace(word_ids=None))


HARD_ROWS = {
  'one token': make_row(1),
  'one token and padding': make_row(8, real=1),
  'all padding': make_row(8, real=0),
  'all special': make_row(8, eligible=np.zeros(8, bool)),
  'padding on the left': make_row(8, segments=[0, 0, 0, 1, 1, 1, 2, 2]),
  'one long word': make_row(8, words=np.zeros(8)),
}


@pytest.mark.parametrize('name', FUNCTIONS)
@pytest.mark.parametrize('rate', [0.0, 0.15, 1.0])
@pytest.mark.parametrize('row', HARD_ROWS.values(), ids=HARD_ROWS)
def test_hard_rows(name, rate, row):
  eligible, real = np.asarray(row.eligible), int((row.segment_ids > 0).sum())
  limits = [{}] if name == 'iid' else [{}, {'max_count': 1000}, {'max_count': 1}]
  for limit in limits:
    number = choose(FUNCTIONS[name], row, rate=rate, **limit)
    chosen = number > 0
    assert not chosen[~eligible].any()
    assert np.unique(number[chosen]).tolist() == list(range(1, len(np.unique(number[chosen])) + 1))
    if rate == 0.0:
      assert not chosen.any()
    if rate == 1.0 and limit.get('max_count') != 1:
      assert chosen.tolist() == eligible.tolist()
    if name == 'fixed_count':
      budget = max(1, round(rate * real)) if rate and real else 0
      assert chosen.sum() == min(budget, eligible.sum(), limit.get('max_count', 8))
    capacity = where.CAPACITY[FUNCTIONS[name]](len(eligible), rate=rate, **limit)
    assert chosen.sum() <= capacity <= len(eligible)


@pytest.mark.parametrize('name', FUNCTIONS)
def test_special_tokens_and_padding_are_never_chosen(name):
  rows = random_rows(300, 40, seed=2)
  chosen = over_rows(FUNCTIONS[name], rows, rate=0.4) > 0
  assert chosen.any()
  assert not chosen[~np.asarray(rows.eligible)].any()
  capacity = where.CAPACITY[FUNCTIONS[name]](40, rate=0.4)
  assert chosen.sum(axis=1).max() <= capacity


@pytest.mark.parametrize('name', FUNCTIONS)
def test_a_batch_is_its_rows(name):
  rows = random_rows(12, 24, seed=3)
  function = jax.jit(lambda key, row: FUNCTIONS[name](key, row, rate=0.3).number)
  together = over_rows(FUNCTIONS[name], rows, rate=0.3)
  keys = jax.random.split(jax.random.key(0), 12)
  for row in range(12):
    alone = function(keys[row], jax.tree.map(lambda leaf, row=row: leaf[row], rows))
    assert alone.tolist() == together[row].tolist()


@pytest.mark.parametrize('name', FUNCTIONS)
def test_a_rate_out_of_range_is_refused(name):
  for rate in (-0.01, 1.01):
    with pytest.raises(ValueError, match=r'is not in \[0, 1\]'):
      FUNCTIONS[name](jax.random.key(0), make_row(4), rate=rate)


def test_every_function_says_how_much_it_may_choose():
  assert set(where.CAPACITY) == set(FUNCTIONS.values())
