"""Other orders: nothing lost, nothing across a boundary, the laws of a slow reference."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.noise import rearrange
from plm_jax.noise.row import Row, sentence_ids
from tests.noise import spans_reference as slow
from tests.noise.spans_reference import HARD_ROWS, make_row, random_rows

FUNCTIONS = {f.__name__: f for f in (rearrange.permute_sentences, rearrange.deshuffle, rearrange.rotate)}


@functools.cache
def compiled(name: str, **settings):
  return jax.jit(jax.vmap(lambda key, row: FUNCTIONS[name](key, row, **settings)))


def over_rows(name: str, rows: Row, *, seed: int = 0, **settings) -> np.ndarray:
  """Compute the source of each position, int[rows, length]."""
  keys = jax.random.split(jax.random.key(seed), len(rows.ids))
  return np.asarray(compiled(name, **settings)(keys, rows))


def repeat(row: Row, count: int) -> Row:
  return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), row)


@pytest.mark.parametrize('name', FUNCTIONS)
def test_tokens_stay_in_their_document_and_special_tokens_stay(name):
  rows = random_rows(60, 40)
  order = over_rows(name, rows)
  assert (np.sort(order, axis=1) == np.arange(40)).all()
  fixed = ~np.asarray(rows.eligible)
  assert (order == np.arange(40))[fixed].all()
  assert (order != np.arange(40)).any()
  for row in range(60):
    for run in slow.runs(np.asarray(rows.eligible[row]), np.asarray(rows.segment_ids[row])):
      assert sorted(order[row][run]) == run


@pytest.mark.parametrize('name', FUNCTIONS)
def test_hard_rows(name):
  for label, row in HARD_ROWS.items():
    order = over_rows(name, repeat(row, 1))[0]
    assert sorted(order) == list(range(len(order))), label
    assert (order == np.arange(len(order)))[~np.asarray(row.eligible)].all(), label


@pytest.mark.parametrize('name', FUNCTIONS)
def test_a_batch_is_its_rows(name):
  rows = random_rows(5, 24, seed=1)
  together = over_rows(name, rows)
  keys = jax.random.split(jax.random.key(0), 5)
  for row in range(5):
    alone = compiled(name)(keys[row : row + 1], jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], rows))
    assert alone[0].tolist() == together[row].tolist()


@pytest.mark.parametrize('ratio', [1.0, 0.5, 0.0])
def test_sentences_move_whole(ratio):
  rows = random_rows(60, 40, seed=2)
  order = over_rows('permute_sentences', rows, ratio=ratio)
  for row in range(60):
    sentences = np.asarray(rows.sentence_ids[row])
    for run in slow.runs(np.asarray(rows.eligible[row]), np.asarray(rows.segment_ids[row])):
      groups = slow.words(run, sentences)
      found = slow.words(order[row][run].tolist(), sentences)
      assert sorted(map(tuple, found)) == sorted(map(tuple, groups))
      moved = sum(one != other for one, other in zip(found, groups, strict=True))
      assert moved <= int(np.ceil(round(ratio * len(groups), 9)))


@pytest.mark.parametrize('ratio', [1.0, 0.5])
def test_sentence_orders_have_the_law_of_the_slow_reference(ratio):
  sentences = [0, 0, 1, 2, 2, 2, 3]
  groups = [[0, 1], [2], [3, 4, 5], [6]]
  count = 6000
  order = over_rows('permute_sentences', repeat(make_row(7, sentences=sentences), count), ratio=ratio)
  draw = np.random.default_rng(0)
  theirs = [tuple(slow.permute(draw, groups, ratio=ratio)) for _ in range(count)]
  ours = list(map(tuple, order.tolist()))
  known = sorted(set(theirs))
  assert set(ours) == set(known)
  assert len(known) == (24 if ratio == 1 else 7)
  one, two = (np.array([found.count(key) for key in known]) for found in (ours, theirs))
  # chi-square of two samples; 99.9 % with 23 and 6 degrees of freedom
  assert ((one - two) ** 2 / (one + two)).sum() < (49.7 if ratio == 1 else 22.5)


def test_a_text_without_a_full_stop_is_one_sentence():
  row = make_row(8)
  assert over_rows('permute_sentences', repeat(row, 20)).tolist() == [list(range(8))] * 20


def test_a_sentence_ends_with_its_full_stop_and_with_the_document():
  stop = jnp.asarray(np.arange(10) == 9)
  ids = jnp.array([1, 2, 9, 3, 9, 4, 5, 6])
  row = make_row(8, segments=[1, 1, 1, 1, 1, 1, 2, 2])._replace(ids=ids, sentence_ids=sentence_ids(ids, stop))
  order = over_rows('permute_sentences', repeat(row, 300))
  found = {tuple(np.asarray(ids)[line].tolist()) for line in order}
  parts = [(1, 2, 9), (3, 9), (4,)]
  assert found == {(*sum(way, ()), 5, 6) for way in itertools.permutations(parts)}


def test_sentences_beyond_the_bound_stay():
  row = make_row(300, sentences=np.arange(300))
  order = over_rows('permute_sentences', repeat(row, 4))
  assert (order[:, 75:] == np.arange(75, 300)).all()
  assert (np.sort(order[:, :75], axis=1) == np.arange(75)).all()
  assert (order[:, :75] != np.arange(75)).mean() > 0.9


def test_sentence_permutation_needs_sentence_ids():
  with pytest.raises(ValueError, match=r'permute_sentences.*sentence ids'):
    rearrange.permute_sentences(jax.random.key(0), make_row(4)._replace(sentence_ids=None))


def test_deshuffling_is_uniform_over_orders():
  order = over_rows('deshuffle', repeat(make_row(4), 7200))
  seen = np.unique(order, axis=0, return_counts=True)[1]
  assert len(seen) == 24
  assert 7.5 < ((seen - 300) ** 2 / 300).sum() < 49.7


def test_rotation_begins_anywhere_but_at_the_first_token():
  order = over_rows('rotate', repeat(make_row(9, real=8, eligible=[0] + [1] * 7 + [0]), 6000))
  start = order[:, 1]
  for line in order[:50]:
    assert line[[0, 8]].tolist() == [0, 8]
    assert line[1:8].tolist() == [1 + (line[1] - 1 + k) % 7 for k in range(7)]
  seen = np.bincount(start, minlength=8)
  assert seen[:2].tolist() == [0, 0]
  assert ((seen[2:] - 1000) ** 2 / 1000).sum() < 20.5  # 5 degrees of freedom


def test_rotation_has_its_rate():
  order = over_rows('rotate', repeat(make_row(6), 4000), rate=0.25)
  assert (order[:, 0] != 0).mean() == pytest.approx(0.25, abs=4 * np.sqrt(0.25 * 0.75 / 4000))
  assert (over_rows('rotate', repeat(make_row(6), 10), rate=0.0) == np.arange(6)).all()


def test_settings_out_of_range_are_refused():
  for name, setting in (('permute_sentences', 'ratio'), ('rotate', 'rate')):
    with pytest.raises(ValueError, match=rf'{setting}=1\.5.*\[0, 1\]'):
      FUNCTIONS[name](jax.random.key(0), make_row(4), **{setting: 1.5})
