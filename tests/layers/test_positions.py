"""Positions and relative buckets against plain Python."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers import positions


def slowly(rows):
  out = []
  for row in rows:
    places, previous, index = [], None, 0
    for segment in row:
      index = index + 1 if segment == previous else 0
      previous = segment
      places.append(index)
    out.append(places)
  return out


def test_restart_in_each_segment():
  rows = [[1, 1, 1, 2, 2, 3], [1, 2, 3, 4, 5, 6], [1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 2], [0] * 6, [7] * 6]
  found = positions.from_segments(jnp.array(rows))
  assert found.tolist() == slowly(rows)
  assert found[3].tolist() == [0, 1, 0, 1, 2, 0]


def test_equal_plain_python_for_any_row():
  rows = np.random.default_rng(0).integers(0, 3, (200, 17))
  found = jax.jit(positions.from_segments)(rows)
  assert found.dtype == jnp.int32
  assert found.tolist() == slowly(rows.tolist())


def test_a_row_of_one():
  assert positions.from_segments(jnp.array([[1], [0]])).tolist() == [[0], [0]]


def test_length_guard_names_the_model_and_the_cure():
  positions.check_length(512, max_length=512, model='Bert')
  with pytest.raises(ValueError) as error:
    positions.check_length(513, max_length=512, model='Bert')
  message = str(error.value)
  assert all(text in message for text in ('Bert', '512', '513'))
  assert 'data.length' in message
  assert 'model.overrides.max_length=513' in message


def test_relative_rows_are_equation_three():
  for length, k in ((1, 3), (4, 8), (9, 4), (20, 4)):
    rows = positions.relative_rows(length, num_buckets=0, max_distance=k)
    expected = []
    for difference in range(1 - length, length):
      expected.append(0 if difference <= -k else 2 * k - 1 if difference >= k else difference + k)
    assert rows.tolist() == expected
    assert rows.dtype == np.int32


def test_buckets_are_exact_near_by_and_logarithmic_far_away():
  differences = np.arange(-600, 601)
  found = positions.log_buckets(differences, num_buckets=256, max_distance=512)
  assert same_between(found, differences, -128, 128)
  assert (found == -found[::-1]).all()
  assert (np.diff(found) >= 0).all()
  named = dict(zip(differences.tolist(), found.tolist(), strict=True))
  # ceil(ln(d / 128) / ln(511 / 128) * 127) + 128
  assert {d: named[d] for d in (128, 129, 130, 200, 300, 510, 511)} == {
    128: 128, 129: 129, 130: 130, 200: 169, 300: 207, 510: 255, 511: 255
  }  # fmt: skip
  assert named[512] == 256  # beyond the last bucket: the rows of a table cut it


def same_between(found, differences, low, high):
  near = (differences >= low) & (differences <= high)
  return (found[near] == differences[near]).all()


def test_bucketed_rows_stay_in_the_table():
  rows = positions.relative_rows(2000, num_buckets=256, max_distance=512)
  assert (rows.min(), rows.max()) == (0, 511)
  assert rows[1999] == 256
  assert set(np.diff(rows)) <= {0, 1}


@pytest.mark.parametrize(('buckets', 'farthest'), [(256, 512), (8, 13), (6, 10), (32, 64), (320, 512)])
def test_buckets_equal_those_of_hugging_face(buckets, farthest):
  torch = pytest.importorskip('torch')
  v2 = pytest.importorskip('transformers.models.deberta_v2.modeling_deberta_v2')
  differences = np.arange(-3 * farthest, 3 * farthest + 1)
  theirs = v2.make_log_bucket_position(torch.tensor(differences), buckets, farthest).numpy()
  ours = positions.log_buckets(differences, num_buckets=buckets, max_distance=farthest)
  assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize('length', [1, 2, 5, 8])
def test_skew_is_a_gather(length):
  scores = np.random.default_rng(0).normal(size=(2, 3, length, 2 * length - 1)).astype(np.float32)
  found = np.asarray(jax.jit(positions.skew)(scores))
  for i in range(length):
    for j in range(length):
      assert (found[..., i, j] == scores[..., i, j - i + length - 1]).all()


def test_skew_refuses_another_width():
  with pytest.raises(ValueError, match=r'\[\.\.\., l, 2 l - 1\]'):
    positions.skew(jnp.zeros((3, 6)))


BOTH_WAYS = [8, 12, 16, 23, 32, 46, 64, 91]
BACKWARDS = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


def test_buckets_start_where_t5_starts_them():
  assert positions.bucket_starts(16, 128) == [*range(1, 8), *BOTH_WAYS]
  assert positions.bucket_starts(32, 128) == [*range(1, 16), *BACKWARDS]


def by_logarithm(relative: int, *, bidirectional: bool, num_buckets: int, max_distance: int) -> int:
  """Compute the formula of the paper's code, except at exact starts."""
  first = 0
  if bidirectional:
    num_buckets //= 2
    first = num_buckets if relative > 0 else 0
    distance = abs(relative)
  else:
    distance = max(-relative, 0)
  exact = num_buckets // 2
  if distance < exact:
    return first + distance
  share = math.log(distance / exact) / math.log(max_distance / exact) * (num_buckets - exact)
  return first + min(exact + math.floor(share + 1e-9), num_buckets - 1)


@pytest.mark.parametrize('bidirectional', [True, False])
@pytest.mark.parametrize(('num_buckets', 'max_distance'), [(32, 128), (8, 20), (64, 1000), (4, 3)])
def test_buckets_equal_the_formula(bidirectional, num_buckets, max_distance):
  sizes = {'bidirectional': bidirectional, 'num_buckets': num_buckets, 'max_distance': max_distance}
  relative = np.arange(-1200, 1201)
  found = jax.jit(lambda x: positions.relative_buckets(x, **sizes))(relative)
  assert found.dtype == jnp.int32
  assert found.tolist() == [by_logarithm(int(x), **sizes) for x in relative]
  assert set(found.tolist()) <= set(range(num_buckets))
  # bidirectional: 0 to the right is no distance, so one bucket stays empty
  assert len(set(found.tolist())) == num_buckets - bidirectional


def test_keys_on_the_right_have_buckets_of_their_own_or_none():
  relative = jnp.array([[-3, 0, 3], [200, -200, 1]])
  assert positions.relative_buckets(relative, bidirectional=True).tolist() == [[3, 0, 19], [31, 15, 17]]
  assert positions.relative_buckets(relative, bidirectional=False).tolist() == [[3, 0, 0], [0, 31, 0]]


def test_buckets_that_cannot_be_are_refused():
  with pytest.raises(ValueError, match=r'256.*128'):
    positions.bucket_starts(256, 128)
  with pytest.raises(ValueError, match=r'^1 '):
    positions.bucket_starts(1, 128)
