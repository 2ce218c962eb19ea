"""Denoising from text to text: an encoder reads corrupted text, a decoder writes what was there.

T5's span corruption and its variants (Raffel et al. 2020, §3.3), BART's noises (Lewis et al. 2019, §2.2), MASS (Song et
al. 2019) and UL2's mixture (Tay et al. 2022, §3.1) are settings: in which order (`rearrange`), which tokens (`where`),
what becomes of them (`edit`), and what is to be written (`target`):

  text       the whole text
  masked     the whole text, of which the chosen tokens count
  chosen     the chosen tokens in order
  sentinels  the chosen tokens, each span after its sentinel; at the end one more sentinel where text follows

Sizes are fixed: inputs and targets have room for any row of the source, by T5's rule where counts are exact. Each
packed document is corrupted by itself, and its inputs and targets have its number in `segment_ids`. Of its special
tokens, those at its ends stay as they are, and those within are corrupted like words.

A trunk without an encoder reads inputs and targets in one row (T5, §3.2.1): all inputs of the row, then all targets,
where each document begins with the token that a decoder reads first. A target sees the inputs of its document and the
targets before it. In a trunk with a prefix, inputs see each other in both directions. Inputs are not predicted.
"""

import bisect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.config import build
from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.sharding import each_row
from plm_jax.core.trunk import Attends, longest_row
from plm_jax.core.types import (
  Array,
  Batch,
  Count,
  Example,
  Forward,
  Loss,
  Paper,
  PyTree,
  Rate,
  Task,
  Template,
  Vocab,
  Weight,
)
from plm_jax.layers.means import batch_scale, metric, perplexity_of, scaled_sum
from plm_jax.noise import edit as edits
from plm_jax.noise.keys import row_keys
from plm_jax.noise.rearrange import permute_sentences
from plm_jax.noise.where import spans as where_spans
from plm_jax.objectives import causal_lm, corrupt
from plm_jax.objectives.causal_lm import Packing
from plm_jax.objectives.denoising import (
  Denoiser,
  Side,
  Target,
  VocabTables,
  alike,
  denoise,
  find_sentence_ends,
  find_sentinels,
  join,
  select,
  shift_right,
  sizes,
)

PAPER = Paper(year=2019, title='Raffel et al., T5', architecture='encoder-decoder', objective_family='denoising')
READS = ('tokens', 'segment_ids')

Start = Literal['pad', 'bos', 'eos']
Rearrange = tuple[Annotated[Mapping[str, Any], 'noise.rearrange'], ...]
INSERTING = (where_spans.random_gaps, where_spans.poisson_spans)  # draw insertions
WRITES_INSERTIONS = (edits.insert, edits.collapse_to_mask)
TWO_ROWS = ('encoder_tokens', 'encoder_segment_ids', 'decoder_tokens', 'decoder_segment_ids')


class DenoiserBlock:
  """One of the blocks `denoisers`: keywords as in `make`; None means that the keyword of `make` holds.

  Attributes:
    share: of the rows, relative to the others'.
    mode: a special token put first in the inputs where the vocabulary has it (UL2's [R], [S], [X]).
  """

  rearrange: Rearrange | None = None
  where: Annotated[Mapping[str, Any], 'noise.where'] | None = None
  edit: Annotated[Mapping[str, Any], 'noise.edit'] | None = None
  finish: Rearrange | None = None
  target: Target | None = None
  share: Weight = 1.0
  mode: str = ''


class DenoiseSettings(NamedTuple):
  """What corrupts rows; settings are explained in `make`.

  Attributes:
    denoisers: with their settings bound.
    bounds: f32[denoisers - 1], of `corrupt.share_bounds`.
    tables: of the vocabulary.
    start_id: what the decoder reads first.
    joined: inputs and targets are one row.
    prefix: the trunk takes the length of the inputs.
    max_length: tokens of the longest row that the trunk has positions for; None for any.
    documents: the most documents of a row; None before the rows are known, and where each is taken as one text.
  """

  denoisers: tuple[Denoiser, ...]
  bounds: np.ndarray
  tables: VocabTables
  start_id: int
  packing: Packing
  inputs_length: int | None
  targets_length: int | None
  logit_rows: int
  joined: bool
  prefix: bool
  max_length: int | None
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
  """Denoising by an encoder-decoder, or by a decoder that reads inputs and targets in one row.

  Args:
    trunk: an encoder-decoder, a causal trunk, or one with a prefix.
    vocab: with a mask token or sentinels, where an edit or the target writes them.
    rearrange: functions of `noise.rearrange` with their settings, applied in order before anything else.
    where: which tokens, a function of `noise/where/` with its settings.
    edit: what becomes of them, a function of `noise.edit` with its settings.
    finish: like `rearrange`, applied to the corrupted text (BART's code rotates last).
    target: what is to be written, see the head of this file.
    denoisers: one of them is drawn for each row, see `DenoiserBlock`.
    start: token that the decoder reads first: 'pad' (T5), 'eos' (BART), 'bos'.
    append_eos: put the end token after inputs and targets (T5); False where the rows have their end tokens (BART).
    mask_random: share of the mask tokens that become a random token.
    sentence_ends: tokens that end a sentence.
    packing: 'segments' corrupts each document of a row by itself, 'stream' takes the row as one text (T5).
    inputs_length: slots of the inputs; None is what any row of the source needs, by the number of its documents.
    targets_length: slots of the targets; likewise.
    logit_rows: rows of each device whose logits are in memory at a time.

  Raises:
    ValueError: a setting that cannot be met. The model's length is checked with the first batch.
  """
  joined = 'encoder_tokens' not in trunk.INPUTS
  inputs = ('tokens', 'segment_ids', 'positions') if joined else TWO_ROWS
  kinds = ('encoder-decoder', 'causal', 'prefix')
  require(trunk, user="objective 'denoise_seq2seq'", attention=kinds, inputs=inputs, offers=(Attends,))
  errors.one_of('objective.packing', packing, Packing)
  common = {'rearrange': rearrange, 'where': where, 'edit': edit, 'finish': finish, 'target': target}
  bound = tuple(bind(common, given, vocab=vocab, number=n) for n, given in enumerate(denoisers or ({},)))
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
  """The task for rows of up to so many documents."""
  s = s._replace(documents=documents)
  functions = partial(prepare, s), partial(loss, s), partial(predict, s)
  return Task(
    causal_lm.Model(trunk),
    *functions,
    summary=perplexity_of,
    row_length=partial(row_length, s),
    for_documents=partial(make_task, trunk, s) if s.packing == 'segments' else None,
  )


# Settings ----------------------------------------------------------------------------------------------------------


def template(*, vocab: Vocab, rows: Template | None, append_eos: bool = True, **rest: Any) -> Template | None:
  """What stands around a text that the encoder reads: what rows have, and the end token."""
  del rest
  if rows is None or not append_eos or vocab.eos_id is None:
    return rows
  end = (vocab.eos_id, 0)
  pair = [one for part in rows.pair for one in ((end, part) if part[0] == 'B' else (part,))]
  return rows._replace(single=(*rows.single, end), pair=(*pair, end))


def bind(common: Mapping[str, Any], given: Mapping[str, Any], *, vocab: Vocab, number: int) -> Denoiser:
  """Denoiser number `number`, of the keywords in `given`, a `DenoiserBlock`, or else of those in `common`."""
  known = (*common, 'share', 'mode')
  for name in given:
    if name not in known:
      place = f'objective.denoisers[{number}]'
      raise ValueError(f'{place} has no {name!r}.{errors.suggest(name, known)} It takes: {", ".join(known)}.')
  settings = {**common, **{name: value for name, value in given.items() if value is not None}}
  errors.one_of('objective.target', settings['target'], Target)
  mode = given.get('mode', '')
  made = Denoiser(
    rearrange=tuple(_partial(build.pick('noise.rearrange', one)) for one in settings['rearrange']),
    choose=_partial(corrupt.pick_where(settings['where'], vocab=vocab, inserts=True)),
    write=_partial(corrupt.pick_edit(settings['edit'], vocab=vocab, first_sentinel=0)),  # ids: `assign_sentinels`
    finish=tuple(_partial(build.pick('noise.rearrange', one)) for one in settings['finish']),
    target=settings['target'],
    mode=tuple(i for i in vocab.special_ids if vocab.token(i) == mode) if mode else (),
    share=given.get('share', 1.0),
    label=mode.strip('[]') or str(number),
  )
  check_insertions(made)
  return made


def check_insertions(denoiser: Denoiser) -> None:
  """Raises ValueError where insertions are drawn and nothing writes them, or something writes those that are not drawn.

  Either way the inputs would be the text, or the targets nothing.
  """
  where, write = denoiser.choose.func, denoiser.write.func
  if write is edits.insert and where not in INSERTING:
    raise ValueError(
      f"edit 'insert' writes nothing where {where.__name__!r} chooses, which inserts nothing; choices of where are "
      f'{", ".join(one.__name__ for one in INSERTING)}'
    )
  if where is not where_spans.random_gaps:
    return
  if write not in WRITES_INSERTIONS:
    raise ValueError(
      f'edit {write.__name__!r} writes no insertion, and where {where.__name__!r} chooses nothing else; choices of '
      f'edit are {", ".join(one.__name__ for one in WRITES_INSERTIONS)}'
    )
  if denoiser.target != 'text':
    raise ValueError(
      f"objective.target={denoiser.target!r} has no token where {where.__name__!r} chooses none; choose target='text'"
    )


def _partial(function: Callable[..., Any]) -> partial[Any]:
  assert isinstance(function, partial)  # what build.pick makes
  return function


def share_bounds(denoisers: tuple[Denoiser, ...]) -> np.ndarray:
  """Bounds of the shares of denoisers, f32[denoisers - 1]."""
  shares = [one.share for one in denoisers]
  if min(shares) < 0 or sum(shares) == 0:
    raise ValueError(f'shares of denoisers {shares} must not be negative, nor all 0')
  return corrupt.share_bounds(shares)


def find_start(vocab: Vocab, start: Start) -> int:
  """The id of the token that the decoder reads first.

  Raises:
    ValueError: the vocabulary has no such token.
  """
  errors.one_of('objective.start', start, Start)
  starts = {'pad': vocab.pad_id, 'bos': vocab.bos_id, 'eos': vocab.eos_id}
  found = starts[start]
  if found is None:
    known = ', '.join(name for name, token in starts.items() if token is not None)
    raise ValueError(f'objective.start={start!r}; choices with this vocabulary are {known}')
  return found


def make_tables(
  vocab: Vocab, denoisers: tuple[Denoiser, ...], *, append_eos: bool, mask_random: float, sentence_ends: tuple[str, ...]
) -> VocabTables:
  """What the denoisers need to know of the vocabulary.

  Raises:
    ValueError: it has no end token, sentinels or ends of sentences, and they are needed.
  """
  if not 0.0 <= mask_random <= 1.0:
    raise ValueError(f'objective.mask_random={mask_random} is not in [0, 1]')
  if append_eos and vocab.eos_id is None:
    raise ValueError('objective.append_eos needs a vocabulary with an end token; vocab.roles can name one')
  sentinels = any(one.write.func is edits.to_sentinels or one.target == 'sentinels' for one in denoisers)
  sentences = any(f.func is permute_sentences for one in denoisers for f in (*one.rearrange, *one.finish))
  return VocabTables(
    special=corrupt.mark_table(vocab),
    starts_word=np.asarray(vocab.starts_word),
    ends_sentence=find_sentence_ends(vocab, sentence_ends) if sentences else None,
    mask_id=vocab.mask_id,
    pad_id=vocab.pad_id,
    end=(vocab.eos_id,) if append_eos and vocab.eos_id is not None else (),
    sentinels=find_sentinels(vocab) if sentinels else None,
    ordinary=np.setdiff1d(np.arange(vocab.size, dtype=np.int32), vocab.special_ids),
    mask_random=mask_random,
  )


# Lengths -----------------------------------------------------------------------------------------------------------


def slots_of(s: DenoiseSettings, length: int) -> tuple[int, int]:
  """Slots of the inputs and of the targets that rows of `length` tokens get.

  Inputs have a margin where their length is drawn, as far as the trunk has positions.
  """

  def needed(margin: bool) -> list[int]:
    found = [sizes(one, length, tables=s.tables, documents=s.documents, margin=margin) for one in s.denoisers]
    return [max(side) for side in zip(*found, strict=True)]

  (inputs, targets), (wide, _) = needed(False), needed(True)
  targets = s.targets_length or targets
  if s.max_length is not None:
    wide = min(wide, s.max_length - (targets if s.joined else 0))
  return s.inputs_length or max(inputs, wide), targets


def row_length(s: DenoiseSettings, length: int) -> int:
  """The longest row that the trunk reads for rows of `length` tokens."""
  return (sum if s.joined else max)(slots_of(s, length))


def check_length(s: DenoiseSettings, length: int) -> None:
  """Raises ValueError where inputs or targets of rows of `length` tokens, or both, are too long for the trunk."""
  if s.max_length is None or row_length(s, length) <= s.max_length:
    return
  fits = bisect.bisect_right(range(1, length), s.max_length, key=partial(row_length, s))
  inputs, targets = slots_of(s, length)
  raise ValueError(
    f'rows of {length} tokens become inputs of {inputs} and targets of {targets}'
    f'{" in one row" if s.joined else ""}, and the trunk holds {s.max_length}: '
    f'set data.length={fits}, the longest that fits, or model.overrides.max_length'
  )


# Batches -----------------------------------------------------------------------------------------------------------


def prepare(s: DenoiseSettings, root: Array, batch: Batch) -> Example:
  """What encoder and decoder read, and what the decoder is to write."""
  tokens, segments = batch['tokens'], causal_lm.one_document(batch['segment_ids'], s.packing)
  check_length(s, tokens.shape[1])
  keys = row_keys(root, batch, every='step')
  inputs, targets, lost, which = each_row(partial(draw, s), keys, tokens, segments)
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
  found = {
    'ids': targets.ids,
    'weights': weights,
    'scale': batch_scale(weights),
    'which': which,
    'inputs_count': inputs.weights.sum(axis=1) * row_weight,
    'inputs_excess': inputs.excess * row_weight,
    'targets_excess': targets.excess * row_weight,
    'lost': lost * row_weight,
  }
  return Example(read, found)


def draw(s: DenoiseSettings, key: Array, ids: Array, segments: Array) -> tuple[Side, Side, Array, Array]:
  """Inputs, targets and spans without a sentinel of one row, int[l] both, and the number int32[] of its denoiser."""
  inputs_size, targets_size = slots_of(s, ids.shape[0])
  # denoisers a b c d, of which a and c are alike   groups [0 2] [1] [3]   group of 0 1 0 2   place in it 0 0 1 0
  groups = alike(s.denoisers)
  group_of, place_of = np.zeros((2, len(s.denoisers)), np.int32)
  for number, group in enumerate(groups):
    group_of[group], place_of[group] = number, np.arange(len(group))
  which_key, key = jax.random.split(key)
  which = corrupt.pick_share(jax.random.uniform(which_key), s.bounds)
  place = jnp.asarray(place_of)[which]
  branches = [
    partial(
      denoise,
      denoiser=select([s.denoisers[number] for number in group], place),
      tables=s.tables,
      inputs_size=inputs_size,
      targets_size=targets_size,
    )
    for group in groups
  ]
  return *jax.lax.switch(jnp.asarray(group_of)[which], branches, key, ids, segments), which


def score(s: DenoiseSettings, forward: Forward, example: Example) -> tuple[Array, Array]:
  """Nats and correctness of each target, f32[b, t]."""
  ids = example.targets['ids']
  features = forward(**example.inputs)[:, -ids.shape[1] :]  # without the inputs, where they are in one row
  return causal_lm.score(forward, features, ids, rows=s.logit_rows)


def loss(s: DenoiseSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Cross-entropy of the targets."""
  del carry, rng
  targets, weights = example.targets, example.targets['weights']
  nats, correct = score(s, forward, example)
  count, read = weights.sum(), targets['inputs_count'].sum()
  metrics = {
    'loss': metric(nats, weights),
    'accuracy': metric(correct, weights),
    # shares, so that micro-batches add up
    'inputs_without_slot': (targets['inputs_excess'].sum(), read + targets['inputs_excess'].sum()),
    'targets_without_slot': (targets['targets_excess'].sum(), count + targets['targets_excess'].sum()),
  }
  if s.tables.sentinels is not None:
    metrics['spans_without_sentinel'] = (targets['lost'].sum(), count)
  if len(s.denoisers) > 1:
    for label in dict.fromkeys(one.label for one in s.denoisers):
      mine = jnp.asarray([one.label == label for one in s.denoisers])[targets['which']][:, None] * weights
      metrics[f'loss/{label}'] = metric(nats, mine)
  return Loss(scaled_sum(nats, weights, targets['scale']), metrics)


def predict(s: DenoiseSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Nats of each target."""
  targets = example.targets
  nats, _ = score(s, forward, example)
  return {'ids': targets['ids'], 'nats': nats * targets['weights'], 'weights': targets['weights']}
