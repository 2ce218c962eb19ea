"""Cross-view training of a translator: the views against numpy, what they see, what unlabelled texts train."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.config import one_part
from plm_jax.objectives import translate_views
from plm_jax.training import step
from tests import tiny
from tests.objectives import test_translate as alone

pytestmark = pytest.mark.turns

VIEWS = ('dropped', 'future')
LENGTH = 6  # of translations, at most


def make(attention_dropout=0.0, **settings):
  given = {'vocab': alone.VOCAB, 'second_vocab': alone.SECOND, 'word_dim': 5, 'dropout': 0.0, 'label_smoothing': 0.0}
  given |= {'trunk': alone.make().model.trunk, 'attention_dropout': attention_dropout}
  return translate_views.make(**given | {'search': {'method': 'beam', 'beams': 3, 'max_new': LENGTH}} | settings)


def batch(part='text'):
  rows = alone.batch()
  return rows | {'part': jnp.full(len(rows['tokens']), ('pairs', 'text').index(part), jnp.int32)}


@functools.cache
def params():
  abstract = step.abstract_params(make(), tiny.spec(batch()))
  return jax.tree.map(lambda leaf: 6 * leaf, tiny.draw(abstract, seed=alone.SEED))


@functools.cache
def trained(part, attention_dropout=0.0):
  """The loss and the gradient of a step."""
  return jax.device_get(tiny.loss_and_gradient(make(attention_dropout), params(), batch(part)))


def bound(train=False, seed=0, attention_dropout=0.0):
  return step.bind(make(attention_dropout), params(), train=train, rng=jax.random.key(seed))


@functools.cache
def written():
  """The texts that the step writes."""
  rows, settings = batch(), make().parts['text'].loss.args[0].search
  text = {name: rows[name] for name in ('tokens', 'segment_ids')}
  return jax.device_get(bound()(part='pairs', method='write', settings=settings, **text))


def test_a_labelled_step_is_that_of_the_translator():
  tree = {'trunk': params()['trunk'], **params()['pairs']}
  loss, gradient = tiny.loss_and_gradient(alone.make(feeding=False), tree, alone.batch())
  ours, of_ours = trained('pairs')
  assert float(ours.value) == pytest.approx(float(loss.value), rel=1e-6)
  one, other = {'trunk': of_ours['trunk'], **of_ours['pairs']}, jax.device_get(gradient)
  del one['trunk']['token_embed'], other['trunk']['token_embed']  # which does not train
  jax.tree.map(lambda *both: np.testing.assert_allclose(*both, rtol=1e-5, atol=1e-7), one, other)
  assert not any(leaf.any() for leaf in jax.tree.leaves(of_ours['text']))


def in_numpy():
  """{view: -log p of the tokens of each text that the step writes}, from the formulas, float64."""
  tree = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params())
  rows, made = batch(), written()
  out = (
    make()
    .parts['text']
    .model.trunk.apply({'params': params()['trunk']}, rows['tokens'], segment_ids=rows['segment_ids'])
  )
  found = {view: [] for view in VIEWS}
  for row, length in enumerate(made.lengths):
    real = np.asarray(rows['segment_ids'])[row] > 0
    hidden = np.asarray(out['hidden'], np.float64)[row, real]
    memory = *(np.asarray(each, np.float64)[row] for each in out['ends']), np.zeros(16)
    text, states = made.tokens[row, :length], []
    for before in (alone.START, *text[:-1]):
      _, memory = alone.one_step(tree['pairs']['decoder'], memory, hidden, before)
      states.append(memory[0][-1])
    for view in VIEWS:
      own, late = tree['text'][f'views_{view}'], int(view == 'future')
      nats = []
      for place in range(late, length):
        state = states[place - late]
        scores = hidden @ (own['score'] @ state + own['score_bias'])
        weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        adjusted = np.tanh(np.concatenate([hidden.T @ weights, state]) @ own['adjust'] + own['adjust_bias'])
        logits = adjusted @ own['output']['kernel'] + own['output']['bias']
        nats.append(np.log(np.exp(logits).sum()) - logits[text[place]])
      found[view].append(nats)
  return found


def test_views_learn_to_write_what_the_decoder_writes():
  nats, loss = in_numpy(), trained('text')[0]
  assert len({len(text) for text in nats['dropped']}) > 1  # texts of several lengths
  means = tiny.means(loss.metrics)
  for view, texts in nats.items():
    assert means[f'text/{view}'] == pytest.approx(np.mean(np.concatenate(texts)), rel=1e-4)
  whole = sum(np.mean([np.mean(text) if len(text) else 0.0 for text in texts]) for texts in nats.values())
  assert float(loss.value) == pytest.approx(whole, rel=1e-4)
  assert means['text/loss'] == pytest.approx(whole, rel=1e-4)


def test_unlabelled_texts_give_no_gradient_to_the_teacher():
  gradient = trained('text')[1]
  decoder = gradient['pairs']['decoder']
  for name in ('score', 'score_bias', 'adjust', 'adjust_bias', 'output'):
    assert not any(leaf.any() for leaf in jax.tree.leaves(decoder[name])), name
  shared = [decoder['embed'], decoder['lstm_0'], decoder['lstm_1'], gradient['trunk']['lstm_0'], gradient['text']]
  assert all(leaf.any() for part in shared for leaf in jax.tree.leaves(part))
  assert not gradient['trunk']['token_embed']['table'].any()


def seen(before, *, train=False, seed=0, attention_dropout=0.0):
  """h~ of each view where the decoder reads tokens int[3, t]."""
  rows, forward = batch(), bound(train, seed, attention_dropout)
  hidden, ends = forward(part='text', **{name: rows[name] for name in ('tokens', 'segment_ids')})
  states = forward(part='pairs', method='states', tokens=before, ends=ends)
  return jax.device_get(
    forward(part='text', method='look', states=states, hidden=hidden, segment_ids=rows['segment_ids'])
  )


def test_a_view_does_not_change_with_words_that_it_does_not_see():
  before = jnp.asarray(np.random.default_rng(3).integers(7, 43, (3, LENGTH)))
  one, other = seen(before), seen(before.at[:, 3].set(7 + (before[:, 3] - 6) % 36))
  changed = {view: np.abs(one[view] - other[view]).max(axis=(0, 2)) > 1e-6 for view in VIEWS}
  assert changed['dropped'].tolist() == [False] * 3 + [True] * 3  # step t reads the word before w_t
  assert changed['future'].tolist() == [False] * 4 + [True] * 2  # and here the one before that
  assert not one['future'][:, 0].any()


def test_attention_is_dropped_in_training_alone():
  before = jnp.asarray(np.random.default_rng(3).integers(7, 43, (3, LENGTH)))
  given = {'attention_dropout': 0.5}
  one, other = (seen(before, train=True, seed=seed, **given) for seed in (0, 1))
  assert np.abs(one['dropped'] - other['dropped']).max() > 1e-3
  np.testing.assert_array_equal(one['future'], other['future'])
  jax.tree.map(np.testing.assert_array_equal, seen(before, **given), seen(before))


def test_of_a_row_with_several_texts_the_first_is_read():
  rows = batch()
  behind = jnp.where(jnp.arange(rows['tokens'].shape[1]) < 3, rows['segment_ids'], 2 * rows['segment_ids'])
  alone = jnp.where(jnp.arange(rows['tokens'].shape[1]) < 3, rows['segment_ids'], 0)
  one, other = (tiny.loss_and_gradient(make(), params(), rows | {'segment_ids': each})[0] for each in (behind, alone))
  assert float(one.value) == float(other.value) != float(trained('text')[0].value)


def test_evaluation_writes_by_the_part_with_translations():
  assert make().scores == ('pairs/match',)
  assert make(scores={'pairs': ('bleu',)}).scores == ('pairs/bleu',)
  task = make(decoding={'max_new': LENGTH})
  example = task.prepare(jax.random.key(0), batch('pairs'))
  found = task.predict(step.bind(task, params(), train=False, rng=jax.random.key(0)), example)
  assert found['pairs/tokens'].shape == (3, LENGTH) and 'text/tokens' not in found


def test_a_part_is_the_run_of_a_translator():
  parts = {name: {'name': 'text_to_text', 'second': 'targets'} for name in ('pairs', 'text')}
  block = {
    'name': 'translate_views',
    'labelled': 'pairs',
    'unlabelled': 'text',
    'word_dim': 5,
    'attention_dropout': 0.5,
  }
  block |= {'scores': {'pairs': ('bleu',)}, 'search': {}}
  data = {'name': 'mixture', 'per': 'step', 'alternate': 'text', 'parts': parts, 'length': 8, 'batch_size': 4}
  settings = {'objective': block, 'adapter': None, 'data': data, 'best': ('test/pairs/loss', 'min')}
  settings |= {'eval': {'test': {'data': {'parts': parts}, 'scores': None}}}
  assert one_part.names(settings) == ('pairs',)
  own = one_part.settings_of(settings, 'pairs')
  assert own['objective'] == {'name': 'translate', 'feeding': False, 'word_dim': 5}
  assert own['adapter'] is None and own['data']['second'] == 'targets'
  assert own['eval']['test']['scores'] == ['bleu'] and own['best'] == ('test/loss', 'min')
  assert one_part.path_of(settings, 'pairs', 'pairs/decoder/score') == 'decoder/score'
  assert one_part.path_of(settings, 'pairs', 'text/views_future/score') is None
  assert one_part.adapter_of(settings, 'pairs') == {}


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'labelled': 'text'}, r"objective.labelled='text'.*objective.unlabelled='text'"),
    ({'unlabelled': 'trunk'}, r'\btrunk\b'),
    ({'scores': {'text': ('bleu',)}}, "objective.scores.*'text'.*objective.labelled.*'pairs'"),
  ],
)
def test_mistakes_are_named(settings, message):
  with pytest.raises(ValueError, match=message):
    make(**settings)
