"""Permutation language modelling: targets and masks of a batch, the memory from step to step, settings, learning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.types import Batch
from plm_jax.layers.vocab_head import make_head
from plm_jax.models import xlnet
from plm_jax.noise import keys
from plm_jax.objectives import mlm, permutation_lm
from plm_jax.training import step
from tests import tiny

pytestmark = pytest.mark.turns

V = tiny.VOCAB
LENGTH, ROWS = 24, 4


@functools.cache
def make_task(memory_length: int = 12, reuse_length: int | None = None, **settings):
  sizes = {name: size for name, size in tiny.SIZES.items() if name != 'max_length'}
  memory = {'memory_length': memory_length, 'reuse_length': reuse_length}
  trunk = xlnet.make(vocab_size=V.size, variant='tiny', overrides=sizes | memory)
  return permutation_lm.make(trunk=trunk, vocab=V, **settings)


def make_batch(length: int = LENGTH, *, rows: int = ROWS, seed: int = 0, reset: bool = True, **fields) -> Batch:
  """Full rows `X A <sep> B <sep> <cls>`, odd ones reversed."""
  tokens = np.random.default_rng(seed).integers(len(V.special_ids), V.size, (rows, length))
  types = np.where(np.arange(length) < 3 * length // 4, 0, 1)
  tokens[:, 3 * length // 4 - 1] = tokens[:, -2] = V.sep_id
  tokens[:, -1], types[-1] = V.cls_id, 2
  batch = {
    'tokens': tokens,
    'segment_ids': np.ones_like(tokens),
    'type_ids': np.broadcast_to(types, tokens.shape),
    'reset': np.full(rows, reset),
    'reversed': np.arange(rows) % 2 == 1,
    'row_id': np.arange(rows),
    'epoch': np.zeros(rows, int),
    'row_weight': np.ones(rows, np.float32),
  }
  return {name: jnp.asarray(value) for name, value in (batch | fields).items()}


def prepare(task, batch, *, key: int = 0, number: int = 0):
  return compiled(task.prepare)(jax.random.key(key), keys.with_step(batch, number))


compiled = functools.cache(jax.jit)


@functools.cache
def runner(task):
  """(parameters, eval_step compiled)."""
  return tiny.init_params(task, make_batch()), jax.jit(functools.partial(step.eval_step, task=task))


def evaluate(task, batch, carry):
  params, run = runner(task)
  return run(params, batch, carry, jax.random.key(0))


def test_512_tokens_have_85_targets_that_are_what_stands_there():
  batch = make_batch(512, rows=3)
  example = prepare(make_task(), batch)
  positions, weights = (np.asarray(x) for x in (example.inputs['target_positions'], example.targets['weights']))
  assert positions.shape == (3, 85) and (weights == 1).all()
  assert ((positions < 256).sum(axis=1) == 43).all()
  tokens = np.asarray(batch['tokens'])
  assert (np.diff(positions, axis=1) > 0).all()
  assert np.array_equal(np.take_along_axis(tokens, positions, axis=1), example.targets['ids'])
  assert not np.isin(example.targets['ids'], [V.sep_id, V.cls_id]).any()
  assert float(example.targets['scale'][0]) == pytest.approx(1 / 255)


def test_masks_hide_targets_and_their_order_changes_with_the_step():
  batch = make_batch()
  one, two, again = (prepare(make_task(), batch, number=number) for number in (0, 1, 0))
  assert tiny.same(one, again)
  assert (one.inputs['permutation_mask'] != two.inputs['permutation_mask']).any()
  mask, places = np.asarray(one.inputs['permutation_mask']), np.asarray(one.inputs['target_positions'])
  assert not np.take_along_axis(mask.diagonal(axis1=1, axis2=2), places, axis=1).any()
  half = LENGTH // 2
  assert not mask[:, :half, half:].any() and mask[:, half:, :half].all()


def test_reversed_rows_draw_their_spans_in_reading_order():
  """A token that ends a word in reading order begins none: spans of a row and of its mirror image differ."""
  batch = make_batch()
  forward = prepare(make_task(), batch | {'reversed': jnp.zeros(ROWS, bool)})
  backward = prepare(make_task(), batch | {'reversed': jnp.ones(ROWS, bool)})
  assert (forward.inputs['target_positions'] != backward.inputs['target_positions']).any()
  assert 'reversed' in backward.inputs
  without = {name: value for name, value in batch.items() if name != 'reversed'}
  plain = prepare(make_task(), without)
  assert np.array_equal(plain.inputs['target_positions'], forward.inputs['target_positions'])


def test_settings_of_the_ablation():
  batch = make_batch(64)
  targets = lambda **settings: np.asarray(prepare(make_task(**settings), batch).inputs['target_positions'])  # noqa: E731
  assert targets().shape == (ROWS, 10) and targets(one_in=7).shape == (ROWS, 9)
  runs = {flag: (np.diff(targets(ngrams=flag), axis=1) == 1).sum() for flag in (True, False)}
  assert runs[True] > runs[False]
  assert make_task(memory=False).init_carry(4) == ()
  assert make_task().init_carry(4)['states'].shape == (4, 2, 12, 32)


def test_a_memory_of_whole_rows_leaves_two_halves():
  """As releases of others keep it, which name no part of a row (`reuse_len`)."""
  batch = make_batch()
  half, whole = (prepare(make_task(reuse_length=reuse), batch) for reuse in (LENGTH // 2, 2**24))
  assert tiny.same(half.inputs, whole.inputs)


def test_the_memory_is_carried_and_reset():
  task = make_task()
  first, second = make_batch(seed=1), make_batch(seed=2, reset=False)
  _, carry = evaluate(task, first, task.init_carry(ROWS))
  assert (np.asarray(carry['segment_ids']) == 1).all()
  with_memory, _ = evaluate(task, second, carry)
  without, _ = evaluate(task, second, task.init_carry(ROWS))
  cleared, after = evaluate(task, second | {'reset': jnp.ones(ROWS, bool)}, carry)
  assert tiny.means(cleared) == tiny.means(without)
  assert tiny.means(with_memory)['loss'] != tiny.means(without)['loss']
  fresh = make_task(memory=False)
  alone, nothing = evaluate(fresh, second, ())
  assert nothing == () and (np.asarray(after['segment_ids']) == 1).all()
  assert tiny.means(alone) == pytest.approx(tiny.means(without), rel=1e-5)


def test_masked_words_are_read_with_the_row_before_where_mlm_has_a_memory():
  """BERT's objective on Transformer-XL."""
  trunk = make_task().model.trunk
  task, alone = mlm.make(trunk=trunk, vocab=V, memory=True), mlm.make(trunk=trunk, vocab=V)
  first, second = make_batch(seed=1), make_batch(seed=2, reset=False)
  params, _ = runner(task)
  _, carry = evaluate(task, first, task.init_carry(ROWS))
  example = prepare(task, second)
  logits, after = task.model.apply({'params': params}, **example.inputs, carry=carry, method='continued')
  inputs = {name: value for name, value in example.inputs.items() if name != 'predict'}
  out = trunk.apply({'params': params['trunk']}, **inputs, carry=carry)
  states = jnp.take_along_axis(out['hidden'], example.inputs['predict'][..., None], axis=1)
  head = make_head(trunk).bind({'params': params['mlm']})
  want = head(states, lambda features: trunk.bind({'params': params['trunk']}).attend(features))
  np.testing.assert_allclose(logits, want, rtol=1e-5, atol=1e-5)
  assert (np.asarray(after['segment_ids']) == 1).all() and tiny.same(after, out['carry'])
  remembered, cleared = (tiny.means(evaluate(task, batch, carry)[0]) for batch in (second, make_batch(seed=2)))
  assert cleared == pytest.approx(tiny.means(evaluate(alone, second, ())[0]), rel=1e-5)
  assert remembered['loss'] != pytest.approx(cleared['loss'], rel=1e-4)


def test_a_target_changes_its_own_label_and_not_its_own_logits():
  """The logits at a target stay what they are when the token there becomes another one."""
  task, batch = make_task(), make_batch()
  params, _ = runner(task)
  example = prepare(task, batch)
  model = jax.jit(lambda inputs: task.model.apply({'params': params}, **inputs)[0])
  before = np.asarray(model(example.inputs))
  mask, places = np.asarray(example.inputs['permutation_mask']), np.asarray(example.inputs['target_positions'])
  for slot in range(places.shape[1]):
    rows, place = np.arange(ROWS), places[:, slot]
    tokens = np.array(batch['tokens'])
    tokens[rows, place] = (tokens[rows, place] - 6) % 54 + 7
    after = np.asarray(model(example.inputs | {'tokens': jnp.asarray(tokens)}))
    changed = np.abs(after - before).max(axis=-1) > 0  # [b, t]
    sees = mask[rows[:, None], places, place[:, None]]  # whether the query of each slot may look at the changed token
    np.testing.assert_array_equal(changed, sees)


def test_loss_is_that_of_the_logits():
  task, batch = make_task(), make_batch(row_weight=np.array([1, 0, 1, 1], np.float32))
  params, _ = runner(task)
  example = prepare(task, batch)
  logits = np.asarray(task.model.apply({'params': params}, **example.inputs)[0], np.float64)
  nats = np.log(np.exp(logits).sum(axis=-1)) - np.take_along_axis(
    logits, np.asarray(example.targets['ids'])[..., None], axis=-1
  ).squeeze(-1)
  loss = permutation_lm.score(jnp.asarray(logits, jnp.float32), example.targets)
  expected = nats[[0, 2, 3]].mean()
  assert float(loss.value) == pytest.approx(expected, rel=1e-5)
  assert tiny.means(loss.metrics)['loss'] == pytest.approx(expected, rel=1e-5)


def test_the_output_has_a_bias():
  task, batch = make_task(), make_batch()
  params, _ = runner(task)
  inputs = prepare(task, batch).inputs
  shifted = params | {'lm': {'bias': params['lm']['bias'] + jnp.arange(V.size)}}
  one, other = (task.model.apply({'params': p}, **inputs)[0] for p in (params, shifted))
  assert tiny.worst(other - one, np.broadcast_to(np.arange(V.size), other.shape)) < 1e-5


def test_other_trunks_are_refused():
  with pytest.raises(ValueError, match=r'permutation.*Bert.*bidirectional'):
    permutation_lm.make(trunk=tiny.make_trunk('bert'), vocab=V)


def cycles(number: int, *, seed: int) -> Batch:
  """Text with a rule: every word is the one before it plus three, from a start that the row draws."""
  start = np.random.default_rng([seed, number]).integers(0, 54, ROWS * 4)
  tokens = 7 + (start[:, None] + 3 * np.arange(LENGTH)) % 54
  rows = len(tokens)
  return make_batch(rows=rows, tokens=tokens, row_id=np.arange(rows) + rows * number, reversed=np.zeros(rows, bool))


def test_sixty_steps_lower_the_held_out_loss():
  task = make_task()
  tx = tiny.make_optimiser(task, cycles(0, seed=0), rate=1e-2)
  state = tiny.make_state(task, cycles(0, seed=0), tx)
  train = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  held_out = cycles(0, seed=1)
  run = jax.jit(functools.partial(step.eval_step, task=task))

  def loss(state):
    metrics, _ = run(state.params, held_out, task.init_carry(16), jax.random.key(1))
    return tiny.means(metrics)['loss']

  before = loss(state)
  for number in range(60):
    state, _ = train(state, cycles(number, seed=0), jax.random.key(0))
  assert before > 4.0
  assert loss(state) < 0.75 * before
