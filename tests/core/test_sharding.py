"""Rules, meshes and placements; training on four simulated devices equals training on one, under every table."""

import functools
import logging
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from plm_jax.core import layouts, sharding
from plm_jax.core.types import Execution
from plm_jax.noise import keys
from plm_jax.objectives import causal_lm, mlm
from plm_jax.planning import hlo
from plm_jax.training import step
from tests import tiny

pytestmark = [pytest.mark.turns, pytest.mark.skipif(jax.device_count() != 4, reason='needs four (simulated) devices')]

MESHES = {
  'data': {'data': 4, 'model': 1},
  'fsdp': {'data': 4, 'model': 1},
  'tensor': {'data': 1, 'model': 4},
  'fsdp_tensor': {'data': 2, 'model': 2},
  'fsdp_tensor_sequence': {'data': 2, 'model': 2},
  'fsdp_any': {'data': 4, 'model': 1},
}

COPIES = {  # two of them; what stands before the first space is the name of the rules
  'data copies': {'replica': 2, 'data': 2},
  'fsdp copies': {'replica': 2, 'data': -1},
  'fsdp copies alone': {'replica': 4, 'data': 1},
  'fsdp_any copies': {'replica': 2, 'data': 2},
  'fsdp_tensor copies': {'replica': 2, 'model': 2},
}


def make_layout(name: str = 'fsdp_tensor') -> sharding.Layout:
  return sharding.make_layout(sharding.make_mesh({**MESHES, **COPIES}[name]), name.split()[0])


@pytest.fixture
def said(caplog):
  """Collect log messages, with the record of earlier ones cleared."""
  layouts.log_once.cache_clear()
  caplog.set_level(logging.INFO, logger='plm_jax')
  return lambda: [record.getMessage() for record in caplog.records]


def test_every_table_has_a_mesh_here():
  assert set(MESHES) == set(sharding.RULES)


@pytest.mark.parametrize(
  ('shape', 'expected'),
  [
    ({'data': 4}, (4, 1)),
    ({'data': -1}, (4, 1)),
    ({'data': 2, 'model': -1}, (2, 2)),
    ({'data': -1, 'model': 2}, (2, 2)),
    ({'model': 4}, (1, 4)),
  ],
)
def test_a_mesh_spans_all_devices(shape, expected):
  mesh = sharding.make_mesh(shape)
  assert (mesh.shape['data'], mesh.shape['model']) == expected
  assert set(mesh.devices.flat) == set(jax.devices())


@pytest.mark.parametrize(
  ('shape', 'message'),
  [
    ({'data': 3}, r'sharding\.mesh.*3.*4 devices'),
    ({'data': 8}, r'sharding\.mesh.*8.*4 devices'),
    ({'data': 3, 'model': -1}, r'sharding\.mesh.*3.*4 devices'),
    ({'data': -1, 'model': 16}, r"'data': 1, 'model': 16\} needs 16 of 4 devices\. .* data=1, model=4"),
    ({'replica': 8, 'data': -1}, r"'data': 1.* needs 8 of 4 devices\. Nearest that fit: data=4, model=1"),
    ({'data': -1, 'model': -1}, r"sharding\.mesh=.*'model': -1"),
    ({'data': 0}, r"sharding\.mesh=.*'data': 0"),
    ({'data': -2}, r"sharding\.mesh=.*'data': -2"),
    ({'rows': 4}, r"sharding\.mesh.*'rows'.*replica, data, model"),
  ],
)
def test_a_wrong_mesh_is_refused(shape, message):
  with pytest.raises(ValueError, match=message):
    sharding.make_mesh(shape)


@pytest.mark.parametrize(
  ('rules', 'message'),
  [
    ('fspd', r"sharding\.rules.*'fspd'.*'fsdp'.*data, fsdp, tensor, fsdp_tensor"),
    ((('embeds', 'data'),), r"sharding\.rules.*'embeds'.*batch"),
    ((('embed', 'rows'),), r"sharding\.rules.*'embed'.*'rows'"),
  ],
)
def test_wrong_rules_are_refused(rules, message):
  with pytest.raises(ValueError, match=message):
    sharding.make_layout(sharding.make_mesh({'data': -1}), rules)


def test_rules_may_be_spelt_out():
  layout = sharding.make_layout(sharding.make_mesh({'data': 2, 'model': 2}), (('mlp', 'data'), ('embed', None)))
  assert sharding.spec(('embed', 'mlp'), (8, 8), layout) == PartitionSpec(None, 'data')


def test_the_first_axis_to_claim_a_mesh_axis_gets_it(said):
  layout = make_layout()
  assert sharding.spec(('embed', 'heads', 'head_dim'), (8, 2, 3), layout) == PartitionSpec('data', 'model', None)
  assert sharding.spec(('vocab', 'heads'), (8, 2), layout) == PartitionSpec('model', None)
  sharding.spec(('vocab', 'heads'), (8, 2), layout)
  (line,) = said()
  assert re.search("'vocab', 'heads'.*'heads'.*'model'", line)


def test_of_states_nothing_is_said_that_is_meant(said):
  """Check that intended replication is not logged."""
  layout = make_layout('fsdp_tensor_sequence')
  assert sharding.spec(('batch', 'length', 'embed'), (8, 4, 8), layout) == PartitionSpec('data', 'model', None)
  assert sharding.spec(('batch', 'length', 'vocab'), (8, 4, 8), layout) == PartitionSpec('data', 'model', None)
  assert sharding.spec(('embed', 'heads', 'head_dim'), (8, 1, 4), layout) == PartitionSpec('data', None, None)
  assert said() == []
  sharding.spec(('embed', 'heads', 'head_dim'), (8, 3, 4), layout)
  sharding.spec(('batch', 'length', 'embed'), (8, 5, 8), layout)
  first, second = said()
  assert re.search("'heads'.*3", first)
  assert re.search("'length'.*5", second)


def test_what_does_not_divide_is_replicated_and_said_once(said):
  layout = make_layout()
  for _ in range(3):
    assert sharding.spec(('vocab', 'embed'), (50257, 8), layout) == PartitionSpec(None, 'data')
  (line,) = said()
  assert re.search(r"'vocab'.*50257.*2 devices.*50258.*model\.overrides\.vocab_multiple", line)


@pytest.mark.parametrize(
  ('axes', 'shape', 'expected'),
  [
    (('embed', 'mlp'), (512, 2048), ('data', None)),  # 128 columns are kept of embed
    (('embed', 'mlp'), (508, 2048), (None, 'data')),  # 127 are few
    (('embed', 'mlp'), (6, 2048), (None, 'data')),  # 4 devices do not divide it
    (('embed', 'mlp'), (8, 16), (None, 'data')),  # both are narrow: the wider one
    (('embed', 'mlp'), (16, 8), ('data', None)),
    (('layers', 'embed', 'heads', 'head_dim'), (4, 6, 8, 4), (None, None, 'data', None)),
    (('layers', 'embed', 'heads', 'head_dim'), (4, 6, 5, 4), (None, None, None, None)),
    (('batch', 'length', 'embed'), (8, 8, 512), ('data', None, None)),  # no parameter
  ],
)
def test_a_parameter_is_cut_where_much_is_kept(axes, shape, expected, said):
  assert sharding.spec(axes, shape, make_layout('fsdp_any')) == PartitionSpec(*expected)
  assert bool(said()) == (expected == (None,) * 4)


def test_a_name_that_is_not_an_axis_is_refused():
  with pytest.raises(ValueError, match=r"'vocabs'.*'vocab'"):
    sharding.spec(('vocabs', None), (4, 4), make_layout())
  with pytest.raises(ValueError, match='zip'):
    sharding.spec(('vocab',), (4, 4), make_layout())


def test_a_leaf_without_names_is_replicated():
  abstract = {
    'a': jax.ShapeDtypeStruct((4, 4), jnp.float32),
    'b': nn.LogicallyPartitioned(np.zeros((4, 6)), ('mlp', 'embed')),
  }
  places = sharding.shardings(abstract, layout=make_layout())
  assert places['a'].spec == PartitionSpec()
  assert places['b'].spec == PartitionSpec('model', 'data')


def test_constrain_acts_inside_use_only():
  x = jnp.zeros((4, 6))
  assert sharding.constrain(x, 'batch', 'embed') is x
  layout = make_layout('data')
  with sharding.use(layout):
    y = jax.jit(lambda x: sharding.constrain(x + 1, 'batch', 'embed'))(x)
    assert y.sharding.is_equivalent_to(NamedSharding(layout.mesh, PartitionSpec('data', None)), 2)
    with pytest.raises(ValueError, match="'rows'"):
      sharding.constrain(x, 'rows', 'embed')
  assert sharding.constrain(x, 'batch', 'embed') is x


def test_use_ends_with_an_error_too():
  with pytest.raises(RuntimeError), sharding.use(make_layout()):
    raise RuntimeError
  assert layouts.CURRENT.get() is None


def test_rows_of_a_batch_are_spread():
  batch = jax.device_put(jnp.arange(8), sharding.batch_sharding(make_layout('data')))
  assert sorted(shard.data.tolist() for shard in batch.addressable_shards) == [[0, 1], [2, 3], [4, 5], [6, 7]]


# Training -----------------------------------------------------------------------------------------------------------

GPT2_VOCAB = tiny.FakeVocab(size=50257)
LENGTHS = ((8,), (5, 3), (6,), (2, 2, 2), (8,), (4,), (7,), (3, 5))


@functools.cache
def make_task(name: str, **fields):
  if name == 'mlm':
    return mlm.make(trunk=tiny.make_trunk('bert', vocab_multiple=4, **fields), vocab=tiny.VOCAB)
  trunk = tiny.make_trunk(
    'gpt', vocab_size=GPT2_VOCAB.size, hidden_dim=8, mlp_dim=16, num_heads=4, num_layers=1, **fields
  )
  return causal_lm.make(trunk=trunk, vocab=GPT2_VOCAB, logit_rows=4)


def make_optimiser(task, batch):
  # linear in the gradient, so that a comparison of parameters is one of gradients
  return tiny.make_optimiser(task, batch, name='momentum', rate=0.1)


@functools.cache
def on_one_device(name: str):
  """Train two steps; return initial parameters, state and metrics."""
  task, batch = make_task(name), tiny.make_batch(LENGTHS, length=8)
  tx = make_optimiser(task, batch)
  params = jax.jit(lambda key: nn.unbox(step.init_params(task, tiny.spec(batch), key)))(jax.random.key(3))
  zero = jnp.zeros((), jnp.int32)
  state = step.TrainState(zero, params, tx.init(params), zero, zero)
  run = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  for _ in range(2):
    state, metrics = run(state, batch, jax.random.key(4))
  return params, state, metrics


def on_four_devices(name: str, rules: str, *, params=None, **fields):
  """Train two sharded steps with a donated state."""
  layout = make_layout(rules)
  task, batch = make_task(name, **fields), tiny.make_batch(LENGTHS, length=8)
  tx = make_optimiser(task, batch)
  place = sharding.batch_sharding(layout)
  maker = step.state_maker(task, tx, tiny.spec(batch), layout=layout)
  with sharding.use(layout):
    state = maker.fresh(jax.random.key(3))
    first = jax.device_get(state.params)
    if params is not None:
      state = state.replace(params=jax.device_put(params, maker.places.params))
    lowered = jax.jit(
      functools.partial(step.train_step, task=task, tx=tx),
      in_shardings=(maker.places, place, None),
      out_shardings=(maker.places, None),
      donate_argnums=0,
    ).lower(maker.abstract, tiny.spec(batch), jax.random.key(0))
    run = lowered.compile()
    check_donated(run, maker)
    batch = jax.device_put(batch, place)
    for _ in range(2):
      state, metrics = run(state, batch, jax.random.key(4))
      jax.block_until_ready(metrics)
  return first, state, metrics, maker.places


def check_donated(run, maker) -> None:
  """Check that each step reuses the memory of the state."""
  if (analysis := run.memory_analysis()) is None:  # a backend that does not say
    return
  own = [
    int(np.prod(place.shard_shape(leaf.shape))) * leaf.dtype.itemsize
    for leaf, place in zip(jax.tree.leaves(maker.abstract), jax.tree.leaves(maker.places), strict=True)
  ]
  assert analysis.alias_size_in_bytes == sum(own)


@pytest.mark.parametrize(
  ('name', 'rules'), [*(('causal_lm', rules) for rules in (*sharding.RULES, *COPIES)), ('mlm', 'fsdp_tensor')]
)
def test_four_devices_equal_one(name, rules, said):
  params, expected, expected_metrics = on_one_device(name)
  first, state, metrics, places = on_four_devices(name, rules)
  # the same bits to begin with, wherever they are made
  assert tiny.same(first, params)
  means, expected_means = tiny.means(metrics), tiny.means(expected_metrics)
  assert means.keys() == expected_means.keys()
  for metric, value in expected_means.items():
    assert means[metric] == pytest.approx(value, rel=2e-5, abs=1e-6), metric
  error, where = tiny.gradient_error(state.opt_state['rule'], expected.opt_state['rule'])
  assert error < 1e-5, where
  # each leaf stays where it was put, and moments lie with their parameters
  for leaf, place in zip(jax.tree.leaves(state), jax.tree.leaves(places), strict=True):
    assert leaf.sharding.is_equivalent_to(place, leaf.ndim)
  for leaf, moment in zip(*map(jax.tree.leaves, (state.params, state.opt_state['rule'])), strict=True):
    assert moment.sharding.is_equivalent_to(leaf.sharding, leaf.ndim)
  table = state.params['trunk']['token_embed']['table']
  replicated = [line for line in said() if '50257' in line]
  assert len(replicated) == (name == 'causal_lm' and 'tensor' in rules)
  vocab = 'model' if name == 'mlm' else None  # 50,257 is odd, 61 is padded to 64
  embed = 'data' if 'fsdp' in rules and make_layout(rules).mesh.shape['data'] > 1 else None
  assert tuple(table.sharding.spec) == (vocab, embed)
  assert table.shape == ((64, 32) if name == 'mlm' else (50257, 8))


def test_a_padded_vocabulary_is_cut_and_gives_the_same_loss():
  params, expected, expected_metrics = on_one_device('causal_lm')
  padded = jax.tree.map(jnp.copy, params)
  embed = padded['trunk']['token_embed']
  embed['table'] = jnp.pad(embed['table'], ((0, 3), (0, 0)), constant_values=0.7)
  _, state, metrics, _ = on_four_devices('causal_lm', 'fsdp_tensor', params=padded, vocab_multiple=4)
  table = state.params['trunk']['token_embed']['table']
  assert table.shape == (50260, 8)
  assert tuple(table.sharding.spec) == ('model', 'data')
  assert tiny.means(metrics)['loss'] == pytest.approx(tiny.means(expected_metrics)['loss'], rel=1e-5)
  assert tiny.worst(table[:50257], expected.params['trunk']['token_embed']['table']) < 1e-5
  assert tiny.same(table[50257:], jnp.full((3, 8), 0.7))


@pytest.mark.parametrize('rules', [*sharding.RULES, *COPIES])
def test_noise_does_not_depend_on_the_devices(rules):
  task, batch = make_task('mlm'), tiny.make_batch(LENGTHS, length=8)
  alone = jax.jit(task.prepare)(jax.random.key(0), keys.with_step(batch, 0))
  layout = make_layout(rules)
  with sharding.use(layout):
    spread = jax.device_put(batch, sharding.batch_sharding(layout))
    together = jax.jit(task.prepare)(jax.random.key(0), keys.with_step(spread, 0))
  assert tiny.same(together, alone)


def test_the_carry_lies_with_its_rows():
  task = make_task('mlm')._replace(init_carry=lambda rows: {'state': jnp.zeros((rows, 3))})
  batch = tiny.make_batch(LENGTHS, length=8)
  maker = step.state_maker(task, make_optimiser(task, batch), tiny.spec(batch), layout=make_layout('data'))
  assert maker.places.carry['state'].spec == PartitionSpec('data')


# The vocabulary's product in chunks -----------------------------------------------------------------------------------


def gradient_on(layout: sharding.Layout, task, maker):
  """Build a sharded gradient function of (parameters, batch)."""

  def loss(params, batch):
    example = task.prepare(jax.random.key(0), keys.with_step(batch, 0))
    return task.loss(step.bind(task, params, train=True, rng=jax.random.key(1)), example, (), jax.random.key(2)).value

  places = maker.places.params, sharding.batch_sharding(layout)
  return jax.jit(jax.grad(loss), in_shardings=places, out_shardings=maker.places.params)


def compiled_loss(rules: str, *, rows: int, logit_rows: int):
  """Compile a gradient on four devices and find its largest logits."""
  layout = make_layout(rules)
  trunk = tiny.make_trunk('gpt', vocab_size=1024, hidden_dim=8, mlp_dim=16, num_heads=4, num_layers=1)
  task = causal_lm.make(trunk=trunk, vocab=tiny.FakeVocab(size=1024), logit_rows=logit_rows)
  batch = tiny.spec(tiny.make_batch(((8,),) * rows, length=8))
  maker = step.state_maker(task, make_optimiser(task, batch), batch, layout=layout)
  with sharding.use(layout):
    text = gradient_on(layout, task, maker).lower(maker.abstract.params, batch).compile().as_text()
  logits = re.findall(rf'f32\[(\d+),8,{1024 // layout.mesh.shape["model"]}\]', text)
  return text, max(map(int, logits))


@pytest.mark.parametrize('rules', ['data', 'fsdp', 'fsdp_tensor'])
def test_each_device_scores_its_own_rows_and_gathers_the_table_once(rules):
  text, rows = compiled_loss(rules, rows=16, logit_rows=2)
  devices = MESHES[rules]['data']
  assert rows == 2  # of the 16 / devices that it has, and no row of another device
  head = [one for one in hlo.collectives(text) if one.bytes >= 4 * 1024 * 8 / MESHES[rules]['model']]
  assert {one.runs for one in head} == {1}
  # the table comes for the tokens and for the logits, and again for the gradient of the states
  gathers = [one for one in head if one.kind == 'all-gather']
  assert 0 < len(gathers) <= 3 if rules != 'data' else not gathers
  chunks = re.findall(r'known_trip_count\D*(\d+)', text)
  assert str(16 // devices // 2) in chunks


# States cut along their positions -------------------------------------------------------------------------------------


def compiled_layers(rules: str, *, length: int = 8):
  """Compile the gradient of two blocks of width 32."""
  layout = make_layout(rules)
  trunk = tiny.make_trunk('gpt', num_heads=4, mlp_dim=96, max_length=24, execution=Execution(remat='full'))
  task = causal_lm.make(trunk=trunk, vocab=tiny.VOCAB)
  batch = tiny.make_batch(((length,), (length - 2,)) * 2, length=length)
  maker = step.state_maker(task, make_optimiser(task, batch), tiny.spec(batch), layout=layout)
  with sharding.use(layout):
    places = maker.places.params, sharding.batch_sharding(layout)
    params, batch = jax.device_put((maker.fresh(jax.random.key(3)).params, batch), places)
    compiled = gradient_on(layout, task, maker).lower(params, batch).compile()
    gradient = jax.device_get(compiled(params, batch))
  return gradient, compiled.as_text()


def test_states_are_cut_along_their_positions_and_kernels_stay_cut():
  gradient, text = compiled_layers('fsdp_tensor_sequence')
  whole, whole_text = compiled_layers('fsdp_tensor')
  error, where = tiny.gradient_error(gradient, whole)
  assert error < 1e-5, where
  # what the backward pass keeps of [layers, rows, positions, width]
  assert 'f32[2,2,8,32]' in whole_text and 'f32[2,2,4,32]' not in whole_text
  assert 'f32[2,2,4,32]' in text and 'f32[2,2,8,32]' not in text
  gathered = {one.shape.partition('{')[0] for one in hlo.collectives(text) if one.kind == 'all-gather'}
  assert 'f32[2,8,32]' in gathered  # states, before the sublayers
  # of query, key, value and output, and of the feed-forward: over 'data' alone
  assert {'f32[32,16]', 'f32[16,32]', 'f32[32,48]', 'f32[48,32]'} <= gathered
  assert not {'f32[32,32]', 'f32[32,96]', 'f32[96,32]'} & gathered


def test_positions_that_do_not_divide_stay_whole(said):
  gradient, _ = compiled_layers('fsdp_tensor_sequence', length=7)
  assert any(re.search("'length'.*7.*2 devices.*'model'", line) for line in said())
  error, where = tiny.gradient_error(gradient, compiled_layers('fsdp_tensor', length=7)[0])
  assert error < 1e-5, where


def test_generation_is_the_same_where_positions_are_cut(said):
  """Decode a prompt of six tokens, then one token."""
  trunk = tiny.make_trunk('gpt')
  tokens = jnp.arange(8, 36, dtype=jnp.int32).reshape(4, 7)
  params = tiny.draw(
    nn.unbox(jax.eval_shape(lambda: trunk.init(jax.random.key(0), tokens, segment_ids=tokens))['params'])
  )

  def written():
    def decode(params, tokens, cache, start):
      places = jnp.broadcast_to(start + jnp.arange(tokens.shape[1]), tokens.shape)
      given = {'segment_ids': jnp.ones_like(tokens), 'positions': places}
      return trunk.apply({'params': params}, tokens, cache, **given, method='decode_step')

    run = jax.jit(decode)
    _, cache = run(params, tokens[:, :6], trunk.init_cache(4, 8), 0)
    return run(params, tokens[:, 6:], cache, 6)[0]

  alone = written()
  with sharding.use(make_layout('fsdp_tensor_sequence')):
    assert tiny.worst(written(), alone) < 1e-5
  assert not any("'length'" in line for line in said())  # of a single token nothing is said
