"""Kernels of attention in tiles (layers/tiled.py): the forward pass, and gradients of keys, values, queries and bias.

FlashAttention (Dao et al. 2022; arXiv 2205.14135), algorithms 1 to 4. With s the logits and p = softmax(s):

    forward    out = p v,  logs = log sum exp s
    backward   p = exp(s - logs),  dv = p^T dout,  ds = p (dout v^T - sum_k dout out),  dk = ds^T q,  dq = ds k
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from plm_jax.core.types import Array
from plm_jax.layers import fused
from plm_jax.layers.masks import HIDDEN
from plm_jax.layers.tiles import (
  Form,
  Sizes,
  Tile,
  column,
  drop,
  keep_scale,
  logits_of,
  may_see,
  product,
  run_kernel,
  scaled_query,
  sizes_of,
)


def forward(form: Form, given: dict[str, Array]) -> tuple[Array, Array]:
  """Compute the output and the logarithms of the sums of exponents.

  Returns:
    [b, h, l, k] and f32[b, h, 1, l].
  """
  s = sizes_of(form, given)

  # for each query the scratch keeps the largest logit so far, the sum of exponents and the weighted sum of values
  def kernel(tile: Tile, reads: dict[str, Any], writes: dict[str, Any], top: Any, total: Any, sums: Any) -> None:
    @pl.when(tile.key == 0)
    def begin() -> None:
      top[...] = jnp.full_like(top, HIDDEN)
      total[...] = jnp.zeros_like(total)
      sums[...] = jnp.zeros_like(sums)

    @pl.when(may_see(form, s, tile, reads))
    def add() -> None:
      # 1. exponents of this tile, relative to the largest logit so far
      logits, seen, index = logits_of(form, s, tile, reads)
      logits = jnp.where(seen, logits, HIDDEN)
      old = top[...]
      new = jnp.maximum(old, logits.max(axis=1, keepdims=True))
      exponents = jnp.where(seen, jnp.exp(logits - new), 0.0)
      # 2. rescale the sums so far to the new largest logit, and add
      shrink = jnp.exp(old - new)
      top[...] = new
      total[...] = total[...] * shrink + exponents.sum(axis=1, keepdims=True)
      value = reads['value'][...]
      sums[...] = sums[...] * shrink + product(drop(form, exponents, index, reads).astype(value.dtype), value, 1, 0)

    @pl.when(tile.key == s.key_tiles - 1)
    def end() -> None:
      whole = jnp.maximum(total[...], 1e-30)
      writes['out'][...] = (sums[...] * (keep_scale(form) / whole)).astype(writes['out'].dtype)
      wide = jnp.broadcast_to(top[...] + jnp.log(whole), (s.query_block, fused.LANES))
      writes['logs'][...] = wide.T[:1]

  results = run_kernel(
    form,
    kernel,
    given,
    name='attention_forward',
    grid=(s.rows, s.heads, s.query_tiles, s.key_tiles),
    summed=1,
    at=Tile,
    makes={
      'out': jax.ShapeDtypeStruct(given['query'].shape, given['value'].dtype),
      'logs': jax.ShapeDtypeStruct((s.rows, s.heads, 1, s.query_tiles * s.query_block), jnp.float32),
    },
    scratch=[(s.query_block, 1), (s.query_block, 1), (s.query_block, s.size)],
    products=2,
  )
  return results['out'], results['logs']


def _gradients(form: Form, sizes: Sizes, tile: Tile, reads: dict[str, Any]) -> tuple[Array, Array]:
  """Compute dropped weights and logit gradients of a tile."""
  logits, seen, index = logits_of(form, sizes, tile, reads)
  # p = exp(s - logs)
  weights = jnp.where(seen, jnp.exp(logits - column(reads['logs'])), 0.0)
  # dp = dout v^T, then ds = p (dp - sum_k dout out), each with dropout
  of_weights = product(reads['gradient'][...], reads['value'][...], 1, 1) * keep_scale(form)
  of_logits = weights * (drop(form, of_weights, index, reads) - column(reads['along']))
  return drop(form, weights * keep_scale(form), index, reads), of_logits


def backward_keys(form: Form, given: dict[str, Array]) -> dict[str, Array]:
  """Compute the gradients of keys and values.

  Also the gradient of queries if one tile has all keys, and of a bias if each row has its own.
  """
  s = sizes_of(form, given)
  makes = {name: given[name] for name in ('key', 'value')}
  if s.key_tiles == 1:
    makes['query'] = given['query']
  if 'bias' in given and given['bias'].shape[0] == s.rows:
    makes['bias'] = given['bias']

  # the innermost axes run over the heads of a group and the queries, which all add to the same key and value
  def at(row: Any, group: Any, key: Any, member: Any, query: Any) -> Tile:
    return Tile(row, group * s.sharing + member, query, key)

  def kernel(tile: Tile, reads: dict[str, Any], writes: dict[str, Any], of_key: Any, of_value: Any) -> None:
    member = lax.rem(tile.head, s.sharing)

    @pl.when((member == 0) & (tile.query == 0))
    def begin() -> None:
      of_key[...] = jnp.zeros_like(of_key)
      of_value[...] = jnp.zeros_like(of_value)

    near = may_see(form, s, tile, reads)

    @pl.when(near)
    def add() -> None:
      query, gradient = scaled_query(form, reads), reads['gradient'][...]
      # dv += p^T dout, dk += ds^T q, dq = ds k
      weights, of_logits = _gradients(form, s, tile, reads)
      of_value[...] += product(weights.astype(gradient.dtype), gradient, 0, 0)
      of_key[...] += product(of_logits.astype(query.dtype), query, 0, 0)
      if 'query' in writes:
        of_query = form.scale * product(of_logits.astype(query.dtype), reads['key'][...], 1, 0)
        writes['query'][...] = of_query.astype(query.dtype)
      if 'bias' in writes:
        writes['bias'][...] = of_logits.astype(writes['bias'].dtype)

    # a tile without visible weights has zero gradients
    if near is not True:

      @pl.when(~near)
      def skip() -> None:
        for name in {'query', 'bias'} & writes.keys():
          writes[name][...] = jnp.zeros_like(writes[name])

    @pl.when((member == s.sharing - 1) & (tile.query == s.query_tiles - 1))
    def end() -> None:
      writes['key'][...] = of_key[...].astype(writes['key'].dtype)
      writes['value'][...] = of_value[...].astype(writes['value'].dtype)

  return run_kernel(
    form,
    kernel,
    given,
    name='attention_backward_keys',
    grid=(s.rows, s.heads // s.sharing, s.key_tiles, s.sharing, s.query_tiles),
    summed=2,
    at=at,
    makes={name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in makes.items()},
    scratch=[(s.key_block, s.size)] * 2,
    products=4 + ('query' in makes),
  )


def _summing(
  form: Form, s: Sizes, name: str, part: Callable[[Tile, dict[str, Any]], Array], *, over: str, count: int
) -> Callable[..., None]:
  """Build a kernel that sums one array over the innermost grid axis.

  Args:
    form: of the attention.
    s: sizes of the tiles.
    name: of the result.
    part: (tile, arrays that it reads) -> addend of the tile.
    over: the axis, a field of `Tile`.
    count: number of tiles along it.
  """

  def kernel(tile: Tile, reads: dict[str, Any], writes: dict[str, Any], sums: Any) -> None:
    index = tile._asdict()[over]

    @pl.when(index == 0)
    def begin() -> None:
      sums[...] = jnp.zeros_like(sums)

    @pl.when(may_see(form, s, tile, reads))
    def add() -> None:
      sums[...] += part(tile, reads)

    @pl.when(index == count - 1)
    def end() -> None:
      writes[name][...] = sums[...].astype(writes[name].dtype)

  return kernel


def backward_queries(form: Form, given: dict[str, Array]) -> Array:
  """Compute the gradient of the queries if several tiles add to it."""
  s = sizes_of(form, given)

  # dq = sum over tiles of keys of ds k
  def part(tile: Tile, reads: dict[str, Any]) -> Array:
    key = reads['key'][...]
    return form.scale * product(_gradients(form, s, tile, reads)[1].astype(key.dtype), key, 1, 0)

  return run_kernel(
    form,
    _summing(form, s, 'query', part, over='key', count=s.key_tiles),
    given,
    name='attention_backward_queries',
    grid=(s.rows, s.heads, s.query_tiles, s.key_tiles),
    summed=1,
    at=Tile,
    makes={'query': jax.ShapeDtypeStruct(given['query'].shape, given['query'].dtype)},
    scratch=[(s.query_block, s.size)],
    products=3,
  )['query']


def backward_bias(form: Form, given: dict[str, Array]) -> Array:
  """Compute the gradient of a bias that all rows share."""
  s = sizes_of(form, given)

  return run_kernel(
    form,
    _summing(form, s, 'bias', lambda *tile: _gradients(form, s, *tile)[1], over='row', count=s.rows),
    given,
    name='attention_backward_bias',
    grid=(s.heads, s.query_tiles, s.key_tiles, s.rows),
    summed=1,
    at=lambda head, query, key, row: Tile(row, head, query, key),  # rows are innermost: all add to the same bias
    makes={'bias': jax.ShapeDtypeStruct(given['bias'].shape, given['bias'].dtype)},
    scratch=[(s.query_block, s.key_block)],
    products=2,
  )['bias']
