"""LayerNorm and RMSNorm against their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers.norm import LayerNorm, RMSNorm
from tests import tiny


@pytest.mark.parametrize('epsilon', [1e-12, 1e-5, 0.5])
def test_equals_the_formula(epsilon):
  draw = np.random.default_rng(0)
  x = draw.normal(3.0, 2.0, (4, 5, 16)).astype(np.float32)
  params = {'scale': draw.normal(1, 0.3, 16).astype(np.float32), 'bias': draw.normal(0, 0.3, 16).astype(np.float32)}
  wide = x.astype(np.float64)
  variance = wide.var(axis=-1, keepdims=True)
  expected = (wide - wide.mean(axis=-1, keepdims=True)) / np.sqrt(variance + epsilon)
  expected = expected * params['scale'] + params['bias']
  assert tiny.worst(LayerNorm(epsilon).apply({'params': params}, x), expected) < 1e-6


def test_is_exact_where_the_mean_is_large():
  x = np.array([[1000.0, 1000.5, 1001.0, 1001.5]], np.float32)
  y = LayerNorm(1e-12).apply({'params': {'scale': np.ones(4), 'bias': np.zeros(4)}}, x)
  assert tiny.worst(y, np.array([[-3, -1, 1, 3]]) / np.sqrt(5)) < 1e-6


def test_a_constant_row_is_the_bias_with_a_finite_gradient():
  params = {'scale': jnp.ones(4), 'bias': jnp.arange(4.0)}
  x = jnp.full((1, 4), 7.0)
  assert tiny.same(LayerNorm(1e-12).apply({'params': params}, x), np.arange(4.0, dtype=np.float32)[None])
  gradient = jax.grad(lambda x: LayerNorm(1e-12).apply({'params': params}, x)[0, 0])(x)
  assert np.isfinite(gradient).all()


def test_computes_in_float32_whatever_it_returns():
  x = jax.random.normal(jax.random.key(0), (2, 64)).astype(jnp.bfloat16)
  params = {'scale': jnp.ones(64), 'bias': jnp.zeros(64)}
  low = LayerNorm(1e-5, 'bfloat16').apply({'params': params}, x)
  exact = LayerNorm(1e-5).apply({'params': params}, x)
  assert low.dtype == jnp.bfloat16
  assert tiny.same(low, exact.astype(jnp.bfloat16))


@pytest.mark.parametrize('epsilon', [1e-6, 0.5])
def test_rms_equals_the_formula(epsilon):
  draw = np.random.default_rng(0)
  x = draw.normal(3.0, 2.0, (4, 5, 16)).astype(np.float32)
  scale = draw.normal(1, 0.3, 16).astype(np.float32)
  wide = x.astype(np.float64)
  expected = scale * wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + epsilon)
  found = RMSNorm(epsilon).apply({'params': {'scale': scale}}, x)
  assert tiny.worst(found, expected) < 1e-6
  # neither the mean is taken off nor do the weights enter the root
  assert tiny.worst(found, LayerNorm(epsilon).apply({'params': {'scale': scale, 'bias': np.zeros(16)}}, x)) > 0.1
  doubled = RMSNorm(epsilon).apply({'params': {'scale': 2 * scale}}, x)
  assert tiny.worst(doubled, 2 * expected) < 1e-6


def test_rms_has_one_parameter_and_computes_in_float32():
  x = jax.random.normal(jax.random.key(0), (2, 64)).astype(jnp.bfloat16)
  params = RMSNorm(1e-6).init(jax.random.key(0), x)['params']
  assert list(params) == ['scale']
  assert (params['scale'].names, params['scale'].value.dtype) == (('embed',), jnp.float32)
  low, exact = (RMSNorm(1e-6, dtype).apply({'params': {'scale': jnp.ones(64)}}, x) for dtype in ('bfloat16', 'float32'))
  assert (low.dtype, exact.dtype) == (jnp.bfloat16, jnp.float32)
  assert tiny.same(low, exact.astype(jnp.bfloat16))


def test_rms_of_zeros_has_a_finite_gradient():
  apply = lambda x: RMSNorm(1e-6).apply({'params': {'scale': jnp.ones(4)}}, x)  # noqa: E731
  assert tiny.same(apply(jnp.zeros(4)), jnp.zeros(4))
  assert np.isfinite(jax.grad(lambda x: apply(x)[0])(jnp.zeros(4))).all()
