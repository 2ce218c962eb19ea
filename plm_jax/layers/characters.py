"""Word vectors from characters (Kim et al. 2015, §2.2).

Convolution filters are maximised over the positions of a word.
"""

from collections.abc import Sequence

import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.layers.linear import Dense, Initializer

CHARACTERS = 262  # ids of `text/chars.py`; 0 where there is no word


def largest_of_filters(x: Array, filters: Sequence[int], *, kernel_init: Initializer, dtype: str) -> Array:
  """Compute the largest value of each filter in a word.

  [w, s, e] -> [w, sum of filters]. Creates layers 'filters_1', 'filters_2', ... in the compact module that calls it.

  Args:
    x: vectors of the s characters of w words. An unused slot is an ordinary character, as in the released code of ELMo
      and of cross-view training.
    filters: numbers of filters over one character, two, and so on; 0 for none.
    kernel_init: of kernels [width, e, filters].
  """
  axes, maxima = (None, None, 'mlp'), []
  # [w, s, e] -> windows [w, s + 1 - width, width, e] -> products [w, s + 1 - width, count] -> maxima [w, count]
  for width, count in enumerate(filters, start=1):
    if count:
      layer = Dense(count, axes, kernel_init, num_inputs=2, dtype=dtype, name=f'filters_{width}')
      maxima.append(layer(windows(x, width=width)).max(axis=1))
  return jnp.concatenate(maxima, axis=-1)


def windows(x: Array, *, width: int) -> Array:
  """Stack every run of `width` neighbours.

  [w, s, e] -> [w, s + 1 - width, width, e].
  """
  # a b c d, width 2   ->   a b | b c | c d
  count = x.shape[1] + 1 - width
  return jnp.stack([x[:, start : start + count] for start in range(width)], axis=2)
