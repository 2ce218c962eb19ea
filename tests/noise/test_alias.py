"""Sampling by weight: the table represents the weights exactly, and samples follow it."""

import jax
import jax.numpy as jnp
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
  with pytest.raises(ValueError, match=r'weights.*0'):
    alias.make(np.zeros(3))


@pytest.mark.parametrize('size', [1, 5, 65_535, 65_536, 400_001, 3_000_000])
def test_the_product_of_all_64_bits(size):
  bits = np.random.default_rng(0).integers(0, 2**32, 1000, dtype=np.uint32)
  bits[:3] = 0, 1, 2**32 - 1
  high, low = (np.asarray(half).tolist() for half in alias._product(jnp.asarray(bits), size))
  assert list(zip(high, low, strict=True)) == [divmod(int(one) * size, 2**32) for one in bits]


def test_draws_from_many_ids_are_independent():
  weights = np.ones(100_000)
  drawn = np.asarray(alias.draw(jax.random.key(3), alias.make(weights), (2, 150_001)))
  assert drawn.min() >= 0 and drawn.max() < 100_000
  counts = np.bincount(drawn.reshape(-1), minlength=100_000)  # Poisson of mean 3
  assert counts.var() == pytest.approx(3, rel=0.03) and (counts == 0).mean() == pytest.approx(np.exp(-3), rel=0.05)
  pairs = drawn.reshape(-1)[:-1] // 50_000 * 2 + drawn.reshape(-1)[1:] // 50_000  # halves of neighbours, from one key
  assert np.abs(np.bincount(pairs) / len(pairs) - 0.25).max() < 0.005
