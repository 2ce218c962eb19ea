"""Attention, for all models: softmax(q k^T / sqrt(k) + bias) v under a mask (Vaswani et al. 2017, §3.2.1).

Ways to compute it, equal within rounding:

- xla: the formula itself. In training it keeps several arrays as large as the weights, f32[b, h, l, m].
- chunked: the formula for a part of the queries at a time, computed again in the backward pass. Any device, mask and
  bias. Its memory is proportional to the length, plus the bias where there is one.
- flash: splash attention on TPUs, with memory proportional to the length. Segments, causal, window; no bias or dropout.
- tiled: our own kernel on TPUs (layers/tiled.py), likewise. Any mask, a bias, dropout.
- cudnn: on GPUs, in half precision. Any mask and bias; no dropout.
- cached: the formula, for keys and values in the order of a cache (layers/cache.py). Steps of generation.

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
from plm_jax.layers import fused, tiled
from plm_jax.layers.cache import in_order
from plm_jax.layers.dropout import drop
from plm_jax.layers.masks import Mask, visible

log = logging.getLogger(__name__)

# queries at a time of 'chunked': enough for efficient products, few enough for small weights
CHUNK = 256

# weights of a row and head from which on 'auto' takes 'tiled': the formula is as fast for fewer, and they are small
TILES = 256 * 256

# how a caller asks for attention: as the user chose, or with keys and values in the order of a cache
Way = Implementation | Literal['cached']

# far below any real logit, and finite, so that a row that sees no key does not become NaN
HIDDEN = -1e30


def weights(query: Array, key: Array, *, mask: Mask, bias: Array | None = None, scale: float | None = None) -> Array:
  """Attention weights f32[b, h, l, m]; a query with nothing to look at gets zeros.

  Args:
    query: [b, l, h, k].
    key: [b, m, g, k] with g a divisor of h: h / g neighbouring heads share a key (Shazeer 2019; Ainslie et al. 2023).
    mask: what may be looked at.
    bias: added to the scaled products, broadcastable to [b, h, l, m].
    scale: of the products; 1 / sqrt(k) by default.
  """
  scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
  query = query * jnp.asarray(scale, query.dtype)  # the query is the smaller array to scale
  # products accumulate in float32
  if (groups := key.shape[2]) == query.shape[2]:
    logits = jnp.einsum('blhk,bmhk->bhlm', query, key, preferred_element_type=jnp.float32)
  else:
    grouped = query.reshape(*query.shape[:2], groups, -1, query.shape[3])  # [b, l, g, h/g, k]
    logits = jnp.einsum('blgrk,bmgk->bgrlm', grouped, key, preferred_element_type=jnp.float32)
    logits = logits.reshape(query.shape[0], query.shape[2], *logits.shape[3:])
  return _normalise(logits, mask=mask, bias=bias)


def _normalise(logits: Array, *, mask: Mask, bias: Array | None) -> Array:
  """Softmax f32[b, h, l, m] of products, over what the mask allows."""
  if bias is not None:
    logits = logits + bias.astype(jnp.float32)
  seen = visible(mask)[:, None]  # [b, 1, l, m]
  logits = jnp.where(seen, logits, HIDDEN)
  top = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
  exponents = jnp.where(seen, jnp.exp(logits - top), 0.0)
  return exponents / jnp.maximum(exponents.sum(axis=-1, keepdims=True), 1e-30)


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
  """Weighted sums of `value`, [b, l, h, k] in the dtype of `value`.

  Args:
    query: [b, l, h, k].
    key: [b, m, g, k] with g a divisor of h: h / g neighbouring heads share a key and a value; 'cached': [b g, k, m].
    value: [b, m, g, k]; 'cached': [b g, m, k].
    mask: what may be looked at.
    bias: added to the scaled products, broadcastable to [b, h, l, m].
    dropout: rate on the weights; needs `rng`.
    rng: key of the dropout, None outside training.
    scale: of the products; 1 / sqrt(k) by default.
    implementation: how to compute it: `Execution.attention`, or 'cached'.

  Raises:
    ValueError: the kernel of this name cannot compute these inputs, or this device has no such kernel.
  """
  if implementation == 'cached':
    return cached(query, key, value, mask=mask, bias=bias, scale=scale)
  dropout = dropout if rng is not None else 0.0
  taken, reason = choose(
    implementation, query, key, mask=mask, bias=bias, dropout=dropout, device=_device(sharding.device())
  )
  # the same layer may be computed otherwise in training than where nothing is dropped
  _say(f'attention{f" with dropout {dropout:g} on weights" if dropout else ""}: {taken}, {reason}')
  if taken == 'flash':
    return fused.flash(query, key, value, mask=mask, scale=scale)
  if taken == 'cudnn':
    return fused.cudnn(query, key, value, mask=mask, bias=bias, scale=scale)
  if taken == 'tiled':
    return tiled.attend(query, key, value, mask=mask, bias=bias, dropout=dropout, rng=rng, scale=scale)
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
  """`attend` inside a block, which gives the key of the dropout and hands out the weights.

  Args:
    block: the module that calls: in training one key is drawn from its stream 'dropout', and its collection
      'attention' gets the weights where a caller made that mutable.
    query: [b, l, h, k].
    key: [b, m, g, k]; 'cached': [b g, k, m].
    value: [b, m, g, k]; 'cached': [b g, m, k].
    mask: what may be looked at.
    dropout: rate on the weights.
    train: drops out.
    implementation: how to compute it: `Execution.attention`, or 'cached' in a step of generation.
    bias: added to the scaled products, broadcastable to [b, h, l, m].
    scale: of the products; 1 / sqrt(k) by default.
  """
  key, value, mask, bias = with_prefix(
    block, query, key, value, mask=mask, bias=bias, cached=implementation == 'cached'
  )
  if block.is_mutable_collection('attention') and not block.is_initializing():
    block.sow('attention', 'weights', weights(query, key, mask=mask, bias=bias, scale=scale))
  rng = block.make_rng('dropout') if train and dropout else None
  return attend(
    query,
    key,
    value,
    mask=mask,
    bias=bias,
    dropout=dropout,
    rng=rng,
    scale=scale,
    implementation=implementation,
  )


def with_prefix(
  block: nn.Module, query: Array, key: Array, value: Array, *, mask: Mask, bias: Array | None = None, cached: bool
) -> tuple[Array, Array, Mask, Array | None]:
  """Keys and values behind those that adapter 'prefix' put beside the parameters of a block; else all as it is.

  Every query sees the keys of a prefix. They have no position: what a model adds for distances is 0 there.

  Args:
    block: the module that calls.
    query: [b, l, h, k].
    key: [b, m, g, k]; where `cached`, [b g, k, m].
    value: [b, m, g, k]; where `cached`, [b g, m, k].
    mask: what may be looked at.
    bias: broadcastable to [b, h, l, m].
    cached: keys and values are in the order of a cache.

  Returns:
    Keys, values, mask and bias for p + m keys.
  """
  if not block.has_variable('params', 'prefix'):
    return key, value, mask, bias
  own: dict[str, Array] = block.get_variable('params', 'prefix')  # 'key' and 'value' [p, g, k]

  def rows(new: Array, old: Array) -> Array:
    return jnp.broadcast_to(new, (query.shape[0], *new.shape)).astype(old.dtype)  # [b, p, g, k]

  first_keys, first_values = rows(own['key'], key), rows(own['value'], value)
  if cached:
    first_keys, first_values = in_order(first_keys, first_values)

  count = own['key'].shape[0]
  seen = jnp.pad(visible(mask), ((0, 0), (0, 0), (count, 0)), constant_values=True)  # [b, l, p + m]
  if bias is not None:
    whole = jnp.broadcast_to(bias, (*bias.shape[:-1], seen.shape[-1] - count))
    bias = jnp.pad(whole, [*[(0, 0)] * (bias.ndim - 1), (count, 0)])
  ones = jnp.ones((len(seen), seen.shape[-1]), jnp.int32)
  mask = Mask(jnp.ones_like(mask.query_segments), ones, allowed=seen)
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
  """Which implementation computes these inputs, and why.

  Args:
    implementation: `Execution.attention`.
    query: [b, l, h, k], or its shape and dtype.
    key: [b, m, h, k], or its shape and dtype.
    mask: what may be looked at.
    bias: or None.
    dropout: rate on the weights; 0 outside training.
    device: its platform, and of a GPU its compute capability.

  Raises:
    ValueError: the kernel of this name cannot be used.
  """
  platform, capability = device
  one_of('execution.attention', implementation, Implementation)
  if implementation in ('xla', 'chunked'):
    return implementation, 'as execution.attention says'

  def flash() -> str | None:
    if platform != 'tpu':
      return f'it runs on TPUs and this is a {platform}'
    return fused.flash_refuses(query, key, mask=mask, bias=bias, dropout=dropout)

  def tiles() -> str | None:
    if platform != 'tpu':
      return f'it runs on TPUs and this is a {platform}'
    return tiled.refuses(query)

  def cudnn() -> str | None:
    if platform != 'gpu' or capability < 8:
      of = f' of compute capability {capability:g}' if platform == 'gpu' else ''
      return f'it runs on GPUs of compute capability 8 and above and this is a {platform}{of}'
    return fused.cudnn_refuses(query, key, dropout=dropout)

  kernels = {'flash': flash, 'tiled': tiles, 'cudnn': cudnn}
  if implementation in kernels:
    if refusal := kernels[implementation]():
      raise ValueError(
        f'execution.attention={implementation!r} cannot be used here: {refusal}. Choose auto, xla or chunked'
      )
    return implementation, 'as execution.attention says'
  if platform == 'tpu':
    few = 'there are few queries' if query.shape[1] < fused.LANES else None
    refusal = flash() or few
    if refusal is None:
      return 'flash', 'which this TPU has'
    if query.shape[1] * key.shape[1] < TILES:
      few = few or f'{query.shape[1]} queries and {key.shape[1]} keys are few'
    other = tiles() or few
    if other is None:
      return 'tiled', f'since of flash {refusal}'
    return 'xla', f'since of flash {refusal}' + (f', and of tiled {other}' if other != refusal else '')
  if platform == 'gpu':
    refusal = cudnn()
    if refusal is None and (bias is not None or mask.allowed is not None):
      refusal = 'auto uses it only without a bias and without mask.allowed'
    if refusal is None and query.shape[1] != key.shape[1]:
      # summaries of BART, 48 queries and 320 keys, had no finite gradient on an H100 (bfloat16, jax 0.11.2)
      refusal = f'auto uses it only for as many queries as keys, not {query.shape[1]} and {key.shape[1]}'
    return ('xla', f'since of cudnn {refusal}') if refusal else ('cudnn', 'which this GPU has')
  return 'xla', f'since there is no kernel for a {platform}'


@functools.cache
def _device(device: Any) -> tuple[str, float]:
  """Platform and, on a GPU of Nvidia, compute capability; 0 elsewhere."""
  nvidia = device.platform == 'gpu' and 'cuda' in device.client.platform_version
  return device.platform, float(device.compute_capability) if nvidia else 0.0


_SAID: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar('said', default=None)


@contextlib.contextmanager
def recorded() -> Iterator[list[str]]:
  """The implementations that are chosen while the body runs, with the reason, in the words of the log; each once."""
  said: list[str] = []
  token = _SAID.set(said)
  try:
    yield said
  finally:
    _SAID.reset(token)


def _say(message: str) -> None:
  """Logs a choice that is new, and puts it into the list of `recorded`."""
  said = _SAID.get()
  if said is not None and message not in said:
    said.append(message)
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
  """The formula as it stands; arguments of `attend`."""
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
  """The formula with keys [b g, k, m] and values [b g, m, k], which are read as they stand; arguments of `attend`."""
  rows, length, heads, size = query.shape
  scale = 1 / math.sqrt(size) if scale is None else scale
  query = jnp.swapaxes(query * jnp.asarray(scale, query.dtype), 1, 2)  # [b, h, l, k]
  grouped = query.reshape(key.shape[0], -1, size)  # queries that share a key: [b g, h/g l, k]
  logits = jnp.einsum('gsk,gkm->gsm', grouped, key, preferred_element_type=jnp.float32)
  found = _normalise(logits.reshape(rows, heads, length, -1), mask=mask, bias=bias).astype(value.dtype)
  found = jnp.einsum('gsm,gmk->gsk', found.reshape(logits.shape), value)
  return jnp.swapaxes(found.reshape(rows, heads, length, size), 1, 2)


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
  """The formula for `chunk` queries at a time, computed again in the backward pass; other arguments of `attend`."""
  length = query.shape[1]
  if length <= chunk:
    return plain(query, key, value, mask=mask, bias=bias, dropout=dropout, rng=rng, scale=scale)
  count = -(-length // chunk)

  def cut(x: Array, axis: int) -> Array:
    """[..., l, ...] -> [count, ..., chunk, ...]; zeros fill the last one."""
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, count * chunk - length)
    parts = jnp.pad(x, padding).reshape(*x.shape[:axis], count, chunk, *x.shape[axis + 1 :])
    return jnp.moveaxis(parts, axis, 0)

  # arrays with an axis of queries are cut into chunks; all others are shared
  bias = None if bias is None else bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
  own = {'number': jnp.arange(count), 'query': cut(query, 1), 'segments': cut(mask.query_segments, 1)}
  if bias is not None and bias.shape[2] != 1:
    own['bias'] = cut(bias, 2)
  if mask.allowed is not None:
    own['allowed'] = cut(mask.allowed, 1)

  @functools.partial(jax.checkpoint, prevent_cse=False)
  def one(part: dict[str, Array]) -> Array:
    here = dataclasses.replace(mask, query_segments=part['segments'], allowed=part.get('allowed'))
    seen = visible(here, first=part['number'] * chunk)
    return plain(
      part['query'],
      key,
      value,
      mask=Mask(part['segments'], mask.key_segments, allowed=seen),
      bias=part.get('bias', bias),
      dropout=dropout,
      rng=None if rng is None else jax.random.fold_in(rng, part['number']),
      scale=scale,
    )

  parts = jax.lax.map(one, own)  # [count, b, chunk, h, k]
  return jnp.moveaxis(parts, 0, 1).reshape(query.shape[0], count * chunk, *parts.shape[3:])[:, :length]
