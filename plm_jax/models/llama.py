"""LLaMA (Touvron et al. 2023, §2.2; arXiv 2302.13971), LLaMA 2 (arXiv 2307.09288, §2.2), 3 and the GLM-4 family.

Causal decoder: RMSNorm before each sublayer and at the end, rotary positions, a feed-forward of three matrices,
down(silu(gate x) * up x), no biases, a separate output matrix. Texts that count two linear layers in the feed-forward
omit the gate. Larger models of LLaMA 2 and all of LLaMA 3 (Grattafiori et al. 2024, §3.2; arXiv 2407.21783) share each
key and value among several heads (`num_kv_heads`). From 3.1 on rotation is slower for long sequences
(`rotary_scaling`).

ChatGLM2-6B and GLM-4-9B (GLM team 2024, arXiv 2406.12793, §2) have this block and not GLM's: causal, with rotary
positions on half of each head, two key heads, biases on query, key and value. GLM-4-0414 also has a norm after each
sublayer: `norm_placement='sandwich'`.

Rows of other families, each a field or two away: Mistral (Jiang et al. 2023; arXiv 2310.06825) with `window`; Qwen2
(Yang et al. 2024; arXiv 2407.10671) with biases on query, key and value; Qwen3 (Yang et al. 2025; arXiv 2505.09388)
without them and with `qk_norm` for each head; OLMo 2 (OLMo team 2024; arXiv 2501.00656) with norms of the sublayers'
outputs only and `qk_norm` over all heads; Gemma (Gemma team 2024; arXiv 2403.08295) with `scaling` and a gated GELU;
SmolLM3 (Bakouch et al. 2025) with layers without positions (`unrotated`; Yang et al. 2025; arXiv 2501.18795).
GPT-NeoX (Black et al. 2022, §2.1; arXiv 2204.06745) and Pythia (Biderman et al. 2023; arXiv 2304.01373) are older. They
have this wiring with other `parts`, biases, a rotated quarter of each head, and both sublayers `parallel`.

The released code of LLaMA rotates adjacent pairs of components. Hugging Face's kernels are permuted so that the two
halves of a head are rotated against each other. LLaMA sizes here use the halves (`rotary`), GLM sizes the pairs.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from plm_jax.core.keywords import Count, Depth, Epsilon, NonNegativeInt, PartRate, Rate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Execution, Paper, Published
from plm_jax.layers import cache as caches
from plm_jax.layers import positions as position
from plm_jax.layers.attention import attend_in
from plm_jax.layers.cache import Cache, Past
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import from_heads, normal, to_heads
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import Activation, GatedMlp, Mlp
from plm_jax.layers.norm import LayerNorm, RMSNorm
from plm_jax.layers.stack import stack
from plm_jax.models.base import Rotary, check_choices, check_multiple, maker

Angles = tuple[Array, Array]


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a LLaMA."""

  hidden_dim: Count = 4096  # d, width between blocks
  num_layers: Depth = 32  # n
  num_heads: Count = 32  # h
  head_dim: Count | None = None  # k, size of a head; None for hidden_dim / num_heads
  num_kv_heads: Count | None = None  # g, number of key and value heads; None for h
  mlp_dim: Count = 11008  # f, feed-forward width
  # maximum sequence length in training. Positions are not learned, so longer sequences can be computed.
  max_length: Count = 2048
  # 'pre', 'sandwich' with another norm after each sublayer (GLM-4-0414), or 'output' with only that
  norm_placement: Literal['pre', 'sandwich', 'output'] = 'pre'
  norm_epsilon: Epsilon = 1e-6  # epsilon of every RMSNorm
  parts: Literal['llama', 'neox'] = 'llama'  # 'neox' has LayerNorms and a feed-forward of two matrices, up and down
  parallel: bool = False  # the feed-forward reads the input of the block; otherwise the sum of it and attention
  # RMSNorm of queries and keys before they are rotated, over each 'head' or the 'width' of all heads
  qk_norm: Literal['none', 'head', 'width'] = 'none'
  # 'gemma' multiplies embeddings by sqrt(d), and normalised states by 1 + scale instead of scale
  scaling: Literal['none', 'gemma'] = 'none'
  # number of keys that a query sees, its own and those before it; None for the whole context
  window: Count | None = None
  # components of a head that form a pair, 'halves' or adjacent 'pairs'; see `layers.positions.rotate`
  rotary: Literal['halves', 'pairs'] = 'halves'
  rotary_share: Rate = 1.0  # share of a head's components that is rotated, from the first on
  unrotated: tuple[NonNegativeInt, ...] = ()  # layers without rotary positions, counted from 0
  rotary_base: Annotated[float, '1 < x'] = 10_000.0  # base of the angles
  # reduction of the angles for sequences longer than in pre-training: 'linear' divides them all by `rotary_factor`
  # (Chen et al. 2023, arXiv 2306.15595, equation 4); 'llama3' divides those that rotate slowly
  rotary_scaling: Literal['none', 'linear', 'llama3'] = 'none'
  rotary_factor: Annotated[float, '1 <= x'] = 1.0  # see `rotary_scaling`
  # 'llama3': pairs with fewer rotations in `rotary_length` positions are divided
  rotary_low: Annotated[float, '0 < x'] = 1.0
  # 'llama3': pairs with more rotations are unchanged; those between are divided in part
  rotary_high: Annotated[float, '0 < x'] = 4.0
  rotary_length: Count | None = None  # 'llama3': maximum sequence length before the reduction; None for `max_length`
  qkv_bias: bool = False  # query, key and value have biases
  out_bias: bool = False  # the output of attention has a bias
  mlp_bias: bool = False  # the three matrices of the feed-forward have biases
  activation: Activation = 'silu'  # of the gate
  tied: bool = False  # the output matrix is the token table; otherwise a separate matrix
  has_output: bool = True  # False for an untied trunk whose folder has no output matrix; it computes no logits
  dropout: PartRate = 0.0  # rate after each sublayer
  attention_dropout: PartRate = 0.0  # rate on attention weights
  init_std: Std = 0.02  # standard deviation of the normal that initialises kernels and tables
  vocab_multiple: Count = 1  # pads the tables to a multiple of this many rows

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


def make_norm(config: Config, dtype: str) -> nn.Module:
  """Build a norm of states."""
  if config.parts == 'neox':
    return LayerNorm(config.norm_epsilon, dtype)
  return RMSNorm(config.norm_epsilon, dtype, from_one=config.scaling == 'gemma')


class Block(nn.Module):
  """Masked self-attention and feed-forward, with a norm before each and, in a 'sandwich', another after each."""

  config: Config
  execution: Execution

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    init = normal(c.init_std)
    counts = (c.num_heads, c.key_heads, c.key_heads)
    self.query, self.key, self.value = (
      to_heads(count, c.head_size, init, use_bias=c.qkv_bias, dtype=dtype) for count in counts
    )
    self.out = from_heads(c.hidden_dim, init, use_bias=c.out_bias, dtype=dtype)
    mlp = GatedMlp if c.parts == 'llama' else Mlp
    self.mlp = mlp(c.mlp_dim, c.activation, up_init=init, down_init=init, use_bias=c.mlp_bias, dtype=dtype)
    if c.norm_placement != 'output':
      self.attention_norm, self.mlp_norm = make_norm(c, dtype), make_norm(c, dtype)
    if c.norm_placement != 'pre':
      self.after_attention_norm, self.after_mlp_norm = make_norm(c, dtype), make_norm(c, dtype)
    if c.qk_norm != 'none':
      over = ('head_dim',) if c.qk_norm == 'head' else ('heads', 'head_dim')
      self.query_norm, self.key_norm = (RMSNorm(c.norm_epsilon, dtype, over, c.scaling == 'gemma') for _ in range(2))
    self.attention_dropout = Dropout(c.dropout)
    self.mlp_dropout = Dropout(c.dropout)

  def __call__(self, x: Any, context: tuple[Mask, Angles], train: bool) -> tuple[Any, Array]:
    mask, angles = context
    layer: Any = None
    if self.config.unrotated:
      x, layer = x
    x, _ = self._sublayers(x, mask, self._angles(angles, layer), train=train)
    x = constrain(x, 'batch', 'length', 'embed')
    return (x, layer + 1) if self.config.unrotated else x, x

  def decode(self, x: Array, context: tuple[Array, Mask, Angles], cache: Cache) -> tuple[Array, Cache]:
    """Run one step of generation: [b, s, d], keys and values.

    The context is the slot of the first new token, the mask and the angles. The cache has the layer's rotated 'keys'
    [b g, k, m], 'values' [b g, m, k] and, if some layers are not rotated, its 'number'.
    """
    start, mask, angles = context
    angles = self._angles(angles, cache.get('number'))
    return self._sublayers(x, mask, angles, past=Past(cache['keys'], cache['values'], start))

  def _angles(self, angles: Angles, layer: Array | None) -> Angles:
    """Return the angles of a layer, 0 if it is unrotated."""
    if layer is None:
      return angles
    still = (layer == jnp.asarray(self.config.unrotated)).any()
    return jnp.where(still, 1.0, angles[0]), jnp.where(still, 0.0, angles[1])

  def _sublayers(
    self, x: Array, mask: Mask, angles: Angles, *, train: bool = False, past: Past | None = None
  ) -> tuple[Array, Cache]:
    """Apply both sublayers to [b, l, d]; also return keys and values."""
    c = self.config
    before, after = c.norm_placement != 'output', c.norm_placement != 'pre'

    y = self.attention_norm(x) if before else x
    query, key, value = self.query(y), self.key(y), self.value(y)  # [b, l, h, k], then two of [b, l, g, k]
    if c.qk_norm != 'none':
      query, key = self.query_norm(query), self.key_norm(key)
    query, key = (position.rotate(part, angles, layout=c.rotary) for part in (query, key))
    keys, values = caches.append(past, key, value)
    implementation = 'cached' if past else self.execution.attention
    y = attend_in(
      self, query, keys, values, mask=mask, dropout=c.attention_dropout, train=train, implementation=implementation
    )
    y = self.out(y)  # [b, l, h, k] -> [b, l, d]
    y = self.after_attention_norm(y) if after else y
    attended = x + self.attention_dropout(y, train=train)

    y = x if c.parallel else attended
    y = self.mlp(self.mlp_norm(y) if before else y)
    y = self.after_mlp_norm(y) if after else y
    return attended + self.mlp_dropout(y, train=train), {'keys': keys, 'values': values}


class Llama(Rotary):
  """The decoder with its output matrix."""

  config: Config

  NAME = 'llama'

  def setup(self) -> None:
    c = self.config
    self.token_embed = self.embed or self.make_table(normal(c.init_std))
    layers = stack(Block, num_layers=c.num_layers, execution=self.execution, methods=('decode',))
    self.layers = layers(c, self.execution)
    self.final_norm = make_norm(c, self.execution.dtype)
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

  def embed_tokens(self, tokens: Array) -> Array:
    """Embed the tokens, for 'gemma' times sqrt(d)."""
    x = self.token_embed(tokens)
    return x * math.sqrt(self.config.hidden_dim) if self.config.scaling == 'gemma' else x


def _sized(config: Config, d: int, n: int, h: int, f: int, **fields: Any) -> Config:
  """Change width, layers, heads, feed-forward width and other fields."""
  return dataclasses.replace(config, hidden_dim=d, num_layers=n, num_heads=h, mlp_dim=f, **fields)


def _extended(config: Config, **fields: Any) -> Config:
  """Extend a config to 16 times longer sequences (LLaMA 3.1 and later)."""
  scaling: dict[str, Any] = {'rotary_scaling': 'llama3', 'rotary_factor': 8.0, 'rotary_length': 8192}
  return dataclasses.replace(config, **{'max_length': 131_072, **scaling, **fields})


def _pythia(d: int, n: int, h: int) -> Config:
  parts: dict[str, Any] = {'parts': 'neox', 'parallel': True, 'activation': 'gelu_erf', 'norm_epsilon': 1e-5}
  return _sized(Config(**parts, rotary_share=0.25, qkv_bias=True, out_bias=True, mlp_bias=True), d, n, h, 4 * d)


# fmt: off
_LONGER = Config(max_length=4096, norm_epsilon=1e-5)
_8B = Config(num_kv_heads=8, mlp_dim=14336, max_length=8192, norm_epsilon=1e-5, rotary_base=500_000.0)
_70B = _sized(_8B, 8192, 80, 64, 28672)
_32 = {'tied': True, 'rotary_factor': 32.0}
_CHATGLM2 = Config(
  num_layers=28, num_kv_heads=2, mlp_dim=13696, max_length=32_768, norm_epsilon=1e-5, rotary='pairs', rotary_share=0.5,
  qkv_bias=True,
)
_GLM4 = dataclasses.replace(_CHATGLM2, num_layers=40, max_length=131_072, norm_epsilon=1.5625e-7)
_MISTRAL = Config(num_kv_heads=8, mlp_dim=14336, max_length=32_768, norm_epsilon=1e-5, window=4096)
_QWEN2 = Config(num_kv_heads=8, max_length=131_072, rotary_base=1e6, qkv_bias=True)
_QWEN3 = Config(num_kv_heads=8, max_length=40_960, rotary_base=1e6, head_dim=128, qk_norm='head')
_GEMMA = Config(head_dim=256, max_length=8192, activation='gelu_tanh', scaling='gemma', tied=True)
_OLMO2 = Config(max_length=4096, rotary_base=500_000.0, norm_placement='output', qk_norm='width')
_SMOLLM3 = Config(num_kv_heads=4, max_length=65_536, rotary_base=5e6, tied=True, unrotated=tuple(range(3, 36, 4)))

CONFIGS: Mapping[str, Config] = {
  'llama-7b': Config(),
  'llama-13b': _sized(Config(), 5120, 40, 40, 13824),
  'llama-33b': _sized(Config(), 6656, 60, 52, 17920),
  'llama-65b': _sized(Config(), 8192, 80, 64, 22016),
  'llama2-7b': _LONGER,
  'llama2-13b': _sized(_LONGER, 5120, 40, 40, 13824),
  'llama2-70b': _sized(_LONGER, 8192, 80, 64, 28672, num_kv_heads=8),
  'llama3-8b': _8B,
  'llama3-70b': _70B,
  'llama3.1-8b': _extended(_8B),
  'llama3.1-70b': _extended(_70B),
  'llama3.1-405b': _extended(_sized(_8B, 16384, 126, 128, 53248)),
  'llama3.2-1b': _extended(_sized(_8B, 2048, 16, 32, 8192), **_32),
  'llama3.2-3b': _extended(_sized(_8B, 3072, 28, 24, 8192), **_32),
  'chatglm2-6b': _CHATGLM2,
  'glm-4-9b': _GLM4,
  'glm-4-9b-0414': dataclasses.replace(_GLM4, max_length=32_768, norm_epsilon=1e-5, norm_placement='sandwich'),
  'mistral-7b': _MISTRAL,
  'mistral-7b-v0.3': dataclasses.replace(_MISTRAL, rotary_base=1e6, window=None),
  'qwen2-0.5b': _sized(_QWEN2, 896, 24, 14, 4864, num_kv_heads=2, tied=True),
  'qwen2-1.5b': _sized(_QWEN2, 1536, 28, 12, 8960, num_kv_heads=2, tied=True),
  'qwen2-7b': _sized(_QWEN2, 3584, 28, 28, 18944, num_kv_heads=4),
  'qwen2-72b': _sized(_QWEN2, 8192, 80, 64, 29568),
  'qwen3-0.6b': _sized(_QWEN3, 1024, 28, 16, 3072, tied=True),
  'qwen3-1.7b': _sized(_QWEN3, 2048, 28, 16, 6144, tied=True),
  'qwen3-4b': _sized(_QWEN3, 2560, 36, 32, 9728, tied=True),
  'qwen3-8b': _sized(_QWEN3, 4096, 36, 32, 12288),
  'qwen3-14b': _sized(_QWEN3, 5120, 40, 40, 17408),
  'qwen3-32b': _sized(_QWEN3, 5120, 64, 64, 25600),
  'gemma-2b': _sized(_GEMMA, 2048, 18, 8, 16384, num_kv_heads=1),
  'gemma-7b': _sized(_GEMMA, 3072, 28, 16, 24576),
  'olmo2-1b': _sized(_OLMO2, 2048, 16, 16, 8192),
  'olmo2-7b': _OLMO2,
  'olmo2-13b': _sized(_OLMO2, 5120, 40, 40, 13824),
  'olmo2-32b': _sized(_OLMO2, 5120, 64, 40, 27648, num_kv_heads=8),
  'smollm3-3b': _sized(_SMOLLM3, 2048, 36, 16, 11008),
  'pythia-70m': _pythia(512, 6, 8),
  'pythia-160m': _pythia(768, 12, 12),
  'pythia-410m': _pythia(1024, 24, 16),
  'pythia-1b': _pythia(2048, 16, 8),
  'pythia-1.4b': _pythia(2048, 24, 16),
  'pythia-2.8b': _pythia(2560, 32, 32),
  'pythia-6.9b': _pythia(4096, 32, 32),
  'pythia-12b': _pythia(5120, 36, 40),
  'gpt-neox-20b': _pythia(6144, 44, 64),
  'tiny': Config(hidden_dim=128, num_layers=2, num_heads=2, num_kv_heads=1, mlp_dim=352),
}
make = maker(Llama, CONFIGS)

_LLAMA2 = 2023, 'Touvron et al., LLaMA 2'
_LLAMA3 = 2024, 'Grattafiori et al., The Llama 3 herd of models'
_LATER = 'released after the paper'
_GLM = 2024, 'GLM team, ChatGLM: from GLM-130B to GLM-4'
_0414 = 'glm-4-9b with two more norms a layer'
_JIANG = 2023, 'Jiang et al., Mistral 7B'
_YANG2 = 2024, 'Yang et al., Qwen2'
_YANG3 = 2025, 'Yang et al., Qwen3'
_GEMMA1 = 2024, 'Gemma team, Gemma'
_OLMO = 2024, 'OLMo team, 2 OLMo 2 Furious'
_PYTHIA = 2023, 'Biderman et al., Pythia'

PUBLISHED: Mapping[str, Published] = {
  'llama-7b': Published(32_000, 6_738_415_616, '6.7B'),
  'llama-13b': Published(32_000, 13_015_864_320, '13.0B'),
  'llama-33b': Published(32_000, 32_528_943_616, '32.5B'),
  'llama-65b': Published(32_000, 65_285_660_672, '65.2B'),
  'llama2-7b': Published(32_000, 6_738_415_616, '7B', source=_LLAMA2),
  'llama2-13b': Published(32_000, 13_015_864_320, '13B', source=_LLAMA2),
  'llama2-70b': Published(32_000, 68_976_648_192, '70B', source=_LLAMA2),
  'llama3-8b': Published(128_256, 8_030_261_248, '8B', source=_LLAMA3),
  'llama3-70b': Published(128_256, 70_553_706_496, '70B', source=_LLAMA3),
  'llama3.1-8b': Published(128_256, 8_030_261_248, '8B', source=_LLAMA3),
  'llama3.1-70b': Published(128_256, 70_553_706_496, '70B', source=_LLAMA3),
  'llama3.1-405b': Published(128_256, 405_853_388_800, '405B', source=_LLAMA3),
  'llama3.2-1b': Published(128_256, 1_235_814_400, 'none', note=_LATER, source=_LLAMA3),
  'llama3.2-3b': Published(128_256, 3_212_749_824, 'none', note=_LATER, source=_LLAMA3),
  'chatglm2-6b': Published(65_024, 6_243_584_000, '6B', source=_GLM),
  'glm-4-9b': Published(151_552, 9_399_951_360, '9B', source=_GLM),
  'glm-4-9b-0414': Published(151_552, 9_400_279_040, '9B', note=_0414, source=_GLM),
  'mistral-7b': Published(32_000, 7_241_732_096, '7B', source=_JIANG),
  'mistral-7b-v0.3': Published(32_768, 7_248_023_552, 'none', note=_LATER, source=_JIANG),
  'qwen2-0.5b': Published(151_936, 494_032_768, '0.5B', source=_YANG2),
  'qwen2-1.5b': Published(151_936, 1_543_714_304, '1.5B', source=_YANG2),
  'qwen2-7b': Published(152_064, 7_615_616_512, '7B', source=_YANG2),
  'qwen2-72b': Published(152_064, 72_706_203_648, '72B', source=_YANG2),
  'qwen3-0.6b': Published(151_936, 596_049_920, '0.6B', source=_YANG3),
  'qwen3-1.7b': Published(151_936, 1_720_574_976, '1.7B', source=_YANG3),
  'qwen3-4b': Published(151_936, 4_022_468_096, '4B', source=_YANG3),
  'qwen3-8b': Published(151_936, 8_190_735_360, '8B', source=_YANG3),
  'qwen3-14b': Published(151_936, 14_768_307_200, '14B', source=_YANG3),
  'qwen3-32b': Published(151_936, 32_762_123_264, '32B', source=_YANG3),
  'gemma-2b': Published(256_000, 2_506_172_416, '2B', source=_GEMMA1),
  'gemma-7b': Published(256_000, 8_537_680_896, '7B', source=_GEMMA1),
  'olmo2-1b': Published(100_352, 1_484_916_736, 'none', note=_LATER, source=_OLMO),
  'olmo2-7b': Published(100_352, 7_298_617_344, '7B', source=_OLMO),
  'olmo2-13b': Published(100_352, 13_716_198_400, '13B', source=_OLMO),
  'olmo2-32b': Published(100_352, 32_234_279_936, '32B', source=_OLMO),
  'smollm3-3b': Published(128_256, 3_075_098_624, '3B', source=(2025, 'Bakouch et al., SmolLM3')),
  'pythia-70m': Published(50_304, 70_426_624, '70M', source=_PYTHIA),
  'pythia-160m': Published(50_304, 162_322_944, '160M', source=_PYTHIA),
  'pythia-410m': Published(50_304, 405_334_016, '410M', source=_PYTHIA),
  'pythia-1b': Published(50_304, 1_011_781_632, '1.0B', source=_PYTHIA),
  'pythia-1.4b': Published(50_304, 1_414_647_808, '1.4B', source=_PYTHIA),
  'pythia-2.8b': Published(50_304, 2_775_208_960, '2.8B', source=_PYTHIA),
  'pythia-6.9b': Published(50_432, 6_857_302_016, '6.9B', source=_PYTHIA),
  'pythia-12b': Published(50_688, 11_846_072_320, '12B', source=_PYTHIA),
  'gpt-neox-20b': Published(50_432, 20_554_567_680, '20B', source=(2022, 'Black et al., GPT-NeoX-20B')),
}
# fmt: on

PAPER = Paper(
  year=2023,
  title='Touvron et al., LLaMA',
  architecture='decoder',
  objective_family='autoregressive',
  adapters=('classify',),
)
