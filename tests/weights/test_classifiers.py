"""Heads of decoders and encoder-decoders: those that classify rows are read into `classify`, and written again."""

import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

from plm_jax import weights
from plm_jax.adapters import classify
from plm_jax.adapters.texts import inputs_of, read_text
from plm_jax.checkpoint import Checkpoints
from plm_jax.config import build
from plm_jax.core import param_paths
from plm_jax.io import files, run_paths
from plm_jax.weights import WeightsError, convert, release, shapes
from tests import tiny
from tests.weights import published

pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

CLASSES, EOS = 3, 2
BLOCK = {'name': 'gpt', 'variant': 'tiny', 'overrides': {}}
LENGTHS = (11, 4, 1)
DECODERS = {
  'gpt': ('OpenAIGPT', published.CASES['gpt'].fields),
  'gpt2': ('GPT2', published.CASES['gpt2'].fields),
  'llama': ('Llama', published.CASES['llama-3.1'].fields),
  'glm': ('Glm', published.CASES['glm'].fields),
  'bart': ('Bart', published.CASES['distilbart'].fields),
}


def make_model(name: str) -> Any:
  """Build their model with random parameters."""
  import torch

  torch.manual_seed(1)
  family, fields = DECODERS[name]
  pad = {} if name == 'bart' else {'pad_token_id': 0}
  config = getattr(transformers, f'{family}Config')(vocab_size=61, num_labels=CLASSES, **{**fields, **pad})
  model = getattr(transformers, f'{family}ForSequenceClassification')(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
  return model


def make_batch() -> dict[str, np.ndarray]:
  """Build sequences of unequal lengths, each with its end."""
  segments = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int32)
  tokens = np.random.default_rng(0).integers(7, 61, segments.shape) * segments
  tokens[np.arange(len(LENGTHS)), np.array(LENGTHS) - 1] = EOS
  return {'tokens': tokens.astype(np.int32), 'segment_ids': segments}


def outputs_of_theirs(model: Any) -> np.ndarray:
  import torch

  batch = {name: torch.tensor(value).long() for name, value in make_batch().items()}
  with torch.no_grad():
    return model(batch['tokens'], attention_mask=batch['segment_ids']).logits.numpy()


@pytest.mark.parametrize('name', DECODERS)
def test_a_head_that_classifies_is_read_and_written(name: str, tmp_path: pathlib.Path) -> None:
  model = make_model(name)
  model.save_pretrained(tmp_path / 'theirs')
  trunk, params = weights.load(tmp_path / 'theirs')
  head = params.pop('head')
  settings = {'hidden': trunk.hidden_dim} if name == 'bart' else {'bias': False}
  task = classify.make(trunk=trunk, vocab=tiny.VOCAB, classes=CLASSES, **settings)

  @jax.jit
  def run(params: Any, batch: dict[str, np.ndarray]) -> jax.Array:
    inputs = read_text(batch, inputs_of(trunk))
    return task.model.apply({'params': params}, **inputs)[0]

  assert tiny.worst(run({'trunk': params, 'head': head}, make_batch()), outputs_of_theirs(model)) < 1e-5

  convert.import_release(tmp_path / 'theirs', tmp_path / 'ours')
  convert.export(tmp_path / 'ours', tmp_path / 'again')
  again, report = type(model).from_pretrained(tmp_path / 'again', output_loading_info=True)
  assert not {part: keys for part, keys in report.items() if keys}
  assert published.equal(again.state_dict(), model.state_dict())
  assert again.config.architectures == model.config.architectures == [type(model).__name__]
  assert again.config.id2label == model.config.id2label


def test_the_output_matrix_of_a_released_mt5_is_its_own(tmp_path: pathlib.Path) -> None:
  """Check untied logits: transformers writes mT5 tied, published files have `lm_head`."""
  published.save('mt5', tmp_path / 'tied')
  source = release.Release(tmp_path / 'tied')
  tensors = {name: source.read(name) for name in source}
  tensors['lm_head.weight'] = np.random.default_rng(0).standard_normal((61, 16), np.float32)
  files.make_folder(tmp_path / 'own')
  safetensors.numpy.save_file(tensors, tmp_path / 'own' / 'model.safetensors', {'format': 'pt'})
  files.write_json(tmp_path / 'own' / 'config.json', {**source.config, 'tie_word_embeddings': False})
  trunk, params = weights.load(tmp_path / 'own')
  model = type(published.make_model('mt5')).from_pretrained(tmp_path / 'own').eval()
  np.testing.assert_array_equal(params['output']['table'], tensors['lm_head.weight'])
  ours = published.logits_of_ours(trunk, params, None)
  assert tiny.worst(ours, published.states_of_theirs(model)[1]) < 1e-5
  weights.save(tmp_path / 'again', trunk, params)
  about = files.read_json(tmp_path / 'again' / 'config.json')
  assert (about['model_type'], about['architectures']) == ('mt5', ['MT5ForConditionalGeneration'])
  assert published.equal(type(model).from_pretrained(tmp_path / 'again').state_dict(), model.state_dict())


@pytest.mark.parametrize('name', ['llama', 'glm'])
def test_a_reward_model_has_no_logits_and_says_why(name: str, tmp_path: pathlib.Path) -> None:
  make_model(name).save_pretrained(tmp_path)
  trunk, params = weights.load(tmp_path)
  assert not trunk.gives_logits and set(params) == {'token_embed', 'layers', 'final_norm', 'head'}
  with pytest.raises(ValueError, match=r'lm_head'):
    trunk.apply({'params': params}, np.zeros((1, 16), np.float32), method='attend')


def test_a_head_without_a_place_stays_out_of_an_export(tmp_path: pathlib.Path) -> None:
  """Reject a bias, which the heads of their decoders lack."""
  make_model('gpt2').save_pretrained(tmp_path / 'theirs')
  trunk, params = weights.load(tmp_path / 'theirs')
  params['head'] = {**params['head'], 'bias': np.ones(CLASSES, np.float32)}
  with pytest.raises(WeightsError, match='head/bias'):
    weights.save(tmp_path / 'saved', trunk, params)


BETWEEN = {  # a variant and sizes whose class for rows has two layers -> what transformers has between them
  'roberta': ('bert', 'roberta-base', {'pooler': 'first'}, 'tanh'),
  'distilbert': ('bert', 'distilbert-base', {'max_length': 32}, 'relu'),
  'electra': ('bert', 'electra-small', {}, 'gelu_erf'),
  'bart': ('bart', 'bart-base', {}, 'tanh'),
}


@pytest.mark.parametrize('activation', ['tanh', 'relu', 'gelu_erf', 'gelu_tanh', 'silu'])
@pytest.mark.parametrize('name', BETWEEN)
def test_a_head_is_written_where_theirs_has_its_activation(name: str, activation: str, tmp_path: pathlib.Path) -> None:
  model, variant, overrides, theirs = BETWEEN[name]
  known = {field.name for field in dataclasses.fields(build.import_file(f'models.{model}').CONFIGS[variant])}
  sizes = {key: size for key, size in {**tiny.SIZES, **overrides}.items() if key in known}
  block = {'name': model, 'variant': variant, 'overrides': sizes}
  trunk = build.make('models', block, vocab_size=61)
  width, draw = trunk.hidden_dim, np.random.default_rng(0)
  wanted = {f'trunk/{path}': shape for path, shape in shapes.shapes(trunk).items()}
  wanted |= {'head/hidden/kernel': (width, width), 'head/hidden/bias': (width,)}
  wanted |= {'head/out/kernel': (width, 3), 'head/out/bias': (3,)}
  params = param_paths.nested(
    {path: draw.normal(size=shape, scale=0.3).astype(np.float32) for path, shape in wanted.items()}
  )
  run = run_paths.RunFolder(tmp_path / 'run')
  files.make_folder(run.vocab)
  adapter = {'name': 'classify', 'classes': 3, 'hidden': width, 'activation': activation}
  files.write_json(run.config, {'model': block, 'objective': None, 'adapter': adapter})
  files.write_json(run.vocab / 'vocab.json', {'size': 61})
  with Checkpoints(run.checkpoints, keep=1) as saved:
    saved.save(1, {'params': params, 'step': np.asarray(1, np.int32)})
  if activation != theirs:
    for heads in (None, ['head']):
      with pytest.raises(WeightsError, match=rf'{theirs}.*{activation}.*adapter\.activation'):
        convert.export(run.root, tmp_path / 'out', step='newest', heads=heads)
    assert not (tmp_path / 'out').exists()
    convert.export(run.root, tmp_path / 'out', step='newest', heads=[])
    assert 'ForSequence' not in files.read_json(tmp_path / 'out' / 'config.json')['architectures'][0]
    return
  convert.export(run.root, tmp_path / 'out', step='newest')
  peer = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / 'out').eval()
  peer.config.pad_token_id, peer.config.eos_token_id = 1, EOS  # the vocabulary of the run has no names for them
  task = classify.make(trunk=trunk, vocab=tiny.VOCAB, **{key: value for key, value in adapter.items() if key != 'name'})
  inputs = read_text(make_batch(), inputs_of(trunk))
  ours = jax.jit(lambda params: task.model.apply({'params': params}, **inputs)[0])(params)
  assert tiny.worst(ours, outputs_of_theirs(peer)) < 1e-5


def test_a_head_on_other_states_is_not_written_as_theirs(tmp_path: pathlib.Path) -> None:
  trunk = build.make('models', BLOCK, vocab_size=61)
  leaves = {path: np.zeros(shape, np.float32) for path, shape in shapes.shapes(trunk).items()}
  params = {'trunk': param_paths.nested(leaves), 'head': {'kernel': np.zeros((128, CLASSES), np.float32)}}
  for name, adapter, place in (
    ('theirs', {}, True),
    ('complete', {'layers': [], 'layer': -1}, True),
    ('mean', {'pool': 'mean'}, False),
    ('low', {'layer': 1}, False),
  ):
    run = run_paths.RunFolder(tmp_path / name)
    files.make_folder(run.vocab)
    about = {'model': BLOCK, 'objective': None, 'adapter': {'name': 'classify', 'bias': False, **adapter}}
    files.write_json(run.config, about)
    files.write_json(run.vocab / 'vocab.json', {'size': 61})
    with Checkpoints(run.checkpoints, keep=1) as saved:
      saved.save(1, {'params': params, 'step': np.asarray(1, np.int32)})
    convert.export(run.root, tmp_path / f'{name}-out', step='newest', heads=None if place else [])
    found = files.read_json(tmp_path / f'{name}-out' / 'config.json')['architectures']
    assert found == ['GPT2ForSequenceClassification' if place else 'GPT2LMHeadModel']
  with pytest.raises(WeightsError, match=r'adapter\.layer=1'):
    convert.export(run.root, tmp_path / 'again', step='newest')
