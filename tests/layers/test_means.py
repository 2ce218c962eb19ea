"""Means of a batch from its parts."""

import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers import means

VALUES = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
WEIGHTS = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]], np.float32)


@pytest.mark.parametrize(
  ('values', 'weights', 'mean'), [(VALUES, WEIGHTS, 7 / 3), (VALUES[:, 0], np.array([0.0, 1.0], np.float32), 4.0)]
)
def test_parts_add_up_to_the_mean_of_the_batch(values, weights, mean):
  scale = means.batch_scale(jnp.asarray(weights))
  parts = [means.scaled_sum(values[row], weights[row], scale[row]) for row in (slice(0, 1), slice(1, 2))]
  np.testing.assert_allclose(sum(parts), mean, rtol=1e-6)
  total, weight = means.metric(jnp.asarray(values), jnp.asarray(weights))
  np.testing.assert_allclose(total / weight, mean, rtol=1e-6)


def test_a_batch_without_weight_gives_0():
  assert np.array_equal(means.batch_scale(jnp.zeros((2, 3))), [1.0, 1.0])


def test_terms_with_totals_of_their_own_are_a_mean_over_rows():
  targets = means.row_terms(jnp.array([1.0, 1.0, 0.0]))
  total, weight = means.whole_loss(jnp.float32(3.0), targets)
  assert (float(total), float(weight)) == (6.0, 2.0)


def test_perplexity_is_of_the_metric_that_exists():
  assert means.perplexity_of({'loss': 0.0}) == {'perplexity': 1.0}
  assert means.perplexity_of({'loss': 0.0}, nats='mlm_loss') == {}
