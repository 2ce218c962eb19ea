"""LayerNorm and RMSNorm against their formulas, BatchNorm against torch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers.norm import BatchNorm, LayerNorm, RMSNorm
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


def test_batch_norm_is_that_of_torch():
  """Compare outputs, gradients and averages in training and in evaluation."""
  torch = pytest.importorskip('torch')
  draw = np.random.default_rng(0)
  theirs = torch.nn.BatchNorm1d(6, eps=1e-3, momentum=0.3)
  params = {'mean': np.zeros(6, np.float32), 'variance': np.ones(6, np.float32)}
  params |= {name: draw.normal(1, 0.3, 6).astype(np.float32) for name in ('scale', 'bias')}
  with torch.no_grad():
    theirs.weight[:], theirs.bias[:] = torch.tensor(params['scale']), torch.tensor(params['bias'])
  ours = BatchNorm(1e-3, 0.3)
  everyone = np.ones(5, bool)
  for _ in range(4):
    x, gradient = (draw.normal(2.0, 3.0, (5, 6)).astype(np.float32) for _ in range(2))
    entered = torch.tensor(x, requires_grad=True)
    wanted = theirs(entered)
    theirs.zero_grad()
    wanted.backward(torch.tensor(gradient))
    apply = lambda params, x: ours.apply({'params': params}, x, everyone, train=True)  # noqa: E731
    found, backward, kept = jax.vjp(apply, params, x, has_aux=True)
    assert tiny.worst(found, wanted.detach().numpy()) < 1e-5
    own, of_x = backward(gradient)
    assert tiny.worst(of_x, entered.grad.numpy()) < 1e-5
    assert tiny.worst(own['scale'], theirs.weight.grad.numpy()) < 1e-5
    assert tiny.worst(own['bias'], theirs.bias.grad.numpy()) < 1e-5
    assert tiny.same(own['mean'], np.zeros(6, np.float32))
    assert tiny.same(own['variance'], np.zeros(6, np.float32))
    params |= kept
    assert tiny.worst(params['mean'], theirs.running_mean.numpy()) < 1e-6
    assert tiny.worst(params['variance'], theirs.running_var.numpy()) < 1e-5
  found, kept = ours.apply({'params': params}, x, everyone)
  assert not kept
  assert tiny.worst(found, theirs.eval()(torch.tensor(x)).detach().numpy()) < 1e-5


def test_rows_of_padding_have_no_part_in_batch_norms():
  x = np.random.default_rng(0).normal(2.0, 3.0, (6, 4)).astype(np.float32)
  ours = BatchNorm(1e-5)
  params = ours.init(jax.random.key(0), x, np.ones(6, bool))['params']
  padded = np.concatenate([x, np.full((2, 4), 1e3, np.float32)])
  found, kept = ours.apply({'params': params}, padded, np.arange(8) < 6, train=True)
  alone, wanted = ours.apply({'params': params}, x, np.ones(6, bool), train=True)
  assert tiny.worst((found[:6], kept), (alone, wanted)) < 1e-6


def test_fewer_than_two_rows_are_normalised_by_the_averages():
  x = np.random.default_rng(0).normal(2.0, 3.0, (6, 4)).astype(np.float32)
  ours = BatchNorm(1e-5)
  names = ('scale', 'bias', 'mean', 'variance')
  params = {name: np.full(4, number, np.float32) for name, number in zip(names, (2, 1, 0.5, 3), strict=True)}
  for count in (1, 0):
    found, kept = ours.apply({'params': params}, x, np.arange(6) < count, train=True)
    assert tiny.worst(found, (x - 0.5) / np.sqrt(3 + 1e-5) * 2 + 1) < 1e-6
    assert all(tiny.same(value, params[name]) for name, value in kept.items()) and len(kept) == 2
