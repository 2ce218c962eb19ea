"""A folder in Hugging Face's form: config.json and safetensors, in one file or several with an index."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plm_jax import files, tensor_files
from plm_jax.tensor_files import Plan, WeightsError

CONFIG, SINGLE, INDEX = 'config.json', 'model.safetensors', 'model.safetensors.index.json'
TOKENIZER_FILES = (
  'tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json', 'added_tokens.json', 'vocab.json', 'vocab.txt',
  'merges.txt', 'spiece.model', 'sentencepiece.bpe.model', 'tokenizer.model', 'spm.model',
)  # fmt: skip
_PICKLES = (
  'pytorch_model.bin',
  'pytorch_model.bin.index.json',
  'tf_model.h5',
  'flax_model.msgpack',
  'model.ckpt.index',
)
_SHARD = 5 * 10**9


def is_release(folder: Path) -> bool:
  """Whether there is a config.json that names a `model_type`."""
  return 'model_type' in _read_json(folder / CONFIG) if (folder / CONFIG).is_file() else False


class Release:
  """The tensors of a folder by name; reading takes one at a time into memory.

  Attributes:
    folder: where it is.
    config: of config.json.

  Raises:
    WeightsError: no tensors that can be read without executing anything, or a file that is damaged.
  """

  def __init__(self, folder: Path):
    self.folder = folder
    self.config = _read_json(folder / CONFIG)
    self._containers = {file: tensor_files.Container(folder / file) for file in self._files()}
    self._places = {name: file for file, container in self._containers.items() for name in container.tensors}

  def _files(self) -> list[str]:
    if (self.folder / INDEX).is_file():
      index = _read_json(self.folder / INDEX).get('weight_map', {})
      names = sorted(set(index.values()))
      missing = [name for name in names if not (self.folder / name).is_file()]
      if missing or not names:
        raise WeightsError(
          f'{self.folder / INDEX} names {", ".join(missing) or "no files"}, not in the folder: fetch again'
        )
      return names
    if (self.folder / SINGLE).is_file():
      return [SINGLE]
    if found := [name for name in _PICKLES if (self.folder / name).is_file()]:
      raise WeightsError(
        f'{self.folder} has only {found[0]}: reading a pickle executes what is in it, so it is refused. If '
        'you trust its source, save it once with `AutoModel.from_pretrained(...).save_pretrained(FOLDER)`, '
        'which writes model.safetensors'
      )
    raise WeightsError(f'{self.folder} has neither {SINGLE} nor {INDEX}')

  def __contains__(self, name: object) -> bool:
    return name in self._places

  def __iter__(self) -> Iterator[str]:
    return iter(self._places)

  def shape(self, name: str) -> tuple[int, ...]:
    """Of a tensor."""
    return self._containers[self._places[name]].tensors[name].shape

  def where(self, name: str) -> str:
    """The file and the tensor, for messages."""
    return f'{self.folder / self._places[name]}, tensor {name!r}'

  def read(self, name: str) -> np.ndarray:
    """One tensor as it is stored."""
    return self._containers[self._places[name]].read(name)


def write(folder: Path, config: Mapping[str, Any], plans: Mapping[str, Plan], *, shard: int = _SHARD) -> None:
  """Writes a folder; what was there of the same names is replaced once everything is on disk.

  Args:
    folder: made where it is missing.
    config: for config.json.
    plans: name -> tensor.
    shard: bytes of a file after which the next one begins.
  """
  groups: list[dict[str, Plan]] = [{}]
  for name, plan in plans.items():
    if groups[-1] and sum(other.size for other in groups[-1].values()) + plan.size > shard:
      groups.append({})
    groups[-1][name] = plan
  partial = folder.with_name(f'{folder.name}.partial')
  shutil.rmtree(partial, ignore_errors=True)
  partial.mkdir(parents=True)
  try:
    numbered = [f'model-{number:05}-of-{len(groups):05}.safetensors' for number in range(1, len(groups) + 1)]
    names = [SINGLE] if len(groups) == 1 else numbered
    for name, group in zip(names, groups, strict=True):
      tensor_files.write(partial / name, group)
    if len(groups) > 1:
      index = {tensor: name for name, group in zip(names, groups, strict=True) for tensor in group}
      total = sum(plan.size for plan in plans.values())
      files.write_text(partial / INDEX, json.dumps({'metadata': {'total_size': total}, 'weight_map': index}, indent=1))
    files.write_text(partial / CONFIG, json.dumps(dict(config), indent=2) + '\n')
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob('model*.safetensors'), folder / INDEX, folder / CONFIG):
      old.unlink(missing_ok=True)
    for file in sorted(partial.iterdir(), key=lambda file: file.name == CONFIG):  # config.json last
      file.replace(folder / file.name)
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def copy_tokenizer(source: Path, target: Path) -> list[str]:
  """Copies the files of a tokenizer, whatever its kind; returns their names."""
  found = [name for name in TOKENIZER_FILES if (source / name).is_file()]
  if found:
    target.mkdir(parents=True, exist_ok=True)
  for name in found:
    shutil.copyfile(source / name, target / name)
  return found


def _read_json(file: Path) -> dict[str, Any]:
  try:
    content = json.loads(file.read_text(encoding='utf-8'))
  except FileNotFoundError:
    raise WeightsError(f'there is no {file}') from None
  except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
    raise WeightsError(f'{file} cannot be read: {error}') from error
  if not isinstance(content, dict):
    raise WeightsError(f'{file} holds no JSON object')
  return content
