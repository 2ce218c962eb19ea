"""Products of vectors with rows of a table, many rows for each, in blocks that stay in the cache of a CPU.

Skip-gram multiplies the vector of a word with the rows of six words for each neighbour. All of these rows at once are
24 MB for a thousand words: written to memory, read again for the products and for their gradient, and as much for the
gradient of the rows. A block holds half a megabyte, and behind the last pair no block is computed.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.core.sharding import sum_over_devices
from plm_jax.core.types import Array

BLOCK = 256  # pairs of a block
IN_BOUNDS = 'promise_in_bounds'  # `_block` clips


Rows = tuple[Array, Array | None]


def products(vectors: Array, rows: Rows, readers: Array, ids: Array, number: Array) -> Array:
  """The product of a vector with each of k rows of a table, for each of n pairs of a row of the batch.

  Args:
    vectors: f32[b, l, d].
    rows: a table f32[r, d] and, unless it holds all ids in order, int[v], where in it the row of each id stands.
    readers: int[b, n], the place in the row of the batch of the vector of each pair.
    ids: int[b, n, k], whose rows are multiplied with it.
    number: int[], how many of the n are read. Others have any finite product, and their gradient is taken for zero.

  Returns:
    f32[b, n, k].
  """
  b, n, _ = ids.shape
  size = min(max(1, BLOCK // b), n)
  readers, ids = (jnp.pad(each, ((0, 0), (0, -n % size)) + ((0, 0),) * (each.ndim - 2)) for each in (readers, ids))
  blocks = (jnp.minimum(number, n) + size - 1) // size
  return _products(size, vectors.astype(jnp.float32), rows, readers, ids, blocks)[:, :n]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _products(size: int, vectors: Array, rows: Rows, readers: Array, ids: Array, blocks: Array) -> Array:
  """`products` of whole blocks of `size` pairs of each row; `blocks` int32[] of them are computed."""

  def one(number: Array, out: Array) -> Array:
    own, read = _block(size, number, vectors, rows, readers, ids)[:2]
    # one axis of pairs: over two, XLA's product takes three times as long on a CPU
    block = jnp.einsum('nkd,nd->nk', read, own).reshape(len(vectors), size, -1)
    return jax.lax.dynamic_update_slice_in_dim(out, block, number * size, axis=1)

  return jax.lax.fori_loop(0, blocks, one, jnp.zeros(ids.shape, jnp.float32))


def _products_forward(size: int, *arguments: Any) -> tuple[Array, Any]:
  return _products(size, *arguments), arguments


def _products_backward(size: int, kept: Any, gradient: Array) -> tuple[Any, ...]:
  """Gradients of the vectors and of the table, added up in place block by block."""
  vectors, (table, place), readers, ids, blocks = kept

  def run(batch: tuple[Array, ...], whole: tuple[Rows, Array]) -> tuple[Array, Array]:
    vectors, readers, ids, gradient = batch
    rows, blocks = whole
    b, length, d = vectors.shape

    def one(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
      of_table, of_vectors = sums
      own, read, where, places = _block(size, number, vectors, rows, readers, ids)
      slope = _cut(size, number, gradient).reshape(places.shape)  # [b, s, k] -> [b s, k]
      of_table = of_table.at[places].add(slope[..., None] * own[:, None], mode=IN_BOUNDS)
      return of_table, of_vectors.at[where].add(jnp.einsum('nk,nkd->nd', slope, read), mode=IN_BOUNDS)

    zeros = jnp.zeros(rows[0].shape, jnp.float32), jnp.zeros((b * length, d), jnp.float32)
    of_table, of_vectors = jax.lax.fori_loop(0, blocks, one, zeros)
    return of_table, of_vectors.reshape(vectors.shape)

  rows = (vectors, readers, ids, gradient)
  of_table, of_vectors = sum_over_devices(run, rows, ((table, place), blocks), parts=1)
  return of_vectors, (of_table, None), None, None, None


_products.defvjp(_products_forward, _products_backward)


def _block(
  size: int, number: Array, vectors: Array, rows: Rows, readers: Array, ids: Array
) -> tuple[Array, Array, Array, Array]:
  """Of the s pairs of each row in a block: vectors f32[b s, d], rows f32[b s, k, d], and the places of either."""
  (b, length, d), (table, place) = vectors.shape, rows
  where = jnp.clip(_cut(size, number, readers), 0, length - 1) + length * jnp.arange(b)[:, None]
  where, own = where.reshape(-1), _cut(size, number, ids).reshape(b * size, -1)
  own = own if place is None else jnp.take(place, own, mode='clip')
  places = jnp.clip(own, 0, len(table) - 1)
  vectors = vectors.reshape(b * length, d)
  return vectors.at[where].get(mode=IN_BOUNDS), table.at[places].get(mode=IN_BOUNDS), where, places


def _cut(size: int, number: Array, x: Array) -> Array:
  """A block of axis 1."""
  return jax.lax.dynamic_slice_in_dim(x, number * size, size, axis=1)
