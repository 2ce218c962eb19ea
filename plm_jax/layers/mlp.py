"""Activations and feed-forward blocks, plain and gated."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, Initializer
from plm_jax.layers.norm import BatchNorm, LayerNorm
from plm_jax.layers.stack import recomputed

Norms = bool | Literal['batch']  # before the layers of a head: none, layer norms or batch norms
_EPSILON = 1e-5  # of the norms of a head


def gelu_erf(x: Array) -> Array:
  """Compute x Phi(x), the exact form (Hendrycks & Gimpel 2016).

  It is the mean of x if x is kept with probability Phi(x) and else dropped.
  """
  return 0.5 * x * (1.0 + jax.lax.erf(x * jnp.asarray(math.sqrt(0.5), x.dtype)))


def gelu_tanh(x: Array) -> Array:
  """Compute 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

  It is within 4.73e-4 of the exact form. Texts that print sqrt(pi/2), or end the tanh before the cube, misprint it.
  """
  inner = jnp.asarray(math.sqrt(2 / math.pi), x.dtype) * (x + 0.044715 * x * x * x)
  return 0.5 * x * (1.0 + jnp.tanh(inner))


Activation = Literal[
  'gelu_erf', 'gelu_tanh', 'relu', 'silu', 'tanh', 'gelu_sigmoid', 'relu_squared', 'relu6', 'leaky_relu', 'mish',
  'hard_swish', 'sigmoid', 'linear',
]  # fmt: skip

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
  'gelu_erf': gelu_erf,
  'gelu_tanh': gelu_tanh,
  'relu': jax.nn.relu,
  'silu': jax.nn.silu,
  'tanh': jnp.tanh,
  'gelu_sigmoid': lambda x: x * jax.nn.sigmoid(1.702 * x),  # Hendrycks & Gimpel 2016, §2
  'relu_squared': lambda x: jnp.square(jax.nn.relu(x)),  # So et al. 2021, Primer
  'relu6': jax.nn.relu6,
  'leaky_relu': jax.nn.leaky_relu,  # slope .01
  'mish': jax.nn.mish,  # Misra 2019
  'hard_swish': jax.nn.hard_swish,  # Howard et al. 2019
  'sigmoid': jax.nn.sigmoid,
  'linear': lambda x: x,
}

# activations whose gradient needs only the output, or the signs of the input
_SHORT = ('relu', 'leaky_relu', 'tanh', 'sigmoid', 'linear')


def _activated(name: str, x: Array) -> Array:
  """Apply an activation, which backward passes compute again (`recomputed`)."""
  return (ACTIVATIONS[name] if name in _SHORT else recomputed(ACTIVATIONS[name], cpu=True))(x)


class Mlp(nn.Module):
  """The plain feed-forward block: up, activation, down."""

  mlp_dim: int  # width between the two products
  activation: str  # a name of `ACTIVATIONS`
  up_init: Initializer  # initializer of the first kernel
  down_init: Initializer  # initializer of the second kernel
  use_bias: bool = True  # of both
  dropout: float = 0.0  # rate between the two products
  dtype: str = 'float32'  # of the products

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False) -> Array:
    up = Dense(
      self.mlp_dim, axes=('embed', 'mlp'), kernel_init=self.up_init, use_bias=self.use_bias, dtype=self.dtype, name='up'
    )
    down = Dense(
      x.shape[-1],
      axes=('mlp', 'embed'),
      kernel_init=self.down_init,
      use_bias=self.use_bias,
      dtype=self.dtype,
      name='down',
    )
    # [b, l, d] -> [b, l, f] -> [b, l, d]
    y = _activated(self.activation, up(x))
    return down(Dropout(self.dropout)(y, train=train))


class GatedMlp(nn.Module):
  """down(activation(gate(x)) * up(x)) (Shazeer 2020): GEGLU with 'gelu_tanh', SwiGLU with 'silu'."""

  mlp_dim: int  # width between the products
  activation: str  # of the gate, a name of `ACTIVATIONS`
  up_init: Initializer  # initializer of the gate kernel and the up kernel
  down_init: Initializer  # initializer of the down kernel
  use_bias: bool = False  # of all three; the paper has none
  dropout: float = 0.0  # rate before the down product
  dtype: str = 'float32'  # of the products
  norm_epsilon: float | None = None  # of a LayerNorm without parameters before that; None for no norm

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False) -> Array:
    def dense(features: int, axes: tuple[str, str], init: Initializer, name: str) -> Dense:
      return Dense(features, axes=axes, kernel_init=init, use_bias=self.use_bias, dtype=self.dtype, name=name)

    gate = dense(self.mlp_dim, ('embed', 'mlp'), self.up_init, 'gate')
    up = dense(self.mlp_dim, ('embed', 'mlp'), self.up_init, 'up')
    down = dense(x.shape[-1], ('mlp', 'embed'), self.down_init, 'down')
    # [b, l, d] -> [b, l, f] -> [b, l, d]
    y = _activated(self.activation, gate(x)) * up(x)
    if self.norm_epsilon is not None:
      y = LayerNorm(self.norm_epsilon, self.dtype, use_bias=False, use_scale=False)(y)
    return down(Dropout(self.dropout)(y, train=train))


class PredictionHead(nn.Module):
  """The classification head of BART and ELECTRA: linear, activation, linear, with dropout before each product.

  With norms='batch' it is the head of ULMFiT (Howard and Ruder 2018, §3.3).
  """

  hidden: int  # width between the two products
  outputs: int  # columns of the last product
  activation: str  # a name of `ACTIVATIONS`
  dropout: float  # rate before each product
  kernel_init: Initializer  # initializer of both kernels
  norms: Norms = False  # True puts a LayerNorm before each dropout, 'batch' a batch norm
  input_dropout: float | None = None  # rate before the first product; None for `dropout`

  @nn.compact
  def __call__(self, x: Array, *, train: bool = False, counts: Array | None = None) -> Any:
    """Compute the outputs: [..., d] -> f32[..., outputs].

    Args:
      x: [..., d]; [b, d] for batch norms.
      counts: bool[b], rows that batch norms are computed over; None for all.

    Returns:
      The outputs. With batch norms also path -> new value of their averages (`layers.norm.BatchNorm`).
    """
    averages: dict[str, Array] = {}

    def normalised(x: Array, name: str) -> Array:
      if self.norms != 'batch':
        return LayerNorm(_EPSILON, name=name)(x) if self.norms else x
      x, new = BatchNorm(_EPSILON, name=name)(x, counts, train=train)
      averages.update({f'{name}/{key}': value for key, value in new.items()})
      return x

    # 1. layers
    first = self.dropout if self.input_dropout is None else self.input_dropout
    inner = Dense(self.hidden, axes=('embed', 'mlp'), kernel_init=self.kernel_init, name='hidden')
    out = Dense(self.outputs, axes=('mlp', 'classes'), kernel_init=self.kernel_init, name='out')
    # 2. norm, dropout and product, twice: [..., d] -> [..., hidden] -> [..., outputs]
    x = normalised(x, 'input_norm')
    x = ACTIVATIONS[self.activation](inner(Dropout(first)(x, train=train)))
    outputs = out(Dropout(self.dropout)(normalised(x, 'hidden_norm'), train=train))
    return (outputs, averages) if self.norms == 'batch' else outputs
