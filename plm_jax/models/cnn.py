"""A convolutional encoder, the first of the three kinds of encoders in Qiu et al. 2020, §2.2 (after Kim 2014).

A token's state depends on its neighbours only: after n layers of width w on n (w - 1) / 2 tokens on either side. In a
Transformer it depends on the whole sequence after one layer. The kernels encode positions, so there are no position
vectors and no maximum length. A block is x + down(activation(convolution(norm x))), with a norm after the last. States
are pooled by maximum (Kim 2014, §2).

No pretrained model of this form was published. 'cnn-base' has the size of BERT-base, for a comparison of the two.
"""

import dataclasses
import math
from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.keywords import Count, Depth, Epsilon, PartRate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Execution, Paper, Published
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, normal
from plm_jax.layers.mlp import ACTIVATIONS, Activation
from plm_jax.layers.norm import LayerNorm
from plm_jax.models.base import Neighbours, check_choices, maker


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a convolutional encoder."""

  hidden_dim: Count = 768  # d, width between blocks
  num_layers: Depth = 12  # n
  mlp_dim: Count = 2304  # f, number of filters of the convolution
  kernel_width: Count = 3  # w, number of tokens of a filter, odd, because it is centred on its token
  activation: Activation = 'relu'  # a name of `layers.mlp.ACTIVATIONS`
  norm_epsilon: Epsilon = 1e-12  # epsilon of every LayerNorm
  dropout: PartRate = 0.1  # rate after embeddings and after each block
  # standard deviation of the token table's initial normal; kernels are initialised to N(0, 1 / sqrt(inputs))
  init_std: Std = 0.02
  vocab_multiple: Count = 1  # pads the token table to a multiple of this many rows

  def __post_init__(self):
    check_choices(self)
    if self.kernel_width < 1 or self.kernel_width % 2 == 0:
      raise ValueError(f'model.overrides.kernel_width={self.kernel_width} must be odd, such as 3 or 5')


class Block(nn.Module):
  """x + dropout(down(activation(convolution(norm x)))); a filter never reads another document."""

  config: Config
  execution: Execution

  @nn.compact
  def __call__(self, x: Array, segment_ids: Array, train: bool) -> tuple[Array, Array]:
    c, dtype = self.config, self.execution.dtype
    y = LayerNorm(c.norm_epsilon, dtype, name='norm')(x)
    taps = neighbours(y, segment_ids, width=c.kernel_width)  # [b, l, w, d]
    init = normal(1 / math.sqrt(c.kernel_width * c.hidden_dim))
    up = Dense(c.mlp_dim, axes=(None, 'embed', 'mlp'), num_inputs=2, kernel_init=init, dtype=dtype, name='up')
    init = normal(1 / math.sqrt(c.mlp_dim))
    down = Dense(c.hidden_dim, axes=('mlp', 'embed'), kernel_init=init, dtype=dtype, name='down')
    y = down(ACTIVATIONS[c.activation](up(taps)))  # [b, l, w, d] -> [b, l, f] -> [b, l, d]
    x = constrain(x + Dropout(c.dropout)(y, train=train), 'batch', 'length', 'embed')
    return x, x


def neighbours(x: Array, segment_ids: Array, *, width: int) -> Array:
  """Gather states around each token, [b, l, w, d]; others are zero."""
  # segments 1 1 2, states a b c, width 3:   at a  0 a b   at b  a b 0   at c  0 c 0
  reach, length = width // 2, x.shape[1]
  around = jnp.pad(x, ((0, 0), (reach, reach), (0, 0)))
  segments = jnp.pad(segment_ids, ((0, 0), (reach, reach)))
  same = [segments[:, start : start + length, None] == segment_ids[..., None] for start in range(width)]
  taps = [jnp.where(is_same, around[:, start : start + length], 0) for start, is_same in enumerate(same)]
  return jnp.stack(taps, axis=2)


class Cnn(Neighbours):
  """The encoder without a pre-training head."""

  config: Config

  NAME = 'cnn'
  BLOCK = Block


CONFIGS: Mapping[str, Config] = {'cnn-base': Config(), 'tiny': Config(hidden_dim=128, num_layers=2, mlp_dim=384)}
make = maker(Cnn, CONFIGS)

PUBLISHED: Mapping[str, Published] = {
  'cnn-base': Published(30_522, 108_432_384, 'none', note='not from a paper: the size and vocabulary of bert-base')
}

PAPER = Paper(
  year=2014,
  title='Kim, Convolutional Neural Networks for Sentence Classification',
  architecture='cnn',
  objective_family='denoising',
  adapters=('classify', 'tag'),
)
