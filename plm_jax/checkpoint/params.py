"""Parameters without the rest of a training state: read from a run's checkpoint or from safetensors files, and saved.

Three forms are read: a step of a run (Orbax); the output of `save_params`, one `params.safetensors` with its sha256
next to it; and the output of `plm-jax convert import`, several files with an index. Everything is checked against its
checksum before use.
"""

import functools
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import safetensors.numpy
from jax.experimental import multihost_utils

from plm_jax.checkpoint import saved_steps, tensor_files
from plm_jax.checkpoint.saved_steps import CheckpointError, Step
from plm_jax.core.errors import RunError
from plm_jax.core.param_paths import flat, nested
from plm_jax.core.types import PyTree
from plm_jax.io import checksums, files, run_paths

NAME = 'params.safetensors'
# file names that `weights.word_vectors.is_vectors` accepts, human-readable
VECTOR_FILES = 'whose name ends in .txt, .vec or .bin, or in one of them and .gz'
AVERAGES = 'opt_state/average/params'  # of trained parameters, in the state of a run with `ema` or ASGD
_MOST_LAYERS = 10_000
INDEX = 'params.index.json'  # of several files, in which each layer of a stacked leaf is a separate array


class Leaf(NamedTuple):
  """A parameter that may still be on disk.

  Attributes:
    shape: of the whole leaf.
    read: None -> the whole leaf, an index -> that layer of a stacked leaf. The array has the stored dtype and may be a
      view of a larger one; do not write to it.
  """

  shape: tuple[int, ...]
  read: Callable[[int | None], np.ndarray]


class Params(Mapping[str, Leaf]):
  """Saved parameters: leaf path, joined by '/', -> `Leaf`. Leaves are read into memory on request.

  Attributes:
    where: their location, for messages.
  """

  def __init__(
    self,
    leaves: Mapping[str, Leaf],
    *,
    where: str,
    read: Callable[[Collection[str]], Mapping[str, np.ndarray]] | None = None,
  ):
    """Name the leaves.

    Args:
      leaves: by path.
      read: paths -> arrays, if reading several at once is faster.
    """
    self._leaves = dict(leaves)
    self.where = where
    self._read = read or (lambda names: {name: self._leaves[name].read(None) for name in names})

  def __getitem__(self, path: str) -> Leaf:
    return self._leaves[path]

  def __iter__(self) -> Iterator[str]:
    return iter(self._leaves)

  def __len__(self) -> int:
    return len(self._leaves)

  def arrays(self, subtree: str | None = None) -> dict[str, np.ndarray]:
    """Read the leaves below `subtree`, such as 'trunk'.

    Path below it -> array. The path is '' if `subtree` is a leaf.

    Raises:
      ValueError: nothing has that name.
    """
    names = _below(self._leaves, subtree, where=self.where) if subtree else {name: name for name in self._leaves}
    by_name = self._read(list(names.values()))
    return {short: by_name[name] for short, name in names.items()}

  def each(self, most: int = 2**28) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (path, array) of every leaf in order.

    About `most` bytes of float32 are read at a time, or one larger leaf.
    """
    group: list[str] = []
    for name in self._leaves:
      size = sum(4 * math.prod(self._leaves[other].shape) for other in (*group, name))
      if group and size > most:
        yield from self._read(group).items()
        group = []
      group.append(name)
    if group:
      yield from self._read(group).items()

  def tree(self, subtree: str | None = None) -> PyTree:
    """Read `arrays` as nested dicts, or one array for a leaf."""
    return nested(self.arrays(subtree))

  def with_sums(self, sums: Mapping[str, tuple[str, str]]) -> 'Params':
    """Add leaves of `sums` whose pair of parts is here."""
    pairs = {path: pair for path, pair in sums.items() if path not in self and all(part in self for part in pair)}

    def read(names: Collection[str]) -> dict[str, np.ndarray]:
      parts = self._read(list(dict.fromkeys(part for name in names for part in pairs.get(name, (name,)))))
      return {name: parts[pairs[name][0]] + parts[pairs[name][1]] if name in pairs else parts[name] for name in names}

    def sum_of(first: Leaf, second: Leaf) -> Leaf:
      return Leaf(shape=first.shape, read=lambda layer: first.read(layer) + second.read(layer))

    added = {path: sum_of(self[first], self[second]) for path, (first, second) in pairs.items()}
    return Params({**self._leaves, **added}, where=self.where, read=read)


def in_memory(params: PyTree, *, where: str = 'memory') -> Params:
  """Wrap nested dicts of arrays as `Params`."""
  return Params({path: _leaf_of(array) for path, array in flat(params).items()}, where=where)


def open_params(source: str | os.PathLike[str], *, step: Step = 'newest') -> Params:
  """Open parameters in a form of this package.

  `weights.open` also takes Hugging Face's form. For a run that averages its parameters these are the averages, which
  its evaluations read.

  Args:
    source: a run folder, its `checkpoints`, a folder made by `save_params` or the `.safetensors` file in it, or a
      folder made by `plm-jax convert import`.
    step: of a run; see `saved_steps.choose`.

  Raises:
    CheckpointError: nothing there, or damaged.
  """
  folder = saved_steps.place(source)
  if files.is_file(folder / INDEX):
    return _open_index(folder)
  file = folder / NAME if files.is_folder(folder) else folder
  if files.is_file(file):
    return _open_file(file)
  inside = run_paths.RunFolder(folder).checkpoints
  return _open_step(inside if files.is_folder(inside) else folder, step)


def save_params(folder: str | os.PathLike[str], params: PyTree) -> Path:
  """Write parameters as `params.safetensors`, with their sha256 next to it.

  Args:
    folder: created if missing; a file of that name in it is replaced.
    params: nested dicts of arrays, numpy or placed on any devices; names are leaf paths joined by '/'. All processes
      call; process 0 writes.

  Returns:
    The file. `sha256sum -c` in the folder checks it.
  """
  folder = saved_steps.place(folder)
  file = folder / NAME
  host = {name: np.ascontiguousarray(on_host(leaf)).reshape(leaf.shape) for name, leaf in flat(params).items()}
  if jax.process_index() == 0:
    files.make_folder(folder)
    with files.replacing(file) as temporary:
      safetensors.numpy.save_file(host, temporary)
      sha256 = files.sha256(temporary)
    files.write_text(_sha256_file(file), f'{sha256}  {NAME}\n')
  return file


def write_index(folder: Path, layers: Mapping[str, int | None]) -> None:
  """Write the locations of leaves, and the sha256 of each file.

  Args:
    folder: with the files, `params-*.safetensors`.
    layers: leaf path -> None, or the number of layers of a stacked leaf, which are arrays `path@0`, `path@1`, ...
  """
  digests = {file.name: files.sha256(file) for file in files.listing(folder, 'params-*.safetensors')}
  files.write_json(folder / INDEX, {'leaves': dict(layers), 'sha256': digests})


def _open_step(folder: Path, step: Step) -> Params:
  """Open the parameters of a step; the first leaf reads all."""
  chosen = saved_steps.choose(folder, step)
  where = f'step {chosen} in {folder}'
  saved = saved_steps.read(folder / str(chosen)).leaves
  names = _below(saved, 'params', where=where)
  averaged = {path: f'{AVERAGES}/{path}' for path in names}
  names = {path: averaged[path] if averaged[path] in saved else name for path, name in names.items()}
  item = saved_steps.item(folder, chosen)

  def read(paths: Collection[str]) -> dict[str, np.ndarray]:
    wanted = {names[path]: saved[names[path]] for path in paths}
    target = nested({name: jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for name, (dtype, shape) in wanted.items()})
    as_numpy = jax.tree.map(lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), target)
    arguments = ocp.args.PyTreeRestore(item=target, restore_args=as_numpy, partial_restore=True)
    try:
      restored = flat(ocp.PyTreeCheckpointHandler().restore(item, args=arguments))
    except saved_steps.FAILURES as error:
      raise CheckpointError(f'{where} is complete but could not be read: {error}') from error
    return {path: restored[names[path]] for path in paths}

  everything = functools.cache(lambda: read(list(names)))

  def leaf(path: str) -> Leaf:
    return Leaf(saved[names[path]][1], lambda layer: _layer(everything()[path], layer))

  return Params({path: leaf(path) for path in names}, where=where, read=read)


def _open_file(file: Path) -> Params:
  if file.suffix != '.safetensors' and not files.is_file(_sha256_file(file)):
    raise CheckpointError(
      f'{file} is no file of saved parameters, such as {NAME}: name a run folder or one with saved parameters, or a '
      f'file of word vectors, {VECTOR_FILES}'
    )
  try:
    expected = files.read_text(_sha256_file(file)).split()[0]
  except (OSError, IndexError, ValueError) as error:
    raise CheckpointError(
      f'{_sha256_file(file)} is missing or empty, so {file.name} cannot be checked: save it again with save_params, '
      f'or, if you trust it, run `sha256sum {file.name} > {_sha256_file(file).name}` there'
    ) from error
  if files.sha256(file) != expected:
    raise CheckpointError(
      f'{file} is damaged: its sha256 differs from {_sha256_file(file).name}; restore a copy or save it again'
    )
  container = tensor_files.Container(file)

  def leaf(name: str) -> Leaf:
    shape = container.tensors[name].shape
    return Leaf(shape, lambda layer: _layer(container.read(name), layer))

  return Params({name: leaf(name) for name in container.tensors}, where=str(file))


def _open_index(folder: Path) -> Params:
  try:
    index = checksums.read_json(folder / INDEX)
    layers, digests = index['leaves'], index['sha256']
    if not isinstance(digests, dict):
      raise TypeError("'sha256' is not an object")
    arrays = {name for path, count in layers.items() for name in _arrays(path, count)}
  except (OSError, ValueError, KeyError, TypeError, AttributeError, RunError) as error:
    raise CheckpointError(f'{folder / INDEX} is damaged ({type(error).__name__}: {error}): import again') from error
  for name, sha256 in digests.items():
    if Path(name).name != name or not files.is_inside(folder / name, folder):
      raise CheckpointError(f'{folder / INDEX} names {name}, which is outside of the folder: import again')
    if not files.is_file(folder / name) or files.sha256(folder / name) != sha256:
      raise CheckpointError(f'{folder / name} is missing or damaged: its sha256 differs from {INDEX}; import again')
  containers = [tensor_files.Container(folder / name) for name in digests]
  holds = {array: container for container in containers for array in container.tensors}
  if other := sorted(arrays ^ holds.keys()):
    which = 'names' if other[0] in arrays else 'does not name'
    where = 'in none of the files' if other[0] in arrays else 'in one of the files'
    raise CheckpointError(f'{folder / INDEX} {which} {other[0]}, which is {where}: import again')
  return Params({path: _indexed(path, count, holds) for path, count in layers.items()}, where=str(folder))


def _arrays(path: str, layers: Any) -> list[str]:
  """List the array names of a leaf; raise ValueError for invalid layers."""
  if layers is None:
    return [path]
  if type(layers) is not int or not 0 < layers <= _MOST_LAYERS:
    raise ValueError(f'{path} has {layers!r} layers')
  return [f'{path}@{layer}' for layer in range(layers)]


def _indexed(path: str, layers: int | None, holds: Mapping[str, tensor_files.Container]) -> Leaf:
  """Return a leaf of an index: `path`, or layers `path@0`, `path@1`, ..."""

  def array(name: str) -> np.ndarray:
    return holds[name].read(name)

  def read(layer: int | None) -> np.ndarray:
    if layers is None:
      return array(path)
    if layer is not None:
      return array(f'{path}@{layer}')
    whole = np.empty(shape, first.dtype)
    for index in range(layers):
      whole[index] = array(f'{path}@{index}')
    return whole

  name = path if layers is None else f'{path}@0'
  first = holds[name].tensors[name]
  shape = first.shape if layers is None else (layers, *first.shape)
  return Leaf(shape, read)


def _leaf_of(array: jax.Array | np.ndarray) -> Leaf:
  return Leaf(tuple(np.shape(array)), lambda layer: np.asarray(_layer(array, layer)))


def _layer(array: Any, layer: int | None) -> Any:
  return array if layer is None else array[layer]


def _below(names: Iterable[str], path: str, *, where: str) -> dict[str, str]:
  """Map names below `path` to full names; raise ValueError for none."""
  names = list(names)
  by_short_name = {name[len(path) :].lstrip('/'): name for name in names if f'{name}/'.startswith(f'{path}/')}
  if not by_short_name:
    depth = path.count('/') + 1
    choices = sorted({'/'.join(name.split('/')[:depth]) for name in names if name.startswith(path.rpartition('/')[0])})
    raise ValueError(f'{where} has nothing under {path!r}; there is {", ".join(choices) or "nothing at all"}')
  return by_short_name


def _sha256_file(file: Path) -> Path:
  return file.with_name(f'{file.name}.sha256')


def on_host(leaf: jax.Array | np.ndarray) -> np.ndarray:
  """Copy a whole array to this host; all processes call it."""
  if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
  return np.asarray(leaf)
