"""Both forms of GELU by number, and the feed-forward block by its formula."""

import math
from typing import get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers.linear import normal
from plm_jax.layers.mlp import ACTIVATIONS, Activation, GatedMlp, Mlp, PredictionHead, gelu_erf, gelu_tanh
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


def test_block_without_biases():
  layer = Mlp(12, 'relu', up_init=normal(0.5), down_init=normal(0.1), use_bias=False)
  x = jax.random.normal(jax.random.key(0), (2, 3, 8))
  params = nn.unbox(layer.init(jax.random.key(1), x)['params'])
  assert {name: list(dense) for name, dense in params.items()} == {'up': ['kernel'], 'down': ['kernel']}
  expected = np.maximum(np.asarray(x @ params['up']['kernel']), 0) @ np.asarray(params['down']['kernel'])
  assert tiny.worst(layer.apply({'params': params}, x), expected) < 1e-5


@pytest.mark.parametrize('activation', ['gelu_tanh', 'silu'])
def test_gated_block_multiplies_two_products(activation):
  layer = GatedMlp(12, activation, up_init=normal(0.5), down_init=normal(0.1))
  x = jax.random.normal(jax.random.key(0), (2, 3, 8))
  boxed = layer.init(jax.random.key(1), x)['params']
  names = {name: dense['kernel'].names for name, dense in boxed.items()}
  assert names == {'gate': ('embed', 'mlp'), 'up': ('embed', 'mlp'), 'down': ('mlp', 'embed')}
  params = nn.unbox(boxed)
  assert all(list(dense) == ['kernel'] for dense in params.values())
  gate, up, down = (np.asarray(params[name]['kernel'], np.float64) for name in ('gate', 'up', 'down'))
  z = np.asarray(x, np.float64) @ gate
  gated = {
    'gelu_tanh': 0.5 * z * (1 + np.tanh(0.7978845608028654 * (z + 0.044715 * z**3))),
    'silu': z / (1 + np.exp(-z)),
  }[activation]
  assert tiny.worst(layer.apply({'params': params}, x), (gated * (x @ up)) @ down) < 1e-5
  assert float(params['gate']['kernel'].std()) > 2 * float(params['down']['kernel'].std())


@pytest.mark.parametrize('block', [Mlp, GatedMlp])
def test_dropout_is_between_the_products(block):
  layer = block(512, 'relu', up_init=normal(0.5), down_init=nn.initializers.ones, dropout=0.25)
  x = jnp.ones((1, 1, 4))
  params = nn.unbox(layer.init(jax.random.key(0), x)['params'])
  _, state = layer.apply(
    {'params': params}, x, train=True, rngs={'dropout': jax.random.key(1)}, capture_intermediates=True
  )
  still = layer.apply({'params': params}, x, capture_intermediates=True)[1]
  parts = [tree['intermediates'] for tree in (state, still)]
  (dropped,), (middle,) = (tree['Dropout_0']['__call__'] for tree in parts)
  kept = np.asarray(dropped != 0) | np.asarray(middle == 0)
  assert tiny.worst(dropped[kept], middle[kept] / 0.75) < 1e-6
  assert 0.1 < 1 - kept.mean() < 0.4


def test_the_first_layer_of_a_head_may_have_a_rate_of_its_own():
  x = jnp.ones((1, 400))
  for rate, dropped in ((None, 0.5), (0.0, 0.0), (0.9, 0.9)):
    head = PredictionHead(4, 2, 'relu', 0.5, normal(1.0), input_dropout=rate)
    params = head.init(jax.random.key(0), x)
    rngs = {'dropout': jax.random.key(1)}
    _, seen = head.apply(params, x, train=True, rngs=rngs, capture_intermediates=True, mutable='intermediates')
    first = seen['intermediates']['Dropout_0']['__call__'][0]
    assert (np.asarray(first) == 0).mean() == pytest.approx(dropped, abs=0.08)


@pytest.mark.parametrize('activation', ACTIVATIONS)
def test_prediction_head_is_linear_activation_linear(activation):
  head = PredictionHead(hidden=7, outputs=3, activation=activation, dropout=0.5, kernel_init=normal(1.0))
  x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)), jnp.float32)
  params = nn.unbox(head.init(jax.random.key(0), x))['params']
  assert jax.tree.map(jnp.shape, params) == {
    'hidden': {'kernel': (5, 7), 'bias': (7,)},
    'out': {'kernel': (7, 3), 'bias': (3,)},
  }
  params = tiny.draw(params)
  inner = ACTIVATIONS[activation](x @ params['hidden']['kernel'] + params['hidden']['bias'])
  expected = inner @ params['out']['kernel'] + params['out']['bias']
  assert tiny.worst(head.apply({'params': params}, x), expected) < 1e-6
  dropped = head.apply({'params': params}, x, train=True, rngs={'dropout': jax.random.key(1)})
  assert tiny.worst(dropped, expected) > 1e-3


def test_the_type_of_activations_lists_them():
  assert get_args(Activation) == tuple(ACTIVATIONS)


@pytest.mark.parametrize('block', [Mlp, GatedMlp])
def test_a_gradient_on_a_cpu_stores_only_what_an_activation_reads(block):
  x, init = jnp.ones((4, 8)), normal(0.02)
  mlp = block(64, 'gelu_tanh', init, init)
  params = mlp.init(jax.random.key(0), x)
  _, backward = jax.vjp(lambda params: mlp.apply(params, x), params)
  wide = [leaf for leaf in jax.tree.leaves(backward) if leaf.shape == (4, 64)]
  assert len(wide) == (2 if block is Mlp else 4)  # of each product and the activation, what reads or makes it
