"""The correspondence between published tensors and our parameters: one list of entries per architecture.

"Ours" is a parameter of this package, "theirs" a tensor or a field of a folder in Hugging Face's form. A file
`weights/architectures/<architecture>.py` has

    MODEL                    the file of `models/` whose trunk it describes
    HEADS                    names of the pre-training heads that a folder may have, such as 'mlm'
    tasks(trunk)             suffix of the name of their class for a task ('ForTokenClassification') -> its `TaskHead`
    TYPED                    whether their model reads token_type_ids; False if missing
    MODEL_TYPES              the values of `model_type` in a Hugging Face config.json that it reads, a literal
    PREFIX                   prefix of the names of a model with a head, such as 'bert.'; absent without a head
    FIELDS                   every field of config.json that is used, fixed or inert (fields.py); others are ignored
    DERIVED                  suffix of the name of a buffer -> (trunk, tensor) -> whether the trunk computes the same
    OTHER_PREFIXES           optional: other prefixes in some of their classes
    UNUSED                   optional: patterns of names in published files that transformers does not read either
    read_config(theirs, names=())   config.json as a dict, and the names of the tensors, with PREFIX -> keywords of the
                             model's `make`, vocab_size, variant, overrides; it calls `fields.complete` first;
                             raises ValueError for unsupported fields
    write_config(trunk, heads)   -> config.json as a dict, with model_type and architectures
    entries(trunk, heads)    -> the list; `heads` are names of HEADS, and at most one of `tasks`; both raise ValueError
                             for another structure, and `entries` for a head that the form lacks

and no file access. A tensor that is in no entry, not derived and not unused raises an error.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import numpy as np

from plm_jax.checkpoint.tensor_files import Plan
from plm_jax.config import build
from plm_jax.io import files

Derived = Callable[[Any, np.ndarray], bool]  # (trunk, tensor)


class Part(NamedTuple):
  """Rows [start, stop) of `total` along `axis` of a joined tensor, such as the query in a joined [query, key, value].

  With `groups` > 1 the axis repeats that pattern: query, key and value of head 0, then those of head 1 (DeBERTa). Then
  `start`, `stop` and `total` count the rows of one head.
  """

  start: int
  stop: int
  total: int
  axis: int = 0
  groups: int = 1


class Entry(NamedTuple):
  """One of our parameters and the tensor that holds it."""

  ours: str  # leaf path, 'trunk/layers/query/kernel'. If `theirs` has '{layer}', the leaf is stacked along axis 0.
  # full name in the folder with `PREFIX`; '{layer}' is the index of the layer, '{inner}' that of a block in it
  theirs: str
  # 'same': theirs has our shape. 'reversed': theirs has our axes in reverse order, as kernels of a convolution.
  # 'outputs_first': theirs has our axes, outputs first. 'matrix': theirs is [inputs, outputs] or a flat vector, and
  # ours is [inputs..., outputs...]. 'linear': theirs is [outputs, inputs].
  form: Literal['same', 'reversed', 'outputs_first', 'matrix', 'linear'] = 'same'
  inputs: int = 1  # leading axes of ours (of one layer) that are inputs, for 'outputs_first', 'matrix' and 'linear'
  part: Part | None = None  # the section of their tensor, if it joins several of ours along its outputs
  first: int = 0  # index of the first layer in a stacked leaf
  # other names of the tensor; read by any of them, written only as `theirs`. If a folder has several, they must hold
  # the same numbers, except for names of other entries.
  tied: tuple[str, ...] = ()
  # names under which the tensor is also written, and read if `theirs` is missing: transformers has a parameter of that
  # name, but reads only `theirs`
  spare: tuple[str, ...] = ()
  optional: bool = False  # a folder may lack it (a pooler that its pre-training did not use)
  # with an empty `ours`: the shape of a tensor that the form requires and our trunk lacks; written as zeros
  zeros: tuple[int, ...] | None = None
  inner: int = 1  # blocks per layer, if `theirs` has '{inner}'; our slice i is block i % inner of layer i // inner

  @property
  def stacked(self) -> bool:
    return '{layer}' in self.theirs

  def name(self, layer: int) -> str:
    """Return the name of the tensor of one stacked slice."""
    index, inner = divmod(layer, self.inner)
    return self.theirs.replace('{layer}', str(self.first + index)).replace('{inner}', str(inner))


def linear(ours: str, theirs: str, *, inputs: int = 1, bias: bool = True, optional: bool = False) -> list[Entry]:
  """List the entries of a dense layer with bias, theirs [outputs, inputs]."""
  kernel = Entry(f'{ours}/kernel', f'{theirs}.weight', 'linear', inputs=inputs, optional=optional)
  if not bias:
    return [kernel]
  return [kernel, Entry(f'{ours}/bias', f'{theirs}.bias', 'matrix', inputs=2, optional=optional)]


def norm(ours: str, theirs: str) -> list[Entry]:
  """List the entries of a LayerNorm; old conversions use gamma and beta."""
  return [
    Entry(f'{ours}/scale', f'{theirs}.weight', tied=(f'{theirs}.gamma',)),
    Entry(f'{ours}/bias', f'{theirs}.bias', tied=(f'{theirs}.beta',)),
  ]


def other_depth(decoder: int, encoder: int) -> int | None:
  """Return our `num_decoder_layers`: None if equal to the encoder's."""
  return None if decoder == encoder else decoder


def has_output(names: Collection[str], *, tied: bool) -> bool:
  """Check for an output matrix: tied, or among known tensor names."""
  return tied or not names or not set(OUTPUTS).isdisjoint(names)


# For `DERIVED`: check that a buffer holds the values that a trunk computes.


def counts_up(trunk: nn.Module, tensor: np.ndarray) -> bool:
  """Check for 0, 1, 2, ... along the last axis (positions)."""
  return tensor.ndim > 0 and bool((tensor == np.arange(tensor.shape[-1])).all())


def is_zero(trunk: nn.Module, tensor: np.ndarray) -> bool:
  return not tensor.any()


def is_causal(trunk: nn.Module, tensor: np.ndarray) -> bool:
  """Check for a causal mask [..., l, l] of ones and zeros."""
  return tensor.ndim > 1 and bool((tensor == np.tri(*tensor.shape[-2:])).all())


def is_minus_infinity(trunk: nn.Module, tensor: np.ndarray) -> bool:
  """Check for scores that softmax turns into 0."""
  return bool((tensor <= -1e4).all())


POSITIONS: Mapping[str, Derived] = {'position_ids': counts_up, 'token_type_ids': is_zero}


def section(tensor: np.ndarray, part: Part) -> np.ndarray:
  """View the rows of a joined tensor that belong to `part`, writable.

  Rows 0 1 2 3 4 5 with groups=2, total=3, start=1 and stop=3 give [[1, 2], [4, 5]], [..., groups, stop - start, ...].
  Raises ValueError if the joined axis has another size.
  """
  leading, rows, trailing = tensor.shape[: part.axis], tensor.shape[part.axis], tensor.shape[part.axis + 1 :]
  if rows != part.groups * part.total:
    raise ValueError(f'axis {part.axis} has {rows} rows, not {part.groups * part.total}')
  # [..., groups * total, ...] -> [..., groups, total, ...]
  split = tensor.reshape(*leading, part.groups, part.total, *trailing)
  return split[(slice(None),) * (part.axis + 1) + (slice(part.start, part.stop),)]


def shape_of_theirs(entry: Entry, shape: tuple[int, ...]) -> tuple[int, ...]:
  """Compute the shape of their tensor from ours, of one layer."""
  if entry.form == 'same':
    return shape
  if entry.form == 'reversed':
    return shape[::-1]
  inputs, outputs = shape[: entry.inputs], shape[entry.inputs :]
  if entry.form == 'outputs_first':
    return outputs + inputs
  if not outputs:  # a bias or a scale
    return (math.prod(inputs),)
  matrix = math.prod(inputs), math.prod(outputs)
  return matrix[::-1] if entry.form == 'linear' else matrix


def view(entry: Entry, tensor: np.ndarray, shape: Sequence[int] | None) -> np.ndarray:
  """View their tensor as our leaf, or one layer of it.

  The elements are in our order, axes may still be merged. Raises ValueError unless it agrees with `shape`, that of
  ours; None skips the check.
  """
  # 1. Our part of a joined tensor: [..., groups * size, ...].
  if part := entry.part:
    own = section(tensor, part)
    tensor = own.reshape(*tensor.shape[: part.axis], -1, *tensor.shape[part.axis + 1 :])
  # 2. Compare its shape with ours.
  if shape is not None and tensor.shape != (expected := shape_of_theirs(entry, tuple(shape))):
    raise ValueError(f'its shape is {tuple(tensor.shape)} and not {expected}')
  # 3. Put the axes in our order.
  if entry.form == 'outputs_first':
    return np.moveaxis(tensor, range(-entry.inputs, 0), range(entry.inputs))
  return tensor.T if entry.form in ('linear', 'reversed') else tensor


def to_theirs(entry: Entry, array: np.ndarray) -> np.ndarray:
  """Convert our leaf, or one layer, to their tensor or part."""
  if entry.form in ('same', 'reversed'):
    return array.T if entry.form == 'reversed' else array
  if entry.form == 'outputs_first':
    return np.moveaxis(array, range(entry.inputs), range(-entry.inputs, 0))
  if array.ndim <= entry.inputs:  # a bias or a scale
    return array.reshape(-1)
  # [inputs..., outputs...] -> [inputs, outputs]
  matrix = array.reshape(math.prod(array.shape[: entry.inputs]), -1)
  return matrix.T if entry.form == 'linear' else matrix


OUTPUTS = 'lm_head.weight', 'embed_out.weight'  # their output matrix; the second is that of GPT-NeoX
TOKENS = 'trunk/token_embed/table'
OUTPUT = 'trunk/output/table'
POOLER = 'trunk/pooler/kernel'
HEAD = 'head'  # first name of an adapter's parameters
_PIECE = 2**20  # elements converted at a time


class Architecture(NamedTuple):
  """A file of `architectures/`, its attributes as listed at the top of this file."""

  name: str
  module: Any


def architectures() -> list[Architecture]:
  """List every file of `architectures/`."""
  names = [file.stem for file in files.listing(Path(__file__).parent / 'architectures', '[a-z]*.py')]
  return [Architecture(name, build.import_file(f'weights.architectures.{name}')) for name in names]


def entries_of(architecture: Architecture, trunk: nn.Module, heads: Sequence[str]) -> list[Entry]:
  """List the entries of an architecture with some heads.

  With the head of a task an output matrix is optional, and a pooler that the head reads is not.
  """
  task = next((head for end, head in architecture.module.tasks(trunk).items() if end in heads), None)
  optional = {} if task is None else {OUTPUT: True}
  if task is not None and task.pooler:
    optional |= {POOLER: False, POOLER.replace('kernel', 'bias'): False}
  entries = architecture.module.entries(trunk, heads)
  return [entry._replace(optional=optional.get(entry.ours, entry.optional)) for entry in entries]


def plan_of(array: np.ndarray) -> Plan:
  """Plan to write an array in memory as float32."""
  return Plan(np.dtype(np.float32), array.shape, lambda: pieces(array))


def pieces(view: np.ndarray) -> Iterator[np.ndarray]:
  """Yield an array as float32 rows of about 4 MB."""
  if view.ndim == 0:
    yield np.asarray(view, np.float32)
    return
  rows = max(1, _PIECE // max(1, view[0].size)) if len(view) else 1
  for start in range(0, len(view), rows):
    yield np.ascontiguousarray(view[start : start + rows], np.float32)
