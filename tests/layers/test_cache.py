"""Slots of a cache: their contents and their visibility."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers import attention, cache
from plm_jax.layers.masks import visible
from tests import tiny


def make() -> cache.Cache:
  return cache.empty((2, 2, 6, 3, 4))


def seen(mask) -> list[list[str]]:
  """Format bool rows with one letter per slot, 'x' or '.'."""
  return [[''.join('x' if slot else '.' for slot in query) for query in row] for row in np.asarray(visible(mask))]


def test_an_empty_cache_has_no_segments():
  slots = make()
  shapes = {name: value.shape for name, value in slots.items()}
  kept = {'keys': (2, 2 * 3, 4, 6), 'values': (2, 2 * 3, 6, 4)}
  assert shapes == {'index': (), 'segment_ids': (2, 6), 'positions': (2, 6), **kept}
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


def test_texts_of_a_row_see_their_own_slots():
  slots = make() | {'index': jnp.int32(2), 'segment_ids': jnp.array([[1, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]])}
  slots['seen'] = jnp.broadcast_to(jnp.arange(6) < 2, (2, 2, 6))
  two = {'segment_ids': jnp.ones((2, 2), int), 'positions': jnp.full((2, 2), 2)}
  slots, mask = cache.advance(slots, **two)
  assert seen(mask) == [['xxx...', 'xx.x..'], ['.xx...', '.x.x..']]
  slots['seen'] = slots['seen'][:, ::-1]  # each continues the other
  slots, mask = cache.advance(slots, **two)
  assert seen(mask) == [['xx.xx.', 'xxx..x'], ['.x.xx.', '.xx..x']]
  assert int(slots['index']) == 6


@pytest.mark.parametrize('size', [1, 3])
def test_new_keys_come_after_those_of_the_past(size):
  slots = make()
  old = [jax.random.normal(jax.random.key(0), slots[name].shape[1:]) for name in ('keys', 'values')]
  new = jax.random.normal(jax.random.key(1), (2, 2, size, 3, 4))
  assert tiny.same(cache.append(None, *new), tuple(new))
  kept = jax.jit(cache.append)(cache.Past(*old, jnp.int32(2)), *new)
  turned = [(jnp.swapaxes(keys, 1, 2), values) for keys, values in (kept, old)]
  for found, before, written in zip(*turned, new, strict=True):
    assert tiny.same(found.reshape(2, 3, 6, 4)[:, :, 2 : 2 + size], jnp.swapaxes(written, 1, 2))
    assert tiny.same(found[:, :2], before[:, :2]) and tiny.same(found[:, 2 + size :], before[:, 2 + size :])


@pytest.mark.parametrize('groups', [1, 2, 4])
def test_attention_in_the_order_of_a_cache_is_that_of_the_formula(groups):
  query, key, value = (
    jax.random.normal(jax.random.key(number), (2, length, heads, 4))
    for number, (length, heads) in enumerate([(3, 4), (6, groups), (6, groups)])
  )
  _, mask = cache.advance(
    make() | {'index': jnp.int32(3)}, segment_ids=jnp.ones((2, 3), int), positions=jnp.zeros((2, 3), int)
  )
  mask = mask.replace(key_segments=jnp.array([[1] * 6, [0, 1, 1, 1, 1, 1]]))
  bias = jax.random.normal(jax.random.key(4), (1, 4, 3, 6))
  for given in ({}, {'bias': bias, 'scale': 1.0}):
    plain = attention.attend(query, key, value, mask=mask, implementation='xla', **given)
    kept = cache.in_order(key, value)
    found = attention.attend(query, *kept, mask=mask, implementation='cached', **given)
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)
