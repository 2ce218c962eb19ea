"""A path that is no readable model gets a sentence of its own, with its fix."""

import json
import pathlib
import re
from typing import Any

import pytest

from plm_jax import weights
from plm_jax.commands import convert
from plm_jax.core.errors import ConfigError, WeightsError
from plm_jax.inference import opened
from plm_jax.io import model_folders, other_forms

BERT = {'model_type': 'bert', 'architectures': ['BertForMaskedLM']}
FORMS: dict[str, tuple[dict[str, Any], str]] = {  # files of a folder, and its sentence
  'BERT of TensorFlow': (
    {'bert_model.ckpt.index': '', 'bert_config.json': {}, 'vocab.txt': ''},
    r"TensorFlow checkpoint\. .*transformers<5.*BertForPreTraining.*'bert_model\.ckpt\.index'.*save_pretrained",
  ),
  'T5 of TensorFlow': ({'model.ckpt-100.index': '', 'operative_config.gin': ''}, 'TensorFlow checkpoint: download'),
  'Keras': ({'tf_model.h5': '', 'config.json': BERT}, r'h5.*load_tf2_.*BertForMaskedLM\(t.AutoConfig.*h5.*save_pretr'),
  'Flax': ({'flax_model.msgpack': '', 'config.json': BERT}, r'flax_model.msgpack is a model of Flax: `plm-jax convert'),
  'a pickle': ({'pytorch_model.bin': '', 'config.json': BERT}, 'model.bin is a pickle of PyTorch: `plm-jax convert'),
  'pickles': ({'pytorch_model.bin.index.json': {}, 'config.json': BERT}, 'pickle of PyTorch'),
  'a pickle of another name': ({'best.pth': '', 'config.json': BERT}, 'best.pth is a pickle of PyTorch'),
  'a pickle without config': ({'pytorch_model.bin': ''}, 'no config.json with a "model_type"'),
  'llama.cpp': ({'q4.gguf': ''}, r'q4\.gguf is a model of llama\.cpp: `plm-jax convert import /'),
  'quantisations': ({'a-q4.gguf': '', 'a-q8.gguf': ''}, r'2 files, each a model of.*: name one, .*/a-q4\.gguf$'),
  'epochs': ({'1.pt': '', '2.pt': '', 'config.json': BERT}, r'2 files, each a pickle of PyTorch: name one, .*/1\.pt$'),
  'pickles without an index': (
    {f'pytorch_model-0000{part}-of-00002.bin': '' for part in (1, 2)} | {'config.json': BERT},
    r'fetch pytorch_model\.bin, or pytorch_model\.bin\.index\.json as well$',
  ),
  'fairseq': ({'model.pt': '', 'dict.txt': ''}, "fairseq's format: download"),
  'fairseq BART': ({'model.pt': '', 'encoder.json': {}, 'vocab.bpe': ''}, "fairseq's format"),
  'LLaMA': ({'consolidated.00.pth': '', 'params.json': {}}, r"LLaMA's own.*convert_llama_weights_to_hf --input_dir /"),
  'GLM': ({'latest_checkpointed_iteration.txt': '1'}, "GLM's or Megatron's own format: download"),
  'GLM 10B': ({'config.json': {'model_type': 'glm', 'block_position_encoding': True}}, "GLM's own.*code.*use GLM-4"),
  'ChatGLM': ({'config.json': {'model_type': 'chatglm'}, 'model.safetensors': ''}, "GLM's own.*glm-4-9b-hf"),
  'ULMFiT': ({'itos_wt103.pkl': '', 'fwd_wt103.h5': ''}, 'fwd_wt103.h5 is a network of ULMFiT or CoVe'),
  'ONNX': ({'model.onnx': ''}, 'ONNX format: download'),
  'NeMo': ({'model.nemo': ''}, "NeMo's format: download"),
  'ELMo': ({'a_options.json': {}, 'a_weights.hdf5': ''}, 'plm-jax convert import /'),
  'no weights': ({'config.json': BERT, 'tokenizer.json': {}}, r'no weights: fetch model\.safetensors'),
  'no config': ({'model.safetensors': ''}, r'weights, but no config\.json: fetch'),
  'no model type': ({'model.safetensors': '', 'config.json': {'hidden_size': 2}}, 'lacks a "model_type"'),
  'no index': ({'model-00001-of-00002.safetensors': '', 'config.json': BERT}, r'no model\.safetensors\.index\.json'),
  'another name': ({'weights.safetensors': '', 'config.json': BERT}, r'weights\.safetensors, but.*rename it'),
  'AWQ': (
    {'model.safetensors': '', 'config.json': {**BERT, 'quantization_config': {'quant_method': 'awq'}}},
    r'quantised \(awq\).*: download the model in float32',
  ),
  'MLX': ({'model.safetensors': '', 'config.json': {**BERT, 'quantization': {'bits': 4}}}, r'quantised \(MLX\)'),
  'Lightning': ({'epoch=1-step=9.ckpt': '', 'hparams.yaml': ''}, "Lightning's format: .*`save_pretrained` of its net"),
  'OpenVINO': ({'openvino_model.bin': '', 'config.json': BERT}, 'another format: download'),
  'a cache': ({'snapshots/ab12/config.json': BERT}, 'cache of the Hugging Face Hub: name /.*/snapshots/ab12'),
  'folders': ({'base/config.json': BERT, 'large/config.json': BERT}, 'folders that may: name one, such as /.*/base'),
  'nothing': ({}, 'has no model: name a run'),
}  # fmt: skip


def write(folder: pathlib.Path, content: dict[str, Any]) -> pathlib.Path:
  folder.mkdir()
  for name, text in content.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text if isinstance(text, str) else json.dumps(text))
  return folder


@pytest.mark.parametrize('name', FORMS)
def test_forms_that_are_not_read(name: str, tmp_path: pathlib.Path) -> None:
  content, message = FORMS[name]
  folder = write(tmp_path / 'm', content)
  found = other_forms.explain(folder)
  assert re.search(message, found)
  assert len(found.replace(str(tmp_path), '')) <= 240 and '\n' not in found
  with pytest.raises(ConfigError, match=message):
    opened.open(folder)
  if 'convert import' not in found:
    with pytest.raises(ConfigError, match=message):
      convert.main(['import', str(folder), str(tmp_path / 'new')])
  assert [file.name for file in tmp_path.iterdir()] == ['m']


PATHS = {
  'bert-base-uncased': 'no such folder.*`hf download bert-base-uncased --local-dir bert-base-uncased`',
  'google/t5-v1_1-base': '`hf download google/t5-v1_1-base --local-dir t5-v1_1-base`',
  'https://huggingface.co/openai-community/gpt2/': '`hf download openai-community/gpt2 --local-dir gpt2`',
  'bert-base-uncased@main': '`hf download bert-base-uncased --local-dir bert-base-uncased`, then name bert',
  'google/mt5-small@v1.0': '`hf download google/mt5-small --revision v1.0 --local-dir mt5-small`',
  'google/mt5-small@refs/pr/1': '`hf download google/mt5-small --revision refs/pr/1 --local-dir mt5-small`',
  'https://hf.co/google/mt5-small/tree/main': '`hf download google/mt5-small --local-dir mt5-small`, then',
  'https://huggingface.co/google/mt5-small/blob/v2/config.json': '`hf download google/mt5-small --revision v2 --local',
  'https://huggingface.co/gpt2/resolve/main/model.safetensors': '`hf download gpt2 --local-dir gpt2`, then name gpt2',
  'runs/gone': '^runs/gone: there is no such folder',
  'ru/bes': 'no such folder; did you mean ru/best',
  'model.gguf': r'llama\.cpp',
  'model.zip': 'archive: unpack',
  'package.whl': 'archive: unpack',
  'vectors.vec': 'Word vectors.*plm-jax vectors neighbours --file=vectors.vec',
  'ru/best/model.safetensors': 'single file: name the folder .*, ru/best$',
}


@pytest.mark.parametrize('name', PATHS)
def test_paths_that_are_no_folders(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.chdir(tmp_path)
  write(tmp_path / 'ru', {'best/model.safetensors': ''})
  for file in ('model.gguf', 'model.zip', 'package.whl', 'vectors.vec'):
    (tmp_path / file).write_text('')
  with pytest.raises(ConfigError, match=PATHS[name]):
    opened.open(name)


def test_a_missing_file_of_several_is_named(tmp_path: pathlib.Path) -> None:
  index = {'weight_map': {'a': 'model-00001-of-00002.safetensors'}}
  folder = write(tmp_path / 'm', {'config.json': {'model_type': 'bert'}, 'model.safetensors.index.json': index})
  with pytest.raises(WeightsError, match=r'in model-00001-of-00002.safetensors, which is missing: fetch that file'):
    weights.load(folder)


def test_a_part_of_a_run_names_the_run(tmp_path: pathlib.Path) -> None:
  run = write(tmp_path / 'run', {'config.json': {'model': {'name': 'bert'}}, 'checkpoints/4/x': ''})
  assert other_forms.explain(run) == ''
  assert (
    other_forms.explain(run / 'checkpoints' / '4')
    == f'{run}/checkpoints/4 is a part of the run {run}: name that folder'
  )


SPANBERT = {  # its published config.json
  'attention_probs_dropout_prob': 0.1, 'directionality': 'bidi', 'hidden_act': 'gelu', 'hidden_dropout_prob': 0.1,
  'hidden_size': 768, 'initializer_range': 0.02, 'intermediate_size': 3072, 'max_position_embeddings': 512,
  'num_attention_heads': 12, 'num_hidden_layers': 12, 'type_vocab_size': 2, 'vocab_size': 28996,
}  # fmt: skip
TYPES = [
  (SPANBERT, 'bert'),
  ({'architectures': ['RobertaForMaskedLM']}, 'roberta'), ({'architectures': ['BertModel']}, 'bert'),
  ({'architectures': ['XLMRobertaForMaskedLM']}, 'xlm-roberta'), ({'architectures': ['GPT2LMHeadModel']}, 'gpt2'),
  ({'architectures': ['OpenAIGPTLMHeadModel']}, 'openai-gpt'), ({'architectures': ['XLNetLMHeadModel']}, 'xlnet'),
  ({'architectures': ['DistilBertForMaskedLM']}, 'distilbert'), ({'architectures': ['T5WithLMHeadModel']}, 't5'),
  ({'architectures': ['DebertaV2ForMaskedLM']}, 'deberta-v2'),
  ({'architectures': ['MBartForConditionalGeneration']}, 'mbart'),
  ({**SPANBERT, 'type_vocab_size': 1}, None), ({**SPANBERT, 'num_hidden_groups': 1}, None), ({}, None),
]  # fmt: skip


@pytest.mark.parametrize(('config', 'model_type'), TYPES)
def test_a_model_type_that_is_missing(config: dict[str, Any], model_type: str | None, tmp_path: pathlib.Path) -> None:
  folder = write(tmp_path / 'm', {'config.json': config})
  assert model_folders.config_of(folder).get('model_type') == model_type
