"""Attention for TPUs in tiles: softmax(q k^T + bias) v with dropout on the weights, which are never stored.

A kernel of our own in Pallas, for what splash attention lacks (layers/fused.py): dropout, a bias, any mask. Forward
and backward follow FlashAttention (Dao et al. 2022, algorithms 1 to 4; arXiv 2205.14135): a tile of the weights, some
queries by some keys, is made in fast memory, used and forgotten, and made again in the backward pass.

Dropout: two words for each row, head and key come from the key of the dropout (`dropout.own_bits`), and the kernel
mixes them with the index of the query (`kept`). So the draws depend neither on tiles nor on how devices cut rows and
heads, forward and backward agree, and what was dropped can be told outside of the kernel.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from plm_jax.core import sharding
from plm_jax.core.types import Array
from plm_jax.layers import fused
from plm_jax.layers.dropout import cut_of, own_bits
from plm_jax.layers.masks import Mask

# a head of this size fits the fast memory of a core in float32, with the largest tiles and a bias
WIDEST = 256
# far below any real logit, and finite
HIDDEN = -1e30
# shifts and multipliers of `triple32`, a mixer of 32 bits (Wellons 2018, nullprogram.com/blog/2018/07/31)
_ROUNDS = tuple(
  (shift, by - 2**32 * (by >> 31)) for shift, by in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))
)

# axes of the arrays that a kernel reads, as devices cut them; tiles of length and keys stay together
_AXES: dict[str, tuple[str | None, ...]] = {
  'query': ('batch', 'heads', None, None),  # [b, h, l, k]
  'key': ('batch', 'heads', None, None),  # [b, g, m, k]
  'value': ('batch', 'heads', None, None),
  'of_query': ('batch', None, None),  # segments, int32[b, 1, l]
  'of_key': ('batch', None, None),  # int32[b, 1, m]
  'prefix': ('batch',),  # int32[b]
  'allowed': ('batch', None, None),  # int8[b, l, m]
  'bias': ('batch', 'heads', None, None),  # [1 or b, h, l, m]
  'words': ('batch', 'heads', None, None),  # int32[b, h, 2, m]
}
_QUERIES = {'query': 2, 'of_query': 2, 'allowed': 1, 'bias': 2}  # where an array has its axis of queries
_KEYS = {'key': 2, 'value': 2, 'of_key': 2, 'allowed': 2, 'bias': 3, 'words': 3}


class Form(NamedTuple):
  """What a kernel is compiled for, beside the shapes.

  Attributes:
    causal: see `Mask`.
    window: see `Mask`.
    cut: weights that are dropped, of 65,536.
    largest: queries and keys of the largest tile.
    interpret: runs on any device, slowly.
  """

  causal: bool
  window: int | None
  cut: int
  largest: int
  interpret: bool


class Tile(NamedTuple):
  """Where a step of a kernel stands: row, head, tile of queries, tile of keys; numbers of this device's part."""

  row: Any
  head: Any
  query: Any
  key: Any


def refuses(query: Array) -> str | None:
  """Why `attend` cannot take these inputs, None where it can."""
  if query.dtype == jnp.float16:
    return 'it computes in float32 or bfloat16, not in float16'
  if (size := query.shape[-1]) > WIDEST:
    return f'heads of size {size} leave no room in fast memory, which has it for {WIDEST}'
  return None


def kept(words: tuple[Array, Array], index: Array, *, cut: int) -> Array:
  """True where a weight is kept, at a rate of 1 - cut / 65536.

  Args:
    words: two of int32, for the row, the head and the key of the weight.
    index: int32, of its query.
    cut: of 65,536, how many are dropped.
  """
  first, second = words
  x = index + first
  for number, (shift, by) in enumerate(_ROUNDS):
    x = x ^ second if number == 1 else x
    x = (x ^ lax.shift_right_logical(x, jnp.int32(shift))) * jnp.int32(by)
  return x >= cut * 2**16 - 2**31  # the high bits of a product depend on all bits of its factors


def draw(rng: Array, *, rows: int, heads: int, keys: int) -> Array:
  """The words that `kept` mixes: int32[b, h, 2, m]."""
  return lax.bitcast_convert_type(own_bits(rng, (rows, heads, 2, keys), jnp.uint32), jnp.int32)


def attend(
  query: Array,
  key: Array,
  value: Array,
  *,
  mask: Mask,
  bias: Array | None = None,
  dropout: float = 0.0,
  rng: Array | None = None,
  scale: float | None = None,
  largest: int = fused.LARGEST_BLOCK,
  interpret: bool = False,
) -> Array:
  """Weighted sums of `value`: [b, l, h, k] in its dtype, with memory proportional to l and m beside that of the bias.

  The gradient of a bias that all rows share is summed in fast memory, and not stored for each row. Over a mesh each
  device runs the kernel on its own rows and heads.

  Args:
    query: [b, l, h, k].
    key: [b, m, g, k] with g a divisor of h: h / g neighbouring heads share a key and a value.
    value: likewise.
    mask: any.
    bias: added to the scaled products, broadcastable to [b, h, l, m].
    dropout: rate on the weights, rounded to a multiple of 2**-16; needs `rng`.
    rng: key of the dropout.
    scale: of the products; 1 / sqrt(k) by default.
    largest: queries and keys of the largest tile, 128 times a power of two.
    interpret: runs on any device, slowly, to check it.

  Raises:
    ValueError: a rate that is not in [0, 1).
  """
  rows, length, heads, size = query.shape
  scale = 1 / math.sqrt(size) if scale is None else scale
  cut = cut_of(dropout) if rng is not None else 0
  form = Form(mask.causal, mask.window, cut, largest, interpret)
  key, value = fused.beside_heads(query, key), fused.beside_heads(query, value)
  given = {
    name: jnp.swapaxes(x, 1, 2)
    for name, x in (('query', query * jnp.asarray(scale, query.dtype)), ('key', key), ('value', value))
  }
  given['of_query'] = mask.query_segments[:, None].astype(jnp.int32)
  given['of_key'] = mask.key_segments[:, None].astype(jnp.int32)
  if mask.prefix is not None:
    given['prefix'] = mask.prefix.astype(jnp.int32)
  if mask.allowed is not None:
    given['allowed'] = jnp.broadcast_to(mask.allowed, (rows, length, key.shape[1])).astype(jnp.int8)
  if bias is not None:
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    given['bias'] = jnp.broadcast_to(bias, (bias.shape[0], heads, length, key.shape[1]))
  if cut and rng is not None:
    given['words'] = draw(rng, rows=rows, heads=heads, keys=key.shape[1])
  names = tuple(given)
  out = sharding.on_each_device(
    lambda *arrays: _padded(form, dict(zip(names, arrays, strict=True))),
    *given.values(),
    axes=[_AXES[name] for name in names],
    whole=(),
  )
  return jnp.swapaxes(out, 1, 2).astype(value.dtype)


def _padded(form: Form, given: dict[str, Array]) -> Array:
  """[b, h, l, k] of one device; queries and keys are filled up to whole tiles with padding, which sees nothing."""
  length, num_keys = given['query'].shape[2], given['key'].shape[2]
  for axes, size in ((_QUERIES, length), (_KEYS, num_keys)):
    rest = -size % fused.block_size(size, form.largest)
    for name in axes.keys() & given.keys():
      widths = [(0, rest if axis == axes[name] else 0) for axis in range(given[name].ndim)]
      given[name] = jnp.pad(given[name], widths)
  return _attention(form, given)[:, :, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(form: Form, given: dict[str, Array]) -> Array:
  return _forward(form, given)[0]


def _attention_forward(form: Form, given: dict[str, Array]) -> tuple[Array, Any]:
  out, logs = _forward(form, given)
  return out, (given, out, logs)


def _attention_backward(form: Form, saved: Any, gradient: Array) -> tuple[dict[str, Array | None]]:
  given, out, logs = saved
  # sum of each row of weights times their gradients, of which dropout changes nothing: [b, h, 1, l]
  along = (gradient.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1)[:, :, None]
  given = given | {'gradient': gradient, 'logs': logs, 'along': along}
  found = _backward_keys(form, given)
  if 'query' not in found:
    found['query'] = _backward_queries(form, given)
  if 'bias' in given and 'bias' not in found:
    found['bias'] = _backward_bias(form, given)
  return ({name: found.get(name) for name in saved[0]},)


_attention.defvjp(_attention_forward, _attention_backward)


# The tiles.


class Sizes(NamedTuple):
  """Of one device's arrays, padded: rows, heads, heads that share a key, tiles and their sizes, width of a head."""

  rows: int
  heads: int
  sharing: int
  query_tiles: int
  key_tiles: int
  query_block: int
  key_block: int
  size: int


def _sizes(form: Form, given: dict[str, Array]) -> Sizes:
  rows, heads, length, size = given['query'].shape
  groups, num_keys = given['key'].shape[1:3]
  query_block, key_block = (fused.block_size(n, form.largest) for n in (length, num_keys))
  return Sizes(rows, heads, heads // groups, length // query_block, num_keys // key_block, query_block, key_block, size)


def _specs(sizes: Sizes, given: dict[str, Array], at: Callable[..., Tile]) -> dict[str, pl.BlockSpec]:
  """The part of each array that a step of a kernel reads or writes.

  Args:
    sizes: of the arrays.
    given: arrays.
    at: numbers of the step -> its tile.
  """
  s = sizes

  def block(shape: tuple[int | None, ...], index: Callable[[Tile], tuple[Any, ...]]) -> pl.BlockSpec:
    return pl.BlockSpec(shape, lambda *step: index(at(*step)))

  of_queries = block((None, None, s.query_block, s.size), lambda t: (t.row, t.head, t.query, 0))
  of_keys = block((None, None, s.key_block, s.size), lambda t: (t.row, lax.div(t.head, s.sharing), t.key, 0))
  by_query = block((None, None, 1, s.query_block), lambda t: (t.row, t.head, 0, t.query))
  one = 'bias' in given and given['bias'].shape[0] == 1
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
    'bias': block((None, None, s.query_block, s.key_block), lambda t: (0 if one else t.row, t.head, t.query, t.key)),
    'words': block((None, None, 2, s.key_block), lambda t: (t.row, t.head, 0, t.key)),
  }


def _call(
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
  """Runs a kernel over a grid.

  Args:
    form: of the kernel.
    kernel: of a tile, the arrays that it reads and those that it writes, by name, and its scratch.
    given: arrays.
    name: of the kernel in profiles.
    grid: steps; the last axes run fastest.
    summed: last axes of the grid whose steps add to the same result, and so run one after the other.
    at: numbers of a step -> its tile.
    makes: shape and dtype of each result.
    scratch: shapes of what a kernel keeps from step to step, in float32.
    products: matrix products of a tile.
  """
  sizes = _sizes(form, given)
  specs = _specs(sizes, given, at)

  def run(*refs: Any) -> None:
    reads = dict(zip(given, refs, strict=False))
    writes = dict(zip(makes, refs[len(given) :], strict=False))
    kernel(at(*(pl.program_id(axis) for axis in range(len(grid)))), reads, writes, *refs[len(given) + len(makes) :])

  weights = sizes.rows * sizes.heads * sizes.query_tiles * sizes.query_block * sizes.key_tiles * sizes.key_block
  moved: list[Any] = [*given.values(), *makes.values()]
  free = len(grid) - summed
  order: list[Literal['parallel', 'arbitrary']] = ['parallel' if n < free else 'arbitrary' for n in range(len(grid))]
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


def _near(form: Form, sizes: Sizes, tile: Tile, reads: dict[str, Any]) -> Any:
  """Whether `causal`, `window` and `prefix` leave anything of a tile."""
  if not form.causal and form.window is None:
    return True
  first_query, first_key = tile.query * sizes.query_block, tile.key * sizes.key_block
  near = first_key < first_query + sizes.query_block
  if form.window is not None:
    near &= first_key + sizes.key_block > first_query - form.window + 1
  if 'prefix' in reads:
    near |= first_key < reads['prefix'][tile.row]
  return near


def _weights(form: Form, sizes: Sizes, tile: Tile, reads: dict[str, Any]) -> tuple[Array, Array, Array]:
  """Of a tile, [query_block, key_block] each: logits, what may be seen, and index of the query."""
  logits = _product(reads['query'][...], reads['key'][...], 1, 1)
  if 'bias' in reads:
    logits += reads['bias'][...].astype(jnp.float32)
  of_key = reads['of_key'][...]
  seen = (_column(reads['of_query']) == of_key) & (of_key > 0)
  index = lax.broadcasted_iota(jnp.int32, logits.shape, 0) + tile.query * sizes.query_block
  if form.causal or form.window is not None:
    columns = lax.broadcasted_iota(jnp.int32, logits.shape, 1) + tile.key * sizes.key_block
    near = columns <= index
    if form.window is not None:
      near &= columns > index - form.window
    if 'prefix' in reads:
      near |= columns < reads['prefix'][tile.row]
    seen &= near
  if 'allowed' in reads:
    seen &= reads['allowed'][...].astype(jnp.int32) != 0
  return logits, seen, index


def _product(one: Array, other: Array, axis: int, other_axis: int) -> Array:
  """The matrix product over an axis of each, in float32."""
  return lax.dot_general(one, other, (((axis,), (other_axis,)), ((), ())), preferred_element_type=jnp.float32)


def _column(ref: Any) -> Array:
  """[1, n] -> [n, 1]."""
  return jnp.expand_dims(ref[0], -1)


def _dropped(form: Form, x: Array, index: Array, reads: dict[str, Any]) -> Array:
  """Zeros where dropout falls; the others are not yet divided by what is kept."""
  if 'words' not in reads:
    return x
  words = reads['words'][...]
  return jnp.where(kept((words[:1], words[1:]), index, cut=form.cut), x, 0.0)


def _forward(form: Form, given: dict[str, Array]) -> tuple[Array, Array]:
  """Output [b, h, l, k] and logarithms of the sums of exponents, f32[b, h, 1, l]."""
  s = _sizes(form, given)

  def kernel(tile: Tile, reads: dict[str, Any], writes: dict[str, Any], top: Any, total: Any, sums: Any) -> None:
    @pl.when(tile.key == 0)
    def begin() -> None:
      top[...] = jnp.full_like(top, HIDDEN)
      total[...] = jnp.zeros_like(total)
      sums[...] = jnp.zeros_like(sums)

    @pl.when(_near(form, s, tile, reads))
    def add() -> None:
      logits, seen, index = _weights(form, s, tile, reads)
      logits = jnp.where(seen, logits, HIDDEN)
      old = top[...]
      new = jnp.maximum(old, logits.max(axis=1, keepdims=True))
      exponents = jnp.where(seen, jnp.exp(logits - new), 0.0)
      shrink = jnp.exp(old - new)
      top[...] = new
      total[...] = total[...] * shrink + exponents.sum(axis=1, keepdims=True)
      value = reads['value'][...]
      sums[...] = sums[...] * shrink + _product(
        _dropped(form, exponents, index, reads).astype(value.dtype), value, 1, 0
      )

    @pl.when(tile.key == s.key_tiles - 1)
    def end() -> None:
      whole = jnp.maximum(total[...], 1e-30)
      writes['out'][...] = (sums[...] * (_grown(form) / whole)).astype(writes['out'].dtype)
      wide = jnp.broadcast_to(top[...] + jnp.log(whole), (s.query_block, fused.LANES))
      writes['logs'][...] = wide.T[:1]

  made = _call(
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
  return made['out'], made['logs']


def _grown(form: Form) -> float:
  """By what dropout multiplies what it keeps."""
  return 65536 / (65536 - form.cut)


def _gradients(form: Form, sizes: Sizes, tile: Tile, reads: dict[str, Any]) -> tuple[Array, Array]:
  """Of a tile, [query_block, key_block] each: weights after dropout, and the gradient of the logits."""
  logits, seen, index = _weights(form, sizes, tile, reads)
  weights = jnp.where(seen, jnp.exp(logits - _column(reads['logs'])), 0.0)
  of_weights = _product(reads['gradient'][...], reads['value'][...], 1, 1) * _grown(form)
  of_logits = weights * (_dropped(form, of_weights, index, reads) - _column(reads['along']))
  return _dropped(form, weights * _grown(form), index, reads), of_logits


def _backward_keys(form: Form, given: dict[str, Array]) -> dict[str, Array]:
  """Gradients of keys and values; of queries if one tile has all keys, of a bias if each row has its own."""
  s = _sizes(form, given)
  makes = {name: given[name] for name in ('key', 'value')}
  if s.key_tiles == 1:
    makes['query'] = given['query']
  if 'bias' in given and given['bias'].shape[0] == s.rows:
    makes['bias'] = given['bias']

  def at(row: Any, group: Any, key: Any, member: Any, query: Any) -> Tile:
    return Tile(row, group * s.sharing + member, query, key)

  def kernel(tile: Tile, reads: dict[str, Any], writes: dict[str, Any], of_key: Any, of_value: Any) -> None:
    member = lax.rem(tile.head, s.sharing)

    @pl.when((member == 0) & (tile.query == 0))
    def begin() -> None:
      of_key[...] = jnp.zeros_like(of_key)
      of_value[...] = jnp.zeros_like(of_value)

    near = _near(form, s, tile, reads)

    @pl.when(near)
    def add() -> None:
      query, gradient = reads['query'][...], reads['gradient'][...]
      weights, of_logits = _gradients(form, s, tile, reads)
      of_value[...] += _product(weights.astype(gradient.dtype), gradient, 0, 0)
      of_key[...] += _product(of_logits.astype(query.dtype), query, 0, 0)
      if 'query' in writes:
        of_query = _product(of_logits.astype(query.dtype), reads['key'][...], 1, 0)
        writes['query'][...] = of_query.astype(query.dtype)
      if 'bias' in writes:
        writes['bias'][...] = of_logits.astype(writes['bias'].dtype)

    if near is not True:

      @pl.when(~near)
      def leave() -> None:
        for name in {'query', 'bias'} & writes.keys():
          writes[name][...] = jnp.zeros_like(writes[name])

    @pl.when((member == s.sharing - 1) & (tile.query == s.query_tiles - 1))
    def end() -> None:
      writes['key'][...] = of_key[...].astype(writes['key'].dtype)
      writes['value'][...] = of_value[...].astype(writes['value'].dtype)

  return _call(
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
  """A kernel that adds up a part of every tile over one axis of the grid, the innermost, and then writes `name`.

  Args:
    form: of the attention.
    s: sizes of the tiles.
    name: of what is written.
    part: (tile, what it reads) -> what the tile adds.
    over: the axis, a field of `Tile`.
    count: its number of tiles.
  """

  def kernel(tile: Tile, reads: dict[str, Any], writes: dict[str, Any], sums: Any) -> None:
    place = tile._asdict()[over]

    @pl.when(place == 0)
    def begin() -> None:
      sums[...] = jnp.zeros_like(sums)

    @pl.when(_near(form, s, tile, reads))
    def add() -> None:
      sums[...] += part(tile, reads)

    @pl.when(place == count - 1)
    def end() -> None:
      writes[name][...] = sums[...].astype(writes[name].dtype)

  return kernel


def _backward_queries(form: Form, given: dict[str, Array]) -> Array:
  """Gradient of the queries, where several tiles add to it."""
  s = _sizes(form, given)

  def part(tile: Tile, reads: dict[str, Any]) -> Array:
    key = reads['key'][...]
    return _product(_gradients(form, s, tile, reads)[1].astype(key.dtype), key, 1, 0)

  return _call(
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


def _backward_bias(form: Form, given: dict[str, Array]) -> Array:
  """Gradient of a bias that all rows share."""
  s = _sizes(form, given)

  def at(head: Any, query: Any, key: Any, row: Any) -> Tile:
    return Tile(row, head, query, key)

  def part(tile: Tile, reads: dict[str, Any]) -> Array:
    return _gradients(form, s, tile, reads)[1]

  return _call(
    form,
    _summing(form, s, 'bias', part, over='row', count=s.rows),
    given,
    name='attention_backward_bias',
    grid=(s.heads, s.query_tiles, s.key_tiles, s.rows),
    summed=1,
    at=at,
    makes={'bias': jax.ShapeDtypeStruct(given['bias'].shape, given['bias'].dtype)},
    scratch=[(s.query_block, s.key_block)],
    products=2,
  )['bias']
