"""A bidirectional LSTM encoder, the sequential one of the three kinds in Qiu et al. 2020, §2.2.

One LSTM reads a document from left to right, another from right to left (Graves and Schmidhuber 2005). After one layer
a token's state depends on the whole document; the number of steps between two tokens is their distance. The recurrence
encodes positions, so there are no position vectors and no maximum length. A block is
x + down([forward; backward](norm x)), with a norm after the last. States are pooled by maximum (Conneau et al. 2017,
§3.2.3).

`layers/lstm.py` has the cell. No pretrained model of this form was published. 'lstm-base' has the size of BERT-base,
for a comparison of the two.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from plm_jax.core.keywords import Count, Depth, Epsilon, PartRate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Execution, Paper, Published, PyTree
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, normal
from plm_jax.layers.lstm import Lstm
from plm_jax.layers.mlp import Activation
from plm_jax.layers.norm import LayerNorm
from plm_jax.models.base import Neighbours, check_choices, maker


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of an LSTM encoder."""

  hidden_dim: Count = 768  # d, width between blocks
  num_layers: Depth = 12  # n
  mlp_dim: Count = 576  # f, state width of each direction
  # activation of a pre-training head, a name of `layers.mlp.ACTIVATIONS`; the cell has sigmoid and tanh
  activation: Activation = 'gelu_erf'
  norm_epsilon: Epsilon = 1e-12  # epsilon of every LayerNorm
  dropout: PartRate = 0.1  # rate after embeddings and after each block; there is no dropout inside the recurrence
  # standard deviation of the token table's initial normal; kernels are initialised to N(0, 1 / sqrt(inputs))
  init_std: Std = 0.02
  vocab_multiple: Count = 1  # pads the token table to a multiple of this many rows

  def __post_init__(self):
    check_choices(self)


class Block(nn.Module):
  """x + dropout(down([forward; backward](norm x))); a state never enters another document."""

  config: Config
  execution: Execution

  @nn.compact
  def __call__(self, x: Array, segment_ids: Array, train: bool) -> tuple[Array, Array]:
    c, dtype = self.config, self.execution.dtype
    states = Lstm(c.mlp_dim, dtype, name='lstm')(LayerNorm(c.norm_epsilon, dtype, name='norm')(x), segment_ids)
    init = normal(1 / math.sqrt(2 * c.mlp_dim))
    down = Dense(c.hidden_dim, axes=(None, 'mlp', 'embed'), num_inputs=2, kernel_init=init, dtype=dtype, name='down')
    x = x + Dropout(c.dropout)(down(states), train=train)  # [b, l, 2, f] -> [b, l, d]
    x = constrain(x, 'batch', 'length', 'embed')
    return x, x


class LstmEncoder(Neighbours):
  """The encoder without a pre-training head."""

  config: Config

  NAME = 'lstm'
  BLOCK = Block

  def directions(self, layers: Array, segment_ids: Array) -> tuple[Array, Array]:
    """Compute forward and backward states [n, b, l, f], before `down`.

    They are recomputed from the inputs of the layers, `layers` [n+1, b, l, d].
    """
    c, dtype = self.config, self.execution.dtype

    def states_of(own: PyTree, x: Array) -> Any:
      y: Any = LayerNorm(c.norm_epsilon, dtype, parent=None).apply({'params': own['norm']}, x)
      return Lstm(c.mlp_dim, dtype, parent=None).apply({'params': own['lstm']}, y, segment_ids)

    states = jax.vmap(states_of)(nn.unbox(self.layers.variables['params']), layers[:-1])  # [n, b, l, 2, f]
    return states[..., 0, :], states[..., 1, :]


CONFIGS: Mapping[str, Config] = {'lstm-base': Config(), 'tiny': Config(hidden_dim=128, num_layers=2, mlp_dim=96)}
make = maker(LstmEncoder, CONFIGS)

PUBLISHED: Mapping[str, Published] = {
  'lstm-base': Published(30_522, 108_460_032, 'none', note='not from a paper: the size and vocabulary of bert-base')
}

PAPER = Paper(
  year=2005,
  title='Graves and Schmidhuber, Framewise Phoneme Classification with Bidirectional LSTM',
  architecture='lstm',
  objective_family='denoising',
  adapters=('classify', 'tag'),
)
