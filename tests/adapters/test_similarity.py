"""Both orders of a pair: what stands for them is added before the head, so their order makes no difference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import similarity
from plm_jax.data import labelled
from plm_jax.noise import keys
from tests import tiny
from tests.adapters import running
from tests.adapters.running import run
from tests.data import small

ROWS = ((16,), (7,), (11,), (4,))


def make_task(trunk: str = 'gpt', **settings):
  return similarity.make(trunk=tiny.make_trunk(trunk), vocab=tiny.VOCAB, **settings)


def make_batch():
  batch, other = tiny.make_batch(ROWS), tiny.make_batch(ROWS, seed=1)
  return batch | {f'swapped_{name}': other[name] for name in ('tokens', 'segment_ids', 'type_ids')}


def swapped(batch):
  """The same batch with the two orders exchanged."""
  names = ('tokens', 'segment_ids', 'type_ids')
  return batch | {name: batch[f'swapped_{name}'] for name in names} | {f'swapped_{name}': batch[name] for name in names}


CLASSES, VALUE = make_task(classes=3), make_task(kind='regression', lm_weight=0.5)


def test_the_two_orders_are_added_before_the_head():
  batch = make_batch()
  params = tiny.init_params(CLASSES, batch)
  (outputs, hidden), loss = run(CLASSES, batch, params)
  states = np.asarray(hidden).reshape(4, 2, 16, 32)
  vectors = np.stack([states[row, :, size - 1].sum(axis=0) for row, (size,) in enumerate(ROWS)])
  expected = vectors @ np.asarray(params['head']['kernel']) + np.asarray(params['head']['bias'])
  assert tiny.worst(outputs, expected) < 1e-5
  logits = np.asarray(outputs, np.float64)
  nats = np.log(np.exp(logits).sum(-1)) - logits[np.arange(4), np.asarray(batch['label'])]
  assert float(loss.value) == pytest.approx(nats.mean(), rel=1e-5)
  assert set(params) == {'trunk', 'head'}


def test_the_order_of_a_pair_makes_no_difference():
  batch = make_batch()
  params = tiny.init_params(CLASSES, batch)
  one, other = (run(CLASSES, each, params)[0] for each in (batch, swapped(batch)))
  assert tiny.worst(one[0], other[0]) < 1e-5
  assert not np.allclose(one[0], run(CLASSES, {**batch, **tiny.make_batch(ROWS, seed=2)}, params)[0][0])


def test_a_value_costs_its_squared_error_and_the_language_model_reads_both_orders():
  batch = make_batch() | {'label': jnp.array([0.5, 4.0, 2.5, 1.0])}
  params = tiny.init_params(VALUE, batch)
  (outputs, hidden), loss = run(VALUE, batch, params)
  assert outputs.shape == (4, 1)
  errors = (np.asarray(outputs, np.float64)[:, 0] - [0.5, 4.0, 2.5, 1.0]) ** 2
  logits = np.asarray(hidden, np.float64) @ np.asarray(params['trunk']['token_embed']['table'], np.float64).T
  logits = logits.reshape(4, 2, 16, -1)
  logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
  orders = [np.asarray(batch[name]) for name in ('tokens', 'swapped_tokens')]
  nats = [
    np.mean([-logits[row, k, np.arange(size - 1), ids[row, 1:size]].mean() for k, ids in enumerate(orders)])
    for row, (size,) in enumerate(ROWS)
  ]
  means = tiny.means(loss.metrics)
  assert means['squared_error'] == pytest.approx(errors.mean(), rel=1e-5)
  assert means['lm_loss'] == pytest.approx(np.mean(nats), rel=1e-4)
  assert float(loss.value) == pytest.approx(errors.mean() + 0.5 * np.mean(nats), rel=1e-4)


def test_a_pair_without_a_class_weighs_nothing():
  task, batch = make_task('bert'), make_batch()
  params = tiny.init_params(task, batch)
  none = {**batch, 'label': batch['label'].at[0].set(-1)}
  left_out = {**batch, 'row_weight': batch['row_weight'].at[0].set(0.0)}
  found, expected = (tiny.loss_and_gradient(task, params, one) for one in (none, left_out))
  assert tiny.worst(found, expected) < 1e-6


def test_it_reads_what_labelled_rows_give_in_both_orders(tmp_path):
  rows = [{'sentence1': '1 2 3', 'sentence2': '4', 'label': 2.5}, {'sentence1': '5', 'sentence2': '6 7', 'label': 0.0}]
  source = labelled.make(
    vocab=small.NumberVocab(40), path=small.write_rows(tmp_path / 'rows.jsonl', rows), kind='regression', layout='gpt',
    both_orders=True, length=12, batch_size=2, seed=0, cache=str(tmp_path),
  )  # fmt: skip
  (batch,) = source.once()
  example = VALUE.prepare(jax.random.key(0), keys.with_step({k: jnp.asarray(v) for k, v in batch.items()}, 0))
  assert example.inputs['tokens'].shape == (2, 2, 12)
  one, other = example.inputs['tokens'][0]
  first, second = ([10 + n for n in numbers] for numbers in ((1, 2, 3), (4,)))
  assert one[:7].tolist() == [small.START, *first, small.DELIMITER, *second, small.CLASSIFY]
  assert other[:7].tolist() == [small.START, *second, small.DELIMITER, *first, small.CLASSIFY]


def test_an_encoder_may_read_both_orders_too():
  task, batch = make_task('bert', kind='regression'), make_batch()
  found = running.predict(task, batch)
  assert found['value'].shape == (4,) and np.isfinite(found['value']).all()


def test_a_frozen_trunk_is_kept():
  running.check_that_the_trunk_is_kept(make_task('bert', frozen=True), make_batch())


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError, match=r"adapter\.kind='rank'.*class, regression"):
    make_task(kind='rank')
  with pytest.raises(ValueError, match=r'adapter\.classes=1\b'):
    make_task(classes=1)
  with pytest.raises(ValueError, match=r'similarity.*causal'):
    make_task('bert', lm_weight=0.5)
