"""What to write at the chosen positions: (key, row, spans) -> slots.

Some edits keep every position (`IN_PLACE`), others drop positions or insert ids; `compact` makes a row of the slots.
Only `collapse_to_mask` and `insert` write the insertions of `Spans.insert`.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.errors import one_of
from plm_jax.core.types import Array, Rate
from plm_jax.noise.row import Row, Slots, Spans

MostInserted = Annotated[int, '1 <= x <= 100']  # each takes a place for every token of a row

Per = Literal['token', 'span']
RandomIds = Literal['all', 'ordinary']


def _in_place(row: Row, ids: Array) -> Slots:
  length = row.ids.shape[0]
  return Slots(jnp.zeros((length, 0), jnp.int32), ids, jnp.ones(length, bool))


def _starts(spans: Spans) -> Array:
  """bool[l], the first position of each span."""
  before = jnp.concatenate([jnp.zeros(1, jnp.int32), spans.number[:-1]])
  return (spans.number > 0) & (spans.number != before)


def _inserted(spans: Spans, ids: Array) -> Array:
  """int32[l, k]: at each position the first `spans.insert` of its k ids, -1 for the others."""
  return jnp.where(jnp.arange(ids.shape[1]) < spans.insert[:, None], ids, -1)


def _random_ids(bits: Array, *, vocab_size: int, special_ids: Sequence[int], random_ids: RandomIds) -> Array:
  """A random id per word of random bits: the remainder of the word by the number of ids.

  Args:
    bits: uint32[...], uniform over a range much larger than the vocabulary.
    vocab_size: ids are below it.
    special_ids: ids that 'ordinary' leaves out.
    random_ids: 'all' or 'ordinary'.

  Raises:
    ValueError: an unknown `random_ids`, or no id for 'ordinary'.
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
  """[MASK] for 80 % of the chosen tokens, a random token for 10 %, the token itself for 10 % (BERT §3.1, task 1).

  Args:
    key: noise key of the row.
    row: clean text.
    spans: chosen positions.
    mask_id: id of [MASK].
    vocab_size: random ids are below it.
    special_ids: ids of special tokens.
    mask: probability of [MASK].
    random: probability of a random token.
    per: what one of the three is drawn for, each 'token' (BERT) or each 'span' (SpanBERT §3.1; the random tokens of a
      span are drawn one by one).
    random_ids: random tokens are of the whole vocabulary ('all', BERT's data script) or 'ordinary' (fairseq's RoBERTa).

  Raises:
    ValueError: a setting out of its bounds.
  """
  if mask < 0 or random < 0 or mask + random > 1 + 1e-9:
    raise ValueError(f'mask={mask} and random={random} must be at least 0 and sum to at most 1')
  one_of('per', per, Per)
  first, last = round(mask * 2**31), round((mask + random) * 2**31)
  kind = bits = jax.random.bits(key, row.ids.shape) >> 1
  if per == 'span':
    kind = kind[spans.number - 1]
  if per == 'span' or last - first < 1024 * vocab_size:
    bits = jax.random.bits(jax.random.fold_in(key, 1), row.ids.shape)
  else:  # one word for kind and id: where the kind is 'random', bits - first is uniform over [0, last - first)
    bits = bits - np.uint32(first)
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
  """The given ids int32[l] at every chosen position: samples of a generator (ELECTRA §3.1)."""
  del key
  return _in_place(row, jnp.where(spans.number > 0, samples, row.ids))


def to_sentinels(
  key: Array, row: Row, spans: Spans, *, first_sentinel: int, sentinel_step: Annotated[int, 'any'] = -1
) -> Slots:
  """The k-th sentinel at the first position of the k-th span; the other positions are dropped (T5 §3.1.4).

  The caller makes sure that there are sentinels for all spans.

  Args:
    key: not used.
    row: clean text.
    spans: numbered from left to right.
    first_sentinel: id of the first sentinel; 32099 in T5.
    sentinel_step: difference between the ids of neighbouring sentinels; -1 in T5.
  """
  del key
  ids = jnp.where(spans.number > 0, first_sentinel + sentinel_step * (spans.number - 1), row.ids)
  return Slots(jnp.zeros((row.ids.shape[0], 0), jnp.int32), ids, (spans.number == 0) | _starts(spans))


def collapse_to_mask(key: Array, row: Row, spans: Spans, *, mask_id: int, max_insert: MostInserted = 1) -> Slots:
  """One [MASK] per span, at its first position, and one per insertion (BART §2.2, text infilling).

  Args:
    key: not used.
    row: clean text.
    spans: chosen positions and insertions.
    mask_id: id of [MASK].
    max_insert: most insertions before a position; `spans.insert` beyond it is not written. The functions of
      `noise/where/` ask for at most one.
  """
  del key
  before = _inserted(spans, jnp.full((row.ids.shape[0], max_insert), mask_id, jnp.int32))
  ids = jnp.where(spans.number > 0, mask_id, row.ids)
  return Slots(before, ids, (spans.number == 0) | _starts(spans))


def drop(key: Array, row: Row, spans: Spans) -> Slots:
  """Chosen tokens are dropped (BART §2.2, token deletion; T5 §3.3.1, "drop corrupted tokens")."""
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
  max_insert: MostInserted = 1,
) -> Slots:
  """One random token per insertion; chosen tokens are kept (fairseq's denoising data).

  `random_ids` as in `bert_80_10_10`, `max_insert` as in `collapse_to_mask`.
  """
  bits = jax.random.bits(key, (row.ids.shape[0], max_insert))
  drawn = _random_ids(bits, vocab_size=vocab_size, special_ids=special_ids, random_ids=random_ids)
  return _in_place(row, row.ids)._replace(before=_inserted(spans, drawn))


IN_PLACE = frozenset({bert_80_10_10, to_mask, to_random, from_samples})
"""The edits that neither drop nor insert: every token keeps its position."""
