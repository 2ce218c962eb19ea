"""GPT, GPT-2 (Radford et al. 2018, 2019), GPT-3 (Brown et al. 2020): causal Transformer decoder, no cross-attention.

GPT normalises after each residual sum (post-norm, no final norm), GPT-2 before each sublayer with a final norm (§2.3 of
GPT-2): `norm_placement`. Texts that ascribe the pre-norm form to GPT describe GPT-2. Positions are learned and
absolute. The "1-D convolutions" of the released code have width 1: they are the dense layers here, stored transposed.

GPT-3 is GPT-2 at eight sizes, with a context of 2,048 (§2.1). Its layers alternate dense and locally banded sparse
attention in an unpublished pattern. `local_window` limits every second layer; no published size uses it. Three figures
of its table 2.1 and of texts about it contradict the rest. XL has 24 heads of 128 on a width of 2,048 (here 16;
`num_heads=24, head_dim=128` is the printed form). 13B has a width of 5,140 for 40 heads of 128 (here 5,120). 175B has,
in some texts, a width of 12,888 (here the table's 12,288). `hidden_dim` and `head_dim=128` give the printed forms.

OPT (Zhang et al. 2022; arXiv 2205.01068) is GPT-3 with ReLU and positions from row 2. Its 350M has norms after the sums
and a token table of half the width.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.keywords import Count, Depth, Epsilon, NonNegativeInt, PartRate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Execution, Paper, Published
from plm_jax.layers import cache as caches
from plm_jax.layers import positions as position
from plm_jax.layers.attention import Way, attend, weights, with_prefix
from plm_jax.layers.cache import Cache, Past
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, Embed, from_heads, normal, to_heads
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import Activation, Mlp
from plm_jax.layers.norm import LayerNorm
from plm_jax.layers.stack import stack
from plm_jax.models.base import OneStack, check_choices, check_multiple, maker


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a GPT."""

  hidden_dim: Count = 768  # d, width between blocks
  num_layers: Depth = 12  # n
  num_heads: Count = 12  # h
  head_dim: Count | None = None  # k, size of a head; None for hidden_dim / num_heads
  mlp_dim: Count = 3072  # f, feed-forward width
  max_length: Count = 1024  # context length, the number of rows of the position table
  norm_placement: Literal['pre', 'post'] = 'pre'  # 'post' (GPT) or 'pre' with a final norm (GPT-2)
  activation: Activation = 'gelu_tanh'  # 'gelu_tanh' in the released code
  norm_epsilon: Epsilon = 1e-5  # epsilon of every LayerNorm
  # e, width of the token table and of 'hidden', projected to and from d without biases; None for d
  embed_dim: Count | None = None
  position_offset: NonNegativeInt = 0  # first used row of the position table (OPT: 2)
  dropout: PartRate = 0.1  # rate after embeddings and after each sublayer
  embed_dropout: PartRate | None = None  # rate after embeddings; None for `dropout` (OPT: 0)
  attention_dropout: PartRate = 0.1  # rate on attention weights
  init_std: Std = 0.02  # standard deviation of the normal that initialises kernels and the token table
  position_std: Std = 0.01  # the same for the position table (GPT-2's code: .01)
  # initial values of the position table: 'normal' like other tables, or 'sinusoids'
  position_init: position.Start = 'normal'
  scale_residual: bool = True  # divide the initial kernels that write to the residual stream by sqrt(2n) (GPT-2 §2.3)
  # number of keys that a query sees, its own and those before it; None for the whole context
  window: Count | None = None
  # the same for every second layer, from the second on (GPT-3 §2.1); None for `window`
  local_window: Count | None = None
  tied: bool = True  # the output matrix is the token table; otherwise a separate matrix
  has_output: bool = True  # False for an untied trunk whose folder has no output matrix; it computes no logits
  vocab_multiple: Count = 1  # pads the token table to a multiple of this many rows

  def __post_init__(self):
    check_choices(self)
    if self.head_dim is None:
      check_multiple(self, 'hidden_dim', 'num_heads')

  @property
  def head_size(self) -> int:
    return self.hidden_dim // self.num_heads if self.head_dim is None else self.head_dim


# mask of all layers, and the local mask that replaces it in every second layer
Masks = tuple[Mask, Mask | None]


class Block(nn.Module):
  """Masked self-attention and feed-forward; norms after the sums (GPT) or before the sublayers (GPT-2)."""

  config: Config
  execution: Execution

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    init = normal(c.init_std)
    residual_init = normal(c.init_std / math.sqrt(2 * c.num_layers)) if c.scale_residual else init

    self.query, self.key, self.value = (to_heads(c.num_heads, c.head_size, init, dtype=dtype) for _ in range(3))
    self.out = from_heads(c.hidden_dim, residual_init, dtype=dtype)
    self.mlp = Mlp(c.mlp_dim, c.activation, up_init=init, down_init=residual_init, dtype=dtype)
    self.attention_norm = LayerNorm(c.norm_epsilon, dtype)
    self.mlp_norm = LayerNorm(c.norm_epsilon, dtype)
    self.attention_dropout = Dropout(c.dropout)
    self.mlp_dropout = Dropout(c.dropout)

  def __call__(self, x: tuple[Array, Array], masks: Masks, train: bool) -> tuple[tuple[Array, Array], Array]:
    hidden, layer = x  # index of the layer, from 0
    hidden, _ = self._sublayers(hidden, masks, layer, train=train)
    hidden = constrain(hidden, 'batch', 'length', 'embed')
    return (hidden, layer + 1), hidden

  def decode(self, x: Array, context: tuple[Array, Masks], cache: Cache) -> tuple[Array, Cache]:
    """Run one step of generation: [b, s, d], keys and values.

    The context is the slot of the first new token and the masks. The cache has the layer's 'keys' [b h, k, m], 'values'
    [b h, m, k] and 'number'.
    """
    start, masks = context
    return self._sublayers(x, masks, cache['number'], past=Past(cache['keys'], cache['values'], start))

  def _sublayers(
    self, x: Array, masks: Masks, layer: Array, *, train: bool = False, past: Past | None = None
  ) -> tuple[Array, Cache]:
    """Apply both sublayers to [b, l, d]; also return keys and values."""
    pre = self.config.norm_placement == 'pre'

    y = self.attention_norm(x) if pre else x
    key, value, query = self.key(y), self.value(y), self.query(y)  # [b, l, h, k]
    implementation = 'cached' if past else self.execution.attention
    keys, values = caches.append(past, key, value)
    y = self._attend(query, keys, values, masks, layer, train, implementation)
    y = self.out(y)  # [b, l, h, k] -> [b, l, d]
    x = x + self.attention_dropout(y, train=train)
    x = x if pre else self.attention_norm(x)

    y = self.mlp_norm(x) if pre else x
    y = self.mlp(y)
    x = x + self.mlp_dropout(y, train=train)
    x = x if pre else self.mlp_norm(x)
    return x, {'keys': keys, 'values': values}

  def _attend(
    self, query: Array, key: Array, value: Array, masks: Masks, layer: Array, train: bool, implementation: Way
  ) -> Array:
    """Compute attention [b, l, h, k] under the mask of a layer."""
    rate = self.config.attention_dropout
    rng = self.make_rng('dropout') if train and rate else None

    def under(mask: Mask) -> Array:
      keys, values, mask, _ = with_prefix(self, query, key, value, mask=mask, cached=implementation == 'cached')
      return attend(query, keys, values, mask=mask, dropout=rate, rng=rng, implementation=implementation)

    if self.is_mutable_collection('attention') and not self.is_initializing():
      self.sow('attention', 'weights', of_layer(layer, masks, lambda mask: weights(query, key, mask=mask)))
    return of_layer(layer, masks, under)


def of_layer(layer: Array, masks: Masks, function: Callable[[Mask], Array]) -> Array:
  """Apply `function` to a layer's mask, local in every second layer."""
  whole, local = masks
  if local is None:
    return function(whole)
  return jax.lax.cond(layer % 2 == 1, lambda: function(local), lambda: function(whole))


class Gpt(OneStack):
  """The decoder with its output matrix; `pool` selects the last state (§3.2)."""

  config: Config

  NAME = 'gpt'
  ATTENTION = 'causal'

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    self.token_embed = self.embed or self.make_table(normal(c.init_std))
    rows = c.max_length + c.position_offset
    start = position.start_of(c.position_init, normal(c.position_std), std=c.position_std)
    self.position_embed = Embed(rows, c.hidden_dim, ('positions', 'embed'), start, dtype=dtype)
    self.embed_dropout = Dropout(c.dropout if c.embed_dropout is None else c.embed_dropout)
    if c.embed_dim:
      init = normal(c.init_std)
      self.project_in = Dense(c.hidden_dim, ('embed', 'embed_out'), kernel_init=init, use_bias=False, dtype=dtype)
      self.project_out = Dense(c.embed_dim, ('embed', 'embed_out'), kernel_init=init, use_bias=False, dtype=dtype)
    layers = stack(Block, num_layers=c.num_layers, execution=self.execution, methods=('decode',))
    self.layers = layers(c, self.execution)
    if c.norm_placement == 'pre':
      self.final_norm = LayerNorm(c.norm_epsilon, dtype)
    if not c.tied and c.has_output:
      self.output = self.make_table(normal(c.init_std))

  @property
  def hidden_dim(self) -> int:
    """Return e, the width of 'hidden'; 'layers' have width d."""
    return self.config.embed_dim or self.config.hidden_dim

  def _start(self, tokens: Array, positions: Array) -> Array:
    """Embed tokens and positions: [b, l] -> [b, l, d]."""
    x = self.token_embed(tokens)
    x = self.project_in(x) if self.config.embed_dim else x
    return x + self.position_embed(positions + self.config.position_offset)

  def _end(self, x: Array) -> Array:
    """Normalise and project: [b, l, d] -> [b, l, e]."""
    x = self.final_norm(x) if self.config.norm_placement == 'pre' else x
    return self.project_out(x) if self.config.embed_dim else x

  def states(
    self, tokens: Array, segment_ids: Array, type_ids: Array | None, positions: Array | None, train: bool
  ) -> tuple[Array, Array]:
    """Compute 'hidden' and 'layers' from left to right."""
    c = self.config
    positions = self.positions_of(segment_ids, positions)
    x = self.embed_dropout(self._start(tokens, positions), train=train)  # [b, l] -> [b, l, d]
    x = constrain(x, 'batch', 'length', 'embed')
    whole, local = (Mask(segment_ids, segment_ids, causal=True, window=size) for size in (c.window, c.local_window))
    masks = whole, local if c.local_window else None
    (hidden, _), layers = self.layers((x, jnp.zeros((), jnp.int32)), masks, train)
    return self._end(hidden), jnp.concatenate([x[None], layers])

  @property
  def position_rows(self) -> dict[str, range]:
    """Return the used rows of position tables, by path, from position 0."""
    first = self.config.position_offset
    return {'position_embed': range(first, first + self.config.max_length)}

  def init_cache(self, batch_size: int, length: int) -> Cache:
    """Create a cache of `length` empty slots."""
    c = self.config
    position.check_length(length, max_length=c.max_length, model='Gpt')
    return caches.empty((c.num_layers, batch_size, length, c.num_heads, c.head_size), dtype=self.execution.dtype)

  def decode_step(self, tokens: Array, cache: Cache, *, segment_ids: Array, positions: Array) -> tuple[Array, Cache]:
    """Read s tokens as `trunk.Decodes`: logits f32[b, s, v] and the cache."""
    c = self.config
    longer, mask = caches.advance(cache, segment_ids=segment_ids, positions=positions)
    whole, local = (caches.within(mask, longer, positions, size) for size in (c.window, c.local_window))
    masks = whole, local if c.local_window else None
    layers = {'keys': cache['keys'], 'values': cache['values'], 'number': jnp.arange(c.num_layers)}
    hidden, new = self.layers.decode(self._start(tokens, positions), (cache['index'], masks), layers)
    return self.attend(self._end(hidden)), longer | new


def _gpt3(hidden_dim: int, num_layers: int, num_heads: int, **fields: Any) -> Config:
  sizes: dict[str, Any] = {'hidden_dim': hidden_dim, 'num_layers': num_layers, 'num_heads': num_heads}
  return Config(max_length=2048, mlp_dim=4 * hidden_dim, **sizes, **fields)


def _opt(hidden_dim: int, num_layers: int, num_heads: int, **fields: Any) -> Config:
  own: dict[str, Any] = {'activation': 'relu', 'position_offset': 2, 'embed_dropout': 0.0, 'attention_dropout': 0.0}
  return _gpt3(hidden_dim, num_layers, num_heads, init_std=0.006, position_std=0.006, **own, **fields)


CONFIGS: Mapping[str, Config] = {
  'gpt': Config(max_length=512, norm_placement='post', position_std=0.02, scale_residual=False),
  'gpt2': Config(),
  'gpt2-medium': Config(hidden_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096),
  'gpt2-large': Config(hidden_dim=1280, num_layers=36, num_heads=20, mlp_dim=5120),
  'gpt2-xl': Config(hidden_dim=1600, num_layers=48, num_heads=25, mlp_dim=6400),
  'gpt3-small': _gpt3(768, 12, 12),
  'gpt3-medium': _gpt3(1024, 24, 16),
  'gpt3-large': _gpt3(1536, 24, 16),
  'gpt3-xl': _gpt3(2048, 24, 16),
  'gpt3-2.7b': _gpt3(2560, 32, 32),
  'gpt3-6.7b': _gpt3(4096, 32, 32),
  'gpt3-13b': _gpt3(5120, 40, 40),
  'gpt3-175b': _gpt3(12288, 96, 96),
  'opt-125m': _opt(768, 12, 12),
  'opt-350m': _opt(1024, 24, 16, norm_placement='post', embed_dim=512),
  'opt-1.3b': _opt(2048, 24, 32),
  'opt-2.7b': _opt(2560, 32, 32),
  'opt-6.7b': _opt(4096, 32, 32),
  'opt-13b': _opt(5120, 40, 40),
  'opt-30b': _opt(7168, 48, 56),
  'opt-66b': _opt(9216, 64, 72),
  'opt-175b': _opt(12288, 96, 96),
  'tiny': Config(hidden_dim=128, num_layers=2, num_heads=2, mlp_dim=512),
}
make = maker(Gpt, CONFIGS)

_GPT2 = 2019, 'Radford et al., GPT-2'
_GPT3 = 2020, 'Brown et al., GPT-3'
_OPT = 2022, 'Zhang et al., OPT'


def _gpt2(parameters: int, paper: str, corrected: str) -> Published:
  note = f'corrected by OpenAI to {corrected}'
  return Published(50_257, parameters, paper, note=note, source=_GPT2)


PUBLISHED: Mapping[str, Published] = {
  'gpt': Published(40_478, 116_534_784, '117M'),
  'gpt2': _gpt2(124_439_808, '117M', '124M'),
  'gpt2-medium': _gpt2(354_823_168, '345M', '355M'),
  'gpt2-large': _gpt2(774_030_080, '762M', '774M'),
  'gpt2-xl': _gpt2(1_557_611_200, '1542M', '1.5B'),
  'gpt3-small': Published(50_257, 125_226_240, '125M', source=_GPT3),
  'gpt3-medium': Published(50_257, 355_871_744, '350M', source=_GPT3),
  'gpt3-large': Published(50_257, 760_300_032, '760M', source=_GPT3),
  'gpt3-xl': Published(
    50_257, 1_315_723_264, '1.3B', also=(('24 heads of 128, as printed', 1_517_123_584),), source=_GPT3
  ),
  'gpt3-2.7b': Published(50_257, 2_651_553_280, '2.7B', source=_GPT3),
  'gpt3-6.7b': Published(50_257, 6_658_404_352, '6.7B', source=_GPT3),
  'gpt3-13b': Published(
    50_257, 12_853_386_240, '13.0B', also=(('a width of 5,140, as printed', 12_952_938_780),), source=_GPT3
  ),
  'gpt3-175b': Published(50_257, 174_604_259_328, '175.0B', source=_GPT3),
  'opt-125m': Published(50_272, 125_239_296, '125M', source=_OPT),
  'opt-350m': Published(50_272, 331_196_416, '350M', source=_OPT),
  'opt-1.3b': Published(50_272, 1_315_758_080, '1.3B', source=_OPT),
  'opt-2.7b': Published(50_272, 2_651_596_800, '2.7B', source=_OPT),
  'opt-6.7b': Published(50_272, 6_658_473_984, '6.7B', source=_OPT),
  'opt-13b': Published(50_272, 12_853_473_280, '13B', source=_OPT),
  'opt-30b': Published(50_272, 29_974_540_288, '30B', source=_OPT),
  'opt-66b': Published(50_272, 65_719_701_504, '66B', source=_OPT),
  'opt-175b': Published(50_272, 174_604_468_224, '175B', source=_OPT),
}

PAPER = Paper(
  year=2018,
  title='Radford et al., GPT',
  architecture='decoder',
  objective_family='autoregressive',
  adapters=('classify', 'prompt'),
)
