"""Attention for TPUs in tiles: softmax(q k^T + bias) v with dropout on the weights, which are never stored.

Our own Pallas kernel, for what splash attention lacks (layers/fused.py): dropout, a bias, any mask. Forward and
backward follow FlashAttention (Dao et al. 2022, algorithms 1 to 4; arXiv 2205.14135). A tile of the weights, some
queries by some keys, is computed in fast memory, used and discarded. The backward pass computes it again.

Dropout: the dropout key gives two words for each row, head and key (`dropout.own_bits`), and the kernel mixes them with
the index of the query (`tiles.keep_mask`). The result depends neither on tiles nor on how devices cut rows and heads.
Forward and backward agree, and the dropped weights can be computed outside of the kernel.

`tiles.py` describes the tiles, `tile_kernels.py` has the kernels.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from plm_jax.core import sharding
from plm_jax.core.types import Array
from plm_jax.layers import fused, tile_kernels
from plm_jax.layers.dropout import cut_of, own_bits
from plm_jax.layers.masks import Mask
from plm_jax.layers.tiles import Form
from plm_jax.layers.tiles import keep_mask as keep_mask

# the fast memory of a core holds a head of this size in float32, with the largest tiles and a bias
WIDEST = 256

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
# array -> index of its axis of queries, of its axis of keys
_QUERIES = {'query': 2, 'of_query': 2, 'allowed': 1, 'bias': 2}
_KEYS = {'key': 2, 'value': 2, 'of_key': 2, 'allowed': 2, 'bias': 3, 'words': 3}


def refuses(query: Array) -> str | None:
  """Explain why `attend` cannot take these inputs; None if it can."""
  if query.dtype == jnp.float16:
    return 'it computes in float32 or bfloat16, not in float16'
  if (size := query.shape[-1]) > WIDEST:
    return f'fast memory has no room for heads of size {size}, at most {WIDEST}'
  return None


def draw(rng: Array, *, rows: int, heads: int, keys: int) -> Array:
  """Sample the words that `keep_mask` mixes: int32[b, h, 2, m]."""
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
  """Compute attention: [b, l, h, k] in the dtype of `value`.

  Memory is linear in l and m, plus the bias. The gradient of a bias that all rows share is summed in fast memory, and
  not stored for each row. On a mesh each device runs the kernel on its own rows and heads.

  Args:
    query, key, value, mask, bias, rng, scale: as `attention.attend`.
    dropout: rate on the weights, rounded to a multiple of 2**-16; needs `rng`.
    largest: queries and keys of the largest tile, 128 times a power of two.
    interpret: run on any device, slowly, for tests.

  Raises:
    ValueError: a rate that is not in [0, 1).
  """
  rows, length, heads, size = query.shape
  scale = 1 / math.sqrt(size) if scale is None else scale
  cut = cut_of(dropout) if rng is not None else 0
  form = Form(causal=mask.causal, window=mask.window, cut=cut, scale=scale, largest=largest, interpret=interpret)
  # 1. collect the arrays that the kernels read, with heads before lengths
  key, value = fused.beside_heads(query, key), fused.beside_heads(query, value)
  given = {
    name: jnp.swapaxes(x, 1, 2)  # [b, l, h, k] -> [b, h, l, k]
    for name, x in (('query', query), ('key', key), ('value', value))
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
  # 2. run on each device
  names = tuple(given)
  out = sharding.on_each_device(
    lambda *arrays: _padded(form, dict(zip(names, arrays, strict=True))),
    *given.values(),
    axes=[_AXES[name] for name in names],
    whole=(),
  )
  return jnp.swapaxes(out, 1, 2).astype(value.dtype)  # [b, h, l, k] -> [b, l, h, k]


def _padded(form: Form, given: dict[str, Array]) -> Array:
  """Compute [b, h, l, k] on one device, padded to whole tiles."""
  length, num_keys = given['query'].shape[2], given['key'].shape[2]
  for axes, size in ((_QUERIES, length), (_KEYS, num_keys)):
    padding = -size % fused.block_size(size, form.largest)
    for name in axes.keys() & given.keys():
      widths = [(0, padding if axis == axes[name] else 0) for axis in range(given[name].ndim)]
      given[name] = jnp.pad(given[name], widths)
  return _attention(form, given)[:, :, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(form: Form, given: dict[str, Array]) -> Array:
  return tile_kernels.forward(form, given)[0]


def _attention_forward(form: Form, given: dict[str, Array]) -> tuple[Array, Any]:
  out, logs = tile_kernels.forward(form, given)
  return out, (given, out, logs)


def _attention_backward(form: Form, saved: Any, gradient: Array) -> tuple[dict[str, Array | None]]:
  """Compute the gradients of query, key, value and bias."""
  given, out, logs = saved
  # sum over each row of weights times their gradients, which dropout does not change: [b, h, 1, l]
  along = (gradient.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1)[:, :, None]
  given = given | {'gradient': gradient, 'logs': logs, 'along': along}
  gradients = tile_kernels.backward_keys(form, given)
  if 'query' not in gradients:
    gradients['query'] = tile_kernels.backward_queries(form, given)
  if 'bias' in given and 'bias' not in gradients:
    gradients['bias'] = tile_kernels.backward_bias(form, given)
  return ({name: gradients.get(name) for name in saved[0]},)


_attention.defvjp(_attention_forward, _attention_backward)
