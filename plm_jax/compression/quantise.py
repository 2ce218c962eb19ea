"""Symmetric weights in 8 bits, with one scale per output channel.

Values are rounded to the nearest (Jacob et al. 2017, §2.1; 1712.05877):

    weight = scale * number,   scale = max |weight| / 127,   number = round(weight / scale) in -127 ... 127

No weight differs from its 8-bit value by more than half a scale. A channel is an output of a dense layer or a row of a
table: an index of the axes along which the scale does not have size 1.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Array

LARGEST = 127  # -128 is not used, so that numbers are symmetric


def scales(weights: Any, axes: Sequence[int]) -> Any:
  """Compute the scale of each channel, in the library of the weights.

  Args:
    weights: f32.
    axes: within a channel; the scale has size 1 along them.
  """
  library = jnp if isinstance(weights, jax.Array) else np
  return (library.abs(weights).max(axis=tuple(axes), keepdims=True) / LARGEST).astype(np.float32)


def quantise(weights: Any, scale: Any) -> Any:
  """Round each weight to int8; 0 where the scale is 0."""
  library = jnp if isinstance(weights, jax.Array) else np
  # a scale of 0 would divide by 0: its weights are 0 as well
  rounded = library.round(weights / library.where(scale > 0, scale, np.float32(1)))
  return library.clip(rounded, -LARGEST, LARGEST).astype(np.int8)


def dequantise(numbers: Any, scale: Any) -> Any:
  """Compute the weights that the numbers represent, f32."""
  return numbers.astype(np.float32) * scale


@jax.custom_vjp
def fake(weights: Array, scale: Array) -> Array:
  """Round weights to 8 bits, with the gradient of the weights themselves.

  The straight-through estimator (Bengio et al. 2013; Jacob et al. 2017, §3): the gradient is 1 for a weight within
  -127 scale ... 127 scale, 0 beyond, and 0 for the scale.
  """
  return dequantise(quantise(weights, scale), scale)


def _forward(weights: Array, scale: Array) -> tuple[Array, tuple[Array, Array]]:
  inside = jnp.abs(weights) <= LARGEST * scale * (1 + 1e-6)  # the largest weight of a channel is inside by definition
  return fake(weights, scale), (inside | (scale == 0), scale)


def _backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
  inside, scale = saved
  return jnp.where(inside, gradient, 0.0), jnp.zeros_like(scale)


fake.defvjp(_forward, _backward)


def errors(weights: np.ndarray, numbers: np.ndarray, scale: np.ndarray) -> dict[str, float]:
  """Measure the error of 8 bits for a tensor.

  Returns:
    'largest': |difference| in units of half a scale, at most 1 up to rounding; 'relative': L2 norm of the difference
    over that of the weights.
  """
  # half a scale is the largest rounding error
  difference = dequantise(numbers, scale) - weights
  units = np.abs(difference) / np.where(scale > 0, scale / 2, 1)
  norm = float(np.linalg.norm(weights))
  return {'largest': float(units.max()), 'relative': float(np.linalg.norm(difference)) / norm if norm else 0.0}
