"""Bidirectional language modelling (Peters et al. 2018, §3.1): sum_k log p(x_k | x_<k) + log p(x_k | x_>k).

Two language models share the vectors of words that they read and the softmax that they predict with, and nothing else.
Each goes through the text in windows, one from left to right, one from right to left, and carries
its state from window to window; gradients end where a window begins. Rows are those of `data.bptt` with
`both_directions`.

The loss is the mean over both directions, as in the released code; the paper writes their sum, which is twice as much.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.errors import require
from plm_jax.layers.linear import Embed, normal
from plm_jax.layers.losses import chunked_cross_entropy
from plm_jax.layers.means import batch_scale, metric, perplexity_of, scaled_sum
from plm_jax.types import Array, Batch, Count, Example, Forward, Loss, Paper, PyTree, Streams, Task, Vocab, Weight

PAPER = Paper(year=2018, title='Peters et al., ELMo', architecture='lstm', objective_family='autoregressive')
READS = (
  'segment_ids',
  'next_tokens',
  'characters',
  'backward_next_tokens',
  'backward_characters',
)


class Softmax(nn.Module):
  """The output matrix of both directions and its bias: [..., p] -> logits f32[..., v].

  Attributes:
    vocab_size: v.
    dtype: of the product.
  """

  vocab_size: int
  dtype: str

  @nn.compact
  def __call__(self, features: Array) -> Array:
    width = features.shape[-1]
    init = normal(1 / math.sqrt(width))
    table = Embed(self.vocab_size, width, ('vocab', 'embed'), init, dtype=self.dtype, name='output')
    start = nn.with_logical_partitioning(nn.initializers.zeros, ('vocab',))
    return table.attend(features) + self.param('bias', start, (self.vocab_size,), jnp.float32)


class Model(nn.Module):
  """A trunk of two directions and the softmax."""

  trunk: nn.Module
  softmax: nn.Module

  def __call__(self, forward: Array, backward: Array, carry: PyTree = (), train: bool = False) -> tuple[Array, PyTree]:
    """States before the softmax, [b, 2 l, p], those of the forward direction first, and the next carry."""
    carry = carry or self.trunk.init_carry(forward.shape[0])
    states, after = self.trunk.stream(forward, backward, carry=carry, train=train)  # [b, l, 2, p]
    features = jnp.concatenate([states[:, :, 0], states[:, :, 1]], axis=1)
    if self.is_initializing():
      self.softmax(features[:, :1])
    return features, after

  def attend(self, features: Array, train: bool = False) -> Array:
    """Vocabulary logits f32[..., v]."""
    del train
    return self.softmax(features)


class Setup(NamedTuple):
  """Settings, explained in `make`."""

  factor: float
  logit_rows: int


def make(*, trunk: nn.Module, vocab: Vocab, factor: Weight = 1.0, logit_rows: Count = 8) -> Task:
  """Bidirectional language modelling of a trunk of two directions.

  Args:
    trunk: an ELMo.
    vocab: of the words that are predicted.
    factor: times which the loss is trained on. The released code takes the words of a window, 20; AdaGrad, whose sums
      do not start from 0, and the clipping of gradients see the difference.
    logit_rows: batch rows whose logits are in memory at a time.
  """
  user, inputs = "objective 'bidirectional_lm'", ('characters', 'segment_ids')
  require(trunk, user=user, attention=('bidirectional',), inputs=inputs, offers=(Streams,))
  s = Setup(factor, logit_rows)
  model = Model(trunk, Softmax(vocab.size, trunk.execution.dtype))
  task = Task(model, prepare, partial(loss, s), partial(predict, s), summary=perplexity_of)
  return task._replace(init_carry=trunk.init_carry)


def prepare(root: Array, batch: Batch) -> Example:
  """The windows of both directions, and what follows each of their words: targets [b, 2 l], forward first."""
  del root
  following = jnp.concatenate([batch['next_tokens'], batch['backward_next_tokens']], axis=1)
  real = (batch['segment_ids'] > 0).astype(jnp.float32) * batch['row_weight'][:, None]
  weights = jnp.concatenate([real, real], axis=1)
  inputs = {'forward': batch['characters'], 'backward': batch['backward_characters']}
  return Example(inputs, {'ids': following, 'weights': weights, 'scale': batch_scale(weights)})


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Cross-entropy of every next word, in both directions; the next carry."""
  del rng
  targets, weights = example.targets, example.targets['weights']
  features, after = forward(**example.inputs, carry=carry)
  nats, correct = score(s, forward, features, targets)
  half = weights.shape[1] // 2
  metrics = {
    'loss': metric(nats, weights),
    'accuracy': metric(correct, weights),
    'forward_loss': metric(nats[:, :half], weights[:, :half]),
    'backward_loss': metric(nats[:, half:], weights[:, half:]),
  }
  return Loss(s.factor * scaled_sum(nats, weights, targets['scale']), metrics, after)


def predict(s: Setup, forward: Forward, example: Example) -> dict[str, Array]:
  """Nats of each target that counts, with states of zeros before each row."""
  targets = example.targets
  features, _ = forward(**example.inputs)
  nats, _ = score(s, forward, features, targets)
  return {'nats': nats * targets['weights'], 'weights': targets['weights']}


def score(s: Setup, forward: Forward, features: Array, targets: Mapping[str, Array]) -> tuple[Array, Array]:
  """Nats and correctness of each next word, f32[b, 2 l] both."""
  attend = lambda part: forward(method='attend', features=part)  # noqa: E731
  return chunked_cross_entropy(attend, features, targets['ids'], rows=s.logit_rows)
