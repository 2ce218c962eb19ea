"""BART: Transformer encoder and decoder, post-norm (Lewis et al. 2020, §2.1; arXiv 1910.13461).

BERT with GELU, N(0, .02) and a decoder with cross-attention. Each stack has a LayerNorm after its embeddings and none
at its end. One token table is the input of both stacks and the output matrix. Each stack has its own table of learned
positions, whose first two rows are unused. Embeddings are not scaled.

mBART (Liu et al. 2020, §2.1; arXiv 2001.08210) has norms before the sublayers and at the end of each stack, and scales
token embeddings by sqrt(d). The decoder of a distilled BART is shallower than its encoder.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.keywords import Count, Depth, Epsilon, NonNegativeInt, PartRate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Execution, Paper, Published
from plm_jax.layers import cache as caches
from plm_jax.layers import positions as position
from plm_jax.layers.cache import Cache
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Embed, normal
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import Activation, Mlp
from plm_jax.layers.multihead import Encoded, MultiHead
from plm_jax.layers.norm import LayerNorm
from plm_jax.layers.stack import stack
from plm_jax.models.base import Context, CrossBlock, StepContext, TwoStacks, check_choices, check_multiple, maker


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a BART."""

  hidden_dim: Count = 768  # d, width between blocks
  num_layers: Depth = 6  # n, depth of the encoder
  num_decoder_layers: Depth | None = None  # depth of the decoder; None for n
  num_heads: Count = 12  # h; the head size is hidden_dim / num_heads
  mlp_dim: Count = 3072  # f, feed-forward width
  max_length: Count = 1024  # maximum sequence length of each stack, in tokens
  position_offset: NonNegativeInt = 2  # first used row of the position tables
  norm_placement: Literal['post', 'pre'] = 'post'  # 'post' (BART), or 'pre' with a final norm of each stack (mBART)
  scale_embedding: bool = False  # multiply token embeddings by sqrt(d) (mBART)
  activation: Activation = 'gelu_erf'  # 'gelu_erf' in the released code
  norm_epsilon: Epsilon = 1e-5  # epsilon of every LayerNorm
  dropout: PartRate = 0.1  # rate after embeddings and after each sublayer
  attention_dropout: PartRate = 0.0  # rate on attention weights; the released fine-tuning uses .1
  mlp_dropout: PartRate = 0.0  # rate inside the feed-forward
  init_std: Std = 0.02  # standard deviation of the normal that initialises kernels and tables
  # initial values of the position tables: 'normal' like other tables, or 'sinusoids'
  position_init: position.Start = 'normal'
  # id before a text that the decoder reads to label it; None is its last token (BART)
  label_start: NonNegativeInt | None = None
  label_end: NonNegativeInt | None = None  # id whose last state represents a text to label; None is its last token
  vocab_multiple: Count = 1  # pads the token table to a multiple of this many rows

  def __post_init__(self):
    check_choices(self)
    check_multiple(self, 'hidden_dim', 'num_heads')

  @property
  def decoder_layers(self) -> int:
    return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers


class Block(CrossBlock):
  """Self-attention, cross-attention if there is an encoder, and feed-forward.

  Each is norm(x + sublayer(x)) in BART and x + sublayer(norm(x)) in mBART.
  """

  config: Config
  execution: Execution

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    init, implementation = normal(c.init_std), self.execution.attention

    def attention() -> MultiHead:
      heads = (c.num_heads, c.hidden_dim // c.num_heads)
      return MultiHead(
        *heads, c.hidden_dim, init, init, init, dropout=c.attention_dropout, dtype=dtype, implementation=implementation
      )

    self.attention = attention()
    self.attention_norm = LayerNorm(c.norm_epsilon, dtype)
    self.cross = attention()
    self.cross_norm = LayerNorm(c.norm_epsilon, dtype)
    self.mlp = Mlp(c.mlp_dim, c.activation, init, init, dropout=c.mlp_dropout, dtype=dtype)
    self.mlp_norm = LayerNorm(c.norm_epsilon, dtype)
    self.dropout = Dropout(c.dropout)


class Stack(nn.Module):
  """A position table, the embedding norm, layers, and a final norm with pre-norm layers."""

  config: Config
  execution: Execution
  num_layers: int

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    rows = c.max_length + c.position_offset
    start = position.start_of(c.position_init, normal(c.init_std), std=c.init_std)
    self.position_embed = Embed(rows, c.hidden_dim, ('positions', 'embed'), start, dtype=dtype)
    self.embed_norm = LayerNorm(c.norm_epsilon, dtype)
    self.dropout = Dropout(c.dropout)
    through = stack(Block, num_layers=self.num_layers, execution=self.execution, methods=('decode', 'read'))
    self.layers = through(c, self.execution)
    if c.norm_placement == 'pre':
      self.final_norm = LayerNorm(c.norm_epsilon, dtype)

  def embed(self, x: Array, positions: Array) -> Array:
    """Add positions int[b, l] to token embeddings [b, l, d] and normalise."""
    if self.config.scale_embedding:
      x = x * jnp.asarray(self.config.hidden_dim**0.5, x.dtype)
    return self.embed_norm(x + self.position_embed(positions + self.config.position_offset))

  def _end(self, x: Array) -> Array:
    return self.final_norm(x) if self.config.norm_placement == 'pre' else x

  def __call__(
    self,
    x: Array,
    *,
    segment_ids: Array,
    positions: Array | None,
    causal: bool,
    encoded: Encoded | None = None,
    train: bool,
  ) -> tuple[Array, Array]:
    """Read token embeddings [b, l, d].

    Returns:
      States [b, l, d], and those of each layer before a final norm [n+1, b, l, d].
    """
    position.check_length(x.shape[1], max_length=self.config.max_length, model='Bart')
    if positions is None:
      positions = position.from_segments(segment_ids)
    x = self.dropout(self.embed(x, positions), train=train)
    x = constrain(x, 'batch', 'length', 'embed')
    hidden, layers = self.layers(x, Context(Mask(segment_ids, segment_ids, causal=causal), encoded), train)
    return self._end(hidden), jnp.concatenate([x[None], layers])

  def init_cache(self, batch_size: int, length: int) -> Cache:
    """Create a cache of `length` empty slots."""
    c = self.config
    position.check_length(length, max_length=c.max_length, model='Bart')
    shape = (self.num_layers, batch_size, length, c.num_heads, c.hidden_dim // c.num_heads)
    return caches.empty(shape, dtype=self.execution.dtype)

  def decode(self, x: Array, cache: Cache, *, segment_ids: Array, positions: Array) -> tuple[Array, Cache]:
    """Run one step on embeddings [b, s, d]; return states and cache."""
    start = cache['index']
    cache, mask = caches.advance(cache, segment_ids=segment_ids, positions=positions)
    encoder_mask = Mask(segment_ids, cache['encoder_segment_ids'])
    context = StepContext(mask=mask, start=start, encoder_mask=encoder_mask)
    layered = {name: cache[name] for name in ('keys', 'values', 'encoder_keys', 'encoder_values')}
    x, new = self.layers.decode(self.embed(x, positions), context, layered)
    return self._end(x), cache | new


class Bart(TwoStacks):
  """Encoder and decoder without a pre-training head; logits are the tied product without a bias."""

  config: Config
  # another encoder, whose states replace the encoder's token embeddings (§3.4); `encoder_tokens` then use its
  # vocabulary
  source: nn.Module | None = None

  NAME = 'bart'

  def setup(self) -> None:
    c = self.config
    self.token_embed = self.embed or self.make_table(normal(c.init_std))
    self.encoder = Stack(c, self.execution, c.num_layers)
    self.decoder = Stack(c, self.execution, c.decoder_layers)

  def read_source(self, tokens: Array, segment_ids: Array, positions: Array | None, train: bool) -> tuple[Array, Array]:
    """Compute the encoder's states [b, m, d] and layers."""
    if self.source is None:
      x = self.token_embed(tokens)
    else:
      x = self.source(tokens=tokens, segment_ids=segment_ids, train=train)['hidden']
    return self.encoder(x, segment_ids=segment_ids, positions=positions, causal=False, train=train)

  def read_target(
    self, tokens: Array, segment_ids: Array, positions: Array | None, encoded: Encoded, train: bool
  ) -> tuple[Array, Array]:
    """Compute the decoder's states [b, l, d] and layers."""
    x = self.token_embed(tokens)
    return self.decoder(x, segment_ids=segment_ids, positions=positions, causal=True, encoded=encoded, train=train)

  @property
  def position_rows(self) -> dict[str, range]:
    """Return the used rows of position tables, by path, from position 0."""
    first, last = self.config.position_offset, self.config.position_offset + self.config.max_length
    return {f'{side}/position_embed': range(first, last) for side in ('encoder', 'decoder')}


_LARGE = Config(hidden_dim=1024, num_layers=12, num_heads=16, mlp_dim=4096)
_MBART = dataclasses.replace(_LARGE, norm_placement='pre', scale_embedding=True)

CONFIGS: Mapping[str, Config] = {
  'bart-base': Config(),
  'bart-large': _LARGE,
  'distilbart-cnn-12-6': dataclasses.replace(_LARGE, num_decoder_layers=6),
  'mbart-large-cc25': _MBART,
  'mbart-large-50': _MBART,
  'tiny': Config(hidden_dim=128, num_layers=2, num_heads=2, mlp_dim=512),
}
make = maker(Bart, CONFIGS)

PUBLISHED: Mapping[str, Published] = {
  'bart-base': Published(
    50_265, 139_420_416, '140M', also=(('with the 51,201 rows of the released table', 140_139_264),)
  ),
  'bart-large': Published(50_265, 406_291_456, '400M'),
  'distilbart-cnn-12-6': Published(
    50_264,
    305_510_400,
    '306M',
    note="every second layer of bart-large-cnn's decoder",
    source=(2020, 'Shleifer & Rush, Pre-trained summarization distillation'),
  ),
  'mbart-large-cc25': Published(250_027, 610_851_840, '680M', source=(2020, 'Liu et al., mBART')),
  'mbart-large-50': Published(
    250_054,
    610_879_488,
    'none',
    note='mbart-large-cc25 with 27 more rows of languages',
    source=(2020, 'Tang et al., Multilingual translation with extensible pretraining'),
  ),
}

PAPER = Paper(
  year=2019,
  title='Lewis et al., BART',
  architecture='encoder-decoder',
  objective_family='denoising',
  adapters=('classify', 'sequence'),
)
