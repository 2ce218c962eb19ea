"""Trunks of LSTM layers under `execution.remat`: the same numbers, and less memory at work in their gradient."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.types import Execution
from plm_jax.models import awd_lstm, cove, cvt, elmo
from tests import tiny

pytestmark = pytest.mark.turns

FILES = {
  'awd_lstm': (awd_lstm, {'hidden_dim': 32, 'mlp_dim': 64}),
  'cove': (cove, {'word_dim': 8, 'hidden_dim': 64, 'dropout': 0.0}),
  'cvt': (cvt, {'word_dim': 16, 'filters': (), 'hidden_dim': 64, 'mlp_dims': (64, 32), 'dropout': 0.0}),
  'elmo': (elmo, {'hidden_dim': 32, 'mlp_dim': 64, 'filters': (2, 2), 'char_dim': 2, 'dropout': 0.0}),
}
ROW = 150  # two whole windows and a part of one


@functools.cache
def made(name, remat):
  """(trunk, parameters, inputs): documents of several lengths and padding, and where there is one, a carry."""
  file, sizes = FILES[name]
  trunk = file.make(vocab_size=50, variant='tiny', overrides=sizes, execution=Execution(remat=remat))
  random, segments = np.random.default_rng(0), np.ones((3, ROW), np.int32)
  segments[1, 70:], segments[2, 90:] = 2, 0
  inputs = {'segment_ids': jnp.asarray(segments)}
  if name == 'elmo':
    inputs['characters'] = jnp.asarray(random.integers(0, 256, (3, ROW, 50)))
  else:
    inputs['tokens'] = jnp.asarray(random.integers(0, 50, (3, ROW)))
  abstract = jax.eval_shape(lambda: trunk.init(jax.random.key(0), method='init_all'))['params']
  params = jax.tree.map(lambda leaf: 2 * leaf, tiny.draw(nn.unbox(abstract)))
  if name == 'awd_lstm':
    inputs['carry'] = jax.tree.map(lambda part: part + 0.3, trunk.init_carry(3))
  return trunk, params, inputs


@functools.cache
def computed(name, remat):
  """(a sum of states and carry, its gradient, what the trunk returns) in training, where weights drop out."""
  trunk, params, inputs = made(name, remat)

  def total(params):
    rngs = {'dropout': jax.random.key(1)}
    out = trunk.apply({'params': params}, **inputs, train=True, rngs=rngs)
    factors = np.random.default_rng(1).normal(size=out['hidden'].shape)
    return (out['hidden'] * factors).sum(), (out['hidden'], out['carry'])

  return jax.jit(jax.value_and_grad(total, has_aux=True))(params)


@pytest.mark.parametrize('remat', ['dots', 'full'])
@pytest.mark.parametrize('name', FILES)
def test_what_is_kept_changes_no_number(name, remat):
  (_, out), gradient = computed(name, 'none')
  (_, other), other_gradient = computed(name, remat)
  assert tiny.worst(other, out) < 1e-5
  error, where = tiny.gradient_error(other_gradient, gradient)
  assert error < 1e-5, where


@pytest.mark.parametrize('name', FILES)
def test_parameters_have_the_same_names_and_values(name):
  trees = [
    nn.unbox(made(name, remat)[0].init(jax.random.key(0), method='init_all')['params']) for remat in ('none', 'full')
  ]
  assert jax.tree.structure(trees[0]) == jax.tree.structure(trees[1])
  assert tiny.same(*trees)


# LSTMs without a projection: gradients take the place of gates, so that 'none' keeps little beside the products
IN_PLACE = ('awd_lstm', 'cove')


@functools.cache
def at_work(name, remat):
  """Bytes of the compiled gradient over 8 rows of 512, beside its arguments and results."""
  trunk, params, _ = made(name, remat)
  rows = jax.ShapeDtypeStruct((8, 512), jnp.int32)
  inputs = {'segment_ids': rows, 'tokens': rows}
  if name == 'elmo':
    inputs = {'segment_ids': rows, 'characters': jax.ShapeDtypeStruct((8, 512, 50), jnp.int32)}

  def total(params, inputs):
    return trunk.apply({'params': params}, **inputs)['hidden'].sum()

  return jax.jit(jax.grad(total)).lower(params, inputs).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize('name', FILES)
def test_less_memory_is_at_work_the_less_is_kept(name):
  none, dots, full = (at_work(name, remat) for remat in ('none', 'dots', 'full'))
  most = 0.98 if name in IN_PLACE else 0.9
  assert dots < most * none and full < 0.4 * none
