"""Folders of Hugging Face are read and written: the same states, the same tensors, no name missing or left over."""

import copy
import functools
import json
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import pytest

from plm_jax import weights
from plm_jax.checkpoint import in_memory, tensor_files
from plm_jax.core.types import PyTree
from plm_jax.text import byte_bpe
from plm_jax.weights import convert, reader, release, writer
from plm_jax.weights.table import architectures
from tests import tiny
from tests.weights import published

pytestmark = pytest.mark.turns

pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

TOLERANCE = 1e-5
MODEL_TYPES = {model_type for architecture in architectures() for model_type in architecture.module.MODEL_TYPES}
# which of their configs have a class of their own here; the others are RoBERTa by another name
SAME_AS_ROBERTA = {'xlm-roberta', 'camembert'}


def known(name: str) -> str:
  """Return the case if its architecture is supported; skip the others."""
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


def assert_same(a: PyTree, b: PyTree) -> None:
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_read_by_theirs(folder: pathlib.Path, model: Any) -> None:
  """Check that their class reads every tensor of `model` from the folder."""
  again, report = type(model).from_pretrained(folder, output_loading_info=True)
  assert not {name: keys for name, keys in report.items() if keys}
  found, wanted = dict(again.state_dict()), dict(model.state_dict())
  if not model.config.tie_word_embeddings:
    # a second bias beside that of the output matrix, which they read where it is tied and else make and leave alone
    for name in (name for name in wanted if name.endswith(('predictions.bias', 'lm_head.bias'))):
      wanted[name] = wanted.get(f'{name.removesuffix("bias")}decoder.bias', wanted[name])
  assert published.equal(found, wanted)


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=[pytest.mark.slow] * (name in published.MORE)) for name in published.CASES]
)
def test_round_trip(name: str, root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  model, source = published.make_model(known(name)), folder_of(name, root)
  trunk, params = weights.load(source)
  states, logits = published.states_of_theirs(model)
  assert tiny.worst(published.states_of_ours(trunk, params), states) < TOLERANCE
  heads = published.CASES[name].heads
  assert set(heads) <= set(params)
  if logits is not None:
    ours = published.logits_of_ours(trunk, params, heads[0] if heads else None)
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
  assert tried >= MODEL_TYPES - SAME_AS_ROBERTA - {'ltgbert'}  # which has no class in transformers


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


def test_one_file_counts_where_an_index_of_shards_is_left(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  """Ignore the index that transformers leaves after saving shards, then one file."""
  model = published.make_model('bert-mlm')
  model.save_pretrained(tmp_path, max_shard_size='20KB')
  index = (tmp_path / release.INDEX).read_text()
  for parameter in model.parameters():
    parameter.data.mul_(2)
  model.save_pretrained(tmp_path)
  (tmp_path / release.INDEX).write_text(index)
  theirs = type(model).from_pretrained(tmp_path).state_dict()
  name = next(name for name in theirs if name.endswith('word_embeddings.weight'))
  _, params = weights.load(tmp_path)
  np.testing.assert_array_equal(params['token_embed']['table'], theirs[name].numpy())


def test_positions_of_roberta_follow_the_padding_id_of_the_tokenizer(
  root: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  """Its class counts positions from the id of padding, which is 1 in published weights and 0 in a vocabulary here."""
  torch = pytest.importorskip('torch')
  trunk, params = weights.load(folder_of('roberta-mlm', root))
  leaves = in_memory(writer._split_heads(trunk, params))
  writer.save_leaves(tmp_path / 'own', trunk, leaves, token_ids={'pad_token_id': 0, 'bos_token_id': 1})
  theirs = transformers.AutoModel.from_pretrained(tmp_path / 'own').eval()
  assert (theirs.config.pad_token_id, theirs.config.bos_token_id, trunk.config.position_offset) == (0, 1, 2)
  tokens = np.array([[1, 5, 6, 7, 2], [1, 8, 2, 0, 0]])
  real = tokens != 0
  again, moved = weights.load(tmp_path / 'own')
  for network, tree in ((trunk, params), (again, moved)):
    hidden = network.apply({'params': tree}, tokens, segment_ids=real.astype(np.int32))['hidden']
    with torch.no_grad():
      expected = theirs(torch.tensor(tokens), attention_mask=torch.tensor(real)).last_hidden_state
    np.testing.assert_allclose(np.asarray(hidden)[real], expected.numpy()[real], atol=1e-5)


def test_ids_of_special_tokens_are_those_of_the_tokenizer(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  """Use a vocabulary of this package, and a folder with several end tokens."""
  trunk, params = weights.load(folder_of('gpt2', root))
  vocab = byte_bpe.train(['some text'] * 9, size=270)
  vocab.save(tmp_path / 'vocab')
  weights.save(tmp_path / 'own', trunk, params, tokenizer=tmp_path / 'vocab')
  config = json.loads((tmp_path / 'own' / 'config.json').read_text())
  assert (config['eos_token_id'], config['pad_token_id']) == (vocab.eos_id, vocab.pad_id)
  theirs = tmp_path / 'theirs'
  shutil.copytree(folder_of('gpt2', root), theirs)
  changed = json.loads((theirs / 'config.json').read_text()) | {'eos_token_id': [3, 4]}
  (theirs / 'config.json').write_text(json.dumps(changed))
  (theirs / 'chat_template.jinja').write_text('{{ messages }}')
  weights.save(tmp_path / 'again', trunk, params, tokenizer=theirs)
  assert json.loads((tmp_path / 'again' / 'config.json').read_text())['eos_token_id'] == [3, 4]
  assert (tmp_path / 'again' / 'chat_template.jinja').read_text() == '{{ messages }}'


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
  made = reader.Reader(release.Release(tmp_path / 'old'))
  assert made.ignored == []
  assert_same(weights.load(tmp_path / 'old')[1], weights.load(source.folder)[1])


def test_bodies_are_the_same_with_and_without_a_head(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  model = published.make_model('bert-pretraining')
  model.bert.save_pretrained(tmp_path)  # names without 'bert.'
  whole_model = dict(weights.load(folder_of('bert-pretraining', root))[1])
  assert {whole_model.pop(head)['bias'].shape for head in ('mlm', 'pair')} == {(published.VOCAB_SIZE,), (2,)}
  assert_same(weights.load(tmp_path)[1], whole_model)
