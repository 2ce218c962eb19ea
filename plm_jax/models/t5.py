"""T5: text-to-text Transformer with relative position biases (Raffel et al. 2020, §2.1; arXiv 1910.10683).

Pre-norm with RMSNorm and a final norm of each stack, no biases, no position tables. Each stack has one table of
relative biases for the self-attention of all its layers; cross-attention has none. Products of queries and keys are not
divided by sqrt(k); the initial query kernels are smaller instead. Version 1.0 has a ReLU feed-forward and logits
d^-1/2 x E^T by the token table. Version 1.1 has a gated feed-forward and a separate output matrix, without that factor,
and was pre-trained without dropout. mT5 (Xue et al. 2021, arXiv 2010.11934) and ByT5 (Xue et al. 2022, arXiv
2105.13626), whose encoder is deeper than its decoder, are sizes of 1.1. Efficient T5s (Tay et al. 2022, arXiv
2109.10686) are sizes of 1.0.

`structure` also selects the architectures that the paper compares in §3.2: encoder and decoder with shared parameters,
a decoder, and a decoder that sees a prefix in both directions. 'encoder' is an encoder without a decoder, as in
checkpoints that embed texts.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.keywords import Count, Depth, Epsilon, NonNegativeInt, PartRate
from plm_jax.core.sharding import constrain
from plm_jax.core.trunk import AttentionKind, HeadStyle
from plm_jax.core.types import Array, Execution, Paper, Published, PyTree
from plm_jax.layers import cache as caches
from plm_jax.layers import positions as position
from plm_jax.layers.cache import Cache
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Embed, normal
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import Activation, GatedMlp, Mlp
from plm_jax.layers.multihead import Encoded, MultiHead
from plm_jax.layers.norm import RMSNorm
from plm_jax.layers.pooling import mean
from plm_jax.layers.stack import stack
from plm_jax.models.base import Base, Context, CrossBlock, OneStack, StepContext, TwoStacks, check_choices, maker

Structure = Literal['encoder-decoder', 'shared', 'decoder', 'prefix', 'encoder']


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a T5."""

  hidden_dim: Count = 512  # d, width between blocks
  num_layers: Depth = 6  # n, depth of the encoder or the only stack
  num_decoder_layers: Depth | None = None  # depth of the decoder of an encoder-decoder; None for n
  num_heads: Count = 8  # h
  head_dim: Count = 64  # k; num_heads * head_dim may differ from hidden_dim
  mlp_dim: Count = 2048  # f, feed-forward width
  activation: Activation = 'relu'  # activation of the feed-forward, or of its gate
  gated: bool = False  # the feed-forward has a gate (1.1)
  # logits by the token table, scaled by d^-1/2 (1.0); otherwise by a separate matrix, not scaled (1.1)
  tied: bool = True
  has_output: bool = True  # False for an untied trunk whose folder has no output matrix; it computes no logits
  num_buckets: Count = 32  # number of rows of the table of relative biases
  max_distance: Count = 128  # distances from this one on share the last bucket
  norm_epsilon: Epsilon = 1e-6  # epsilon of every RMSNorm
  dropout: PartRate = 0.1  # rate after embeddings, inside and after each sublayer, and after the final norms
  attention_dropout: PartRate = 0.1  # rate on attention weights
  # 'encoder-decoder'; 'shared', where both stacks share all parameters except cross-attention; 'decoder', one causal
  # stack; 'prefix', one stack that sees a prefix in both directions; 'encoder', one bidirectional stack
  structure: Structure = 'encoder-decoder'
  model_type: Literal['', 'mt5'] = ''  # name of the family in transformers if it is not 't5': 'mt5'
  # id before a text that the decoder reads to label it; None is its last token (BART)
  label_start: NonNegativeInt | None = None
  vocab_multiple: Count = 1  # pads the token table to a multiple of this many rows

  def __post_init__(self):
    check_choices(self)
    if self.structure != 'encoder-decoder' and self.decoder_layers != self.num_layers:
      raise ValueError(
        f'model.overrides.num_decoder_layers={self.num_decoder_layers} differs from num_layers={self.num_layers}, '
        f"which needs structure='encoder-decoder' and not {self.structure!r}: remove num_decoder_layers"
      )

  @property
  def decoder_layers(self) -> int:
    return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers


class Block(CrossBlock):
  """x + sublayer(norm(x)), for self-attention, cross-attention if there is an encoder, and feed-forward."""

  config: Config
  execution: Execution

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    width_init = normal(c.hidden_dim**-0.5)

    def attention() -> MultiHead:
      inits = normal((c.hidden_dim * c.head_dim) ** -0.5), width_init, normal((c.num_heads * c.head_dim) ** -0.5)
      options: dict[str, Any] = {'use_bias': False, 'scale': 1.0, 'dropout': c.attention_dropout, 'dtype': dtype}
      return MultiHead(
        c.num_heads, c.head_dim, c.hidden_dim, *inits, implementation=self.execution.attention, **options
      )

    self.attention_norm = RMSNorm(c.norm_epsilon, dtype)
    self.attention = attention()
    self.cross_norm = RMSNorm(c.norm_epsilon, dtype)
    self.cross = attention()
    self.mlp_norm = RMSNorm(c.norm_epsilon, dtype)
    make_mlp = GatedMlp if c.gated else functools.partial(Mlp, use_bias=False)
    down_init = normal(c.mlp_dim**-0.5)
    self.mlp = make_mlp(c.mlp_dim, c.activation, width_init, down_init, dropout=c.dropout, dtype=dtype)
    self.dropout = Dropout(c.dropout)


class Stack(nn.Module):
  """Layers, their shared table of relative biases, and the final norm."""

  config: Config
  execution: Execution
  num_layers: int

  def setup(self) -> None:
    c = self.config
    self.relative_bias = Embed(c.num_buckets, c.num_heads, (None, 'heads'), normal(c.hidden_dim**-0.5))
    self.layers = stack(Block, num_layers=self.num_layers, execution=self.execution, methods=('decode', 'read'))(
      c, self.execution
    )
    self.final_norm = RMSNorm(c.norm_epsilon, self.execution.dtype)
    self.dropout = Dropout(c.dropout)

  def bias(self, query_positions: Array, key_positions: Array, *, bidirectional: bool) -> Array:
    """Compute relative biases f32[b, h, l, m]; b may be 1."""
    buckets = position.relative_buckets(
      key_positions[:, None, :] - query_positions[:, :, None],
      bidirectional=bidirectional,
      num_buckets=self.config.num_buckets,
      max_distance=self.config.max_distance,
    )
    return jnp.moveaxis(self.relative_bias(buckets), -1, 1)  # [b, l, m, h] -> [b, h, l, m]

  def __call__(
    self,
    x: Array,
    *,
    mask: Mask,
    positions: Array | None,
    bidirectional: bool,
    encoded: Encoded | None = None,
    train: bool,
  ) -> tuple[Array, Array]:
    """Return states [b, l, d] after the final norm, and all layers."""
    x = constrain(self.dropout(x, train=train), 'batch', 'length', 'embed')
    if positions is None:  # only differences matter, and packing does not change those inside a document
      positions = jnp.arange(x.shape[1])[None]
    bias = self.bias(positions, positions, bidirectional=bidirectional)
    hidden, layers = self.layers(x, Context(mask=mask, bias=bias, encoded=encoded), train)
    hidden = self.dropout(self.final_norm(hidden), train=train)
    return hidden, jnp.concatenate([x[None], layers])

  def init_cache(self, batch_size: int, length: int) -> Cache:
    c = self.config
    shape = (self.num_layers, batch_size, length, c.num_heads, c.head_dim)
    return caches.empty(shape, dtype=self.execution.dtype)

  def decode(
    self, x: Array, cache: Cache, *, segment_ids: Array, positions: Array, bidirectional: bool = False
  ) -> tuple[Array, Cache]:
    """Run one step; return states after the final norm, and the cache."""
    start = cache['index']
    cache, mask = caches.advance(cache, segment_ids=segment_ids, positions=positions, together=bidirectional)
    bias = self.bias(positions, cache['positions'], bidirectional=bidirectional)
    layered = {name: cache[name] for name in ('keys', 'values')}
    encoder_mask = None
    if 'encoder_keys' in cache:
      encoder_mask = Mask(segment_ids, cache['encoder_segment_ids'])
      layered |= {name: cache[name] for name in ('encoder_keys', 'encoder_values')}
    context = StepContext(mask=mask, bias=bias, start=start, encoder_mask=encoder_mask)
    x, new = self.layers.decode(x, context, layered)
    return self.final_norm(x), cache | new


class _Trunk(Base):
  """Common parts of all structures: tables and the output."""

  config: Config

  NAME = 't5'

  def setup(self) -> None:
    self.token_embed = self.embed or self.make_table(normal(1.0))
    if not self.config.tied and self.config.has_output:
      self.output = self.make_table(normal(1.0))

  @property
  def head_style(self) -> HeadStyle:
    """Return the style of a head before `attend`."""
    return HeadStyle(self.config.activation, self.config.norm_epsilon, self.config.hidden_dim**-0.5)

  def attend(self, features: Array) -> Array:
    """Compute logits f32[..., v] by the scaled token table or output."""
    if self.config.tied:
      features = features * jnp.asarray(self.config.hidden_dim**-0.5, features.dtype)
    return self.output_table.attend(features)


class T5(TwoStacks, _Trunk):
  """Encoder and decoder."""

  def setup(self) -> None:
    super().setup()
    c = self.config
    self.decoder = Stack(c, self.execution, c.decoder_layers)
    self.encoder = self.decoder if c.structure == 'shared' else Stack(c, self.execution, c.num_layers)

  def read_source(self, tokens: Array, segment_ids: Array, positions: Array | None, train: bool) -> tuple[Array, Array]:
    """Compute the encoder's states [b, m, d] and layers."""
    mask = Mask(segment_ids, segment_ids)
    return self.encoder(self.token_embed(tokens), mask=mask, positions=positions, bidirectional=True, train=train)

  def read_target(
    self, tokens: Array, segment_ids: Array, positions: Array | None, encoded: Encoded, train: bool
  ) -> tuple[Array, Array]:
    """Compute the decoder's states [b, l, d] and layers."""
    x, mask = self.token_embed(tokens), Mask(segment_ids, segment_ids, causal=True)
    return self.decoder(x, mask=mask, positions=positions, bidirectional=False, encoded=encoded, train=train)


class T5Decoder(_Trunk, OneStack):
  """A decoder without an encoder: the language model of the paper's comparison (§3.2.1)."""

  ATTENTION: ClassVar[AttentionKind] = 'causal'
  # tokens that are read at once see each other in both directions, and so are relative biases
  TOGETHER: ClassVar[bool] = False

  def setup(self) -> None:
    super().setup()
    self.decoder = Stack(self.config, self.execution, self.config.num_layers)

  def states(
    self, tokens: Array, segment_ids: Array, type_ids: Array | None, positions: Array | None, train: bool
  ) -> tuple[Array, Array]:
    """Compute 'hidden' and 'layers' by differences of positions, left to right."""
    x, mask = self.token_embed(tokens), Mask(segment_ids, segment_ids, causal=True)
    return self.decoder(x, mask=mask, positions=positions, bidirectional=False, train=train)

  def init_cache(self, batch_size: int, length: int) -> PyTree:
    """Create a cache of `length` empty slots."""
    return self.decoder.init_cache(batch_size, length)

  def decode_step(self, tokens: Array, cache: PyTree, *, segment_ids: Array, positions: Array) -> tuple[Array, PyTree]:
    """Read s tokens as `trunk.Decodes`: logits f32[b, s, v] and the cache."""
    x, both = self.token_embed(tokens), self.TOGETHER
    hidden, cache = self.decoder.decode(x, cache, segment_ids=segment_ids, positions=positions, bidirectional=both)
    return self.attend(hidden), cache


class T5Prefix(T5Decoder):
  """A decoder that sees a prefix in both directions (§3.2.1). In generation the prompt is the prefix."""

  INPUTS = ('tokens', 'segment_ids', 'type_ids', 'positions', 'prefix')
  ATTENTION = 'prefix'
  TOGETHER = True

  def __call__(
    self,
    tokens: Array,
    *,
    segment_ids: Array,
    type_ids: Array | None = None,
    positions: Array | None = None,
    prefix: Array | None = None,
    train: bool = False,
  ) -> dict[str, Any]:
    """Read a batch as `T5Decoder`.

    `prefix` int[b] is the number of first tokens that all tokens of their document see; 0 by default.
    """
    x, mask = self.token_embed(tokens), Mask(segment_ids, segment_ids, causal=True, prefix=prefix)
    return self.results(*self.decoder(x, mask=mask, positions=positions, bidirectional=True, train=train))


class T5Encoder(_Trunk, OneStack):
  """An encoder without a decoder, to embed texts (Sentence-T5, Ni et al. 2021; arXiv 2108.08877)."""

  ATTENTION: ClassVar[AttentionKind] = 'bidirectional'

  def setup(self) -> None:
    super().setup()
    self.encoder = Stack(self.config, self.execution, self.config.num_layers)

  def states(
    self, tokens: Array, segment_ids: Array, type_ids: Array | None, positions: Array | None, train: bool
  ) -> tuple[Array, Array]:
    """Compute 'hidden' and 'layers' by differences of positions, both ways."""
    x, mask = self.token_embed(tokens), Mask(segment_ids, segment_ids)
    return self.encoder(x, mask=mask, positions=positions, bidirectional=True, train=train)

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Average the real tokens (Sentence-T5, §3): [b, l, d] -> [b, d]."""
    return mean(hidden, segment_ids)


def _trunk(config: Config, vocab_size: int, execution: Execution) -> T5 | T5Decoder | T5Encoder:
  kinds: dict[str, type[T5 | T5Decoder | T5Encoder]]
  kinds = {'decoder': T5Decoder, 'prefix': T5Prefix, 'encoder': T5Encoder}
  return kinds.get(config.structure, T5)(config, vocab_size, execution)


_SMALL_11 = Config(
  num_layers=8,
  num_heads=6,
  mlp_dim=1024,
  activation='gelu_tanh',
  gated=True,
  tied=False,
  dropout=0,
  attention_dropout=0,
)


_version_11 = functools.partial(dataclasses.replace, _SMALL_11)

CONFIGS: Mapping[str, Config] = {
  't5-small': Config(),
  't5-base': Config(hidden_dim=768, num_layers=12, num_heads=12, mlp_dim=3072),
  't5-large': Config(hidden_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096),
  't5-3b': Config(hidden_dim=1024, num_layers=24, num_heads=32, head_dim=128, mlp_dim=16384),
  't5-11b': Config(hidden_dim=1024, num_layers=24, num_heads=128, head_dim=128, mlp_dim=65536),
  't5-v1_1-small': _SMALL_11,
  't5-v1_1-base': _version_11(hidden_dim=768, num_layers=12, num_heads=12, mlp_dim=2048),
  't5-v1_1-large': _version_11(hidden_dim=1024, num_layers=24, num_heads=16, mlp_dim=2816),
  't5-v1_1-xl': _version_11(hidden_dim=2048, num_layers=24, num_heads=32, mlp_dim=5120),
  't5-v1_1-xxl': _version_11(hidden_dim=4096, num_layers=24, num_heads=64, mlp_dim=10240),
  't5-efficient-tiny': Config(hidden_dim=256, num_layers=4, num_heads=4, mlp_dim=1024),
  't5-efficient-mini': Config(hidden_dim=384, num_layers=4, mlp_dim=1536),
  't5-efficient-small-el16-dl4': Config(num_layers=16, num_decoder_layers=4),
  'mt5-small': _version_11(model_type='mt5'),
  'mt5-base': _version_11(model_type='mt5', hidden_dim=768, num_layers=12, num_heads=12, mlp_dim=2048),
  'mt5-large': _version_11(model_type='mt5', hidden_dim=1024, num_layers=24, num_heads=16, mlp_dim=2816),
  'mt5-xl': _version_11(model_type='mt5', hidden_dim=2048, num_layers=24, num_heads=32, mlp_dim=5120),
  'mt5-xxl': _version_11(model_type='mt5', hidden_dim=4096, num_layers=24, num_heads=64, mlp_dim=10240),
  'byt5-small': _version_11(hidden_dim=1472, num_layers=12, num_decoder_layers=4, num_heads=6, mlp_dim=3584),
  'byt5-base': _version_11(hidden_dim=1536, num_layers=18, num_decoder_layers=6, num_heads=12, mlp_dim=3968),
  'byt5-large': _version_11(hidden_dim=1536, num_layers=36, num_decoder_layers=12, num_heads=16, mlp_dim=3840),
  'byt5-xl': _version_11(hidden_dim=2560, num_layers=36, num_decoder_layers=12, num_heads=32, mlp_dim=6720),
  'byt5-xxl': _version_11(hidden_dim=4672, num_layers=36, num_decoder_layers=12, num_heads=64, mlp_dim=12352),
  'tiny': Config(hidden_dim=128, num_layers=2, num_heads=2, mlp_dim=512),
}
make = maker(_trunk, CONFIGS)

_ROWS = 32_128  # 32,000 pieces, 100 sentinels and 28 unused rows
_LATER = 'released after the paper'

_MT5_ROWS = 250_112  # 250,000 pieces, 100 sentinels and 12 unused rows
_BYTES = 384  # 3 special ids, 256 bytes and 125 sentinels

_GATED = 2020, 'Shazeer, GLU variants improve Transformer'
_EFFICIENT = 2021, 'Tay et al., Scale efficiently'
_MT5 = 2020, 'Xue et al., mT5'
_BYT5 = 2021, 'Xue et al., ByT5'

PUBLISHED: Mapping[str, Published] = {
  't5-small': Published(_ROWS, 60_506_624, '60M'),
  't5-base': Published(_ROWS, 222_903_552, '220M'),
  't5-large': Published(_ROWS, 737_668_096, '770M'),
  't5-3b': Published(_ROWS, 2_851_598_336, '2.8B'),
  't5-11b': Published(_ROWS, 11_307_321_344, '11B'),
  't5-v1_1-small': Published(_ROWS, 76_961_152, 'none', note=_LATER, source=_GATED),
  't5-v1_1-base': Published(_ROWS, 247_577_856, 'none', note=_LATER, source=_GATED),
  't5-v1_1-large': Published(_ROWS, 783_150_080, 'none', note=_LATER, source=_GATED),
  't5-v1_1-xl': Published(_ROWS, 2_849_757_184, 'none', note=_LATER, source=_GATED),
  't5-v1_1-xxl': Published(_ROWS, 11_135_332_352, 'none', note=_LATER, source=_GATED),
  't5-efficient-tiny': Published(_ROWS, 15_570_688, '16M', source=_EFFICIENT),
  't5-efficient-mini': Published(_ROWS, 31_220_480, '31M', source=_EFFICIENT),
  't5-efficient-small-el16-dl4': Published(
    _ROWS, 83_582_464, 'none', note='T5 small with 16 layers in the encoder and 4 in the decoder', source=_EFFICIENT
  ),
  'mt5-small': Published(_MT5_ROWS, 300_176_768, '300M', source=_MT5),
  'mt5-base': Published(_MT5_ROWS, 582_401_280, '580M', source=_MT5),
  'mt5-large': Published(_MT5_ROWS, 1_229_581_312, '1.2B', source=_MT5),
  'mt5-xl': Published(_MT5_ROWS, 3_742_619_648, '3.7B', source=_MT5),
  'mt5-xxl': Published(_MT5_ROWS, 12_921_057_280, '13B', source=_MT5),
  'byt5-small': Published(_BYTES, 299_637_760, '300M', source=_BYT5),
  'byt5-base': Published(_BYTES, 581_653_248, '582M', source=_BYT5),
  'byt5-large': Published(_BYTES, 1_228_183_552, '1.23B', source=_BYT5),
  'byt5-xl': Published(_BYTES, 3_737_801_728, '3.74B', source=_BYT5),
  'byt5-xxl': Published(_BYTES, 12_906_899_328, '12.9B', source=_BYT5),
}

PAPER = Paper(
  year=2019,
  title='Raffel et al., T5',
  architecture='encoder-decoder',
  objective_family='denoising',
  adapters=('sequence',),
)
