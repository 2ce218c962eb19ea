"""Keys of the noise: one per row of a batch, independent of the number of devices and hosts."""

from typing import Literal

import jax
import jax.numpy as jnp

from plm_jax.core.errors import one_of
from plm_jax.core.types import Array, Batch

Every = Literal['step', 'epoch']


def row_keys(root: Array, batch: Batch, *, every: Every, copies: int = 10) -> Array:
  """The noise key of each row, key[b].

  Args:
    root: `noise_root`; a threefry key, since the other generators draw other numbers under vmap.
    batch: with `row_id` and with `step` or `epoch`, int32[b] each; `step` may be a scalar.
    every: 'step' draws anew each time a row is seen (dynamic masking, RoBERTa §4.1); 'epoch' repeats one of `copies`
      corruptions of each row (static masking, as BERT's data script writes them).
    copies: corruptions of a row under 'epoch'; BERT's data held 10.

  Raises:
    ValueError: an unknown `every`.
  """
  one_of('every', every, Every)
  rows = batch['row_id']
  if every == 'step':
    number = jnp.broadcast_to(jnp.asarray(batch['step']), rows.shape)
  else:
    number = batch['epoch'] % copies
  return jax.vmap(lambda row, n: jax.random.fold_in(jax.random.fold_in(root, row), n))(rows, number)


def noise_root(key: Array) -> Array:
  """Root of the noise keys of a run's root key; `row_keys` folds in `row_id`, then `step` or `epoch`."""
  return jax.random.fold_in(key, 0)


def with_step(batch: Batch, step: Array | int) -> Batch:
  """The batch with the number of the step, int32[], which dynamic noise folds in."""
  return {**batch, 'step': jnp.asarray(step, jnp.int32)}
