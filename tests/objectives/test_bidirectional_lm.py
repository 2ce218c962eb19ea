"""The bidirectional language model: its two losses by a plain softmax, what each direction sees, its carry."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers import sampled_softmax
from plm_jax.models import elmo, lstm
from plm_jax.noise import keys
from plm_jax.objectives import bidirectional_lm
from plm_jax.training import step
from tests import tiny

pytestmark = pytest.mark.turns

SIZES = {'hidden_dim': 16, 'mlp_dim': 12, 'dropout': 0.0, 'filters': (4, 4)}
ROWS = tiny.make_batch(((16,), (11,), (9,), (16,)))
BATCH = ROWS | tiny.make_streams(ROWS) | {'row_weight': jnp.array([1.0, 1.0, 0.0, 1.0])}
REAL = np.asarray(BATCH['segment_ids'] > 0) & np.array([True, True, False, True])[:, None]


@functools.cache
def form():
  """(task, parameters, forward with these parameters, which are large, so that no influence is lost in rounding)."""
  trunk = elmo.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=SIZES)
  task = bidirectional_lm.make(trunk=trunk, vocab=tiny.VOCAB)
  params = jax.tree.map(lambda leaf: 4 * leaf, tiny.init_params(task, BATCH))
  return task, params, step.bind(task, params, train=False, rng=jax.random.key(0))


@functools.cache
def compiled():
  """(batch, carry) -> (value, metrics, carry, nats per target)."""
  task, _, forward = form()

  @jax.jit
  def run(batch, carry):
    example = task.prepare(jax.random.key(0), keys.with_step(batch, 0))
    loss = task.loss(forward, example, carry, jax.random.key(0))
    return loss.value, loss.metrics, loss.carry, task.predict(forward, example)['nats']

  return run


def test_the_loss_is_the_mean_of_both_directions_by_a_plain_softmax():
  task, params, forward = form()
  value, metrics, *_ = compiled()(BATCH, task.init_carry(4))
  states, _ = forward(forward=BATCH['characters'], backward=BATCH['backward_characters'])
  table, bias = (
    np.asarray(leaf, np.float64) for leaf in (params['softmax']['output']['table'], params['softmax']['bias'])
  )
  logits = np.asarray(states, np.float64) @ table.T + bias
  shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
  following = np.concatenate([BATCH['next_tokens'], BATCH['backward_next_tokens']], axis=1)
  nats = -np.log(np.take_along_axis(shares, following[..., None], axis=-1)[..., 0])
  forward_nats, backward_nats = nats[:, :16][REAL].mean(), nats[:, 16:][REAL].mean()
  means = tiny.means(metrics)
  assert float(value) == pytest.approx((forward_nats + backward_nats) / 2, rel=1e-5)
  assert means['loss'] == pytest.approx(float(value), rel=1e-6)
  assert (means['forward_loss'], means['backward_loss']) == pytest.approx((forward_nats, backward_nats), rel=1e-5)
  assert task.summary(means)['perplexity'] == pytest.approx(np.exp(float(value)), rel=1e-5)
  right = (logits.argmax(axis=-1) == following)[np.concatenate([REAL, REAL], axis=1)]
  assert means['accuracy'] == pytest.approx(right.mean())


def test_a_factor_is_on_what_is_trained_and_on_no_metric():
  trunk, features = form()[0].model.trunk, jnp.ones((4, 32, 8))
  example = form()[0].prepare(jax.random.key(0), keys.with_step(BATCH, 0))

  def forward(*, method=None, features=features, **inputs):
    return features @ jnp.ones((8, tiny.VOCAB.size)) if method else (features, inputs['carry'])

  one, twenty = (
    bidirectional_lm.make(trunk=trunk, vocab=tiny.VOCAB, factor=factor).loss(forward, example, (), jax.random.key(0))
    for factor in (1.0, 20.0)
  )
  assert float(twenty.value) == pytest.approx(20 * float(one.value), rel=1e-6)
  assert tiny.means(twenty.metrics) == tiny.means(one.metrics)


@pytest.mark.parametrize('direction', ['characters', 'backward_characters'])
def test_no_direction_sees_what_it_predicts_or_the_other_direction(direction):
  """A word that is changed changes predictions from its own place on, in its own direction."""
  carry, place = form()[0].init_carry(4), 5
  changed = BATCH | {direction: BATCH[direction].at[:, place, 1].add(1)}
  before, after = (np.asarray(compiled()(batch, carry)[3]) for batch in (BATCH, changed))
  first = place + (16 if direction == 'backward_characters' else 0)
  end = 16 if direction == 'characters' else 32
  expected = [first <= index < end for index in range(32)]
  assert (before != after)[0].tolist() == expected


def test_two_windows_with_a_carry_are_one_long_window():
  task = form()[0]
  halves = [{key: BATCH[key][:, part] if BATCH[key].ndim > 1 else BATCH[key] for key in BATCH}
            for part in (slice(0, 8), slice(8, 16))]  # fmt: skip
  _, metrics, whole, _ = compiled()(BATCH, task.init_carry(4))
  _, first, carry, _ = compiled()(halves[0], task.init_carry(4))
  _, second, carry, _ = compiled()(halves[1], carry)
  assert tiny.worst(carry, whole) < 1e-5
  for name, (total, weight) in metrics.items():
    assert float(total) == pytest.approx(float(first[name][0] + second[name][0]), rel=1e-5), name
    assert float(weight) == float(first[name][1] + second[name][1])
  assert all(leaf.any() for leaf in jax.tree.leaves(whole))


def test_another_trunk_is_refused():
  trunk = lstm.make(vocab_size=tiny.VOCAB.size, variant='tiny')
  with pytest.raises(ValueError, match=r'characters.*Streams.*model\.name'):
    bidirectional_lm.make(trunk=trunk, vocab=tiny.VOCAB)


# Sampled softmax ------------------------------------------------------------------------------------------------------

NEGATIVES = 9


def sampled(**settings):
  """(task, parameters) with a few words drawn per step."""
  trunk = elmo.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=SIZES)
  return bidirectional_lm.make(trunk=trunk, vocab=tiny.VOCAB, negatives=NEGATIVES, **settings), form()[1]


def test_the_sampled_loss_is_that_of_tensorflow():
  """tf.nn.sampled_softmax_loss: true and drawn logits less log Q, accidental hits left out, one draw a direction."""
  task, params = sampled()
  forward = step.bind(task, params, train=True, rng=jax.random.key(0))
  example = task.prepare(jax.random.key(3), keys.with_step(BATCH, 5))
  value = task.loss(forward, example, task.init_carry(4), jax.random.key(0)).value
  states, _ = forward(forward=BATCH['characters'], backward=BATCH['backward_characters'])
  table, bias = (np.asarray(params['softmax'][one], np.float64) if one == 'bias' else np.asarray(
    params['softmax'][one]['table'], np.float64) for one in ('output', 'bias'))  # fmt: skip
  counts = np.log(sampled_softmax.expected_counts(sampled_softmax.log_uniform(tiny.VOCAB.size), NEGATIVES))
  drawn = np.asarray(example.targets['drawn'])
  assert drawn.shape == (4, 2, NEGATIVES) and (drawn == drawn[:1]).all()
  assert set(drawn[0, 0].tolist()) != set(drawn[0, 1].tolist())
  following = np.concatenate([BATCH['next_tokens'], BATCH['backward_next_tokens']], axis=1)
  nats = np.zeros(following.shape)
  for row, place in np.ndindex(following.shape):
    words = [following[row, place], *(word for word in drawn[0, place // 16] if word != following[row, place])]
    logits = np.array([np.asarray(states[row, place], np.float64) @ table[k] + bias[k] - counts[k] for k in words])
    nats[row, place] = np.log(np.exp(logits - logits[0]).sum())
  real = np.concatenate([REAL, REAL], axis=1)
  assert float(value) == pytest.approx(nats[real].mean(), rel=1e-4)


def test_another_step_draws_other_words_and_an_evaluation_takes_all():
  task, params = sampled()
  forward = step.bind(task, params, train=False, rng=jax.random.key(0))
  one, other = (task.prepare(jax.random.key(3), keys.with_step(BATCH, number)) for number in (0, 1))
  assert set(one.targets['drawn'][0, 0].tolist()) != set(other.targets['drawn'][0, 0].tolist())
  found = task.evaluate(forward, one, task.init_carry(4), jax.random.key(0))
  value, *_ = compiled()(BATCH, task.init_carry(4))
  assert float(found.value) == pytest.approx(float(value), rel=1e-6)


def test_rows_that_are_read_give_the_step_of_whole_tables():
  states = []
  for update in ('tables', 'rows'):
    task, _ = sampled(update=update)
    tx = tiny.make_optimiser(task, BATCH, name='adagrad', rate=0.1, accumulator=1.0, clip=10.0)
    run = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
    states.append(run(tiny.make_state(task, BATCH, tx), BATCH, jax.random.key(1))[0])
  (table, before), (rows, _) = ((state.params, tiny.make_state(task, BATCH, tx).params) for state in states)
  assert tiny.worst(rows, table) < 1e-6 < tiny.worst(rows, before)


@pytest.mark.parametrize(
  ('settings', 'said'),
  [
    ({'negatives': tiny.VOCAB.size}, rf'objective\.negatives={tiny.VOCAB.size}'),
    ({'negatives': 0, 'update': 'rows'}, "objective.update='rows'.*objective.negatives"),
  ],
)
def test_negatives_that_cannot_be_drawn_are_refused(settings, said):
  trunk = elmo.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=SIZES)
  with pytest.raises(ValueError, match=said):
    bidirectional_lm.make(trunk=trunk, vocab=tiny.VOCAB, **settings)
