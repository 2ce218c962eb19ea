"""Permutation language modelling (Yang et al. 2019, §2.2 and §2.3): sum_t log p(x_z(t) | x_z(<t)) over random orders z.

Every step samples a factorisation order for each row and predicts about one token in K, those late in the order.
Tokens keep their positions; the order is an attention mask. The memory of a two-stream trunk is carried from row to
row, for rows of `data.bptt` with stride = length / 2. Half of the rows may hold text from its end to its beginning
(data.reverse_half); the field 'reversed' of a batch marks them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.errors import require
from plm_jax.core.keywords import Count
from plm_jax.core.sharding import each_row
from plm_jax.core.trunk import Attends, Remembers
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers.linear import OutputBias
from plm_jax.layers.losses import cross_entropy, most_likely
from plm_jax.layers.means import batch_scale, metric, perplexity_of, scaled_sum
from plm_jax.noise import permutation
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import corrupt

Gram = Annotated[int, '1 <= x <= 10_000']  # tokens, or tokens of context for each of them: products are int32

PAPER = Paper(year=2019, title='Yang et al., XLNet', architecture='encoder', objective_family='permutation')
READS = ('tokens', 'segment_ids')
MAY_READ = ('word_marks',)


class Model(nn.Module):
  """A two-stream trunk with the output matrix on its query stream."""

  trunk: nn.Module
  lm: nn.Module

  def __call__(self, carry: PyTree = (), train: bool = False, **inputs: Array) -> tuple[Array, PyTree]:
    """Compute target logits f32[b, t, v] and the next memory."""
    out = self.trunk(**inputs, carry=carry, train=train)
    return self.lm(self.trunk.attend(out['queries'])), out['carry']


class PermutationLmSettings(NamedTuple):
  """Settings of orders and targets; those without a comment are explained in `make`."""

  trunk: Remembers  # knows how much of a row enters its memory
  functional: np.ndarray  # bool[v], <sep> and <cls>
  starts_word: np.ndarray  # bool[v]
  one_in: int
  ngrams: bool
  max_gram: int
  window: int
  block: int | None
  memory: bool


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  one_in: Count = 6,
  ngrams: bool = True,
  max_gram: Gram = 5,
  window: Gram = 6,
  block: Count | None = None,
  memory: bool = True,
) -> Task:
  """Build permutation language modelling for a two-stream trunk.

  Args:
    vocab: of the rows; its <sep> and <cls> are never predicted.
    one_in: K, one target in K tokens (6 or 7 in the paper).
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
    offers=(Attends, Remembers),
  )
  functional = corrupt.among([i for i in (vocab.sep_id, vocab.cls_id) if i is not None], vocab.size)
  s = PermutationLmSettings(
    trunk=trunk,
    functional=functional,
    starts_word=np.asarray(vocab.starts_word),
    one_in=one_in,
    ngrams=ngrams,
    max_gram=max_gram,
    window=window,
    block=block,
    memory=memory,
  )
  model = Model(trunk, OutputBias(trunk.vocab_size))
  task = Task(model, partial(prepare, s), partial(loss, s), predict, summary=perplexity_of)
  return task._replace(init_carry=trunk.init_carry) if memory else task


def prepare(s: PermutationLmSettings, root: Array, batch: Batch) -> Example:
  """Build rows with masks of their orders, target positions and targets."""
  tokens, segments = batch['tokens'], batch['segment_ids']
  reverse = batch['reversed'] if 'reversed' in batch else jnp.zeros(tokens.shape[0], bool)
  rows = each_row(partial(draw, s), row_keys(root, batch, every='step'), reverse, *corrupt.text(batch))
  weights = rows['weights'] * batch['row_weight'][:, None]
  inputs = {'tokens': tokens, 'segment_ids': segments, **corrupt.present(batch, 'type_ids', 'reversed')}
  inputs |= {name: rows[name] for name in ('permutation_mask', 'target_positions')}
  return Example(inputs, {'ids': rows['ids'], 'weights': weights, 'scale': batch_scale(weights)})


def draw(
  s: PermutationLmSettings, key: Array, reverse: Array, tokens: Array, segment_ids: Array, marks: Array | None = None
) -> dict[str, Array]:
  """Sample the order and targets of one row, bool[] and `corrupt.text`.

  Return 'permutation_mask', and 'target_positions', 'weights' and 'ids' [t].
  """
  length = tokens.shape[0]
  reused = s.trunk.reuse(length)
  boundary = reused if reused < length else length // 2  # some released models keep whole rows in memory
  target_key, order_key = jax.random.split(key)
  row = corrupt.make_row(tokens, segment_ids, special=s.functional, starts_word=s.starts_word, marks=marks)
  targets = permutation.choose_targets(
    target_key,
    row,
    boundary=boundary,
    one_in=s.one_in,
    spans=s.ngrams,
    max_gram=s.max_gram,
    window=s.window,
    reverse=reverse,
  )
  ranks = permutation.draw_ranks(order_key, length, boundary=boundary, block=s.block)
  slots = sum(permutation.goals(length, boundary=boundary, one_in=s.one_in))
  positions, weights, _ = corrupt.gather(targets, slots=slots)
  functional = jnp.asarray(s.functional)[tokens]
  return {
    'permutation_mask': permutation.visible(ranks, targets, functional, boundary=boundary),
    'target_positions': positions,
    'weights': weights,
    'ids': tokens[positions],
  }


def loss(s: PermutationLmSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy of the targets; also the next memory."""
  logits, after = forward(**example.inputs, carry=carry)
  return score(logits, example.targets)._replace(carry=after if s.memory else ())


def score(logits: Array, targets: Mapping[str, Array]) -> Loss:
  """Compute the cross-entropy of logits f32[b, t, v] at the target positions."""
  nats, correct = cross_entropy(logits, targets['ids']), most_likely(logits, targets['ids'])
  weights = targets['weights']
  metrics = {'loss': metric(nats, weights), 'accuracy': metric(correct, weights)}
  return Loss(scaled_sum(nats, weights, targets['scale']), metrics)


def predict(forward: Forward, example: Example) -> dict[str, Array]:
  """Predict the most likely token of each slot, without a memory."""
  logits, _ = forward(**example.inputs)
  positions, weights = example.inputs['target_positions'], example.targets['weights']
  return {'positions': positions, 'ids': logits.argmax(axis=-1), 'weights': weights}
