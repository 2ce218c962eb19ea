"""Weights in 8 bits: symmetric, a scale per output channel, to the nearest (Jacob et al. 2017, §2.1; 1712.05877).

    weight = scale * number,   scale = max |weight| / 127,   number = round(weight / scale) in -127 ... 127

No weight is further from what stands for it than half a scale. A channel is what the axes behind the scale's size-1
axes number: an output of a dense layer, a row of a table.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.param_paths import SCALE
from plm_jax.core.types import Array

LARGEST = 127  # -128 is not used, so that numbers are symmetric


def scales(weights: Any, axes: Sequence[int]) -> Any:
  """The scale of each channel, of jax or of numpy as the weights are.

  Args:
    weights: f32.
    axes: within a channel, which the scale has with size 1.
  """
  numbers = jnp if isinstance(weights, jax.Array) else np
  return (numbers.abs(weights).max(axis=tuple(axes), keepdims=True) / LARGEST).astype(np.float32)


def quantise(weights: Any, scale: Any) -> Any:
  """The number of each weight, int8 of the same shape; 0 where the scale is 0."""
  numbers = jnp if isinstance(weights, jax.Array) else np
  whole = numbers.round(weights / numbers.where(scale > 0, scale, np.float32(1)))
  return numbers.clip(whole, -LARGEST, LARGEST).astype(np.int8)


def dequantise(numbers: Any, scale: Any) -> Any:
  """What the numbers stand for, f32."""
  return numbers.astype(np.float32) * scale


@jax.custom_vjp
def fake(weights: Array, scale: Array) -> Array:
  """The weights as 8 bits express them; the gradient passes as if they were the weights themselves.

  The straight-through estimator (Bengio et al. 2013; Jacob et al. 2017, §3): 1 where a weight lies within
  -127 scale ... 127 scale, 0 beyond, and 0 for the scale.
  """
  return dequantise(quantise(weights, scale), scale)


def _forward(weights: Array, scale: Array) -> tuple[Array, tuple[Array, Array]]:
  inside = jnp.abs(weights) <= LARGEST * scale * (1 + 1e-6)  # the largest weight of a channel is inside by definition
  return fake(weights, scale), (inside | (scale == 0), scale)


def _backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
  inside, scale = kept
  return jnp.where(inside, gradient, 0.0), jnp.zeros_like(scale)


fake.defvjp(_forward, _backward)


def errors(weights: np.ndarray, numbers: np.ndarray, scale: np.ndarray) -> dict[str, float]:
  """How far 8 bits are from a tensor.

  Returns:
    'largest': |difference| in units of half a scale, at most 1 but for rounding; 'relative': L2 norm of the
    difference over that of the weights.
  """
  difference = dequantise(numbers, scale) - weights
  units = np.abs(difference) / np.where(scale > 0, scale / 2, 1)
  norm = float(np.linalg.norm(weights))
  return {'largest': float(units.max()), 'relative': float(np.linalg.norm(difference)) / norm if norm else 0.0}


def is_quantised(leaves: Mapping[str, Any]) -> bool:
  """Whether a leaf has its scale beside it."""
  return any(f'{path}{SCALE}' in leaves for path in leaves)
