"""GloVe: products of word vectors approximate the logarithms of co-occurrence counts.

Pennington et al. 2014, eq. 8; stanfordnlp/GloVe, src/glove.c. For each word i and neighbour j with count X:
f(X) (w_i w~_j + b_i + b~_j - log X)^2, where f(X) = min(1, (X / x_max)^alpha). The training loss is half of it, as in
glove.c. Its AdaGrad begins with 1 and sums squares of the rate times the gradient (`optim.gathers='update'`), so the
size of gradients matters. A word has two vectors, w as a word and w~ as a neighbour; their sum is used after training.

  # X 1 100 400   f .03 1 1
"""

from functools import partial
from typing import Annotated, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab, WordTable
from plm_jax.layers.linear import Embed, uniform
from plm_jax.layers.means import metric
from plm_jax.objectives.context_windows import Update, words_of

PAPER = Paper(
  year=2014,
  title='Pennington et al., GloVe: Global Vectors for Word Representation',
  architecture='static',
  objective_family='co-occurrence',
  supervision='unsupervised',
)
READS = ('tokens', 'segment_ids', 'neighbours', 'cooccurrence')


class Model(nn.Module):
  """Tables of words (the trunk), of neighbours and of two biases, all initialised from U(-.5, .5) / d."""

  trunk: nn.Module
  vocab_size: int

  def setup(self) -> None:
    init = uniform(0.5 / self.trunk.hidden_dim)
    self.context = Embed(self.vocab_size, self.trunk.hidden_dim, ('vocab', 'embed'), init)
    self.bias = Embed(self.vocab_size, 1, ('vocab', None), init)
    self.context_bias = Embed(self.vocab_size, 1, ('vocab', None), init)

  def __call__(self, tokens: Array, neighbours: Array, train: bool = False) -> Array:
    """Predict log X of each pair: int[b, l] twice -> f32[b, l]."""
    words, others = self.trunk(tokens, train=train)['hidden'], self.context(neighbours)  # [b, l, d]
    biases = self.bias(tokens) + self.context_bias(neighbours)  # [b, l, 1]
    return jnp.einsum('bld,bld->bl', words, others) + biases[..., 0]


class GloveSettings(NamedTuple):
  """Settings of the weights of pairs, explained in `make`."""

  x_max: float
  alpha: float


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  x_max: Annotated[float, '0 < x <= 1_000_000_000'] = 100.0,
  alpha: Annotated[float, '0 <= x <= 10'] = 0.75,
  update: Update = 'tables',
) -> Task:
  """Build word vectors from counts of pairs (data 'cooccurrence').

  Args:
    trunk: a trunk whose vectors do not depend on neighbours: 'static'.
    x_max: the smallest count whose pair has weight 1.
    alpha: power of the weight below it.
    update: 'tables' differentiates whole tables, for any rule of `optim`; 'rows' only the rows that a batch reads,
      which needs optim.name sgd or adagrad. The result is the same.

  Raises:
    ValueError: the vocabulary has fewer than two words.
  """
  user = "objective 'glove'"
  require(trunk, user=user, attention=('none',), inputs=('tokens',))
  words_of(vocab, user=user)  # raises for fewer than two words
  errors.one_of('objective.update', update, Update)
  s = GloveSettings(x_max=x_max, alpha=alpha)
  task = Task(Model(trunk, vocab.size), partial(prepare, s), loss)
  return task._replace(rows=read_rows) if update == 'rows' else task


def prepare(s: GloveSettings, root: Array, batch: Batch) -> Example:
  """Build pairs, with their logarithmic counts and weights."""
  count = batch['cooccurrence']
  counted = (batch['segment_ids'] > 0) & (count > 0)
  real = counted * batch['row_weight'][:, None]
  weights = jnp.minimum((count / s.x_max) ** s.alpha, 1.0) * real
  return Example(
    {'tokens': batch['tokens'], 'neighbours': batch['neighbours']},
    {'logs': jnp.log(jnp.where(counted, count, 1.0)), 'weights': weights, 'real': real},
  )


def read_rows(example: Example) -> dict[str, Array]:
  """List the words whose vectors a batch reads, for each table."""
  words, others = (example.inputs[name].reshape(-1) for name in ('tokens', 'neighbours'))
  return {'trunk/token_embed/table': words, 'bias/table': words, 'context/table': others, 'context_bias/table': others}


def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Sum half the weighted squared errors; the metric averages, as glove.c prints."""
  targets = example.targets
  errors_of = forward(**example.inputs) - targets['logs']
  costs = 0.5 * targets['weights'] * errors_of**2
  return Loss(costs.sum(), {'loss': metric(costs, targets['real'])})


def word_table(params: PyTree, vocab: Vocab, **settings: object) -> WordTable:
  """Build the final vectors: those of words plus those of neighbours."""
  word, other = (np.asarray(tree['table'], np.float32) for tree in (params['trunk']['token_embed'], params['context']))
  return WordTable(word[: len(other)] + other)
