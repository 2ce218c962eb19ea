"""Blanks: the published example, statistics against a plain reference, rebuilding the text, adversarial rows."""

import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from plm_jax.noise import blanks
from plm_jax.noise.row import Row, Spans
from tests.noise import blanks_reference

MASK, START, END, BLOCK, PAD = 90, 91, 92, 93, 0
SETTINGS = dict(mask_id=MASK, start_id=START, end_id=END, pad_id=PAD, block_id=BLOCK)
LEVELS = {'token': blanks.token_blanks, 'sentence': blanks.sentence_blanks, 'document': blanks.document_blanks}


def make_row(segments, *, special=(), sentences=None) -> Row:
  """Build a row whose ids are their positions plus 100."""
  segments = np.asarray(segments, np.int32)
  eligible = segments > 0
  eligible[list(special)] = False
  sentences = np.zeros_like(segments) if sentences is None else np.asarray(sentences, np.int32)
  ids = 100 + np.arange(len(segments))
  return Row(jnp.asarray(ids), jnp.asarray(eligible), jnp.asarray(segments), None, jnp.asarray(sentences))


def random_rows(count: int, length: int, seed: int = 0) -> Row:
  """Build rows with documents, special tokens, sentences and padding."""
  draw = np.random.default_rng(seed)
  left, real = draw.integers(0, 4, count)[:, None], draw.integers(0, length + 1, count)[:, None]
  index = np.arange(length)
  segments = np.where(
    (index >= left) & (index < left + real), 1 + (draw.random((count, length)) < 0.06).cumsum(axis=1), 0
  )
  eligible = (segments > 0) & (draw.random((count, length)) > 0.08)
  sentences = (draw.random((count, length)) < 0.15).cumsum(axis=1)
  ids = np.broadcast_to(100 + index, (count, length))
  return Row(*(jnp.asarray(x) for x in (ids, eligible, segments.astype(np.int32))), None, jnp.asarray(sentences))


@functools.cache
def chooser(level: str, **settings):
  return jax.jit(jax.vmap(lambda key, row: LEVELS[level](key, row, **settings).number))


@functools.cache
def arranger(slots: int, block_rate: float = 0.0):
  def one(key, row, number):
    return blanks.arrange(
      key, row, Spans(number, jnp.zeros_like(number)), slots=slots, block_rate=block_rate, **SETTINGS
    )

  return jax.jit(jax.vmap(one))


def stack(rows) -> Row:
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)


def keys(count, seed=0):
  return jax.random.split(jax.random.key(seed), count)


def row_of(arranged, row: int):
  return blanks.Arranged(*(np.asarray(leaf)[row] for leaf in arranged))


def parse(arranged, row: int):
  """List parts A and B as tuples per token and per blank."""
  a = row_of(arranged, row)
  prefix = int(a.prefix)
  part_a = list(zip(a.tokens[:prefix].tolist(), a.segment_ids[:prefix].tolist(), a.positions[:prefix].tolist()))  # noqa: B905
  assert not a.block_positions[:prefix].any() and not a.weights[:prefix].any()
  stop = prefix + int(a.weights.sum())
  assert a.weights[prefix:stop].all()
  for rest, fill in ((a.tokens, PAD), (a.segment_ids, 0), (a.positions, 0), (a.block_positions, 0), (a.targets, 0)):
    assert (rest[stop:] == fill).all()
  edges = [*np.flatnonzero(a.tokens[prefix:stop] == START) + prefix, stop]
  assert edges[0] == prefix
  names = ('tokens', 'targets', 'positions', 'block_positions', 'segment_ids')
  part_b = [
    [a._asdict()[name][first:last].tolist() for name in names]
    for first, last in itertools.pairwise(edges)
    if last > first
  ]
  return part_a, part_b


def rebuild(arranged, row: int):
  """Rebuild the ids of each document from parts A and B."""
  part_a, part_b = parse(arranged, row)
  texts: dict[int, list[int]] = {}
  at = {(blank[4][0], blank[2][0]): blank for blank in part_b}
  assert len(at) == len(part_b)
  used, counts = set(), dict.fromkeys((segment for _, segment, _ in part_a), 0)
  for token, segment, place in part_a:
    assert place == counts[segment]
    counts[segment] += 1
    if token != MASK:
      texts.setdefault(segment, []).append(token)
      continue
    inputs, targets, positions, inside, segments = at[segment, place]
    used.add((segment, place))
    assert inputs == [START, *targets[:-1]]
    assert targets[-1] == END
    assert END not in targets[:-1]
    assert len(targets) > 1
    assert set(positions) == {place}
    assert set(segments) == {segment}
    assert inside == list(range(1, len(inside) + 1))
    texts.setdefault(segment, []).extend(targets[:-1])
  assert used == set(at)
  return texts


def documents(row: Row, index: int) -> dict[int, list[int]]:
  ids, segments = np.asarray(row.ids)[index], np.asarray(row.segment_ids)[index]
  return {int(segment): ids[segments == segment].tolist() for segment in np.unique(segments[segments > 0])}


# The example --------------------------------------------------------------------------------------------------------


def test_the_example():
  """Check: I [love you] because you [are a wonderful person]"""
  words = ['I', 'love', 'you', 'because', 'you', 'are', 'a', 'wonderful', 'person']
  ids = {word: 100 + number for number, word in enumerate(dict.fromkeys(words))}
  names = {number: word for word, number in ids.items()} | {MASK: '<M>', START: '<sop>', END: '<eop>'}
  row = Row(jnp.array([ids[word] for word in words]), jnp.ones(9, bool), jnp.ones(9, jnp.int32))
  number = jnp.array([0, 1, 1, 0, 0, 2, 2, 2, 2], jnp.int32)
  orders = set()
  for seed in range(8):
    found = arranger(2)(keys(1, seed), stack([row]), number[None])
    part_a, part_b = parse(found, 0)
    assert ' '.join(names[token] for token, _, _ in part_a) == 'I <M> because you <M>'
    assert [place for _, _, place in part_a] == [0, 1, 2, 3, 4]
    spoken = {' '.join(names[t] for t in blank[1]): blank for blank in part_b}
    love, are = spoken['love you <eop>'], spoken['are a wonderful person <eop>']
    assert ' '.join(names[t] for t in love[0]) == '<sop> love you'
    assert ' '.join(names[t] for t in are[0]) == '<sop> are a wonderful person'
    assert (love[2], love[3]) == ([1, 1, 1], [1, 2, 3])
    assert (are[2], are[3]) == ([4] * 5, [1, 2, 3, 4, 5])
    orders.add(tuple(spoken))
  assert len(orders) == 2


# Statistics ---------------------------------------------------------------------------------------------------------


def blanks_of(numbers: np.ndarray) -> list[list[tuple[int, int]]]:
  """Count the blanks of each row without the first token."""
  rows = []
  for row in numbers:
    places = [np.flatnonzero(row == number) for number in range(1, row.max() + 1)]
    assert all((np.diff(place) == 1).all() for place in places)
    rows.append([(int(place[0]) - 1, len(place)) for place in places])
  return rows


def standard_row() -> Row:
  sentences = np.repeat(np.arange(len(blanks_reference.SENTENCES)), blanks_reference.SENTENCES)
  return make_row(np.ones(64), special=(0, 63), sentences=[0, *sentences, sentences[-1]])


def draw_rows(level: str, count: int, seed: int = 0) -> list[list[tuple[int, int]]]:
  row = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), standard_row())
  return blanks_of(np.asarray(chooser(level)(keys(count, seed), row)))


def p_value(ours: dict[str, int], theirs: dict[str, int]) -> float:
  """Test the homogeneity of two histograms, with rare values joined."""
  values = sorted({*ours, *theirs}, key=lambda value: -theirs.get(value, 0))
  table = np.array([[ours.get(value, 0), theirs.get(value, 0)] for value in values], float)
  share = table[:, 0].sum() / table.sum()
  rare = table.sum(axis=1) * share < 8
  table = np.vstack([table[~rare], table[rare].sum(axis=0)])
  table = table[table.sum(axis=1) > 0]
  return stats.chi2_contingency(table).pvalue if len(table) > 1 else 1.0


@pytest.mark.parametrize('level', LEVELS)
def test_statistics_are_those_of_the_reference(level, rows=2000):
  theirs = json.loads(blanks_reference.FILE.read_text())[level]
  ours = blanks_reference.summarise(draw_rows(level, rows))
  for name, histogram in theirs.items():
    assert set(ours[name]) <= set(histogram) or rows > 2000, name
    assert p_value(ours[name], histogram) > 1e-3, name


@pytest.mark.slow
@pytest.mark.parametrize('level', LEVELS)
def test_statistics_are_those_of_the_reference_in_20000_rows(level):
  test_statistics_are_those_of_the_reference(level, rows=20_000)


def test_lengths_are_a_poisson_without_its_ends():
  found = blanks.length_probabilities()
  assert found.shape == (39,)
  expected = stats.poisson.pmf(np.arange(1, 40), 3)
  np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-12)
  assert (found * np.arange(1, 40)).sum() == pytest.approx(3.157, abs=1e-3)


def test_blanks_have_a_token_between_them_and_reach_the_budget():
  for row in draw_rows('token', 300, seed=4):
    lengths = [length for _, length in row]
    assert sum(lengths) >= int(0.15 * 64) > sum(lengths) - max(lengths)
    assert all(b[0] > sum(a) for a, b in itertools.pairwise(row))
    assert row[0][0] >= 0 and sum(row[-1]) <= 62


def test_a_long_blank_ends_with_the_text_or_does_not():
  row = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (64, *leaf.shape)), standard_row())
  for suffix, share in ((1.0, 1.0), (0.0, 0.3)):
    ends = [sum(row[0]) == 62 for row in blanks_of(np.asarray(chooser('document', suffix=suffix)(keys(64), row)))]
    assert np.mean(ends) == 1.0 if share == 1.0 else np.mean(ends) < share
  quarter = blanks_of(np.asarray(chooser('document', ratio=0.25)(keys(64), row)))
  assert 16 <= min(length for [(_, length)] in quarter) < 32


def test_each_document_of_a_row_has_its_own_budget():
  segments = np.repeat([1, 2, 3, 0], [40, 20, 5, 7])
  row = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (200, *leaf.shape)), make_row(segments, special=(0, 40)))
  numbers = np.asarray(chooser('token')(keys(200), row))
  chosen = numbers > 0
  assert chosen[:, 1:40].sum(axis=1).min() >= 6
  assert chosen[:, 41:60].sum(axis=1).min() >= 3
  assert not chosen[:, [0, 40, *range(60, 72)]].any()  # int(.15 * 5) is 0
  assert chosen[:, 1:40].any(axis=0).all() and chosen[:, 41:60].any(axis=0).all()
  for number in range(1, numbers.max() + 1):
    both = (numbers[:, :40] == number).any(axis=1) & (numbers[:, 40:] == number).any(axis=1)
    assert not both.any()


def test_a_document_too_short_for_its_blanks_takes_those_that_fit():
  row = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (300, *leaf.shape)), make_row(np.ones(8), special=(0, 6, 7)))
  counts = (np.asarray(chooser('token', rate=0.5)(keys(300), row)) > 0).sum(axis=1)
  assert counts.max() == 5
  assert 0 < (counts == 0).mean() < 0.2  # a first draw above 5


# Adversarial rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('level', LEVELS)
def test_parts_rebuild_the_text(level):
  rows = random_rows(200, 40)
  numbers = chooser(level)(keys(200), rows)
  found = arranger(40)(keys(200, 1), rows, numbers)
  assert not np.asarray(found.excess).any()
  seen = 0
  for row in range(200):
    number = np.asarray(numbers)[row]
    assert not number[~np.asarray(rows.eligible)[row]].any()
    assert sorted(set(number)) == list(range(number.max() + 1)) or number.min() > 0
    assert rebuild(found, row) == documents(rows, row)
    assert int(found.blanks[row]) == number.max()
    assert row_of(found, row).weights.sum() == (number > 0).sum() + number.max()
    seen += number.max()
  assert seen > 100


@pytest.mark.parametrize('level', LEVELS)
def test_a_special_token_divides_a_blank_and_stays(level):
  row = make_row(np.ones(40), special=range(0, 40, 3), sentences=np.arange(40) // 8)
  rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (50, *leaf.shape)), row)
  numbers = np.asarray(chooser(level)(keys(50), rows))
  assert not numbers[:, ::3].any()
  assert numbers.any()
  sizes = [np.bincount(number[number > 0]).max(initial=0) for number in numbers]
  assert max(sizes) == 2


@pytest.mark.parametrize('level', LEVELS)
@pytest.mark.parametrize('case', ['padding', 'one', 'two', 'special', 'short', 'full'])
def test_odd_rows(level, case):
  segments = {
    'padding': np.zeros(12), 'one': [1] + [0] * 11, 'two': [0, 1, 1] + [0] * 9, 'special': np.ones(12),
    'short': np.arange(1, 13), 'full': np.ones(12),
  }[case]  # fmt: skip
  row = make_row(segments, special=range(12) if case == 'special' else ())
  rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (20, *leaf.shape)), row)
  numbers = chooser(level)(keys(20), rows)
  # a document of fewer than seven tokens has no budget, and the released code hides a sentence of it all the same
  hides = ('one', 'two', 'short', 'full') if level == 'sentence' else ('full',)
  assert np.asarray(numbers).any() == (case in hides)
  found = arranger(3)(keys(20), rows, numbers)
  for index in range(20):
    assert rebuild_or_text(found, index) == documents(rows, index)


def test_each_short_document_hides_one_sentence():
  # two sentences of two tokens, one of six, and documents of one token; 15 % of each is less than a token
  segments = np.repeat([1, 2, 3, 4, 0], [4, 6, 1, 1, 2])
  row = make_row(segments, sentences=np.repeat([0, 1, 2, 3, 4, 5], [2, 2, 6, 1, 1, 2]))
  rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (200, *leaf.shape)), row)
  numbers = np.asarray(chooser('sentence')(keys(200), rows)) > 0
  assert numbers[:, 4:12].all()
  assert not numbers[:, 12:].any()
  first, second = numbers[:, :2], numbers[:, 2:4]
  assert (first.all(axis=1) ^ second.any(axis=1)).all()
  assert 60 < first.all(axis=1).sum() < 140


def rebuild_or_text(found, row):
  if row_of(found, row).weights.any():
    return rebuild(found, row)
  texts: dict[int, list[int]] = {}
  a = row_of(found, row)
  for token, segment in zip(a.tokens[: a.prefix].tolist(), a.segment_ids[: a.prefix].tolist(), strict=True):
    texts.setdefault(segment, []).append(token)
  return texts


def test_blanks_without_a_slot_stay_text_and_are_counted():
  rows = random_rows(100, 40, seed=3)
  numbers = chooser('sentence', rate=0.6)(keys(100), rows)
  found = arranger(2)(keys(100), rows, numbers)
  assert np.asarray(found.excess).max() > 2
  np.testing.assert_array_equal(np.asarray(found.excess), np.maximum(np.asarray(numbers).max(axis=1) - 2, 0))
  for row in range(100):
    assert len(parse(found, row)[1] if row_of(found, row).weights.any() else []) <= 2
    assert rebuild_or_text(found, row) == documents(rows, row)


def test_the_block_mask_hides_input_tokens_of_b_only():
  rows = random_rows(200, 40, seed=5)
  numbers = chooser('token', rate=0.4)(keys(200), rows)
  plain, hidden, all_hidden = (arranger(40, rate)(keys(200, 1), rows, numbers) for rate in (0.0, 0.1, 1.0))
  differs = np.asarray(plain.tokens != hidden.tokens)
  inputs = (np.asarray(plain.weights) > 0) & (np.asarray(plain.tokens) != START)
  assert (np.asarray(hidden.tokens)[differs] == BLOCK).all()
  assert not differs[~inputs].any()
  share, trials = differs.sum() / inputs.sum(), inputs.sum()
  assert share == pytest.approx(0.1, abs=4 * np.sqrt(0.09 / trials))
  np.testing.assert_array_equal(np.asarray(plain.tokens != all_hidden.tokens), inputs)
  for name in ('segment_ids', 'positions', 'block_positions', 'targets', 'weights', 'prefix'):
    assert np.array_equal(plain._asdict()[name], all_hidden._asdict()[name]), name


def test_a_row_alone_is_the_row_in_a_batch():
  rows = random_rows(8, 40, seed=6)
  for level in LEVELS:
    together = chooser(level)(keys(8), rows)
    one = [
      chooser(level)(keys(8)[i : i + 1], jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], rows))[0] for i in (0, 3, 7)
    ]
    np.testing.assert_array_equal(np.asarray(together)[[0, 3, 7]], np.stack(one))


def test_wrong_settings_are_refused():
  row, key = make_row(np.ones(8)), jax.random.key(0)
  with pytest.raises(ValueError, match=r'rate.*1\.5.*\(0, 1\]'):
    blanks.token_blanks(key, row, rate=1.5)
  with pytest.raises(ValueError, match=r'ratio.*0.*\(0, 1\]'):
    blanks.document_blanks(key, row, ratio=0)
  for wrong in ({'mean': 0.0}, {'mean': 51.0}, {'longest': 0}):
    with pytest.raises(ValueError, match=r'mean=.*\(0, 50\].*longest=\d+'):
      blanks.token_blanks(key, row, **wrong)
    with pytest.raises(ValueError, match=r'mean=.*\(0, 50\].*longest=\d+'):
      blanks.length_probabilities(**wrong)
  with pytest.raises(ValueError, match=r'suffix=1\.5.*\[0, 1\]'):
    blanks.document_blanks(key, row, suffix=1.5)
  with pytest.raises(ValueError, match=r'sentence_blanks.*sentence ids'):
    blanks.sentence_blanks(key, row._replace(sentence_ids=None))
  with pytest.raises(ValueError, match=r'slots=0'):
    blanks.arrange(key, row, Spans(row.segment_ids, row.segment_ids), slots=0, **SETTINGS)
