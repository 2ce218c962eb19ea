"""Replaced token detection: what is sampled, what counts as replaced, who learns from whom, what settings change."""

import functools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.param_paths import path_name
from plm_jax.layers.mlp import gelu_tanh
from plm_jax.noise import keys
from plm_jax.objectives import rtd, rtd_model
from plm_jax.training import step
from tests import learning, tiny

pytestmark = pytest.mark.turns

V = tiny.VOCAB
SMALL = {'num_layers': 1, 'hidden_dim': 16, 'mlp_dim': 32}
GENERATOR = {'name': 'bert', 'variant': 'tiny', 'overrides': {**tiny.SIZES, **SMALL, 'hidden_dim': 8, 'embed_dim': 16}}
HALF = {'name': 'iid', 'rate': 0.5}
BATCH = tiny.make_batch()


def make_task(**settings):
  settings = {'generator': GENERATOR, 'where': HALF} | settings
  return rtd.make(trunk=tiny.make_trunk('bert', **SMALL), vocab=V, **settings)


@functools.cache
def run(**settings):
  """(task, parameters, Loss, gradient, predictions, example) at step 0."""
  task = make_task(**settings)
  params = tiny.init_params(task, BATCH)

  @jax.jit
  def compute(params):
    root, batch = jax.random.key(0), keys.with_step(BATCH, 0)
    example = task.prepare(keys.noise_root(root), batch)

    def loss_of(params):
      rng = step.step_rng(root, batch['step'])
      loss = task.loss(step.bind(task, params, train=False, rng=rng), example, (), rng)
      return loss.value, loss

    gradient, loss = jax.grad(loss_of, has_aux=True)(params)
    return loss, gradient, step.predict_step(params, BATCH, root, task=task), example

  loss, gradient, predicted, example = compute(params)
  return task, params, loss, gradient, jax.tree.map(np.asarray, predicted), jax.tree.map(np.asarray, example)


def size(tree) -> float:
  return float(sum(np.abs(leaf).sum() for leaf in jax.tree.leaves(tree)))


def paths(params) -> set[str]:
  names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
  return {'/'.join(name.split('/')[:2]) for name in names}


# Formulas -----------------------------------------------------------------------------------------------------------


def test_binary_cross_entropy_equals_the_plain_form():
  logits, labels = np.linspace(-30, 30, 61), np.arange(61) % 2 == 0
  sigmoid = 1 / (1 + np.exp(-logits.astype(np.longdouble)))
  expected = -np.log(np.where(labels, sigmoid, 1 / (1 + np.exp(logits.astype(np.longdouble)))))
  np.testing.assert_allclose(rtd.binary_cross_entropy(jnp.asarray(logits), labels), expected, rtol=1e-5)


def test_the_copy_gate_mixes_two_distributions():
  draw = np.random.default_rng(0)
  nats, gate, copied = draw.exponential(2, 50), draw.normal(0, 3, 50), draw.random(50) < 0.5
  share = 1 / (1 + np.exp(-gate))
  expected = -np.log(share * copied + (1 - share) * np.exp(-nats))
  np.testing.assert_allclose(rtd.copy_cross_entropy(*map(jnp.asarray, (nats, gate, copied))), expected, rtol=2e-5)


@pytest.mark.parametrize('temperature', [1.0, 0.5])
def test_samples_follow_the_softmax(temperature):
  shares = np.array([0.05, 0.5, 0.15, 0.3])
  rows, slots = 2000, 5
  draws = jax.vmap(jax.random.key_data)(jax.random.split(jax.random.key(3), rows))
  logits = jnp.broadcast_to(jnp.log(jnp.asarray(shares)), (rows, slots, 4))
  sampled = np.asarray(rtd.sample(logits, draws, temperature=temperature))
  expected = shares ** (1 / temperature) / (shares ** (1 / temperature)).sum() * rows * slots
  counts = np.bincount(sampled.ravel(), minlength=4)
  assert (np.square(counts - expected) / expected).sum() < 16.3  # chi-square of 3 degrees exceeds it once in 1000
  # slots of a row are drawn apart, and so are rows
  for first, second in ((sampled[:, 0], sampled[:, 1]), (sampled[:-1, 0], sampled[1:, 0])):
    together = (first == second).mean()
    assert together == pytest.approx(np.square(expected / expected.sum()).sum(), abs=0.05)


def test_values_are_put_where_slots_are_used():
  tokens, places = jnp.arange(12).reshape(2, 6), jnp.array([[1, 3, 0], [5, 0, 0]])
  used = jnp.array([[True, True, False], [True, False, False]])
  out = rtd.put(tokens, places, used, -jnp.arange(1, 7).reshape(2, 3))
  assert out.tolist() == [[0, -1, 2, -2, 4, 5], [6, 7, 8, 9, 10, -4]]


# The objective ------------------------------------------------------------------------------------------------------


def test_only_drawn_positions_are_masked_and_replaced():
  _, _, _, _, predicted, example = run()
  tokens, original = np.asarray(example.inputs['tokens']), np.asarray(BATCH['tokens'])
  drawn = np.zeros(original.shape, bool)
  for row, slot in zip(*np.nonzero(example.targets['weights']), strict=True):
    drawn[row, example.inputs['predict'][row, slot]] = True
  assert set(tokens[tokens != original]) == {V.mask_id}
  assert not drawn[(original <= 6)].any()
  assert not (tokens != original)[~drawn].any()
  assert not (predicted['tokens'] != original)[~drawn].any()
  assert (predicted['tokens'] != original).any()
  assert tiny.same(predicted['replaced'], predicted['tokens'] != original)
  assert tiny.same(predicted['weights'], (BATCH['segment_ids'] > 0).astype(jnp.float32))


def test_a_share_of_the_drawn_tokens_stays():
  batch = tiny.make_batch([[16]] * 200)
  for keep, expected in ((0.15, 0.85), (0.0, 1.0), (1.0, 0.0)):
    example = jax.jit(make_task(keep=keep).prepare)(jax.random.key(0), keys.with_step(batch, 0))
    masked = (np.asarray(example.inputs['tokens']) == V.mask_id).sum() / float(example.targets['weights'].sum())
    assert masked == pytest.approx(expected, abs=0.03)


def test_a_sample_that_equals_the_original_is_not_replaced():
  task, params, *_, example = run()
  sure = int(np.asarray(BATCH['tokens'])[0, 1])
  params = {**params, 'mlm': {**params['mlm'], 'bias': params['mlm']['bias'].at[sure].set(1e4)}}
  out = jax.jit(functools.partial(step.predict_step, task=task))(params, BATCH, jax.random.key(0))
  slots = example.targets['weights'] > 0
  rows, places = np.nonzero(slots)[0], example.inputs['predict'][slots]
  original = np.asarray(BATCH['tokens'])[rows, places]
  assert (np.asarray(out['tokens'])[rows, places] == sure).all()
  assert ((original == sure) == ~np.asarray(out['replaced'])[rows, places]).all()
  assert (original == sure).any()
  # and the loss counts them so, at every token that is read
  loss, _ = tiny.loss_and_gradient(task, params, BATCH)
  means, real = tiny.means(loss.metrics), np.asarray(BATCH['segment_ids']) > 0
  replaced, certainty = np.asarray(out['replaced'])[real], np.asarray(out['probability'], np.float64)[real]
  assert means['replaced'] == pytest.approx(replaced.mean(), rel=1e-6)
  assert means['rtd_loss'] == pytest.approx(-np.log(np.where(replaced, certainty, 1 - certainty)).mean(), rel=1e-4)
  assert 0 < replaced.sum() < slots.sum()


def test_loss_equals_a_naive_one():
  task, params, loss, _, predicted, example = run()
  two = task.model.bind({'params': params})
  inputs = {name: value for name, value in example.inputs.items() if name != 'predict'}
  states = jax.jit(lambda params: two.clone().apply({'params': params}, method='encode', **inputs | changed))
  changed = {'tokens': jnp.asarray(predicted['tokens'])}
  hidden = np.asarray(states(params), np.float64)
  head = jax.tree.map(lambda x: np.asarray(x, np.float64), params['rtd'])
  middle = np.asarray(gelu_tanh(jnp.asarray(hidden @ head['dense']['kernel'] + head['dense']['bias'])), np.float64)
  logits = (middle @ head['out']['kernel'] + head['out']['bias'])[..., 0]
  assert tiny.worst(predicted['probability'], 1 / (1 + np.exp(-logits))) < 1e-5
  replaced, real = predicted['tokens'] != np.asarray(BATCH['tokens']), np.asarray(BATCH['segment_ids']) > 0
  nats = np.log1p(np.exp(np.where(replaced, -logits, logits)))
  means = tiny.means(loss.metrics)
  assert means['rtd_loss'] == pytest.approx(nats[real].mean(), rel=1e-5)
  assert means['rtd_accuracy'] == pytest.approx(((logits > 0) == replaced)[real].mean())
  assert means['replaced'] == pytest.approx(replaced[real].mean())
  found = (logits > 0) & real
  if found.any():
    assert means['rtd_precision'] == pytest.approx(replaced[found].mean())
  assert means['rtd_recall'] == pytest.approx((logits > 0)[replaced].mean())
  generated = np.asarray(jax.jit(lambda p: task.model.apply({'params': p}, **example.inputs))(params), np.float64)
  log_p = generated - np.log(np.exp(generated).sum(-1, keepdims=True))
  used = example.targets['weights'] > 0
  mlm_nats = -np.take_along_axis(log_p, example.targets['ids'][..., None], -1)[..., 0][used]
  assert means['generator_loss'] == pytest.approx(mlm_nats.mean(), rel=1e-5)
  expected = mlm_nats.mean() + 50 * nats[real].mean()
  assert float(loss.value) == pytest.approx(expected, rel=1e-5)
  assert means['loss'] == pytest.approx(expected, rel=1e-5)


# Who learns from whom -----------------------------------------------------------------------------------------------


def test_the_generator_gets_no_gradient_from_the_discriminator():
  _, _, _, gradient, _, _ = run(sharing='none', generator_weight=0.0)
  assert size(gradient['generator']) == size(gradient['mlm']) == 0.0
  assert size(gradient['trunk']) > 0
  _, _, _, gradient, _, _ = run(sharing='none', learning='frozen')
  assert size(gradient['generator']) == size(gradient['mlm']) == 0.0


def test_the_adversarial_generator_is_pulled_towards_what_fools_the_discriminator():
  task, params, _, gradient, predicted, example = run(sharing='none', learning='adversarial', weight=0.0)
  assert size(gradient['generator']) > 0
  assert size(gradient['trunk']) == size(gradient['rtd']) == 0.0
  places, weights = example.inputs['predict'], example.targets['weights']
  row = np.arange(4)[:, None]
  certainty = np.where(predicted['replaced'], predicted['probability'], 1 - predicted['probability'])
  reward = -np.log(certainty[row, places].astype(np.float64))
  call = jax.jit(lambda p: task.model.apply({'params': p}, method='generate', **example.inputs))
  logits, features = (np.asarray(x, np.float64) for x in call(params))
  base = jax.tree.map(lambda x: np.asarray(x, np.float64), params['baseline'])
  expected = np.log1p(np.exp(-(features @ base['kernel'] + base['bias'])[..., 0]))
  share = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  sampled = np.eye(V.size)[predicted['tokens'][row, places]]
  # ascent on E[reward]: (reward - baseline) d log p(sample) / d logits; what is descended has the other sign
  ascent = ((reward - expected) * weights)[..., None] * (sampled - share)
  assert tiny.worst(gradient['mlm']['bias'], -ascent.sum((0, 1)) / weights.sum()) < 1e-4
  fit = (1 / (1 + np.exp(-(features @ base['kernel'] + base['bias'])[..., 0])) - np.exp(-reward)) * weights
  assert tiny.worst(gradient['baseline']['bias'], [fit.sum() / weights.sum()]) < 1e-4


def test_disentangled_sharing_keeps_the_losses_apart():
  _, params, _, gradient, _, _ = run(sharing='gradient_disentangled')
  _, _, _, without, _, _ = run(sharing='gradient_disentangled', weight=0.0)
  assert tiny.worst(gradient['generator'], without['generator']) < 1e-5
  assert size(without['delta']) == 0 < size(gradient['delta'])
  assert params['delta']['table'].shape == params['generator']['token_embed']['table'].shape == (61, 16)
  assert 'token_embed' not in params['trunk']
  task = make_task(sharing='gradient_disentangled')
  fresh = jax.jit(lambda key: step.init_params(task, tiny.spec(BATCH), key)['delta']['table'].value)
  assert size(fresh(jax.random.key(0))) == 0
  base, own = params['generator']['token_embed']['table'], params['delta']['table']
  table = rtd_model.Disentangled(61, 16, ('vocab', 'embed'), jax.nn.initializers.zeros, base=Given(base))
  read = lambda own, ids: table.apply({'params': {'table': own}}, ids)  # noqa: E731
  assert tiny.same(read(own, jnp.arange(61)), base + own)


class Given:
  """A table as it is."""

  def __init__(self, table):
    self.table = table


def test_what_two_networks_share():
  embeddings = {f'trunk/{name}' for name in ('token_embed', 'position_embed', 'type_embed', 'embed_norm')}
  own = {name.replace('trunk', 'generator') for name in embeddings}
  every = {
    sharing: paths(
      step.abstract_params(
        make_task(sharing=sharing, generator=None if sharing == 'all' else GENERATOR), tiny.spec(BATCH)
      )
    )
    for sharing in get_args(rtd_model.Sharing)
  }
  assert all(embeddings <= every[sharing] for sharing in ('embeddings', 'tokens', 'all', 'none'))
  assert every['none'] & own == own
  assert every['tokens'] & own == own - {'generator/token_embed'}
  assert not every['embeddings'] & own
  assert 'generator/layers' in every['embeddings']
  assert not any(name.startswith('generator') for name in every['all'])
  assert every['gradient_disentangled'] & (embeddings | own) == own | embeddings - {'trunk/token_embed'}


def test_what_the_trunk_learns_is_a_setting():
  """One set of parameters and one draw, so that only what is scored differs."""
  *_, all_loss, _, predicted, example = run()
  *_, masked_loss, _, masked, _ = run(predict='masked')
  assert tiny.same(predicted['tokens'], masked['tokens'])
  used = example.targets['weights'] > 0
  rows, places = np.nonzero(used)[0], example.inputs['predict'][used]
  certainty = np.where(predicted['replaced'], predicted['probability'], 1 - predicted['probability'])
  assert tiny.means(masked_loss.metrics)['rtd_loss'] == pytest.approx(-np.log(certainty[rows, places]).mean(), rel=1e-4)
  assert tiny.means(all_loss.metrics)['rtd_loss'] != pytest.approx(tiny.means(masked_loss.metrics)['rtd_loss'])


@pytest.mark.parametrize('predict', ['replace_mlm', 'all_tokens_mlm'])
def test_tokens_are_restored(predict):
  task, params, loss, gradient, predicted, example = run(predict=predict, weight=1.0)
  means = tiny.means(loss.metrics)
  assert 'rtd' not in params
  assert ('gate' in params) == (predict == 'all_tokens_mlm')
  inputs = {name: value for name, value in example.inputs.items() if name != 'predict'}
  inputs['tokens'] = jnp.asarray(predicted['tokens'])

  def score(params):
    apply = functools.partial(task.model.apply, {'params': params})
    hidden = apply(method='encode', **inputs)
    gate = apply(method='copies', features=hidden) if predict == 'all_tokens_mlm' else jnp.zeros(hidden.shape[:2])
    return apply(method='attend', features=hidden), gate

  logits, gate = (np.asarray(x, np.float64) for x in jax.jit(score)(params))
  share = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  original = np.asarray(BATCH['tokens'])
  right = np.take_along_axis(share, original[..., None], -1)[..., 0]
  if predict == 'replace_mlm':
    used = example.targets['weights'] > 0
    expected = -np.log(right[np.nonzero(used)[0], example.inputs['predict'][used]]).mean()
  else:
    passed = 1 / (1 + np.exp(-gate))
    mixed = passed * (predicted['tokens'] == original) + (1 - passed) * right
    expected = -np.log(mixed)[np.asarray(BATCH['segment_ids']) > 0].mean()
  assert means['restore_loss'] == pytest.approx(expected, rel=1e-5)
  assert float(loss.value) == pytest.approx(expected + means['generator_loss'], rel=1e-5)
  assert size(gradient['restore']) > 0


def test_uniform_samples_need_no_generator():
  task, params, loss, _, predicted, _ = run(generator=None, sampling='uniform')
  assert set(params) == {'trunk', 'rtd'}
  assert 'generator_loss' not in loss.metrics
  changed = predicted['tokens'] != np.asarray(BATCH['tokens'])
  assert changed.any()
  assert not task.summary(tiny.means(loss.metrics))


@pytest.mark.parametrize(
  ('settings', 'match'),
  [
    ({'sharing': 'some'}, 'choices are embeddings, tokens, all, none, gradient_disentangled'),
    ({'predict': 'half'}, 'choices are all, masked, replace_mlm, all_tokens_mlm'),
    ({'learning': 'slow'}, 'choices are likelihood, adversarial, frozen'),
    ({'sampling': 'best'}, 'choices are generator, uniform'),
    ({'temperature': 0.0}, r'objective\.temperature=0\.0 above 0'),
    ({'weight': 0.0, 'generator_weight': 0.0}, r'objective\.weight=0, objective\.generator_weight=0: nothing'),
    ({'weight': 0.0, 'sharing': 'none', 'learning': 'frozen'}, r'objective\.weight=0: nothing would be trained'),
    ({'weight': 0.0, 'sampling': 'uniform', 'generator': None}, r'objective\.weight=0: nothing would be trained'),
    ({'generator': None}, r'objective\.generator'),
    ({'sharing': 'all'}, "sharing='all'"),
    ({'sampling': 'uniform'}, "objective.generator=.*sampling='uniform'"),
    ({'sampling': 'uniform', 'generator': None, 'learning': 'adversarial'}, "learning='adversarial'.*generator"),
    ({'predict': 'replace_mlm', 'learning': 'adversarial'}, "predict='all'.*'masked'"),
    ({'learning': 'frozen'}, "sharing='none'"),
    ({'generator': {**GENERATOR, 'overrides': {**GENERATOR['overrides'], 'embed_dim': 12}}}, r'\b16 .*\b12;'),
    ({'generator': {**GENERATOR, 'overrides': {**GENERATOR['overrides'], 'max_length': 20}}}, 'max_length.* 32 .*20'),
  ],
)
def test_what_cannot_be_is_refused(settings, match):
  with pytest.raises(ValueError, match=match):
    make_task(**settings)


def test_a_causal_trunk_and_a_vocabulary_without_mask_are_refused():
  with pytest.raises(ValueError, match=r"'rtd'.*bidirectional"):
    rtd.make(trunk=tiny.make_trunk('gpt'), vocab=V, sharing='all')
  with pytest.raises(ValueError, match='mask token'):
    rtd.make(trunk=tiny.make_trunk('bert'), vocab=tiny.FakeVocab(mask_id=None), sharing='all')


@pytest.mark.slow
def test_sixty_steps_lower_the_held_out_loss():
  before, after = learning.held_out(make_task(where={'name': 'with_replacement', 'rate': 0.25}, weight=10.0))
  assert after['rtd_loss'] < before['rtd_loss'] - 0.1
  assert after['generator_loss'] < before['generator_loss'] - 1
  assert after['loss'] < before['loss'] - 2
