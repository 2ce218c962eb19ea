"""Skip-gram with the letters of words (Bojanowski et al. 2017; facebookresearch/fastText).

The input vector of a word averages its own vector, a row of the trunk, and the vectors of its n-grams, which are
hashed into buckets (`subwords.py`). An unseen word has a vector as well: the mean of those of its n-grams. Words of
more than `MOST_LETTERS` letters lose their last n-grams. Everything else is objective 'skipgram', with fastText's
rates: words of frequency f stay with the probability sqrt(t / f) + t / f, and negatives are sampled in proportion to
the square root of their counts. f is a share of the words in the vocabulary. In the released code it is one of all
tokens, with rarer words and line ends: t times their number / that of the vocabulary's words gives its rates.

With reduction 'sum' each part of a word gets the undivided gradient of their mean. The released code does so, and so
does the paper, whose word vectors are sums. With 'mean' the gradient is divided by the number of parts. A bag of words
is the mean of the vectors of its words, not of all their parts.
"""

import logging
from functools import partial
from typing import Annotated, Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors, subwords
from plm_jax.core.errors import require
from plm_jax.core.keywords import Samples
from plm_jax.core.types import Array, Batch, Example, Paper, PyTree, Task, Vocab, WordTable
from plm_jax.layers.linear import Embed, uniform
from plm_jax.noise import alias
from plm_jax.objectives import in_order, skipgram
from plm_jax.objectives.context_windows import (
  PairUpdate,
  Reduction,
  Windows,
  counts_of,
  keep_rates,
  mean_by_whole_gradient,
)

PAPER = Paper(
  year=2016,
  title='Bojanowski et al., Enriching Word Vectors with Subword Information',
  architecture='static',
  objective_family='contrastive',
)
READS = ('tokens', 'segment_ids')
QUICK = dict(buckets=2000)

# Only the first n-grams of a longer word are used. All words have as many slots for n-grams as the longest one, and
# longer "words" are mostly URLs and rows of symbols.
MOST_LETTERS = 40

log = logging.getLogger(__name__)

Letters = Annotated[int, '1 <= x <= 100']


class Model(skipgram.Model):
  """Skip-gram with a table of n-grams next to the trunk, initialised from U(-1, 1) / d."""

  buckets: int = 0

  def setup(self) -> None:
    super().setup()
    width = self.trunk.hidden_dim
    self.ngrams = Embed(self.buckets, width, ('vocab', 'embed'), uniform(1 / width))

  def read(self, tokens: Array, *, train: bool = False, **inputs: Array) -> Array:
    """Average each word and its n-grams: [b, l, d]."""
    grams = inputs['grams']  # int[b, l, g], -1 for none
    used = (grams >= 0)[..., None]
    parts = jnp.where(used, self.ngrams(jnp.maximum(grams, 0)), 0).sum(axis=2)
    total, count = self.trunk(tokens, train=train)['hidden'] + parts, 1 + used.sum(axis=2)
    return mean_by_whole_gradient(total, count) if self.whole_gradient else total / count


class FasttextSettings(NamedTuple):
  """Settings of pairs and of the letters of words."""

  skipgram: skipgram.SkipgramSettings  # of the objective without letters
  grams: np.ndarray  # int32[v, g], the buckets of the n-grams of each word, padded with -1; special tokens have none


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  architecture: Literal['skipgram', 'cbow'] = 'skipgram',
  window: Annotated[int, '1 <= x <= 100'] = 5,
  negatives: Samples = 5,
  subsample: Annotated[float, '0 <= x <= 1'] = 1e-4,
  power: Annotated[float, '0 <= x <= 10'] = 0.5,
  shortest: Letters = 3,
  longest: Letters = 6,
  buckets: Annotated[int, '1 <= x <= 1_000_000_000'] = 2_000_000,
  reduction: Reduction = 'sum',
  update: PairUpdate = 'tables',
) -> Task:
  """Build word vectors from letters, by predicting words from their neighbours.

  Args:
    trunk: a trunk whose vectors do not depend on neighbours: 'static'.
    vocab: of the rows, with the counts of its tokens.
    architecture: 'skipgram' or 'cbow', as in objective 'skipgram'.
    window: most words to each side of a centre.
    negatives: words sampled per pair.
    subsample: t of the head of this file; 0 keeps every word.
    power: negatives are sampled in proportion to count^power.
    shortest: letters of the shortest n-grams, including < and >.
    longest: letters of the longest ones.
    buckets: rows of the table of n-grams; several n-grams may share one.
    reduction: of the training loss: 'sum' adds the pairs of a batch, as the released code adds the pairs it has read,
      and gives each part of a word the whole gradient; 'mean' divides by the number of pairs, and its gradient is that
      of the loss.
    update: 'tables', 'rows' or 'in_order', as in objective 'skipgram'.

  Raises:
    ValueError: the vocabulary has no counts, or fewer than two words with one; `shortest` is above `longest`.
  """
  user = "objective 'fasttext'"
  require(trunk, user=user, attention=('none',), inputs=('tokens',))
  errors.one_of('objective.architecture', architecture, Literal['skipgram', 'cbow'])
  errors.one_of('objective.reduction', reduction, Reduction)
  errors.one_of('objective.update', update, PairUpdate)
  if shortest > longest:
    raise ValueError(f'objective.shortest={shortest} is above objective.longest={longest}: give the smaller one first')
  counts = counts_of(vocab, user=user)
  windows = Windows(keep_rates(counts, subsample), architecture, window)
  noise = alias.make(counts**power * (counts > 0))
  letters = {'shortest': shortest, 'longest': longest, 'buckets': buckets}
  s = FasttextSettings(
    skipgram=skipgram.SkipgramSettings(windows=windows, noise=noise, negatives=negatives, reduction=reduction),
    grams=grams_of(vocab, **letters),
  )
  model = Model(trunk, vocab.size, architecture, whole_gradient=reduction == 'sum', buckets=buckets)
  task = Task(model, partial(prepare, s), partial(skipgram.loss, s.skipgram))
  return in_order.with_update(task, update, read_rows, bags=architecture == 'cbow', reduction=reduction)


def grams_of(vocab: Vocab, *, shortest: int, longest: int, buckets: int) -> np.ndarray:
  """Compute `FasttextSettings.grams`, int32[v, g]; log how many words lose n-grams."""
  special, most = set(vocab.special_ids), _most(shortest=shortest, longest=longest)
  buckets_by_id = [
    subwords.buckets_of(vocab.token(token_id), shortest=shortest, longest=longest, buckets=buckets)
    if token_id not in special
    else np.zeros(0, np.int32)
    for token_id in range(vocab.size)
  ]
  if cut := sum(len(own) > most for own in buckets_by_id):
    log.info(f'{cut:,} of {vocab.size:,} words are too long: only their first {most} n-grams are used')
  buckets_by_id = [own[:most] for own in buckets_by_id]
  grams = np.full((vocab.size, max(1, *map(len, buckets_by_id))), -1, np.int32)
  for token_id, own in enumerate(buckets_by_id):
    grams[token_id, : len(own)] = own
  return grams


def _most(*, shortest: int, longest: int) -> int:
  """Count the n-grams of `MOST_LETTERS` letters, or of one longer n-gram."""
  return len(subwords.ngrams('a' * max(MOST_LETTERS, longest), shortest=shortest, longest=longest))


def prepare(s: FasttextSettings, root: Array, batch: Batch) -> Example:
  """Build the pairs of 'skipgram', with the buckets of the words."""
  example = skipgram.prepare(s.skipgram, root, batch)
  return example._replace(inputs=example.inputs | {'grams': jnp.asarray(s.grams)[example.inputs['tokens']]})


def read_rows(example: Example) -> dict[str, Array]:
  """List the words and buckets whose vectors a batch reads."""
  return skipgram.read_rows(example) | {'ngrams/table': jnp.maximum(example.inputs['grams'], 0).reshape(-1)}


def word_table(
  params: PyTree, vocab: Vocab, *, shortest: int = 3, longest: int = 6, buckets: int = 2_000_000, **settings: object
) -> WordTable:
  """Build the vectors of words, and a function for unseen words."""
  tables = params['trunk']['token_embed'], params['ngrams']
  words, ngrams = (np.asarray(table['table'], np.float32) for table in tables)
  letters = {'shortest': shortest, 'longest': longest, 'buckets': buckets}
  grams = grams_of(vocab, **letters)
  vectors = words[: vocab.size].copy()
  for vector, own in zip(vectors, grams, strict=True):
    own = own[own >= 0]
    vector[:] = (vector + ngrams[own].sum(axis=0)) / (1 + len(own))

  def unseen(word: str) -> np.ndarray:
    own = subwords.buckets_of(word, **letters)[: _most(shortest=shortest, longest=longest)]
    return ngrams[own].mean(axis=0) if len(own) else np.zeros(ngrams.shape[1], np.float32)

  counts = np.maximum(1, vocab.counts) if vocab.counts is not None else np.ones(vocab.size, np.int64)
  return WordTable(vectors, unseen, subwords.Letters(words[: vocab.size], ngrams, shortest, longest, counts))
