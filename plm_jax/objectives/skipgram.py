"""Skip-gram and continuous bag of words with negative sampling (Mikolov et al. 2013a and 2013b; word2vec.c).

Frequent words are left out at random and the others move together; around each word that stays, its centre, a window
reaches 1 to `window` words to each side, drawn anew. Skip-gram takes each word of the window as input and predicts the
centre; the bag of words predicts it from the mean of the window. In either case a true word is told from words that are
drawn by frequency: -log s(v u) - sum_k log s(-v u_k).

  # row        the cat sat on the mat      kept  cat sat mat      reach  1 2 1
  # skip-gram  input sat -> cat, cat -> sat, mat -> sat, sat -> mat
"""

from functools import partial
from typing import Annotated, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import errors
from plm_jax.errors import require
from plm_jax.layers.linear import Embed
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.noise import alias
from plm_jax.noise.alias import Alias
from plm_jax.noise.compact import compact_from
from plm_jax.noise.keys import row_keys
from plm_jax.noise.row import Slots
from plm_jax.types import Array, Batch, Count, Example, Forward, Loss, Paper, PyTree, Task, Vocab

PAPER = Paper(
  year=2013,
  title='Mikolov et al., Distributed Representations of Words and Phrases and their Compositionality',
  architecture='static',
  objective_family='contrastive',
)
READS = ('tokens', 'segment_ids')

Architecture = Literal['skipgram', 'cbow']
Reduction = Literal['sum', 'mean']
Update = Literal['rows', 'tables']


class Model(nn.Module):
  """A table of input vectors, the trunk, and one of output vectors, which begins with zeros."""

  trunk: nn.Module
  vocab_size: int
  architecture: Architecture

  def setup(self) -> None:
    zeros = nn.initializers.zeros
    self.output = Embed(self.vocab_size, self.trunk.hidden_dim, ('vocab', 'embed'), zeros)

  def __call__(self, tokens: Array, pairs: Array, negatives: Array, train: bool = False) -> tuple[Array, Array]:
    """Logits of true words and of drawn ones.

    Args:
      tokens: int[b, l].
      pairs: bool[b, l, o], which neighbours a word is paired with, as `paired` has it.
      negatives: int[b, l, o, k] of skip-gram, whose input is the word at l and whose centre is the neighbour o;
        int[b, l, k] of a bag of words, whose centre is the word at l.
      train: drops out.

    Returns:
      f32[b, l, o] and f32[b, l, o, k], of a bag of words f32[b, l] and f32[b, l, k].
    """
    vectors, centres = self.trunk(tokens, train=train)['hidden'], self.output(tokens)  # [b, l, d]
    reach = pairs.shape[2] // 2
    if self.architecture == 'skipgram':
      true = jnp.einsum('bld,blod->blo', vectors, around(centres, reach=reach))
      return true, jnp.einsum('bld,blokd->blok', vectors, self.output(negatives))
    weights = pairs / jnp.maximum(pairs.sum(axis=2, keepdims=True), 1)
    bags = jnp.einsum('blo,blod->bld', weights, around(vectors, reach=reach))
    return jnp.einsum('bld,bld->bl', bags, centres), jnp.einsum('bld,blkd->blk', bags, self.output(negatives))


class Setup(NamedTuple):
  """What draws pairs and scores them; settings are explained in `make`.

  Attributes:
    keep: f32[v], the probability with which an occurrence of a word stays; 0 for special tokens.
    noise: the distribution of negatives.
  """

  keep: np.ndarray
  noise: Alias
  architecture: Architecture
  window: int
  negatives: int
  reduction: Reduction


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  architecture: Architecture = 'skipgram',
  window: Annotated[int, '1 <= x <= 100'] = 5,
  negatives: Count = 5,
  subsample: Annotated[float, '0 <= x <= 1'] = 1e-3,
  power: Annotated[float, '0 <= x <= 10'] = 0.75,
  reduction: Reduction = 'sum',
  update: Update = 'tables',
) -> Task:
  """Word vectors by predicting words from their neighbours.

  Args:
    trunk: a trunk whose vectors do not depend on neighbours: 'static'.
    vocab: of the rows, with the counts of its tokens. Special tokens, unknown words among them, are left out before
      windows are laid, as in word2vec.c.
    architecture: 'skipgram' or 'cbow', the continuous bag of words.
    window: most words to each side of a centre; how many is drawn for each from 1 to `window`.
    negatives: words drawn per pair; one that is the true word counts for nothing.
    subsample: t in the probability (sqrt(f / t) + 1) t / f, at most 1, with which a word of frequency f stays; 0 keeps
      every word.
    power: negatives are drawn in proportion to count^power.
    reduction: of the loss that is trained on: 'sum' adds the pairs of a batch, so that each pair moves its words as far
      as in word2vec.c, whose rates then apply to batches of a few hundred words; 'mean' divides by their number.
    update: 'tables' differentiates whole tables, for any rule of `optim`; 'rows' those rows that a batch reads, which
      asks for optim.name sgd or adagrad. The result is the same.

  Raises:
    ValueError: the vocabulary has no counts, or none of a word.
  """
  require(trunk, user="objective 'skipgram'", attention=('none',), inputs=('tokens',))
  errors.one_of('objective.architecture', architecture, Architecture)
  errors.one_of('objective.reduction', reduction, Reduction)
  errors.one_of('objective.update', update, Update)
  if vocab.counts is None:
    raise ValueError(
      "objective 'skipgram' draws words by frequency, and this vocabulary has no counts: make one with "
      '`python -m plm_jax.vocab train --name=words`'
    )
  counts = np.asarray(vocab.counts, np.float64).copy()
  counts[list(vocab.special_ids)] = 0
  if not counts.any():
    which = 'are special' if len(vocab.special_ids) == vocab.size else 'are special or never seen'
    raise ValueError(
      f'all {vocab.size} tokens of the vocabulary {which}, and these have no neighbours: choose another vocabulary'
    )
  s = Setup(
    keep_rates(counts, subsample), alias.make(counts**power * (counts > 0)), architecture, window, negatives, reduction
  )
  task = Task(Model(trunk, vocab.size, architecture), partial(prepare, s), partial(loss, s))
  return task._replace(rows=read_rows) if update == 'rows' else task


def keep_rates(counts: np.ndarray, subsample: float) -> np.ndarray:
  """f32[v], the probability with which an occurrence of each word stays, of [v] counts; 0 for those without any."""
  frequency = counts / max(counts.sum(), 1)
  there = counts > 0
  if subsample == 0:
    return there.astype(np.float32)
  rate = np.sqrt(subsample / np.where(there, frequency, 1)) + subsample / np.where(there, frequency, 1)
  return np.where(there, np.minimum(rate, 1), 0).astype(np.float32)


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """Subsampled rows with their windows and negatives, all drawn by the keys of the rows."""
  rows = jax.vmap(partial(_draw, s))(row_keys(root, batch, every='step'), batch['tokens'], batch['segment_ids'])
  tokens, segments, reaches, negatives = rows
  pairs = paired(segments, reaches, window=s.window, architecture=s.architecture)
  if s.architecture == 'skipgram':
    centres = around(tokens[..., None], reach=s.window)[..., 0]  # [b, l, o]
    weights = pairs * batch['row_weight'][:, None, None]
  else:
    centres, weights = tokens, pairs.any(axis=2) * batch['row_weight'][:, None]
  flat_weights = weights.reshape(len(weights), -1)
  scale = batch_scale(flat_weights) if s.reduction == 'mean' else jnp.ones(len(weights))
  return Example(
    {'tokens': tokens, 'pairs': pairs, 'negatives': negatives},
    {'weights': flat_weights, 'scale': scale, 'others': negatives != centres[..., None]},
  )


def read_rows(example: Example) -> dict[str, Array]:
  """The words whose vectors a batch reads, of either table."""
  tokens, negatives = (example.inputs[name].reshape(-1) for name in ('tokens', 'negatives'))
  return {'trunk/token_embed/table': tokens, 'output/table': jnp.concatenate([tokens, negatives])}


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Nats of telling the true word of each pair from those drawn for it."""
  del s, carry, rng
  targets, weights = example.targets, example.targets['weights']
  true, false = forward(**example.inputs)
  others = targets['others']
  nats = nn.softplus(-true) + jnp.where(others, nn.softplus(false), 0).sum(axis=-1)
  right = true > jnp.where(others, false, -jnp.inf).max(axis=-1)
  nats, right = (value.reshape(weights.shape) for value in (nats, right))
  value = scaled_sum(nats, weights, targets['scale'])
  return Loss(value, {'loss': metric(nats, weights), 'accuracy': metric(right.astype(jnp.float32), weights)})


def _draw(s: Setup, key: Array, tokens: Array, segment_ids: Array) -> tuple[Array, Array, Array, Array]:
  """One row without the words that are left out: ids, segments and reaches int32[l], and its negatives."""
  stay_key, reach_key, noise_key = jax.random.split(key, 3)
  length = tokens.shape[0]
  stays = (jax.random.uniform(stay_key, (length,)) < jnp.asarray(s.keep)[tokens]) & (segment_ids > 0)
  none = jnp.zeros((length, 0), jnp.int32)
  kept, places = compact_from(Slots(none, tokens, stays), size=length, pad_id=0)
  segments = jnp.where(places >= 0, segment_ids[places], 0)
  reaches = jax.random.randint(reach_key, (length,), 1, s.window + 1)
  per_word = (2 * s.window,) if s.architecture == 'skipgram' else ()
  return kept, segments, reaches, alias.draw(noise_key, s.noise, (length, *per_word, s.negatives))


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
