"""Quantiles of numbers in a file, bit for bit equal to those of numpy."""

import math

import numpy as np
import pytest

from plm_jax.data.corpora.cleaning import quantiles

SHARES = [0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0]


@pytest.mark.parametrize('count', [1, 2, 3, 100, 1_001])
@pytest.mark.parametrize('kind', ['whole', 'shares', 'one value', 'large'])
def test_quantiles_are_those_of_numpy(tmp_path, monkeypatch, count, kind):
  monkeypatch.setattr(quantiles, 'AT_ONCE', 64)
  draw = np.random.default_rng(count)
  values = {
    'whole': lambda: draw.integers(0, 30, count),
    'shares': lambda: draw.random(count) * draw.integers(0, 2, count),
    'one value': lambda: np.full(count, 0.3),
    'large': lambda: np.exp(draw.normal(0, 20, count)),
  }[kind]()
  spilled = quantiles.Spilled(tmp_path / 'values')
  for part in np.array_split(values, 3):
    spilled.append(part.tolist())
  assert spilled.quantiles(SHARES) == np.quantile(values, SHARES).tolist()


def test_no_numbers_have_no_quantiles(tmp_path):
  assert all(math.isnan(value) for value in quantiles.Spilled(tmp_path / 'values').quantiles(SHARES))
