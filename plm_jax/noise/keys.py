"""Keys of the noise: one for each row of a batch, the same on 1 device and on 64 hosts."""

from typing import Literal

import jax
import jax.numpy as jnp

from plm_jax.types import Array, Batch


def row_keys(root: Array, batch: Batch, *, every: Literal['step', 'epoch'], copies: int = 10) -> Array:
  """The noise key of each row, key[b].

  Args:
    root: root key of the run; a threefry key, since others draw differently under vmap.
    batch: with `row_id` and `step` or `epoch`.
    every: 'step' draws anew each time a row is seen (dynamic masking, RoBERTa §4.1); 'epoch' repeats one of `copies`
      corruptions of each row (static masking, as BERT's pre-processing writes them).
    copies: corruptions of a row under 'epoch'; BERT's data held 10.
  """
  rows = batch['row_id']
  if every == 'step':
    number = jnp.broadcast_to(jnp.asarray(batch['step']), rows.shape)
  elif every == 'epoch':
    number = batch['epoch'] % copies
  else:
    raise ValueError(f"noise is drawn every 'step' or 'epoch', not {every!r}")
  return jax.vmap(lambda row, n: jax.random.fold_in(jax.random.fold_in(root, row), n))(rows, number)


def noise_root(key: Array) -> Array:
  """Root of the noise keys: `fold_in(fold_in(noise_root, row_id), step or epoch)`."""
  return jax.random.fold_in(key, 0)


def with_step(batch: Batch, step: Array | int) -> Batch:
  """The batch with the number that dynamic noise is drawn by."""
  return {**batch, 'step': jnp.asarray(step, jnp.int32)}
