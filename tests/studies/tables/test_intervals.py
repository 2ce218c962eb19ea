"""The bootstrap against closed forms, and how often its intervals hold the truth."""

import numpy as np
import pytest
from scipy import stats

from benchmarks import tables
from plm_jax.studies.tables import intervals
from plm_jax.studies.tables.intervals import Measured


def test_rows_alone_give_the_normal_interval_of_a_paired_difference():
  rng = np.random.default_rng(0)
  a, b = rng.random(2_000) < 0.8, rng.random(2_000) < 0.7
  rows = [Measured(np.array([[one.mean()]]), one[None, None].astype(float)) for one in (a, b)]
  found = intervals.difference(*rows, 'mean')
  half = 1.96 * (a.astype(float) - b).std() / np.sqrt(2_000)
  assert found.difference == pytest.approx(a.mean() - b.mean())
  assert found.high - found.low == pytest.approx(2 * half, rel=0.08)
  assert found.is_sure


def test_rows_are_drawn_alike_for_both_cells():
  """Two cells that score the same rows differ by nothing, however the rows are drawn."""
  rows = (np.random.default_rng(0).random(100) < 0.5).astype(float)[None, None]
  cell = Measured(rows.mean(-1), rows)
  found = intervals.difference(cell, cell, 'mean')
  assert (found.difference, found.low, found.high) == pytest.approx((0, 0, 0))
  assert not found.is_sure


def test_seeds_alone_give_the_variance_of_a_resampled_mean():
  values = np.array([[1.0, 2.0, 4.0, 9.0]])
  found = intervals._draw(np.random.default_rng(0), Measured(values), None, 20_000, 'mean')
  drawn = np.random.default_rng(1).choice(values[0], size=(200_000, 4)).mean(1)
  edges = [0.025, 0.975]
  assert np.quantile(found, edges) == pytest.approx(np.quantile(drawn, edges), abs=0.26)  # a step is .25


def test_a_level_with_one_seed_adds_nothing():
  found = intervals.difference(Measured(np.array([[3.0]])), Measured(np.array([[1.0]])), 'mean')
  assert found[:3] == (2.0, 2.0, 2.0)


def test_seeds_of_pretraining_are_drawn_as_wholes():
  """Fine-tunings of one pre-training agree here, so the interval is that of three numbers and not of nine."""
  values = np.repeat([[0.0], [1.0], [2.0]], 3, axis=1)
  found = intervals._draw(np.random.default_rng(0), Measured(values), None, 8_000, 'mean')
  drawn = np.random.default_rng(2).choice([0.0, 1.0, 2.0], size=(200_000, 3)).mean(1)
  assert np.quantile(found, [0.025, 0.975]) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=1e-9)


def test_runs_without_a_result_are_left_out():
  values = np.array([[1.0, np.nan, 3.0]])
  assert intervals.summarise(Measured(values), 'mean') == 2
  assert intervals.summarise(Measured(np.array([[1.0, np.nan, 3.0, 8.0]])), 'median') == 3
  assert np.isfinite(intervals.difference(Measured(values), Measured(np.zeros((1, 1))), 'mean')).all()


def test_a_cell_with_one_result_and_without_rows_has_no_interval():
  """However many runs it should have: the draws of two such cells are all alike, and say nothing of noise."""
  nan, rows = np.nan, np.ones((1, 1, 4))
  one, some = Measured(np.array([[80.0, nan, nan]])), Measured(np.array([[79.0, 78.0, nan]]))
  found = intervals.difference(one, Measured(np.array([[79.0, nan, nan]])), 'mean')
  assert (found.low, found.high) == (1, 1)
  assert not intervals.is_known(one, one)
  assert not intervals.is_known(one, some)
  assert not intervals.is_known(Measured(np.ones((1, 1)), rows), Measured(np.ones((1, 1))))
  assert intervals.is_known(some, some)
  assert intervals.is_known(Measured(np.ones((1, 1)), rows), Measured(np.ones((1, 1)), rows))


def test_an_interval_is_the_same_whatever_the_order_in_which_a_processor_adds(monkeypatch):
  """Its ends are differences of counts here, which are printed to four digits, and may lie in the middle of two."""
  rng = np.random.default_rng(4)
  rows = 100.0 * rng.integers(0, 2, (2, 1, 3, 408))
  a, b = (Measured(one.mean(-1), one) for one in rows)
  found = intervals.difference(a, b, 'mean')
  drawn = intervals._weights
  monkeypatch.setattr(intervals, '_weights', lambda *given: drawn(*given) * (1 + 1e-15))
  assert intervals.difference(a, b, 'mean') == found


def test_the_run_that_is_best_on_dev_counts():
  """Whatever its number is; of equal ones the first, and never a run without a result or without a dev score."""
  values, dev = np.array([[1.0, 2.0, 3.0], [4.0, np.nan, 6.0]]), np.array([[0.1, 0.9, 0.2], [0.9, 5.0, np.nan]])
  assert intervals.summarise(Measured(values, dev=dev), 'best on dev') == 2
  assert intervals.summarise(Measured(values, dev=-dev), 'best on dev') == 1
  assert intervals.summarise(Measured(values), 'best on dev') == intervals.summarise(Measured(values), 'mean') == 3.2


def test_draws_choose_again_among_their_runs():
  """Two runs: a draw lacks the better one in one of four cases, and then has the other's number."""
  cell = Measured(np.array([[10.0, 0.0]]), dev=np.array([[0.9, 0.1]]))
  drawn = intervals._draw(np.random.default_rng(0), cell, None, 20_000, 'best on dev')
  assert set(drawn) == {0.0, 10.0}
  assert (drawn == 0).mean() == pytest.approx(0.25, abs=0.01)
  found = intervals.difference(cell, Measured(np.zeros((1, 1))), 'best on dev')
  assert found[:3] == (10.0, 0.0, 10.0)


def test_each_draw_has_each_point_of_a_grid():
  """Two seeds of three points; the last is the best on dev in both, so its seeds are drawn and no other point."""
  dev = np.array([[0.1, 0.2, 0.8, 0.3, 0.2, 0.9]])
  values = np.arange(6.0)[None]
  drawn = intervals._draw(np.random.default_rng(0), Measured(values, dev=dev, points=3), None, 20_000, 'best on dev')
  assert set(drawn) == {2.0, 5.0}
  assert (drawn == 2).mean() == pytest.approx(0.25, abs=0.01)


def test_rows_of_the_chosen_run_are_drawn():
  rng = np.random.default_rng(0)
  rows = np.stack([rng.random(2_000) < 0.8, rng.random(2_000) < 0.9])[None].astype(float)
  cell = Measured(rows.mean(-1), rows, dev=np.array([[0.9, 0.1]]))
  other = Measured(np.zeros((1, 1)), np.zeros((1, 1, 2_000)))
  alone = Measured(rows[:, :1].mean(-1), rows[:, :1])
  both = [
    intervals.difference(one, other, 'best on dev') for one in (cell._replace(dev=np.array([[0.9, np.nan]])), alone)
  ]
  assert both[0].difference == both[1].difference == rows[0, 0].mean()
  assert both[1].high - both[1].low == pytest.approx(2 * 1.96 * 0.4 / np.sqrt(2_000), rel=0.1)


def trials(scores, count=200):
  """How many intervals of a difference of .05 hold it; `scores` makes f64[1, seeds, rows] of a level."""
  held = 0
  for trial in range(count):
    rng = np.random.default_rng(trial)
    cells = [Measured(rows.mean(-1), rows) for rows in (scores(rng, 0.70), scores(rng, 0.65))]
    found = intervals.difference(*cells, 'mean', seed=trial, draws=400)
    held += found.low <= 0.05 <= found.high
  return held / count


def test_intervals_hold_the_truth_about_as_often_as_they_say():
  """Rows and seeds that add up, 200 of one and 10 of the other: 95 %, a little less since ten seeds are few."""

  def scores(rng, level):
    return level + 0.3 * rng.standard_normal((1, 1, 200)) + 0.02 * rng.standard_normal((1, 10, 1))

  assert 0.89 <= trials(scores) <= 0.985


def test_intervals_are_too_wide_where_rows_and_seeds_share_their_noise():
  def scores(rng, level):
    return (rng.random((1, 10, 200)) < level).astype(float)

  assert trials(scores) > 0.97


@pytest.mark.parametrize('sizes', [(3, 3), (5, 3), (10, 10)])
def test_seeds_alone_have_the_interval_of_welch(sizes):
  rng = np.random.default_rng(7)
  a, b = (rng.normal(scale=scale, size=(1, size)) for scale, size in zip((1.0, 2.0), sizes, strict=True))
  theirs = stats.ttest_ind(a[0], b[0], equal_var=False).confidence_interval()
  found = intervals.difference(Measured(a), Measured(b), 'mean', draws=20_000)
  width = theirs.high - theirs.low
  assert found.low == pytest.approx(theirs.low, abs=0.03 * width)
  assert found.high == pytest.approx(theirs.high, abs=0.03 * width)


@pytest.mark.parametrize('shape', [(1, 3), (3, 1)])
def test_three_seeds_alone_are_seldom_beyond_noise_by_chance(shape):
  """In one case of twenty or fewer; a bootstrap of three numbers alone would find a difference in one of five."""
  rng = np.random.default_rng(0)
  cells = [(Measured(rng.normal(size=shape)), Measured(rng.normal(size=shape))) for _ in range(300)]
  sure = [intervals.difference(a, b, 'mean', draws=400).is_sure for a, b in cells]
  assert 0.01 <= np.mean(sure) <= 0.08


def test_pretrainings_count_as_seeds_where_there_are_several():
  """Fine-tunings of one pre-training share its luck: nine runs of three pre-trainings are about as sure as three."""
  values = np.repeat(np.array([[0.0], [1.0], [2.0]]), 3, axis=1)
  other = np.repeat(np.array([[5.0], [6.0], [7.0]]), 3, axis=1)
  found = intervals.difference(Measured(values), Measured(other), 'mean', draws=20_000)
  theirs = stats.ttest_ind(values[:, 0], other[:, 0], equal_var=False).confidence_interval()
  assert found.low == pytest.approx(theirs.low, abs=0.15) and found.high == pytest.approx(theirs.high, abs=0.15)


def f1(gold: np.ndarray, found: np.ndarray) -> float:
  right = np.count_nonzero(gold & found)
  return float(2 * right / (gold.sum() + found.sum()))


def matthews(gold: np.ndarray, found: np.ndarray) -> float:
  return float(np.corrcoef(gold, found)[0, 1])


def test_groups_of_rows_as_in_the_worked_case(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(intervals, 'GROUPS', 2)
  values = np.array([0.0, 0.0, 1.0, 3.0])
  np.testing.assert_allclose(intervals.of_groups(lambda rows: float(values[list(rows)].mean()), 4), [0.5, 1.5])


def test_a_group_of_one_row_contributes_that_row() -> None:
  values = np.random.default_rng(0).random(60)
  found = intervals.of_groups(lambda rows: float(values[list(rows)].mean()), 60)
  np.testing.assert_allclose(found, values, atol=1e-12)
  np.testing.assert_array_equal(intervals.of_groups(lambda rows: 0.25, 1), [0.25])


@pytest.mark.parametrize('score', [f1, matthews])
def test_groups_of_rows_give_the_interval_of_drawn_rows(score) -> None:
  """Of 1,000 rows, of which two classifiers know different ones, as wide as of drawn rows."""
  rng = np.random.default_rng(3)
  gold = rng.random(1_000) < 0.3
  both = [np.where(rng.random(1_000) < share, gold, rng.random(1_000) < 0.3) for share in (0.8, 0.6)]
  groups = [intervals.of_groups(lambda rows, one=one: score(gold[list(rows)], one[list(rows)]), 1_000) for one in both]
  for found, one in zip(groups, both, strict=True):
    assert len(found) == intervals.GROUPS and found.mean() == pytest.approx(score(gold, one))
  ours = intervals.difference(*(Measured(one.mean(keepdims=True)[None], one[None, None]) for one in groups), 'mean')
  drawn = rng.integers(1_000, size=(4_000, 1_000))
  theirs = np.quantile(
    [score(gold[rows], both[0][rows]) - score(gold[rows], both[1][rows]) for rows in drawn], [0.025, 0.975]
  )
  # of 100 groups a deviation is known to 7 %
  assert ours.high - ours.low == pytest.approx(theirs[1] - theirs[0], rel=0.2)
  assert ours.low == pytest.approx(theirs[0], abs=0.02)


@pytest.mark.parametrize('seeds', [3, 5])
@pytest.mark.parametrize('collapse', [0.0, 0.2])
def test_equal_cells_are_seldom_beyond_noise(seeds, collapse) -> None:
  """Also where a fifth of the runs stays at chance: by means of all runs, 10 to 14 % differ."""
  settings = dict(seeds=seeds, tested=300, deviation=0.4, differ=1.0, collapse=collapse)
  pairs = [tables.equal_cells(np.random.default_rng(trial), **settings) for trial in range(200)]
  assert np.mean([tables.is_beyond_noise(*pair) for pair in pairs]) < 0.06


def test_cells_far_apart_are_beyond_noise() -> None:
  a, _ = tables.equal_cells(np.random.default_rng(0), seeds=5, tested=872, deviation=0.1, differ=0.0, collapse=0.0)
  assert tables.is_beyond_noise(a, a._replace(values=a.values - 8, rows=a.rows - 8))


def test_the_wider_of_both_intervals_counts() -> None:
  """Seeds 10 apart on many equal examples: rows alone are sure, seeds are not; and the reverse."""
  apart, other = np.array([[0.0, 10.0, 20.0]]), np.array([[12.0, 22.0, 32.0]])
  cells = [Measured(values, np.repeat(values[..., None], 50, axis=-1)) for values in (apart, other)]
  theirs = stats.ttest_ind(apart[0], other[0], equal_var=False)
  found = intervals.difference(*cells, 'mean')
  assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval()), abs=1e-6)
  assert found.p == pytest.approx(theirs.pvalue, abs=1e-6) and not found.is_sure
  rows = np.random.default_rng(0).normal(size=(1, 3, 40)) * 30
  rows -= rows.mean(-1, keepdims=True)
  found = intervals.difference(Measured(np.zeros((1, 3)) + 5, rows + 5), Measured(np.zeros((1, 3)), 0 * rows), 'mean')
  assert found.low < 0 < found.high


def test_holm_is_that_of_statsmodels_worked_case() -> None:
  assert intervals.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
  assert intervals.holm([0.5, 0.9]) == [1.0, 1.0] and intervals.holm([]) == []


def test_runs_at_chance_are_counted_and_compared_by_their_number() -> None:
  bits = np.array([[0.0] * 49 + [100.0] * 51, [0.0] * 20 + [100.0] * 80])[None]
  cell = Measured(bits.mean(-1), bits)
  assert intervals.num_at_chance(cell, 50.9, better='max') == 1
  assert intervals.num_at_chance(cell, 50.9, better='min') == 2
  assert intervals.num_at_chance(Measured(np.array([[50.9, np.nan, 60]])), 50.9, better='max') == 1
  assert intervals.of_counts([3, 0], [3, 3]).p == pytest.approx(1 / 32)
  assert intervals.of_counts([2, 0], [5, 5]).p > 0.05
