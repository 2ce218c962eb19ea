"""XLNet: two streams of attention over Transformer-XL (Yang et al. 2019, §2.3 to §2.5; arXiv 1906.08237).

Positions are relative, so there is no maximum length. The content stream is an encoder, and fine-tuning uses only this
one. With target positions, a query stream predicts the tokens there without seeing them; both streams share their
weights. The trunk's carry is a memory of states of previous sequences.

Differences from the released TensorFlow code: an empty memory is masked, while the code attends to states of zeros, and
dropout of the sinusoids samples one mask per batch. Hugging Face computes GELU by erf.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.core.keywords import Count, Depth, Epsilon, NonNegativeInt, PartRate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Execution, Paper, Published, PyTree
from plm_jax.layers import positions as position
from plm_jax.layers.attention import attend, weights, with_prefix
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, from_heads, normal, to_heads
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import Activation, Mlp
from plm_jax.layers.norm import LayerNorm
from plm_jax.layers.pooling import last
from plm_jax.layers.stack import stack
from plm_jax.models.base import Base, check_choices, check_multiple, maker


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of an XLNet."""

  hidden_dim: Count = 768  # d, width between blocks
  num_layers: Depth = 12  # n
  num_heads: Count = 12  # h; the head size is hidden_dim / num_heads
  mlp_dim: Count = 3072  # f, feed-forward width
  memory_length: NonNegativeInt = 384  # number of earlier positions that the memory stores; 0 for no memory
  reuse_length: Count | None = None  # number of first positions of a sequence that enter the memory; None for half
  activation: Activation = 'gelu_tanh'  # 'gelu_tanh' (released XLNet), 'gelu_erf' (Hugging Face) or 'relu'
  norm_epsilon: Epsilon = 1e-12  # epsilon of every LayerNorm
  # rate on embeddings, sinusoids and outputs, inside the feed-forward block and after each sublayer
  dropout: PartRate = 0.1
  attention_dropout: PartRate = 0.1  # rate on attention weights
  init_std: Std = 0.02  # standard deviation of the normal that initialises kernels, tables and the attention's vectors
  vocab_multiple: Count = 1  # pads the token table to a multiple of this many rows
  tied: bool = True  # the output matrix is the token table; otherwise a separate matrix

  def __post_init__(self):
    check_choices(self)
    check_multiple(self, 'hidden_dim', 'num_heads')
    if self.hidden_dim % 2:
      raise ValueError(f'model.overrides.hidden_dim={self.hidden_dim} must be even, for sines and cosines')
    if self.memory_length < 0:
      raise ValueError(f'model.overrides.memory_length={self.memory_length} is negative: give 0 or more')
    if self.reuse_length is not None and self.reuse_length < 1:
      raise ValueError(f'model.overrides.reuse_length={self.reuse_length} is too small: give 1 or more, or None')


@flax.struct.dataclass
class Stream:
  """Relation of one stream's queries to the keys; q is l for the content stream and t for the query stream."""

  mask: Mask  # attention mask
  differs: Array | None  # bool[b, q, m], True if query and key have different types; None if all types are equal
  positions: Array | None  # int[b, t], positions of the queries; None if they are the whole sequence


@flax.struct.dataclass
class Context:
  """Additional inputs of every block; m counts memory and sequence."""

  content: Stream  # the content stream
  queries: Stream | None  # the query stream, or None
  sinusoids: Array  # [r, p, d], of all distances; r is 2 with `reversed`, otherwise 1
  reversed: Array | None  # bool[b], sequences in reverse order; None for none
  memory: Array | None  # [n, b, memory, d], earlier states that each block reads; None for none


State = tuple[Array, Array | None, Array]  # content [b, l, d], queries [b, t, d], index of the layer int32[]


class Block(nn.Module):
  """Relative attention and feed-forward, each as norm(x + dropout(sublayer(x))), for one stream or both (§2.3).

  The score of a key is ((q + u) k + (q + v) r(distance) + (q + s) e(same type or not)) / sqrt(head size).
  """

  config: Config
  execution: Execution

  @nn.compact
  def __call__(self, state: State, context: Context, train: bool) -> tuple[State, Array]:
    c, dtype = self.config, self.execution.dtype
    init = normal(c.init_std)
    heads = (c.num_heads, c.hidden_dim // c.num_heads)

    def project(name: str) -> Dense:
      return to_heads(*heads, init, use_bias=False, dtype=dtype, name=name)

    def vectors(name: str, *rows: int) -> Array:
      axes = (*['types'] * len(rows), 'heads', 'head_dim')
      values = self.param(name, nn.with_logical_partitioning(init, axes), (*rows, *heads), jnp.float32)
      return values.astype(dtype)

    query = project('query')
    out = from_heads(c.hidden_dim, init, use_bias=False, dtype=dtype, name='out')
    attention_norm = LayerNorm(c.norm_epsilon, dtype, name='attention_norm')
    mlp = Mlp(c.mlp_dim, c.activation, up_init=init, down_init=init, dropout=c.dropout, dtype=dtype, name='mlp')
    mlp_norm = LayerNorm(c.norm_epsilon, dtype, name='mlp_norm')
    content_bias, position_bias, type_bias = (vectors(f'{name}_bias') for name in ('content', 'position', 'type'))
    types = vectors('types', 2)  # same, different

    scale = 1 / math.sqrt(heads[1])

    # 1. keys and values of memory and sequence, and projected sinusoids of the distances
    content, queries, layer = state
    source = content
    if context.memory is not None:
      source = jnp.concatenate([context.memory[layer].astype(content.dtype), content], axis=1)  # [b, m, d]
    key, value = project('key')(source), project('value')(source)  # [b, m, h, k]
    relative = project('position')(context.sinusoids)  # [r, p, h, k]
    if context.reversed is not None:
      relative = jnp.where(context.reversed[:, None, None, None], relative[1], relative[0])  # [b, p, h, k]

    def read(x: Array, stream: Stream) -> Array:
      """Apply both sublayers to one stream [b, q, d]."""
      q = query(x)  # [b, q, h, k]
      bias = distance_scores((q + position_bias) * scale, relative, stream.positions, length=content.shape[1])
      if stream.differs is not None:  # equal types add a constant, which softmax ignores
        bias = bias + type_scores((q + type_bias) * scale, types, stream.differs)  # [b, h, q, m]
      y = self._attend(q + content_bias, key, value, stream, bias, train)
      y = out(y)  # [b, q, h, k] -> [b, q, d]
      x = attention_norm(x + Dropout(c.dropout)(y, train=train))

      y = mlp(x, train=train)
      return mlp_norm(x + Dropout(c.dropout)(y, train=train))

    # 2. one or both streams
    if queries is not None and context.queries is not None:
      queries = read(queries, context.queries)
    content = constrain(read(content, context.content), 'batch', 'length', 'embed')
    return (content, queries, layer + 1), content

  def _attend(self, query: Array, key: Array, value: Array, stream: Stream, bias: Array, train: bool) -> Array:
    """Compute attention [b, q, h, k]; sow the content stream's weights."""
    rate = self.config.attention_dropout
    if stream.positions is None and self.is_mutable_collection('attention') and not self.is_initializing():
      self.sow('attention', 'weights', weights(query, key, mask=stream.mask, bias=bias))
    rng = self.make_rng('dropout') if train and rate else None
    implementation = self.execution.attention
    keys, values, mask, padded = with_prefix(self, query, key, value, mask=stream.mask, bias=bias, cached=False)
    return attend(query, keys, values, mask=mask, bias=padded, dropout=rate, rng=rng, implementation=implementation)


def distance_scores(query: Array, relative: Array, positions: Array | None, *, length: int) -> Array:
  """Compute the distance term of the score, f32[b, h, q, m].

  Queries are scaled, with their bias v. `relative` [1 or b, p, h, k] are the projected `position.relative_sinusoids`.
  Positions int[b, q] are None if they are the whole sequence of `length` l.
  """
  equation = 'blhk,rphk->bhlp' if relative.shape[0] == 1 else 'blhk,bphk->bhlp'
  scores = jnp.einsum(equation, query, relative, preferred_element_type=jnp.float32)
  num_keys = relative.shape[1] - length
  if positions is None:
    return position.relative_shift(scores, num_keys=num_keys)
  return position.relative_shift_at(scores, positions, num_queries=length, num_keys=num_keys)


def type_scores(query: Array, types: Array, differs: Array) -> Array:
  """Compute the type term of the score, f32[b, h, q, m]."""
  # queries are scaled, with their bias s; types [2, h, k] are equal, different
  scores = jnp.einsum('blhk,rhk->bhlr', query, types, preferred_element_type=jnp.float32)
  return jnp.where(differs[:, None], scores[..., 1:], scores[..., :1])


class Start(nn.Module):
  """The initial vector w of the query stream at every position, [1, 1, d] (§2.3)."""

  features: int
  init_std: float

  @nn.compact
  def __call__(self) -> Array:
    init = nn.with_logical_partitioning(normal(self.init_std), (None, None, 'embed'))
    return self.param('vector', init, (1, 1, self.features), jnp.float32)


class Xlnet(Base):
  """The two streams without a pre-training head."""

  config: Config

  NAME = 'xlnet'
  INPUTS = ('tokens', 'segment_ids', 'type_ids', 'carry', 'reversed', 'permutation_mask', 'target_positions')
  ATTENTION = 'permutation'

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    self.token_embed = self.embed or self.make_table(normal(c.init_std))
    self.start = Start(c.hidden_dim, c.init_std)
    self.embed_dropout = Dropout(c.dropout)
    self.layers = stack(Block, num_layers=c.num_layers, execution=self.execution)(c, self.execution)
    if not c.tied:
      self.output = self.make_table(normal(c.init_std))
    self.pooler = Dense(c.hidden_dim, axes=('embed', 'embed_out'), kernel_init=normal(c.init_std), dtype=dtype)

  def __call__(
    self,
    tokens: Array,
    *,
    segment_ids: Array,
    type_ids: Array | None = None,
    carry: PyTree = (),
    reversed: Array | None = None,
    permutation_mask: Array | None = None,
    target_positions: Array | None = None,
    train: bool = False,
  ) -> dict[str, Any]:
    """Read a batch in both directions, or in a permuted order.

    Args:
      tokens: int[b, l].
      segment_ids: int[b, l], ids of the packed documents; 0 is padding. The memory stores its ids, and tokens with the
        same id see it.
      type_ids: int[b, l], A (0), B (1), the last token (2), 0 in the memory; only equality of two types is used. None
        if all are equal.
      carry: the memory, from `init_carry` or the previous call; () for none.
      reversed: bool[b], sequences in reverse order, whose distances change sign (bi_data).
      permutation_mask: bool[b, l, l], True if a query may attend to a token. The content stream also sees its own
        position, and both streams see all of the memory. None for no limit.
      target_positions: int[b, t], positions that the query stream predicts; None for no query stream.

    Returns:
      'hidden' [b, l, d], the content stream; 'layers' [n+1, b, l, d] with the embeddings first; 'carry' the next
      memory; with target positions also 'queries' [b, t, d].

    Raises:
      ValueError: target positions without a mask, which would see the tokens that they predict.
    """
    c = self.config
    if target_positions is not None and permutation_mask is None:
      raise ValueError('Xlnet: target_positions need a permutation_mask, or they see the predicted tokens: pass both')
    # 1. embeddings
    start = self.start()
    x = self.embed_dropout(self.token_embed(tokens), train=train)  # [b, l] -> [b, l, d]
    x = constrain(x, 'batch', 'length', 'embed')
    context = self._context(tokens, segment_ids, type_ids, carry, reversed, permutation_mask, target_positions, train)
    queries = None
    if target_positions is not None:
      queries = jnp.broadcast_to(start.astype(x.dtype), (*target_positions.shape, c.hidden_dim))
      queries = self.embed_dropout(queries, train=train)
    # 2. layers and the next memory
    (hidden, queries, _), layers = self.layers((x, queries, jnp.zeros((), jnp.int32)), context, train)
    layers = jnp.concatenate([x[None], layers])
    out = {'layers': layers, 'carry': self._remember(carry, layers, segment_ids)}
    out['hidden'] = self.embed_dropout(hidden, train=train)
    self.init_output()
    if queries is not None:
      out['queries'] = self.embed_dropout(queries, train=train)
    return out

  def _context(
    self,
    tokens: Array,
    segment_ids: Array,
    type_ids: Array | None,
    carry: PyTree,
    reversed: Array | None,
    permutation_mask: Array | None,
    targets: Array | None,
    train: bool,
  ) -> Context:
    # 1. memory, before the sequence
    length, past = tokens.shape[1], 0
    memory, segments = None, segment_ids
    if carry:
      memory = jnp.moveaxis(carry['states'], 0, 1)  # [b, n, memory, d] -> [n, b, memory, d]
      past = memory.shape[2]
      segments = jnp.concatenate([carry['segment_ids'], segment_ids], axis=1)  # [b, m]
    # 2. sinusoids of the distances
    sinusoids = jnp.asarray(position.relative_sinusoids(length, past + length, dim=self.config.hidden_dim))
    signs = [sinusoids]
    if reversed is not None:
      half = sinusoids.shape[1] // 2
      signs.append(jnp.concatenate([-sinusoids[:, :half], sinusoids[:, half:]], axis=1))  # sin(-x) = -sin(x)
    # 3. types and masks of both streams
    differs = None
    if type_ids is not None:
      differs = type_ids[:, :, None] != jnp.pad(type_ids, ((0, 0), (past, 0)))[:, None, :]  # [b, l, m]
    allowed, queries = None, None
    # two positions of memory, permutation 2 0 1           memory, sequence   (x: seen)
    #   query stream at position 0                         x x  . . x
    #   content stream at position 0                       x x  x . x
    if permutation_mask is not None:
      seen = jnp.pad(permutation_mask, ((0, 0), (0, 0), (past, 0)), constant_values=True)
      allowed = seen | jnp.eye(length, past + length, past, dtype=bool)
      if targets is not None:
        rows = targets[:, :, None]
        queries = Stream(
          mask=Mask(
            jnp.take_along_axis(segment_ids, targets, axis=1), segments, allowed=jnp.take_along_axis(seen, rows, axis=1)
          ),
          differs=None if differs is None else jnp.take_along_axis(differs, rows, axis=1),
          positions=targets,
        )
    return Context(
      content=Stream(mask=Mask(segment_ids, segments, allowed=allowed), differs=differs, positions=None),
      queries=queries,
      sinusoids=self.embed_dropout(jnp.stack(signs), train=train, rows=False),
      reversed=reversed,
      memory=memory,
    )

  def _remember(self, carry: PyTree, layers: Array, segment_ids: Array) -> PyTree:
    """Append the block inputs at the first positions to the memory."""
    # memory_length 4, reuse_length 2: the memory a b c d and the sequence e f g h give c d e f
    size = self.config.memory_length
    if not size:
      return ()
    old = carry or self.init_carry(segment_ids.shape[0])
    reused = self.reuse(segment_ids.shape[1])
    new = jnp.moveaxis(layers[:-1, :, :reused], 0, 1)  # [n, b, r, d] -> [b, n, r, d]
    states = jnp.concatenate([old['states'], new.astype(old['states'].dtype)], axis=2)[:, :, -size:]
    segments = jnp.concatenate([old['segment_ids'], segment_ids[:, :reused].astype(jnp.int32)], axis=1)
    return {'states': jax.lax.stop_gradient(states), 'segment_ids': segments[:, -size:]}

  def reuse(self, length: int) -> int:
    """Return the number of first positions that enter the memory."""
    c = self.config
    return max(length // 2, 1) if c.reuse_length is None else min(c.reuse_length, length)

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Pool tanh(dense(<cls>)), the last real token: [b, l, d] -> [b, d].

    This is summary type 'last' of the released code.
    """
    return jnp.tanh(self.pooler(last(hidden, segment_ids)))

  def init_carry(self, batch_size: int) -> PyTree:
    """Create an empty memory.

    'states' [b, n, m, d] are block inputs, 'segment_ids' int32[b, m] are 0 for empty positions.
    """
    c = self.config
    if not c.memory_length:
      return ()
    states = jnp.zeros((batch_size, c.num_layers, c.memory_length, c.hidden_dim), self.execution.dtype)
    return {'states': states, 'segment_ids': jnp.zeros((batch_size, c.memory_length), jnp.int32)}


CONFIGS: Mapping[str, Config] = {
  'xlnet-base': Config(),
  'xlnet-large': Config(hidden_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096),
  'tiny': Config(hidden_dim=128, num_layers=2, num_heads=2, mlp_dim=512, memory_length=48),
}
make = maker(Xlnet, CONFIGS)

_BODY = 'without the summary layer'

PUBLISHED: Mapping[str, Published] = {
  'xlnet-base': Published(
    32_000, 117_308_928, 'as BERT-base', also=((_BODY, 116_718_336), (f'{_BODY}, with its output bias', 116_750_336))
  ),
  'xlnet-large': Published(
    32_000, 361_318_400, 'as BERT-large', also=((_BODY, 360_268_800), (f'{_BODY}, with its output bias', 360_300_800))
  ),
}

PAPER = Paper(
  year=2019, title='Yang et al., XLNet', architecture='encoder', objective_family='permutation', adapters=('classify',)
)
