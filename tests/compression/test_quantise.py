"""Weights in 8 bits: closed forms, torch's own quantisation, the straight-through gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.compression import quantise
from plm_jax.layers.linear import Dense, Embed, normal

WEIGHTS = np.random.default_rng(0).normal(size=(3, 16, 2, 8)).astype(np.float32) * np.logspace(
  -3, 1, 8, dtype=np.float32
)
AXES = (-3,)  # a kernel [n, i, h, k]: each output of each layer is a channel


def test_scale_and_error_are_those_of_the_closed_form():
  scale = quantise.scales(WEIGHTS, AXES)
  assert scale.shape == (3, 1, 2, 8)
  np.testing.assert_array_equal(scale[:, 0], np.abs(WEIGHTS).max(axis=1) / np.float32(127))
  numbers = quantise.quantise(WEIGHTS, scale)
  assert numbers.dtype == np.int8 and (np.abs(numbers.astype(int)).max(axis=1) == 127).all()
  assert (np.abs(quantise.dequantise(numbers, scale) - WEIGHTS) <= scale / 2 * (1 + 1e-5)).all()
  assert quantise.errors(WEIGHTS, numbers, scale)['largest'] <= 1 + 1e-5


def test_a_channel_of_zeros_stays_one():
  zeros = np.zeros((4, 3), np.float32)
  scale = quantise.scales(zeros, (-2,))
  assert not quantise.quantise(zeros, scale).any() and np.isfinite(quantise.dequantise(zeros, scale)).all()


def test_numbers_equal_torch():
  torch = pytest.importorskip('torch')
  matrix = WEIGHTS[0].reshape(16, 16).T.copy()  # [outputs, inputs]
  scale = quantise.scales(matrix, (-1,))
  scales = torch.tensor(scale[:, 0], dtype=torch.float64)
  zeros = torch.zeros(16, dtype=torch.int64)
  theirs = torch.quantize_per_channel(torch.tensor(matrix), scales, zeros, axis=0, dtype=torch.qint8)
  ours = quantise.quantise(matrix, scale)
  np.testing.assert_array_equal(ours, theirs.int_repr().numpy())
  np.testing.assert_allclose(quantise.dequantise(ours, scale), theirs.dequantize().numpy(), rtol=1e-6)


def test_the_gradient_passes_within_the_range_and_nowhere_else():
  weights, scale = jnp.array([0.3, -1.27, 1.27, 1.4, -2.0]), jnp.full((5,), 0.01)
  value, gradient = jax.value_and_grad(lambda w: (quantise.fake(w, scale) * jnp.arange(1.0, 6.0)).sum())(weights)
  assert gradient.tolist() == [1, 2, 3, 0, 0]
  np.testing.assert_allclose(value, 0.3 - 2 * 1.27 + 3 * 1.27 + 4 * 1.27 - 5 * 1.27, rtol=1e-5)


def test_fake_weights_are_what_the_numbers_stand_for_bit_for_bit():
  scale = jnp.asarray(quantise.scales(WEIGHTS, AXES))
  ours = np.asarray(quantise.fake(jnp.asarray(WEIGHTS), scale))
  np.testing.assert_array_equal(
    ours, quantise.dequantise(quantise.quantise(WEIGHTS, np.asarray(scale)), np.asarray(scale))
  )


@pytest.mark.parametrize(('num_inputs', 'features'), [(1, (2, 8)), (2, 8)])
def test_a_dense_layer_takes_the_product_with_the_numbers(num_inputs, features):
  shape = (4, 5, 16) if num_inputs == 1 else (4, 5, 2, 16)
  x = jax.random.normal(jax.random.key(0), shape)
  layer = Dense(
    features,
    axes=(None,) * (num_inputs + (2 if num_inputs == 1 else 1)),
    kernel_init=normal(1.0),
    num_inputs=num_inputs,
  )
  params = jax.tree.map(
    np.asarray, {name: box.value for name, box in layer.init(jax.random.key(1), x)['params'].items()}
  )
  scale = quantise.scales(params['kernel'], tuple(range(num_inputs)))
  numbers = quantise.quantise(params['kernel'], scale)
  expected = layer.apply({'params': {**params, 'kernel': quantise.dequantise(numbers, scale)}}, x)
  ours = layer.apply({'params': {**params, 'kernel': numbers, 'kernel_scale': scale}}, x)
  np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_table_is_read_and_multiplied_with_by_its_numbers():
  table = np.random.default_rng(1).normal(size=(12, 8)).astype(np.float32)
  scale = quantise.scales(table, (-1,))
  numbers = quantise.quantise(table, scale)
  embed, ids = Embed(10, 8, (None, None), normal(1.0), multiple=4), jnp.array([[1, 9, 3]])
  given = ({'table': numbers, 'table_scale': scale}, {'table': quantise.dequantise(numbers, scale)})
  for arguments in ((ids,), (embed.apply({'params': given[1]}, ids), 'attend')):
    how = {'method': arguments[1]} if len(arguments) == 2 else {}
    ours, expected = (embed.apply({'params': one}, arguments[0], **how) for one in given)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
