"""Base class of trunks (the backbone: the network without a task head), and checks of their configs.

`Base` implements `trunk.Trunk` and `trunk.Attends` for a trunk with a tied output, without learned positions and
without recurrent state. A trunk adds NAME, INPUTS, ATTENTION, `setup` (which creates `token_embed`) and `__call__`, and
overrides what differs. `OneStack`, `Rotary`, `Neighbours`, `WordVectors` and `TwoStacks` are shared by several trunks.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_origin

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.errors import one_of
from plm_jax.core.sharding import constrain
from plm_jax.core.trunk import AttentionKind, HeadStyle
from plm_jax.core.types import Array, Execution, PyTree
from plm_jax.layers import cache as caches
from plm_jax.layers import positions as position
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Embed, Initializer, normal
from plm_jax.layers.masks import Mask
from plm_jax.layers.multihead import Encoded
from plm_jax.layers.norm import LayerNorm
from plm_jax.layers.pooling import largest, last
from plm_jax.layers.stack import stack

# INPUTS of a trunk with an encoder and a decoder
TWO_STACKS = (
  'encoder_tokens',
  'encoder_segment_ids',
  'decoder_tokens',
  'decoder_segment_ids',
  'encoder_positions',
  'decoder_positions',
)

Made = TypeVar('Made')


class Base(nn.Module):
  """A trunk without its architecture."""

  config: Any  # sizes, the `Config` of the file
  vocab_size: int  # number of ids in the vocabulary
  execution: Execution = Execution()  # how to compute the trunk
  embed: nn.Module | None = None  # the token table of another trunk, which replaces that of this one

  NAME: ClassVar[str]
  INPUTS: ClassVar[tuple[str, ...]]
  ATTENTION: ClassVar[AttentionKind]
  PREDICTS_NEXT: ClassVar[bool] = False  # the state before a masked token predicts it (GPT-BERT)

  @property
  def hidden_dim(self) -> int:
    """Return d, the width of 'hidden'."""
    return self.config.hidden_dim

  @property
  def position_rows(self) -> dict[str, range]:
    """Return no rows: without learned positions any length is valid."""
    return {}

  def init_carry(self, batch_size: int) -> PyTree:
    """Return the empty carry of a trunk without state."""
    return ()

  @property
  def token_dim(self) -> int:
    """Return e, the width of the token table and `attend`'s features."""
    return getattr(self.config, 'embed_dim', None) or self.hidden_dim

  @property
  def head_style(self) -> HeadStyle:
    """Return the style of a head before `attend`, BERT's by default."""
    c = self.config
    activation, epsilon = getattr(c, 'activation', 'gelu_erf'), getattr(c, 'norm_epsilon', 1e-12)
    return HeadStyle(activation, epsilon, getattr(c, 'init_std', 0.02))

  def attend(self, features: Array) -> Array:
    """Compute logits f32[..., v] of features [..., e] by `output_table`."""
    return self.output_table.attend(features)

  @property
  def gives_logits(self) -> bool:
    """Return True if the trunk has an output matrix."""
    return getattr(self.config, 'tied', True) or getattr(self.config, 'has_output', True)

  @property
  def output_table(self) -> Embed:
    """Return the token table, or the output matrix of an untied trunk.

    Raises:
      ValueError: there is no output matrix.
    """
    if not self.gives_logits:
      raise ValueError(
        f'this {type(self).__name__} has no output matrix (lm_head; model.overrides: tied=False, has_output=False): '
        'open the folder of the language model, or set model.overrides.has_output=True to train one'
      )
    return self.token_embed if getattr(self.config, 'tied', True) else self.output

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Select the last real token's state: [b, l, d] -> [b, d]."""
    return last(hidden, segment_ids)

  def init_output(self) -> None:
    """Initialise the output matrix in `__call__`, even without logits."""
    if self.is_initializing() and self.gives_logits:
      self.attend(jnp.zeros((1, 1, self.token_dim)))

  def init_all(self) -> None:
    """Use every parameter once, for `trunk.init(key, method='init_all')`."""
    ones = jnp.ones((1, 1), jnp.int32)
    sides = ('encoder_', 'decoder_') if 'encoder_tokens' in self.INPUTS else ('',)
    out = self(**{f'{side}{name}': ones for side in sides for name in ('tokens', 'segment_ids')})
    self.pool(out['hidden'], ones)
    self.init_output()

  def with_dropout(self, rate: float) -> 'Base':
    """Return this trunk with another dropout rate and the same parameters."""
    return self.clone(config=dataclasses.replace(self.config, dropout=rate))

  def make_table(self, table_init: Initializer) -> Embed:
    """Build a table [v, e] for tokens or outputs, in `setup`."""
    return Embed(
      self.vocab_size,
      self.token_dim,
      ('vocab', 'embed'),
      table_init,
      multiple=self.config.vocab_multiple,
      dtype=self.execution.dtype,
    )


class OneStack(Base):
  """A trunk that reads packed rows with one stack.

  Its file adds `states`: the arguments of `__call__` in their order -> its results 'hidden' and 'layers'.
  """

  INPUTS: ClassVar[tuple[str, ...]] = ('tokens', 'segment_ids', 'type_ids', 'positions')

  def __call__(
    self,
    tokens: Array,
    *,
    segment_ids: Array,
    type_ids: Array | None = None,
    positions: Array | None = None,
    train: bool = False,
  ) -> dict[str, Any]:
    """Read a batch.

    Args:
      tokens: int[b, l].
      segment_ids: int[b, l], ids of the packed documents; 0 is padding.
      type_ids: int[b, l], sentence A (0) or B (1); 0 by default, ignored by trunks without types.
      positions: int[b, l]; by default from 0 in each segment, ignored by trunks without positions.
      train: apply dropout.

    Returns:
      'hidden' [b, l, d] after any final norm; 'layers' [n+1, b, l, d] with the embeddings first; 'carry' ().
    """
    return self.results(*self.states(tokens, segment_ids, type_ids, positions, train))

  def results(self, hidden: Array, layers: Array) -> dict[str, Any]:
    """Return the result of `__call__` without a carry."""
    self.init_output()
    return {'hidden': hidden, 'layers': layers, 'carry': ()}

  def positions_of(self, segment_ids: Array, positions: Array | None) -> Array:
    """Check the length; return `positions`, by default from 0 in each segment."""
    length, most = segment_ids.shape[1], self.config.max_length
    position.check_length(length, max_length=most, model=type(self).__name__)
    return position.from_segments(segment_ids) if positions is None else positions


class Rotary(OneStack):
  """A causal trunk whose layers rotate queries and keys.

  Its file adds `final_norm`, `speeds`, `key_shape` and `layers`. The blocks are called with the context (mask, angles),
  and decode with (first slot, mask, angles).
  """

  ATTENTION = 'causal'

  @property
  def _window(self) -> int | None:
    return getattr(self.config, 'window', None)

  @property
  def _numbered(self) -> bool:
    """Check whether blocks take the index of their layer."""
    return bool(getattr(self.config, 'unrotated', ()))

  def embed_tokens(self, tokens: Array) -> Array:
    """Embed tokens: [b, l] -> [b, l, d]."""
    return self.token_embed(tokens)

  def states(
    self, tokens: Array, segment_ids: Array, type_ids: Array | None, positions: Array | None, train: bool
  ) -> tuple[Array, Array]:
    """Compute 'hidden' and 'layers' from left to right."""
    if positions is None:
      positions = position.from_segments(segment_ids)
    x = constrain(self.embed_tokens(tokens), 'batch', 'length', 'embed')  # [b, l] -> [b, l, d]
    context = (
      Mask(segment_ids, segment_ids, causal=True, window=self._window),
      position.rotary_angles(positions, self.speeds),
    )
    if self._numbered:
      (hidden, _), layers = self.layers((x, jnp.zeros((), jnp.int32)), context, train)
    else:
      hidden, layers = self.layers(x, context, train)
    return self.final_norm(hidden), jnp.concatenate([x[None], layers])

  def init_cache(self, batch_size: int, length: int) -> caches.Cache:
    """Create a cache of `length` empty slots."""
    return caches.empty((self.config.num_layers, batch_size, length, *self.key_shape), dtype=self.execution.dtype)

  def decode_step(
    self, tokens: Array, cache: caches.Cache, *, segment_ids: Array, positions: Array
  ) -> tuple[Array, caches.Cache]:
    """Read s tokens as `trunk.Decodes`: logits f32[b, s, v] and the cache."""
    longer, mask = caches.advance(cache, segment_ids=segment_ids, positions=positions)
    mask = caches.within(mask, longer, positions, self._window)
    context = cache['index'], mask, position.rotary_angles(positions, self.speeds)
    layers = {name: cache[name] for name in ('keys', 'values')}
    if self._numbered:
      layers['number'] = jnp.arange(self.config.num_layers)
    hidden, new = self.layers.decode(self.embed_tokens(tokens), context, layers)
    return self.attend(self.final_norm(hidden)), longer | new


class Neighbours(OneStack):
  """A bidirectional trunk whose blocks read neighbours, so that it needs no positions; pooled by maximum.

  Its file adds BLOCK, whose context is `segment_ids`.
  """

  ATTENTION = 'bidirectional'
  BLOCK: ClassVar[type[nn.Module]]

  def setup(self) -> None:
    c = self.config
    self.token_embed = self.embed or self.make_table(normal(c.init_std))
    self.embed_dropout = Dropout(c.dropout)
    self.layers = stack(self.BLOCK, num_layers=c.num_layers, execution=self.execution)(c, self.execution)
    self.final_norm = LayerNorm(c.norm_epsilon, self.execution.dtype)

  def states(
    self, tokens: Array, segment_ids: Array, type_ids: Array | None, positions: Array | None, train: bool
  ) -> tuple[Array, Array]:
    """Compute 'hidden' and 'layers'; the blocks encode positions."""
    x = self.embed_dropout(self.token_embed(tokens), train=train)  # [b, l] -> [b, l, d]
    x = constrain(x, 'batch', 'length', 'embed')
    hidden, layers = self.layers(x, segment_ids, train)
    return self.final_norm(hidden), jnp.concatenate([x[None], layers])

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Pool by maximum: [b, l, d] -> [b, d]; zeros without tokens."""
    return largest(hidden, segment_ids)


class WordVectors(Base):
  """A bidirectional trunk over word vectors of width `word_dim`, pooled by maximum."""

  ATTENTION = 'bidirectional'

  @property
  def token_dim(self) -> int:
    """Return e, the width of word vectors."""
    return self.config.word_dim

  def word_vectors(self, tokens: Array) -> Array:
    """Return the vectors of tokens: [b, l] -> [b, l, e]."""
    if self.vocab_size:  # 0 to count the encoder only
      return self.token_embed(tokens)
    return jnp.zeros((*tokens.shape, self.token_dim), self.execution.dtype)

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Pool by maximum: [b, l, d] -> [b, d]; zeros without tokens."""
    return largest(hidden, segment_ids)


class Context(NamedTuple):
  """Inputs of every layer of a stack."""

  mask: Mask  # of self-attention
  encoded: Encoded | None = None  # states of an encoder
  bias: Array | None = None  # f32[b or 1, h, l, m], of self-attention


class StepContext(NamedTuple):
  """Inputs of every layer in a step of generation; the encoder's keys and values are in the cache."""

  mask: Mask  # of the new tokens
  start: Array  # int32[], the slot of the first new token
  encoder_mask: Mask | None  # of the new tokens over the encoder's states; None without an encoder
  bias: Array | None = None  # f32[b or 1, h, s, m], of self-attention


class CrossBlock(nn.Module):
  """Self-attention, cross-attention if there is an encoder, and feed-forward.

  Each is x + sublayer(norm(x)), or norm(x + sublayer(x)) with `norm_placement` 'post'. A file adds `setup` with
  `attention` and `cross` (`MultiHead`), `mlp`, a norm of each (`attention_norm`), and `dropout`.
  """

  config: Any
  execution: Execution

  def _before(self, norm: nn.Module, x: Array) -> Array:
    return norm(x) if getattr(self.config, 'norm_placement', 'pre') == 'pre' else x

  def _after(self, norm: nn.Module, x: Array) -> Array:
    return norm(x) if getattr(self.config, 'norm_placement', 'pre') == 'post' else x

  def __call__(self, x: Array, context: Context, train: bool) -> tuple[Array, Array]:
    y = self._before(self.attention_norm, x)
    y = self.attention(y, y, mask=context.mask, bias=context.bias, train=train)
    x = self._after(self.attention_norm, x + self.dropout(y, train=train))
    if context.encoded is not None:
      y = self._before(self.cross_norm, x)
      y = self.cross(y, context.encoded.hidden, mask=context.encoded.mask, train=train)
      x = self._after(self.cross_norm, x + self.dropout(y, train=train))
    y = self._before(self.mlp_norm, x)
    y = self.mlp(y, train=train)
    x = self._after(self.mlp_norm, x + self.dropout(y, train=train))
    return constrain(x, 'batch', 'length', 'embed'), x

  def decode(self, x: Array, context: StepContext, cache: caches.Cache) -> tuple[Array, caches.Cache]:
    """Run one step; return states [b, s, d], keys and values."""
    y = self._before(self.attention_norm, x)
    key, value = self.attention.project(y)  # [b, s, h, k]
    keys, values = caches.append(caches.Past(cache['keys'], cache['values'], context.start), key, value)
    y = self.attention.attend(y, keys, values, mask=context.mask, bias=context.bias, implementation='cached')
    x = self._after(self.attention_norm, x + y)
    if context.encoder_mask is not None:
      y = self._before(self.cross_norm, x)
      encoded = cache['encoder_keys'], cache['encoder_values']
      y = self.cross.attend(y, *encoded, mask=context.encoder_mask, implementation='cached')
      x = self._after(self.cross_norm, x + y)
    y = self.mlp(self._before(self.mlp_norm, x))
    return self._after(self.mlp_norm, x + y), {'keys': keys, 'values': values}

  def read(self, x: Array, context: None, cache: None) -> tuple[Array, tuple[Array, Array]]:
    """Compute keys and values of the encoder's states for cross-attention."""
    key, value = self.cross.project(x)  # [b, m, d] -> [b h, k, m] and [b h, m, k]
    return x, caches.in_order(key, value)


class TwoStacks(Base):
  """A trunk with an encoder and a decoder.

  Its file adds `decoder`, with `layers`, `init_cache` and `decode`; `read_source`, (tokens, segment_ids, positions,
  train) -> the encoder's states and layers; and `read_target`, the same for the decoder with `Encoded` before `train`.
  """

  INPUTS = TWO_STACKS
  ATTENTION = 'encoder-decoder'

  def __call__(
    self,
    *,
    encoder_tokens: Array,
    encoder_segment_ids: Array,
    decoder_tokens: Array,
    decoder_segment_ids: Array,
    encoder_positions: Array | None = None,
    decoder_positions: Array | None = None,
    train: bool = False,
  ) -> dict[str, Any]:
    """Encode one batch; decode another that attends to it.

    Args:
      encoder_tokens: int[b, m].
      encoder_segment_ids: int[b, m], ids of the packed documents; 0 is padding.
      decoder_tokens: int[b, l], already shifted to the right.
      decoder_segment_ids: int[b, l]; a document attends to the encoder's document with the same id.
      encoder_positions: int[b, m]; by default from 0 in each segment (of T5 only differences matter).
      decoder_positions: int[b, l]; the same.
      train: apply dropout.

    Returns:
      'hidden' [b, l, d] after any final norm, and 'layers' [n+1, b, l, d] before it, of the decoder, with the
      embeddings first; 'encoder_hidden' [b, m, d] and 'encoder_layers' [n+1, b, m, d] of the encoder, whose n may
      differ; 'carry' ().
    """
    encoder_hidden, encoder_layers = self.read_source(encoder_tokens, encoder_segment_ids, encoder_positions, train)
    encoded = Encoded(encoder_hidden, Mask(decoder_segment_ids, encoder_segment_ids))
    hidden, layers = self.read_target(decoder_tokens, decoder_segment_ids, decoder_positions, encoded, train)
    self.init_output()
    decoder = {'hidden': hidden, 'layers': layers, 'carry': ()}
    return decoder | {'encoder_hidden': encoder_hidden, 'encoder_layers': encoder_layers}

  def encode(self, tokens: Array, *, segment_ids: Array, positions: Array | None = None) -> Array:
    """Encode tokens for `init_cache`: int[b, m] -> [b, m, d]."""
    return self.read_source(tokens, segment_ids, positions, False)[0]

  def init_cache(
    self, batch_size: int, length: int, *, encoder_hidden: Array | None = None, encoder_segment_ids: Array | None = None
  ) -> PyTree:
    """Create a cache of empty slots and the encoder's keys and values.

    The decoder will read `length` tokens. `encoder_hidden` [b, m, d] of `encode` and its segments are required.

    Raises:
      ValueError: states of the encoder are missing, or have another batch size.
    """
    if encoder_hidden is None or encoder_segment_ids is None:
      raise ValueError('this trunk has an encoder: pass encoder_hidden and encoder_segment_ids to init_cache')
    if encoder_hidden.shape[0] != batch_size:
      raise ValueError(
        f'init_cache: encoder_hidden has batch size {encoder_hidden.shape[0]} and not batch_size={batch_size}'
      )
    slots = self.decoder.init_cache(batch_size, length)
    keys, values = self.decoder.layers.read(encoder_hidden, None, None)[1]  # [n, b h, k, m] and [n, b h, m, k]
    return slots | {'encoder_keys': keys, 'encoder_values': values, 'encoder_segment_ids': encoder_segment_ids}

  def decode_step(self, tokens: Array, cache: PyTree, *, segment_ids: Array, positions: Array) -> tuple[Array, PyTree]:
    """Read s tokens as `trunk.Decodes`: logits f32[b, s, v] and the cache."""
    x = self.token_embed(tokens)
    hidden, cache = self.decoder.decode(x, cache, segment_ids=segment_ids, positions=positions)
    return self.attend(hidden), cache


def maker(trunk: Callable[[Any, int, Execution], Made], configs: Mapping[str, Any]) -> Callable[..., Made]:
  """Return the `make` of a trunk's file; `config.signatures` reads its keywords here."""

  def make(
    *, vocab_size: int, variant: str, overrides: Mapping[str, Any] | None = None, execution: Execution = Execution()
  ) -> Made:
    """Build trunk `variant` of `CONFIGS`, changed by `overrides`, for `vocab_size` ids."""
    return trunk(dataclasses.replace(configs[variant], **(overrides or {})), vocab_size, execution)

  return make


def check_choices(config: Any) -> None:
  """Raise ValueError for a `Literal` field of a `Config` with another value."""
  values = dataclasses.asdict(config)
  for field in dataclasses.fields(config):
    if get_origin(field.type) is Literal:
      one_of(f'model.overrides.{field.name}', values[field.name], field.type)


def check_multiple(config: Any, whole: str, part: str) -> None:
  """Raise ValueError if one field is not a multiple of another."""
  values = dataclasses.asdict(config)
  size, parts = values[whole], values[part]
  if parts < 1 or size % parts:
    raise ValueError(f'model.overrides: {whole}={size} is not a multiple of {part}={parts}: change one of them')
