"""Noise keys: the same row gets the same noise, whatever is around it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.noise import keys
from plm_jax.noise import row as rows
from tests import tiny


def data(keys):
  return np.asarray(jax.random.key_data(keys))


def batch(row_ids, *, epochs=None, step=0):
  row_ids = jnp.asarray(row_ids, jnp.int32)
  return {'row_id': row_ids, 'epoch': jnp.zeros_like(row_ids) if epochs is None else jnp.asarray(epochs), 'step': step}


@pytest.mark.parametrize('every', ['step', 'epoch'])
def test_a_key_depends_on_the_row_and_not_on_the_batch(every):
  root = jax.random.key(3)
  together = data(keys.row_keys(root, batch(range(50)), every=every))
  assert len(np.unique(together, axis=0)) == 50
  for row in (0, 7, 49):
    assert tiny.same(data(keys.row_keys(root, batch([row]), every=every))[0], together[row])
    expected = jax.random.fold_in(jax.random.fold_in(root, row), 0)
    assert tiny.same(data(expected), together[row])
  assert tiny.same(data(keys.row_keys(root, batch(range(49, -1, -1)), every=every)), together[::-1])


def test_dynamic_noise_is_drawn_anew_at_each_step_whatever_the_epoch():
  root = jax.random.key(0)
  draw = lambda **kw: data(keys.row_keys(root, batch(range(4), **kw), every='step'))  # noqa: E731
  steps = np.stack([draw(step=step) for step in range(30)])
  assert len(np.unique(steps.reshape(-1, 2), axis=0)) == 120
  assert tiny.same(draw(step=5, epochs=[0, 1, 2, 3]), draw(step=5))


def test_static_noise_repeats_a_number_of_copies_whatever_the_step():
  root = jax.random.key(0)
  draw = lambda epoch, **kw: data(  # noqa: E731
    keys.row_keys(root, batch(range(4), epochs=[epoch] * 4, **kw), every='epoch', copies=10)
  )
  epochs = np.stack([draw(epoch) for epoch in range(40)])
  # 40 epochs see each of 10 maskings 4 times (BERT)
  assert len(np.unique(epochs[:, 0], axis=0)) == 10
  assert tiny.same(epochs[:10], epochs[10:20])
  assert tiny.same(draw(3, step=17), draw(3))


def test_other_roots_and_other_choices():
  one, other = (data(keys.row_keys(jax.random.key(seed), batch(range(4)), every='step')) for seed in (0, 1))
  assert not (one == other).all(axis=1).any()
  with pytest.raises(ValueError, match=r"every='batch'.*step, epoch"):
    keys.row_keys(jax.random.key(0), batch([0]), every='batch')


def test_word_ids_rise_where_a_word_starts():
  starts = jnp.array([True, False, True])
  found = rows.word_ids(jnp.array([[0, 1, 1, 2, 0, 1], [1, 1, 2, 2, 1, 0]]), starts)
  assert found.tolist() == [[1, 1, 1, 2, 3, 3], [0, 0, 1, 2, 2, 3]]


def test_sentence_ids_rise_after_a_token_that_ends_one():
  ends = jnp.array([False, True, False])
  found = rows.sentence_ids(jnp.array([[0, 1, 0, 2, 1, 0], [1, 1, 0, 0, 0, 1]]), ends)
  assert found.tolist() == [[0, 0, 1, 1, 1, 2], [0, 1, 2, 2, 2, 2]]
