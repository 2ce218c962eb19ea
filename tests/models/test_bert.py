"""BERT and RoBERTa: sizes, parity with Hugging Face, packing, padding, the length guard."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import classify
from plm_jax.core.types import Execution
from plm_jax.models import bert
from plm_jax.objectives import mlm
from plm_jax.training import step
from tests import tiny
from tests.models import parity, peers


def count(tree) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


def shapes(task_of, variant: str, vocab_size: int):
  vocab = tiny.FakeVocab(size=vocab_size)
  task = task_of(trunk=bert.make(vocab_size=vocab_size, variant=variant), vocab=vocab)
  return step.abstract_params(task, tiny.spec(tiny.make_batch()))


@pytest.mark.parametrize(
  ('variant', 'vocab_size', 'expected'),
  [
    ('bert-base', 30522, 109_482_240),
    ('bert-base', 28996, 108_310_272),
    ('bert-large', 30522, 335_141_888),
    ('bert-large', 28996, 333_579_264),
    # the Hugging Face totals hold a sentence-type row that RoBERTa has no use for
    ('roberta-base', 50265, 124_645_632 - 768),
    ('roberta-large', 50265, 355_359_744 - 1024),
  ],
)
def test_count_of_body_and_pooler(variant, vocab_size, expected):
  assert count(shapes(classify.make, variant, vocab_size)['trunk']) == expected


@pytest.mark.parametrize(
  ('variant', 'vocab_size', 'expected'),
  [
    # published with the pooler and the sentence-pair head (2 d + 2), neither of which MLM trains
    ('bert-base', 30522, 110_106_428 - (768 * 768 + 768) - (2 * 768 + 2)),
    ('bert-large', 30522, 336_226_108 - (1024 * 1024 + 1024) - (2 * 1024 + 2)),
    ('roberta-base', 50265, 124_697_433 - 768),
    ('roberta-large', 50265, 355_412_057 - 1024),
  ],
)
def test_count_with_the_mlm_head(variant, vocab_size, expected):
  params = shapes(mlm.make, variant, vocab_size)
  assert count(params) == expected
  d = params['trunk']['token_embed']['table'].shape[1]
  assert count(params['mlm']) == d * d + d + 2 * d + vocab_size


def test_the_table_can_be_padded():
  trunk = tiny.make_trunk('bert', vocab_multiple=32)
  table = step.abstract_params(mlm.make(trunk=trunk, vocab=tiny.VOCAB), tiny.spec(tiny.make_batch()))
  assert table['trunk']['token_embed']['table'].shape == (64, 32)
  assert table['mlm']['bias'].shape == (61,)


@pytest.mark.parametrize('name', ['bert', 'roberta'])
def test_equals_the_stored_numbers_of_hugging_face(name):
  parity.check_stored(name)


@pytest.mark.parametrize('name', ['bert', 'roberta'])
def test_equals_hugging_face(name):
  parity.check_live(name)


@pytest.mark.parametrize('kind', ['class', 'regression'])
def test_classifier_equals_hugging_face(kind):
  pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  batch = dict(peers.make_batch())
  batch['label'] = {'class': jnp.array([2, 0, 1, 2]), 'regression': jnp.array([0.5, -2.0, 3.25, 1.0])}[kind]
  task = classify.make(trunk=peers.CASES['bert'].trunk, vocab=tiny.VOCAB, classes=3, kind=kind)
  settings = {'num_labels': 1, 'problem_type': 'regression'} if kind == 'regression' else {'num_labels': 3}
  model = transformers.BertForSequenceClassification(peers.bert_config(**settings))
  targets = np.asarray(batch['label'], np.int64 if kind == 'class' else np.float64)
  parity.check_classifier('bert', model, task, batch, targets=targets)


@pytest.fixture(scope='module')
def trunk():
  return tiny.make_trunk('bert')


@pytest.fixture(scope='module')
def params(trunk):
  """Of the trunk with its pooler."""
  return tiny.init_params(classify.make(trunk=trunk, vocab=tiny.VOCAB), tiny.make_batch())['trunk']


@pytest.fixture(scope='module')
def run(trunk, params):
  """The trunk as a function of rows of 16 tokens in any number up to 4, compiled once."""

  @jax.jit
  def apply(inputs):
    return trunk.apply({'params': params}, **inputs)

  def run(tokens, **inputs):
    rows = len(tokens)
    inputs = {'tokens': tokens, 'type_ids': np.zeros_like(tokens), **inputs}
    out = apply({name: jnp.pad(value, ((0, 4 - rows), (0, 0))) for name, value in inputs.items()})
    return {'hidden': out['hidden'][:rows], 'layers': out['layers'][:, :rows], 'carry': out['carry']}

  return run


def test_states_have_names(run):
  batch = tiny.make_batch()
  out = run(batch['tokens'], segment_ids=batch['segment_ids'])
  assert out['hidden'].shape == (4, 16, 32)
  assert out['layers'].shape == (3, 4, 16, 32)
  assert out['carry'] == ()
  assert tiny.same(out['layers'][-1], out['hidden'])


def test_input_is_the_sum_of_three_tables(params, run):
  batch = tiny.make_batch()
  positions = np.concatenate([np.arange(16)])[None]
  out = run(batch['tokens'][:1], segment_ids=batch['segment_ids'][:1], type_ids=batch['type_ids'][:1])
  tables = {name: np.asarray(params[f'{name}_embed']['table'], np.float64) for name in ('token', 'position', 'type')}
  total = tables['token'][batch['tokens'][:1]] + tables['position'][positions] + tables['type'][batch['type_ids'][:1]]
  centred = total - total.mean(-1, keepdims=True)
  normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
  expected = normed * np.asarray(params['embed_norm']['scale']) + np.asarray(params['embed_norm']['bias'])
  assert tiny.worst(out['layers'][0], expected) < 1e-5


def test_types_are_zero_by_default(trunk, params, run):
  batch = tiny.make_batch()
  without = {name: batch[name] for name in ('tokens', 'segment_ids')}
  default = jax.jit(lambda: trunk.apply({'params': params}, **without))()
  assert tiny.worst(default, run(**without)) < 1e-6
  other = run(**without, type_ids=batch['type_ids'])
  assert np.abs(np.asarray(other['hidden'] - default['hidden'])).max() > 1e-3


def test_packed_documents_equal_documents_alone(run):
  batch = tiny.make_batch()
  packed = run(batch['tokens'], segment_ids=batch['segment_ids'], type_ids=batch['type_ids'])['layers']
  segments = np.asarray(batch['segment_ids'])
  for row, document in [(1, 1), (1, 2), (3, 1), (3, 2), (3, 3)]:
    places = np.flatnonzero(segments[row] == document)
    alone = {name: np.zeros((1, 16), np.int32) for name in ('tokens', 'segment_ids', 'type_ids')}
    for name, value in alone.items():
      value[0, : len(places)] = np.asarray(batch[name])[row, places]
    alone['segment_ids'][alone['segment_ids'] > 0] = 1
    states = run(**alone)['layers'][:, 0, : len(places)]
    assert tiny.worst(np.asarray(packed)[:, row, places], states) < 1e-5, (row, document)


def test_content_of_padding_changes_nothing(run):
  batch = tiny.make_batch()
  real = np.asarray(batch['segment_ids'] > 0)
  clean = run(batch['tokens'], segment_ids=batch['segment_ids'])['layers']
  dirty = run(jnp.where(real, batch['tokens'], 50), segment_ids=batch['segment_ids'])['layers']
  assert tiny.same(np.asarray(clean)[:, real], np.asarray(dirty)[:, real])


def test_a_word_sees_both_sides(run):
  batch = tiny.make_batch(((16,),))
  changed = batch['tokens'].at[0, 9].set(20)
  before, after = (run(t, segment_ids=batch['segment_ids'])['hidden'] for t in (batch['tokens'], changed))
  assert (np.abs(np.asarray(after - before)).max(axis=-1) > 1e-6).all()


def test_attention_can_be_looked_at(trunk, params):
  batch = tiny.make_batch()
  inputs = {name: batch[name] for name in ('tokens', 'segment_ids')}
  look = jax.jit(lambda: trunk.apply({'params': params}, **inputs, mutable=['attention']))
  (shares,) = jax.tree.leaves(look()[1])
  assert shares.shape == (2, 4, 2, 16, 16)
  segments = np.asarray(batch['segment_ids'])
  sees = (segments[:, :, None] == segments[:, None, :]) & (segments > 0)[:, None, :]
  assert (np.asarray(shares)[np.broadcast_to(~sees[None, :, None], shares.shape)] == 0).all()
  np.testing.assert_allclose(shares.sum(-1), np.broadcast_to((segments > 0)[:, None], (2, 4, 2, 16)), atol=1e-6)


def test_pool_reads_the_first_token(trunk, params):
  hidden = jax.random.normal(jax.random.key(1), (3, 5, 32))
  pooled = trunk.apply({'params': params}, hidden, jnp.ones((3, 5), int), method='pool')
  expected = np.tanh(np.asarray(hidden)[:, 0] @ np.asarray(params['pooler']['kernel']) + params['pooler']['bias'])
  assert tiny.worst(pooled, expected) < 1e-5


def test_positions_can_be_given(run):
  batch = tiny.make_batch()
  there = jnp.broadcast_to(jnp.arange(16), (1, 16))
  row = {name: batch[name][:1] for name in ('tokens', 'segment_ids')}
  assert tiny.same(run(**row)['hidden'], run(**row, positions=there)['hidden'])
  assert np.abs(np.asarray(run(**row)['hidden'] - run(**row, positions=there[:, ::-1])['hidden'])).max() > 1e-2


def test_a_row_longer_than_the_table_is_refused(trunk, params):
  tokens = jnp.ones((1, 33), jnp.int32)
  with pytest.raises(ValueError, match=r'Bert\b.*\b32\b.*\b33\b'):
    trunk.apply({'params': params}, tokens, segment_ids=tokens)
  jax.eval_shape(lambda: trunk.apply({'params': params}, tokens[:, :32], segment_ids=tokens[:, :32]))


def test_bfloat16_keeps_parameters_and_logits_in_float32():
  trunk = tiny.make_trunk('bert', execution=Execution(dtype='bfloat16'))
  batch = tiny.make_batch()
  task = mlm.make(trunk=trunk, vocab=tiny.VOCAB)
  params = tiny.init_params(task, batch)
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype('float32')}

  @functools.partial(jax.jit, static_argnums=0)
  def run(trunk, params):
    out = trunk.apply({'params': params}, batch['tokens'], segment_ids=batch['segment_ids'])
    return out['hidden'], trunk.apply({'params': params}, out['hidden'], method='attend')

  hidden, logits = run(trunk, params['trunk'])
  assert (hidden.dtype, logits.dtype) == (jnp.bfloat16, jnp.float32)
  assert tiny.worst(hidden.astype(jnp.float32), run(tiny.make_trunk('bert'), params['trunk'])[0]) < 0.05


def test_heads_must_divide_the_width():
  with pytest.raises(ValueError, match=r'hidden_dim\W30\b.*num_heads\W4\b'):
    bert.make(vocab_size=10, variant='tiny', overrides={'hidden_dim': 30, 'num_heads': 4})
