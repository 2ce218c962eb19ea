"""The optimiser of a run: freezing, clipping, unfreezing, averages, sharding, errors."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plm_jax import optim
from plm_jax.core import sharding
from plm_jax.core.errors import ConfigError

BASE = {'name': 'adamw', 'rate': 0.1, 'schedule': 'constant', 'steps': 100}


def tree(fill: float = 1.0) -> dict:
  return {
    'trunk': {
      'embed': {'table': jnp.full((4, 3), fill)},
      'layers': {'mlp': {'kernel': jnp.full((2, 3, 3), fill), 'bias': jnp.full((2, 3), fill)}},
    },
    'head': {'kernel': jnp.full((3, 2), fill)},
  }


def make(**settings) -> optim.Optimiser:
  return optim.make(params=tree(), **(BASE | settings))


def step(tx: optim.Optimiser, params: dict, state: dict, gradients: dict) -> tuple[dict, dict]:
  trainable, frozen = tx.split(params)
  updates, state = jax.jit(tx.update)(tx.split(gradients)[0], state, trainable)
  return optim.merge(optax.apply_updates(trainable, updates), frozen), state


def run(tx: optim.Optimiser, steps: int, gradients: dict | None = None) -> list[dict]:
  """Parameters before the first and after each step."""
  params = [tree()]
  state = tx.init(tx.split(params[0])[0])
  for _ in range(steps):
    after, state = step(tx, params[-1], state, tree() if gradients is None else gradients)
    params.append(after)
  return params


def equal(one, other) -> bool:
  return jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), one, other))


# Freezing ------------------------------------------------------------------------------------------------------------


def test_frozen_parameters_are_split_off_and_have_no_state():
  tx = make(scale=(('trunk/.*', None), ('.*', 1.0)), ema=0.9)
  trainable, frozen = tx.split(tree())
  assert trainable['trunk'] == {'embed': {'table': None}, 'layers': {'mlp': {'kernel': None, 'bias': None}}}
  assert frozen['head'] == {'kernel': None}
  assert equal(optim.merge(trainable, frozen), tree())
  shapes = {leaf.shape for leaf in jax.tree.leaves(tx.init(trainable))}
  assert shapes == {(), (3, 2)}
  before, after = run(tx, 1)
  assert equal(before['trunk'], after['trunk'])
  assert not np.any(before['head']['kernel'] == after['head']['kernel'])


def test_frozen_parameters_have_no_part_in_the_clip_norm():
  large = tree(100.0) | {'head': {'kernel': jnp.full((3, 2), 0.1)}}
  settings = {'name': 'sgd', 'clip': 1.0, 'rate': 1.0}
  tx = make(scale=(('trunk/.*', None), ('.*', 1.0)), **settings)
  before, after = run(tx, 1, large)
  np.testing.assert_allclose(before['head']['kernel'] - after['head']['kernel'], 0.1, rtol=1e-5)


def test_some_layers_of_a_stack_frozen():
  gradients = tree(1.0)
  gradients['trunk']['layers']['mlp']['kernel'] = gradients['trunk']['layers']['mlp']['kernel'].at[0].set(1e6)
  tx = make(name='momentum', clip=1.0, rate=1.0, scale=(('trunk/layers/0/.*', None), ('.*', 1.0)), decay=0.1)
  first, *_, last = run(tx, 3, gradients)
  layers, moved = first['trunk']['layers'], last['trunk']['layers']
  assert equal(jax.tree.map(lambda leaf: leaf[0], layers), jax.tree.map(lambda leaf: leaf[0], moved))
  assert np.all(layers['mlp']['kernel'][1] != moved['mlp']['kernel'][1])
  # 12 + 9 + 3 + 6 numbers train: without the frozen layer the gradient's norm is sqrt(30)
  _, after = run(make(name='sgd', clip=1.0, rate=1.0, scale=(('trunk/layers/0/.*', None), ('.*', 1.0))), 1, gradients)
  np.testing.assert_allclose(1 - after['head']['kernel'], 1 / np.sqrt(30), rtol=1e-5)


@pytest.mark.parametrize('settings', [{'name': 'lamb'}, {'name': 'adamw', 'eps': 0.0}], ids=['lamb', 'adamw'])
def test_a_frozen_layer_stays_put_where_its_gradient_is_not_finite(settings):
  gradients = tree()
  kernel = gradients['trunk']['layers']['mlp']['kernel']
  gradients['trunk']['layers']['mlp']['kernel'] = kernel.at[0].set(jnp.nan)
  tx = make(clip=1.0, scale=(('trunk/layers/0/.*', None), ('.*', 1.0)), **settings)
  after, state = step(tx, tree(), tx.init(tree()), gradients)
  assert np.all(after['trunk']['layers']['mlp']['kernel'][0] == 1)
  assert jax.tree.all(jax.tree.map(lambda leaf: bool(jnp.all(jnp.isfinite(leaf))), (after, state)))
  moments = [leaf for leaf in jax.tree.leaves(state) if leaf.shape == (2, 3, 3)]
  assert len(moments) == 2
  for moment in moments:
    assert np.all(moment[0] == 0)
    assert np.all(moment[1] != 0)


def test_unfreezing_part_by_part():
  scale = (
    ('trunk/embed/.*', {'unfreeze': 3}),
    ('trunk/layers/1/.*', {'unfreeze': 0.02}),
    ('trunk/.*', None),
    ('.*', 1),
  )
  params = run(make(scale=scale, decay=0.1), 5)

  def moves(read) -> list[bool]:
    return [bool(np.any(read(a) != read(b))) for a, b in itertools.pairwise(params)]

  assert moves(lambda p: p['head']['kernel']) == [True] * 5
  assert moves(lambda p: p['trunk']['layers']['mlp']['bias'][1]) == [False, False, True, True, True]
  assert moves(lambda p: p['trunk']['layers']['mlp']['bias'][0]) == [False] * 5
  assert moves(lambda p: p['trunk']['embed']['table']) == [False, False, False, True, True]
  # the first update of a part that joins late is as long as anybody's
  late = params[3]['trunk']['embed']['table'] - params[4]['trunk']['embed']['table']
  np.testing.assert_allclose(late, 0.1 * (1 + 0.1), rtol=1e-3)


def test_gradual_unfreezing_moves_one_more_layer_after_each_period():
  params = run(make(scale=(('trunk/.*', {'gradual': 2}), ('.*', 1)), decay=0.1), 8)

  def moves(read) -> list[bool]:
    return [bool(np.any(read(a) != read(b))) for a, b in itertools.pairwise(params)]

  assert moves(lambda p: p['head']['kernel']) == [True] * 8
  assert moves(lambda p: p['trunk']['layers']['mlp']['kernel'][1]) == [False] * 2 + [True] * 6
  assert moves(lambda p: p['trunk']['layers']['mlp']['kernel'][0]) == [False] * 4 + [True] * 4
  assert moves(lambda p: p['trunk']['embed']['table']) == [False] * 6 + [True] * 2


def test_waiting_parts_have_no_part_in_the_clip_norm():
  gradients = tree(1.0) | {'head': {'kernel': jnp.full((3, 2), 100.0)}}
  tx = make(name='sgd', clip=1.0, rate=1.0, scale=(('head/.*', {'unfreeze': 1}), ('.*', 1.0)))
  first, second, third = run(tx, 2, gradients)
  np.testing.assert_allclose(1 - second['trunk']['embed']['table'], 1 / np.sqrt(12 + 24), rtol=1e-5)
  assert equal(first['head'], second['head'])
  assert np.all(second['head']['kernel'] - third['head']['kernel'] > 0.4)


def test_layerwise_rates_and_decay():
  scale = (('trunk/layers/0/.*', 0.25), ('trunk/layers/1/.*', 0.5), ('trunk/embed/.*', 0.125), ('.*', 1.0))
  decay = (('.*/bias', 0.0), ('trunk/layers/1/.*', 0.5), ('.*', 0.25))
  tx = make(name='adamw', scale=scale, decay=decay)
  _, after = run(tx, 1, jax.tree.map(jnp.zeros_like, tree()))
  by = lambda value: pytest.approx(1 - 0.1 * value, rel=1e-6)  # noqa: E731
  mlp = after['trunk']['layers']['mlp']
  assert float(mlp['kernel'][0, 0, 0]) == by(0.25 * 0.25)
  assert float(mlp['kernel'][1, 0, 0]) == by(0.5 * 0.5)
  assert np.all(mlp['bias'] == 1)
  assert float(after['trunk']['embed']['table'][0, 0]) == by(0.125 * 0.25)
  assert float(after['head']['kernel'][0, 0]) == by(0.25)


# Clipping ------------------------------------------------------------------------------------------------------------


def test_clip_equals_optax():
  gradients = jax.tree.map(lambda leaf: leaf * jnp.arange(leaf.size).reshape(leaf.shape), tree())
  for settings, peer in (
    ({'clip': 2.0}, optax.clip_by_global_norm(2.0)),
    ({'clip': 1e6}, optax.clip_by_global_norm(1e6)),
    ({'clip': 2.0, 'clip_by': 'element'}, optax.clip(2.0)),
  ):
    _, after = run(make(name='sgd', rate=1.0, **settings), 1, gradients)
    expected, _ = peer.update(gradients, peer.init(gradients))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(1 - a, b, rtol=1e-5, atol=1e-6), after, expected)


def test_clip_of_rows_bounds_each_vector():
  gradients = jax.tree.map(lambda leaf: leaf * jnp.arange(leaf.size).reshape(leaf.shape), tree())
  _, after = run(make(name='sgd', rate=1.0, clip=2.0, clip_by='row'), 1, gradients)
  lengths = set()
  for before, new, gradient in zip(*map(jax.tree.leaves, (tree(), after, gradients)), strict=True):
    norm = np.linalg.norm(gradient, axis=-1, keepdims=True)
    assert np.allclose(before - new, gradient * np.minimum(1, 2 / np.maximum(norm, 1e-9)), atol=1e-5)
    lengths |= set((norm > 2).ravel().tolist())
  assert lengths == {True, False}


@pytest.mark.parametrize('by', ['norm', 'row'])
def test_no_gradient_at_all_is_no_division_by_zero(by):
  _, after = run(make(clip=1.0, clip_by=by), 1, jax.tree.map(jnp.zeros_like, tree()))
  assert equal(after, tree())


# State ---------------------------------------------------------------------------------------------------------------


def test_ema_is_what_evaluation_reads():
  tx = make(ema=0.75, scale=(('trunk/embed/.*', None), ('.*', 1.0)))
  params = tree()
  trainable, _ = tx.split(params)
  state = tx.init(trainable)
  mean = np.ones(6)
  for _ in range(4):
    params, state = step(tx, params, state, tree())
    mean = 0.75 * mean + 0.25 * np.ravel(params['head']['kernel'])
  whole = tx.eval_params(state, params)
  np.testing.assert_allclose(np.ravel(whole['head']['kernel']), mean, rtol=1e-6)
  assert equal(whole['trunk']['embed'], params['trunk']['embed'])
  assert tx.eval_params(state, tx.split(params)[0])['trunk']['embed']['table'] is None
  plain = make()
  assert plain.eval_params(plain.init(tree()), params) is params


def test_moments_are_float32_whatever_the_parameters_are():
  params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree())
  for name in ('adamw', 'bert_adam', 'lamb', 'adafactor', 'momentum', 'adagrad'):
    tx = make(name=name)
    state = jax.jit(tx.init)(params)
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} <= {jnp.dtype('float32'), jnp.dtype('int32')}
    updates, _ = jax.jit(tx.update)(params, state, params)
    assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {jnp.dtype('bfloat16')}


@pytest.mark.parametrize('settings', [{'ema': 0.9}, {'name': 'asgd'}, {'name': 'lamb'}, {'schedule': 'plateau'}])
def test_a_donated_state(settings):
  tx = make(**settings)

  def train(params, state):
    updates, state = tx.update(tree(), state, params)
    return optax.apply_updates(params, updates), state

  params = tree()
  state = tx.init(params)
  expected = jax.tree.map(np.array, train(*train(params, state)))
  donating = jax.jit(train, donate_argnums=(0, 1))
  found = donating(*donating(params, state))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), found, expected)
  tx.observe(found[1], 1.0)


def test_plateau_halves_the_rate():
  tx = make(name='sgd', schedule='plateau', rate=1.0, patience=1, shrink=0.5)
  params, state = tree(), tx.init(tree())
  taken = []
  for metric in (3.0, 4.0, 4.0, 2.0, 5.0, 5.0):
    after, state = step(tx, params, state, tree())
    taken.append(float(params['head']['kernel'][0, 0] - after['head']['kernel'][0, 0]))
    params, state = after, tx.observe(state, metric)
  np.testing.assert_allclose(taken, [1, 1, 1, 0.5, 0.5, 0.5], rtol=1e-6)
  assert float(state['plateau']['factor']) == 0.25
  assert float(tx.now(state)) == 0.25 and float(tx.rate(jnp.int32(0))) == 1.0  # what is logged is what is applied
  assert float(tx.rate(6)) == 1.0
  still = make()
  state = still.init(tree())
  assert still.observe(state, 1.0) is state


@pytest.mark.parametrize('name', ['adamw', 'bert_adam', 'lamb', 'adafactor', 'asgd', 'momentum', 'adagrad'])
def test_moments_lie_where_their_parameters_lie(name):
  layout = sharding.make_layout(sharding.make_mesh({'data': -1}), 'fsdp')
  params = {
    'trunk': {
      'embed': {'table': nn.LogicallyPartitioned(jnp.ones((16, 8)), ('vocab', 'embed'))},
      'layers': {
        'mlp': {
          'kernel': nn.LogicallyPartitioned(jnp.ones((2, 8, 12)), ('layers', 'embed', 'mlp')),
          'bias': nn.LogicallyPartitioned(jnp.ones((2, 12)), ('layers', 'mlp')),
        }
      },
    }
  }
  tx = optim.make(params=nn.unbox(params), ema=None if name == 'asgd' else 0.9, **(BASE | {'name': name}))
  places = sharding.shardings(jax.eval_shape(tx.init, params), layout=layout)
  state = jax.jit(lambda params: nn.unbox(tx.init(params)), out_shardings=places)(params)
  assert jax.tree.structure(state) == jax.tree.structure(tx.init(nn.unbox(params)))

  moments = [leaf for leaf in jax.tree.leaves(state) if leaf.size in (16 * 8, 2 * 8 * 12)]
  assert len(moments) >= 2
  for leaf in moments:
    assert leaf.addressable_shards[0].data.size == leaf.size // jax.device_count()

  given = jax.device_put(nn.unbox(params), sharding.shardings(params, layout=layout))
  kept = jax.tree.map(lambda leaf: leaf.sharding, state)
  updates, after = jax.jit(tx.update, out_shardings=(None, kept))(given, state, given)
  plain, _ = tx.update(nn.unbox(params), tx.init(nn.unbox(params)), nn.unbox(params))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), updates, plain)
  assert jax.tree.all(jax.tree.map(lambda a, b: a.sharding == b.sharding, after, state))


def test_norms():
  found = jax.jit(optim.norms)(tree(2.0))
  expected = {'trunk/embed': 2 * np.sqrt(12), 'trunk/layers': 2 * np.sqrt(24), 'head': 2 * np.sqrt(6)}
  assert {name: float(norm) for name, norm in found.items()} == pytest.approx(expected)
  trainable, _ = make(scale=(('trunk/embed/.*', None), ('.*', 1.0))).split(jax.tree.map(jnp.bfloat16, tree()))
  assert set(optim.norms(trainable)) == {'trunk/layers', 'head'}
  assert optim.norms(trainable)['head'].dtype == jnp.float32


# Mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'name': 'adamx'}, r"optim.name.*'adamx'.*'adam'.*lamb"),
    ({'schedule': 'cosinus'}, r"optim.schedule.*'cosine'"),
    ({'name': 'sgd', 'b1': 0.9}, r"optim.b1: .*name='sgd'.*schedule='constant'.*adamw"),
    ({'momentum': 0.9}, r'optim.momentum: .*adamw.*b1, b2, eps'),
    ({'schedule': 'stlr', 'floor': 0.1}, r'optim.floor: .*stlr.*cut, ratio'),
    ({'schedule': 'cosine', 'patience': 3}, r'optim.patience'),
    ({'schedule': 'plateau', 'mode': 'least'}, r'min, max'),
    ({'scale': (('.*', None),)}, r'optim.scale'),
    ({'decay': (('trunk/.*', 0.1),)}, r"optim.decay: .*'head/kernel'"),
    ({'name': 'lamb', 'adapt': (('norm', 0.0), ('.*', 1.0))}, r"optim.adapt: 'norm'"),
    ({'name': 'lamb', 'adapt': (('.*', 0.5),)}, r"optim.adapt: '\.\*'.*0\.5"),
    ({'name': 'lamb', 'adapt': (('.*', {'unfreeze': 3}),)}, r'optim.adapt: .*unfreeze'),
    ({'clip': 0}, r'optim.clip=0'),
    ({'clip': 1.0, 'clip_by': 'value'}, r'norm, element, row'),
    ({'name': 'asgd', 'ema': 0.9}, r"optim.ema=0.9.*'asgd'"),
  ],
)
def test_a_mistake_names_the_choices(settings, message):
  with pytest.raises((ConfigError, ValueError), match=message):
    make(**settings)


def test_the_whole_tree_in_place_of_the_trainable_part_is_refused():
  tx = make(scale=(('trunk/.*', None), ('.*', 1.0)))
  with pytest.raises(ValueError, match=r'trunk/embed/table.*split'):
    tx.init(tree())
  with pytest.raises(ValueError, match=r'head/kernel.*split'):
    tx.init({'trunk': tx.split(tree())[0]['trunk']})
