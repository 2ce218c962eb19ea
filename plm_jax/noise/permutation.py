"""Permutation language modelling (Yang et al. 2019, §2.2 and §2.3; released data pipeline): targets, orders, masks.

A row has two parts, before and from position `boundary` on; the memory keeps the first part. Each part has its own
targets and its own order, and the first part does not see the second.
"""

import jax
import jax.numpy as jnp

from plm_jax.core.types import Array, Count
from plm_jax.noise.row import Row
from plm_jax.noise.without_replacement import choose, draw_scores


def goals(length: int, *, boundary: int, one_in: int) -> tuple[int, int]:
  """Number of targets in each part of a full row: one in K tokens (for K = 6, 512 tokens have 43 + 42 targets).

  Raises:
    ValueError: a boundary outside of the row, or a part without targets.
  """
  if not 0 < boundary < length:
    raise ValueError(f'boundary={boundary} does not divide a row of {length} tokens into two parts')
  total = length // one_in
  if one_in < 1 or total < 2:
    raise ValueError(f'one_in={one_in}: a row of {length} tokens has fewer than one target per part')
  return total - total // 2, total // 2


def gram_shares(max_gram: int) -> Array:
  """f32[max_gram]: probabilities of the n-gram lengths 1 to max_gram, proportional to 1/n."""
  shares = 1 / jnp.arange(1, max_gram + 1, dtype=jnp.float32)
  return shares / shares.sum()


def choose_targets(
  key: Array,
  row: Row,
  *,
  boundary: int,
  one_in: Count = 6,
  spans: bool = True,
  max_gram: int = 5,
  window: int = 6,
  reverse: Array | bool = False,
) -> Array:
  """Which tokens are predicted: bool[l], exactly `goals` of them in each part without padding.

  Spans are drawn from left to right: n tokens in a context of n * window tokens, at a uniform place in it, moved right
  to the next start of a word. The first span that would reach the end of its part ends the drawing. Single tokens drawn
  uniformly make up the goal. As in the released code n counts tokens, so a span may end within a word. The goal of a
  part with padding is smaller in proportion.

  Args:
    key: noise key of the row.
    row: with word ids; only eligible tokens are targets, and spans never cross a document boundary.
    boundary: first position of the second part.
    one_in: K of the paper: one target per K tokens.
    spans: False draws single tokens only.
    max_gram: tokens of the longest span.
    window: tokens of context per token of a span.
    reverse: bool[], True where the row holds text from its end to its beginning; spans are drawn in reading order.

  Raises:
    ValueError: a row without word ids, or a part without targets.
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
      taken, count = _draw_spans(
        span_key, eligible, segments, begins & eligible, goal=goal, most=most, max_gram=max_gram, window=window
      )
    taken = taken | choose(rest_key, eligible & ~taken, goal - count)
    chosen.append(jnp.where(reverse, taken[::-1], taken))
  return jnp.concatenate(chosen)


def _draw_spans(
  key: Array, eligible: Array, segments: Array, begins: Array, *, goal: Array, most: int, max_gram: int, window: int
) -> tuple[Array, Array]:
  """Tokens of one part that are chosen as spans: bool[l], and their number int32[], at most `goal` <= `most`.

  # window 2, drawn n 2 1, places 1 1; `<` starts a word
  # word       <  <     <  <  <  <  <  <
  # token      a  b  c  d  e  f  g  h  i     cursor 0, then 3 + 4 - 1 = 6
  # chosen     0  1  1  0  0  0  0  1  0     a span begins at cursor + place, or at the next `<`
  """
  length = eligible.shape[0]
  index = jnp.arange(length)
  # by position, [l + 1]: the next start of a word, the end of the segment, the number of eligible tokens on the left
  next_start = jnp.append(jax.lax.cummin(jnp.where(begins, index, length), reverse=True), length)
  ends = jnp.append(segments[1:] != segments[:-1], True)
  segment_end = jnp.append(jax.lax.cummin(jnp.where(ends, index + 1, length), reverse=True), length)
  before = jnp.pad(jnp.cumsum(eligible.astype(jnp.int32)), (1, 0))
  gram_key, place_key = jax.random.split(key)
  grams = 1 + jax.random.choice(gram_key, max_gram, (most,), p=gram_shares(max_gram))
  shares = jax.random.uniform(place_key, (most,))

  def draw(state: tuple[Array, Array], drawn: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    count, cursor = state
    gram, share = drawn
    n = jnp.minimum(gram, goal - count)
    context = n * window
    left = jnp.minimum((share * context).astype(jnp.int32), context - 1)
    start = next_start[jnp.clip(cursor + left, 0, length)]
    end = start + n
    fits = (n > 0) & (end < length)
    stop = jnp.where(fits, jnp.minimum(end, segment_end[start]), start)  # an empty span where it does not fit
    # with the cursor at the end of the part no further span fits
    cursor = jnp.where(fits, end + context - left, length)
    return (count + before[stop] - before[start], cursor), (start, stop)

  (count, _), (starts, stops) = jax.lax.scan(draw, (jnp.int32(0), jnp.int32(0)), (grams, shares))
  inside = jnp.zeros(length + 1, jnp.int32).at[starts].add(1).at[stops].add(-1)  # spans do not overlap
  return (jnp.cumsum(inside)[:length] > 0) & eligible, count


def draw_ranks(key: Array, length: int, *, boundary: int, block: int | None = None) -> Array:
  """int32[l]: rank of each position in the factorisation order, from 0 in each part.

  Args:
    key: noise key of the row.
    length: tokens of the row.
    boundary: first position of the second part.
    block: tokens per block (`perm_size` of the released code). Blocks keep their order; all blocks of a part have the
      same random order inside. None makes each part one block.

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
  """int32[n]: a random permutation. Sorts scores with the place in their low bits; sorting pairs takes a CPU longer."""
  numbers, places = draw_scores(key, size)
  return (jnp.sort(numbers) & places) - 1


def visible(ranks: Array, targets: Array, functional: Array, *, boundary: int) -> Array:
  """bool[l, l]: True where a query sees a key: the mask of the query stream.

  Tokens that are neither targets nor functional come before all others in the order: every query sees them, and they
  see no target. A target sees all tokens before it in the order; a functional token (<sep>, <cls>) is never predicted
  and sees itself as well.

  # rank        2  0  3  1     the second and third token are targets, no functional one
  # key        -1  0  3 -1     query q sees key k where query > key
  # query       0  0  3  0     the second sees the first and last, the third all but itself

  Args:
    ranks: int[l], of `draw_ranks`.
    targets: bool[l].
    functional: bool[l], none of them a target.
    boundary: first position of the second part, which sees all of the first part; the first sees nothing of the second.
  """
  length = ranks.shape[0]
  keys = jnp.where(targets | functional, ranks, -1)
  queries = jnp.where(targets, keys, keys + 1)
  second = jnp.arange(length) >= boundary
  # the numbers of the second part are larger than all of the first, so one comparison gives the whole mask
  keys, queries = (jnp.where(second, x + length + 1, x) for x in (keys, queries))
  small = jnp.int16 if 2 * (length + 1) < 2**15 else jnp.int32  # twice as many per vector register
  return queries.astype(small)[:, None] > keys.astype(small)[None, :]
