"""Draws by weight: the table says exactly the weights, and draws follow it."""

import jax
import numpy as np
import pytest

from plm_jax.noise import alias


@pytest.mark.parametrize('seed', range(4))
def test_the_table_says_the_weights(seed):
  draw = np.random.default_rng(seed)
  weights = draw.pareto(1.0, 500) * (draw.random(500) < 0.8)
  made = alias.make(weights)
  share = np.bincount(np.arange(500), made.accept, 500) + np.bincount(made.other, 1 - made.accept, 500)
  assert np.abs(share / 500 - weights / weights.sum()).max() < 1e-6
  assert not share[weights == 0].any()


def test_draws():
  weights = np.array([0, 5, 1, 0, 4])
  drawn = np.bincount(
    np.asarray(alias.draw(jax.random.key(0), alias.make(weights), (200, 100))).reshape(-1), minlength=5
  )
  assert np.abs(drawn / 20_000 - weights / 10).max() < 0.01 and not drawn[[0, 3]].any()
  assert set(np.asarray(alias.draw(jax.random.key(0), alias.make(np.array([0, 3])), (50,)))) == {1}
  with pytest.raises(ValueError, match='all weights are 0'):
    alias.make(np.zeros(3))
