"""The encoder of cross-view training against a forward pass in numpy, and what each direction has read."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.models import cvt
from plm_jax.text import chars
from tests import tiny

SIZES = {
  'word_dim': 5,
  'char_dim': 3,
  'slots': 8,
  'filters': (0, 2, 3),
  'hidden_dim': 12,
  'mlp_dims': (7, 5, 6),
  'dropout': 0.0,
}
SEGMENTS = np.array([[1] * 7, [1, 1, 1, 2, 2, 0, 0], [1, 0, 0, 0, 0, 0, 0]])
TOKENS = np.random.default_rng(0).integers(1, 30, (3, 7))
SPELT = np.stack([chars.of_word(word) for word in ('it', 'was', 'wisdom', 'incredulity')])[TOKENS % 4]


@functools.cache
def form():
  """(trunk, parameters) with gates that open and close."""
  trunk = cvt.make(vocab_size=30, variant='tiny', overrides=SIZES)
  abstract = jax.eval_shape(lambda: trunk.init(jax.random.key(0), method='init_all')['params'])
  return trunk, jax.tree.map(lambda leaf: 6 * leaf, tiny.draw(nn.unbox(abstract)))


@functools.cache
def compiled():
  trunk, params = form()
  return jax.jit(lambda tokens, segments, characters: trunk.apply(
    {'params': params}, tokens, characters=characters, segment_ids=segments
  ))  # fmt: skip


def layers_of(tokens=TOKENS, segments=SEGMENTS, characters=SPELT):
  characters = None if characters is None else jnp.asarray(characters)
  return np.asarray(compiled()(jnp.asarray(tokens), jnp.asarray(segments), characters)['layers'])


def sigmoid(z):
  return 1 / (1 + np.exp(-z))


def word(p, token, slots):
  """float64[10] of one word."""
  table = p['words']['character_embed']['table'][slots[:8]]
  found = [p['token_embed']['table'][token] * p['words']['scale']]
  for width in (2, 3):
    own = p['words'][f'filters_{width}']
    runs = [np.einsum('we,weo->o', table[start : start + width], own['kernel']) for start in range(9 - width)]
    found.append(np.maximum(np.max(runs, axis=0) + own['bias'], 0))
  return np.concatenate(found)


def read_one_way(own, x, direction):
  """States float64[l, p] of one level, words in the order of reading."""
  h, c, states = np.zeros(6), np.zeros(own['bias'].shape[-1]), []
  for token in x:
    gates = token @ own['input']['kernel'][:, direction].reshape(len(token), -1)
    gates = (gates + h @ own['recurrent'][direction].reshape(6, -1)).reshape(4, -1) + own['bias'][direction]
    c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * np.tanh(gates[2])
    h = (sigmoid(gates[3]) * np.tanh(c)) @ own['projection'][direction]
    states.append(h)
  return np.array(states)


def test_equals_numpy_on_packed_and_padded_rows():
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), form()[1])
  layers = layers_of()
  assert layers.shape == (4, 3, 7, 12)
  for row, segments in enumerate(SEGMENTS):
    for number in sorted(set(segments) - {0}):
      places = np.flatnonzero(segments == number)
      x = np.stack([word(params, TOKENS[row, place], SPELT[row, place]) for place in places])
      np.testing.assert_allclose(layers[0, row, places], np.pad(x, ((0, 0), (0, 2))), atol=2e-5)
      for level in range(3):
        own = params[f'lstm_{level}']
        forward, backward = read_one_way(own, x, 0), read_one_way(own, x[::-1], 1)[::-1]
        x = np.concatenate([forward, backward], axis=-1)
        np.testing.assert_allclose(layers[level + 1, row, places], x, atol=2e-5)


def test_as_many_parameters_as_the_sizes_say():
  words = 262 * 50 + sum(width * 50 * 100 + 100 for width in (2, 3, 4)) + 1
  level = lambda read, cell, out: 2 * ((read + out) * 4 * cell + 4 * cell + cell * out)  # noqa: E731
  assert words + level(600, 1024, 512) + level(1024, 512, 512) == cvt.PUBLISHED['cvt'].parameters
  trunk = cvt.make(vocab_size=0, variant='cvt')
  shapes = jax.eval_shape(lambda: trunk.init(jax.random.key(0), method='init_all'))
  assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == cvt.PUBLISHED['cvt'].parameters


@pytest.mark.parametrize('place', [0, 3, 6])
@pytest.mark.parametrize('changed', ['token', 'characters'])
def test_a_word_changes_forward_states_from_it_on_and_backward_states_up_to_it(place, changed):
  segments = np.ones((3, 7), int)
  before, tokens, spelt = layers_of(segments=segments), TOKENS.copy(), SPELT.copy()
  if changed == 'token':
    tokens[:, place] = 30 - tokens[:, place]
  else:
    spelt[:, place] = chars.of_word('zeal')
  after = layers_of(tokens, segments, spelt)
  trunk = form()[0]
  own, others = (trunk.directions(jnp.asarray(layers), jnp.asarray(segments)) for layers in (before, after))
  different = np.stack([np.asarray(a != b).any(axis=(1, 3)) for a, b in zip(own, others, strict=True)], axis=-1)
  assert different[0].tolist() == [[number >= place, number <= place] for number in range(7)]
  assert different[1:].all(), 'the levels above read both directions'


def test_packed_texts_and_padding_do_not_touch_each_other():
  tokens, before = TOKENS.copy(), layers_of()
  tokens[SEGMENTS != 1] = 30 - tokens[SEGMENTS != 1]
  after = layers_of(tokens)
  np.testing.assert_array_equal(after[:, SEGMENTS == 1], before[:, SEGMENTS == 1])
  assert (after[:, SEGMENTS == 2] != before[:, SEGMENTS == 2]).any()


def test_a_place_without_characters_has_zeros_for_them():
  none, some = SPELT.copy(), layers_of()
  none[0, 2] = 0
  found = layers_of(characters=none)[0]
  assert not found[0, 2, 5:].any() and (some[0, 0, 2, 5:10] > 0).any()
  np.testing.assert_array_equal(found[0, 2, :5], some[0, 0, 2, :5])
  np.testing.assert_array_equal(layers_of(characters=None), layers_of(characters=np.zeros_like(SPELT)))
  assert layers_of(characters=None).shape[-1] == 12


def test_characters_behind_the_last_slot_are_not_read():
  longer = SPELT.copy()
  longer[..., 8:] = 1
  np.testing.assert_array_equal(layers_of(characters=longer), layers_of())
  longer[..., 7] = 1
  assert (layers_of(characters=longer) != layers_of()).any()


def test_dropout_falls_on_words_characters_and_every_level():
  trunk, params = form()
  dropping = trunk.with_dropout(0.5)
  assert dropping.config.dropout == 0.5 and trunk.config.dropout == 0.0
  read = {'characters': jnp.asarray(SPELT), 'segment_ids': jnp.asarray(SEGMENTS)}
  out = dropping.apply({'params': params}, jnp.asarray(TOKENS), **read, train=True, rngs={'dropout': jax.random.key(1)})
  kept = layers_of() != 0
  real = kept & (SEGMENTS > 0)[..., None]
  for level in range(4):
    share = (np.asarray(out['layers'])[level] == 0)[real[level]].mean()
    assert 0.3 < share < 0.7, level
  words, found = np.asarray(out['layers'])[0, ..., :5], layers_of()[0, ..., :5]
  np.testing.assert_allclose(words[words != 0], 2 * found[words != 0], rtol=1e-6)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'hidden_dim': 13}, 'hidden_dim=13.*10'),
    ({'word_dim': 9}, 'hidden_dim=12.*14'),
    ({'mlp_dims': ()}, r'mlp_dims=\(\)'),
    ({'filters': (1,) * 9}, 'filters.*slots=8'),
  ],
)
def test_sizes_that_do_not_fit_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    cvt.make(vocab_size=9, variant='tiny', overrides={**SIZES, **fields})
