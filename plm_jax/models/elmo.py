"""ELMo: layers of LSTM in two directions over words that are read by their characters.

Peters et al. 2018, §3 (arXiv 1802.05365); allenai/bilm-tf, bilm/training.py.

The vector of a word comes from filters over its characters, each at its maximum, highway layers and a projection. One
LSTM reads the words from left to right, another from right to left; they share nothing but these vectors. The state of
a cell is clipped and projected, and the projection is clipped (Sak et al. 2014; Jozefowicz et al. 2016). The output of
the first layer is added to that of the second, as for all further ones; the word itself is not added to the first.

Each text is read as a sentence of its own: the forward LSTM begins behind the word that begins a sentence, the backward
one behind the word that ends it, and neither of these two has a vector in the result. The released code carries its
state from one batch to the next in use as well, so that its vectors depend on what was read before; here only training
does (`stream`).

The 2 n + 1 vectors of a word (Peters et al. 2018, eq. 1) are its own, x = layers[0, ..., :p], and the states of each
layer in either direction, which `directions` takes apart; 'layers' holds them as the n + 1 that are mixed.
"""

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.batch import SLOTS
from plm_jax.core.sharding import constrain
from plm_jax.core.trunk import AttentionKind
from plm_jax.core.types import Array, Count, Depth, Execution, Paper, PartRate, Published, PyTree, NonNegativeInt
from plm_jax.layers.characters import CHARACTERS, largest_of_filters
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, Embed, Initializer, normal
from plm_jax.layers.lstm import State, apart, begins, both_ways, forget_one, recur_over
from plm_jax.layers.pooling import mean
from plm_jax.layers.stack import stack

Clip = Annotated[float, '0 < x']

# characters as `text/chars.py` numbers them
BEGINS, ENDS, PADDING = (259, 257, 260), (259, 258, 260), 261  # the words that begin and end a sentence; an unused slot


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of an ELMo.

  Attributes:
    hidden_dim: d, width of a layer, half of which is each direction's projection p.
    num_layers: n.
    mlp_dim: f, width of the cell of each direction.
    filters: filters that span one character, two, and so on.
    char_dim: width of the vector of a character.
    highway_layers: between filters and projection.
    cell_clip: largest absolute value of a cell.
    projection_clip: and of what a projection gives.
    dropout: rate on the input of each layer and on the output of the last.
  """

  hidden_dim: Count = 1024
  num_layers: Depth = 2
  mlp_dim: Count = 4096
  filters: tuple[Count, ...] = (32, 32, 64, 128, 256, 512, 1024)
  char_dim: Count = 16
  highway_layers: NonNegativeInt = 2
  cell_clip: Clip = 3.0
  projection_clip: Clip = 3.0
  dropout: PartRate = 0.1

  def __post_init__(self):
    if self.hidden_dim % 2:
      raise ValueError(f'model.overrides: hidden_dim {self.hidden_dim} is odd: half of it is each direction')
    if not 1 <= len(self.filters) <= SLOTS:
      raise ValueError(f'model.overrides: filters {self.filters} must be 1 to {SLOTS} numbers, one for each width')

  @property
  def projection_dim(self) -> int:
    """p, the width of one direction."""
    return self.hidden_dim // 2


class Words(nn.Module):
  """Words as vectors by their characters: int[..., 50] -> [..., p] (Kim et al. 2015, §2.2 and §2.3)."""

  config: Config
  dtype: str

  @nn.compact
  def __call__(self, characters: Array) -> Array:
    c, dtype = self.config, self.dtype
    embed = Embed(CHARACTERS, c.char_dim, (None, 'embed_out'), uniform(1.0), dtype=dtype, name='character_embed')
    x = embed(characters.reshape(-1, SLOTS))  # [..., 50] -> [w, 50, e]
    x = nn.relu(largest_of_filters(x, c.filters, kernel_init=uniform(0.05), dtype=dtype))
    for number in range(c.highway_layers):
      x = Highway(dtype, name=f'highway_{number}')(x)
    init = normal(1 / math.sqrt(x.shape[-1]))
    x = Dense(c.projection_dim, axes=('mlp', 'embed'), kernel_init=init, dtype=dtype, name='projection')(x)
    return x.reshape(*characters.shape[:-1], c.projection_dim)


class Highway(nn.Module):
  """g relu(W x + b) + (1 - g) x with g = sigmoid(V x + c), where c starts from -2 (Srivastava et al. 2015)."""

  dtype: str

  @nn.compact
  def __call__(self, x: Array) -> Array:
    width = x.shape[-1]
    init = normal(1 / math.sqrt(width))
    transform = Dense(width, axes=('embed', 'mlp'), kernel_init=init, dtype=self.dtype, name='transform')
    gate = Dense(width, axes=('embed', 'mlp'), kernel_init=init, use_bias=False, dtype=self.dtype, name='gate')
    start = nn.with_logical_partitioning(nn.initializers.constant(-2.0), ('mlp',))
    bias = self.param('gate_bias', start, (width,), jnp.float32)
    g = jax.nn.sigmoid(gate(x) + bias.astype(x.dtype))
    return g * nn.relu(transform(x)) + (1 - g) * x


class Context(NamedTuple):
  """What every layer reads beside its input.

  Attributes:
    state: h [n, b, 2, p] and c f32[n, b, 2, f], before the first word of a row.
    fresh: bool[b, l, 2], words before which a text begins; its state is then that behind the boundary word.
  """

  state: State
  fresh: Array


Reading = tuple[Array, Array, Array]  # words [b, l, 2, p], boundary words [1, 1, 2, p], number of the layer int32[]


class Block(nn.Module):
  """A layer in both directions, each from its first word to its last: LSTM(x), and above the first layer x + LSTM(x).

  It reads the word that stands before a text first, from a state of zeros, and begins texts with what this leaves.
  """

  config: Config
  execution: Execution

  @nn.compact
  def __call__(self, reading: Reading, context: Context, train: bool) -> tuple[Reading, tuple[Array, State]]:
    c, dtype = self.config, self.execution.dtype
    width, cells = c.projection_dim, c.mlp_dim

    def weights(name: str, init: Initializer, axes: tuple[str | None, ...], *shape: int) -> Array:
      return self.param(name, nn.with_logical_partitioning(init, axes), shape, jnp.float32).astype(dtype)

    init = uniform(math.sqrt(6 / (2 * width + 4 * cells)))  # of one matrix on [x; h] in TensorFlow
    inputs = weights('input', init, (None, 'embed', None, 'mlp'), 2, width, 4, cells)
    recurrent = weights('recurrent', init, (None, None, None, 'mlp'), 2, width, 4, cells)
    bias = weights('bias', forget_one, (None, None, 'mlp'), 2, 4, cells)
    init = uniform(math.sqrt(6 / (cells + width)))
    projection = weights('projection', init, (None, 'mlp', 'embed'), 2, cells, width)

    def read(x: Array, state: State, fresh: Array, begin: State | None) -> tuple[Array, State]:
      """A row in both directions: [b, l, 2, p] -> the same, and the state behind it."""
      last, out = recur_over(
        x,
        recurrent,
        state,
        gates_of=lambda x: jnp.einsum('blcp,cpgf->blcgf', x, inputs) + bias,
        fresh=fresh,
        begin=begin,
        projection=projection,
        cell_clip=c.cell_clip,
        projection_clip=c.projection_clip,
        remat=self.execution.remat,
      )
      return jnp.where(number > 0, x, 0) + out, last

    x, boundary, number = reading
    x = Dropout(c.dropout)(x, train=train)
    zeros = (jnp.zeros((1, 2, width), x.dtype), jnp.zeros((1, 2, cells), jnp.float32))
    boundary, begin = read(boundary, zeros, jnp.zeros((1, 1, 2), bool), None)
    h, cell = (part[number] for part in context.state)
    x, state = read(x, (h.astype(x.dtype), cell), context.fresh, (begin[0][0], begin[1][0]))
    x = constrain(x, 'batch', 'length', None, 'embed')
    return (x, boundary, number + 1), (x, state)


class Elmo(nn.Module):
  """The two language models without their softmax.

  Attributes:
    config: sizes.
    vocab_size: ids of the vocabulary of what it predicts; it reads any word.
    execution: how to compute it.
  """

  config: Config
  vocab_size: int
  execution: Execution = Execution()

  NAME = 'elmo'
  INPUTS = ('characters', 'segment_ids', 'type_ids')
  ATTENTION: AttentionKind = 'bidirectional'

  @property
  def hidden_dim(self) -> int:
    """d, the width of 'hidden'."""
    return self.config.hidden_dim

  @property
  def direction_dim(self) -> int:
    """p, the width of a state of one direction."""
    return self.config.projection_dim

  @property
  def position_rows(self) -> dict[str, range]:
    """No position has a learned vector, so a row may have any length."""
    return {}

  def setup(self) -> None:
    c = self.config
    self.words = Words(c, self.execution.dtype)
    kept = dataclasses.replace(self.execution, remat='none')  # blocks compute windows of their recurrence again
    self.layers = stack(Block, num_layers=c.num_layers, execution=kept)(c, self.execution)
    self.output_dropout = Dropout(c.dropout)

  def __call__(
    self, characters: Array, *, segment_ids: Array, type_ids: Array | None = None, train: bool = False
  ) -> dict[str, Any]:
    """Reads texts in both directions, each as a sentence of its own.

    Args:
      characters: int[b, l, 50], of each word, without words that begin or end a sentence.
      segment_ids: int[b, l], the texts of a row; 0 is padding.
      type_ids: ignored; the scheme has no sentence types.
      train: drops out.

    Returns:
      'hidden' [b, l, d], the last layer, forward states first; 'layers' [n+1, b, l, d], first the vector of the word
      twice; 'carry' the states behind the rows, in either direction.
    """
    del type_ids
    x = self.words(characters)  # [b, l, 50] -> [b, l, p]
    fresh = jnp.stack([begins(segment_ids), begins(segment_ids[:, ::-1])], axis=-1)  # [b, l, 2]
    first = jnp.stack([x, x], axis=2)
    states, carry = self._read(both_ways(first), self.init_carry(x.shape[0]), fresh, train)
    layers = jnp.concatenate([first[None], jax.vmap(both_ways)(states)])  # [n+1, b, l, 2, p]
    layers = layers.reshape(*layers.shape[:3], self.hidden_dim)
    return {'hidden': self.output_dropout(layers[-1], train=train), 'layers': layers, 'carry': carry}

  def directions(self, layers: Array, segment_ids: Array) -> tuple[Array, Array]:
    """States of each layer read forward and backward, which have not seen each other in any layer.

    Args:
      layers: [n+1, b, l, d], of a call.
      segment_ids: int[b, l].

    Returns:
      Forward and backward states, [n, b, l, p] both.
    """
    del segment_ids
    return apart(layers)

  def with_dropout(self, rate: float) -> 'Elmo':
    """The same trunk, with the same names of parameters, under another rate of dropout."""
    return self.clone(config=dataclasses.replace(self.config, dropout=rate))

  def stream(self, forward: Array, backward: Array, *, carry: PyTree, train: bool = False) -> tuple[Array, PyTree]:
    """Reads a window of text that goes on from row to row, as a forward and a backward language model.

    Args:
      forward: int[b, l, 50], words in their order, with those that begin a sentence.
      backward: int[b, l, 50], words from the last to the first, with those that end a sentence.
      carry: of `init_carry` or of the call before.
      train: drops out.

    Returns:
      The last layer's states behind each word, [b, l, 2, p], each direction in the order in which it was read, and the
      next carry.
    """
    x = jnp.stack([self.words(forward), self.words(backward)], axis=2)
    states, after = self._read(x, carry, jnp.zeros(x.shape[:3], bool), train)
    return self.output_dropout(states[-1], train=train), after

  def _read(self, x: Array, carry: PyTree, fresh: Array, train: bool) -> tuple[Array, PyTree]:
    """All layers, each direction from its first word to its last: [b, l, 2, p] -> [n, b, l, 2, p] and the carry."""
    boundary = self.words(jnp.asarray([_slots(BEGINS), _slots(ENDS)]))[None, None]  # [1, 1, 2, p]
    state = tuple(jnp.moveaxis(carry[name], 1, 0) for name in ('hidden', 'cell'))  # [b, n, ...] -> [n, b, ...]
    reading = (x, boundary, jnp.zeros((), jnp.int32))
    _, (states, last) = self.layers(reading, Context((state[0], state[1]), fresh), train)
    hidden, cell = (jnp.moveaxis(part, 0, 1).astype(jnp.float32) for part in last)
    return states, {'hidden': hidden, 'cell': cell}

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """The mean of the states of the words of a row: [b, l, d] -> [b, d]; of none, zeros."""
    return mean(hidden, segment_ids)

  def init_carry(self, batch_size: int) -> PyTree:
    """States of zeros: 'hidden' f32[b, n, 2, p] and 'cell' f32[b, n, 2, f]."""
    c = self.config
    shape = (batch_size, c.num_layers, 2)
    return {'hidden': jnp.zeros((*shape, c.projection_dim)), 'cell': jnp.zeros((*shape, c.mlp_dim))}

  def init_all(self) -> None:
    """Uses every parameter once: `trunk.init(key, method='init_all')` makes the parameters of the whole trunk."""
    self(jnp.ones((1, 1, SLOTS), jnp.int32), segment_ids=jnp.ones((1, 1), jnp.int32))


def _slots(word: tuple[int, ...]) -> tuple[int, ...]:
  return word + (PADDING,) * (SLOTS - len(word))


def uniform(limit: float) -> Initializer:
  """U(-limit, limit)."""

  def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    return jax.random.uniform(key, shape, dtype, -limit, limit)

  return init


def make(
  *,
  vocab_size: int,
  variant: str,
  overrides: Mapping[str, Any] | None = None,
  execution: Execution = Execution(),
) -> Elmo:
  """The trunk of a row of `CONFIGS`.

  Args:
    vocab_size: ids of the vocabulary.
    variant: a key of `CONFIGS`.
    overrides: fields of `Config` that differ from the row.
    execution: how to compute the trunk.
  """
  return Elmo(dataclasses.replace(CONFIGS[variant], **(overrides or {})), vocab_size, execution)


# The published rows ---------------------------------------------------------------------------------------------------

CONFIGS: Mapping[str, Config] = MappingProxyType(
  {
    'elmo-small': Config(hidden_dim=256, mlp_dim=1024, highway_layers=1),
    'elmo-medium': Config(hidden_dim=512, mlp_dim=2048, highway_layers=1),
    'elmo-original': Config(),
    'tiny': Config(hidden_dim=64, mlp_dim=128, filters=(8, 16, 32), highway_layers=1),
  }
)

PUBLISHED: Mapping[str, Published] = MappingProxyType(
  {
    'elmo-small': Published(vocab_size=793_471, parameters=13_593_312, paper='13.6M'),
    'elmo-medium': Published(vocab_size=793_471, parameters=28_027_744, paper='28.0M'),
    'elmo-original': Published(
      vocab_size=793_471,
      parameters=93_600_864,
      paper='93.6M',
      note='the same for the weights of 5.5 billion words; the softmax belongs to the objective',
    ),
  }
)

PAPER = Paper(
  year=2018,
  title='Peters et al., ELMo',
  architecture='lstm',
  objective_family='autoregressive',
  adapters=('scalar_mix',),
)
