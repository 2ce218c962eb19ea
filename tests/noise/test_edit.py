"""What is written at the chosen positions: the 80/10/10 shares, and nothing anywhere else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.noise import edit, where
from plm_jax.noise.row import Row, Spans
from tests import tiny

MASK, VOCAB = 4, 97


def corrupt(rows: int, *, length: int = 128, seed: int = 0, **shares):
  """(clean, corrupted, chosen) of rows that begin and end with a special token and are padded to 3/4 at least."""
  draw = np.random.default_rng(seed)
  ids = draw.integers(7, VOCAB, (rows, length)).astype(np.int32)
  real = draw.integers(length * 3 // 4, length + 1, rows)
  index = np.arange(length)
  segments = (index < real[:, None]).astype(np.int32)
  eligible = (index > 0) & (index < real[:, None] - 1)

  @jax.jit
  @jax.vmap
  def run(key, ids, eligible, segments):
    row = Row(ids, eligible, segments)
    where_key, edit_key = jax.random.split(key)
    spans = where.fixed_count(where_key, row, rate=0.15)
    slots = edit.bert_80_10_10(edit_key, row, spans, mask_id=MASK, vocab_size=VOCAB, special_ids=range(7), **shares)
    return slots.ids, spans.number > 0

  keys = jax.random.split(jax.random.key(seed), rows)
  written, chosen = (np.asarray(x) for x in run(keys, ids, eligible, segments))
  assert (written == ids)[~eligible].all()
  assert (written == ids)[~chosen].all()
  return ids, written, chosen


def counts(ids, written, chosen):
  """Chosen positions: [all, masked, another word, the word itself]."""
  masked, same = written == MASK, written == ids
  return [int(x[chosen].sum()) for x in (chosen, masked, ~masked & ~same, same)]


def test_shares_equal_the_stored_counts():
  # 2,000 rows; threefry gives these numbers on every machine
  assert counts(*corrupt(2000)) == STORED


STORED = [33_445, 26_720, 3_319, 3_406]


def check_shares(found) -> None:
  total, masked, other, same = found
  # a random token may be [MASK] or the word itself
  expected = (0.8 + 0.1 / VOCAB, 0.1 * (VOCAB - 2) / VOCAB, 0.1 + 0.1 / VOCAB)
  for number, share in zip((masked, other, same), expected, strict=True):
    assert abs(number / total - share) < 4 * np.sqrt(share * (1 - share) / total)


def test_the_stored_counts_are_80_10_10():
  check_shares(STORED)


@pytest.mark.slow
def test_shares_over_20_000_rows():
  ids, written, chosen = corrupt(20_000, seed=1)
  check_shares(counts(ids, written, chosen))
  # what was drawn at random is spread evenly over the whole vocabulary, special tokens included
  drawn = written[chosen & (written != ids) & (written != MASK)]
  histogram = np.bincount(drawn, minlength=VOCAB)
  clean = np.bincount(ids[chosen], minlength=VOCAB) / chosen.sum()
  expected = (1 - clean) / (1 - clean)[np.arange(VOCAB) != MASK].sum() * len(drawn)
  used = np.arange(VOCAB) != MASK
  statistic = ((histogram - expected)[used] ** 2 / expected[used]).sum()
  assert histogram[MASK] == 0
  assert 59 < statistic < 143  # chi-square with 95 degrees of freedom, .1 % and 99.9 %


def test_shares_can_be_set():
  ids, written, chosen = corrupt(100, mask=1.0, random=0.0)
  assert (written[chosen] == MASK).all()
  ids, written, chosen = corrupt(100, mask=0.0, random=0.0)
  assert (written == ids).all()
  ids, written, chosen = corrupt(200, mask=0.0, random=1.0)
  assert (written != ids)[chosen].mean() == pytest.approx(1 - 1 / VOCAB, abs=0.01)
  for shares in ({'mask': 0.9, 'random': 0.2}, {'mask': -0.1}, {'random': -0.1}):
    with pytest.raises(ValueError, match='must be positive and sum to at most 1'):
      corrupt(1, **shares)


def row_and_spans():
  ids = jnp.array([2, 10, 11, 12, 13, 3, 0, 0])
  row = Row(ids, (ids > 6), (ids > 0).astype(jnp.int32))
  return row, Spans(jnp.array([0, 1, 0, 2, 2, 0, 0, 0]), jnp.zeros(8, jnp.int32))


def test_to_mask():
  row, spans = row_and_spans()
  slots = edit.to_mask(jax.random.key(0), row, spans, mask_id=MASK)
  assert slots.ids.tolist() == [2, MASK, 11, MASK, MASK, 3, 0, 0]
  assert slots.keep.all()
  assert slots.before.shape == (8, 0)


def test_to_random():
  row, spans = row_and_spans()
  drawn = np.stack([edit.to_random(jax.random.key(k), row, spans, vocab_size=5, special_ids=()).ids for k in range(300)])
  chosen = np.asarray(spans.number) > 0
  assert (drawn[:, ~chosen] == np.asarray(row.ids)[~chosen]).all()
  assert np.bincount(drawn[:, chosen].reshape(-1)).min() > 120  # of 180 expected
  assert drawn[:, chosen].max() == 4


def test_in_place_edits_change_nothing_without_spans():
  row, spans = row_and_spans()
  nothing = jax.tree.map(jnp.zeros_like, spans)
  for slots in (
    edit.bert_80_10_10(jax.random.key(0), row, nothing, mask_id=MASK, vocab_size=VOCAB, special_ids=range(7)),
    edit.to_mask(jax.random.key(0), row, nothing, mask_id=MASK),
    edit.to_random(jax.random.key(0), row, nothing, vocab_size=VOCAB, special_ids=()),
  ):
    assert tiny.same(slots.ids, row.ids)
