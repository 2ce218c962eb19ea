"""GPT-BERT (Charpentier and Samuel 2024, §2; arXiv 2410.24159) on LTG-BERT's network (Samuel et al. 2023, §3).

One network reads in both directions, or with `causal` from left to right. In either case the state of a position
predicts the next token, so a masked token is read at the position before it. Norms without parameters precede each
sublayer, and follow attention and the gated unit. Attention is DeBERTa's (§3.1) with buckets of logarithmic width and
shared projections; a GELU gate multiplies its result. After each sublayer the state is a weighted sum of the results
of all sublayers so far (DenseFormer, Pagliardini et al. 2024); training stores all of them once per layer.

The prediction head is part of the trunk, as it makes the logits of both directions.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.keywords import Count, Depth, Epsilon, PartRate
from plm_jax.core.sharding import constrain
from plm_jax.core.trunk import AttentionKind
from plm_jax.core.types import Array, Execution, Paper, Published
from plm_jax.layers import cache as caches
from plm_jax.layers import positions as position
from plm_jax.layers.attention import attend_in
from plm_jax.layers.cache import Cache, Past
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Embed, Initializer, from_heads, to_heads, truncated_normal
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import GatedMlp, gelu_erf
from plm_jax.layers.norm import LayerNorm
from plm_jax.layers.stack import stack
from plm_jax.layers.vocab_head import Head
from plm_jax.models.base import OneStack, check_multiple, maker

State = tuple[Array, Array, Array]  # [b, l, d]; results of all sublayers [2n + 1, b, l, d]; index of the layer


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a GPT-BERT."""

  hidden_dim: Count = 768  # d, width between blocks
  num_layers: Depth = 12  # n
  num_heads: Count = 12  # h; the head size is hidden_dim / num_heads
  mlp_dim: Count = 2560  # f, feed-forward width
  num_buckets: Annotated[int, '4 <= x'] = 32  # buckets of distances in one direction
  # distances from max_distance - 1 on share the last bucket; longer sequences can be computed
  max_distance: Count = 512
  causal: bool = False  # read from left to right
  norm_epsilon: Epsilon = 1e-5  # epsilon of every LayerNorm
  dropout: PartRate = 0.1  # rate after the embeddings and after the feed-forward
  attention_dropout: PartRate = 0.1  # rate on attention weights, on the table of positions and after attention
  vocab_multiple: Count = 1  # pads the token table to a multiple of this many rows

  def __post_init__(self):
    check_multiple(self, 'hidden_dim', 'num_heads')
    if not self.num_buckets < self.max_distance - 1:
      raise ValueError(f'model.overrides: num_buckets={self.num_buckets} must be below max_distance - 1: lower it')

  @property
  def init(self) -> Initializer:
    return truncated_normal(math.sqrt(2 / (5 * self.hidden_dim)))

  @property
  def rows(self) -> np.ndarray:
    """Compute the table's row of each difference, from 1 - max_distance on."""
    differences = np.arange(1 - self.max_distance, self.max_distance)
    buckets = position.log_buckets(differences, num_buckets=self.num_buckets, max_distance=self.max_distance)
    return buckets + self.num_buckets - 1


class Block(nn.Module):
  """x + attention(norm x), then x + mlp(norm x), each replaced by a weighted sum over depth."""

  config: Config
  execution: Execution

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    heads = (c.num_heads, c.hidden_dim // c.num_heads)
    self.query, self.key, self.value, self.gate = (to_heads(*heads, c.init, dtype=dtype) for _ in range(4))
    self.out = from_heads(c.hidden_dim, c.init, dtype=dtype)
    self.norm = LayerNorm(c.norm_epsilon, dtype, use_bias=False, use_scale=False)
    self.mlp = GatedMlp(c.mlp_dim, 'gelu_tanh', c.init, c.init, norm_epsilon=c.norm_epsilon, dtype=dtype)
    self.dropout, self.attention_dropout = Dropout(c.dropout), Dropout(c.attention_dropout)

  def __call__(self, state: State, context: tuple[Mask, Array, Array, Array], train: bool) -> tuple[State, Array]:
    state, _ = self._sublayers(state, *context, train=train)
    return state, state[0]

  def decode(self, state: State, context: Any, cache: Cache) -> tuple[State, Cache]:
    """Run one step of generation; `context` begins with the first slot."""
    return self._sublayers(state, *context[1:], past=Past(cache['keys'], cache['values'], context[0]))

  def _sublayers(
    self,
    state: State,
    mask: Mask,
    rows: Array,
    table: Array,
    alphas: Array,
    *,
    train: bool = False,
    past: Past | None = None,
  ) -> tuple[State, Cache]:
    """Apply both sublayers; also return keys and values.

    `rows` int[b or 1, l, m] are those of the table of positions [r, d] for each query and key, `alphas` f32[2n, 2n + 1]
    the weights of the results of sublayers.
    """
    c = self.config
    x, results, index = state

    def mixed(x: Array, results: Array, which: int) -> tuple[Array, Array]:
      row = 2 * index + which
      results = jax.lax.dynamic_update_index_in_dim(results, x, row + 1, 0)
      return jnp.einsum('n,nbld->bld', alphas[row].astype(x.dtype), results), results

    y = self.norm(x)
    query, gate = self.query(y), gelu_erf(self.gate(y))
    keys, values = caches.append(past, self.key(y), self.value(y))
    table = self.attention_dropout(table, train=train, rows=False)
    scale = 1 / math.sqrt(3 * query.shape[-1])
    heads = keys.reshape(len(x), c.num_heads, *keys.shape[1:]) if past else keys.transpose(0, 2, 3, 1)  # [b, h, k, m]
    to_position = jnp.einsum('blhk,rhk->bhlr', query, self.key(table), preferred_element_type=jnp.float32)
    to_content = jnp.einsum('bhkm,rhk->bhmr', heads, self.query(table), preferred_element_type=jnp.float32)
    bias = jnp.take_along_axis(to_position, rows[:, None], axis=-1)
    bias += jnp.swapaxes(jnp.take_along_axis(to_content, jnp.swapaxes(rows, 1, 2)[:, None], axis=-1), 2, 3)
    rate, way, bias = c.attention_dropout, 'cached' if past else self.execution.attention, scale * bias
    y = attend_in(
      self, query, keys, values, mask=mask, bias=bias, scale=scale, dropout=rate, train=train, implementation=way
    )
    y = self.norm((y * gate).reshape(x.shape)).reshape(y.shape)
    x = x + self.attention_dropout(self.out(y), train=train)
    x, results = mixed(x, results, 0)
    x = x + self.dropout(self.mlp(self.norm(x)), train=train)
    x, results = mixed(x, results, 1)
    x = constrain(x, 'batch', 'length', 'embed')
    return (x, results, index + 1), {'keys': keys, 'values': values}


class DepthWeights(nn.Module):
  """Weights of the results of all sublayers up to each of `count`; at first only its own."""

  count: int

  @nn.compact
  def __call__(self) -> Array:
    """Return f32[count, count + 1] with zeros for later sublayers."""

    def last(key: Array, shape: tuple[int, ...]) -> Array:
      return jnp.zeros(shape).at[-1].set(1)

    init = nn.with_logical_partitioning(last, (None,))
    rows = [self.param(f'alphas_{row}', init, (row + 2,)) for row in range(self.count)]
    return jnp.stack([jnp.pad(row, (0, self.count + 1 - len(row))) for row in rows])


class GptBert(OneStack):
  """The network with its prediction head."""

  config: Config

  NAME = 'gpt_bert'
  INPUTS = ('tokens', 'segment_ids', 'type_ids', 'positions', 'allowed')
  PREDICTS_NEXT = True

  @property
  def ATTENTION(self) -> AttentionKind:  # type: ignore[override]
    """Return the kind that `causal` selects."""
    return 'causal' if self.config.causal else 'bidirectional'

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    self.token_embed = self.embed or self.make_table(c.init)
    self.embed_norm = LayerNorm(c.norm_epsilon, dtype, use_bias=False, use_scale=False)
    self.embed_dropout = Dropout(c.dropout)
    self.relative_embed = Embed(2 * c.num_buckets - 1, c.hidden_dim, ('positions', 'embed'), c.init, dtype=dtype)
    self.position_norm = LayerNorm(c.norm_epsilon, dtype)
    self.depth = DepthWeights(2 * c.num_layers)
    self.layers = stack(Block, num_layers=c.num_layers, execution=self.execution, methods=('decode',))(
      c, self.execution
    )
    std = math.sqrt(2 / (5 * c.hidden_dim))
    self.head = Head(self.vocab_size, 'gelu_erf', c.norm_epsilon, std, dtype, form='no_scale')

  def __call__(
    self,
    tokens: Array,
    *,
    segment_ids: Array,
    type_ids: Array | None = None,
    positions: Array | None = None,
    allowed: Array | None = None,
    train: bool = False,
  ) -> dict[str, Any]:
    """Read a batch as `OneStack`; `allowed` bool[b, l, m] as in `Bert`."""
    index = jnp.arange(tokens.shape[1])
    mask = Mask(segment_ids, segment_ids, causal=self.config.causal, allowed=allowed)
    x = self.embed_dropout(self.embed_norm(self.token_embed(tokens)), train=train)
    x = constrain(x, 'batch', 'length', 'embed')
    state, context = self._start(x, (index[:, None] - index)[None])
    (hidden, _, _), layers = self.layers(state, (mask, *context), train)
    return self.results(hidden, jnp.concatenate([x[None], layers]))

  def _start(self, x: Array, difference: Array) -> tuple[State, tuple[Array, Array, Array]]:
    """Build the state before the first layer, and what all layers read."""
    c = self.config
    rows = jnp.asarray(c.rows)[jnp.clip(difference, 1 - c.max_distance, c.max_distance - 1) + c.max_distance - 1]
    results = jnp.zeros((2 * c.num_layers + 1, *x.shape), x.dtype).at[0].set(x)
    return (x, results, jnp.asarray(0)), (rows, self.position_norm(self.relative_embed.rows()), self.depth())

  def init_output(self) -> None:
    """Initialise the head in `__call__`."""
    if self.is_initializing():
      self.attend(jnp.zeros((1, 1, self.hidden_dim)))

  def attend(self, features: Array) -> Array:
    """Compute logits f32[..., v] of the next token by the head."""
    return self.head(features, self.token_embed.attend)

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Select the first token's state: [b, l, d] -> [b, d]."""
    return hidden[:, 0]

  def init_cache(self, batch_size: int, length: int) -> Cache:
    """Create a cache of `length` empty slots."""
    c = self.config
    shape = c.num_layers, batch_size, length, c.num_heads, c.hidden_dim // c.num_heads
    return caches.empty(shape, dtype=self.execution.dtype)

  def decode_step(self, tokens: Array, cache: Cache, *, segment_ids: Array, positions: Array) -> tuple[Array, Cache]:
    """Read s tokens as `trunk.Decodes`: logits f32[b, s, v] and the cache."""
    longer, mask = caches.advance(cache, segment_ids=segment_ids, positions=positions)
    difference = positions[:, :, None] - longer['positions'][:, None, :]
    state, context = self._start(self.embed_norm(self.token_embed(tokens)), difference)
    layers = {name: cache[name] for name in ('keys', 'values')}
    (hidden, _, _), new = self.layers.decode(state, (cache['index'], mask, *context), layers)
    return self.attend(hidden), longer | new


CONFIGS: Mapping[str, Config] = {
  'gpt-bert-small': Config(hidden_dim=384, num_heads=6, mlp_dim=1280),
  'gpt-bert-base': Config(),
  'tiny': Config(hidden_dim=128, num_layers=2, num_heads=2, mlp_dim=256),
}
make = maker(GptBert, CONFIGS)

PUBLISHED: Mapping[str, Published] = {
  'gpt-bert-small': Published(8_192, 29_892_164, '30M'),
  'gpt-bert-base': Published(16_384, 119_454_532, '119M'),
}

PAPER = Paper(
  year=2024,
  title='Charpentier and Samuel, GPT-BERT',
  architecture='encoder',
  objective_family='denoising',
  adapters=('classify', 'tag'),
)
