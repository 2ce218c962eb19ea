"""Prompt reading and stepwise decoding by decoders, encoder-decoders, prefix trunks, and GLM's blanks."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.param_paths import is_stacked, path_name
from plm_jax.core.types import Array, PyTree

Cache = PyTree  # a dictionary, see `trunk.Decodes`

# field of a cache -> its axis of slots; other fields have none
SLOTS = {'segment_ids': 1, 'positions': 1, 'seen': 2, 'keys': -1, 'values': -2, 'states': -2, 'cells': -2}
FEWEST_SLOTS = 256  # of all rows; attention to fewer is cheap compared with reading the weights
FEWEST_STEPS = 8  # between two calls of `give_back`, which moves the cache


class Prompts(NamedTuple):
  """Prompts, read before the first token is generated."""

  tokens: Array  # int32[b, p]
  segment_ids: Array  # int32[b, p], 1, and 0 on padding
  blank: Array | None  # int32[b], for trunks that fill blanks: the position of the mask to fill, counted in real tokens
  # first token that the decoder of an encoder-decoder or a prefix trunk reads; not part of the result
  start_id: int | None
  max_new: int  # most tokens to generate
  texts: int  # k, number of texts per prompt


class Reader(NamedTuple):
  """A trunk that has read its prompts, for k texts of each."""

  cache: Cache  # of the trunk, b rows, with no more slots than the prompts take
  # (tokens int[b, k], number of tokens generated before, cache) -> (logits f32[b, k, v], cache); the cache needs k
  # empty slots (`resize`)
  read: Callable[[Array, Array, Cache], tuple[Array, Cache]]
  token: Array  # int32[b], the token to read first: the last one of the prompt, or `start_id`
  before: Array  # int32[b, p], tokens before the text, including `token`, for `Constraints.no_repeat`; -1 is padding


def fills_blanks(trunk: nn.Module) -> bool:
  """Return True if a trunk fills blanks of its prompt (GLM)."""
  return trunk.ATTENTION == 'prefix' and 'block_positions' in trunk.INPUTS


def start(trunk: nn.Module, params: PyTree, prompts: Prompts) -> Reader:
  """Read the prompts with the attention of the trunk."""
  starts = {'causal': _start_causal, 'encoder-decoder': _start_seq2seq, 'prefix': _start_prefix}
  return starts[trunk.ATTENTION](trunk, params, prompts)


def align_right(tokens: Array, segment_ids: Array) -> tuple[Array, Array]:
  """Move the padding of rows int[b, p] to the left.

  Every prompt then ends in the last column.

  # tokens       a b c P P     source -2 -1 0 1 2
  # result       0 0 a b c     segment_ids 0 0 1 1 1
  """
  length = tokens.shape[1]
  index = jnp.arange(length)
  last = jnp.max(jnp.where(segment_ids > 0, index, 0), axis=1)
  source = index[None, :] - (length - 1 - last)[:, None]
  is_token = source >= 0
  source = jnp.maximum(source, 0)
  moved = jnp.take_along_axis(tokens, source, axis=1)
  return moved, jnp.where(is_token, jnp.take_along_axis(segment_ids, source, axis=1) > 0, False).astype(jnp.int32)


def resize(cache: Cache, slots: int) -> Cache:
  """Cut or pad the cache to `slots` slots."""

  def fit(x: Array, axis: int) -> Array:
    axis %= x.ndim
    more = max(0, slots - x.shape[axis])
    x = jax.lax.slice_in_dim(x, 0, min(slots, x.shape[axis]), axis=axis)
    return jnp.pad(x, [(0, more if dim == axis else 0) for dim in range(x.ndim)])

  return cache | _for_each_slot(fit, cache)


def stages(used: int, *, texts: int, max_new: int) -> list[int]:
  """List the numbers of tokens at which a cache grows.

  The last one is `max_new`. Prompts take `used` slots, and a step `texts`. Attention reads every slot of a cache, full
  or empty. The loop starts with an eighth of all slots and doubles them three times, unless an eighth is already few.
  Each stage is compiled separately.
  """
  total = used + texts * max_new
  sizes = [total >> halvings for halvings in (3, 2, 1)]
  stops = [(size - used) // texts for size in sizes if size >= FEWEST_SLOTS]
  return [*(stop for stop in stops if stop > max_new // 16), max_new]


def capacities(used: int, *, rows: int, texts: int, max_new: int) -> list[int]:
  """List the numbers of slots of a search of several texts.

  The last one is enough for any search. Texts of a search share tokens, and slots that no text sees are reused. Most
  searches end with about a slot for each token of one text or two; different texts would take one for each token of
  each. Attention reads every slot, full or empty, so there are some sizes in between; each is compiled separately.
  """
  most = used + texts * max_new
  begin = used + texts * 2 * FEWEST_STEPS
  sizes = [begin + max_new * sixths // 6 for sixths in (2, 4, 6, 9, 12)]
  return [*(size for size in sizes if FEWEST_SLOTS // rows <= size < most), most]


def give_back(cache: Cache) -> Cache:
  """Remove the slots that no text of its row sees.

  The others move to the front in order.

  # seen of two texts     after
  # x x . x . .           x . x . . .     slots 0, 2 and 3 stay; index 5 becomes 3
  # x . x x . .           x x x . . .
  """
  stays = cache['seen'].any(axis=1)
  order = jnp.argsort(~stays, axis=1, stable=True)  # int32[b, m]
  rows, slots = order.shape

  def move(x: Array, axis: int) -> Array:
    if axis > 0:  # [b, m] or [b, s, m]
      return jnp.take_along_axis(x, order.reshape(rows, *(1 for _ in range(axis - 1)), slots), axis=axis)
    apart = x.reshape(*x.shape[:-3], rows, -1, *x.shape[-2:])  # [..., b h, m, k] -> [..., b, h, m, k]
    index = order.reshape(rows, 1, *((slots, 1) if axis == -2 else (1, slots)))
    index = index.reshape(*(1 for _ in x.shape[:-3]), *index.shape)
    return jnp.take_along_axis(apart, index, axis=axis).reshape(x.shape)

  return cache | _for_each_slot(move, cache) | {'index': stays.sum(axis=1, dtype=jnp.int32).max()}


def _for_each_slot(change: Callable[..., Array], cache: Cache) -> Cache:
  return {
    name: jax.tree.map(functools.partial(change, axis=SLOTS[name]), cache[name]) for name in cache if name in SLOTS
  }


def _positions(segment_ids: Array) -> Array:
  """Count the real tokens from 0: int32[b, p]."""
  return jnp.maximum(jnp.cumsum(segment_ids, axis=1) - 1, 0)


def _known(prompts: Prompts) -> Array:
  """Return the prompts with -1 on padding, int32[b, p]."""
  return jnp.where(prompts.segment_ids > 0, prompts.tokens, -1)


def _first(prompts: Prompts) -> Array:
  """Return `start_id` for every row, int32[b]."""
  assert prompts.start_id is not None  # `generate` checks it
  return jnp.full(prompts.tokens.shape[0], prompts.start_id, jnp.int32)


def _ones(prompts: Prompts) -> Array:
  """Return segment ids of one more token per text, int32[b, k]."""
  return jnp.ones((prompts.tokens.shape[0], prompts.texts), jnp.int32)


def _stepper(trunk: nn.Module, params: PyTree) -> Callable[..., tuple[Array, PyTree]]:
  """Return `trunk.decode_step` for single tokens with these parameters.

  Its cache is one of `_cut_cache`. On a CPU the time of a step is the time to read the weights and the cache, and XLA
  copies those of each layer out of the stacked arrays before it multiplies. So the stacks are cut into layers once,
  before the loop. Inside the loop they are stacked again, as the trunk expects. The compiler removes this together with
  the trunk's own cuts, and writes new keys and values in place. On other devices everything stays stacked, since a
  second copy would take memory.
  """
  if not _cuts():
    return functools.partial(trunk.apply, {'params': params}, method='decode_step')

  def cut(path: tuple[Any, ...], leaf: Array) -> Array | list[Array]:
    return list(leaf) if is_stacked(path_name(path), leaf) else leaf

  parts = jax.tree_util.tree_map_with_path(cut, params)
  unrolled = trunk.clone(execution=dataclasses.replace(trunk.execution, layers='loop'))

  def step(tokens: Array, cache: Cache, **kwargs: Any) -> tuple[Array, Cache]:
    joined = {'params': _join(parts)}
    logits, cache = unrolled.apply(joined, tokens, _join(cache), method='decode_step', **kwargs)
    return logits, _cut_cache(cache)

  return step


def _cuts() -> bool:
  return jax.default_backend() == 'cpu'


def _cut_cache(cache: Cache) -> Cache:
  """Convert a cache for the loop: lists of layers on a CPU."""
  return {name: list(leaf) if leaf.ndim == 4 and _cuts() else leaf for name, leaf in cache.items()}


def _join(parts: PyTree) -> PyTree:
  """Stack the lists of layers in a tree."""

  def is_cut(node: Any) -> bool:
    return isinstance(node, list)

  return jax.tree.map(lambda part: jnp.stack(part) if is_cut(part) else part, parts, is_leaf=is_cut)


def _start_causal(trunk: nn.Module, params: PyTree, prompts: Prompts) -> Reader:
  """Read the prompt except its last token, which `read` gets first."""
  tokens, segment_ids = prompts.tokens, prompts.segment_ids
  rows, length = tokens.shape
  apply = functools.partial(trunk.apply, {'params': params})
  cache = apply(rows, length + prompts.max_new - 1, method='init_cache')  # the last generated token is not read
  cache = resize(cache, length - 1)
  positions = _positions(segment_ids)
  if length > 1:  # the compiler drops the unused logits
    _, cache = apply(
      tokens[:, :-1], cache, segment_ids=segment_ids[:, :-1], positions=positions[:, :-1], method='decode_step'
    )
  ones, step = _ones(prompts), _stepper(trunk, params)
  last = positions[:, -1:] * ones

  def read(tokens: Array, num_new: Array, cache: Cache) -> tuple[Array, Cache]:
    return step(tokens, cache, segment_ids=ones, positions=last + num_new)

  return Reader(cache=_cut_cache(cache), read=read, token=tokens[:, -1], before=_known(prompts))


def _start_seq2seq(trunk: nn.Module, params: PyTree, prompts: Prompts) -> Reader:
  """Encode the prompt; the decoder begins with `start_id`."""
  segment_ids = prompts.segment_ids
  apply = functools.partial(trunk.apply, {'params': params})
  hidden = apply(prompts.tokens, segment_ids=segment_ids, positions=_positions(segment_ids), method='encode')
  cache = apply(
    len(segment_ids), prompts.max_new, encoder_hidden=hidden, encoder_segment_ids=segment_ids, method='init_cache'
  )
  ones, step = _ones(prompts), _stepper(trunk, params)

  def read(tokens: Array, num_new: Array, cache: Cache) -> tuple[Array, Cache]:
    return step(tokens, cache, segment_ids=ones, positions=jnp.broadcast_to(num_new, ones.shape))

  first = _first(prompts)
  return Reader(cache=_cut_cache(resize(cache, 0)), read=read, token=first, before=first[:, None])


def _start_prefix(trunk: nn.Module, params: PyTree, prompts: Prompts) -> Reader:
  """Read the prompt in both directions; the text begins with `start_id`."""
  rows, length = prompts.tokens.shape
  apply = functools.partial(trunk.apply, {'params': params})
  cache = resize(apply(rows, length + prompts.max_new, method='init_cache'), length)
  positions, blank = _positions(prompts.segment_ids), prompts.blank
  # tokens of one call see each other in both directions; a trunk with blanks needs `whole` for it
  whole: dict[str, Any] = {} if blank is None else {'whole': True}
  _, cache = apply(
    prompts.tokens, cache, segment_ids=prompts.segment_ids, positions=positions, method='decode_step', **whole
  )
  ones, step = _ones(prompts), _stepper(trunk, params)
  begin = positions[:, -1] + 1 if blank is None else jnp.asarray(blank, jnp.int32)
  position = begin[:, None] * ones

  def read(tokens: Array, num_new: Array, cache: Cache) -> tuple[Array, Cache]:
    if blank is None:
      return step(tokens, cache, segment_ids=ones, positions=position + num_new)
    inside = jnp.broadcast_to(num_new + 1, ones.shape)
    return step(tokens, cache, segment_ids=ones, positions=position, block_positions=inside)

  first = _first(prompts)
  before = jnp.append(_known(prompts), first[:, None], axis=1)
  return Reader(cache=_cut_cache(cache), read=read, token=first, before=before)
