"""State dicts of PyTorch (`pytorch_model.bin`, `.pth`, `.pt`) by `torch.load(weights_only=True)`: tensors, never code.

A folder has config.json, and one such file or several with an index. The dict may be inside of 'state_dict',
'model_state_dict' or 'model', and its names may begin with the 'module.' of DataParallel.
"""

import functools
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plm_jax.checkpoint import Leaf
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.io import files
from plm_jax.weights.release import Release

_KEYS = ('state_dict', 'model_state_dict', 'model')  # of dicts around the state dict


class Torch(Release):
  """The tensors of a folder."""

  def __init__(self, folder: Path, file: str):
    self.FILE = file
    super().__init__(folder)

  def open_file(self, file: Path) -> dict[str, Leaf]:
    return {name: Leaf(tuple(tensor.shape), functools.partial(_numpy, tensor)) for name, tensor in state(file).items()}


def read(file: Path, _: Path) -> Torch:
  """Find the tensors of a folder; raise WeightsError for other objects."""
  return Torch(file.parent, file.name)


def _numpy(tensor: Any, layer: None) -> np.ndarray:
  return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _is_plain(tensor: Any) -> bool:
  """Check for a dense tensor that its file holds in full."""
  import torch

  dense = isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and not tensor.is_quantized
  return dense and tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def state(file: Path) -> dict[str, Any]:
  """Read a state dict, mapped into memory; raise WeightsError for other objects."""
  try:
    import torch
  except ModuleNotFoundError:
    raise WeightsError(f'{file} is a file of PyTorch, which is not installed: bash launch/setup.sh compare') from None
  try:
    with warnings.catch_warnings(action='ignore'):
      content = torch.load(
        files.local_path(file, what='SRC'), map_location='cpu', weights_only=True, mmap=zipfile.is_zipfile(file)
      )
  except Exception as error:  # a damaged file raises errors of every kind
    objects = type(error).__name__ == 'UnpicklingError' and files.read_array(file, 'u1', count=1)[0] in b'P\x80'
    problem = 'holds objects that are no tensors, which may run code' if objects else 'is damaged or cut short'
    fix = 'save `model.state_dict()` alone' if objects else 'fetch it again'
    raise WeightsError(f'{file} {problem}: {fix}') from error
  for _ in _KEYS:  # no `while`: a dict may hold itself
    inner = [content[key] for key in _KEYS if key in content] if isinstance(content, Mapping) else []
    content = next((value for value in inner if isinstance(value, Mapping)), content)
  named = isinstance(content, Mapping) and all(isinstance(name, str) for name in content)
  bad = [name for name, tensor in content.items() if not _is_plain(tensor)] if named else ['']
  if bad or not content:
    what = f'{bad[0]!r} of type {type(content[bad[0]]).__name__}' if bad and bad[0] else 'no tensors'
    raise WeightsError(f'{file} has {what}, but must be a state dict: save a dense `model.state_dict()` alone')
  prefix = 'module.' if all(name.startswith('module.') for name in content) else ''
  return {name.removeprefix(prefix): tensor for name, tensor in content.items()}


def plain(file: Path) -> Any:
  """Read a pickle of lists and strings; raise WeightsError for others."""
  import torch

  try:
    with files.open(file, 'rb') as stream:
      return torch._weights_only_unpickler.load(stream, encoding='utf-8')  # makes no objects of other classes
  except Exception as error:  # a damaged file raises errors of every kind
    raise WeightsError(f'{file} is no list of words in pickle protocol 2 or 3, or damaged: fetch it again') from error
