"""The types that pass between the parts of the package.

All other files of `plm_jax` hold functions or modules that take and return these. Dimensions have the same names
everywhere: b batch, l query length, m key length, d hidden, h heads, k head size, f feed-forward, v vocabulary,
n layers, t targets.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

import flax.linen as nn
import jax
import numpy as np
from flax.core import FrozenDict

from plm_jax.core.subwords import Letters

Array = jax.Array
PyTree = Any
Batch = Mapping[str, Array]


# Batches, tasks and data sources -----------------------------------------------------------------------------------


class Example(NamedTuple):
  """One corrupted or formatted batch: inputs of the model and targets of the loss.

  Attributes:
    inputs: exactly the keyword arguments of the model's `__call__`; leaves lead with the batch axis.
    targets: read only by the loss that belongs to the same `prepare`; leaves lead with the batch axis.
  """

  inputs: dict[str, Any]
  targets: dict[str, Array]


class Loss(NamedTuple):
  """Result of a loss.

  Attributes:
    value: f32[], the scalar to differentiate: a sum over the given rows, already divided by the weight of the whole
      batch.
    metrics: name -> (sum, weight), both f32[]; divided only when they are reported. 'loss' is the one that lines show.
    carry: recurrent state for the next step; leaves lead with the batch axis.
    kept: path -> new value of a parameter without a gradient, such as the averages of a batch norm, over all rows of
      the batch (`Task.keeps`). The optimiser stores them, unless it freezes the parameter.
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
    """Run the model, a method of it by name, or a function.

    `train` and `rng` default to those of the step.
    """


EVERYTHING = ('.*',)  # pattern of all parameters
HEADS = ('(?!trunk/).*',)  # pattern of parameters outside the trunk


class Task(NamedTuple):
  """A model and the pure functions that train and score it; every objective and every adapter builds one.

  Most tasks set the first four fields and a few others. The fields come in four groups.

  Attributes, training:
    model: trunk plus head; parameters are `{'trunk': ..., <head>: ...}`.
    prepare: (root key, whole batch) -> Example. Pure, with fixed shapes. It divides the weights of each loss term by
      their total over the batch, so values of micro-batches and devices add up.
    loss: (forward, example, carry, rng) -> Loss.
    init_carry: batch size -> recurrent state at step 0.
    summary: means of metrics -> derived metrics (perplexity, bits per byte, ...). A mean of weight 0 is NaN.
    exact: sums and weights of all batches of an evaluation -> the same with the exact 'loss', for a loss of several
      terms, whose weights differ between batches.
    trains: patterns of the parameters that may train. One has to match the whole path, including the layer index
      ('trunk/layers/3/query/kernel'). All other parameters keep their values whatever `optim` specifies: they get no
      gradient, no weight decay and no optimiser state.
    advance: (parameters, completed updates int32[]) -> parameters, called on the initial parameters and after each
      update. It sets parameters without a gradient that depend on the step, such as the masks of pruning; None for
      nothing.
    rows: example -> {path of a table: ids that are read from it}, if a step reads few rows of the table. Only these
      rows are differentiated, updated and measured (optim/rows.py).
    update: (example, parameters, path -> learning rate) -> (parameters, metrics with 'gradient_norm', False if a number
      was not finite). It updates the tables of `rows` itself, instead of a gradient.
    couples_rows: True if a row's loss depends on other rows (contrastive); accumulation is then an error.
    keeps: True if `Loss.kept` has values of parameters; a mixture of tasks is then an error.

  Prediction and evaluation:
    predict: (forward, example) -> predictions for the host, leaves lead with the batch axis. It reduces on the device
      to classes, probabilities, n-best spans or tokens, and returns no logits over a vocabulary. A class is `label`
      with `probability` [c], a number `value`. Several classes are `probability` [c] and their `threshold`.
    evaluate: like `loss`, if evaluation scores more than a step trains; None for `loss` itself.
    scores: files of `plm_jax/scores/` that need all predictions at once; the default of `eval.NAME.scores`.

  Contract with the data:
    classes: labels are 0 to classes - 1; 0 if the task reads no labels.
    class_names: names of the labels, if the task depends on them.
    sentences: the sequences that it reads for a sentence of `data/minimal_pairs.py`; None for other data.
    parts: name -> task, for a task that trains one of several tasks per step. The batch key `part` is the index of the
      task in the order of names. The data have parts of the same names.
    row_length: tokens of a raw row -> tokens of the longest row that the trunk reads for it.
    for_documents: largest number of documents in a row -> the task with room for the tokens that each of them adds;
      None if they add none.
    check: called on the host with the first batch of each source; raises ValueError if the task cannot use its rows,
      for example if none of them has a blank to fill.

  Text:
    in_words: (predictions of one row, its record) -> the same in human-readable form: names, texts, a number.
    words: keys of `in_words` that scores may read in addition to those of `predict`.
  """

  # training
  model: nn.Module
  prepare: Callable[[Array, Batch], Example]
  loss: Callable[[Forward, Example, PyTree, Array], Loss]
  # the fourth field, since most adapters have one
  predict: Callable[[Forward, Example], dict[str, Array]] | None = None
  init_carry: Callable[[int], PyTree] = lambda batch_size: ()
  summary: Callable[[dict[str, float]], dict[str, float]] = lambda means: {}
  exact: Callable[[Mapping[str, tuple[Any, Any]]], Mapping[str, tuple[Any, Any]]] = lambda totals: totals
  trains: tuple[str, ...] = EVERYTHING
  advance: Callable[[PyTree, Array], PyTree] | None = None
  rows: Callable[[Example], Mapping[str, Array]] = lambda example: FrozenDict()
  update: Callable[[Example, PyTree, Mapping[str, Array]], tuple[PyTree, dict[str, Any], Array]] | None = None
  couples_rows: bool = False
  keeps: bool = False
  # prediction and evaluation
  evaluate: Callable[[Forward, Example, PyTree, Array], Loss] | None = None
  scores: tuple[str, ...] = ()
  # contract with the data
  classes: int = 0
  class_names: tuple[str, ...] = ()
  sentences: 'Sentences | None' = None
  parts: 'Mapping[str, Task]' = FrozenDict()  # hashable, since a cache needs the hash of a task
  row_length: Callable[[int], int] = lambda length: length
  for_documents: Callable[[int], 'Task'] | None = None
  check: Callable[[Mapping[str, Any]], None] | None = None
  # text
  in_words: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda prediction, record: {}
  words: tuple[str, ...] = ()


class Source(NamedTuple):
  """Rows of one split, as a pure function of the step.

  Attributes:
    spec: key -> global shape and dtype of a batch (of the longest bucket if there are several).
    rows: rows per epoch.
    read: step -> endless iterator over this host's batches from that step on.
    once: iterator over every row exactly once; the last batch is padded with rows of `row_weight` 0.
    digest: hex digest of the source text, the vocabulary and the layout.
    names: label names, if a labelled source has them.
    classes: labels are 0 to classes - 1; 0 for a source without labels.
    steps_per_epoch: batches that hold each row once.
    documents: largest number of documents in any row, as `segment_ids` numbers them.
    record: row_id -> host data of the row that no batch carries: gold texts, references, offsets, names of labels. It
      is the same on every host, whichever rows the host reads; `scores/__init__.py` lists the keys that scores share.
      It raises IndexError for an id that no row has. None without such data.
    group: row_id -> a hashable id that the row shares with related rows: the question of a window, the item of an
      option, or the pair that two rows hold in both orders. None if rows are unrelated.
    ids: exclusive upper bound of `row_id`; 0 means `rows`.
    parts: name -> source, if each batch comes from one part. The batch key `part` is its index in the order of names.
    unlabelled: some rows have no label. A setting `keep_unlabelled` of the source keeps them, for the test sets of
      benchmarks. Such a source is only predicted, never trained on or scored.
    places: labels are indices of options of the row, whatever names a list has.
  """

  # required
  spec: dict[str, jax.ShapeDtypeStruct]
  rows: int
  read: Callable[[int], Iterator[dict[str, np.ndarray]]]
  once: Callable[[], Iterator[dict[str, np.ndarray]]]
  digest: str
  # optional facts about the rows
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


class Sentences(NamedTuple):
  """Sequences of which a task computes the likelihood of a sentence.

  Attributes:
    before: special tokens before it.
    after: special tokens after it.
    mask_id: masks one token per sequence; None reads the whole sentence as one sequence.
    rest_of_word: the later tokens of the same word are masked too.
    longest: most tokens of a sequence, special tokens included; None for no bound.
  """

  before: tuple[int, ...] = ()
  after: tuple[int, ...] = ()
  mask_id: int | None = None
  rest_of_word: bool = False
  longest: int | None = None


class WordTable(NamedTuple):
  """Word vectors of a task, which `word_table` of its file computes from its parameters.

  Attributes:
    vectors: f32[v, d], by id.
    unseen: a word without an id -> f32[d]; None if only words of the vocabulary have vectors.
    letters: the tables behind them (fastText).
  """

  vectors: np.ndarray
  unseen: Callable[[str], np.ndarray] | None = None
  letters: Letters | None = None


class Template(NamedTuple):
  """Special tokens around the fields of a row, so that an exported tokenizer writes rows as training read them.

  Attributes:
    single: a row of one text: (special id or 'A' for the text, type) of each part.
    pair: a row of two texts, 'A' and 'B'.
    spaced: words that are tokenised separately have a space before each.
  """

  single: tuple[tuple[int | str, int], ...]
  pair: tuple[tuple[int | str, int], ...]
  spaced: bool = False


@dataclasses.dataclass(frozen=True)
class Labels:
  """Labels of the rows of a source, as in `Source`: names, number, and whether any are missing.

  `largest` is the file and line of the first row with the largest label, for messages. `parts` and `places` are as in
  `Source`. `mixed` has the labels of each source whose rows share batches. `record` gives the record of each of `rows`
  examples as `Source.record` does, without what tokenising adds.
  """

  names: tuple[str, ...] = ()
  classes: int = 0
  unlabelled: bool = False
  largest: str = dataclasses.field(default='', compare=False)
  parts: 'Mapping[str, Labels]' = dataclasses.field(default_factory=dict)
  mixed: 'Mapping[str, Labels]' = dataclasses.field(default_factory=dict)
  places: bool = False
  rows: int = 0
  record: Callable[[int], Mapping[str, Any]] | None = dataclasses.field(default=None, compare=False)


class Vocab(Protocol):
  """Conversion between text and ids. Special ids are None if the vocabulary has no such token."""

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

  def words(self, texts: Sequence[str]) -> list[list[int | None]]: ...

  def unknown(self, text: str) -> list[tuple[int, str]]: ...

  def decode(self, ids: Sequence[int]) -> str: ...

  def token(self, token_id: int) -> str: ...

  def id(self, token: str) -> int: ...

  def save(self, folder: str, *, template: Template | None = None) -> None: ...


# Descriptions of files, and settings of the computation --------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Paper:
  """The position of an architecture or an objective in the field, for `--list` and the taxonomy.

  The choices follow the survey of Qiu et al. 2020, §3. Its masked language models (MLM) and denoising autoencoders
  (DAE) are both 'denoising'. Its CTL, with pairs of sentences (NSP, SOP), is 'contrastive'. 'co-occurrence' is for its
  first generation (§2): neighbouring words are counted (GloVe) or predicted, without sampled words for contrast.

  Attributes:
    year: of first publication.
    title: short reference, e.g. 'Devlin et al., BERT'.
    architecture: structure of the trunk.
    objective_family: kind of pre-training task.
    supervision: origin of the pre-training labels.
    adapters: adapters that its paper uses.
    extension: kind of extended model, if it is one.
    transfer: for a model, its use on a task: 'features' are frozen inputs of a task-specific network, 'fine-tuning'
      trains all parameters with one new layer, 'joint' trains with the task.
  """

  year: int
  title: str
  architecture: Literal['encoder', 'decoder', 'encoder-decoder', 'lstm', 'cnn', 'static', 'any']
  objective_family: Literal['autoregressive', 'denoising', 'permutation', 'contrastive', 'co-occurrence', 'supervised']
  supervision: Literal['self-supervised', 'supervised', 'unsupervised'] = 'self-supervised'
  adapters: tuple[str, ...] = ()
  extension: Literal['knowledge-enriched', 'multilingual', 'multi-modal', 'domain-specific', 'compressed'] | None = None
  transfer: Literal['features', 'fine-tuning', 'joint'] = 'fine-tuning'


@dataclasses.dataclass(frozen=True)
class Supervised(Paper):
  """The position of a downstream task, which any trunk may serve."""

  architecture: Literal['encoder', 'decoder', 'encoder-decoder', 'lstm', 'cnn', 'static', 'any'] = 'any'
  objective_family: Literal['supervised'] = 'supervised'
  supervision: Literal['supervised'] = 'supervised'


@dataclasses.dataclass(frozen=True)
class Published:
  """Size of a published model.

  Attributes:
    parameters: exact count of our trunk, including pooler and output matrix, without the pre-training head.
    paper: size as the paper prints it.
    note: other remarks about the figures.
    also: other exact counts: (description, count), for example with its pre-training heads, or with another vocabulary.
    source: year and short reference of its paper, if it is not the `PAPER` of the file.
  """

  vocab_size: int
  parameters: int
  paper: str
  note: str = ''
  also: tuple[tuple[str, int], ...] = ()
  source: tuple[int, str] | None = None


Remat = Literal['none', 'dots', 'full']
Layers = Literal['scan', 'loop', 'auto']
Implementation = Literal['auto', 'xla', 'chunked', 'flash', 'tiled', 'cudnn']


@dataclasses.dataclass(frozen=True)
class Execution:
  """Settings of the computation of a model, which do not change its results.

  No field changes a result beyond rounding, except for the bits of dropout: `random` changes all of them, and
  `attention` those on attention weights if it is 'chunked' or 'tiled'.

  Attributes:
    dtype: of activations and matrix products; parameters, norms, softmax and losses are float32.
    remat: values that the backward pass saves: 'none' all values, 'dots' matrix products without batch axes, 'full'
      only the input of each block. Layers of AWD-LSTM, CoVe, cross-view training and ELMo save their states and
      compute windows of a row again; under 'dots' they also save the products of their inputs (layers/recurrence.py).
    layers: 'scan' compiles one block, 'loop' unrolls it, 'auto' unrolls it on TPUs; the parameter tree is the same.
    random: bit generator of dropout: 'threefry2x32', the same everywhere, or the faster 'rbg', which may differ between
      kinds of chips. Noise always uses threefry.
    attention: implementation of softmax(q k) v (layers/attention.py). 'xla' is the plain formula, 'chunked' computes
      some queries at a time for long rows. 'flash' and 'tiled' are kernels on TPUs; the second has dropout, biases and
      any mask. 'cudnn' is a kernel on GPUs. 'auto' selects a kernel if the device has one for the inputs, and else the
      plain formula, which every step of generation uses. The log reports the choice with its reason.
  """

  dtype: Literal['float32', 'bfloat16', 'float16'] = 'float32'
  remat: Remat = 'none'
  layers: Layers = 'scan'
  random: Literal['threefry2x32', 'rbg'] = 'threefry2x32'
  attention: Implementation = 'auto'


def nothing_after(vocab: Vocab) -> int:
  """Return the `next_token` of a row that nothing follows.

  It is the padding, or -1 if texts end with the padding token as well.
  """
  return -1 if vocab.pad_id == vocab.eos_id else vocab.pad_id
