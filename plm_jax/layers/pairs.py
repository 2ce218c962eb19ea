"""Products of vectors with rows of a table, many rows for each, in blocks that stay in the cache of a CPU.

Skip-gram multiplies the vector of a word with the rows of six words for each neighbour. All of these rows at once are
24 MB for a thousand words: written to memory, read again for the products and for their gradient, and as much for the
gradient of the rows. A block holds half a megabyte, and behind the last pair no block is computed.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.sharding import sum_over_devices
from plm_jax.types import Array

BLOCK = 256  # pairs of a block


def products(vectors: Array, table: Array, readers: Array, ids: Array, number: Array) -> Array:
  """The product of a vector with each of k rows of a table, for each of n pairs of a row of the batch.

  Args:
    vectors: f32[b, l, d].
    table: f32[v, d].
    readers: int32[b, n], the place in the row of the vector of each pair.
    ids: int32[b, n, k], rows of the table.
    number: int32[], how many of the n are read; further ones get zero or any finite product, and a gradient of them is
      not to be asked for.

  Returns:
    f32[b, n, k].
  """
  b, n, _ = ids.shape
  size = min(max(1, BLOCK // b), n)
  whole = -n % size
  readers = jnp.pad(jnp.clip(readers, 0, vectors.shape[1] - 1), ((0, 0), (0, whole)))
  ids = jnp.pad(jnp.clip(ids, 0, table.shape[0] - 1), ((0, 0), (0, whole), (0, 0)))
  blocks = (jnp.minimum(number, n) + size - 1) // size
  return _products(size, vectors.astype(jnp.float32), table, readers, ids, blocks)[:, :n]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _products(size: int, vectors: Array, table: Array, readers: Array, ids: Array, blocks: Array) -> Array:
  """`products` of whole blocks of `size` pairs of each row; `blocks` int32[] of them are computed."""

  def one(number: Array, out: Array) -> Array:
    own, rows = _block(size, number, vectors, table, (readers, ids))
    # one axis of pairs: a product over two takes XLA three times as long on a CPU
    block = jnp.einsum('nkd,nd->nk', rows, own).reshape(len(vectors), size, -1)
    return jax.lax.dynamic_update_slice_in_dim(out, block, number * size, axis=1)

  return jax.lax.fori_loop(0, blocks, one, jnp.zeros(ids.shape, jnp.float32))


def _products_forward(size: int, *arguments: Array) -> tuple[Array, tuple[Array, ...]]:
  return _products(size, *arguments), arguments


def _products_backward(size: int, kept: tuple[Array, ...], gradient: Array) -> tuple[Any, ...]:
  """Gradients of vectors and of the table, both added up where they stand."""
  vectors, table, readers, ids, blocks = kept

  def run(rows: tuple[Array, ...], whole: tuple[Array, Array]) -> tuple[Array, Array]:
    vectors, readers, ids, gradient = rows
    table, blocks = whole
    b, length, d = vectors.shape
    first = length * jnp.arange(b, dtype=jnp.int32)[:, None]

    def one(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
      of_table, of_vectors = sums
      own, read = _block(size, number, vectors, table, (readers, ids))
      place, row, slope = (_cut(size, number, each) for each in (first + readers, ids, gradient))
      slope = slope.reshape(-1, slope.shape[-1])  # [b, n, k] -> [b n, k]
      of_table = of_table.at[row.reshape(slope.shape)].add(slope[..., None] * own[:, None], mode=IN_BOUNDS)
      of_own = jnp.einsum('nk,nkd->nd', slope, read)
      return of_table, of_vectors.at[place.reshape(-1)].add(of_own, mode=IN_BOUNDS)

    zeros = jnp.zeros(table.shape, jnp.float32), jnp.zeros((b * length, d), jnp.float32)
    of_table, of_vectors = jax.lax.fori_loop(0, blocks, one, zeros)
    return of_table, of_vectors.reshape(vectors.shape)

  of_table, of_vectors = sum_over_devices(run, (vectors, readers, ids, gradient), (table, blocks), parts=1)
  return of_vectors, of_table, None, None, None


_products.defvjp(_products_forward, _products_backward)
IN_BOUNDS = jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS  # `products` clips


def _block(size: int, number: Array, vectors: Array, table: Array, pairs: tuple[Array, Array]) -> tuple[Array, Array]:
  """Vectors and rows of the pairs of a block: f32[b s, d] and f32[b s, k, d]."""
  readers, ids = (_cut(size, number, each) for each in pairs)
  own = jnp.take_along_axis(vectors, readers[..., None], axis=1, mode=IN_BOUNDS)
  return own.reshape(-1, own.shape[-1]), table.at[ids.reshape(-1, ids.shape[-1])].get(mode=IN_BOUNDS)


def _cut(size: int, number: Array, x: Array) -> Array:
  """A block of axis 1."""
  return jax.lax.dynamic_slice_in_dim(x, number * size, size, axis=1)
