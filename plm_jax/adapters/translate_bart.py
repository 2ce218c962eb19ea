"""Translation with a pre-trained BART that never read the source language (Lewis et al. 2019, §3.4 and §5.4).

A new encoder with a vocabulary of its own stands in place of BART's embedding of the encoder's tokens, and maps a
foreign text into states that BART reads as it reads the vectors of a noisy English text:

    source text -> second_vocab -> new encoder -> BART's positions, encoder and decoder -> target text

It is trained in two stages, each a run of its own; the second begins with the parameters of the first (`init_from`):

    first     the new encoder, BART's tables of positions, and the projections to query, key and value in the
              self-attention of the first layer of BART's encoder; the rest keeps its bits
    second    all parameters, for a small number of steps

The loss and what an evaluation writes are those of the adapter `sequence`. Texts that are read are of `second_vocab`
of the config, those that are written of `vocab`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import flax.linen as nn

from plm_jax.adapters import sequence
from plm_jax.adapters.answers import Start
from plm_jax.config import build
from plm_jax.core.errors import one_of, require
from plm_jax.core.trunk import Attends, Decodes, ReadsStates
from plm_jax.core.types import Count, Paper, PartRate, Task, Vocab

PAPER = Paper(
  year=2019,
  title='BART §3.4',
  architecture='encoder-decoder',
  objective_family='supervised',
  supervision='supervised',
  adapters=('sequence',),
)
READS = ('tokens', 'segment_ids', 'target_tokens', 'target_segment_ids')

Stage = Literal['first', 'second']
# What trains in the first stage.
FIRST = (
  r'trunk/source/.*',  # the new encoder
  r'trunk/(encoder|decoder)/position_embed/table',
  r'trunk/encoder/layers/0/attention/(query|key|value)/(kernel|bias)',
)


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  second_vocab: Vocab,
  source: Annotated[Mapping[str, Any], 'models'],
  stage: Stage = 'first',
  start: Start = 'eos',
  label_smoothing: PartRate = 0.1,
  decoding: Annotated[Mapping[str, Any], 'adapters.sequence:Decoding'] = {},
  logit_rows: Count = 8,
) -> Task:
  """Writes the translation of a text.

  Args:
    trunk: a BART or an mBART.
    vocab: of what is written, with an end token.
    second_vocab: of what is read.
    source: the new encoder: a model that reads both ways, as wide as the trunk; the paper has 6 layers.
    stage: which parameters train, see the head of this file.
    start: what the decoder reads first.
    label_smoothing: share of the loss that all tokens of the vocabulary have alike.
    decoding: how an evaluation writes text.
    logit_rows: rows of each device whose logits are in memory at a time.

  Raises:
    ValueError: a trunk whose encoder cannot read states, or an encoder that does not fit it.
  """
  user = "adapter 'translate_bart'"
  one_of('adapter.stage', stage, Stage)
  require(trunk, user=user, attention=('encoder-decoder',), offers=(Attends, Decodes, ReadsStates))
  encoder = build.make('models', source, vocab_size=second_vocab.size, execution=trunk.execution)
  check_source(encoder, trunk)
  task = sequence.make(
    trunk=trunk.clone(source=encoder),
    vocab=vocab,
    start=start,
    label_smoothing=label_smoothing,
    decoding=decoding,
    logit_rows=logit_rows,
  )
  return task._replace(trains=FIRST) if stage == 'first' else task


def check_source(encoder: nn.Module, trunk: nn.Module) -> None:
  """Raises ValueError where an encoder cannot stand in front of a trunk."""
  if encoder.ATTENTION != 'bidirectional':
    raise ValueError(
      f'adapter.source.name: an encoder reads both ways, and {type(encoder).__name__} has {encoder.ATTENTION} '
      'attention: choose another'
    )
  if encoder.hidden_dim != trunk.hidden_dim:
    raise ValueError(
      f'adapter.source: {type(encoder).__name__} is {encoder.hidden_dim} wide, and {type(trunk).__name__} reads states '
      f'of {trunk.hidden_dim}: choose another variant, or set overrides.hidden_dim={trunk.hidden_dim}'
    )
