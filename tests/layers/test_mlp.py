"""Both forms of GELU by number, and the feed-forward block by its formula."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers.linear import normal
from plm_jax.layers.mlp import ACTIVATIONS, Mlp, gelu_erf, gelu_tanh
from tests import tiny

GRID = np.linspace(-6, 6, 4801)
ERF = np.array([0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in GRID])
TANH = np.array([0.5 * x * (1 + math.tanh(0.7978845608028654 * (x + 0.044715 * x**3))) for x in GRID])


def test_equal_their_formulas():
  x = jnp.asarray(GRID, jnp.float32)
  assert np.abs(np.asarray(gelu_erf(x)) - ERF).max() < 1e-6
  assert np.abs(np.asarray(gelu_tanh(x)) - TANH).max() < 1e-6


def test_differ_by_what_they_should():
  apart = np.abs(ERF - TANH)
  assert apart.max() == pytest.approx(4.73e-4, abs=5e-7)
  assert abs(GRID[apart.argmax()]) == pytest.approx(2.70, abs=0.005)
  x = jnp.asarray(GRID, jnp.float32)
  assert np.abs(np.asarray(gelu_erf(x) - gelu_tanh(x))).max() == pytest.approx(4.73e-4, abs=2e-6)


@pytest.mark.parametrize('gelu', [gelu_erf, gelu_tanh])
def test_keep_their_type_and_have_finite_gradients(gelu):
  assert gelu(jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
  slope = jax.vmap(jax.grad(gelu))(jnp.array([-1e4, -10.0, 0.0, 10.0, 1e4]))
  np.testing.assert_allclose(slope, [0, 0, 0.5, 1, 1], atol=1e-5)


@pytest.mark.parametrize('activation', ACTIVATIONS)
def test_block_is_up_activation_down(activation):
  layer = Mlp(12, activation, up_init=normal(0.5), down_init=normal(0.1))
  x = jax.random.normal(jax.random.key(0), (2, 3, 8))
  boxed = layer.init(jax.random.key(1), x)['params']
  assert (boxed['up']['kernel'].names, boxed['down']['kernel'].names) == (('embed', 'mlp'), ('mlp', 'embed'))
  params = nn.unbox(boxed)
  for name, width in (('up', 12), ('down', 8)):
    params[name]['bias'] = jax.random.normal(jax.random.key(width), (width,))
  middle = np.asarray(ACTIVATIONS[activation](x @ params['up']['kernel'] + params['up']['bias']))
  expected = middle @ np.asarray(params['down']['kernel']) + params['down']['bias']
  assert tiny.worst(layer.apply({'params': params}, x), expected) < 1e-5
  assert float(params['up']['kernel'].std()) > 2 * float(params['down']['kernel'].std())
