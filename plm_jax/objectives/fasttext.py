"""Skip-gram with the letters of words (Bojanowski et al. 2017; facebookresearch/fastText).

The input vector of a word is the mean of a vector of its own, a row of the trunk, and the vectors of its n-grams, which
are hashed into buckets (`subwords.py`). A word that was never seen has a vector as well: the mean of those of its
n-grams. Of words of more than `MOST_LETTERS` letters the last n-grams are left out. All else is objective 'skipgram',
with fastText's rates: words of frequency f stay with the probability sqrt(t / f) + t / f, negatives are drawn in
proportion to the square root of their counts.

With reduction 'sum' each part of a word has the gradient of their mean as it is, as in the released code and as in the
paper, whose vectors of words are sums; with 'mean' it is divided by the number of parts, as that of a mean is. A bag of
words is the mean of the vectors of its words, and not of all of their parts.
"""

import logging
from functools import partial
from typing import Annotated, Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.types import Array, Batch, Count, Example, Paper, PyTree, Task, Vocab, WordTable
from plm_jax.layers.linear import Embed, uniform
from plm_jax.noise import alias
from plm_jax.objectives import skipgram, subwords
from plm_jax.objectives.context_windows import Reduction, Update, Windows, counts_of, keep_rates, mean_by_whole_gradient

PAPER = Paper(
  year=2016,
  title='Bojanowski et al., Enriching Word Vectors with Subword Information',
  architecture='static',
  objective_family='contrastive',
)
READS = ('tokens', 'segment_ids')
QUICK = dict(buckets=2000)

# A word has no more n-grams than one of so many letters, and of a longer one the first ones count. All words are read
# with as many places for n-grams as the longest one has; what is longer is hardly a word: addresses, rows of signs.
MOST_LETTERS = 40

log = logging.getLogger(__name__)

Letters = Annotated[int, '1 <= x <= 100']


class Model(skipgram.Model):
  """Skip-gram with a table of n-grams beside the trunk, drawn from U(-1, 1) / d."""

  buckets: int = 0

  def setup(self) -> None:
    super().setup()
    width = self.trunk.hidden_dim
    self.ngrams = Embed(self.buckets, width, ('vocab', 'embed'), uniform(1 / width))

  def read(self, tokens: Array, *, train: bool = False, **inputs: Array) -> Array:
    """The mean of each word and its n-grams: tokens int[b, l], `grams` int[b, l, g], -1 for none -> [b, l, d]."""
    grams = inputs['grams']
    there = (grams >= 0)[..., None]
    parts = jnp.where(there, self.ngrams(jnp.maximum(grams, 0)), 0).sum(axis=2)
    total, number = self.trunk(tokens, train=train)['hidden'] + parts, 1 + there.sum(axis=2)
    return mean_by_whole_gradient(total, number) if self.whole_gradient else total / number


class FasttextSettings(NamedTuple):
  """What draws pairs, and the letters of words.

  Attributes:
    skipgram: of the objective without letters.
    grams: int32[v, g], the buckets of the n-grams of each word, -1 behind the last one; none of special tokens.
  """

  skipgram: skipgram.SkipgramSettings
  grams: np.ndarray


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  architecture: Literal['skipgram', 'cbow'] = 'skipgram',
  window: Annotated[int, '1 <= x <= 100'] = 5,
  negatives: Count = 5,
  subsample: Annotated[float, '0 <= x <= 1'] = 1e-4,
  power: Annotated[float, '0 <= x <= 10'] = 0.5,
  shortest: Letters = 3,
  longest: Letters = 6,
  buckets: Annotated[int, '1 <= x <= 1_000_000_000'] = 2_000_000,
  reduction: Reduction = 'sum',
  update: Update = 'tables',
) -> Task:
  """Word vectors made of letters, by predicting words from their neighbours.

  Args:
    trunk: a trunk whose vectors do not depend on neighbours: 'static'.
    vocab: of the rows, with the counts of its tokens.
    architecture: 'skipgram' or 'cbow', as in objective 'skipgram'.
    window: most words to each side of a centre.
    negatives: words drawn per pair.
    subsample: t of the head of this file; 0 keeps every word.
    power: negatives are drawn in proportion to count^power.
    shortest: letters of the shortest n-grams, < and > counted.
    longest: letters of the longest ones.
    buckets: rows of the table of n-grams; several may share one.
    reduction: of the loss that is trained on: 'sum' adds the pairs of a batch, as the released code adds those it has
      read, and gives each part of a word the whole gradient; 'mean' divides by the number of pairs, and its gradient is
      that of the loss.
    update: 'tables' or 'rows', as in objective 'skipgram'.

  Raises:
    ValueError: the vocabulary has no counts, or fewer than two words with one; `shortest` is above `longest`.
  """
  user = "objective 'fasttext'"
  require(trunk, user=user, attention=('none',), inputs=('tokens',))
  errors.one_of('objective.architecture', architecture, Literal['skipgram', 'cbow'])
  errors.one_of('objective.reduction', reduction, Reduction)
  errors.one_of('objective.update', update, Update)
  if shortest > longest:
    raise ValueError(f'objective.shortest={shortest} is above objective.longest={longest}: give the smaller one first')
  counts = counts_of(vocab, user=user)
  windows = Windows(keep_rates(counts, subsample), architecture, window)
  noise = alias.make(counts**power * (counts > 0))
  letters = {'shortest': shortest, 'longest': longest, 'buckets': buckets}
  s = FasttextSettings(skipgram.SkipgramSettings(windows, noise, negatives, reduction), grams_of(vocab, **letters))
  model = Model(trunk, vocab.size, architecture, whole_gradient=reduction == 'sum', buckets=buckets)
  task = Task(model, partial(prepare, s), partial(skipgram.loss, s.skipgram))
  return task._replace(rows=read_rows) if update == 'rows' else task


def grams_of(vocab: Vocab, *, shortest: int, longest: int, buckets: int) -> np.ndarray:
  """int32[v, g]: the buckets of each word, see `FasttextSettings.grams`; the log says how many words have more of them."""
  special, most = set(vocab.special_ids), _most(shortest=shortest, longest=longest)
  found = [
    subwords.buckets_of(vocab.token(number), shortest=shortest, longest=longest, buckets=buckets)
    if number not in special
    else np.zeros(0, np.int32)
    for number in range(vocab.size)
  ]
  if cut := sum(len(own) > most for own in found):
    log.info(f'{cut:,} of {vocab.size:,} words are so long that their first {most} n-grams are read alone')
  found = [own[:most] for own in found]
  grams = np.full((vocab.size, max(1, *map(len, found))), -1, np.int32)
  for number, own in enumerate(found):
    grams[number, : len(own)] = own
  return grams


def _most(*, shortest: int, longest: int) -> int:
  """How many n-grams a word may have: as many as one of `MOST_LETTERS`, or of one n-gram where that is longer."""
  return len(subwords.ngrams('a' * max(MOST_LETTERS, longest), shortest=shortest, longest=longest))


def prepare(s: FasttextSettings, root: Array, batch: Batch) -> Example:
  """Pairs of words as in objective 'skipgram', with the buckets of the words."""
  example = skipgram.prepare(s.skipgram, root, batch)
  return example._replace(inputs=example.inputs | {'grams': jnp.asarray(s.grams)[example.inputs['tokens']]})


def read_rows(example: Example) -> dict[str, Array]:
  """The words and buckets whose vectors a batch reads."""
  return skipgram.read_rows(example) | {'ngrams/table': jnp.maximum(example.inputs['grams'], 0).reshape(-1)}


def word_table(
  params: PyTree,
  vocab: Vocab,
  *,
  shortest: int = 3,
  longest: int = 6,
  buckets: int = 2_000_000,
  **settings: object,
) -> WordTable:
  """The vectors of words and of others by their letters."""
  del settings
  words, ngrams = (np.asarray(one['table'], np.float32) for one in (params['trunk']['token_embed'], params['ngrams']))
  letters = {'shortest': shortest, 'longest': longest, 'buckets': buckets}
  grams = grams_of(vocab, **letters)
  vectors = words[: vocab.size].copy()
  for vector, own in zip(vectors, grams, strict=True):
    own = own[own >= 0]
    vector[:] = (vector + ngrams[own].sum(axis=0)) / (1 + len(own))

  def unseen(word: str) -> np.ndarray:
    own = subwords.buckets_of(word, **letters)[: _most(shortest=shortest, longest=longest)]
    return ngrams[own].mean(axis=0) if len(own) else np.zeros(ngrams.shape[1], np.float32)

  return WordTable(vectors, unseen)
