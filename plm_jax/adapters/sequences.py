"""Model of adapters that read several texts per example: options of a choice, a pair in both orders."""

from collections.abc import Mapping
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.adapters import texts
from plm_jax.adapters.texts import Pool, PoolWindows
from plm_jax.core.types import Array
from plm_jax.layers.dropout import Dropout

Join = Literal['each', 'sum']


class Model(nn.Module):
  """Trunk, pooling, dropout and a head, over k texts per example.

  Attributes are keywords of `choose.make`, and:
    join: 'each' computes outputs for each text, 'sum' for the sum of the vectors of an example.
    outputs: width of the last layer.
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
  pool_windows: PoolWindows | None = None

  def setup(self) -> None:
    self.head = texts.make_head(
      self.outputs, hidden=self.hidden, activation=self.activation, dropout=self.dropout, init_std=self.init_std
    )
    self.head_dropout = Dropout(self.dropout)

  def __call__(self, train: bool = False, **inputs: Array) -> tuple[Array, Array]:
    """Compute outputs f32[b, k, c], or [b, c] with join='sum', and states."""
    segment_ids = texts.segments_of(inputs)
    shape = segment_ids.shape[:-1]  # b, k, and w with windows
    folded = {name: fold(value, len(shape)) for name, value in inputs.items()}
    hidden = self.trunk(**folded, train=train and not self.frozen)['hidden']
    vectors = texts.pooled(self.trunk, hidden, texts.segments_of(folded), pool=self.pool, frozen=self.frozen)
    vectors = vectors.astype(jnp.float32).reshape(*shape, -1)  # [b k, d] -> [b, k, d]
    if self.join == 'sum':
      vectors = vectors.sum(axis=1)
    if self.hidden:
      outputs = self.head(vectors, train=train)
    elif self.same_dropout:
      outputs = self.head(vectors * self.head_dropout(jnp.ones_like(vectors[:, :1]), train=train))  # [b, 1, d]
    else:
      outputs = self.head(self.head_dropout(vectors, train=train))
    return texts.pooled_outputs(outputs, segment_ids, self.pool_windows) if self.pool_windows else outputs, hidden

  def attend(self, features: Array, train: bool = False) -> Array:
    """Compute vocabulary logits f32[..., v] for the auxiliary language model."""
    return self.trunk.attend(features)


def read(batch: Mapping[str, Array], inputs: texts.Inputs) -> dict[str, Array]:
  """Build trunk inputs [b, k, l], or [b, k, w, l]."""
  shape = batch['tokens'].shape
  names = [name for name in texts.OF_TEXT if name in batch and batch[name].shape[: len(shape)] == shape]
  folded = texts.read_text({name: fold(batch[name], len(shape) - 1) for name in names}, inputs)
  return {name: value.reshape(*shape, *value.shape[2:]) for name, value in folded.items()}


def fold(values: Array, axes: int = 2) -> Array:
  """Merge the first axes: [b, k, ...] -> [b k, ...]."""
  return values.reshape(-1, *values.shape[axes:])
