"""ELMo against a forward pass written again in numpy, one word at a time: both directions, carry, padding, clips."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import classify
from plm_jax.models import elmo
from plm_jax.noise import keys
from plm_jax.text import chars
from tests import tiny

pytestmark = pytest.mark.turns

SEGMENTS = np.array([[1] * 7, [1, 1, 1, 2, 2, 0, 0], [1, 0, 0, 0, 0, 0, 0]])
WORDS = ['it', 'was', 'the', 'best', 'of', 'times', 'worst', 'age', 'wisdom']
ROWS = np.random.default_rng(1).integers(0, len(WORDS), (3, 14))


def spelt(ids):
  """[...] -> int[..., 50]."""
  return np.stack([chars.of_word(word) for word in WORDS])[ids]


@functools.cache
def form():
  """(trunk, parameters): three layers, gates that open and close, states and projections that meet their clips."""
  sizes = {'hidden_dim': 12, 'num_layers': 3, 'mlp_dim': 10, 'dropout': 0.0, 'filters': (3, 4, 5), 'highway_layers': 2}
  sizes |= {'cell_clip': 0.6, 'projection_clip': 0.5}
  trunk = elmo.make(vocab_size=9, variant='tiny', overrides=sizes)
  shapes = nn.unbox(jax.eval_shape(lambda: trunk.init(jax.random.key(0), method='init_all'))['params'])
  return trunk, jax.tree.map(lambda leaf: 6 * leaf, tiny.draw(shapes))


@functools.cache
def compiled(method):
  trunk, params = form()
  return jax.jit(lambda *rows, **more: trunk.apply({'params': params}, *rows, method=method, **more))


def sigmoid(z):
  return 1 / (1 + np.exp(-z))


def word_vector(p, slots):
  """float64[p] of the slots of one word."""
  x = p['character_embed']['table'][slots]
  found = []
  for width in (1, 2, 3):
    kernel, bias = p[f'filters_{width}']['kernel'], p[f'filters_{width}']['bias']
    runs = [np.einsum('we,weo->o', x[start : start + width], kernel) + bias for start in range(51 - width)]
    found.append(np.max(runs, axis=0))
  x = np.maximum(np.concatenate(found), 0)
  for number in range(2):
    own = p[f'highway_{number}']
    gate = sigmoid(x @ own['gate']['kernel'] + own['gate_bias'])
    x = gate * np.maximum(x @ own['transform']['kernel'] + own['transform']['bias'], 0) + (1 - gate) * x
  return x @ p['projection']['kernel'] + p['projection']['bias']


def read_one_way(params, sentence, direction):
  """Outputs of all layers, float64[n, l, p], of words in the order of reading, and the state behind them."""
  trunk, clipped = form()[0], [0, 0]
  x = np.stack([word_vector(params['words'], slots) for slots in sentence])
  n, p, f = 3, 6, 10
  h, c = np.zeros((n, p)), np.zeros((n, f))
  outputs, hs, cs = [], [], []
  for layer in range(n):
    own = {name: leaf[layer, direction] for name, leaf in params['layers'].items()}
    hidden, cell, states = h[layer], c[layer], []
    for token in x:
      i, g, u, o = (
        token @ own['input'][:, gate] + hidden @ own['recurrent'][:, gate] + own['bias'][gate] for gate in range(4)
      )
      whole = sigmoid(g) * cell + sigmoid(i) * np.tanh(u)
      cell = np.clip(whole, -trunk.config.cell_clip, trunk.config.cell_clip)
      long = (sigmoid(o) * np.tanh(cell)) @ own['projection']
      hidden = np.clip(long, -trunk.config.projection_clip, trunk.config.projection_clip)
      clipped[0] += (whole != cell).any()
      clipped[1] += (long != hidden).any()
      states.append(hidden)
    x = np.array(states) + (x if layer else 0)
    outputs.append(x)
    hs.append(hidden)
    cs.append(cell)
  assert min(clipped) > 0
  return np.array(outputs), (np.array(hs), np.array(cs))


def doubles():
  return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), form()[1])


def test_texts_equal_numpy_each_between_the_ends_of_a_sentence():
  """Packed and padded rows; the states of the two boundary words are left out."""
  params, rows = doubles(), ROWS[:, :7]
  out = compiled(None)(jnp.asarray(spelt(rows)), segment_ids=jnp.asarray(SEGMENTS))
  layers = np.asarray(out['layers'])
  assert layers.shape == (4, 3, 7, 12)
  np.testing.assert_array_equal(layers[-1], out['hidden'])
  begin, end = chars.boundary(chars.SENTENCE_BEGINS), chars.boundary(chars.SENTENCE_ENDS)
  for row, segments in enumerate(SEGMENTS):
    for number in sorted(set(segments) - {0}):
      places = np.flatnonzero(segments == number)
      sentence = [begin, *spelt(rows[row, places]), end]
      forward, _ = read_one_way(params, sentence, 0)
      backward, _ = read_one_way(params, sentence[::-1], 1)
      both = np.concatenate([forward[:, 1:-1], backward[:, ::-1][:, 1:-1]], axis=-1)
      np.testing.assert_allclose(layers[1:, row, places], both, atol=2e-5)
      vectors = np.stack([word_vector(params['words'], slots) for slots in spelt(rows[row, places])])
      np.testing.assert_allclose(layers[0, row, places], np.concatenate([vectors, vectors], axis=-1), atol=2e-5)


def test_the_raw_vectors_of_a_word_are_its_own_and_those_of_each_layer_and_direction():
  """2 n + 1 of them, as numpy has them: a vector that no layer reads, n states forward and n backward."""
  params, rows, segments = doubles(), ROWS[:1, :7], jnp.ones((1, 7), jnp.int32)
  layers = compiled(None)(jnp.asarray(spelt(rows)), segment_ids=segments)['layers']
  found = [layers[0, 0, :, :6], *(state[0] for both in form()[0].directions(layers, segments) for state in both)]
  sentence = [chars.boundary(chars.SENTENCE_BEGINS), *spelt(rows[0]), chars.boundary(chars.SENTENCE_ENDS)]
  own = np.stack([word_vector(params['words'], slots) for slots in spelt(rows[0])])
  ways = read_one_way(params, sentence, 0)[0], read_one_way(params, sentence[::-1], 1)[0][:, ::-1]
  expected = [own, *(states[1:-1] for way in ways for states in way)]
  assert len(found) == len(expected) == 7
  for ours, theirs in zip(found, expected, strict=True):
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_windows_of_a_stream_equal_numpy_over_the_whole_of_it():
  """Two windows of 7 words with the carry between them, and words of their own in each direction."""
  trunk, params = form()[0], doubles()
  forward, backward = spelt(ROWS), spelt(ROWS[::-1, ::-1])
  carry, found = trunk.init_carry(3), []
  for start in (0, 7):
    window = slice(start, start + 7)
    states, carry = compiled('stream')(jnp.asarray(forward[:, window]), jnp.asarray(backward[:, window]), carry=carry)
    found.append(np.asarray(states))
  found = np.concatenate(found, axis=1)
  for row in range(3):
    for direction, sentence in enumerate((forward[row], backward[row])):
      outputs, (h, c) = read_one_way(params, sentence, direction)
      np.testing.assert_allclose(found[row, :, direction], outputs[-1], atol=2e-5)
      np.testing.assert_allclose(np.asarray(carry['hidden'])[row, :, direction], h, atol=2e-5)
      np.testing.assert_allclose(np.asarray(carry['cell'])[row, :, direction], c, atol=2e-5)


@pytest.mark.parametrize('place', [0, 3, 6])
def test_a_word_changes_forward_states_from_it_on_and_backward_states_up_to_it(place):
  rows = ROWS[:, :7].copy()
  segments = jnp.ones((3, 7), jnp.int32)
  before = np.asarray(compiled(None)(jnp.asarray(spelt(rows)), segment_ids=segments)['layers'])
  rows[:, place] = (rows[:, place] + 1) % len(WORDS)
  after = np.asarray(compiled(None)(jnp.asarray(spelt(rows)), segment_ids=segments)['layers'])
  changed = (before != after).reshape(4, 3, 7, 2, 6).any(axis=(1, 4))  # layer, word, direction
  assert changed[0].tolist() == [[word == place] * 2 for word in range(7)]
  for layer in changed[1:]:
    assert layer.tolist() == [[word >= place, word <= place] for word in range(7)]


def test_packed_texts_and_padding_do_not_touch_each_other():
  rows, segments = ROWS[:, :7].copy(), jnp.asarray(SEGMENTS)
  before = np.asarray(compiled(None)(jnp.asarray(spelt(rows)), segment_ids=segments)['hidden'])
  rows[SEGMENTS != 1] = (rows[SEGMENTS != 1] + 1) % len(WORDS)
  after = np.asarray(compiled(None)(jnp.asarray(spelt(rows)), segment_ids=segments)['hidden'])
  np.testing.assert_array_equal(after[SEGMENTS == 1], before[SEGMENTS == 1])
  assert (after[SEGMENTS == 2] != before[SEGMENTS == 2]).any()


def test_directions_share_the_vectors_of_words_and_nothing_else():
  trunk, params = form()
  assert set(params) == {'words', 'layers'}
  assert all(leaf.shape[:2] == (3, 2) for leaf in jax.tree.leaves(params['layers']))  # layers, directions
  carry = trunk.init_carry(3)
  words = jnp.asarray(spelt(ROWS[:, :7]))

  @jax.jit
  @jax.grad
  def of_direction(params, chosen):
    states, _ = trunk.apply({'params': params}, words, words, carry=carry, method='stream')
    return (states * chosen[:, None]).sum()

  for direction in (0, 1):
    gradient = of_direction(params, jnp.arange(2) == direction)
    assert all(leaf.any() for leaf in jax.tree.leaves(gradient['words']))
    for leaf in jax.tree.leaves(gradient['layers']):
      assert leaf[:, direction].any() and not leaf[:, 1 - direction].any()


@pytest.mark.parametrize(
  ('fields', 'message'), [({'hidden_dim': 33}, r'hidden_dim\W33\b'), ({'filters': ()}, r'filters.*50')]
)
def test_sizes_that_do_not_fit_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    elmo.make(vocab_size=9, variant='tiny', overrides=fields)


def test_adapters_read_words_by_their_characters():
  task = classify.make(trunk=elmo.make(vocab_size=9, variant='tiny'), vocab=tiny.VOCAB, classes=2)
  words = jnp.asarray(np.stack([chars.of_word(word) for word in ('zog', 'dax', 'cat')]))
  batch = {
    'tokens': jnp.ones((1, 3), jnp.int32),
    'characters': words[None],
    'segment_ids': jnp.ones((1, 3), jnp.int32),
    'label': jnp.zeros(1, jnp.int32),
    'row_weight': jnp.ones(1),
  }
  example = task.prepare(jax.random.key(0), keys.with_step(batch, 0))
  assert set(example.inputs) == {'characters', 'segment_ids'}
  params = task.model.init(jax.random.key(0), **example.inputs)
  one = task.model.apply(params, **example.inputs)[0]
  other = task.model.apply(params, **{**example.inputs, 'characters': words[None, jnp.array([1, 1, 2])]})[0]
  assert not np.allclose(one, other)  # two unknown words


def test_the_second_sentence_of_a_row_is_read_as_if_it_stood_alone():
  trunk = elmo.make(vocab_size=9, variant='tiny')
  words = jnp.asarray(np.stack([chars.of_word(word) for word in ['the', 'cat', 'saw', 'a', 'dog']]))[None]
  params = trunk.init(jax.random.key(0), method='init_all')
  whole = trunk.apply(params, words, segment_ids=jnp.array([[1, 1, 1, 2, 2]]))['layers']
  alone = trunk.apply(params, words[:, 3:], segment_ids=jnp.array([[1, 1]]))['layers']
  np.testing.assert_allclose(whole[:, :, 3:], alone, atol=1e-6)
