"""The head that predicts masked tokens from states of an encoder (Devlin et al. 2018, §3.1)."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.layers.linear import Dense, truncated_normal
from plm_jax.layers.mlp import ACTIVATIONS
from plm_jax.layers.norm import LayerNorm


class Head(nn.Module):
  """Dense, activation, norm (BERT's "transform"), then the vocabulary product and this head's output bias."""

  vocab_size: int  # ids of the vocabulary
  activation: str  # a name of `ACTIVATIONS`
  norm_epsilon: float  # of the LayerNorm
  init_std: float  # of the dense kernel
  dtype: str  # of the dense product
  # width of the vocabulary table, if it differs from the width of the states (ALBERT, ELECTRA)
  features: int | None = None
  # of `HeadStyle`; or 'no_scale', two norms without parameters, the first before the dense layer (LTG-BERT)
  form: str = 'bert'

  def setup(self) -> None:
    self.bias = self.param('bias', nn.with_logical_partitioning(nn.initializers.zeros, ('vocab',)), (self.vocab_size,))
    self.norm = LayerNorm(self.norm_epsilon, self.dtype, self.form == 'bert', self.form != 'no_scale')

  @nn.compact
  def __call__(self, features: Array, attend: Callable[[Array], Array]) -> Array:
    """Compute logits f32[..., v] of states [..., d], by the trunk's `attend`."""
    init = truncated_normal(self.init_std)
    width = self.features or features.shape[-1]
    axes, biased = ('embed', 'embed_out'), self.form != 'no_bias'
    dense = Dense(width, axes=axes, kernel_init=init, use_bias=biased, dtype=self.dtype, name='dense')
    if self.form == 'no_scale':
      features = self.norm(features)
    # [..., d] -> [..., e] -> [..., v]
    logits = attend(self.norm(ACTIVATIONS[self.activation](dense(features))))
    padding = logits.shape[-1] - self.vocab_size  # the table is padded by vocab_multiple
    return logits + jnp.pad(self.bias, (0, padding))


def make_head(trunk: nn.Module) -> Head:
  """Build the head for a trunk that `Attends`, in its style."""
  style = trunk.head_style
  return Head(
    vocab_size=trunk.vocab_size,
    activation=style.activation,
    norm_epsilon=style.norm_epsilon,
    init_std=style.init_std,
    dtype=trunk.execution.dtype,
    features=trunk.token_dim,
    form=style.form,
  )
