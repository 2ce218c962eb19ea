"""Causal language modelling: -sum_t log p(x_t | x_<t) (GPT §3.1, eq. 1).

The first token of a document is predicted only where the data puts a begin-of-sequence token before it. Perplexity is
exp of the mean nats a token, which equals 2 to the mean bits and (prod p)^(-1/N).
"""

import math
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from plm_jax.layers.losses import chunked_cross_entropy, cross_entropy, in_chunks, perplexity, squared_log_partition
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab, require

PAPER = Paper(year=2018, title='Radford et al., GPT', architecture='decoder', objective_family='autoregressive')


class Model(nn.Module):
  """A causal trunk and its output matrix."""

  trunk: nn.Module

  def __call__(self, train: bool = False, **inputs: Array) -> Array:
    """States before the output matrix, [b, l, d]."""
    hidden = self.trunk(**inputs, train=train)['hidden']
    if self.is_initializing():
      self.trunk.attend(hidden)  # an untied output matrix must exist
    return hidden

  def attend(self, features: Array, train: bool = False) -> Array:
    """Vocabulary logits f32[..., v]."""
    del train
    return self.trunk.attend(features)


def next_tokens(tokens: Array, segment_ids: Array) -> tuple[Array, Array]:
  """What follows each position inside its document.

  Args:
    tokens: int[b, l].
    segment_ids: int[b, l]; 0 is padding.

  Returns:
    targets int[b, l] and weights f32[b, l], 0 at the last token of each document and on padding.
  """
  following = jnp.pad(tokens, ((0, 0), (0, 1)))[:, 1:]
  segment = jnp.pad(segment_ids, ((0, 0), (0, 1)))[:, 1:]
  return following, ((segment == segment_ids) & (segment > 0)).astype(jnp.float32)


def in_last_word(tokens: Array, segment_ids: Array, starts_word: Array) -> Array:
  """Which tokens of a row belong to its last word, which may be several: bool[b, l].

  Args:
    tokens: int[b, l].
    segment_ids: int[b, l]; 0 is padding.
    starts_word: bool[v].
  """
  starts = starts_word[tokens] & (segment_ids > 0)
  from_here = jnp.cumsum(starts[:, ::-1], axis=1)[:, ::-1]  # words that begin here or later
  return (segment_ids > 0) & (from_here - starts == 0)


def score(forward: Forward, features: Array, targets: Array, *, rows: int = 1) -> tuple[Array, Array]:
  """Nats and correctness of each next token, f32[b, l] both; `rows` of the batch have logits in memory at a time."""
  return chunked_cross_entropy(lambda part: forward(method='attend', features=part), features, targets, rows=rows)


def score_with_partition(
  forward: Forward, features: Array, targets: Array, *, rows: int = 1
) -> tuple[Array, Array, Array]:
  """As `score`, with the squared logarithm of what each softmax divides by, f32[b, l]."""

  def one(chunk: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    logits, ids = forward(method='attend', features=chunk[0]), chunk[1]
    correct = (logits.argmax(axis=-1) == ids).astype(jnp.float32)
    return cross_entropy(logits, ids), correct, squared_log_partition(logits)

  return in_chunks(one, (features, targets), rows=rows)


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  packing: Literal['segments', 'stream'] = 'segments',
  predict: Literal['all', 'last_word'] = 'all',
  z_loss: float = 0.0,
  logit_rows: int = 8,
) -> Task:
  """Causal language modelling of a decoder.

  Args:
    trunk: a causal trunk.
    vocab: of the rows; its bytes a token give bits per byte.
    packing: 'segments' walls the documents of a row off from each other and restarts positions; 'stream' lets
      attention, positions and prediction run across them (GPT-2, GPT-3).
    predict: 'all' tokens, or those of the 'last_word' of each row, for rows that hold one text each (LAMBADA). The
      latter has the metrics 'word_accuracy', a word being right where the likeliest token is right at every place, and
      'nats_per_word', and 'word_perplexity', which is exp of it.
    z_loss: weight of log^2 Z, where Z is what the softmax divides by: keeps logits from drifting (PaLM §5: 1e-4). It is
      in what is trained on and in the metric 'z_loss', not in 'loss'.
    logit_rows: batch rows whose logits are in memory at a time.
  """
  require(trunk, user="objective 'causal_lm'", attention=('causal',), inputs=('tokens', 'segment_ids'))
  if packing not in ('segments', 'stream'):
    raise ValueError(f'objective.packing={packing!r}; choices are segments, stream')
  if predict not in ('all', 'last_word'):
    raise ValueError(f'objective.predict={predict!r}; choices are all, last_word')
  num_bytes = np.asarray(vocab.num_bytes, np.float32)
  starts_word = np.asarray(vocab.starts_word)

  def prepare(root: Array, batch: Batch) -> Example:
    del root
    tokens, segments = batch['tokens'], batch['segment_ids']
    if packing == 'stream':
      segments = (segments > 0).astype(segments.dtype)
    targets, weights = next_tokens(tokens, segments)
    if predict == 'last_word':
      ends = in_last_word(tokens, segments, jnp.asarray(starts_word))
      weights = weights * jnp.pad(ends, ((0, 0), (0, 1)))[:, 1:]  # a token is predicted from the place before it
    weights = weights * batch['row_weight'][:, None]
    scale = jnp.broadcast_to(1 / jnp.maximum(weights.sum(), 1.0), weights.shape[:1])
    return Example(
      {'tokens': tokens, 'segment_ids': segments},
      {'ids': targets, 'weights': weights, 'scale': scale, 'bytes': jnp.asarray(num_bytes)[targets] * weights},
    )

  def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del carry, rng
    targets = example.targets
    features, weights = forward(**example.inputs), targets['weights']
    total = weights.sum()
    trained, metrics = jnp.zeros(()), {}
    if z_loss:
      nats, correct, squares = score_with_partition(forward, features, targets['ids'], rows=logit_rows)
      trained, metrics = z_loss * squares, {'z_loss': (z_loss * (squares * weights).sum(), total)}
    else:
      nats, correct = score(forward, features, targets['ids'], rows=logit_rows)
    if predict == 'last_word':
      there = (weights.sum(axis=1) > 0).astype(jnp.float32)
      right = there * (((1 - correct) * weights).sum(axis=1) == 0)
      metrics['word_accuracy'] = (right.sum(), there.sum())
      metrics['nats_per_word'] = ((nats * weights).sum(), there.sum())
    return Loss(
      value=((nats + trained) * weights * targets['scale'][:, None]).sum(),
      metrics={
        'loss': ((nats * weights).sum(), total),
        'accuracy': ((correct * weights).sum(), total),
        'bits_per_byte': ((nats * weights).sum() / math.log(2), targets['bytes'].sum()),
        **metrics,
      },
    )

  def score_rows(forward: Forward, example: Example) -> dict[str, Array]:
    targets = example.targets
    nats, _ = score(forward, forward(**example.inputs), targets['ids'], rows=logit_rows)
    return {'nats': nats * targets['weights'], 'weights': targets['weights']}

  def summary(means: dict[str, float]) -> dict[str, float]:
    numbers = {'perplexity': perplexity(means['loss']), 'bits_per_token': means['loss'] / math.log(2)}
    if predict == 'last_word':
      numbers['word_perplexity'] = perplexity(means['nats_per_word'])
    return numbers

  return Task(Model(trunk), prepare, loss, score_rows, summary=summary)
