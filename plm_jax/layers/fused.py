"""Attention in one kernel that stores no array of weights: splash attention on TPUs, cuDNN on GPUs.

`layers/attention.py` chooses between them. `flash_refuses` and `cudnn_refuses` explain what a kernel cannot compute.
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

# rows and columns of the smallest block of the TPU kernel; lengths are padded to a multiple
LANES = 128
# larger blocks read the keys fewer times, but a float32 block of products must fit the fast memory of a core
LARGEST_BLOCK = 512

_QUERY = ('batch', 'length', 'heads', 'head_dim')
_SEGMENTS = ('batch', 'length')


def flash_refuses(query: Array, key: Array, *, mask: Mask, bias: Array | None, dropout: float) -> str | None:
  """Explain why `flash` cannot take these inputs; None if it can."""
  if bias is not None:
    return 'it supports no bias, such as relative positions'
  if dropout:
    return f'it supports no dropout on weights (model.overrides.attention_dropout is {dropout:g}, it needs 0)'
  if mask.allowed is not None:
    return 'it supports no mask.allowed'
  if mask.prefix is not None:
    return 'it supports no prefix, whose length differs between rows'
  if (mask.causal or mask.window is not None) and query.shape[1] != key.shape[1]:
    return f'it needs equal numbers of queries and keys, not {query.shape[1]} and {key.shape[1]}'
  if query.dtype == jnp.float16:
    return 'it computes in float32 or bfloat16, not in float16'
  return None


def cudnn_refuses(query: Array, key: Array, *, dropout: float) -> str | None:
  """Explain why `cudnn` cannot take these inputs; None if it can."""
  if dropout:
    return f'it has another dropout than ours (model.overrides.attention_dropout is {dropout:g}, it needs 0)'
  if query.dtype not in (jnp.bfloat16, jnp.float16):
    return f'it computes in bfloat16 or float16, and execution.dtype is {query.dtype}'
  head_dim = query.shape[-1]
  if head_dim % 8 or head_dim > 128:
    return f'its heads have a multiple of 8 components, at most 128, and not {head_dim}'
  if query.shape[1] % 2 or key.shape[1] % 2:
    return f'it needs even numbers of queries and keys, not {query.shape[1]} and {key.shape[1]}'
  return None


def hide_blind(out: Array, mask: Mask) -> Array:
  """Set the output of queries that see no key to zero.

  A kernel returns the mean of hidden values there. The gradient of these queries becomes zero as well. XLA reduces the
  matrix of the mask while it computes it, and does not store it.
  """
  return jnp.where(visible(mask).any(axis=-1)[:, :, None, None], out, jnp.zeros((), out.dtype))


def flash(
  query: Array, key: Array, value: Array, *, mask: Mask, scale: float | None = None, interpret: bool = False
) -> Array:
  """Compute splash attention: [b, l, h, k] in the dtype of `value`.

  Memory is linear in l. Queries and keys are padded to whole blocks. On a mesh each device runs the kernel on its own
  rows and heads.

  Args:
    query, key, value, scale: as `attention.attend`.
    mask: segments, causal or with a window; see `flash_refuses`.
    interpret: run on any device, slowly, for tests.
  """
  # scaled queries, since the kernel does not scale
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
  """Repeat shared keys or values so that each device has its own.

  Args:
    query: [b, l, h, k].
    shared: [b, m, g, k], which h / g neighbouring heads share.

  Returns:
    [b, m, g', k], with g' = g unless devices cut a group of heads.
  """
  # 6 heads, 3 of which share a key, over 3 devices: keys 0 0 | 0 1 | 1 1, so the second device needs both
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
  """Run the kernel on one device; padding sees padding here."""
  # 1. pad queries and keys to whole blocks
  length, num_keys = query.shape[1], key.shape[1]
  query_block, key_block = block_size(length), block_size(num_keys)
  query, query_segments = _pad(query, query_block), _pad(query_segments, query_block)
  key, value, key_segments = _pad(key, key_block), _pad(value, key_block), _pad(key_segments, key_block)
  shape = (query.shape[1], key.shape[1])
  # 2. build the kernel of all heads
  head_mask: masks.Mask
  if window is not None:
    head_mask = masks.LocalMask(shape, (window - 1, 0), 0)
  elif causal:
    head_mask = masks.CausalMask(shape)
  else:
    head_mask = masks.FullMask(shape)
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
  heads = masks.MultiHeadMask([head_mask] * query.shape[2])
  kernel = splash.make_splash_mha_single_device(heads, block_sizes=blocks, interpret=interpret)

  def row(q: Array, k: Array, v: Array, of_query: Array, of_key: Array) -> Array:
    ids = splash.SegmentIds(q=of_query.astype(jnp.int32), kv=of_key.astype(jnp.int32))
    return kernel(q, k, v, segment_ids=ids)  # [h, l, k]

  # 3. run it on each row
  query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))  # [b, h, l, k]
  out = jax.vmap(row)(query, key, value, query_segments, key_segments)
  return jnp.swapaxes(out, 1, 2)[:, :length]


def block_size(length: int, largest: int = LARGEST_BLOCK) -> int:
  """Compute the largest block without more padding than the smallest block.

  `largest` is LANES times a power of two.
  """
  # length 300: padded to 384 = 3 x 128, so the block is 128; length 512: the block is 512
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
  """Compute cuDNN's attention: [b, l, h, k] in the dtype of `value`.

  The mask is passed as a matrix, [b, 1, l, m] in 16 bits, h times smaller than the weights but not negligible.

  Args:
    query, key, value, mask, bias, scale: as `attention.attend`, in bfloat16 or float16.
    interpret: compute the same call without cuDNN, on any device and in any dtype, for tests.
  """
  # repeat shared keys: cuDNN's backward pass for shared keys is untested here
  key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], axis=2) for x in (key, value))
  causal = mask.causal and mask.window is None and mask.prefix is None and query.shape[1] == key.shape[1]
  # with is_causal the kernel skips blocks above the diagonal, and the mask has all other conditions
  seen = visible(dataclasses.replace(mask, causal=False) if causal else mask)
  # A query that sees nothing gets to see all keys, and `hide_blind` sets its output to zero. Hidden products become
  # -2e12, and float32 has steps of 2e5 there. Otherwise the backward pass would take the exponential of such a step,
  # which times the zeros of `hide_blind` is not finite.
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
