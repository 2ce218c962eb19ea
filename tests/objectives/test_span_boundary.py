"""Span boundaries: which targets a run has, the head against numpy, two means that are added."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers.mlp import gelu_tanh
from plm_jax.models import bert
from plm_jax.noise import keys
from plm_jax.objectives import mlm, span_boundary
from plm_jax.training import step
from tests import tiny

V = tiny.VOCAB


@functools.cache
def make_task(**settings):
  where = {'name': 'geometric_spans', 'rate': 0.25, 'max_words': 2}
  return span_boundary.make(trunk=tiny.make_trunk('bert'), vocab=V, where=where, **settings)


def slow_neighbours(chosen, text, segments, limit):
  """One token at a time."""
  out = []
  for at in np.flatnonzero(chosen):
    start = end = at
    while start > 0 and chosen[start - 1] and segments[start - 1] == segments[at]:
      start -= 1
    while end < len(chosen) - 1 and chosen[end + 1] and segments[end + 1] == segments[at]:
      end += 1
    sides = [side for side in (start - 1, end + 1) if 0 <= side < len(chosen)]
    if len(sides) == 2 and all(text[side] and segments[side] == segments[at] for side in sides) and at - start < limit:
      out.append((at, start - 1, end + 1, at - start))
  return out


def test_neighbours_equal_a_search_token_by_token():
  draw = np.random.default_rng(0)
  find = jax.jit(functools.partial(span_boundary.neighbours, limit=3))
  found = 0
  for _ in range(200):
    segments = np.sort(draw.integers(1, 4, 24))
    segments[draw.integers(12, 25) :] = 0
    text = (segments > 0) & (draw.random(24) < 0.9)
    chosen = text & (draw.random(24) < 0.6)
    left, right, place, told = (np.asarray(x) for x in find(chosen, text, segments))
    expected = slow_neighbours(chosen, text, segments, 3)
    assert [(at, left[at], right[at], place[at]) for at in np.flatnonzero(told)] == expected
    assert place.max() < 3
    found += len(expected)
  assert found > 100


def test_head_has_the_published_count():
  trunk = bert.make(vocab_size=28_996, variant='spanbert-large')
  task = span_boundary.make(trunk=trunk, vocab=tiny.FakeVocab(size=28_996), places=15)
  params = step.abstract_params(task, tiny.spec(tiny.make_batch()))
  assert sum(leaf.size for leaf in jax.tree.leaves(params['boundary'])) == 3_388_668
  pooler = 1024 * 1024 + 1024
  assert sum(leaf.size for leaf in jax.tree.leaves(params['trunk'])) == 333_579_264 - pooler


def test_loss_equals_a_head_written_in_numpy():
  task, batch = make_task(), tiny.make_batch(((32,),) * 4, length=32)
  params = tiny.init_params(task, batch)
  loss, _ = tiny.loss_and_gradient(task, params, batch)
  example = task.prepare(keys.noise_root(jax.random.key(0)), keys.with_step(batch, 0))
  read = {name: example.inputs[name] for name in ('tokens', 'segment_ids', 'type_ids')}
  hidden = jax.jit(lambda p: task.model.trunk.apply({'params': p}, **read)['hidden'])(params['trunk'])
  hidden, head = np.asarray(hidden, np.float64), jax.tree.map(lambda x: np.asarray(x, np.float64), params['boundary'])
  table = np.asarray(params['trunk']['token_embed']['table'], np.float64)
  told = np.asarray(example.targets['boundary_weights'])
  assert 0 < told.sum() < np.asarray(example.targets['weights']).sum()
  nats = []
  for row, slot in zip(*np.nonzero(told), strict=True):
    left, right, place = (int(example.inputs[name][row, slot]) for name in ('left', 'right', 'place'))
    x = np.concatenate([hidden[row, left], hidden[row, right], head['place']['table'][place]])
    for number in ('1', '2'):
      x = x @ head[f'dense_{number}']['kernel'] + head[f'dense_{number}']['bias']
      x = np.asarray(gelu_tanh(jnp.asarray(x, jnp.float32)), np.float64)
      x = (x - x.mean()) / np.sqrt(x.var() + 1e-12)
      x = x * head[f'norm_{number}']['scale'] + head[f'norm_{number}']['bias']
    logits = table @ x + head['bias']
    nats.append(np.log(np.exp(logits).sum()) - logits[int(example.targets['ids'][row, slot])])
  means = tiny.means(loss.metrics)
  assert means['sbo_loss'] == pytest.approx(np.mean(nats), rel=1e-5)
  assert float(loss.value) == pytest.approx(means['mlm_loss'] + np.mean(nats), rel=1e-5)
  words, _ = jax.jit(lambda p: task.model.apply({'params': p}, **example.inputs))(params)
  assert means['mlm_loss'] == pytest.approx(float(mlm.score(words, example.targets).value), rel=1e-5)


def test_targets_are_predicted_from_clean_text_outside_the_run():
  batch = tiny.make_batch(((32,), (32,), (32,), (17, 15)), length=32, seed=4)
  example = jax.jit(make_task().prepare)(jax.random.key(1), keys.with_step(batch, 2))
  clean, told = np.asarray(batch['tokens']), np.asarray(example.targets['boundary_weights'])
  predict, weights = np.asarray(example.inputs['predict']), np.asarray(example.targets['weights'])
  assert told.sum() > 3
  for row, slot in zip(*np.nonzero(told), strict=True):
    at = predict[row, slot]
    left, right, place = (int(example.inputs[name][row, slot]) for name in ('left', 'right', 'place'))
    masked = set(predict[row][weights[row] > 0].tolist())
    assert clean[row, at] == example.targets['ids'][row, slot]
    assert left < at < right and at - left - 1 == place
    assert set(range(left + 1, right)) <= masked and not {left, right} & masked
    assert clean[row, left] > 6 and clean[row, right] > 6


def test_sixty_steps_lower_the_held_out_loss():
  task = make_task()

  def rows(seed):
    batch = dict(tiny.make_batch(((16,),) * 16, seed=seed, first=16 * seed))
    # runs of numbers that count upwards: the neighbours of a span say what is in it
    start = np.random.default_rng(seed).integers(0, 54, 16)
    tokens = 7 + (start[:, None] + np.arange(16)) % 54
    tokens[:, 0], tokens[:, -1] = V.cls_id, V.sep_id
    return batch | {'tokens': jnp.asarray(tokens, jnp.int32)}

  tx = tiny.make_optimiser(task, rows(0), rate=3e-3)
  state = tiny.make_state(task, rows(0), tx)
  train = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  evaluate = jax.jit(functools.partial(step.eval_step, task=task))
  measure = lambda: tiny.means(evaluate(state.params, rows(999), (), jax.random.key(5))[0])  # noqa: E731
  before = measure()
  for number in range(60):
    state, _ = train(state, rows(number), jax.random.key(5))
  after = measure()
  assert after['sbo_loss'] < before['sbo_loss'] - 0.1
  assert after['mlm_loss'] < before['mlm_loss'] - 0.1


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError, match=r'max_targets=21.*\b20\b'):
    make_task(max_targets=21)
  with pytest.raises(ValueError, match='dynamic, static'):
    make_task(masking='often')
  with pytest.raises(ValueError, match="edit 'drop'"):
    span_boundary.make(trunk=tiny.make_trunk('bert'), vocab=V, edit={'name': 'drop'})
  with pytest.raises(ValueError, match='mask token'):
    span_boundary.make(trunk=tiny.make_trunk('bert'), vocab=tiny.FakeVocab(mask_id=None))
