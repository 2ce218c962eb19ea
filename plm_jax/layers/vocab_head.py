"""The head that predicts masked tokens (Devlin et al. 2018, §3.1), on states of an encoder."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.types import Array, Vocab
from plm_jax.layers.linear import Dense, truncated_normal
from plm_jax.layers.mlp import ACTIVATIONS
from plm_jax.layers.norm import LayerNorm


class Head(nn.Module):
  """Dense, activation, norm; the vocabulary product and this head's output bias follow (BERT's "transform").

  Attributes:
    vocab_size: ids of the vocabulary.
    activation: a name of `ACTIVATIONS`.
    norm_epsilon: of the LayerNorm.
    init_std: of the dense kernel.
    dtype: of the dense product.
    features: width of the vocabulary's table, where it is not that of the states (ALBERT, ELECTRA).
  """

  vocab_size: int
  activation: str
  norm_epsilon: float
  init_std: float
  dtype: str
  features: int | None = None

  def setup(self) -> None:
    self.bias = self.param('bias', nn.with_logical_partitioning(nn.initializers.zeros, ('vocab',)), (self.vocab_size,))
    self.norm = LayerNorm(self.norm_epsilon, self.dtype)

  @nn.compact
  def __call__(self, features: Array, attend: Callable[[Array], Array]) -> Array:
    """Vocabulary logits f32[..., v] of states [..., d], by `attend` of the trunk."""
    init = truncated_normal(self.init_std)
    width = self.features or features.shape[-1]
    dense = Dense(width, axes=('embed', 'embed_out'), kernel_init=init, dtype=self.dtype, name='dense')
    logits = attend(self.norm(ACTIVATIONS[self.activation](dense(features))))  # [..., d] -> [..., e] -> [..., v]
    padding = logits.shape[-1] - self.vocab_size  # of a table padded by vocab_multiple
    return logits + jnp.pad(self.bias, (0, padding))


def make_head(trunk: nn.Module, vocab: Vocab) -> Head:
  """The head for a trunk that `Attends`, built like the trunk."""
  style = trunk.head_style
  return Head(vocab.size, style.activation, style.norm_epsilon, style.init_std, trunk.execution.dtype, trunk.token_dim)
