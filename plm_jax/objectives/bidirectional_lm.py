"""Bidirectional language modelling (Peters et al. 2018, §3.1): sum_k log p(x_k | x_<k) + log p(x_k | x_>k).

Two language models share their word vectors and their softmax, and nothing else. One reads windows of the text from
left to right, the other from right to left. Each carries its state from window to window; gradients stop at the start
of a window. Rows are those of `data.bptt` with `both_directions`.

The loss is the mean over both directions, as in the released code; the paper writes their sum, which is twice as much.

With `negatives`, training compares each next word with words sampled for its direction and step (8,192 in the released
code), not with the whole vocabulary (`layers/sampled_softmax.py`). Evaluation uses the whole vocabulary, whose most
frequent words must come first, as `text/words.py` makes it.
"""

import math
from functools import partial
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.errors import one_of, require
from plm_jax.core.keywords import Count, NonNegativeInt, Weight
from plm_jax.core.trunk import Streams
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers import sampled_softmax
from plm_jax.layers.linear import Embed, normal
from plm_jax.layers.means import batch_scale, metric, perplexity_of, scaled_sum
from plm_jax.objectives.causal_lm import score

PAPER = Paper(year=2018, title='Peters et al., ELMo', architecture='lstm', objective_family='autoregressive')
READS = ('segment_ids', 'next_tokens', 'characters', 'backward_next_tokens', 'backward_characters')
QUICK = dict(negatives=0, update='tables')  # of a smoke test (`file.py:quick`)
Update = Literal['tables', 'rows']
TABLE = 'softmax/output/table'  # the path of the output matrix


class Softmax(nn.Module):
  """The output matrix of both directions and its bias: [..., p] -> logits f32[..., v]."""

  vocab_size: int
  dtype: str

  @nn.compact
  def __call__(self, features: Array, ids: Array | None = None) -> Array | tuple[Array, Array]:
    """Compute logits; with `ids` return rows f32[..., p] and biases f32[...]."""
    width = features.shape[-1]
    init = normal(1 / math.sqrt(width))
    table = Embed(self.vocab_size, width, ('vocab', 'embed'), init, dtype=self.dtype, name='output')
    start = nn.with_logical_partitioning(nn.initializers.zeros, ('vocab',))
    bias = self.param('bias', start, (self.vocab_size,), jnp.float32)
    if ids is not None:
      return table(ids), bias[ids]
    return table.attend(features) + bias


class Model(nn.Module):
  """A trunk of two directions and the softmax."""

  trunk: nn.Module
  softmax: nn.Module

  def __call__(self, forward: Array, backward: Array, carry: PyTree = (), train: bool = False) -> tuple[Array, PyTree]:
    """Compute states [b, 2 l, p], forward ones first, and the carry."""
    carry = carry or self.trunk.init_carry(forward.shape[0])
    states, after = self.trunk.stream(forward, backward, carry=carry, train=train)  # [b, l, 2, p]
    features = jnp.concatenate([states[:, :, 0], states[:, :, 1]], axis=1)
    if self.is_initializing():
      self.softmax(features[:, :1])
    return features, after

  def attend(self, features: Array, train: bool = False) -> Array:
    """Compute vocabulary logits f32[..., v]."""
    return self.softmax(features)

  def compare(self, features: Array, ids: Array, drawn: Array, train: bool = False) -> tuple[Array, Array]:
    """Compute logits of true and sampled words for states [b, l, p].

    Returns f32[b, l] of the true words `ids` int[b, l], and f32[b, l, n] of the sampled words `drawn` int[n].
    """
    (own, own_bias), (others, bias) = (self.softmax(features, each) for each in (ids, drawn))
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    true = product('blp,blp->bl', features.astype(own.dtype), own) + own_bias
    return true, product('blp,np->bln', features.astype(own.dtype), others) + bias


class BidirectionalLmSettings(NamedTuple):
  """Settings of the loss, explained in `make`."""

  factor: float
  logit_rows: int
  negatives: int
  shares: np.ndarray  # f64[v]: probability of sampling each word
  counts: np.ndarray  # f64[v]: expected count of each word in a sample


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  factor: Weight = 1.0,
  logit_rows: Count = 8,
  negatives: NonNegativeInt = 0,
  update: Update = 'tables',
) -> Task:
  """Build bidirectional language modelling for a trunk of two directions.

  Args:
    trunk: an ELMo.
    factor: of the training loss. The released code multiplies by the words of a window, 20. AdaGrad, whose sums do not
      start from 0, and gradient clipping depend on it.
    logit_rows: rows of each device whose logits are in memory at a time.
    negatives: words sampled per step and direction in training; 0 uses the whole vocabulary.
    update: 'tables' differentiates the whole output matrix, for any rule of `optim`; 'rows' only the rows that a step
      reads, which needs negatives and optim.name sgd or adagrad. The result is the same.

  Raises:
    ValueError: more negatives than words, or `update='rows'` without negatives.
  """
  one_of('objective.update', update, Update)
  if negatives >= vocab.size:
    raise ValueError(
      f'objective.negatives={negatives}: the vocabulary has {vocab.size} words; set fewer, or 0 to use all'
    )
  if update == 'rows' and not negatives:
    raise ValueError("objective.update='rows' needs sampled words: set objective.negatives, or update='tables'")
  user, inputs = "objective 'bidirectional_lm'", ('characters', 'segment_ids')
  require(trunk, user=user, attention=('bidirectional',), inputs=inputs, offers=(Streams,))
  shares = sampled_softmax.log_uniform(vocab.size)
  counts = sampled_softmax.expected_counts(shares, negatives) if negatives else shares
  s = BidirectionalLmSettings(factor, logit_rows, negatives, shares, counts)
  model = Model(trunk, Softmax(vocab.size, trunk.execution.dtype))
  task = Task(model, partial(prepare, s), partial(loss, s), partial(predict, s), summary=perplexity_of)
  if negatives:
    task = task._replace(loss=partial(sampled_loss, s), evaluate=partial(loss, s))
  task = task._replace(init_carry=trunk.init_carry)
  return task._replace(rows=read_rows) if update == 'rows' else task


def prepare(s: BidirectionalLmSettings, root: Array, batch: Batch) -> Example:
  """Build the windows and next words of both directions.

  Targets are [b, 2 l], forward first. With `negatives`, also 'drawn' int32[b, 2, n], the sampled words, the same for
  every row.
  """
  following = jnp.concatenate([batch['next_tokens'], batch['backward_next_tokens']], axis=1)
  real = (batch['segment_ids'] > 0).astype(jnp.float32) * batch['row_weight'][:, None]
  weights = jnp.concatenate([real, real], axis=1)
  inputs = {'forward': batch['characters'], 'backward': batch['backward_characters']}
  targets = {'ids': following, 'weights': weights, 'scale': batch_scale(weights)}
  if s.negatives:
    keys = jax.random.split(jax.random.fold_in(root, batch['step']), 2)
    log_shares = jnp.asarray(np.log(s.shares), jnp.float32)
    drawn = jnp.stack([sampled_softmax.draw(key, log_shares, s.negatives) for key in keys])
    targets['drawn'] = jnp.broadcast_to(drawn, (len(following), *drawn.shape))
  return Example(inputs, targets)


def read_rows(example: Example) -> dict[str, Array]:
  """List the rows of the output matrix that a step reads."""
  targets = example.targets
  return {TABLE: jnp.concatenate([targets['ids'].reshape(-1), targets['drawn'][0].reshape(-1)])}


def sampled_loss(s: BidirectionalLmSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute cross-entropy of next words among sampled words, and the next carry."""
  targets, weights = example.targets, example.targets['weights']
  features, after = forward(**example.inputs, carry=carry)
  expected = jnp.asarray(np.log(s.counts), jnp.float32)

  def compared(half: Array, ids: Array, drawn: Array) -> Array:
    true, others = forward(method='compare', features=half, ids=ids, drawn=drawn)
    return sampled_softmax.nats(true - expected[ids], others - expected[drawn], ids[..., None] == drawn)

  halves = (jnp.split(each, 2, axis=1) for each in (features, targets['ids']))
  nats = jnp.concatenate([compared(*each) for each in zip(*halves, targets['drawn'][0], strict=True)], axis=1)
  metrics = {'sampled_loss': metric(nats, weights)}
  return Loss(s.factor * scaled_sum(nats, weights, targets['scale']), metrics, after)


def loss(s: BidirectionalLmSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute cross-entropy of next words both ways, and the next carry."""
  targets, weights = example.targets, example.targets['weights']
  features, after = forward(**example.inputs, carry=carry)
  nats, correct = score(forward, features, targets['ids'], rows=s.logit_rows)
  half = weights.shape[1] // 2
  metrics = {
    'loss': metric(nats, weights),
    'accuracy': metric(correct, weights),
    'forward_loss': metric(nats[:, :half], weights[:, :half]),
    'backward_loss': metric(nats[:, half:], weights[:, half:]),
  }
  return Loss(s.factor * scaled_sum(nats, weights, targets['scale']), metrics, after)


def predict(s: BidirectionalLmSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Compute nats of each weighted target, starting each row from zero states."""
  targets = example.targets
  features, _ = forward(**example.inputs)
  nats, _ = score(forward, features, targets['ids'], rows=s.logit_rows)
  return {'nats': nats * targets['weights'], 'weights': targets['weights']}
