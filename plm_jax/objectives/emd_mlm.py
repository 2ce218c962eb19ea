"""Masked language modelling with DeBERTa's enhanced mask decoder (He et al. 2021, §3.2; arXiv 2006.03654).

Two words may stand in the same company and differ only by where in the sentence they are, so absolute positions enter
after all: H, the states before the last layer, plus a table of positions are the queries of the last layer, whose keys
and values are H. What comes out are the queries of the same layer once more, and the usual head reads that.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.layers import positions as position
from plm_jax.layers.linear import Embed, normal
from plm_jax.objectives import mlm
from plm_jax.types import Array, Paper, Task, Vocab, require

PAPER = Paper(year=2020, title='He et al., DeBERTa', architecture='encoder', objective_family='denoising')


@runtime_checkable
class Refines(Protocol):
  """A trunk whose last block can be applied to other queries."""

  def refine(self, query: Array, hidden: Array, segment_ids: Array, train: bool = False) -> Array: ...


class Model(nn.Module):
  """A trunk that refines, a table of absolute positions, and the head of `mlm` on gathered positions.

  Attributes:
    trunk: a `Refines`.
    mlm: the head.
    position_embed: table of `max_length` rows.
    steps: times that the last block is applied.
  """

  trunk: nn.Module
  mlm: nn.Module
  position_embed: nn.Module
  steps: int

  def __call__(
    self, predict: Array, segment_ids: Array, positions: Array | None = None, train: bool = False, **inputs: Array
  ) -> Array:
    """Vocabulary logits f32[b, t, v] at positions `predict` int[b, t]."""
    position.check_length(segment_ids.shape[1], max_length=self.position_embed.num_rows, model='the mask decoder')
    if positions is None:
      positions = position.from_segments(segment_ids)
    out = self.trunk(**inputs, segment_ids=segment_ids, train=train)
    hidden = out['layers'][-2]  # what the trunk's own last layer made of it is not read, so it is not computed
    states = hidden + self.position_embed(positions)
    for _ in range(self.steps):
      states = self.trunk.refine(states, hidden, segment_ids, train=train)
    features = jnp.take_along_axis(states, predict[..., None], axis=1)  # [b, l, d] -> [b, t, d]
    return self.mlm(features, self.trunk.attend)


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  where: Mapping[str, Any] = {'name': 'whole_word'},
  edit: Mapping[str, Any] = {'name': 'bert_80_10_10'},
  masking: Literal['dynamic', 'static'] = 'dynamic',
  copies: int = 10,
  steps: int = 2,
) -> Task:
  """Masked language modelling of a DeBERTa.

  Args:
    trunk: a DeBERTa whose absolute positions are left to the decoder.
    vocab: with a mask token.
    where: which tokens, a function of `noise.where` with its settings.
    edit: what becomes of them, a function of `noise.edit` with its settings.
    masking: 'dynamic' draws anew at every step, 'static' repeats `copies` maskings of each row.
    copies: maskings of a row when static.
    steps: times that the last layer is applied (released code: 2).
  """
  require(trunk, user="objective 'emd_mlm'", attention=('bidirectional',), inputs=('tokens', 'segment_ids'))
  name = type(trunk).__name__
  if not isinstance(trunk, Refines):
    raise ValueError(
      f"objective 'emd_mlm' applies the last layer to other queries, and {name} has no method refine: "
      'choose another model.name or objective.name (--list shows both)'
    )
  if trunk.config.absolute != 'decoder':
    raise ValueError(
      f"objective 'emd_mlm' adds absolute positions in its decoder, and this {name} has them at its input: "
      'set model.overrides.absolute="decoder" or objective.name="mlm"'
    )
  if steps < 1:
    raise ValueError(f'objective.steps={steps}: the last layer is applied at least once')
  task = mlm.make(trunk=trunk, vocab=vocab, where=where, edit=edit, masking=masking, copies=copies)
  c = trunk.config
  table = Embed(c.max_length, c.hidden_dim, ('positions', 'embed'), normal(c.init_std), dtype=trunk.execution.dtype)
  return task._replace(model=Model(trunk, task.model.mlm, table, steps))
