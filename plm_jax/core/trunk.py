"""Protocols of a trunk (the backbone: the network without a task head), which every file of `models/` implements."""

from typing import Any, Literal, NamedTuple, Protocol

import flax.linen as nn

from plm_jax.core.types import Array, Execution, PyTree

# positions that a position sees; 'none' if its vector does not depend on its neighbours
AttentionKind = Literal['bidirectional', 'causal', 'prefix', 'permutation', 'encoder-decoder', 'none']


class HeadStyle(NamedTuple):
  """Settings of a vocabulary head that match its trunk."""

  activation: str  # a name of `layers.mlp.ACTIVATIONS`
  norm_epsilon: float  # of its LayerNorm
  init_std: float  # standard deviation of its initial kernels
  form: Literal['bert', 'no_bias'] = 'bert'  # BERT's, or 'no_bias': its dense layer and norm have no bias (ModernBERT)


class Trunk(Protocol):
  """The module that every file of `models/` builds.

  Heads, objectives, adapters and weights use only these members.

  Attributes:
    INPUTS: names of the keyword arguments of `__call__`.
    ATTENTION: positions that a position sees.
    PREDICTS_NEXT: whether the state before a masked token predicts it (GPT-BERT).
    NAME: the file of `models/` that defines it.
    config: sizes; read by the file itself and by `weights/`, which writes them with the names of another library.
    vocab_size: ids of the vocabulary.
  """

  INPUTS: tuple[str, ...]
  ATTENTION: AttentionKind
  PREDICTS_NEXT: bool
  NAME: str
  config: Any
  vocab_size: int
  execution: Execution

  @property
  def hidden_dim(self) -> int:
    """Return d, the width of `hidden`."""

  @property
  def position_rows(self) -> dict[str, range]:
    """Map the path of each learned position table to its rows.

    Only rows that represent a position are listed, from position 0 on.
    """

  def __call__(self, *args: Any, **inputs: Any) -> dict[str, Any]:
    """Compute the states of all layers.

    Returns:
      'hidden' [b, l, d] after any final norm; 'layers' [n+1, b, l, d], embeddings first; 'carry'. 'layers' leaves out
      layers whose width is not d. With two stacks 'hidden' and 'layers' are those of the decoder, and the result also
      has 'encoder_hidden' and 'encoder_layers'. The first call creates all parameters of an untied output matrix, even
      if it does not use them.
    """

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Compute the vector of each row: [b, l, d] -> [b, d]."""

  def init_carry(self, batch_size: int) -> PyTree:
    """Return the recurrent state at step 0, () if none, batch-first."""

  def init_all(self) -> None:
    """Create every parameter: `trunk.init(key, method='init_all')`."""


class Attends(Protocol):
  """A trunk with logits over its vocabulary.

  Attributes:
    token_dim: e, the width of the features that `attend` takes.
    head_style: settings of a head before `attend`.
  """

  @property
  def token_dim(self) -> int: ...

  @property
  def head_style(self) -> HeadStyle: ...

  def attend(self, features: Array) -> Array:
    """Compute vocabulary logits f32[..., v] of features [..., e].

    They use the tied table or the trunk's own output matrix.
    """


class SharesTokens(Protocol):
  """A trunk whose token table a second trunk may read, passed to it as `embed`.

  Attributes:
    embed: the table of another trunk, which this one reads instead of a separate one.
  """

  embed: nn.Module | None

  @property
  def token_embed(self) -> nn.Module:
    """Return the token table of a trunk that is set up."""


class Shares(Protocol):
  """A trunk whose tables a second trunk of the same NAME may all read. The trunk is passed to it as `embeddings`.

  Attributes:
    embeddings: another trunk, whose tables this one reads; its token table is passed as `embed`.
  """

  embeddings: nn.Module | None

  @property
  def token_embed(self) -> nn.Module: ...

  @property
  def embedding_sizes(self) -> dict[str, int]:
    """Return the sizes of `Config` that shared tables need in common."""


class Decodes(Protocol):
  """A trunk that generates token by token.

  A trunk with an encoder also has `encode`, (int[b, m], segment_ids, positions) -> [b, m, d], and its `init_cache`
  takes `encoder_hidden` and `encoder_segment_ids`.
  """

  def init_cache(self, batch_size: int, length: int) -> PyTree:
    """Build an empty cache with a slot for each of `length` tokens.

    Returns:
      A dictionary. 'index' int32[], slots in use; 'segment_ids' and 'positions' int32[b, m]; 'keys' [n, b h, k, m] and
      'values' [n, b h, m, k], or for a recurrent trunk 'states' and 'cells' [n, b, m, w]. Other entries have no slots.
      All leaves of four axes are stored per layer.
    """

  def decode_step(self, tokens: Array, cache: PyTree, **inputs: Array) -> tuple[Array, PyTree]:
    """Read s more tokens and compute their logits.

    The cache may have fewer or more slots than that of `init_cache`. With 'seen' bool[b, s, m] in it, a token sees the
    slots of its row in that table, and its own slot; otherwise it sees the slots up to its own.

    Args:
      tokens: int[b, s].
      cache: of the earlier tokens.
      **inputs: `segment_ids` and `positions` of the tokens.

    Returns:
      Logits f32[b, s, v] and the new cache.
    """


class ReadsStates(Protocol):
  """A trunk with an encoder that may read the states of another encoder, passed as `source`.

  Attributes:
    source: an encoder of any `Trunk`, of the same width; its vocabulary is that of the input texts.
  """

  source: nn.Module | None


class Refines(Protocol):
  """A trunk whose last block runs again with other queries (DeBERTa's enhanced mask decoder, He et al. 2020, §3.2)."""

  @property
  def decoder_positions(self) -> int:
    """Count the decoder's absolute positions, 0 if they enter at the input."""

  def refine(self, query: Array, hidden: Array, segment_ids: Array, *, train: bool = False) -> Array: ...


class ComputesAt(Protocol):
  """A trunk whose last layer may compute some positions only, [b, t, d] of int[b, t]."""

  def states_at(self, places: Array, tokens: Array, *, segment_ids: Array, type_ids: Array | None = None) -> Array: ...


class Directions(Protocol):
  """A recurrent trunk that reads both ways; the directions of its first layer are independent."""

  def with_dropout(self, rate: float) -> Any:
    """Return the same trunk, with the same parameters and another rate."""

  def directions(self, layers: Array, segment_ids: Array) -> tuple[Array, Array]:
    """Split [n+1, b, l, d] into two of [n, b, l, f]."""


class Ends(Protocol):
  """A recurrent trunk that reads both ways and returns its last states, so that a decoder may continue from them.

  Its call also returns 'ends': h and c [b, n, d]. They hold the two directions of each layer side by side, after the
  last token and after the first.

  Attributes:
    FIXED: patterns of its parameters that are given and never train.
  """

  FIXED: tuple[str, ...]

  @property
  def num_layers(self) -> int:
    """Return n, the number of layers."""


class Remembers(Protocol):
  """A trunk whose carry is a memory of the rows before (Transformer-XL)."""

  def reuse(self, length: int) -> int:
    """Count the first positions of a row that enter the memory."""


class Streams(Protocol):
  """A trunk of two language models that read a text in both directions, row after row (ELMo)."""

  def stream(self, forward: Array, backward: Array, *, carry: PyTree, train: bool = False) -> tuple[Array, PyTree]:
    """Read the characters of both directions.

    Args:
      forward: int[b, l, 50], in reading order.
      backward: int[b, l, 50], in reverse order.
      carry: states after the row before.

    Returns:
      States [b, l, 2, p], each direction in its own order, and the next carry.
    """


def longest_row(trunk: Trunk) -> int | None:
  """Compute the longest row of the learned positions, None without them."""
  return min(map(len, trunk.position_rows.values()), default=None)
