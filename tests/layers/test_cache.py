"""Slots of a cache: what is written where, and who sees what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers import cache
from plm_jax.layers.masks import visible
from tests import tiny


def make() -> cache.Cache:
  return cache.empty((2, 2, 6, 3, 4))


def seen(mask) -> list[list[str]]:
  """Rows of 'x' and '.', a letter a slot."""
  return [[''.join('x' if slot else '.' for slot in query) for query in row] for row in np.asarray(visible(mask))]


def test_an_empty_cache_has_no_segments():
  slots = make()
  shapes = {name: value.shape for name, value in slots.items()}
  kept = (2, 2, 6, 3, 4)
  assert shapes == {'index': (), 'segment_ids': (2, 6), 'positions': (2, 6), 'keys': kept, 'values': kept}
  assert not any(value.any() for value in slots.values())
  assert cache.empty((1, 1, 1, 1, 1), dtype='bfloat16')['keys'].dtype == jnp.bfloat16


def test_slots_are_seen_backwards_and_padding_never():
  prompt = {'segment_ids': jnp.array([[1, 1, 0], [0, 1, 1]]), 'positions': jnp.array([[0, 1, 0], [0, 0, 1]])}
  slots, mask = cache.advance(make(), **prompt)
  assert seen(mask) == [['x.....', 'xx....', '......'], ['......', '.x....', '.xx...']]
  one = {'segment_ids': jnp.ones((2, 1), int), 'positions': jnp.full((2, 1), 2)}
  slots, mask = cache.advance(slots, **one)
  assert seen(mask) == [['xx.x..'], ['.xxx..']]
  assert int(slots['index']) == 4
  assert slots['segment_ids'].tolist() == [[1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 0, 0]]
  assert slots['positions'].tolist() == [[0, 1, 0, 2, 0, 0], [0, 0, 1, 2, 0, 0]]


def test_a_prefix_is_seen_both_ways_and_other_segments_are_not():
  prompt = {'segment_ids': jnp.array([[1, 1, 0], [1, 2, 2]]), 'positions': jnp.zeros((2, 3), int)}
  slots, mask = cache.advance(make(), **prompt, together=True)
  assert seen(mask) == [['xx....', 'xx....', '......'], ['x.....', '.xx...', '.xx...']]
  one = {'segment_ids': jnp.array([[1], [2]]), 'positions': jnp.zeros((2, 1), int)}
  assert seen(cache.advance(slots, **one, together=True)[1]) == [['xx.x..'], ['.xxx..']]


@pytest.mark.parametrize('size', [1, 3])
def test_keys_are_written_where_the_tokens_stand(size):
  slots = make() | {'index': jnp.int32(2)}
  slots, _ = cache.advance(slots, segment_ids=jnp.ones((2, size), int), positions=jnp.zeros((2, size), int))
  new = jax.random.normal(jax.random.key(0), (2, 2, 2, size, 3, 4))
  kept = jax.jit(cache.keep)(slots, keys=new[0], values=new[1])
  for number, name in enumerate(('keys', 'values')):
    found = np.asarray(kept[name])
    assert np.array_equal(found[:, :, 2 : 2 + size], new[number])
    assert not found[:, :, :2].any() and not found[:, :, 2 + size :].any()


def test_new_keys_come_after_those_of_the_past():
  old, new = (
    jax.random.normal(jax.random.key(0), (2, 2, 6, 3, 4)),
    jax.random.normal(jax.random.key(1), (2, 2, 1, 3, 4)),
  )
  assert tiny.same(cache.append(None, *new), tuple(new))
  for found, before, written in zip(cache.append(cache.Past(*old, jnp.int32(2)), *new), old, new, strict=True):
    assert tiny.same(found[:, 2:3], written)
    assert tiny.same(found[:, :2], before[:, :2]) and tiny.same(found[:, 3:], before[:, 3:])
