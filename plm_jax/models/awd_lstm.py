"""AWD-LSTM, the trunk of ULMFiT: LSTM layers that read forward, under five kinds of dropout.

Merity et al. 2018, "Regularizing and Optimizing LSTM Language Models"; Howard and Ruder 2018, §3.1. Sizes and rates
are those of the code released with ULMFiT (fastai, imdb_scripts). Layers are as wide as the embeddings at the end and
wider in between, so that the token table is the output matrix as well. The recurrence tells positions apart. Its state
is the carry: rows of `data.bptt` go on where the row before them ended. In generation the state after a token stands in
the slot of that token, so that the texts of a beam search may share the states of their prompt.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Count, Depth, Epsilon, Execution, Paper, PartRate, Published, PyTree, Rate, Std
from plm_jax.layers import cache as caches
from plm_jax.layers import pooling
from plm_jax.layers.cache import Cache
from plm_jax.layers.dropout import Dropout, LockedDropout
from plm_jax.layers.linear import OutputBias, uniform
from plm_jax.layers.lstm import DroppedLstm, State, begins
from plm_jax.layers.mlp import Activation
from plm_jax.models.base import Base, check_choices


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes and dropout of an AWD-LSTM.

  Attributes:
    hidden_dim: d, width of embeddings and of the last layer.
    num_layers: n.
    mlp_dim: f, width of the other layers.
    dropout: factor on the five rates below (`dropmult` of the released code); 0 turns all of them off.
    embedding_dropout: rate of whole rows of the token table, one draw per step.
    input_dropout: rate on the embeddings, one draw per row for all tokens, as the next two.
    hidden_dropout: rate between layers.
    output_dropout: rate after the last layer.
    weight_dropout: rate of the recurrent weights, one draw per step.
    embedding_range: the token table starts from U(-range, range).
    activation: of a pre-training head, a name of `layers.mlp.ACTIVATIONS`.
    norm_epsilon: of a pre-training head.
    init_std: of a pre-training head.
    vocab_multiple: pads the token table to a multiple of this many rows.
  """

  hidden_dim: Count = 400
  num_layers: Depth = 3
  mlp_dim: Count = 1150
  dropout: Rate = 1.0
  embedding_dropout: PartRate = 0.02
  input_dropout: PartRate = 0.25
  hidden_dropout: PartRate = 0.15
  output_dropout: PartRate = 0.1
  weight_dropout: PartRate = 0.2
  embedding_range: Std = 0.1
  activation: Activation = 'gelu_erf'
  norm_epsilon: Epsilon = 1e-12
  init_std: Std = 0.02
  vocab_multiple: Count = 1

  def __post_init__(self):
    check_choices(self)


class AwdLstm(Base):
  """The layers and the tied output with its bias."""

  config: Config

  NAME = 'awd_lstm'
  INPUTS = ('tokens', 'segment_ids', 'type_ids', 'carry')
  ATTENTION = 'causal'

  @property
  def widths(self) -> tuple[int, ...]:
    """Of each layer."""
    c = self.config
    return (*[c.mlp_dim] * (c.num_layers - 1), c.hidden_dim)

  def setup(self) -> None:
    c = self.config
    self.token_embed = self.embed or self.make_table(uniform(c.embedding_range))
    self.embedding_dropout = Dropout(c.dropout * c.embedding_dropout)
    self.input_dropout = LockedDropout(c.dropout * c.input_dropout)
    self.hidden_dropout = LockedDropout(c.dropout * c.hidden_dropout)
    self.output_dropout = LockedDropout(c.dropout * c.output_dropout)
    weight_dropout, e = c.dropout * c.weight_dropout, self.execution
    self.lstm = [DroppedLstm(width, weight_dropout, e.dtype, e.remat) for width in self.widths]
    self.output_bias = OutputBias(self.vocab_size)

  def __call__(
    self,
    tokens: Array,
    *,
    segment_ids: Array,
    type_ids: Array | None = None,
    carry: PyTree = (),
    train: bool = False,
  ) -> dict[str, Any]:
    """Reads a batch forward.

    Args:
      tokens: int[b, l].
      segment_ids: int[b, l], the packed documents of a row; 0 is padding. A state never enters another document of its
        row, but the carry enters the first one.
      type_ids: ignored; the scheme has no sentence types.
      carry: state of each layer, of `init_carry` or of the call before; () for zeros.
      train: drops out.

    Returns:
      'hidden' [b, l, d], the last layer after dropout; 'layers' [2, b, l, d], the embeddings and the last layer before
      its dropout, as the layers in between have another width; 'carry' the state after the row.
    """
    del type_ids
    kept = self.embedding_dropout(jnp.ones((self.vocab_size, 1), self.execution.dtype), train=train, rows=False)
    x = embedded = self.token_embed(tokens) * jnp.take(kept, tokens, axis=0, mode='clip')  # [b, l] -> [b, l, d]
    x = self.input_dropout(constrain(x, 'batch', 'length', 'embed'), train=train)
    fresh = begins(segment_ids).at[:, 0].set(False)  # the carry enters the first token
    after, x = self.read(x, carry or self.init_carry(tokens.shape[0]), fresh=fresh, train=train)
    x = constrain(x, 'batch', 'length', 'embed')
    hidden = self.output_dropout(x, train=train)
    self.init_output()
    return {'hidden': hidden, 'layers': jnp.stack([embedded, x]), 'carry': jax.lax.stop_gradient(after)}

  def read(
    self, x: Array, carry: PyTree, *, fresh: Array, passed: Array | None = None, train: bool = False
  ) -> tuple[dict[str, State], Array]:
    """The layers one above the other.

    Args:
      x: [b, l, d], embeddings.
      carry: state of each layer before the first token.
      fresh: bool[b, l], tokens before which the states are zero.
      passed: bool[b, l], tokens that leave the states as they are; None for none.
      train: drops out.

    Returns:
      The states after the row, in the form of `carry`, and what the last layer says of each token, [b, l, d].
    """
    after = {}
    for number, layer in enumerate(self.lstm):
      if number:
        x = self.hidden_dropout(x, train=train)
      name = f'lstm_{number}'
      after[name], x = layer(x, carry[name], fresh=fresh, passed=passed, train=train)
    return after, x

  def attend(self, features: Array) -> Array:
    """Vocabulary logits f32[..., v] of features [..., d], by the token table and a bias."""
    return self.output_bias(self.output_table.attend(features))

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """The last real token, which has read the row: [b, l, d] -> [b, d]."""
    return pooling.last(hidden, segment_ids)

  def init_carry(self, batch_size: int) -> PyTree:
    """Zeros: layer -> h [b, f] and c f32[b, f]."""
    return {
      f'lstm_{number}': (jnp.zeros((batch_size, width), self.execution.dtype), jnp.zeros((batch_size, width)))
      for number, width in enumerate(self.widths)
    }

  def init_cache(self, batch_size: int, length: int) -> Cache:
    """A cache of `length` empty slots: 'states' [1, b, m, w] are h of all layers side by side, 'cells' f32 their c."""
    states = jnp.zeros((1, batch_size, length, sum(self.widths)), self.execution.dtype)
    return caches.without_keys(batch_size, length) | {'states': states, 'cells': states.astype(jnp.float32)}

  def decode_step(self, tokens: Array, cache: Cache, *, segment_ids: Array, positions: Array) -> tuple[Array, Cache]:
    """Reads s more tokens of the text of each row or, with 'seen' in the cache, one more of each of its s texts.

    Args:
      tokens: int[b, s].
      cache: of `init_cache` or of the last step. A text goes on from the state in the last slot that it has, and the
        state after its last new token is written into the slot of that token: nobody goes on from those in between.
      segment_ids: int[b, s]; 0 is padding, on either side, which leaves a state as it is.
      positions: int[b, s], kept in the cache; the recurrence tells positions apart.

    Returns:
      Logits f32[b, s, v] and the longer cache.
    """
    # index 2, two new tokens, six slots     last slot of a text   written
    # one text of two tokens                 1                     slot 3
    # two texts, seen 'x.' and 'xx'          0  1                  slots 2 and 3
    (rows, new), index = tokens.shape, cache['index']
    texts = new if 'seen' in cache else 1
    slots = jnp.arange(cache['segment_ids'].shape[1])
    before = cache['seen'] if 'seen' in cache else jnp.broadcast_to(slots < index, (rows, 1, len(slots)))
    last = jnp.where(before, slots, -1).max(axis=-1)  # [b, t], -1 where a text has no slot yet
    ends = list(itertools.accumulate(self.widths))[:-1]

    def take(name: str) -> list[Array]:
      found = jnp.take_along_axis(cache[name][0], jnp.maximum(last, 0)[..., None], axis=1)  # [b, t, w]
      found = jnp.where(last[..., None] < 0, 0, found)
      return jnp.split(found.reshape(rows * texts, -1), ends, axis=-1)

    carry = {f'lstm_{number}': state for number, state in enumerate(zip(take('states'), take('cells'), strict=True))}
    tokens, padding = (ids.reshape(rows * texts, -1) for ids in (tokens, segment_ids == 0))  # [b, s] -> [b t, s / t]
    after, x = self.read(self.token_embed(tokens), carry, fresh=jnp.zeros_like(padding), passed=padding)
    taken, _ = caches.advance(cache, segment_ids=segment_ids, positions=positions)
    for name, layers in zip(('states', 'cells'), zip(*after.values(), strict=True), strict=True):
      states = jnp.concatenate(layers, axis=-1).reshape(1, rows, texts, -1)
      taken[name] = caches.put(cache[name], states, index + new - texts, axis=2)
    return self.attend(x.reshape(rows, new, -1)), taken


def make(
  *,
  vocab_size: int,
  variant: str,
  overrides: Mapping[str, Any] | None = None,
  execution: Execution = Execution(),
) -> AwdLstm:
  """The trunk of a row of `CONFIGS`.

  Args:
    vocab_size: ids of the vocabulary.
    variant: a key of `CONFIGS`.
    overrides: fields of `Config` that differ from the row.
    execution: how to compute the trunk.
  """
  return AwdLstm(dataclasses.replace(CONFIGS[variant], **(overrides or {})), vocab_size, execution)


# The published rows ---------------------------------------------------------------------------------------------------

CONFIGS: Mapping[str, Config] = MappingProxyType({'ulmfit': Config(), 'tiny': Config(hidden_dim=128, mlp_dim=256)})

PUBLISHED: Mapping[str, Published] = MappingProxyType(
  {
    'ulmfit': Published(
      vocab_size=60_002,
      parameters=44_272_402,
      paper='none',
      also=(('LSTM layers', 20_211_600),),
      note='the output bias included; later releases of fastai have layers of 1152, 20,273,280 parameters',
    )
  }
)

PAPER = Paper(
  year=2018,
  title='Howard and Ruder, ULMFiT; Merity et al., AWD-LSTM',
  architecture='lstm',
  objective_family='autoregressive',
  adapters=('classify',),
)
