"""Denoising from text to text: an encoder reads corrupted text, a decoder writes what was there.

T5's span corruption and its variants (Raffel et al. 2020, §3.3), BART's noises (Lewis et al. 2019, §2.2), MASS (Song et
al. 2019) and UL2's mixture (Tay et al. 2022, §3.1) are settings: in which order (`rearrange`), which tokens (`where`),
what becomes of them (`edit`), and what is to be written (`target`):

  text       the whole text
  masked     the whole text, of which the chosen tokens count
  chosen     the chosen tokens in order
  sentinels  the chosen tokens, each span behind the sentinel that stands for it; one more where the text goes on after

Rows keep fixed sizes: inputs and targets are as long as the raw row needs, by T5's rule where counts are exact. Each
packed document is corrupted by itself, and its inputs and targets have its number in `segment_ids`.

A trunk without an encoder reads inputs and targets in one row (T5, §3.2.1): all inputs of the row, then all targets,
each behind the token that a decoder reads first. A target sees the inputs of its document and the targets before it;
among the inputs, tokens see each other both ways in a trunk with a prefix. Inputs are not predicted.
"""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.layers.losses import perplexity
from plm_jax.noise import edit as edits
from plm_jax.noise.keys import row_keys
from plm_jax.noise.rearrange import permute_sentences
from plm_jax.objectives import causal_lm, corrupt
from plm_jax.objectives.denoising import (
  TARGETS,
  Denoiser,
  Side,
  Words,
  alike,
  denoise,
  find_sentence_ends,
  find_sentinels,
  join,
  one_of,
  shift_right,
  sizes,
)
from plm_jax.plugins import build
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab, require

PAPER = Paper(year=2019, title='Raffel et al., T5', architecture='encoder-decoder', objective_family='denoising')


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  rearrange: tuple[Mapping[str, Any], ...] = (),
  where: Mapping[str, Any] = {'name': 'exact_spans'},
  edit: Mapping[str, Any] = {'name': 'to_sentinels'},
  finish: tuple[Mapping[str, Any], ...] = (),
  target: Literal['text', 'masked', 'chosen', 'sentinels'] = 'sentinels',
  denoisers: tuple[Mapping[str, Any], ...] = (),
  start: Literal['pad', 'bos', 'eos'] = 'pad',
  append_eos: bool = True,
  mask_random: float = 0.0,
  sentence_ends: tuple[str, ...] = ('.',),
  packing: Literal['segments', 'stream'] = 'segments',
  inputs_length: int | None = None,
  targets_length: int | None = None,
  logit_rows: int = 8,
) -> Task:
  """Denoising by an encoder-decoder, or by a decoder that reads inputs and targets in one row.

  Args:
    trunk: an encoder-decoder, a causal trunk, or one with a prefix.
    vocab: with a mask token or sentinels, where an edit or the target writes them.
    rearrange: functions of `noise.rearrange` with their settings, applied in order before anything else.
    where: which tokens, a function of `noise.where` or `noise.spans` with its settings.
    edit: what becomes of them, a function of `noise.edit` with its settings.
    finish: like `rearrange`, applied to the corrupted text (BART's code rotates last).
    target: what is to be written, see the head of this file.
    denoisers: several ways to corrupt, of which each row takes one: each with any of `rearrange`, `where`, `edit`,
      `finish` and `target`, those left out being as above; `share`, of the rows, relative to the others' (1); `mode`, a
      special token put first in the inputs where the vocabulary has it (UL2's [R], [S], [X]).
    start: token that the decoder reads first: 'pad' (T5), 'eos' (BART), 'bos'.
    append_eos: put the end token behind inputs and targets (T5); False where the rows have their end tokens (BART).
    mask_random: share of the mask tokens that become a random token.
    sentence_ends: tokens that end a sentence.
    packing: 'segments' takes the documents of a row each by itself, 'stream' takes the row as one text (T5).
    inputs_length: slots of the inputs; None takes what a row of one document needs.
    targets_length: slots of the targets; likewise.
    logit_rows: batch rows whose logits are in memory at a time.

  Raises:
    ValueError: a setting that cannot be met. The model's length is checked with the first batch.
  """
  joined = 'encoder_tokens' not in trunk.INPUTS
  two_rows = ('encoder_tokens', 'encoder_segment_ids', 'decoder_tokens', 'decoder_segment_ids')
  require(
    trunk,
    user="objective 'denoise_seq2seq'",
    attention=('encoder-decoder', 'causal', 'prefix'),
    inputs=('tokens', 'segment_ids', 'positions') if joined else two_rows,
  )
  if packing not in ('segments', 'stream'):
    raise ValueError(f'objective.packing={packing!r}; choices are segments, stream')
  if not 0.0 <= mask_random <= 1.0:
    raise ValueError(f'objective.mask_random={mask_random} is not in [0, 1]')
  if append_eos and vocab.eos_id is None:
    raise ValueError('objective.append_eos needs a vocabulary with an end token; vocab.roles can name one')
  starts = {'pad': vocab.pad_id, 'bos': vocab.bos_id, 'eos': vocab.eos_id}
  start_id = starts.get(start)
  if start_id is None:
    known = ', '.join(name for name, token in starts.items() if token is not None)
    raise ValueError(f'objective.start={start!r}; choices with this vocabulary are {known}')
  common = {'rearrange': rearrange, 'where': where, 'edit': edit, 'finish': finish, 'target': target}
  ways = [_bind(common, given, vocab=vocab, number=n) for n, given in enumerate(denoisers or ({},))]
  spelt = any(way.write.func is edits.to_sentinels or way.target == 'sentinels' for way in ways)
  moved = any(f.func is permute_sentences for way in ways for f in (*way.rearrange, *way.finish))
  is_special = np.zeros(vocab.size, bool)
  is_special[list(vocab.special_ids)] = True
  words = Words(
    special=is_special,
    starts_word=np.asarray(vocab.starts_word),
    ends_sentence=find_sentence_ends(vocab, sentence_ends) if moved else None,
    mask_id=vocab.mask_id,
    pad_id=vocab.pad_id,
    end=(vocab.eos_id,) if append_eos and vocab.eos_id is not None else (),
    sentinels=find_sentinels(vocab) if spelt else None,
    ordinary=np.flatnonzero(~is_special).astype(np.int32),
    mask_random=mask_random,
  )
  shares = np.array([way.share for way in ways])
  if (shares < 0).any() or shares.sum() == 0:
    raise ValueError(f'shares of denoisers {shares.tolist()} must not be negative, nor all 0')
  bounds = np.cumsum(shares / shares.sum())[:-1].astype(np.float32)
  labels = list(dict.fromkeys(way.label for way in ways))
  groups = alike(ways)
  group_of, place_of = np.zeros((2, len(ways)), np.int32)
  for number, group in enumerate(groups):
    group_of[group], place_of[group] = number, np.arange(len(group))
  limit = dataclasses.asdict(trunk.config).get('max_length')

  def slots_of(length: int) -> tuple[int, int]:
    needed = [sizes(way, length, words=words) for way in ways]
    inputs, targets = (max(side) for side in zip(*needed, strict=True))
    return inputs_length or inputs, targets_length or targets

  def corrupt_row(key: Array, ids: Array, segments: Array) -> tuple[Side, Side, Array, Array]:
    inputs_size, targets_size = slots_of(ids.shape[0])
    which_key, key = jax.random.split(key)
    which = (jax.random.uniform(which_key) >= jnp.asarray(bounds)).sum()
    place = jnp.asarray(place_of)[which]
    branches = [
      partial(
        denoise,
        denoiser=one_of([ways[number] for number in group], place),
        words=words,
        inputs_size=inputs_size,
        targets_size=targets_size,
      )
      for group in groups
    ]
    return *jax.lax.switch(jnp.asarray(group_of)[which], branches, key, ids, segments), which

  def prepare(root: Array, batch: Batch) -> Example:
    tokens, segments = batch['tokens'], batch['segment_ids']
    if packing == 'stream':
      segments = (segments > 0).astype(segments.dtype)
    _check_length(tokens.shape[1], slots_of, limit=limit, trunk=trunk, joined=joined)
    keys = row_keys(root, batch, every='step')
    inputs, targets, lost, which = jax.vmap(corrupt_row)(keys, tokens, segments)
    weights = targets.weights * batch['row_weight'][:, None]
    scale = jnp.broadcast_to(1 / jnp.maximum(weights.sum(), 1.0), weights.shape[:1])
    read = {
      'encoder_tokens': inputs.ids,
      'encoder_segment_ids': inputs.segment_ids,
      'decoder_tokens': shift_right(targets.ids, targets.segment_ids, start_id=start_id),
      'decoder_segment_ids': targets.segment_ids,
    }
    return Example(
      join(read, documents=tokens.shape[1], prefix='prefix' in trunk.INPUTS) if joined else read,
      {
        'ids': targets.ids,
        'weights': weights,
        'scale': scale,
        'which': which,
        'inputs_count': inputs.weights.sum(axis=1) * batch['row_weight'],
        'inputs_excess': inputs.excess * batch['row_weight'],
        'targets_excess': targets.excess * batch['row_weight'],
        'lost': lost * batch['row_weight'],
      },
    )

  def score(forward: Forward, example: Example) -> tuple[Array, Array]:
    """Nats and correctness of each target, f32[b, t]."""
    ids = example.targets['ids']
    features = forward(**example.inputs)[:, -ids.shape[1] :]  # without the inputs, where they are in one row
    return causal_lm.score(forward, features, ids, rows=logit_rows)

  def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del carry, rng
    targets = example.targets
    nats, correct = score(forward, example)
    weights = targets['weights']
    count = weights.sum()
    read = targets['inputs_count'].sum()
    metrics = {
      'loss': ((nats * weights).sum(), count),
      'accuracy': ((correct * weights).sum(), count),
      # shares, so that micro-batches add up
      'inputs_without_slot': (targets['inputs_excess'].sum(), read + targets['inputs_excess'].sum()),
      'targets_without_slot': (targets['targets_excess'].sum(), count + targets['targets_excess'].sum()),
    }
    if words.sentinels is not None:
      metrics['spans_without_sentinel'] = (targets['lost'].sum(), count)
    if len(ways) > 1:
      for label in labels:
        mine = jnp.asarray([way.label == label for way in ways])[targets['which']][:, None] * weights
        metrics[f'loss/{label}'] = ((nats * mine).sum(), mine.sum())
    return Loss(value=(nats * weights * targets['scale'][:, None]).sum(), metrics=metrics)

  def predict(forward: Forward, example: Example) -> dict[str, Array]:
    targets = example.targets
    nats, _ = score(forward, example)
    return {'ids': targets['ids'], 'nats': nats * targets['weights'], 'weights': targets['weights']}

  def summary(means: dict[str, float]) -> dict[str, float]:
    return {'perplexity': perplexity(means['loss'])}

  def row_length(length: int) -> int:
    return (sum if joined else max)(slots_of(length))

  return Task(causal_lm.Model(trunk), prepare, loss, predict, summary=summary, row_length=row_length)


def _bind(common: Mapping[str, Any], given: Mapping[str, Any], *, vocab: Vocab, number: int) -> Denoiser:
  """A denoiser of the settings in `given` and, where it has none, in `common`."""
  known = (*common, 'share', 'mode')
  for name in given:
    if name not in known:
      near = difflib.get_close_matches(name, known, n=1)
      hint = f' Did you mean {near[0]!r}?' if near else ''
      raise ValueError(f'objective.denoisers[{number}] has no {name!r}.{hint} It takes: {", ".join(known)}.')
  settings = {**common, **given}
  if settings['target'] not in TARGETS:
    raise ValueError(f'objective.target={settings["target"]!r}; choices are {", ".join(TARGETS)}')
  mode = given.get('mode', '')
  return Denoiser(
    rearrange=tuple(_partial(build.pick('noise.rearrange', one)) for one in settings['rearrange']),
    choose=_partial(corrupt.pick_where(settings['where'], vocab=vocab)),
    write=_partial(corrupt.pick_edit(settings['edit'], vocab=vocab, first_sentinel=0)),  # `_spell` has the ids
    finish=tuple(_partial(build.pick('noise.rearrange', one)) for one in settings['finish']),
    target=settings['target'],
    mode=tuple(i for i in vocab.special_ids if vocab.token(i) == mode) if mode else (),
    share=given.get('share', 1.0),
    label=mode.strip('[]') or str(number),
  )


def _partial(function: Callable[..., Any]) -> partial[Any]:
  assert isinstance(function, partial)  # what build.pick makes
  return function


def _check_length(
  length: int, slots_of: Callable[[int], tuple[int, int]], *, limit: int | None, trunk: nn.Module, joined: bool
) -> None:
  """Raises where inputs or targets of rows of `length` tokens, or both where `joined`, are too long for the trunk."""
  longest = sum if joined else max
  if limit is None or longest(slots_of(length)) <= limit:
    return
  fits = next((raw for raw in range(length, 0, -1) if longest(slots_of(raw)) <= limit), 0)
  inputs, targets = slots_of(length)
  raise ValueError(
    f'rows of {length} tokens become inputs of {inputs} and targets of {targets}'
    f'{" in one row" if joined else ""}, and {type(trunk).__name__} holds '
    f'{limit}: set data.length={fits}, the longest that fits, or model.overrides.max_length'
  )
