"""Skip-gram and continuous bag of words with negative sampling (Mikolov et al. 2013a and 2013b; word2vec.c).

Windows are those of `context_windows.py`. Skip-gram takes each word of the window as input and predicts the centre; the
bag of words predicts it from the mean of the window. In either case a true word is distinguished from words sampled by
frequency: -log s(v u) - sum_k log s(-v u_k).

  # row        the cat sat on the mat      kept  cat sat mat      reach  1 2 1
  # skip-gram  input sat -> cat, cat -> sat, mat -> sat, sat -> mat
"""

from functools import partial
from typing import Annotated, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.keywords import Samples
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers.linear import Embed
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.layers.table_products import products
from plm_jax.noise import alias
from plm_jax.noise.alias import Alias
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import in_order
from plm_jax.objectives.context_windows import (
  Architecture,
  PairUpdate,
  Reduction,
  Windows,
  bags,
  counts_of,
  keep_rates,
  lay,
  listed,
)

PAPER = Paper(
  year=2013,
  title='Mikolov et al., Distributed Representations of Words and Phrases and their Compositionality',
  architecture='static',
  objective_family='contrastive',
)
READS = ('tokens', 'segment_ids')


class Model(nn.Module):
  """A table of input vectors (the trunk) and one of output vectors, which starts from zeros.

  `whole_gradient` is that of `context_windows.bags`.
  """

  trunk: nn.Module
  vocab_size: int
  architecture: Architecture
  whole_gradient: bool = False

  def setup(self) -> None:
    zeros = nn.initializers.zeros
    self.output = Embed(self.vocab_size, self.trunk.hidden_dim, ('vocab', 'embed'), zeros)

  def read(self, tokens: Array, *, train: bool = False, **inputs: Array) -> Array:
    """Look up input vectors of words: int[b, l] -> [b, l, d]."""
    return self.trunk(tokens, train=train)['hidden']

  def __call__(
    self, tokens: Array, pairs: Array, words: Array, number: Array, train: bool = False, **inputs: Array
  ) -> Array:
    """Compute logits f32[b, n, 1 + k] of true and sampled words.

    Args:
      tokens: int[b, l].
      pairs: of skip-gram int[b, n, 2], the positions of the input and of the centre of each pair; of a bag of words,
        whose centre is the word at l, bool[b, l, o], True for neighbours in the bag.
      words: int[b, n, 1 + k], the centre and the sampled words; of a bag n is l.
      number: int[b], the count of valid pairs among the n, which come first; other logits are meaningless.
      **inputs: further inputs of `read`.
    """
    vectors = self.read(tokens, train=train, **inputs)  # [b, l, d]
    if self.architecture == 'skipgram':
      readers = pairs[..., 0]
    else:
      vectors = bags(vectors, pairs, whole_gradient=self.whole_gradient)
      readers = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return products(vectors, self.output.rows(), readers, self.output.index(words), number.max())


class SkipgramSettings(NamedTuple):
  """Settings of pairs and scores; those without a comment are explained in `make`."""

  windows: Windows
  noise: Alias  # the distribution of negatives
  negatives: int
  reduction: Reduction
  shared_negatives: bool = False


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  architecture: Architecture = 'skipgram',
  window: Annotated[int, '1 <= x <= 100'] = 5,
  negatives: Samples = 5,
  subsample: Annotated[float, '0 <= x <= 1'] = 1e-3,
  power: Annotated[float, '0 <= x <= 10'] = 0.75,
  reduction: Reduction = 'sum',
  update: PairUpdate = 'tables',
  shared_negatives: bool | None = None,
) -> Task:
  """Build word vectors by predicting words from their neighbours.

  Args:
    trunk: a trunk whose vectors do not depend on neighbours: 'static'.
    vocab: of the rows, with the counts of its tokens. Special tokens, including unknown words, are removed before
      windows are formed, as in word2vec.c.
    architecture: 'skipgram' or 'cbow', the continuous bag of words.
    window: most words to each side of a centre; the reach of each is sampled from 1 to `window`.
    negatives: words sampled per pair; a sample equal to the true word is ignored.
    subsample: t in the probability (sqrt(f / t) + 1) t / f, at most 1, of keeping a word of frequency f; 0 keeps every
      word.
    power: negatives are sampled in proportion to count^power.
    reduction: of the training loss. 'sum' adds the pairs of a batch, so that each pair moves its words as far as in
      word2vec.c, whose rates then apply to batches of a few hundred words. The words of a bag then each move by its
      whole error, not by the gradient of their mean. 'mean' divides by the number of pairs, and its gradient is that of
      the loss.
    update: 'tables' differentiates whole tables, for any rule of `optim`; 'rows' only the rows that a batch reads,
      which needs optim.name sgd or adagrad. The result is the same. 'in_order' moves the vectors after
      each pair, as word2vec.c does, on one CPU (`in_order.py`); it needs optim.name sgd and the package numba.
    shared_negatives: sample negatives per centre, the same for its pairs (Ji et al. 2016, "Parallelizing word2vec"), so
      that a word reads fewer rows; of skip-gram. None is False.

  Raises:
    ValueError: the vocabulary has no counts, or fewer than two words with one; a bag of words, which has one pair per
      centre, with shared negatives.
  """
  require(trunk, user="objective 'skipgram'", attention=('none',), inputs=('tokens',))
  errors.one_of('objective.architecture', architecture, Architecture)
  errors.one_of('objective.reduction', reduction, Reduction)
  errors.one_of('objective.update', update, PairUpdate)
  if shared_negatives and architecture == 'cbow':
    raise ValueError('objective.shared_negatives: a bag of words has one pair per centre; remove it')
  counts = counts_of(vocab, user="objective 'skipgram'")
  windows = Windows(keep_rates(counts, subsample), architecture, window)
  noise = alias.make(counts**power * (counts > 0))
  s = SkipgramSettings(windows, noise, negatives, reduction, shared_negatives=bool(shared_negatives))
  model = Model(trunk, vocab.size, architecture, whole_gradient=reduction == 'sum')
  task = Task(model, partial(prepare, s), partial(loss, s))
  return in_order.with_update(task, update, read_rows, bags=architecture == 'cbow', reduction=reduction)


def prepare(s: SkipgramSettings, root: Array, batch: Batch) -> Example:
  """Subsample rows, and sample windows and negatives, by the rows' keys."""
  laid = lay(s.windows, row_keys(root, batch, every='step'), batch)
  if s.windows.architecture == 'skipgram':
    pairs, count = listed(laid.pairs)
    centres = jnp.take_along_axis(laid.tokens, pairs[..., 1], axis=1, mode='clip')
    real = jnp.arange(pairs.shape[1]) < count[:, None]
  else:
    pairs, centres, real = laid.pairs, laid.tokens, laid.pairs.any(axis=2)
    count = (real * (1 + jnp.arange(real.shape[1]))).max(axis=1)
  shape = ((laid.tokens if s.shared_negatives else centres).shape[1], s.negatives)
  negatives = jax.vmap(lambda key: alias.draw(key, s.noise, shape))(laid.noise_keys)
  if s.shared_negatives:
    negatives = jnp.take_along_axis(negatives, pairs[..., 1:], axis=1, mode='clip')  # those of the centre
  words = jnp.concatenate([centres[..., None], negatives], axis=-1)
  weights = real * batch['row_weight'][:, None]
  scale = batch_scale(weights) if s.reduction == 'mean' else jnp.ones(len(weights))
  return Example(
    {'tokens': laid.tokens, 'pairs': pairs, 'words': words, 'number': count},
    {'weights': weights, 'scale': scale, 'others': words != centres[..., None]},
  )


def read_rows(example: Example) -> dict[str, Array]:
  """List the words whose vectors a batch reads, for both tables."""
  tokens, negatives = example.inputs['tokens'].reshape(-1), example.inputs['words'][..., 1:].reshape(-1)
  return {'trunk/token_embed/table': tokens, 'output/table': jnp.concatenate([tokens, negatives])}


def loss(s: SkipgramSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute nats of the true word of each pair against its negatives."""
  targets, weights = example.targets, example.targets['weights']
  logits, others = forward(**example.inputs), targets['others']  # [b, n, 1 + k], the true word first
  true = jnp.arange(logits.shape[-1]) == 0
  nats = jnp.where(true | others, nn.softplus(jnp.where(true, -logits, logits)), 0).sum(axis=-1)
  right = logits[..., 0] > jnp.where(others, logits, -jnp.inf).max(axis=-1)
  value = scaled_sum(nats, weights, targets['scale'])
  return Loss(value, {'loss': metric(nats, weights), 'accuracy': metric(right.astype(jnp.float32), weights)})
