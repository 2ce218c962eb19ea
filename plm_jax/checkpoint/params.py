"""Parameters on their own: read from a run's checkpoint, or written to and read from one safetensors file."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import safetensors
import safetensors.numpy
from etils import epath
from jax.experimental import multihost_utils

from plm_jax import files
from plm_jax.checkpoint import records, tensor_files
from plm_jax.checkpoint.records import CheckpointError, Step
from plm_jax.paths import flat, nested
from plm_jax.types import PyTree

NAME = 'params.safetensors'
INDEX = 'params.index.json'  # of several files, a layer of a stacked leaf an array of its own


class Leaf(NamedTuple):
  """A parameter that may still be on disk: its shape, and what reads it, or a layer of it, as a numpy array."""

  shape: tuple[int, ...]
  read: Callable[[int | None], np.ndarray]


def load_params(source: str | os.PathLike[str], *, step: Step = 'newest', subtree: str | None = None) -> PyTree:
  """Reads parameters only, checked against their digests.

  Args:
    source: a run folder, its `checkpoints`, a folder made by `save_params`, or the `.safetensors` file in it.
    step: of a run; see `steps.pick`.
    subtree: part of the parameters, such as 'trunk', or one leaf; None takes all.

  Returns:
    Nested dicts of numpy arrays; the array itself where `subtree` is a leaf.

  Raises:
    CheckpointError: nothing there, or damaged.
    ValueError: no such subtree.
  """
  folder = records.local(source)
  if (folder / INDEX).is_file():
    leaves = open_index(folder)
    names = _select(leaves, subtree, where=str(folder)) if subtree else {name: name for name in leaves}
    return nested({short: leaves[name].read(None) for short, name in names.items()})
  file = folder / NAME if folder.is_dir() else folder
  if file.is_file():
    return nested(_read_safetensors(file, subtree))
  folder = folder / 'checkpoints' if (folder / 'checkpoints').is_dir() else folder
  chosen = records.choose(folder, step)
  saved = records.read(folder / str(chosen)).leaves
  names = _select(saved, f'params/{subtree}' if subtree else 'params', where=f'step {chosen} in {folder}')
  item = nested({name: jax.ShapeDtypeStruct(saved[name][1], np.dtype(saved[name][0])) for name in names.values()})
  as_numpy = jax.tree.map(lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), item)
  read = ocp.args.PyTreeRestore(item=item, restore_args=as_numpy, partial_restore=True)
  try:
    restored = ocp.PyTreeCheckpointHandler().restore(epath.Path(folder / str(chosen) / records.ITEM), args=read)
  except records.FAILURES as error:
    raise CheckpointError(f'step {chosen} in {folder} is whole and could not be read: {error}') from error
  found = flat(restored)
  return nested({short: found[name] for short, name in names.items()})


def save_params(folder: str | os.PathLike[str], params: PyTree) -> Path:
  """Writes parameters as `params.safetensors`, leaf paths joined by '/', with their sha256 beside it.

  Args:
    folder: made where it is missing; a file of that name in it is replaced.
    params: nested dicts of arrays, numpy or placed on any devices. All processes call; process 0 writes.

  Returns:
    The file. `sha256sum -c` in the folder checks it.
  """
  folder = records.local(folder)
  file = folder / NAME
  host = {name: np.ascontiguousarray(_on_host(leaf)).reshape(leaf.shape) for name, leaf in flat(params).items()}
  if jax.process_index() == 0:
    folder.mkdir(parents=True, exist_ok=True)
    with files.replacing(file) as temporary:
      safetensors.numpy.save_file(host, temporary)
      sha256 = files.sha256(temporary)
    files.write_text(_sha256_file(file), f'{sha256}  {NAME}\n')
  return file


def _select(names: Iterable[str], path: str, *, where: str) -> dict[str, str]:
  """Name below `path` -> full name; raises ValueError with the choices where nothing is below it."""
  names = list(names)
  found = {name[len(path) :].lstrip('/'): name for name in names if f'{name}/'.startswith(f'{path}/')}
  if not found:
    depth = path.count('/') + 1
    choices = sorted({'/'.join(name.split('/')[:depth]) for name in names if name.startswith(path.rpartition('/')[0])})
    raise ValueError(f'{where} has nothing under {path!r}; there is {", ".join(choices) or "nothing at all"}')
  return found


def _read_safetensors(file: Path, subtree: str | None) -> dict[str, np.ndarray]:
  try:
    expected = _sha256_file(file).read_text(encoding='utf-8').split()[0]
  except (OSError, IndexError, ValueError) as error:
    raise CheckpointError(
      f'{_sha256_file(file)} is missing or empty, so {file.name} cannot be checked: save it again with save_params, '
      f'or, if you trust it, run `sha256sum {file.name} > {_sha256_file(file).name}` there'
    ) from error
  if files.sha256(file) != expected:
    raise CheckpointError(f'{file} is damaged: its sha256 is not the one in {_sha256_file(file).name}')
  with safetensors.safe_open(file, framework='numpy') as tensors:
    present = list(tensors.keys())
    names = _select(present, subtree, where=str(file)) if subtree else {name: name for name in present}
    return {short: tensors.get_tensor(name) for short, name in names.items()}


def write_index(folder: Path, layers: Mapping[str, int | None]) -> None:
  """Says where the leaves of several files are, and what the sha256 of each file is.

  Args:
    folder: with the files.
    layers: leaf path -> None, or the number of layers of a stacked leaf, which are arrays `path@0`, `path@1`, ...
  """
  names = sorted(file.name for file in folder.glob('params-*.safetensors'))
  content = {
    'leaves': dict(layers),
    'sha256': {name: files.sha256(folder / name) for name in names},
  }
  files.write_text(folder / INDEX, json.dumps(content, indent=1))


def open_index(folder: Path) -> dict[str, Leaf]:
  """The leaves of a folder with `write_index`, checked against their digests; each is read when it is asked for.

  Raises:
    CheckpointError: a file is missing or damaged.
  """
  try:
    index = json.loads((folder / INDEX).read_text(encoding='utf-8'))
    layers, digests = dict(index['leaves']), dict(index['sha256'])
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise CheckpointError(f'{folder / INDEX} is damaged ({type(error).__name__}: {error}): import again') from error
  for name, sha256 in digests.items():
    if not (folder / name).is_file() or files.sha256(folder / name) != sha256:
      raise CheckpointError(
        f'{folder / name} is missing or damaged: its sha256 is not the one in {INDEX}; import again'
      )
  containers = [tensor_files.Container(folder / name) for name in digests]
  holds = {array: container for container in containers for array in container.tensors}
  lost = [path for path, count in layers.items() if (path if count is None else f'{path}@0') not in holds]
  if lost:
    raise CheckpointError(f'{folder / INDEX} names {lost[0]}, which is in none of the files: import again')
  return {path: _leaf(path, count, holds) for path, count in layers.items()}


def _leaf(path: str, layers: int | None, holds: Mapping[str, tensor_files.Container]) -> Leaf:
  def array(name: str) -> np.ndarray:
    return holds[name].read(name)

  def read(layer: int | None) -> np.ndarray:
    if layers is None:
      return array(path)
    if layer is not None:
      return array(f'{path}@{layer}')
    whole = np.empty(shape, first.dtype)
    for number in range(layers):
      whole[number] = array(f'{path}@{number}')
    return whole

  name = path if layers is None else f'{path}@0'
  first = holds[name].tensors[name]
  shape = first.shape if layers is None else (layers, *first.shape)
  return Leaf(shape, read)


def _sha256_file(file: Path) -> Path:
  return file.with_name(f'{file.name}.sha256')


def _on_host(leaf: jax.Array | np.ndarray) -> np.ndarray:
  if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
  return np.asarray(leaf)
