"""The mix of layers and the other joins of states against their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers import scalar_mix
from plm_jax.layers.scalar_mix import JoinedStates, ScalarMix

STATES = [jnp.asarray(np.random.default_rng(n).normal(n, 1 + n, (2, 3, 4)), jnp.float32) for n in range(3)]
PARAMS = {'weights': jnp.array([0.5, -1.0, 2.0]), 'gamma': jnp.float32(1.5)}


def by_hand(states, *, weights, gamma, epsilon=None):
  """Compute gamma sum_j softmax(w)_j h_j in float64, token by token."""
  shares = np.exp(np.asarray(weights, np.float64))
  total = np.zeros(states[0].shape)
  for share, state in zip(shares / shares.sum(), np.asarray(states, np.float64), strict=True):
    for place in np.ndindex(state.shape[:-1]):
      token = state[place]
      if epsilon is not None:
        token = (token - token.mean()) / np.sqrt(token.var() + epsilon)
      total[place] += share * token
  return gamma * total


@pytest.mark.parametrize('norm', [False, True])
def test_equals_the_formula(norm):
  mixed = ScalarMix(norm).apply({'params': PARAMS}, STATES)
  expected = by_hand(STATES, weights=PARAMS['weights'], gamma=1.5, epsilon=1e-12 if norm else None)
  np.testing.assert_allclose(mixed, expected, rtol=1e-5, atol=1e-6)


def test_begins_as_the_mean_of_the_layers():
  params = scalar_mix.nn.unbox(ScalarMix().init(jax.random.key(0), STATES)['params'])
  assert params['weights'].tolist() == [0, 0, 0]
  assert params['gamma'] == 1
  np.testing.assert_allclose(ScalarMix().apply({'params': params}, STATES), np.mean(STATES, axis=0), rtol=1e-5)


def test_weights_and_gamma_learn():
  target = STATES[1]
  value = lambda params: jnp.square(ScalarMix().apply({'params': params}, STATES) - target).sum()  # noqa: E731
  gradient = jax.grad(value)(PARAMS)
  for name, index in (('weights', 0), ('weights', 2), ('gamma', ())):
    nudged = [{**PARAMS, name: PARAMS[name].at[index].add(by)} for by in (1e-2, -1e-2)]
    slope = (value(nudged[0]) - value(nudged[1])) / 2e-2
    assert float(gradient[name][index]) == pytest.approx(float(slope), rel=1e-2)


@pytest.mark.parametrize(
  ('join', 'weights', 'expected'),
  [
    ('concat', (), np.concatenate(STATES, axis=-1)),
    ('sum', (), np.sum(STATES, axis=0)),
    ('weighted', (0.5, -2.0, 0.25), 0.5 * STATES[0] - 2 * STATES[1] + 0.25 * STATES[2]),
    ('mix', (), by_hand(STATES, weights=PARAMS['weights'], gamma=1.5)),
  ],
)
def test_ways_to_join(join, weights, expected):
  module = JoinedStates(join, weights)
  params = {'mix': PARAMS} if join == 'mix' else {}
  found = jax.eval_shape(lambda: module.init(jax.random.key(0), STATES)).get('params', {})
  assert set(found) == set(params)
  np.testing.assert_allclose(module.apply({'params': params}, STATES), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  ('layers', 'join', 'weights', 'message'),
  [
    ((), 'concat', (), r'adapter\.layers=\(\)'),
    ((-1,), 'add', (), r"adapter\.join='add'.*concat, sum, weighted, mix"),
    ((-2, -1), 'weighted', (1.0,), r'adapter\.layer_weights=\(1\.0,\).*adapter\.layers=\(-2, -1\)'),
    ((-2, -1), 'sum', (1.0, 1.0), r"adapter\.layer_weights=\(1\.0, 1\.0\).*adapter\.join='sum'"),
  ],
)
def test_what_cannot_be_joined_is_refused(layers, join, weights, message):
  with pytest.raises(ValueError, match=message):
    scalar_mix.check_join(layers=layers, join=join, weights=weights)


def test_layers_that_are_not_there_are_refused():
  out = {'hidden': STATES[0], 'layers': jnp.stack(STATES)}
  assert scalar_mix.read_layers(out, (-1,))[0] is STATES[0]
  np.testing.assert_array_equal(scalar_mix.read_layers(out, (0, 2, -2))[2], STATES[1])
  with pytest.raises(ValueError, match=r'adapter\.layers=\(3,\).*-3.*2'):
    scalar_mix.read_layers(out, (3,))
