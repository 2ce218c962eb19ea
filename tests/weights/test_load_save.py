"""Folders of Hugging Face are read and written: the same states, the same tensors, no name missing or left over."""

import copy
import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import pytest

from plm_jax import build, convert, param_files, step, tensor_files, weights, whole
from plm_jax.types import PyTree
from plm_jax.weights import release
from tests import tiny
from tests.weights import published

pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

TOLERANCE = 1e-5
MODEL_TYPES = {model_type for architecture in weights.architectures() for model_type in architecture.module.MODEL_TYPES}
# which of their configs have a class of their own here; the others are RoBERTa by another name
SAME_AS_ROBERTA = {'xlm-roberta', 'camembert'}


def known(name: str) -> str:
  """The case, where its architecture can be read; llama and its like are skipped until then."""
  model_type = published.make_model(name).config.model_type
  if model_type not in MODEL_TYPES:
    pytest.skip(f'{model_type} is not among weights/')
  return name


@functools.cache
def folder_of(name: str, root: pathlib.Path) -> pathlib.Path:
  return published.save(name, root / name)


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return tmp_path_factory.mktemp('releases')


def gelu_of(model: Any) -> Any:
  exact = (getattr(model.config, 'hidden_act', None) or getattr(model.config, 'activation', 'gelu')) == 'gelu'
  return functools.partial(jax.nn.gelu, approximate=not exact)


def assert_same(a: PyTree, b: PyTree) -> None:
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_read_by_theirs(folder: pathlib.Path, model: Any) -> None:
  """Their class takes the folder: nothing missing, nothing left over, every tensor as in `model`."""
  again, report = type(model).from_pretrained(folder, output_loading_info=True)
  assert not {name: keys for name, keys in report.items() if keys}
  assert published.equal(again.state_dict(), model.state_dict())


@pytest.mark.parametrize('name', published.CASES)
def test_round_trip(name: str, root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  model, source = published.make_model(known(name)), folder_of(name, root)
  trunk, params = weights.load(source)
  states, logits = published.states_of_theirs(model)
  assert tiny.worst(published.states_of_ours(trunk, params), states) < TOLERANCE
  heads = published.CASES[name].heads
  assert set(heads) <= set(params)
  if logits is not None:
    ours = published.logits_of_ours(trunk, params, heads[0] if heads else None, gelu=gelu_of(model))
    assert tiny.worst(ours, logits) < TOLERANCE

  weights.save(tmp_path / 'saved', trunk, params)
  assert_read_by_theirs(tmp_path / 'saved', model)
  convert.import_release(source, tmp_path / 'imported')
  again, read = weights.load(tmp_path / 'imported')
  assert again == trunk
  assert_same(read, params)
  convert.export(tmp_path / 'imported', tmp_path / 'exported')
  assert_read_by_theirs(tmp_path / 'exported', model)


def test_every_model_type_has_a_case() -> None:
  tried = {published.make_model(name).config.model_type for name in published.CASES}
  assert tried >= MODEL_TYPES - SAME_AS_ROBERTA


# Trunks that were made here ------------------------------------------------------------------------------------------


class Own(NamedTuple):
  """A trunk that no folder was read for, with the heads of an objective.

  Attributes:
    model: a file of `models/`.
    variant: of it.
    overrides: beside the sizes.
    objective: whose heads it has; None has none.
    kind: the class of theirs.
  """

  model: str
  variant: str
  overrides: Mapping[str, Any]
  objective: str | None
  kind: str


OWN = {
  'bert': Own('bert', 'bert-base', {}, 'mlm', 'BertForMaskedLM'),
  'bert padded': Own('bert', 'bert-base', {'vocab_multiple': 8}, 'sentence_pair', 'BertForPreTraining'),
  'roberta': Own('bert', 'roberta-base', {'num_types': 0, 'vocab_multiple': 8}, 'mlm', 'RobertaForMaskedLM'),
  'distilbert': Own('bert', 'distilbert-base', {}, 'mlm', 'DistilBertForMaskedLM'),
  'electra': Own('bert', 'electra-small', {}, 'rtd', 'ElectraForPreTraining'),
  'albert': Own('albert', 'albert-base-v2', {}, 'mlm', 'AlbertForMaskedLM'),
  'deberta': Own('deberta', 'deberta-base', {}, 'emd_mlm', 'DebertaForMaskedLM'),
  'deberta-v3': Own('deberta', 'deberta-v3-base', {}, 'mlm', 'DebertaV2ForMaskedLM'),
  'xlnet': Own('xlnet', 'xlnet-base', {}, 'permutation_lm', 'XLNetLMHeadModel'),
  'gpt': Own('gpt', 'gpt', {'vocab_multiple': 8, 'mlp_dim': 128}, 'causal_lm', 'OpenAIGPTLMHeadModel'),
  'gpt2': Own('gpt', 'gpt2', {'vocab_multiple': 8}, 'causal_lm', 'GPT2LMHeadModel'),
  'gpt2 untied': Own('gpt', 'gpt2', {'tied': False}, 'causal_lm', 'GPT2LMHeadModel'),
  'bart': Own('bart', 'bart-base', {}, None, 'BartForConditionalGeneration'),
  't5': Own('t5', 't5-small', {}, None, 'T5ForConditionalGeneration'),
  't5-v1_1': Own('t5', 't5-v1_1-small', {}, None, 'T5ForConditionalGeneration'),
}
SETTINGS = {'rtd': {'sampling': 'uniform'}}


@functools.cache
def make_own(name: str) -> tuple[nn.Module, PyTree]:
  """(trunk, parameters as a run has them), every leaf drawn."""
  own = OWN[name]
  config = build.import_file(f'models.{own.model}').CONFIGS[own.variant]
  fields = {field.name for field in dataclasses.fields(config)}
  sizes = {field: value for field, value in tiny.SIZES.items() if field in fields}
  block = {'name': own.model, 'variant': own.variant, 'overrides': sizes | own.overrides}
  trunk = build.make('models', block, vocab_size=tiny.VOCAB.size)
  if own.objective is None:
    leaves = whole.shapes(trunk)
    tree = {
      'trunk': param_files.nested({path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in leaves.items()})
    }
  else:
    settings = {'name': own.objective, **SETTINGS.get(own.objective, {})}
    task = build.make('objectives', settings, trunk=trunk, vocab=tiny.VOCAB)
    batch = tiny.make_batch() | (tiny.make_pairs() if own.objective == 'sentence_pair' else {})
    tree = step.abstract_params(task, tiny.spec(batch))
  draw = np.random.default_rng(0)
  return trunk, jax.tree.map(lambda leaf: 0.3 * draw.standard_normal(leaf.shape, np.float32), tree)


@pytest.mark.parametrize('name', OWN)
def test_what_was_made_here_is_read_by_theirs(name: str, tmp_path: pathlib.Path) -> None:
  trunk, params = make_own(name)
  weights.save(tmp_path / 'saved', trunk, params)
  kind = getattr(transformers, OWN[name].kind)
  model, report = kind.from_pretrained(tmp_path / 'saved', output_loading_info=True)
  assert not {part: keys for part, keys in report.items() if keys}
  own, heads = params['trunk'], sorted(set(params) - {'trunk'})
  states, logits = published.states_of_theirs(model.eval())
  assert tiny.worst(published.states_of_ours(trunk, own), states) < TOLERANCE
  first = next((head for head in ('mlm', 'rtd', 'lm') if head in heads), None)
  ours = published.logits_of_ours(trunk, {**own, **params}, first, gelu=gelu_of(model))
  assert tiny.worst(ours, logits) < TOLERANCE

  again, read = weights.load(tmp_path / 'saved')
  parts = {path.split('/')[0] for path in whole.shapes(again)}
  assert set(read) - parts == set(heads)
  for path, leaf in param_files.flat({**own, **{head: params[head] for head in heads}}).items():
    found = param_files.flat(read)[path]
    np.testing.assert_array_equal(found, leaf[: len(found)] if path.endswith('/table') else leaf)
  assert tiny.worst(published.states_of_ours(again, read), states) < TOLERANCE


# Sources of other forms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_halves_are_widened_exactly(dtype: str, root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  import torch

  model = copy.deepcopy(published.make_model('bert-mlm')).to(
    {'float16': torch.float16, 'bfloat16': torch.bfloat16}[dtype]
  )
  model.save_pretrained(tmp_path / 'half')
  _, params = weights.load(tmp_path / 'half')
  table = model.state_dict()['bert.embeddings.word_embeddings.weight'].float().numpy()
  np.testing.assert_array_equal(params['token_embed']['table'], table)
  model.float().save_pretrained(tmp_path / 'full')
  assert_same(params, weights.load(tmp_path / 'full')[1])
  convert.import_release(tmp_path / 'half', tmp_path / 'imported')
  assert_same(params, weights.load(tmp_path / 'imported')[1])


def test_shards_are_one_model(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  published.save('bert-mlm', tmp_path, max_shard_size='20KB')
  assert len(list(tmp_path.glob('*.safetensors'))) > 1
  _trunk, params = weights.load(tmp_path)
  assert_same(params, weights.load(folder_of('bert-mlm', root))[1])
  convert.import_release(tmp_path, tmp_path / 'imported', shard=20_000)
  assert len(list((tmp_path / 'imported').glob('*.safetensors'))) > 1
  assert_same(params, weights.load(tmp_path / 'imported')[1])


def test_old_names_of_norms(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  source = release.Release(folder_of('bert-mlm', root))
  old = {'LayerNorm.weight': 'LayerNorm.gamma', 'LayerNorm.bias': 'LayerNorm.beta'}
  plans = {}
  for name in source:
    tensor = source.read(name)
    for now, then in old.items():
      name = name.replace(now, then)
    plans[name] = tensor_files.Plan(tensor.dtype, tensor.shape, lambda tensor=tensor: iter([tensor]))
  assert sum(name.endswith(('gamma', 'beta')) for name in plans) == 2 * (1 + 2 * 3 + 1)
  release.write(tmp_path / 'old', source.config, plans, shard=30_000)
  reader = weights.Reader(release.Release(tmp_path / 'old'))
  assert reader.ignored == []
  assert_same(weights.load(tmp_path / 'old')[1], weights.load(source.folder)[1])


def test_bodies_are_the_same_with_and_without_a_head(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  model = published.make_model('bert-pretraining')
  model.bert.save_pretrained(tmp_path)  # names without 'bert.'
  whole_model = dict(weights.load(folder_of('bert-pretraining', root))[1])
  assert {whole_model.pop(head)['bias'].shape for head in ('mlm', 'pair')} == {(published.VOCAB_SIZE,), (2,)}
  assert_same(weights.load(tmp_path)[1], whole_model)


def test_a_head_without_a_place_is_refused(tmp_path: pathlib.Path) -> None:
  trunk, params = make_own('gpt2')
  with pytest.raises(weights.WeightsError, match=r'no published form has room for this Gpt with heads mlm(.|\n)*gpt: '):
    weights.save(tmp_path / 'saved', trunk, params | {'mlm': {'bias': np.zeros(3, np.float32)}})
  assert not list(tmp_path.iterdir())


def test_a_form_that_cannot_hold_the_trunk_is_refused(tmp_path: pathlib.Path) -> None:
  trunk, params = make_own('roberta')
  with pytest.raises(weights.WeightsError, match='BERT has positions from 0'):
    weights.save(tmp_path / 'saved', trunk, params, architecture='bert')
  with pytest.raises(weights.WeightsError, match="'gpt' is not a published form of a Bert"):
    weights.save(tmp_path / 'saved', trunk, params, architecture='gpt')
