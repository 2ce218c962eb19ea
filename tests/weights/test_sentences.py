"""Folders of sentence-transformers: `encode` follows them, and the export of a contrastive run writes them."""

import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

import plm_jax
from plm_jax import config, weights
from plm_jax.checkpoint import tensor_files
from plm_jax.core.errors import ConfigError
from plm_jax.text import byte_bpe
from plm_jax.training import loop
from plm_jax.weights import convert, table
from tests import runs

TEXTS = ['Anna is here.', 'a', 'Boris found the clock in the garden and the clock was old. ' * 4]
MODES = ('cls', 'max', 'mean', 'mean_sqrt_len_tokens', 'weightedmean', 'lasttoken')


@pytest.fixture(scope='module')
def released(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """Export a run of BERT, and keep what transformers has."""
  folder = tmp_path_factory.mktemp('sentences')
  settings = runs.settings('mlm', data, steps=2)
  assert loop.train(settings, folder / 'run').exit_code == 0
  convert.export(folder / 'run', folder / 'released')
  shutil.rmtree(folder / 'released' / '1_Pooling')
  for name in ('modules.json', 'sentence_bert_config.json', 'config_sentence_transformers.json'):
    (folder / 'released' / name).unlink()
  return folder / 'released'


def write(folder: pathlib.Path, released: pathlib.Path, *modules: Any, inner: str = '', **about: Any) -> pathlib.Path:
  """Copy a folder and add modules: (class, config, tensors) after the transformer."""
  folder.mkdir()
  (folder / inner).mkdir(exist_ok=True)
  for file in released.iterdir():
    (folder / inner / file.name).write_bytes(file.read_bytes())
  listed = [{'idx': 0, 'name': '0', 'path': inner, 'type': 'sentence_transformers.models.Transformer'}]
  for index, (kind, fields, tensors) in enumerate(modules, start=1):
    place = f'{index}_{kind}'
    (folder / place).mkdir()
    (folder / place / 'config.json').write_text(json.dumps(fields))
    listed.append({'idx': index, 'name': str(index), 'path': place, 'type': f'sentence_transformers.models.{kind}'})
    plans = {
      name: tensor_files.Plan(array.dtype, array.shape, lambda array=array: table.pieces(array))
      for name, array in tensors.items()
    }
    if plans:
      tensor_files.write(folder / place / 'model.safetensors', plans)
  (folder / 'modules.json').write_text(json.dumps(listed))
  (folder / inner / 'sentence_bert_config.json').write_text(json.dumps({'max_seq_length': 24, **about}))
  return folder


def formula(mode: str, states: np.ndarray) -> np.ndarray:
  """Pool as the documentation of sentence-transformers says."""
  weights_ = np.arange(1, len(states) + 1)[:, None]
  return {
    'cls': states[0], 'max': states.max(0), 'mean': states.mean(0), 'lasttoken': states[-1],
    'mean_sqrt_len_tokens': states.sum(0) / len(states) ** 0.5,
    'weightedmean': (states * weights_).sum(0) / weights_.sum(),
  }[mode]  # fmt: skip


def states_of(released: pathlib.Path, text: str, length: int = 24) -> np.ndarray:
  """Compute the states of a text that is cut."""
  model = plm_jax.load(released)
  read = model.folder.read([text])[0]
  ids = (
    read.ids if len(read.ids) <= length else [*read.ids[: length - read.after], *read.ids[len(read.ids) - read.after :]]
  )
  trunk, params = weights.load(released)
  tokens = np.array([ids])
  return np.asarray(trunk.apply({'params': params}, tokens=tokens, segment_ids=np.ones_like(tokens))['hidden'][0])


@pytest.mark.parametrize('old', [True, False])
def test_each_pooling_and_their_joins(old: bool, released: pathlib.Path, tmp_path: pathlib.Path) -> None:
  for index, modes in enumerate([*((mode,) for mode in MODES), MODES[:3]]):
    ends = {'cls': 'cls_token', 'max': 'max_tokens', 'mean': 'mean_tokens'}
    fields = {
      f'pooling_mode_{ends.get(mode, mode + "_tokens" * (mode == "weightedmean"))}': mode in modes for mode in MODES
    }
    pooling = fields if old else {'pooling_mode': list(modes) if len(modes) > 1 else modes[0]}
    folder = write(tmp_path / str(index), released, ('Pooling', pooling, {}), inner='0_Transformer' * old)
    found = plm_jax.load(folder).encode(TEXTS)
    expected = [np.concatenate([formula(mode, states_of(released, text)) for mode in modes]) for text in TEXTS]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    np.testing.assert_allclose(plm_jax.load(folder).encode(TEXTS[0]), expected[0], atol=2e-5)


def test_layers_after_pooling_case_and_prompts(released: pathlib.Path, tmp_path: pathlib.Path) -> None:
  draw = np.random.RandomState(0)
  kernel, bias = draw.randn(5, 32).astype(np.float32), draw.randn(5).astype(np.float32)
  dense = {'in_features': 32, 'out_features': 5, 'activation_function': 'torch.nn.modules.activation.Tanh'}
  modules = [
    ('Pooling', {'pooling_mode_cls_token': True}, {}), ('Dense', dense, {'linear.weight': kernel, 'linear.bias': bias}),
    ('Normalize', {}, {}),
  ]  # fmt: skip
  folder = write(tmp_path / 'a', released, *modules, do_lower_case=True)
  (folder / 'config_sentence_transformers.json').write_text(
    json.dumps({'prompts': {'q': 'THE garden: '}, 'default_prompt_name': 'q'})
  )
  expected = np.tanh(kernel @ states_of(released, 'the garden: anna is here.')[0] + bias)
  np.testing.assert_allclose(
    plm_jax.load(folder).encode('Anna is here.'), expected / np.linalg.norm(expected), atol=1e-5
  )
  # pooling that is asked for, and other layers, are as for any folder
  plain = plm_jax.load(released)
  np.testing.assert_array_equal(plm_jax.load(folder).encode(TEXTS, pool='mean'), plain.encode(TEXTS))
  with pytest.raises(ConfigError, match=r"layer=0.*add pool='mean'"):
    plm_jax.load(folder).encode('a', layer=0)
  np.testing.assert_array_equal(
    plm_jax.load(folder).encode('a', layer=0, pool='mean'), plain.encode('a', layer=0, pool='mean')
  )


def test_conversions_keep_the_pooling(released: pathlib.Path, tmp_path: pathlib.Path) -> None:
  pooling = {'pooling_mode_cls_token': True, 'pooling_mode_mean_tokens': False, 'include_prompt': False}
  folder = write(tmp_path / 'a', released, ('Pooling', pooling, {}), ('Normalize', {}, {}), inner='0_BERT')
  about = {'prompts': {'q': 'Boris: '}, 'default_prompt_name': 'q', 'similarity_fn_name': 'dot'}
  (folder / 'config_sentence_transformers.json').write_text(json.dumps(about))
  convert.import_release(folder, tmp_path / 'import')
  convert.export(tmp_path / 'import', tmp_path / 'out')
  expected = plm_jax.load(folder).encode(TEXTS)
  np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-5)
  for copy in ('import', 'out'):
    np.testing.assert_allclose(plm_jax.load(tmp_path / copy).encode(TEXTS), expected, atol=1e-6)
    kept = json.loads((tmp_path / copy / 'config_sentence_transformers.json').read_text())
    assert kept['similarity_fn_name'] == 'dot'


def test_tokens_of_a_prompt_may_be_left_out(released: pathlib.Path, tmp_path: pathlib.Path) -> None:
  folder = write(tmp_path / 'a', released, ('Pooling', {'pooling_mode': 'mean', 'include_prompt': False}, {}))
  about = {'prompts': {'q': 'Boris: '}, 'default_prompt_name': 'q'}
  (folder / 'config_sentence_transformers.json').write_text(json.dumps(about))
  prompt = plm_jax.load(released).folder.read(['Boris: '])[0]
  states = states_of(released, 'Boris: a')[len(prompt.ids) - prompt.after :]
  np.testing.assert_allclose(plm_jax.load(folder).encode('a'), states.mean(0), atol=1e-5)


BIAS, LAYER = (
  np.zeros(5, 'f4'),
  r'2_Dense/model.safetensors holds no finite linear.weight \[outputs, 32\] and linear.bias: fetch',
)
MISTAKES = {
  'a module': ([('LSTM', {}, {})], r"module LSTM \(1_LSTM\).*pool='mean'"),
  'a pooling': ([('Pooling', {'pooling_mode': 'median'}, {})], 'median.*lasttoken'),
  'an activation': (
    [('Pooling', {}, {}), ('Dense', {'activation_function': 'x.Swish2'}, {'linear.weight': np.eye(32, dtype='f4')})],
    'Swish2',
  ),
  'no layer': ([('Pooling', {}, {}), ('Dense', {}, {})], r'2_Dense has no model.safetensors: fetch it, or'),
  'a pooling of no text': ([('Pooling', {'pooling_mode': [1, {}]}, {})], '1_Pooling/config.json: unknown pooling 1'),
  'other tensors': ([('Pooling', {}, {}), ('Dense', {}, {'x': BIAS})], LAYER),
  'a layer of one axis': ([('Pooling', {}, {}), ('Dense', {}, {'linear.weight': BIAS})], LAYER),
  'another bias': (
    [('Pooling', {}, {}), ('Dense', {}, {'linear.weight': np.ones((8, 32), 'f4'), 'linear.bias': BIAS})], LAYER,
  ),
  'not a number': ([('Pooling', {}, {}), ('Dense', {}, {'linear.weight': np.full((4, 32), np.nan, 'f4')})], LAYER),
  'another width': (
    [('Pooling', {}, {}), ('Dense', {}, {'linear.weight': np.eye(8, 31, dtype='f4')})], LAYER,
  ),
  'another width between layers': (
    [('Pooling', {}, {})] + 2 * [('Dense', {}, {'linear.weight': np.ones((8, 32), 'f4')})], r'3_Dense.*\[outputs, 8\]',
  ),
}  # fmt: skip


@pytest.mark.parametrize('name', MISTAKES)
def test_what_is_not_supported_is_named(name: str, released: pathlib.Path, tmp_path: pathlib.Path) -> None:
  modules, message = MISTAKES[name]
  folder = write(tmp_path / 'a', released, *modules)
  with pytest.raises(ConfigError, match=message):
    plm_jax.load(folder).encode('a')
  mean = plm_jax.load(folder).encode('a', pool='mean')
  (folder / 'modules.json').unlink()
  np.testing.assert_array_equal(plm_jax.load(folder).encode('a'), mean)


def remove(file: str) -> Any:
  return lambda folder: (folder / file).unlink()


def replace(file: str, text: str) -> Any:
  return lambda folder: (folder / file).write_text(text)


PARTS = {
  'no pooling': (remove('1_Pooling/config.json'), '1_Pooling/config.json is missing: fetch that folder'),
  'a list': (replace('1_Pooling/config.json', '[]'), 'not a JSON object: fetch it again'),
  'prompts': (replace('config_sentence_transformers.json', '{"prompts": ["a"]}'), 'prompts must be an object'),
  'modules': (replace('modules.json', '{}'), 'modules.json is not a list of modules: fetch it again'),
  'a length': (replace('sentence_bert_config.json', '{"max_seq_length": "24"}'), "max_seq_length='24' must be"),
  'no number': (replace('sentence_bert_config.json', '{"max_seq_length": NaN}'), 'max_seq_length=nan must be'),
  'no end': (replace('sentence_bert_config.json', '{"max_seq_length": 1e999}'), 'max_seq_length=inf must be'),
  **{
    f'a prompt {prompts} {name}': (
      replace('config_sentence_transformers.json', f'{{"prompts": {prompts}, "default_prompt_name": {name}}}'),
      'default_prompt_name=.* names no text in prompts: correct it',
    )
    for prompts, name in (('{"q": 3}', '"q"'), ('{"q": "a"}', '"p"'), ('{"q": "a"}', '["q"]'))
  },
  'another first module': (
    lambda folder: (folder / 'modules.json').write_text(
      (folder / 'modules.json').read_text().replace('Transformer', 'StaticEmbedding')
    ),
    'module StaticEmbedding',
  ),
}  # fmt: skip


@pytest.mark.parametrize('name', PARTS)
def test_missing_and_damaged_parts_are_named(name: str, released: pathlib.Path, tmp_path: pathlib.Path) -> None:
  folder = write(tmp_path / 'a', released, ('Pooling', {'pooling_mode': 'cls'}, {}))
  change, message = PARTS[name]
  change(folder)
  with pytest.raises(ConfigError, match=message):
    plm_jax.load(folder).encode('a')


@pytest.mark.parametrize('kind', ['roberta', 'xlm-roberta', 'distilbert'])
def test_older_names_of_the_length(kind: str, released: pathlib.Path, tmp_path: pathlib.Path) -> None:
  folder = write(tmp_path / 'a', released, ('Pooling', {'pooling_mode': 'mean'}, {}), max_seq_length=5)
  expected = plm_jax.load(folder).encode(TEXTS[2])
  (folder / 'sentence_bert_config.json').rename(folder / f'sentence_{kind}_config.json')
  np.testing.assert_array_equal(plm_jax.load(folder).encode(TEXTS[2]), expected)
  np.testing.assert_allclose(expected, states_of(released, TEXTS[2], 5).mean(0), atol=1e-5)


def test_blanks_around_a_text_are_left_out(tmp_path: pathlib.Path) -> None:
  texts = ['Anna is', ' Anna is\n', '\tAnna is ']
  bytes_ = byte_bpe.train(texts, size=270, specials='roberta')
  (tmp_path / 'released').mkdir()
  bytes_.save(tmp_path / 'released')
  transformers = pytest.importorskip('transformers')
  sizes = {'hidden_size': 16, 'num_hidden_layers': 1, 'num_attention_heads': 2, 'intermediate_size': 32}
  config_ = transformers.RobertaConfig(vocab_size=bytes_.size, max_position_embeddings=40, **sizes)
  transformers.RobertaModel(config_).save_pretrained(tmp_path / 'released')
  plain = plm_jax.load(tmp_path / 'released').encode(texts)
  assert np.abs(plain[1] - plain[0]).max() > 1e-3
  folder = write(tmp_path / 'a', tmp_path / 'released', ('Pooling', {'pooling_mode': 'mean'}, {}))
  np.testing.assert_allclose(plm_jax.load(folder).encode(texts), plain[[0, 0, 0]], atol=1e-6)


@pytest.mark.parametrize(('pool', 'pooler'), [('mean', 'tanh'), ('trunk', 'tanh'), ('trunk', 'first')])
def test_a_contrastive_run_is_exported_with_its_pooling(
  pool: str, pooler: str, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  settings = runs.settings('mlm', data, steps=2)
  objective = {'name': 'contrastive', 'pool': pool}
  model = {**settings['model'], 'overrides': {**settings['model']['overrides'], 'pooler': pooler}}
  settings = config.resolve({**settings, 'objective': objective, 'model': model})
  assert loop.train(settings, tmp_path / 'run').exit_code == 0
  convert.export(tmp_path / 'run', tmp_path / 'out')
  names = [module['path'] for module in json.loads((tmp_path / 'out' / 'modules.json').read_text())]
  assert names == ['', '1_Pooling', *(['2_Dense'] if (pool, pooler) == ('trunk', 'tanh') else [])]
  own, copy = plm_jax.load(tmp_path / 'run'), plm_jax.load(tmp_path / 'out')
  np.testing.assert_allclose(own.encode(TEXTS[:2]), copy.encode(TEXTS[:2]), atol=1e-5)
  if pool == 'trunk':
    trunk, params = weights.load(tmp_path / 'run')
    states = np.asarray(own.encode('a', pool='none').vectors)[None]
    expected = trunk.apply({'params': params}, states, np.ones(states.shape[:2]), method='pool')[0]
    np.testing.assert_allclose(own.encode('a'), expected, atol=1e-5)
  try:
    from sentence_transformers import SentenceTransformer
  except ImportError:
    return
  peer = SentenceTransformer(str(tmp_path / 'out'))
  np.testing.assert_allclose(peer.encode(TEXTS), copy.encode(TEXTS), atol=1e-5)


def test_the_export_of_a_run_replaces_the_pooling_of_a_folder_by_its_mean(
  released: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  folder = write(tmp_path / 'a', released, ('Pooling', {'pooling_mode': 'cls'}, {}))
  convert.export(released.parent / 'run', folder)
  assert [module['path'] for module in json.loads((folder / 'modules.json').read_text())] == ['', '1_Pooling']
  run, copy = plm_jax.load(released.parent / 'run'), plm_jax.load(folder)
  np.testing.assert_allclose(copy.encode(TEXTS[:2]), run.encode(TEXTS[:2]), atol=1e-6)
  np.testing.assert_allclose(copy.encode(TEXTS[:2], layer=0), run.encode(TEXTS[:2], layer=0), atol=1e-6)
  assert copy.similarity(*TEXTS[:2]) == pytest.approx(run.similarity(*TEXTS[:2]), abs=1e-6)
