"""Skip-gram and continuous bag of words with negative sampling (Mikolov et al. 2013a and 2013b; word2vec.c).

Windows are those of `windows.py`. Skip-gram takes each word of the window as input and predicts the centre; the bag of
words predicts it from the mean of the window. In either case a true word is told from words that are drawn by
frequency: -log s(v u) - sum_k log s(-v u_k).

  # row        the cat sat on the mat      kept  cat sat mat      reach  1 2 1
  # skip-gram  input sat -> cat, cat -> sat, mat -> sat, sat -> mat
"""

from functools import partial
from typing import Annotated, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax import errors
from plm_jax.errors import require
from plm_jax.layers.linear import Embed
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.noise import alias
from plm_jax.noise.alias import Alias
from plm_jax.noise.keys import row_keys
from plm_jax.objectives.windows import (
  Architecture,
  Reduction,
  Update,
  Windows,
  around,
  bags,
  counts_of,
  keep_rates,
  lay,
  pair_weights,
)
from plm_jax.types import Array, Batch, Count, Example, Forward, Loss, Paper, PyTree, Task, Vocab

PAPER = Paper(
  year=2013,
  title='Mikolov et al., Distributed Representations of Words and Phrases and their Compositionality',
  architecture='static',
  objective_family='contrastive',
)
READS = ('tokens', 'segment_ids')


class Model(nn.Module):
  """A table of input vectors, the trunk, and one of output vectors, which begins with zeros."""

  trunk: nn.Module
  vocab_size: int
  architecture: Architecture

  def setup(self) -> None:
    zeros = nn.initializers.zeros
    self.output = Embed(self.vocab_size, self.trunk.hidden_dim, ('vocab', 'embed'), zeros)

  def read(self, tokens: Array, *, train: bool = False, **inputs: Array) -> Array:
    """The input vectors of words, int[b, l] -> [b, l, d]."""
    del inputs
    return self.trunk(tokens, train=train)['hidden']

  def __call__(
    self, tokens: Array, pairs: Array, negatives: Array, train: bool = False, **inputs: Array
  ) -> tuple[Array, Array]:
    """Logits of true words and of drawn ones.

    Args:
      tokens: int[b, l].
      pairs: bool[b, l, o], which neighbours a word is paired with, as `paired` has it.
      negatives: int[b, l, o, k] of skip-gram, whose input is the word at l and whose centre is the neighbour o;
        int[b, l, k] of a bag of words, whose centre is the word at l.
      train: drops out.
      **inputs: what else `read` takes.

    Returns:
      f32[b, l, o] and f32[b, l, o, k], of a bag of words f32[b, l] and f32[b, l, k].
    """
    vectors, centres = self.read(tokens, train=train, **inputs), self.output(tokens)  # [b, l, d]
    reach = pairs.shape[2] // 2
    if self.architecture == 'skipgram':
      true = jnp.einsum('bld,blod->blo', vectors, around(centres, reach=reach))
      return true, jnp.einsum('bld,blokd->blok', vectors, self.output(negatives))
    means = bags(vectors, pairs)
    return jnp.einsum('bld,bld->bl', means, centres), jnp.einsum('bld,blkd->blk', means, self.output(negatives))


class Setup(NamedTuple):
  """What draws pairs and scores them; settings are explained in `make`.

  Attributes:
    noise: the distribution of negatives.
  """

  windows: Windows
  noise: Alias
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
  counts = counts_of(vocab, user="objective 'skipgram'")
  windows = Windows(keep_rates(counts, subsample), architecture, window)
  s = Setup(windows, alias.make(counts**power * (counts > 0)), negatives, reduction)
  task = Task(Model(trunk, vocab.size, architecture), partial(prepare, s), partial(loss, s))
  return task._replace(rows=read_rows) if update == 'rows' else task


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """Subsampled rows with their windows and negatives, all drawn by the keys of the rows."""
  laid = lay(s.windows, row_keys(root, batch, every='step'), batch)
  length, reach = laid.tokens.shape[1], s.windows.window
  per_word = (2 * reach,) if s.windows.architecture == 'skipgram' else ()
  shape = (length, *per_word, s.negatives)
  negatives = jax.vmap(lambda key: alias.draw(key, s.noise, shape))(laid.noise_keys)
  weights = pair_weights(s.windows, laid.pairs, batch['row_weight'])
  centres = around(laid.tokens[..., None], reach=reach)[..., 0] if per_word else laid.tokens
  flat_weights = weights.reshape(len(weights), -1)
  scale = batch_scale(flat_weights) if s.reduction == 'mean' else jnp.ones(len(weights))
  return Example(
    {'tokens': laid.tokens, 'pairs': laid.pairs, 'negatives': negatives},
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
