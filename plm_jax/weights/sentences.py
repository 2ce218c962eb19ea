"""Sentence vectors of sentence-transformers: modules.json and the folders of its modules, read and written.

modules.json                 the modules in their order, each with its folder
sentence_bert_config.json    max_seq_length, do_lower_case
1_Pooling/config.json        which token states make the vector
2_Dense, 3_Normalize         layers after it
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

from plm_jax.checkpoint import Leaf, tensor_files
from plm_jax.core import errors
from plm_jax.core.errors import WeightsError
from plm_jax.core.trunk import longest_row
from plm_jax.io import files, model_folders
from plm_jax.weights import release, table

_CONFIG, _PROMPTS, _LENGTH = 'config.json', 'config_sentence_transformers.json', 'sentence_bert_config.json'
# kinds of networks in the names that older versions gave to _LENGTH
_KINDS = ('bert', 'roberta', 'distilbert', 'camembert', 'albert', 'xlm-roberta', 'xlnet')
SIMILARITIES = ('cosine', 'dot', 'euclidean', 'manhattan')
_PACKAGE = 'sentence_transformers.models'
# fields of older folders -> pooling, in the order in which they are joined
_MODES: Mapping[str, str] = {
  'pooling_mode_cls_token': 'cls',
  'pooling_mode_max_tokens': 'max',
  'pooling_mode_mean_tokens': 'mean',
  'pooling_mode_mean_sqrt_len_tokens': 'mean_sqrt_len_tokens',
  'pooling_mode_weightedmean_tokens': 'weightedmean',
  'pooling_mode_lasttoken': 'lasttoken',
}
# class of torch -> our activation
_ACTIVATIONS: Mapping[str, str] = {
  'Tanh': 'tanh', 'Identity': 'linear', 'ReLU': 'relu', 'GELU': 'gelu_erf', 'SiLU': 'silu', 'Sigmoid': 'sigmoid',
}  # fmt: skip


class Dense(NamedTuple):
  """A layer after pooling: its kernel [inputs, outputs], bias [outputs] and activation."""

  kernel: np.ndarray
  bias: np.ndarray
  activation: str


class Recipe(NamedTuple):
  """The way from the token states of a text to its vector."""

  modes: Sequence[str]  # poolings whose results are joined
  layers: Sequence[Dense | None] = ()  # after pooling; None divides by the Euclidean norm
  length: int | None = None  # maximum tokens of a text, special tokens included; None for that of the model
  lower: bool = False  # texts are put in lower case
  prompt: str = ''  # written before every text
  with_prompt: bool = True  # its tokens are pooled too


def read(folder: Path, *, width: int) -> Recipe | None:
  """Read the recipe for states of `width`, or None; may raise WeightsError."""
  modules = model_folders.modules(folder)
  if not modules:
    if files.is_file(folder / model_folders.MODULES):
      raise WeightsError(f'{folder / model_folders.MODULES} is not a list of modules: fetch it again')
    return None
  main = model_folders.main_folder(folder)
  named = [main / _LENGTH.replace('bert', kind) for kind in _KINDS]
  about = model_folders.read_object(next(filter(files.is_file, named), named[0]))
  prompts = model_folders.read_object(folder / _PROMPTS)
  by_name = prompts.get('prompts') or {}
  if not isinstance(by_name, dict):
    raise WeightsError(f'{folder / _PROMPTS}: prompts must be an object of texts by name: fetch it again')
  name = prompts.get('default_prompt_name') or ''
  prompt = next((text for key, text in {'': '', **by_name}.items() if key == name), None)
  if not isinstance(prompt, str):
    raise WeightsError(f'{folder / _PROMPTS}: default_prompt_name={name!r} names no text in prompts: correct it')
  tokenizer = model_folders.read_object(main / 'tokenizer_config.json')
  length = about.get('max_seq_length') or tokenizer.get('model_max_length')
  if not isinstance(length, int | float | None) or not 1 <= (length or 1) < float('inf'):
    raise WeightsError(f'{named[0]}: max_seq_length={length!r} must be an integer of at least 1: correct it')
  recipe = Recipe((), (), None if length is None else int(length), bool(about.get('do_lower_case')), prompt)
  for index, module in enumerate(modules):
    kind, place = str(module.get('type')).rpartition('.')[2], folder / str(module.get('path'))
    if index == 0 and kind == 'Transformer':
      continue
    config = model_folders.read_object(place / _CONFIG) if files.is_inside(place, folder) else {}
    if kind in ('Pooling', 'Dense') and not files.is_file(place / _CONFIG):
      raise WeightsError(f'{folder}: {module.get("path")}/{_CONFIG} is missing: fetch that folder of the model as well')
    odd = any(config.get(f'module_{end}_name') not in (None, 'sentence_embedding') for end in ('input', 'output'))
    if kind == 'Pooling' and not recipe.modes:
      recipe = recipe._replace(modes=_modes(place / _CONFIG, config), with_prompt=config.get('include_prompt', True))
      width *= len(recipe.modes)
    elif kind == 'Normalize' and not odd:
      recipe = recipe._replace(layers=(*recipe.layers, None))
    elif kind == 'Dense' and recipe.modes and not odd and not config.get('use_residual'):
      layer = _dense(place, config, width)
      recipe = recipe._replace(layers=(*recipe.layers, layer))
      width = layer.kernel.shape[1]
    elif kind != 'Dropout':
      raise WeightsError(
        f'{folder}: module {kind} ({module.get("path") or index}) of sentence-transformers is not supported: '
        "encode(..., pool='mean') gives the mean state, and in commands a copy without modules.json"
      )
  return recipe if recipe.modes else recipe._replace(modes=('mean',))


def similarity(folder: Path) -> str:
  """Read with which similarity the vectors of a folder are compared."""
  name = str(model_folders.read_object(folder / _PROMPTS).get('similarity_fn_name') or 'cosine')
  errors.check_choice(str(folder), 'similarity_fn_name', name, SIMILARITIES, place=_PROMPTS)
  return name


def is_mean(recipe: Recipe) -> bool:
  """Return True for the mean of all token states alone."""
  return tuple(recipe.modes) == ('mean',) and not recipe.layers and recipe.with_prompt


def _modes(file: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
  given = config.get('pooling_mode') or [mode for field, mode in _MODES.items() if config.get(field)] or 'mean'
  modes = tuple(given) if isinstance(given, list) else (given,)
  if unknown := [mode for mode in modes if mode not in _MODES.values()]:
    raise WeightsError(f'{file}: unknown pooling {unknown[0]!r}; choices are {", ".join(_MODES.values())}')
  return modes


def _dense(folder: Path, config: Mapping[str, Any], width: int) -> Dense:
  name = str(config.get('activation_function', 'Tanh')).rpartition('.')[2]
  if not files.is_file(file := folder / release.SINGLE):
    write = f"`SentenceTransformer('{folder.parent}').save('NEW')` in Python with sentence-transformers"
    raise WeightsError(f'{folder} has no {file.name}: fetch it, or write it from a pickle, which is not read: {write}')
  if name not in _ACTIVATIONS:
    raise WeightsError(f'{folder}: activation {name} is not supported; choices are {", ".join(_ACTIVATIONS)}')
  container = tensor_files.Container(file)
  arrays = {name: np.asarray(container.read(name), np.float32) for name in container.tensors}
  kernel = arrays.get('linear.weight', np.zeros(0)).T
  bias = arrays.get('linear.bias', np.zeros(kernel.shape[-1:], np.float32))
  is_finite = all(np.isfinite(array).all() for array in arrays.values())
  if kernel.shape != (width, *bias.shape) or bias.ndim != 1 or not is_finite:
    raise WeightsError(f'{file} holds no finite linear.weight [outputs, {width}] and linear.bias: fetch it again')
  return Dense(kernel, bias, _ACTIVATIONS[name])


def of_objective(trunk: nn.Module, leaves: Mapping[str, Leaf], objective: Mapping[str, Any]) -> Recipe | None:
  """Return the recipe of a run, else the mean of an encoder.

  None for a causal network or an encoder-decoder with another objective.
  """
  length = longest_row(trunk)
  if objective.get('name') != 'contrastive':
    return Recipe(('mean',), length=length) if trunk.ATTENTION == 'bidirectional' else None
  if objective.get('pool') != 'trunk' or trunk.NAME == 't5':
    return Recipe(('mean',), length=length)
  first = trunk.NAME in ('bert', 'albert', 'deberta', 'modernbert', 'gpt_bert')
  if trunk.NAME == 'modernbert' and trunk.config.pooler != 'first':
    if trunk.config.pooler != 'mean':
      raise WeightsError(
        f'pooler={trunk.config.pooler!r} has no form in sentence-transformers: train with first or mean'
      )
    return Recipe(('mean',), length=length)
  dense = []
  if table.POOLER in leaves and getattr(trunk.config, 'pooler', 'tanh') == 'tanh':
    config = trunk.config
    activation = (config.pooler_activation or config.activation) if trunk.NAME == 'deberta' else 'tanh'
    kernel, bias = (np.asarray(leaves[f'trunk/pooler/{name}'].read(None), np.float32) for name in ('kernel', 'bias'))
    dense = [Dense(kernel, bias, activation)]
  return Recipe(('cls' if first else 'lasttoken',), dense, length)


def write(folder: Path, *, recipe: Recipe, width: int, similarity: str) -> None:
  """Write the files of a recipe into a folder with a model.

  `width` is that of a token state. Vectors are compared by `similarity`, 'cosine' or 'dot'.
  """
  contents: dict[str, tuple[str, dict[str, Any]]] = {'': ('Transformer', {})}
  flags = {field: mode in recipe.modes for field, mode in _MODES.items()}
  pooling = {'word_embedding_dimension': width, **flags, 'include_prompt': recipe.with_prompt}
  contents['1_Pooling'] = 'Pooling', pooling
  for layer in recipe.layers:
    if layer is None:
      contents[f'{len(contents)}_Normalize'] = 'Normalize', {}
      continue
    name = next(name for name, own in _ACTIVATIONS.items() if own == layer.activation)
    place = f'{len(contents)}_Dense'
    sizes = {'in_features': layer.kernel.shape[0], 'out_features': layer.kernel.shape[1], 'bias': True}
    contents[place] = 'Dense', {**sizes, 'activation_function': f'torch.nn.modules.activation.{name}'}
    files.make_folder(folder / place)
    arrays = {'linear.weight': layer.kernel.T, 'linear.bias': layer.bias}
    tensor_files.write(folder / place / release.SINGLE, {key: table.plan_of(array) for key, array in arrays.items()})
  for place, (_, config) in contents.items():
    if place:
      files.make_folder(folder / place)
      files.write_json(folder / place / _CONFIG, config)
  listed = [
    {'idx': index, 'name': str(index), 'path': place, 'type': f'{_PACKAGE}.{kind}'}
    for index, (place, (kind, _)) in enumerate(contents.items())
  ]
  files.write_json(folder / _LENGTH, {'max_seq_length': recipe.length, 'do_lower_case': recipe.lower})
  prompts = {'default': recipe.prompt} if recipe.prompt else {}
  about = {'similarity_fn_name': similarity, 'prompts': prompts, 'default_prompt_name': next(iter(prompts), None)}
  files.write_json(folder / _PROMPTS, about)
  files.write_json(folder / model_folders.MODULES, listed)
