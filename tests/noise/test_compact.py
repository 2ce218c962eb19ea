"""Slots to a row of fixed size, against plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.noise.compact import compact, compact_from, total
from plm_jax.noise.row import Slots
from tests import tiny

PAD = 99


def slowly(before, ids, keep, size):
  out = []
  for inserted, token, kept in zip(before, ids, keep, strict=True):
    out += [int(t) for t in inserted if t >= 0] + ([int(token)] if kept else [])
  return (out + [PAD] * size)[:size]


@pytest.mark.parametrize('insertions', [0, 1, 3])
@pytest.mark.parametrize('size', [1, 9, 12, 60])
def test_equals_plain_python(insertions, size):
  draw = np.random.default_rng(insertions)
  before = np.where(draw.random((50, 12, insertions)) < 0.3, draw.integers(0, 90, (50, 12, insertions)), -1)
  ids, keep = draw.integers(0, 90, (50, 12)), draw.random((50, 12)) < 0.7
  run = jax.jit(jax.vmap(lambda *slots: compact(Slots(*slots), size=size, pad_id=PAD)))
  found = run(jnp.asarray(before, jnp.int32), jnp.asarray(ids, jnp.int32), jnp.asarray(keep))
  assert (found.shape, found.dtype) == ((50, size), jnp.int32)
  assert found.tolist() == [slowly(*row, size) for row in zip(before, ids, keep, strict=True)]


def test_nothing_changes_where_nothing_is_dropped_or_inserted():
  ids = jnp.arange(7)
  assert tiny.same(compact(Slots(jnp.zeros((7, 0), int), ids, jnp.ones(7, bool)), size=7, pad_id=PAD), ids)


def test_dropping_everything_leaves_padding():
  slots = Slots(jnp.full((3, 1), -1), jnp.arange(3), jnp.zeros(3, bool))
  assert compact(slots, size=4, pad_id=PAD).tolist() == [PAD] * 4


def test_token_zero_can_be_inserted():
  slots = Slots(jnp.array([[0], [-1]]), jnp.array([5, 6]), jnp.array([True, True]))
  assert compact(slots, size=4, pad_id=PAD).tolist() == [0, 5, 6, PAD]


def test_positions_say_where_each_id_stood():
  before = jnp.array([[-1, -1], [7, -1], [8, 9], [-1, -1]])
  slots = Slots(before, jnp.arange(10, 14), jnp.array([True, True, False, True]))
  assert compact(slots, size=8, pad_id=PAD).tolist() == [10, 7, 11, 8, 9, 13, PAD, PAD]
  assert compact_from(slots, size=8, pad_id=0)[1].tolist() == [0, 1, 1, 2, 2, 3, -1, -1]
  assert compact_from(slots, size=4, pad_id=0)[1].tolist() == [0, 1, 1, 2]
  assert int(total(slots)) == 6
