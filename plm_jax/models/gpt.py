"""GPT, GPT-2 (Radford et al. 2018, 2019): causal Transformer decoder without cross-attention.

GPT normalises after each residual sum (post-norm, no final norm), GPT-2 before each sublayer with a final norm (§2.3 of
GPT-2): `norm_placement`. Texts that give GPT the pre-norm form describe GPT-2. Positions are learned and absolute. The
released code's "1-D convolutions" have kernel 1: they are the dense layers here, stored transposed.
"""

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.layers import cache as caches
from plm_jax.layers import positions as position
from plm_jax.layers.attention import attend, weights
from plm_jax.layers.cache import Cache
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, Embed, normal
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import Mlp
from plm_jax.layers.norm import LayerNorm
from plm_jax.layers.stack import stack
from plm_jax.sharding import constrain
from plm_jax.types import Array, Execution, Paper, Published, PyTree


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a GPT.

  Attributes:
    hidden_dim: d, width between blocks.
    num_layers: n.
    num_heads: h; the head size is hidden_dim / num_heads.
    mlp_dim: f, feed-forward width.
    max_length: context length, rows of the position table.
    norm_placement: 'post' (GPT) or 'pre' with a final norm (GPT-2).
    activation: 'gelu_tanh' in all released code.
    norm_epsilon: of every LayerNorm.
    dropout: rate after embeddings and after each sublayer.
    attention_dropout: rate on attention weights.
    init_std: of the normal that kernels and the token table start from.
    position_std: of the position table (GPT-2's code: .01).
    scale_residual: divides the initial kernels that write to the residual stream by sqrt(2n) (GPT-2 §2.3).
    window: keys a query may look back on, itself included; None for the whole context.
    tied: the output matrix is the token table; else the trunk has its own.
    vocab_multiple: pads the token table to a multiple of this many rows.
  """

  hidden_dim: int = 768
  num_layers: int = 12
  num_heads: int = 12
  mlp_dim: int = 3072
  max_length: int = 1024
  norm_placement: Literal['pre', 'post'] = 'pre'
  activation: str = 'gelu_tanh'
  norm_epsilon: float = 1e-5
  dropout: float = 0.1
  attention_dropout: float = 0.1
  init_std: float = 0.02
  position_std: float = 0.01
  scale_residual: bool = True
  window: int | None = None
  tied: bool = True
  vocab_multiple: int = 1

  def __post_init__(self):
    if self.hidden_dim % self.num_heads:
      raise ValueError(f'hidden_dim {self.hidden_dim} is not a multiple of num_heads {self.num_heads}')
    if self.norm_placement not in ('pre', 'post'):
      raise ValueError(f'norm_placement {self.norm_placement!r} is neither pre nor post')


CONFIGS: Mapping[str, Config] = MappingProxyType(
  {
    'gpt': Config(max_length=512, norm_placement='post', position_std=0.02, scale_residual=False),
    'gpt2': Config(),
    'gpt2-medium': Config(hidden_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096),
    'gpt2-large': Config(hidden_dim=1280, num_layers=36, num_heads=20, mlp_dim=5120),
    'gpt2-xl': Config(hidden_dim=1600, num_layers=48, num_heads=25, mlp_dim=6400),
    'tiny': Config(hidden_dim=128, num_layers=2, num_heads=2, mlp_dim=512),
  }
)

PUBLISHED: Mapping[str, Published] = MappingProxyType(
  {
    'gpt': Published(40_478, 116_534_784, '117M'),
    'gpt2': Published(50_257, 124_439_808, '117M', 'corrected by OpenAI to 124M'),
    'gpt2-medium': Published(50_257, 354_823_168, '345M', 'corrected by OpenAI to 355M'),
    'gpt2-large': Published(50_257, 774_030_080, '762M', 'corrected by OpenAI to 774M'),
    'gpt2-xl': Published(50_257, 1_557_611_200, '1542M', 'corrected by OpenAI to 1.5B'),
  }
)

PAPER = Paper(
  year=2018,
  title='Radford et al., GPT and GPT-2',
  architecture='decoder',
  objective_family='autoregressive',
  adapters=('classify', 'similarity', 'choose', 'prompt'),
)


class Block(nn.Module):
  """Masked self-attention and feed-forward; norms after the sums (GPT) or before the sublayers (GPT-2)."""

  config: Config
  execution: Execution

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    init = normal(c.init_std)
    residual_init = normal(c.init_std / math.sqrt(2 * c.num_layers)) if c.scale_residual else init

    def project() -> Dense:
      heads = (c.num_heads, c.hidden_dim // c.num_heads)
      return Dense(heads, axes=('embed', 'heads', 'head_dim'), kernel_init=init, dtype=dtype)

    self.query, self.key, self.value = project(), project(), project()
    axes = ('heads', 'head_dim', 'embed')
    self.out = Dense(c.hidden_dim, axes=axes, num_inputs=2, kernel_init=residual_init, dtype=dtype)
    self.mlp = Mlp(c.mlp_dim, c.activation, up_init=init, down_init=residual_init, dtype=dtype)
    self.attention_norm = LayerNorm(c.norm_epsilon, dtype)
    self.mlp_norm = LayerNorm(c.norm_epsilon, dtype)
    self.attention_dropout = Dropout(c.dropout)
    self.mlp_dropout = Dropout(c.dropout)

  def __call__(self, x: Array, mask: Mask, train: bool) -> tuple[Array, Array]:
    y = self._before(self.attention_norm, x)
    x = self._look(x, y, self.key(y), self.value(y), mask, train)
    x = constrain(self._feed(x, train), 'batch', 'length', 'embed')
    return x, x

  def decode(self, x: Array, context: tuple[Cache, Mask], kept: Cache) -> tuple[Array, Cache]:
    """A step of generation: `kept` has the layer's 'keys' and 'values' [b, m, h, k]; gives those of the new tokens."""
    taken, mask = context
    start = taken['index'] - x.shape[1]
    y = self._before(self.attention_norm, x)
    new = {'keys': self.key(y), 'values': self.value(y)}  # [b, s, h, k]
    keys, values = (caches.put(kept[name], new[name], start, axis=1).astype(x.dtype) for name in ('keys', 'values'))
    return self._feed(self._look(x, y, keys, values, mask, False), False), new

  def _look(self, x: Array, y: Array, key: Array, value: Array, mask: Mask, train: bool) -> Array:
    c = self.config
    query = self.query(y)  # [b, l, h, k]
    if self.is_mutable_collection('attention') and not self.is_initializing():
      self.sow('attention', 'weights', weights(query, key, mask=mask))
    rng = self.make_rng('dropout') if train and c.attention_dropout else None
    found = self.out(attend(query, key, value, mask=mask, dropout=c.attention_dropout, rng=rng))  # [b, l, d]
    return self._after(self.attention_norm, x + self.attention_dropout(found, train=train))

  def _feed(self, x: Array, train: bool) -> Array:
    y = self.mlp(self._before(self.mlp_norm, x))
    return self._after(self.mlp_norm, x + self.mlp_dropout(y, train=train))

  def _before(self, norm: LayerNorm, x: Array) -> Array:
    return norm(x) if self.config.norm_placement == 'pre' else x

  def _after(self, norm: LayerNorm, x: Array) -> Array:
    return norm(x) if self.config.norm_placement == 'post' else x


class Gpt(nn.Module):
  """The decoder with its output matrix.

  Attributes:
    config: sizes.
    vocab_size: ids of the vocabulary.
    execution: how to compute it.
    embed: token table handed in by a second trunk that shares it.
  """

  config: Config
  vocab_size: int
  execution: Execution = Execution()
  embed: nn.Module | None = None

  INPUTS = ('tokens', 'segment_ids', 'type_ids', 'positions')
  ATTENTION = 'causal'

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    self.token_embed = self.embed or self._table()
    self.position_embed = Embed(c.max_length, c.hidden_dim, ('positions', 'embed'), normal(c.position_std), dtype=dtype)
    self.embed_dropout = Dropout(c.dropout)
    layers = stack(Block, num_layers=c.num_layers, execution=self.execution, methods=('decode',))
    self.layers = layers(c, self.execution)
    if c.norm_placement == 'pre':
      self.final_norm = LayerNorm(c.norm_epsilon, dtype)
    if not c.tied:
      self.output = self._table()

  def _table(self) -> Embed:
    c = self.config
    return Embed(
      self.vocab_size,
      c.hidden_dim,
      ('vocab', 'embed'),
      normal(c.init_std),
      multiple=c.vocab_multiple,
      dtype=self.execution.dtype,
    )

  def __call__(
    self,
    tokens: Array,
    *,
    segment_ids: Array,
    type_ids: Array | None = None,
    positions: Array | None = None,
    train: bool = False,
  ) -> dict[str, Any]:
    """Reads a batch from left to right.

    Args:
      tokens: int[b, l].
      segment_ids: int[b, l], the packed documents of a row; 0 is padding.
      type_ids: ignored; the scheme has no sentence types.
      positions: int[b, l]; restarting in each segment by default.
      train: drops out.

    Returns:
      'hidden' [b, l, d], after any final norm; 'layers' [n+1, b, l, d] with the embeddings first; 'carry' ().
    """
    del type_ids
    c = self.config
    position.check_length(tokens.shape[1], max_length=c.max_length, model='Gpt')
    if positions is None:
      positions = position.from_segments(segment_ids)
    x = self.token_embed(tokens) + self.position_embed(positions)  # [b, l] -> [b, l, d]
    x = self.embed_dropout(x, train=train)
    x = constrain(x, 'batch', 'length', 'embed')
    mask = Mask(segment_ids, segment_ids, causal=True, window=c.window)
    hidden, layers = self.layers(x, mask, train)
    if c.norm_placement == 'pre':
      hidden = self.final_norm(hidden)
    return {'hidden': hidden, 'layers': jnp.concatenate([x[None], layers]), 'carry': ()}

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """The state of the last real token of each row, wherever padding stands: [b, l, d] -> [b, d] (GPT §3.2)."""
    index = jnp.arange(segment_ids.shape[1])
    last = jnp.max(jnp.where(segment_ids > 0, index, 0), axis=1)
    return jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]

  def attend(self, features: Array) -> Array:
    """Vocabulary logits f32[..., v] by the tied token table or the trunk's own matrix."""
    return self.token_embed.attend(features) if self.config.tied else self.output.attend(features)

  def init_carry(self, batch_size: int) -> PyTree:
    """A GPT carries nothing between rows."""
    del batch_size
    return ()

  def init_cache(
    self,
    batch_size: int,
    length: int,
    *,
    encoder_hidden: Array | None = None,
    encoder_segment_ids: Array | None = None,
  ) -> Cache:
    """An empty generation cache of `length` slots; there is no encoder, and its arguments are ignored."""
    del encoder_hidden, encoder_segment_ids
    c = self.config
    position.check_length(length, max_length=c.max_length, model='Gpt')
    return caches.empty(
      num_layers=c.num_layers,
      batch_size=batch_size,
      length=length,
      num_heads=c.num_heads,
      head_dim=c.hidden_dim // c.num_heads,
      dtype=self.execution.dtype,
    )

  def decode_step(self, tokens: Array, cache: Cache, *, segment_ids: Array, positions: Array) -> tuple[Array, Cache]:
    """Reads s more tokens: int[b, s] and the cache -> logits f32[b, s, v] and the longer cache.

    Args:
      tokens: int[b, s], a whole prompt or one token a row.
      cache: of `init_cache` or of the last step.
      segment_ids: int[b, s]; 0 is padding, on either side.
      positions: int[b, s].
    """
    c = self.config
    taken, mask = caches.advance(cache, segment_ids=segment_ids, positions=positions)
    if c.window is not None:
      places = taken['positions']
      near = places[:, None, :] > positions[:, :, None] - c.window  # [b, s, m]
      mask = Mask(segment_ids, taken['segment_ids'], allowed=near if mask.allowed is None else mask.allowed & near)
    x = self.token_embed(tokens) + self.position_embed(positions)
    hidden, new = self.layers.decode(x, (taken, mask), {name: cache[name] for name in ('keys', 'values')})
    if c.norm_placement == 'pre':
      hidden = self.final_norm(hidden)
    return self.attend(hidden), caches.keep(taken, **new)


def make(
  *,
  vocab_size: int,
  variant: str,
  overrides: Mapping[str, Any] | None = None,
  execution: Execution = Execution(),
) -> Gpt:
  """The trunk of a published row.

  Args:
    vocab_size: ids of the vocabulary.
    variant: a key of `CONFIGS`.
    overrides: fields of `Config` to change.
    execution: how to compute it.
  """
  return Gpt(dataclasses.replace(CONFIGS[variant], **(overrides or {})), vocab_size, execution)
