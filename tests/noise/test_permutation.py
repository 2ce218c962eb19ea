"""Targets, orders and masks of permutation language modelling, against slow references in plain Python."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.noise import permutation
from plm_jax.noise.row import Row

REFERENCE = pathlib.Path(__file__).parent / 'references' / 'permutation.npz'
LENGTH, BOUNDARY = 96, 48
SHARES = np.array([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]) / (137 / 60)


def make_row(length: int, *, starts=None, special=(), real: int | None = None) -> Row:
  """Build a one-document row; by default each token starts a word."""
  segments = (np.arange(length) < (length if real is None else real)).astype(np.int32)
  eligible = (segments > 0) & ~np.isin(np.arange(length), special)
  starts = np.ones(length, bool) if starts is None else np.asarray(starts, bool)
  return Row(*(jnp.asarray(x) for x in (np.full(length, 9), eligible, segments, starts.cumsum())))


def example_row() -> Row:
  """Build a row as in training, with separators and long words."""
  starts = np.random.default_rng(2).random(LENGTH) < 0.6
  return make_row(LENGTH, starts=starts, special=(70, 94, 95))


@functools.cache
def chooser(rows: int, **settings):
  def choose(key, row):
    return jax.vmap(lambda key: permutation.choose_targets(key, row, **settings))(jax.random.split(key, rows))

  return jax.jit(choose)


def choose(row: Row, rows: int = 1, key: int = 0, **settings) -> np.ndarray:
  """Sample the targets of one row many times: bool[rows, l]."""
  settings = {'boundary': row.ids.shape[0] // 2} | settings
  return np.asarray(chooser(rows, **settings)(jax.random.key(key), row))


# Slow references ----------------------------------------------------------------------------------------------------


def slow_spans(eligible, starts, *, goal, grams, shares, window=6):
  """Run the loop of the released pipeline, without special tokens."""
  length, taken, cursor, number = len(eligible), set(), 0, 0
  while cursor < length and len(taken) < goal:
    n = min(grams[number], goal - len(taken))
    left = int(np.float32(shares[number]) * np.float32(n * window))
    number += 1
    begin = cursor + left
    while begin < length and not (starts[begin] and eligible[begin]):
      begin += 1
    if begin + n >= length:
      break
    taken |= {place for place in range(begin, begin + n) if eligible[place]}
    cursor = begin + n + n * window - left
  return taken


def independent(row: Row, generator: np.random.Generator, *, spans: bool = True) -> np.ndarray:
  """Sample targets with numpy."""
  eligible, starts = np.asarray(row.eligible), np.diff(np.asarray(row.word_ids), prepend=0) > 0
  out = np.zeros(LENGTH, bool)
  for part, goal in ((slice(0, BOUNDARY), 8), (slice(BOUNDARY, LENGTH), 8)):
    grams = generator.choice(np.arange(1, 6), size=goal, p=SHARES)
    shares = generator.random(goal)
    taken = slow_spans(eligible[part], starts[part], goal=goal, grams=grams, shares=shares) if spans else set()
    free = [place for place in np.flatnonzero(eligible[part]) if place not in taken]
    taken |= set(generator.choice(free, size=goal - len(taken), replace=False).tolist())
    out[part][list(taken)] = True
  return out


def features(targets: np.ndarray) -> dict[str, np.ndarray]:
  """Compute histograms of positions, lengths of runs and numbers of runs."""
  edges = np.diff(np.pad(targets, ((0, 0), (1, 1))).astype(int), axis=1)
  runs = [np.flatnonzero(row < 0) - np.flatnonzero(row > 0) for row in edges]
  return {
    'positions': targets.sum(axis=0),
    'run_lengths': np.bincount(np.minimum(np.concatenate(runs), 8), minlength=9),
    'runs': np.bincount([len(lengths) for lengths in runs], minlength=17),
  }


def statistic(observed: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
  """Compute Pearson's chi-square and its degrees of freedom."""
  order = np.argsort(observed + expected)
  small = np.cumsum((observed + expected)[order]) < 40
  groups = [
    np.append(x[order][small].sum(), x[order][~small]) for x in (observed.astype(float), expected.astype(float))
  ]
  a, b = (x[(groups[0] + groups[1]) > 0] for x in groups)
  ratio = np.sqrt(b.sum() / a.sum())
  return float((((a * ratio - b / ratio) ** 2) / (a + b)).sum()), len(a) - 1


def limit(freedom: int) -> float:
  """About the 99.99 % quantile of chi-square (Wilson & Hilferty)."""
  return freedom * (1 - 2 / (9 * freedom) + 3.72 * np.sqrt(2 / (9 * freedom))) ** 3


# Targets ------------------------------------------------------------------------------------------------------------


def test_512_tokens_have_85_targets():
  assert permutation.goals(512, boundary=256, one_in=6) == (43, 42)
  targets = choose(make_row(512, special=(300, 510, 511)), 50)
  assert (targets[:, :256].sum(axis=1) == 43).all()
  assert (targets[:, 256:].sum(axis=1) == 42).all()
  assert not targets[:, [300, 510, 511]].any()


def test_shares_of_n_grams():
  np.testing.assert_allclose(permutation.gram_shares(5), [0.438, 0.219, 0.146, 0.1095, 0.0876], atol=5e-4)
  np.testing.assert_allclose(permutation.gram_shares(5), SHARES, rtol=1e-6)


@pytest.mark.parametrize('reverse', [False, True])
def test_equals_the_slow_loop_on_the_same_draws(reverse):
  row, rows = example_row(), 60
  flipped = jax.tree.map(lambda leaf: leaf[::-1], row)
  starts = np.diff(np.asarray(row.word_ids), prepend=0) > 0
  given = flipped._replace(word_ids=jnp.asarray(starts[::-1].cumsum())) if reverse else row
  found = choose(given, rows, reverse=reverse)
  if reverse:
    found = found[:, ::-1]  # in reading order, where the parts have changed places
  for number, key in enumerate(jax.random.split(jax.random.key(0), rows)):
    keys = jax.random.split(key)
    parts = (slice(0, BOUNDARY), slice(BOUNDARY, LENGTH))
    for part_key, part in zip(keys[::-1] if reverse else keys, parts, strict=True):
      span_key, rest_key = jax.random.split(part_key)
      gram_key, place_key = jax.random.split(span_key)
      grams = 1 + np.asarray(jax.random.choice(gram_key, 5, (8,), p=permutation.gram_shares(5)))
      shares = np.asarray(jax.random.uniform(place_key, (8,)))
      eligible = np.asarray(row.eligible)[part]
      taken = slow_spans(eligible, starts[part], goal=8, grams=grams, shares=shares)
      scores = np.asarray(jax.random.uniform(rest_key, (BOUNDARY,)))
      free = sorted(set(np.flatnonzero(eligible)) - taken, key=lambda place: -scores[place])
      taken |= set(free[: 8 - len(taken)])
      assert np.flatnonzero(found[number, part]).tolist() == sorted(taken), (number, part)


def test_spans_begin_at_words_and_singles_anywhere():
  starts = np.arange(LENGTH) % 3 == 0
  row = make_row(LENGTH, starts=starts)
  with_spans, singles = choose(row, 4000, max_gram=1), choose(row, 4000, spans=False)
  # with 1-grams, all but the remainder stand at starts
  assert with_spans[:, starts].sum() > 2 * with_spans[:, ~starts].sum()
  counts = singles.sum(axis=0)
  assert (singles.sum(axis=1) == 16).all()
  share = 8 / 48
  assert np.abs(counts - 4000 * share).max() < 4.5 * np.sqrt(4000 * share * (1 - share))


@pytest.mark.parametrize('real', [0, 1, 20, 50, 95])
def test_padding_takes_its_share_of_the_targets(real):
  row = make_row(LENGTH, real=real)
  for targets in choose(row, 20):
    first, second = min(real, BOUNDARY), max(real - BOUNDARY, 0)
    assert targets[:BOUNDARY].sum() == 8 * first // BOUNDARY
    assert targets[BOUNDARY:].sum() == 8 * second // BOUNDARY
    assert not targets[real:].any()


def test_few_eligible_tokens_are_all_taken():
  row = make_row(LENGTH, special=tuple(place for place in range(LENGTH) if place not in (5, 6, 60)))
  assert np.flatnonzero(choose(row)[0]).tolist() == [5, 6, 60]


def test_a_span_ends_where_its_document_does():
  """Check that spans end with documents of three tokens."""
  segments = np.repeat(np.arange(1, 33), 3)
  row = make_row(LENGTH)._replace(segment_ids=jnp.asarray(segments, jnp.int32))
  few = choose(row, 500, one_in=30, max_gram=5)  # so few that hardly any single token is next to a span by chance
  edges = np.diff(np.pad(few, ((0, 0), (1, 1))).astype(int), axis=1)
  longest = max(int((np.flatnonzero(r < 0) - np.flatnonzero(r > 0)).max()) for r in edges)
  whole = choose(make_row(LENGTH), 500, one_in=30, max_gram=5)
  assert few.sum() == whole.sum()
  crossing = lambda targets: (targets[:, 2:-1:3] & targets[:, 3::3]).mean()  # noqa: E731
  assert crossing(few) < 0.2 * crossing(whole)
  assert longest <= 3


def test_draws_have_the_stored_distribution():
  """Compare with stored histograms of the slow loop."""
  with np.load(REFERENCE, allow_pickle=False) as stored:
    found = features(choose(example_row(), 2000, key=7))
    for name, counts in found.items():
      value, freedom = statistic(counts, stored[name])
      assert value < limit(freedom), (name, value, freedom)


def test_the_comparison_tells_other_distributions_apart():
  with np.load(REFERENCE, allow_pickle=False) as stored:
    for settings in ({'spans': False}, {'max_gram': 3}, {'window': 4}):
      found = features(choose(example_row(), 2000, key=7, **settings))
      assert any(value > 2 * limit(freedom) for value, freedom in (statistic(found[n], stored[n]) for n in found)), (
        settings
      )


@pytest.mark.slow
def test_draws_have_the_distribution_of_the_slow_loop():
  generator = np.random.default_rng(11)
  row = example_row()
  slow = features(np.stack([independent(row, generator) for _ in range(20_000)]))
  for name, counts in features(choose(row, 20_000, key=1)).items():
    value, freedom = statistic(counts, slow[name])
    assert value < limit(freedom), (name, value, freedom)


# Orders -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('block', [None, 4, 2])
def test_blocks_share_one_order_and_keep_their_own(block):
  ranks = np.asarray(permutation.draw_ranks(jax.random.key(0), 24, boundary=8, block=block))
  for part in (ranks[:8], ranks[8:]):
    size = block or len(part)
    blocks = part.reshape(-1, size) - size * np.arange(len(part) // size)[:, None]
    assert sorted(part.tolist()) == list(range(len(part)))
    assert (blocks == blocks[0]).all() and sorted(blocks[0].tolist()) == list(range(size))


def test_orders_are_uniform():
  keys = jax.random.split(jax.random.key(0), 6000)
  ranks = np.asarray(jax.vmap(lambda key: permutation.draw_ranks(key, 6, boundary=3))(keys))
  codes = ranks[:, :3] @ [9, 3, 1] * 100 + ranks[:, 3:] @ [9, 3, 1]
  counts = np.unique(codes, return_counts=True)[1]
  assert len(counts) == 36  # the two parts are independent
  assert ((counts - 6000 / 36) ** 2).sum() / (6000 / 36) < limit(35)


def test_a_part_must_be_whole_blocks():
  with pytest.raises(ValueError, match=r'8.*3'):
    permutation.draw_ranks(jax.random.key(0), 24, boundary=8, block=3)


# Masks --------------------------------------------------------------------------------------------------------------


def slow_visible(ranks, targets, functional, boundary):
  """Compute the mask query by query and key by key."""
  length = len(ranks)
  seen = np.zeros((length, length), bool)
  for query in range(length):
    for key in range(length):
      if (query >= boundary) != (key >= boundary):
        seen[query, key] = query >= boundary
      elif not (targets[key] or functional[key]):
        seen[query, key] = True
      elif targets[query]:
        seen[query, key] = ranks[key] < ranks[query]
      elif functional[query]:
        seen[query, key] = ranks[key] <= ranks[query]
  return seen


@pytest.mark.parametrize('seed', range(4))
def test_mask_equals_the_rules_in_words(seed):
  draw = np.random.default_rng(seed)
  targets = draw.random(24) < 0.4
  functional = ~targets & (draw.random(24) < 0.2)
  ranks = permutation.draw_ranks(jax.random.key(seed), 24, boundary=12)
  found = permutation.visible(ranks, jnp.asarray(targets), jnp.asarray(functional), boundary=12)
  np.testing.assert_array_equal(found, slow_visible(np.asarray(ranks), targets, functional, 12))


def test_order_2_4_3_1():
  ranks, everything = jnp.array([3, 0, 2, 1]), jnp.ones(4, bool)
  found = permutation.visible(ranks, everything, ~everything, boundary=0)
  seen = {query + 1: (np.flatnonzero(found[query]) + 1).tolist() for query in range(4)}
  assert seen == {2: [], 4: [2], 3: [2, 4], 1: [2, 3, 4]}


def test_mask_is_an_order():
  """Check that visibility is transitive, so no target leaks."""
  draw = np.random.default_rng(0)
  targets = draw.random(64) < 0.4
  functional = ~targets & (draw.random(64) < 0.1)
  ranks = permutation.draw_ranks(jax.random.key(0), 64, boundary=32)
  found = np.asarray(permutation.visible(ranks, jnp.asarray(targets), jnp.asarray(functional), boundary=32))
  content = found | np.eye(64, dtype=bool)
  np.testing.assert_array_equal(content @ content, content)
  np.testing.assert_array_equal(found[targets] @ content, found[targets])


# Settings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('settings', 'message'),
  [({'boundary': 0}, 'boundary=0'), ({'boundary': 96}, 'boundary=96'), ({'one_in': 60}, 'one_in=60')],
)
def test_wrong_settings_are_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    choose(make_row(LENGTH), **settings)


def test_word_ids_are_needed():
  with pytest.raises(ValueError, match=r'word ids'):
    permutation.choose_targets(jax.random.key(0), make_row(8)._replace(word_ids=None), boundary=4)


def main() -> None:
  generator = np.random.default_rng(5)
  row = example_row()
  REFERENCE.parent.mkdir(exist_ok=True)
  np.savez_compressed(REFERENCE, **features(np.stack([independent(row, generator) for _ in range(200_000)])))


if __name__ == '__main__':
  main()
