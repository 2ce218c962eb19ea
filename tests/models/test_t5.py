"""T5: sizes, parity with Hugging Face, initial deviations, sight, packing, generation, its other structures."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.errors import require
from plm_jax.core.trunk import Decodes
from plm_jax.core.types import Execution
from plm_jax.models import t5
from plm_jax.weights.architectures import t5 as t5_weights
from tests import tiny
from tests.models import seq2seq

pytestmark = pytest.mark.turns

VERSIONS = ('t5', 't5_v1_1', 't5_deep')
STRUCTURES = {
  'plain': {},
  'gated': {'gated': True, 'activation': 'gelu_tanh', 'tied': False},
  'shared': {'structure': 'shared'},
  'deep': {'num_decoder_layers': 1},
}
T5_ALONE = ('tokens', 'segment_ids', 'type_ids', 'positions')
ALONE = {name: {'structure': name} for name in ('decoder', 'prefix')}


def make_trunk(**fields) -> nn.Module:
  return t5.make(vocab_size=seq2seq.VOCAB, variant='tiny', overrides=seq2seq.T5_SIZES | fields)


def shapes(trunk: nn.Module):
  """Parameters of a trunk with its output, by shape."""
  if trunk.ATTENTION == 'encoder-decoder':
    names = 'encoder_tokens', 'encoder_segment_ids', 'decoder_tokens', 'decoder_segment_ids'
  else:
    names = 'tokens', 'segment_ids'

  def init(key):
    out, variables = trunk.init_with_output(key, **dict.fromkeys(names, jnp.ones((1, 4), jnp.int32)))
    return trunk.init(key, out['hidden'], method='attend')['params'] | variables['params']

  return nn.unbox(jax.eval_shape(init, jax.random.key(0)))


def shapes_of_all(trunk: nn.Module):
  return nn.unbox(jax.eval_shape(lambda key: trunk.init(key, method='init_all'), jax.random.key(0)))['params']


def count(trunk: nn.Module) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(shapes(trunk)))


@pytest.mark.parametrize(
  ('variant', 'expected'),
  [
    ('t5-small', 60_506_624),
    ('t5-base', 222_903_552),
    ('t5-large', 737_668_096),
    ('t5-3b', 2_851_598_336),
    ('t5-11b', 11_307_321_344),
    ('t5-v1_1-small', 76_961_152),
    ('t5-v1_1-base', 247_577_856),
    ('t5-v1_1-large', 783_150_080),
    ('t5-v1_1-xl', 2_849_757_184),
    ('t5-v1_1-xxl', 11_135_332_352),
    ('t5-efficient-tiny', 15_570_688),
    ('t5-efficient-mini', 31_220_480),
    ('t5-efficient-small-el16-dl4', 83_582_464),
    ('mt5-small', 300_176_768),
    ('mt5-base', 582_401_280),
    ('mt5-large', 1_229_581_312),
    ('mt5-xl', 3_742_619_648),
    ('mt5-xxl', 12_921_057_280),
    ('byt5-small', 299_637_760),
    ('byt5-base', 581_653_248),
    ('byt5-large', 1_228_183_552),
    ('byt5-xl', 3_737_801_728),
    ('byt5-xxl', 12_906_899_328),
  ],
)
def test_count(variant, expected):
  rows = {'mt5': 250_112, 'byt5': 384}.get(variant.partition('-')[0], 32_128)
  assert count(t5.make(vocab_size=rows, variant=variant)) == expected
  assert t5.PUBLISHED[variant].parameters == expected


def test_every_published_row_has_a_count():
  assert set(t5.CONFIGS) - {'tiny'} == set(t5.PUBLISHED)


def test_counts_of_the_compared_structures():
  make = lambda **fields: count(t5.make(vocab_size=32_128, variant='t5-base', overrides=fields))  # noqa: E731
  whole, table, bias, width = 222_903_552, 32_128 * 768, 32 * 12, 768
  attention, mlp = 4 * width * width, 2 * width * 3072
  layer = attention + mlp + 2 * width
  assert make(structure='decoder') == make(structure='prefix') == table + 12 * layer + bias + width
  # a shared stack is a decoder alone and its cross-attention
  assert make(structure='shared') == make(structure='decoder') + 12 * (attention + width)
  assert make(structure='shared') == whole - 12 * layer - bias - width


@pytest.mark.parametrize('name', VERSIONS)
def test_equals_the_stored_numbers_of_hugging_face(name):
  seq2seq.check_stored(name)


@pytest.mark.parametrize('name', VERSIONS)
def test_equals_hugging_face(name):
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  seq2seq.check_live(name)


@pytest.mark.parametrize('name', VERSIONS)
def test_names_of_published_tensors_go_both_ways(name):
  seq2seq.check_names(name)


def test_published_configs_are_read():
  theirs = {'d_model': 512, 'd_kv': 64, 'd_ff': 1024, 'num_layers': 8, 'num_heads': 6, 'vocab_size': 32_128}
  gated = {'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False, 'dropout_rate': 0}
  read = t5.make(**t5_weights.read_config(theirs | gated))
  assert read.config == t5.CONFIGS['t5-v1_1-small']
  newer = {'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': True, 'scale_decoder_outputs': False}
  assert not t5.make(**t5_weights.read_config(theirs | newer)).config.tied
  first = theirs | {'d_ff': 2048, 'num_layers': 6, 'num_heads': 8, 'dropout_rate': 0.1}
  assert t5.make(**t5_weights.read_config(first)).config == t5.CONFIGS['t5-small']
  deep = t5.make(**t5_weights.read_config(theirs | {'num_decoder_layers': 4})).config
  assert (deep.num_layers, deep.decoder_layers) == (8, 4)
  with pytest.raises(ValueError, match=r"feed_forward_proj.*'gated-tanh'.*'relu'"):
    t5_weights.read_config(theirs | {'feed_forward_proj': 'gated-tanh'})


def test_what_has_no_published_form_is_not_written():
  with pytest.raises(ValueError, match=r"structure.*'shared'"):
    t5_weights.entries(make_trunk(structure='shared'), ())
  with pytest.raises(ValueError, match='head'):
    t5_weights.entries(make_trunk(), ('head',))
  with pytest.raises(ValueError, match=r"activation.*'silu'.*gated=False"):
    t5_weights.write_config(make_trunk(activation='silu'), ())


@pytest.mark.parametrize('structure', STRUCTURES)
def test_packed_documents_equal_documents_alone(structure):
  seq2seq.check_packing(make_trunk(**STRUCTURES[structure]))


@pytest.mark.parametrize('structure', ['plain', 'shared'])
def test_who_sees_what(structure):
  seq2seq.check_sight(make_trunk(**STRUCTURES[structure]))


@pytest.mark.parametrize('structure', STRUCTURES)
@pytest.mark.parametrize('left', [False, True])
def test_step_by_step_equals_one_pass(structure, left):
  seq2seq.check_generation(make_trunk(**STRUCTURES[structure]), left=left)


@pytest.mark.parametrize('structure', ['gated', pytest.param('shared', marks=pytest.mark.slow)])
def test_executions_compute_the_same(structure):
  trunk = make_trunk(**STRUCTURES[structure] | {'dropout': 0.1, 'attention_dropout': 0.1, 'num_layers': 2})
  seq2seq.check_executions(trunk)


def test_only_differences_of_positions_matter():
  run = seq2seq.program(make_trunk())
  inputs = seq2seq.make_inputs()
  far = {
    'encoder_positions': np.broadcast_to(100 + np.arange(13), (4, 13)),
    'decoder_positions': np.broadcast_to(7 + np.arange(9), (4, 9)),
  }
  assert tiny.worst(run(**inputs, **far)['hidden'], run(**inputs)['hidden']) < 1e-6
  spread = far | {'encoder_positions': 2 * far['encoder_positions']}
  assert tiny.worst(run(**inputs, **spread)['hidden'], run(**inputs)['hidden']) > 1e-2


def test_relative_biases_are_looked_up_once_a_stack():
  trunk, inputs = make_trunk(num_layers=5), seq2seq.make_inputs()
  params = shapes(trunk)
  assert params['encoder']['relative_bias']['table'].shape == (8, 2)
  text = str(jax.make_jaxpr(lambda params: trunk.apply({'params': params}, **inputs)['hidden'])(params))
  # [l, m, h]: one look-up for the encoder and one for the decoder, none inside the loops over layers
  assert text.count(':f32[1,13,13,2] = gather') == 1
  assert text.count(':f32[1,9,9,2] = gather') == 1


def test_attention_is_not_scaled_and_logits_are():
  trunk = make_trunk(num_layers=1)
  params = seq2seq.draw_params(trunk)
  features = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
  logits = trunk.apply({'params': params}, features, method='attend')
  assert tiny.worst(logits, features @ np.asarray(params['token_embed']['table']).T / 4) < 1e-6
  untied = make_trunk(num_layers=1, tied=False)
  params = seq2seq.draw_params(untied)
  logits = untied.apply({'params': params}, features, method='attend')
  assert tiny.worst(logits, features @ np.asarray(params['output']['table']).T) < 1e-6

  inputs = seq2seq.make_inputs()
  look = jax.jit(lambda: untied.apply({'params': params}, **inputs, mutable=['attention'])[1]['attention'])
  shares = look()
  (found,) = shares['encoder']['layers']['attention']['weights']  # [1, b, h, l, m]
  layer = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float64), params['encoder']['layers'])
  x = np.asarray(params['token_embed']['table'], np.float64)[inputs['encoder_tokens'][0]]
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * layer['attention_norm']['scale']
  query, key = (np.einsum('ld,dhk->hlk', x, layer['attention'][part]['kernel']) for part in ('query', 'key'))
  products = query @ key.transpose(0, 2, 1)
  table = np.asarray(params['encoder']['relative_bias']['table'])
  relative = np.arange(13)[None] - np.arange(13)[:, None]
  distance = np.abs(relative)
  # 4 buckets a sign up to distance 11: 0, 1, 2 to 4 (2 * 5.5 ** .5 = 4.7) and on
  products += table[np.searchsorted([1, 2, 5], distance, side='right') + 4 * (relative > 0)].transpose(2, 0, 1)
  expected = np.exp(products) / np.exp(products).sum(-1, keepdims=True)
  assert np.abs(np.asarray(found)[0, 0] - expected).max() < 1e-5


@pytest.mark.parametrize('gated', [False, True])
def test_kernels_start_with_the_published_deviations(gated):
  sizes = {'hidden_dim': 96, 'num_heads': 4, 'head_dim': 32, 'mlp_dim': 320, 'num_layers': 3}
  buckets = {'num_buckets': 512, 'max_distance': 300}
  trunk = t5.make(vocab_size=900, variant='t5-small', overrides=sizes | buckets | {'gated': gated, 'tied': not gated})
  inputs = seq2seq.make_inputs()
  params = jax.jit(lambda key: nn.unbox(trunk.init(key, **inputs)['params']))(jax.random.key(0))
  deviation = {
    jax.tree_util.keystr(path[:-1], simple=True, separator='/'): float(leaf.std())
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    if path[-1].key != 'scale'
  }
  parts = {'query': (96 * 32) ** -0.5, 'key': 96**-0.5, 'value': 96**-0.5, 'out': 128**-0.5}
  mlp = {'up': 96**-0.5, 'down': 320**-0.5} | ({'gate': 96**-0.5} if gated else {})
  expected = {'token_embed': 1.0} | ({'output': 1.0} if gated else {})
  for side, kinds in (('encoder', ['attention']), ('decoder', ['attention', 'cross'])):
    expected |= {f'{side}/layers/{kind}/{part}': value for kind in kinds for part, value in parts.items()}
    expected |= {f'{side}/layers/mlp/{part}': value for part, value in mlp.items()}
    expected[f'{side}/relative_bias'] = 96**-0.5
  assert deviation == {name: pytest.approx(value, rel=0.05) for name, value in expected.items()}
  scales = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params) if path[-1].key == 'scale']
  assert all((leaf == 1).all() for leaf in scales)


def test_dropout_is_where_it_belongs():
  inputs, key = seq2seq.make_inputs(), jax.random.key(0)
  run = jax.jit(
    lambda trunk, params, train: trunk.apply({'params': params}, **inputs, train=train, rngs={'dropout': key}),
    static_argnums=(0, 2),
  )
  trunk = make_trunk(num_layers=1, dropout=0.5)
  params = seq2seq.draw_params(trunk)
  out = run(trunk, params, True)
  table = np.asarray(params['token_embed']['table'])
  for name, tokens in (('encoder_layers', 'encoder_tokens'), ('layers', 'decoder_tokens')):
    first, embedded = np.asarray(out[name][0]), table[inputs[tokens]]
    dropped = first == 0
    assert 0.4 < dropped.mean() < 0.6, name
    np.testing.assert_allclose(first[~dropped], 2 * embedded[~dropped], rtol=1e-6)
  for name in ('encoder_hidden', 'hidden'):
    assert 0.35 < (np.asarray(out[name]) == 0).mean() < 0.65, name
  trunk = make_trunk(num_layers=1, attention_dropout=0.5)
  out, still = (run(trunk, params, train) for train in (True, False))
  assert tiny.same(out['layers'][0], still['layers'][0])
  assert tiny.worst(out['hidden'], still['hidden']) > 1e-2


@pytest.mark.parametrize(('variant', 'rate'), [('t5-base', 0.1), ('t5-v1_1-base', 0.0)])
def test_only_the_first_version_was_trained_with_dropout(variant, rate):
  assert (t5.CONFIGS[variant].dropout, t5.CONFIGS[variant].attention_dropout) == (rate, rate)


def test_bfloat16_keeps_parameters_and_logits_in_float32():
  trunk, inputs = make_trunk(), seq2seq.make_inputs()
  params = seq2seq.draw_params(trunk)
  low = trunk.clone(execution=Execution(dtype='bfloat16'))

  @jax.jit
  def run(params):
    out = low.apply({'params': params}, **inputs)
    return out, low.apply({'params': params}, out['hidden'], method='attend')

  out, logits = run(params)
  assert (out['hidden'].dtype, logits.dtype) == (jnp.bfloat16, jnp.float32)
  assert {leaf.dtype for leaf in jax.tree.leaves(shapes(low))} == {jnp.dtype('float32')}
  real = inputs['decoder_segment_ids'] > 0
  exact = seq2seq.program(trunk)(**inputs)['hidden']
  assert tiny.worst(np.asarray(out['hidden'], np.float32)[real], exact[real]) < 0.1


# A decoder alone ----------------------------------------------------------------------------------------------------


def run_alone(trunk: nn.Module, tokens: np.ndarray, segments: np.ndarray, **inputs):
  return tuple(map(np.asarray, program_alone(trunk)(tokens, segments, inputs)))


@functools.cache
def program_alone(trunk: nn.Module):
  """A decoder alone as a function of its inputs: states and logits."""
  params = tiny.draw(shapes(trunk))

  @jax.jit
  def run(tokens, segments, inputs):
    hidden = trunk.apply({'params': params}, tokens, segment_ids=segments, **inputs)['hidden']
    return hidden, trunk.apply({'params': params}, hidden, method='attend')

  return run


def test_a_prefix_is_seen_both_ways():
  tokens, segments = seq2seq.make_side(((9,), (4, 5)), 9, seed=3)
  prefix = np.array([4, 2])
  trunks = {name: make_trunk(**fields) for name, fields in ALONE.items()}
  assert {name: trunk.ATTENTION for name, trunk in trunks.items()} == {'decoder': 'causal', 'prefix': 'prefix'}
  assert 'prefix' in trunks['prefix'].INPUTS and 'prefix' not in trunks['decoder'].INPUTS

  def reach(name: str, row: int, place: int, **inputs) -> list[bool]:
    other = tokens.copy()
    other[row, place] = 7 + (other[row, place] - 6) % 54
    before, after = (run_alone(trunks[name], t, segments, **inputs)[0] for t in (tokens, other))
    return (np.abs(after - before)[row].max(axis=-1) > 1e-6).tolist()

  assert reach('prefix', 0, 3, prefix=prefix) == [True] * 9
  assert reach('prefix', 0, 4, prefix=prefix) == [place >= 4 for place in range(9)]
  assert reach('prefix', 1, 1, prefix=prefix) == [place < 4 for place in range(9)]
  assert reach('prefix', 0, 3) == reach('decoder', 0, 3) == [place >= 3 for place in range(9)]


@pytest.mark.parametrize('name', ALONE)
@pytest.mark.parametrize('left', [False, True])
def test_a_decoder_alone_goes_step_by_step(name, left):
  trunk = make_trunk(**ALONE[name])
  params = tiny.draw(shapes(trunk))
  sizes = np.array([4, 2, 3])
  tokens, _ = seq2seq.make_side(((9,), (9,), (9,)), 9, seed=4)
  full = {}
  for row, size in enumerate(sizes):
    given = {'prefix': np.array([size])} if name == 'prefix' else {}
    full[row] = run_alone(trunk, tokens[row : row + 1], np.ones((1, 9), np.int32), **given)[1][0]
  real = np.arange(4) < sizes[:, None]
  prompt, segments, positions = np.where(real, tokens[:, :4], 0), real.astype(np.int32), np.arange(4) * real
  if left:
    prompt, segments, positions = (seq2seq.shift(value, sizes) for value in (prompt, segments, positions))

  @jax.jit
  def step(tokens, cache, segment_ids, positions):
    given = {'segment_ids': segment_ids, 'positions': positions}
    return trunk.apply({'params': params}, tokens, cache, **given, method='decode_step')

  cache = jax.jit(lambda: trunk.apply({'params': params}, 3, 10, method='init_cache'))()
  logits, cache = step(prompt, cache, segments, positions)
  for row, size in enumerate(sizes):
    found = logits[row, 4 - size :] if left else logits[row, :size]
    assert tiny.worst(found, full[row][:size]) < 1e-5, row
  for number in range(4):
    places = sizes + number
    given = tokens[np.arange(3), places][:, None]
    logits, cache = step(given, cache, np.ones((3, 1), np.int32), places[:, None])
    for row, place in enumerate(places):
      assert tiny.worst(logits[row, 0], full[row][place]) < 1e-5, (row, number)


# An encoder alone ---------------------------------------------------------------------------------------------------


def test_an_encoder_alone_is_the_encoder_of_the_whole():
  whole, alone = make_trunk(), make_trunk(structure='encoder')
  assert (alone.ATTENTION, alone.INPUTS) == ('bidirectional', T5_ALONE)
  params = seq2seq.draw_params(whole)
  inputs = seq2seq.make_inputs(*seq2seq.PACKED)
  tokens, segments = inputs['encoder_tokens'], inputs['encoder_segment_ids']
  own = {name: params[name] for name in ('token_embed', 'encoder')}
  assert jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, shapes(alone))
  out = jax.jit(lambda: alone.apply({'params': own}, tokens, segment_ids=segments))()
  expected = seq2seq.program(whole)(**inputs)
  assert tiny.same(out['hidden'], expected['encoder_hidden']) and tiny.same(out['layers'], expected['encoder_layers'])
  pooled = alone.apply({}, out['hidden'], np.minimum(segments, 1), method='pool')
  assert tiny.worst(pooled[1], np.asarray(out['hidden'])[1][segments[1] > 0].mean(axis=0)) < 1e-6
  with pytest.raises(ValueError, match='Decodes'):
    require(alone, user='generate', offers=(Decodes,))


def test_an_untied_encoder_alone_may_come_without_an_output_matrix():
  trunk = make_trunk(structure='encoder', tied=False, has_output=False)
  assert set(shapes_of_all(trunk)) == {'token_embed', 'encoder'}
  with pytest.raises(ValueError, match=r'T5Encoder.*lm_head'):
    trunk.apply({}, jnp.zeros((1, 16)), method='attend')


# Settings -----------------------------------------------------------------------------------------------------------


def test_wrong_settings_are_refused():
  with pytest.raises(ValueError, match=r"structure='both'.*encoder-decoder, shared, decoder, prefix"):
    dataclasses.replace(t5.CONFIGS['tiny'], structure='both')
  with pytest.raises(ValueError, match=r'num_decoder_layers=1.*num_layers=2'):
    dataclasses.replace(t5.CONFIGS['tiny'], structure='shared', num_decoder_layers=1)
  trunk = make_trunk()
  with pytest.raises(ValueError, match='encoder_hidden'):
    trunk.apply({}, 2, 4, method='init_cache')
  given = {'encoder_hidden': jnp.zeros((3, 4, 16)), 'encoder_segment_ids': jnp.ones((3, 4), int)}
  with pytest.raises(ValueError, match=r'encoder_hidden.*\b3\b.*\b2\b'):
    trunk.apply({}, 2, 4, **given, method='init_cache')
  with pytest.raises(TypeError, match='encoder_hidden'):
    make_trunk(structure='decoder').apply({}, 3, 4, **given, method='init_cache')
