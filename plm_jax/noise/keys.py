"""Keys of the noise: one per row of a batch, independent of the number of devices and hosts."""

from typing import Literal

import jax
import jax.numpy as jnp

from plm_jax.core.errors import one_of
from plm_jax.core.types import Array, Batch

Every = Literal['step', 'epoch']


def row_keys(root: Array, batch: Batch, *, every: Every, copies: int = 10) -> Array:
  """Compute the noise key of each row: key[b].

  Args:
    root: `noise_root`; a threefry key, since the other generators give other numbers under vmap.
    batch: with `row_id` and with `step` or `epoch`, int32[b] each; `step` may be a scalar. `row_high`, if present, is
      folded in where it is not 0, so that rows below 2**31 keep their keys.
    every: 'step' samples new noise each time a row is seen (dynamic masking, RoBERTa §4.1). 'epoch' repeats one of
      `copies` corruptions of each row (static masking, as BERT's data script writes them).
    copies: corruptions of a row under 'epoch'; BERT's data held 10.

  Raises:
    ValueError: an unknown `every`.
  """
  one_of('every', every, Every)
  rows = batch['row_id']
  if every == 'step':
    count = jnp.broadcast_to(jnp.asarray(batch['step']), rows.shape)
  else:
    count = batch['epoch'] % copies
  fold = jax.vmap(jax.random.fold_in)
  keys = jax.vmap(lambda row: jax.random.fold_in(root, row))(rows)
  if (high := batch.get('row_high')) is not None:
    keys = jnp.where(high > 0, fold(keys, high), keys)
  return fold(keys, count)


def noise_root(key: Array) -> Array:
  """Derive the root of `row_keys` from the key of a run."""
  return jax.random.fold_in(key, 0)


def with_step(batch: Batch, step: Array | int) -> Batch:
  """Add the step, int32[], which dynamic noise folds in."""
  return {**batch, 'step': jnp.asarray(step, jnp.int32)}
