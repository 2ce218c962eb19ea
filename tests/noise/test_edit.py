"""Edits change chosen positions only, with the 80/10/10 shares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from plm_jax.noise import edit
from plm_jax.noise.compact import compact, total
from plm_jax.noise.row import Row, Spans
from plm_jax.noise.where import tokens
from tests import tiny
from tests.noise import reference

MASK, VOCAB = 4, 97


def corrupt(rows: int, *, length: int = 128, seed: int = 0, **shares):
  """Corrupt rows with special tokens at both ends and padding."""
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
    spans = tokens.fixed_count(where_key, row, rate=0.15)
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
    with pytest.raises(ValueError, match=r'mask=.*random='):
      corrupt(1, **shares)


# Per span, random ids -------------------------------------------------------------------------------------------------

WORD, MANY = 10, 50_000  # of all text; a random id of this many is hardly ever the word


def kinds(rows: int, *, seed: int = 0, vocab_size: int = MANY, special_ids=range(7), **settings):
  """Write spans of one to three tokens; both results int[rows, 40]."""
  numbers = np.repeat([0, 1, 0, 2, 0, 3, 4, 0, 5, 0], [6, 3, 4, 2, 5, 1, 3, 6, 2, 8])
  row = Row(*(jnp.asarray(x) for x in (np.full(40, WORD), np.ones(40, bool), np.ones(40, np.int32))))
  spans = Spans(jnp.asarray(numbers, jnp.int32), jnp.zeros(40, jnp.int32))
  settings = {'mask_id': MASK, 'vocab_size': vocab_size, 'special_ids': special_ids, **settings}
  run = jax.jit(jax.vmap(lambda key: edit.bert_80_10_10(key, row, spans, **settings).ids))
  return numbers, np.asarray(run(jax.random.split(jax.random.key(seed), rows)))


def named(written: np.ndarray) -> np.ndarray:
  return np.where(written == MASK, 'mask', np.where(written == WORD, 'keep', 'random'))


@pytest.mark.parametrize('per', ['token', 'span'])
def test_what_becomes_of_tokens_is_distributed_as_in_the_reference(per):
  rows = 2000
  numbers, written = kinds(rows, per=per)
  chosen = numbers > 0
  draw = np.random.default_rng(0)
  theirs = np.array([reference.kinds(draw, numbers, per=per) for _ in range(rows)])[:, chosen]
  ours = named(written)[:, chosen]
  assert (written[:, ~chosen] == WORD).all()
  # a whole row is one sample of a pattern: the shares of each position, and of each pair within the longest span
  for position in range(chosen.sum()):
    table = [[(x[:, position] == kind).sum() for kind in ('mask', 'random', 'keep')] for x in (ours, theirs)]
    assert stats.chi2_contingency(table).pvalue > 1e-5
  first, second = ours[:, 0], ours[:, 1]  # of one span
  agree = (first == second).mean()
  assert agree == (1.0 if per == 'span' else pytest.approx(0.66, abs=0.05))
  assert agree == pytest.approx((theirs[:, 0] == theirs[:, 1]).mean(), abs=0.05)


def test_tokens_of_a_random_span_are_drawn_one_by_one():
  numbers, written = kinds(2000, per='span')
  pair = written[:, numbers == 1][:, :2]
  random = (named(pair) == 'random').all(axis=1)
  assert random.sum() > 100
  assert (pair[random, 0] != pair[random, 1]).all()
  spans = np.stack([named(written[:, numbers == k])[:, 0] for k in range(1, 6)])
  found = [(spans == kind).sum() for kind in ('mask', 'random', 'keep')]
  assert stats.chisquare(found, spans.size * np.array([0.8, 0.1, 0.1])).pvalue > 1e-5


@pytest.mark.parametrize('random', [0.1, 0.005])  # one word for kind and id, and two
@pytest.mark.parametrize('per', ['token', 'span'])
@pytest.mark.parametrize('random_ids', ['all', 'ordinary'])
def test_random_ids_are_uniform(random, per, random_ids):
  # the lower half of the ids is special
  numbers, written = kinds(
    6000, random=random, per=per, random_ids=random_ids, special_ids=range(MANY // 2), vocab_size=MANY
  )
  drawn = written[:, numbers > 0]
  drawn = drawn[named(drawn) == 'random']
  first = 0 if random_ids == 'all' else MANY // 2
  assert drawn.size > 200
  assert first <= drawn.min()
  assert drawn.max() < MANY
  histogram = np.histogram(drawn, np.linspace(first, MANY, 11))[0]
  assert stats.chisquare(histogram).pvalue > 1e-5


def test_wrong_choices_are_refused():
  with pytest.raises(ValueError, match=r"per='word'.*token, span"):
    kinds(1, per='word')
  with pytest.raises(ValueError, match=r"random_ids='special'.*all, ordinary"):
    kinds(1, random_ids='special')


# One row by hand ------------------------------------------------------------------------------------------------------


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
  drawn = np.stack(
    [edit.to_random(jax.random.key(k), row, spans, vocab_size=5, special_ids=()).ids for k in range(300)]
  )
  chosen = np.asarray(spans.number) > 0
  assert (drawn[:, ~chosen] == np.asarray(row.ids)[~chosen]).all()
  assert np.bincount(drawn[:, chosen].reshape(-1)).min() > 120  # of 180 expected
  assert drawn[:, chosen].max() == 4


def test_to_random_without_special_ids():
  row, spans = row_and_spans()
  settings = {'vocab_size': 9, 'special_ids': (0, 4, 8), 'random_ids': 'ordinary'}
  run = jax.jit(jax.vmap(lambda key: edit.to_random(key, row, spans, **settings).ids))
  drawn = np.asarray(run(jax.random.split(jax.random.key(0), 100)))[:, np.asarray(spans.number) > 0]
  assert set(drawn.reshape(-1).tolist()) == {1, 2, 3, 5, 6, 7}


def test_from_samples():
  row, spans = row_and_spans()
  slots = edit.from_samples(jax.random.key(0), row, spans, samples=jnp.arange(50, 58))
  assert slots.ids.tolist() == [2, 51, 11, 53, 54, 3, 0, 0]


@pytest.mark.parametrize(('step', 'ids'), [(-1, [32099, 32098]), (1, [32099, 32100])])
def test_to_sentinels(step, ids):
  row, spans = row_and_spans()
  slots = edit.to_sentinels(jax.random.key(0), row, spans, first_sentinel=32099, sentinel_step=step)
  assert compact(slots, size=8, pad_id=0).tolist() == [2, ids[0], 11, ids[1], 3, 0, 0, 0]
  assert int(total(slots)) == 7


def test_neighbouring_spans_keep_a_sentinel_each():
  row, spans = row_and_spans()
  spans = spans._replace(number=jnp.array([0, 1, 1, 2, 2, 0, 0, 0]))
  slots = edit.to_sentinels(jax.random.key(0), row, spans, first_sentinel=99)
  assert compact(slots, size=6, pad_id=0).tolist() == [2, 99, 98, 3, 0, 0]


def letters(text: str) -> Row:
  ids = jnp.array([ord(letter) for letter in text])
  return Row(ids, jnp.ones(len(text), bool), jnp.ones(len(text), jnp.int32))


def spell(ids) -> str:
  return ''.join(chr(int(token)) for token in ids).rstrip('.')


def test_the_examples_of_bart():
  # ABC.DE. with fixed choices: masking A_C._E., deletion A.C.E., infilling A_.D_E. with an insertion before E
  row, key, blank = letters('ABC.DE.'), jax.random.key(0), ord('_')
  none = jnp.zeros(7, jnp.int32)
  masked = edit.to_mask(key, row, Spans(jnp.array([0, 1, 0, 0, 2, 0, 0]), none), mask_id=blank)
  assert spell(compact(masked, size=7, pad_id=ord('.'))) == 'A_C._E'
  deleted = edit.drop(key, row, Spans(jnp.array([0, 1, 0, 0, 2, 0, 0]), none))
  assert spell(compact(deleted, size=9, pad_id=ord('.'))) == 'AC.E'
  filled = edit.collapse_to_mask(key, row, Spans(jnp.array([0, 1, 1, 0, 0, 0, 0]), none.at[5].set(1)), mask_id=blank)
  assert spell(compact(filled, size=9, pad_id=ord('.'))) == 'A_.D_E'


def test_insertions_go_before_their_position_and_no_further_than_the_room():
  row, spans = row_and_spans()
  spans = spans._replace(insert=jnp.array([0, 2, 0, 0, 0, 1, 0, 0]))
  slots = edit.collapse_to_mask(jax.random.key(0), row, spans, mask_id=MASK, max_insert=2)
  assert compact(slots, size=10, pad_id=0).tolist() == [2, MASK, MASK, MASK, 11, MASK, MASK, 3, 0, 0]
  assert (slots.before >= 0).sum(axis=1).tolist() == [0, 2, 0, 0, 0, 1, 0, 0]
  cut = edit.collapse_to_mask(jax.random.key(0), row, spans, mask_id=MASK, max_insert=1)
  assert (cut.before >= 0).sum(axis=1).tolist() == [0, 1, 0, 0, 0, 1, 0, 0]


def test_insert_writes_random_ids_and_leaves_the_text():
  row, spans = row_and_spans()
  spans = spans._replace(insert=jnp.array([0, 2, 0, 0, 0, 1, 0, 0]))
  run = jax.jit(jax.vmap(lambda key: edit.insert(key, row, spans, vocab_size=5, special_ids=(), max_insert=2)))
  slots = run(jax.random.split(jax.random.key(0), 400))
  assert (slots.ids == row.ids).all()
  assert slots.keep.all()
  before = np.asarray(slots.before)
  assert ((before >= 0).sum(axis=2) == [0, 2, 0, 0, 0, 1, 0, 0]).all()
  assert stats.chisquare(np.bincount(before[before >= 0], minlength=5)).pvalue > 1e-5


def test_in_place_edits_change_nothing_without_spans():
  row, spans = row_and_spans()
  nothing = jax.tree.map(jnp.zeros_like, spans)
  for slots in (
    edit.bert_80_10_10(jax.random.key(0), row, nothing, mask_id=MASK, vocab_size=VOCAB, special_ids=range(7)),
    edit.to_mask(jax.random.key(0), row, nothing, mask_id=MASK),
    edit.to_random(jax.random.key(0), row, nothing, vocab_size=VOCAB, special_ids=()),
  ):
    assert tiny.same(slots.ids, row.ids)
