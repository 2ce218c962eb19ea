"""Check of an attention kernel at its first use on a device: output and gradients against the formula.

The case is small and has the features of the inputs: dtype, head size, shared keys, mask, bias and dropout. A kernel
that fails is not used in this process, and the log says so once. Kernels run where no test of ours does; cuDNN's, for
example, had no finite gradient for 48 queries and 320 keys in bfloat16 on an H100.
"""

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core import layouts
from plm_jax.core.types import Array
from plm_jax.layers import tiled
from plm_jax.layers.dropout import cut_of
from plm_jax.layers.masks import Mask, softmax_visible

LONGEST = 512  # queries and keys of a case; kernels divide it into several tiles
TOLERANCE = 0.05  # of the largest value: products of a TPU have 8 bits
ROWS, HEADS = 2, 2
Kernel = Callable[..., Array]


class Case(NamedTuple):
  """Features of attention inputs that a kernel may treat differently."""

  queries: int
  keys: int
  groups: int
  size: int
  dtype: str
  causal: bool
  window: int | None
  prefix: bool
  allowed: bool
  bias: bool
  dropout: float


def case_of(query: Array, key: Array, *, mask: Mask, bias: Array | None, dropout: float) -> Case:
  """Return the small case with the features of these inputs."""
  return Case(
    queries=min(query.shape[1], LONGEST),
    keys=min(key.shape[1], LONGEST),
    groups=HEADS if key.shape[2] == query.shape[2] else 1,
    size=query.shape[3],
    dtype=str(query.dtype),
    causal=mask.causal,
    window=mask.window,
    prefix=mask.prefix is not None,
    allowed=mask.allowed is not None,
    bias=bias is not None,
    dropout=dropout,
  )


def fault(name: str, kernel: Kernel, case: Case) -> str | None:
  """Return what is wrong with a kernel on this process's devices.

  None if nothing is wrong.

  Args:
    name: of the kernel.
    kernel: takes the arguments of `attention.attend`.
    case: inputs to compare.
  """
  layout = layouts.CURRENT.get()
  if layout is not None and layout.described:  # a plan compiles for devices that cannot run
    return None
  return _fault(name, kernel, case)


@functools.cache
def _fault(name: str, kernel: Kernel, case: Case) -> str | None:
  """Compare once per process, in a thread outside of the caller's trace."""
  with ThreadPoolExecutor(1) as pool:
    try:
      return pool.submit(_compare, kernel, case).result()
    except Exception as error:  # noqa: BLE001 - a kernel that raises, whatever it raises, is not used
      return f'{name} raised {type(error).__name__}'


def _compare(kernel: Kernel, case: Case) -> str | None:
  """Compare output and gradients with the formula in float32."""
  with jax.default_device(layouts.local_device()):
    query, key, value, mask, bias, target = _inputs(case)
    rng = jax.random.key(1) if case.dropout else None
    given = (query, key, value) + (() if bias is None else (bias,))

    def results(attend: Kernel, dtype: str) -> list[np.ndarray]:
      def loss(given: tuple[Array, ...]) -> tuple[Array, Array]:
        more: dict[str, Any] = {} if bias is None else {'bias': given[3]}
        more |= {} if rng is None else {'dropout': case.dropout, 'rng': rng}
        out = attend(*given[:3], mask=mask, **more)
        return (out.astype(jnp.float32) * target).sum(), out

      given_as = tuple(x.astype(dtype) for x in given[:3]) + given[3:]
      (_, out), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(given_as)
      return [np.asarray(x, np.float32) for x in (out, *gradients)]

    found, expected = results(kernel, case.dtype), results(_formula, 'float32')
  names = ('the output', *(f'the gradient of the {of}' for of in ('query', 'key', 'value', 'bias')))
  for name, array, right in zip(names, found, expected, strict=False):
    if not np.isfinite(array).all():
      return f'{name} is not finite'
    error = np.abs(array - right).max() / max(np.abs(right).max(), 1e-6)
    if error > TOLERANCE:
      return f'{name} differs by {error:.2g} of its largest value'
  return None


def _inputs(case: Case) -> tuple[Array, Array, Array, Mask, Array | None, Array]:
  """Sample query, key, value, mask, bias and the weights of a loss."""
  draw = np.random.default_rng(0)

  def normal(*shape: int) -> Array:
    return jnp.asarray(draw.standard_normal(shape), jnp.float32)

  query = normal(ROWS, case.queries, HEADS, case.size)
  key, value = (normal(ROWS, case.keys, case.groups, case.size) for _ in range(2))
  # two segments; the second row ends with padding
  query_segments, key_segments = (_segments(length) for length in (case.queries, case.keys))
  mask = Mask(
    query_segments=query_segments,
    key_segments=key_segments,
    causal=case.causal,
    window=case.window,
    prefix=jnp.full(ROWS, case.keys // 4, jnp.int32) if case.prefix else None,
    allowed=jnp.asarray(draw.random((ROWS, case.queries, case.keys)) < 0.9) if case.allowed else None,
  )
  bias = normal(1, HEADS, case.queries, case.keys) if case.bias else None
  return query, key, value, mask, bias, normal(*query.shape)


def _segments(length: int) -> Array:
  """Return int32[ROWS, length] of two segments and padding."""
  # length 8: [1 1 1 1 2 2 2 2]
  #           [1 1 1 1 2 2 2 0]
  index = np.arange(length)
  row = 1 + (index >= length // 2)
  return jnp.asarray(np.stack([row, np.where(index >= length - max(length // 8, 1), 0, row)]), jnp.int32)


def _formula(
  query: Array,
  key: Array,
  value: Array,
  *,
  mask: Mask,
  bias: Array | None = None,
  dropout: float = 0.0,
  rng: Array | None = None,
) -> Array:
  """Compute attention in float32, with the dropout of the tiled kernel."""
  shared = query.shape[2] // key.shape[2]
  key, value = (jnp.repeat(x, shared, axis=2) for x in (key, value))
  logits = jnp.einsum('blhk,bmhk->bhlm', query, key) / math.sqrt(query.shape[-1])
  shares = softmax_visible(logits, mask=mask, bias=bias)
  if rng is not None:
    shares = jnp.where(_kept(shares, dropout, rng), shares / (1 - cut_of(dropout) / 65536), 0)  # the kernel's rate
  return jnp.einsum('bhlm,bmhk->blhk', shares, value)


def _kept(shares: Array, rate: float, rng: Array) -> Array:
  """Return weights bool[b, h, l, m] that the tiled kernel's dropout keeps."""
  rows, heads, queries, keys = shares.shape
  words = tiled.draw(rng, rows=rows, heads=heads, keys=keys)
  index = jnp.arange(queries, dtype=jnp.int32)[:, None]
  return tiled.keep_mask((words[:, :, :1], words[:, :, 1:]), index, cut=cut_of(rate))
