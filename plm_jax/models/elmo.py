"""ELMo: LSTM layers in two directions over words that are encoded by their characters.

Peters et al. 2018, §3 (arXiv 1802.05365); allenai/bilm-tf, bilm/training.py.

The vector of a word is computed by max-pooled filters over its characters, highway layers and a projection. One LSTM
reads the words from left to right, another from right to left; they share only these vectors. The state of a cell is
clipped and projected, and the projection is clipped (Sak et al. 2014; Jozefowicz et al. 2016). From the second layer on
the input of a layer is added to its output.

Each text is read as a separate sentence. The forward LSTM starts after the begin-of-sentence word, the backward one
after the end-of-sentence word; the result has no vectors for these words. The released code carries its state from one
batch to the next also in inference, so its vectors depend on previous batches. Here only training does (`stream`).

The 2 n + 1 vectors of a word (Peters et al. 2018, eq. 1) are x = layers[0, ..., :p] and the states of each layer in
both directions, which `directions` splits; 'layers' has the n + 1 that are mixed.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.batch import SLOTS
from plm_jax.core.keywords import Count, Depth, NonNegativeInt, PartRate
from plm_jax.core.sharding import constrain
from plm_jax.core.trunk import AttentionKind
from plm_jax.core.types import Array, Execution, Paper, Published, PyTree
from plm_jax.layers.characters import CHARACTERS, largest_of_filters
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, Embed, Initializer, normal
from plm_jax.layers.lstm import State, apart, begins, both_ways, forget_one, recur_over
from plm_jax.layers.pooling import mean
from plm_jax.layers.stack import stack
from plm_jax.models.base import maker

Clip = Annotated[float, '0 < x']

# character ids of `text/chars.py`: begin-of-sentence and end-of-sentence word, unused slot
BEGINS, ENDS, PADDING = (259, 257, 260), (259, 258, 260), 261


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of an ELMo."""

  hidden_dim: Count = 1024  # d, width of a layer; each direction's projection p is half of it
  num_layers: Depth = 2  # n
  mlp_dim: Count = 4096  # f, cell width of each direction
  filters: tuple[Count, ...] = (32, 32, 64, 128, 256, 512, 1024)  # numbers of filters of width 1, 2, and so on
  char_dim: Count = 16  # width of character vectors
  highway_layers: NonNegativeInt = 2  # number of highway layers between filters and projection
  cell_clip: Clip = 3.0  # largest absolute value of a cell
  projection_clip: Clip = 3.0  # largest absolute value of a projected state
  dropout: PartRate = 0.1  # rate on the input of each layer and on the output of the last

  def __post_init__(self):
    if self.hidden_dim % 2:
      raise ValueError(f'model.overrides.hidden_dim={self.hidden_dim} must be even, for two directions')
    if not 1 <= len(self.filters) <= SLOTS:
      raise ValueError(f'model.overrides.filters={self.filters}: give 1 to {SLOTS} numbers, one for each width')

  @property
  def projection_dim(self) -> int:
    """Return p, the width of one direction."""
    return self.hidden_dim // 2


class Words(nn.Module):
  """Word vectors from characters: int[..., 50] -> [..., p] (Kim et al. 2015, §2.2 and §2.3)."""

  config: Config
  dtype: str

  @nn.compact
  def __call__(self, characters: Array) -> Array:
    c, dtype = self.config, self.dtype
    embed = Embed(CHARACTERS, c.char_dim, (None, 'embed_out'), uniform(1.0), dtype=dtype, name='character_embed')
    x = embed(characters.reshape(-1, SLOTS))  # [..., 50] -> [w, 50, e]
    x = nn.relu(largest_of_filters(x, c.filters, kernel_init=uniform(0.05), dtype=dtype))
    for index in range(c.highway_layers):
      x = Highway(dtype, name=f'highway_{index}')(x)
    init = normal(1 / math.sqrt(x.shape[-1]))
    x = Dense(c.projection_dim, axes=('mlp', 'embed'), kernel_init=init, dtype=dtype, name='projection')(x)
    return x.reshape(*characters.shape[:-1], c.projection_dim)


class Highway(nn.Module):
  """g relu(W x + b) + (1 - g) x with g = sigmoid(V x + c) and initial c = -2 (Srivastava et al. 2015)."""

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
  """Additional inputs of every layer."""

  state: State  # h [n, b, 2, p] and c f32[n, b, 2, f], before the first word
  fresh: Array  # bool[b, l, 2], first words of texts; the state before them is that after the boundary word


Reading = tuple[Array, Array, Array]  # words [b, l, 2, p], boundary words [1, 1, 2, p], index of the layer int32[]


class Block(nn.Module):
  """A layer in both directions, each in its own order: LSTM(x), and above the first layer x + LSTM(x).

  It first reads the boundary word from a state of zeros. The resulting state is that at the start of each text.
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
      """Read both directions [b, l, 2, p]; also return the final state."""
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
      return jnp.where(layer > 0, x, 0) + out, last

    x, boundary, layer = reading
    x = Dropout(c.dropout)(x, train=train)
    # 1. boundary word, from zeros
    zeros = (jnp.zeros((1, 2, width), x.dtype), jnp.zeros((1, 2, cells), jnp.float32))
    boundary, begin = read(boundary, zeros, jnp.zeros((1, 1, 2), bool), None)
    # 2. texts, each from the state after it
    h, cell = (part[layer] for part in context.state)
    x, state = read(x, (h.astype(x.dtype), cell), context.fresh, (begin[0][0], begin[1][0]))
    x = constrain(x, 'batch', 'length', None, 'embed')
    return (x, boundary, layer + 1), (x, state)


class Elmo(nn.Module):
  """The two language models without their softmax."""

  config: Config  # sizes
  vocab_size: int  # number of ids that the language model predicts; it reads any word
  execution: Execution = Execution()  # how to compute the trunk

  NAME = 'elmo'
  INPUTS = ('characters', 'segment_ids', 'type_ids')
  ATTENTION: AttentionKind = 'bidirectional'
  PREDICTS_NEXT = False

  @property
  def hidden_dim(self) -> int:
    """Return d, the width of 'hidden'."""
    return self.config.hidden_dim

  @property
  def position_rows(self) -> dict[str, range]:
    """Return no rows: without learned positions any length is valid."""
    return {}

  def setup(self) -> None:
    c = self.config
    self.words = Words(c, self.execution.dtype)
    plain = dataclasses.replace(self.execution, remat='none')  # blocks rematerialise their recurrence themselves
    self.layers = stack(Block, num_layers=c.num_layers, execution=plain)(c, self.execution)
    self.output_dropout = Dropout(c.dropout)

  def __call__(
    self, characters: Array, *, segment_ids: Array, type_ids: Array | None = None, train: bool = False
  ) -> dict[str, Any]:
    """Read texts in both directions, each as a separate sentence.

    Args:
      characters: int[b, l, 50], characters of each word, without begin and end of sentence.
      segment_ids: int[b, l], ids of the texts; 0 is padding.

    Returns:
      'hidden' [b, l, d], the last layer, forward states first; 'layers' [n+1, b, l, d], first the word vector twice;
      'carry', the final states of both directions.
    """
    x = self.words(characters)  # [b, l, 50] -> [b, l, p]
    fresh = jnp.stack([begins(segment_ids), begins(segment_ids[:, ::-1])], axis=-1)  # [b, l, 2]
    first = jnp.stack([x, x], axis=2)
    states, carry = self._read(both_ways(first), self.init_carry(x.shape[0]), fresh, train)
    layers = jnp.concatenate([first[None], jax.vmap(both_ways)(states)])  # [n+1, b, l, 2, p]
    layers = layers.reshape(*layers.shape[:3], self.hidden_dim)
    return {'hidden': self.output_dropout(layers[-1], train=train), 'layers': layers, 'carry': carry}

  def directions(self, layers: Array, segment_ids: Array) -> tuple[Array, Array]:
    """Split the states of each layer into forward and backward."""
    return apart(layers)  # [n+1, b, l, d] -> two of [n, b, l, p]

  def with_dropout(self, rate: float) -> 'Elmo':
    """Return this trunk with another dropout rate and the same parameters."""
    return self.clone(config=dataclasses.replace(self.config, dropout=rate))

  def stream(self, forward: Array, backward: Array, *, carry: PyTree, train: bool = False) -> tuple[Array, PyTree]:
    """Read a window of continuous text as two language models, see `trunk.Streams`.

    `forward` has begin of sentence, `backward` end of sentence.
    """
    x = jnp.stack([self.words(forward), self.words(backward)], axis=2)
    states, after = self._read(x, carry, jnp.zeros(x.shape[:3], bool), train)
    return self.output_dropout(states[-1], train=train), after

  def _read(self, x: Array, carry: PyTree, fresh: Array, train: bool) -> tuple[Array, PyTree]:
    """Run all layers; return states [n, b, l, 2, p] and carry."""
    boundary = self.words(jnp.asarray([_slots(BEGINS), _slots(ENDS)]))[None, None]  # [1, 1, 2, p]
    state = tuple(jnp.moveaxis(carry[name], 1, 0) for name in ('hidden', 'cell'))  # [b, n, ...] -> [n, b, ...]
    reading = (x, boundary, jnp.zeros((), jnp.int32))
    _, (states, last) = self.layers(reading, Context(state=(state[0], state[1]), fresh=fresh), train)
    hidden, cell = (jnp.moveaxis(part, 0, 1).astype(jnp.float32) for part in last)
    return states, {'hidden': hidden, 'cell': cell}

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Average word states: [b, l, d] -> [b, d]; zeros without words."""
    return mean(hidden, segment_ids)

  def init_carry(self, batch_size: int) -> PyTree:
    """Create zeros: 'hidden' f32[b, n, 2, p], 'cell' f32[b, n, 2, f]."""
    c = self.config
    shape = (batch_size, c.num_layers, 2)
    return {'hidden': jnp.zeros((*shape, c.projection_dim)), 'cell': jnp.zeros((*shape, c.mlp_dim))}

  def init_all(self) -> None:
    """Use every parameter once, for `trunk.init(key, method='init_all')`."""
    self(jnp.ones((1, 1, SLOTS), jnp.int32), segment_ids=jnp.ones((1, 1), jnp.int32))


def _slots(word: tuple[int, ...]) -> tuple[int, ...]:
  return word + (PADDING,) * (SLOTS - len(word))


def uniform(limit: float) -> Initializer:
  """Build an initializer U(-limit, limit)."""

  def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    return jax.random.uniform(key, shape, dtype, -limit, limit)

  return init


CONFIGS: Mapping[str, Config] = {
  'elmo-small': Config(hidden_dim=256, mlp_dim=1024, highway_layers=1),
  'elmo-medium': Config(hidden_dim=512, mlp_dim=2048, highway_layers=1),
  'elmo-original': Config(),
  'tiny': Config(hidden_dim=64, mlp_dim=128, filters=(8, 16, 32), highway_layers=1),
}
make = maker(Elmo, CONFIGS)

PUBLISHED: Mapping[str, Published] = {
  'elmo-small': Published(793_471, 13_593_312, '13.6M'),
  'elmo-medium': Published(793_471, 28_027_744, '28.0M'),
  'elmo-original': Published(
    793_471, 93_600_864, '93.6M', note='also for the weights of 5.5 billion words; the softmax belongs to the objective'
  ),
}

PAPER = Paper(
  year=2018,
  title='Peters et al., ELMo',
  architecture='lstm',
  objective_family='autoregressive',
  adapters=('scalar_mix',),
  transfer='features',
)
