"""What to write at the chosen positions: (key, row, spans) -> slots."""

import jax
import jax.numpy as jnp

from plm_jax.noise.row import Row, Slots, Spans
from plm_jax.types import Array


def _in_place(row: Row, ids: Array) -> Slots:
  length = row.ids.shape[0]
  return Slots(jnp.zeros((length, 0), jnp.int32), ids, jnp.ones(length, bool))


def bert_80_10_10(
  key: Array, row: Row, spans: Spans, *, mask_id: int, vocab_size: int, mask: float = 0.8, random: float = 0.1
) -> Slots:
  """[MASK] for 80 % of the chosen tokens, a random token for 10 %, the token itself for 10 % (BERT §3.1, task 1).

  The draw is per token; random tokens come from the whole vocabulary, as in the released data script.

  Args:
    key: noise key of the row.
    row: clean text.
    spans: chosen positions.
    mask_id: id of [MASK].
    vocab_size: random ids are below it.
    mask: share that becomes [MASK].
    random: share that becomes a random token.
  """
  if mask < 0 or random < 0 or mask + random > 1 + 1e-9:
    raise ValueError(f'shares mask={mask} and random={random} must be positive and sum to at most 1')
  kind_key, id_key = jax.random.split(key)
  kind = jax.random.uniform(kind_key, row.ids.shape)
  drawn = jax.random.randint(id_key, row.ids.shape, 0, vocab_size, row.ids.dtype)
  written = jnp.where(kind < mask, mask_id, jnp.where(kind < mask + random, drawn, row.ids))
  return _in_place(row, jnp.where(spans.number > 0, written, row.ids))


def to_mask(key: Array, row: Row, spans: Spans, *, mask_id: int) -> Slots:
  """[MASK] at every chosen position."""
  del key
  return _in_place(row, jnp.where(spans.number > 0, mask_id, row.ids))


def to_random(key: Array, row: Row, spans: Spans, *, vocab_size: int) -> Slots:
  """A random token at every chosen position."""
  drawn = jax.random.randint(key, row.ids.shape, 0, vocab_size, row.ids.dtype)
  return _in_place(row, jnp.where(spans.number > 0, drawn, row.ids))
