"""Settings of text-to-text denoisers, checked and bound to functions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from plm_jax.config import build
from plm_jax.core import errors
from plm_jax.core.types import Vocab
from plm_jax.noise import edit as edits
from plm_jax.noise.rearrange import permute_sentences
from plm_jax.noise.where import spans as where_spans
from plm_jax.objectives import corrupt
from plm_jax.objectives.denoising import Denoiser, Target, VocabTables, find_sentence_ends, find_sentinels

INSERTING = (where_spans.random_gaps, where_spans.poisson_spans)  # sample insertions
WRITES_INSERTIONS = (edits.insert, edits.collapse_to_mask)


def bind(common: Mapping[str, Any], block: Mapping[str, Any], *, vocab: Vocab, index: int) -> Denoiser:
  """Bind one denoiser: the keywords of its `DenoiserBlock`, else those in `common`."""
  keys = (*common, 'share', 'mode')
  for name in block:
    if name not in keys:
      path = f'objective.denoisers[{index}]'
      raise ValueError(f'{path} has no {name!r}.{errors.suggest(name, keys)} Keys: {", ".join(keys)}')
  settings = {**common, **{name: value for name, value in block.items() if value is not None}}
  errors.one_of('objective.target', settings['target'], Target)
  mode = block.get('mode', '')
  denoiser = Denoiser(
    rearrange=tuple(build.pick('noise.rearrange', step) for step in settings['rearrange']),
    choose=corrupt.pick_where(settings['where'], vocab=vocab, inserts=True),
    write=corrupt.pick_edit(settings['edit'], vocab=vocab, first_sentinel=0),  # ids: `assign_sentinels`
    finish=tuple(build.pick('noise.rearrange', step) for step in settings['finish']),
    target=settings['target'],
    mode=tuple(i for i in vocab.special_ids if vocab.token(i) == mode) if mode else (),
    share=block.get('share', 1.0),
    label=mode.strip('[]') or str(index),
  )
  check_insertions(denoiser)
  return denoiser


def check_insertions(denoiser: Denoiser) -> None:
  """Raise ValueError if `where` and `edit` disagree about insertions.

  Either the sampled insertions are not written, or none are sampled and the edit writes only insertions. The inputs
  would equal the text, or the targets would be empty.
  """
  where, write = denoiser.choose.func, denoiser.write.func
  if write is edits.insert and where not in INSERTING:
    raise ValueError(
      f"edit 'insert' writes insertions, and where {where.__name__!r} samples none; choices of where are "
      f'{", ".join(function.__name__ for function in INSERTING)}'
    )
  if where is not where_spans.random_gaps:
    return
  if write not in WRITES_INSERTIONS:
    raise ValueError(
      f'edit {write.__name__!r} writes no insertions, and where {where.__name__!r} samples nothing else; choices of '
      f'edit are {", ".join(function.__name__ for function in WRITES_INSERTIONS)}'
    )
  if denoiser.target != 'text':
    raise ValueError(
      f'objective.target={denoiser.target!r} is empty, since where {where.__name__!r} chooses no tokens: '
      "set objective.target='text'"
    )


def share_bounds(denoisers: tuple[Denoiser, ...]) -> np.ndarray:
  """Check the shares of denoisers and compute their bounds, f32[denoisers - 1]."""
  shares = [denoiser.share for denoiser in denoisers]
  if min(shares) < 0 or sum(shares) == 0:
    raise ValueError(f'objective.denoisers have the shares {shares}: none may be negative, and one must be positive')
  return corrupt.share_bounds(shares)


def make_tables(
  vocab: Vocab, denoisers: tuple[Denoiser, ...], *, append_eos: bool, mask_random: float, sentence_ends: tuple[str, ...]
) -> VocabTables:
  """Build the tables of the vocabulary that the denoisers need.

  Raises ValueError: the vocabulary lacks an end token, sentinels or ends of sentences that are needed.
  """
  if not 0.0 <= mask_random <= 1.0:
    raise ValueError(f'objective.mask_random={mask_random} must be in [0, 1]')
  if append_eos and vocab.eos_id is None:
    raise ValueError('objective.append_eos needs a vocabulary with an end token; vocab.roles can name one')
  sentinels = any(d.write.func is edits.to_sentinels or d.target == 'sentinels' for d in denoisers)
  sentences = any(f.func is permute_sentences for d in denoisers for f in (*d.rearrange, *d.finish))
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
