"""What adapters share that read several sequences per row: options to choose from, a pair in both orders."""

from collections.abc import Mapping
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax import errors
from plm_jax.adapters.texts import read_text
from plm_jax.layers import pooling
from plm_jax.layers.linear import Dense, normal
from plm_jax.layers.losses import chunked_cross_entropy, next_tokens
from plm_jax.layers.mlp import ACTIVATIONS, PredictionHead
from plm_jax.types import Array, Attends, Forward

Pool = Literal['trunk', 'mean']
LM_ROWS = 8  # sequences whose vocabulary logits are in memory at a time


def read(batch: Mapping[str, Array], *, two_stacks: bool) -> dict[str, Array]:
  """The inputs of a trunk for rows of k sequences, [b, k, l] each.

  Args:
    batch: with tokens and segment_ids int[b, k, l], and type_ids where they are of this shape too.
    two_stacks: the trunk has an encoder and a decoder.
  """
  shape = batch['tokens'].shape
  names = [name for name in ('tokens', 'segment_ids', 'type_ids') if name in batch and batch[name].shape == shape]
  inputs = read_text({name: fold(batch[name]) for name in names}, two_stacks=two_stacks)
  return {name: value.reshape(shape) for name, value in inputs.items()}


def fold(values: Array) -> Array:
  """[b, k, ...] -> [b k, ...]."""
  return values.reshape(-1, *values.shape[2:])


def states(
  trunk: nn.Module, inputs: Mapping[str, Array], *, pool: Pool, frozen: bool, train: bool
) -> tuple[Array, Array]:
  """Runs a trunk on every sequence.

  Args:
    trunk: any trunk.
    inputs: of `read`, [b, k, l] each.
    pool: 'trunk' pools as the trunk's paper does, 'mean' takes the mean of the real tokens.
    frozen: the trunk runs without dropout and gets no gradient.
    train: drops out.

  Returns:
    what stands for each sequence f32[b, k, d], and all states [b k, l, d].
  """
  folded = {name: fold(value) for name, value in inputs.items()}
  hidden = trunk(**folded, train=train and not frozen)['hidden']
  segment_ids = folded['decoder_segment_ids'] if 'decoder_segment_ids' in folded else folded['segment_ids']
  pooled = (pooling.mean if pool == 'mean' else trunk.pool)(hidden, segment_ids)  # [b k, l, d] -> [b k, d]
  if frozen:
    pooled = jax.lax.stop_gradient(pooled)
  shape = next(iter(inputs.values())).shape[:2]
  return pooled.astype(jnp.float32).reshape(*shape, -1), hidden


def lm_targets(tokens: Array, segment_ids: Array) -> dict[str, Array]:
  """Targets of the auxiliary language model, each [b, k, l].

  A sequence weighs as much as any other of its row, and a token as much as any other of its sequence (released GPT
  code); a sequence without a token weighs nothing.
  """
  shape = tokens.shape
  following, real = (values.reshape(shape) for values in next_tokens(fold(tokens), fold(segment_ids)))
  weights = real / jnp.maximum(real.sum(axis=2, keepdims=True), 1.0)
  present = (segment_ids > 0).any(axis=2).sum(axis=1)  # [b]
  return {'next': following, 'next_weights': weights / jnp.maximum(present, 1)[:, None, None]}


def lm_loss(forward: Forward, hidden: Array, targets: Mapping[str, Array]) -> Array:
  """Nats per token of the texts of each row, f32[b], by `attend` of the model.

  Args:
    forward: the model.
    hidden: [b k, l, d].
    targets: with those of `lm_targets`.
  """
  attend = lambda part: forward(method='attend', features=part)  # noqa: E731
  nats, _ = chunked_cross_entropy(attend, hidden, fold(targets['next']), rows=LM_ROWS)
  return (nats.reshape(targets['next'].shape) * targets['next_weights']).sum(axis=(1, 2))


def make_head(outputs: int, *, hidden: int, activation: str, dropout: float, init_std: float) -> nn.Module:
  """A dense layer, or with a `hidden` width two of them with an activation between and dropout before each."""
  kernel_init = normal(init_std)
  if hidden:
    return PredictionHead(hidden, outputs, activation, dropout, kernel_init)
  return Dense(outputs, axes=('embed', 'classes'), kernel_init=kernel_init)


def check(name: str, trunk: nn.Module, *, activation: str, pool: str, frozen: bool, lm_weight: float) -> None:
  """Raises ValueError where settings of the adapter `name` contradict each other or need another trunk."""
  errors.one_of('adapter.pool', pool, Pool)
  if activation not in ACTIVATIONS:
    raise ValueError(f'adapter.activation={activation!r}; choices are {", ".join(ACTIVATIONS)}')
  if lm_weight and frozen:
    raise ValueError(
      f'adapter.lm_weight={lm_weight} trains the trunk, which adapter.frozen keeps: leave one of them out'
    )
  if lm_weight:
    user, inputs = f'adapter {name!r} with lm_weight', ('tokens', 'segment_ids')
    errors.require(trunk, user=user, attention=('causal',), inputs=inputs, offers=(Attends,))
