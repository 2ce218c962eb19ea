"""Context windows of words as in word2vec.c; shared by skip-gram and related objectives.

Frequent words are removed at random and the remaining ones move together. Each remaining word is a centre: its window
reaches 1 to `window` words to each side, sampled for each centre.

  # row   the cat sat on the mat      kept  cat sat mat      reach  1 2 1
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.sharding import each_row
from plm_jax.core.types import Array, Batch, Vocab
from plm_jax.noise.compact import compact_from
from plm_jax.noise.row import Slots

Architecture = Literal['skipgram', 'cbow']
Reduction = Literal['sum', 'mean']
Update = Literal['rows', 'tables']
PairUpdate = Literal['rows', 'tables', 'in_order']


class Windows(NamedTuple):
  """Settings of windows; those without a comment are explained in `skipgram.make`."""

  keep: np.ndarray  # f32[v], the probability of keeping an occurrence of a word; 0 for special tokens
  architecture: Architecture
  window: int


class Laid(NamedTuple):
  """Subsampled rows and their windows."""

  tokens: Array  # int32[b, l]
  pairs: Array  # bool[b, l, o], True where a word is paired with a neighbour, see `paired`
  noise_keys: Array  # [b], keys for further sampling per row


def counts_of(vocab: Vocab, *, user: str) -> np.ndarray:
  """Return the count of each word, f64[v]; 0 for special tokens.

  Raises ValueError: the vocabulary has no counts, or fewer than two words with one.
  """
  if vocab.counts is None:
    raise ValueError(
      f'{user} samples words by frequency, but this vocabulary has no counts: make one with '
      '`plm-jax vocab train --name=words`'
    )
  counts = np.asarray(vocab.counts, np.float64).copy()
  counts[list(vocab.special_ids)] = 0
  _check_two(np.flatnonzero(counts > 0), vocab, user=user)
  return counts


def words_of(vocab: Vocab, *, user: str) -> np.ndarray:
  """List ids except special ones, int32[n]; raise ValueError below two."""
  words = np.setdiff1d(np.arange(vocab.size, dtype=np.int32), vocab.special_ids)
  _check_two(words, vocab, user=user)
  return words


def _check_two(words: np.ndarray, vocab: Vocab, *, user: str) -> None:
  """Raise ValueError for fewer than two words, which would have no gradient."""
  if len(words) > 1:
    return
  exception = f' except {vocab.token(int(words[0]))!r}' if len(words) else ''
  which = 'are special' if len(vocab.special_ids) + len(words) == vocab.size else 'are special or have count 0'
  raise ValueError(
    f'{user} needs two words, but all {vocab.size} tokens of the vocabulary{exception} {which}: choose another '
    'vocabulary, or train one on more text or with a lower min_frequency'
  )


def keep_rates(counts: np.ndarray, subsample: float) -> np.ndarray:
  """Compute the probability f32[v] of keeping each word; 0 for count 0."""
  frequency = counts / max(counts.sum(), 1)
  seen = counts > 0
  if subsample == 0:
    return seen.astype(np.float32)
  rate = np.sqrt(subsample / np.where(seen, frequency, 1)) + subsample / np.where(seen, frequency, 1)
  return np.where(seen, np.minimum(rate, 1), 0).astype(np.float32)


def lay(windows: Windows, keys: Array, batch: Batch) -> Laid:
  """Subsample rows and sample their windows by keys [b]."""
  tokens, segments, reaches, noise_keys = each_row(partial(_draw, windows), keys, batch['tokens'], batch['segment_ids'])
  pairs = paired(segments, reaches, window=windows.window, architecture=windows.architecture)
  return Laid(tokens, pairs, noise_keys)


def pair_weights(windows: Windows, pairs: Array, row_weight: Array) -> Array:
  """Weigh pairs f32[b, l, o] or bags f32[b, l], 0 if empty."""
  if windows.architecture == 'skipgram':
    return pairs * row_weight[:, None, None]
  return pairs.any(axis=2) * row_weight[:, None]


def listed(pairs: Array) -> tuple[Array, Array]:
  """List the pairs of each row, padded to a fixed count.

  bool[b, l, o] -> int32[b, l o, 2], the positions of the input word and of the centre, and int32[b], their number.
  """
  b, length, slots = pairs.shape
  paired_slots, size = pairs.reshape(b, -1), length * slots
  count = jnp.cumsum(paired_slots, axis=1, dtype=jnp.int32)
  # 1. move the indices of paired slots to the front. A scatter is slow on a CPU, so only these are scattered
  put = jax.vmap(lambda to: jnp.zeros(size, jnp.int32).at[to].set(jnp.arange(size, dtype=jnp.int32), mode='drop'))
  slot = put(jnp.where(paired_slots, count - 1, size))
  # 2. compute both words from the index of a slot
  word, offset = slot // slots, slot % slots - slots // 2
  centre = word + offset + (offset >= 0)
  return jnp.stack([word, jnp.clip(centre, 0, length - 1)], axis=-1), paired_slots.sum(axis=1, dtype=jnp.int32)


def bags(vectors: Array, pairs: Array, *, whole_gradient: bool = False) -> Array:
  """Average the vectors around each word that it is paired with.

  [b, l, d], bool[b, l, o] -> [b, l, d], zeros for none. `whole_gradient` gives each vector the gradient of the mean,
  not divided by the size of the bag. word2vec.c and gensim with cbow_mean=1 do so: they average a bag and add its error
  to every word of it.
  """
  size = jnp.maximum(pairs.sum(axis=2, keepdims=True), 1)
  near = around(vectors, reach=pairs.shape[2] // 2)
  if not whole_gradient:
    return jnp.einsum('blo,blod->bld', pairs / size, near)
  return mean_by_whole_gradient(jnp.einsum('blo,blod->bld', pairs.astype(near.dtype), near), size)


def mean_by_whole_gradient(total: Array, number: Array) -> Array:
  """Divide a sum by its number of terms, but not its gradient."""
  return jax.lax.stop_gradient(total / number) + (total - jax.lax.stop_gradient(total))


def _draw(windows: Windows, key: Array, tokens: Array, segment_ids: Array) -> tuple[Array, Array, Array, Array]:
  """Subsample a row: ids, segments and reaches int32[l], and a key."""
  stay_key, reach_key, noise_key = jax.random.split(key, 3)
  length = tokens.shape[0]
  stays = (jax.random.uniform(stay_key, (length,)) < jnp.asarray(windows.keep)[tokens]) & (segment_ids > 0)
  no_insertions = jnp.zeros((length, 0), jnp.int32)
  words, sources = compact_from(Slots(no_insertions, tokens, stays), size=length, pad_id=0)
  segments = jnp.where(sources >= 0, segment_ids[sources], 0)
  return words, segments, jax.random.randint(reach_key, (length,), 1, windows.window + 1), noise_key


def around(x: Array, *, reach: int) -> Array:
  """Gather the neighbours up to `reach` positions away, without the position itself.

  [b, l, ...] -> [b, l, o, ...]; zeros beyond the row.

  # x a b c, reach 1   at a  0 b   at b  a c   at c  b 0
  """
  length = x.shape[1]
  padded = jnp.pad(x, ((0, 0), (reach, reach), *((0, 0),) * (x.ndim - 2)))
  starts = [start for start in range(2 * reach + 1) if start != reach]
  return jnp.stack([padded[:, start : start + length] for start in starts], axis=2)


def paired(segment_ids: Array, reaches: Array, *, window: int, architecture: Architecture) -> Array:
  """Mark the neighbours that each word is paired with, bool[b, l, o].

  Args:
    segment_ids: int[b, l]; 0 is padding.
    reaches: int[b, l], the reach of the window of each centre.
    window: the largest reach; o is 2 `window`.
    architecture: the centre is the word at l in 'cbow', and the neighbour in 'skipgram'.
  """
  distance = jnp.abs(jnp.array([offset for offset in range(-window, window + 1) if offset]))
  of_centre = around(reaches[..., None], reach=window)[..., 0] if architecture == 'skipgram' else reaches[..., None]
  neighbours = around(segment_ids[..., None], reach=window)[..., 0]
  same = (neighbours == segment_ids[..., None]) & (segment_ids > 0)[..., None]
  return same & (distance <= of_centre)
