"""ALBERT: BERT with a factorised token table and parameters shared across layers (Lan et al. 2019, §3.1; 1909.11942).

Tables and their norm have width e; if d differs from e, a dense layer with bias projects e to d. Neighbouring layers
form a group, and `sharing` selects the parameters that the layers of a group share. A layer may consist of several
inner blocks in sequence. Sharing saves parameters, not operations: a forward pass costs the same.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.keywords import Count, Depth, Epsilon, NonNegativeInt, PartRate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Execution, Paper, Published, PyTree
from plm_jax.layers import positions as position
from plm_jax.layers.attention import attend_in
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, Embed, from_heads, to_heads, truncated_normal
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import Activation, Mlp
from plm_jax.layers.norm import LayerNorm
from plm_jax.layers.stack import stack
from plm_jax.models.base import OneStack, check_choices, check_multiple, maker


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of an ALBERT."""

  embed_dim: Count = 128  # e, width of the tables
  hidden_dim: Count = 768  # d, width between blocks
  num_layers: Depth = 12  # n
  num_heads: Count = 12  # h; the head size is hidden_dim / num_heads
  mlp_dim: Count = 3072  # f, feed-forward width
  always_project: bool = False  # project the embeddings even if e is d, as in Hugging Face
  num_groups: Depth = 1  # number of groups of layers; layer i belongs to group i * num_groups // num_layers
  num_inner: Depth = 1  # number of blocks per layer, each with separate parameters
  # parameters that a group shares: 'all', 'attention' or 'ffn', each with the norm after it, or 'none'
  sharing: Literal['all', 'attention', 'ffn', 'none'] = 'all'
  max_length: Count = 512  # maximum sequence length, in tokens
  num_types: NonNegativeInt = 2  # number of rows of the sentence-type table
  activation: Activation = 'gelu_tanh'  # 'gelu_tanh' (released code) or 'gelu_erf' or 'relu'
  norm_epsilon: Epsilon = 1e-12  # epsilon of every LayerNorm
  dropout: PartRate = 0.1  # rate after embeddings and after each sublayer
  attention_dropout: PartRate = 0.1  # rate on attention weights
  init_std: Std = 0.02  # standard deviation of the truncated normal that initialises all kernels and tables
  # initial values of the position table: 'normal' like other tables, or 'sinusoids'
  position_init: position.Start = 'normal'
  vocab_multiple: Count = 1  # pads the token table to a multiple of this many rows
  tied: bool = True  # the output matrix is the token table; otherwise a separate matrix

  def __post_init__(self):
    check_choices(self)
    check_multiple(self, 'hidden_dim', 'num_heads')
    if not 1 <= self.num_groups <= self.num_layers:
      raise ValueError(
        f'model.overrides.num_groups={self.num_groups} is out of range: give 1 to num_layers={self.num_layers}'
      )


class Attention(nn.Module):
  """norm(x + dropout(self-attention(x)))."""

  config: Config
  execution: Execution

  @nn.compact
  def __call__(self, x: Array, mask: Mask, train: bool) -> tuple[Array, None]:
    c, dtype = self.config, self.execution.dtype
    init = truncated_normal(c.init_std)
    project = partial(to_heads, c.num_heads, c.hidden_dim // c.num_heads, init, dtype=dtype)
    out = from_heads(c.hidden_dim, init, dtype=dtype, name='out')

    query, key, value = (project(name=name)(x) for name in ('query', 'key', 'value'))  # [b, l, h, k]
    implementation = self.execution.attention
    y = attend_in(
      self, query, key, value, mask=mask, dropout=c.attention_dropout, train=train, implementation=implementation
    )
    y = Dropout(c.dropout)(out(y), train=train)  # [b, l, h, k] -> [b, l, d]
    return LayerNorm(c.norm_epsilon, dtype, name='norm')(x + y), None


class FeedForward(nn.Module):
  """norm(x + dropout(mlp(x)))."""

  config: Config
  execution: Execution

  @nn.compact
  def __call__(self, x: Array, mask: Mask, train: bool) -> tuple[Array, None]:
    c, dtype = self.config, self.execution.dtype
    init = truncated_normal(c.init_std)
    y = Mlp(c.mlp_dim, c.activation, up_init=init, down_init=init, dtype=dtype, name='mlp')(x)
    y = Dropout(c.dropout)(y, train=train)
    return LayerNorm(c.norm_epsilon, dtype, name='norm')(x + y), None


def units(config: Config) -> tuple[np.ndarray, np.ndarray]:
  """Map each block to its attention and feed-forward units, int[n * num_inner]."""
  # 4 layers, 2 groups, 1 inner block: group and shared unit 0 0 1 1
  #   sharing='attention': attention 0 0 1 1, feed-forward 0 1 2 3
  # the same with 2 inner blocks: shared 0 1 0 1 2 3 2 3, own 0 1 2 3 4 5 6 7
  block = np.arange(config.num_layers * config.num_inner)
  group = block // config.num_inner * config.num_groups // config.num_layers
  shared = group * config.num_inner + block % config.num_inner
  return (
    shared if config.sharing in ('all', 'attention') else block,
    shared if config.sharing in ('all', 'ffn') else block,
  )


class Block(nn.Module):
  """Attention and feed-forward; each selects the parameters of its unit from the stacked ones."""

  config: Config
  execution: Execution

  @nn.compact
  def __call__(
    self, x: tuple[Array, Array], context: tuple[Mask, PyTree, PyTree], train: bool
  ) -> tuple[tuple[Array, Array], Array]:
    hidden, block = x  # index of the block
    mask, *parameters = context
    sows = self.is_mutable_collection('attention') and not self.is_initializing()
    for sublayer, stacked, unit in zip((Attention, FeedForward), parameters, units(self.config), strict=True):
      own = jax.tree.map(lambda leaf, unit=unit: jnp.asarray(leaf)[jnp.asarray(unit)[block]], stacked)
      rngs = {'dropout': self.make_rng('dropout')} if train else {}
      module = sublayer(self.config, self.execution, parent=None)
      (hidden, _), state = module.apply({'params': own}, hidden, mask, train, rngs=rngs, mutable=['attention'] * sows)
      for value in state.get('attention', {}).get('weights', ()):
        self.sow('attention', 'weights', value)
    hidden = constrain(hidden, 'batch', 'length', 'embed')
    return (hidden, block + 1), hidden


class Layers(nn.Module):
  """All blocks. Parameters are stacked by unit: one unit if everything is shared, one per block if nothing is."""

  config: Config
  execution: Execution

  def setup(self) -> None:
    c = self.config
    plain = dataclasses.replace(self.execution, remat='none')
    attention, feed_forward = (int(unit.max()) + 1 for unit in units(c))
    self.attention = stack(Attention, num_layers=attention, execution=plain)(c, self.execution)
    self.feed_forward = stack(FeedForward, num_layers=feed_forward, execution=plain)(c, self.execution)
    self.blocks = stack(Block, num_layers=c.num_layers * c.num_inner, execution=self.execution)(c, self.execution)

  def __call__(self, x: Array, mask: Mask, train: bool) -> tuple[Array, Array]:
    if self.is_initializing():  # sublayers own the parameters; blocks have none
      self.attention(x, mask, False)
      self.feed_forward(x, mask, False)
    parameters = (self.attention.variables['params'], self.feed_forward.variables['params'])
    (hidden, _), layers = self.blocks((x, jnp.zeros((), jnp.int32)), (mask, *nn.unbox(parameters)), train)
    return hidden, layers


class Albert(OneStack):
  """The encoder without a pre-training head."""

  config: Config

  NAME = 'albert'
  ATTENTION = 'bidirectional'

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    init = truncated_normal(c.init_std)
    self.token_embed = self.embed or self.make_table(init)
    start = position.start_of(c.position_init, init, std=c.init_std)
    self.position_embed = Embed(c.max_length, c.embed_dim, ('positions', 'embed'), start, dtype=dtype)
    self.type_embed = Embed(c.num_types, c.embed_dim, ('types', 'embed'), init, dtype=dtype)
    self.embed_norm = LayerNorm(c.norm_epsilon, dtype)
    self.embed_dropout = Dropout(c.dropout)
    if self.projects:
      self.embed_project = Dense(c.hidden_dim, axes=('embed', 'embed_out'), kernel_init=init, dtype=dtype)
    self.layers = Layers(c, self.execution)
    if not c.tied:
      self.output = self.make_table(init)
    self.pooler = Dense(c.hidden_dim, axes=('embed', 'embed_out'), kernel_init=init, dtype=dtype)

  def states(
    self, tokens: Array, segment_ids: Array, type_ids: Array | None, positions: Array | None, train: bool
  ) -> tuple[Array, Array]:
    """Compute 'hidden', and 'layers' [n * num_inner + 1, b, l, d]."""
    positions = self.positions_of(segment_ids, positions)
    types = jnp.zeros_like(tokens) if type_ids is None else type_ids
    x = self.token_embed(tokens) + self.position_embed(positions) + self.type_embed(types)  # [b, l] -> [b, l, e]
    x = self.embed_dropout(self.embed_norm(x), train=train)
    if self.projects:
      x = self.embed_project(x)  # [b, l, e] -> [b, l, d]
    x = constrain(x, 'batch', 'length', 'embed')
    hidden, layers = self.layers(x, Mask(segment_ids, segment_ids), train)
    return hidden, jnp.concatenate([x[None], layers])

  @property
  def projects(self) -> bool:
    """Return True if a dense layer follows the embeddings."""
    return self.config.always_project or self.config.embed_dim != self.config.hidden_dim

  @property
  def position_rows(self) -> dict[str, range]:
    """Return the used rows of position tables, by path, from position 0."""
    return {'position_embed': range(self.config.max_length)}

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Pool tanh(dense([CLS])): [b, l, d] -> [b, d]."""
    return jnp.tanh(self.pooler(hidden[:, 0]))


_BASE = Config()
_LARGE = Config(hidden_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096)
_XLARGE = Config(hidden_dim=2048, num_layers=24, num_heads=16, mlp_dim=8192)
_XXLARGE = Config(hidden_dim=4096, num_layers=12, num_heads=64, mlp_dim=16384, dropout=0.0, attention_dropout=0.0)
_V2: dict[str, Any] = dict(dropout=0.0, attention_dropout=0.0)

CONFIGS: Mapping[str, Config] = {
  'albert-base-v1': _BASE,
  'albert-large-v1': _LARGE,
  'albert-xlarge-v1': _XLARGE,
  'albert-xxlarge-v1': _XXLARGE,
  'albert-base-v2': dataclasses.replace(_BASE, **_V2),
  'albert-large-v2': dataclasses.replace(_LARGE, **_V2),
  'albert-xlarge-v2': dataclasses.replace(_XLARGE, **_V2),
  'albert-xxlarge-v2': _XXLARGE,
  'tiny': Config(embed_dim=64, hidden_dim=128, num_layers=2, num_heads=2, mlp_dim=512),
}
make = maker(Albert, CONFIGS)

_HEADS = 'the rule d/64 of the paper gives 32 heads; the count is the same'


def _published(parameters: int, paper: str, with_heads: int, note: str = '') -> Published:
  also = (('with heads for masked tokens and sentence order', with_heads),)
  return Published(30_000, parameters, paper, note=note, also=also)


_SIZES = {
  'base': _published(11_683_584, '12M', 11_813_810),
  'large': _published(17_683_968, '18M', 17_847_474),
  'xlarge': _published(58_724_864, '60M', 59_021_490, _HEADS),
  'xxlarge': _published(222_595_584, '235M', 223_158_450, '233M in the text of the paper'),
}

PUBLISHED: Mapping[str, Published] = {
  f'albert-{size}-{version}': published for version in ('v1', 'v2') for size, published in _SIZES.items()
}

PAPER = Paper(
  year=2019,
  title='Lan et al., ALBERT',
  architecture='encoder',
  objective_family='denoising',
  extension='compressed',
  adapters=('classify', 'tag'),
)
