"""How a trunk reads a prompt and goes on by single tokens: decoders, encoder-decoders, GLM's blanks."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.types import Array, PyTree


def fills_blanks(trunk: nn.Module) -> bool:
  """Whether a trunk writes into blanks of its prompt, as GLM does."""
  return trunk.ATTENTION == 'prefix' and 'block_positions' in trunk.INPUTS


class Reader(NamedTuple):
  """A trunk in the middle of its texts.

  Attributes:
    cache: of the trunk.
    read: (tokens int[r], number of tokens made before, cache) -> (logits f32[r, v], cache).
    token: int32[b], what is read first: the end of the prompt, or the token that begins a text.
    before: int32[b, p], all that stands before the text and counts for `no_repeat`, `token` included; -1 is padding.
  """

  cache: PyTree
  read: Callable[[Array, Array, PyTree], tuple[Array, PyTree]]
  token: Array
  before: Array


def to_the_right(tokens: Array, segment_ids: Array) -> tuple[Array, Array]:
  """Rows with their padding on the left, so that every prompt ends in the last column."""
  length = tokens.shape[1]
  index = jnp.arange(length)
  last = jnp.max(jnp.where(segment_ids > 0, index, 0), axis=1)
  source = index[None, :] - (length - 1 - last)[:, None]
  there = source >= 0
  source = jnp.maximum(source, 0)
  moved = jnp.take_along_axis(tokens, source, axis=1)
  return moved, jnp.where(there, jnp.take_along_axis(segment_ids, source, axis=1) > 0, False).astype(jnp.int32)


def _known(tokens: Array, segment_ids: Array) -> Array:
  """Tokens with -1 for padding."""
  return jnp.where(segment_ids > 0, tokens, -1)


def _repeat(tree: PyTree, copies: int) -> PyTree:
  """Every row of a cache `copies` times in a row."""
  return jax.tree.map(lambda x: jnp.repeat(x, copies, axis=row_axis(x)) if x.ndim else x, tree)


def row_axis(x: Array) -> int:
  """Which axis of a cache's array counts rows: the second of what is kept a layer, [n, b, m, h, k]."""
  return 1 if x.ndim == 5 else 0


def _stepper(trunk: nn.Module, params: PyTree) -> Callable[..., tuple[Array, PyTree]]:
  """`trunk.decode_step` for single tokens with these parameters.

  A step on a CPU takes as long as reading the weights, and XLA copies each layer's out of the stack before it
  multiplies. So the stack is cut once, before the loop; in it the parts are joined for the trunk, and the compiler
  drops the join together with the cuts behind it. Other devices, short of memory, keep one copy.
  """
  if jax.default_backend() != 'cpu':
    return functools.partial(trunk.apply, {'params': params}, method='decode_step')

  def cut(path: tuple[Any, ...], leaf: Array) -> Array | list[Array]:
    return list(leaf) if any(part.key == 'layers' for part in path) else leaf

  parts = jax.tree_util.tree_map_with_path(cut, params)
  unrolled = trunk.clone(execution=dataclasses.replace(trunk.execution, layers='loop'))

  def step(*args: Any, **kwargs: Any) -> tuple[Array, PyTree]:
    def is_cut(node: Any) -> bool:
      return isinstance(node, list)

    joined = jax.tree.map(lambda part: jnp.stack(part) if is_cut(part) else part, parts, is_leaf=is_cut)
    return unrolled.apply({'params': joined}, *args, method='decode_step', **kwargs)

  return step


def start_causal(
  trunk: nn.Module,
  params: PyTree,
  tokens: Array,
  segment_ids: Array,
  max_new: int,
  start_id: int | None,
  blank: Array | None,
  copies: int,
) -> Reader:
  del start_id, blank
  rows, length = tokens.shape
  apply = functools.partial(trunk.apply, {'params': params})
  cache = apply(rows, length + max_new - 1, method='init_cache')  # nothing reads the last token
  positions = jnp.maximum(jnp.cumsum(segment_ids, axis=1) - 1, 0)
  if length > 1:  # nobody reads these logits, so they are not computed
    _, cache = apply(
      tokens[:, :-1], cache, segment_ids=segment_ids[:, :-1], positions=positions[:, :-1], method='decode_step'
    )
  cache = _repeat(cache, copies)
  last = jnp.repeat(positions[:, -1], copies)
  ones = jnp.ones((rows * copies, 1), jnp.int32)
  step = _stepper(trunk, params)

  def read(tokens: Array, made: Array, cache: PyTree) -> tuple[Array, PyTree]:
    logits, cache = step(tokens[:, None], cache, segment_ids=ones, positions=(last + made)[:, None])
    return logits[:, 0], cache

  return Reader(cache, read, tokens[:, -1], _known(tokens, segment_ids))


def start_seq2seq(
  trunk: nn.Module,
  params: PyTree,
  tokens: Array,
  segment_ids: Array,
  max_new: int,
  start_id: int | None,
  blank: Array | None,
  copies: int,
) -> Reader:
  del blank
  rows = tokens.shape[0]
  apply = functools.partial(trunk.apply, {'params': params})
  positions = jnp.maximum(jnp.cumsum(segment_ids, axis=1) - 1, 0)
  hidden = apply(tokens, segment_ids=segment_ids, positions=positions, method='encode')
  cache = apply(rows, max_new, encoder_hidden=hidden, encoder_segment_ids=segment_ids, method='init_cache')
  ones = jnp.ones((rows * copies, 1), jnp.int32)
  step = _stepper(trunk, params)

  def read(tokens: Array, made: Array, cache: PyTree) -> tuple[Array, PyTree]:
    logits, cache = step(tokens[:, None], cache, segment_ids=ones, positions=jnp.broadcast_to(made, ones.shape))
    return logits[:, 0], cache

  assert start_id is not None  # checked
  first = jnp.full(rows, start_id, jnp.int32)
  return Reader(_repeat(cache, copies), read, first, first[:, None])


def start_prefix(
  trunk: nn.Module,
  params: PyTree,
  tokens: Array,
  segment_ids: Array,
  max_new: int,
  start_id: int | None,
  blank: Array | None,
  copies: int,
) -> Reader:
  rows, length = tokens.shape
  apply = functools.partial(trunk.apply, {'params': params})
  cache = apply(rows, length + max_new, method='init_cache')
  positions = jnp.maximum(jnp.cumsum(segment_ids, axis=1) - 1, 0)
  together: dict[str, Any] = (
    {} if blank is None else {'whole': True}
  )  # without blanks, tokens of one call are always together
  _, cache = apply(tokens, cache, segment_ids=segment_ids, positions=positions, method='decode_step', **together)
  step = _stepper(trunk, params)
  ones = jnp.ones((rows * copies, 1), jnp.int32)
  place = jnp.repeat(positions[:, -1] + 1 if blank is None else jnp.asarray(blank, jnp.int32), copies)[:, None]

  def read(tokens: Array, made: Array, cache: PyTree) -> tuple[Array, PyTree]:
    if blank is None:
      logits, cache = step(tokens[:, None], cache, segment_ids=ones, positions=place + made)
    else:
      inside = jnp.broadcast_to(made + 1, ones.shape)
      logits, cache = step(tokens[:, None], cache, segment_ids=ones, positions=place, block_positions=inside)
    return logits[:, 0], cache

  assert start_id is not None  # checked
  first = jnp.full(rows, start_id, jnp.int32)
  return Reader(_repeat(cache, copies), read, first, jnp.append(_known(tokens, segment_ids), first[:, None], axis=1))
