"""ModernBERT (Warner et al. 2024, §2; arXiv 2412.13663): an encoder with the parts of recent decoders.

Rotary positions, GeGLU, no biases, a norm before each sublayer, after the embeddings and at the end. The norm after the
embeddings replaces that of the first attention. Layers 0, `global_every`, ... see the whole text; the others see half
of `window` tokens on each side, and have another base of the angles. Hugging Face's form is followed where it differs
from the paper: the activated half of the joined kernel comes first.

The first block has no attention norm, so it is outside of the scan, as `first`.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.keywords import Count, Depth, Epsilon, PartRate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.trunk import HeadStyle
from plm_jax.core.types import Array, Execution, Paper, Published
from plm_jax.layers import pooling
from plm_jax.layers import positions as position
from plm_jax.layers.attention import attend_in
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, from_heads, to_heads, truncated_normal
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import ACTIVATIONS, Activation, GatedMlp
from plm_jax.layers.norm import LayerNorm
from plm_jax.layers.stack import stack
from plm_jax.models.base import OneStack, check_choices, check_multiple, maker


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a ModernBERT."""

  hidden_dim: Count = 768  # d, width between blocks
  num_layers: Depth = 22  # n
  num_heads: Count = 12  # h; the head size is hidden_dim / num_heads, an even number
  mlp_dim: Count = 1152  # f, feed-forward width
  # maximum sequence length in training. Positions are not learned, so longer sequences can be computed.
  max_length: Count = 8192
  global_every: Count = 3  # layers whose index is a multiple of it see the whole text
  window: Count = 128  # other layers see window // 2 tokens on each side
  global_base: Annotated[float, '1 < x'] = 160_000.0  # base of the angles of layers that see the whole text
  local_base: Annotated[float, '1 < x'] = 10_000.0  # base of the angles of the others
  activation: Activation = 'gelu_erf'  # of the gate, a name of `ACTIVATIONS`
  norm_epsilon: Epsilon = 1e-5  # epsilon of every LayerNorm
  # state of the 'first' token or 'mean' of all; with 'dense' also a dense layer, gelu and norm
  pooler: Literal['first', 'mean', 'dense_first', 'dense_mean'] = 'first'
  embed_dropout: PartRate = 0.0  # rate after the embeddings
  dropout: PartRate = 0.0  # rate inside the feed-forward
  attention_dropout: PartRate = 0.0  # rate on attention weights and after attention
  init_std: Std = 0.02  # standard deviation of the truncated normal that initialises all kernels and tables
  vocab_multiple: Count = 1  # pads the token table to a multiple of this many rows
  tied: bool = True  # the output matrix is the token table; otherwise a separate matrix

  def __post_init__(self):
    check_choices(self)
    check_multiple(self, 'hidden_dim', 'num_heads')
    if self.hidden_dim // self.num_heads % 2:
      raise ValueError(
        f'model.overrides: a head has {self.hidden_dim // self.num_heads} components, and rotation needs an even '
        'number: change num_heads'
      )


class Block(nn.Module):
  """x + attention(norm x), then x + mlp(norm x); the first block has no attention norm."""

  config: Config
  execution: Execution
  first: bool = False

  @nn.compact
  def __call__(self, state: tuple[Array, Array], context: Any, train: bool) -> tuple[tuple[Array, Array], Array]:
    c, dtype = self.config, self.execution.dtype
    x, index = state
    mask, near, (cosine, sine) = context
    local = (index % c.global_every > 0).astype(jnp.int32)
    init, down_init = truncated_normal(c.init_std), truncated_normal(c.init_std / (2 * c.num_layers) ** 0.5)

    def norm(name: str) -> LayerNorm:
      return LayerNorm(c.norm_epsilon, dtype, use_bias=False, name=name)

    y = x if self.first else norm('attention_norm')(x)
    dense: dict[str, Any] = {'use_bias': False, 'dtype': dtype}
    project = partial(to_heads, c.num_heads, c.hidden_dim // c.num_heads, init, **dense)
    query, key, value = (project(name=name)(y) for name in ('query', 'key', 'value'))
    query, key = (position.rotate(part, (cosine[local], sine[local]), layout='halves') for part in (query, key))
    mask = dataclasses.replace(mask, allowed=jnp.broadcast_to(near | (local == 0), (len(x), *near.shape)))
    rate, way = c.attention_dropout, self.execution.attention
    y = attend_in(self, query, key, value, mask=mask, dropout=rate, train=train, implementation=way)
    y = from_heads(c.hidden_dim, down_init, name='out', **dense)(y)
    x = x + Dropout(c.attention_dropout)(y, train=train)

    mlp = GatedMlp(c.mlp_dim, c.activation, init, down_init, dropout=c.dropout, dtype=dtype, name='mlp')
    x = constrain(x + mlp(norm('mlp_norm')(x), train=train), 'batch', 'length', 'embed')
    return (x, index + 1), x


class ModernBert(OneStack):
  """The encoder without a pre-training head."""

  config: Config

  NAME = 'modernbert'
  ATTENTION = 'bidirectional'

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    init = truncated_normal(c.init_std)
    self.token_embed = self.embed or self.make_table(init)
    self.embed_norm, self.final_norm = (LayerNorm(c.norm_epsilon, dtype, use_bias=False) for _ in range(2))
    self.embed_dropout = Dropout(c.embed_dropout)
    self.first = Block(c, self.execution, first=True)
    if c.num_layers > 1:
      self.layers = stack(Block, num_layers=c.num_layers - 1, execution=self.execution)(c, self.execution)
    if not c.tied:
      self.output = self.make_table(init)
    if c.pooler.startswith('dense'):
      self.pooler = Dense(c.hidden_dim, axes=('embed', 'embed_out'), kernel_init=init, use_bias=False, dtype=dtype)
      self.pooler_norm = LayerNorm(c.norm_epsilon, dtype, use_bias=False)

  def states(
    self, tokens: Array, segment_ids: Array, type_ids: Array | None, positions: Array | None, train: bool
  ) -> tuple[Array, Array]:
    """Compute 'hidden' and 'layers'."""
    c = self.config
    if positions is None:
      positions = position.from_segments(segment_ids)
    x = self.embed_dropout(self.embed_norm(self.token_embed(tokens)), train=train)  # [b, l] -> [b, l, d]
    x = constrain(x, 'batch', 'length', 'embed')
    # angles of global and local layers: two of [2, b, l, r]
    speeds = [position.rotary_speeds(dim=c.hidden_dim // c.num_heads, base=b) for b in (c.global_base, c.local_base)]
    angles = [jnp.stack(part) for part in zip(*(position.rotary_angles(positions, s) for s in speeds), strict=True)]
    index = jnp.arange(tokens.shape[1])
    near = jnp.abs(index[:, None] - index) <= c.window // 2  # [l, l]
    context = Mask(segment_ids, segment_ids), near, angles
    state, first = self.first((x, jnp.asarray(0)), context, train)
    layers = [x[None], first[None]]
    if c.num_layers > 1:
      state, rest = self.layers(state, context, train)
      layers.append(rest)
    return self.final_norm(state[0]), jnp.concatenate(layers)

  @property
  def head_style(self) -> HeadStyle:
    """Return the style of a head before `attend`."""
    return HeadStyle('gelu_erf', self.config.norm_epsilon, self.config.init_std, form='no_bias')

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Pool the states of each row: [b, l, d] -> [b, d]."""
    pooled = pooling.mean(hidden, segment_ids) if self.config.pooler.endswith('mean') else hidden[:, 0]
    if not self.config.pooler.startswith('dense'):
      return pooled
    return self.pooler_norm(ACTIVATIONS['gelu_erf'](self.pooler(pooled)))


CONFIGS: Mapping[str, Config] = {
  'modernbert-base': Config(),
  'modernbert-large': Config(hidden_dim=1024, num_layers=28, num_heads=16, mlp_dim=2624),
  'tiny': Config(hidden_dim=128, num_layers=4, num_heads=2, mlp_dim=192, window=32),
}
make = maker(ModernBert, CONFIGS)

_MLM = 'as a masked language model'
PUBLISHED: Mapping[str, Published] = {
  'modernbert-base': Published(50_368, 149_014_272, '149M', also=((_MLM, 149_655_232),)),
  'modernbert-large': Published(50_368, 394_781_696, '395M', also=((_MLM, 395_881_664),)),
}

PAPER = Paper(
  year=2024,
  title='Warner et al., ModernBERT',
  architecture='encoder',
  objective_family='denoising',
  adapters=('classify', 'tag'),
)
