"""Masked language modelling with DeBERTa's enhanced mask decoder (He et al. 2021, §3.2; arXiv 2006.03654).

Relative positions alone cannot distinguish two words with the same neighbours, so the decoder adds absolute positions.
H are the states before the last layer. Its keys and values are H, and its queries are H plus a table of positions. The
output is the query of a second pass through the same layer. The head of `mlm` reads the result.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import flax.linen as nn

from plm_jax.core.errors import require
from plm_jax.core.keywords import Count
from plm_jax.core.trunk import Attends, Refines
from plm_jax.core.types import Array, Paper, Task, Vocab
from plm_jax.layers import positions as position
from plm_jax.layers.linear import Embed, normal
from plm_jax.objectives import corrupt, mlm

PAPER = Paper(year=2020, title='He et al., DeBERTa', architecture='encoder', objective_family='denoising')
READS = ('tokens', 'segment_ids')
MAY_READ = ('word_marks',)


class Model(nn.Module):
  """A trunk that `Refines`, a table of absolute positions, and the head of `mlm` on gathered positions."""

  trunk: nn.Module
  mlm: nn.Module
  position_embed: nn.Module  # table of `max_length` rows
  steps: int  # applications of the last block

  def __call__(
    self, predict: Array, segment_ids: Array, positions: Array | None = None, train: bool = False, **inputs: Array
  ) -> Array:
    """Compute vocabulary logits f32[b, t, v] at positions `predict` int[b, t]."""
    position.check_length(segment_ids.shape[1], max_length=self.position_embed.num_rows, model='the mask decoder')
    if positions is None:
      positions = position.from_segments(segment_ids)
    out = self.trunk(**inputs, segment_ids=segment_ids, train=train)
    hidden = out['layers'][-2]  # XLA drops the trunk's last layer, whose output is unused
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
  """Build masked language modelling for a DeBERTa.

  Args:
    trunk: a DeBERTa that leaves its absolute positions to the decoder.
    where: the tokens to corrupt, as in `mlm`.
    edit: how to corrupt them, as in `mlm`.
    masking: 'dynamic' samples new masks at every step, 'static' repeats `copies` maskings of each row.
    copies: maskings of a row when static.
    steps: applications of the last layer (released code: 2).
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
      f"objective 'emd_mlm' adds absolute positions in its decoder, but this {type(trunk).__name__} adds them to its "
      "input: set model.overrides.absolute='decoder' or objective.name='mlm'"
    )
  if steps < 1:
    raise ValueError(f'objective.steps={steps}: set 1 or more applications of the last layer')
  task = mlm.make(trunk=trunk, vocab=vocab, where=where, edit=edit, masking=masking, copies=copies)
  init = normal(trunk.head_style.init_std)
  table = Embed(rows, trunk.hidden_dim, ('positions', 'embed'), init, dtype=trunk.execution.dtype)
  return task._replace(model=Model(trunk, task.model.mlm, table, steps))
