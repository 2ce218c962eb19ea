"""ELECTRA and DistilBERT, rows of BERT: sizes, parity with Hugging Face, tables of another width, shared embeddings."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import classify
from plm_jax.core import param_paths
from plm_jax.models import bert
from plm_jax.objectives import mlm, rtd
from plm_jax.training import step
from plm_jax.weights.architectures import distilbert, electra
from tests import tiny
from tests.models import parity, peers

CASES = ('electra', 'electra-generator', 'distilbert')


def count(tree) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
  ('variant', 'expected'),
  [('electra-small', 13_549_057), ('electra-base', 109_483_009), ('electra-large', 335_142_913)],
)
def test_count_of_a_discriminator_with_its_head(variant, expected):
  trunk = bert.make(vocab_size=30_522, variant=variant)
  task = rtd.make(trunk=trunk, vocab=tiny.FakeVocab(size=30_522), sampling='uniform')
  assert count(step.abstract_params(task, tiny.spec(tiny.make_batch()))) == expected


@pytest.mark.parametrize(
  ('variant', 'expected'),
  [
    ('electra-small-generator', 4_620_026),
    ('electra-base-generator', 33_740_602),
    ('electra-large-generator', 51_295_290),
    ('distilbert-base', 66_985_530),
  ],
)
def test_count_with_the_mlm_head(variant, expected):
  task = mlm.make(trunk=bert.make(vocab_size=30_522, variant=variant), vocab=tiny.FakeVocab(size=30_522))
  assert count(step.abstract_params(task, tiny.spec(tiny.make_batch()))) == expected


@pytest.mark.parametrize('size', ['small', 'base', 'large'])
def test_a_generator_is_as_deep_as_its_discriminator_and_reads_the_same_tables(size):
  ours, theirs = bert.CONFIGS[f'electra-{size}'], bert.CONFIGS[f'electra-{size}-generator']
  assert ours.num_layers == theirs.num_layers
  assert ours.hidden_dim == {'small': 4, 'base': 3, 'large': 4}[size] * theirs.hidden_dim
  assert theirs.mlp_dim == 4 * theirs.hidden_dim
  assert theirs.num_heads == max(1, theirs.hidden_dim // 64)
  assert (ours.embed_dim or ours.hidden_dim) == theirs.embed_dim


@pytest.mark.turns
@pytest.mark.parametrize('name', CASES)
def test_equals_the_stored_numbers_of_hugging_face(name):
  parity.check_stored(name)


@pytest.mark.parametrize('name', CASES)
def test_equals_hugging_face(name):
  parity.check_live(name)


@pytest.mark.parametrize('name', CASES)
def test_names_go_there_and_back(name):
  case, weights = peers.CASES[name], distilbert if name == 'distilbert' else electra
  params = peers.draw_params(peers.make_task(case), peers.make_batch())
  theirs = case.names(params)
  flat = {param_paths.path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
  entries = weights.entries(case.trunk, [head for head in params if head != 'trunk'])
  back = peers.to_ours(entries, theirs, {path: leaf.shape for path, leaf in flat.items()})
  assert back.keys() == flat.keys()
  assert all(tiny.same(back[path], leaf) for path, leaf in flat.items())
  config = weights.write_config(case.trunk, [head for head in params if head != 'trunk'])
  read = weights.read_config(config)
  assert bert.make(**read) == case.trunk


def test_what_has_no_place_in_a_release_is_refused():
  with pytest.raises(ValueError, match=r'ELECTRA.*rtd'):
    electra.write_config(peers.CASES['electra'].trunk, ['rtd', 'mlm'])
  with pytest.raises(ValueError, match='sentence types'):
    electra.write_config(tiny.make_trunk('bert'), [])
  with pytest.raises(ValueError, match='sentence types'):
    distilbert.write_config(peers.CASES['electra'].trunk, [])
  with pytest.raises(ValueError, match='rtd'):
    distilbert.entries(peers.CASES['distilbert'].trunk, ['rtd'])


def test_the_first_token_can_stand_for_a_row():
  trunk = tiny.make_trunk('bert', pooler='first')
  hidden = jax.random.normal(jax.random.key(0), (3, 5, 32))
  assert tiny.same(trunk.apply({'params': {}}, hidden, jnp.ones((3, 5), int), method='pool'), hidden[:, 0])
  with pytest.raises(ValueError, match=r"pooler='last'.*tanh, first"):
    tiny.make_trunk('bert', pooler='last')


def test_tables_of_another_width_are_projected_after_their_norm():
  trunk, batch = tiny.make_trunk('bert', embed_dim=12), tiny.make_batch()
  params = tiny.init_params(mlm.make(trunk=trunk, vocab=tiny.VOCAB), batch)
  own, head = params['trunk'], params['mlm']
  for name in ('token_embed', 'position_embed', 'type_embed'):
    assert own[name]['table'].shape[1] == 12
  assert head['dense']['kernel'].shape == (32, 12)
  inputs = {name: batch[name][:1] for name in ('tokens', 'segment_ids', 'type_ids')}
  first = jax.jit(lambda: trunk.apply({'params': own}, **inputs)['layers'][0])()
  tables = {name: np.asarray(own[f'{name}_embed']['table'], np.float64) for name in ('token', 'position', 'type')}
  total = tables['token'][inputs['tokens']] + tables['position'][:16][None] + tables['type'][inputs['type_ids']]
  centred = total - total.mean(-1, keepdims=True)
  normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
  normed = normed * np.asarray(own['embed_norm']['scale']) + np.asarray(own['embed_norm']['bias'])
  expected = normed @ np.asarray(own['embed_project']['kernel']) + np.asarray(own['embed_project']['bias'])
  assert tiny.worst(first, expected) < 1e-5


def test_two_trunks_read_with_one_set_of_embeddings():
  one, other = tiny.make_trunk('bert'), tiny.make_trunk('bert', hidden_dim=16, embed_dim=32)

  class Two(nn.Module):
    def setup(self):
      self.first = one.clone()
      self.second = other.clone(embed=self.first.token_embed, embeddings=self.first)

    def __call__(self, **batch):
      return self.first(**batch)['layers'][0], self.second(**batch)['layers'][0]

  batch = {name: tiny.make_batch()[name] for name in ('tokens', 'segment_ids', 'type_ids')}
  params = tiny.draw(jax.eval_shape(lambda key: nn.unbox(Two().init(key, **batch))['params'], jax.random.key(0)))
  assert {'embed_project', 'layers'} == set(params['second'])
  ours, theirs = jax.jit(lambda: Two().apply({'params': params}, **batch))()
  projected = np.asarray(ours) @ np.asarray(params['second']['embed_project']['kernel'])
  assert tiny.worst(theirs, projected + np.asarray(params['second']['embed_project']['bias'])) < 1e-5


def test_classifier_of_two_layers_equals_hugging_face():
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  case = peers.CASES['electra']
  batch = dict(peers.make_batch()) | {'label': jnp.array([1, 1, 0, 2])}
  width = case.trunk.config.hidden_dim
  task = classify.make(trunk=case.trunk, vocab=tiny.VOCAB, classes=3, hidden=width, activation='gelu_erf')
  params = peers.draw_params(task, batch)
  loss, gradient = tiny.loss_and_gradient(task, params, batch)

  def names(tree):
    head = {'dense': tree['head']['hidden'], 'out_proj': tree['head']['out']}
    mine = {f'classifier.{layer}.weight': value['kernel'].T for layer, value in head.items()}
    mine |= {f'classifier.{layer}.bias': value['bias'] for layer, value in head.items()}
    return peers.table_names({'trunk': tree['trunk']}, trunk=case.trunk, weights=electra) | mine

  fields = electra.write_config(case.trunk, ['rtd'])
  config = transformers.ElectraConfig(
    **{name: value for name, value in fields.items() if name not in ('model_type', 'architectures')}, num_labels=3
  )
  model = peers.load(transformers.ElectraForSequenceClassification(config), names(params))
  out = model(
    torch.tensor(np.asarray(batch['tokens'])).long(),
    attention_mask=torch.tensor(np.asarray(batch['segment_ids']) > 0).long(),
    token_type_ids=torch.tensor(np.asarray(batch['type_ids'])).long(),
    labels=torch.tensor(np.asarray(batch['label'], np.int64)),
  )
  out.loss.backward()
  assert tiny.worst(loss.value, out.loss.detach().numpy()) < parity.TOLERANCE
  ours = names(gradient)
  theirs = {name: value.grad.numpy() for name, value in model.named_parameters() if name in ours}
  error, where = tiny.gradient_error({name: ours[name] for name in theirs}, theirs)
  assert error < parity.TOLERANCE, where
