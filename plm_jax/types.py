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


# What a trunk offers -----------------------------------------------------------------------------------------------

# which positions a position sees; 'none' where its vector does not depend on its neighbours
AttentionKind = Literal['bidirectional', 'causal', 'prefix', 'permutation', 'encoder-decoder', 'none']


class HeadStyle(NamedTuple):
  """What a head on the vocabulary is built like, so that it fits its trunk.

  Attributes:
    activation: a name of `layers.mlp.ACTIVATIONS`.
    norm_epsilon: of its LayerNorm.
    init_std: standard deviation of its initial kernels.
  """

  activation: str
  norm_epsilon: float
  init_std: float


class Trunk(Protocol):
  """What every file of `models/` makes. Heads, objectives, adapters and weights read this of a trunk and nothing else.

  Attributes:
    INPUTS: names of the keyword arguments of `__call__`.
    ATTENTION: which positions a position sees.
    NAME: the file of `models/` that defines it.
    config: sizes; read by the file itself and by `weights/`, which writes them as another library names them.
    vocab_size: ids of the vocabulary.
    execution: how it is computed.
  """

  INPUTS: tuple[str, ...]
  ATTENTION: AttentionKind
  NAME: str
  config: Any
  vocab_size: int
  execution: Execution

  @property
  def hidden_dim(self) -> int:
    """d, the width of `hidden`."""

  @property
  def position_rows(self) -> dict[str, range]:
    """Path of each learned table of positions -> its rows that stand for a position, from position 0 on."""

  def __call__(self, *args: Any, **inputs: Any) -> dict[str, Any]:
    """'hidden' [b, l, d] after any final norm; 'layers' [n+1, b, l, d], embeddings first; 'carry'.

    A layer whose width is not d is left out of 'layers'.
    With two stacks `hidden` and `layers` are the decoder's, and 'encoder_hidden' and 'encoder_layers' stand beside.
    All parameters of an untied output matrix exist after the first call, whether it was used or not.
    """

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """What stands for a row: [b, l, d] -> [b, d]."""

  def init_carry(self, batch_size: int) -> PyTree:
    """Recurrent state at step 0, () for none; leaves lead with the batch axis."""

  def init_all(self) -> None:
    """Touches every parameter; `trunk.init(key, method='init_all')` makes a whole trunk."""


class Attends(Protocol):
  """A trunk that gives logits over its vocabulary.

  Attributes:
    token_dim: e, the width of the features that `attend` takes.
    head_style: what a head in front of `attend` is built like.
  """

  @property
  def token_dim(self) -> int: ...

  @property
  def head_style(self) -> HeadStyle: ...

  def attend(self, features: Array) -> Array:
    """Vocabulary logits f32[..., v] of features [..., e], by the tied table or the trunk's own output matrix."""


class SharesTokens(Protocol):
  """A trunk whose token table a second trunk may read, which is given it as `embed`.

  Attributes:
    embed: the table of another trunk, which this one reads in place of its own.
  """

  embed: nn.Module | None

  @property
  def token_embed(self) -> nn.Module:
    """The table, of a trunk that is bound or set up inside another module."""


class Shares(Protocol):
  """A trunk whose tables a second one of the same NAME may all read, which is given the trunk as `embeddings`.

  Attributes:
    embeddings: another trunk, whose tables this one reads in place of its own; its token table comes as `embed`.
  """

  embeddings: nn.Module | None

  @property
  def token_embed(self) -> nn.Module: ...

  @property
  def embedding_sizes(self) -> dict[str, int]:
    """Sizes that two trunks must have in common to share all tables, by the names of `Config`."""


class Decodes(Protocol):
  """A trunk that generates token by token.

  A trunk with an encoder also has `encode`, (int[b, m], segment_ids, positions) -> [b, m, d], and its `init_cache`
  takes `encoder_hidden` and `encoder_segment_ids`.
  """

  def init_cache(self, batch_size: int, length: int) -> PyTree:
    """An empty cache with a slot for each of `length` tokens, a dictionary.

    'index' int32[], slots in use; 'segment_ids' and 'positions' int32[b, m]; 'keys' [n, b h, k, m] and
    'values' [n, b h, m, k], or of a recurrent trunk 'states' and 'cells' [n, b, m, w]. What else there is has no slots;
    all leaves of four axes are kept per layer.
    """

  def decode_step(self, tokens: Array, cache: PyTree, **inputs: Array) -> tuple[Array, PyTree]:
    """Reads s more tokens int[b, s], with `segment_ids` and `positions`: logits f32[b, s, v] and the new cache.

    The cache may have fewer or more slots than `init_cache` made. With 'seen' bool[b, s, m] in it, a token sees the
    slots of its own row of that table, and its own; otherwise those up to its own.
    """


class ReadsStates(Protocol):
  """A trunk with an encoder that may read the states of another encoder, which is given as `source`.

  Attributes:
    source: an encoder of any `Trunk`, of the same width; its vocabulary is that of the texts that are read.
  """

  source: nn.Module | None


class Refines(Protocol):
  """A trunk whose last block runs again with other queries (DeBERTa's enhanced mask decoder, He et al. 2020, §3.2)."""

  @property
  def decoder_positions(self) -> int:
    """Absolute positions that the decoder tells apart; 0 where absolute positions enter at the input."""

  def refine(self, query: Array, hidden: Array, segment_ids: Array, *, train: bool = False) -> Array: ...


class Directions(Protocol):
  """A recurrent trunk that reads both ways; the directions of its first layer have not seen each other."""

  def with_dropout(self, rate: float) -> Any:
    """The same trunk, with the same names of parameters, under another rate of dropout."""

  def directions(self, layers: Array, segment_ids: Array) -> tuple[Array, Array]:
    """States of each layer read forward and backward: [n+1, b, l, d] and int[b, l] -> two of [n, b, l, f]."""


class Ends(Protocol):
  """A recurrent trunk that reads both ways and says where it ends, so that a decoder may go on from there.

  Its call also gives 'ends': h and c [b, n, d], the two directions of each layer side by side, after the last token
  and after the first.

  Attributes:
    FIXED: patterns of its parameters that are given and never train.
  """

  FIXED: tuple[str, ...]

  @property
  def num_layers(self) -> int:
    """n."""


class Remembers(Protocol):
  """A trunk whose carry is a memory of the rows before (Transformer-XL)."""

  def reuse(self, length: int) -> int:
    """Positions at the start of a row of this length that enter the memory."""


class Streams(Protocol):
  """A trunk of two language models that read a text from either end, row after row (ELMo).

  Attributes:
    direction_dim: p, the width of a state of one direction.
  """

  @property
  def direction_dim(self) -> int: ...

  def stream(self, forward: Array, backward: Array, *, carry: PyTree, train: bool = False) -> tuple[Array, PyTree]:
    """Characters int[b, l, 50] in the order of either direction -> states [b, l, 2, p] in the same, the next carry."""


# Keys of a batch ---------------------------------------------------------------------------------------------------


def nothing_after(vocab: Vocab) -> int:
  """The `next_token` of a row that nothing follows: the padding, or -1 where texts end with that token as well."""
  return -1 if vocab.pad_id == vocab.eos_id else vocab.pad_id


SLOTS = 50  # of a word that is read by its characters


class BatchKey(NamedTuple):
  """One key of a batch.

  Attributes:
    axes: by letter: b rows, l tokens, t tokens of targets, k sequences or options of a row, c the slots of a word.
    dtype: of its numbers.
    meaning: what it holds.
    filler: what stands where a row has nothing: 0, -1, or None for `Vocab.pad_id`.
  """

  axes: str
  dtype: str
  meaning: str
  filler: int | None = 0


# The only list of them. Objectives and adapters name those that they read in `READS`, files of `data/` those that they
# may give in `GIVES`. An entry of `READS` may say other axes, as 'tokens[bkl]' for k options per row. `row_id`, `epoch`
# and `row_weight` are always there, so nobody names them.
BATCH: Mapping[str, BatchKey] = MappingProxyType(
  {
    'tokens': BatchKey('bl', 'int32', 'ids, `Vocab.pad_id` where there is no token', None),
    'segment_ids': BatchKey('bl', 'int32', 'numbers the documents of a row from 1; 0 is padding'),
    'type_ids': BatchKey('bl', 'int32', 'which field of the example a token belongs to, from 0'),
    'label': BatchKey('b', 'int32', 'class, -1 where there is none; float32 for a value', -1),
    'labels': BatchKey('bl', 'int32', 'class of the word that begins here, -1 elsewhere', -1),
    'heads': BatchKey(
      'bl',
      'int32',
      'place of the head of the word that begins here, its own for a root, -2 if unknown; -1 elsewhere',
      -1,
    ),
    'target_tokens': BatchKey(
      'bt', 'int32', 'the text to write with its special tokens, `Vocab.pad_id` behind it', None
    ),
    'target_segment_ids': BatchKey('bt', 'int32', '1 at each token of the text to write; 0 is padding'),
    'start': BatchKey('b', 'int32', 'place of the first token of the answer, or of what stands for no answer'),
    'end': BatchKey('b', 'int32', 'place of the last token of the answer, or of what stands for no answer'),
    'context': BatchKey(
      'bl', 'int32', '1 for tokens of the text with the answer, 2 in the window with most around them, 3 for no answer'
    ),
    'option_tokens': BatchKey('bkt', 'int32', 'texts to choose from, as `target_tokens`; some may be empty', None),
    'option_segment_ids': BatchKey('bkt', 'int32', '1 at each token of an option; 0 is padding'),
    'option_lead': BatchKey('bk', 'int32', 'first tokens of an option that are read and not compared'),
    'option_characters': BatchKey('bk', 'int32', 'characters of an option that are compared'),
    'swapped_tokens': BatchKey('bl', 'int32', 'tokens with the fields in reverse order', None),
    'swapped_segment_ids': BatchKey('bl', 'int32', 'segment_ids with the fields in reverse order'),
    'swapped_type_ids': BatchKey('bl', 'int32', 'type_ids with the fields in reverse order'),
    'first': BatchKey('bl', 'int32', 'the segment that a pair begins with', None),
    'next': BatchKey('bl', 'int32', 'the segment that follows it in the text', None),
    'other': BatchKey('bl', 'int32', 'a segment of another document', None),
    'first_length': BatchKey('b', 'int32', 'tokens of `first`'),
    'next_length': BatchKey('b', 'int32', 'tokens of `next`'),
    'other_length': BatchKey('b', 'int32', 'tokens of `other`'),
    'num_tokens': BatchKey('b', 'int32', 'about how many tokens the row feeds, where segment_ids cannot tell'),
    'part': BatchKey('b', 'int32', 'which source of a mixture the row comes from'),
    'reset': BatchKey('b', 'bool', 'the row begins anew, not where the row before it in this place ended'),
    'next_token': BatchKey(
      'b', 'int32', 'what follows the last token of the row, `nothing_after` where nothing does', -1
    ),
    'next_tokens': BatchKey('bl', 'int32', 'what follows each token, `Vocab.pad_id` on padding', None),
    'characters': BatchKey('blc', 'int32', 'the slots of each word (text/chars.py), 0 where there is none'),
    'backward_tokens': BatchKey('bl', 'int32', 'tokens of the same texts, each from its end to its beginning', None),
    'backward_next_tokens': BatchKey('bl', 'int32', 'what follows each of `backward_tokens`', None),
    'backward_characters': BatchKey('blc', 'int32', '`characters` of `backward_tokens`'),
    'swapped_characters': BatchKey('blc', 'int32', '`characters` of `swapped_tokens`'),
    'neighbours': BatchKey('bl', 'int32', 'a word near each of `tokens`, `Vocab.pad_id` where there is none', None),
    'cooccurrence': BatchKey(
      'bl', 'float32', 'how often the word and its neighbour stand near each other, 0 on padding'
    ),
    'reversed': BatchKey('b', 'bool', 'the row holds text from its end to its beginning'),
    'row_id': BatchKey('b', 'int32', 'number of the row in its source, -1 where the row weighs nothing'),
    'epoch': BatchKey('b', 'int32', 'how often the source was gone through before'),
    'row_weight': BatchKey('b', 'float32', '1, or 0 for a copy of another row that only fills the batch up'),
  }
)


def longest_row(trunk: Trunk) -> int | None:
  """Tokens of the longest row that the learned positions of a trunk allow; None where it has none."""
  return min(map(len, trunk.position_rows.values()), default=None)


def axes_of(entry: str) -> tuple[str, str]:
  """The key and the axes of an entry of `READS`: 'tokens' -> ('tokens', 'bl'), 'tokens[bkl]' -> ('tokens', 'bkl')."""
  name, _, axes = entry.partition('[')
  return name, axes.removesuffix(']') or BATCH[name].axes


# What a keyword is -------------------------------------------------------------------------------------------------

# Annotations of keywords are read from source and never evaluated (plugins/values.py). A bound is written as a
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
Stretch = Annotated[int, '0 <= x <= 1_000_000_000'] | Annotated[float, '0 <= x <= 1_000_000_000']
