"""Chosen tokens: equal to plain numpy for the same random numbers, the same distribution for others, closed forms."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from plm_jax.noise.row import Row
from plm_jax.noise.where import tokens
from plm_jax.noise.where import whole_words as where_words
from plm_jax.noise.where.whole_words import _draw_sizes, geometric_spans, ngram, ngram_windows, whole_word
from tests.noise import reference

CAPACITY = {**tokens.CAPACITY, **where_words.CAPACITY}
FUNCTIONS = {function.__name__: function for function in CAPACITY}
TINY = 1e-5  # a p-value that a sound function does not reach with the fixed seeds


def make_row(length: int, *, real=None, eligible=None, words=None, segments=None) -> Row:
  """Build a row; by default every token is an eligible word."""
  real = length if real is None else real
  segments = (np.arange(length) < real).astype(np.int32) if segments is None else np.asarray(segments, np.int32)
  eligible = segments > 0 if eligible is None else np.asarray(eligible, bool)
  words = np.arange(length) if words is None else np.asarray(words)
  arrays = (np.full(length, 9), eligible, segments, words)
  return Row(*(jnp.asarray(x) for x in arrays))


def random_rows(count: int, length: int, seed: int = 0) -> Row:
  """Build rows with documents, long words, special tokens and padding."""
  draw = np.random.default_rng(seed)
  real = draw.integers(0, length + 1, count)
  index = np.arange(length)
  segments = np.where(index < real[:, None], 1 + (draw.random((count, length)) < 0.1).cumsum(axis=1), 0)
  eligible = (segments > 0) & (draw.random((count, length)) > 0.15)
  words = (draw.random((count, length)) < 0.6).cumsum(axis=1)
  ids = draw.integers(7, reference.VOCAB, (count, length))
  return Row(*(jnp.asarray(x) for x in (ids, eligible, segments.astype(np.int32), words)))


def plain(rows: Row, number: int | None = None) -> reference.PlainRow:
  return reference.PlainRow(*(np.asarray(leaf if number is None else leaf[number]) for leaf in rows[:4]))


def repeat(row: Row, rows: int) -> Row:
  return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rows, *leaf.shape)), row)


def over_rows(function, rows: Row, *, seed: int = 0, **settings) -> np.ndarray:
  """Span numbers of many rows, int[rows, length]."""
  keys = jax.random.split(jax.random.key(seed), len(rows.ids))
  run = compiled(function, tuple((k, v) for k, v in settings.items() if k != 'counts'), 'counts' in settings)
  return np.asarray(run(keys, rows).number)


@functools.cache
def compiled(function, settings, counts: bool):
  given = {'counts': reference.counts_of(reference.VOCAB)} if counts else {}
  return jax.jit(jax.vmap(lambda key, row: function(key, row, **dict(settings), **given)))


# The same draws, the same choice -------------------------------------------------------------------------------------


def order(key, length: int) -> list[int]:
  """Sort positions by falling score: random high bits, then position."""
  low = 2 ** math.ceil(math.log2(length + 1)) - 1
  high = (np.asarray(jax.random.bits(key, (length,))).astype(np.int64) >> 1) & ~low
  return np.argsort(-(high + np.arange(1, length + 1))).tolist()


def sizes(key, weights: np.ndarray, count: int) -> np.ndarray:
  drawn = np.asarray(jax.random.uniform(key, (count,)))
  return 1 + np.searchsorted(np.cumsum(weights)[:-1].astype(np.float32), drawn, side='right')


def by_reference(name: str, key, row: reference.PlainRow, *, rate: float, max_count: int | None) -> list[int]:
  length = len(row.ids)
  budget = reference.bert_count(row, rate=rate, max_count=max_count)
  first, second = jax.random.split(key)
  match name:
    case 'fixed_count':
      return reference.take_singles(row, iter(order(key, length)), budget=budget)
    case 'whole_word':
      return reference.take_words(row, iter(order(key, length)), budget=budget)
    case 'ngram':
      drawn = sizes(second, reference.HARMONIC, length)
      return reference.take_ngrams(row, iter(order(first, length)), lambda start: drawn[start], budget=budget)
    case 'geometric_spans':
      drawn = sizes(second, reference.GEOMETRIC, length)
      return reference.take_geometric(row, iter(order(first, length)), lambda anchor: drawn[anchor], rate=rate)
    case 'ngram_windows':
      number = math.ceil(length / int(1 / rate))
      uniform = iter(np.asarray(jax.random.uniform(second, (number,))))
      place = lambda context: int(next(uniform) * context)  # noqa: E731
      drawn = iter(sizes(first, reference.HARMONIC, number))
      return reference.take_windows(row, drawn, place, rate=rate, budget=budget)
  raise AssertionError(name)


@pytest.mark.parametrize(('rate', 'max_count'), [(0.15, None), (0.4, 5)])
@pytest.mark.parametrize('name', ['fixed_count', 'whole_word', 'ngram', 'geometric_spans', 'ngram_windows'])
def test_equals_a_slow_reference_on_the_same_draws(name, rate, max_count):
  rows = random_rows(60, 24, seed=1)
  limit = {} if name == 'geometric_spans' else {'max_count': max_count}
  found = over_rows(FUNCTIONS[name], rows, rate=rate, **limit)
  keys = jax.random.split(jax.random.key(0), 60)
  for row in range(60):
    expected = by_reference(name, keys[row], plain(rows, row), rate=rate, max_count=max_count)
    assert found[row].tolist() == expected, (row, plain(rows, row))


# Other draws, the same distribution ----------------------------------------------------------------------------------


def check_alike(ours, theirs) -> None:
  """Test two summaries: chi-square for classes, normal deviations for counts."""
  for name in ('chosen', 'spans'):
    width = max(len(ours[name]), len(theirs[name]))
    table = np.array([x[name] + [0] * (width - len(x[name])) for x in (ours, theirs)])
    # cells with little in them are joined, from both ends
    cells = np.split(table, np.unique(np.searchsorted(table.sum(axis=0).cumsum(), 30 * np.arange(1, 400))), axis=1)
    joined = np.array([cell.sum(axis=1) for cell in cells if cell.any()]).T
    if joined.shape[1] > 1:
      assert stats.chi2_contingency(joined).pvalue > TINY, (name, table)
    assert (table[0] > 0).argmax() >= (table[1] > 0).argmax() - 1, name
  pairs = [(np.array(ours['positions']), np.array(ours['positions']), *[np.array(theirs['positions'])] * 2)]
  width = max(len(ours['lengths'][0]), len(theirs['lengths'][0]))
  padded = [np.array([line + [0] * (width - len(line)) for line in x['lengths']]) for x in (ours, theirs)]
  pairs.append((*padded[0], *padded[1]))
  for sums, squares, other_sums, other_squares in pairs:
    means, other_means = sums / ours['rows'], other_sums / theirs['rows']
    assert np.array_equal(other_means == 0, means == 0) or ours['rows'] < theirs['rows']
    assert not means[other_means == 0].any()
    pooled = (squares + other_squares) / (ours['rows'] + theirs['rows'])
    middle = (sums + other_sums) / (ours['rows'] + theirs['rows'])
    variance = (pooled - middle**2) * (1 / ours['rows'] + 1 / theirs['rows'])
    used = variance > 0
    deviations = (means - other_means)[used] / np.sqrt(variance[used])
    assert np.abs(deviations).max(initial=0) < 4.6, deviations
    assert np.array_equal(means[~used], other_means[~used])


def standard_rows(rows: int) -> Row:
  return repeat(Row(*(jnp.asarray(leaf) for leaf in reference.standard_row())), rows)


def run_case(case: str, rows: int, seed: int):
  function, settings = reference.CASES[case]
  return reference.summarise(over_rows(FUNCTIONS[function.__name__], standard_rows(rows), seed=seed, **settings))


def test_the_references_cover_every_function():
  assert {function.__name__ for function, _ in reference.CASES.values()} == {f.__name__ for f in CAPACITY}


@pytest.mark.parametrize('case', reference.CASES)
def test_distributed_as_the_stored_reference(case):
  check_alike(run_case(case, 2000, seed=5), reference.stored(case))


@pytest.mark.slow
@pytest.mark.parametrize('case', reference.CASES)
def test_distributed_as_the_stored_reference_over_20_000_rows(case):
  check_alike(run_case(case, 20_000, seed=6), reference.stored(case))


@pytest.mark.slow
@pytest.mark.parametrize('case', reference.CASES)
def test_the_stored_histograms_are_those_of_the_references(case):
  function, settings = reference.CASES[case]
  draw = np.random.default_rng([7, *case.encode()])
  numbers = np.array([function(draw, reference.standard_row(), **settings) for _ in range(2000)])
  check_alike(reference.summarise(numbers), reference.stored(case))


@pytest.mark.parametrize(
  ('case', 'other'),
  [('ngram_windows', 'ngram'), ('fixed_count', 'iid'), ('frequency', 'fixed_count'), ('whole_word', 'ngram_windows')],
)
def test_other_distributions_are_told_apart(case, other):
  with pytest.raises(AssertionError):
    check_alike(run_case(case, 2000, seed=5), reference.stored(other))


# Counts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('max_count', [None, 20, 77])
def test_fixed_count_is_that_of_bert_for_every_length(max_count):
  index = np.arange(512)
  segments = jnp.asarray((index < np.arange(1, 513)[:, None]).astype(np.int32))
  rows = Row(jnp.full((512, 512), 9), segments > 0, segments)
  counts = (over_rows(tokens.fixed_count, rows, rate=0.15, max_count=max_count) > 0).sum(axis=1)
  expected = [min(512 if max_count is None else max_count, max(1, round(n * 0.15))) for n in range(1, 513)]
  assert counts.tolist() == expected
  # halves go to the even neighbour, as in Python: .15 * 30 = 4.5 and .15 * 50 = 7.5
  assert (counts[29], counts[49]) == (4, 8)


def test_fixed_count_counts_special_tokens_and_never_takes_them():
  eligible = np.ones(100, bool)
  eligible[[0, 50, 99]] = False
  chosen = over_rows(tokens.fixed_count, repeat(make_row(100, eligible=eligible), 9), rate=0.15) > 0
  assert (chosen.sum(axis=1) == 15).all()
  assert not chosen[:, ~eligible].any()
  few = np.isin(np.arange(100), [3, 4])
  chosen = over_rows(tokens.fixed_count, repeat(make_row(100, eligible=few), 9), rate=0.15) > 0
  assert (chosen == few).all()


def test_fixed_count_is_uniform_over_positions_and_pairs():
  rows, length, count = 6000, 20, 3
  chosen = over_rows(tokens.fixed_count, repeat(make_row(length), rows), rate=0.15) > 0
  assert (chosen.sum(axis=1) == count).all()
  # chi-square with 19 degrees of freedom, corrected for drawing without replacement; .1 % and 99.9 % quantiles
  expected = rows * count / length
  statistic = ((chosen.sum(axis=0) - expected) ** 2).sum() / (expected * (1 - count / length)) * (length - 1) / length
  assert 5.4 < statistic < 43.8
  pairs = (chosen.T.astype(int) @ chosen.astype(int))[np.triu_indices(length, 1)]
  share = count * (count - 1) / (length * (length - 1))
  assert np.abs(pairs - rows * share).max() < 4.5 * np.sqrt(rows * share)


@pytest.mark.parametrize('function', [tokens.fixed_count, whole_word])
def test_the_count_of_roberta_is_between_two_numbers_and_right_on_average(function):
  rows, length = 4000, 24  # .15 * 24 = 3.6
  counts = (over_rows(function, repeat(make_row(length), rows), rate=0.15, count='roberta') > 0).sum(axis=1)
  assert set(counts.tolist()) == {3, 4}
  assert stats.binomtest(int((counts == 4).sum()), rows, 0.6).pvalue > TINY
  assert CAPACITY[function](length, rate=0.15, count='roberta') == 4


def test_roberta_may_choose_special_tokens_and_never_padding():
  eligible = np.zeros(20, bool)
  row = repeat(make_row(20, real=12, eligible=eligible), 3)
  chosen = over_rows(tokens.fixed_count, row, rate=1.0, count='roberta', candidates='all') > 0
  assert (chosen == (np.arange(20) < 12)).all()
  assert not over_rows(tokens.fixed_count, row, rate=1.0, count='roberta').any()


def test_iid_has_its_rate():
  rows = repeat(make_row(64, eligible=np.arange(64) % 4 > 0), 2000)
  chosen = over_rows(tokens.iid, rows, rate=0.15) > 0
  assert not chosen[:, ::4].any()
  assert stats.binomtest(int(chosen.sum()), 2000 * 48, 0.15).pvalue > TINY
  # counts spread as those of independent draws do
  assert chosen.sum(axis=1).var() == pytest.approx(48 * 0.15 * 0.85, rel=0.15)
  slots = CAPACITY[tokens.iid](64, rate=0.15)
  assert chosen.sum(axis=1).max() <= slots < 64


def test_draws_with_replacement_meet_each_other():
  rows, length, draws = 4000, 20, 6
  chosen = over_rows(tokens.with_replacement, repeat(make_row(length), rows), rate=0.3) > 0
  share = 1 - (1 - 1 / length) ** draws
  deviations = (chosen.sum(axis=0) - rows * share) / np.sqrt(rows * share * (1 - share))
  assert np.abs(deviations).max() < 4.2
  all_different = math.prod((length - k) / length for k in range(draws))
  assert stats.binomtest(int((chosen.sum(axis=1) == draws).sum()), rows, all_different).pvalue > TINY


@pytest.mark.parametrize('smoothing', [0.7, 0.0])
def test_the_first_draw_by_frequency_is_by_the_power_of_the_count(smoothing):
  rows, length = 6000, 12
  ids = np.arange(7, 7 + length)
  row = make_row(length, eligible=np.arange(length) > 0)._replace(ids=jnp.asarray(ids))
  counts = reference.counts_of(reference.VOCAB)
  chosen = over_rows(tokens.frequency, repeat(row, rows), counts=counts, rate=0.05, smoothing=smoothing) > 0
  assert (chosen.sum(axis=1) == 1).all()
  weights = reference.shares((counts[ids].astype(float) ** -smoothing * (np.arange(length) > 0)).tolist())
  assert not chosen[:, 0].any()
  assert stats.chisquare(chosen.sum(axis=0)[1:], rows * weights[1:]).pvalue > TINY


def test_frequency_takes_a_token_that_was_never_counted():
  counts = np.zeros(100, int)
  assert tokens.frequency(jax.random.key(0), make_row(8), counts=counts, rate=1.0).number.tolist() == list(range(1, 9))


# Words ----------------------------------------------------------------------------------------------------------------


def test_whole_word_takes_all_pieces_or_none_and_keeps_the_budget():
  words = [0, 1, 1, 1, 2, 2, 3, 4, 5, 5, 5, 5, 6, 7, 7, 8]
  row = make_row(16, words=words)
  taken = []
  for number in over_rows(whole_word, repeat(row, 40), rate=0.25):
    for word in set(words):
      assert len({int(n) for n, w in zip(number, words, strict=True) if w == word}) == 1
    taken.append(int((number > 0).sum()))
  assert max(taken) == 4  # round(.25 * 16)
  assert min(taken) >= 1


@pytest.mark.parametrize('name', ['whole_word', 'ngram'])
def test_a_word_ends_where_the_document_or_eligibility_does(name):
  row = make_row(6, words=[1, 1, 1, 1, 1, 1], segments=[1, 1, 2, 2, 2, 0], eligible=[1, 1, 1, 0, 1, 0])
  assert over_rows(FUNCTIONS[name], repeat(row, 1), rate=1.0).tolist() == [[1, 1, 2, 0, 3, 0]]


def test_geometric_spans_that_touch_are_one_but_not_across_a_boundary():
  row = make_row(6, words=[1, 2, 3, 4, 5, 6], segments=[1, 1, 2, 2, 2, 0], eligible=[1, 1, 1, 0, 1, 0])
  assert over_rows(geometric_spans, repeat(row, 1), rate=1.0).tolist() == [[1, 1, 2, 0, 3, 0]]


def test_lengths_of_words_are_those_of_the_papers():
  drawn = np.bincount(np.asarray(_draw_sizes(jax.random.key(0), 0.2 * 0.8 ** np.arange(10), 200_000)))[1:]
  published = np.array([0.2241, 0.1792, 0.1434, 0.1147, 0.0918, 0.0734, 0.0587, 0.0470, 0.0376, 0.0301])  # SpanBERT
  assert stats.chisquare(drawn, 200_000 * published / published.sum()).pvalue > TINY
  assert (drawn * np.arange(1, 11)).sum() / 200_000 == pytest.approx(3.797, abs=0.03)
  drawn = np.bincount(np.asarray(_draw_sizes(jax.random.key(1), 1 / np.arange(1, 4), 200_000)))[1:]
  published = np.array([0.5455, 0.2727, 0.1818])  # ALBERT
  assert stats.chisquare(drawn, 200_000 * published / published.sum()).pvalue > TINY


def test_the_first_ngram_is_as_long_as_drawn_unless_the_row_ends():
  # a budget of 3 in 20 single words: one span of 3 means that the first n-gram had n = 3 and did not start in the
  # last two words, since a shortened one is never the first
  rows, length = 6000, 20
  numbers = over_rows(ngram, repeat(make_row(length), rows), rate=0.15)
  assert ((numbers > 0).sum(axis=1) == 3).all()
  whole = int((numbers.max(axis=1) == 1).sum())
  assert stats.binomtest(whole, rows, 2 / 11 * 18 / 20).pvalue > TINY


def test_geometric_spans_stop_exactly_at_the_budget_even_within_a_word():
  row = make_row(20, words=np.arange(20) // 4)  # ceil(.3 * 20) = 6 of words of 4
  numbers = over_rows(geometric_spans, repeat(row, 500), rate=0.3)
  assert ((numbers > 0).sum(axis=1) == 6).all()
  starts = (numbers > 0) & (np.pad(numbers, ((0, 0), (1, 0)))[:, :-1] == 0)
  assert set(np.flatnonzero(starts.any(axis=0)) % 4) == {0}


def test_the_first_window_chooses_as_worked_out_by_hand():
  # n-gram of n words at one of 6 n places: word j < 6 is in it with probability min(j + 1, n) / 6 n
  rows = 8000
  chosen = over_rows(ngram_windows, repeat(make_row(60), rows), rate=0.15) > 0
  for place in range(6):
    share = sum(p * min(place + 1, n) / (6 * n) for n, p in zip((1, 2, 3), reference.HARMONIC, strict=True))
    assert stats.binomtest(int(chosen[:, place].sum()), rows, share).pvalue > TINY


@pytest.mark.parametrize('name', ['whole_word', 'ngram', 'geometric_spans', 'ngram_windows'])
def test_words_need_word_ids(name):
  with pytest.raises(ValueError, match=f'{name}.*word ids'):
    FUNCTIONS[name](jax.random.key(0), make_row(4)._replace(word_ids=None))


# Settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('function', 'settings', 'message'),
  [
    (tokens.fixed_count, {'count': 'albert'}, "count='albert'.*bert, roberta"),
    (whole_word, {'count': 'albert'}, "count='albert'.*bert, roberta"),
    (tokens.fixed_count, {'candidates': 'words'}, "candidates='words'.*ordinary, all"),
    (ngram, {'max_words': 0}, 'max_words=0'),
    (ngram_windows, {'max_words': 0}, 'max_words=0'),
    (geometric_spans, {'max_words': 0}, 'max_words=0'),
    (geometric_spans, {'probability': 1.0}, r'probability=1\.0.*\(0, 1\)'),
    *((function, {'rate': rate}, rf'rate={rate}.*\[0, 1\]') for function in CAPACITY for rate in (-0.01, 1.01)),
  ],
)
def test_wrong_settings_are_refused(function, settings, message):
  given = {'counts': np.ones(99)} if function is tokens.frequency else {}
  with pytest.raises(ValueError, match=message):
    function(jax.random.key(0), make_row(4), **settings, **given)


@pytest.mark.parametrize(('function', 'limit'), [*((f, 5) for f in CAPACITY), (tokens.fixed_count, 0)])
def test_no_more_than_the_most(function, limit):
  if function in (tokens.iid, geometric_spans):
    return
  given = {'counts': np.ones(reference.VOCAB)} if function is tokens.frequency else {}
  chosen = (over_rows(function, random_rows(60, 24, seed=4), rate=0.4, max_count=limit, **given) > 0).sum(axis=1)
  slots = CAPACITY[function](24, rate=0.4, max_count=limit, **given)
  assert chosen.max() <= slots == limit
  for length, most in ((24, 10), (20, 8)):  # round(9.6), ceil(8.0)
    assert CAPACITY[function](length, rate=0.4, max_count=1000, **given) == most
