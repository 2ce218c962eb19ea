"""The convolutional encoder: size, equality with numpy, reach, packing, pooling."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.types import Execution
from plm_jax.models import bert, cnn
from tests import tiny

WIDTHS = (1, 3, 5)


def make_trunk(execution=tiny.PLAIN, **fields):
  sizes = {name: tiny.SIZES[name] for name in ('hidden_dim', 'num_layers', 'mlp_dim', 'dropout')}
  return cnn.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=sizes | fields, execution=execution)


def shapes_of(trunk):
  ids = jnp.ones((1, 4), jnp.int32)
  return nn.unbox(jax.eval_shape(lambda key: trunk.init(key, ids, segment_ids=ids)['params'], jax.random.key(0)))


@functools.cache
def form(width):
  """(trunk, parameters, function of tokens and segments -> states of all layers and the output)."""
  trunk = make_trunk(kernel_width=width)
  params = tiny.draw(shapes_of(trunk))

  @jax.jit
  def run(tokens, segment_ids):
    out = trunk.apply({'params': params}, tokens, segment_ids=segment_ids)
    return jnp.concatenate([out['layers'], out['hidden'][None]])

  return trunk, params, lambda *inputs: np.asarray(run(*inputs))


def norm(x, params, c):
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + c.norm_epsilon)
  return x * params['scale'] + params['bias']


def plain(params, tokens, c):
  """States of one document int[l], float64, one token and one tap at a time."""
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  x = params['token_embed']['table'][tokens]
  states = [x]
  for number in range(c.num_layers):
    p = jax.tree.map(lambda leaf, number=number: leaf[number], params['layers'])
    y, new = norm(x, p['norm'], c), x.copy()
    for place in range(len(tokens)):
      filtered = p['up']['bias'].copy()
      for tap in range(c.kernel_width):
        if 0 <= (neighbour := place + tap - c.kernel_width // 2) < len(tokens):
          filtered += y[neighbour] @ p['up']['kernel'][tap]
      new[place] += np.maximum(filtered, 0) @ p['down']['kernel'] + p['down']['bias']
    x = new
    states.append(x)
  return [*states, norm(x, params['final_norm'], c)]


def test_the_count_is_near_that_of_bert():
  published = cnn.PUBLISHED['cnn-base']
  trunk = cnn.make(vocab_size=published.vocab_size, variant='cnn-base')
  assert sum(leaf.size for leaf in jax.tree.leaves(shapes_of(trunk))) == published.parameters
  d, f = 768, 2304
  assert published.parameters == 30_522 * d + 12 * (3 * d * f + f + f * d + d + 2 * d) + 2 * d
  assert published.parameters == pytest.approx(bert.PUBLISHED['bert-base'].parameters, rel=0.01)


@pytest.mark.parametrize('width', WIDTHS)
def test_equals_numpy_document_by_document(width):
  trunk, params, run = form(width)
  batch = tiny.make_batch()
  tokens, segments = np.asarray(batch['tokens']), np.asarray(batch['segment_ids'])
  found = run(tokens, segments)
  for row in range(len(tokens)):
    for document in set(segments[row]) - {0}:
      places = np.flatnonzero(segments[row] == document)
      for layer, expected in enumerate(plain(params, tokens[row, places], trunk.config)):
        assert tiny.worst(found[layer, row, places], expected) < 1e-5, (row, document, layer)


@pytest.mark.parametrize('width', WIDTHS)
def test_a_token_is_seen_as_far_as_the_filters_reach(width):
  _, _, run = form(width)
  batch = tiny.make_batch(((16,),) * 4)
  after = run(batch['tokens'].at[0, 8].set(20), batch['segment_ids'])
  changed = np.abs(run(batch['tokens'], batch['segment_ids']) - after).max(axis=-1) > 0  # [layers, b, l]
  for layer in range(3):
    reach = layer * (width // 2)
    assert changed[layer, 0].tolist() == [abs(place - 8) <= reach for place in range(16)], layer
  assert not changed[:, 1:].any()


def test_the_largest_real_state_is_pooled():
  trunk, _, _ = form(3)
  hidden = jnp.array([[[-3.0, 9], [-1, -2], [7, 1]], [[1, 1], [1, 1], [1, 1]]])
  segments = jnp.array([[1, 1, 0], [0, 0, 0]])
  assert trunk.apply({}, hidden, segments, method='pool').tolist() == [[-1, 9], [0, 0]]


def test_an_unrolled_stack_is_the_same():
  _, params, run = form(3)
  batch = tiny.make_batch()
  loop = make_trunk(Execution(layers='loop'), kernel_width=3)
  found = loop.apply({'params': params}, batch['tokens'], segment_ids=batch['segment_ids'])['hidden']
  assert tiny.worst(found, run(batch['tokens'], batch['segment_ids'])[-1]) < 1e-5


def test_wrong_settings_are_refused():
  with pytest.raises(ValueError, match=r'kernel_width\W4\b'):
    make_trunk(kernel_width=4)
  with pytest.raises(ValueError, match=r"activation='step'.*gelu_erf"):
    make_trunk(activation='step')
