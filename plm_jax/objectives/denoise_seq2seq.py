"""Denoising from text to text: an encoder reads corrupted text, a decoder writes the original text or a part of it.

T5's span corruption and its variants (Raffel et al. 2020, §3.3), BART's noises (Lewis et al. 2019, §2.2), MASS (Song et
al. 2019) and UL2's mixture (Tay et al. 2022, §3.1) are settings: the order of the text (`rearrange`), the tokens to
corrupt (`where`), how to corrupt them (`edit`), and the text to write (`target`):

  text       the whole text
  masked     the whole text, with a loss on the chosen tokens only
  chosen     the chosen tokens in order
  sentinels  the chosen tokens, each span after its sentinel; one more sentinel at the end if text follows

Sizes are fixed: inputs and targets have room for any row of the source, by T5's rule where counts are exact. Each
packed document is corrupted separately; its inputs and targets have its number in `segment_ids`. Special tokens at its
ends do not change, and those inside are corrupted like words.

A trunk without an encoder reads inputs and targets in one row (T5, §3.2.1): all inputs of the row, then all targets.
The targets of each document begin with the start token of the decoder. A target sees the inputs of its document and
the targets before it. In a trunk with a prefix, inputs see each other in both directions. Inputs are not predicted.
"""

import bisect
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.keywords import Count, Rate, Weight
from plm_jax.core.sharding import each_row
from plm_jax.core.trunk import Attends, longest_row
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Template, Vocab
from plm_jax.layers.means import batch_scale, metric, perplexity_of, scaled_sum
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import causal_lm, corrupt
from plm_jax.objectives.causal_lm import Packing
from plm_jax.objectives.denoise_groups import group, select
from plm_jax.objectives.denoise_settings import bind, make_tables, share_bounds
from plm_jax.objectives.denoise_sizes import sizes
from plm_jax.objectives.denoising import Denoiser, Side, Target, VocabTables, denoise, join, shift_right

PAPER = Paper(year=2019, title='Raffel et al., T5', architecture='encoder-decoder', objective_family='denoising')
READS = ('tokens', 'segment_ids')
MAY_READ = ('word_marks',)

Start = Literal['pad', 'bos', 'eos']
Rearrange = tuple[Annotated[Mapping[str, Any], 'noise.rearrange'], ...]
TWO_ROWS = ('encoder_tokens', 'encoder_segment_ids', 'decoder_tokens', 'decoder_segment_ids')


class DenoiserBlock:
  """One of the blocks `denoisers`: keywords as in `make`; None means the value of `make`.

  Attributes:
    share: of the rows, relative to the other denoisers.
    mode: a special token put first in the inputs if the vocabulary has it (UL2's [R], [S], [X]).
  """

  rearrange: Rearrange | None = None
  where: Annotated[Mapping[str, Any], 'noise.where'] | None = None
  edit: Annotated[Mapping[str, Any], 'noise.edit'] | None = None
  finish: Rearrange | None = None
  target: Target | None = None
  share: Weight = 1.0
  mode: str = ''


class DenoiseSettings(NamedTuple):
  """Settings of the corruption; those without a comment are explained in `make`."""

  denoisers: tuple[Denoiser, ...]  # with their settings bound
  bounds: np.ndarray  # f32[denoisers - 1], of `corrupt.share_bounds`
  tables: VocabTables
  start_id: int  # the first token that the decoder reads
  packing: Packing
  inputs_length: int | None
  targets_length: int | None
  logit_rows: int
  joined: bool  # inputs and targets are one row
  prefix: bool  # the trunk takes the length of the inputs
  max_length: int | None  # tokens of the longest row that the trunk has positions for; None for any
  # the most documents of a row; None before the rows are known, and if a row is taken as one text
  documents: int | None = None


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  rearrange: Rearrange = (),
  where: Annotated[Mapping[str, Any], 'noise.where'] = {'name': 'exact_spans'},
  edit: Annotated[Mapping[str, Any], 'noise.edit'] = {'name': 'to_sentinels'},
  finish: Rearrange = (),
  target: Target = 'sentinels',
  denoisers: tuple[Annotated[Mapping[str, Any], 'objectives.denoise_seq2seq:DenoiserBlock'], ...] = (),
  start: Start = 'pad',
  append_eos: bool = True,
  mask_random: Rate = 0.0,
  sentence_ends: tuple[str, ...] = ('.',),
  packing: Packing = 'segments',
  inputs_length: Count | None = None,
  targets_length: Count | None = None,
  logit_rows: Count = 8,
) -> Task:
  """Build denoising for an encoder-decoder, causal or prefix trunk.

  Args:
    vocab: with a mask token or sentinels, if an edit or the target writes them.
    rearrange: functions of `noise.rearrange` with their settings, applied in order before anything else.
    where: the tokens to corrupt: a function of `noise/where/` with its settings.
    edit: how to corrupt them: a function of `noise.edit` with its settings.
    finish: like `rearrange`, applied to the corrupted text (BART's code rotates last).
    target: the text to write, see the head of this file.
    denoisers: one of them is sampled for each row, see `DenoiserBlock`.
    start: the first token that the decoder reads: 'pad' (T5), 'eos' (BART), 'bos'.
    append_eos: put the end token after inputs and targets (T5); False if the rows have their end tokens (BART).
    mask_random: share of the mask tokens that become a random token.
    sentence_ends: tokens that end a sentence, if the rows have no `sentence_ids` (`data.sentences`).
    packing: 'segments' corrupts each document of a row separately, 'stream' takes the row as one text (T5).
    inputs_length: slots of the inputs; None fits any row of the source, by the number of its documents.
    targets_length: slots of the targets; likewise.
    logit_rows: rows of each device whose logits are in memory at a time.

  Raises:
    ValueError: contradictory settings. The model's length is checked with the first batch.
  """
  joined = 'encoder_tokens' not in trunk.INPUTS
  inputs = ('tokens', 'segment_ids', 'positions') if joined else TWO_ROWS
  kinds = ('encoder-decoder', 'causal', 'prefix')
  require(trunk, user="objective 'denoise_seq2seq'", attention=kinds, inputs=inputs, offers=(Attends,))
  errors.one_of('objective.packing', packing, Packing)
  common = {'rearrange': rearrange, 'where': where, 'edit': edit, 'finish': finish, 'target': target}
  bound = tuple(bind(common, block, vocab=vocab, index=i) for i, block in enumerate(denoisers or ({},)))
  tables = make_tables(vocab, bound, append_eos=append_eos, mask_random=mask_random, sentence_ends=sentence_ends)
  s = DenoiseSettings(
    denoisers=bound,
    bounds=share_bounds(bound),
    tables=tables,
    start_id=find_start(vocab, start),
    packing=packing,
    inputs_length=inputs_length,
    targets_length=targets_length,
    logit_rows=logit_rows,
    joined=joined,
    prefix='prefix' in trunk.INPUTS,
    max_length=longest_row(trunk),
  )
  return make_task(trunk, s)


def make_task(trunk: nn.Module, s: DenoiseSettings, documents: int | None = None) -> Task:
  """Build the task for rows of up to `documents` documents."""
  s = s._replace(documents=documents)
  functions = partial(prepare, s), partial(loss, s), partial(predict, s)
  return Task(
    causal_lm.Model(trunk),
    *functions,
    summary=perplexity_of,
    row_length=partial(row_length, s),
    for_documents=partial(make_task, trunk, s) if s.packing == 'segments' else None,
    check=partial(corrupt.check_sentences, s.tables.ends_sentence, s.tables.special),
  )


def template(*, vocab: Vocab, rows: Template | None, append_eos: bool = True, **rest: Any) -> Template | None:
  """Add the end token to the template of the encoder's texts."""
  if rows is None or not append_eos or vocab.eos_id is None:
    return rows
  end = (vocab.eos_id, 0)
  pair = [token for part in rows.pair for token in ((end, part) if part[0] == 'B' else (part,))]
  return rows._replace(single=(*rows.single, end), pair=(*pair, end))


def find_start(vocab: Vocab, start: Start) -> int:
  """Find the id of the decoder's first token, or raise ValueError."""
  errors.one_of('objective.start', start, Start)
  starts = {'pad': vocab.pad_id, 'bos': vocab.bos_id, 'eos': vocab.eos_id}
  start_id = starts[start]
  if start_id is None:
    choices = ', '.join(name for name, token in starts.items() if token is not None)
    raise ValueError(f'objective.start={start!r}: the vocabulary has no such token; choices are {choices}')
  return start_id


def slots_of(s: DenoiseSettings, length: int) -> tuple[int, int]:
  """Count the slots of inputs and targets for rows of `length` tokens.

  Inputs of random length get a margin, as far as the trunk has positions.
  """

  def needed(margin: bool) -> list[int]:
    each = [sizes(d, length, tables=s.tables, documents=s.documents, margin=margin) for d in s.denoisers]
    return [max(side) for side in zip(*each, strict=True)]

  (inputs, targets), (wide, _) = needed(False), needed(True)
  targets = s.targets_length or targets
  if s.max_length is not None:
    wide = min(wide, s.max_length - (targets if s.joined else 0))
  return s.inputs_length or max(inputs, wide), targets


def row_length(s: DenoiseSettings, length: int) -> int:
  """Compute the length of the trunk's rows for rows of `length` tokens."""
  return (sum if s.joined else max)(slots_of(s, length))


def check_length(s: DenoiseSettings, length: int) -> None:
  """Raise ValueError if rows of `length` tokens become too long."""
  if s.max_length is None or row_length(s, length) <= s.max_length:
    return
  fits = bisect.bisect_right(range(1, length), s.max_length, key=partial(row_length, s))
  inputs, targets = slots_of(s, length)
  raise ValueError(
    f'data.length={length}: rows of {length} tokens become inputs of {inputs} and targets of {targets}'
    f'{" in one row" if s.joined else ""}, and the trunk holds {s.max_length}: '
    f'set data.length={fits}, the longest that fits, or model.overrides.max_length'
  )


def prepare(s: DenoiseSettings, root: Array, batch: Batch) -> Example:
  """Build the inputs of encoder and decoder, and the targets."""
  tokens, segments = batch['tokens'], causal_lm.one_document(batch['segment_ids'], s.packing)
  check_length(s, tokens.shape[1])
  keys = row_keys(root, batch, every='step')
  given = batch.get('sentence_ids'), corrupt.present(batch, 'word_marks').get('word_marks')
  inputs, targets, lost, which = each_row(partial(draw, s), keys, tokens, segments, *given)
  row_weight = batch['row_weight']
  weights = targets.weights * row_weight[:, None]
  read = {
    'encoder_tokens': inputs.ids,
    'encoder_segment_ids': inputs.segment_ids,
    'decoder_tokens': shift_right(targets.ids, targets.segment_ids, start_id=s.start_id),
    'decoder_segment_ids': targets.segment_ids,
  }
  if s.joined:
    read = join(read, documents=tokens.shape[1], prefix=s.prefix)
  fields = {
    'ids': targets.ids,
    'weights': weights,
    'scale': batch_scale(weights),
    'which': which,
    'inputs_count': inputs.weights.sum(axis=1) * row_weight,
    'inputs_excess': inputs.excess * row_weight,
    'targets_excess': targets.excess * row_weight,
    'lost': lost * row_weight,
  }
  return Example(read, fields)


def draw(
  s: DenoiseSettings,
  key: Array,
  ids: Array,
  segments: Array,
  sentences: Array | None = None,
  marks: Array | None = None,
) -> tuple[Side, Side, Array, Array]:
  """Sample a denoiser and corrupt one row, int[l] twice.

  `sentences` and `marks` are as in `corrupt.make_row`. Return the inputs, the targets, the number of spans without a
  sentinel, and the index int32[] of the denoiser.
  """
  inputs_size, targets_size = slots_of(s, ids.shape[0])
  # denoisers a b c d; a and c share a group   groups [0 2] [1] [3]   group of 0 1 0 2   index in it 0 0 1 0
  groups = group(s.denoisers)
  group_of, index_of = np.zeros((2, len(s.denoisers)), np.int32)
  for i, members in enumerate(groups):
    group_of[members], index_of[members] = i, np.arange(len(members))
  which_key, key = jax.random.split(key)
  which = corrupt.pick_share(jax.random.uniform(which_key), s.bounds)
  index = jnp.asarray(index_of)[which]
  branches = [
    partial(
      denoise,
      denoiser=select([s.denoisers[member] for member in members], index),
      tables=s.tables,
      inputs_size=inputs_size,
      targets_size=targets_size,
    )
    for members in groups
  ]
  return *jax.lax.switch(jnp.asarray(group_of)[which], branches, key, ids, segments, sentences, marks), which


def score(s: DenoiseSettings, forward: Forward, example: Example) -> tuple[Array, Array]:
  """Compute nats and correctness of each target, f32[b, t] twice."""
  ids = example.targets['ids']
  features = forward(**example.inputs)[:, -ids.shape[1] :]  # in a joined row, drop the inputs
  return causal_lm.score(forward, features, ids, rows=s.logit_rows)


def loss(s: DenoiseSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy of the targets."""
  targets, weights = example.targets, example.targets['weights']
  nats, correct = score(s, forward, example)
  count, read = weights.sum(), targets['inputs_count'].sum()
  metrics = {
    'loss': metric(nats, weights),
    'accuracy': metric(correct, weights),
    # (sum, weight) pairs, so that micro-batches add up
    'inputs_without_slot': (targets['inputs_excess'].sum(), read + targets['inputs_excess'].sum()),
    'targets_without_slot': (targets['targets_excess'].sum(), count + targets['targets_excess'].sum()),
  }
  if s.tables.sentinels is not None:
    metrics['spans_without_sentinel'] = (targets['lost'].sum(), count)
  if len(s.denoisers) > 1:
    for label in dict.fromkeys(d.label for d in s.denoisers):
      labelled = jnp.asarray([d.label == label for d in s.denoisers])[targets['which']][:, None]
      metrics[f'loss/{label}'] = metric(nats, labelled * weights)
  return Loss(scaled_sum(nats, weights, targets['scale']), metrics)


def predict(s: DenoiseSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Compute nats of each target."""
  targets = example.targets
  nats, _ = score(s, forward, example)
  return {'ids': targets['ids'], 'nats': nats * targets['weights'], 'weights': targets['weights']}
