"""Pairs of segments: which is chosen, what truncation takes, where the special tokens stand."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.noise import pair

WIDTH = 12
MANY = 4000
CHOICES = {'nsp': pair.next_or_other, 'sop': pair.in_order_or_swapped}


def segment(first: int, length: int) -> pair.Segment:
  ids = np.where(np.arange(WIDTH) < length, first + np.arange(WIDTH), -1)
  return pair.Segment(jnp.asarray(ids, jnp.int32), jnp.int32(length))


@functools.cache
def choose(name: str, following: int):
  """Pair segments that begin with 100, 200 and 300, for many keys."""
  keys = jax.random.split(jax.random.key(0), MANY)
  made = jax.jit(jax.vmap(lambda key: CHOICES[name](key, segment(100, 5), segment(200, following), segment(300, 7))))(
    keys
  )
  return [np.asarray(x) for x in (made.label, made.first.ids[:, 0], made.second.ids[:, 0], made.second.length)]


def test_next_sentence_is_random_half_the_time():
  label, first, second, length = choose('nsp', 4)
  assert pair.NextSentence.RANDOM == 1
  assert label.mean() == pytest.approx(0.5, abs=4 * 0.5 / MANY**0.5)
  assert (first == 100).all()
  assert (second == np.where(label == 1, 300, 200)).all()
  assert (length == np.where(label == 1, 7, 4)).all()


def test_sentence_order_is_swapped_half_the_time():
  label, first, second, _ = choose('sop', 4)
  assert pair.SentenceOrder.SWAPPED == 1
  assert label.mean() == pytest.approx(0.5, abs=4 * 0.5 / MANY**0.5)
  assert (first == np.where(label == 1, 200, 100)).all()
  assert (second == np.where(label == 1, 100, 200)).all()


@pytest.mark.parametrize('name', CHOICES)
def test_a_lone_segment_gets_one_of_another_document(name):
  label, first, second, length = choose(name, 0)
  assert (label == 1).all()
  assert (first == 100).all() and (second == 300).all() and (length == 7).all()


def slow_truncate(a: list, b: list, room: int, draw) -> tuple[list, list]:
  """Run BERT's truncate_seq_pair, token by token."""
  a, b = list(a), list(b)
  while len(a) + len(b) > room:
    longer = a if len(a) > len(b) else b
    longer.pop(0 if draw.random() < 0.5 else -1)
  return a, b


@pytest.mark.parametrize('room', [2, 5, 6, 9, 24])
def test_truncation_leaves_the_lengths_of_the_token_by_token_one(room):
  sizes = np.array(list(itertools.product(range(1, WIDTH + 1), repeat=2)), np.int32)
  ids = jnp.arange(WIDTH)

  def cut(key, a, b):
    first, second = pair.truncate(key, pair.Segment(ids, a), pair.Segment(100 + ids, b), room=room)
    return first.ids[0], first.length, second.ids[0], second.length

  keys = jax.random.split(jax.random.key(1), len(sizes))
  got = np.stack(jax.jit(jax.vmap(cut))(keys, sizes[:, 0], sizes[:, 1]), axis=1)
  draw = np.random.default_rng(0)
  for (a, b), (first_a, kept_a, first_b, kept_b) in zip(sizes.tolist(), got.tolist(), strict=True):
    left, right = slow_truncate(list(range(a)), list(range(b)), room, draw)
    assert (kept_a, kept_b) == (len(left), len(right))
    assert 0 <= first_a <= a - kept_a and 0 <= first_b - 100 <= b - kept_b


def test_each_token_goes_from_the_front_or_the_back_with_equal_chance():
  keys = jax.random.split(jax.random.key(2), MANY)
  ids = jnp.arange(WIDTH)

  def cut(key):
    first, second = pair.truncate(key, pair.Segment(ids, jnp.int32(11)), pair.Segment(ids, jnp.int32(9)), room=13)
    return first.ids[0], second.ids[0], first.length, second.length

  first, second, a, b = (np.asarray(x) for x in jax.jit(jax.vmap(cut))(keys))
  assert (a == 7).all() and (b == 6).all()
  for gone, size in ((first, 4), (second, 3)):
    counts = np.bincount(gone, minlength=size + 1)
    weights = np.array([1, 4, 6, 4, 1] if size == 4 else [1, 3, 3, 1]) / 2**size
    chi = ((counts - MANY * weights) ** 2 / (MANY * weights)).sum()
    assert chi < 20.5  # 4 degrees of freedom, p = 0.0004
  assert abs(np.corrcoef(first, second)[0, 1]) < 4 / MANY**0.5


@pytest.mark.parametrize('separators', [1, 2])
def test_specials_types_and_padding_stand_in_their_places(separators):
  cls, sep, pad, length = 1, 2, 0, 14
  joined = jax.jit(
    functools.partial(pair.join, length=length, cls_id=cls, sep_id=sep, pad_id=pad, separators=separators)
  )
  for a, b in ((3, 4), (1, 1), (5, 5)):
    out = joined(segment(100, a), segment(200, b))
    row = [cls, *range(100, 100 + a), *[sep] * separators, *range(200, 200 + b), sep]
    rest = length - len(row)
    assert out.ids.tolist() == row + [pad] * rest
    assert out.segment_ids.tolist() == [1] * len(row) + [0] * rest
    assert out.type_ids.tolist() == [0] * (1 + a + separators) + [1] * (b + 1) + [0] * rest
