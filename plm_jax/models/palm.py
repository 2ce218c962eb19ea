"""PaLM (Chowdhery et al. 2022, §2; arXiv 2204.02311).

Causal decoder. It differs from LLaMA in its block: attention and feed-forward read the same norm, and one sum adds
both, y = x + attention(norm x) + mlp(norm x) (§2, "parallel layers"). All heads share one key and one value
(multi-query, Shazeer 2019); heads have width 256 in every size. SwiGLU of three matrices, rotary positions, no biases
in kernels or norms. The output matrix is the token table, which is initialised to N(0, 1); logits are therefore divided
by sqrt(d) (§5).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated

import flax.linen as nn
import numpy as np

from plm_jax.core.keywords import Count, Depth, Epsilon, PartRate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.trunk import HeadStyle
from plm_jax.core.types import Array, Execution, Paper, Published
from plm_jax.layers import cache as caches
from plm_jax.layers import positions as position
from plm_jax.layers.attention import attend_in
from plm_jax.layers.cache import Cache, Past
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Initializer, from_heads, normal, to_heads
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import GatedMlp
from plm_jax.layers.norm import LayerNorm
from plm_jax.layers.stack import stack
from plm_jax.models.base import Rotary, check_multiple, maker

Angles = tuple[Array, Array]


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a PaLM."""

  hidden_dim: Count = 4096  # d, width between blocks
  num_layers: Depth = 32  # n
  num_heads: Count = 16  # h, number of query heads
  num_kv_heads: Count = 1  # g, number of key and value heads; 1 in the paper
  head_dim: Count = 256  # k; h k may differ from d
  mlp_dim: Count = 16384  # f, feed-forward width, 4 d
  # maximum sequence length in training. Positions are not learned, so longer sequences can be computed.
  max_length: Count = 2048
  norm_epsilon: Epsilon = 1e-6  # epsilon of every norm; that of T5X, because the paper gives none
  rotary_base: Annotated[float, '1 < x'] = 10_000.0  # base of the angles
  dropout: PartRate = 0.0  # rate on the sum of the two branches; 0 in pre-training, .1 in the paper's fine-tuning
  attention_dropout: PartRate = 0.0  # rate on attention weights
  # standard deviation of the token table's initial normal; kernels start from N(0, 1 / sqrt(inputs))
  embed_std: Std = 1.0
  vocab_multiple: Count = 1  # pads the table to a multiple of this many rows

  def __post_init__(self):
    check_multiple(self, 'num_heads', 'num_kv_heads')
    if self.head_dim < 2 or self.head_dim % 2:
      raise ValueError(f'model.overrides.head_dim={self.head_dim} must be even and positive, for rotary pairs')


class Block(nn.Module):
  """x + attention(norm x) + mlp(norm x), with one norm."""

  config: Config
  execution: Execution

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype

    def fan_in(inputs: int) -> Initializer:
      return normal(1 / math.sqrt(inputs))

    counts, init = (c.num_heads, c.num_kv_heads, c.num_kv_heads), fan_in(c.hidden_dim)
    self.query, self.key, self.value = (
      to_heads(count, c.head_dim, init, use_bias=False, dtype=dtype) for count in counts
    )
    self.out = from_heads(c.hidden_dim, fan_in(c.num_heads * c.head_dim), use_bias=False, dtype=dtype)
    self.mlp = GatedMlp(c.mlp_dim, 'silu', up_init=fan_in(c.hidden_dim), down_init=fan_in(c.mlp_dim), dtype=dtype)
    self.norm = LayerNorm(c.norm_epsilon, dtype, use_bias=False)
    self.dropout = Dropout(c.dropout)

  def __call__(self, x: Array, context: tuple[Mask, Angles], train: bool) -> tuple[Array, Array]:
    mask, angles = context
    attended, fed, _ = self._branches(x, mask, angles, train=train)
    x = x + self.dropout(attended + fed, train=train)
    x = constrain(x, 'batch', 'length', 'embed')
    return x, x

  def decode(self, x: Array, context: tuple[Array, Mask, Angles], cache: Cache) -> tuple[Array, Cache]:
    """Run one step of generation, as LLaMA's block."""
    start, mask, angles = context
    attended, fed, new = self._branches(x, mask, angles, past=Past(cache['keys'], cache['values'], start))
    return x + attended + fed, new

  def _branches(
    self, x: Array, mask: Mask, angles: Angles, *, train: bool = False, past: Past | None = None
  ) -> tuple[Array, Array, Cache]:
    """Compute both branches [b, l, d]; also return keys and values."""
    c = self.config
    y = self.norm(x)
    query, key, value = self.query(y), self.key(y), self.value(y)  # [b, l, h, k], then two of [b, l, g, k]
    query, key = (position.rotate(part, angles, layout='pairs') for part in (query, key))
    keys, values = caches.append(past, key, value)
    implementation = 'cached' if past else self.execution.attention
    attended = attend_in(
      self, query, keys, values, mask=mask, dropout=c.attention_dropout, train=train, implementation=implementation
    )
    return self.out(attended), self.mlp(y), {'keys': keys, 'values': values}  # [b, l, h, k] -> [b, l, d]


class Palm(Rotary):
  """The decoder with its tied output."""

  config: Config

  NAME = 'palm'

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    self.token_embed = self.embed or self.make_table(normal(c.embed_std))
    layers = stack(Block, num_layers=c.num_layers, execution=self.execution, methods=('decode',))
    self.layers = layers(c, self.execution)
    self.final_norm = LayerNorm(c.norm_epsilon, dtype, use_bias=False)

  @property
  def speeds(self) -> np.ndarray:
    """Return the speed of each rotated pair, f32[k / 2]."""
    return position.rotary_speeds(dim=self.config.head_dim, base=self.config.rotary_base)

  @property
  def key_shape(self) -> tuple[int, int]:
    """Return the number of key heads and their width."""
    return self.config.num_kv_heads, self.config.head_dim

  @property
  def head_style(self) -> HeadStyle:
    """Return the style of a head before `attend`."""
    return HeadStyle('silu', self.config.norm_epsilon, 1 / math.sqrt(self.config.hidden_dim))

  def attend(self, features: Array) -> Array:
    """Vocabulary logits f32[..., v] by the token table, divided by sqrt(d)."""
    return self.token_embed.attend(features / math.sqrt(self.config.hidden_dim))


CONFIGS: Mapping[str, Config] = {
  'palm-8b': Config(),
  'palm-62b': Config(hidden_dim=8192, num_layers=64, num_heads=32, mlp_dim=32768),
  'palm-540b': Config(hidden_dim=18432, num_layers=118, num_heads=48, mlp_dim=73728),
  'tiny': Config(hidden_dim=128, num_layers=2, num_heads=2, head_dim=64, mlp_dim=512),
}
make = maker(Palm, CONFIGS)

PUBLISHED: Mapping[str, Published] = {
  'palm-8b': Published(256_000, 8_632_012_800, '8.63B'),
  'palm-62b': Published(256_000, 62_495_662_080, '62.50B'),
  'palm-540b': Published(256_000, 540_356_474_880, '540.35B'),
}

PAPER = Paper(year=2022, title='Chowdhery et al., PaLM', architecture='decoder', objective_family='autoregressive')
