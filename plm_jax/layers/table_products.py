"""Products of vectors with many rows of a table, in blocks that fit the cache of a CPU.

Skip-gram multiplies the vector of a word with the rows of six words for each neighbour. For a thousand words these
rows take 24 MB. They would be written to memory, and read again for the products and for their gradient. The gradient
of the rows would take as much. A block takes half a megabyte, and no block after the last pair is computed.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.core.sharding import sum_over_devices
from plm_jax.core.types import Array

BLOCK = 256  # pairs per block
IN_BOUNDS = 'promise_in_bounds'  # `_block` clips indices


def products(vectors: Array, table: Array, readers: Array, ids: Array, number: Array) -> Array:
  """Multiply vectors with rows of a table, for n pairs per row.

  Args:
    vectors: f32[b, l, d].
    table: f32[r, d].
    readers: int[b, n], the index in the sequence of the vector of each pair.
    ids: int[b, n, k], the rows of the table that are multiplied with it.
    number: int[], how many of the n pairs are read. Others have any finite product, and their gradient is taken as
      zero.

  Returns:
    f32[b, n, k].
  """
  b, n, _ = ids.shape
  # pad the pairs to whole blocks: b = 8 and n = 70 give blocks of 32 pairs per row, so n becomes 96
  size = min(max(1, BLOCK // b), n)
  readers, ids = (jnp.pad(x, ((0, 0), (0, -n % size)) + ((0, 0),) * (x.ndim - 2)) for x in (readers, ids))
  blocks = (jnp.minimum(number, n) + size - 1) // size
  return _products(size, vectors.astype(jnp.float32), table, readers, ids, blocks)[:, :n]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _products(size: int, vectors: Array, table: Array, readers: Array, ids: Array, blocks: Array) -> Array:
  """Compute the first `blocks` blocks of `size` pairs of each row."""

  def add_block(block_index: Array, out: Array) -> Array:
    own, read = _block(size, block_index, vectors, table, readers, ids)[:2]
    # one axis of pairs, since XLA's product over two takes three times as long on a CPU
    block = jnp.einsum('nkd,nd->nk', read, own).reshape(len(vectors), size, -1)
    return jax.lax.dynamic_update_slice_in_dim(out, block, block_index * size, axis=1)

  return jax.lax.fori_loop(0, blocks, add_block, jnp.zeros(ids.shape, jnp.float32))


def _products_forward(size: int, *arguments: Any) -> tuple[Array, Any]:
  return _products(size, *arguments), arguments


def _products_backward(size: int, saved: Any, gradient: Array) -> tuple[Any, ...]:
  """Add up gradients of vectors and table, block by block."""
  vectors, table, readers, ids, blocks = saved

  # 1. gradients on one device, block by block
  def run(batch: tuple[Array, ...], whole: tuple[Array, Array]) -> tuple[Array, Array]:
    vectors, readers, ids, gradient = batch
    table, blocks = whole
    b, length, d = vectors.shape

    def add_block(block_index: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
      of_table, of_vectors = sums
      own, read, readers_at, rows_at = _block(size, block_index, vectors, table, readers, ids)
      # d product / d row = vector, d product / d vector = row
      slope = _cut(size, block_index, gradient).reshape(rows_at.shape)  # [b, s, k] -> [b s, k]
      of_table = of_table.at[rows_at].add(slope[..., None] * own[:, None], mode=IN_BOUNDS)
      return of_table, of_vectors.at[readers_at].add(jnp.einsum('nk,nkd->nd', slope, read), mode=IN_BOUNDS)

    # [r, d] of the table and [b l, d] of the vectors
    zeros = jnp.zeros(table.shape, jnp.float32), jnp.zeros((b * length, d), jnp.float32)
    of_table, of_vectors = jax.lax.fori_loop(0, blocks, add_block, zeros)
    return of_table, of_vectors.reshape(vectors.shape)

  # 2. the gradient of the table is summed over devices
  rows = (vectors, readers, ids, gradient)
  of_table, of_vectors = sum_over_devices(run, rows, (table, blocks), parts=1)
  return of_vectors, of_table, None, None, None


_products.defvjp(_products_forward, _products_backward)


def _block(
  size: int, block_index: Array, vectors: Array, table: Array, readers: Array, ids: Array
) -> tuple[Array, Array, Array, Array]:
  """Read a block of s pairs of each row.

  Returns:
    Vectors f32[b s, d], table rows f32[b s, k, d], and the indices of both.
  """
  b, length, d = vectors.shape
  # 1. readers as indices into [b l]
  readers_at = jnp.clip(_cut(size, block_index, readers), 0, length - 1) + length * jnp.arange(b)[:, None]
  readers_at = readers_at.reshape(-1)
  # 2. ids as rows of the table, [b s, k]
  block_ids = _cut(size, block_index, ids).reshape(b * size, -1)
  rows_at = jnp.clip(block_ids, 0, len(table) - 1)
  # 3. their vectors
  vectors = vectors.reshape(b * length, d)
  return vectors.at[readers_at].get(mode=IN_BOUNDS), table.at[rows_at].get(mode=IN_BOUNDS), readers_at, rows_at


def _cut(size: int, block_index: Array, x: Array) -> Array:
  """Return one block of axis 1."""
  return jax.lax.dynamic_slice_in_dim(x, block_index * size, size, axis=1)
