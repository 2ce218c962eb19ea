"""The encoder of cross-view training: two bidirectional LSTM levels over words (Clark et al. 2018, §3.1).

Sizes and dropout are those of the released code (tensorflow/models, research/cvt_text). A word is its vector times a
learned factor, concatenated with max-pooled filters over its characters. The directions of the first level are
independent, so a view of a text can read one of them (`objectives/multiview.py`); the second level reads both. States
are projected (Sak et al. 2014, §2.1). The primary head of the paper reads both levels concatenated:

    adapter = dict(name='tag', layers=(-2, -1), hidden=512, activation='relu', dropout=0.0, ...)

`init_from` reads the word vectors from a file, and they train. Words that are not in the file are initialised to the
zero vector. A position without characters has zeros instead of filter outputs.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.batch import SLOTS
from plm_jax.core.keywords import Count, NonNegativeInt, PartRate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Published, Supervised
from plm_jax.layers.characters import CHARACTERS, largest_of_filters
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Embed, normal, uniform
from plm_jax.layers.lstm import Lstm, apart
from plm_jax.models.base import WordVectors, maker


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of the encoder."""

  word_dim: Count = 300  # e, width of the word vectors
  # number of characters of a word that are read, including the marks of its begin and end
  slots: Annotated[int, '1 <= x <= 50'] = 20
  char_dim: Count = 50  # width of character vectors
  # numbers of filters of width 1, 2, and so on; 0 for none, () for a model without characters
  filters: tuple[NonNegativeInt, ...] = (0, 100, 100, 100)
  hidden_dim: Count = 1024  # d, width of a level; each direction's projection p is half of it
  mlp_dims: tuple[Count, ...] = (1024, 512)  # cell width of each direction, for every level
  dropout: PartRate = 0.5  # rate on word vectors, on filter outputs and after each level
  word_std: Std = 0.4  # standard deviation of initial word vectors without a file
  vocab_multiple: Count = 1  # pads the table of word vectors to a multiple of this many rows

  def __post_init__(self):
    if not self.mlp_dims:
      raise ValueError('model.overrides.mlp_dims=() is empty: give a width for each level')
    if len(self.filters) > self.slots:
      raise ValueError(
        f'model.overrides.filters={self.filters} has {len(self.filters)} widths, more than slots={self.slots}: '
        'remove some or raise slots'
      )
    width = self.word_dim + sum(self.filters)
    if self.hidden_dim % 2 or width > self.hidden_dim:
      raise ValueError(
        f'model.overrides.hidden_dim={self.hidden_dim} must be even and at least word_dim plus all filters: '
        f'give {width + width % 2} or more'
      )


class Words(nn.Module):
  """Word vectors concatenated with characters: [b, l, e] and int[b, l, 50] -> [b, l, e + filters]."""

  config: Config
  dtype: str

  @nn.compact
  def __call__(self, vectors: Array, characters: Array | None, train: bool) -> Array:
    c = self.config
    scale = self.param('scale', nn.with_logical_partitioning(nn.initializers.ones, ()), (), jnp.float32)
    words = Dropout(c.dropout, name='word_dropout')(vectors, train=train) * scale.astype(self.dtype)
    if not sum(c.filters):
      return words
    shape = words.shape[:2]
    characters = jnp.zeros((*shape, SLOTS), jnp.int32) if characters is None else characters
    init = uniform(math.sqrt(6 / (CHARACTERS + c.char_dim)))  # TensorFlow's default for tables
    embed = Embed(CHARACTERS, c.char_dim, (None, 'embed_out'), init, dtype=self.dtype, name='character_embed')
    x = embed(characters[..., : c.slots].reshape(-1, c.slots))  # [b, l, 50] -> [b l, slots, character]
    x = nn.relu(largest_of_filters(x, c.filters, kernel_init=nn.initializers.glorot_uniform(), dtype=self.dtype))
    x = jnp.where(characters[..., :1] > 0, x.reshape(*shape, -1), 0)
    return jnp.concatenate([words, Dropout(c.dropout, name='character_dropout')(x, train=train)], axis=-1)


class Cvt(WordVectors):
  """The encoder without heads."""

  config: Config

  NAME = 'cvt'
  INPUTS = ('tokens', 'characters', 'segment_ids', 'type_ids', 'positions')

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    self.token_embed = self.embed or self.make_table(normal(c.word_std))
    self.words = Words(c, dtype)
    self.lstm = [Lstm(width, dtype, c.hidden_dim // 2, self.execution.remat) for width in c.mlp_dims]
    self.dropout = Dropout(c.dropout)

  def __call__(
    self,
    tokens: Array,
    *,
    characters: Array | None = None,
    segment_ids: Array,
    type_ids: Array | None = None,
    positions: Array | None = None,
    train: bool = False,
  ) -> dict[str, Any]:
    """Encode a batch as `OneStack`; `positions` are ignored.

    Args:
      characters: int[b, l, 50], characters of each word; 0 for none. None: no word has characters.

    Returns:
      'hidden' [b, l, d], the last level; 'layers' [n+1, b, l, d], the input of the first level, padded with zeros, and
      the levels, forward states first; 'carry' ().
    """
    x = constrain(self.words(self.word_vectors(tokens), characters, train), 'batch', 'length', 'embed')
    layers = [jnp.pad(x, ((0, 0), (0, 0), (0, self.hidden_dim - x.shape[-1])))]
    for layer in self.lstm:
      x = layer(x, segment_ids).reshape(*tokens.shape, self.hidden_dim)  # [b, l, 2, p] -> [b, l, d]
      x = constrain(self.dropout(x, train=train), 'batch', 'length', 'embed')
      layers.append(x)
    return {'hidden': x, 'layers': jnp.stack(layers), 'carry': ()}

  def directions(self, layers: Array, segment_ids: Array) -> tuple[Array, Array]:
    """Split the states of each level into forward and backward."""
    return apart(layers)  # [n+1, b, l, d] -> two of [n, b, l, p]


CONFIGS: Mapping[str, Config] = {
  'cvt': Config(),
  'tiny': Config(word_dim=16, char_dim=8, filters=(0, 4, 4, 4), hidden_dim=64, mlp_dims=(64, 48)),
}
make = maker(Cvt, CONFIGS)

PUBLISHED: Mapping[str, Published] = {
  'cvt': Published(
    0,
    17_044_513,
    'none',
    note='without the word vectors, 300 numbers for each word; 262 characters instead of 109 in the released code',
  )
}

PAPER = Supervised(
  year=2018, title='Clark et al., Cross-View Training', architecture='lstm', adapters=('tag', 'parse'), transfer='joint'
)
