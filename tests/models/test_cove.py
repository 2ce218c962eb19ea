"""CoVe's encoder: its size, equality with torch.nn.LSTM on padded rows, directions, walls, what it gives a decoder."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.models import cove
from tests import tiny

SIZES = {'word_dim': 5, 'hidden_dim': 12, 'dropout': 0.0}
LENGTHS = (7, 4, 1)
SEGMENTS = jnp.asarray((np.arange(7) < np.array(LENGTHS)[:, None]).astype(np.int32))
TOKENS = jnp.asarray(np.random.default_rng(0).integers(1, 30, (3, 7)), jnp.int32)


@functools.cache
def form(**fields):
  """(parameters, function of tokens and segments -> the output of a call)."""
  trunk = cove.make(vocab_size=30, variant='tiny', overrides={**SIZES, **fields})
  abstract = jax.eval_shape(lambda key: trunk.init(key, method='init_all')['params'], jax.random.key(0))
  params = jax.tree.map(lambda leaf: 5 * leaf, tiny.draw(nn.unbox(abstract)))  # gates that open and close
  return params, jax.jit(lambda tokens, segment_ids: trunk.apply({'params': params}, tokens, segment_ids=segment_ids))


@functools.cache
def peer():
  """torch.nn.LSTM with these parameters, both of its biases."""
  torch = pytest.importorskip('torch')
  made = torch.nn.LSTM(5, 6, num_layers=2, batch_first=True, bidirectional=True, dtype=torch.float64)
  for layer in range(2):
    p = {name: np.asarray(leaf, np.float64) for name, leaf in form()[0][f'lstm_{layer}']['gates'].items()}
    for direction, suffix in enumerate(('', '_reverse')):
      values = {
        'weight_ih': p['kernel'][:, direction].reshape(-1, 24).T,
        'weight_hh': p['recurrent'][direction].reshape(6, 24).T,
        'bias_ih': p['bias'][direction].reshape(-1),
        'bias_hh': p['recurrent_bias'][direction].reshape(-1),
      }
      for name, value in values.items():
        made.get_parameter(f'{name}_l{layer}{suffix}').data = torch.tensor(value)
  return made


def test_as_many_parameters_as_torch_has():
  torch = pytest.importorskip('torch')
  theirs = torch.nn.LSTM(300, 300, num_layers=2, bidirectional=True, dropout=0.2)
  count = sum(one.numel() for one in theirs.parameters())
  assert count == cove.PUBLISHED['cove'].parameters == 3_609_600


def test_equals_torch_on_padded_rows():
  torch, made, (params, run) = pytest.importorskip('torch'), peer(), form()
  words = torch.tensor(np.asarray(params['token_embed']['table'], np.float64)[np.asarray(TOKENS)])
  packed = torch.nn.utils.rnn.pack_padded_sequence(words, LENGTHS, batch_first=True)
  with torch.no_grad():
    states, ends = made(packed)
    hidden, _ = torch.nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
  ours = run(TOKENS, SEGMENTS)
  np.testing.assert_allclose(ours['hidden'], hidden.numpy(), atol=1e-5)  # torch has zeros on padding too
  for own, theirs in zip(ours['ends'], ends, strict=True):  # [b, n, 2 f] beside [2 n, b, f], direction by direction
    np.testing.assert_allclose(own, theirs.numpy().transpose(1, 0, 2).reshape(3, 2, 12), atol=1e-5)


def test_a_later_word_changes_no_forward_state_and_an_earlier_one_no_backward_state():
  _, run = form()
  before = np.asarray(run(TOKENS, SEGMENTS)['layers'])
  first, last = np.asarray(TOKENS).copy(), np.asarray(TOKENS).copy()
  first[0, 2], last[0, 4] = 29 - first[0, 2], 29 - last[0, 4]
  later, earlier = np.asarray(run(last, SEGMENTS)['layers']), np.asarray(run(first, SEGMENTS)['layers'])
  one = before[1, 0], later[1, 0], earlier[1, 0]  # the first layer of the first row
  np.testing.assert_array_equal(one[0][:4, :6], one[1][:4, :6])
  assert (np.abs(one[0][4:, :6] - one[1][4:, :6]).max(axis=1) > 1e-6).all()
  np.testing.assert_array_equal(one[0][3:, 6:], one[2][3:, 6:])
  assert (np.abs(one[0][:3, 6:] - one[2][:3, 6:]).max(axis=1) > 1e-6).all()


def test_documents_of_a_row_and_padding_do_not_see_each_other():
  _, run = form()
  row = jnp.asarray([[1, 1, 1, 2, 2, 0, 0]])
  together = np.asarray(run(TOKENS[:1], row)['hidden'])[0]
  for start, stop in ((0, 3), (3, 5)):
    alone = jnp.pad(TOKENS[:1, start:stop], ((0, 0), (0, 7 - stop + start)))
    segments = (jnp.arange(7) < stop - start).astype(jnp.int32)[None]
    hidden = np.asarray(run(alone, segments)['hidden'])[0, : stop - start]
    np.testing.assert_allclose(together[start:stop], hidden, atol=1e-6)
  assert not together[5:].any()


def test_the_words_stand_first_among_the_layers():
  params, run = form()
  layers = np.asarray(run(TOKENS, SEGMENTS)['layers'])
  words = np.asarray(params['token_embed']['table'])[np.asarray(TOKENS)]
  np.testing.assert_array_equal(layers[0], np.concatenate([words, words, np.zeros((3, 7, 2))], axis=-1))


def test_dropout_is_between_layers():
  trunk = cove.make(vocab_size=30, variant='tiny', overrides={**SIZES, 'dropout': 0.5})
  params, run = form()
  rngs = {'dropout': jax.random.key(1)}
  dropped = trunk.apply({'params': params}, TOKENS, segment_ids=SEGMENTS, train=True, rngs=rngs)['layers']
  layers = run(TOKENS, SEGMENTS)['layers']
  np.testing.assert_allclose(dropped[:2], layers[:2], atol=1e-6)
  assert np.abs(dropped[2] - layers[2]).max() > 1e-3


def test_widths_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match=r'hidden_dim=12.*word_dim=7.*14'):
    cove.make(vocab_size=30, variant='tiny', overrides={**SIZES, 'word_dim': 7})
