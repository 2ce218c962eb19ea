"""Parameters of LSTM layers in the form of cuDNN and torch: two bias vectors per gate, one initializer for all.

`layers/recurrence.py` has the recurrence. The second bias does not change the function. It changes the number of
parameters and, with the same learning rate, how fast a bias moves.
"""

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.layers.linear import Initializer, product


class Gates(nn.Module):
  """W x + b + b' of c parallel LSTM layers, each with its own weights, and their recurrent weights."""

  inputs: int  # width of x
  features: int  # f, width of each state
  leaf_init: Initializer  # initializer of all parameters
  layers: int = 1  # c; 2 for both directions of one layer
  dtype: str = 'float32'  # of products; parameters stay float32

  def setup(self) -> None:
    def leaf(name: str, axes: tuple[str | None, ...], *shape: int) -> Array:
      return self.param(name, nn.with_logical_partitioning(self.leaf_init, axes), shape, jnp.float32).astype(self.dtype)

    c, f = self.layers, self.features
    self.kernel = leaf('kernel', ('embed', None, None, 'mlp'), self.inputs, c, 4, f)
    self.recurrent = leaf('recurrent', (None, None, None, 'mlp'), c, f, 4, f)
    self.bias = leaf('bias', (None, None, 'mlp'), c, 4, f)
    self.recurrent_bias = leaf('recurrent_bias', (None, None, 'mlp'), c, 4, f)

  def __call__(self, x: Array) -> Array:
    """Compute input, forget, cell, output: [..., inputs] -> [..., c, 4, f]."""
    gates = product(x.astype(self.dtype), self.kernel.reshape(self.inputs, -1), straight=True)
    return gates.reshape(*x.shape[:-1], *self.bias.shape) + self.bias + self.recurrent_bias

  def of_each(self, x: Array) -> Array:
    """Compute gates of separate inputs [..., c, inputs]: [..., c, 4, f]."""
    return jnp.einsum('...cd,dcgf->...cgf', x.astype(self.dtype), self.kernel) + self.bias + self.recurrent_bias
