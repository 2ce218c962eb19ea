"""The trunk and the parameters of a folder: a release in Hugging Face's form, a run, or an import."""

import json
import os
import pathlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import numpy as np

from plm_jax import checkpoint, paths
from plm_jax.checkpoint import Leaf, Step
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.paths import flat, nested
from plm_jax.plugins import build
from plm_jax.types import Execution, PyTree
from plm_jax.weights import release, shapes
from plm_jax.weights.reader import Reader
from plm_jax.weights.release import Release
from plm_jax.weights.table import TOKENS


def load_params(source: str, *, step: Any = 'newest', subtree: str | None = None) -> PyTree:
  """`checkpoint.load_params`, which also reads a Hugging Face folder."""
  folder = pathlib.Path(source).expanduser()
  if not release.is_release(folder):
    return checkpoint.load_params(source, step=step, subtree=subtree)
  reader = Reader(release.Release(folder))
  prefix = f'{subtree}/' if subtree else ''
  found = {path.removeprefix(prefix): reader.leaf(path) for path in reader.shapes if path.startswith(prefix)}
  if not found:
    raise ValueError(f'{folder} has nothing under {subtree!r}; there is {", ".join(("trunk", *reader.heads))}')
  return paths.nested(found)


Part = Literal['trunk', 'generator']


def load(
  folder: str | os.PathLike[str],
  *,
  step: Step = 'best',
  part: Part = 'trunk',
  execution: Execution = Execution(),
) -> tuple[nn.Module, PyTree]:
  """The trunk of a folder and its parameters.

  Args:
    folder: a Hugging Face folder, a run folder, or a folder written by `python -m plm_jax.convert import`.
    step: of a run folder; the best where one was kept, else the newest.
    part: 'generator' is the second trunk of a run folder of replaced token detection.
    execution: how the trunk computes.

  Returns:
    (trunk, parameters): nested dicts of float32 numpy arrays, those of the trunk and, beside them, a head by its name
    ('mlm', 'rtd') where the folder has one; `trunk.apply({'params': parameters}, ...)` leaves heads alone.

  Raises:
    WeightsError: an architecture that is not known, or a tensor that is missing, damaged or of another shape.
  """
  path = Path(folder).expanduser()
  if release.is_release(path):
    source = Release(path)
    reader = Reader(source, execution=execution)
    return reader.trunk, _flat_heads(nested({name: reader.leaf(name) for name in reader.shapes}))
  trunk, leaves = open_own(path, step=step, part=part, execution=execution)
  return trunk, _flat_heads(nested({name: np.asarray(leaf.read(None), np.float32) for name, leaf in leaves.items()}))


def open_own(
  path: Path, *, step: Step = 'best', part: Part = 'trunk', execution: Execution = Execution()
) -> tuple[nn.Module, dict[str, Leaf]]:
  """The trunk of a run folder or an import, and its parameters by path; those of an import are read when asked for.

  Raises:
    WeightsError: it is neither, or has no such part.
    CheckpointError: its parameters are damaged.
  """
  model, vocab_size = _own_model(path, part)
  trunk = build.make('models', model, vocab_size=vocab_size, execution=execution)
  if (path / checkpoint.INDEX).is_file():
    return trunk, checkpoint.open_index(path)
  params = checkpoint.load_params(path, step=step)
  return trunk, in_memory(nested(_part_of(flat(params), trunk, part)))


def _part_of(leaves: Mapping[str, Any], trunk: nn.Module, part: Part) -> dict[str, Any]:
  """The parameters of one of two trunks that were trained together, with what it shares and its own head."""
  second = any(path.startswith('generator/') for path in leaves)
  if part == 'generator':
    if not second:
      raise WeightsError('this run has no parameters of a generator')
    own = {
      f'trunk/{path}': leaves.get(f'generator/{path}', leaves.get(f'trunk/{path}')) for path in shapes.shapes(trunk)
    }
    heads = {path: leaf for path, leaf in leaves.items() if path.startswith('mlm/')}
    return {path: leaf for path, leaf in own.items() if leaf is not None} | heads
  out = dict(leaves)
  if 'delta/table' in out:  # what the table of tokens is beyond the generator's
    out[TOKENS] = out.pop('delta/table') + out['generator/token_embed/table']
  theirs = ('generator/', 'mlm/') if second else ()
  return {path: leaf for path, leaf in out.items() if not path.startswith(theirs)}


def in_memory(params: PyTree) -> dict[str, Leaf]:
  """The leaves of a tree by path."""
  return {path: _leaf(array) for path, array in flat(params).items()}


def _leaf(array: Any) -> Leaf:
  return Leaf(tuple(np.shape(array)), lambda layer: np.asarray(array if layer is None else array[layer]))


def _own_model(path: Path, part: Part) -> tuple[dict[str, Any], int]:
  """The model block and the vocabulary size of a run folder or of an import."""
  try:
    if (path / checkpoint.INDEX).is_file():
      about = json.loads((path / 'model.json').read_text(encoding='utf-8'))
      return about['model'], about['vocab_size']
    settings = json.loads((path / 'config.json').read_text(encoding='utf-8'))
    vocab = json.loads((path / 'vocab' / 'vocab.json').read_text(encoding='utf-8'))
    model = settings['model'] if part == 'trunk' else (settings['objective'] or {}).get('generator')
  except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
    raise WeightsError(
      f'{path} is neither a Hugging Face folder (config.json with a model_type) nor a run folder nor an import: {error}'
    ) from error
  if model is None:
    raise WeightsError(f'{path / "config.json"}: the objective of this run has no generator')
  return model, vocab['size']


def _flat_heads(params: Mapping[str, Any]) -> PyTree:
  """{'trunk': ..., <head>: ...} -> the trunk's own tree with the heads beside its parts."""
  heads = {name: tree for name, tree in params.items() if name != 'trunk'}
  return {**params['trunk'], **heads}


def split_heads(trunk: nn.Module, params: Mapping[str, Any]) -> dict[str, Any]:
  """Undoes `_flat_heads`; leaves the parameters of a run as they are."""
  if 'trunk' in params:
    return dict(params)
  own = {path.split('/')[0] for path in shapes.shapes(trunk)}
  heads = {name: tree for name, tree in params.items() if name not in own}
  return {'trunk': {name: tree for name, tree in params.items() if name in own}, **heads}
