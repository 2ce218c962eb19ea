"""Permuted language modelling on one stream: who sees whom, the share, orders, equality with masked modelling."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.noise import keys
from plm_jax.objectives import mlm, permuted_lm
from tests import learning, tiny

pytestmark = pytest.mark.turns


def make_task(max_length=32, **settings):
  return permuted_lm.make(trunk=tiny.make_trunk('bert', max_length=max_length), vocab=tiny.VOCAB, **settings)


def prepare(task, batch, *, number=0, key=0):
  return jax.jit(task.prepare)(jax.random.key(key), keys.with_step(batch, number))


def test_the_example_of_four_tokens():
  """Order 2, 4, 3, 1: the third token is told from the second and the fourth."""
  ranks = jnp.array([3, 0, 2, 1])
  found = np.asarray(permuted_lm.context(jnp.ones(4, bool), ranks, jnp.arange(4)))
  seen = {1: {2, 4, 3}, 2: set(), 3: {2, 4}, 4: {2}}
  for token, told_from in seen.items():
    text, copy = (set((np.flatnonzero(found[row, :4]) + 1).tolist()) for row in (token - 1, token + 3))
    assert copy == told_from
    assert text == told_from | {token}
  assert (found[:4, 4:] == False).all()  # noqa: E712
  assert (found[4:, 4:] == np.eye(4, dtype=bool)).all()


def test_what_is_not_predicted_is_seen_by_all_and_sees_no_target():
  targets = jnp.array([False, True, False, True, False])
  found = np.asarray(permuted_lm.context(targets, jnp.array([0, 4, 1, 2, 3]), jnp.array([1, 3, 0])))
  assert found[:5, [0, 2, 4]].all()
  assert not found[[0, 2, 4]][:, [1, 3]].any()
  assert found[5, :5].tolist() == [True, False, True, True, True]  # the fourth comes before the second
  assert found[6, :5].tolist() == [True, False, True, False, True]


def test_one_token_in_six_is_predicted():
  task = make_task(max_length=200)
  batch = tiny.make_batch(((120,),) * 4, length=120)
  example = prepare(task, batch)
  weights = np.asarray(example.targets['weights'])
  eligible = (np.asarray(batch['tokens']) > 6).sum(axis=1)
  assert weights.sum(axis=1).tolist() == pytest.approx((120 / 6 * np.ones(4)).tolist(), abs=1)
  assert (weights.sum(axis=1) < eligible / 5).all()
  slots = weights.shape[1]
  positions = np.asarray(example.inputs['positions'])
  assert (np.asarray(example.inputs['tokens'])[:, :120] == np.asarray(batch['tokens'])).all()  # the text is clean
  for row, slot in itertools.product(range(4), range(slots)):
    if weights[row, slot]:
      place = positions[row, 120 + slot]
      assert batch['tokens'][row, place] == example.targets['ids'][row, slot] > 6


def test_every_pair_of_targets_comes_in_either_order_and_never_in_both():
  batch = {name: jnp.repeat(value[:1], 400, axis=0) for name, value in tiny.make_batch().items()}
  batch |= {'row_id': jnp.arange(400)}
  example = prepare(make_task(where={'name': 'fixed_count', 'rate': 0.5, 'max_count': 3}), batch)
  allowed, weights = np.asarray(example.inputs['allowed']), np.asarray(example.targets['weights'])
  places = np.asarray(example.inputs['positions'])[:, 16:]
  assert (weights.sum(axis=1) == 3).all()
  orders = []
  for row in range(400):
    inner = allowed[row][16:19][:, places[row, :3]]  # [copy, target]
    assert not inner.diagonal().any()
    turns = inner.sum(axis=1)  # targets that come before
    assert sorted(turns.tolist()) == [0, 1, 2]
    orders.append(tuple(turns.tolist()))
  seen = np.array([orders.count(order) for order in itertools.permutations(range(3))])
  assert ((seen - 400 / 6) ** 2 / (400 / 6)).sum() < 20.5  # 5 degrees of freedom, 99.9 %


def test_a_prediction_depends_on_what_it_may_be_told_from_and_on_nothing_else():
  task = make_task(where={'name': 'fixed_count', 'rate': 0.4})
  batch = tiny.make_batch(((9, 7),))
  params = tiny.init_params(task, tiny.make_batch())
  inputs = prepare(task, batch).inputs
  length = 16
  same = {name: jnp.repeat(value, length + 1, axis=0) for name, value in inputs.items()}
  same['tokens'] = same['tokens'].at[jnp.arange(length), jnp.arange(length)].set(1)  # row i: another token at place i
  logits = np.asarray(jax.jit(lambda p, x: task.model.apply({'params': p}, **x))(params, same))
  changed = np.abs(logits[:length] - logits[length]).max(axis=-1) > 0  # [key, target]
  segments, places = np.asarray(inputs['segment_ids'][0]), np.asarray(inputs['predict'][0])
  used = np.flatnonzero(segments[places])
  assert len(used) >= 4
  for slot in used:
    wall = segments[:length] == segments[places[slot]]
    expected = np.asarray(inputs['allowed'][0][places[slot], :length]) & wall
    assert changed[:, slot].tolist() == expected.tolist()


def test_a_single_target_is_told_as_a_masked_one():
  """With one target in a row nothing is left of the order, and its copy is BERT's mask token."""
  batch = tiny.make_batch(((16,), (11,)))
  where = {'name': 'fixed_count', 'rate': 0.01, 'max_count': 1}
  task = make_task(where=where)
  plain = mlm.make(trunk=tiny.make_trunk('bert'), vocab=tiny.VOCAB, where=where, edit={'name': 'to_mask'})
  params = tiny.init_params(plain, tiny.make_batch())
  inputs = prepare(task, batch).inputs
  places = jnp.take_along_axis(inputs['positions'], inputs['predict'], axis=1)  # unpadded on the left: also indices
  masked = {
    'tokens': batch['tokens'].at[jnp.arange(2)[:, None], places].set(tiny.VOCAB.mask_id),
    'segment_ids': batch['segment_ids'],
    'type_ids': batch['type_ids'],
    'predict': places,
  }
  apply = lambda task, x: np.asarray(task.model.apply({'params': params}, **x))  # noqa: E731
  assert tiny.worst(apply(task, inputs), apply(plain, masked)) > 1e-3  # the text does not see its own hole
  # of a trunk without layers above the embeddings' first mixing the two agree: one layer, one hole
  one = tiny.make_trunk('bert', num_layers=1)
  task = permuted_lm.make(trunk=one, vocab=tiny.VOCAB, where=where)
  plain = mlm.make(trunk=one, vocab=tiny.VOCAB, where=where, edit={'name': 'to_mask'})
  params = tiny.init_params(plain, tiny.make_batch())
  assert tiny.worst(apply(task, inputs), apply(plain, masked)) < 1e-5


def test_sixty_steps_lower_the_loss_of_rows_never_seen():
  before, after = learning.held_out(make_task())
  assert after['loss'] < before['loss'] - 0.5


def test_wrong_trunks_are_refused():
  with pytest.raises(ValueError, match='bidirectional'):
    permuted_lm.make(trunk=tiny.make_trunk('gpt'), vocab=tiny.VOCAB)
  with pytest.raises(ValueError, match='mask token'):
    permuted_lm.make(trunk=tiny.make_trunk('bert'), vocab=tiny.FakeVocab(mask_id=None))
  with pytest.raises(ValueError, match=r'\b32 tokens'):
    jax.eval_shape(
      lambda: make_task().model.init(
        jax.random.key(0), **prepare(make_task(), tiny.make_batch(((30,),), length=30)).inputs
      )
    )
