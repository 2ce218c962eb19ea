"""LLaMA, relatives and the GLM-4 family: sizes, parity with Hugging Face, causality, packing, generation by steps."""

import copy
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.types import Execution
from plm_jax.layers import positions as position
from plm_jax.models import llama
from plm_jax.weights.architectures import glm4 as glm4_weights
from plm_jax.weights.architectures import gpt_neox as neox_weights
from plm_jax.weights.architectures import llama as llama_weights
from plm_jax.weights.architectures import llama_relatives as relatives
from tests import tiny
from tests.models import parity, peers, stepping

FORMS = {
  'llama': {'num_heads': 4, 'num_kv_heads': 2},
  'glm-4-0414': {'num_heads': 4, 'num_kv_heads': 2, 'rotary': 'pairs', 'rotary_share': 0.5, 'qkv_bias': True}
  | {'norm_placement': 'sandwich'},
}
# forms of relatives: a window shorter than the prompts, norms of queries and keys, layers without positions
STEPPED = FORMS | {
  'mistral': {'num_kv_heads': 1, 'window': 3},
  'qwen3': {'head_dim': 6, 'qk_norm': 'head'},
  'olmo2': {'norm_placement': 'output', 'qk_norm': 'width'},
  'gemma': {'scaling': 'gemma', 'activation': 'gelu_tanh', 'tied': True},
  'pythia': {'parts': 'neox', 'parallel': True, 'rotary_share': 0.5, 'mlp_bias': True},
  'smollm3': {'num_kv_heads': 1, 'unrotated': (1,), 'window': 4},
}


def make_trunk(execution=tiny.PLAIN, **fields):
  return llama.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=tiny.SIZES | fields, execution=execution)


def shapes_of(trunk):
  ids = jnp.ones((1, 4), jnp.int32)

  def init(key):
    out, variables = trunk.init_with_output(key, ids, segment_ids=ids)
    return trunk.init(key, out['hidden'], method='attend')['params'] | variables['params']

  return nn.unbox(jax.eval_shape(init, jax.random.key(0)))


@functools.cache
def form(name):
  """(trunk, parameters, function of tokens and segments -> states of all layers and the output) of one of `FORMS`."""
  trunk = make_trunk(**STEPPED[name])
  params = tiny.draw(shapes_of(trunk))

  @jax.jit
  def run(tokens, segment_ids):
    out = trunk.apply({'params': params}, tokens, segment_ids=segment_ids)
    return jnp.concatenate([out['layers'], out['hidden'][None]])

  return trunk, params, lambda *inputs: np.asarray(run(*inputs))


@pytest.mark.parametrize('variant', llama.PUBLISHED)
def test_counts_are_the_published_ones(variant):
  published, c = llama.PUBLISHED[variant], llama.CONFIGS[variant]
  trunk = llama.make(vocab_size=published.vocab_size, variant=variant)
  assert sum(leaf.size for leaf in jax.tree.leaves(shapes_of(trunk))) == published.parameters
  d, narrow = c.hidden_dim, c.head_size * c.key_heads
  layer = 2 * d * c.head_size * c.num_heads + 2 * d * narrow + 3 * d * c.mlp_dim + 2 * d
  wide = c.head_size * c.num_heads
  layer += (wide + 2 * narrow) * c.qkv_bias + 2 * d * (c.norm_placement == 'sandwich')
  if c.parts == 'neox':  # two matrices, biases of all but the output matrix, and of norms
    layer += d - d * c.mlp_dim + c.mlp_dim + d + 2 * d
  layer += {'none': 0, 'head': 2 * c.head_size, 'width': wide + narrow}[c.qk_norm]
  assert (1 if c.tied else 2) * published.vocab_size * d + c.num_layers * layer + d * (
    1 + (c.parts == 'neox')
  ) == published.parameters


def test_feed_forward_widths_are_two_thirds_of_four_times_the_width_rounded_up():
  def width(hidden_dim, *, multiple=256, factor=1.0):
    return -(-int(factor * int(2 * 4 * hidden_dim / 3)) // multiple) * multiple

  for variant, c in llama.CONFIGS.items():
    if variant.startswith(('llama-', 'llama2-')) and variant != 'llama2-70b':
      assert c.mlp_dim == width(c.hidden_dim), variant
  assert llama.CONFIGS['llama2-70b'].mlp_dim == width(8192, multiple=4096, factor=1.3)


RELATIVES = ('mistral', 'qwen2', 'qwen3', 'gemma', 'olmo2', 'smollm3')
PEERS = ('llama', 'llama2', 'llama3', 'llama-biased', 'glm-4', 'glm-4-0414', *RELATIVES, 'pythia', 'neox-serial')


@pytest.mark.parametrize(
  'variant', [name for name in llama.PUBLISHED if name.startswith((*RELATIVES, 'pythia', 'gpt-neox'))]
)
def test_counts_are_those_of_transformers(variant):
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  trunk = llama.make(vocab_size=llama.PUBLISHED[variant].vocab_size, variant=variant)
  weights = neox_weights if trunk.config.parts == 'neox' else relatives
  config = transformers.AutoConfig.for_model(**weights.write_config(trunk, []))
  with torch.device('meta'):
    model = transformers.AutoModelForCausalLM.from_config(config)
  assert sum(parameter.numel() for parameter in model.parameters()) == llama.PUBLISHED[variant].parameters


@pytest.mark.turns
@pytest.mark.parametrize('name', PEERS)
def test_equals_the_stored_numbers_of_hugging_face(name):
  parity.check_stored(name)


@pytest.mark.parametrize('name', PEERS)
def test_equals_hugging_face(name):
  parity.check_live(name)


@pytest.mark.parametrize('name', STEPPED)
@pytest.mark.parametrize('left', [False, True])
def test_goes_step_by_step(name, left):
  trunk, params, _ = form(name)
  stepping.check(trunk, params, left=left)


def test_the_cache_holds_shared_heads_once():
  cache = jax.eval_shape(lambda: make_trunk(num_heads=4, num_kv_heads=2).apply({}, 3, 9, method='init_cache'))
  assert (cache['keys'].shape, cache['values'].shape) == ((2, 3 * 2, 8, 9), (2, 3 * 2, 9, 8))


@pytest.mark.parametrize('name', FORMS)
def test_the_future_changes_nothing(name):
  _, _, run = form(name)
  batch = tiny.make_batch(((16,),) * 4)
  before = run(batch['tokens'], batch['segment_ids'])
  for place in (1, 7, 15):
    after = run(batch['tokens'].at[0, place].set(20), batch['segment_ids'])
    assert tiny.same(before[:, :, :place], after[:, :, :place]), place
    assert (np.abs(before[1:, 0, place:] - after[1:, 0, place:]).max(axis=-1) > 0).all()
    assert tiny.same(before[:, 1:], after[:, 1:])


@pytest.mark.parametrize('name', FORMS)
def test_packed_documents_equal_documents_alone(name):
  _, _, run = form(name)
  batch = tiny.make_batch()
  packed, segments = run(batch['tokens'], batch['segment_ids']), np.asarray(batch['segment_ids'])
  for row, document in [(1, 1), (1, 2), (3, 3)]:
    places = np.flatnonzero(segments[row] == document)
    tokens, alone = np.zeros((2, 4, 16), np.int32)
    tokens[0, : len(places)], alone[0, : len(places)] = np.asarray(batch['tokens'])[row, places], 1
    assert tiny.worst(packed[:, row, places], run(tokens, alone)[:, 0, : len(places)]) < 1e-5, (row, document)


def test_only_distances_between_positions_count():
  trunk, params, _ = form('llama')
  batch = tiny.make_batch(((16,),))
  apply = jax.jit(
    lambda positions: trunk.apply(
      {'params': params}, batch['tokens'], segment_ids=batch['segment_ids'], positions=positions
    )['hidden']
  )
  places = jnp.arange(16)[None]
  near, far, wide = apply(places), apply(places + 100), apply(2 * places)
  assert tiny.worst(far, near) < 1e-4  # angles of 100 and more, in float32
  assert tiny.worst(wide, near) > 1e-2


def test_pairs_of_a_kernel_are_halves_of_the_permuted_kernel():
  """How Hugging Face's files differ from the first release."""
  _, params, halves = form('llama')
  order = np.argsort(np.concatenate([np.arange(0, 8, 2), np.arange(1, 8, 2)]))
  layers = params['layers'] | {
    part: {'kernel': params['layers'][part]['kernel'][..., order]} for part in ('query', 'key')
  }
  batch = tiny.make_batch()
  pairs = make_trunk(**FORMS['llama'], rotary='pairs')
  given = {'segment_ids': batch['segment_ids']}
  found = pairs.apply({'params': params | {'layers': layers}}, batch['tokens'], **given)['hidden']
  real = np.asarray(batch['segment_ids']) > 0
  expected = halves(batch['tokens'], batch['segment_ids'])[-1][real]
  assert tiny.worst(np.asarray(found)[real], expected) < 1e-5
  unpermuted = pairs.apply({'params': params}, batch['tokens'], **given)['hidden']
  assert tiny.worst(np.asarray(unpermuted)[real], expected) > 1e-3


def test_an_unrolled_stack_is_the_same():
  _, params, run = form('glm-4-0414')
  batch = tiny.make_batch()
  loop = make_trunk(Execution(layers='loop'), **FORMS['glm-4-0414'])
  found = loop.apply({'params': params}, batch['tokens'], segment_ids=batch['segment_ids'])['hidden']
  assert tiny.worst(found, run(batch['tokens'], batch['segment_ids'])[-1]) < 1e-5


def test_the_last_real_token_is_pooled():
  trunk, _, _ = form('llama')
  hidden = jnp.arange(12.0).reshape(2, 6, 1)
  segments = jnp.array([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1]])
  assert trunk.apply({}, hidden, segments, method='pool')[:, 0].tolist() == [2, 11]


@pytest.mark.parametrize(
  ('weights', 'name'),
  [
    (llama_weights, 'llama2'),
    (glm4_weights, 'glm-4-0414'),
    (neox_weights, 'neox-serial'),
    *((relatives, name) for name in RELATIVES),
  ],
)
def test_a_config_survives_the_published_form(weights, name):
  case = peers.CASES[name]
  assert weights.write_config(case.trunk, [])['model_type'] in (name, 'llama', 'glm4', 'gpt_neox')
  made = weights.read_config(weights.write_config(case.trunk, []))
  own = dict(made['overrides'])
  assert llama.make(**made | {'overrides': own | {'dropout': 0.0}}).config == case.trunk.config


def test_what_the_published_forms_lack_is_refused():
  theirs = llama_weights.write_config(peers.CASES['llama'].trunk, [])
  for fields, message in (
    ({'attention_bias': 1}, r'attention_bias.*\b1\b'),
    ({'hidden_act': 'gelu'}, "hidden_act.*'gelu'"),
    ({'rope_scaling': {'type': 'dynamic', 'factor': 2.0}}, "rope_scaling.*'dynamic'"),
    ({'rope_parameters': {'rope_type': 'yarn', 'rope_theta': 1e4}}, "rope_parameters.*'yarn'"),
    ({'rope_scaling': {'rope_type': 'linear'}}, "rope_type.*'linear'.*factor"),
    ({'rope_scaling': {'rope_type': 'llama3', 'factor': 2.0}}, 'low_freq_factor, high_freq_factor'),
    ({'rope_scaling': {'rope_type': 'linear', 'factor': 'two'}}, 'rope_scaling'),
    ({'hidden_size': 15}, 'hidden_size.*15.*num_attention_heads.*2'),
  ):
    with pytest.raises(ValueError, match=message):
      llama_weights.read_config(theirs | fields)
  with pytest.raises(ValueError, match=r"rotary='halves'.*not 'pairs'"):
    llama_weights.write_config(make_trunk(rotary='pairs'), [])
  with pytest.raises(ValueError, match=r"rotary='pairs'.*not 'halves'"):
    glm4_weights.write_config(make_trunk(), [])
  with pytest.raises(ValueError, match='mlm'):
    llama_weights.entries(make_trunk(), ['mlm'])


@pytest.mark.parametrize(
  ('name', 'fields', 'message'),
  [
    (
      'mistral',
      {'layer_types': ['sliding_attention', 'full_attention', 'full_attention']},
      'sliding_window.*1 of 3.*lay',
    ),
    ('mistral', {'layer_types': ['full_attention'] * 3}, 'sliding_window is 4 for 0 of 3.*layer_types'),
    ('mistral', {'rope_scaling': {'rope_type': 'yarn', 'factor': 4.0}}, "rope_scaling.*'yarn'"),
    ('qwen2', {'use_sliding_window': True, 'sliding_window': 4, 'max_window_layers': 1}, '2 of 3.*max_window_layers'),
    ('qwen3', {'layer_types': ['sliding_attention'] * 3}, 'sliding_window is None.*use_sliding_window'),
    ('qwen3', {'layer_types': ['full_attention']}, 'layer_types has 1 values for 3 layers'),
    ('qwen3', {'layer_types': ['chunked_attention'] * 3}, 'layer_types.*full_attention'),
    ('gemma', {'use_bidirectional_attention': True}, 'use_bidirectional_attention.*True'),
    ('olmo2', {'hidden_act': 'prelu'}, 'hidden_act.*prelu'),
    ('smollm3', {'no_rope_layers': [1, 1]}, 'no_rope_layers has 2 values for 3 layers'),
    ('smollm3', {'use_sliding_window': True, 'sliding_window': 4, 'layer_types': None}, '1 of 3.*no_rope_layers'),
    ('smollm3', {'rope_parameters': {'rope_type': 'default', 'partial_rotary_factor': 0.5}}, 'partial_rotary_factor'),
  ],
)
def test_what_changes_the_function_of_a_relative_is_refused_by_name(name, fields, message):
  theirs = relatives.write_config(peers.CASES[name].trunk, []) | fields
  with pytest.raises(ValueError, match=message):
    relatives.read_config({key: value for key, value in theirs.items() if value is not None})


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'window': 4, 'rotary': 'pairs'}, r"Mistral needs rotary='halves', not 'pairs'"),
    (
      {'qk_norm': 'head', 'norm_placement': 'output'},
      r"Qwen3 needs norm_placement='pre', not 'output'.*Olmo2 needs qk_norm='width', not 'head'",
    ),
    ({'scaling': 'gemma', 'window': 3}, 'Gemma needs window=None, not 3'),
  ],
)
def test_a_mixture_has_no_published_form(fields, message):
  trunk = make_trunk(**fields)
  with pytest.raises(ValueError, match=message):
    relatives.write_config(trunk, [])
  for other in (llama_weights, glm4_weights):
    with pytest.raises(ValueError, match='needs'):
      other.write_config(trunk, [])


ROPE = {'factor': 4.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0}


@pytest.mark.parametrize(
  ('given', 'expected'),
  [
    ({'rope_theta': 7.0}, {'rotary_base': 7.0}),
    ({'rope_parameters': {'rope_type': 'default', 'rope_theta': 7.0}}, {'rotary_base': 7.0}),
    (
      {'rope_scaling': {'type': 'linear', 'factor': 4.0}, 'rope_theta': 7.0},
      {'rotary_scaling': 'linear', 'rotary_factor': 4.0, 'rotary_base': 7.0},
    ),
    (
      {'rope_parameters': {'rope_type': 'linear', 'factor': 4.0, 'rope_theta': 7.0}},
      {'rotary_scaling': 'linear', 'rotary_factor': 4.0, 'rotary_base': 7.0},
    ),
    (
      {'rope_scaling': {'rope_type': 'llama3', **ROPE}, 'max_position_embeddings': 90},
      {'rotary_scaling': 'llama3', 'rotary_factor': 4.0, 'rotary_length': 90},
    ),
    (
      {'rope_parameters': {'rope_type': 'llama3', **ROPE, 'original_max_position_embeddings': 11, 'rope_theta': 7.0}},
      {'rotary_scaling': 'llama3', 'rotary_length': 11, 'rotary_base': 7.0},
    ),
    # as in transformers, the older key and the outer length come first
    (
      {
        'rope_parameters': {'rope_type': 'linear', 'factor': 2.0, 'rope_theta': 7.0},
        'rope_scaling': {'rope_type': 'llama3', **ROPE, 'original_max_position_embeddings': 11},
        'original_max_position_embeddings': 12,
      },
      {'rotary_scaling': 'llama3', 'rotary_length': 12, 'rotary_base': 10_000.0},
    ),
  ],
)
def test_rotation_is_read_as_transformers_reads_it(given, expected):
  fields = {'vocab_size': 61, 'hidden_size': 16, 'intermediate_size': 40}
  fields |= {'num_hidden_layers': 1, 'num_attention_heads': 2, **given}
  config = llama.make(**llama_weights.read_config(fields)).config
  assert {name: getattr(config, name) for name in expected} == expected
  transformers = pytest.importorskip('transformers')
  theirs = transformers.LlamaConfig(**copy.deepcopy(fields))
  frequencies = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(theirs).inv_freq.numpy()
  assert tiny.worst(config.rotary_speeds, frequencies) < 1e-6


def test_slow_pairs_are_slowed_down():
  """As `apply_scaling` of LLaMA 3.1's code has it, written out."""
  speeds = position.rotary_speeds(dim=128, base=500_000.0)
  found = position.slow_down(speeds, factor=8.0, low=1.0, high=4.0, length=8192)
  for speed, new in zip(speeds, found, strict=True):
    wavelength = 2 * np.pi / speed
    if wavelength < 8192 / 4:
      expected = speed
    elif wavelength > 8192:
      expected = speed / 8
    else:
      smooth = (8192 / wavelength - 1) / (4 - 1)
      expected = (1 - smooth) * speed / 8 + smooth * speed
    assert new == pytest.approx(expected, rel=1e-12)
  assert len(set(np.round(found / speeds, 6))) > 5  # all three kinds


def test_a_trunk_without_an_output_matrix_says_why_it_gives_no_logits():
  trunk = make_trunk(has_output=False)
  params = jax.eval_shape(lambda key: trunk.init(key, method='init_all'), jax.random.key(0))['params']
  assert 'output' not in params
  with pytest.raises(ValueError, match=r'Llama.*lm_head'):
    trunk.apply({}, jnp.zeros((1, 16)), method='attend')
  assert make_trunk(has_output=False, tied=True).gives_logits


def test_wrong_settings_are_refused():
  for fields, message in (
    ({'rotary_low': 4.0}, r'rotary_low\W4\.0.*rotary_high\W4\.0'),
    ({'hidden_dim': 30, 'num_heads': 4}, r'hidden_dim\W30\b.*num_heads\W4\b'),
    ({'num_kv_heads': 3}, r'num_heads\W2\b.*num_kv_heads\W3\b'),
    ({'norm_placement': 'post'}, "norm_placement='post'.*pre, sandwich"),
    ({'rotary': 'thirds'}, "rotary='thirds'.*halves, pairs"),
    ({'rotary_share': 0.05}, r'rotary_share\W0\.05'),
  ):
    with pytest.raises(ValueError, match=message):
      make_trunk(**fields)
