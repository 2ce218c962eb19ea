"""Attention with its matrices, by the formula and in two halves."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers.linear import normal
from plm_jax.layers.masks import Mask
from plm_jax.layers.multihead import MultiHead
from tests import tiny

SEGMENTS = jnp.array([[1, 1, 1, 2, 0], [1, 1, 1, 1, 1]])
SOURCE_SEGMENTS = jnp.array([[1, 1, 2, 2], [1, 0, 0, 0]])
MASK = Mask(SEGMENTS, SOURCE_SEGMENTS)
X = jax.random.normal(jax.random.key(0), (2, 5, 8))
SOURCE = jax.random.normal(jax.random.key(1), (2, 4, 8))


def make(**fields) -> MultiHead:
  return MultiHead(3, 4, 8, normal(0.3), normal(0.4), normal(0.5), **fields)


def draw(layer: MultiHead):
  return tiny.draw(nn.unbox(jax.eval_shape(lambda key: layer.init(key, X, SOURCE, mask=MASK), jax.random.key(0))))[
    'params'
  ]


@pytest.mark.parametrize(('use_bias', 'scale'), [(True, None), (False, 1.0)])
def test_equals_the_formula(use_bias, scale):
  layer = make(use_bias=use_bias, scale=scale)
  params = draw(layer)
  added = jax.random.normal(jax.random.key(2), (1, 3, 5, 4))
  assert ('bias' in params['query']) is use_bias

  def project(name, x):
    kernel = np.asarray(params[name]['kernel'], np.float64)
    return np.einsum('bld,dhk->bhlk', x, kernel) + (np.asarray(params[name]['bias'])[:, None] if use_bias else 0)

  query, key, value = project('query', X), project('key', SOURCE), project('value', SOURCE)
  logits = query @ key.transpose(0, 1, 3, 2) * (0.5 if scale is None else scale) + np.asarray(added)
  seen = np.asarray((SEGMENTS[:, :, None] == SOURCE_SEGMENTS[:, None]) & (SEGMENTS[:, :, None] > 0))[:, None]
  exponents = np.exp(logits) * seen
  found = exponents / np.maximum(exponents.sum(-1, keepdims=True), 1e-30) @ value
  expected = np.einsum('bhlk,hkd->bld', found, np.asarray(params['out']['kernel'], np.float64))
  expected += np.asarray(params['out']['bias']) if use_bias else 0
  assert tiny.worst(layer.apply({'params': params}, X, SOURCE, mask=MASK, bias=added), expected) < 1e-5


def test_keys_and_values_can_be_made_before():
  layer = make()
  bound = layer.bind({'params': draw(layer)})
  key, value = bound.project(SOURCE)
  assert key.shape == value.shape == (2, 4, 3, 4)
  assert tiny.same(bound.attend(X, key, value, mask=MASK), bound(X, SOURCE, mask=MASK))


def test_kernels_have_their_initializers_and_axes():
  boxed = make().init(
    jax.random.key(0), jnp.zeros((1, 1, 256)), jnp.zeros((1, 1, 256)), mask=Mask(*2 * [jnp.ones((1, 1))])
  )
  params = boxed['params']
  for name, deviation in (('query', 0.3), ('key', 0.4), ('value', 0.4), ('out', 0.5)):
    kernel = params[name]['kernel']
    axes = ('embed', 'heads', 'head_dim')
    assert kernel.names == (axes if name != 'out' else (*axes[1:], 'embed'))
    if name != 'out':
      assert float(kernel.value.std()) == pytest.approx(deviation, rel=0.06)


def test_attention_drops_out_in_training_only():
  layer = make(dropout=0.5)
  params = draw(layer)
  still = layer.apply({'params': params}, X, SOURCE, mask=MASK)
  rngs = {'dropout': jax.random.key(0)}
  assert tiny.same(layer.apply({'params': params}, X, SOURCE, mask=MASK, rngs=rngs), still)
  assert tiny.worst(layer.apply({'params': params}, X, SOURCE, mask=MASK, train=True, rngs=rngs), still) > 1e-2


def test_weights_can_be_looked_at():
  layer = make()
  state = layer.apply({'params': draw(layer)}, X, SOURCE, mask=MASK, mutable=['attention'])[1]
  (shares,) = jax.tree.leaves(state['attention'])
  assert shares.shape == (2, 3, 5, 4)
  some = np.asarray((SEGMENTS[:, :, None] == SOURCE_SEGMENTS[:, None]).any(-1) & (SEGMENTS > 0))
  np.testing.assert_allclose(shares.sum(-1), np.broadcast_to(some[:, None], (2, 3, 5)), atol=1e-6)
