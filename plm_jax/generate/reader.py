"""How a trunk reads prompts and continues by single tokens: decoders, encoder-decoders, prefix trunks, GLM's blanks."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.param_paths import is_stacked, path_name
from plm_jax.core.types import Array, PyTree

Cache = PyTree  # a dictionary, see `types.Decodes`

# the axis of slots of what a cache keeps for each slot; the others have none
SLOTS = {'segment_ids': 1, 'positions': 1, 'seen': 2, 'keys': -1, 'values': -2, 'states': -2, 'cells': -2}
FEWEST_SLOTS = 256  # of all rows; attending to fewer costs next to nothing beside reading the weights
FEWEST_STEPS = 8  # between two calls of `give_back`, which moves the cache


class Prompts(NamedTuple):
  """What is read before the first token is made.

  Attributes:
    tokens: int32[b, p].
    segment_ids: int32[b, p], 1, and 0 on padding.
    blank: int32[b], for trunks that fill blanks: the place of the mask to fill, counted in real tokens.
    start_id: token that the text of an encoder-decoder or a prefix trunk begins with; it is not part of the result.
    max_new: most tokens to make.
    texts: k, number of texts per prompt.
  """

  tokens: Array
  segment_ids: Array
  blank: Array | None
  start_id: int | None
  max_new: int
  texts: int


class Reader(NamedTuple):
  """A trunk that has read its prompts, for k texts of each of them.

  Attributes:
    cache: of the trunk, b rows, with no more slots than the prompts take.
    read: (tokens int[b, k], number of tokens made before, cache) -> (logits f32[b, k, v], cache); the cache needs k
      empty slots (`resize`).
    token: int32[b], the token to read first: the last one of the prompt, or `start_id`.
    before: int32[b, p], tokens before the text, `token` included, for `Constraints.no_repeat`; -1 is padding.
  """

  cache: Cache
  read: Callable[[Array, Array, Cache], tuple[Array, Cache]]
  token: Array
  before: Array


def fills_blanks(trunk: nn.Module) -> bool:
  """Whether a trunk writes into blanks of its prompt, as GLM does."""
  return trunk.ATTENTION == 'prefix' and 'block_positions' in trunk.INPUTS


def start(trunk: nn.Module, params: PyTree, prompts: Prompts) -> Reader:
  """Reads the prompts, in the way that the attention of the trunk asks for."""
  starts = {'causal': _start_causal, 'encoder-decoder': _start_seq2seq, 'prefix': _start_prefix}
  return starts[trunk.ATTENTION](trunk, params, prompts)


def align_right(tokens: Array, segment_ids: Array) -> tuple[Array, Array]:
  """Rows int[b, p] with their padding on the left, so that every prompt ends in the last column.

  # tokens       a b c P P     source -2 -1 0 1 2
  # result       0 0 a b c     segment_ids 0 0 1 1 1
  """
  length = tokens.shape[1]
  index = jnp.arange(length)
  last = jnp.max(jnp.where(segment_ids > 0, index, 0), axis=1)
  source = index[None, :] - (length - 1 - last)[:, None]
  there = source >= 0
  source = jnp.maximum(source, 0)
  moved = jnp.take_along_axis(tokens, source, axis=1)
  return moved, jnp.where(there, jnp.take_along_axis(segment_ids, source, axis=1) > 0, False).astype(jnp.int32)


def resize(cache: Cache, slots: int) -> Cache:
  """The cache with so many slots: the first ones, or all of them and empty ones behind."""

  def fit(x: Array, axis: int) -> Array:
    axis %= x.ndim
    more = max(0, slots - x.shape[axis])
    x = jax.lax.slice_in_dim(x, 0, min(slots, x.shape[axis]), axis=axis)
    return jnp.pad(x, [(0, more if number == axis else 0) for number in range(x.ndim)])

  return cache | _for_each_slot(fit, cache)


def stages(used: int, *, texts: int, max_new: int) -> list[int]:
  """Numbers of tokens at which a cache gets more slots, the last one `max_new`.

  Attention reads every slot of a cache, full or empty. So a loop begins with an eighth of all slots and doubles them
  thrice, where an eighth is not already few; each stage is compiled by itself.

  Args:
    used: slots of the prompts.
    texts: slots that a step takes.
    max_new: most steps.
  """
  total = used + texts * max_new
  sizes = [total >> halvings for halvings in (3, 2, 1)]
  stops = [(size - used) // texts for size in sizes if size >= FEWEST_SLOTS]
  return [*(stop for stop in stops if stop > max_new // 16), max_new]


def capacities(used: int, *, rows: int, texts: int, max_new: int) -> list[int]:
  """Numbers of slots that a search of several texts begins and goes on with, the last one enough for any search.

  Texts of a search have tokens in common, and slots that no text sees are given back. Most searches end with about a
  slot for each token of one text or two, where different texts would take one for each token of each. Attention reads
  every slot, full or empty, so there are some numbers on the way; each is compiled by itself.

  Args:
    used: slots of the prompts.
    rows: of the cache.
    texts: slots that a step takes.
    max_new: most steps.
  """
  most = used + texts * max_new
  begin = used + texts * 2 * FEWEST_STEPS
  sizes = [begin + max_new * sixths // 6 for sixths in (2, 4, 6, 9, 12)]
  return [*(size for size in sizes if FEWEST_SLOTS // rows <= size < most), most]


def give_back(cache: Cache) -> Cache:
  """The cache without the slots that no text of its row sees: those that stay move to the front, in their order.

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
  """What a cache keeps for each slot, changed by a function of an array and its axis of slots."""
  return {
    name: jax.tree.map(functools.partial(change, axis=SLOTS[name]), cache[name]) for name in cache if name in SLOTS
  }


def _positions(segment_ids: Array) -> Array:
  """int32[b, p]: numbers of the real tokens from 0."""
  return jnp.maximum(jnp.cumsum(segment_ids, axis=1) - 1, 0)


def _known(prompts: Prompts) -> Array:
  """int32[b, p]: the prompts with -1 on padding."""
  return jnp.where(prompts.segment_ids > 0, prompts.tokens, -1)


def _first(prompts: Prompts) -> Array:
  """int32[b]: `start_id` of every row."""
  assert prompts.start_id is not None  # `generate` checks it
  return jnp.full(prompts.tokens.shape[0], prompts.start_id, jnp.int32)


def _ones(prompts: Prompts) -> Array:
  """int32[b, k]: segment ids of one more token per text."""
  return jnp.ones((prompts.tokens.shape[0], prompts.texts), jnp.int32)


def _stepper(trunk: nn.Module, params: PyTree) -> Callable[..., tuple[Array, PyTree]]:
  """`trunk.decode_step` for single tokens with these parameters; its cache is one of `_cut_cache`.

  On a CPU the time of a step is the time to read the weights and the cache, and XLA copies those of each layer out of
  the stacked arrays before it multiplies. So the stacks are cut into layers once, before the loop. Within the loop they
  are stacked again, as the trunk expects; the compiler removes this together with the cuts that the trunk then makes,
  and writes new keys and values where they belong. On other devices all stay stacked, since a second copy would take
  memory.
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
  """A cache of `decode_step` as the steps of a loop have it: on a CPU, a list of layers for what is kept per layer."""
  return {name: list(leaf) if leaf.ndim == 4 and _cuts() else leaf for name, leaf in cache.items()}


def _join(parts: PyTree) -> PyTree:
  """A tree whose lists of layers are stacked."""

  def is_cut(node: Any) -> bool:
    return isinstance(node, list)

  return jax.tree.map(lambda part: jnp.stack(part) if is_cut(part) else part, parts, is_leaf=is_cut)


def _start_causal(trunk: nn.Module, params: PyTree, prompts: Prompts) -> Reader:
  """A decoder reads the prompt but for its last token, which is the first that `read` gets."""
  tokens, segment_ids = prompts.tokens, prompts.segment_ids
  rows, length = tokens.shape
  apply = functools.partial(trunk.apply, {'params': params})
  cache = apply(rows, length + prompts.max_new - 1, method='init_cache')  # the last token made is not read
  cache = resize(cache, length - 1)
  positions = _positions(segment_ids)
  if length > 1:  # the logits are not used, so the compiler drops them
    _, cache = apply(
      tokens[:, :-1], cache, segment_ids=segment_ids[:, :-1], positions=positions[:, :-1], method='decode_step'
    )
  ones, step = _ones(prompts), _stepper(trunk, params)
  last = positions[:, -1:] * ones

  def read(tokens: Array, made: Array, cache: Cache) -> tuple[Array, Cache]:
    return step(tokens, cache, segment_ids=ones, positions=last + made)

  return Reader(_cut_cache(cache), read, tokens[:, -1], _known(prompts))


def _start_seq2seq(trunk: nn.Module, params: PyTree, prompts: Prompts) -> Reader:
  """The encoder reads the prompt; the decoder begins with `start_id`."""
  segment_ids = prompts.segment_ids
  apply = functools.partial(trunk.apply, {'params': params})
  hidden = apply(prompts.tokens, segment_ids=segment_ids, positions=_positions(segment_ids), method='encode')
  cache = apply(
    len(segment_ids), prompts.max_new, encoder_hidden=hidden, encoder_segment_ids=segment_ids, method='init_cache'
  )
  ones, step = _ones(prompts), _stepper(trunk, params)

  def read(tokens: Array, made: Array, cache: Cache) -> tuple[Array, Cache]:
    return step(tokens, cache, segment_ids=ones, positions=jnp.broadcast_to(made, ones.shape))

  first = _first(prompts)
  return Reader(_cut_cache(resize(cache, 0)), read, first, first[:, None])


def _start_prefix(trunk: nn.Module, params: PyTree, prompts: Prompts) -> Reader:
  """The prompt is read both ways; the text begins with `start_id`, after the prompt or at the mask of its blank."""
  rows, length = prompts.tokens.shape
  apply = functools.partial(trunk.apply, {'params': params})
  cache = resize(apply(rows, length + prompts.max_new, method='init_cache'), length)
  positions, blank = _positions(prompts.segment_ids), prompts.blank
  # tokens of one call see each other both ways: always in a trunk without blanks, on request in one with blanks
  whole: dict[str, Any] = {} if blank is None else {'whole': True}
  _, cache = apply(
    prompts.tokens, cache, segment_ids=prompts.segment_ids, positions=positions, method='decode_step', **whole
  )
  ones, step = _ones(prompts), _stepper(trunk, params)
  begin = positions[:, -1] + 1 if blank is None else jnp.asarray(blank, jnp.int32)
  place = begin[:, None] * ones

  def read(tokens: Array, made: Array, cache: Cache) -> tuple[Array, Cache]:
    if blank is None:
      return step(tokens, cache, segment_ids=ones, positions=place + made)
    inside = jnp.broadcast_to(made + 1, ones.shape)
    return step(tokens, cache, segment_ids=ones, positions=place, block_positions=inside)

  first = _first(prompts)
  before = jnp.append(_known(prompts), first[:, None], axis=1)
  return Reader(_cut_cache(cache), read, first, before)
