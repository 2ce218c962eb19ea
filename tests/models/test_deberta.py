"""DeBERTa: sizes, parity with Hugging Face and with plain numpy, distance without end, packing, memory."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import weights as published
from plm_jax.adapters import classify
from plm_jax.core.types import Execution
from plm_jax.layers.dropout import Dropout
from plm_jax.models import deberta
from plm_jax.objectives import emd_mlm, mlm, rtd
from plm_jax.training import step
from plm_jax.weights.architectures import deberta as weights
from tests import tiny
from tests.models import parity, peers, plain_deberta

CASES = ('deberta', 'deberta-v2', 'deberta-v3', 'deberta-own')
V3 = {'position_buckets': 8, 'share_projections': True, 'key_bias': True, 'table_norm': True}
KINDS = {
  'v1': {'max_distance': 5},
  'v1 as printed': {'max_distance': 5, 'reading': 'paper'},
  'v2': V3 | {'max_distance': 10, 'conv_kernel': 3, 'num_layers': 3},
  'v2, five taps, two layers': V3 | {'max_distance': 12, 'conv_kernel': 5},
  'v3': V3 | {'max_distance': 9, 'num_layers': 3},
  'c2p at the input': {'max_distance': 20, 'terms': ('c2p',), 'absolute': 'input', 'key_bias': True},
}


def make_trunk(kind: str = 'v1', *, execution: Execution = tiny.PLAIN, **fields):
  sizes = tiny.SIZES | KINDS[kind] | fields
  return deberta.make(vocab_size=tiny.VOCAB.size, variant='deberta-base', overrides=sizes, execution=execution)


@functools.cache
def params_of(kind: str):
  task = mlm.make(trunk=make_trunk(kind), vocab=tiny.VOCAB)
  return tiny.init_params(task, tiny.make_batch())['trunk']


@functools.cache
def run_of(kind: str):
  """The trunk of a kind as a function of its inputs."""
  trunk, params = make_trunk(kind), params_of(kind)
  return jax.jit(
    lambda tokens, segment_ids, **more: trunk.apply({'params': params}, tokens, segment_ids=segment_ids, **more)
  )


def layers(kind: str, batch, **more):
  return np.asarray(run_of(kind)(batch['tokens'], batch['segment_ids'], **more)['layers'])


# Sizes and peers ----------------------------------------------------------------------------------------------------


def count(tree) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
  ('variant', 'expected'),
  [
    ('deberta-base', 138_601_728),
    ('deberta-large', 405_163_008),
    ('deberta-v2-xlarge', 884_593_152),
    ('deberta-v2-xxlarge', 1_564_549_632),
    ('deberta-v3-xsmall', 70_682_112),
    ('deberta-v3-small', 141_304_320),
    ('deberta-v3-base', 183_831_552),
    ('deberta-v3-large', 434_012_160),
  ],
)
def test_count_of_the_body(variant, expected):
  known = deberta.PUBLISHED[variant]
  task = mlm.make(
    trunk=deberta.make(vocab_size=known.vocab_size, variant=variant), vocab=tiny.FakeVocab(size=known.vocab_size)
  )
  params = step.abstract_params(task, tiny.spec(tiny.make_batch()))
  d = deberta.CONFIGS[variant].hidden_dim
  assert count(params['trunk']) == expected
  assert known.parameters == expected + d * d + d


def test_count_of_version_one_by_its_closed_form():
  v, h, n, k = 50_265, 768, 12, 512
  layer = 12 * h * h + 13 * h
  assert v * h + 2 * h + 2 * k * h + n * (layer - h + h * h + h * h + h) == 138_601_728


@pytest.mark.turns
@pytest.mark.parametrize('name', CASES)
def test_equals_the_stored_numbers_of_hugging_face(name):
  parity.check_stored(name)


@pytest.mark.parametrize('name', CASES)
def test_equals_hugging_face(name):
  parity.check_live(name)


@pytest.mark.turns
@pytest.mark.parametrize('kind', KINDS)
def test_weights_come_back_as_they_were(kind, tmp_path):
  """Through a folder of Hugging Face's form, head, pooler and absolute positions of the decoder included."""
  trunk = make_trunk(kind, reading='code')
  task = classify.make(trunk=trunk, vocab=tiny.VOCAB, dropout=0.0)
  params = params_of(kind) | tiny.init_params(task, tiny.make_batch())['trunk']
  tree = {'trunk': params} | {name: value for name, value in tasks_of(kind).items() if name != 'trunk'}
  published.save(tmp_path, trunk, tree)
  read, found = published.load(tmp_path)
  assert dataclasses.replace(read.config, terms=trunk.config.terms) == trunk.config
  assert tiny.same(found, {**tree.pop('trunk'), **tree})


def tasks_of(kind: str):
  trunk = make_trunk(kind)
  make = mlm.make if trunk.config.absolute == 'input' else emd_mlm.make
  return tiny.init_params(make(trunk=trunk, vocab=tiny.VOCAB), tiny.make_batch())


@pytest.mark.parametrize('name', CASES)
def test_the_older_names_of_the_head_are_read(name):
  case = peers.CASES[name]
  params = peers.draw_params(peers.make_task(case), peers.make_batch())
  flat = {jax.tree_util.keystr(path, simple=True, separator='/'): leaf for path, leaf in peers._leaves(params)}
  newer, old = 'lm_predictions.lm_head', 'cls.predictions'
  theirs = {
    key.replace(f'{newer}.bias', f'{old}.bias').replace(newer, f'{old}.transform'): value
    for key, value in case.names(params).items()
  }
  assert any(key.startswith(old) for key in theirs)
  entries = [entry for entry in weights.entries(case.trunk, ['mlm']) if entry.ours in flat]
  assert tiny.same(peers.to_ours(entries, theirs, {path: leaf.shape for path, leaf in flat.items()}), flat)


@pytest.mark.parametrize('name', CASES)
def test_config_comes_back_as_it_was(name):
  trunk = peers.CASES[name].trunk
  read = weights.read_config(weights.write_config(trunk, ['mlm']))
  again = deberta.make(vocab_size=read['vocab_size'], variant=read['variant'], overrides=read['overrides'])
  assert (again.config, again.vocab_size) == (trunk.config, trunk.vocab_size)


@pytest.mark.parametrize(
  ('variant', 'fields'),
  [
    # as published
    ('deberta-base', {'model_type': 'deberta', 'hidden_size': 768, 'pos_att_type': 'c2p|p2c', 'vocab_size': 50_265}),
    (
      'deberta-v3-base',
      {'model_type': 'deberta-v2', 'hidden_size': 768, 'pos_att_type': 'p2c|c2p', 'vocab_size': 128_100}
      | {'position_buckets': 256, 'norm_rel_ebd': 'layer_norm', 'share_att_key': True},
    ),
  ],
)
def test_published_configs_are_read(variant, fields):
  shared = {'num_hidden_layers': 12, 'num_attention_heads': 12, 'intermediate_size': 3072, 'type_vocab_size': 0}
  shared |= {'relative_attention': True, 'max_relative_positions': -1, 'position_biased_input': False}
  read = weights.read_config(shared | fields)
  found = deberta.make(**read).config
  assert dataclasses.replace(found, terms=('c2p', 'p2c')) == deberta.CONFIGS[variant]
  assert set(found.terms) == {'c2p', 'p2c'}


@pytest.mark.parametrize(
  ('field', 'value'), [('talking_head', True), ('conv_groups', 2), ('hidden_act', 'prelu'), ('attention_head_size', 5)]
)
def test_other_structures_are_refused(field, value):
  theirs = weights.write_config(peers.CASES['deberta-v2'].trunk, [])
  with pytest.raises(ValueError, match=f'{field}.*{value!r}'):
    weights.read_config(theirs | {field: value})


def test_what_theirs_cannot_say_is_not_written():
  with pytest.raises(ValueError, match=r"reading.*'paper'"):
    weights.write_config(make_trunk('v1 as printed'), [])
  with pytest.raises(ValueError, match='bias'):
    weights.write_config(make_trunk('v1', table_norm=True), [])


# The formula --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('kind', KINDS)
def test_equals_plain_numpy(kind):
  trunk, batch = make_trunk(kind), tiny.make_batch(((16,), (9,)))
  found = layers(kind, batch)
  for row, length in enumerate((16, 9)):
    expected = plain_deberta.states(params_of(kind), np.asarray(batch['tokens'])[row, :length], trunk.config)
    assert tiny.worst(found[:, row, :length], np.stack(expected)) < 1e-5


def test_the_two_readings_differ():
  batch = tiny.make_batch()
  trunk = make_trunk('v1 as printed')
  other = jax.jit(lambda **inputs: trunk.apply({'params': params_of('v1')}, **inputs)['layers'])
  inputs = {name: batch[name] for name in ('tokens', 'segment_ids')}
  assert np.abs(layers('v1', batch) - np.asarray(other(**inputs))).max() > 1e-2


def test_the_two_readings_are_one_with_the_table_of_queries_reversed():
  """Code reads row k + i - j, the paper k - (i - j): with 2k - 1 rows used, one is the other read backwards."""
  length, k = 6, 8
  draw = np.random.default_rng(0)
  key, rows = draw.normal(size=(1, length, 2, 4)), np.arange(k - length + 1, k + length)
  queries = draw.normal(size=(2 * k, 2, 4))
  backwards = np.concatenate([queries[:1], queries[:0:-1]])  # row 2k - r at r
  code = deberta.position_to_content(key, backwards, rows)
  assert tiny.same(code, deberta.position_to_content(key, queries, rows[::-1]))


@pytest.mark.parametrize('kind', ['v1', 'v3'])
def test_rows_longer_than_any_table(kind):
  """Rows of 48, where absolute positions end at 32 and relative ones are alike from 5 or 9 on."""
  trunk, batch = make_trunk(kind), tiny.make_batch(((48,),), length=48)
  found = layers(kind, batch)[:, 0]
  assert (
    tiny.worst(found, np.stack(plain_deberta.states(params_of(kind), np.asarray(batch['tokens'])[0], trunk.config)))
    < 1e-5
  )


def test_far_keys_are_alike_in_any_order():
  """Exchanging two words that are both beyond the last row of the table changes nothing for who looks at them."""
  batch = tiny.make_batch(((16,),))
  exchanged = batch | {
    'tokens': batch['tokens'].at[0, 2].set(batch['tokens'][0, 4]).at[0, 4].set(batch['tokens'][0, 2])
  }
  first, second = (layers('v1', text)[1, 0] for text in (batch, exchanged))
  assert not tiny.same(batch['tokens'], exchanged['tokens'])
  assert np.abs(first[10:] - second[10:]).max() < 1e-6  # 4 is five or more to the left of 9 and of what follows
  assert np.abs(first[5] - second[5]).max() > 1e-3


def test_absolute_positions_at_the_input_end():
  trunk = make_trunk('c2p at the input')
  tokens = jnp.ones((1, 33), jnp.int32)
  with pytest.raises(ValueError, match=r'Deberta\b.*\b32\b.*\b33\b'):
    trunk.init(jax.random.key(0), tokens, segment_ids=tokens)


def test_positions_are_read_where_they_enter():
  batch = tiny.make_batch(((16,),))
  there = jnp.arange(16)[None]
  for kind, reads in (('v1', False), ('c2p at the input', True)):
    plain = layers(kind, batch)
    assert tiny.worst(layers(kind, batch, positions=there), plain) < 1e-6
    assert (np.abs(layers(kind, batch, positions=there[:, ::-1]) - plain).max() > 1e-2) == reads


# Rows ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['v1', 'v2', 'c2p at the input'])
def test_packed_documents_equal_documents_alone(kind):
  batch = tiny.make_batch()
  packed, segments = layers(kind, batch), np.asarray(batch['segment_ids'])
  for row, document in [(1, 1), (1, 2), (3, 1), (3, 2), (3, 3)]:
    places = np.flatnonzero(segments[row] == document)
    alone = {name: np.zeros((4, 16), np.int32) for name in ('tokens', 'segment_ids')}
    alone['tokens'][0, : len(places)] = np.asarray(batch['tokens'])[row, places]
    alone['segment_ids'][0, : len(places)] = 1
    assert tiny.worst(packed[:, row, places], layers(kind, alone)[:, 0, : len(places)]) < 1e-5, (row, document)


@pytest.mark.parametrize('kind', ['v1', 'v2'])
def test_no_document_sees_another(kind):
  batch = tiny.make_batch(((7, 9),))
  changed = batch | {'tokens': batch['tokens'].at[0, 7:].set(33)}
  first, second = layers(kind, batch)[:, 0], layers(kind, changed)[:, 0]
  assert tiny.same(first[:, :7], second[:, :7])
  assert not tiny.same(first[:, 7:], second[:, 7:])


@pytest.mark.parametrize('kind', ['v1', 'v2'])
def test_content_of_padding_changes_nothing(kind):
  batch = tiny.make_batch()
  real = np.asarray(batch['segment_ids'] > 0)
  dirty = batch | {'tokens': jnp.where(real, batch['tokens'], 50)}
  assert tiny.same(layers(kind, batch)[:, real], layers(kind, dirty)[:, real])


# A table shared with a generator --------------------------------------------------------------------------------------


@pytest.mark.turns
def test_two_debertas_share_a_table_whose_gradients_are_kept_apart():
  """Version 3: what the discriminator reads is the generator's table plus its own; its loss moves only the latter."""
  generator = {'name': 'deberta', 'variant': 'tiny', 'overrides': tiny.SIZES | {'num_layers': 2}}
  make = functools.partial(rtd.make, trunk=make_trunk('v3'), vocab=tiny.VOCAB, generator=generator)
  batch = tiny.make_batch()
  both = make(sharing='gradient_disentangled')
  params = tiny.init_params(both, batch)
  assert 'token_embed' not in params['trunk']
  assert {'token_embed', 'last'} <= params['generator'].keys()
  found = {}
  for name, settings in {'mlm': {'weight': 0.0}, 'rtd': {'generator_weight': 0.0}}.items():
    _, found[name] = tiny.loss_and_gradient(make(sharing='gradient_disentangled', **settings), params, batch)
  size = lambda tree: max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))  # noqa: E731
  assert size(found['rtd']['generator']) == 0 < size(found['mlm']['generator']['token_embed'])
  assert size(found['mlm']['delta']) == 0 < size(found['rtd']['delta'])
  own = params['trunk'] | {
    'token_embed': {'table': params['generator']['token_embed']['table'] + params['delta']['table']}
  }
  inputs = {name: batch[name] for name in ('tokens', 'segment_ids')}
  alone = jax.jit(lambda params: make_trunk('v3').apply({'params': params}, **inputs)['hidden'])(own)
  joined = jax.jit(lambda params: both.model.apply({'params': params}, **inputs, method='encode'))(params)
  assert tiny.worst(joined, alone) < 1e-6


# The last block -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['v1', 'v2'])
def test_refining_the_states_before_the_last_layer_is_the_last_layer(kind):
  trunk, batch = make_trunk(kind), tiny.make_batch()
  states = layers(kind, batch)
  variables = {'params': params_of(kind)}

  @jax.jit
  def refine(query, hidden):
    return trunk.apply(variables, query, hidden, batch['segment_ids'], method='refine')

  assert tiny.worst(refine(states[-2], states[-2]), states[-1]) < 1e-6
  assert np.abs(np.asarray(refine(states[-2] + 1, states[-2])) - states[-1]).max() > 1e-2


@pytest.mark.parametrize('execution', [Execution(layers='loop'), Execution(remat='full')])
def test_how_it_is_computed_changes_nothing(execution):
  batch = tiny.make_batch()
  trunk = make_trunk('v3', execution=execution)
  inputs = {name: batch[name] for name in ('tokens', 'segment_ids')}
  run = jax.jit(lambda params: trunk.apply({'params': params}, **inputs)['hidden'])
  assert tiny.worst(run(params_of('v3')), layers('v3', batch)[-1]) < 1e-6


# What is inside -----------------------------------------------------------------------------------------------------


def shapes_of(jaxpr) -> list[tuple[int, ...]]:
  """Of everything that is computed, inner functions included."""
  out = [var.aval.shape for equation in jaxpr.eqns for var in equation.outvars]
  for equation in jaxpr.eqns:
    for value in equation.params.values():
      for inner in value if isinstance(value, tuple | list) else (value,):
        if isinstance(inner, jax.extend.core.ClosedJaxpr | jax.extend.core.Jaxpr):
          out += shapes_of(inner.jaxpr if isinstance(inner, jax.extend.core.ClosedJaxpr) else inner)
  return out


@pytest.mark.parametrize('kind', ['v1', 'v3'])
def test_nothing_has_a_vector_for_each_pair_of_positions(kind):
  """Forward and backward stay within scores [h, l, 2 l] of two layers; vectors of 16 for each pair are twice that."""
  trunk, length = make_trunk(kind), 64
  tokens = jnp.ones((1, length), jnp.int32)

  def loss(params):
    return trunk.apply({'params': params}, tokens, segment_ids=tokens)['hidden'].sum()

  sizes = [int(np.prod(shape)) for shape in shapes_of(jax.make_jaxpr(jax.grad(loss))(params_of(kind)).jaxpr)]
  scores = 2 * length * 2 * length
  assert scores <= max(sizes) <= 2 * scores  # the scan keeps those of its layers
  assert 2 * scores < length * length * 16


def test_the_relative_table_drops_out_in_every_layer():
  trunk, batch = make_trunk('v3', dropout=0.4), tiny.make_batch()
  seen = []

  def watch(next_function, args, kwargs, context):
    if isinstance(context.module, Dropout) and context.method_name == '__call__':
      seen.append((context.module.path[-2:], args[0].shape))
    return next_function(*args, **kwargs)

  with nn.intercept_methods(watch):
    jax.eval_shape(
      lambda key: trunk.apply(
        {'params': params_of('v3')},
        batch['tokens'],
        segment_ids=batch['segment_ids'],
        train=True,
        rngs={'dropout': key},
      )['hidden'],
      jax.random.key(0),
    )
  rows = [path for path, shape in seen if shape == (16, 32)]  # all sixteen rows of eight buckets each way
  assert {path[0] for path in rows} == {'layers', 'last'}
  assert ('deberta', (4, 16, 32)) not in seen
  assert sum(shape == (4, 16, 32) for _, shape in seen) >= 5  # embeddings, and two in each of two kinds of block


def test_attention_can_be_looked_at():
  trunk, batch = make_trunk('v2'), tiny.make_batch()
  inputs = {name: batch[name] for name in ('tokens', 'segment_ids')}
  look = jax.jit(lambda: trunk.apply({'params': params_of('v2')}, **inputs, mutable=['attention'])[1]['attention'])
  found = look()
  assert {name: found[name]['weights'][0].shape for name in found} == {
    'first': (4, 2, 16, 16),
    'layers': (1, 4, 2, 16, 16),
    'last': (4, 2, 16, 16),
  }
  real = np.asarray(batch['segment_ids'] > 0)
  np.testing.assert_allclose(found['last']['weights'][0].sum(-1), real[:, None].repeat(2, 1), atol=1e-6)


def test_pool_reads_the_first_token():
  trunk = make_trunk()
  hidden = jax.random.normal(jax.random.key(1), (3, 5, 32))
  segments = jnp.ones((3, 5), jnp.int32)
  pooled, variables = nn.unbox(trunk.init_with_output(jax.random.key(0), hidden, segments, method='pool'))
  before = plain_deberta.dense(np.asarray(hidden, np.float64)[:, 0], variables['params']['pooler'])
  expected = plain_deberta.gelu(before)
  assert tiny.worst(pooled, expected) < 1e-5


def test_bfloat16_keeps_parameters_and_logits_in_float32():
  trunk, batch = make_trunk('v3', execution=Execution(dtype='bfloat16')), tiny.make_batch()
  inputs = {name: batch[name] for name in ('tokens', 'segment_ids')}
  params = jax.eval_shape(lambda key: trunk.init(key, **inputs), jax.random.key(0))
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype('float32')}
  hidden = jax.jit(lambda: trunk.apply({'params': params_of('v3')}, **inputs)['hidden'])()
  assert hidden.dtype == jnp.bfloat16
  real = np.asarray(batch['segment_ids'] > 0)
  assert tiny.worst(np.asarray(hidden, np.float32)[real], layers('v3', batch)[-1][real]) < 0.06


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'hidden_dim': 30, 'num_heads': 4}, r'hidden_dim\W30\b.*num_heads\W4\b'),
    ({'num_layers': 1}, r'num_layers\W1\b'),
    ({'terms': ('c2p', 'p2p')}, "terms='p2p'.*c2p, p2c"),
    ({'reading': 'both'}, "reading='both'.*code, paper"),
    ({'absolute': 'never'}, "absolute='never'.*decoder, input"),
    ({'conv_kernel': 4}, r'conv_kernel\W4\b'),
    ({'position_buckets': 256, 'max_distance': 128}, r'position_buckets\W256\b'),
  ],
)
def test_wrong_settings_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    deberta.make(vocab_size=10, variant='tiny', overrides=fields)
