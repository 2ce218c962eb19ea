"""Activations and the feed-forward block."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.linear import Dense, Initializer
from plm_jax.types import Array


def gelu_erf(x: Array) -> Array:
  """x Phi(x), the exact form (Hendrycks & Gimpel 2016)."""
  return 0.5 * x * (1.0 + jax.lax.erf(x * jnp.asarray(math.sqrt(0.5), x.dtype)))


def gelu_tanh(x: Array) -> Array:
  """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); within 4.73e-4 of the exact form."""
  inner = jnp.asarray(math.sqrt(2 / math.pi), x.dtype) * (x + 0.044715 * x * x * x)
  return 0.5 * x * (1.0 + jnp.tanh(inner))


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
  {'gelu_erf': gelu_erf, 'gelu_tanh': gelu_tanh, 'relu': jax.nn.relu}
)


class Mlp(nn.Module):
  """up, activation, down.

  Attributes:
    mlp_dim: width between the two products.
    activation: a name of `ACTIVATIONS`.
    up_init: initializer of the first kernel.
    down_init: initializer of the second.
    dtype: of the products.
  """

  mlp_dim: int
  activation: str
  up_init: Initializer
  down_init: Initializer
  dtype: str = 'float32'

  @nn.compact
  def __call__(self, x: Array) -> Array:
    y = Dense(self.mlp_dim, axes=('embed', 'mlp'), kernel_init=self.up_init, dtype=self.dtype, name='up')(x)
    y = ACTIVATIONS[self.activation](y)  # [b, l, f]
    return Dense(x.shape[-1], axes=('mlp', 'embed'), kernel_init=self.down_init, dtype=self.dtype, name='down')(y)
