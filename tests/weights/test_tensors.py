"""Every tensor of a release is used, or derived and checked, or known to be read by nobody, or refused by its name."""

import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from plm_jax import weights
from plm_jax.config import build
from plm_jax.core import param_paths
from plm_jax.weights import WeightsError, release, table
from tests import tiny
from tests.weights import published

pytest.importorskip('torch')
pytest.importorskip('transformers')

Change = Callable[[dict[str, np.ndarray]], object]
TOLERANCE = 1e-5
# case -> the tensor of its output matrix, and that of its token table
MATRICES = {
  'bert': ('cls.predictions.decoder.weight', 'bert.embeddings.word_embeddings.weight'),
  'roberta': ('lm_head.decoder.weight', 'roberta.embeddings.word_embeddings.weight'),
  'albert': ('predictions.decoder.weight', 'albert.embeddings.word_embeddings.weight'),
  'distilbert': ('vocab_projector.weight', 'distilbert.embeddings.word_embeddings.weight'),
  'mpnet': ('lm_head.decoder.weight', 'mpnet.embeddings.word_embeddings.weight'),
  'ernie': ('cls.predictions.decoder.weight', 'ernie.embeddings.word_embeddings.weight'),
  'modernbert': ('decoder.weight', 'model.embeddings.tok_embeddings.weight'),
  'electra': ('generator_lm_head.weight', 'electra.embeddings.word_embeddings.weight'),
  'deberta': ('cls.predictions.decoder.weight', 'deberta.embeddings.word_embeddings.weight'),
  'xlnet': ('lm_loss.weight', 'transformer.word_embedding.weight'),
  'gpt': ('lm_head.weight', 'transformer.tokens_embed.weight'),
}


@functools.cache
def source_of(name: str, root: pathlib.Path) -> pathlib.Path:
  return published.save(name, root / name)


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return tmp_path_factory.mktemp('releases')


def make(
  source: pathlib.Path, target: pathlib.Path, change: Change = lambda tensors: None, **fields: Any
) -> pathlib.Path:
  """Copy a published folder with other tensors and fields of config.json."""
  target.mkdir(exist_ok=True)
  tensors = dict(safetensors.numpy.load_file(source / release.SINGLE))
  change(tensors)
  safetensors.numpy.save_file(tensors, target / release.SINGLE)
  config = json.loads((source / release.CONFIG).read_text()) | fields
  (target / release.CONFIG).write_text(json.dumps(config))
  return target


# Output matrices -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', MATRICES)
def test_an_output_matrix_of_its_own_makes_the_logits(name: str, root: pathlib.Path) -> None:
  source = source_of(f'{name}-untied', root)
  tensors = safetensors.numpy.load_file(source / release.SINGLE)
  matrix, tokens = (tensors[tensor] for tensor in MATRICES[name])
  assert np.abs(matrix - tokens).max() > 0.1
  trunk, params = weights.load(source)
  np.testing.assert_array_equal(params['token_embed']['table'], tokens)
  features = np.random.default_rng(0).standard_normal((3, trunk.token_dim), np.float32)
  logits = trunk.apply({'params': params}, jnp.asarray(features), method='attend')
  assert tiny.worst(logits, features @ matrix.T) < TOLERANCE


@pytest.mark.parametrize('name', MATRICES)
def test_the_flag_and_the_tensors_must_agree(name: str, root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  source, (matrix, tokens) = source_of(f'{name}-untied', root), MATRICES[name]

  def copy(tensors: dict[str, np.ndarray]) -> None:
    tensors[matrix] = tensors[tokens].copy()
    for end in ('predictions.bias', 'lm_head.bias'):  # the second name of the bias, which ties do not leave alone
      for bias in [one for one in tensors if one.endswith(end) and f'{one[:-4]}decoder.bias' in tensors]:
        tensors[bias] = tensors[f'{bias[:-4]}decoder.bias'].copy()

  with pytest.raises(WeightsError, match=rf"{matrix}'.*tie_word_embeddings"):
    weights.load(make(source, tmp_path / 'tied', tie_word_embeddings=True))
  _, params = weights.load(make(source, tmp_path / 'equal', copy, tie_word_embeddings=True))
  assert 'output' not in params
  _, params = weights.load(make(source, tmp_path / 'own', copy))
  np.testing.assert_array_equal(params['output']['table'], params['token_embed']['table'])
  if name != 'gpt':  # which has no head beside the matrix, so that a folder without it is a trunk
    with pytest.raises(WeightsError, match=f"'{matrix}'.*missing"):
      weights.load(make(source, tmp_path / 'lost', lambda tensors: tensors.pop(matrix)))


def test_a_trunk_alone_loads_whatever_the_flag_says(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  trunk, params = weights.load(make(source_of('bert-body', root), tmp_path / 'body', tie_word_embeddings=False))
  assert trunk.config.tied and 'output' not in params


# Buffers and strangers -----------------------------------------------------------------------------------------------

LENGTH = 13
RIGHT = {
  'bert-mlm': {'bert.embeddings.position_ids': np.arange(LENGTH)[None], 'embeddings.token_type_ids': np.zeros((1, 13))},
  'roberta-mlm': {'roberta.embeddings.position_ids': np.arange(15)[None]},
  'distilbert-mlm': {'distilbert.embeddings.position_ids': np.arange(LENGTH)[None]},
  'gpt': {'transformer.position_ids': np.arange(LENGTH), 'transformer.h.0.attn.bias': np.tri(LENGTH)[None, None]},
  'gpt2': {'transformer.h.1.attn.bias': np.tri(LENGTH, dtype=bool)[None], 'h.1.attn.masked_bias': np.array(-1e4)},
  'bart': {'final_logits_bias': np.zeros((1, published.VOCAB_SIZE))},
  'llama': {'model.layers.0.self_attn.rotary_emb.inv_freq': 10_000.0 ** (-np.arange(4) / 4)},
  # what older files hold and nobody reads
  'deberta-v2-body': {'mask_predictions.classifier.bias': np.ones(1)},
  't5': {'decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight': np.ones((32, 2))},
}  # fmt: skip


@pytest.mark.parametrize('name', RIGHT)
def test_a_buffer_may_be_there_and_must_be_right(name: str, root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  source = source_of(name, root)
  more = {tensor: np.ascontiguousarray(value) for tensor, value in RIGHT[name].items()}
  assert weights.open(make(source, tmp_path / 'right', lambda tensors: tensors.update(more))).params
  for tensor, value in more.items():
    if tensor.startswith(('mask_predictions', 'decoder.')):
      continue
    wrong = more | {tensor: ~value if value.dtype == bool else value * 0 + 3}
    folder = make(source, tmp_path / 'wrong', lambda tensors, wrong=wrong: tensors.update(wrong))
    with pytest.raises(WeightsError, match=f'{release.SINGLE}.*{tensor!r}'):
      weights.load(folder)


@pytest.mark.parametrize('name', ['bert-mlm', 'xlnet-lm', 'deberta-v2-mlm', 'gpt2', 'bart', 't5', 'llama'])
@pytest.mark.parametrize('stranger', ['qa_outputs.weight', 'adapter.down.weight', 'score_of_another_kind'])
def test_a_tensor_without_a_place_is_refused(
  name: str, stranger: str, root: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  folder = make(source_of(name, root), tmp_path / 'more', lambda tensors: tensors.update({stranger: np.ones((2, 16))}))
  with pytest.raises(WeightsError, match=rf"{stranger}'.*AutoModel\.from_pretrained"):
    weights.load(folder)


def test_fewer_layers_than_the_file_has_are_refused(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  folder = make(source_of('bert-mlm', root), tmp_path / 'fewer', num_hidden_layers=2)
  with pytest.raises(WeightsError, match=r"bert\.encoder\.layer\.2\.[a-zA-Z.]*'"):
    weights.load(folder)


def test_two_names_of_one_parameter_must_agree(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  name, old = 'bert.embeddings.LayerNorm.weight', 'bert.embeddings.LayerNorm.gamma'
  source = source_of('bert-mlm', root)
  same = make(source, tmp_path / 'same', lambda tensors: tensors.update({old: tensors[name].copy()}))
  assert weights.open(same).params
  other = make(source, tmp_path / 'other', lambda tensors: tensors.update({old: tensors[name] + 1}))
  with pytest.raises(WeightsError, match=f"{old}'.*'{name}'"):
    weights.load(other)


# Heads that classify -------------------------------------------------------------------------------------------------


def test_the_names_of_classes_travel(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  source = source_of('bert-rows', root)
  opened = weights.open(source)
  assert (opened.heads, opened.labels) == (('head',), ('no', 'perhaps', 'yes'))
  trunk, params = weights.load(source)
  weights.save(tmp_path / 'saved', trunk, params)
  config = json.loads((tmp_path / 'saved' / release.CONFIG).read_text())
  assert config['architectures'] == ['BertForSequenceClassification']
  assert config['id2label'] == {'0': 'LABEL_0', '1': 'LABEL_1', '2': 'LABEL_2'}
  del params['pooler']
  weights.save(tmp_path / 'saved', trunk, params)
  config = json.loads((tmp_path / 'saved' / release.CONFIG).read_text())
  assert config['architectures'] == ['BertForTokenClassification']


def test_a_head_of_another_build_is_not_written(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  trunk, params = weights.load(source_of('distilbert-body', root))
  one = {'kernel': np.zeros((16, 2), np.float32), 'bias': np.zeros(2, np.float32)}
  own = {name: tree for name, tree in params.items() if name != 'mlm'} | {'head': one}
  with pytest.raises(WeightsError, match=r'ForSequenceClassification.*adapter\.hidden=16'):
    weights.save(tmp_path / 'saved', trunk, own, adapter='classify')


ADAPTERS = {
  'bert-rows': dict(name='classify', classes=3),
  'roberta-rows': dict(name='classify', classes=3, hidden=16, activation='tanh'),
  'distilbert-rows': dict(name='classify', classes=3, hidden=16, activation='relu'),
  'electra-rows': dict(name='classify', classes=2, hidden=16, activation='gelu_erf'),
  'albert-rows': dict(name='classify', kind='regression'),
  'deberta-v2-rows': dict(name='classify', classes=3),
  'xlnet-rows': dict(name='classify', classes=3),
  'bert-tokens': dict(name='tag', tags=('a', 'b', 'c')),
  'xlm-roberta-tokens': dict(name='tag', tags=('a', 'b', 'c')),
  'electra-tokens': dict(name='tag', tags=('a', 'b', 'c')),
}


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=[pytest.mark.slow] * (name != 'bert-rows')) for name in ADAPTERS]
)
def test_a_head_loads_into_its_adapter(name: str, root: pathlib.Path) -> None:
  opened = weights.open(source_of(name, root))
  task = build.make('adapters', ADAPTERS[name], trunk=opened.trunk(), vocab=tiny.VOCAB)
  ids = published.draw_tokens()
  one = np.ones_like(ids)
  example = task.prepare(
    jax.random.key(0), {'tokens': ids, 'segment_ids': one, 'label': one[:, 0], 'labels': one, 'row_weight': one[:, 0]}
  )
  spec = {key: jax.ShapeDtypeStruct(np.shape(value), jnp.int32) for key, value in example.inputs.items()}
  wanted = jax.eval_shape(
    lambda key: task.model.init(key, **{k: jnp.zeros(v.shape, int) for k, v in spec.items()}), jax.random.key(0)
  )
  params = param_paths.nested(
    {path: opened.params[path].read(None) for path in param_paths.flat(nn.unbox(wanted['params']))}
  )
  out = jax.jit(lambda params: task.model.apply({'params': params}, **example.inputs))(params)
  _, logits = published.states_of_theirs(published.make_model(name))
  assert tiny.worst(out[0] if ADAPTERS[name]['name'] == 'classify' else out, logits) < TOLERANCE


# XLNet's memory ------------------------------------------------------------------------------------------------------


def test_the_length_of_a_memory_travels(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  for lengths in (
    {'mem_len': 7, 'reuse_len': 5},
    {'mem_len': 7, 'reuse_len': None},
    {'mem_len': 24, 'reuse_len': None},
  ):
    trunk, params = weights.load(make(source_of('xlnet-lm', root), tmp_path / 'named', **lengths))
    weights.save(tmp_path / 'saved', trunk, params)
    config = json.loads((tmp_path / 'saved' / release.CONFIG).read_text())
    assert {name: config[name] for name in lengths} == lengths


@pytest.mark.slow
@pytest.mark.parametrize('reuse', [None, 5])
def test_a_memory_is_that_of_transformers(reuse: int | None, root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  import torch
  import transformers

  folder = make(source_of('xlnet-lm', root), tmp_path / 'named', mem_len=7, reuse_len=reuse)
  model = transformers.XLNetModel.from_pretrained(folder).eval()
  trunk, params = weights.load(folder)
  first, second = (published.draw_tokens(), published.draw_tokens()[:, ::-1].copy())
  one = np.ones_like(first)
  with torch.no_grad():
    memory = model(input_ids=torch.tensor(first).long(), use_mems=True).mems
    theirs = model(input_ids=torch.tensor(second).long(), mems=memory, use_mems=True).last_hidden_state.numpy()
  read = jax.jit(lambda carry, tokens: trunk.apply({'params': params}, tokens, segment_ids=one, carry=carry))
  carry = read((), first)['carry']
  assert tiny.worst(read(carry, second)['hidden'], theirs) < TOLERANCE


# What a release is called --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(('name', 'family'), [('xlm-roberta', 'XLMRoberta'), ('camembert', 'Camembert')])
def test_a_relative_of_roberta_goes_out_as_it_came(
  name: str, family: str, root: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  trunk, params = weights.load(source_of(name, root))
  weights.save(tmp_path / 'saved', trunk, params)
  config = json.loads((tmp_path / 'saved' / release.CONFIG).read_text())
  assert (config['model_type'], config['architectures']) == (name, [f'{family}ForMaskedLM'])


def test_every_architecture_says_what_table_asks_for() -> None:
  asked = ('MODEL', 'HEADS', 'tasks', 'MODEL_TYPES', 'PREFIX', 'FIELDS', 'DERIVED')  # UNUSED may be left out
  assert all(hasattr(module, name) for _, module in table.architectures() for name in asked)
