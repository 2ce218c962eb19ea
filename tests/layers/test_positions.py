"""Positions against plain Python."""

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
  assert 'Bert has learned positions for 512 tokens and was given a row of 513' in message
  assert 'shorten data.length' in message
  assert 'model.overrides.max_length=513' in message
