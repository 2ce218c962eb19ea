"""Permuted language modelling on one stream: BART's comparison (Lewis et al. 2019, §4.1), after XLNet.

One token in six is predicted, in a random order, each from all tokens that are not predicted and from those predicted
before it. There are no relative positions and no memory. XLNet's second stream is a copy of each target in the same
row: a mask token with the target's position. It sees itself and the context of the target, and no other token sees it.
Any encoder that takes positions and a mask can be used; rows get longer by the number of targets.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.errors import require
from plm_jax.core.sharding import each_row
from plm_jax.core.trunk import Attends
from plm_jax.core.types import Array, Batch, Example, Paper, Task, Vocab
from plm_jax.layers.positions import from_segments
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import corrupt, mlm

PAPER = Paper(year=2019, title='Lewis et al., BART', architecture='encoder', objective_family='permutation')
READS = ('tokens', 'segment_ids')
MAY_READ = ('word_marks',)


class PermutedLmSettings(NamedTuple):
  """Settings of the targets and their copies."""

  choose: Callable[..., Any]  # (key, row) -> `Spans`
  special: np.ndarray  # bool[v], tokens that are never chosen
  starts_word: np.ndarray  # bool[v]
  mask_id: int  # the token of a copy


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  where: Annotated[Mapping[str, Any], 'noise.where'] = {'name': 'fixed_count', 'rate': 1 / 6},
) -> Task:
  """Build permuted language modelling for an encoder.

  Args:
    trunk: an encoder that takes `positions` and `allowed`, with positions for rows and targets together.
    where: the tokens to predict, as in `mlm`.
  """
  inputs = ('tokens', 'segment_ids', 'type_ids', 'positions', 'allowed')
  require(trunk, user="objective 'permuted_lm'", attention=('bidirectional',), inputs=inputs, offers=(Attends,))
  mask_id = corrupt.find_mask(vocab, user='objective permuted_lm')
  choose = corrupt.pick_where(where, vocab=vocab)
  s = PermutedLmSettings(
    choose=choose, special=corrupt.special_table(vocab), starts_word=np.asarray(vocab.starts_word), mask_id=mask_id
  )
  task = mlm.make(trunk=trunk, vocab=vocab, where=where)  # its model, loss and predictions
  return task._replace(prepare=partial(prepare, s), row_length=partial(row_length, s))


def prepare(s: PermutedLmSettings, root: Array, batch: Batch) -> Example:
  """Build rows of text and copies, and the targets of `mlm.score`."""
  segments = batch['segment_ids']
  fields = {'tokens': batch['tokens'], 'segment_ids': segments, 'positions': from_segments(segments)}
  fields |= corrupt.present(batch, 'type_ids')
  read = fields | corrupt.present(batch, 'word_marks')
  rows = each_row(partial(draw, s), row_keys(root, batch, every='step'), read)
  inputs = {name: rows[name] for name in (*fields, 'allowed')}
  copies = segments.shape[1] + jnp.arange(rows['weights'].shape[1], dtype=jnp.int32)  # [t], after the text
  inputs['predict'] = jnp.broadcast_to(copies, rows['weights'].shape)
  return Example(inputs, mlm.make_targets(rows, batch['row_weight']))


def draw(s: PermutedLmSettings, key: Array, fields: Mapping[str, Array]) -> dict[str, Array]:
  """Sample targets of one row of l tokens; append t copies.

  `fields` are int[l] and become [l + t]. Also returns 'allowed' bool[l + t, l + t]; 'ids' int[t], 'weights' f32[t] and
  'excess' f32[].
  """
  row = corrupt.make_row(
    fields['tokens'], fields['segment_ids'], special=s.special, starts_word=s.starts_word,
    marks=fields.get('word_marks'),
  )  # fmt: skip
  length = row.ids.shape[0]
  where_key, order_key = jax.random.split(key)
  positions, weights, excess = corrupt.choose_targets(s.choose, where_key, row)
  # the targets that have a copy; the others remain text that every token may see
  targets = jnp.zeros(length, bool).at[positions].max(weights > 0)
  ranks = jax.random.permutation(order_key, length)
  # a copy has its target's segment and position: segments 1 1 2, target at 1 -> 1 1 2 | 1
  both = {
    name: jnp.concatenate([value, jnp.where(weights > 0, value[positions], 0)])
    for name, value in fields.items()
    if name != 'tokens'
  }
  return both | {
    'tokens': jnp.concatenate([row.ids, jnp.full(positions.shape, s.mask_id, row.ids.dtype)]),
    'allowed': context(targets, ranks, positions),
    'ids': row.ids[positions],
    'weights': weights,
    'excess': excess,
  }


def context(targets: Array, ranks: Array, positions: Array) -> Array:
  """Mark the keys that each query may see inside its segment.

  Returns bool[l + t, l + t], queries first: of the text, and then of the copies.

  Args:
    targets: bool[l].
    ranks: int[l], ranks of the targets in the order of prediction.
    positions: int[t], positions of the targets that have a copy.
  """
  length, copies = targets.shape[0], positions.shape[0]
  # text a b c, targets a and c, c ranked before a; queries a b c | copy of a, copy of c
  #   keys of text   a: a b c   b: b   c: b c   copy of a: b c   copy of c: b
  #   keys of copies, only the copies': each itself
  turn = jnp.where(targets, ranks, 0)
  earlier = ~targets[None, :] | (targets[:, None] & (turn[:, None] > turn[None, :]))
  text = jnp.concatenate([earlier | jnp.eye(length, dtype=bool), earlier[positions]])
  alone = jnp.concatenate([jnp.zeros((length, copies), bool), jnp.eye(copies, dtype=bool)])
  return jnp.concatenate([text, alone], axis=1)


def row_length(s: PermutedLmSettings, length: int) -> int:
  """Count the tokens of a row of text and copies."""
  return length + corrupt.capacity(s.choose, length)
