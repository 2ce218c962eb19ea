"""Layers of LSTM that read both ways against torch.nn.LSTM on the same weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers import lstm
from tests import tiny

WIDTH, LAYERS, INPUTS = 6, 2, 5
SEGMENTS = jnp.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 2, 2, 0, 0], [1, 0, 0, 0, 0, 0, 0]])
STACK = lstm.StackedLstm(WIDTH, LAYERS, dropout=0.5)
X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 7, INPUTS)), jnp.float32)


def parameters():
  abstract = jax.eval_shape(lambda: STACK.init(jax.random.key(0), X, SEGMENTS, train=False))['params']
  return jax.tree.map(lambda leaf: 5 * leaf, tiny.draw(lstm.nn.unbox(abstract)))


PARAMS = parameters()


def peer():
  """torch.nn.LSTM with these parameters; the bias that torch has twice is once 0."""
  torch = pytest.importorskip('torch')
  made = torch.nn.LSTM(INPUTS, WIDTH, num_layers=LAYERS, batch_first=True, bidirectional=True, dtype=torch.float64)
  for layer in range(LAYERS):
    p = PARAMS[f'layer_{layer}']
    for direction, suffix in enumerate(('', '_reverse')):
      values = {
        'weight_ih': np.asarray(p['input']['kernel'])[:, direction].reshape(-1, 4 * WIDTH).T,
        'weight_hh': np.asarray(p['recurrent'])[direction].reshape(WIDTH, 4 * WIDTH).T,
        'bias_ih': np.asarray(p['bias'])[direction].reshape(-1),
        'bias_hh': np.zeros(4 * WIDTH),
      }
      for name, value in values.items():
        made.get_parameter(f'{name}_l{layer}{suffix}').data = torch.tensor(value.astype(np.float64))
  return made


def test_equals_torch_text_by_text():
  torch, made = pytest.importorskip('torch'), peer()
  ours = np.asarray(jax.jit(lambda p: STACK.apply({'params': p}, X, SEGMENTS, train=False))(PARAMS))
  assert ours.shape == (3, 7, 2 * WIDTH)
  for row, segments in enumerate(np.asarray(SEGMENTS)):
    for number in sorted(set(segments) - {0}):
      places = np.flatnonzero(segments == number)
      with torch.no_grad():
        theirs = made(torch.tensor(np.asarray(X, np.float64)[row, places][None]))[0][0].numpy()
      np.testing.assert_allclose(ours[row, places], theirs, atol=1e-5)


def test_equals_torch_on_padded_rows():
  torch, made = pytest.importorskip('torch'), peer()
  sizes = (7, 4, 2)
  segments = jnp.asarray((np.arange(7) < np.array(sizes)[:, None]).astype(np.int32))
  packed = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(np.asarray(X, np.float64)), sizes, batch_first=True)
  with torch.no_grad():
    theirs, _ = torch.nn.utils.rnn.pad_packed_sequence(made(packed)[0], batch_first=True)
  ours = STACK.apply({'params': PARAMS}, X, segments, train=False)
  np.testing.assert_allclose(
    np.asarray(ours)[np.asarray(segments) > 0], theirs.numpy()[np.asarray(segments) > 0], atol=1e-5
  )


def test_dropout_is_on_the_inputs_of_layers_in_training():
  run = jax.jit(lambda key: STACK.apply({'params': PARAMS}, X, SEGMENTS, train=True, rngs={'dropout': key}))
  first, again, other = run(jax.random.key(0)), run(jax.random.key(0)), run(jax.random.key(1))
  assert tiny.same(first, again)
  assert not tiny.same(first, other)
