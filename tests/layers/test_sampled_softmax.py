"""The sampled softmax against its definition in numpy, sampling one by one, and the whole softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers import sampled_softmax


def test_shares_are_those_of_tensorflow():
  """Compute (log(k + 2) - log(k + 1)) / log(v + 1), as TensorFlow."""
  shares = sampled_softmax.log_uniform(100)
  assert shares.sum() == pytest.approx(1)
  assert shares[7] == pytest.approx((np.log(9) - np.log(8)) / np.log(101))


def test_drawn_words_are_different_and_as_frequent_as_one_by_one():
  size, count, times = 12, 4, 4_000
  shares = sampled_softmax.log_uniform(size)
  keys = jax.random.split(jax.random.key(0), times)
  drawn = np.asarray(jax.vmap(lambda key: sampled_softmax.draw(key, jnp.log(shares), count))(keys))
  assert all(len(set(row)) == count for row in drawn.tolist())
  random, one_by_one = np.random.default_rng(1), np.zeros(size)
  tries = []
  for _ in range(times):
    found, tried = set(), 0
    while len(found) < count:  # TensorFlow's way
      found.add(int(random.choice(size, p=shares)))
      tried += 1
    one_by_one[list(found)] += 1
    tries.append(tried)
  ours = np.bincount(drawn.reshape(-1), minlength=size) / times
  np.testing.assert_allclose(ours, one_by_one / times, atol=0.04)  # five standard errors
  expected = sampled_softmax.expected_counts(shares, count)
  assert expected.sum() == pytest.approx(count, abs=1e-6)
  theirs = 1 - (1 - shares[None]) ** np.array(tries)[:, None]  # for the number of tries of each draw
  np.testing.assert_allclose(expected, theirs.mean(axis=0), atol=0.03)


def test_nats_are_those_of_the_definition():
  random = np.random.default_rng(0)
  true, drawn = random.normal(size=3), random.normal(size=(3, 5))
  same = np.zeros((3, 5), bool)
  same[1, 2] = True
  expected = []
  for row in range(3):
    others = [np.exp(drawn[row, place]) for place in range(5) if not same[row, place]]
    expected.append(-np.log(np.exp(true[row]) / (np.exp(true[row]) + sum(others))))
  found = sampled_softmax.nats(jnp.asarray(true), jnp.asarray(drawn), jnp.asarray(same))
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_more_draws_come_closer_to_the_whole_softmax():
  size = 300
  shares, logits = sampled_softmax.log_uniform(size), np.random.default_rng(0).normal(size=size)
  whole = np.log(np.exp(logits).sum()) - logits[:50]  # of 50 true words
  errors = []
  for count in (10, 60, 250, size - 1):
    expected = np.log(sampled_softmax.expected_counts(shares, count))
    means = []
    for key in jax.random.split(jax.random.key(2), 40):
      drawn = np.asarray(sampled_softmax.draw(key, jnp.log(shares), count))
      true = jnp.asarray(logits[:50])  # known to be in the sum, so Q is 1 for it there
      others = jnp.asarray(logits[drawn] - expected[drawn])[None]
      same = np.arange(50)[:, None] == drawn
      means.append(np.asarray(sampled_softmax.nats(true, others, jnp.asarray(same))))
    errors.append(float(np.abs(np.mean(means, axis=0) - whole).mean()))
  assert errors == sorted(errors, reverse=True) and errors[-1] < 0.01, errors
