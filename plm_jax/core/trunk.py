"""Protocols of a trunk (the backbone: the network without a task head), which every file of `models/` implements."""

from typing import Any, Literal, NamedTuple, Protocol

import flax.linen as nn

from plm_jax.core.types import Array, Execution, PyTree

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


def longest_row(trunk: Trunk) -> int | None:
  """Tokens of the longest row that the learned positions of a trunk allow; None where it has none."""
  return min(map(len, trunk.position_rows.values()), default=None)
