"""ALBERT: sizes, which layers share what, parity with Hugging Face, packing and padding, attention that can be read."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import classify
from plm_jax.models import albert, bert
from plm_jax.objectives import sentence_pair
from plm_jax.training import step
from plm_jax.weights.architectures import albert as weights
from tests import tiny
from tests.models import parity, peers


def count(tree) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


def shapes(variant: str, vocab_size: int = 30_000, **fields):
  trunk = albert.make(vocab_size=vocab_size, variant=variant, overrides=fields)
  task = sentence_pair.make(trunk=trunk, vocab=tiny.FakeVocab(size=vocab_size), question='sop')
  return step.abstract_params(task, tiny.spec(tiny.make_batch() | tiny.make_pairs()))


@pytest.mark.parametrize('version', ['v1', 'v2'])
@pytest.mark.parametrize(
  ('size', 'body', 'with_heads'),
  [
    ('base', 11_683_584, 11_813_810),
    ('large', 17_683_968, 17_847_474),
    ('xlarge', 58_724_864, 59_021_490),
    ('xxlarge', 222_595_584, 223_158_450),
  ],
)
def test_count(version, size, body, with_heads):
  params = shapes(f'albert-{size}-{version}')
  assert count(params['trunk']) == body == albert.PUBLISHED[f'albert-{size}-{version}'].parameters
  assert count(params) == with_heads


@pytest.mark.parametrize(
  ('sharing', 'width', 'millions'),
  # Table 4 of the paper, in whole millions, which do not say whether the pooler is among them
  [
    *[('all', 768, 31), ('attention', 768, 83), ('ffn', 768, 57), ('none', 768, 108)],
    *[('all', 128, 12), ('attention', 128, 64), ('ffn', 128, 38), ('none', 128, 89)],
  ],
)
def test_count_of_each_way_to_share(sharing, width, millions):
  trunk = shapes('albert-base-v1', sharing=sharing, embed_dim=width)['trunk']
  assert (count(trunk) - count(trunk['pooler'])) / 1e6 == pytest.approx(millions, abs=1.0)


def test_a_factorised_table_has_the_two_products():
  trunk = shapes('albert-base-v1')['trunk']
  assert trunk['token_embed']['table'].shape == (30_000, 128)
  assert trunk['embed_project']['kernel'].shape == (128, 768)


@pytest.mark.parametrize(
  ('fields', 'attention', 'feed_forward'),
  [
    ({'sharing': 'all'}, [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]),
    ({'sharing': 'none'}, [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]),
    ({'sharing': 'attention'}, [0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]),
    ({'sharing': 'ffn'}, [0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 0]),
    ({'num_groups': 3}, [0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2]),
    ({'num_layers': 3, 'num_groups': 2, 'num_inner': 2}, [0, 1, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3]),
    ({'num_groups': 2, 'sharing': 'attention'}, [0, 0, 0, 1, 1, 1], [0, 1, 2, 3, 4, 5]),
  ],
)
def test_which_block_runs_which_sublayers(fields, attention, feed_forward):
  config = dataclasses.replace(albert.CONFIGS['tiny'], **({'num_layers': 6} | fields))
  assert [unit.tolist() for unit in albert.units(config)] == [attention, feed_forward]


SIZES = tiny.SIZES | {'embed_dim': 16, 'num_layers': 4}


def make_params(trunk):
  return tiny.init_params(classify.make(trunk=trunk, vocab=tiny.VOCAB), tiny.make_batch())['trunk']


def run(trunk, params, **changes):
  batch = tiny.make_batch() | changes
  inputs = {name: batch[name] for name in ('tokens', 'segment_ids', 'type_ids')}
  return jax.jit(lambda params: trunk.apply({'params': params}, **inputs))(params)


@pytest.mark.turns
@pytest.mark.parametrize(
  'fields', [{'sharing': 'all'}, {'sharing': 'attention'}, {'sharing': 'ffn'}, {'num_groups': 2, 'num_inner': 2}]
)
def test_equals_the_trunk_that_shares_nothing_with_copies(fields):
  shared = albert.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=SIZES | fields)
  blocks = 4 * fields.get('num_inner', 1)
  alone = albert.make(
    vocab_size=tiny.VOCAB.size, variant='tiny', overrides=SIZES | {'sharing': 'none', 'num_layers': blocks}
  )
  params = make_params(shared)
  attention, feed_forward = albert.units(shared.config)
  layers = {
    'attention': jax.tree.map(lambda leaf: leaf[attention], params['layers']['attention']),
    'feed_forward': jax.tree.map(lambda leaf: leaf[feed_forward], params['layers']['feed_forward']),
  }
  ours, theirs = run(shared, params), run(alone, params | {'layers': layers})
  assert ours['layers'].shape == (blocks + 1, 4, 16, 32)
  assert tiny.worst(ours, theirs) < 1e-6


def test_equals_bert_where_nothing_is_shared():
  ours = albert.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=SIZES | {'sharing': 'none', 'embed_dim': 32})
  theirs = bert.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=SIZES | {'embed_dim': None})
  params = make_params(ours)
  attention, feed_forward = params['layers']['attention'], params['layers']['feed_forward']
  layers = {name: attention[name] for name in ('query', 'key', 'value', 'out')}
  layers |= {'attention_norm': attention['norm'], 'mlp': feed_forward['mlp'], 'mlp_norm': feed_forward['norm']}
  assert tiny.worst(run(ours, params), run(theirs, params | {'layers': layers})) < 1e-6


def test_units_start_apart():
  trunk = albert.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=SIZES | {'num_groups': 2})
  batch = {name: tiny.make_batch()[name] for name in ('tokens', 'segment_ids')}
  params = jax.jit(lambda key: trunk.init(key, **batch)['params'])(jax.random.key(0))
  kernel = jax.tree.leaves(params['layers']['attention']['query']['kernel'])[0]
  assert kernel.shape == (2, 32, 2, 16)
  assert not tiny.same(kernel[0], kernel[1])
  assert float(kernel.std()) == pytest.approx(0.8796 * 0.02, rel=0.1)


def test_dropout_differs_from_layer_to_layer():
  fields = SIZES | {'dropout': 0.5}
  trunk = albert.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=fields)
  params = make_params(trunk)
  # sublayers that add nothing: what a layer changes is the norm of what it was given
  params['layers']['feed_forward']['mlp']['down'] = jax.tree.map(
    jnp.ones_like, params['layers']['feed_forward']['mlp']['down']
  )
  batch = {name: tiny.make_batch()[name] for name in ('tokens', 'segment_ids')}
  run = jax.jit(lambda key: trunk.apply({'params': params}, **batch, train=True, rngs={'dropout': key})['layers'])
  one, again, other = run(jax.random.key(0)), run(jax.random.key(0)), run(jax.random.key(1))
  assert tiny.same(one, again)
  assert not tiny.same(one, other)
  steps = np.asarray(one[2:] - one[1:-1])
  assert not np.allclose(steps[0], steps[1], atol=1e-3)


def test_attention_of_each_layer_can_be_read():
  trunk = albert.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=SIZES)
  batch = {name: tiny.make_batch()[name] for name in ('tokens', 'segment_ids')}
  params = make_params(trunk)
  _, state = jax.jit(lambda params: trunk.apply({'params': params}, **batch, mutable=['attention']))(params)
  (leaf,) = jax.tree.leaves(state['attention'])
  assert leaf.shape == (4, 4, 2, 16, 16)
  np.testing.assert_allclose(np.asarray(leaf)[:, 0].sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize('name', ['albert', 'albert-groups'])
def test_equals_the_stored_numbers_of_hugging_face(name):
  parity.check_stored(name)


@pytest.mark.parametrize('name', ['albert', 'albert-groups'])
def test_equals_hugging_face(name):
  parity.check_live(name)


def test_pre_training_logits_equal_hugging_face():
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  trunk = peers.CASES['albert-groups'].trunk
  task = sentence_pair.make(trunk=trunk, vocab=tiny.VOCAB, question='sop')
  batch = peers.make_batch()
  params = peers.draw_params(task, batch | tiny.make_pairs(length=13))
  theirs = weights.write_config(trunk, ['mlm', 'pair'])
  assert theirs['architectures'] == ['AlbertForPreTraining']
  fields = {name: value for name, value in theirs.items() if name not in ('model_type', 'architectures')}
  model = transformers.AlbertForPreTraining(transformers.AlbertConfig(**fields, attn_implementation='eager'))
  model = peers.load(model, peers.table_names(params, trunk=trunk, weights=weights))
  inputs = {name: batch[name] for name in ('tokens', 'segment_ids', 'type_ids')}
  predict = jnp.zeros((4, 1), jnp.int32)
  words, labels = jax.jit(lambda params: task.model.apply({'params': params}, predict=predict, **inputs))(params)
  real = np.asarray(batch['segment_ids']) > 0
  out = model(
    torch.tensor(np.asarray(batch['tokens'])).long(),
    attention_mask=torch.tensor(real).long(),
    token_type_ids=torch.tensor(np.asarray(batch['type_ids'])).long(),
  )
  assert tiny.worst(labels, out.sop_logits.detach().numpy()) < 1e-5
  assert tiny.worst(words[:, 0], out.prediction_logits[:, 0].detach().numpy()) < 1e-5


def test_config_goes_out_and_comes_back():
  trunk = peers.CASES['albert-groups'].trunk
  kept = weights.read_config(weights.write_config(trunk, ['mlm']))
  assert albert.make(**kept).config == trunk.config
  with pytest.raises(ValueError, match='sublayers'):
    weights.write_config(trunk.clone(config=dataclasses.replace(trunk.config, sharing='ffn')), [])


def test_what_cannot_be_is_refused():
  for fields, message in (
    ({'sharing': 'some'}, "sharing='some'.*all, attention, ffn, none"),
    ({'num_groups': 3}, r'num_groups\W3\b.*\b2\b'),
    ({'num_heads': 3}, r'num_heads\W3\b'),
  ):
    with pytest.raises(ValueError, match=message):
      albert.make(vocab_size=61, variant='tiny', overrides=fields)
