"""Frozen parameters of a run whose checkpoints hold only what trains (`save='trained'`).

They are read again from where `init_from` found them whenever the run is opened. Their digests stand beside the steps,
so that a source that is another one by now is noticed.
"""

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from plm_jax.checkpoint.init_from import Entry, is_stacked, join
from plm_jax.checkpoint.params import Leaf, Params, on_host
from plm_jax.checkpoint.saved_steps import CheckpointError
from plm_jax.core.param_paths import flat
from plm_jax.core.types import PyTree
from plm_jax.io import checksums, files

NAME = 'frozen.json'  # in the folder of the checkpoints: path -> sha256


def write(checkpoints: Path, params: PyTree, *, main: bool, anew: bool = False) -> None:
  """Writes the digests of frozen parameters, the first time, and later compares with them.

  Args:
    checkpoints: the folder.
    params: what is frozen; None where something is not. All processes call.
    main: whether this process writes.
    anew: nothing was saved yet, so what an earlier start wrote counts no more.

  Raises:
    CheckpointError: a parameter is another one than when the run began.
  """
  now = {path: _digest(on_host(leaf)) for path, leaf in flat(params).items()}
  before = {} if anew else read(checkpoints)
  if not before and main:
    checksums.write(checkpoints, {NAME: json.dumps(now, indent=1)})
  if changed := [path for path in before if before[path] != now.get(path)]:
    raise CheckpointError(_changed(changed[0], checkpoints))


def read(checkpoints: Path) -> dict[str, str]:
  """Path of each frozen parameter -> its digest; empty for a run that saves all."""
  return checksums.read_json(checkpoints / NAME) if files.is_file(checkpoints / NAME) else {}


def leaves(checkpoints: Path, entries: Sequence[tuple[Entry, Params]]) -> dict[str, Leaf]:
  """The frozen parameters of a run, each read and compared with its digest when it is asked for.

  Args:
    checkpoints: the folder.
    entries: of `init_from` of the run, each with the parameters of its source.

  Raises:
    CheckpointError: no entry gives one of them.
  """
  expected, found = read(checkpoints), {}
  for entry, source in entries:
    above = f'{entry.from_}/' if entry.from_ else ''
    for name, leaf in source.items():
      path = join(entry.to, name.removeprefix(above))
      if name.startswith(above) and path in expected:
        found[path] = _checked(path, leaf, entry, expected[path], checkpoints)
  if missing := [path for path in expected if path not in found]:
    raise CheckpointError(_changed(missing[0], checkpoints))
  return found


def _checked(path: str, leaf: Leaf, entry: Entry, digest: str, checkpoints: Path) -> Leaf:
  taken = list(entry.layers) if entry.layers is not None and is_stacked(path) else None

  @functools.cache
  def whole() -> np.ndarray:
    value = np.asarray(leaf.read(None), np.float32, order='C')
    value = value if taken is None else value[taken]
    if _digest(value) != digest:
      raise CheckpointError(_changed(path, checkpoints))
    return value

  shape = leaf.shape if taken is None else (len(taken), *leaf.shape[1:])
  return Leaf(shape, lambda layer: whole() if layer is None else whole()[layer])


def _digest(array: np.ndarray) -> str:
  return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _changed(path: str, checkpoints: Path) -> str:
  return (
    f'{checkpoints} holds only what trained, and {path} is not in the sources of init_from as it was when the run '
    'began: put them back'
  )
