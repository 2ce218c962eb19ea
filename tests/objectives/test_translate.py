"""Translation by attention: the decoder against numpy step by step, its size, generation, what does not train."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.param_paths import flat
from plm_jax.models import bert, cove
from plm_jax.objectives import translate, translate_decoder
from plm_jax.training import step
from tests import learning, tiny
from tests.adapters import test_sequence

pytestmark = pytest.mark.turns

VOCAB, SECOND = tiny.FakeVocab(), tiny.FakeVocab(size=43)
START = SECOND.bos_id
SEED = 2  # of parameters with which a search finds better texts than greedy ones


def make(**settings):
  trunk = cove.make(vocab_size=VOCAB.size, variant='tiny', overrides={'word_dim': 6, 'hidden_dim': 16, 'dropout': 0.0})
  given = {'trunk': trunk, 'vocab': VOCAB, 'second_vocab': SECOND, 'word_dim': 5, 'dropout': 0.0}
  return translate.make(**given | settings)


def batch():
  """Rows to read, and targets of the second vocabulary."""
  rows = test_sequence.make_batch()
  return rows | {'target_tokens': jnp.where(rows['target_segment_ids'] > 0, rows['target_tokens'] % 43, 0)}


@functools.cache
def params(biases=True, seed=0, feeding=True):
  abstract = step.abstract_params(make(biases=biases, feeding=feeding), tiny.spec(batch()))
  return jax.tree.map(lambda leaf: 6 * leaf, tiny.draw(abstract, seed=seed))  # gates that open and close


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def one_step(p, memory, hidden, token):
  """The equations of the paper for one text, float64: (weights of attention, memory) after reading a token."""
  hs, cs, adjusted = memory
  x, h_new, c_new = p['embed']['table'][token], [], []
  if len(p['lstm_0']['kernel']) > len(x):  # input feeding
    x = np.concatenate([x, adjusted])
  for number, (h, c) in enumerate(zip(hs, cs, strict=True)):
    own = p[f'lstm_{number}']
    i, f, g, o = (
      x @ own['kernel'][:, 0, gate] + own['bias'][0, gate] + h @ own['recurrent'][0, :, gate]
      + own['recurrent_bias'][0, gate]
      for gate in range(4)
    )  # fmt: skip
    c_new.append(sigmoid(f) * c + sigmoid(i) * np.tanh(g))
    h_new.append(sigmoid(o) * np.tanh(c_new[-1]))
    x = h_new[-1]
  shifts = [p.get(name, np.zeros(16)) for name in ('score_bias', 'adjust_bias')]
  scores = hidden @ (p['score'] @ h_new[-1] + shifts[0])
  weights = np.exp(scores - scores.max())
  weights /= weights.sum()
  adjusted = np.tanh(np.concatenate([hidden.T @ weights, h_new[-1]]) @ p['adjust'] + shifts[1])
  return weights, (h_new, c_new, adjusted)


def in_numpy(biases, feeding):
  """-log p of every target token, text by text and step by step."""
  tree = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params(biases, feeding=feeding))
  rows, nats = {name: np.asarray(value) for name, value in batch().items()}, []
  out = make().model.trunk.apply(
    {'params': params(biases, feeding=feeding)['trunk']}, batch()['tokens'], segment_ids=batch()['segment_ids']
  )
  for row, tokens in enumerate(rows['target_tokens']):
    real = rows['segment_ids'][row] > 0
    hidden = np.asarray(out['hidden'], np.float64)[row, real]
    memory = *(np.asarray(each, np.float64)[row] for each in out['ends']), np.zeros(16)
    before, p = START, tree['decoder']
    for place in np.flatnonzero(rows['target_segment_ids'][row]):
      _, memory = one_step(p, memory, hidden, before)
      logits = memory[2] @ p['output']['kernel'] + p['output']['bias']
      nats.append(np.log(np.exp(logits).sum()) - logits[tokens[place]])
      before = tokens[place]
  return nats


@pytest.mark.parametrize(('biases', 'feeding'), [(True, True), (False, True), (True, False)])
def test_equals_numpy_step_by_step(biases, feeding):
  task = make(biases=biases, feeding=feeding)
  loss, gradient = tiny.loss_and_gradient(task, params(biases, feeding=feeding), batch())
  nats = in_numpy(biases, feeding)
  assert float(loss.metrics['loss'][1]) == len(nats)
  assert tiny.means(loss.metrics)['loss'] == pytest.approx(np.mean(nats), rel=1e-5)
  assert ('score_bias' in gradient['decoder']) is biases


def test_weights_of_attention_are_over_the_words_of_a_text():
  draw = np.random.default_rng(0)
  hidden, states = (jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in ((2, 5, 16), (2, 3, 16)))
  real = jnp.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]) > 0
  source = translate_decoder.Source(hidden, hidden, jnp.zeros((2, 5)), real)
  weights = translate_decoder.attention(states, source)
  assert weights.shape == (2, 3, 5)
  np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
  assert not weights[0, :, 3:].any()
  np.testing.assert_allclose(translate_decoder.attention(states[:, 1], source), weights[:, 1], atol=1e-6)


def written(seed=0, feeding=True, **decoding):
  task = make(decoding={'max_new': 6, **decoding}, feeding=feeding)
  example = task.prepare(jax.random.key(0), batch())
  return step.bind(task, params(seed=seed, feeding=feeding), train=False, rng=jax.random.key(0))(
    method='write',
    tokens=example.targets['tokens'],
    segment_ids=example.targets['segment_ids'],
    settings=settings_of(task),
  )


def settings_of(task):
  return task.predict.args[0].decoding


def nats_of(tokens, lengths, seed=0, feeding=True):
  """-log p of texts int[b, t] by the training forward."""
  task = make(feeding=feeding)
  there = (jnp.arange(tokens.shape[1]) < lengths[:, None]).astype(jnp.int32)
  rows = batch() | {'target_tokens': tokens * there, 'target_segment_ids': there}
  example = task.prepare(jax.random.key(0), rows)
  model, tree = task.model, {'params': params(seed=seed, feeding=feeding)}
  logits = model.apply(tree, model.apply(tree, **example.inputs), method='attend')
  each = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1)[..., 0]
  return -(each * there).sum(axis=1), logits


@pytest.mark.parametrize('feeding', [True, False])
def test_greedy_writing_follows_the_training_forward(feeding):
  made = written(feeding=feeding)
  nats, logits = nats_of(made.tokens, made.lengths, feeding=feeding)
  np.testing.assert_allclose(made.scores, -nats, rtol=1e-4)
  for row, length in enumerate(np.asarray(made.lengths)):
    np.testing.assert_array_equal(logits[row, :length].argmax(axis=-1), made.tokens[row, :length])


def test_beams_keep_a_memory_each():
  """The scores of a search are those of its texts in training, and no worse than greedy ones."""
  made = written(SEED, method='beam', beams=4, length_penalty=0.0, early_stop='never')
  nats, _ = nats_of(made.tokens, made.lengths, SEED)
  np.testing.assert_allclose(made.scores, -nats, rtol=1e-4)
  greedy = written(SEED)
  assert (np.asarray(made.scores) >= np.asarray(greedy.scores) - 1e-4).all()
  assert not tiny.same(made.tokens, greedy.tokens)


def test_the_decoder_has_the_size_of_the_paper():
  trunk = cove.make(vocab_size=10, variant='cove')
  counts = {}
  for biases in (True, False):
    task = make(trunk=trunk, word_dim=300, biases=biases)
    tree = step.abstract_params(task, tiny.spec(batch()))['decoder']
    counts[biases] = {name: sum(leaf.size for leaf in jax.tree.leaves(part)) for name, part in tree.items()}
  recurrent = counts[True]['lstm_0'] + counts[True]['lstm_1']
  assert (recurrent, counts[False]['score'] + counts[False]['adjust']) == (6_489_600, 1_080_000)
  assert counts[True]['score_bias'] == counts[True]['adjust_bias'] == 600
  assert not {'score_bias', 'adjust_bias'} & set(counts[False])


@pytest.mark.slow
def test_texts_are_written_backwards():
  """Eight words in a random order are written from the last to the first, better than by their shares."""

  def rows(number):
    rows = batch()
    words = np.random.default_rng(number).integers(7, 15, (len(rows['tokens']), 4))
    whole = {
      name: np.zeros_like(rows[name]) for name in ('tokens', 'segment_ids', 'target_tokens', 'target_segment_ids')
    }
    for prefix, text in (('', words), ('target_', words[:, ::-1])):
      whole[f'{prefix}tokens'][:, :4], whole[f'{prefix}segment_ids'][:, :4] = text, 1
    return rows | {name: jnp.asarray(value) for name, value in whole.items()}

  task = make(word_dim=16)
  vectors = tiny.draw(step.abstract_params(task, tiny.spec(rows(0))), seed=0)['trunk']
  given = {'trunk': jax.tree.map(lambda leaf: 6 * leaf, vectors)}
  before, after = learning.held_out(task, rows=rows, given=given, steps=1_500, rate=1e-2, schedule='linear', warmup=50)
  assert before['loss'] > 2 and after['loss'] < np.log(8) - 0.5


def test_word_vectors_do_not_train():
  task = make()
  tx = tiny.make_optimiser(task, batch(), decay=0.1)
  frozen = flat(tx.split(params())[1])
  assert [path for path, leaf in frozen.items() if leaf is not None] == ['trunk/token_embed/table']


def test_another_trunk_is_refused():
  trunk = bert.make(vocab_size=VOCAB.size, variant='tiny')
  with pytest.raises(ValueError, match=r'Ends.*Bert.*FIXED, num_layers.*model\.name'):
    make(trunk=trunk)
