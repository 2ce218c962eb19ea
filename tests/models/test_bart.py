"""BART: sizes, parity with Hugging Face, initial deviations, sight, packing, generation."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.core.types import Execution
from plm_jax.models import bart
from plm_jax.weights.architectures import bart as bart_weights
from plm_jax.weights.architectures import mbart as mbart_weights
from tests import tiny
from tests.models import seq2seq

pytestmark = pytest.mark.turns


def make_trunk(**fields) -> nn.Module:
  return bart.make(vocab_size=seq2seq.VOCAB, variant='tiny', overrides=seq2seq.BART_SIZES | fields)


MBART = {'num_decoder_layers': 1, 'norm_placement': 'pre', 'scale_embedding': True}


def init(trunk: nn.Module):
  return lambda key: nn.unbox(trunk.init(key, **seq2seq.make_inputs())['params'])


def count(vocab_size: int, variant: str, **fields) -> int:
  trunk = bart.make(vocab_size=vocab_size, variant=variant, overrides=fields)
  return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(init(trunk), jax.random.key(0))))


@pytest.mark.parametrize(
  ('variant', 'rows', 'expected'),
  [
    ('bart-base', 50_265, 139_420_416),
    ('bart-large', 50_265, 406_291_456),
    ('distilbart-cnn-12-6', 50_264, 305_510_400),
    ('mbart-large-cc25', 250_027, 610_851_840),
    ('mbart-large-50', 250_054, 610_879_488),
  ],
)
def test_count(variant, rows, expected):
  assert count(rows, variant) == expected
  assert bart.PUBLISHED[variant].parameters == expected


def test_every_published_row_has_a_count():
  assert set(bart.CONFIGS) - {'tiny'} == set(bart.PUBLISHED)
  assert count(51_201, 'bart-base') == 140_139_264


PEERS = ('bart', 'distilbart', 'mbart')


@pytest.mark.parametrize('name', PEERS)
def test_equals_the_stored_numbers_of_hugging_face(name):
  seq2seq.check_stored(name)


@pytest.mark.parametrize('name', PEERS)
def test_equals_hugging_face(name):
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  seq2seq.check_live(name)


@pytest.mark.parametrize('name', PEERS)
def test_names_of_published_tensors_go_both_ways(name):
  seq2seq.check_names(name)


SIZES = {'layers': 12, 'ffn_dim': 4096, 'attention_heads': 16}
THEIRS = {f'{side}_{name}': size for side in ('encoder', 'decoder') for name, size in SIZES.items()}
THEIRS |= {'d_model': 1024, 'max_position_embeddings': 1024, 'vocab_size': 50_265}


def test_published_configs_are_read():
  assert bart.make(**bart_weights.read_config(THEIRS)).config == bart.CONFIGS['bart-large']
  theirs = THEIRS | {'decoder_layers': 6, 'vocab_size': 50_264, 'num_hidden_layers': 12}
  read = bart.make(**bart_weights.read_config(theirs))
  assert (read.config, read.vocab_size) == (bart.CONFIGS['distilbart-cnn-12-6'], 50_264)
  theirs = THEIRS | {'vocab_size': 250_027, 'scale_embedding': True, 'normalize_before': True}
  theirs |= {'add_final_layer_norm': True, 'decoder_start_token_id': 250_020}
  assert bart.make(**mbart_weights.read_config(theirs)).config == bart.CONFIGS['mbart-large-cc25']
  dropped = bart.make(**bart_weights.read_config(THEIRS | {'activation_dropout': 0.2, 'attention_dropout': 0.3})).config
  assert (dropped.mlp_dropout, dropped.attention_dropout) == (0.2, 0.3)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'decoder_ffn_dim': 6}, 'encoder_ffn_dim.*4096.*decoder_ffn_dim.*6'),
    ({'scale_embedding': 1}, r'scale_embedding.*\b1\b'),
    ({'normalize_before': True}, 'normalize_before.*True'),
    ({'activation_function': 'swish'}, "activation_function.*'swish'.*'gelu'"),
  ],
)
def test_other_architectures_are_not_read(fields, message):
  with pytest.raises(ValueError, match=message):
    bart_weights.read_config(THEIRS | fields)


def test_what_has_no_published_form_is_not_written():
  with pytest.raises(ValueError, match='rtd'):
    bart_weights.entries(make_trunk(), ('rtd',))
  with pytest.raises(ValueError, match=r"norm_placement='post'; 'pre' is mBART"):
    bart_weights.write_config(make_trunk(norm_placement='pre'), ())
  with pytest.raises(ValueError, match=r"norm_placement='pre'; 'post' is BART's"):
    mbart_weights.write_config(make_trunk(), ())
  with pytest.raises(ValueError, match=r'gelu_erf.*0.*1e-05'):
    bart_weights.write_config(make_trunk(position_offset=0), ())


def test_packed_documents_equal_documents_alone():
  seq2seq.check_packing(make_trunk())


def test_who_sees_what():
  seq2seq.check_sight(make_trunk())


@pytest.mark.parametrize('fields', [{}, MBART], ids=['bart', 'mbart'])
@pytest.mark.parametrize('left', [False, True])
def test_step_by_step_equals_one_pass(fields, left):
  seq2seq.check_generation(make_trunk(**fields), left=left)


def test_executions_compute_the_same():
  rates = {'dropout': 0.1, 'attention_dropout': 0.1, 'mlp_dropout': 0.1}
  seq2seq.check_executions(make_trunk(num_layers=2, **rates))


def test_input_is_a_normed_sum_of_two_tables_of_its_side():
  trunk, inputs = make_trunk(), seq2seq.make_inputs(*seq2seq.PACKED)
  params, out = seq2seq.draw_params(trunk), seq2seq.program(trunk)(**inputs)
  table = np.asarray(params['token_embed']['table'], np.float64)
  row = 2  # packs three documents on each side
  places = {'encoder': [0, 1, 2, 0, 1, 0, 1, 2, 3], 'decoder': [0, 1, 2, 3, 0, 0, 1]}
  for side, name in (('encoder', 'encoder_layers'), ('decoder', 'layers')):
    own, size = params[side], len(places[side])
    x = table[inputs[f'{side}_tokens'][row, :size]]
    x = x + np.asarray(own['position_embed']['table'])[np.array(places[side]) + 2]
    centred = x - x.mean(-1, keepdims=True)
    x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    expected = x * np.asarray(own['embed_norm']['scale']) + np.asarray(own['embed_norm']['bias'])
    assert tiny.worst(out[name][0, row, :size], expected) < 1e-5, side
  # no final norm
  assert tiny.same(out['layers'][-1], out['hidden'])
  assert tiny.same(out['encoder_layers'][-1], out['encoder_hidden'])


def test_positions_can_be_given():
  run, inputs = seq2seq.program(make_trunk()), seq2seq.make_inputs()
  there = {
    'encoder_positions': np.broadcast_to(np.arange(13), (4, 13)),
    'decoder_positions': np.broadcast_to(np.arange(9), (4, 9)),
  }
  default, given = run(**inputs), run(**inputs, **there)
  for side, name in (('encoder', 'encoder_hidden'), ('decoder', 'hidden')):
    real = inputs[f'{side}_segment_ids'] > 0
    assert tiny.worst(given[name][real], default[name][real]) < 1e-6
    other = run(**inputs, **there | {f'{side}_positions': there[f'{side}_positions'] + 1})
    assert tiny.worst(other[name][real], default[name][real]) > 1e-2


def test_kernels_start_with_the_published_deviation():
  sizes = {'hidden_dim': 96, 'num_heads': 4, 'mlp_dim': 320, 'num_layers': 3, 'max_length': 40}
  trunk = bart.make(vocab_size=300, variant='bart-base', overrides=sizes)
  params = jax.jit(init(trunk))(jax.random.key(0))
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    expected = {'kernel': 0.02, 'table': 0.02}.get(path[-1].key, 0.0)
    assert float(leaf.std()) == pytest.approx(expected, rel=0.05), path
    assert float(leaf.mean()) == pytest.approx(float(path[-1].key == 'scale'), abs=2e-3), path


def test_pool_is_the_last_real_state_of_the_decoder():
  hidden = jax.random.normal(jax.random.key(0), (3, 5, 16))
  segments = jnp.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 0, 0, 0]])
  pooled = make_trunk().apply({}, hidden, segments, method='pool')
  assert tiny.same(pooled, hidden[jnp.arange(3), jnp.array([2, 4, 0])])


def test_bfloat16_keeps_parameters_and_logits_in_float32():
  trunk, inputs = make_trunk(), seq2seq.make_inputs()
  params = seq2seq.draw_params(trunk)
  low = trunk.clone(execution=Execution(dtype='bfloat16'))
  shapes = jax.eval_shape(init(low), jax.random.key(0))
  assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype('float32')}

  @jax.jit
  def run(params):
    out = low.apply({'params': params}, **inputs)
    return out, low.apply({'params': params}, out['hidden'], method='attend')

  out, logits = run(params)
  assert (out['hidden'].dtype, logits.dtype) == (jnp.bfloat16, jnp.float32)
  real = inputs['decoder_segment_ids'] > 0
  exact = seq2seq.program(trunk)(**inputs)['hidden']
  assert tiny.worst(np.asarray(out['hidden'], np.float32)[real], exact[real]) < 0.1


def test_rows_longer_than_the_tables_are_refused():
  trunk, long = make_trunk(max_length=8), jnp.ones((1, 9), jnp.int32)
  short = long[:, :8]
  for encoder, decoder in ((long, short), (short, long)):
    inputs = {'encoder_tokens': encoder, 'encoder_segment_ids': encoder}
    inputs |= {'decoder_tokens': decoder, 'decoder_segment_ids': decoder}
    with pytest.raises(ValueError, match=r'Bart\b.*\b8\b.*\b9\b'):
      jax.eval_shape(lambda inputs=inputs: trunk.init(jax.random.key(0), **inputs))
  given = {'encoder_hidden': jnp.zeros((1, 4, 16)), 'encoder_segment_ids': jnp.ones((1, 4), int)}
  with pytest.raises(ValueError, match=r'\b8\b.*\b9\b'):
    trunk.apply({}, 1, 9, **given, method='init_cache')


def test_wrong_settings_are_refused():
  with pytest.raises(ValueError, match=r'hidden_dim\W30\b.*num_heads\W4\b'):
    make_trunk(hidden_dim=30, num_heads=4)
  with pytest.raises(ValueError, match='encoder_hidden'):
    make_trunk().apply({}, 2, 4, method='init_cache')
  given = {'encoder_hidden': jnp.zeros((3, 4, 16)), 'encoder_segment_ids': jnp.ones((3, 4), int)}
  with pytest.raises(ValueError, match=r'encoder_hidden.*\b3\b.*\b2\b'):
    make_trunk().apply({}, 2, 4, **given, method='init_cache')
