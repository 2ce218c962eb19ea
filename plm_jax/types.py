"""The vocabulary of the package: what passes between its parts.

Everything else in `plm_jax` is a function or a module that takes and returns these. Dimensions are named the same
everywhere: b batch, l query length, m key length, d hidden, h heads, k head size, f feed-forward, v vocabulary,
n layers, t targets.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import flax.linen as nn
import jax
import numpy as np

Array = jax.Array
PyTree = Any
Batch = Mapping[str, Array]


class Example(NamedTuple):
  """One corrupted or formatted batch: what the model reads and what the loss reads.

  Attributes:
    inputs: exactly the keyword arguments of the model's `__call__`; leaves lead with the batch axis.
    targets: read by the loss that belongs to the `prepare` that made them, and by nobody else; likewise batched.
  """

  inputs: dict[str, Any]
  targets: dict[str, Array]


class Loss(NamedTuple):
  """What a loss returns.

  Attributes:
    value: f32[], the scalar to differentiate: a sum over the rows given, already divided by the whole batch's weight.
    metrics: name -> (sum, weight), both f32[]; divided only when they are read.
    carry: recurrent state for the next step; leaves lead with the batch axis.
  """

  value: Array
  metrics: dict[str, tuple[Array, Array]]
  carry: PyTree = ()


class Forward(Protocol):
  """A model with its parameters bound."""

  def __call__(
    self, *, method: str | None = None, train: bool | None = None, rng: Array | None = None, **inputs: Any
  ) -> Any:
    """Runs the model; `train` and `rng` left None are the step's own."""
    ...


class Task(NamedTuple):
  """A model and the pure functions that train and score it; made by every objective and every adapter.

  Attributes:
    model: trunk plus head; parameters are `{'trunk': ..., <head>: ...}`.
    prepare: (root key, whole batch) -> Example. Pure, fixed shapes; each loss term's weights are divided here by
      that term's total over the batch, so values of micro-batches and devices add up.
    loss: (forward, example, carry, rng) -> Loss.
    predict: (forward, example) -> host-side predictions, leaves lead with the batch axis.
    init_carry: batch size -> recurrent state at step 0.
    summary: summed metrics as means -> derived numbers (perplexity, bits per byte, ...).
    evaluate: like `loss`, where evaluation scores more than a step trains; None where they are the same.
    row_length: tokens of a raw row -> of the longest row that the trunk reads for it.
    classes: labels of rows or tokens that it tells apart, 0 to classes - 1; 0 where it reads none.
    class_names: their names, where the task depends on them.
    couples_rows: True where a row's loss depends on other rows (contrastive): such a task refuses accumulation.
  """

  model: nn.Module
  prepare: Callable[[Array, Batch], Example]
  loss: Callable[[Forward, Example, PyTree, Array], Loss]
  predict: Callable[[Forward, Example], dict[str, Array]] | None = None
  init_carry: Callable[[int], PyTree] = lambda batch_size: ()
  summary: Callable[[dict[str, float]], dict[str, float]] = lambda means: {}
  couples_rows: bool = False
  evaluate: Callable[[Forward, Example, PyTree, Array], Loss] | None = None
  row_length: Callable[[int], int] = lambda length: length
  classes: int = 0
  class_names: tuple[str, ...] = ()


class Source(NamedTuple):
  """Rows of one split, as a pure function of the step.

  Attributes:
    spec: key -> global shape and dtype of a batch (the longest bucket where there are several).
    rows: rows an epoch.
    read: step -> this host's batches from that step on, endlessly.
    once: every row exactly once; the last batch is padded with rows of `row_weight` 0.
    digest: hex digest of the source text, the vocabulary and the layout.
    names: the label names, for labelled sources that have them.
    classes: labels are 0 to classes - 1; 0 for a source without them.
    steps_per_epoch: batches that hold each row once.
  """

  spec: dict[str, jax.ShapeDtypeStruct]
  rows: int
  read: Callable[[int], Iterator[dict[str, np.ndarray]]]
  once: Callable[[], Iterator[dict[str, np.ndarray]]]
  digest: str
  names: tuple[str, ...] = ()
  classes: int = 0
  steps_per_epoch: int = 0


class Vocab(Protocol):
  """Text <-> ids. Special ids are None where the vocabulary has no such token."""

  @property
  def size(self) -> int: ...

  @property
  def digest(self) -> str: ...

  @property
  def pad_id(self) -> int: ...

  @property
  def unk_id(self) -> int | None: ...

  @property
  def cls_id(self) -> int | None: ...

  @property
  def sep_id(self) -> int | None: ...

  @property
  def mask_id(self) -> int | None: ...

  @property
  def bos_id(self) -> int | None: ...

  @property
  def eos_id(self) -> int | None: ...

  @property
  def special_ids(self) -> tuple[int, ...]: ...

  @property
  def starts_word(self) -> np.ndarray: ...

  @property
  def num_bytes(self) -> np.ndarray: ...

  @property
  def counts(self) -> np.ndarray | None: ...

  def encode(self, text: str, *, specials: bool = False) -> list[int]: ...

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...

  def decode(self, ids: Sequence[int]) -> str: ...

  def token(self, token_id: int) -> str: ...

  def id(self, token: str) -> int: ...

  def save(self, folder: str) -> None: ...


@dataclasses.dataclass(frozen=True)
class Paper:
  """Where an architecture or an objective stands in the field; `--list` and the taxonomy read it.

  Attributes:
    year: of first publication.
    title: short reference, e.g. 'Devlin et al., BERT'.
    architecture: the trunk's structure.
    objective_family: what its pre-training task is.
    supervision: where its pre-training labels come from.
    adapters: the adapters that its paper uses.
    extension: the kind of extended model, where it is one.
  """

  year: int
  title: str
  architecture: Literal['encoder', 'decoder', 'encoder-decoder', 'lstm', 'cnn', 'static', 'any']
  objective_family: Literal['autoregressive', 'denoising', 'permutation', 'contrastive', 'supervised']
  supervision: Literal['self-supervised', 'supervised', 'unsupervised'] = 'self-supervised'
  adapters: tuple[str, ...] = ()
  extension: str | None = None


@dataclasses.dataclass(frozen=True)
class Published:
  """The size of a published row.

  Attributes:
    vocab_size: ids of its vocabulary.
    parameters: the exact count of our trunk, pooler and output matrix included, pre-training head left out.
    paper: what the paper prints.
    note: what else is to be known about the figures.
    also: other exact counts of the row by what is counted: with its pre-training heads, with another vocabulary.
    source: year and short reference of its paper, where that is not the `PAPER` of the file.
  """

  vocab_size: int
  parameters: int
  paper: str
  note: str = ''
  also: tuple[tuple[str, int], ...] = ()
  source: tuple[int, str] | None = None


@dataclasses.dataclass(frozen=True)
class Execution:
  """How a model is computed, as opposed to what it computes.

  No field changes a result beyond rounding, but for other bits of dropout: `random` draws all of them otherwise, and
  `attention` those on attention weights where it is 'chunked'.

  Attributes:
    dtype: of activations and matrix products; parameters, norms, softmax and losses are float32.
    remat: what the backward pass keeps: 'none' everything, 'dots' matrix products without batch axes, 'full' only
      the input of each block.
    layers: 'scan' compiles one block, 'loop' unrolls it; same parameter tree either way.
    random: bit generator of dropout: 'threefry2x32', the same everywhere, or the faster 'rbg', which may differ from
      one kind of chip to another. Noise always uses threefry.
    attention: how softmax(q k) v is computed (layers/attention.py): 'xla' the plain formula, 'chunked' some queries at
      a time for long rows, 'flash' a kernel on TPUs, 'cudnn' one on GPUs; 'auto' takes a kernel where there is one for
      the device and the inputs, and else the plain formula; so does every step of generation.
  """

  dtype: Literal['float32', 'bfloat16', 'float16'] = 'float32'
  remat: Literal['none', 'dots', 'full'] = 'none'
  layers: Literal['scan', 'loop'] = 'scan'
  random: Literal['threefry2x32', 'rbg'] = 'threefry2x32'
  attention: Literal['auto', 'xla', 'chunked', 'flash', 'cudnn'] = 'auto'


def require(trunk: nn.Module, *, objective: str, attention: Sequence[str], inputs: Sequence[str]) -> None:
  """Raises where `trunk` cannot serve `objective`, naming what each of them has and wants.

  Args:
    trunk: declares `INPUTS` (the names its `__call__` takes) and `ATTENTION` ('bidirectional' or 'causal').
    objective: its name, for the message.
    attention: the kinds of attention that the objective can use.
    inputs: the input names that the objective hands over.
  """
  name = type(trunk).__name__
  if trunk.ATTENTION not in attention:
    raise ValueError(
      f'objective {objective!r} needs a trunk with {" or ".join(attention)} attention, and {name} is '
      f'{trunk.ATTENTION}: choose another model.name or objective.name (--list shows both)'
    )
  if missing := [name for name in inputs if name not in trunk.INPUTS]:
    raise ValueError(
      f'objective {objective!r} hands {missing} to {name}, which takes {", ".join(trunk.INPUTS)}: '
      'choose another model.name or objective.name (--list shows both)'
    )
