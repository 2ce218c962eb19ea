"""Attention in one kernel that keeps no array of weights: splash attention on TPUs, cuDNN on GPUs.

`layers/attention.py` chooses between them; `flash_refuses` and `cudnn_refuses` name what a kernel cannot compute.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from plm_jax.core import sharding
from plm_jax.core.types import Array
from plm_jax.layers.masks import Mask, visible

# rows and columns of the smallest block of the TPU kernel; other lengths are padded to a multiple
LANES = 128
# larger blocks read the keys fewer times, but a block of products in float32 must fit the fast memory of a core
LARGEST_BLOCK = 512

_QUERY = ('batch', 'length', 'heads', 'head_dim')
_SEGMENTS = ('batch', 'length')


def flash_refuses(query: Array, key: Array, *, mask: Mask, bias: Array | None, dropout: float) -> str | None:
  """Why `flash` cannot take these inputs, None where it can."""
  if bias is not None:
    return 'it takes no relative or other bias'
  if dropout:
    return f'it cannot drop out attention weights (model.overrides.attention_dropout is {dropout:g}, it takes 0)'
  if mask.allowed is not None:
    return 'it takes no mask.allowed'
  if mask.prefix is not None:
    return 'it takes no prefix, whose length differs from row to row'
  if (mask.causal or mask.window is not None) and query.shape[1] != key.shape[1]:
    return f'it needs as many queries as keys, and there are {query.shape[1]} queries and {key.shape[1]} keys'
  if query.dtype == jnp.float16:
    return 'it computes in float32 or bfloat16, not in float16'
  return None


def cudnn_refuses(query: Array, key: Array, *, dropout: float) -> str | None:
  """Why `cudnn` cannot take these inputs, None where it can."""
  if dropout:
    return f'it does not drop out as this project does (model.overrides.attention_dropout is {dropout:g}, it takes 0)'
  if query.dtype not in (jnp.bfloat16, jnp.float16):
    return f'it computes in bfloat16 or float16, and execution.dtype is {query.dtype}'
  head_dim = query.shape[-1]
  if head_dim % 8 or head_dim > 128:
    return f'heads of size {head_dim} are not a multiple of 8 of at most 128'
  if query.shape[1] % 2 or key.shape[1] % 2:
    return f'{query.shape[1]} queries and {key.shape[1]} keys are not both even numbers'
  return None


def hide_blind(out: Array, mask: Mask) -> Array:
  """Zeros where a query sees no key; a kernel returns the mean of hidden values there.

  Their gradient becomes zero as well. XLA reduces the matrix of the mask while it computes it and does not store it.
  """
  return jnp.where(visible(mask).any(axis=-1)[:, :, None, None], out, jnp.zeros((), out.dtype))


def flash(
  query: Array, key: Array, value: Array, *, mask: Mask, scale: float | None = None, interpret: bool = False
) -> Array:
  """Splash attention: [b, l, h, k] in the dtype of `value`, with memory proportional to l and not to l m.

  Queries and keys are padded to whole blocks. Over a mesh each device runs the kernel on its own rows and heads.

  Args:
    query: [b, l, h, k].
    key: [b, m, g, k] with g a divisor of h, as for `attend`: heads that share a key read the same one.
    value: [b, m, g, k].
    mask: segments, causal or with a window; see `flash_refuses`.
    scale: of the products; 1 / sqrt(k) by default.
    interpret: runs on any device, slowly, to check it.
  """
  scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
  local = functools.partial(_splash, causal=mask.causal, window=mask.window, interpret=interpret)
  key, value = beside_heads(query, key), beside_heads(query, value)
  out = sharding.on_each_device(
    local,
    query * jnp.asarray(scale, query.dtype),
    key,
    value,
    mask.query_segments,
    mask.key_segments,
    axes=(_QUERY, _QUERY, _QUERY, _SEGMENTS, _SEGMENTS),
    whole=('length', 'head_dim'),
  )
  return hide_blind(out.astype(value.dtype), mask)


def beside_heads(query: Array, shared: Array) -> Array:
  """Keys or values [b, m, g', k] such that each device has those of its own heads: g' = g unless devices cut groups.

  Args:
    query: [b, l, h, k].
    shared: [b, m, g, k], which h / g neighbouring heads share.
  """
  # keys of 6 heads, of which 3 share one, over 3 devices: 0 0 | 0 1 | 1 1; the one in the middle needs both
  parts = sharding.cut_at(2, query.shape, ('batch', None, 'heads', None))
  groups = shared.shape[2]
  return jnp.repeat(shared, math.lcm(groups, parts) // groups, axis=2)


def _splash(
  query: Array,
  key: Array,
  value: Array,
  query_segments: Array,
  key_segments: Array,
  *,
  causal: bool,
  window: int | None,
  interpret: bool,
) -> Array:
  """The kernel on the rows and heads of one device; positions of padding see each other here."""
  length, num_keys = query.shape[1], key.shape[1]
  query_block, key_block = block_size(length), block_size(num_keys)
  query, query_segments = _pad(query, query_block), _pad(query_segments, query_block)
  key, value, key_segments = _pad(key, key_block), _pad(value, key_block), _pad(key_segments, key_block)
  shape = (query.shape[1], key.shape[1])
  one: masks.Mask
  if window is not None:
    one = masks.LocalMask(shape, (window - 1, 0), 0)
  elif causal:
    one = masks.CausalMask(shape)
  else:
    one = masks.FullMask(shape)
  blocks = splash.BlockSizes(
    block_q=query_block,
    block_kv=key_block,
    block_kv_compute=key_block,
    block_q_dkv=query_block,
    block_kv_dkv=key_block,
    block_kv_dkv_compute=key_block,
    block_q_dq=query_block,
    block_kv_dq=key_block,
  )
  heads = masks.MultiHeadMask([one] * query.shape[2])
  kernel = splash.make_splash_mha_single_device(heads, block_sizes=blocks, interpret=interpret)

  def row(q: Array, k: Array, v: Array, of_query: Array, of_key: Array) -> Array:
    ids = splash.SegmentIds(q=of_query.astype(jnp.int32), kv=of_key.astype(jnp.int32))
    return kernel(q, k, v, segment_ids=ids)  # [h, l, k]

  query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))  # [b, h, l, k]
  out = jax.vmap(row)(query, key, value, query_segments, key_segments)
  return jnp.swapaxes(out, 1, 2)[:, :length]


def block_size(length: int, largest: int = LARGEST_BLOCK) -> int:
  """The largest block that pads a row no further than the smallest would; `largest` is LANES times a power of two."""
  padded = -(-length // LANES) * LANES
  size = largest
  while padded % size:
    size //= 2
  return size


def _pad(x: Array, block: int) -> Array:
  return jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), *((0, 0),) * (x.ndim - 2)))


def cudnn(
  query: Array,
  key: Array,
  value: Array,
  *,
  mask: Mask,
  bias: Array | None = None,
  scale: float | None = None,
  interpret: bool = False,
) -> Array:
  """cuDNN's attention: [b, l, h, k] in the dtype of `value`.

  It gets the mask as a matrix, [b, 1, l, m] in 16 bits, which is h times smaller than the weights but not negligible.

  Args:
    query: [b, l, h, k], bfloat16 or float16.
    key: [b, m, g, k] with g a divisor of h.
    value: [b, m, g, k].
    mask: any.
    bias: added to the scaled products, broadcastable to [b, h, l, m].
    scale: of the products; 1 / sqrt(k) by default.
    interpret: computes the same call without cuDNN, on any device and in any dtype, to check it.
  """
  # its backward pass for shared keys was never tried here
  key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], axis=2) for x in (key, value))
  causal = mask.causal and mask.window is None and mask.prefix is None and query.shape[1] == key.shape[1]
  # with is_causal the kernel skips the blocks above the diagonal, and the mask holds the rest
  seen = visible(dataclasses.replace(mask, causal=False) if causal else mask)
  # hidden products become -2e12, where float32 counts in steps of 2e5: for a query that sees nothing the backward pass
  # would take the exponential of such a step, and times the zeros of `hide_blind` that is not finite
  seen |= ~seen.any(axis=-1, keepdims=True)
  out = jax.nn.dot_product_attention(
    query,
    key,
    value,
    bias=None if bias is None else bias.astype(query.dtype),
    mask=seen[:, None],
    scale=scale,
    is_causal=causal,
    implementation='xla' if interpret else 'cudnn',
  )
  return hide_blind(out.astype(value.dtype), mask)
