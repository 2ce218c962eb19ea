"""DeBERTa: encoder with disentangled attention, post-norm (He et al. 2021; arXiv 2006.03654, §3.1; v3 2111.09543).

The input vector of a word is its content only. Its position enters every attention score through a table of relative
positions that all layers share. The score of query i and key j is

  (Qc_i . Kc_j + Qc_i . Kr_d(i,j) + Kc_j . Qr_d(j,i)) / sqrt(3 k),   d(i, j) = i - j + K cut to [0, 2K - 1]   (eq. 3, 4)

with 3 the number of terms in use. Relative positions are differences of indices in the sequence. Packed documents do
not see each other, and inside a document differences of indices are differences of positions, so packing changes
nothing. There is no maximum length: distant keys share the last row of the table.

The last block is outside the scan, as `last`: `refine` applies it to other queries, like the enhanced mask decoder
(§3.2; objectives/emd_mlm.py). Version 2 adds a convolution parallel to the first block, which is then outside the scan
as `first`. It shares the projections of content and position, and normalises the table, whose rows are buckets of
logarithmic width. Version 3 is version 2 without the convolution, trained by replaced-token detection.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.errors import one_of
from plm_jax.core.keywords import Count, Depth, Epsilon, NonNegativeInt, PartRate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Execution, Paper, Published
from plm_jax.layers import positions as position
from plm_jax.layers.attention import attend_in
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, Embed, from_heads, normal, to_heads
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import ACTIVATIONS, Activation, Mlp
from plm_jax.layers.norm import LayerNorm
from plm_jax.layers.stack import stack
from plm_jax.models.base import OneStack, check_choices, check_multiple, maker
from plm_jax.models.cnn import neighbours

Reading = Literal['code', 'paper']
Absolute = Literal['decoder', 'input']
Term = Literal['c2p', 'p2c']


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a DeBERTa."""

  hidden_dim: Count = 768  # d, width between blocks
  num_layers: Depth = 12  # n, at least 2
  num_heads: Count = 12  # h; the head size is hidden_dim / num_heads
  mlp_dim: Count = 3072  # f, feed-forward width
  embed_dim: Count | None = None  # e, width of the tables at the input, projected to d before the norm; None for d
  num_types: NonNegativeInt = 0  # number of rows of the sentence-type table; 0 for none
  # number of rows of the absolute position table, if any; relative positions have no such limit
  max_length: Count = 512
  max_distance: Count = 512  # K of equation 3; with buckets, a distance in the last bucket
  # number of logarithmic buckets in one direction, instead of K; 0 for one row per distance (v1)
  position_buckets: NonNegativeInt = 0
  # terms of the score in addition to content to content: 'c2p' content to position, 'p2c' position to content
  terms: tuple[Term, ...] = ('c2p', 'p2c')
  # row of Qr in 'p2c'. 'code' uses d(i, j) like the released code, which its weights need; 'paper' uses d(j, i),
  # equation 4
  reading: Reading = 'code'
  absolute: Absolute = 'decoder'  # absolute positions enter in the mask 'decoder' only, or, as in BERT, at the 'input'
  # positions share the query and key projections of words (v2), or have separate ones (v1)
  share_projections: bool = False
  key_bias: bool = False  # keys of words and positions have a bias (v2)
  table_norm: bool = False  # LayerNorm on the table of relative positions (v2)
  conv_kernel: NonNegativeInt = 0  # width of the convolution parallel to the first block (v2: 3), odd; 0 for none
  activation: Activation = 'gelu_erf'  # activation of the feed-forward, a name of `ACTIVATIONS`
  conv_activation: Activation | None = None  # activation of the convolution; None for `activation`
  pooler_activation: Activation | None = None  # activation of the pooler; None for `activation`
  norm_epsilon: Epsilon = 1e-7  # epsilon of every LayerNorm
  # rate after embeddings and after each sublayer, and on the table of relative positions in each layer
  dropout: PartRate = 0.1
  attention_dropout: PartRate = 0.1  # rate on attention weights
  init_std: Std = 0.02  # standard deviation of the normal that initialises all kernels and tables
  vocab_multiple: Count = 1  # pads the token table to a multiple of this many rows
  tied: bool = True  # the output matrix is the token table; otherwise a separate matrix

  def __post_init__(self):
    check_choices(self)
    check_multiple(self, 'hidden_dim', 'num_heads')
    if self.num_layers < 2:
      raise ValueError(f'model.overrides.num_layers={self.num_layers} is too few for the mask decoder: give 2 or more')
    for term in self.terms:
      one_of('model.overrides.terms', term, Term)
    if self.conv_kernel and self.conv_kernel % 2 == 0:
      raise ValueError(f'model.overrides.conv_kernel={self.conv_kernel} must be odd, or 0 for no convolution')
    if self.position_buckets and not 4 <= self.position_buckets < 2 * (self.max_distance - 1):
      raise ValueError(
        f'model.overrides.position_buckets={self.position_buckets} is out of range: give 4 to '
        f'{2 * (self.max_distance - 1) - 1} for max_distance={self.max_distance}, or 0 for no buckets'
      )


class Context(NamedTuple):
  """Additional inputs of every block."""

  mask: Mask  # attention mask
  table: Array  # [r, d], the rows of the relative-position table that this length needs
  query: Array | None = None  # [b, l, d], queries that replace the block's input, or None


class Block(nn.Module):
  """Disentangled self-attention and feed-forward, each as norm(x + dropout(sublayer(x))) (post-norm)."""

  config: Config
  execution: Execution

  @nn.compact
  def __call__(self, x: Array, context: Context, train: bool) -> tuple[Array, Array]:
    c, dtype = self.config, self.execution.dtype
    init = normal(c.init_std)
    head_dim = c.hidden_dim // c.num_heads
    scale = 1 / math.sqrt(head_dim * (1 + len(c.terms)))

    def project(name: str, bias: bool = True) -> Dense:
      return to_heads(c.num_heads, head_dim, init, use_bias=bias, dtype=dtype, name=name)

    # 1. disentangled attention
    to_query, to_key = project('query'), project('key', c.key_bias)
    query_states = x if context.query is None else context.query
    query, key, value = to_query(query_states), to_key(x), project('value')(x)  # [b, l, h, k]
    position_key = position_query = bias = None
    if c.terms:
      table = Dropout(c.dropout)(context.table, train=train, rows=False)  # [r, d]
      if 'c2p' in c.terms:
        position_key = (to_key if c.share_projections else project('position_key', c.key_bias))(table)  # [r, h, k]
      if 'p2c' in c.terms:
        position_query = (to_query if c.share_projections else project('position_query'))(table)
      bias = scale * position_scores(query, key, position_key, position_query, c)  # [b, h, l, l]
    rate, way = c.attention_dropout, self.execution.attention
    y = attend_in(
      self, query, key, value, mask=context.mask, bias=bias, scale=scale, dropout=rate, train=train, implementation=way
    )
    y = from_heads(c.hidden_dim, init, dtype=dtype, name='out')(y)  # [b, l, d]
    y = Dropout(c.dropout)(y, train=train)
    x = LayerNorm(c.norm_epsilon, dtype, name='attention_norm')(query_states + y)

    # 2. feed-forward
    y = Mlp(c.mlp_dim, c.activation, up_init=init, down_init=init, dtype=dtype, name='mlp')(x)
    y = Dropout(c.dropout)(y, train=train)
    x = LayerNorm(c.norm_epsilon, dtype, name='mlp_norm')(x + y)
    return constrain(x, 'batch', 'length', 'embed'), x


def position_scores(
  query: Array, key: Array, position_key: Array | None, position_query: Array | None, c: Config
) -> Array:
  """Compute the second and third term of the score (equation 4).

  The result f32[b, h, l, l] is not scaled. Qc and Kc are [b, l, h, k]. Kr and Qr [r, h, k] are of the rows of the table
  that this length needs; None without the term. `c` maps differences to rows.
  """
  table_rows = position.relative_rows(query.shape[1], num_buckets=c.position_buckets, max_distance=c.max_distance)
  rows = table_rows - table_rows[0]  # int32[2 l - 1], row in `position_key` for differences -(l - 1) to l - 1
  scores = jnp.zeros((), jnp.float32)
  if position_key is not None:
    scores += content_to_position(query, position_key, rows)
  if position_query is not None:
    # column c of the product is the difference i - j = c - (l - 1), or j - i in reverse order
    scores += position_to_content(key, position_query, rows if c.reading == 'code' else rows[::-1])
  return scores


def content_to_position(query: Array, position_key: Array, rows: Array) -> Array:
  """Compute the second term, Qc_i . Kr_d(i,j), by differences of indices.

  `rows` int[2 l - 1] are those of the table for i - j from -(l - 1) to l - 1.
  """
  by_difference = position_key[rows[::-1]]  # decreasing i - j is increasing j
  # l = 3: columns c are j - i = -2 -1 0 1 2, and `skew` moves column j - i + 2 of row i to column j
  scores = jnp.einsum('blhk,chk->bhlc', query, by_difference, preferred_element_type=jnp.float32)
  return position.skew(scores)


def position_to_content(key: Array, position_query: Array, rows: Array) -> Array:
  """Compute the third term, Kc_j . Qr, `rows` as above."""
  scores = jnp.einsum('bmhk,chk->bhmc', key, position_query[rows], preferred_element_type=jnp.float32)
  return jnp.swapaxes(position.skew(scores), -1, -2)  # [b, h, m, l] -> [b, h, l, m]


class Convolution(nn.Module):
  """norm(x + activation(dropout(convolution of the input))), parallel to the first block (v2)."""

  config: Config
  dtype: str

  @nn.compact
  def __call__(self, x: Array, inputs: Array, segment_ids: Array, train: bool) -> Array:
    c = self.config
    init, axes = normal(c.init_std), (None, 'embed', 'embed_out')
    dense = Dense(c.hidden_dim, axes, num_inputs=2, kernel_init=init, dtype=self.dtype, name='dense')
    y = dense(neighbours(inputs, segment_ids, width=c.conv_kernel))  # [b, l, d] -> [b, l, taps, d] -> [b, l, d]
    y = ACTIVATIONS[c.conv_activation or c.activation](Dropout(c.dropout)(y, train=train))
    return LayerNorm(c.norm_epsilon, self.dtype, name='norm')(x + y)


class Deberta(OneStack):
  """The encoder without a pre-training head."""

  config: Config

  NAME = 'deberta'
  ATTENTION = 'bidirectional'

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    init = normal(c.init_std)
    self.token_embed = self.embed or self.make_table(init)
    if c.absolute == 'input':
      self.position_embed = Embed(c.max_length, self.token_dim, ('positions', 'embed'), init, dtype=dtype)
    if c.num_types:
      self.type_embed = Embed(c.num_types, self.token_dim, ('types', 'embed'), init, dtype=dtype)
    if self.token_dim != c.hidden_dim:
      self.embed_project = Dense(
        c.hidden_dim, axes=('embed', 'embed_out'), kernel_init=init, use_bias=False, dtype=dtype
      )
    self.embed_norm = LayerNorm(c.norm_epsilon, dtype)
    self.embed_dropout = Dropout(c.dropout)
    if c.terms:
      rows = 2 * (c.position_buckets or c.max_distance)
      self.relative_embed = Embed(rows, c.hidden_dim, ('positions', 'embed'), init, dtype=dtype)
      if c.table_norm:
        self.relative_norm = LayerNorm(c.norm_epsilon, dtype)
    if c.conv_kernel:
      self.first = Block(c, self.execution)
      self.convolution = Convolution(c, dtype)
    if self.num_scanned:
      self.layers = stack(Block, num_layers=self.num_scanned, execution=self.execution)(c, self.execution)
    self.last = Block(c, self.execution)
    if not c.tied:
      self.output = self.make_table(init)
    self.pooler = Dense(c.hidden_dim, axes=('embed', 'embed_out'), kernel_init=init, dtype=dtype)

  @property
  def num_scanned(self) -> int:
    """Return the number of scanned blocks."""
    return self.config.num_layers - 1 - bool(self.config.conv_kernel)

  def states(
    self, tokens: Array, segment_ids: Array, type_ids: Array | None, positions: Array | None, train: bool
  ) -> tuple[Array, Array]:
    """Compute 'hidden' and 'layers'; positions are read with absolute='input' only."""
    c = self.config
    # 1. embeddings
    x = self.token_embed(tokens)  # [b, l] -> [b, l, e]
    if c.absolute == 'input':
      x = x + self.position_embed(self.positions_of(segment_ids, positions))
    if c.num_types:
      x = x + self.type_embed(jnp.zeros_like(tokens) if type_ids is None else type_ids)
    if self.token_dim != c.hidden_dim:
      x = self.embed_project(x)  # [b, l, e] -> [b, l, d]
    x = self.embed_norm(x)
    x = self.embed_dropout(x, train=train)
    x = constrain(x, 'batch', 'length', 'embed')
    # 2. first block with convolution, scanned blocks, last block
    context = self._context(segment_ids)
    states = [x[None]]
    if c.conv_kernel:
      y, _ = self.first(x, context, train)
      x = self.convolution(y, x, segment_ids, train)
      states.append(x[None])
    if self.num_scanned:
      x, layers = self.layers(x, context, train)
      states.append(layers)
    x, _ = self.last(x, context, train)
    return x, jnp.concatenate([*states, x[None]])

  def refine(self, query: Array, hidden: Array, segment_ids: Array, train: bool = False) -> Array:
    """Apply the last block to other queries (§3.2), [b, l, d].

    `hidden` [b, l, d], the states before that block, gives keys and values; its first residual adds the queries.
    """
    return self.last(hidden, self._context(segment_ids, query), train)[0]

  def _context(self, segment_ids: Array, query: Array | None = None) -> Context:
    c = self.config
    mask = Mask(segment_ids, segment_ids)
    if not c.terms:
      return Context(mask=mask, table=jnp.zeros((0, c.hidden_dim)), query=query)
    length = segment_ids.shape[1]
    rows = position.relative_rows(length, num_buckets=c.position_buckets, max_distance=c.max_distance)
    table = self.relative_embed(jnp.arange(rows[0], rows[-1] + 1))
    return Context(mask=mask, table=self.relative_norm(table) if c.table_norm else table, query=query)

  @property
  def decoder_positions(self) -> int:
    """Count absolute positions of the mask decoder, 0 at the input."""
    return self.config.max_length if self.config.absolute == 'decoder' else 0

  @property
  def position_rows(self) -> dict[str, range]:
    """Return the used rows of the trunk's position table, by path."""
    return {'position_embed': range(self.config.max_length)} if self.config.absolute == 'input' else {}

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Pool activation(dense([CLS])) (released code): [b, l, d] -> [b, d]."""
    c = self.config
    return ACTIVATIONS[c.pooler_activation or c.activation](self.pooler(hidden[:, 0]))


_V2 = Config(position_buckets=256, share_projections=True, key_bias=True, table_norm=True)
_LARGE: dict[str, Any] = dict(hidden_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096)
_XLARGE: dict[str, Any] = dict(hidden_dim=1536, num_layers=24, num_heads=24, mlp_dim=6144, conv_kernel=3)

CONFIGS: Mapping[str, Config] = {
  'deberta-base': Config(),
  'deberta-large': Config(**_LARGE),
  'deberta-v2-xlarge': dataclasses.replace(_V2, **_XLARGE),
  'deberta-v2-xxlarge': dataclasses.replace(_V2, **_XLARGE | {'num_layers': 48}),
  'deberta-v3-xsmall': dataclasses.replace(_V2, hidden_dim=384, num_heads=6, mlp_dim=1536),
  'deberta-v3-small': dataclasses.replace(_V2, num_layers=6),
  'deberta-v3-base': _V2,
  'deberta-v3-large': dataclasses.replace(_V2, **_LARGE),
  'tiny': Config(hidden_dim=128, num_layers=2, num_heads=2, mlp_dim=512, max_distance=64),
}
make = maker(Deberta, CONFIGS)


_V3 = 2021, 'He et al., DeBERTaV3'


def _published(
  vocab_size: int, without_pooler: int, backbone: str, width: int, source: tuple[int, str] | None = None
) -> Published:
  also = (('without the pooler, which published checkpoints lack', without_pooler),)
  return Published(
    vocab_size, without_pooler + width * (width + 1), f'{backbone} without embeddings', also=also, source=source
  )


PUBLISHED: Mapping[str, Published] = {
  'deberta-base': _published(50_265, 138_601_728, '100M', 768),
  'deberta-large': _published(50_265, 405_163_008, '350M', 1024),
  'deberta-v2-xlarge': _published(128_100, 884_593_152, '710M', 1536),
  'deberta-v2-xxlarge': _published(128_100, 1_564_549_632, '1320M', 1536),
  'deberta-v3-xsmall': _published(128_100, 70_682_112, '22M', 384, _V3),
  'deberta-v3-small': _published(128_100, 141_304_320, '44M', 768, _V3),
  'deberta-v3-base': _published(128_100, 183_831_552, '86M', 768, _V3),
  'deberta-v3-large': _published(128_100, 434_012_160, '304M', 1024, _V3),
}

PAPER = Paper(
  year=2020,
  title='He et al., DeBERTa',
  architecture='encoder',
  objective_family='denoising',
  adapters=('classify', 'tag'),
)
