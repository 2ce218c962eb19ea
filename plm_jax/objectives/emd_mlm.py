"""Masked language modelling with DeBERTa's enhanced mask decoder (He et al. 2021, §3.2; arXiv 2006.03654).

Relative positions alone cannot tell apart two words with the same neighbours, so absolute positions are added before
the prediction: H, the states before the last layer, plus a table of positions are the queries of the last layer, whose
keys and values are H. Its output is the query of the same layer once more, and the head of `mlm` reads the result.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import flax.linen as nn

from plm_jax.core.errors import require
from plm_jax.core.trunk import Attends, Refines
from plm_jax.core.types import Array, Count, Paper, Task, Vocab
from plm_jax.layers import positions as position
from plm_jax.layers.linear import Embed, normal
from plm_jax.objectives import corrupt, mlm

PAPER = Paper(year=2020, title='He et al., DeBERTa', architecture='encoder', objective_family='denoising')
READS = ('tokens', 'segment_ids')


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
    return self.mlm(mlm.states_at(states, predict), self.trunk.attend)


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  where: Annotated[Mapping[str, Any], 'noise.where'] = {'name': 'whole_word'},
  edit: Annotated[Mapping[str, Any], 'noise.edit'] = {'name': 'bert_80_10_10'},
  masking: corrupt.Masking = 'dynamic',
  copies: Count = 10,
  steps: Count = 2,
) -> Task:
  """Masked language modelling of a DeBERTa.

  Args:
    trunk: a DeBERTa whose absolute positions are left to the decoder.
    vocab: with a mask token.
    where: which tokens, as in `mlm`.
    edit: what becomes of them, as in `mlm`.
    masking: 'dynamic' draws anew at every step, 'static' repeats `copies` maskings of each row.
    copies: maskings of a row when static.
    steps: times that the last layer is applied (released code: 2).
  """
  require(
    trunk,
    user="objective 'emd_mlm'",
    attention=('bidirectional',),
    inputs=('tokens', 'segment_ids'),
    offers=(Attends, Refines),
  )
  rows = trunk.decoder_positions
  if not rows:
    raise ValueError(
      f"objective 'emd_mlm' adds absolute positions in its decoder, and this {type(trunk).__name__} has them at its "
      'input: set model.overrides.absolute="decoder" or objective.name="mlm"'
    )
  if steps < 1:
    raise ValueError(f'objective.steps={steps}: the last layer is applied at least once')
  task = mlm.make(trunk=trunk, vocab=vocab, where=where, edit=edit, masking=masking, copies=copies)
  init = normal(trunk.head_style.init_std)
  table = Embed(rows, trunk.hidden_dim, ('positions', 'embed'), init, dtype=trunk.execution.dtype)
  return task._replace(model=Model(trunk, task.model.mlm, table, steps))
