"""Masked language modelling: what is hidden, what is scored, what each part must not touch."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.layers.mlp import gelu_tanh
from plm_jax.noise import keys
from plm_jax.objectives import corrupt, mlm
from plm_jax.training import step
from tests import tiny

V = tiny.VOCAB
HALF = {'name': 'fixed_count', 'rate': 0.5}


def make_task(**settings):
  return mlm.make(trunk=tiny.make_trunk('bert'), vocab=V, **settings)


def prepare(task, batch, *, key: int = 0, number: int = 0):
  return compiled(task.prepare)(jax.random.key(key), keys.with_step(batch, number))


compiled = functools.cache(jax.jit)


@pytest.fixture(scope='module')
def task():
  return make_task(where=HALF)


@pytest.fixture(scope='module')
def params(task):
  return tiny.init_params(task, tiny.make_batch())


@pytest.fixture(scope='module')
def loss_of(task, params):
  """The Loss of an example, compiled once."""

  @jax.jit
  def loss_of(example):
    forward = step.bind(task, params, train=False, rng=jax.random.key(0))
    return task.loss(forward, example, (), jax.random.key(0))

  return loss_of


def restore(example):
  """(the clean tokens, bool: where they were chosen) from inputs and targets alone."""
  tokens = np.array(example.inputs['tokens'])
  chosen = np.zeros(tokens.shape, bool)
  for row, slot in zip(*np.nonzero(np.asarray(example.targets['weights'])), strict=True):
    place = int(example.inputs['predict'][row, slot])
    assert not chosen[row, place], 'predicted twice'
    tokens[row, place] = example.targets['ids'][row, slot]
    chosen[row, place] = True
  return tokens, chosen


@pytest.mark.parametrize('where', [HALF, {'name': 'iid', 'rate': 0.5}, {'name': 'whole_word', 'rate': 0.5}])
def test_inputs_and_targets_rebuild_the_row(where):
  task = make_task(where=where)
  for seed in range(3):
    batch = tiny.make_batch(seed=seed)
    tokens, chosen = restore(prepare(task, batch, key=seed))
    assert tiny.same(tokens, np.asarray(batch['tokens']))
    assert chosen.any()
    assert not chosen[np.isin(tokens, V.special_ids)].any()
    assert not chosen[np.asarray(batch['segment_ids']) == 0].any()


def test_whole_words_are_hidden_whole():
  batch = tiny.make_batch()
  tokens, chosen = restore(prepare(make_task(where={'name': 'whole_word', 'rate': 0.5}), batch))
  joined = (tokens[:, 1:] % 3 == 0) & (tokens[:, 1:] > 6) & (tokens[:, :-1] > 6)  # a piece that continues a word
  assert joined.any()
  assert (chosen[:, 1:] == chosen[:, :-1])[joined].all()


def test_everything_but_the_hidden_tokens_is_passed_on(task):
  batch = tiny.make_batch()
  example = prepare(task, batch)
  tokens, chosen = restore(example)
  assert tiny.same(np.asarray(example.inputs['tokens'])[~chosen], tokens[~chosen])
  assert tiny.same(example.inputs['segment_ids'], batch['segment_ids'])
  assert tiny.same(example.inputs['type_ids'], batch['type_ids'])
  assert set(example.inputs) == {'tokens', 'segment_ids', 'type_ids', 'predict'}
  without = {name: value for name, value in batch.items() if name != 'type_ids'}
  assert 'type_ids' not in prepare(task, without).inputs


def test_loss_equals_a_naive_one_over_all_logits(task, params, loss_of):
  batch = tiny.make_batch()
  example = prepare(task, batch)
  tokens, chosen = restore(example)
  inputs = {name: value for name, value in example.inputs.items() if name != 'predict'}
  run = jax.jit(lambda params: task.model.trunk.apply({'params': params}, **inputs)['hidden'])
  hidden = np.asarray(run(params['trunk']), np.float64)
  head, table = params['mlm'], np.asarray(params['trunk']['token_embed']['table'], np.float64)
  middle = np.asarray(gelu_tanh(jnp.asarray(hidden @ head['dense']['kernel'] + head['dense']['bias'])))
  centred = middle - middle.mean(-1, keepdims=True)
  normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
  logits = (normed * head['norm']['scale'] + head['norm']['bias']) @ table.T + np.asarray(head['bias'])
  logits = np.asarray(logits, np.float64)
  nats = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, tokens[..., None], -1)[..., 0]
  expected = float(nats[chosen].mean())
  loss = loss_of(example)
  assert float(loss.value) == pytest.approx(expected, rel=1e-5)
  means = tiny.means(loss.metrics)
  assert means['loss'] == pytest.approx(expected, rel=1e-5)
  assert means['accuracy'] == pytest.approx((logits.argmax(-1) == tokens)[chosen].mean())
  assert float(loss.metrics['loss'][1]) == chosen.sum()
  assert task.summary(means)['perplexity'] == pytest.approx(math.exp(expected), rel=1e-5)


def test_slots_that_hold_no_target_count_for_nothing(task, loss_of):
  example = prepare(task, tiny.make_batch())
  free = example.targets['weights'] == 0
  assert free.any()
  assert not free.all()
  other = example._replace(
    inputs=example.inputs | {'predict': jnp.where(free, 5, example.inputs['predict'])},
    targets=example.targets | {'ids': jnp.where(free, 60, example.targets['ids'])},
  )
  assert tiny.same(loss_of(example), loss_of(other))


def test_rows_of_weight_zero_count_for_nothing(task, loss_of):
  batch = tiny.make_batch()
  half = {**batch, 'row_weight': jnp.array([1.0, 0, 1, 0])}
  kept = {name: value[jnp.array([0, 2, 0, 0])] for name, value in batch.items()}
  kept['row_weight'] = jnp.array([1.0, 1, 0, 0])
  ours, theirs = loss_of(prepare(task, half)), loss_of(prepare(task, kept))
  assert tiny.worst(ours, theirs) < 1e-6
  assert float(ours.metrics['loss'][1]) < float(loss_of(prepare(task, batch)).metrics['loss'][1])
  nothing = loss_of(prepare(task, {**batch, 'row_weight': jnp.zeros(4)}))
  assert float(nothing.value) == 0.0


def test_a_row_is_corrupted_alike_in_any_batch(task):
  batch = tiny.make_batch()
  together = prepare(task, batch)
  for row in range(4):
    alone = prepare(task, {name: value[row : row + 1] for name, value in batch.items()})
    for name in ('tokens', 'predict'):
      assert tiny.same(alone.inputs[name][0], together.inputs[name][row])
    for name in ('ids', 'weights'):
      assert tiny.same(alone.targets[name][0], together.targets[name][row])


def test_dynamic_masking_changes_by_step_and_static_masking_by_epoch():
  batch = tiny.make_batch()
  later = {**batch, 'epoch': batch['epoch'] + 1}
  tokens = lambda task, batch, number: np.asarray(prepare(task, batch, number=number).inputs['tokens'])  # noqa: E731
  dynamic, static = make_task(where=HALF), make_task(where=HALF, masking='static', copies=2)
  assert not tiny.same(tokens(dynamic, batch, 0), tokens(dynamic, batch, 1))
  assert tiny.same(tokens(dynamic, batch, 3), tokens(dynamic, later, 3))
  assert tiny.same(tokens(static, batch, 0), tokens(static, batch, 1))
  assert not tiny.same(tokens(static, batch, 0), tokens(static, later, 0))
  assert tiny.same(tokens(static, batch, 0), tokens(static, {**batch, 'epoch': batch['epoch'] + 2}, 0))


def test_preparing_compiles_once_for_any_content():
  task = make_task(where={'name': 'iid', 'rate': 0.3})
  run = jax.jit(task.prepare)
  draw = np.random.default_rng(0)
  for number in range(100):
    lengths = [[int(n)] for n in draw.integers(1, 17, 4)]
    run(jax.random.key(number), keys.with_step(tiny.make_batch(lengths, seed=number, first=number), number))
  assert run._cache_size() == 1


def test_gather_keeps_order_and_counts_what_has_no_slot():
  chosen = jnp.array([0, 1, 0, 1, 1, 0, 1], bool)
  positions, weights, excess = corrupt.gather(chosen, slots=6)
  assert (positions.tolist(), weights.tolist(), float(excess)) == ([1, 3, 4, 6, 0, 0], [1, 1, 1, 1, 0, 0], 0)
  positions, weights, excess = corrupt.gather(chosen, slots=3)
  assert (positions.tolist(), weights.tolist(), float(excess)) == ([1, 3, 4], [1, 1, 1], 1)
  positions, weights, excess = corrupt.gather(jnp.zeros(7, bool), slots=3)
  assert (weights.tolist(), float(excess)) == ([0, 0, 0], 0)


def test_targets_without_a_slot_are_counted(monkeypatch, params):
  monkeypatch.setattr(corrupt, 'capacity', lambda choose, length: 2)
  task = make_task(where=HALF)
  batch = {**tiny.make_batch(), 'row_weight': jnp.array([1.0, 1, 1, 0])}
  example = prepare(task, batch)
  real = np.asarray(batch['segment_ids'] > 0).sum(axis=1)[:3]
  eligible = (np.asarray(batch['tokens']) > 6).sum(axis=1)[:3]
  chosen = np.minimum([round(n / 2) for n in real], eligible)
  logits = jnp.zeros((4, 2, V.size))
  lost, drawn = mlm.score(logits, example.targets).metrics['targets_without_slot']
  assert float(lost) == (chosen - 2).sum()
  assert float(drawn) == chosen.sum()
  assert example.targets['weights'].sum() == 6


@pytest.mark.parametrize(
  ('settings', 'length', 'slots'),
  [
    ({'rate': 0.0}, 512, 1),
    ({}, 512, 77),
    ({'rate': 1.0}, 512, 512),
    ({'max_count': 20}, 512, 20),
    ({'max_count': 20}, 128, 19),
  ],
)
def test_slots_follow_the_rate_and_not_the_length(settings, length, slots):
  assert corrupt.capacity(corrupt.pick_where({'name': 'fixed_count', **settings}), length) == slots


def test_predictions_stand_beside_their_positions(task, params):
  batch = tiny.make_batch()
  root = jax.random.key(0)
  out = jax.jit(functools.partial(step.predict_step, task=task))(params, batch, root)
  example = task.prepare(keys.noise_root(root), keys.with_step(batch, 0))
  logits = jax.jit(lambda params: task.model.apply({'params': params}, **example.inputs))(params)
  assert set(out) == {'positions', 'ids', 'nats', 'weights', 'row_id', 'row_weight'}
  assert tiny.same(out['positions'], example.inputs['predict'])
  assert tiny.same(out['weights'], example.targets['weights'])
  assert tiny.same(out['ids'], logits.argmax(-1))
  right = np.take_along_axis(np.asarray(logits), np.asarray(example.targets['ids'])[..., None], axis=-1)[..., 0]
  nats = (np.log(np.exp(logits).sum(-1)) - right) * np.asarray(out['weights'])
  np.testing.assert_allclose(out['nats'], nats, rtol=1e-5)


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError, match=r"objective 'mlm'.*bidirectional.*Gpt.*causal"):
    mlm.make(trunk=tiny.make_trunk('gpt'), vocab=V)
  with pytest.raises(ValueError, match='mask token'):
    mlm.make(trunk=tiny.make_trunk('bert'), vocab=tiny.FakeVocab(mask_id=None))
  with pytest.raises(ValueError, match=r"objective\.masking='sometimes'.*dynamic, static"):
    make_task(masking='sometimes')
  with pytest.raises(ValueError, match=r"edit 'drop'.*bert_80_10_10"):
    make_task(edit={'name': 'drop'})
  with pytest.raises(ConfigError, match='fixed_count'):
    make_task(where={'name': 'fixed_cuont'})
