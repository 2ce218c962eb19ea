"""Windows of long texts: each part has one owner, windows fit, and parts have context."""

import itertools

import numpy as np
import pytest

from plm_jax.inference import overlapping_windows


def test_the_worked_example() -> None:
  both = [(0, 6, 0, 5), (3, 9, 5, 8), (6, 10, 8, 10)]
  assert overlapping_windows.cut([1] * 10, room=6) == both
  assert overlapping_windows.cut([1] * 10, room=6, causal=True) == [(0, 6, 0, 6), (3, 9, 6, 9), (6, 10, 9, 10)]


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('seed', range(20))
def test_every_part_belongs_to_one_window(seed: int, causal: bool) -> None:
  draw = np.random.default_rng(seed)
  sizes, room = draw.integers(0, 5, draw.integers(1, 60)), int(draw.integers(2, 12))
  found = overlapping_windows.cut(sizes, room=room, causal=causal)
  assert [one.first for one in found[1:]] == [one.last for one in found[:-1]]
  assert (found[0].first, found[-1].last) == (0, len(sizes))
  for one in found:
    assert one.start <= one.first <= one.last <= one.stop
    assert sizes[one.start : one.stop].sum() <= room or one.stop == one.start + 1
  assert all(one.start < other.start and one.stop < other.stop for one, other in itertools.pairwise(found))


def test_a_text_that_fits_is_whole() -> None:
  assert overlapping_windows.cut([2, 2, 2], room=6) == overlapping_windows.cut([2, 2, 2], room=None) == [(0, 3, 0, 3)]
  assert overlapping_windows.cut([], room=6) == [(0, 0, 0, 0)]
