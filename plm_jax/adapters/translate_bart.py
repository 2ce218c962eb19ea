"""Translation with a pretrained BART that never read the source language (Lewis et al. 2019, §3.4 and §5.4).

A new encoder with a separate vocabulary replaces the token embedding of BART's encoder. It maps a foreign text to
states that BART reads like the embeddings of a noisy English text:

    source text -> second_vocab -> new encoder -> BART's positions, encoder and decoder -> target text

It is trained in two stages, each a separate run; the second starts from the parameters of the first (`init_from`):

    first     the new encoder, BART's position tables, and the projections to query, key and value in the
              self-attention of the first layer of BART's encoder; the rest is frozen
    second    all parameters, for a small number of steps

Loss and generation are those of the adapter `sequence`. Source texts use `second_vocab` of the config, target texts
`vocab`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import flax.linen as nn

from plm_jax.adapters import sequence
from plm_jax.adapters.answers import Start
from plm_jax.config import build
from plm_jax.core.errors import one_of, require
from plm_jax.core.keywords import Count, PartRate
from plm_jax.core.trunk import Attends, Decodes, ReadsStates
from plm_jax.core.types import Supervised, Task, Vocab

PAPER = Supervised(year=2019, title='BART §3.4', architecture='encoder-decoder', adapters=('sequence',))
READS = ('tokens', 'segment_ids', 'target_tokens', 'target_segment_ids')

Stage = Literal['first', 'second']
# parameters that train in the first stage
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
  """Translate a text.

  Args:
    trunk: a BART or an mBART.
    vocab: vocabulary of the target, with an end token.
    second_vocab: vocabulary of the source.
    source: the new encoder: a bidirectional model as wide as the trunk; the paper has 6 layers.
    stage: parameters that train, see the module docstring.
    start: first token of the decoder.
    label_smoothing: share of the loss that is spread evenly over the vocabulary.
    decoding: how an evaluation generates text.
    logit_rows: examples on each device whose logits are in memory at a time.

  Raises:
    ValueError: the trunk's encoder cannot read states, or the new encoder does not fit it.
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
  """Raise ValueError if the trunk cannot read the encoder's states."""
  if encoder.ATTENTION != 'bidirectional':
    raise ValueError(
      f'adapter.source.name: {type(encoder).__name__} has {encoder.ATTENTION} attention; choose a bidirectional model'
    )
  if encoder.hidden_dim != trunk.hidden_dim:
    raise ValueError(
      f'adapter.source: {type(encoder).__name__} has width {encoder.hidden_dim} and {type(trunk).__name__} needs '
      f'{trunk.hidden_dim}: choose another variant, or set adapter.source.overrides.hidden_dim={trunk.hidden_dim}'
    )
