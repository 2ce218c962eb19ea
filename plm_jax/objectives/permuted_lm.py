"""Permuted language modelling on one stream: BART's comparison (Lewis et al. 2019, §4.1), after XLNet.

One token in six is predicted, in a random order, each from all tokens that are not predicted and from those predicted
before it. There are no relative positions and no memory. XLNet's second stream is a second copy of each target in the
same row: a mask token that stands at the target's position, sees what the target may be told from and itself, and is
seen by nobody. So any encoder that takes positions and a mask of its own will do; rows get longer by the targets.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.layers.positions import from_segments
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import corrupt, mlm
from plm_jax.types import Array, Batch, Example, Paper, Task, Vocab, require

PAPER = Paper(year=2019, title='Lewis et al., BART', architecture='encoder', objective_family='permutation')


def context(targets: Array, ranks: Array, places: Array) -> Array:
  """Which keys a query may look at inside its segment.

  Args:
    targets: bool[l].
    ranks: int[l], places of the targets in the order of prediction.
    places: int[t], where the copies of the targets stand.

  Returns:
    bool[l + t, l + t], queries first: of the text, and then of the copies.
  """
  length, copies = targets.shape[0], places.shape[0]
  # a text token sees no target that comes after it, and one that is no target sees no target at all
  turn = jnp.where(targets, ranks, 0)
  earlier = ~targets[None, :] | (targets[:, None] & (turn[:, None] > turn[None, :]))
  text = jnp.concatenate([earlier | jnp.eye(length, dtype=bool), earlier[places]])
  alone = jnp.concatenate([jnp.zeros((length, copies), bool), jnp.eye(copies, dtype=bool)])
  return jnp.concatenate([text, alone], axis=1)


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  where: Mapping[str, Any] = {'name': 'fixed_count', 'rate': 1 / 6},
) -> Task:
  """Permuted language modelling of an encoder.

  Args:
    trunk: an encoder that takes positions and a mask of its own, with positions for rows and targets together.
    vocab: with a mask token.
    where: which tokens, as in `mlm`.
  """
  require(
    trunk,
    user="objective 'permuted_lm'",
    attention=('bidirectional',),
    inputs=('tokens', 'segment_ids', 'type_ids', 'positions', 'allowed'),
  )
  task = mlm.make(trunk=trunk, vocab=vocab, where=where)  # its head, loss and predictions
  mask_id = vocab.mask_id
  assert mask_id is not None  # as `mlm` has made sure
  choose = corrupt.pick_where(where, vocab=vocab)
  is_special = np.zeros(vocab.size, bool)
  is_special[list(vocab.special_ids)] = True
  starts = np.asarray(vocab.starts_word)

  def draw(key: Array, batch_row: Mapping[str, Array]) -> dict[str, Array]:
    row = mlm.make_row(batch_row, special=jnp.asarray(is_special), starts_word=jnp.asarray(starts))
    length = row.ids.shape[0]
    where_key, order_key = jax.random.split(key)
    slots = corrupt.capacity(choose, length)
    places, weights, excess = mlm.gather(choose(where_key, row).number > 0, slots=slots)
    # the targets that have a copy; the others stay text that all may see
    targets = jnp.zeros(length, bool).at[places].max(weights > 0)
    ranks = jax.random.permutation(order_key, length)
    both = {
      name: jnp.concatenate([value, jnp.where(weights > 0, value[places], 0)])
      for name, value in batch_row.items()
      if name != 'tokens'
    }
    return both | {
      'tokens': jnp.concatenate([row.ids, jnp.full(slots, mask_id, row.ids.dtype)]),
      'allowed': context(targets, ranks, places),
      'ids': row.ids[places],
      'weights': weights,
      'excess': excess,
    }

  def prepare(root: Array, batch: Batch) -> Example:
    tokens, segments, row_weight = batch['tokens'], batch['segment_ids'], batch['row_weight']
    fields = {'tokens': tokens, 'segment_ids': segments, 'positions': from_segments(segments)}
    if 'type_ids' in batch:
      fields['type_ids'] = batch['type_ids']
    rows = jax.vmap(draw)(row_keys(root, batch, every='step'), fields)
    weights = rows['weights'] * row_weight[:, None]
    slots = weights.shape[1]
    copies = tokens.shape[1] + jnp.arange(slots, dtype=jnp.int32)
    inputs = {name: rows[name] for name in (*fields, 'allowed')}
    inputs['predict'] = jnp.broadcast_to(copies, weights.shape)
    targets = {
      'ids': rows['ids'],
      'weights': weights,
      'scale': jnp.broadcast_to(1 / jnp.maximum(weights.sum(), 1.0), row_weight.shape),
      'excess': rows['excess'] * row_weight,
    }
    return Example(inputs, targets)

  return task._replace(prepare=prepare, row_length=lambda length: length + corrupt.capacity(choose, length))
