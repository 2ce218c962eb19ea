"""Dense layers and tables against matrix products; initial values against TensorFlow's definition."""

import math
import re
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from plm_jax.core import sharding
from plm_jax.layers.linear import Dense, Embed, normal, product, truncated_normal
from tests import tiny


def test_truncated_normal_is_that_of_tensorflow():
  draws = np.asarray(truncated_normal(0.02)(jax.random.key(0), (1000, 1000)))
  # the deviation of N(0, 1) cut at 2, which TensorFlow does not scale back
  mass = math.erf(2 / math.sqrt(2))
  density = math.exp(-2) / math.sqrt(2 * math.pi)
  expected = math.sqrt(1 - 4 * density / mass)
  assert expected == pytest.approx(0.8796, abs=5e-5)
  assert draws.std() == pytest.approx(0.02 * expected, rel=2e-3)
  assert abs(draws.mean()) < 1e-4
  assert 0.0399 < np.abs(draws).max() <= 0.04


def test_normal_has_its_deviation_and_no_cut():
  draws = np.asarray(normal(0.02)(jax.random.key(0), (1000, 1000)))
  assert draws.std() == pytest.approx(0.02, rel=2e-3)
  assert np.abs(draws).max() > 0.08


def test_the_gradient_of_a_matrix_sums_over_all_rows_as_one_axis():
  """Two axes would be transposed in memory first, which takes as long as the product."""
  key = jax.random.key(0)
  x, g, matrix = (jax.random.normal(key, shape) for shape in ((2, 3, 5, 8), (2, 3, 5, 12), (8, 12)))

  def gradients(x, matrix):
    return jax.vjp(product, x, matrix)[1](g)

  of_x, of_matrix = gradients(x, matrix)
  np.testing.assert_allclose(of_x, g @ matrix.T, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(of_matrix, np.einsum('abci,abco->io', x, g), rtol=1e-5, atol=1e-5)
  dots = re.findall(r'dimension_numbers=\(\(\[([^]]*)\], \[([^]]*)\]\)', str(jax.make_jaxpr(gradients)(x, matrix)))
  assert dots and all(',' not in axes for pair in dots for axes in pair)


def test_a_scan_stores_the_input_of_products_once():
  """Otherwise it stores the rows and the kernel of each product as matrices."""
  dense = Dense((2, 4), axes=(None,) * 3, kernel_init=normal(1.0), use_bias=False)

  def layer(x, kernels):
    return sum(dense.apply({'params': {'kernel': kernel}}, x).reshape(x.shape) for kernel in kernels), None

  def run(kernels, x):
    return jax.lax.scan(layer, x, kernels)[0].sum()

  # 3 layers with 2 products of one input
  program = jax.make_jaxpr(jax.grad(run))(2 * (jnp.ones((3, 8, 2, 4)),), jnp.ones((2, 5, 8)))
  forward = next(equation for equation in program.eqns if equation.primitive.name == 'scan')
  _, *stored = (variable.aval.shape for variable in forward.outvars)
  assert stored == [(3, 2, 5, 8)]


@pytest.mark.parametrize(
  ('features', 'num_inputs', 'axes', 'product'),
  [
    (5, 1, ('embed', 'mlp'), 'blhk,kf->blhf'),
    ((2, 5), 1, ('embed', 'heads', 'head_dim'), 'blhk,kfg->blhfg'),
    (5, 2, ('heads', 'head_dim', 'embed'), 'blhk,hkf->blf'),
    ((2, 5), 2, ('heads', 'head_dim', 'embed', None), 'blhk,hkfg->blfg'),
  ],
)
def test_dense_is_a_product_over_trailing_axes(features, num_inputs, axes, product):
  layer = Dense(features, axes=axes, kernel_init=normal(1.0), num_inputs=num_inputs)
  x = jax.random.normal(jax.random.key(0), (2, 3, 4, 6))
  boxed = layer.init(jax.random.key(1), x)['params']
  assert boxed['kernel'].names == axes
  assert boxed['bias'].names == axes[num_inputs:]
  params = nn.unbox(boxed)
  params['bias'] = params['bias'] + jax.random.normal(jax.random.key(2), params['bias'].shape)
  expected = np.einsum(product, *(np.asarray(y, np.float64) for y in (x, params['kernel']))) + params['bias']
  assert tiny.worst(layer.apply({'params': params}, x), expected) < 1e-6


def test_dense_without_bias_and_in_another_precision():
  layer = Dense(3, axes=('embed', 'mlp'), kernel_init=normal(1.0), use_bias=False, dtype='bfloat16')
  params = nn.unbox(layer.init(jax.random.key(1), jnp.ones((2, 4))))['params']
  assert set(params) == {'kernel'}
  assert params['kernel'].dtype == jnp.float32
  assert layer.apply({'params': params}, jnp.ones((2, 4))).dtype == jnp.bfloat16


def test_a_product_in_bfloat16_is_that_of_float32_rounded():
  x, matrix, g = (
    jax.random.normal(jax.random.key(key), shape).astype(jnp.bfloat16)
    for key, shape in enumerate([(2, 5, 7), (7, 3), (2, 5, 3)])
  )
  y, gradients = jax.vjp(product, x, matrix)
  exact, exact_gradients = jax.vjp(jnp.matmul, *(each.astype(jnp.float32) for each in (x, matrix)))
  assert y.dtype == jnp.bfloat16
  for got, want in zip((y, *gradients(g)), (exact, *exact_gradients(g.astype(jnp.float32))), strict=True):
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize('multiple', [1, 8])
def test_embed_reads_rows_and_multiplies_with_them(multiple):
  layer = Embed(11, 6, ('vocab', 'embed'), normal(1.0), multiple=multiple)
  ids = jnp.array([[0, 3, 10], [10, 1, 1]])
  params = nn.unbox(layer.init(jax.random.key(0), ids))['params']
  table = np.asarray(params['table'])
  assert table.shape == ((11 + multiple - 1) // multiple * multiple, 6)
  assert tiny.same(layer.apply({'params': params}, ids), table[np.asarray(ids)])
  x = jax.random.normal(jax.random.key(1), (2, 6))
  logits = np.asarray(layer.apply({'params': params}, x, method='attend'))
  assert tiny.worst(logits[:, :11], np.asarray(x) @ table[:11].T) < 1e-6
  # rows that only pad the table have no share in a softmax, and no gradient
  assert (np.asarray(jax.nn.softmax(logits))[:, 11:] == 0).all()
  total = jax.grad(lambda p: jax.nn.logsumexp(layer.apply({'params': p}, x, method='attend')))(params)
  assert (np.asarray(total['table'])[11:] == 0).all()
  assert (np.abs(np.asarray(total['table'])[:11]).max(axis=1) > 0).all()


def test_a_table_with_cut_columns_is_read_for_cut_rows_without_replicating_the_vectors(capfd):
  """Check that the compiler finds a way from columns on 'data' to rows on 'replica' and 'data'."""
  layer = Embed(64, 32, ('vocab', 'embed'), normal(1.0))
  ids = jax.random.randint(jax.random.key(0), (8, 16), 0, 64)
  params = nn.unbox(layer.init(jax.random.key(1), ids))['params']

  def loss(table, ids):
    return jnp.sin(sharding.constrain(layer.apply({'params': {'table': table}}, ids), 'batch', None, None)).sum()

  gradient = jax.grad(loss)
  layout = sharding.make_layout(sharding.make_mesh({'replica': 2, 'data': 2, 'model': 1}), 'fsdp')
  with sharding.use(layout):
    columns = NamedSharding(layout.mesh, sharding.spec(('vocab', 'embed'), (64, 32), layout))
    places = (columns, sharding.batch_sharding(layout))
    on_devices = jax.jit(gradient, in_shardings=places, out_shardings=columns)
    found = on_devices(*jax.device_put((params['table'], ids), places))
  assert tiny.worst(found, gradient(params['table'], ids)) < 1e-6
  assert 'full rematerialization' not in capfd.readouterr().err


def test_the_gradient_of_a_bias_is_the_same_sum_on_a_tpu(monkeypatch):
  layer = Dense((2, 4), axes=('embed', 'heads', 'head_dim'), kernel_init=normal(1.0), dtype='bfloat16')
  x = jax.random.normal(jax.random.key(0), (16, 32, 8)).astype(jnp.bfloat16)
  params = nn.unbox(layer.init(jax.random.key(1), x))['params']

  def gradient(params):
    return jax.grad(lambda params: jnp.sin(layer.apply({'params': params}, x).astype(jnp.float32)).sum())(params)

  before = gradient(params)
  y = layer.apply({'params': params}, x)
  expected = np.asarray(jnp.cos(y.astype(jnp.float32)).astype(jnp.bfloat16), np.float64).sum(axis=(0, 1))
  monkeypatch.setattr(sharding, 'device', lambda: types.SimpleNamespace(platform='tpu'))
  after = gradient(params)
  assert tiny.worst(after['bias'], expected) < 1e-5 < tiny.worst(before['bias'], expected)
  assert tiny.same(after['kernel'], before['kernel'])
