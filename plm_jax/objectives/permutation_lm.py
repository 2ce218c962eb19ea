"""Permutation language modelling (Yang et al. 2019, §2.2 and §2.3): sum_t log p(x_z(t) | x_z(<t)) over random orders z.

Every step draws an order of factorisation for each row and predicts about one token in K, those whose turn comes late.
The tokens stay where they are; the order is a mask. The memory of a two-stream trunk is carried from row to row, for
rows of `data.bptt` with stride = length / 2. Half of the rows may hold text from its end to its beginning
(data.reverse_half); their batches say which.
"""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.layers.losses import cross_entropy, perplexity
from plm_jax.noise import permutation
from plm_jax.noise.keys import row_keys
from plm_jax.noise.row import Row, word_ids
from plm_jax.objectives.mlm import gather
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab, require

PAPER = Paper(year=2019, title='Yang et al., XLNet', architecture='encoder', objective_family='permutation')


class Head(nn.Module):
  """The bias of the output, [v]."""

  vocab_size: int

  @nn.compact
  def __call__(self, logits: Array) -> Array:
    init = nn.with_logical_partitioning(nn.initializers.zeros, ('vocab',))
    bias = self.param('bias', init, (self.vocab_size,), jnp.float32)
    return logits + jnp.pad(bias, (0, logits.shape[-1] - self.vocab_size))  # of a table padded by vocab_multiple


class Model(nn.Module):
  """A two-stream trunk with the output matrix on its query stream."""

  trunk: nn.Module
  lm: nn.Module

  def __call__(self, carry: PyTree = (), train: bool = False, **inputs: Array) -> tuple[Array, PyTree]:
    """(vocabulary logits f32[b, t, v] at the target positions, the next memory)."""
    out = self.trunk(**inputs, carry=carry, train=train)
    return self.lm(self.trunk.attend(out['queries'])), out['carry']


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  one_in: int = 6,
  ngrams: bool = True,
  max_gram: int = 5,
  window: int = 6,
  block: int | None = None,
  memory: bool = True,
) -> Task:
  """Permutation language modelling of a two-stream trunk.

  Args:
    trunk: an XLNet.
    vocab: of the rows; its <sep> and <cls> are never predicted.
    one_in: K, one target in so many tokens (6 or 7 in the paper).
    ngrams: predict n-grams; False predicts single tokens (Table 6, row 6).
    max_gram: the longest n-gram.
    window: tokens of context for each token of an n-gram.
    block: perm_size, tokens in a block of the order; None is a whole part of the row.
    memory: carry the trunk's memory from row to row (Table 6, row 5).
  """
  require(
    trunk,
    user="objective 'permutation_lm'",
    attention=('permutation',),
    inputs=('tokens', 'segment_ids', 'permutation_mask', 'target_positions', 'carry'),
  )
  starts = np.asarray(vocab.starts_word)
  is_functional = np.zeros(vocab.size, bool)
  is_functional[[number for number in (vocab.sep_id, vocab.cls_id) if number is not None]] = True

  def draw(key: Array, tokens: Array, segment_ids: Array, reverse: Array) -> dict[str, Array]:
    length = tokens.shape[0]
    boundary = trunk.reuse(length)
    target_key, order_key = jax.random.split(key)
    functional = jnp.asarray(is_functional)[tokens]
    row = Row(tokens, ~functional & (segment_ids > 0), segment_ids, word_ids(tokens, jnp.asarray(starts)))
    targets = permutation.choose_targets(
      target_key,
      row,
      boundary=boundary,
      one_in=one_in,
      spans=ngrams,
      max_gram=max_gram,
      window=window,
      reverse=reverse,
    )
    ranks = permutation.draw_ranks(order_key, length, boundary=boundary, block=block)
    slots = sum(permutation.goals(length, boundary=boundary, one_in=one_in))
    positions, weights, _ = gather(targets, slots=slots)
    return {
      'permutation_mask': permutation.visible(ranks, targets, functional, boundary=boundary),
      'target_positions': positions,
      'weights': weights,
      'ids': tokens[positions],
    }

  def prepare(root: Array, batch: Batch) -> Example:
    tokens, segments = batch['tokens'], batch['segment_ids']
    reverse = batch.get('reversed', jnp.zeros(tokens.shape[0], bool))
    rows = jax.vmap(draw)(row_keys(root, batch, every='step'), tokens, segments, reverse)
    weights = rows['weights'] * batch['row_weight'][:, None]
    inputs = {'tokens': tokens, 'segment_ids': segments}
    inputs |= {name: rows[name] for name in ('permutation_mask', 'target_positions')}
    inputs |= {name: batch[name] for name in ('type_ids', 'reversed') if name in batch}
    scale = jnp.broadcast_to(1 / jnp.maximum(weights.sum(), 1.0), weights.shape[:1])
    return Example(inputs, {'ids': rows['ids'], 'weights': weights, 'scale': scale})

  def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del rng
    logits, after = forward(**example.inputs, carry=carry)
    return score(logits, example.targets)._replace(carry=after if memory else ())

  def predict(forward: Forward, example: Example) -> dict[str, Array]:
    logits, _ = forward(**example.inputs)
    positions, weights = example.inputs['target_positions'], example.targets['weights']
    return {'positions': positions, 'ids': logits.argmax(axis=-1), 'weights': weights}

  def init_carry(batch_size: int) -> PyTree:
    return trunk.init_carry(batch_size) if memory else ()

  def summary(means: dict[str, float]) -> dict[str, float]:
    return {'perplexity': perplexity(means['loss'])}

  return Task(Model(trunk, Head(vocab.size)), prepare, loss, predict, init_carry=init_carry, summary=summary)


def score(logits: Array, targets: Mapping[str, Array]) -> Loss:
  """Cross-entropy at the target positions.

  Args:
    logits: f32[b, t, v].
    targets: 'ids' int[b, t]; 'weights' f32[b, t], 1 where the slot is in use; 'scale' f32[b], one over the batch's
      number of targets.
  """
  nats = cross_entropy(logits, targets['ids'])
  weights = targets['weights']
  correct = (logits.argmax(axis=-1) == targets['ids']) * weights
  total = weights.sum()
  return Loss(
    value=(nats * weights * targets['scale'][:, None]).sum(),
    metrics={'loss': ((nats * weights).sum(), total), 'accuracy': (correct.sum(), total)},
  )
