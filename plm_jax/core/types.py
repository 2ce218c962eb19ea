"""The vocabulary of the package: what passes between its parts.

Everything else in `plm_jax` is a function or a module that takes and returns these. Dimensions are named the same
everywhere: b batch, l query length, m key length, d hidden, h heads, k head size, f feed-forward, v vocabulary,
n layers, t targets.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import flax.linen as nn
import jax
import numpy as np
from flax.core import FrozenDict

Array = jax.Array
PyTree = Any
Batch = Mapping[str, Array]


# Rows, tasks and where rows come from ------------------------------------------------------------------------------


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
    kept: path -> new value of a parameter that no gradient moves, as the averages of a batch norm, of all rows of the
      batch (`Task.keeps`). The optimiser puts them in, unless it freezes the parameter.
  """

  value: Array
  metrics: dict[str, tuple[Array, Array]]
  carry: PyTree = ()
  kept: Mapping[str, Array] = FrozenDict()


class Forward(Protocol):
  """A model with its parameters bound."""

  def __call__(
    self,
    *,
    method: str | Callable[..., Any] | None = None,
    train: bool | None = None,
    rng: Array | None = None,
    **inputs: Any,
  ) -> Any:
    """Runs the model, a method of it by name, or a function of it; `train` and `rng` left None are the step's own."""


EVERYTHING = ('.*',)  # patterns of all parameters
HEADS = ('(?!trunk/).*',)  # of those outside the trunk


class Task(NamedTuple):
  """A model and the pure functions that train and score it; made by every objective and every adapter.

  Attributes:
    model: trunk plus head; parameters are `{'trunk': ..., <head>: ...}`.
    prepare: (root key, whole batch) -> Example. Pure, fixed shapes; each loss term's weights are divided here by
      that term's total over the batch, so values of micro-batches and devices add up.
    loss: (forward, example, carry, rng) -> Loss.
    predict: (forward, example) -> host-side predictions, leaves lead with the batch axis. It reduces on the device:
      what a row is thought to be (classes, probabilities, n-best spans, tokens), no logits over a vocabulary.
    init_carry: batch size -> recurrent state at step 0.
    summary: summed metrics as means -> derived numbers (perplexity, bits per byte, ...).
    evaluate: like `loss`, where evaluation scores more than a step trains; None where they are the same.
    row_length: tokens of a raw row -> of the longest row that the trunk reads for it.
    for_documents: most documents of a row -> the task with room for what each of them adds; None where none adds.
    classes: labels of rows or tokens that it tells apart, 0 to classes - 1; 0 where it reads none.
    class_names: their names, where the task depends on them.
    scores: files of `plm_jax/scores/` that need all predictions at once; they are the default of `eval.NAME.scores`.
    in_words: (predictions of one row, its record) -> the same for a reader, as plain data: names, texts, a number.
    words: keys of `in_words` that scores may read beside those of `predict`.
    check: called with the first batch of each source, on the host; raises ValueError where its rows are not those that
      the task is for, as where a blank to be filled is in none of them.
    trains: patterns of the parameters that may train: one has to match the whole path, with the number of its layer
      ('trunk/layers/3/query/kernel'). All others keep their values whatever `optim` says: they get no gradient and no
      weight decay, and have no optimiser state.
    parts: name -> task, of a task that trains one of several a step: that which `part` numbers, in the order of names.
      The data have parts of the same names.
    advance: (parameters, updates done int32[]) -> parameters, called on the first ones of a run and after each update.
      It sets what a task keeps among its parameters and no gradient moves, as the masks of pruning; None for nothing.
    rows: example -> {path of a table: ids that are read of it}, of tables of which a step reads few rows. Only these
      are differentiated, updated and measured (optim/rows.py).
    couples_rows: True where a row's loss depends on other rows (contrastive): such a task refuses accumulation.
    keeps: True where `Loss.kept` has values of parameters, which a mixture of tasks refuses.
  """

  model: nn.Module
  prepare: Callable[[Array, Batch], Example]
  loss: Callable[[Forward, Example, PyTree, Array], Loss]
  predict: Callable[[Forward, Example], dict[str, Array]] | None = None
  init_carry: Callable[[int], PyTree] = lambda batch_size: ()
  summary: Callable[[dict[str, float]], dict[str, float]] = lambda means: {}
  couples_rows: bool = False
  keeps: bool = False
  rows: Callable[[Example], Mapping[str, Array]] = lambda example: FrozenDict()
  advance: Callable[[PyTree, Array], PyTree] | None = None
  evaluate: Callable[[Forward, Example, PyTree, Array], Loss] | None = None
  row_length: Callable[[int], int] = lambda length: length
  for_documents: Callable[[int], 'Task'] | None = None
  classes: int = 0
  class_names: tuple[str, ...] = ()
  trains: tuple[str, ...] = EVERYTHING
  scores: tuple[str, ...] = ()
  in_words: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda prediction, record: {}
  words: tuple[str, ...] = ()
  check: Callable[[Mapping[str, Any]], None] | None = None
  parts: 'Mapping[str, Task]' = FrozenDict()  # a task without parts has a hash, as a cache asks for


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
    documents: the most documents, as `segment_ids` numbers them, of any row.
    record: row_id -> host data of the row that no batch carries: gold texts, references, offsets, names of labels. The
      same on every host, whichever rows it reads; `scores/__init__.py` lists the keys that scores share. An
      IndexError for a number that no row has. None where there is no such data.
    group: row_id -> what the row belongs to together with others, anything hashable: the question of its window, the
      item of its option, the pair of which it is one order. None where rows stand alone.
    ids: numbers of rows (`row_id`) lie below it; 0 where they count the rows, and lie below `rows`.
    parts: name -> source, where each batch is one part's, which `part` numbers in the order of names.
    unlabelled: some rows have no label. Rows are kept so that they can be predicted (a setting `keep_unlabelled` of
      the source, for the test sets of benchmarks); nothing is trained or scored on such a source.
    places: labels are numbers of options of the row, whatever a list calls them.
  """

  spec: dict[str, jax.ShapeDtypeStruct]
  rows: int
  read: Callable[[int], Iterator[dict[str, np.ndarray]]]
  once: Callable[[], Iterator[dict[str, np.ndarray]]]
  digest: str
  names: tuple[str, ...] = ()
  classes: int = 0
  steps_per_epoch: int = 0
  documents: int = 1
  record: Callable[[int], Mapping[str, Any]] | None = None
  group: Callable[[int], Hashable] | None = None
  ids: int = 0
  unlabelled: bool = False
  parts: 'Mapping[str, Source]' = MappingProxyType({})
  places: bool = False


class WordTable(NamedTuple):
  """The word vectors of a task, as `word_table` of its file makes them of its parameters.

  Attributes:
    vectors: f32[v, d], of each id.
    unseen: a word that has no id -> f32[d]; None where only words of the vocabulary have vectors.
  """

  vectors: np.ndarray
  unseen: Callable[[str], np.ndarray] | None = None


class Template(NamedTuple):
  """The special tokens around the fields of a row, so that a tokenizer that is exported writes rows as training read.

  Attributes:
    single: a row of one text: (special id or 'A' for the text, type) of each part.
    pair: a row of two, 'A' and 'B'.
    spaced: words that are tokenised one by one have a space before each.
  """

  single: tuple[tuple[int | str, int], ...]
  pair: tuple[tuple[int | str, int], ...]
  spaced: bool = False


@dataclasses.dataclass(frozen=True)
class Labels:
  """The labels of the rows of a source, as in `Source`: their names, if any, their number, and whether any lack.

  `largest` is the file and line of the first row with the largest label, for messages; `parts` and `places` are as in
  `Source`.
  `mixed` are the labels of each source whose rows stand in the same batches.
  """

  names: tuple[str, ...] = ()
  classes: int = 0
  unlabelled: bool = False
  largest: str = dataclasses.field(default='', compare=False)
  parts: 'Mapping[str, Labels]' = dataclasses.field(default_factory=dict)
  mixed: 'Mapping[str, Labels]' = dataclasses.field(default_factory=dict)
  places: bool = False


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

  def encode_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]: ...

  def unknown(self, text: str) -> list[tuple[int, str]]: ...

  def decode(self, ids: Sequence[int]) -> str: ...

  def token(self, token_id: int) -> str: ...

  def id(self, token: str) -> int: ...

  def save(self, folder: str, *, template: Template | None = None) -> None: ...


# What a file of the package says of itself, and how it is computed -------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Paper:
  """Where an architecture or an objective stands in the field; `--list` and the taxonomy read it.

  The choices follow the survey of Qiu et al. 2020, §3. Its masked language models (MLM) and denoising autoencoders
  (DAE) are 'denoising' both; its CTL, with pairs of sentences (NSP, SOP), is 'contrastive'. 'co-occurrence' is for its
  first generation (§2): which words stand near each other, counted (GloVe) or predicted, where no other word is drawn
  for a contrast.

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
  objective_family: Literal['autoregressive', 'denoising', 'permutation', 'contrastive', 'co-occurrence', 'supervised']
  supervision: Literal['self-supervised', 'supervised', 'unsupervised'] = 'self-supervised'
  adapters: tuple[str, ...] = ()
  extension: Literal['knowledge-enriched', 'multilingual', 'multi-modal', 'domain-specific', 'compressed'] | None = None


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


Remat = Literal['none', 'dots', 'full']
Layers = Literal['scan', 'loop']
Implementation = Literal['auto', 'xla', 'chunked', 'flash', 'tiled', 'cudnn']


@dataclasses.dataclass(frozen=True)
class Execution:
  """How a model is computed, as opposed to what it computes.

  No field changes a result beyond rounding, but for other bits of dropout: `random` draws all of them otherwise, and
  `attention` those on attention weights where it is 'chunked' or 'tiled'.

  Attributes:
    dtype: of activations and matrix products; parameters, norms, softmax and losses are float32.
    remat: what the backward pass keeps: 'none' everything, 'dots' matrix products without batch axes, 'full' only
      the input of each block. Layers of AWD-LSTM, CoVe, cross-view training and ELMo keep their states, under 'dots'
      also the products of their inputs, and compute windows of a row again (layers/lstm.py).
    layers: 'scan' compiles one block, 'loop' unrolls it; same parameter tree either way.
    random: bit generator of dropout: 'threefry2x32', the same everywhere, or the faster 'rbg', which may differ from
      one kind of chip to another. Noise always uses threefry.
    attention: how softmax(q k) v is computed (layers/attention.py): 'xla' the plain formula, 'chunked' some queries at
      a time for long rows, 'flash' and 'tiled' kernels on TPUs, of which the second has dropout, biases and any mask,
      'cudnn' one on GPUs; 'auto' takes a kernel where there is one for the device and the inputs, and else the plain
      formula, which every step of generation takes. The log says which, with the reason.
  """

  dtype: Literal['float32', 'bfloat16', 'float16'] = 'float32'
  remat: Remat = 'none'
  layers: Layers = 'scan'
  random: Literal['threefry2x32', 'rbg'] = 'threefry2x32'
  attention: Implementation = 'auto'


def nothing_after(vocab: Vocab) -> int:
  """The `next_token` of a row that nothing follows: the padding, or -1 where texts end with that token as well."""
  return -1 if vocab.pad_id == vocab.eos_id else vocab.pad_id


# What a keyword is -------------------------------------------------------------------------------------------------

# Annotations of keywords are read from source and never evaluated (config/values.py). A bound is written as a
# comparison with x, or 'any' where every number has a meaning; a kind names what stands in a block:
# `Annotated[Mapping[str, Any], 'noise.where']`. Any float is 0 or a number that float32 holds (`values.in_float32`).
Rate = Annotated[float, '0 <= x <= 1']
PartRate = Annotated[float, '0 <= x < 1']  # of what is lost, so that something is left: dropout, smoothing of labels
Count = Annotated[int, '1 <= x']
Whole = Annotated[int, '0 <= x']
Depth = Annotated[int, '1 <= x <= 10_000']  # layers, each of which costs time to trace or to index
Weight = Annotated[float, '0 <= x <= 1_000_000']  # of a term of a loss, or a share in any proportion
Std = Annotated[float, '0 <= x <= 100']  # of initial values
Epsilon = Annotated[float, '0 < x <= 1']  # keeps a divisor from 0
Momentum = Annotated[float, '0 <= x < 1']  # decay of a mean over steps
Temperature = Annotated[float, '0 < x <= 1_000_000']
LayerNumber = Annotated[int, '-1000 <= x < 1000']  # from 0, or from -1 downwards
Seed = Annotated[int, '0 <= x < 4_294_967_296']  # 32 bits
# of a run: whole steps, or a fraction of it up to 1.0
Duration = Annotated[int, '0 <= x <= 1_000_000_000'] | Annotated[float, '0 <= x <= 1_000_000_000']
