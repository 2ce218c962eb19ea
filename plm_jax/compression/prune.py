"""Pruning of the smallest weights, the least important heads, or some layers, and the sparsity at each step.

A mask is float32, 1 for a weight that stays and 0 for a pruned one. Counts are exact: round(sparsity n) of n numbers
are pruned; of equal numbers, the first ones.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from plm_jax.core.types import Array


def keep_largest(importance: Array, sparsity: Array | float) -> Array:
  """Compute the mask that prunes the least important part.

  Args:
    importance: f32 of any shape.
    sparsity: f32[], the pruned share, from 0 to 1.

  Returns:
    f32 of the shape of `importance`, with exactly round(sparsity n) zeros.
  """
  # importance  .3 .1 .4 .2   sparsity .5   order 1 3 0 2   mask  1 0 1 0
  # the order of the numbers, of equal ones the first; then 0 at the first round(sparsity n) of it
  values = importance.reshape(-1)
  order = jnp.argsort(values, stable=True)
  pruned = jnp.round(jnp.asarray(sparsity, jnp.float32) * values.size)
  mask = jnp.zeros(values.size, jnp.float32).at[order].set((jnp.arange(values.size) >= pruned).astype(jnp.float32))
  return mask.reshape(importance.shape)


def keep_in_each(importance: Array, sparsity: Array | float, *, layers: int) -> Array:
  """Compute `keep_largest` in each layer: f32 [layers..., ...] has `layers` leading axes."""
  # [layers..., ...] -> [n, ...], one mask for each of n layers
  stacked = importance.reshape(-1, *importance.shape[layers:])
  return jax.vmap(lambda layer: keep_largest(layer, sparsity))(stacked).reshape(importance.shape)


def keep_among_all(importance: Mapping[str, Array], sparsity: Array | float) -> dict[str, Array]:
  """Compute `keep_largest` over all arrays at once, at different sparsities."""
  # one mask over all numbers, then cut back into arrays
  mask = keep_largest(jnp.concatenate([array.reshape(-1) for array in importance.values()]), sparsity)
  masks, start = {}, 0
  for path, array in importance.items():
    masks[path] = mask[start : start + array.size].reshape(array.shape)
    start += array.size
  return masks


def head_norms(kernel: Array) -> Array:
  """Compute the L2 norm of the output projection of each head.

  f32[..., h, k, d] -> f32[..., h, 1, 1]. The norm of a group of weights as its importance is that of Li et al. 2016
  (filters; 1608.08710, §3.1).
  """
  return jnp.sqrt(jnp.square(kernel).sum(axis=(-2, -1), keepdims=True))


def every_other(layers: int, sparsity: float) -> tuple[int, ...]:
  """List layers that stay, the first included (Fan et al. 2019, §3.2)."""
  # 6 layers, a half   0 2 4       4 layers, a quarter   0 1 2
  count = layers - round(sparsity * layers)
  return tuple(layer * layers // count for layer in range(count))


def lowest(layers: int, sparsity: float) -> tuple[int, ...]:
  """List the layers below the pruned (Sajjad et al. 2020; 2004.03844, §3)."""
  return tuple(range(layers - round(sparsity * layers)))


def cubic(step: Array, *, sparsity: float, begin: int, end: int) -> Array:
  """Compute the sparsity after `step` steps, f32[].

  It is sparsity (1 - (1 - (step - begin) / (end - begin))^3) between `begin` and `end`, 0 before and `sparsity`
  afterwards: fast at first, slow towards the end (Zhu & Gupta 2017, eq. 1).
  """
  # progress from `begin` to `end`, 0 to 1
  share = jnp.clip((step - begin) / max(end - begin, 1), 0.0, 1.0)
  share = jnp.where(step >= end, 1.0, share)
  return jnp.where(step < begin, 0.0, sparsity * (1 - (1 - share) ** 3)).astype(jnp.float32)
