"""Contrastive objectives: the formula, which candidates count, how partners are made, several devices as one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core import sharding
from plm_jax.noise import keys
from plm_jax.noise.row import Row
from plm_jax.objectives import contrastive
from plm_jax.training import step
from tests import learning, tiny

pytestmark = pytest.mark.turns

V = tiny.VOCAB
SMALL = {'num_layers': 1, 'hidden_dim': 16, 'mlp_dim': 32}
BATCH = tiny.make_batch()


def make_task(*, dropout: float = 0.0, **settings):
  return contrastive.make(trunk=tiny.make_trunk('bert', dropout=dropout, **SMALL), vocab=V, **settings)


def prepare(task, batch, *, number: int = 0):
  return jax.jit(task.prepare)(jax.random.key(0), keys.with_step(batch, number))


# Formulas -----------------------------------------------------------------------------------------------------------


def test_info_nce_equals_cross_entropy_over_the_batch():
  torch = pytest.importorskip('torch')
  x, y = np.random.default_rng(0).normal(size=(2, 6, 9))
  scores = contrastive.similarity(jnp.asarray(x), jnp.asarray(y), cosine=True) / 0.05
  theirs = torch.nn.functional.cosine_similarity(torch.tensor(x)[:, None], torch.tensor(y)[None], dim=-1) / 0.05
  np.testing.assert_allclose(scores, theirs, rtol=1e-4, atol=1e-4)
  expected = torch.nn.functional.cross_entropy(theirs, torch.arange(6), reduction='none')
  np.testing.assert_allclose(contrastive.info_nce(scores, jnp.ones((6, 6), bool)), expected, rtol=1e-4, atol=1e-5)


def test_one_negative_is_the_pairwise_form():
  scores = np.random.default_rng(1).normal(size=(5, 5))
  allowed = jnp.asarray(contrastive.neighbours(5, 1))
  positive, negative = np.diagonal(scores), scores[np.arange(5), (np.arange(5) + 1) % 5]
  expected = -np.log(np.exp(positive) / (np.exp(positive) + np.exp(negative)))
  np.testing.assert_allclose(contrastive.info_nce(jnp.asarray(scores), allowed), expected, rtol=1e-5)


def test_the_next_rows_are_the_negatives():
  assert contrastive.neighbours(4, None).all()
  assert contrastive.neighbours(4, 2).astype(int).tolist() == [[1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1]]
  assert contrastive.neighbours(4, 3).all()
  for negatives in (0, 4):
    with pytest.raises(ValueError, match=r'objective\.negatives=.*\b4 rows.*\b3\b'):
      contrastive.neighbours(4, negatives)


def test_similarities_of_known_vectors():
  x, y = jnp.array([[2.0, 0], [0, 0]]), jnp.array([[3.0, 0], [0, 5], [-1, 0]])
  np.testing.assert_allclose(contrastive.similarity(x, y, cosine=True), [[1, 0, -1], [0, 0, 0]], atol=1e-6)
  np.testing.assert_allclose(contrastive.similarity(x, y, cosine=False), [[6, 0, -2], [0, 0, 0]])


# Partners -----------------------------------------------------------------------------------------------------------


def test_an_ngram_lies_in_one_document_and_has_ordinary_tokens():
  eligible = np.array([0, 1, 1, 0, 1, 1, 1, 1, 0, 0], bool)
  segments = np.array([1, 1, 1, 1, 2, 2, 3, 3, 3, 0], np.int32)
  row = Row(jnp.arange(10), jnp.asarray(eligible), jnp.asarray(segments))
  draw = jax.jit(jax.vmap(functools.partial(contrastive.draw_ngram, longest=3), (0, None)))
  starts, sizes = map(np.asarray, draw(jax.random.split(jax.random.key(0), 600), row))
  for start, size in zip(starts, sizes, strict=True):
    inside = slice(start, start + size)
    assert eligible[inside].all()
    assert len(set(segments[inside])) == 1
  assert set(zip(starts, sizes, strict=True)) == {*((s, 1) for s in (1, 2, 4, 5, 6, 7)), (1, 2), (4, 2), (6, 2)}
  assert (sizes == 1).mean() == pytest.approx(1 / 3, abs=0.06)  # 3 fits nowhere and becomes 2
  nothing = row._replace(eligible=jnp.zeros(10, bool))
  assert not np.asarray(draw(jax.random.split(jax.random.key(0), 4), nothing)[1]).any()


def test_the_ngram_is_masked_in_its_row_and_stands_alone():
  task = make_task(partners='ngram', longest=4)
  example = prepare(task, BATCH)
  tokens, original = np.asarray(example.inputs['tokens']), np.asarray(BATCH['tokens'])
  for row in range(4):
    gone = np.flatnonzero(tokens[row] != original[row])
    assert 1 <= len(gone) <= 4
    assert (np.diff(gone) == 1).all()
    assert (tokens[row, gone] == V.mask_id).all()
    alone = np.asarray(example.inputs['other_tokens'])[row, 0]
    real = np.asarray(example.inputs['other_segment_ids'])[row, 0] > 0
    assert alone[real].tolist() == [V.cls_id, *original[row, gone]]
    assert (alone[~real] == V.pad_id).all()
  other = prepare(task, BATCH, number=1)
  assert not tiny.same(other.inputs['tokens'], example.inputs['tokens'])


def test_fields_of_a_row_are_taken_apart():
  tokens = jnp.array([[2, 11, 12, 3, 21, 22, 3, 31, 0, 0], [2, 13, 3, 23, 3, 32, 33, 34, 3, 0]], jnp.int32)
  types = jnp.array([[0, 0, 0, 0, 1, 1, 1, 2, 0, 0], [0, 0, 0, 1, 1, 2, 2, 2, 2, 0]], jnp.int32)
  batch = {**{name: value[:2] for name, value in BATCH.items()}, 'tokens': tokens, 'type_ids': types}
  batch['segment_ids'] = (tokens > 0).astype(jnp.int32)
  inputs = prepare(make_task(partners='fields', hard_negatives=True), batch).inputs
  own = lambda tokens, segments: np.asarray(tokens)[np.asarray(segments) > 0].tolist()  # noqa: E731
  assert own(inputs['tokens'][0], inputs['segment_ids'][0]) == [2, 11, 12, 3]
  assert own(inputs['other_tokens'][0, 0], inputs['other_segment_ids'][0, 0]) == [2, 21, 22, 3]
  assert own(inputs['other_tokens'][0, 1], inputs['other_segment_ids'][0, 1]) == [2, 31]
  assert own(inputs['other_tokens'][1, 1], inputs['other_segment_ids'][1, 1]) == [2, 32, 33, 34, 3]
  assert inputs['segment_ids'][0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
  assert 'type_ids' not in inputs


def fields_of(tokens, types):
  tokens, types = (jnp.array(rows, jnp.int32) for rows in (tokens, types))
  batch = {name: value[: len(tokens)] for name, value in BATCH.items()}
  return {**batch, 'tokens': tokens, 'type_ids': types, 'segment_ids': (tokens > 0).astype(jnp.int32)}


def test_texts_of_rows_without_a_first_token_have_none():
  batch = fields_of([[11, 12, 3, 21, 22, 3, 2, 0]], [[0, 0, 0, 1, 1, 1, 1, 0]])  # A <sep> B <sep> <cls>
  inputs = prepare(make_task(partners='fields'), batch).inputs
  assert inputs['other_tokens'][0, 0, :4].tolist() == [21, 22, 3, 2]
  assert inputs['other_segment_ids'][0, 0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_a_row_without_a_third_text_is_no_negative():
  """[CLS] A [SEP] B [SEP] C [SEP], with nothing or with no more than a [SEP] in place of C."""
  tokens = [[2, 11, 3, 21, 3, 31, 3, 0], [2, 12, 3, 22, 3, 3, 0, 0], [2, 13, 3, 23, 3, 0, 0, 0]]
  types = [[0, 0, 0, 1, 1, 2, 2, 0], [0, 0, 0, 1, 1, 2, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0]]
  task, batch = make_task(partners='fields', hard_negatives=True, temperature=1.0), fields_of(tokens, types)
  example = prepare(task, batch)
  assert example.targets['candidates'].tolist() == [[True, True], [True, False], [True, False]]
  assert example.targets['weights'].tolist() == [1, 1, 1]
  params = tiny.init_params(task, batch)
  loss, _ = tiny.loss_and_gradient(task, params, batch)
  read = lambda ids: task.model.apply({'params': params}, jnp.array(ids), jnp.ones_like(jnp.array(ids)))  # noqa: E731
  anchors = read([[2, 11, 3], [2, 12, 3], [2, 13, 3]])
  candidates = read([[2, 21, 3], [2, 22, 3], [2, 23, 3], [2, 31, 3]])
  scores = np.asarray(contrastive.similarity(anchors, candidates, cosine=True), np.float64)
  expected = (np.log(np.exp(scores).sum(axis=1)) - np.diagonal(scores)).mean()
  assert float(loss.value) == pytest.approx(expected, rel=1e-4)


# The objective ------------------------------------------------------------------------------------------------------


def vectors(task, params, example, tokens: str = 'tokens'):
  types = {'type_ids': example.inputs['type_ids']} if 'type_ids' in example.inputs else {}
  call = jax.jit(
    lambda p: task.model.apply({'params': p}, example.inputs['tokens'], example.inputs['segment_ids'], **types)
  )
  return np.asarray(call(params), np.float64)


@pytest.mark.parametrize('weights', [(1, 1, 1, 1), (1, 0, 1, 1)])
def test_loss_equals_a_naive_one(weights):
  """Without dropout both views are one; rows of no weight are neither anchors nor candidates."""
  task, batch = make_task(), {**BATCH, 'row_weight': jnp.array(weights, jnp.float32)}
  params = tiny.init_params(task, batch)
  loss, _ = tiny.loss_and_gradient(task, params, batch)
  found = vectors(task, params, prepare(task, batch))[np.array(weights) > 0]
  unit = found / np.linalg.norm(found, axis=1, keepdims=True)
  scores = unit @ unit.T / 0.05
  expected = (np.log(np.exp(scores).sum(axis=1)) - np.diagonal(scores)).mean()
  assert float(loss.value) == pytest.approx(expected, rel=1e-4)
  assert tiny.means(loss.metrics)['loss'] == pytest.approx(expected, rel=1e-4)
  assert tiny.means(loss.metrics)['similarity'] == pytest.approx(1, rel=1e-5)


def test_the_vector_is_the_mean_of_real_states():
  task = make_task()
  params = tiny.init_params(task, BATCH)
  read = {name: BATCH[name] for name in ('tokens', 'segment_ids', 'type_ids')}
  hidden = jax.jit(lambda p: task.model.trunk.apply({'params': p}, **read)['hidden'])(params['trunk'])
  real = (np.asarray(BATCH['segment_ids']) > 0)[..., None]
  expected = (np.asarray(hidden, np.float64) * real).sum(1) / real.sum(1)
  assert tiny.worst(vectors(task, params, prepare(task, BATCH)), expected) < 1e-5


def test_two_dropouts_make_two_views():
  task = make_task(dropout=0.2)
  params = tiny.init_params(task, BATCH)
  trained, _ = tiny.loss_and_gradient(task, params, BATCH, train=True)
  tested, _ = tiny.loss_and_gradient(task, params, BATCH, train=False)
  assert tiny.means(tested.metrics)['similarity'] == pytest.approx(1, rel=1e-5)
  assert 0.3 < tiny.means(trained.metrics)['similarity'] < 0.999


def test_mlm_is_added():
  task = make_task(partners='ngram', similarity_of='dot', temperature=1.0, mlm_weight=0.5, weight=2.0, pool='trunk')
  params = tiny.init_params(task, BATCH)
  loss, gradient = tiny.loss_and_gradient(task, params, BATCH)
  means = tiny.means(loss.metrics)
  assert means['loss'] == pytest.approx(2 * means['contrastive_loss'] + 0.5 * means['mlm_loss'], rel=1e-5)
  assert float(loss.value) == pytest.approx(means['loss'], rel=1e-5)
  assert float(jnp.abs(gradient['mlm']['bias']).sum()) > 0
  assert float(jnp.abs(gradient['trunk']['pooler']['kernel']).sum()) > 0


def test_micro_batches_are_refused():
  task = make_task()
  tx = tiny.make_optimiser(task, BATCH)
  state = tiny.make_state(task, BATCH, tx)
  with pytest.raises(ValueError, match='rows of a batch'):
    step.train_step(state, BATCH, jax.random.key(0), task=task, tx=tx, accumulate=2)


@pytest.mark.skipif(jax.device_count() != 4, reason='needs four (simulated) devices')
def test_four_devices_equal_one():
  task = make_task(dropout=0.1)
  batch = tiny.make_batch([[int(n)] for n in range(5, 13)])
  tx = tiny.make_optimiser(task, batch, name='momentum', rate=0.05)
  train = functools.partial(step.train_step, task=task, tx=tx)
  key = jax.random.key(0)
  alone = tiny.make_state(task, batch, tx)
  expected, expected_metrics = jax.jit(train)(alone, batch, key)
  layout = sharding.make_layout(sharding.make_mesh({'data': 4}), 'data')
  with sharding.use(layout):
    places = step.state_maker(task, tx, tiny.spec(batch), layout=layout).places
    state = jax.device_put(alone, places)
    spread = jax.device_put(batch, sharding.batch_sharding(layout))
    after, metrics = jax.jit(train, out_shardings=(places, None))(state, spread, key)
    jax.block_until_ready(after)
  assert tiny.means(metrics) == pytest.approx(tiny.means(expected_metrics), rel=2e-5, abs=1e-6)
  error, where = tiny.gradient_error(after.opt_state['rule'], expected.opt_state['rule'])
  assert error < 1e-5, where


@pytest.mark.parametrize(
  ('settings', 'match'),
  [
    ({'partners': 'friends'}, 'friends.*dropout, fields, ngram'),
    ({'similarity_of': 'angle'}, 'angle.*cosine, dot'),
    ({'pool': 'max'}, 'max.*mean, trunk'),
    ({'temperature': 0.0}, r'temperature=0\.0'),
    ({'hard_negatives': True}, "hard_negatives.*partners='fields'"),
    ({'weight': 0.0}, r'objective\.weight=0, objective\.mlm_weight=0'),
  ],
)
def test_what_cannot_be_is_refused(settings, match):
  with pytest.raises(ValueError, match=match):
    make_task(**settings)


def test_what_the_trunk_the_vocabulary_and_the_data_must_have():
  with pytest.raises(ValueError, match=r"'contrastive'.*bidirectional"):
    contrastive.make(trunk=tiny.make_trunk('gpt'), vocab=V, partners='ngram')
  with pytest.raises(ValueError, match='mask token'):
    contrastive.make(trunk=tiny.make_trunk('bert'), vocab=tiny.FakeVocab(mask_id=None), partners='ngram')
  with pytest.raises(ValueError, match=r"partners='fields'.*type_ids"):
    prepare(make_task(partners='fields'), {name: value for name, value in BATCH.items() if name != 'type_ids'})


@pytest.mark.slow
@pytest.mark.parametrize('partners', ['dropout', 'ngram'])
def test_sixty_steps_lower_the_held_out_loss(partners):
  task = make_task(dropout=0.1, partners=partners, temperature=0.05 if partners == 'dropout' else 0.2)
  before, after = learning.held_out(task)
  assert after['loss'] < before['loss'] - 0.3
