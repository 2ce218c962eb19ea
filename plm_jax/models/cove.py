"""CoVe's encoder, the MT-LSTM: two bidirectional LSTM layers over fixed word vectors (McCann et al. 2017, §3).

    CoVe(w) = MT-LSTM(GloVe(w))        input of a task: [GloVe(w); CoVe(w)]

It is trained as the encoder of a translation network (`objectives/translate.py`). The backward direction reads from the
end of a text: its state at t depends on the words from t on. `init_from` reads the word vectors from a file. They do
not train, and words that are not in the file have the zero vector. `layers/cudnn_lstm.py` defines the parameters, with
two bias vectors per gate.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.keywords import Count, Depth, PartRate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Published, Remat, Supervised
from plm_jax.layers.cudnn_lstm import Gates
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import normal, uniform
from plm_jax.layers.lstm import State, begins, both_ways, recur_over
from plm_jax.models.base import WordVectors, maker


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of an MT-LSTM."""

  word_dim: Count = 300  # e, width of the word vectors; at most half of `hidden_dim`
  hidden_dim: Count = 600  # d, width of the states of both directions together
  num_layers: Depth = 2  # n
  dropout: PartRate = 0.2  # rate between layers
  init_range: Std = 0.1  # all parameters except word vectors are initialised to U(-init_range, init_range)
  word_std: Std = 0.4  # standard deviation of initial word vectors without a file
  vocab_multiple: Count = 1  # pads the table of word vectors to a multiple of this many rows

  def __post_init__(self):
    if self.hidden_dim % 2 or self.word_dim > self.hidden_dim // 2:
      raise ValueError(
        f'model.overrides.hidden_dim={self.hidden_dim} must be even and at least twice word_dim={self.word_dim}: '
        f'give {2 * self.word_dim} or more'
      )


class Layer(nn.Module):
  """One bidirectional layer; a state never enters another document, and padding does not change it."""

  inputs: int
  features: int
  init_range: float
  dtype: str
  remat: Remat

  @nn.compact
  def __call__(self, x: Array, segment_ids: Array) -> tuple[State, Array]:
    """Read [b, l, inputs] in both directions.

    Returns:
      The final h and c [b, 2, f] of each direction, and states [b, l, 2 f], 0 on padding.
    """
    gates = Gates(self.inputs, self.features, uniform(self.init_range), 2, self.dtype, name='gates')
    both = jnp.stack([segment_ids, segment_ids[:, ::-1]], axis=-1)  # [b, l, 2], the second direction from the end
    fresh = jnp.stack([begins(both[..., 0]), begins(both[..., 1])], axis=-1)
    zero = jnp.zeros((len(x), 2, self.features), jnp.float32)
    recompute = self.remat == 'full'
    last, states = recur_over(
      both_ways(jnp.stack([x, x], axis=2) if recompute else gates(x)),
      gates.recurrent,
      (zero.astype(self.dtype), zero),
      gates_of=gates.of_each if recompute else None,
      fresh=fresh,
      passed=both == 0,
      remat=self.remat,
    )
    states = jnp.where(segment_ids[..., None, None] > 0, both_ways(states), 0)  # [b, l, 2, f]
    return last, states.reshape(*segment_ids.shape, 2 * self.features)


class Cove(WordVectors):
  """The encoder, with the table of word vectors that it reads."""

  config: Config

  NAME = 'cove'
  INPUTS = ('tokens', 'segment_ids', 'type_ids', 'positions')
  FIXED = ('token_embed/table',)

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    self.token_embed = self.embed or self.make_table(normal(c.word_std))
    widths = (c.word_dim, *(c.num_layers - 1) * (c.hidden_dim,))
    self.lstm = [Layer(width, c.hidden_dim // 2, c.init_range, dtype, self.execution.remat) for width in widths]
    self.between = Dropout(c.dropout)

  def __call__(
    self,
    tokens: Array,
    *,
    segment_ids: Array,
    type_ids: Array | None = None,
    positions: Array | None = None,
    train: bool = False,
  ) -> dict[str, Any]:
    """Encode a batch as `OneStack`; `positions` are ignored.

    Returns:
      'hidden' [b, l, d], CoVe; 'layers' [n+1, b, l, d], first the word vectors twice and padded with zeros, as ELMo
      mixes them with states; 'ends' (h [b, n, d], c f32[b, n, d]), the concatenated final states of both directions of
      each layer, after the last and after the first token; 'carry' ().
    """
    words = self.word_vectors(tokens)
    x = constrain(words, 'batch', 'length', 'embed')
    wide = jnp.concatenate([words, words], axis=-1)
    layers, ends = [jnp.pad(wide, ((0, 0), (0, 0), (0, self.hidden_dim - wide.shape[-1])))], []
    for index, layer in enumerate(self.lstm):
      x = self.between(x, train=train) if index else x
      last, x = layer(x, segment_ids)
      layers.append(x)
      ends.append(last)
    h, c = (jnp.stack([end.reshape(len(end), -1) for end in part], axis=1) for part in zip(*ends, strict=True))
    return {'hidden': x, 'layers': jnp.stack(layers), 'ends': (h, c), 'carry': ()}

  @property
  def num_layers(self) -> int:
    """Return n."""
    return self.config.num_layers


CONFIGS: Mapping[str, Config] = {'cove': Config(), 'tiny': Config(word_dim=16, hidden_dim=64)}  # fmt: skip
make = maker(Cove, CONFIGS)

PUBLISHED: Mapping[str, Published] = {
  'cove': Published(0, 3_609_600, 'none', note='without the fixed word vectors, 300 numbers for each word')
}

PAPER = Supervised(
  year=2017,
  title='McCann et al., CoVe',
  architecture='lstm',
  adapters=('scalar_mix', 'classify', 'span'),
  transfer='features',
)
