"""Attention, for all models: softmax(q k^T / sqrt(k) + bias) v under a mask (Vaswani et al. 2017, §3.2.1).

Implementations, equal within rounding:

- xla: the formula itself. Training stores several arrays as large as the weights, f32[b, h, l, m].
- chunked: the formula for some queries at a time, computed again in the backward pass. Any device, mask and bias. Its
  memory is linear in the length, plus the bias if there is one.
- flash: splash attention on TPUs, with memory linear in the length. Segments, causal, window; no bias or dropout.
- tiled: our own kernel on TPUs (layers/tiled.py), with memory linear in the length. Any mask, a bias, dropout.
- cudnn: on GPUs, in half precision. Any mask and bias; no dropout.
- cached: the formula, for keys and values in the order of a cache (layers/cache.py), in steps of generation.

Relative positions come as `bias`: T5's buckets, the terms of DeBERTa and XLNet.
"""

import contextlib
import contextvars
import dataclasses
import functools
import logging
import math
from collections.abc import Iterator
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core import sharding
from plm_jax.core.errors import one_of
from plm_jax.core.types import Array, Implementation
from plm_jax.layers import fused, kernel_check, tiled
from plm_jax.layers.cache import in_order
from plm_jax.layers.dropout import drop
from plm_jax.layers.masks import Mask, softmax_visible, visible

log = logging.getLogger(__name__)

# queries per chunk of 'chunked': enough for efficient products, few enough for small weights
CHUNK = 256

# weights of a row and head from which 'auto' takes 'tiled'; for fewer the formula is as fast, and its arrays are small
TILES = 256 * 256

# implementation that a caller requests: the user's choice, or keys and values in the order of a cache
Way = Implementation | Literal['cached']


def weights(query: Array, key: Array, *, mask: Mask, bias: Array | None = None, scale: float | None = None) -> Array:
  """Compute attention weights, f32[b, h, l, m]; arguments of `attend`.

  A query that sees no key gets zeros.
  """
  scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
  # 1. scale the query, which is a smaller array than the products
  query = query * jnp.asarray(scale, query.dtype)
  # 2. products, accumulated in float32: [b, h, l, m]
  if (groups := key.shape[2]) == query.shape[2]:
    logits = jnp.einsum('blhk,bmhk->bhlm', query, key, preferred_element_type=jnp.float32)
  else:
    # heads that share a key: [b, l, h, k] -> [b, l, g, h/g, k]
    grouped = query.reshape(*query.shape[:2], groups, -1, query.shape[3])
    logits = jnp.einsum('blgrk,bmgk->bgrlm', grouped, key, preferred_element_type=jnp.float32)
    logits = logits.reshape(query.shape[0], query.shape[2], *logits.shape[3:])
  return softmax_visible(logits, mask=mask, bias=bias)


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
  implementation: Way = 'auto',
) -> Array:
  """Compute weighted sums of `value`: [b, l, h, k] in its dtype.

  Args:
    query: [b, l, h, k].
    key: [b, m, g, k] with g a divisor of h: h / g neighbouring heads share a key and a value (Shazeer 2019; Ainslie et
      al. 2023); 'cached': [b g, k, m].
    value: [b, m, g, k]; 'cached': [b g, m, k].
    bias: added to the scaled products, broadcastable to [b, h, l, m].
    dropout: rate on the weights; needs `rng`.
    rng: key of the dropout, None outside training.
    scale: of the products; 1 / sqrt(k) by default.
    implementation: `Execution.attention`, or 'cached'.

  Raises:
    ValueError: the requested kernel cannot compute these inputs, or this device does not have it.
  """
  if implementation == 'cached':
    return cached(query, key, value, mask=mask, bias=bias, scale=scale)
  # 1. choose an implementation for this device and these inputs
  dropout = dropout if rng is not None else 0.0
  taken, reason = choose(
    implementation, query, key, mask=mask, bias=bias, dropout=dropout, device=_device(sharding.device())
  )
  kernels: dict[str, kernel_check.Kernel] = {'flash': fused.flash, 'cudnn': fused.cudnn, 'tiled': tiled.attend}
  kernel = kernels.get(taken)  # None: a formula
  if kernel is not None:
    case = kernel_check.case_of(query, key, mask=mask, bias=bias, dropout=dropout)
    if wrong := kernel_check.fault(taken, kernel, case):
      kernel, taken, reason = None, 'xla', f'because {taken} fails its check on this device: {wrong}'
  # one layer may use different implementations with and without dropout
  _report(f'attention{f" with dropout {dropout:g} on weights" if dropout else ""}: {taken}, {reason}')
  # 2. compute it
  if kernel is not None:
    # flash takes no bias, and only tiled drops weights
    more: dict[str, Any] = {} if bias is None else {'bias': bias}
    more |= {'dropout': dropout, 'rng': rng} if dropout else {}
    return kernel(query, key, value, mask=mask, scale=scale, **more)
  compute = chunked if taken == 'chunked' else plain
  return compute(query, key, value, mask=mask, bias=bias, dropout=dropout, rng=rng, scale=scale)


def attend_in(
  block: nn.Module,
  query: Array,
  key: Array,
  value: Array,
  *,
  mask: Mask,
  dropout: float,
  train: bool,
  implementation: Way,
  bias: Array | None = None,
  scale: float | None = None,
) -> Array:
  """Compute `attend` inside a block.

  In training the key of the dropout is of the block's stream 'dropout'. The weights go to its collection 'attention' if
  the caller made that mutable. Other arguments as in `attend`.
  """
  # keys of an adapter come first
  key, value, mask, bias = with_prefix(
    block, query, key, value, mask=mask, bias=bias, cached=implementation == 'cached'
  )
  if block.is_mutable_collection('attention') and not block.is_initializing():
    block.sow('attention', 'weights', weights(query, key, mask=mask, bias=bias, scale=scale))
  # one key per call, only if something is dropped
  rng = block.make_rng('dropout') if train and dropout else None
  return attend(
    query, key, value, mask=mask, bias=bias, dropout=dropout, rng=rng, scale=scale, implementation=implementation
  )


def with_prefix(
  block: nn.Module, query: Array, key: Array, value: Array, *, mask: Mask, bias: Array | None = None, cached: bool
) -> tuple[Array, Array, Mask, Array | None]:
  """Prepend the keys and values of adapter 'prefix', if any.

  The adapter stores them as parameters of the block. Every query sees the keys of a prefix. They have no position: the
  model's bias for distances is 0 there.

  Returns keys, values, mask and bias for p + m keys; all unchanged without a prefix. With `cached` keys and values are
  in the order of a cache; other arguments as in `attend`.
  """
  if not block.has_variable('params', 'prefix'):
    return key, value, mask, bias
  own: dict[str, Array] = block.get_variable('params', 'prefix')  # 'key' and 'value' [p, g, k]

  # 1. the prefix of every row
  def repeat(new: Array, old: Array) -> Array:
    return jnp.broadcast_to(new, (query.shape[0], *new.shape)).astype(old.dtype)  # [p, g, k] -> [b, p, g, k]

  first_keys, first_values = repeat(own['key'], key), repeat(own['value'], value)
  if cached:
    first_keys, first_values = in_order(first_keys, first_values)

  # 2. mask and bias: every query sees the prefix, with a bias of 0
  count = own['key'].shape[0]
  seen = jnp.pad(visible(mask), ((0, 0), (0, 0), (count, 0)), constant_values=True)  # [b, l, p + m]
  if bias is not None:
    whole = jnp.broadcast_to(bias, (*bias.shape[:-1], seen.shape[-1] - count))
    bias = jnp.pad(whole, [*[(0, 0)] * (bias.ndim - 1), (count, 0)])
  ones = jnp.ones((len(seen), seen.shape[-1]), jnp.int32)
  mask = Mask(query_segments=jnp.ones_like(mask.query_segments), key_segments=ones, allowed=seen)
  # 3. prefix and other keys side by side
  keys = jnp.concatenate([first_keys, key], axis=2 if cached else 1)
  return keys, jnp.concatenate([first_values, value], axis=1), mask, bias


def choose(
  implementation: str,
  query: Array,
  key: Array,
  *,
  mask: Mask,
  bias: Array | None,
  dropout: float,
  device: tuple[str, float],
) -> tuple[str, str]:
  """Choose the implementation that computes these inputs.

  Args:
    implementation: `Execution.attention`.
    query: [b, l, h, k], or its shape and dtype.
    key: [b, m, h, k], or its shape and dtype.
    bias: or None.
    dropout: rate on the weights; 0 outside training.
    device: its platform, and for a GPU its compute capability.

  Returns:
    The implementation and the reason, for the log.

  Raises:
    ValueError: the requested kernel cannot be used.
  """
  platform, capability = device
  one_of('execution.attention', implementation, Implementation)
  # 1. reason why each kernel cannot run; None if it can
  no_tpu = None if platform == 'tpu' else f'it runs on TPUs, and this is a {platform}'
  refusals = {
    'flash': no_tpu or fused.flash_refuses(query, key, mask=mask, bias=bias, dropout=dropout),
    'tiled': no_tpu or tiled.refuses(query),
    'cudnn': _no_gpu(platform, capability) or fused.cudnn_refuses(query, key, dropout=dropout),
  }
  # 2. the choice of the user
  if refusal := refusals.get(implementation):
    raise ValueError(
      f'execution.attention={implementation!r} cannot be used here: {refusal}. Choose auto, xla or chunked'
    )
  if implementation != 'auto':
    return implementation, 'set by execution.attention'
  # 3. 'auto'
  if platform == 'tpu':
    return _auto_on_tpu(query, key, flash_refusal=refusals['flash'], tiled_refusal=refusals['tiled'])
  if platform == 'gpu':
    refusal = refusals['cudnn'] or _auto_avoids_cudnn(query, key, mask=mask, bias=bias)
    return ('xla', f'because cudnn is not used: {refusal}') if refusal else ('cudnn', 'available on this GPU')
  return 'xla', f'because there is no kernel for a {platform}'


def _no_gpu(platform: str, capability: float) -> str | None:
  if platform == 'gpu' and capability >= 8:
    return None
  of = f' of compute capability {capability:g}' if platform == 'gpu' else ''
  return f'it runs on GPUs of compute capability 8 and above, and this is a {platform}{of}'


def _auto_on_tpu(query: Array, key: Array, *, flash_refusal: str | None, tiled_refusal: str | None) -> tuple[str, str]:
  """Choose between flash, tiled and xla; arguments and result as in `choose`."""
  few = 'there are few queries' if query.shape[1] < fused.LANES else None
  no_flash = flash_refusal or few
  if no_flash is None:
    return 'flash', 'available on this TPU'
  if query.shape[1] * key.shape[1] < TILES:
    few = few or f'{query.shape[1]} queries and {key.shape[1]} keys are few'
  no_tiled = tiled_refusal or few
  if no_tiled is None:
    return 'tiled', f'because flash is not used: {no_flash}'
  return 'xla', f'because flash is not used: {no_flash}' + (f'; nor tiled: {no_tiled}' if no_tiled != no_flash else '')


def _auto_avoids_cudnn(query: Array, key: Array, *, mask: Mask, bias: Array | None) -> str | None:
  """Explain why 'auto' avoids cuDNN for these inputs, or return None."""
  if bias is not None or mask.allowed is not None:
    return 'auto uses it only without a bias and without mask.allowed'
  if query.shape[1] != key.shape[1]:
    # summaries of BART, 48 queries and 320 keys, had no finite gradient on an H100 (bfloat16, jax 0.11.2)
    return f'auto uses it only for equal numbers of queries and keys, not {query.shape[1]} and {key.shape[1]}'
  return None


@functools.cache
def _device(device: Any) -> tuple[str, float]:
  """Return the platform, and an Nvidia GPU's compute capability (else 0)."""
  nvidia = device.platform == 'gpu' and 'cuda' in device.client.platform_version
  return device.platform, float(device.compute_capability) if nvidia else 0.0


_RECORD: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar('record', default=None)


@contextlib.contextmanager
def recorded() -> Iterator[list[str]]:
  """Collect the log messages about implementations chosen in the body, each once."""
  record: list[str] = []
  token = _RECORD.set(record)
  try:
    yield record
  finally:
    _RECORD.reset(token)


def _report(message: str) -> None:
  """Log a choice once, and add it to `recorded`."""
  record = _RECORD.get()
  if record is not None and message not in record:
    record.append(message)
  _log_once(message)


@functools.cache
def _log_once(message: str) -> None:
  log.info(message)


def plain(
  query: Array,
  key: Array,
  value: Array,
  *,
  mask: Mask,
  bias: Array | None = None,
  dropout: float = 0.0,
  rng: Array | None = None,
  scale: float | None = None,
) -> Array:
  """Compute the formula directly; arguments of `attend`."""
  # [b, h, l, m] x [b, m, h, k] -> [b, l, h, k]
  probabilities = weights(query, key, mask=mask, bias=bias, scale=scale).astype(value.dtype)
  if dropout and rng is not None:
    probabilities = drop(probabilities, rate=dropout, rng=rng)
  if (groups := value.shape[2]) == query.shape[2]:
    return jnp.einsum('bhlm,bmhk->blhk', probabilities, value)
  grouped = probabilities.reshape(len(query), groups, -1, *probabilities.shape[2:])  # [b, g, h/g, l, m]
  return jnp.einsum('bgrlm,bmgk->blgrk', grouped, value).reshape(*query.shape[:3], value.shape[3])


def cached(
  query: Array, key: Array, value: Array, *, mask: Mask, bias: Array | None = None, scale: float | None = None
) -> Array:
  """Compute the formula for keys and values of a cache.

  They are read in their order, keys [b g, k, m] and values [b g, m, k], without a copy. Arguments of `attend`.
  """
  rows, length, heads, size = query.shape
  scale = 1 / math.sqrt(size) if scale is None else scale
  query = jnp.swapaxes(query * jnp.asarray(scale, query.dtype), 1, 2)  # [b, h, l, k]
  # queries that share a key: [b, h, l, k] -> [b g, h/g l, k]
  grouped = query.reshape(key.shape[0], -1, size)
  logits = jnp.einsum('gsk,gkm->gsm', grouped, key, preferred_element_type=jnp.float32)
  # softmax over m as [b, h, l, m], then [b g, h/g l, m] x [b g, m, k]
  shares = softmax_visible(logits.reshape(rows, heads, length, -1), mask=mask, bias=bias).astype(value.dtype)
  sums = jnp.einsum('gsm,gmk->gsk', shares.reshape(logits.shape), value)
  return jnp.swapaxes(sums.reshape(rows, heads, length, size), 1, 2)  # [b g, h/g l, k] -> [b, l, h, k]


def chunked(
  query: Array,
  key: Array,
  value: Array,
  *,
  mask: Mask,
  bias: Array | None = None,
  dropout: float = 0.0,
  rng: Array | None = None,
  scale: float | None = None,
  chunk: int = CHUNK,
) -> Array:
  """Compute the formula for `chunk` queries at a time.

  The backward pass computes each chunk again. Other arguments as in `attend`.
  """
  length = query.shape[1]
  if length <= chunk:
    return plain(query, key, value, mask=mask, bias=bias, dropout=dropout, rng=rng, scale=scale)
  count = -(-length // chunk)

  def cut(x: Array, axis: int) -> Array:
    # [..., l, ...] -> [count, ..., chunk, ...], the last chunk padded with zeros
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, count * chunk - length)
    parts = jnp.pad(x, padding).reshape(*x.shape[:axis], count, chunk, *x.shape[axis + 1 :])
    return jnp.moveaxis(parts, axis, 0)

  # 1. cut arrays with an axis of queries into chunks; all others are shared
  bias = None if bias is None else bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
  own = {'index': jnp.arange(count), 'query': cut(query, 1), 'segments': cut(mask.query_segments, 1)}
  if bias is not None and bias.shape[2] != 1:
    own['bias'] = cut(bias, 2)
  if mask.allowed is not None:
    own['allowed'] = cut(mask.allowed, 1)

  # 2. attend from one chunk to all keys
  @functools.partial(jax.checkpoint, prevent_cse=False)
  def attend_chunk(part: dict[str, Array]) -> Array:
    chunk_mask = dataclasses.replace(mask, query_segments=part['segments'], allowed=part.get('allowed'))
    seen = visible(chunk_mask, first=part['index'] * chunk)
    return plain(
      part['query'],
      key,
      value,
      mask=Mask(query_segments=part['segments'], key_segments=mask.key_segments, allowed=seen),
      bias=part.get('bias', bias),
      dropout=dropout,
      rng=None if rng is None else jax.random.fold_in(rng, part['index']),
      scale=scale,
    )

  # 3. join the chunks and drop the padding
  parts = jax.lax.map(attend_chunk, own)  # [count, b, chunk, h, k]
  return jnp.moveaxis(parts, 0, 1).reshape(query.shape[0], count * chunk, *parts.shape[3:])[:, :length]
