"""LLaMA (Touvron et al. 2023, §2.2; arXiv 2302.13971), LLaMA 2 (arXiv 2307.09288, §2.2), 3 and the GLM-4 family.

Causal decoder: RMSNorm before each sublayer and at the end, rotary positions, a feed-forward of three matrices,
down(silu(gate x) * up x), no biases, a separate output matrix. Texts that count two linear layers in the feed-forward
omit the gate. Larger models of LLaMA 2 and all of LLaMA 3 (Grattafiori et al. 2024, §3.2; arXiv 2407.21783) share each
key and value among several heads (`num_kv_heads`). From 3.1 on rotation is slower for long sequences
(`rotary_scaling`).

ChatGLM2-6B and GLM-4-9B (GLM team 2024, arXiv 2406.12793, §2) have this block and not GLM's: causal, with rotary
positions on half of each head, two key heads, biases on query, key and value. GLM-4-0414 also has a norm after each
sublayer: `norm_placement='sandwich'`.

The released code of LLaMA rotates adjacent pairs of components. Hugging Face's kernels are permuted so that the two
halves of a head are rotated against each other. LLaMA sizes here use the halves (`rotary`), GLM sizes the pairs.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import flax.linen as nn
import numpy as np

from plm_jax.core.keywords import Count, Depth, Epsilon, PartRate, Rate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.trunk import HeadStyle
from plm_jax.core.types import Array, Execution, Paper, Published
from plm_jax.layers import cache as caches
from plm_jax.layers import positions as position
from plm_jax.layers.attention import attend_in
from plm_jax.layers.cache import Cache, Past
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, normal
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import GatedMlp
from plm_jax.layers.norm import RMSNorm
from plm_jax.layers.stack import stack
from plm_jax.models.base import Overrides, Rotary, check_choices, check_multiple

Angles = tuple[Array, Array]


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a LLaMA.

  Attributes:
    hidden_dim: d, width between blocks.
    num_layers: n.
    num_heads: h.
    head_dim: k, size of a head; None for hidden_dim / num_heads.
    num_kv_heads: g, number of key and value heads; None for h.
    mlp_dim: f, feed-forward width.
    max_length: maximum sequence length in training. Positions are not learned, so longer sequences can be computed.
    norm_placement: 'pre', or 'sandwich' with another norm after each sublayer (GLM-4-0414).
    norm_epsilon: epsilon of every RMSNorm.
    rotary: components of a head that form a pair, 'halves' or adjacent 'pairs'; see `layers.positions.rotate`.
    rotary_share: share of a head's components that is rotated, from the first on.
    rotary_base: base of the angles.
    rotary_scaling: reduction of the angles for sequences longer than in pre-training: 'linear' divides them all by
      `rotary_factor` (Chen et al. 2023, arXiv 2306.15595, equation 4); 'llama3' divides those that rotate slowly.
    rotary_factor: see `rotary_scaling`.
    rotary_low: 'llama3': pairs with fewer rotations in `rotary_length` positions are divided.
    rotary_high: 'llama3': pairs with more rotations are unchanged; those between are divided in part.
    rotary_length: 'llama3': maximum sequence length before the reduction; None for `max_length`.
    qkv_bias: query, key and value have biases.
    out_bias: the output of attention has a bias.
    mlp_bias: the three matrices of the feed-forward have biases.
    tied: the output matrix is the token table; otherwise a separate matrix.
    has_output: False for an untied trunk whose folder has no output matrix; it computes no logits.
    dropout: rate after each sublayer.
    attention_dropout: rate on attention weights.
    init_std: standard deviation of the normal that initialises kernels and tables.
    vocab_multiple: pads the tables to a multiple of this many rows.
  """

  hidden_dim: Count = 4096
  num_layers: Depth = 32
  num_heads: Count = 32
  head_dim: Count | None = None
  num_kv_heads: Count | None = None
  mlp_dim: Count = 11008
  max_length: Count = 2048
  norm_placement: Literal['pre', 'sandwich'] = 'pre'
  norm_epsilon: Epsilon = 1e-6
  rotary: Literal['halves', 'pairs'] = 'halves'
  rotary_share: Rate = 1.0
  rotary_base: Annotated[float, '1 < x'] = 10_000.0
  rotary_scaling: Literal['none', 'linear', 'llama3'] = 'none'
  rotary_factor: Annotated[float, '1 <= x'] = 1.0
  rotary_low: Annotated[float, '0 < x'] = 1.0
  rotary_high: Annotated[float, '0 < x'] = 4.0
  rotary_length: Count | None = None
  qkv_bias: bool = False
  out_bias: bool = False
  mlp_bias: bool = False
  tied: bool = False
  has_output: bool = True
  dropout: PartRate = 0.0
  attention_dropout: PartRate = 0.0
  init_std: Std = 0.02
  vocab_multiple: Count = 1

  def __post_init__(self):
    check_choices(self)
    if self.head_dim is None:
      check_multiple(self, 'hidden_dim', 'num_heads')
    if self.num_kv_heads is not None:
      check_multiple(self, 'num_heads', 'num_kv_heads')
    if self.rotary_dim < 2 or self.rotary_dim % 2 or self.rotary_dim > self.head_size:
      raise ValueError(
        f'model.overrides.rotary_share={self.rotary_share} of a head of {self.head_size} is {self.rotary_dim} '
        'components: choose a share that gives an even number from 2 on'
      )
    if self.rotary_low >= self.rotary_high:
      raise ValueError(
        f'model.overrides: rotary_low={self.rotary_low} must be below rotary_high={self.rotary_high}: lower rotary_low'
      )

  @property
  def head_size(self) -> int:
    return self.hidden_dim // self.num_heads if self.head_dim is None else self.head_dim

  @property
  def key_heads(self) -> int:
    return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

  @property
  def rotary_dim(self) -> int:
    return int(self.head_size * self.rotary_share)

  @property
  def rotary_speeds(self) -> np.ndarray:
    """Compute each pair's rotation per position, in radians: f64[rotary_dim / 2]."""
    speeds = position.rotary_speeds(dim=self.rotary_dim, base=self.rotary_base)
    if self.rotary_scaling == 'none':
      return speeds
    if self.rotary_scaling == 'linear':
      return speeds / self.rotary_factor
    length = self.max_length if self.rotary_length is None else self.rotary_length
    factor, low, high = self.rotary_factor, self.rotary_low, self.rotary_high
    return position.slow_down(speeds, factor=factor, low=low, high=high, length=length)


class Block(nn.Module):
  """Masked self-attention and feed-forward, with a norm before each and, in a 'sandwich', another after each."""

  config: Config
  execution: Execution

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    init = normal(c.init_std)

    def project(heads: int) -> Dense:
      axes = ('embed', 'heads', 'head_dim')
      return Dense((heads, c.head_size), axes=axes, kernel_init=init, use_bias=c.qkv_bias, dtype=dtype)

    self.query, self.key, self.value = project(c.num_heads), project(c.key_heads), project(c.key_heads)
    axes = ('heads', 'head_dim', 'embed')
    self.out = Dense(c.hidden_dim, axes=axes, num_inputs=2, kernel_init=init, use_bias=c.out_bias, dtype=dtype)
    self.mlp = GatedMlp(c.mlp_dim, 'silu', up_init=init, down_init=init, use_bias=c.mlp_bias, dtype=dtype)
    self.attention_norm = RMSNorm(c.norm_epsilon, dtype)
    self.mlp_norm = RMSNorm(c.norm_epsilon, dtype)
    if c.norm_placement == 'sandwich':
      self.after_attention_norm = RMSNorm(c.norm_epsilon, dtype)
      self.after_mlp_norm = RMSNorm(c.norm_epsilon, dtype)
    self.attention_dropout = Dropout(c.dropout)
    self.mlp_dropout = Dropout(c.dropout)

  def __call__(self, x: Array, context: tuple[Mask, Angles], train: bool) -> tuple[Array, Array]:
    mask, angles = context
    x, _ = self._sublayers(x, mask, angles, train=train)
    x = constrain(x, 'batch', 'length', 'embed')
    return x, x

  def decode(self, x: Array, context: tuple[Array, Mask, Angles], cache: Cache) -> tuple[Array, Cache]:
    """Run one step of generation.

    Args:
      x: [b, s, d].
      context: the slot of the first new token, the mask of the new tokens, and the angles of their positions.
      cache: the layer's 'keys' [b g, k, m], which are rotated, and 'values' [b g, m, k].

    Returns:
      [b, s, d], and the layer's keys and values with those of the new tokens.
    """
    start, mask, angles = context
    return self._sublayers(x, mask, angles, past=Past(cache['keys'], cache['values'], start))

  def _sublayers(
    self, x: Array, mask: Mask, angles: Angles, *, train: bool = False, past: Past | None = None
  ) -> tuple[Array, Cache]:
    """Apply both sublayers to [b, l, d]; also return keys and values."""
    c = self.config
    sandwich = c.norm_placement == 'sandwich'

    y = self.attention_norm(x)
    query, key, value = self.query(y), self.key(y), self.value(y)  # [b, l, h, k], then two of [b, l, g, k]
    query, key = (position.rotate(part, angles, layout=c.rotary) for part in (query, key))
    keys, values = caches.append(past, key, value)
    implementation = 'cached' if past else self.execution.attention
    y = attend_in(
      self, query, keys, values, mask=mask, dropout=c.attention_dropout, train=train, implementation=implementation
    )
    y = self.out(y)  # [b, l, h, k] -> [b, l, d]
    y = self.after_attention_norm(y) if sandwich else y
    x = x + self.attention_dropout(y, train=train)

    y = self.mlp(self.mlp_norm(x))
    y = self.after_mlp_norm(y) if sandwich else y
    x = x + self.mlp_dropout(y, train=train)
    return x, {'keys': keys, 'values': values}


class Llama(Rotary):
  """The decoder with its output matrix."""

  config: Config

  NAME = 'llama'

  def setup(self) -> None:
    c = self.config
    self.token_embed = self.embed or self.make_table(normal(c.init_std))
    layers = stack(Block, num_layers=c.num_layers, execution=self.execution, methods=('decode',))
    self.layers = layers(c, self.execution)
    self.final_norm = RMSNorm(c.norm_epsilon, self.execution.dtype)
    if not c.tied and c.has_output:
      self.output = self.make_table(normal(c.init_std))

  @property
  def speeds(self) -> np.ndarray:
    """Return the speed of each rotated pair, f32[k / 2]."""
    return self.config.rotary_speeds

  @property
  def key_shape(self) -> tuple[int, int]:
    """Return the number of key heads and their width."""
    return self.config.key_heads, self.config.head_size

  @property
  def head_style(self) -> HeadStyle:
    """Return the style of a head before `attend`."""
    return HeadStyle('silu', self.config.norm_epsilon, self.config.init_std)


def make(*, vocab_size: int, variant: str, overrides: Overrides = None, execution: Execution = Execution()) -> Llama:
  """Build trunk `variant` of `CONFIGS`, changed by `overrides`, for `vocab_size` ids."""
  return Llama(dataclasses.replace(CONFIGS[variant], **(overrides or {})), vocab_size, execution)


_13B = Config(hidden_dim=5120, num_layers=40, num_heads=40, mlp_dim=13824)
_8B = Config(num_kv_heads=8, mlp_dim=14336, max_length=8192, norm_epsilon=1e-5, rotary_base=500_000.0)
_70B = dataclasses.replace(_8B, hidden_dim=8192, num_layers=80, num_heads=64, mlp_dim=28672)


def _extended(config: Config, **fields: Any) -> Config:
  """Extend a config to 16 times longer sequences (LLaMA 3.1 and later)."""
  scaling: dict[str, Any] = {'rotary_scaling': 'llama3', 'rotary_factor': 8.0, 'rotary_length': 8192}
  return dataclasses.replace(config, **{'max_length': 131_072, **scaling, **fields})


_CHATGLM2 = Config(
  num_layers=28,
  num_kv_heads=2,
  mlp_dim=13696,
  max_length=32_768,
  norm_epsilon=1e-5,
  rotary='pairs',
  rotary_share=0.5,
  qkv_bias=True,
)
_GLM4 = dataclasses.replace(_CHATGLM2, num_layers=40, max_length=131_072, norm_epsilon=1.5625e-7)

CONFIGS: Mapping[str, Config] = {
  'llama-7b': Config(),
  'llama-13b': _13B,
  'llama-33b': Config(hidden_dim=6656, num_layers=60, num_heads=52, mlp_dim=17920),
  'llama-65b': Config(hidden_dim=8192, num_layers=80, num_heads=64, mlp_dim=22016),
  'llama2-7b': Config(max_length=4096, norm_epsilon=1e-5),
  'llama2-13b': dataclasses.replace(_13B, max_length=4096, norm_epsilon=1e-5),
  'llama2-70b': Config(
    hidden_dim=8192, num_layers=80, num_heads=64, num_kv_heads=8, mlp_dim=28672, max_length=4096, norm_epsilon=1e-5
  ),
  'llama3-8b': _8B,
  'llama3-70b': _70B,
  'llama3.1-8b': _extended(_8B),
  'llama3.1-70b': _extended(_70B),
  'llama3.1-405b': _extended(_8B, hidden_dim=16384, num_layers=126, num_heads=128, mlp_dim=53248),
  'llama3.2-1b': _extended(_8B, hidden_dim=2048, num_layers=16, mlp_dim=8192, tied=True, rotary_factor=32.0),
  'llama3.2-3b': _extended(
    _8B, hidden_dim=3072, num_layers=28, num_heads=24, mlp_dim=8192, tied=True, rotary_factor=32.0
  ),
  'chatglm2-6b': _CHATGLM2,
  'glm-4-9b': _GLM4,
  'glm-4-9b-0414': dataclasses.replace(_GLM4, max_length=32_768, norm_epsilon=1e-5, norm_placement='sandwich'),
  'tiny': Config(hidden_dim=128, num_layers=2, num_heads=2, num_kv_heads=1, mlp_dim=352),
}

_LLAMA2 = 2023, 'Touvron et al., LLaMA 2'
_LLAMA3 = 2024, 'Grattafiori et al., The Llama 3 herd of models'
_LATER = 'released after the paper'
_GLM_PAPER = 2024, 'GLM team, ChatGLM: from GLM-130B to GLM-4'

PUBLISHED: Mapping[str, Published] = {
  'llama-7b': Published(vocab_size=32_000, parameters=6_738_415_616, paper='6.7B'),
  'llama-13b': Published(vocab_size=32_000, parameters=13_015_864_320, paper='13.0B'),
  'llama-33b': Published(vocab_size=32_000, parameters=32_528_943_616, paper='32.5B'),
  'llama-65b': Published(vocab_size=32_000, parameters=65_285_660_672, paper='65.2B'),
  'llama2-7b': Published(vocab_size=32_000, parameters=6_738_415_616, paper='7B', source=_LLAMA2),
  'llama2-13b': Published(vocab_size=32_000, parameters=13_015_864_320, paper='13B', source=_LLAMA2),
  'llama2-70b': Published(vocab_size=32_000, parameters=68_976_648_192, paper='70B', source=_LLAMA2),
  'llama3-8b': Published(vocab_size=128_256, parameters=8_030_261_248, paper='8B', source=_LLAMA3),
  'llama3-70b': Published(vocab_size=128_256, parameters=70_553_706_496, paper='70B', source=_LLAMA3),
  'llama3.1-8b': Published(vocab_size=128_256, parameters=8_030_261_248, paper='8B', source=_LLAMA3),
  'llama3.1-70b': Published(vocab_size=128_256, parameters=70_553_706_496, paper='70B', source=_LLAMA3),
  'llama3.1-405b': Published(vocab_size=128_256, parameters=405_853_388_800, paper='405B', source=_LLAMA3),
  'llama3.2-1b': Published(vocab_size=128_256, parameters=1_235_814_400, paper='none', note=_LATER, source=_LLAMA3),
  'llama3.2-3b': Published(vocab_size=128_256, parameters=3_212_749_824, paper='none', note=_LATER, source=_LLAMA3),
  'chatglm2-6b': Published(vocab_size=65_024, parameters=6_243_584_000, paper='6B', source=_GLM_PAPER),
  'glm-4-9b': Published(vocab_size=151_552, parameters=9_399_951_360, paper='9B', source=_GLM_PAPER),
  'glm-4-9b-0414': Published(
    vocab_size=151_552,
    parameters=9_400_279_040,
    paper='9B',
    note='glm-4-9b with two more norms a layer',
    source=_GLM_PAPER,
  ),
}

PAPER = Paper(
  year=2023,
  title='Touvron et al., LLaMA',
  architecture='decoder',
  objective_family='autoregressive',
  adapters=('classify',),
)
