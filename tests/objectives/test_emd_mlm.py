"""DeBERTa's enhanced mask decoder: its logits against plain numpy, what it reads, what it refuses, that it learns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.config import build
from plm_jax.models import deberta
from plm_jax.noise import keys
from plm_jax.objectives import emd_mlm, mlm
from plm_jax.training import step
from tests import tiny
from tests.models import plain_deberta

pytestmark = pytest.mark.turns

V = tiny.VOCAB
HALF = {'name': 'whole_word', 'rate': 0.5}
V3 = {'position_buckets': 8, 'share_projections': True, 'key_bias': True, 'table_norm': True, 'num_layers': 3}
KINDS = {'v1': {'max_distance': 5}, 'v2': V3 | {'max_distance': 10, 'conv_kernel': 3}, 'v3': V3 | {'max_distance': 9}}


def make_trunk(kind: str = 'v1', **fields):
  return deberta.make(vocab_size=V.size, variant='deberta-base', overrides=tiny.SIZES | KINDS[kind] | fields)


def make_task(kind: str = 'v1', **settings):
  return emd_mlm.make(trunk=make_trunk(kind), vocab=V, **({'where': HALF} | settings))


@functools.cache
def params_of(kind: str):
  return tiny.init_params(make_task(kind), tiny.make_batch())


@functools.cache
def logits_of(kind: str, steps: int):
  model, params = make_task(kind, steps=steps).model, params_of(kind)
  return jax.jit(lambda **inputs: model.apply({'params': params}, **inputs))


def every(batch):
  """Inputs that ask for every position."""
  tokens = jnp.asarray(batch['tokens'])
  predict = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  return {'tokens': tokens, 'segment_ids': jnp.asarray(batch['segment_ids']), 'predict': predict}


@pytest.mark.parametrize(('kind', 'steps'), [('v1', 2), ('v2', 2), ('v3', 1)])
def test_logits_equal_plain_numpy(kind, steps):
  batch = tiny.make_batch(((16,), (9,)))
  found = logits_of(kind, steps)(**every(batch))
  for row, length in enumerate((16, 9)):
    tokens = np.asarray(batch['tokens'])[row, :length]
    expected = plain_deberta.decoded(params_of(kind), tokens, make_trunk(kind).config, steps=steps)
    assert tiny.worst(found[row, :length], expected) < 1e-5


def plain_loss(params, example, config) -> float:
  """Mean nats of the targets in float64, each document alone, as if nothing stood beside it."""
  inputs, targets = (jax.tree.map(np.asarray, part) for part in example)
  nats = []
  for row, slot in zip(*np.nonzero(targets['weights']), strict=True):
    segments, place = inputs['segment_ids'][row], int(inputs['predict'][row, slot])
    document = np.flatnonzero(segments == segments[place])
    logits = plain_deberta.decoded(params, inputs['tokens'][row, document], config)[place - document[0]]
    nats.append(np.log(np.exp(logits).sum()) - logits[int(targets['ids'][row, slot])])
  return float(np.mean(nats))


def example_of(task, batch):
  return jax.jit(task.prepare)(keys.noise_root(jax.random.key(0)), keys.with_step(batch, 0))


def test_loss_is_that_of_the_masked_tokens():
  task, batch = make_task('v1'), tiny.make_batch(((16,), (7, 5)))
  example = example_of(task, batch)
  assert tiny.same(example, example_of(mlm.make(trunk=make_trunk('v1'), vocab=V, where=HALF), batch))
  loss, _ = tiny.loss_and_gradient(task, params_of('v1'), batch)
  expected = plain_loss(params_of('v1'), example, task.model.trunk.config)
  assert float(loss.value) == pytest.approx(expected, rel=1e-5)
  assert tiny.means(loss.metrics)['loss'] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize('kind', ['v1', 'v2'])
def test_gradient_of_every_tensor_equals_that_of_plain_numpy(kind):
  """By differences in float64 along our gradient: slope and size agree only where every part of it is right."""
  task, batch = make_task(kind), tiny.make_batch(((7,),))
  config, example = task.model.trunk.config, example_of(task, batch)
  _, gradient = tiny.loss_and_gradient(task, params_of(kind), batch)
  exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params_of(kind))
  leaves, structure = jax.tree.flatten(exact)
  named = jax.tree_util.tree_leaves_with_path(gradient)
  whole = np.sqrt(sum(float((leaf**2).sum()) for _, leaf in named))
  for number, (path, leaf) in enumerate(named):
    slope = float(np.linalg.norm(leaf))
    if slope < 1e-6 * whole:
      continue
    direction = np.asarray(leaf, np.float64) / slope

    def at(size, number=number, direction=direction):
      moved = [*leaves[:number], leaves[number] + size * direction, *leaves[number + 1 :]]
      return plain_loss(jax.tree.unflatten(structure, moved), example, config)

    measured = (at(1e-5) - at(-1e-5)) / 2e-5
    assert slope == pytest.approx(measured, rel=1e-4, abs=1e-6 * whole), jax.tree_util.keystr(path)


def test_parameters_are_those_of_mlm_and_a_table_of_positions():
  params, plain = params_of('v1'), tiny.init_params(mlm.make(trunk=make_trunk(), vocab=V), tiny.make_batch())
  assert params.keys() - plain.keys() == {'position_embed'}
  assert params['position_embed']['table'].shape == (32, 32)
  assert tiny.same({name: params[name] for name in plain}, plain)


def test_absolute_positions_matter_only_here():
  """Moving a document along its row moves its states with it, and absolute positions are of the document."""
  batch = tiny.make_batch(((6, 10),))
  packed = logits_of('v1', 2)(**every(batch))[0, 6:]
  alone = {name: jnp.zeros((1, 16), jnp.int32).at[0, :10].set(batch[name][0, 6:]) for name in ('tokens', 'segment_ids')}
  assert tiny.worst(packed, logits_of('v1', 2)(**every(alone))[0, :10]) < 1e-5
  moved = logits_of('v1', 2)(**every(batch), positions=jnp.arange(16)[None] + 7)[0, 6:]
  assert np.abs(np.asarray(packed - moved)).max() > 1e-2


def test_no_document_and_no_padding_is_seen():
  batch = tiny.make_batch(((6, 7),))
  changed = batch | {'tokens': batch['tokens'].at[0, 6:].set(44)}
  first, second = (logits_of('v2', 2)(**every(text)) for text in (batch, changed))
  assert tiny.same(first[:, :6], second[:, :6])
  assert not tiny.same(first[:, 6:13], second[:, 6:13])
  dirty = batch | {'tokens': batch['tokens'].at[0, 13:].set(44)}
  assert tiny.same(first[:, :13], logits_of('v2', 2)(**every(dirty))[:, :13])


def test_the_trunks_own_last_layer_is_not_computed():
  """Two uses of the last layer, not three: as many operations as a trunk with one layer more."""

  def products(trunk_task):
    example = jax.eval_shape(trunk_task.prepare, jax.random.key(0), keys.with_step(tiny.make_batch(), 0))
    params = step.abstract_params(trunk_task, tiny.spec(tiny.make_batch()))
    run = jax.jit(lambda params, inputs: trunk_task.model.apply({'params': params}, **inputs))
    return run.lower(params, example.inputs).compile().cost_analysis()['flops']

  one, two = (products(make_task('v1', steps=steps)) for steps in (1, 2))
  plain = products(mlm.make(trunk=make_trunk('v1'), vocab=V, where=HALF))
  assert one < plain * 1.05
  assert one < two < 1.8 * one


def test_a_row_longer_than_the_table_of_positions_is_refused():
  tokens = jnp.ones((1, 33), jnp.int32)
  with pytest.raises(ValueError, match=r'\b32 tokens'):
    logits_of('v1', 2)(tokens=tokens, segment_ids=tokens, predict=tokens)


def test_other_trunks_are_refused():
  with pytest.raises(ValueError, match=r'Bert.*decoder_positions, refine.*model\.name'):
    emd_mlm.make(trunk=tiny.make_trunk('bert'), vocab=V)
  with pytest.raises(ValueError, match=r'Deberta.*model\.overrides\.absolute'):
    emd_mlm.make(trunk=make_trunk(absolute='input'), vocab=V)
  with pytest.raises(ValueError, match='causal'):
    emd_mlm.make(trunk=tiny.make_trunk('gpt'), vocab=V)
  with pytest.raises(ValueError, match=r'objective\.steps=0'):
    make_task(steps=0)


@pytest.mark.parametrize('name', ['whole_word', 'ngram_windows', 'iid', 'fixed_count'])
def test_any_choice_of_tokens_serves(name):
  task = build.make('objectives', {'name': 'emd_mlm', 'where': {'name': name}}, trunk=make_trunk(), vocab=V)
  example = jax.jit(task.prepare)(jax.random.key(0), keys.with_step(tiny.make_batch(), 0))
  assert float(example.targets['weights'].sum()) > 0


def stretches(*, seed: int, rows: int = 16):
  """Rows that count upwards from a number of their own, so that a hidden token follows from its neighbours."""
  start = np.random.default_rng(seed).integers(0, 40, (rows, 1))
  tokens = 7 + (start + np.arange(16)) % 40
  tokens[:, 0], tokens[:, -1] = V.cls_id, V.sep_id
  batch = tiny.make_batch(((16,),) * rows, first=seed * rows)
  return batch | {'tokens': jnp.asarray(tokens, jnp.int32)}


@pytest.mark.parametrize('kind', ['v1', pytest.param('v3', marks=pytest.mark.slow)])
def test_sixty_steps_lower_the_loss_of_rows_never_seen(kind):
  task = make_task(kind, where={'name': 'fixed_count'})
  tx = tiny.make_optimiser(task, stretches(seed=0), rate=3e-3, schedule='constant')
  state = tiny.make_state(task, stretches(seed=0), tx)
  key = jax.random.key(3)
  train = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  evaluate = jax.jit(functools.partial(step.eval_step, task=task))

  def held_out():
    found = [tiny.means(evaluate(state.params, stretches(seed=seed), (), key)[0])['loss'] for seed in (1000, 1001)]
    return float(np.mean(found))

  before = held_out()
  for number in range(60):
    state, _ = train(state, stretches(seed=number), key=key)
  assert before > np.log(40)
  assert held_out() < 0.75 * before
