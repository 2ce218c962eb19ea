"""Frozen parameters of a run whose checkpoints hold only trained parameters (`save='trained'`).

They are read again from the sources of `init_from` whenever the run is opened. Their checksums are stored next to the
steps, so that a changed source is detected.
"""

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from plm_jax.checkpoint.fit import is_stacked, join
from plm_jax.checkpoint.init_from import Entry
from plm_jax.checkpoint.params import Leaf, Params, on_host
from plm_jax.checkpoint.saved_steps import CheckpointError
from plm_jax.core.param_paths import flat
from plm_jax.core.types import PyTree
from plm_jax.io import checksums, files

NAME = 'frozen.json'  # in the folder of the checkpoints: path -> sha256


def write(checkpoints: Path, params: PyTree, *, main: bool, is_new: bool = False) -> None:
  """Write checksums of frozen parameters the first time; later compare with them.

  Args:
    params: the frozen parameters; None for others. All processes call.
    main: this process writes.
    is_new: nothing was saved yet, so checksums of an earlier start are ignored.

  Raises:
    CheckpointError: a parameter has changed since the run began.
  """
  now = {path: _digest(on_host(leaf)) for path, leaf in flat(params).items()}
  before = {} if is_new else read(checkpoints)
  if not before and main:
    checksums.write(checkpoints, {NAME: json.dumps(now, indent=1)})
  if changed := [path for path in before if before[path] != now.get(path)]:
    raise CheckpointError(_changed(changed[0], checkpoints))


def read(checkpoints: Path) -> dict[str, str]:
  """Read path -> checksum of frozen parameters; empty without any."""
  return checksums.read_json(checkpoints / NAME) if files.is_file(checkpoints / NAME) else {}


def leaves(checkpoints: Path, entries: Sequence[tuple[Entry, Params]]) -> dict[str, Leaf]:
  """Find the frozen parameters of a run, each checked when read.

  Args:
    entries: of `init_from` of the run, each with the parameters of its source.

  Raises:
    CheckpointError: no entry provides one of them.
  """
  expected, by_path = read(checkpoints), {}
  for entry, source in entries:
    above = f'{entry.from_}/' if entry.from_ else ''
    for name, leaf in source.items():
      path = join(entry.to, name.removeprefix(above))
      if name.startswith(above) and path in expected:
        by_path[path] = _checked(path, leaf, entry, expected[path], checkpoints)
  if missing := [path for path in expected if path not in by_path]:
    raise CheckpointError(_changed(missing[0], checkpoints))
  return by_path


def _checked(path: str, leaf: Leaf, entry: Entry, digest: str, checkpoints: Path) -> Leaf:
  layers = list(entry.layers) if entry.layers is not None and is_stacked(path) else None

  @functools.cache
  def whole() -> np.ndarray:
    value = np.asarray(leaf.read(None), np.float32, order='C')
    value = value if layers is None else value[layers]
    if _digest(value) != digest:
      raise CheckpointError(_changed(path, checkpoints))
    return value

  shape = leaf.shape if layers is None else (len(layers), *leaf.shape[1:])
  return Leaf(shape, lambda layer: whole() if layer is None else whole()[layer])


def _digest(array: np.ndarray) -> str:
  return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _changed(path: str, checkpoints: Path) -> str:
  return (
    f'{checkpoints} holds only what trained, and {path} is not in the sources of init_from with the values of the '
    'start of the run: restore these sources'
  )
