"""Edits of the chosen positions: (key, row, spans) -> slots.

Some edits keep every position (`IN_PLACE`), others drop positions or insert ids; `compact` turns the slots into a row.
Only `collapse_to_mask` and `insert` write the insertions of `Spans.insert`.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.errors import one_of
from plm_jax.core.keywords import Rate
from plm_jax.core.types import Array
from plm_jax.noise.row import Row, Slots, Spans

MostInserted = Annotated[int, '1 <= x <= 100']  # each adds a slot to every token of a row

Per = Literal['token', 'span']
RandomIds = Literal['all', 'ordinary']


def _in_place(row: Row, ids: Array) -> Slots:
  length = row.ids.shape[0]
  return Slots(before=jnp.zeros((length, 0), jnp.int32), ids=ids, keep=jnp.ones(length, bool))


def _starts(spans: Spans) -> Array:
  """Mark the first position of each span: bool[l]."""
  before = jnp.concatenate([jnp.zeros(1, jnp.int32), spans.number[:-1]])
  return (spans.number > 0) & (spans.number != before)


def _inserted(spans: Spans, ids: Array) -> Array:
  """Keep the first `spans.insert` of int32[l, k] ids; others become -1."""
  return jnp.where(jnp.arange(ids.shape[1]) < spans.insert[:, None], ids, -1)


def _random_ids(bits: Array, *, vocab_size: int, special_ids: Sequence[int], random_ids: RandomIds) -> Array:
  """Turn each random word into an id.

  The id is the remainder of the word modulo the number of ids.

  Args:
    bits: uint32[...], uniform over a range much larger than the vocabulary.
    vocab_size: exclusive upper bound of the ids.
    special_ids: ids that 'ordinary' leaves out.
    random_ids: 'all' or 'ordinary'.

  Raises ValueError: an unknown `random_ids`, or no id for 'ordinary'.
  """
  one_of('random_ids', random_ids, RandomIds)
  if random_ids == 'all':
    return (bits % np.uint32(vocab_size)).astype(jnp.int32)
  ordinary = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), np.asarray(special_ids, np.int32))
  if not len(ordinary):
    raise ValueError(
      f"random_ids='ordinary' needs an ordinary token, and all {vocab_size} are special; or choose 'all'"
    )
  return jnp.asarray(ordinary)[bits % np.uint32(len(ordinary))]


def bert_80_10_10(
  key: Array,
  row: Row,
  spans: Spans,
  *,
  mask_id: int,
  vocab_size: int,
  special_ids: Sequence[int],
  mask: Rate = 0.8,
  random: Rate = 0.1,
  per: Per = 'token',
  random_ids: RandomIds = 'all',
) -> Slots:
  """Corrupt chosen tokens as BERT does (§3.1, task 1).

  80 % become [MASK], 10 % a random token, 10 % stay.

  Args:
    mask_id: id of [MASK].
    vocab_size: exclusive upper bound of random ids.
    special_ids: ids of special tokens.
    mask: probability of [MASK].
    random: probability of a random token.
    per: one of the three is sampled for each 'token' (BERT) or for each 'span' (SpanBERT §3.1; the random tokens of a
      span are sampled separately).
    random_ids: random tokens are from the whole vocabulary ('all', BERT's data script) or 'ordinary' (fairseq's
      RoBERTa).

  Raises:
    ValueError: a setting out of its bounds.
  """
  if mask < 0 or random < 0 or mask + random > 1 + 1e-9:
    raise ValueError(f'mask={mask} and random={random}: both must be at least 0, and their sum at most 1')
  one_of('per', per, Per)
  # 1. 31 random bits give the kind: below `first` [MASK], below `last` a random token, else the token itself
  first, last = round(mask * 2**31), round((mask + random) * 2**31)
  kind = bits = jax.random.bits(key, row.ids.shape) >> 1
  if per == 'span':
    kind = kind[spans.number - 1]
  # 2. random ids
  if per == 'span' or last - first < 1024 * vocab_size:
    bits = jax.random.bits(jax.random.fold_in(key, 1), row.ids.shape)
  else:  # reuse the word: if the kind is 'random', bits - first is uniform over [0, last - first)
    bits = bits - np.uint32(first)
  drawn = _random_ids(bits, vocab_size=vocab_size, special_ids=special_ids, random_ids=random_ids)
  # 3. write the chosen positions
  written = jnp.where(kind < np.uint32(first), mask_id, jnp.where(kind < np.uint32(last), drawn, row.ids))
  return _in_place(row, jnp.where(spans.number > 0, written, row.ids))


def to_mask(key: Array, row: Row, spans: Spans, *, mask_id: int) -> Slots:
  """Write [MASK] at every chosen position."""
  return _in_place(row, jnp.where(spans.number > 0, mask_id, row.ids))


def to_random(
  key: Array, row: Row, spans: Spans, *, vocab_size: int, special_ids: Sequence[int], random_ids: RandomIds = 'all'
) -> Slots:
  """Write random tokens at chosen positions; `random_ids`: see `bert_80_10_10`."""
  bits = jax.random.bits(key, row.ids.shape)
  drawn = _random_ids(bits, vocab_size=vocab_size, special_ids=special_ids, random_ids=random_ids)
  return _in_place(row, jnp.where(spans.number > 0, drawn, row.ids))


def from_samples(key: Array, row: Row, spans: Spans, *, samples: Array) -> Slots:
  """Write ids int32[l], samples of a generator (ELECTRA §3.1)."""
  return _in_place(row, jnp.where(spans.number > 0, samples, row.ids))


def to_sentinels(
  key: Array, row: Row, spans: Spans, *, first_sentinel: int, sentinel_step: Annotated[int, 'any'] = -1
) -> Slots:
  """Replace the k-th span by the k-th sentinel (T5 §3.1.4).

  It is written at the first position of the span; the other positions are dropped. The caller ensures that there are
  sentinels for all spans.

  Args:
    first_sentinel: id of the first sentinel; 32099 in T5.
    sentinel_step: difference between the ids of neighbouring sentinels; -1 in T5.
  """
  ids = jnp.where(spans.number > 0, first_sentinel + sentinel_step * (spans.number - 1), row.ids)
  return _in_place(row, ids)._replace(keep=(spans.number == 0) | _starts(spans))


def collapse_to_mask(key: Array, row: Row, spans: Spans, *, mask_id: int, max_insert: MostInserted = 1) -> Slots:
  """Replace each span by one [MASK] (BART §2.2, text infilling).

  It is written at the first position of the span. Each insertion is also a [MASK].

  Args:
    mask_id: id of [MASK].
    max_insert: most insertions before a position; `spans.insert` beyond it is not written. The functions of
      `noise/where/` insert at most one.
  """
  before = _inserted(spans, jnp.full((row.ids.shape[0], max_insert), mask_id, jnp.int32))
  ids = jnp.where(spans.number > 0, mask_id, row.ids)
  return Slots(before=before, ids=ids, keep=(spans.number == 0) | _starts(spans))


def drop(key: Array, row: Row, spans: Spans) -> Slots:
  """Drop chosen tokens (BART §2.2, token deletion; T5 §3.3.1)."""
  return _in_place(row, row.ids)._replace(keep=spans.number == 0)


def insert(
  key: Array,
  row: Row,
  spans: Spans,
  *,
  vocab_size: int,
  special_ids: Sequence[int],
  random_ids: RandomIds = 'all',
  max_insert: MostInserted = 1,
) -> Slots:
  """Write one random token per insertion, and keep chosen tokens.

  As fairseq's denoising data. `random_ids` as in `bert_80_10_10`, `max_insert` as in `collapse_to_mask`.
  """
  bits = jax.random.bits(key, (row.ids.shape[0], max_insert))
  drawn = _random_ids(bits, vocab_size=vocab_size, special_ids=special_ids, random_ids=random_ids)
  return _in_place(row, row.ids)._replace(before=_inserted(spans, drawn))


IN_PLACE = frozenset({bert_80_10_10, to_mask, to_random, from_samples})
"""Edits that neither drop nor insert: every token keeps its position."""
