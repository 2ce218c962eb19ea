"""Masked language modelling of pairs: what is joined, what a label means, what trains the pooler, what is learnt."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.noise import keys
from plm_jax.objectives import mlm, sentence_pair
from plm_jax.training import step
from tests import tiny

pytestmark = pytest.mark.turns

V = tiny.VOCAB


def make_batch(*, rows: int = 4, seed: int = 0):
  """Pairs with a first token that tells which part of which row a segment is."""
  draw = np.random.default_rng(seed)
  sizes = [tuple(int(n) for n in draw.integers(1, 8, 3)) for _ in range(rows)]
  batch = {
    'row_id': jnp.arange(rows, dtype=jnp.int32),
    'epoch': jnp.zeros(rows, jnp.int32),
    'row_weight': jnp.ones(rows, jnp.float32),
  }
  return batch | tiny.make_pairs(sizes, seed=seed)


@functools.cache
def make_task(question: str = 'nsp', **settings):
  return sentence_pair.make(trunk=tiny.make_trunk('bert'), vocab=V, question=question, **settings)


@functools.cache
def compiled(task):
  return jax.jit(task.prepare)


def prepare(task, batch, *, key: int = 0, number: int = 0):
  return compiled(task)(jax.random.key(key), keys.with_step(batch, number))


def restore(example):
  """The clean rows."""
  tokens = np.array(example.inputs['tokens'])
  for row, slot in zip(*np.nonzero(np.asarray(example.targets['weights'])), strict=True):
    tokens[row, int(example.inputs['predict'][row, slot])] = example.targets['ids'][row, slot]
  return tokens


def text(batch, name, row):
  return np.asarray(batch[name])[row, : int(batch[f'{name}_length'][row])].tolist()


def contains(whole, part):
  return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))


@pytest.mark.parametrize('question', ['nsp', 'sop'])
def test_rows_hold_what_the_label_says(question):
  task, labels = make_task(question), []
  for number in range(8):
    batch = make_batch(rows=16, seed=number)
    example = prepare(task, batch, number=number)
    tokens, types = restore(example), np.asarray(example.inputs['type_ids'])
    segments = np.asarray(example.inputs['segment_ids'])
    for row in range(16):
      label = int(example.targets['label'][row])
      labels.append(label)
      real = tokens[row][segments[row] > 0].tolist()
      kinds = types[row][segments[row] > 0]
      one = [token for token, kind in zip(real, kinds, strict=True) if kind == 0]
      two = [token for token, kind in zip(real, kinds, strict=True) if kind == 1]
      assert one[0] == V.cls_id and one[-1] == two[-1] == V.sep_id
      swapped = question == 'sop' and label == 1
      second = 'other' if question == 'nsp' and label == 1 else 'next'
      first, second = (second, 'first') if swapped else ('first', second)
      assert contains(text(batch, first, row), one[1:-1])
      assert contains(text(batch, second, row), two[:-1])
      wanted = min(int(batch[f'{first}_length'][row] + batch[f'{second}_length'][row]), 13)
      assert len(real) == wanted + 3 == int(example.targets['num_tokens'][row])
  assert np.mean(labels) == pytest.approx(0.5, abs=0.2)


def test_a_pair_is_the_same_in_any_batch_and_changes_with_the_step():
  task, batch = make_task(), make_batch()
  together = prepare(task, batch)
  for row in range(4):
    alone = prepare(task, {name: value[row : row + 1] for name, value in batch.items()})
    for name in ('tokens', 'type_ids', 'segment_ids', 'predict'):
      assert tiny.same(alone.inputs[name][0], together.inputs[name][row])
    assert int(alone.targets['label'][0]) == int(together.targets['label'][row])
  labels = np.stack([prepare(task, batch, number=number).targets['label'] for number in range(12)])
  assert (labels.min(axis=0) != labels.max(axis=0)).all()


def test_static_pairs_belong_to_the_epoch():
  task, batch = make_task(masking='static', copies=2), make_batch()
  first = prepare(task, batch, number=0)
  assert tiny.same(first, prepare(task, batch, number=5))
  assert not tiny.same(first, prepare(task, batch | {'epoch': batch['epoch'] + 1}))
  assert tiny.same(first, prepare(task, batch | {'epoch': batch['epoch'] + 2}))


def test_what_is_behind_the_segments_changes_nothing():
  task, batch = make_task(), make_batch()
  dirty = dict(batch)
  for name in ('first', 'next', 'other'):
    real = jnp.arange(16) < batch[f'{name}_length'][:, None]
    dirty[name] = jnp.where(real, batch[name], 33)
  assert not tiny.same(dirty, batch)
  assert tiny.same(prepare(task, dirty), prepare(task, batch))


@pytest.mark.parametrize('weight', [1.0, 0.1])
def test_loss_is_the_weighted_sum_of_two_means_and_trains_the_pooler(weight):
  task, batch = make_task(weight=weight), make_batch() | {'row_weight': jnp.array([1.0, 1, 0, 1])}
  params = tiny.init_params(task, batch)
  loss, gradient = tiny.loss_and_gradient(task, params, batch)
  example = task.prepare(keys.noise_root(jax.random.key(0)), keys.with_step(batch, 0))
  words, labels = jax.jit(lambda params: task.model.apply({'params': params}, **example.inputs))(params)
  expected = mlm.score(words, example.targets).value
  nats = jax.nn.logsumexp(labels, axis=-1) - labels[jnp.arange(4), example.targets['label']]
  nsp = float((nats * batch['row_weight']).sum() / 3)
  assert float(loss.value) == pytest.approx(float(expected) + weight * nsp, rel=1e-5)
  means = tiny.means(loss.metrics)
  assert means['nsp_loss'] == pytest.approx(nsp, rel=1e-5)
  assert means['loss'] == pytest.approx(means['mlm_loss'] + weight * means['nsp_loss'], rel=1e-5)
  assert means['tokens_per_row'] == pytest.approx(float(example.targets['num_tokens'][jnp.array([0, 1, 3])].mean()))
  assert float(jnp.abs(gradient['trunk']['pooler']['kernel']).max()) > 0


def held_out(question: str, steps: int) -> tuple[dict, dict]:
  """Means before and after training, on rows not trained on: neighbours share their kind of words, others do not."""

  def rows(seed):
    draw = np.random.default_rng(seed)
    kind = draw.integers(0, 2, 64)
    # words 7..30 or 31..54, the first segment in the lower half of its kind, the next one in the upper half
    ids = lambda kind, half: 7 + 24 * kind[:, None] + 12 * half + draw.integers(0, 12, (64, 16))  # noqa: E731
    batch = {'first': ids(kind, 0), 'next': ids(kind, 1), 'other': ids(1 - kind, 1)}
    batch = {name: jnp.asarray(value, jnp.int32) for name, value in batch.items()}
    batch |= {f'{name}_length': jnp.full(64, 6, jnp.int32) for name in ('first', 'next', 'other')}
    number = jnp.arange(64, dtype=jnp.int32) + 64 * seed
    return batch | {'row_id': number, 'epoch': jnp.zeros(64, jnp.int32), 'row_weight': jnp.ones(64)}

  task = make_task(question)
  tx = tiny.make_optimiser(task, rows(0), rate=3e-3)
  zero = jnp.zeros((), jnp.int32)
  start = {name: rows(0)[name] for name in rows(0)}
  params = jax.jit(lambda key: jax.tree.map(lambda x: x, nn.unbox(step.init_params(task, tiny.spec(start), key))))(
    jax.random.key(0)
  )
  state = step.TrainState(zero, params, tx.init(tx.split(params)[0]), zero, zero, ())
  train = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  evaluate = jax.jit(functools.partial(step.eval_step, task=task))
  measure = lambda: tiny.means(evaluate(state.params, rows(999), (), jax.random.key(5))[0])  # noqa: E731
  before = measure()
  for number in range(steps):
    state, _ = train(state, rows(number), jax.random.key(5))
  return before, measure()


@pytest.mark.parametrize('question', ['nsp', 'sop'])
def test_sixty_steps_lower_the_held_out_loss(question):
  before, after = held_out(question, 60)
  assert after['loss'] < before['loss'] - 0.1
  assert after['mlm_loss'] < before['mlm_loss']


@pytest.mark.slow
@pytest.mark.parametrize('question', ['nsp', 'sop'])
def test_the_question_is_answered_better_than_by_chance(question):
  _, after = held_out(question, 400)
  assert after[f'{question}_accuracy'] > 0.8


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError, match=r'Gpt.*causal'):
    sentence_pair.make(trunk=tiny.make_trunk('gpt'), vocab=V)
  with pytest.raises(ValueError, match='nsp, sop'):
    sentence_pair.make(trunk=tiny.make_trunk('bert'), vocab=V, question='nps')
  with pytest.raises(ValueError, match='bert, roberta'):
    sentence_pair.make(trunk=tiny.make_trunk('bert'), vocab=V, layout='gpt')
  with pytest.raises(ValueError, match=r'\[CLS\].*\[SEP\]'):
    sentence_pair.make(trunk=tiny.make_trunk('bert'), vocab=tiny.FakeVocab(sep_id=None))
