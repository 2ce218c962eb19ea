"""Windows around words, as word2vec.c lays them; what skip-gram and its relatives share.

Frequent words are left out at random and the others move together; around each word that stays, its centre, a window
reaches 1 to `window` words to each side, drawn anew.

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


class Windows(NamedTuple):
  """What lays windows; settings are explained in `skipgram.make`.

  Attributes:
    keep: f32[v], the probability with which an occurrence of a word stays; 0 for special tokens.
  """

  keep: np.ndarray
  architecture: Architecture
  window: int


class Laid(NamedTuple):
  """Rows without the words that are left out, and their windows.

  Attributes:
    tokens: int32[b, l].
    pairs: bool[b, l, o], which neighbours a word is paired with, see `paired`.
    noise_keys: [b], for what else is drawn per row.
  """

  tokens: Array
  pairs: Array
  noise_keys: Array


def counts_of(vocab: Vocab, *, user: str) -> np.ndarray:
  """f64[v], how often each word was seen; 0 for special tokens.

  Raises:
    ValueError: the vocabulary has no counts, or fewer than two words with one.
  """
  if vocab.counts is None:
    raise ValueError(
      f'{user} draws words by frequency, and this vocabulary has no counts: make one with '
      '`plm-jax vocab train --name=words`'
    )
  counts = np.asarray(vocab.counts, np.float64).copy()
  counts[list(vocab.special_ids)] = 0
  _check_two(np.flatnonzero(counts > 0), vocab, user=user)
  return counts


def words_of(vocab: Vocab, *, user: str) -> np.ndarray:
  """int32[n], the ids of all tokens but special ones.

  Raises:
    ValueError: there are fewer than two.
  """
  words = np.setdiff1d(np.arange(vocab.size, dtype=np.int32), vocab.special_ids)
  _check_two(words, vocab, user=user)
  return words


def _check_two(words: np.ndarray, vocab: Vocab, *, user: str) -> None:
  """Refuses a vocabulary of fewer than two words: one that is drawn against itself has no gradient."""
  if len(words) > 1:
    return
  but = f' but {vocab.token(int(words[0]))!r}' if len(words) else ''
  which = 'are special' if len(vocab.special_ids) + len(words) == vocab.size else 'are special or never seen'
  raise ValueError(
    f'{user} tells words apart, and all {vocab.size} tokens of the vocabulary{but} {which}: choose another vocabulary, '
    'or train one on more text or with a lower min_frequency'
  )


def keep_rates(counts: np.ndarray, subsample: float) -> np.ndarray:
  """f32[v], the probability with which an occurrence of each word stays, of [v] counts; 0 for those without any."""
  frequency = counts / max(counts.sum(), 1)
  there = counts > 0
  if subsample == 0:
    return there.astype(np.float32)
  rate = np.sqrt(subsample / np.where(there, frequency, 1)) + subsample / np.where(there, frequency, 1)
  return np.where(there, np.minimum(rate, 1), 0).astype(np.float32)


def lay(windows: Windows, keys: Array, batch: Batch) -> Laid:
  """Subsampled rows with their windows, drawn by the keys [b] of the rows."""
  tokens, segments, reaches, noise_keys = each_row(partial(_draw, windows), keys, batch['tokens'], batch['segment_ids'])
  pairs = paired(segments, reaches, window=windows.window, architecture=windows.architecture)
  return Laid(tokens, pairs, noise_keys)


def pair_weights(windows: Windows, pairs: Array, row_weight: Array) -> Array:
  """What counts in a loss: f32[b, l, o] of skip-gram, whose pairs are words; f32[b, l] of bags that have a word."""
  if windows.architecture == 'skipgram':
    return pairs * row_weight[:, None, None]
  return pairs.any(axis=2) * row_weight[:, None]


def listed(pairs: Array) -> tuple[Array, Array]:
  """Which words are paired, row by row: the pairs of skip-gram in order, then what is none up to a fixed number.

  Args:
    pairs: bool[b, l, o], which neighbours a word is paired with.

  Returns:
    int32[b, l o, 2], the places of the word that is read and of the centre, and int32[b], how many are pairs.
  """
  b, length, slots = pairs.shape
  there, size = pairs.reshape(b, -1), length * slots
  after = jnp.cumsum(there, axis=1, dtype=jnp.int32)
  # a scatter costs a CPU more than the rest: only slots are scattered, and what they mean is computed
  put = jax.vmap(lambda to: jnp.zeros(size, jnp.int32).at[to].set(jnp.arange(size, dtype=jnp.int32), mode='drop'))
  slot = put(jnp.where(there, after - 1, size))
  place, offset = slot // slots, slot % slots - slots // 2
  centre = place + offset + (offset >= 0)
  return jnp.stack([place, jnp.clip(centre, 0, length - 1)], axis=-1), there.sum(axis=1, dtype=jnp.int32)


def bags(vectors: Array, pairs: Array, *, whole_gradient: bool = False) -> Array:
  """The mean of the vectors around each word that it is paired with; of none, zeros.

  Args:
    vectors: [b, l, d].
    pairs: bool[b, l, o].
    whole_gradient: each vector has the gradient of the mean as it is, where that of a mean is divided by their number.
      word2vec.c computes so, and gensim with cbow_mean=1: a bag is averaged, and its error added to every word of it.

  Returns:
    [b, l, d].
  """
  number = jnp.maximum(pairs.sum(axis=2, keepdims=True), 1)
  near = around(vectors, reach=pairs.shape[2] // 2)
  if not whole_gradient:
    return jnp.einsum('blo,blod->bld', pairs / number, near)
  return mean_by_whole_gradient(jnp.einsum('blo,blod->bld', pairs.astype(near.dtype), near), number)


def mean_by_whole_gradient(total: Array, number: Array) -> Array:
  """The mean of which a sum of so many vectors was made, whose gradient each of them has as it is, not divided."""
  return jax.lax.stop_gradient(total / number) + (total - jax.lax.stop_gradient(total))


def _draw(windows: Windows, key: Array, tokens: Array, segment_ids: Array) -> tuple[Array, Array, Array, Array]:
  """One row without the words that are left out: ids, segments and reaches int32[l], and a key for what follows."""
  stay_key, reach_key, noise_key = jax.random.split(key, 3)
  length = tokens.shape[0]
  stays = (jax.random.uniform(stay_key, (length,)) < jnp.asarray(windows.keep)[tokens]) & (segment_ids > 0)
  none = jnp.zeros((length, 0), jnp.int32)
  kept, places = compact_from(Slots(none, tokens, stays), size=length, pad_id=0)
  segments = jnp.where(places >= 0, segment_ids[places], 0)
  return kept, segments, jax.random.randint(reach_key, (length,), 1, windows.window + 1), noise_key


def around(x: Array, *, reach: int) -> Array:
  """What stands up to `reach` places before and behind each place, zeros beyond the row: [b, l, ...] -> [b, l, o, ...].

  # x a b c, reach 1   at a  0 b   at b  a c   at c  b 0
  """
  length = x.shape[1]
  padded = jnp.pad(x, ((0, 0), (reach, reach), *((0, 0),) * (x.ndim - 2)))
  starts = [start for start in range(2 * reach + 1) if start != reach]
  return jnp.stack([padded[:, start : start + length] for start in starts], axis=2)


def paired(segment_ids: Array, reaches: Array, *, window: int, architecture: Architecture) -> Array:
  """Which words around each word it is paired with, bool[b, l, o].

  Args:
    segment_ids: int[b, l]; 0 is padding.
    reaches: int[b, l], how far the window of each centre reaches.
    window: the largest reach; o is 2 `window`.
    architecture: of a bag of words the centre is the word at l; in skip-gram the neighbour.
  """
  distance = jnp.abs(jnp.array([offset for offset in range(-window, window + 1) if offset]))
  of_centre = around(reaches[..., None], reach=window)[..., 0] if architecture == 'skipgram' else reaches[..., None]
  neighbours = around(segment_ids[..., None], reach=window)[..., 0]
  same = (neighbours == segment_ids[..., None]) & (segment_ids > 0)[..., None]
  return same & (distance <= of_centre)
