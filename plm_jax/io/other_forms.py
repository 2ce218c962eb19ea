"""Models in forms that are not read: each is recognised by its files, and described with its fix."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plm_jax.io import files, model_folders
from plm_jax.io.run_paths import RunFolder

# names without an owner on the Hugging Face Hub
_FAMILIES = r'(bert|roberta|distil\w+|albert|xlnet|gpt2|t5|openai-gpt|camembert|xlm-roberta|bart|spanbert)(-[\w.-]+)?'
_HUB = re.compile(r'((https?://)?(www\.)?(huggingface\.co|hf\.co)/|hf://)')
_FETCH = "download the same model in Hugging Face's format (config.json, model.safetensors, tokenizer)"
_IMPORT = '`plm-jax convert import {} NEW`, then use NEW'
_OLD = "In Python with 'transformers<5' and {}"
_KINDS = "a run, a converted checkpoint, or a model in Hugging Face's format (config.json, model.safetensors)"
FASTTEXT = (793_712_314).to_bytes(4, 'little')  # the first bytes of fastText's own .bin
_LSTM = r'(fwd|bwd)_.*\.h5|lstm_.*\.pth|wmtlstm.*\.pth'  # files of ULMFiT and CoVe
_PICKLES = r'(?!training_args|optimizer|scheduler|rng_state|consolidated|mp_rank|openvino).*\.(bin|pth?)'
# names of weights -> the file of `weights/forms/` that reads them, and what they are
_IMPORTED = {
  r'.*\.gguf': ('gguf', 'a model of llama.cpp'),
  r'target\.token_embedder\.embedding': ('t5x', 'a parameter of T5X'),
  r'flax_model\.msgpack': ('flax', 'a model of Flax'),
  r'pytorch_model\.bin': ('torch', 'a pickle of PyTorch'),
  _PICKLES: ('torch', 'a pickle of PyTorch'),
}
# pattern of a file name -> the form and the fix; the first that matches a file is reported
_FORMS: Mapping[str, str] = {
  r'latest_checkpointed_iteration\.txt|mp_rank_\d+_model_states\.pt': f"GLM's or Megatron's own format: {_FETCH}",
  r'consolidated\.\d+\.pth': "LLaMA's own format. With 'transformers<5': `python -m transformers.models.llama."
  'convert_llama_weights_to_hf --input_dir {path} --output_dir NEW --model_size 7B`, with its size',
  r'dict(\.\w+)?\.txt|encoder\.json': f"fairseq's format: {_FETCH}",
  r'.*\.onnx': f'ONNX format: {_FETCH}',
  r'.*\.nemo': f"NeMo's format: {_FETCH}",
  r'.*\.gin|checkpoint': f"T5X's or TensorFlow's format: {_FETCH}",
  r'.*\.ckpt': "Lightning's format: load it in Python, call `save_pretrained` of its network, and copy the tokenizer",
  r'.*\.(pt|pth|bin|h5|pkl|npz|ot|mlmodel|keras|pb|msgpack)': f'another format: {_FETCH}',
}


def form_of(path: Path) -> tuple[str, Path, str]:
  """Return a file of `weights/forms/`, its weights, and their kind."""
  folder = path if files.is_folder(path) else path.parent
  names = {file.name.removesuffix('.index.json') for file in files.listing(folder)} if folder == path else {path.name}
  typed = isinstance(model_folders.config_of(folder).get('model_type'), str)
  for pattern, (form, kind) in _IMPORTED.items() if not any(name.endswith('.safetensors') for name in names) else ():
    found = [name for name in names if re.fullmatch(pattern, name)]
    if len(found) == 1 and (typed or pattern != _PICKLES):
      return form, folder / found[0], kind
  return '', path, ''


def lstm_file(path: Path) -> Path | None:
  """Find the only file of ULMFiT or CoVe at a path."""
  listed = files.listing(path) if files.is_folder(path) else [path]
  found = [file for file in listed if re.fullmatch(_LSTM, file.name)]
  return found[0] if len(found) == 1 and not files.is_file(found[0].parent / model_folders.CONFIG) else None


def explain(where: files.Where) -> str:
  """Describe why a path cannot be read as a model.

  The text has the fix, and is empty if the path may be a model. The weights are not read.
  """
  name = str(where)
  if hub := _HUB.match(name):
    return _download(name, name[hub.end() :].strip('/'))
  path = files.path(where)
  if not files.exists(path):
    return _missing(name, path)
  if not files.is_folder(path):
    return _file(path)
  path = model_folders.main_folder(path)
  config, names = model_folders.config_of(path), sorted(file.name for file in files.listing(path))
  if files.IMPORT in names or 'model' in config or model_folders.PEFT in names:
    return ''
  if config.get('model_type') == 'chatglm' or 'block_position_encoding' in config:
    fix = 'download zai-org/glm-4-9b-hf' if config.get('model_type') == 'chatglm' else 'use GLM-4'
    return f"{path} is in GLM's own format, which needs its authors' code, and that is never run: {fix}"
  typed = isinstance(config.get('model_type'), str)
  if any(file.endswith(('.safetensors', '.safetensors.index.json')) for file in names):
    return _with_safetensors(path, names, typed=typed)
  return _without_safetensors(path, names, config) or _folders(path, names, typed=typed)


def _download(name: str, model: str) -> str:
  """Describe how to fetch 'owner/name', 'name@revision' or a page's path."""
  page = re.sub(r'/(tree|blob|resolve)/', '@', model, count=1)
  model, _, revision = page.partition('@')
  revision = revision if revision.startswith('refs/') else revision.partition('/')[0]
  folder, version = model.rpartition('/')[2], f' --revision {revision}' if revision not in ('', 'main') else ''
  hub = f"For a model of Hugging Face's Hub: `hf download {model}{version} --local-dir {folder}`, then name {folder}"
  return f'{name}: there is no such folder. {hub}'


def _missing(name: str, path: Path) -> str:
  model = name.partition('@')[0]  # without a revision
  owner = files.exists(files.path(model).parent)
  is_id = re.fullmatch(r'\w[\w.-]*/[\w.-]+', model) and not name.startswith('runs/') and not owner
  if is_id or re.fullmatch(_FAMILIES, model):
    return _download(name, name)
  near = difflib.get_close_matches(path.name, [file.name for file in files.listing(path.parent)], n=1)
  similar = f'; did you mean {path.parent / near[0]}?' if near else f': name {_KINDS}'
  return f'{name}: there is no such folder{similar}'


def _file(path: Path) -> str:
  if lstm_file(path):
    return f'{path} is a network of ULMFiT or CoVe: {_IMPORT.format(path)}'
  if kind := form_of(path)[2]:
    return f'{path} is {kind}: {_IMPORT.format(path)}'
  if re.search(r'\.(zip|whl|tar|tgz|tar\.\w+|7z)$', path.name):
    return f'{path} is an archive: unpack it and name the folder that it holds'
  is_fasttext = path.suffix == '.bin' and files.read_array(path, 'u1', count=4).tobytes() == FASTTEXT
  if is_fasttext or re.search(
    r'\.(vec|kv|npy)(\.gz)?$|^(?!spiece|tokenizer|spm|sentencepiece).*\.model$|^glove.*\.txt', path.name
  ):
    return f'{path} is no folder. Word vectors are read by `plm-jax vectors neighbours --file={path} --words=WORD`'
  return f'{path} is a single file: name the folder with config.json, the weights and the tokenizer, {path.parent}'


def _with_safetensors(path: Path, names: list[str], *, typed: bool) -> str:
  if not typed:
    problem = 'config.json lacks a "model_type", such as "bert"' if model_folders.CONFIG in names else 'no config.json'
    return f'{path} has weights, but {problem}: fetch config.json of this model'
  config = model_folders.config_of(path)
  if quantised := config.get('quantization_config') or config.get('quantization'):
    method = quantised.get('quant_method', 'MLX') if isinstance(quantised, dict) else quantised
    return f'{path} is quantised ({method}), which is not read: download the model in float32, float16 or bfloat16'
  if 'model.safetensors' in names or 'model.safetensors.index.json' in names:
    return ''
  found = [name for name in names if name.endswith('.safetensors')]
  if re.fullmatch(r'model-\d+-of-\d+\.safetensors', found[0]):
    return f'{path} has {found[0]}, but no model.safetensors.index.json: fetch that file as well'
  return f'{path} has {found[0]}, but no model.safetensors: rename it, if it holds the whole model'


def _without_safetensors(path: Path, names: list[str], config: Mapping[str, Any]) -> str:
  """Describe weights in another format; '' if there are none."""
  if index := [name for name in names if re.fullmatch(r'.*\.ckpt(-\d+)?\.index', name)]:
    return _tensorflow(path, index[0], names)
  form, file, kind = ('keras', path / 'tf_model.h5', '') if 'tf_model.h5' in names else form_of(path)
  if form and form not in ('gguf', 't5x') and 'model_type' not in config:
    missing = 'no config.json with a "model_type", such as "bert"'
    return f'{path} has {file.name}, but {missing}: fetch config.json of this model'
  if form == 'keras':
    classes, has_type = config.get('architectures'), 'model_type' in model_folders.read(path / model_folders.CONFIG)
    unnamed = 'AutoModel.from_config' if has_type else 'BertModel'
    name = classes[0] if isinstance(classes, list) and classes else unnamed
    settings = 'AutoConfig' if has_type else f'{re.split("Model|For|LMHead", name)[0]}Config'
    model = f"t.{name}(t.{settings}.from_pretrained('.'))"
    return (
      f"{path} has only {file.name}. In it, with 'transformers<5' and tf-keras: `import transformers as t; t.load_tf2_"
      f"checkpoint_in_pytorch_model({model}, '{file.name}', None, True).save_pretrained('.')`"
    )
  if form:
    return f'{file} is {kind}: {_IMPORT.format(path if form != "gguf" else file)}'
  if lstm := lstm_file(path):
    return f'{lstm} is a network of ULMFiT or CoVe: {_IMPORT.format(path)}'
  for pattern, (form, kind) in _IMPORTED.items():
    found = [name for name in names if re.fullmatch(pattern, name)]
    if len(found) > 1 and ('model_type' in config or form == 'gguf'):
      whole = re.sub(r'-\d+-of-\d+', '', found[0])
      fix = (
        f'name one, such as {path / found[0]}' if whole == found[0] else f'fetch {whole}, or {whole}.index.json as well'
      )
      return f'{path} has {len(found)} files, each {kind}: {fix}'
  for pattern, form in _FORMS.items():
    if any(re.fullmatch(pattern, name) for name in names):
      return f'{path} is in {form.format(path=path)}'
  return ''


def _tensorflow(path: Path, index: str, names: list[str]) -> str:
  kinds = {'bert_config.json': 'Bert', 'albert_config.json': 'Albert'}
  if (name := next((name for name in kinds if name in names), None)) is None:
    return f'{path} is a TensorFlow checkpoint: {_FETCH}'
  return (
    f"{path} is a TensorFlow checkpoint. {_OLD.format('tensorflow')}: `f = '{path}/'; transformers.{kinds[name]}ForPre"
    f"Training.from_pretrained(f + '{index}', from_tf=True, config=f + '{name}').save_pretrained(f)`"
  )


def _folders(path: Path, names: list[str], *, typed: bool) -> str:
  run = next((parent for parent in path.parents if 'model' in model_folders.config_of(parent)), None)
  if run is not None:
    return f'{path} is a part of the run {run}: name that folder'
  if cached := [file for file in files.listing(path / 'snapshots') if files.is_folder(file)]:
    return f'{path} is a cache of the Hugging Face Hub: name {cached[-1]}'
  if typed:
    return f'{path} has config.json but no weights: fetch model.safetensors of this model'
  if inner := [name for name in names if files.is_file(RunFolder(path / name).config)]:
    return f'{path} has no model, but folders that may: name one, such as {path / inner[0]}'
  elmo = model_folders.CONFIG not in names or any(name.endswith(('.hdf5', '.h5')) for name in names)
  if elmo and any(name.endswith('options.json') for name in names):
    return f"{path} has ELMo's published files: {_IMPORT.format(path)}"
  return f'{path} has no model: name {_KINDS}'
