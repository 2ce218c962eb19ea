"""GLM (Du et al. 2021, "General Language Model Pretraining with Autoregressive Blank Infilling", §2; arXiv 2103.10360).

One Transformer reads a text with blanks, part A, in both directions, and writes the blanks, part B, from left to right.
All tokens see the first `prefix` keys; a later key is seen by the tokens after it. Two learned position vectors are
added at the input: the position in A, which for all tokens of a blank is that of its mask, and the position inside the
blank, 0 in A (§2.1). The output matrix is the token table, without a bias, and the activation is GELU (§2.3).

`norm_placement` is a field because texts disagree. The paper rearranges layer normalisation and residual connections
like Megatron-LM, and the released code normalises before each sublayer and once at the end: 'pre', the default. 'post',
norm(x + f(x)), is often ascribed to GLM, but belongs to the first BERT and GPT. 'deepnorm' is that of the later
GLM-130B (Zeng et al. 2022): norm(alpha x + f(x)) with alpha = (2n)^1/2 and Xavier kernels; those of value, out, up and
down are multiplied by (2n)^-1/2.

  tokens           a  b [M] d [M] e | [S] f  [S] c       part A of length 6, which is `prefix`, then two blanks
  positions        0  1  2  3  4  5 |  4  4   2  2
  block_positions  0  0  0  0  0  0 |  1  2   1  2
"""

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.keywords import Count, Depth, Epsilon, PartRate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Execution, Paper, Published
from plm_jax.layers import cache as caches
from plm_jax.layers import positions as position
from plm_jax.layers.attention import attend_in
from plm_jax.layers.cache import Cache, Past
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Embed, Initializer, from_heads, normal, to_heads
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import Activation, Mlp
from plm_jax.layers.norm import LayerNorm
from plm_jax.layers.stack import stack
from plm_jax.models.base import Base, check_choices, check_multiple, maker


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a GLM."""

  hidden_dim: Count = 768  # d, width between blocks
  num_layers: Depth = 12  # n
  num_heads: Count = 12  # h; the head size is hidden_dim / num_heads
  mlp_dim: Count = 3072  # f, feed-forward width
  max_length: Count = 512  # P, maximum text length, in tokens; both position tables have P + 1 rows
  # 'pre' with a final norm (the released code), 'post' or 'deepnorm' (GLM-130B)
  norm_placement: Literal['pre', 'post', 'deepnorm'] = 'pre'
  activation: Activation = 'gelu_tanh'  # 'gelu_tanh' in the released code
  norm_epsilon: Epsilon = 1e-5  # epsilon of every LayerNorm
  dropout: PartRate = 0.1  # rate after embeddings and after each sublayer
  attention_dropout: PartRate = 0.1  # rate on attention weights
  # standard deviation of the normal that initialises kernels and tables; init_std / sqrt(2n) for kernels that write to
  # the residual stream. 'deepnorm' has Xavier kernels instead
  init_std: Std = 0.02
  # initial values of the position tables: 'normal' like other tables, or 'sinusoids'
  position_init: position.Start = 'normal'
  vocab_multiple: Count = 1  # pads the token table to a multiple of this many rows

  def __post_init__(self):
    check_choices(self)
    check_multiple(self, 'hidden_dim', 'num_heads')


def xavier(gain: float) -> Initializer:
  """Build a Xavier initializer (Glorot & Bengio 2010).

  It is N(0, gain sqrt(2 / (inputs + outputs))); a kernel with heads counts as a square matrix.
  """

  def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    width = sum(shape) if len(shape) == 2 else 2 * math.isqrt(math.prod(shape))  # [d, f], [d, h, k], [h, k, d]
    return normal(gain * math.sqrt(2 / width))(key, shape, dtype)

  return init


class Block(nn.Module):
  """Self-attention and feed-forward, with norms as in `norm_placement`."""

  config: Config
  execution: Execution

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    deep = c.norm_placement == 'deepnorm'
    self.alpha = math.sqrt(2 * c.num_layers) if deep else 1.0
    init = xavier(1.0) if deep else normal(c.init_std)
    shrunk = xavier(1 / math.sqrt(2 * c.num_layers))
    value_init, up_init = (shrunk, shrunk) if deep else (init, init)
    down_init = shrunk if deep else normal(c.init_std / math.sqrt(2 * c.num_layers))
    project = partial(to_heads, c.num_heads, c.hidden_dim // c.num_heads, dtype=dtype)
    self.query, self.key, self.value = project(init), project(init), project(value_init)
    self.out = from_heads(c.hidden_dim, down_init, dtype=dtype)
    self.mlp = Mlp(c.mlp_dim, c.activation, up_init=up_init, down_init=down_init, dtype=dtype)
    self.attention_norm = LayerNorm(c.norm_epsilon, dtype)
    self.mlp_norm = LayerNorm(c.norm_epsilon, dtype)
    self.attention_dropout = Dropout(c.dropout)
    self.mlp_dropout = Dropout(c.dropout)

  def __call__(self, x: Array, mask: Mask, train: bool) -> tuple[Array, Array]:
    x, _ = self._sublayers(x, mask, train=train)
    x = constrain(x, 'batch', 'length', 'embed')
    return x, x

  def decode(self, x: Array, context: tuple[Array, Mask], cache: Cache) -> tuple[Array, Cache]:
    """Run one step of generation, as GPT's block without 'number'."""
    start, mask = context
    return self._sublayers(x, mask, past=Past(cache['keys'], cache['values'], start))

  def _sublayers(self, x: Array, mask: Mask, *, train: bool = False, past: Past | None = None) -> tuple[Array, Cache]:
    """Apply both sublayers to [b, l, d]; also return keys and values."""
    c = self.config
    pre = c.norm_placement == 'pre'

    y = self.attention_norm(x) if pre else x
    key, value, query = self.key(y), self.value(y), self.query(y)  # [b, l, h, k]
    keys, values = caches.append(past, key, value)
    implementation = 'cached' if past else self.execution.attention
    y = attend_in(
      self, query, keys, values, mask=mask, dropout=c.attention_dropout, train=train, implementation=implementation
    )
    y = self.out(y)  # [b, l, h, k] -> [b, l, d]
    x = self.alpha * x + self.attention_dropout(y, train=train)
    x = x if pre else self.attention_norm(x)

    y = self.mlp_norm(x) if pre else x
    y = self.mlp(y)
    x = self.alpha * x + self.mlp_dropout(y, train=train)
    x = x if pre else self.mlp_norm(x)
    return x, {'keys': keys, 'values': values}


class Glm(Base):
  """The trunk with its tied output."""

  config: Config

  NAME = 'glm'
  INPUTS = ('tokens', 'segment_ids', 'type_ids', 'positions', 'block_positions', 'prefix')
  ATTENTION = 'prefix'

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    init = normal(c.init_std)
    self.token_embed = self.embed or self.make_table(init)
    rows = c.max_length + 1
    table = partial(
      Embed, rows, c.hidden_dim, ('positions', 'embed'), position.start_of(c.position_init, init, std=c.init_std)
    )
    self.position_embed, self.block_position_embed = table(dtype=dtype), table(dtype=dtype)
    self.embed_dropout = Dropout(c.dropout)
    layers = stack(Block, num_layers=c.num_layers, execution=self.execution, methods=('decode',))
    self.layers = layers(c, self.execution)
    if c.norm_placement == 'pre':
      self.final_norm = LayerNorm(c.norm_epsilon, dtype)

  def __call__(
    self,
    tokens: Array,
    *,
    segment_ids: Array,
    type_ids: Array | None = None,
    positions: Array | None = None,
    block_positions: Array | None = None,
    prefix: Array | None = None,
    train: bool = False,
  ) -> dict[str, Any]:
    """Read part A in both directions, then part B.

    Args:
      tokens: int[b, l]; part A, then part B. With positions given, l may exceed max_length, because A and B together
        are longer than the text.
      segment_ids: int[b, l], ids of the packed documents; 0 is padding. A document has the same id in A and B.
      positions: int[b, l] up to max_length, positions in A; by default from 0 in each segment.
      block_positions: int[b, l] up to max_length, positions inside a blank; 0 by default.
      prefix: int[b], number of tokens of part A; the whole sequence by default.

    Returns:
      'hidden' [b, l, d], after any final norm; 'layers' [n+1, b, l, d] with the embeddings first; 'carry' ().
    """
    batch_size, length = tokens.shape
    if positions is None:
      position.check_length(length, max_length=self.config.max_length, model='Glm')
      positions = position.from_segments(segment_ids)
    if prefix is None:
      prefix = jnp.full(batch_size, length)
    x = self._read(tokens, positions, block_positions)
    x = constrain(self.embed_dropout(x, train=train), 'batch', 'length', 'embed')
    hidden, layers = self.layers(x, Mask(segment_ids, segment_ids, causal=True, prefix=prefix), train)
    return {'hidden': self._finish(hidden), 'layers': jnp.concatenate([x[None], layers]), 'carry': ()}

  def _read(self, tokens: Array, positions: Array, block_positions: Array | None) -> Array:
    """Add the vectors of three tables: [b, l] -> [b, l, d]."""
    inside = jnp.zeros_like(tokens) if block_positions is None else block_positions
    return self.token_embed(tokens) + self.position_embed(positions) + self.block_position_embed(inside)

  def _finish(self, hidden: Array) -> Array:
    return self.final_norm(hidden) if self.config.norm_placement == 'pre' else hidden

  @property
  def position_rows(self) -> dict[str, range]:
    """Return the used rows of position tables, by path, from position 0.

    Row 0 of the second table is for tokens outside a blank.
    """
    last = self.config.max_length
    return {'position_embed': range(last + 1), 'block_position_embed': range(1, last + 1)}

  def init_cache(self, batch_size: int, length: int) -> Cache:
    """Create a cache of `length` empty slots."""
    c = self.config
    shape = (c.num_layers, batch_size, length, c.num_heads, c.hidden_dim // c.num_heads)
    return caches.empty(shape, dtype=self.execution.dtype)

  def decode_step(
    self,
    tokens: Array,
    cache: Cache,
    *,
    segment_ids: Array,
    positions: Array,
    block_positions: Array | None = None,
    whole: bool = False,
  ) -> tuple[Array, Cache]:
    """Read more tokens after those in the cache.

    Args:
      tokens: int[b, s]; all of part A in one call with `whole`, then part B, one or several tokens per call.
      cache: from `init_cache` or the previous step.
      segment_ids: int[b, s]; 0 is padding, on either side.
      positions: int[b, s], positions in A; for tokens of a blank that of its mask.
      block_positions: int[b, s], 0 in A, 1, 2, ... in a blank; 0 by default.
      whole: the new tokens see each other in both directions.

    Returns:
      Vocabulary logits f32[b, s, v] and the cache.
    """
    longer, mask = caches.advance(cache, segment_ids=segment_ids, positions=positions, together=whole)
    x = self._read(tokens, positions, block_positions)
    layers = {name: cache[name] for name in ('keys', 'values')}
    hidden, new = self.layers.decode(x, (cache['index'], mask), layers)
    return self.attend(self._finish(hidden)), longer | new


CONFIGS: Mapping[str, Config] = {
  'glm-base': Config(),
  'glm-large': Config(hidden_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096),
  'glm-10b': Config(hidden_dim=4096, num_layers=48, num_heads=64, mlp_dim=16384, max_length=1024),
  'tiny': Config(hidden_dim=128, num_layers=2, num_heads=2, mlp_dim=512),
}
make = maker(Glm, CONFIGS)

_PADDED = 'the vocabulary with its special tokens, padded to a multiple of 128'

PUBLISHED: Mapping[str, Published] = {
  'glm-base': Published(30_592, 109_338_624, '110M', note=_PADDED),
  'glm-large': Published(30_592, 334_688_256, '335M', note=_PADDED),
  'glm-10b': Published(50_304, 9_880_682_496, '10B', note=_PADDED),
}

PAPER = Paper(
  year=2021,
  title='Du et al., GLM',
  architecture='decoder',
  objective_family='autoregressive',
  adapters=('cloze', 'sequence'),
)
