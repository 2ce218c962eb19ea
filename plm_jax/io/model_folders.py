"""Forms of model folders that other libraries write, read from their JSON files."""

import re
from pathlib import Path
from typing import Any

from plm_jax.core.errors import WeightsError
from plm_jax.io import checksums, files
from plm_jax.io.run_paths import RunFolder

CONFIG = 'config.json'
PEFT = 'adapter_config.json'  # of PEFT: updates of a model
MODULES = 'modules.json'  # of sentence-transformers: a list of modules, each with its folder
_TYPES = {'OpenAIGPT': 'openai-gpt', 'XLMRoberta': 'xlm-roberta', 'DebertaV2': 'deberta-v2'}
_BERT = {'hidden_size', 'num_hidden_layers', 'num_attention_heads', 'intermediate_size', 'max_position_embeddings'}


def read(file: Path) -> Any:
  """Read a JSON file; {} if missing, WeightsError if damaged."""
  try:
    return checksums.read_json(file, default={})
  except NotADirectoryError:
    return {}
  except (OSError, ValueError, RecursionError) as error:
    raise WeightsError(f'{file} cannot be read: {error}; fetch it again') from error


def read_object(file: Path) -> dict[str, Any]:
  """Read a JSON object as `read`; raise WeightsError for other content."""
  content = read(file)
  if not isinstance(content, dict):
    raise WeightsError(f'{file} is not a JSON object: fetch it again')
  return content


def config_of(folder: Path) -> dict[str, Any]:
  """Read config.json of a published folder, with a missing `model_type` derived.

  It comes from the name of the class, as in `BertForMaskedLM`. Without one, the fields of BERT with two token types
  make a BERT (SpanBERT).
  """
  config = read(folder / CONFIG)
  if not isinstance(config, dict) or 'model_type' in config or 'model' in config:
    return config if isinstance(config, dict) else {}
  classes = config.get('architectures')
  named = re.match(r'[A-Z]\w*?(?=Model|For|(With)?LMHead|PreTrained|$)', str(classes[0]) if classes else '')
  if named:
    return {**config, 'model_type': _TYPES.get(named[0], named[0].lower())}
  others = {'num_hidden_groups', 'embedding_size', 'relative_attention'} & config.keys()
  is_bert = config.keys() >= _BERT and config.get('type_vocab_size') == 2 and not others
  return {**config, 'model_type': 'bert'} if is_bert else config


def is_published(folder: Path) -> bool:
  """Check for a model in Hugging Face's format, or its adapter."""
  return isinstance(config_of(folder).get('model_type'), str) or files.is_file(folder / PEFT)


def modules(folder: Path) -> list[dict[str, Any]]:
  """Read the modules of a sentence-transformers folder; [] for others."""
  listed = read(folder / MODULES)
  return [module for module in listed if isinstance(module, dict)] if isinstance(listed, list) else []


def main_folder(folder: Path) -> Path:
  """Return the transformer's folder of sentence-transformers, else the folder itself."""
  first = next(iter(modules(folder)), {})
  inner = folder / str(first.get('path') or '')
  return inner if files.is_inside(inner, folder) and files.is_folder(inner) else folder


def tokenizer_places(where: files.Where) -> list[Path]:
  """List the folders that may hold a model's tokenizer, in their order."""
  folder = main_folder(files.path(where))
  folders = dict.fromkeys((folder, base_of(folder)))
  return [place for each in folders for place in (RunFolder(each).vocab, each)]


def base_of(folder: Path) -> Path:
  """Return the base model's folder of a PEFT folder, or raise WeightsError.

  It is `base_model_name_or_path` from here or from the folder, else the model next to the adapter.
  """
  if not files.is_file(folder / PEFT):
    return folder
  named = read_object(folder / PEFT).get('base_model_name_or_path')
  for base in (files.path(named), folder / named) if isinstance(named, str) and named else ():
    if any(files.is_file(base / name) for name in (CONFIG, files.IMPORT)):
      return base
  if isinstance(config_of(folder).get('model_type'), str):
    return folder
  raise WeightsError(
    f'{folder}: PEFT adapter of {named!r}, which is not a folder here. Download that model, and write the path of its '
    f'folder as base_model_name_or_path in {PEFT}'
  )
