"""Permutation language modelling (Yang et al. 2019, §2.2 and §2.3; released data pipeline): targets, orders, masks.

A row has two parts, before and from position `boundary` on; the memory stores the first part. Each part has its own
targets and its own order, and the first part does not see the second.
"""

import jax
import jax.numpy as jnp

from plm_jax.core.keywords import Count
from plm_jax.core.types import Array
from plm_jax.noise.row import Row
from plm_jax.noise.without_replacement import choose, draw_scores


def goals(length: int, *, boundary: int, one_in: int) -> tuple[int, int]:
  """Compute the number of targets in each part of a full row.

  There is one target per K tokens; for K = 6, 512 tokens have 43 + 42 targets.

  Raises:
    ValueError: a boundary outside of the row, or a part without targets.
  """
  if not 0 < boundary < length:
    raise ValueError(f'boundary={boundary} is not inside a row of {length} tokens, which it has to cut into two parts')
  total = length // one_in
  if one_in < 1 or total < 2:
    raise ValueError(f'one_in={one_in}: a row of {length} tokens needs at least one target in each of its two parts')
  return total - total // 2, total // 2


def gram_shares(max_gram: int) -> Array:
  """Compute probabilities f32[max_gram] of n-gram lengths, proportional to 1/n."""
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
  """Choose the predicted tokens: bool[l].

  A part without padding has exactly `goals` of them; the goal of a part with padding is smaller in proportion. Spans
  are sampled from left to right. A span of n tokens has a context of n * window tokens, and a uniform position in it,
  moved right to the next start of a word. The first span that would reach the end of its part ends the sampling.
  Uniform single tokens fill up the goal. As in the released code n counts tokens, so a span may end within a word.

  Args:
    row: with word ids; only eligible tokens are targets, and spans never cross a document boundary.
    boundary: first position of the second part.
    one_in: K of the paper: one target per K tokens.
    spans: False samples single tokens only.
    max_gram: tokens of the longest span.
    window: tokens of context per token of a span.
    reverse: bool[], True if the row holds reversed text; spans are sampled in reading order.

  Raises:
    ValueError: a row without word ids, or a part without targets.
  """
  if row.word_ids is None:
    raise ValueError('choose_targets needs word ids: use a vocabulary that marks the starts of words')
  starts = jnp.diff(row.word_ids, prepend=0) > 0
  chosen = []
  most_targets = goals(row.ids.shape[0], boundary=boundary, one_in=one_in)
  parts = (slice(None, boundary), slice(boundary, None))
  for part_key, part, most in zip(jax.random.split(key), parts, most_targets, strict=True):
    # 1. the part in reading order
    eligible, segments, begins = (
      jnp.where(reverse, x[part][::-1], x[part]) for x in (row.eligible, row.segment_ids, starts)
    )
    length = eligible.shape[0]
    # 2. the number of its targets
    goal = jnp.minimum(most * (segments > 0).sum() // length, eligible.sum())
    # 3. spans, then single tokens
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
  """Choose the tokens of one part that are predicted as spans.

  # window 2, sampled n 2 1, offsets 1 1; `<` starts a word
  # word       <  <     <  <  <  <  <  <
  # token      a  b  c  d  e  f  g  h  i     cursor 0, then 3 + 4 - 1 = 6
  # chosen     0  1  1  0  0  0  0  1  0     a span begins at cursor + offset, or at the next `<`

  Returns:
    bool[l], and their number int32[], at most `goal` <= `most`.
  """
  length = eligible.shape[0]
  index = jnp.arange(length)
  # 1. by position, [l + 1]: the next start of a word, the end of the segment, the count of eligible tokens on the left
  next_start = jnp.append(jax.lax.cummin(jnp.where(begins, index, length), reverse=True), length)
  ends = jnp.append(segments[1:] != segments[:-1], True)
  segment_end = jnp.append(jax.lax.cummin(jnp.where(ends, index + 1, length), reverse=True), length)
  before = jnp.pad(jnp.cumsum(eligible.astype(jnp.int32)), (1, 0))
  gram_key, offset_key = jax.random.split(key)
  grams = 1 + jax.random.choice(gram_key, max_gram, (most,), p=gram_shares(max_gram))
  shares = jax.random.uniform(offset_key, (most,))

  # 2. from left to right, the next span after the cursor
  def draw(state: tuple[Array, Array], sampled: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    count, cursor = state
    gram, share = sampled
    n = jnp.minimum(gram, goal - count)
    context = n * window
    left = jnp.minimum((share * context).astype(jnp.int32), context - 1)
    start = next_start[jnp.clip(cursor + left, 0, length)]
    end = start + n
    fits = (n > 0) & (end < length)
    stop = jnp.where(fits, jnp.minimum(end, segment_end[start]), start)  # an empty span if it does not fit
    # with the cursor at the end of the part no further span fits
    cursor = jnp.where(fits, end + context - left, length)
    return (count + before[stop] - before[start], cursor), (start, stop)

  (count, _), (starts, stops) = jax.lax.scan(draw, (jnp.int32(0), jnp.int32(0)), (grams, shares))
  # 3. mark the spans
  inside = jnp.zeros(length + 1, jnp.int32).at[starts].add(1).at[stops].add(-1)  # spans do not overlap
  return (jnp.cumsum(inside)[:length] > 0) & eligible, count


def draw_ranks(key: Array, length: int, *, boundary: int, block: int | None = None) -> Array:
  """Sample the rank of each position in the factorisation order.

  Args:
    boundary: first position of the second part.
    block: tokens per block (`perm_size` of the released code). Blocks keep their order; all blocks of a part have the
      same random order inside. None makes each part one block.

  Returns:
    int32[l], from 0 in each part.

  Raises:
    ValueError: a part is not a whole number of blocks.
  """
  ranks = []
  for part_key, size in zip(jax.random.split(key), (boundary, length - boundary), strict=True):
    each = block or size
    if size % each:
      raise ValueError(f'a part of {size} tokens is not a multiple of its blocks of {each} tokens')
    order = _random_order(part_key, each)
    ranks.append((each * jnp.arange(size // each)[:, None] + order).reshape(-1))
  return jnp.concatenate(ranks).astype(jnp.int32)


def _random_order(key: Array, size: int) -> Array:
  """Sample a random permutation: int32[n]."""
  # scores have the index in their low bits; sorting pairs takes a CPU longer
  scores, low_bits = draw_scores(key, size)
  return (jnp.sort(scores) & low_bits) - 1


def visible(ranks: Array, targets: Array, functional: Array, *, boundary: int) -> Array:
  """Compute the mask of the query stream: bool[l, l].

  True where a query sees a key. Tokens that are neither targets nor functional come before all others in the order:
  every query sees them, and they see no target. A target sees all tokens before it in the order. A functional token
  (<sep>, <cls>) is never predicted and also sees itself.

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
  # numbers of the second part exceed all of the first, so one comparison gives the whole mask
  keys, queries = (jnp.where(second, x + length + 1, x) for x in (keys, queries))
  small = jnp.int16 if 2 * (length + 1) < 2**15 else jnp.int32  # twice as many per vector register
  return queries.astype(small)[:, None] > keys.astype(small)[None, :]
