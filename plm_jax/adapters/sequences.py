"""What adapters share that read several texts per row: options to choose from, a pair in both orders."""

from collections.abc import Mapping, Sequence
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.adapters import texts
from plm_jax.adapters.texts import Pool
from plm_jax.core.types import Array
from plm_jax.layers.dropout import Dropout

Join = Literal['each', 'sum']


class Model(nn.Module):
  """Trunk, its pooling, dropout and a head, over k texts per row.

  Attributes:
    trunk: any trunk with `pool`.
    join: 'each' text has outputs of its own, or those of a row are for the 'sum' of its vectors.
    outputs: columns of the last layer.
    dropout: rate before each layer of the head.
    hidden: width of a layer of the head before the last one; 0 leaves it out.
    activation: behind that layer, a name of `layers.mlp.ACTIVATIONS`.
    frozen: the trunk runs without dropout and gets no gradient.
    pool: 'trunk' pools as the trunk's paper does, 'mean' takes the mean of the real tokens, 'concat' the last of them,
      the largest values and the mean side by side (ULMFiT).
    init_std: of the head's kernels.
    same_dropout: the texts of a row lose the same components of their vectors, of a head of one layer.
  """

  trunk: nn.Module
  join: Join
  outputs: int
  dropout: float
  hidden: int
  activation: str
  frozen: bool
  pool: Pool
  init_std: float
  same_dropout: bool = False

  def setup(self) -> None:
    self.head = texts.make_head(
      self.outputs, hidden=self.hidden, activation=self.activation, dropout=self.dropout, init_std=self.init_std
    )
    self.head_dropout = Dropout(self.dropout)

  def __call__(self, train: bool = False, **inputs: Array) -> tuple[Array, Array]:
    """(outputs f32[b, k, c], or f32[b, c] of the sums; the states they came from [b k, l, d])."""
    folded = {name: fold(value) for name, value in inputs.items()}
    hidden = self.trunk(**folded, train=train and not self.frozen)['hidden']
    vectors = texts.pooled(self.trunk, hidden, texts.segments_of(folded), pool=self.pool, frozen=self.frozen)
    shape = texts.segments_of(inputs).shape[:2]
    vectors = vectors.astype(jnp.float32).reshape(*shape, -1)  # [b k, d] -> [b, k, d]
    if self.join == 'sum':
      vectors = vectors.sum(axis=1)
    if self.hidden:
      return self.head(vectors, train=train), hidden
    if self.same_dropout:
      vectors = vectors * self.head_dropout(jnp.ones_like(vectors[:, :1]), train=train)  # [b, 1, d]
    else:
      vectors = self.head_dropout(vectors, train=train)
    return self.head(vectors), hidden

  def attend(self, features: Array, train: bool = False) -> Array:
    """Vocabulary logits f32[..., v], for the auxiliary language model."""
    del train
    return self.trunk.attend(features)


def read(batch: Mapping[str, Array], inputs: Sequence[str]) -> dict[str, Array]:
  """The inputs of a trunk for rows of k texts, [b, k, l] each.

  Args:
    batch: with tokens and segment_ids int[b, k, l], and type_ids and characters where they are of this shape too.
    inputs: those of `texts.inputs_of`.
  """
  shape = batch['tokens'].shape
  names = [name for name in texts.OF_TEXT if name in batch and batch[name].shape[:3] == shape]
  read = texts.read_text({name: fold(batch[name]) for name in names}, inputs)
  return {name: value.reshape(*shape, *value.shape[2:]) for name, value in read.items()}


def fold(values: Array) -> Array:
  """[b, k, ...] -> [b k, ...]."""
  return values.reshape(-1, *values.shape[2:])
