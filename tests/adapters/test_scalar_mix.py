"""A mix of all layers as features: the formula, what trains, the penalty, what stands in the parameters."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import scalar_mix, tag
from plm_jax.core import param_paths
from plm_jax.layers.lstm import StackedLstm
from plm_jax.models import bart, elmo
from plm_jax.noise import keys
from plm_jax.training import step
from tests import test_contract, tiny

pytestmark = pytest.mark.turns

NAMES = ('O', 'B-name', 'I-name')
TAG = {'name': 'tag', 'tags': NAMES, 'dropout': 0.0}
DROPOUT = {'dropout': 0.5, 'attention_dropout': 0.5}
ADDED = ('scalar_mix', 'output_mix', 'task_lstm', 'vectors')
SCALE = (('trunk/(scalar_mix|vectors)/.*', 1.0), ('trunk/.*', None), ('.*', 1.0))


def make_task(trunk='bert', *, inner=TAG, sizes=None, **settings):
  trunk = tiny.make_trunk(trunk, **(sizes or {})) if isinstance(trunk, str) else trunk
  return scalar_mix.make(trunk=trunk, vocab=tiny.VOCAB, inner=inner, **settings)


def make_batch(rows=((16,), (7, 5), (11,), (3, 4, 5))):
  batch = tiny.make_batch(rows)
  labels = np.random.default_rng(0).integers(-1, len(NAMES), batch['tokens'].shape)
  return {**batch, 'labels': jnp.asarray(labels.astype(np.int32))}


BATCH = make_batch()
INPUTS = {name: BATCH[name] for name in ('tokens', 'segment_ids', 'type_ids')}
MIXED = make_task(vectors=6, penalty=0.25, dropout=0.0, sizes=DROPOUT)


def outputs_of(task, params, *, train=False, key=0):
  @jax.jit
  def run(params):
    example = task.prepare(jax.random.key(0), keys.with_step(BATCH, 0))
    return step.bind(task, params, train=train, rng=jax.random.key(key))(**example.inputs)

  return run(params)


def trunk_of(params):
  """The parameters without those of the mix, as the trunk alone has them."""
  return {name: leaf for name, leaf in params['trunk'].items() if name not in ADDED}


@pytest.mark.parametrize('norm', [False, True])
def test_a_token_is_its_own_vector_and_the_mix_of_all_layers(norm):
  task = make_task(vectors=6, dropout=0.0, norm=norm)
  params = tiny.init_params(task, BATCH)
  out = jax.jit(lambda p: tiny.make_trunk().apply({'params': p}, **INPUTS))(trunk_of(params))
  mix = params['trunk']['scalar_mix']
  shares = np.exp(np.asarray(mix['weights'], np.float64))
  assert shares.shape == (3,)  # the embeddings and two layers
  mixed = np.zeros((4, 16, 32))
  for share, state in zip(shares / shares.sum(), np.asarray(out['layers'], np.float64), strict=True):
    if norm:
      state = (state - state.mean(-1, keepdims=True)) / np.sqrt(state.var(-1, keepdims=True) + 1e-12)
    mixed += float(mix['gamma']) * share * state
  own = np.asarray(params['trunk']['vectors']['table'])[np.asarray(BATCH['tokens'])]
  expected = np.concatenate([own, mixed], axis=-1) @ np.asarray(params['head']['kernel']) + params['head']['bias']
  assert params['head']['kernel'].shape == (38, 3)
  assert tiny.worst(outputs_of(task, params), expected) < 1e-5


@pytest.mark.parametrize(
  ('side', 'fields'),
  [*((side, 'apart') for side in ('input', 'output', 'both', 'none')), ('both', 'joined'), ('none', 'joined')],
)
def test_the_network_of_the_task_meets_the_mix_on_either_side(side, fields):
  """Fields that are joined are one text, with a number beside each word that is 1 behind the first field."""
  task = make_task(vectors=6, dropout=0.0, side=side, lstm_layers=1, lstm_dim=5, layers=(0, -1), fields=fields)
  params = tiny.init_params(task, BATCH)
  own = params['trunk']
  for number, name in enumerate(('scalar_mix', 'output_mix')):
    if name in own:  # so that the two sides differ
      own[name] = {'weights': jnp.array([0.3 + number, -1.0]), 'gamma': jnp.array(1.5 + number)}
  assert {name for name in ADDED if name in own} == {
    'vectors', 'task_lstm', *({'input': ['scalar_mix'], 'output': ['output_mix'], 'both': ADDED[:2]}.get(side, ()))
  }  # fmt: skip
  out = jax.jit(lambda p: tiny.make_trunk().apply({'params': p}, **INPUTS))(trunk_of(params))

  def mixed(name):
    shares = np.exp(np.asarray(own[name]['weights'], np.float64))
    first, last = (np.asarray(state, np.float64) for state in (out['layers'][0], out['hidden']))
    return float(own[name]['gamma']) * (shares[0] * first + shares[1] * last) / shares.sum()

  vectors = np.asarray(own['vectors']['table'])[np.asarray(BATCH['tokens'])]
  read = np.concatenate([vectors, mixed('scalar_mix')], axis=-1) if 'scalar_mix' in own else vectors
  segments = np.asarray(BATCH['segment_ids'])
  if fields == 'joined':
    read, segments = np.concatenate([read, (segments >= 2)[..., None]], axis=-1), (segments > 0).astype(np.int32)
  read, segments = jnp.asarray(read), jnp.asarray(segments)
  states = StackedLstm(5, 1).apply({'params': own['task_lstm']}, read, segments, train=False)
  states = np.concatenate([states, mixed('output_mix')], axis=-1) if 'output_mix' in own else np.asarray(states)
  expected = states @ np.asarray(params['head']['kernel']) + params['head']['bias']
  assert params['head']['kernel'].shape == (states.shape[-1], 3)
  assert tiny.worst(outputs_of(task, params), expected) < 1e-5


def test_a_hypothesis_is_read_knowing_its_premise():
  """ELMo reads two sentences apart; what the task reads of the second depends on the first where they are joined."""
  rows = BATCH | tiny.make_streams(BATCH)
  segments = np.asarray(BATCH['segment_ids'])
  other = rows | {'characters': jnp.where((segments == 1)[..., None], 1 + rows['characters'] % 200, rows['characters'])}
  changed = {}
  for way in ('apart', 'joined'):
    trunk = elmo.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides={'hidden_dim': 8, 'mlp_dim': 5})
    task = scalar_mix.make(trunk=trunk, vocab=tiny.VOCAB, inner=TAG, lstm_layers=1, lstm_dim=5, fields=way)
    params = tiny.init_params(task, rows)

    @jax.jit
    def run(batch, task=task, params=params):
      inputs = task.prepare(jax.random.key(0), keys.with_step(batch, 0)).inputs
      return step.bind(task, params, train=False, rng=jax.random.key(0))(**inputs)

    differ = np.asarray(run(rows) != run(other)).any(axis=-1)
    assert differ[segments == 1].all()
    changed[way] = differ[segments == 2]
  assert not changed['apart'].any() and changed['joined'].all()


@pytest.mark.parametrize('model', ['elmo', 'awd_lstm', 'cvt', 'lstm', 'bert'])
def test_its_own_parts_have_names_that_no_trunk_uses(model):
  trunk = test_contract.make_trunk(model)
  settings = dict(vectors=6, side='both', lstm_layers=1, lstm_dim=5, inner={'name': 'tag', 'tags': ('O', 'B-name')})
  task = scalar_mix.make(trunk=trunk, vocab=tiny.VOCAB, **settings)
  shapes = jax.eval_shape(lambda: tiny.init_params(task, BATCH | tiny.make_streams(BATCH)))
  assert {'scalar_mix', 'output_mix', 'vectors', 'task_lstm'} <= set(shapes['trunk'])


@pytest.mark.parametrize(
  ('settings', 'said'),
  [
    ({'side': 'both'}, r"adapter\.side='both'.*adapter\.lstm_layers"),
    ({'side': 'none', 'lstm_layers': 1}, r"adapter\.side='none'.*adapter\.vectors"),
    ({'fields': 'joined'}, r"adapter\.fields='joined'.*adapter\.lstm_layers"),
    ({'fields': 'both', 'lstm_layers': 1}, r"adapter\.fields='both'.*apart, joined"),
    ({'side': 'left'}, r"adapter\.side='left'.*input, output, both, none"),
  ],
)
def test_a_side_without_what_it_needs_is_refused(settings, said):
  with pytest.raises(ValueError, match=said):
    make_task(**settings)


def test_the_penalty_counts_the_weights_of_both_sides():
  task = make_task(vectors=6, side='both', lstm_layers=1, lstm_dim=5, penalty=0.25, dropout=0.0)
  params = tiny.init_params(task, BATCH)
  for name, value in (('scalar_mix', 2.0), ('output_mix', 3.0)):
    params['trunk'][name]['weights'] = jnp.full(3, value)
  example = task.prepare(jax.random.key(0), keys.with_step(BATCH, 0))
  forward = step.bind(task, params, train=True, rng=jax.random.key(0))
  found = task.loss(forward, example, (), jax.random.key(0))
  total, share = found.metrics['penalty']
  assert float(total / share) == pytest.approx(0.25 * 3 * (4 + 9))


def test_the_trunk_keeps_its_paths_and_its_initial_values():
  """So that `init_from` reads it, and a run differs from one without a mix by the mix alone."""
  plain = tag.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, tags=NAMES)
  own, others = (
    param_paths.flat(
      nn.unbox(jax.jit(lambda key, task=task: step.init_params(task, tiny.spec(BATCH), key))(jax.random.key(3)))
    )
    for task in (make_task(vectors=6), plain)
  )
  theirs = {path: leaf for path, leaf in others.items() if path.startswith('trunk/')}
  assert {path for path in own if path.startswith('trunk/')} - set(theirs) == {
    'trunk/scalar_mix/weights',
    'trunk/scalar_mix/gamma',
    'trunk/vectors/table',
  }
  assert all(tiny.same(own[path], leaf) for path, leaf in theirs.items())
  assert own['trunk/scalar_mix/weights'].tolist() == [0, 0, 0]
  assert own['trunk/scalar_mix/gamma'] == 1


def test_only_the_mix_and_the_head_train_and_the_trunk_keeps_every_bit():
  tx = tiny.make_optimiser(MIXED, BATCH, decay=0.1, scale=SCALE)
  first = last = tiny.make_state(MIXED, BATCH, tx)
  train = jax.jit(functools.partial(step.train_step, task=MIXED, tx=tx))
  for _ in range(3):
    last, _ = train(last, BATCH, jax.random.key(0))
  assert tiny.same(trunk_of(last.params), trunk_of(first.params))
  for path, leaf in param_paths.flat(first.params).items():
    if path.startswith(('head', 'trunk/scalar_mix', 'trunk/vectors')):
      assert not tiny.same(param_paths.flat(last.params)[path], leaf), path


def test_the_trunk_drops_nothing_out_and_gets_no_gradient():
  params = tiny.init_params(MIXED, BATCH)
  assert tiny.same(*(outputs_of(MIXED, params, train=True, key=key) for key in (0, 1)))
  _, gradient = tiny.loss_and_gradient(MIXED, params, BATCH, train=True)
  assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(trunk_of(gradient)))
  assert all((np.asarray(leaf) != 0).any() for leaf in jax.tree.leaves(gradient['trunk']['scalar_mix']))
  # the mix and the vectors do, in training
  noisy = make_task(vectors=6, dropout=0.5)
  assert not tiny.same(*(outputs_of(noisy, params, train=True, key=key) for key in (0, 1)))
  assert tiny.same(*(outputs_of(noisy, params, key=key) for key in (0, 1)))


def test_the_penalty_is_on_the_squared_weights_in_training_alone():
  params = tiny.init_params(MIXED, BATCH)
  plain = make_task(vectors=6, dropout=0.0, sizes=DROPOUT)
  weights = np.asarray(params['trunk']['scalar_mix']['weights'], np.float64)
  (ours, slope), (theirs, without) = (tiny.loss_and_gradient(task, params, BATCH) for task in (MIXED, plain))
  penalty = 0.25 * (weights**2).sum()
  assert penalty > 1e-3
  assert float(ours.value - theirs.value) == pytest.approx(penalty, rel=1e-3)
  assert tiny.means(ours.metrics)['penalty'] == pytest.approx(penalty, rel=1e-5)
  difference = slope['trunk']['scalar_mix']['weights'] - without['trunk']['scalar_mix']['weights']
  np.testing.assert_allclose(difference, 0.5 * weights, rtol=1e-3, atol=1e-6)
  metrics, _ = jax.jit(functools.partial(step.eval_step, task=MIXED))(params, BATCH, (), jax.random.key(0))
  assert set(metrics) == set(theirs.metrics)


def test_rows_are_classified_by_the_largest_values_of_the_mix():
  task = make_task(inner={'name': 'classify', 'classes': 3, 'dropout': 0.0}, dropout=0.0)
  params = tiny.init_params(task, BATCH)
  out = jax.jit(
    lambda p: tiny.make_trunk().apply(
      {'params': p}, BATCH['tokens'], segment_ids=BATCH['segment_ids'], type_ids=BATCH['type_ids']
    )
  )(trunk_of(params))
  mix = params['trunk']['scalar_mix']
  mixed = mix['gamma'] * jnp.tensordot(jax.nn.softmax(mix['weights']), out['layers'], axes=1)
  pooled = np.where((BATCH['segment_ids'] > 0)[..., None], mixed, -np.inf).max(axis=1)
  expected = pooled @ np.asarray(params['head']['kernel']) + np.asarray(params['head']['bias'])
  assert tiny.worst(outputs_of(task, params)[0], expected) < 1e-5


def test_names_are_found_by_lstm_and_crf_over_the_mix():
  task = make_task(inner={**TAG, 'lstm_layers': 2, 'lstm_dim': 4, 'crf': True}, vectors=6)
  loss, gradient = tiny.loss_and_gradient(task, tiny.init_params(task, BATCH), BATCH, train=True)
  assert np.isfinite(float(loss.value))
  new = {path: leaf for path, leaf in param_paths.flat(gradient).items() if not path.startswith('trunk')}
  assert {path.partition('/')[0] for path in new} == {'lstm', 'head', 'label_path'}
  assert all((np.asarray(leaf) != 0).any() for leaf in new.values())


def test_an_encoder_decoder_mixes_the_layers_of_its_decoder():
  trunk = bart.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=tiny.SIZES)
  task = make_task(trunk, vectors=6)
  params = tiny.init_params(task, BATCH)
  assert params['trunk']['scalar_mix']['weights'].shape == (3,)
  assert outputs_of(task, params).shape == (4, 16, 3)


def test_what_needs_the_words_of_the_trunk_is_refused():
  inner = {'name': 'classify', 'classes': 3, 'lm_weight': 0.5}
  with pytest.raises(ValueError, match=r'Attends.*MixedTrunk'):
    make_task('gpt', inner=inner)
