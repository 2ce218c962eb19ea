"""AWD-LSTM: its size, equality with torch on rows that go on, documents of a row, and what drops out."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.models import awd_lstm
from tests import tiny
from tests.models import stepping

WIDTHS = (24, 24, 32)


def make_trunk(**fields):
  sizes = {'hidden_dim': 32, 'num_layers': 3, 'mlp_dim': 24, 'dropout': 0.0}
  return awd_lstm.make(vocab_size=tiny.VOCAB.size, variant='ulmfit', overrides=sizes | fields)


def shapes_of(trunk):
  return nn.unbox(jax.eval_shape(lambda key: trunk.init(key, method='init_all')['params'], jax.random.key(0)))


@functools.cache
def form():
  """(trunk, parameters, function of tokens, segments and a carry -> what the trunk returns)."""
  trunk = make_trunk()
  params = jax.tree.map(lambda leaf: 3 * leaf, tiny.draw(shapes_of(trunk)))  # gates that open and close
  run = jax.jit(lambda *inputs: trunk.apply({'params': params}, inputs[0], segment_ids=inputs[1], carry=inputs[2]))
  return trunk, params, run


def rows(length):
  tokens = np.random.default_rng(0).integers(0, tiny.VOCAB.size, (2, length)).astype(np.int32)
  return tokens, np.ones_like(tokens)


@functools.cache
def peers():
  """torch.nn.LSTM for each layer, with these parameters."""
  torch = pytest.importorskip('torch')
  made = []
  for number, width in enumerate(WIDTHS):
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), form()[1][f'lstm_{number}'])
    kernel = p['input']['kernel']
    peer = torch.nn.LSTM(kernel.shape[0], width, batch_first=True, dtype=torch.float64)
    values = {
      'weight_ih': kernel.reshape(-1, 4 * width).T,
      'weight_hh': p['recurrent'].reshape(width, 4 * width).T,
      'bias_ih': p['bias'].reshape(-1),
      'bias_hh': p['recurrent_bias'].reshape(-1),
    }
    for name, value in values.items():
      peer.get_parameter(f'{name}_l0').data = torch.tensor(value)
    made.append(peer)
  return made


def by_torch(tokens):
  """(states of the last layer [b, l, d], (h, c) of each layer) of rows that are read as one, float64."""
  torch = pytest.importorskip('torch')
  x, states = torch.tensor(np.asarray(form()[1]['token_embed']['table'], np.float64)[tokens]), []
  with torch.no_grad():
    for peer in peers():
      x, state = peer(x)
      states.append([part[0].numpy() for part in state])
  return x.numpy(), states


def test_the_layers_have_the_published_size():
  shapes = shapes_of(awd_lstm.make(vocab_size=60_002, variant='ulmfit'))
  sizes = {name: sum(leaf.size for leaf in jax.tree.leaves(part)) for name, part in shapes.items()}
  assert [sizes[f'lstm_{layer}'] for layer in range(3)] == [7_139_200, 10_589_200, 2_483_200]
  assert sum(sizes.values()) == awd_lstm.PUBLISHED['ulmfit'].parameters == 20_211_600 + 60_002 * 401


def test_equals_torch_on_rows_that_go_on():
  trunk, params, run = form()
  tokens, segments = rows(18)
  theirs, states = by_torch(tokens)
  carry, found = trunk.init_carry(2), []
  for start in range(0, 18, 6):
    out = run(tokens[:, start : start + 6], segments[:, start : start + 6], carry)
    carry = out['carry']
    found.append(out['hidden'])
  assert tiny.worst(jnp.concatenate(found, axis=1), theirs) < 1e-5
  assert tiny.worst(carry, {f'lstm_{number}': tuple(state) for number, state in enumerate(states)}) < 1e-5
  logits = trunk.apply({'params': params}, out['hidden'], method='attend')
  table, bias = params['token_embed']['table'], params['output_bias']['bias']
  assert tiny.worst(logits, np.asarray(out['hidden']) @ np.asarray(table).T + np.asarray(bias)) < 1e-5


def test_a_state_enters_no_other_document_and_no_earlier_token():
  _, _, run = form()
  tokens, segments = rows(18)
  segments[:, 7:13], segments[:, 13:] = 2, 0
  carry = {f'lstm_{number}': (jnp.full((2, width), 0.5), jnp.ones((2, width))) for number, width in enumerate(WIDTHS)}
  after, before = tokens.copy(), run(tokens, segments, carry)['hidden']
  after[:, 3] += 1
  changed = np.abs(run(after, segments, carry)['hidden'] - before).max(axis=(0, 2)) > 0
  assert changed.tolist() == [3 <= place < 7 for place in range(18)]
  carried = np.abs(run(tokens, segments, ())['hidden'] - before).max(axis=(0, 2)) > 0
  assert carried.tolist() == [place < 7 for place in range(18)]
  theirs, _ = by_torch(tokens[:, 7:13])
  assert tiny.worst(before[:, 7:13], theirs) < 1e-5


@functools.cache
def training(**fields):
  """key -> (hidden, layers) in training with these rates and no other, where all tokens are the same."""
  trunk = make_trunk(dropout=1.0, **(dict.fromkeys(RATES, 0.0) | fields))
  tokens, segments = rows(5)

  @jax.jit
  def run(key):
    read = {'segment_ids': segments, 'train': True, 'rngs': {'dropout': key}}
    out = trunk.apply({'params': form()[1]}, tokens * 0 + 9, **read)
    return out['hidden'], out['layers']

  return run


def states(key, **fields):
  return map(np.asarray, training(**fields)(jax.random.key(key)))


RATES = [f'{place}_dropout' for place in ('embedding', 'input', 'hidden', 'output', 'weight')]


def test_one_draw_for_all_tokens_of_a_row():
  hidden, layers = states(0, output_dropout=0.5)
  kept = hidden != 0
  assert (kept == kept[:, :1]).all() and 0.3 < kept.mean() < 0.7 and (kept[0] != kept[1]).any()
  np.testing.assert_allclose(hidden[kept], 2 * layers[-1][kept], rtol=1e-6)


def test_rows_of_the_table_drop_out_as_a_whole():
  drawn = [list(states(key, embedding_dropout=0.5))[1][0] for key in range(8)]
  table = np.asarray(form()[1]['token_embed']['table'])[9]
  assert all(not one.any() or np.allclose(one, 2 * table) for one in drawn)  # all places have the same token
  assert {bool(one.any()) for one in drawn} == {True, False}


def test_recurrent_weights_drop_out_alike_in_all_rows():
  """Rows of the same text have the same states, others than those of another draw; the first state reads no weight."""
  first, other = (next(states(key, weight_dropout=0.5)) for key in (0, 1))
  np.testing.assert_allclose(first[0], first[1], rtol=1e-6)
  none = next(states(0))
  np.testing.assert_allclose(first[:, 0], none[:, 0], rtol=1e-6)
  assert np.abs(first[:, 1:] - other[:, 1:]).max() > 1e-2 < np.abs(first[:, 1:] - none[:, 1:]).max()


def test_parameters_start_as_those_of_torch():
  trunk = make_trunk(hidden_dim=64, mlp_dim=100)
  params = nn.unbox(trunk.init(jax.random.key(0), method='init_all')['params'])
  for name, width in (('lstm_0', 100), ('lstm_2', 64)):
    for leaf in jax.tree.leaves(params[name]):
      assert 0.9 / np.sqrt(width) < np.abs(leaf).max() <= 1 / np.sqrt(width)
      assert leaf.std() == pytest.approx(1 / np.sqrt(3 * width), rel=0.1)
  assert np.abs(params['token_embed']['table']).max() == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize('left', [False, True])
def test_steps_give_the_logits_of_whole_rows(left):
  trunk, params, _ = form()
  stepping.check(trunk, params, left=left)
