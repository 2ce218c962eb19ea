"""Causal language modelling: -sum_t log p(x_t | x_<t) (GPT §3.1, eq. 1).

The first token of a document is predicted only where the data puts a begin-of-sequence token before it. Perplexity is
exp of the mean nats per token, which equals 2 to the mean bits and (prod p)^(-1/N).

Rows of `data.bptt` continue the row before them: `memory` carries the state of a recurrent trunk from row to row, and
the token after a row is predicted as well.
"""

import math
from functools import partial
from typing import Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.keywords import Count, Weight
from plm_jax.core.trunk import Attends
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab, nothing_after
from plm_jax.layers.losses import (
  chunked_cross_entropy,
  cross_entropy,
  in_chunks,
  most_likely,
  next_tokens,
  perplexity,
  squared_log_partition,
)
from plm_jax.layers.means import batch_scale, metric, perplexity_of, scaled_sum
from plm_jax.objectives import corrupt

PAPER = Paper(year=2018, title='Radford et al., GPT', architecture='decoder', objective_family='autoregressive')
READS = ('tokens', 'segment_ids')
MAY_READ = ('overlap',)
CARRIES = 'memory'  # setting under which the rows of a batch continue those of the batch before

Packing = Literal['segments', 'stream']
Predicted = Literal['all', 'last_word']


class Model(nn.Module):
  """A causal trunk and its output matrix."""

  trunk: nn.Module

  def __call__(self, train: bool = False, **inputs: PyTree) -> Array:
    """Compute the states before the output matrix, [b, l, d]."""
    return self.trunk(**inputs, train=train)['hidden']

  def read(self, train: bool = False, **inputs: PyTree) -> tuple[Array, Array, PyTree]:
    """Compute output states, last-layer states [b, l, d] and the next carry."""
    out = self.trunk(**inputs, train=train)
    return out['hidden'], out['layers'][-1], out['carry']

  def attend(self, features: Array, train: bool = False) -> Array:
    """Compute vocabulary logits f32[..., v]."""
    return self.trunk.attend(features)


class CausalLmSettings(NamedTuple):
  """Settings of targets and scores; those without a comment are explained in `make`."""

  num_bytes: np.ndarray  # f32[v], bytes of each token
  starts_word: np.ndarray  # bool[v]
  special: np.ndarray  # bool[v], tokens that are in no word
  nothing: int  # `types.nothing_after` of the vocabulary
  packing: Packing
  predict: Predicted
  z_loss: float
  logit_rows: int
  memory: bool
  activation: float
  temporal: float


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  packing: Packing = 'segments',
  predict: Predicted = 'all',
  z_loss: Weight = 0.0,
  logit_rows: Count = 8,
  memory: bool = False,
  activation: Weight = 0.0,
  temporal: Weight = 0.0,
) -> Task:
  """Build causal language modelling for a decoder.

  Args:
    vocab: of the rows; its bytes per token give bits per byte.
    packing: 'segments' separates the documents of a row: attention, positions and prediction stay inside each; 'stream'
      lets them cross all documents of the row (GPT-2, GPT-3).
    predict: 'all' tokens, or those of the 'last_word' of each row, for rows of one text each (LAMBADA). Special tokens
      after the last word are ignored. 'last_word' has the metrics 'word_accuracy' (a word is right if the most likely
      token is right at each of its positions), 'nats_per_word', and 'word_perplexity', which is exp of the latter.
    z_loss: weight of log^2 Z, where Z is the normaliser of the softmax: keeps logits from drifting (PaLM §5: 1e-4).
      It is part of the training loss and of the metric 'z_loss', not of 'loss'.
    logit_rows: rows of each device whose logits are in memory at a time.
    memory: carry the trunk's state from row to row, for rows of `data.bptt`.
    activation: alpha, weight of the mean square of the states before the output matrix (AR; Merity et al. 2018, §4.6:
      2). Like `temporal`, it is part of the training loss and has its own metric, and is not part of 'loss'.
    temporal: beta, weight of the mean square of the change of the last layer from token to token (TAR; there: 1). The
      mean is over l tokens, in the released code over l - 1 changes: beta l / (l - 1) gives its term.
  """
  user = f"objective 'causal_lm'{' with memory' if memory else ''}"
  inputs = ('tokens', 'segment_ids', *(('carry',) if memory else ()))
  require(trunk, user=user, attention=('causal',), inputs=inputs, offers=(Attends,))
  errors.one_of('objective.packing', packing, Packing)
  errors.one_of('objective.predict', predict, Predicted)
  num_bytes = np.asarray(vocab.num_bytes, np.float32)
  s = CausalLmSettings(
    num_bytes=num_bytes,
    starts_word=np.asarray(vocab.starts_word),
    special=corrupt.mark_table(vocab) if predict == 'last_word' else np.zeros(vocab.size, bool),
    nothing=nothing_after(vocab),
    packing=packing,
    predict=predict,
    z_loss=z_loss,
    logit_rows=logit_rows,
    memory=memory,
    activation=activation,
    temporal=temporal,
  )
  task = Task(Model(trunk), partial(prepare, s), partial(loss, s), partial(predict_rows, s), summary=summary)
  return task._replace(init_carry=trunk.init_carry) if memory else task


def prepare(s: CausalLmSettings, root: Array, batch: Batch) -> Example:
  """Build the inputs, and the token after each as its target.

  Raises ValueError: `memory` with rows that do not continue each other.
  """
  if s.memory and 'reset' not in batch:
    raise ValueError(
      "objective.memory=True carries a state from row to row, but these rows do not continue: set data.name='bptt'"
    )
  tokens, segments = batch['tokens'], one_document(batch['segment_ids'], s.packing)
  targets, weights = next_tokens(tokens, segments)
  if 'next_token' in batch:
    follows = batch['next_token']  # int[b], the first token of the next row
    continues = (segments[:, -1] > 0) & (follows >= 0) & (follows != s.nothing)
    targets, weights = targets.at[:, -1].set(jnp.maximum(follows, 0)), weights.at[:, -1].set(continues)
  if s.predict == 'last_word':
    ends = in_last_word(tokens, (segments > 0) & ~jnp.asarray(s.special)[tokens], jnp.asarray(s.starts_word))
    # shifted: a token is the target of the position before it
    weights = weights * jnp.pad(ends, ((0, 0), (0, 1)))[:, 1:]
  if 'overlap' in batch:
    weights = weights * (jnp.arange(1, tokens.shape[1] + 1) >= batch['overlap'][:, None])  # by index of the target
  weights = weights * batch['row_weight'][:, None]
  num_bytes = jnp.asarray(s.num_bytes)[targets] * weights
  return Example(
    {'tokens': tokens, 'segment_ids': segments},
    {'ids': targets, 'weights': weights, 'scale': batch_scale(weights), 'bytes': num_bytes},
  )


def loss(s: CausalLmSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy of every next token; also the next carry."""
  targets, weights = example.targets, example.targets['weights']
  inputs = example.inputs | ({'carry': carry} if s.memory else {})
  features, last, after = forward(method='read', **inputs)
  trained, metrics = jnp.zeros(()), {}
  if s.activation:
    trained, metrics['activation'] = penalty(s.activation, mean_square(features), trained, weights)
  if s.temporal:
    trained, metrics['temporal'] = penalty(s.temporal, change(last, example.inputs['segment_ids']), trained, weights)
  if s.z_loss:
    nats, correct, squares = score_with_partition(forward, features, targets['ids'], rows=s.logit_rows)
    trained, metrics['z_loss'] = penalty(s.z_loss, squares, trained, weights)
  else:
    nats, correct = score(forward, features, targets['ids'], rows=s.logit_rows)
  if s.predict == 'last_word':
    has_word = (weights.sum(axis=1) > 0).astype(jnp.float32)
    right = has_word * (((1 - correct) * weights).sum(axis=1) == 0)
    metrics['word_accuracy'] = (right.sum(), has_word.sum())
    metrics['nats_per_word'] = ((nats * weights).sum(), has_word.sum())
  metrics |= {
    'loss': metric(nats, weights),
    'accuracy': metric(correct, weights),
    'bits_per_byte': ((nats * weights).sum() / math.log(2), targets['bytes'].sum()),
  }
  return Loss(scaled_sum(nats + trained, weights, targets['scale']), metrics, after if s.memory else ())


def penalty(factor: float, values: Array, trained: Array, weights: Array) -> tuple[Array, tuple[Array, Array]]:
  """Add a weighted term f32[b, l]; also return its metric."""
  return trained + factor * values, (factor * (values * weights).sum(), weights.sum())


def mean_square(x: Array) -> Array:
  """Average squares over the width: [b, l, d] -> f32[b, l]."""
  return jnp.square(x.astype(jnp.float32)).mean(axis=-1)


def change(states: Array, segment_ids: Array) -> Array:
  """Compute the mean squared change of state from token to token.

  [b, l, d], int[b, l] -> f32[b, l], 0 at the first token of each document.
  """
  inside = segment_ids[:, 1:] == segment_ids[:, :-1]
  return jnp.pad(mean_square(states[:, 1:] - states[:, :-1]) * inside, ((0, 0), (1, 0)))


def predict_rows(s: CausalLmSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Compute nats of weighted targets; each row starts from zero states."""
  targets = example.targets
  features, _, _ = forward(method='read', **example.inputs)  # as in `loss`, so that both share one compiled call
  nats, _ = score(forward, features, targets['ids'], rows=s.logit_rows)
  return {'nats': nats * targets['weights'], 'weights': targets['weights']}


def summary(means: dict[str, float]) -> dict[str, float]:
  """Compute perplexity, bits per token, and word perplexity if words are scored."""
  words = {'word_perplexity': perplexity(means['nats_per_word'])} if 'nats_per_word' in means else {}
  return {**perplexity_of(means), 'bits_per_token': means['loss'] / math.log(2), **words}


def one_document(segment_ids: Array, packing: Packing) -> Array:
  """Merge the segments int[b, l] into one under 'stream'."""
  # 1 1 2 0 -> 1 1 1 0
  return (segment_ids > 0).astype(segment_ids.dtype) if packing == 'stream' else segment_ids


def in_last_word(tokens: Array, text: Array, starts_word: Array) -> Array:
  """Mark the tokens of the last word of each row, bool[b, l].

  Args:
    tokens: int[b, l].
    text: bool[b, l], False on padding and special tokens, such as the end token after the last word.
    starts_word: bool[v].
  """
  # words  The c at </s>   starts 1 1 0 0   from here 2 1 0 0   in the last word 0 1 1 0
  starts = starts_word[tokens] & text
  from_here = jnp.cumsum(starts[:, ::-1], axis=1)[:, ::-1]  # words that begin here or later
  return text & (from_here - starts == 0)


def score(forward: Forward, features: Array, targets: Array, *, rows: int = 1) -> tuple[Array, Array]:
  """Compute nats and correctness f32[b, l], with logits of `rows` at once."""
  return chunked_cross_entropy(lambda part: forward(method='attend', features=part), features, targets, rows=rows)


def score_with_partition(
  forward: Forward, features: Array, targets: Array, *, rows: int = 1
) -> tuple[Array, Array, Array]:
  """Compute `score` and log^2 of the softmax normaliser, f32[b, l] three times."""

  def score_chunk(chunk: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    logits, ids = forward(method='attend', features=chunk[0]), chunk[1]
    correct = most_likely(logits, ids).astype(jnp.float32)
    return cross_entropy(logits, ids), correct, squared_log_partition(logits)

  return in_chunks(score_chunk, (features, targets), rows=rows)
