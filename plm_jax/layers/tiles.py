"""Tiles of attention: their sizes, the blocks of arrays they read, and the weights of one tile (layers/tiled.py)."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from plm_jax.core.types import Array
from plm_jax.layers import fused

# shifts and multipliers of `triple32`, a mixer of 32 bits (Wellons 2018, nullprogram.com/blog/2018/07/31)
_ROUNDS = tuple(
  (shift, by - 2**32 * (by >> 31)) for shift, by in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))
)


class Form(NamedTuple):
  """Settings that a kernel is compiled for, besides the shapes."""

  causal: bool  # see `Mask`
  window: int | None  # see `Mask`
  cut: int  # number of weights dropped, of 65,536
  scale: float  # of the products; a kernel multiplies by it, so that no array is read and written for it
  largest: int  # queries and keys of the largest tile
  interpret: bool  # run on any device, slowly


class Tile(NamedTuple):
  """Indices of the tile that a step of a kernel computes, within the part of this device."""

  row: Any  # of the batch
  head: Any  # of the queries
  query: Any  # of the tile of queries
  key: Any  # of the tile of keys


class Sizes(NamedTuple):
  """Sizes of the padded arrays of one device."""

  rows: int  # b
  heads: int  # h
  sharing: int  # heads that share a key, h / g
  query_tiles: int  # number of tiles of queries
  key_tiles: int  # number of tiles of keys
  query_block: int  # queries of a tile
  key_block: int  # keys of a tile
  size: int  # k, width of a head


def sizes_of(form: Form, given: dict[str, Array]) -> Sizes:
  """Compute the sizes of the tiles from the arrays of one device."""
  rows, heads, length, size = given['query'].shape
  groups, num_keys = given['key'].shape[1:3]
  query_block, key_block = (fused.block_size(n, form.largest) for n in (length, num_keys))
  return Sizes(
    rows=rows,
    heads=heads,
    sharing=heads // groups,
    query_tiles=length // query_block,
    key_tiles=num_keys // key_block,
    query_block=query_block,
    key_block=key_block,
    size=size,
  )


def _specs(sizes: Sizes, given: dict[str, Array], at: Callable[..., Tile]) -> dict[str, pl.BlockSpec]:
  """Describe the block of each array for a step of a kernel."""
  s = sizes

  def block(shape: tuple[int | None, ...], index: Callable[[Tile], tuple[Any, ...]]) -> pl.BlockSpec:
    return pl.BlockSpec(shape, lambda *step: index(at(*step)))

  # blocks of arrays by query, by key, and of one number per query
  of_queries = block((None, None, s.query_block, s.size), lambda t: (t.row, t.head, t.query, 0))
  of_keys = block((None, None, s.key_block, s.size), lambda t: (t.row, lax.div(t.head, s.sharing), t.key, 0))
  by_query = block((None, None, 1, s.query_block), lambda t: (t.row, t.head, 0, t.query))
  one_bias = 'bias' in given and given['bias'].shape[0] == 1  # shared by all rows
  return {
    'query': of_queries,
    'gradient': of_queries,
    'out': of_queries,
    'key': of_keys,
    'value': of_keys,
    'logs': by_query,
    'along': by_query,
    'of_query': block((None, 1, s.query_block), lambda t: (t.row, 0, t.query)),
    'of_key': block((None, 1, s.key_block), lambda t: (t.row, 0, t.key)),
    'prefix': pl.BlockSpec(memory_space=pltpu.SMEM),
    'allowed': block((None, s.query_block, s.key_block), lambda t: (t.row, t.query, t.key)),
    'bias': block(
      (None, None, s.query_block, s.key_block), lambda t: (0 if one_bias else t.row, t.head, t.query, t.key)
    ),
    'words': block((None, None, 2, s.key_block), lambda t: (t.row, t.head, 0, t.key)),
  }


def run_kernel(
  form: Form,
  kernel: Callable[..., None],
  given: dict[str, Array],
  *,
  name: str,
  grid: tuple[int, ...],
  summed: int,
  at: Callable[..., Tile],
  makes: dict[str, jax.ShapeDtypeStruct],
  scratch: Sequence[tuple[int, int]],
  products: int,
) -> dict[str, Array]:
  """Run a kernel over a grid of tiles.

  Args:
    form: of the kernel.
    kernel: called with the tile, the arrays that it reads and those that it writes, by name, and its scratch.
    given: arrays.
    name: of the kernel in profiles.
    grid: numbers of steps; the last axes run fastest.
    summed: number of last axes of the grid whose steps add to the same result, so they run one after the other.
    at: indices of a step -> its tile.
    makes: shape and dtype of each result.
    scratch: shapes of the float32 arrays that a kernel keeps from step to step.
    products: matrix products per tile.
  """
  sizes = sizes_of(form, given)
  specs = _specs(sizes, given, at)

  # 1. the kernel by name: Pallas passes inputs, outputs and scratch in this order
  def run(*refs: Any) -> None:
    reads = dict(zip(given, refs, strict=False))
    writes = dict(zip(makes, refs[len(given) :], strict=False))
    kernel(at(*(pl.program_id(axis) for axis in range(len(grid)))), reads, writes, *refs[len(given) + len(makes) :])

  # 2. estimates of the cost, and the order of the steps
  weights = sizes.rows * sizes.heads * sizes.query_tiles * sizes.query_block * sizes.key_tiles * sizes.key_block
  moved: list[Any] = [*given.values(), *makes.values()]
  free = len(grid) - summed
  order: list[Literal['parallel', 'arbitrary']] = ['parallel' if n < free else 'arbitrary' for n in range(len(grid))]
  # 3. the call
  out = pl.pallas_call(
    run,
    grid=grid,
    in_specs=[specs[key] for key in given],
    out_specs=[specs[key] for key in makes],
    out_shape=list(makes.values()),
    scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
    compiler_params=pltpu.CompilerParams(dimension_semantics=order),
    cost_estimate=pl.CostEstimate(
      flops=2 * products * weights * sizes.size,
      transcendentals=weights,
      bytes_accessed=sum(x.size * x.dtype.itemsize for x in moved),
    ),
    interpret=form.interpret,
    name=name,
  )(*given.values())
  return dict(zip(makes, out, strict=True))


def may_see(form: Form, sizes: Sizes, tile: Tile, reads: dict[str, Any]) -> Any:
  """Check whether `causal`, `window` and `prefix` leave any weight of a tile."""
  if not form.causal and form.window is None:
    return True
  first_query, first_key = tile.query * sizes.query_block, tile.key * sizes.key_block
  near = first_key < first_query + sizes.query_block
  if form.window is not None:
    near &= first_key + sizes.key_block > first_query - form.window + 1
  if 'prefix' in reads:
    near |= first_key < reads['prefix'][tile.row]
  return near


def logits_of(form: Form, sizes: Sizes, tile: Tile, reads: dict[str, Any]) -> tuple[Array, Array, Array]:
  """Compute logits, visibility and query indices, each [query_block, key_block]."""
  # 1. scaled products, with the bias
  logits = product(scaled_query(form, reads), reads['key'][...], 1, 1)
  if 'bias' in reads:
    logits += reads['bias'][...].astype(jnp.float32)
  # 2. equal segments, no padding
  of_key = reads['of_key'][...]
  seen = (column(reads['of_query']) == of_key) & (of_key > 0)
  # 3. distance, except for a prefix
  index = lax.broadcasted_iota(jnp.int32, logits.shape, 0) + tile.query * sizes.query_block
  if form.causal or form.window is not None:
    columns = lax.broadcasted_iota(jnp.int32, logits.shape, 1) + tile.key * sizes.key_block
    near = columns <= index
    if form.window is not None:
      near &= columns > index - form.window
    if 'prefix' in reads:
      near |= columns < reads['prefix'][tile.row]
    seen &= near
  # 4. any other mask
  if 'allowed' in reads:
    seen &= reads['allowed'][...].astype(jnp.int32) != 0
  return logits, seen, index


def scaled_query(form: Form, reads: dict[str, Any]) -> Array:
  """Scale the queries of a tile, in float32 as every chip can."""
  query = reads['query'][...]
  return (query.astype(jnp.float32) * form.scale).astype(query.dtype)


def keep_mask(words: tuple[Array, Array], index: Array, *, cut: int) -> Array:
  """Sample the weights that dropout keeps.

  True has probability 1 - cut / 65536.

  Args:
    words: two of int32, for the row, the head and the key of the weight.
    index: int32, of its query.
    cut: number of weights dropped, of 65,536.
  """
  # triple32 of index + first, with the second word mixed in after the first round
  first, second = words
  x = index + first
  for round_index, (shift, by) in enumerate(_ROUNDS):
    x = x ^ second if round_index == 1 else x
    x = (x ^ lax.shift_right_logical(x, jnp.int32(shift))) * jnp.int32(by)
  return x >= cut * 2**16 - 2**31  # the high bits of a product depend on all bits of its factors


def drop(form: Form, x: Array, index: Array, reads: dict[str, Any]) -> Array:
  """Zero the dropped weights; the caller multiplies the others by `keep_scale`."""
  if 'words' not in reads:
    return x
  words = reads['words'][...]
  return jnp.where(keep_mask((words[:1], words[1:]), index, cut=form.cut), x, 0.0)


def keep_scale(form: Form) -> float:
  """Return the factor by which dropout multiplies the weights that it keeps."""
  return 65536 / (65536 - form.cut)


def product(left: Array, right: Array, axis: int, other_axis: int) -> Array:
  """Multiply two matrices over an axis of each, in float32."""
  return lax.dot_general(left, right, (((axis,), (other_axis,)), ((), ())), preferred_element_type=jnp.float32)


def column(ref: Any) -> Array:
  """Transpose [1, n] -> [n, 1]."""
  return jnp.expand_dims(ref[0], -1)
