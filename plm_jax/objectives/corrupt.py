"""Shared parts of objectives that corrupt rows: bound noise functions, the row that noise reads, targets in slots."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from plm_jax.adapters import texts
from plm_jax.config import build, signatures
from plm_jax.core.types import Array, Batch, Vocab
from plm_jax.noise import edit
from plm_jax.noise.row import Row, sentence_ids, word_ids
from plm_jax.noise.where import spans

log = logging.getLogger(__name__)

Masking = Literal['dynamic', 'static']  # new noise at every step (RoBERTa), or a few copies of each row (BERT)
EVERY: Mapping[Masking, Literal['step', 'epoch']] = {'dynamic': 'step', 'static': 'epoch'}  # the argument of `row_keys`

# Settings ------------------------------------------------------------------------------------------------------------


def pick_where(settings: Mapping[str, Any], *, vocab: Vocab | None = None, inserts: bool = False) -> partial[Any]:
  """Bind the settings of a function of `noise/where/`: (key, row) -> spans.

  Raises ConfigError: an unknown name or keyword. Raises ValueError: the function needs token counts and the vocabulary
  has none, or it chooses no token.

  Args:
    settings: `name` and keywords of that function.
    vocab: offers its token counts to the functions that use them.
    inserts: the caller accepts a function that chooses no token and inserts some.
  """
  offers = {} if vocab is None else {'counts': vocab.counts}
  choose = build.pick('noise.where', settings, **offers)
  if choose.func is spans.random_gaps and not inserts:
    choices = ', '.join(sorted(set(signatures.places('noise.where')) - {settings['name']}))
    raise ValueError(
      f'where {settings["name"]!r} chooses no token, so there is nothing to predict; choices are {choices}'
    )
  if 'counts' in choose.keywords and choose.keywords['counts'] is None:
    raise ValueError(f'where {settings["name"]!r} needs token counts: train a vocabulary with `plm-jax vocab train`')
  return choose


def pick_edit(settings: Mapping[str, Any], *, vocab: Vocab, in_place: bool = False, **more: Any) -> partial[Any]:
  """Bind a function of `noise.edit`: (key, row, spans) -> slots.

  Raises ConfigError: an unknown name or keyword. Raises ValueError: the function writes the mask token and the
  vocabulary has none, or it moves tokens despite `in_place`.

  Args:
    settings: `name` and keywords of that function.
    vocab: offers `mask_id`, `vocab_size` and `special_ids`.
    in_place: refuse an edit that drops or inserts tokens.
    **more: further values to offer, such as `first_sentinel`; a function gets those that it names.
  """
  write = build.pick(
    'noise.edit', settings, mask_id=vocab.mask_id, vocab_size=vocab.size, special_ids=vocab.special_ids, **more
  )
  if in_place and write.func not in edit.IN_PLACE:
    choices = ', '.join(sorted(function.__name__ for function in edit.IN_PLACE))
    raise ValueError(f'edit {settings["name"]!r} moves tokens, but they are predicted in place; choices are {choices}')
  if 'mask_id' in write.keywords:
    find_mask(vocab, user=f'edit {settings["name"]!r}')
  return write


def capacity(choose: Callable[..., Any], length: int) -> int:
  """Return the number of slots for the chosen tokens of a row.

  A function whose count varies may exceed them in rare rows; `gather` counts the excess.
  """
  assert isinstance(choose, partial)  # build.pick returns partials
  return max(1, build.beside(choose.func, 'CAPACITY')[choose.func](length, **choose.keywords))


def find_mask(vocab: Vocab, *, user: str) -> int:
  """Return the mask token's id, or raise ValueError that names `user`."""
  if vocab.mask_id is None:
    raise ValueError(f'{user} needs a vocabulary with a mask token; vocab.extra adds one')
  texts.check_mask(vocab, vocab.mask_id, user=user, key='vocab.roles')
  return vocab.mask_id


# Tables of a vocabulary ----------------------------------------------------------------------------------------------


def among(ids: Sequence[int], size: int) -> np.ndarray:
  """Mark ids in a table: bool[size]."""
  # ids 1 3 of 5 -> 0 1 0 1 0
  table = np.zeros(size, bool)
  table[list(ids)] = True
  return table


def special_table(vocab: Vocab) -> np.ndarray:
  """Mark special tokens and the unknown token: bool[v]; ValueError if all are."""
  table = among(vocab.special_ids, vocab.size)
  if table.all():
    raise ValueError(
      f'all {vocab.size} tokens of the vocabulary are special, and special tokens are never corrupted: '
      'train it on text, or set vocab.path to another one'
    )
  return table


def mark_table(vocab: Vocab) -> np.ndarray:
  """Mark special tokens, except an unknown token that replaces words: bool[v].

  T5 and BART corrupt the unknown token like any other. It stays marked if it also has another role, as in GPT-2, whose
  one special token is also the end. Raises ValueError: as `special_table`.
  """
  table = special_table(vocab)
  others = (vocab.pad_id, vocab.cls_id, vocab.sep_id, vocab.mask_id, vocab.bos_id, vocab.eos_id)
  if vocab.unk_id is not None and vocab.unk_id not in others:
    table[vocab.unk_id] = False
  return table


# Rows ----------------------------------------------------------------------------------------------------------------


def make_row(
  ids: Array,
  segments: Array,
  *,
  special: np.ndarray,
  starts_word: np.ndarray | None = None,
  ends_sentence: np.ndarray | None = None,
  marks: Array | None = None,
  sentences: Array | None = None,
) -> Row:
  """Build the row that noise reads.

  Special tokens and padding are not eligible.

  Args:
    ids: int32[l].
    segments: int32[l]; 0 is padding.
    special: bool[v], tokens that may not change.
    starts_word: bool[v]; None if no noise in use needs words.
    ends_sentence: bool[v]; None if no noise in use needs sentences.
    marks: int32[l], of the words of a segmenter; None without one.
    sentences: int32[l], `sentence_ids` of the source, negative if it reports none; they replace those of the tokens.
  """
  if ends_sentence is None:
    sentences = None
  else:
    by_token = sentence_ids(ids, jnp.asarray(ends_sentence))
    sentences = by_token if sentences is None else jnp.where(sentences >= 0, sentences, by_token)
  words = None if starts_word is None else word_ids(ids, jnp.asarray(starts_word), marks)
  return Row(ids, ~jnp.asarray(special)[ids] & (segments > 0), segments, words, sentences)


def check_sentences(ends_sentence: np.ndarray | None, special: np.ndarray, batch: Mapping[str, np.ndarray]) -> None:
  """Warn if no document of the first batch has two sentences."""
  if ends_sentence is None:
    return
  row = make_row(
    jnp.asarray(batch['tokens']),
    jnp.asarray(batch['segment_ids']),
    special=special,
    ends_sentence=ends_sentence,
    sentences=jnp.asarray(batch['sentence_ids']) if 'sentence_ids' in batch else None,
  )
  segments, sentences, words = map(np.asarray, (row.segment_ids, row.sentence_ids, row.eligible))
  same = (segments[:, 1:] == segments[:, :-1]) & words[:, 1:]
  if not (same & (sentences[:, 1:] != sentences[:, :-1])).any():
    log.warning(
      'no document of the first batch (%d) has two sentences, so none moves or is hidden: set data.sentences to '
      "'line', 'punctuation' or 'both'",
      segments.max(axis=1).sum(),
    )


class Targets(NamedTuple):
  """Chosen tokens of a row in a fixed number of slots, from left to right."""

  positions: Array  # int32[t], 0 in unused slots
  weights: Array  # f32[t], 1 in used slots
  excess: Array  # f32[], chosen tokens without a slot


def gather(chosen: Array, *, slots: int) -> Targets:
  """Gather the chosen tokens of a row, bool[l], in `slots` slots."""
  # chosen  0 1 0 1 1   two slots   positions 1 3   weights 1 1   excess 1
  slot = jnp.where(chosen, jnp.cumsum(chosen) - 1, slots)
  index = jnp.arange(chosen.shape[0], dtype=jnp.int32)
  positions = jnp.zeros(slots, jnp.int32).at[slot].set(index, mode='drop')
  count = chosen.sum()
  weights = (jnp.arange(slots) < count).astype(jnp.float32)
  return Targets(positions, weights, jnp.maximum(count - slots, 0).astype(jnp.float32))


def choose_targets(choose: Callable[..., Any], key: Array, row: Row) -> Targets:
  """Choose tokens by a bound where-function, in the slots of its capacity."""
  return gather(choose(key, row).number > 0, slots=capacity(choose, row.ids.shape[0]))


# Batches -------------------------------------------------------------------------------------------------------------


def present(batch: Batch, *names: str) -> dict[str, Array]:
  """Select the keys among `names` that a batch has, such as 'type_ids'."""
  return {name: batch[name] for name in names if name in batch}


def text(batch: Batch) -> tuple[Array, ...]:
  """Return tokens, segments and, if a segmenter marked words, its marks."""
  return batch['tokens'], batch['segment_ids'], *present(batch, 'word_marks').values()


def identity(batch: Batch) -> dict[str, Array]:
  """Select the fields that every batch has and that key noise."""
  return present(batch, 'row_id', 'row_high', 'epoch', 'row_weight', 'step')


# Choices by share ----------------------------------------------------------------------------------------------------


def check_shares(name: str, shares: Mapping[str, float], choices: Sequence[str]) -> None:
  """Raise ValueError for shares of unknown name, negative or all zero."""
  if unknown := set(shares) - set(choices):
    raise ValueError(f'objective.{name} names {sorted(unknown)[0]!r}; choices are {", ".join(choices)}')
  if min(shares.values(), default=0) < 0 or sum(shares.values()) <= 0:
    raise ValueError(f'objective.{name}={dict(shares)}: no share may be negative, and one must be positive')


def check_weights(**weights: float) -> None:
  """Raise ValueError if all weights of a loss are 0."""
  if not any(weights.values()):
    zeros = ', '.join(f'objective.{name}=0' for name in weights)
    raise ValueError(f'{zeros}: nothing would be trained; give one of them a positive weight')


def share_bounds(shares: Sequence[float]) -> np.ndarray:
  """Compute the bounds f32[n - 1] of n choices in [0, 1]."""
  # shares 2 1 1 -> .5 .75
  weights = np.asarray(shares, np.float64)
  return np.cumsum(weights / weights.sum())[:-1].astype(np.float32)


def pick_share(uniform: Array, bounds: np.ndarray) -> Array:
  """Map uniform numbers f32[...] to choices: .6 by .5 .75 -> 1."""
  return (uniform[..., None] >= jnp.asarray(bounds)).sum(axis=-1).astype(jnp.int32)
