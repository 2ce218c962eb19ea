"""AWD-LSTM, the trunk of ULMFiT: forward LSTM layers with five kinds of dropout.

Merity et al. 2018, "Regularizing and Optimizing LSTM Language Models"; Howard and Ruder 2018, §3.1. Sizes and rates are
those of the code released with ULMFiT (fastai, imdb_scripts). The last layer is as wide as the embeddings and the
others are wider, so the token table is also the output matrix. The recurrence encodes positions. Its state is the
carry: sequences of `data.bptt` continue those of the previous batch. In generation the state after a token is stored in
the slot of that token, so the texts of a beam search can share the states of their prompt.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.core.keywords import Count, Depth, Epsilon, PartRate, Rate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Paper, Published, PyTree
from plm_jax.layers import cache as caches
from plm_jax.layers.cache import Cache
from plm_jax.layers.dropout import Dropout, LockedDropout
from plm_jax.layers.linear import OutputBias, uniform
from plm_jax.layers.lstm import DroppedLstm, State, begins
from plm_jax.layers.mlp import Activation
from plm_jax.models.base import Base, check_choices, maker


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes and dropout of an AWD-LSTM."""

  hidden_dim: Count = 400  # d, width of embeddings and of the last layer
  num_layers: Depth = 3  # n
  mlp_dim: Count = 1150  # f, width of the other layers
  dropout: Rate = 1.0  # factor on the five rates below (`dropmult` of the released code); 0 turns all of them off
  embedding_dropout: PartRate = 0.02  # rate of whole rows of the token table, one mask per step
  input_dropout: PartRate = 0.25  # rate on the embeddings, one mask per sequence for all tokens, like the next two
  hidden_dropout: PartRate = 0.15  # rate between layers
  output_dropout: PartRate = 0.1  # rate after the last layer
  weight_dropout: PartRate = 0.2  # rate of the recurrent weights, one mask per step
  embedding_range: Std = 0.1  # the token table is initialised to U(-range, range)
  activation: Activation = 'gelu_erf'  # activation of a pre-training head, a name of `layers.mlp.ACTIVATIONS`
  norm_epsilon: Epsilon = 1e-12  # epsilon of a pre-training head
  init_std: Std = 0.02  # standard deviation of a pre-training head
  vocab_multiple: Count = 1  # pads the token table to a multiple of this many rows

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
    """Return the width of each layer."""
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
    self, tokens: Array, *, segment_ids: Array, type_ids: Array | None = None, carry: PyTree = (), train: bool = False
  ) -> dict[str, Any]:
    """Read a batch forward.

    Args:
      tokens: int[b, l].
      segment_ids: int[b, l], ids of the packed documents; 0 is padding. A state never enters another document of its
        sequence, but the carry enters the first one.
      carry: state of each layer, from `init_carry` or the previous call; () for zeros.

    Returns:
      'hidden' [b, l, d], the last layer after dropout; 'layers' [2, b, l, d], the embeddings and the last layer before
      its dropout, because the other layers have another width; 'carry' the final state.
    """
    row_mask = self.embedding_dropout(jnp.ones((self.vocab_size, 1), self.execution.dtype), train=train, rows=False)
    x = embedded = self.token_embed(tokens) * jnp.take(row_mask, tokens, axis=0, mode='clip')  # [b, l] -> [b, l, d]
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
    """Run all layers; return final states and last outputs [b, l, d].

    `x` [b, l, d] are embeddings. States are reset to zero before the tokens `fresh` bool[b, l], and not changed by
    those of `passed` bool[b, l].
    """
    after = {}
    for index, layer in enumerate(self.lstm):
      if index:
        x = self.hidden_dropout(x, train=train)
      name = f'lstm_{index}'
      after[name], x = layer(x, carry[name], fresh=fresh, passed=passed, train=train)
    return after, x

  def attend(self, features: Array) -> Array:
    """Compute vocabulary logits f32[..., v] by the token table and a bias."""
    return self.output_bias(self.output_table.attend(features))

  def init_carry(self, batch_size: int) -> PyTree:
    """Create states of zeros: layer -> (h [b, f], c f32[b, f])."""
    return {
      f'lstm_{index}': (jnp.zeros((batch_size, width), self.execution.dtype), jnp.zeros((batch_size, width)))
      for index, width in enumerate(self.widths)
    }

  def init_cache(self, batch_size: int, length: int) -> Cache:
    """Create a cache of `length` empty slots.

    'states' [1, b, m, w] are the concatenated h of all layers, 'cells' f32[1, b, m, w] their c.
    """
    states = jnp.zeros((1, batch_size, length, sum(self.widths)), self.execution.dtype)
    return caches.without_keys(batch_size, length) | {'states': states, 'cells': states.astype(jnp.float32)}

  def decode_step(self, tokens: Array, cache: Cache, *, segment_ids: Array, positions: Array) -> tuple[Array, Cache]:
    """Read s tokens of a text, or one of s texts.

    The arguments are those of `trunk.Decodes`. With 'seen' in the cache each sequence has s texts. A text continues
    from the state in its last slot. The state after its last new token is written into the slot of that token; states
    between are not needed. Padding, on either side, does not change a state. Positions are stored in the cache; the
    recurrence encodes them.
    """
    # index 2, two new tokens, six slots     last slot of a text   written
    # one text of two tokens                 1                     slot 3
    # two texts, seen 'x.' and 'xx'          0  1                  slots 2 and 3
    (batch_size, new), index = tokens.shape, cache['index']
    texts = new if 'seen' in cache else 1
    # 1. state in the last slot of each text
    slots = jnp.arange(cache['segment_ids'].shape[1])
    before = cache['seen'] if 'seen' in cache else jnp.broadcast_to(slots < index, (batch_size, 1, len(slots)))
    last = jnp.where(before, slots, -1).max(axis=-1)  # [b, t], -1 for a text without slots
    ends = list(itertools.accumulate(self.widths))[:-1]

    def take(name: str) -> list[Array]:
      states = jnp.take_along_axis(cache[name][0], jnp.maximum(last, 0)[..., None], axis=1)  # [b, t, w]
      states = jnp.where(last[..., None] < 0, 0, states)
      return jnp.split(states.reshape(batch_size * texts, -1), ends, axis=-1)

    carry = {f'lstm_{layer}': state for layer, state in enumerate(zip(take('states'), take('cells'), strict=True))}
    # 2. read the new tokens, [b, s] -> [b t, s / t]
    ids, padding = (values.reshape(batch_size * texts, -1) for values in (tokens, segment_ids == 0))
    after, x = self.read(self.token_embed(ids), carry, fresh=jnp.zeros_like(padding), passed=padding)
    # 3. write the states into the cache
    longer, _ = caches.advance(cache, segment_ids=segment_ids, positions=positions)
    for name, layers in zip(('states', 'cells'), zip(*after.values(), strict=True), strict=True):
      states = jnp.concatenate(layers, axis=-1).reshape(1, batch_size, texts, -1)
      longer[name] = caches.put(cache[name], states, index + new - texts, axis=2)
    return self.attend(x.reshape(batch_size, new, -1)), longer


CONFIGS: Mapping[str, Config] = {'ulmfit': Config(), 'tiny': Config(hidden_dim=128, mlp_dim=256)}
make = maker(AwdLstm, CONFIGS)

PUBLISHED: Mapping[str, Published] = {
  'ulmfit': Published(
    60_002,
    44_272_402,
    'none',
    also=(('LSTM layers', 20_211_600),),
    note='with the output bias; later releases of fastai have layers of 1152, 20,273,280 parameters',
  )
}

PAPER = Paper(
  year=2018,
  title='Howard and Ruder, ULMFiT; Merity et al., AWD-LSTM',
  architecture='lstm',
  objective_family='autoregressive',
  adapters=('classify',),
)
