"""GPT, GPT-2 and OPT: sizes, parity with Hugging Face, causality, packing, the window, the last token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import classify
from plm_jax.core.types import Execution
from plm_jax.models import gpt
from plm_jax.objectives import causal_lm
from plm_jax.training import step
from plm_jax.weights.architectures import opt as opt_weights
from tests import tiny
from tests.models import parity, peers, stepping


def count(variant: str, vocab_size: int, **fields) -> int:
  trunk = gpt.make(vocab_size=vocab_size, variant=variant, overrides=fields)
  task = causal_lm.make(trunk=trunk, vocab=tiny.FakeVocab(size=vocab_size))
  return sum(leaf.size for leaf in jax.tree.leaves(step.abstract_params(task, tiny.spec(tiny.make_batch()))))


@pytest.mark.parametrize(
  ('variant', 'vocab_size', 'expected'),
  [
    ('gpt', 40478, 116_534_784),
    ('gpt2', 50257, 124_439_808),
    ('gpt2-medium', 50257, 354_823_168),
    ('gpt2-large', 50257, 774_030_080),
    ('gpt2-xl', 50257, 1_557_611_200),
  ],
)
def test_count(variant, vocab_size, expected):
  assert count(variant, vocab_size) == expected


@pytest.mark.parametrize('variant', [name for name in gpt.PUBLISHED if name.startswith('gpt3')])
def test_count_of_gpt3(variant):
  published, c = gpt.PUBLISHED[variant], gpt.CONFIGS[variant]
  assert count(variant, 50257) == published.parameters
  d = c.hidden_dim
  assert (50257 + 2048) * d + c.num_layers * (12 * d * d + 13 * d) + 2 * d == published.parameters


@pytest.mark.parametrize('variant', [name for name in gpt.PUBLISHED if name.startswith('opt')])
def test_counts_of_opt_are_those_of_transformers(variant):
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  trunk = gpt.make(vocab_size=gpt.PUBLISHED[variant].vocab_size, variant=variant)
  with torch.device('meta'):
    model = transformers.OPTForCausalLM(transformers.OPTConfig(**opt_weights.write_config(trunk, [])))
  assert sum(parameter.numel() for parameter in model.parameters()) == gpt.PUBLISHED[variant].parameters
  assert count(variant, trunk.vocab_size) == gpt.PUBLISHED[variant].parameters


def test_other_readings_of_the_table_of_gpt3_can_be_had():
  assert count('gpt3-xl', 50257, num_heads=24, head_dim=128) == dict(gpt.PUBLISHED['gpt3-xl'].also).popitem()[1]
  wide = count('gpt3-13b', 50257, hidden_dim=5140, num_heads=20, mlp_dim=4 * 5140)  # heads of another size, as many
  assert wide == dict(gpt.PUBLISHED['gpt3-13b'].also).popitem()[1]
  heads = count('gpt3-13b', 50257, hidden_dim=5140, head_dim=128, mlp_dim=4 * 5140)  # 40 x 128, as printed
  assert heads == wide - 40 * (4 * 5140 + 3) * (5140 - 40 * 128)
  assert count('gpt3-175b', 50257, hidden_dim=12888, head_dim=128) > 174_604_259_328


def test_an_untied_output_is_one_more_table():
  assert count('gpt2', 50257, tied=False) == 124_439_808 + 50257 * 768


@pytest.mark.parametrize('name', ['gpt', 'gpt2', 'opt', 'opt-350m'])
def test_equals_the_stored_numbers_of_hugging_face(name):
  parity.check_stored(name)


@pytest.mark.parametrize('name', ['gpt', 'gpt2', 'opt', 'opt-350m'])
def test_equals_hugging_face(name):
  parity.check_live(name)


def test_classifier_equals_hugging_face():
  pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  batch = dict(peers.make_batch())
  batch['label'] = jnp.array([2, 0, 1, 2])
  task = classify.make(trunk=peers.CASES['gpt2'].trunk, vocab=tiny.VOCAB, classes=3)
  model = transformers.GPT2ForSequenceClassification(peers.gpt2_config(num_labels=3, pad_token_id=0))
  parity.check_classifier('gpt2', model, task, batch, targets=np.asarray(batch['label'], np.int64))


FORMS = {
  'gpt': {'norm_placement': 'post'},
  'gpt2': {'norm_placement': 'pre'},
  'window': {'window': 4},
  'local': {'local_window': 3, 'head_dim': 8},
  'opt': {'norm_placement': 'post', 'embed_dim': 8, 'position_offset': 2, 'activation': 'relu'},
}


@pytest.fixture(scope='module', params=FORMS)
def form(request):
  return request.param


@pytest.fixture(scope='module')
def trunk(form):
  return tiny.make_trunk('gpt', **FORMS[form])


@pytest.fixture(scope='module')
def run(trunk):
  """States of the layers, and the output, of up to 4 rows of 16 tokens; compiled once."""
  params = tiny.init_params(causal_lm.make(trunk=trunk, vocab=tiny.VOCAB), tiny.make_batch())['trunk']

  @jax.jit
  def apply(inputs):
    return trunk.apply({'params': params}, **inputs)

  def run(tokens, segment_ids):
    rows = len(tokens)
    inputs = {'tokens': tokens, 'segment_ids': segment_ids}
    out = apply({name: jnp.pad(value, ((0, 4 - rows), (0, 0))) for name, value in inputs.items()})
    return peers.stacked([*out['layers'], out['hidden']])[:, :rows]

  return run


def test_the_future_changes_nothing(run):
  batch = tiny.make_batch(((16,),))
  before = run(batch['tokens'], batch['segment_ids'])
  for place in (1, 7, 15):
    after = run(batch['tokens'].at[0, place].set(20), batch['segment_ids'])
    assert tiny.same(before[:, :, :place], after[:, :, :place]), place
    assert np.abs(before[:, :, place] - after[:, :, place]).max() > 1e-3


def test_the_window_ends_where_it_should(run, form):
  batch = tiny.make_batch(((16,),))
  before = run(batch['tokens'], batch['segment_ids'])
  after = run(batch['tokens'].at[0, 3].set(20), batch['segment_ids'])
  changed = np.abs(before - after).max(axis=(1, 3)) > 0  # [layers, places]
  for layer, expected in ((0, 4), (1, 3 + 4), (2, 3 + 3 + 4)) if form == 'window' else ((0, 4), (1, 16), (2, 16)):
    assert changed[layer].tolist() == [3 <= place < expected for place in range(16)], layer


def test_packed_documents_equal_documents_alone(run):
  batch = tiny.make_batch()
  packed, segments = run(batch['tokens'], batch['segment_ids']), np.asarray(batch['segment_ids'])
  for row, document in [(1, 1), (1, 2), (3, 1), (3, 2), (3, 3)]:
    places = np.flatnonzero(segments[row] == document)
    tokens, alone = np.zeros((2, 1, 16), np.int32)
    tokens[0, : len(places)], alone[0, : len(places)] = np.asarray(batch['tokens'])[row, places], 1
    assert tiny.worst(packed[:, row, places], run(tokens, alone)[:, 0, : len(places)]) < 1e-5, (row, document)


def test_every_second_layer_is_local():
  trunk, batch = tiny.make_trunk('gpt', num_layers=4, **FORMS['local']), tiny.make_batch(((16,),))
  given = {'segment_ids': batch['segment_ids']}
  params = trunk.init(jax.random.key(0), batch['tokens'], **given)['params']
  _, state = trunk.apply({'params': params}, batch['tokens'], **given, mutable=['attention'])
  (weights,) = state['attention']['layers']['weights']
  back = np.arange(16)[:, None] - np.arange(16)
  for layer, seen in enumerate(np.asarray(weights)[:, 0] > 0):
    assert (seen == ((back >= 0) & (back < (3 if layer % 2 else 16)))).all(), layer
  loop = trunk.clone(execution=Execution(layers='loop'))
  whole = tiny.make_trunk('gpt', num_layers=4, **FORMS['local'] | {'local_window': None})
  hidden = [one.apply({'params': params}, batch['tokens'], **given)['hidden'] for one in (trunk, loop, whole)]
  assert tiny.worst(hidden[1], np.asarray(hidden[0])) < 1e-5
  assert tiny.worst(hidden[2], np.asarray(hidden[0])) > 1e-3


def test_goes_step_by_step(trunk, form):
  params = tiny.init_params(causal_lm.make(trunk=trunk, vocab=tiny.VOCAB), tiny.make_batch())['trunk']
  stepping.check(trunk, params, left=form in ('gpt2', 'local'))


def test_content_of_padding_changes_nothing(run):
  batch = tiny.make_batch()
  real = np.asarray(batch['segment_ids'] > 0)
  dirty = run(jnp.where(real, batch['tokens'], 50), batch['segment_ids'])
  assert tiny.same(run(batch['tokens'], batch['segment_ids'])[:, real], dirty[:, real])


def test_padding_on_the_left_or_on_the_right_is_the_same(run, trunk):
  batch = tiny.make_batch(((9,), (1,), (16,)))
  tokens, segments = (np.array(batch[name]) for name in ('tokens', 'segment_ids'))
  sizes = (9, 1, 16)
  left = [np.stack([np.roll(row, 16 - size) for row, size in zip(x, sizes, strict=True)]) for x in (tokens, segments)]
  right_states, left_states = run(tokens, segments), run(*left)
  for row, size in enumerate(sizes):
    assert tiny.worst(left_states[:, row, 16 - size :], right_states[:, row, :size]) < 1e-5
  pools = [
    trunk.apply({}, states[-1], side, method='pool')
    for states, side in ((right_states, segments), (left_states, left[1]))
  ]
  assert tiny.worst(pools[1], pools[0]) < 1e-5
  expected = np.stack([right_states[-1, row, size - 1] for row, size in enumerate(sizes)])
  assert tiny.same(np.asarray(pools[0]), expected)


def test_the_output_is_the_token_table_or_its_own():
  features = jnp.asarray(np.random.default_rng(0).normal(size=(2, 32)), jnp.float32)
  for tied, name in ((True, 'token_embed'), (False, 'output')):
    trunk = tiny.make_trunk('gpt', tied=tied)
    params = tiny.init_params(causal_lm.make(trunk=trunk, vocab=tiny.VOCAB), tiny.make_batch())['trunk']
    assert ('output' in params) is not tied
    logits = trunk.apply({'params': params}, features, method='attend')
    assert tiny.worst(logits, np.asarray(features @ params[name]['table'].T)) < 1e-5


def test_input_is_the_sum_of_two_tables(run, trunk):
  batch = tiny.make_batch(((16,),))
  params = tiny.init_params(causal_lm.make(trunk=trunk, vocab=tiny.VOCAB), tiny.make_batch())['trunk']
  first = trunk.config.position_offset
  tokens = params['token_embed']['table'][batch['tokens'][0]]
  tokens = tokens @ params['project_in']['kernel'] if 'project_in' in params else tokens
  total = tokens + params['position_embed']['table'][first : first + 16]
  assert tiny.worst(run(batch['tokens'], batch['segment_ids'])[0, 0], np.asarray(total)) < 1e-6


@pytest.mark.parametrize(('placement', 'scaled'), [('pre', True), ('post', False)])
def test_kernels_start_with_the_published_deviations(placement, scaled):
  trunk = gpt.make(
    vocab_size=500,
    variant='gpt2' if placement == 'pre' else 'gpt',
    overrides={'hidden_dim': 128, 'num_heads': 4, 'mlp_dim': 512, 'num_layers': 4, 'max_length': 256},
  )
  task = causal_lm.make(trunk=trunk, vocab=tiny.FakeVocab(size=500))
  params = jax.jit(lambda key: step.init_params(task, tiny.spec(tiny.make_batch()), key))(jax.random.key(0))['trunk']
  deviation = {
    jax.tree_util.keystr(path[:-1], simple=True, separator='/'): float(leaf.std())
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
  }
  down = 0.02 / np.sqrt(8) if scaled else 0.02
  expected = {'layers/query/kernel': 0.02, 'layers/mlp/up/kernel': 0.02, 'layers/out/kernel': down}
  expected |= {'layers/mlp/down/kernel': down, 'token_embed/table': 0.02, 'layers/query/bias': 0}
  expected['position_embed/table'] = 0.01 if placement == 'pre' else 0.02
  for name, value in expected.items():
    assert deviation[name] == pytest.approx(value, rel=0.02), name


def test_a_row_longer_than_the_table_is_refused():
  tokens = jnp.ones((1, 33), jnp.int32)
  with pytest.raises(ValueError, match=r'Gpt\b.*\b32\b.*\b33\b'):
    tiny.make_trunk('gpt').init(jax.random.key(0), tokens, segment_ids=tokens)


def test_wrong_settings_are_refused():
  with pytest.raises(ValueError, match=r'hidden_dim\W30\b.*num_heads\W4\b'):
    tiny.make_trunk('gpt', hidden_dim=30, num_heads=4)
  with pytest.raises(ValueError, match=r"norm_placement='middle'.*pre, post"):
    tiny.make_trunk('gpt', norm_placement='middle')
