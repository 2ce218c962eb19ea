"""How the tensors of a published release correspond to our parameters: one list of entries per architecture.

"Ours" is a parameter of this package, "theirs" a tensor or a field of a release in Hugging Face's form. A file
`weights/architectures/<architecture>.py` has

    MODEL                    the file of `models/` whose trunk it describes
    HEADS                    names of the pre-training heads that a release may have, such as 'mlm'
    tasks(trunk)             end of the name of their class for a task ('ForTokenClassification') -> its `TaskHead`
    TYPED                    whether their model reads token_type_ids; False where it is left out
    MODEL_TYPES              the values of `model_type` in a Hugging Face config.json that it reads, a literal
    PREFIX                   start of the names of a model with a head, such as 'bert.'; without a head they lack it
    FIELDS                   every field of config.json that is used, fixed or inert (fields.py); others are left alone
    DERIVED                  end of the name of a buffer -> (trunk, tensor) -> whether it holds what the trunk computes
    OTHER_PREFIXES           optional: what stands in its place in some of their classes
    UNUSED                   patterns of names that published files have and that transformers does not read either
    read_config(theirs, names=())   config.json as a dict, and the names of the tensors, with PREFIX -> keywords of the
                             model's `make`, vocab_size, variant, overrides; it calls `fields.complete` first
    write_config(trunk, heads)   -> config.json as a dict, with model_type and architectures
    entries(trunk, heads)    -> the list; `heads` are names of HEADS, and at most one of `tasks`

and nothing that reads or writes files. A tensor that is in no entry, not derived and not unused is refused.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import numpy as np

from plm_jax.config import build
from plm_jax.io import files

Derived = Callable[[Any, np.ndarray], bool]  # (trunk, tensor)


class Part(NamedTuple):
  """Rows [start, stop) of `total` along `axis` of a joined tensor, such as the query in a joined [query, key, value].

  With `groups` > 1 the axis repeats that pattern: query, key and value of head 0, then those of head 1 (DeBERTa);
  `start`, `stop` and `total` then count the rows of one head.
  """

  start: int
  stop: int
  total: int
  axis: int = 0
  groups: int = 1


class Entry(NamedTuple):
  """One parameter of ours and the tensor that holds it.

  Attributes:
    ours: leaf path, 'trunk/layers/query/kernel'. Where `theirs` has '{layer}', the leaf is stacked along axis 0.
    theirs: full name in the release with `PREFIX`; '{layer}' is the number of the layer, '{inner}' that of a block in
      it.
    form: 'same': theirs has our shape. 'reversed': theirs has our axes from last to first, as kernels of a convolution
      have. 'outputs_first': theirs has our axes, those of the outputs first. 'matrix': theirs is [inputs, outputs] or a
      flat vector, and ours is [inputs..., outputs...]. 'linear': theirs is [outputs, inputs].
    inputs: leading axes of ours (of one layer) that are inputs, for 'outputs_first', 'matrix' and 'linear'.
    part: where theirs joins several of ours along its outputs.
    first: number of the first layer in a stacked leaf.
    optional: a release may lack it (a pooler that its pre-training did not use).
    zeros: where `ours` is '': the shape of a tensor that the form requires and our trunk lacks; it is written as zeros.
    inner: blocks per layer, where `theirs` has '{inner}'; our slice i is block i % inner of layer i // inner.
    tied: other names that the tensor may have in a release; read by any of them, written only as `theirs`. Where a
      release has several, they must hold the same numbers, but for a name that another entry has as its own.
    spare: names under which the tensor is written as well, and read where `theirs` is missing: transformers has a
      parameter of that name, and reads `theirs` alone.
  """

  ours: str
  theirs: str
  form: Literal['same', 'reversed', 'outputs_first', 'matrix', 'linear'] = 'same'
  inputs: int = 1
  part: Part | None = None
  first: int = 0
  tied: tuple[str, ...] = ()
  spare: tuple[str, ...] = ()
  optional: bool = False
  zeros: tuple[int, ...] | None = None
  inner: int = 1

  @property
  def stacked(self) -> bool:
    return '{layer}' in self.theirs

  def name(self, layer: int) -> str:
    """The name of the tensor that holds slice `layer` of the stacked leaf."""
    number, inner = divmod(layer, self.inner)
    return self.theirs.replace('{layer}', str(self.first + number)).replace('{inner}', str(inner))


def linear(ours: str, theirs: str, *, inputs: int = 1, bias: bool = True, optional: bool = False) -> list[Entry]:
  """A dense layer, where theirs is [outputs, inputs]; its bias has one axis, or two of heads."""
  kernel = Entry(f'{ours}/kernel', f'{theirs}.weight', 'linear', inputs=inputs, optional=optional)
  if not bias:
    return [kernel]
  return [kernel, Entry(f'{ours}/bias', f'{theirs}.bias', 'matrix', inputs=2, optional=optional)]


class TaskHead(NamedTuple):
  """The head that a class of theirs has for a task, and the adapter that computes the same.

  Attributes:
    adapter: the file of `adapters/`.
    entries: its parameters, 'head/...', and those of the trunk that such a class alone has.
    settings: of the adapter, what the parameters do not say: the activation between two layers.
    pooler: the class reads the trunk's pooler by the name that it has without a head too.
    unpadded: the class reads the last token that is not padding, whatever ends a text.
  """

  adapter: str
  entries: tuple[Entry, ...]
  settings: Mapping[str, Any] = MappingProxyType({})
  pooler: bool = False
  unpadded: bool = False


def one_layer(adapter: str, theirs: str, *, pooler: bool = False) -> TaskHead:
  """A head of one dense layer with a bias."""
  return TaskHead(adapter, tuple(linear('head', theirs)), pooler=pooler)


def two_layers(adapter: str, dense: str, out: str, *, activation: str) -> TaskHead:
  """A head of two dense layers with an activation between them, a name of `layers.mlp.ACTIVATIONS`."""
  layers = *linear('head/hidden', dense), *linear('head/out', out)
  return TaskHead(adapter, layers, MappingProxyType({'activation': activation}))


def encoder_tasks() -> dict[str, TaskHead]:
  """The heads of BERT: a layer on the pooler for rows and for options, a layer on every state for tokens and spans."""
  return {
    'ForSequenceClassification': one_layer('classify', 'classifier', pooler=True),
    'ForTokenClassification': one_layer('tag', 'classifier'),
    'ForMultipleChoice': one_layer('choose', 'classifier', pooler=True),
    'ForQuestionAnswering': one_layer('span', 'qa_outputs'),
  }


def score() -> TaskHead:
  """The head of decoders that classifies by the last token: one matrix without a bias."""
  return TaskHead('classify', (Entry('head/kernel', 'score.weight', 'linear'),), unpadded=True)


def is_task(head: str) -> bool:
  """Whether a name among `heads` is the end of a name of theirs for a task."""
  return head.startswith('For')


def of_task(tasks: Mapping[str, TaskHead], heads: Sequence[str]) -> list[Entry]:
  """The parameters of the task among `heads`, if there is one."""
  return [entry for head in heads if head in tasks for entry in tasks[head].entries]


def norm(ours: str, theirs: str) -> list[Entry]:
  """A LayerNorm; old conversions from TensorFlow call its parameters gamma and beta."""
  return [
    Entry(f'{ours}/scale', f'{theirs}.weight', tied=(f'{theirs}.gamma',)),
    Entry(f'{ours}/bias', f'{theirs}.bias', tied=(f'{theirs}.beta',)),
  ]


def check_heads(heads: Sequence[str], known: Sequence[str], tasks: Mapping[str, TaskHead]) -> None:
  """Raises ValueError for a head that the published form has no place for."""
  if other := sorted(set(heads) - {*known, *tasks}):
    raise ValueError(
      f'the published form has no place for {", ".join(other)}; heads that it has: '
      f'{", ".join((*known, *tasks)) or "none"}'
    )


def other_depth(decoder: int, encoder: int) -> int | None:
  """Our `num_decoder_layers`: None where the decoder is as deep as the encoder."""
  return None if decoder == encoder else decoder


def has_output(names: Collection[str], *, tied: bool) -> bool:
  """Whether a release can give logits: by the tied table, or by a matrix of its own among its tensors, if known."""
  return tied or not names or 'lm_head.weight' in names


# For `DERIVED`: whether a buffer holds what a trunk computes by itself.


def counts_up(trunk: nn.Module, tensor: np.ndarray) -> bool:
  """0, 1, 2, ... along the last axis, as positions do."""
  del trunk
  return tensor.ndim > 0 and bool((tensor == np.arange(tensor.shape[-1])).all())


def is_zero(trunk: nn.Module, tensor: np.ndarray) -> bool:
  """Zero everywhere."""
  del trunk
  return not tensor.any()


def is_causal(trunk: nn.Module, tensor: np.ndarray) -> bool:
  """1 where a query may look at a key, not after itself, and else 0: [..., l, l]."""
  del trunk
  return tensor.ndim > 1 and bool((tensor == np.tri(*tensor.shape[-2:])).all())


def is_minus_infinity(trunk: nn.Module, tensor: np.ndarray) -> bool:
  """A score that softmax makes 0."""
  del trunk
  return bool((tensor <= -1e4).all())


POSITIONS: Mapping[str, Derived] = MappingProxyType({'position_ids': counts_up, 'token_type_ids': is_zero})


def section(tensor: np.ndarray, part: Part) -> np.ndarray:
  """The rows of a joined tensor that belong to `part`, [..., groups, stop - start, ...]: a view that may be written to.

  Raises:
    ValueError: the joined axis has another size.
  """
  before, rows, after = tensor.shape[: part.axis], tensor.shape[part.axis], tensor.shape[part.axis + 1 :]
  if rows != part.groups * part.total:
    raise ValueError(f'axis {part.axis} has {rows} rows, not {part.groups * part.total}')
  split = tensor.reshape(*before, part.groups, part.total, *after)
  return split[(slice(None),) * (part.axis + 1) + (slice(part.start, part.stop),)]


def shape_of_theirs(entry: Entry, shape: tuple[int, ...]) -> tuple[int, ...]:
  """The shape of their tensor, or of their part of it, for our leaf (or one layer of it) of `shape`."""
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
  """A view of their tensor with the elements of our leaf, or of one layer of it, in our order.

  Args:
    entry: the correspondence.
    tensor: the whole tensor of the release.
    shape: the shape of ours; None skips the check.

  Raises:
    ValueError: the shapes do not agree.
  """
  if part := entry.part:
    own = section(tensor, part)
    tensor = own.reshape(*tensor.shape[: part.axis], -1, *tensor.shape[part.axis + 1 :])
  if shape is not None and tensor.shape != (expected := shape_of_theirs(entry, tuple(shape))):
    raise ValueError(f'its shape is {tuple(tensor.shape)} and not {expected}')
  if entry.form == 'outputs_first':
    return np.moveaxis(tensor, range(-entry.inputs, 0), range(entry.inputs))
  return tensor.T if entry.form in ('linear', 'reversed') else tensor


def to_ours(entry: Entry, tensor: np.ndarray, shape: Sequence[int]) -> np.ndarray:
  """Our leaf, or one layer of it, from their whole tensor.

  Raises:
    ValueError: the sizes do not agree.
  """
  return view(entry, tensor, shape).reshape(tuple(shape))


def to_theirs(entry: Entry, array: np.ndarray) -> np.ndarray:
  """Their tensor, or their part of it, from our leaf or one layer of it."""
  if entry.form in ('same', 'reversed'):
    return array.T if entry.form == 'reversed' else array
  if entry.form == 'outputs_first':
    return np.moveaxis(array, range(entry.inputs), range(-entry.inputs, 0))
  if array.ndim <= entry.inputs:  # a bias or a scale
    return array.reshape(-1)
  matrix = array.reshape(math.prod(array.shape[: entry.inputs]), -1)
  return matrix.T if entry.form == 'linear' else matrix


def read(
  entries: Sequence[Entry], tensors: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int]]
) -> dict[str, np.ndarray]:
  """Our parameters, leaf path -> array, from tensors that are all in memory (`weights.open` reads one at a time).

  Args:
    entries: the entries of the architecture.
    tensors: name -> whole tensor.
    shapes: leaf path -> shape of ours, stacked axis included.

  Raises:
    KeyError: a tensor is missing.
    ValueError: a shape does not fit.
  """
  out: dict[str, np.ndarray] = {}
  for entry in entries:
    shape = tuple(shapes[entry.ours])
    if entry.stacked:
      layers = [to_ours(entry, tensors[entry.name(layer)], shape[1:]) for layer in range(shape[0])]
      out[entry.ours] = np.stack(layers)
    else:
      name = next((name for name in (entry.theirs, *entry.tied) if name in tensors), entry.theirs)
      out[entry.ours] = to_ours(entry, tensors[name], shape)
  return out


TOKENS = 'trunk/token_embed/table'
OUTPUT = 'trunk/output/table'
POOLER = 'trunk/pooler/kernel'
HEAD = 'head'  # of an adapter, in our parameters
_PIECE = 2**20  # elements converted at a time


class Architecture(NamedTuple):
  """A file of `architectures/`; the docstring of this file says what `module` has."""

  name: str
  module: Any


def architectures() -> list[Architecture]:
  """Every file of `architectures/`."""
  names = [file.stem for file in files.listing(Path(__file__).parent / 'architectures', '[a-z]*.py')]
  return [Architecture(name, build.import_file(f'weights.architectures.{name}')) for name in names]


def entries_of(architecture: Architecture, trunk: nn.Module, heads: Sequence[str]) -> list[Entry]:
  """Its entries; beside the head of a task an output matrix may be missing, a pooler that the head reads may not."""
  task = next((one for end, one in architecture.module.tasks(trunk).items() if end in heads), None)
  optional = {} if task is None else {OUTPUT: True}
  if task is not None and task.pooler:
    optional |= {POOLER: False, POOLER.replace('kernel', 'bias'): False}
  found = architecture.module.entries(trunk, heads)
  return [entry._replace(optional=optional.get(entry.ours, entry.optional)) for entry in found]


def pieces(view: np.ndarray) -> Iterator[np.ndarray]:
  """The elements of an array in order, as float32 arrays of some rows each (about 4 MB)."""
  if view.ndim == 0:
    yield np.asarray(view, np.float32)
    return
  rows = max(1, _PIECE // max(1, view[0].size)) if len(view) else 1
  for start in range(0, len(view), rows):
    yield np.ascontiguousarray(view[start : start + rows], np.float32)
