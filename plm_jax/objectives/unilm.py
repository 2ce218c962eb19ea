"""UniLM's mix of masks (Dong et al. 2019, §2.3; arXiv 1905.03197): one encoder, masked tokens, four kinds of context.

Of the rows, 1/3 are read in both directions, 1/6 from left to right, 1/6 from right to left, and 1/3 from left to right
after a prefix that is read in both directions and does not see what follows it. UniLM's prefix is the first of two
texts ('types'); the multitask masked language model of BART's comparison (Lewis et al. 2019, §4.1) has the same shares
and the first half of the text ('half'). The kind is drawn by the row's key, where UniLM draws it for a batch.
"""

from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.layers.positions import from_segments
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import mlm
from plm_jax.types import Array, Batch, Example, Paper, Task, Vocab, require

PAPER = Paper(year=2019, title='Dong et al., UniLM', architecture='encoder', objective_family='denoising')

KINDS = ('both', 'left', 'right', 'prefix')


def first_half(segment_ids: Array) -> Array:
  """bool[b, l]: the place is in the first half of its segment, rounded down."""
  place = from_segments(segment_ids)
  behind = from_segments(segment_ids[:, ::-1])[:, ::-1]  # tokens of the segment that follow
  return place < (place + behind + 1) // 2


def context(kind: Array, prefix: Array) -> Array:
  """Which keys a query may look at inside its segment.

  Args:
    kind: int[b], an index into `KINDS`: 'left' sees what is at or left of its place, 'right' at or right of it.
    prefix: bool[b, l].

  Returns:
    bool[b, l, l], queries first.
  """
  place = jnp.arange(prefix.shape[1])
  before = place[None, :] <= place[:, None]  # [l, m]
  left = jnp.broadcast_to(before, (*prefix.shape, prefix.shape[1]))
  right = jnp.broadcast_to(before.T, left.shape)
  choices = jnp.stack([jnp.ones_like(left), left, right, left | prefix[:, None, :]], axis=1)  # [b, kinds, l, m]
  return jnp.take_along_axis(choices, kind[:, None, None, None], axis=1)[:, 0]


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  kinds: Mapping[str, float] = {'both': 2, 'left': 1, 'right': 1, 'prefix': 2},
  prefix: Literal['half', 'types'] = 'half',
  where: Mapping[str, Any] = {'name': 'fixed_count'},
  edit: Mapping[str, Any] = {'name': 'bert_80_10_10'},
  masking: Literal['dynamic', 'static'] = 'dynamic',
  copies: int = 10,
) -> Task:
  """Masked language modelling under a mix of masks.

  Args:
    trunk: an encoder that takes a mask of its own.
    vocab: with a mask token.
    kinds: how often a row is read in 'both' directions, to the 'left', to the 'right' or after a 'prefix'; in any
      proportion.
    prefix: 'half' of each document (BART's comparison) or the tokens of type 0 (UniLM's source).
    where: as in `mlm`.
    edit: as in `mlm`.
    masking: as in `mlm`; a static row keeps its kind too.
    copies: as in `mlm`.
  """
  require(trunk, user="objective 'unilm'", attention=('bidirectional',), inputs=('tokens', 'segment_ids', 'allowed'))
  if unknown := set(kinds) - set(KINDS):
    raise ValueError(f'objective.kinds: no kind {sorted(unknown)[0]!r}; choices are {", ".join(KINDS)}')
  if min(kinds.values(), default=0) < 0 or sum(kinds.values()) <= 0:
    raise ValueError(f'objective.kinds={dict(kinds)}: shares are not negative, and one is positive')
  if prefix not in ('half', 'types'):
    raise ValueError(f'objective.prefix={prefix!r}; choices are half, types')
  task = mlm.make(trunk=trunk, vocab=vocab, where=where, edit=edit, masking=masking, copies=copies)
  every: Literal['step', 'epoch'] = 'step' if masking == 'dynamic' else 'epoch'
  shares = np.array([kinds.get(kind, 0) for kind in KINDS], np.float64)
  edges = np.cumsum(shares / shares.sum())[:-1]

  def prepare(root: Array, batch: Batch) -> Example:
    noise_root, kind_root = jax.random.split(root)
    example = task.prepare(noise_root, batch)
    if prefix == 'types' and 'type_ids' not in batch:
      raise ValueError("objective.prefix='types' needs rows with sentence types (data.name='pairs'); or use 'half'")
    ahead = batch['type_ids'] == 0 if prefix == 'types' else first_half(batch['segment_ids'])
    draw = jax.vmap(jax.random.uniform)(row_keys(kind_root, batch, every=every, copies=copies))
    kind = (draw[:, None] >= jnp.asarray(edges, jnp.float32)).sum(axis=1)
    return Example(example.inputs | {'allowed': context(kind, ahead)}, example.targets)

  return task._replace(prepare=prepare)
