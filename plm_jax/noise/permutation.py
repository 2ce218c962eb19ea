"""Permutation language modelling (Yang et al. 2019, §2.2 and §2.3; released data pipeline): targets, orders, masks.

A row has two parts, before and after `boundary`; the first is what the memory keeps. Each has its own targets and its
own order, and the first part does not see the second.
"""

import jax
import jax.numpy as jnp

from plm_jax.noise.draws import choose, draw_scores
from plm_jax.noise.row import Row
from plm_jax.types import Array


def goals(length: int, *, boundary: int, one_in: int) -> tuple[int, int]:
  """Targets of the two parts of a full row: one in K tokens, the odd one in the first (512 -> 43 + 42 for K = 6)."""
  if not 0 < boundary < length:
    raise ValueError(f'a row of {length} tokens has no two parts around position {boundary}')
  total = length // one_in
  if one_in < 1 or total < 2:
    raise ValueError(f'one target in {one_in} tokens gives a row of {length} fewer than one target a part')
  return total - total // 2, total // 2


def gram_shares(max_gram: int) -> Array:
  """Probability of each n-gram length 1..max_gram, proportional to 1/n: f32[max_gram]."""
  shares = 1 / jnp.arange(1, max_gram + 1, dtype=jnp.float32)
  return shares / shares.sum()


def choose_targets(
  key: Array,
  row: Row,
  *,
  boundary: int,
  one_in: int = 6,
  spans: bool = True,
  max_gram: int = 5,
  window: int = 6,
  reverse: Array | bool = False,
) -> Array:
  """Which tokens are predicted: bool[l], exactly `goals` of them in each part that is full.

  Spans are drawn from left to right: n tokens in a context of n * window, at a random place in it, moved on to the next
  start of a word. A span that would reach the end of its part ends the drawing. Single tokens drawn uniformly make up
  the rest. As in the released code, n counts pieces, not words, and so may cut a word. A part that has padding has
  proportionally fewer targets.

  Args:
    key: noise key of the row.
    row: with word ids; only eligible tokens are targets, and a span ends where its segment does.
    boundary: where the second part begins.
    one_in: K of the paper, one target in so many tokens.
    spans: False draws single tokens only.
    max_gram: the longest span.
    window: tokens of context for each token of a span.
    reverse: bool[], of a row that holds text from its end to its beginning: spans are drawn in reading order.

  Raises:
    ValueError: no word ids, or parts without targets.
  """
  if row.word_ids is None:
    raise ValueError('choose_targets needs word ids: a vocabulary that says which pieces start a word')
  starts = jnp.diff(row.word_ids, prepend=0) > 0
  chosen = []
  numbers = goals(row.ids.shape[0], boundary=boundary, one_in=one_in)
  parts = (slice(None, boundary), slice(boundary, None))
  for part_key, part, most in zip(jax.random.split(key), parts, numbers, strict=True):
    eligible, segments, begins = (
      jnp.where(reverse, x[part][::-1], x[part]) for x in (row.eligible, row.segment_ids, starts)
    )
    length = eligible.shape[0]
    goal = jnp.minimum(most * (segments > 0).sum() // length, eligible.sum())
    span_key, rest_key = jax.random.split(part_key)
    taken, count = jnp.zeros(length, bool), jnp.int32(0)
    if spans:
      taken, count = _spans(
        span_key, eligible, segments, begins & eligible, goal=goal, most=most, max_gram=max_gram, window=window
      )
    taken = taken | choose(rest_key, eligible & ~taken, goal - count)
    chosen.append(jnp.where(reverse, taken[::-1], taken))
  return jnp.concatenate(chosen)


def _spans(
  key: Array, eligible: Array, segments: Array, begins: Array, *, goal: Array, most: int, max_gram: int, window: int
) -> tuple[Array, Array]:
  """(bool[l], how many) chosen as spans in one part, at most `goal` <= `most`."""
  length = eligible.shape[0]
  index = jnp.arange(length)
  following = jnp.where(begins, index, length)
  following = jnp.append(jax.lax.cummin(following, reverse=True), length)  # [l + 1], the next start from here on
  ends = jnp.append(segments[1:] != segments[:-1], True)
  walls = jnp.append(jax.lax.cummin(jnp.where(ends, index + 1, length), reverse=True), length)  # [l + 1], segment's end
  before = jnp.pad(jnp.cumsum(eligible.astype(jnp.int32)), (1, 0))  # [l + 1], eligible tokens up to here
  gram_key, place_key = jax.random.split(key)
  grams = 1 + jax.random.choice(gram_key, max_gram, (most,), p=gram_shares(max_gram))
  shares = jax.random.uniform(place_key, (most,))

  def draw(state: tuple[Array, Array], drawn: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    count, cursor = state
    gram, share = drawn
    n = jnp.minimum(gram, goal - count)
    context = n * window
    left = jnp.minimum((share * context).astype(jnp.int32), context - 1)
    start = following[jnp.clip(cursor + left, 0, length)]
    end = start + n
    fits = (n > 0) & (end < length)
    stop = jnp.where(fits, jnp.minimum(end, walls[start]), start)  # an empty span where it does not fit
    # a cursor at the end of the part draws nothing more
    cursor = jnp.where(fits, end + context - left, length)
    return (count + before[stop] - before[start], cursor), (start, stop)

  (count, _), (starts, stops) = jax.lax.scan(draw, (jnp.int32(0), jnp.int32(0)), (grams, shares))
  inside = jnp.zeros(length + 1, jnp.int32).at[starts].add(1).at[stops].add(-1)  # spans do not overlap
  return (jnp.cumsum(inside)[:length] > 0) & eligible, count


def draw_ranks(key: Array, length: int, *, boundary: int, block: int | None = None) -> Array:
  """The place of each position in the order of factorisation, int32[l], counted from 0 in each part.

  Args:
    key: noise key of the row.
    length: of the row.
    boundary: where the second part begins.
    block: perm_size: tokens in a block; blocks keep their order and all blocks of a part share one random order
      inside. None is one block a part.

  Raises:
    ValueError: a part is not a whole number of blocks.
  """
  ranks = []
  for part_key, size in zip(jax.random.split(key), (boundary, length - boundary), strict=True):
    each = block or size
    if size % each:
      raise ValueError(f'a part of {size} tokens is not a whole number of blocks of {each}')
    order = _random_order(part_key, each)
    ranks.append((each * jnp.arange(size // each)[:, None] + order).reshape(-1))
  return jnp.concatenate(ranks).astype(jnp.int32)


def _random_order(key: Array, size: int) -> Array:
  """int32[n]: a random permutation, by sorting numbers that carry their places; sorting pairs takes a CPU longer."""
  numbers, places = draw_scores(key, size)
  return (jnp.sort(numbers) & places) - 1


def visible(ranks: Array, targets: Array, functional: Array, *, boundary: int) -> Array:
  """bool[l, l]: what a query may look at, which is the mask of the query stream.

  Tokens that are neither targets nor functional come before all others: everybody sees them, and they see no target. A
  target sees what comes before it; a functional token (<sep>, <cls>) is never predicted and sees itself as well.

  Args:
    ranks: int[l], places in the order.
    targets: bool[l].
    functional: bool[l], apart from the targets.
    boundary: the second part sees all of the first, the first nothing of the second.
  """
  length = ranks.shape[0]
  keys = jnp.where(targets | functional, ranks, -1)
  queries = jnp.where(targets, keys, keys + 1)
  second = jnp.arange(length) >= boundary
  # what the second part is ranked by lies above all of the first: one comparison tells everything
  keys, queries = (jnp.where(second, x + length + 1, x) for x in (keys, queries))
  small = jnp.int16 if 2 * (length + 1) < 2**15 else jnp.int32  # twice as many to a vector register
  return queries.astype(small)[:, None] > keys.astype(small)[None, :]
