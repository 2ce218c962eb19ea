"""Invariants of every function of `noise/where/`, and of every edit after it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.config import build, signatures
from plm_jax.noise import compact, edit
from plm_jax.noise.row import Row, Spans
from plm_jax.noise.where import spans
from tests import tiny
from tests.noise import reference

FUNCTIONS = sorted(signatures.places('noise.where'))
LENGTH, ROWS = 24, 40
SPECIAL, MASK, SENTINEL, PAD = 2, 4, 500, 0


def one_row(*, real=LENGTH, segments=None, eligible=None, words=None) -> tuple[np.ndarray, ...]:
  index = np.arange(LENGTH)
  segments = (index < real).astype(np.int32) if segments is None else np.asarray(segments, np.int32)
  eligible = (segments > 0) if eligible is None else (segments > 0) & np.asarray(eligible, bool)
  words = index if words is None else np.asarray(words)
  ids = np.where(eligible, 7 + index * 3 % 90, np.where(segments > 0, SPECIAL, PAD))
  return ids, eligible, segments, words


INDEX = np.arange(LENGTH)
HARD = {
  'nothing': one_row(real=0),
  'one token': one_row(real=1),
  'two tokens': one_row(real=2),
  'all special': one_row(eligible=np.zeros(LENGTH)),
  'one between special ones': one_row(real=3, eligible=INDEX == 1),
  'every other one special': one_row(eligible=INDEX % 2),
  'one word': one_row(words=np.zeros(LENGTH)),
  'documents of one token': one_row(segments=INDEX + 1),
  'documents of two tokens, one word': one_row(segments=1 + INDEX // 2, words=np.zeros(LENGTH)),
  'documents and special tokens': one_row(segments=1 + INDEX // 7, eligible=INDEX % 7 > 0, words=INDEX // 2),
  'padding on the left': one_row(segments=np.where(INDEX < 9, 0, 1 + INDEX // 16)),
}


def random_row(draw: np.random.Generator) -> tuple[np.ndarray, ...]:
  segments = np.where(draw.integers(LENGTH + 1) > INDEX, 1 + (draw.random(LENGTH) < 0.08).cumsum(), 0)
  return one_row(
    segments=segments, eligible=draw.random(LENGTH) > 0.15, words=(draw.random(LENGTH) < draw.uniform(0.5, 1)).cumsum()
  )


def batch(seed: int = 0) -> Row:
  """Build the hard rows, and random ones up to a fixed number."""
  draw = np.random.default_rng(seed)
  rows = [*HARD.values(), *(random_row(draw) for _ in range(ROWS - len(HARD)))]
  ids, eligible, segments, words = (jnp.asarray(np.stack(leaves)) for leaves in zip(*rows, strict=True))
  return Row(ids.astype(jnp.int32), eligible, segments.astype(jnp.int32), words.astype(jnp.int32), words // 3)


def keys(seed: int = 0):
  return jax.random.split(jax.random.key(seed), ROWS)


@functools.cache
def pick(name: str, rate: float | None = None) -> functools.partial:
  """Bind the settings of a function, as objectives do."""
  settings = {'name': name} | ({} if rate is None else {'rate': rate})
  return build.pick('noise.where', settings, counts=reference.counts_of(reference.VOCAB))


def capacity(choose: functools.partial, length: int = LENGTH) -> int:
  """Look up the capacity of a function in its file."""
  return build.beside(choose.func, 'CAPACITY')[choose.func](length, **choose.keywords)


@functools.cache
def compiled(name: str, rate: float | None = None):
  return jax.jit(jax.vmap(pick(name, rate)))


def test_every_name_is_in_one_file():
  assert sorted(name for file in signatures.files_of('noise.where') for name in signatures.functions(file)) == FUNCTIONS


@pytest.mark.parametrize('name', FUNCTIONS)
def test_every_function_says_how_much_it_may_choose(name):
  for length in (1, 2, LENGTH, 512):
    assert 0 <= capacity(pick(name), length) <= length


def check(name: str, row: Row, found: Spans, rate: float | None) -> None:
  """Check the eligibility, boundaries, numbers and bound of spans."""
  choose = pick(name, rate)
  slots = capacity(choose)
  assert found.number.dtype == found.insert.dtype == jnp.int32
  for place, (number, insert, eligible, segments) in enumerate(
    zip(*(np.asarray(x) for x in (found.number, found.insert, row.eligible, row.segment_ids)), strict=True)
  ):
    places = np.flatnonzero(number)
    assert eligible[places].all()
    assert (insert >= 0).all()
    assert not insert[segments == 0].any()
    values = number[places]
    assert np.unique(values).tolist() == list(range(1, len(np.unique(values)) + 1))
    assert (np.diff(values) >= 0).all()
    for value in np.unique(values):
      (span,) = np.nonzero(number == value)
      assert np.array_equal(span, np.arange(span[0], span[-1] + 1)), 'a span has a hole'
      assert len(np.unique(segments[span])) == 1, 'a span continues in the next document'
    # those that round up in each document leave room for some documents, not for one a token
    if choose.func not in spans.CAPACITY or place >= len(HARD):
      assert len(places) <= slots <= LENGTH, place
    if rate == 0:
      assert not places.size


@pytest.mark.parametrize('rate', [None, 0.0, 1.0])
@pytest.mark.parametrize('name', FUNCTIONS)
def test_spans_keep_to_ordinary_tokens_and_documents(name, rate):
  if rate is not None and 'rate' not in signatures.keywords(signatures.places('noise.where')[name], name):
    pytest.skip('goes by no rate')
  row = batch()
  for seed in range(10 if rate is None else 2):
    check(name, row, compiled(name, rate)(keys(seed), row), rate)


@pytest.mark.parametrize('name', FUNCTIONS)
def test_a_row_is_corrupted_alike_alone_and_anywhere_in_a_batch(name):
  row, key = batch(), keys()
  together = compiled(name)(key, row)
  turned = jax.tree.map(lambda leaf: leaf[::-1], (key, row))
  assert tiny.same(jax.tree.map(lambda leaf: leaf[::-1], compiled(name)(*turned)), together)
  alone = jax.jit(pick(name))
  for number in range(ROWS):
    one = jax.tree.map(lambda leaf, number=number: leaf[number], (key, row))
    assert tiny.same(alone(*one), jax.tree.map(lambda leaf, number=number: leaf[number], together)), number


@pytest.mark.parametrize('name', FUNCTIONS)
def test_compiled_once_for_any_content(name):
  run = compiled(name)
  noise = {run(keys(seed), batch(seed)).number.tobytes() for seed in range(1, 101)}
  assert run._cache_size() == 1
  assert len(noise) > 90 or capacity(pick(name)) == 0  # one that only inserts


@pytest.mark.parametrize('name', FUNCTIONS)
def test_the_shortest_rows_have_spans_of_their_shape(name):
  for length in (1, 2, 3):
    row = jax.tree.map(lambda leaf, length=length: leaf[0, :length], batch())
    found = jax.eval_shape(pick(name), jax.random.key(0), row)
    assert found.number.shape == found.insert.shape == (length,)


# Edits ----------------------------------------------------------------------------------------------------------------


def span_edits(samples):
  """Map deterministic edits to (ours, result for a span)."""
  return {
    'to_mask': (functools.partial(edit.to_mask, mask_id=MASK), lambda k, ids: [MASK] * len(ids)),
    'drop': (edit.drop, lambda k, ids: []),
    'collapse_to_mask': (functools.partial(edit.collapse_to_mask, mask_id=MASK), lambda k, ids: [MASK]),
    'to_sentinels': (
      functools.partial(edit.to_sentinels, first_sentinel=SENTINEL),
      lambda k, ids: [SENTINEL - (k - 1)],
    ),
    'from_samples': (
      functools.partial(edit.from_samples, samples=samples),
      lambda k, ids: [token + 1 for token in ids],
    ),
  }


@functools.cache
def all_edits(size: int):
  """Apply an edit to a batch; return rows and source positions."""

  def run(key, row, found):
    out = {}
    for name, (write, _) in span_edits(row.ids + 1).items():
      slots = write(key, row, found)
      out[name] = (
        compact.compact(slots, size=size, pad_id=PAD),
        compact.compact_from(slots, size=size, pad_id=0)[1],
        compact.total(slots),
      )
    return out

  return jax.jit(jax.vmap(run))


@pytest.mark.parametrize('name', FUNCTIONS)
def test_every_edit_behind_every_where_equals_plain_python(name):
  row, size = batch(), LENGTH + 8
  found = compiled(name)(keys(3), row)
  new = all_edits(size)(keys(4), row, found)
  for number in range(ROWS):
    ids, numbers, insert = (np.asarray(x[number]).tolist() for x in (row.ids, found.number, found.insert))
    for written, (_, span) in span_edits(None).items():
      extra = insert if written == 'collapse_to_mask' else [0] * LENGTH
      expected = reference.rewrite(ids, numbers, extra, span=span, extra=lambda: MASK)
      got, origins, total = (np.asarray(x[number]) for x in new[written])
      assert got.tolist() == (expected + [PAD] * size)[:size], (written, number)
      assert int(total) == len(expected)
      # each id says where it stood: text that was not chosen is found again
      used = origins >= 0
      assert used.sum() == min(len(expected), size)
      assert (np.diff(origins[used]) >= 0).all()
      clean = used & (got == np.asarray(ids)[origins]) & (np.asarray(numbers)[origins] == 0)
      assert set(origins[clean]) == set(np.flatnonzero(np.asarray(numbers) == 0)[: len(set(origins[clean]))])
