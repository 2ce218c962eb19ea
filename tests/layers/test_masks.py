"""Structured masks against the sentences that define them."""

import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers.masks import Mask, visible

SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 0, 0], [0, 0, 1, 1, 2, 2, 2, 3], [1, 1, 1, 1, 1, 1, 1, 1]])
PREFIX = np.array([2, 0, 5])


def slowly(*, causal=False, window=None, prefix=None):
  rows, length = SEGMENTS.shape
  seen = np.zeros((rows, length, length), bool)
  for row in range(rows):
    for query in range(length):
      for key in range(length):
        own = SEGMENTS[row, query] == SEGMENTS[row, key] and SEGMENTS[row, key] > 0
        order = key <= query if causal or window is not None else True
        near = key > query - window if window is not None else True
        exempt = prefix is not None and key < prefix[row]
        seen[row, query, key] = own and ((order and near) or exempt)
  return seen


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('window', [None, 1, 3, 100])
@pytest.mark.parametrize('prefix', [None, PREFIX])
def test_equals_plain_python(causal, window, prefix):
  segments = jnp.asarray(SEGMENTS)
  mask = Mask(segments, segments, causal, window, None if prefix is None else jnp.asarray(prefix))
  assert visible(mask).tolist() == slowly(causal=causal, window=window, prefix=prefix).tolist()


def test_padding_is_never_seen_and_sees_nothing():
  segments = jnp.asarray(SEGMENTS)
  seen = np.asarray(visible(Mask(segments, segments)))
  assert not seen[SEGMENTS == 0].any()
  assert not np.swapaxes(seen, 1, 2)[SEGMENTS == 0].any()


def test_queries_and_keys_may_differ_in_length():
  seen = visible(Mask(jnp.array([[1, 2, 0]]), jnp.array([[1, 1, 2, 2, 0]])))
  assert seen.tolist() == [[[True, True, False, False, False], [False, False, True, True, False], [False] * 5]]


def test_a_spelt_out_mask_is_one_more_condition():
  segments = jnp.asarray(SEGMENTS)
  allowed = jnp.asarray(np.random.default_rng(0).random((3, 8, 8)) < 0.5)
  seen = visible(Mask(segments, segments, causal=True, allowed=allowed))
  assert seen.tolist() == (slowly(causal=True) & np.asarray(allowed)).tolist()
