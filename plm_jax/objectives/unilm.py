"""UniLM's mix of masks (Dong et al. 2019, §2.3; arXiv 1905.03197): one encoder, masked tokens, four kinds of context.

Of the rows, 1/3 are read in both directions, 1/6 from left to right, and 1/6 from right to left. The last 1/3 have a
prefix read in both directions, which does not see the text after it, and are then read from left to right. UniLM's
prefix is the first of two texts ('types'). The multitask masked language model of BART's comparison (Lewis et al. 2019,
§4.1) has the same shares, and its prefix is the first half of the text ('half'). The kind is sampled by the row's key;
UniLM samples it per batch.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.keywords import Count, Weight
from plm_jax.core.trunk import Attends
from plm_jax.core.types import Array, Batch, Example, Paper, Task, Vocab
from plm_jax.layers.positions import from_segments
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import corrupt, mlm

PAPER = Paper(year=2019, title='Dong et al., UniLM', architecture='encoder', objective_family='denoising')
READS = ('tokens', 'segment_ids')
MAY_READ = ('word_marks',)
KINDS = ('both', 'left', 'right', 'prefix')
Prefix = Literal['half', 'types']


class UnilmSettings(NamedTuple):
  """Settings of masks and contexts."""

  masking: mlm.MlmSettings
  bounds: np.ndarray  # f32[kinds - 1], of `corrupt.share_bounds`
  prefix: Prefix  # 'half' or 'types', see `make`; 'half' if no row has a prefix


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  kinds: Mapping[str, Weight] = {'both': 2, 'left': 1, 'right': 1, 'prefix': 2},
  prefix: Prefix = 'half',
  where: Annotated[Mapping[str, Any], 'noise.where'] = {'name': 'fixed_count'},
  edit: Annotated[Mapping[str, Any], 'noise.edit'] = {'name': 'bert_80_10_10'},
  masking: corrupt.Masking = 'dynamic',
  copies: Count = 10,
) -> Task:
  """Build masked language modelling under a mix of masks.

  Args:
    trunk: an encoder that takes an attention mask.
    kinds: relative frequency of rows read in 'both' directions, to the 'left', to the 'right' or after a 'prefix'.
    prefix: 'half' of each document (BART's comparison) or the tokens of type 0 (UniLM's source).
    masking: as in `mlm`; a static row keeps its kind too.
  """
  inputs = ('tokens', 'segment_ids', 'allowed')
  require(trunk, user="objective 'unilm'", attention=('bidirectional',), inputs=inputs, offers=(Attends,))
  corrupt.check_shares('kinds', kinds, KINDS)
  errors.one_of('objective.prefix', prefix, Prefix)
  s = UnilmSettings(
    masking=mlm.bind(vocab, where=where, edit=edit, masking=masking, copies=copies, user='objective unilm'),
    bounds=corrupt.share_bounds([kinds.get(kind, 0) for kind in KINDS]),
    prefix=prefix if kinds.get('prefix') else 'half',
  )
  return mlm.make_task(trunk, vocab, s.masking)._replace(prepare=partial(prepare, s))


def prepare(s: UnilmSettings, root: Array, batch: Batch) -> Example:
  """Build the example of `mlm.prepare`, and 'allowed' bool[b, l, l].

  Raises ValueError: the prefix uses sentence types, and the rows have none.
  """
  noise_root, kind_root = jax.random.split(root)
  example = mlm.prepare(s.masking, noise_root, batch)
  if s.prefix == 'types' and 'type_ids' not in batch:
    raise ValueError(
      "objective.prefix='types' needs rows with type_ids: set data.name='pairs', or objective.prefix='half'"
    )
  ahead = batch['type_ids'] == 0 if s.prefix == 'types' else first_half(batch['segment_ids'])
  keys = row_keys(kind_root, batch, every=s.masking.every, copies=s.masking.copies)
  kind = corrupt.pick_share(jax.vmap(jax.random.uniform)(keys), s.bounds)
  return Example(example.inputs | {'allowed': context(kind, ahead)}, example.targets)


def first_half(segment_ids: Array) -> Array:
  """Mark the first half of each segment, rounded down: bool[b, l]."""
  position = from_segments(segment_ids)
  following = from_segments(segment_ids[:, ::-1])[:, ::-1]  # number of later tokens of the segment
  return position < (position + following + 1) // 2


def context(kind: Array, prefix: Array) -> Array:
  """Mark the keys that each query may see inside its segment.

  Returns bool[b, l, l], queries first. `prefix` is bool[b, l]; `kind` int[b] is an index into `KINDS`: 'left' sees keys
  at or left of its position, 'right' at or right of it.
  """
  # Each key and query gets a rank, and a query sees the keys of smaller rank: by kind all of them, k < q + 1,
  # -k < 1 - q, and k < q + 1 with k = 0 in the prefix. One comparison then writes the whole mask.
  length = prefix.shape[1]
  position = jnp.arange(length, dtype=jnp.int16 if length < 2**15 else jnp.int32)
  ranks = {  # of keys and of queries
    'both': (position, jnp.full_like(position, length)),
    'left': (position, position + 1),
    'right': (-position, 1 - position),
    'prefix': (jnp.where(prefix, 0, position), position + 1),
  }
  is_kind = (jnp.arange(len(KINDS)) == kind[:, None])[..., None]  # [b, kinds, 1]

  def pick(side: int) -> Array:
    """Select the ranks of a row's kind, [b, l]."""
    every = [jnp.broadcast_to(ranks[name][side], prefix.shape) for name in KINDS]
    # a sum, which a CPU computes once and not for each element of the mask
    return jnp.where(is_kind, jnp.stack(every, axis=1), 0).sum(axis=1, dtype=position.dtype)

  return pick(0)[:, None, :] < pick(1)[:, :, None]
