"""UniLM's mix of masks: who sees whom under each kind, the shares, both kinds of prefix, equality with BERT's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from plm_jax.noise import keys
from plm_jax.objectives import mlm, unilm
from plm_jax.training import step
from tests import tiny

pytestmark = pytest.mark.turns


def make_task(**settings):
  return unilm.make(trunk=tiny.make_trunk('bert'), vocab=tiny.VOCAB, **settings)


def prepare(task, batch, *, number=0, key=0):
  return jax.jit(task.prepare)(jax.random.key(key), keys.with_step(batch, number))


def test_each_kind_sees_what_it_should():
  prefix = jnp.array([[True, True, False, False, False]] * 4)
  found = np.asarray(unilm.context(jnp.arange(4), prefix))
  for query in range(5):
    for key in range(5):
      expected = [True, key <= query, key >= query, key <= query or key < 2]
      assert found[:, query, key].tolist() == expected, (query, key)


def test_the_first_half_of_each_document():
  segments = jnp.array([[1, 1, 1, 1, 2, 2, 2, 3, 0, 0], [0, 0, 1, 1, 1, 1, 1, 2, 2, 0]])
  found = np.asarray(unilm.first_half(segments)) & np.asarray(segments > 0)
  assert np.flatnonzero(found[0]).tolist() == [0, 1, 4]
  assert np.flatnonzero(found[1]).tolist() == [2, 3, 7]


def kinds_of(allowed, prefix):
  """The kind of each row, read off its mask."""
  every = np.stack([np.asarray(unilm.context(jnp.full(len(allowed), kind), prefix)) for kind in range(4)])
  same = (every == np.asarray(allowed)).all(axis=(2, 3))
  assert (same.sum(axis=0) == 1).all()
  return same.argmax(axis=0)


def long_batch(rows):
  one = tiny.make_batch(((16,),))
  batch = {name: jnp.repeat(value, rows, axis=0) for name, value in one.items()}
  return batch | {'row_id': jnp.arange(rows)}


@pytest.mark.parametrize('prefix', ['half', 'types'])
@pytest.mark.parametrize('rows', [1200, pytest.param(20_000, marks=pytest.mark.slow)])
def test_shares_are_a_third_a_sixth_a_sixth_a_third(prefix, rows):
  batch = long_batch(rows)
  example = prepare(make_task(prefix=prefix), batch)
  first = jnp.arange(16) < 8 if prefix == 'half' else batch['type_ids'][0] == 0
  kinds = kinds_of(example.inputs['allowed'], jnp.broadcast_to(first, (rows, 16)))
  expected = rows * np.array([1 / 3, 1 / 6, 1 / 6, 1 / 3])
  assert stats.chisquare(np.bincount(kinds, minlength=4), expected).pvalue > 1e-3


def test_a_row_keeps_its_kind_in_any_batch_and_changes_it_between_steps():
  batch = long_batch(40)
  task, static = make_task(), make_task(masking='static')
  first, later = (np.asarray(prepare(task, batch, number=n).inputs['allowed']) for n in (0, 1))
  part = {name: value[jnp.array([7, 3])] for name, value in batch.items()}
  np.testing.assert_array_equal(first[[7, 3]], np.asarray(prepare(task, part).inputs['allowed']))
  assert 10 < (first != later).any(axis=(1, 2)).sum() < 40
  assert tiny.same(prepare(static, batch), prepare(static, batch, number=1))


def test_in_both_directions_it_is_masked_language_modelling():
  batch = tiny.make_batch()
  trunk = tiny.make_trunk('bert')
  plain, task = mlm.make(trunk=trunk, vocab=tiny.VOCAB), make_task(kinds={'both': 1})
  params = tiny.init_params(plain, batch)
  example = prepare(task, batch)
  assert np.asarray(example.inputs['allowed']).all()
  without = {name: value for name, value in example.inputs.items() if name != 'allowed'}
  forward = step.bind(task, params, train=False, rng=jax.random.key(0))
  ours, theirs = (
    t.loss(forward, example._replace(inputs=inputs), (), jax.random.key(0)).value
    for t, inputs in ((task, example.inputs), (plain, without))
  )
  assert float(ours) == pytest.approx(float(theirs), rel=1e-6)


@pytest.mark.parametrize(('kind', 'seen'), [('left', range(6)), ('right', range(5, 16)), ('prefix', range(8))])
def test_a_state_depends_on_what_the_mask_shows_and_on_nothing_else(kind, seen):
  """Of place 5, in a row of one document whose first half ends at 8; the mask comes on top of the walls."""
  trunk, batch = tiny.make_trunk('bert'), long_batch(17)
  params = tiny.init_params(make_task(), tiny.make_batch())['trunk']
  allowed = prepare(make_task(kinds={kind: 1}), batch).inputs['allowed']
  tokens = batch['tokens'].at[jnp.arange(16), jnp.arange(16)].set(1)  # row i has another token at place i
  out = trunk.apply({'params': params}, tokens, segment_ids=batch['segment_ids'], allowed=allowed)['hidden']
  changed = np.abs(np.asarray(out[:16, 5] - out[16, 5])).max(axis=-1) > 0
  assert np.flatnonzero(changed).tolist() == list(seen)


def test_wrong_settings_are_refused():
  with pytest.raises(ValueError, match=r"objective\.kinds names 'up'; choices are both, left, right, prefix"):
    make_task(kinds={'up': 1})
  with pytest.raises(ValueError, match=r"objective\.kinds={'left': -1"):
    make_task(kinds={'left': -1, 'both': 3})
  with pytest.raises(ValueError, match=r"='third'.*half, types"):
    make_task(prefix='third')
  with pytest.raises(ValueError, match='bidirectional'):
    unilm.make(trunk=tiny.make_trunk('gpt'), vocab=tiny.VOCAB)
  batch = {name: value for name, value in tiny.make_batch().items() if name != 'type_ids'}
  with pytest.raises(ValueError, match='type_ids'):
    prepare(make_task(prefix='types'), batch)


def test_types_are_read_where_a_row_has_a_prefix():
  batch = {name: value for name, value in tiny.make_batch().items() if name != 'type_ids'}
  for kinds in ({'both': 1, 'left': 1}, {'both': 1, 'prefix': 0}):
    assert prepare(make_task(prefix='types', kinds=kinds), batch).inputs['allowed'].shape == (4, 16, 16)
