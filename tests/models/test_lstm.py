"""The LSTM encoder: size, equality with numpy and with torch, walls, pooling."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.types import Execution
from plm_jax.models import bert, lstm
from tests import tiny


def make_trunk(execution=tiny.PLAIN, **fields):
  sizes = {'hidden_dim': 32, 'num_layers': 2, 'mlp_dim': 24, 'dropout': 0.0}
  return lstm.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=sizes | fields, execution=execution)


def shapes_of(trunk):
  ids = jnp.ones((1, 4), jnp.int32)
  return nn.unbox(jax.eval_shape(lambda key: trunk.init(key, ids, segment_ids=ids)['params'], jax.random.key(0)))


@functools.cache
def form():
  """(trunk, parameters, function of tokens and segments -> states of all layers and the output)."""
  trunk = make_trunk()
  params = jax.tree.map(lambda leaf: 3 * leaf, tiny.draw(shapes_of(trunk)))  # gates that open and close

  @jax.jit
  def run(tokens, segment_ids):
    out = trunk.apply({'params': params}, tokens, segment_ids=segment_ids)
    return jnp.concatenate([out['layers'], out['hidden'][None]])

  return trunk, params, lambda *inputs: np.asarray(run(*inputs))


def norm(x, params, c):
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + c.norm_epsilon)
  return x * params['scale'] + params['bias']


def read_one_way(x, p, direction):
  """States float64[l, f] of a document [l, d] read in the order of its rows, one token and one gate at a time."""
  sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731
  width = p['recurrent'].shape[1]
  h, c, states = np.zeros(width), np.zeros(width), []
  for token in x:
    i, f, g, o = (
      token @ p['input']['kernel'][:, direction, gate]
      + h @ p['recurrent'][direction, :, gate]
      + p['bias'][direction, gate]
      for gate in range(4)
    )
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    states.append(h)
  return np.array(states)


def by_numpy(x, p):
  """[l, d] -> [l, 2 f]."""
  return np.concatenate([read_one_way(x, p, 0), read_one_way(x[::-1], p, 1)[::-1]], axis=-1)


def by_torch(x, p):
  """The same by a bidirectional torch.nn.LSTM."""
  import torch

  width = p['recurrent'].shape[1]
  peer = torch.nn.LSTM(x.shape[1], width, batch_first=True, bidirectional=True, dtype=torch.float64)
  for direction, suffix in enumerate(('', '_reverse')):
    values = {
      'weight_ih': p['input']['kernel'][:, direction].reshape(-1, 4 * width).T,
      'weight_hh': p['recurrent'][direction].reshape(width, 4 * width).T,
      'bias_ih': p['bias'][direction].reshape(-1),
      'bias_hh': np.zeros(4 * width),
    }
    for name, value in values.items():
      peer.get_parameter(f'{name}_l0{suffix}').data = torch.tensor(value)
  with torch.no_grad():
    return peer(torch.tensor(x[None]))[0][0].numpy()


def plain(params, tokens, c, read):
  """States of one document int[l], float64."""
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  x = params['token_embed']['table'][tokens]
  states = [x]
  for number in range(c.num_layers):
    p = jax.tree.map(lambda leaf, number=number: leaf[number], params['layers'])
    kernel = p['down']['kernel'].reshape(2 * c.mlp_dim, c.hidden_dim)
    x = x + read(norm(x, p['norm'], c), p['lstm']) @ kernel + p['down']['bias']
    states.append(x)
  return [*states, norm(x, params['final_norm'], c)]


def test_the_count_is_near_that_of_bert():
  known = lstm.PUBLISHED['lstm-base']
  trunk = lstm.make(vocab_size=known.vocab_size, variant='lstm-base')
  assert sum(leaf.size for leaf in jax.tree.leaves(shapes_of(trunk))) == known.parameters
  d, f = 768, 576
  assert known.parameters == 30_522 * d + 12 * (2 * (4 * f * (d + f) + 4 * f) + 2 * f * d + d + 2 * d) + 2 * d
  assert known.parameters == pytest.approx(bert.PUBLISHED['bert-base'].parameters, rel=0.01)


@pytest.mark.parametrize('read', [by_numpy, by_torch], ids=lambda read: read.__name__)
def test_equals_a_plain_lstm_document_by_document(read):
  if read is by_torch:
    pytest.importorskip('torch')
  trunk, params, run = form()
  batch = tiny.make_batch()
  tokens, segments = np.asarray(batch['tokens']), np.asarray(batch['segment_ids'])
  found = run(tokens, segments)
  for row in range(len(tokens)):
    for document in set(segments[row]) - {0}:
      places = np.flatnonzero(segments[row] == document)
      for layer, expected in enumerate(plain(params, tokens[row, places], trunk.config, read)):
        assert tiny.worst(found[layer, row, places], expected) < 1e-5, (row, document, layer)


def test_a_token_is_seen_in_all_of_its_document_and_nowhere_else():
  _, _, run = form()
  batch = tiny.make_batch(((4, 7, 3),) * 2)
  after = run(batch['tokens'].at[0, 7].set(20), batch['segment_ids'])
  changed = np.abs(run(batch['tokens'], batch['segment_ids']) - after).max(axis=-1) > 0  # [layers, b, l]
  assert changed[0, 0].tolist() == [place == 7 for place in range(16)]
  for layer in (1, 2, 3):
    assert changed[layer, 0].tolist() == [4 <= place < 11 for place in range(16)], layer
  assert not changed[:, 1:].any()


def test_forget_biases_start_from_one():
  trunk = make_trunk()
  ids = jnp.ones((1, 4), jnp.int32)
  biases = nn.unbox(trunk.init(jax.random.key(0), ids, segment_ids=ids))['params']['layers']['lstm']['bias']
  assert biases.shape == (2, 2, 4, 24)
  assert biases.mean(axis=(0, 1, 3)).tolist() == [0, 1, 0, 0]


def test_the_largest_real_state_is_pooled():
  trunk, _, _ = form()
  hidden = jnp.array([[[-3.0, 9], [-1, -2], [7, 1]], [[1, 1], [1, 1], [1, 1]]])
  segments = jnp.array([[1, 1, 0], [0, 0, 0]])
  assert trunk.apply({}, hidden, segments, method='pool').tolist() == [[-1, 9], [0, 0]]


def test_an_unrolled_stack_is_the_same():
  _, params, run = form()
  batch = tiny.make_batch()
  loop = make_trunk(Execution(layers='loop'))
  found = loop.apply({'params': params}, batch['tokens'], segment_ids=batch['segment_ids'])['hidden']
  assert tiny.worst(found, run(batch['tokens'], batch['segment_ids'])[-1]) < 1e-5


def test_an_unknown_activation_is_refused():
  with pytest.raises(ValueError, match=r"activation='step'.*gelu_erf"):
    make_trunk(activation='step')
