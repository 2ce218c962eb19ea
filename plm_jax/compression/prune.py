"""What is pruned: the smallest weights, the least important heads, some of the layers; and how much at which step.

A mask is float32, 1 where a weight stays and 0 where it is pruned. Counts are exact: of n numbers, round(sparsity n)
are pruned, those that come first among equals.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from plm_jax.core.types import Array


def keep_largest(importance: Array, sparsity: Array | float) -> Array:
  """The mask of what stays when the least important part is pruned.

  Args:
    importance: f32 of any shape.
    sparsity: f32[], the share that is pruned, from 0 to 1.

  Returns:
    f32 of the shape of `importance`, with exactly round(sparsity n) zeros.
  """
  # importance  .3 .1 .4 .2   sparsity .5   order 1 3 0 2   mask  1 0 1 0
  values = importance.reshape(-1)
  order = jnp.argsort(values, stable=True)
  pruned = jnp.round(jnp.asarray(sparsity, jnp.float32) * values.size)
  mask = jnp.zeros(values.size, jnp.float32).at[order].set((jnp.arange(values.size) >= pruned).astype(jnp.float32))
  return mask.reshape(importance.shape)


def keep_in_each(importance: Array, sparsity: Array | float, *, layers: int) -> Array:
  """As `keep_largest`, in each layer by itself.

  Args:
    importance: f32 [layers..., ...].
    sparsity: of each layer.
    layers: how many leading axes number layers.
  """
  stacked = importance.reshape(-1, *importance.shape[layers:])
  return jax.vmap(lambda one: keep_largest(one, sparsity))(stacked).reshape(importance.shape)


def keep_among_all(importance: Mapping[str, Array], sparsity: Array | float) -> dict[str, Array]:
  """As `keep_largest`, over all arrays at once: some end up emptier than others."""
  mask = keep_largest(jnp.concatenate([one.reshape(-1) for one in importance.values()]), sparsity)
  masks, start = {}, 0
  for path, one in importance.items():
    masks[path] = mask[start : start + one.size].reshape(one.shape)
    start += one.size
  return masks


def head_norms(kernel: Array) -> Array:
  """L2 norm of what each head writes by its output projection: f32[..., h, k, d] -> f32[..., h, 1, 1].

  The norm of a group of weights as its importance is that of Li et al. 2016 (filters; 1608.08710, §3.1).
  """
  return jnp.sqrt(jnp.square(kernel).sum(axis=(-2, -1), keepdims=True))


def every_other(layers: int, sparsity: float) -> tuple[int, ...]:
  """Layers that stay where pruned ones are spread evenly, the first always (Fan et al. 2019, LayerDrop §3.2)."""
  # 6 layers, a half   0 2 4       4 layers, a quarter   0 1 2
  kept = layers - round(sparsity * layers)
  return tuple(number * layers // kept for number in range(kept))


def lowest(layers: int, sparsity: float) -> tuple[int, ...]:
  """Layers that stay where the highest go (Sajjad et al. 2020; 2004.03844, §3)."""
  return tuple(range(layers - round(sparsity * layers)))


def cubic(step: Array, *, sparsity: float, begin: int, end: int) -> Array:
  """The sparsity after so many steps, f32[]: fast at first, slow towards the end (Zhu & Gupta 2017, eq. 1).

  sparsity (1 - (1 - (step - begin) / (end - begin))^3) between `begin` and `end`; 0 before, `sparsity` afterwards.
  """
  share = jnp.clip((step - begin) / max(end - begin, 1), 0.0, 1.0)
  share = jnp.where(step >= end, 1.0, share)
  return jnp.where(step < begin, 0.0, sparsity * (1 - (1 - share) ** 3)).astype(jnp.float32)
