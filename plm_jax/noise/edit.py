"""What to write at the chosen positions: (key, row, spans) -> slots.

Some keep every position and some drop positions or insert; `compact` closes up what they leave. An edit writes the
pure insertions of `Spans.insert` only where it says so.
"""

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.noise.row import Row, Slots, Spans
from plm_jax.types import Array

RandomIds = Literal['all', 'ordinary']


def _in_place(row: Row, ids: Array) -> Slots:
  length = row.ids.shape[0]
  return Slots(jnp.zeros((length, 0), jnp.int32), ids, jnp.ones(length, bool))


def _starts(spans: Spans) -> Array:
  """bool[l], the first position of each span."""
  before = jnp.concatenate([jnp.zeros(1, jnp.int32), spans.number[:-1]])
  return (spans.number > 0) & (spans.number != before)


def _inserted(spans: Spans, ids: Array) -> Array:
  """int32[l, k]: the first `spans.insert` of ids int32[l, k], -1 for the others."""
  return jnp.where(jnp.arange(ids.shape[1]) < spans.insert[:, None], ids, -1)


def _random_ids(bits: Array, *, vocab_size: int, special_ids: Sequence[int], random_ids: RandomIds) -> Array:
  """An id for each word of random bits, by its remainder.

  Args:
    bits: uint32[...], uniform over a range much larger than the vocabulary.
    vocab_size: ids are below it.
    special_ids: left out by 'ordinary'.
    random_ids: 'all' or 'ordinary'.
  """
  if random_ids == 'all':
    return (bits % np.uint32(vocab_size)).astype(jnp.int32)
  if random_ids == 'ordinary':
    ordinary = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), np.asarray(special_ids, np.int32))
    return jnp.asarray(ordinary)[bits % np.uint32(len(ordinary))]
  raise ValueError(f'random_ids={random_ids!r}; choices are all, ordinary')


def bert_80_10_10(
  key: Array,
  row: Row,
  spans: Spans,
  *,
  mask_id: int,
  vocab_size: int,
  special_ids: Sequence[int],
  mask: float = 0.8,
  random: float = 0.1,
  per: Literal['token', 'span'] = 'token',
  random_ids: RandomIds = 'all',
) -> Slots:
  """[MASK] for 80 % of the chosen tokens, a random token for 10 %, the token itself for 10 % (BERT §3.1, task 1).

  Args:
    key: noise key of the row.
    row: clean text.
    spans: chosen positions.
    mask_id: id of [MASK].
    vocab_size: random ids are below it.
    special_ids: ids that are no ordinary tokens.
    mask: share that becomes [MASK].
    random: share that becomes a random token.
    per: what the draw is for, each 'token' (BERT) or each 'span' (SpanBERT §3.1: all tokens of a span alike, random
      ones drawn one by one).
    random_ids: random tokens are of the whole vocabulary ('all', BERT's data script) or 'ordinary' (fairseq's RoBERTa).
  """
  if mask < 0 or random < 0 or mask + random > 1 + 1e-9:
    raise ValueError(f'shares mask={mask} and random={random} must be positive and sum to at most 1')
  if per not in ('token', 'span'):
    raise ValueError(f'per={per!r}; choices are token, span')
  first, last = round(mask * 2**31), round((mask + random) * 2**31)
  kind = bits = jax.random.bits(key, row.ids.shape) >> 1
  if per == 'span':
    kind = kind[spans.number - 1]
  if per == 'span' or last - first < 1024 * vocab_size:
    bits = jax.random.bits(jax.random.fold_in(key, 1), row.ids.shape)
  else:
    bits = bits - np.uint32(first)  # one word for kind and id: among random tokens it is uniform over [0, last - first)
  drawn = _random_ids(bits, vocab_size=vocab_size, special_ids=special_ids, random_ids=random_ids)
  written = jnp.where(kind < np.uint32(first), mask_id, jnp.where(kind < np.uint32(last), drawn, row.ids))
  return _in_place(row, jnp.where(spans.number > 0, written, row.ids))


def to_mask(key: Array, row: Row, spans: Spans, *, mask_id: int) -> Slots:
  """[MASK] at every chosen position."""
  del key
  return _in_place(row, jnp.where(spans.number > 0, mask_id, row.ids))


def to_random(
  key: Array,
  row: Row,
  spans: Spans,
  *,
  vocab_size: int,
  special_ids: Sequence[int],
  random_ids: RandomIds = 'all',
) -> Slots:
  """A random token at every chosen position; `random_ids` as in `bert_80_10_10`."""
  bits = jax.random.bits(key, row.ids.shape)
  drawn = _random_ids(bits, vocab_size=vocab_size, special_ids=special_ids, random_ids=random_ids)
  return _in_place(row, jnp.where(spans.number > 0, drawn, row.ids))


def from_samples(key: Array, row: Row, spans: Spans, *, samples: Array) -> Slots:
  """The ids handed in, int32[l], at every chosen position: samples of a generator (ELECTRA §3.1)."""
  del key
  return _in_place(row, jnp.where(spans.number > 0, samples, row.ids))


def to_sentinels(key: Array, row: Row, spans: Spans, *, first_sentinel: int, sentinel_step: int = -1) -> Slots:
  """The k-th span becomes the k-th sentinel: at its first position, the rest dropped (T5 §3.1.4).

  Insertions are not written. The caller sees to it that there are sentinels for all spans.

  Args:
    key: not used.
    row: clean text.
    spans: numbered from left to right.
    first_sentinel: id of the first span's sentinel; T5 has 32099.
    sentinel_step: from one sentinel to the next; T5 counts down.
  """
  del key
  ids = jnp.where(spans.number > 0, first_sentinel + sentinel_step * (spans.number - 1), row.ids)
  return Slots(jnp.zeros((row.ids.shape[0], 0), jnp.int32), ids, (spans.number == 0) | _starts(spans))


def collapse_to_mask(key: Array, row: Row, spans: Spans, *, mask_id: int, max_insert: int = 1) -> Slots:
  """One [MASK] for each span, at its first position, and one for each insertion (BART §2.2, text infilling).

  Args:
    key: not used.
    row: clean text.
    spans: chosen positions and insertions.
    mask_id: id of [MASK].
    max_insert: room before each position; what `spans.insert` asks beyond it is not written. No function of `spans`
      asks for more than one.
  """
  del key
  before = _inserted(spans, jnp.full((row.ids.shape[0], max_insert), mask_id, jnp.int32))
  ids = jnp.where(spans.number > 0, mask_id, row.ids)
  return Slots(before, ids, (spans.number == 0) | _starts(spans))


def drop(key: Array, row: Row, spans: Spans) -> Slots:
  """No chosen token stays (BART §2.2, token deletion; T5 §3.3.1, "drop corrupted tokens")."""
  del key
  return _in_place(row, row.ids)._replace(keep=spans.number == 0)


def insert(
  key: Array,
  row: Row,
  spans: Spans,
  *,
  vocab_size: int,
  special_ids: Sequence[int],
  random_ids: RandomIds = 'all',
  max_insert: int = 1,
) -> Slots:
  """A random token for each insertion; chosen tokens stay as they are (fairseq's denoising data).

  `random_ids` as in `bert_80_10_10`, `max_insert` as in `collapse_to_mask`.
  """
  bits = jax.random.bits(key, (row.ids.shape[0], max_insert))
  drawn = _random_ids(bits, vocab_size=vocab_size, special_ids=special_ids, random_ids=random_ids)
  return _in_place(row, row.ids)._replace(before=_inserted(spans, drawn))


IN_PLACE = frozenset({bert_80_10_10, to_mask, to_random, from_samples})
"""The edits that neither drop nor insert: every token stays where it is."""
