"""Every function of `noise` has the law of its rules: whole outcomes of small rows, against all that may be drawn.

For each function there is a plain version that draws from a numpy generator. `exact` follows it through everything that
it may draw, so that the expected share of each outcome is known without sampling. 2,000 rows are compared with that in
every run of the tests, 20,000 in the long ones, which also sample the plain versions themselves.
"""

import collections
import functools
import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from plm_jax.noise import blanks, edit, pair, permutation, rearrange
from plm_jax.noise.compact import compact
from plm_jax.noise.row import Row, Spans
from plm_jax.noise.where import spans as where_spans
from plm_jax.noise.where import tokens as where_tokens
from plm_jax.noise.where import whole_words as where_words
from plm_jax.objectives import rtd
from tests.noise import blanks_reference, exact, reference, spans_reference

SURE = 1e-4  # a p-value that a sound function does not fall below with the fixed seeds
PAD, MASK, START, END = 0, 4, 5, 6
FIRST, VOCAB = 20, 30  # ids of text

# two documents, special tokens at the outer ends, words of one and two pieces: 1 | 2 3 | 4 || 5 | 6 7
ROW = reference.PlainRow(
  ids=np.array([2, 20, 21, 22, 23, 24, 25, 26, 3]),
  eligible=np.isin(np.arange(9), range(1, 8)),
  segment_ids=np.array([1, 1, 1, 1, 1, 2, 2, 2, 2]),
  word_ids=np.array([0, 1, 2, 2, 3, 4, 5, 5, 6]),
)
STARTS = [word[0] for word in ROW.words()]
COUNTS = np.arange(1, VOCAB + 1) ** 2
TEXT = reference.PlainRow(
  ids=np.arange(FIRST, FIRST + 8), eligible=np.ones(8, bool), segment_ids=np.ones(8, int), word_ids=np.arange(8)
)
SENTENCES = np.array([0, 0, 1, 2, 2, 2, 3, 3])
SPANS = np.array([1, 1, 0, 2, 0, 0, 3, 3])  # of TEXT


class Law(NamedTuple):
  """A function and its plain version.

  Attributes:
    ours: key -> what becomes of the row, int[k].
    plain: generator -> the same.
    longest: span length that longer ones do not differ from.
  """

  ours: Callable[[jax.Array], jax.Array]
  plain: Callable[[Any], Any]
  longest: int = 9


def row_of(row: reference.PlainRow, sentences: np.ndarray = SENTENCES) -> Row:
  arrays = row.ids, row.eligible, row.segment_ids, row.word_ids
  return Row(*map(jnp.asarray, arrays), jnp.asarray(np.resize(sentences, len(row.ids))))


def lazily(draw: Any, places: list[int]) -> Any:
  """Sample a random order of positions, one by one."""
  left = list(places)
  while left:
    yield left.pop(int(draw.integers(len(left))))


def chosen(
  function: Callable[..., Spans], plain: Callable[[Any], Any], row: reference.PlainRow = ROW, **settings
) -> Law:
  """Build the law of a `where` function from its plain version."""
  given = row_of(row)

  def ours(key):
    found = function(key, given, **settings)
    return jnp.concatenate([found.number, found.insert])

  def numbers(draw):
    found = plain(draw)
    number, insert = found if isinstance(found, tuple) else (found, [0] * len(row.ids))
    return [*number, *insert]

  return Law(ours, numbers)


# Where ----------------------------------------------------------------------------------------------------------------


def geometric(draw: Any) -> list[int]:
  sizes = lambda anchor: 1 + int(draw.choice(3, p=reference.shares([0.2, 0.16, 0.128])))  # noqa: E731
  return reference.take_geometric(ROW, lazily(draw, ROW.ordinary), sizes, rate=0.5)


def ngrams(draw: Any) -> list[int]:
  sizes = lambda start: 1 + int(draw.choice(3, p=reference.HARMONIC))  # noqa: E731
  return reference.take_ngrams(ROW, lazily(draw, STARTS), sizes, budget=4)


def windows(draw: Any) -> list[int]:
  sizes = iter(lambda: 1 + int(draw.choice(3, p=reference.HARMONIC)), 0)
  return reference.take_windows(ROW, sizes, lambda context: int(draw.integers(context)), rate=0.5, budget=4)


def runs(row: reference.PlainRow) -> list[list[int]]:
  return spans_reference.runs(row.eligible, row.segment_ids)


def iid_spans(draw: Any) -> list[int]:
  taken = {place for place in ROW.ordinary if draw.random() < 0.4}
  return reference.number(9, reference.merged(ROW, taken))


def after_a_cut(draw: Any) -> list[int]:
  return reference.number(9, [run[1 + int(draw.integers(len(run) - 1)) :] for run in runs(ROW)])


def one_span(draw: Any) -> list[int]:
  spans = []
  for run in runs(ROW):
    size = min(max(round(0.5 * len(run)), 1), len(run) - 1)
    first = int(draw.integers(len(run) - size + 1))
    spans.append(run[first : first + size])
  return reference.number(9, spans)


def exact_units(draw: Any) -> list[int]:
  taken = []
  for words in ROW.runs():
    taken += [words[place] for place in draw.choice(len(words), math.ceil(0.5 * len(words)), replace=False)]
  return reference.number(9, taken)


def infilling(draw: Any) -> tuple[list[int], list[int]]:
  hidden, insertions = spans_reference.infill(draw, [[place] for place in range(5)], rate=0.6, mean=2.0)
  dropped = {place for span in hidden for place in span[1:]}
  return reference.number(5, hidden), gaps(draw, [place for place in range(5) if place not in dropped], insertions, 5)


class Positive:
  """A generator whose Poisson numbers are above 0, with all from 3 on as 3: they hide the same spans."""

  def __init__(self, draw: Any):
    self.choice = draw.choice

  def poisson(self, mean: float) -> int:
    shares = [*stats.poisson.pmf([1, 2], mean), stats.poisson.sf(2, mean)]
    return 1 + int(self.choice(3, p=reference.shares(shares)))


def infilled_lengths(draw: Any) -> list[int]:
  """Return the lengths of spans from left to right; the last one sampled, which is cut, may be any of them."""
  hidden, _ = spans_reference.infill(Positive(draw), [[place] for place in range(8)], rate=0.37, mean=3.0)
  return [*map(len, hidden), *[0] * (3 - len(hidden))]


def lengths_of_ours(key: jax.Array) -> jax.Array:
  found = where_spans.poisson_spans(key, row_of(TEXT), rate=0.37, mean=3.0, units='tokens').number
  return (found == jnp.arange(1, 4)[:, None]).sum(axis=1)


def gaps(draw: Any, places: list[int], wanted: int, length: int) -> list[int]:
  """Choose distinct positions for insertions, one after the other."""
  found = [0] * length
  for number, place in enumerate(places):
    found[place] = int(draw.random() < min(1.0, (wanted - sum(found)) / (len(places) - number)))
  return found


def random_gaps(draw: Any) -> tuple[list[int], list[int]]:
  """List the positions of insertions: tokens of the run, and its end."""
  first, second = gaps(draw, [1, 2, 3, 4], 2, 9), gaps(draw, [5, 6, 7, 8], 2, 9)
  return [0] * 9, [a + b for a, b in zip(first, second, strict=True)]


def blank_numbers(found: list[blanks_reference.Blank], length: int) -> list[int]:
  """Build blanks between two special tokens, as span numbers."""
  spans = [list(range(1 + first, 1 + first + size)) for first, size in found]
  return reference.number(length, [span for span in spans if span])


GLM = reference.PlainRow(
  ids=np.arange(FIRST, FIRST + 10),
  eligible=np.isin(np.arange(10), range(1, 9)),
  segment_ids=np.ones(10, int),
  word_ids=np.arange(10),
)
GLM_SENTENCES = np.array([0, 0, 1, 1, 1, 2, 3, 3, 3, 3])  # of one, three, one and three tokens between the special ones

WHERE = {
  'iid': chosen(where_tokens.iid, functools.partial(reference.iid, row=ROW, rate=0.4), rate=0.4),
  'fixed_count': chosen(
    where_tokens.fixed_count, lambda draw: reference.take_singles(ROW, lazily(draw, ROW.ordinary), budget=4), rate=0.5
  ),
  'with_replacement': chosen(
    where_tokens.with_replacement, functools.partial(reference.with_replacement, row=ROW, rate=0.4), rate=0.4
  ),
  'frequency': chosen(
    where_tokens.frequency,
    functools.partial(reference.frequency, row=ROW, counts=COUNTS, rate=0.3),
    counts=COUNTS,
    rate=0.3,
  ),
  'whole_word': chosen(
    where_words.whole_word, lambda draw: reference.take_words(ROW, lazily(draw, STARTS), budget=4), rate=0.5
  ),
  'ngram': chosen(where_words.ngram, ngrams, rate=0.5),
  'geometric_spans': chosen(where_words.geometric_spans, geometric, rate=0.5, max_words=3),
  'ngram_windows': chosen(where_words.ngram_windows, windows, rate=0.5),
  'exact_spans': chosen(
    where_spans.exact_spans,
    lambda draw: spans_reference.exact_spans(draw, GLM.eligible, GLM.segment_ids, rate=0.5, mean=2.0),
    GLM,
    rate=0.5,
    mean=2.0,
  ),
  'iid_spans': chosen(where_spans.iid_spans, iid_spans, rate=0.4),
  'prefix': chosen(where_spans.prefix, after_a_cut),
  'one_span': chosen(where_spans.one_span, one_span),
  'exact_units': chosen(where_spans.exact_units, exact_units, rate=0.5),
  'poisson_spans': chosen(
    where_spans.poisson_spans,
    infilling,
    reference.PlainRow(*(leaf[:5] for leaf in TEXT)),
    rate=0.6,
    mean=2.0,
    units='tokens',
  )._replace(longest=3),
  'poisson_spans per length': Law(lengths_of_ours, infilled_lengths),
  'random_gaps': chosen(where_spans.random_gaps, random_gaps, rate=0.4),
  'token_blanks': chosen(
    blanks.token_blanks,
    lambda draw: blank_numbers(blanks_reference.token(draw, size=10, eligible=8, rate=0.3), 10),
    GLM,
    rate=0.3,
  ),
  'sentence_blanks': Law(
    lambda key: blanks.sentence_blanks(key, row_of(GLM, GLM_SENTENCES), rate=0.4).number,
    lambda draw: blank_numbers(blanks_reference.sentence(draw, size=10, sentences=(1, 3, 1, 3), rate=0.4), 10),
  ),
  'document_blanks': chosen(
    blanks.document_blanks, lambda draw: blank_numbers(blanks_reference.document(draw, size=10, eligible=8), 10), GLM
  ),
}

# Edit -----------------------------------------------------------------------------------------------------------------


def edited(function: Callable[..., Any], plain: Callable[[Any], Any], insert: Any = None, **settings) -> Law:
  """Build the law of an edit of TEXT at SPANS."""
  found = Spans(jnp.asarray(SPANS), jnp.zeros(8, jnp.int32) if insert is None else jnp.asarray(insert))
  return Law(lambda key: compact(function(key, row_of(TEXT), found, **settings), size=16, pad_id=PAD), plain)


def rewritten(span: Callable[[int, list[int]], list[int]], insert: Any = (0,) * 8, extra: Any = lambda: MASK) -> Any:
  found = reference.rewrite(TEXT.ids, SPANS.tolist(), insert, span=span, extra=extra)
  return (found + [PAD] * 16)[:16]


def eighty(draw: Any, per: str) -> Any:
  """Corrupt 80/10/10 with three words, one of them special."""
  kinds = reference.kinds(draw, SPANS.tolist(), mask=0.5, random=0.3, per=per)
  written = {'mask': lambda token: MASK, 'random': lambda token: 1 + int(draw.integers(2)), 'keep': int, '': int}
  return [*(written[kind](token) for kind, token in zip(kinds, TEXT.ids, strict=True)), *[PAD] * 8]


EIGHTY = dict(mask_id=MASK, mask=0.5, random=0.3, vocab_size=3, special_ids=(0,), random_ids='ordinary')
RANDOM = dict(vocab_size=4, special_ids=(0, 2), random_ids='ordinary')
INSERT = (0, 0, 1, 0, 2, 0, 0, 0)
EDIT = {
  'bert_80_10_10': edited(edit.bert_80_10_10, lambda draw: eighty(draw, 'token'), **EIGHTY),
  'bert_80_10_10 per span': edited(edit.bert_80_10_10, lambda draw: eighty(draw, 'span'), per='span', **EIGHTY),
  'to_mask': edited(edit.to_mask, lambda draw: rewritten(lambda k, ids: [MASK] * len(ids)), mask_id=MASK),
  'to_random': edited(
    edit.to_random, lambda draw: rewritten(lambda k, ids: [1 + 2 * int(draw.integers(2)) for _ in ids]), **RANDOM
  ),
  'from_samples': edited(
    edit.from_samples, lambda draw: rewritten(lambda k, ids: [9 for _ in ids]), samples=jnp.full(8, 9)
  ),
  'to_sentinels': edited(edit.to_sentinels, lambda draw: rewritten(lambda k, ids: [100 - k]), first_sentinel=99),
  'collapse_to_mask': edited(
    edit.collapse_to_mask, lambda draw: rewritten(lambda k, ids: [MASK], INSERT), INSERT, mask_id=MASK, max_insert=2
  ),
  'drop': edited(edit.drop, lambda draw: rewritten(lambda k, ids: [])),
  'insert': edited(
    edit.insert,
    lambda draw: rewritten(lambda k, ids: ids, INSERT, lambda: 1 + 2 * int(draw.integers(2))),
    INSERT,
    max_insert=2,
    **RANDOM,
  ),
}  # fmt: skip

# Rearrange ------------------------------------------------------------------------------------------------------------


def permuted(draw: Any, ratio: float) -> list[int]:
  return spans_reference.permute(draw, spans_reference.words(list(range(8)), SENTENCES), ratio=ratio)


def shuffled(draw: Any) -> list[int]:
  order = list(range(9))
  for run in runs(ROW):
    places = list(run)
    draw.shuffle(places)
    order[run[0] : run[-1] + 1] = places
  return order


def rotated(draw: Any) -> list[int]:
  order = list(range(9))
  for run in runs(ROW):
    offset = 1 + int(draw.integers(len(run) - 1))
    offset = offset if draw.random() < 0.7 else 0
    order[run[0] : run[-1] + 1] = run[offset:] + run[:offset]
  return order


def ranks(draw: Any) -> list[int]:
  """Two blocks of three in the second part share an order."""
  first, second = draw.permutation(3).tolist(), draw.permutation(3).tolist()
  return first + second + [3 + rank for rank in second]


def draw_ranks(key: jax.Array) -> jax.Array:
  return permutation.draw_ranks(key, 9, boundary=3, block=3)


XLNET = reference.PlainRow(
  ids=np.arange(24), eligible=~np.isin(np.arange(24), [5, 23]), segment_ids=np.ones(24, int),
  word_ids=np.array([1, 2, 2, 3, 4, 5, 6, 6, 7, 8, 9, 10] * 2).cumsum(),
)  # fmt: skip


def targets(draw: Any) -> list[int]:
  """Run XLNet's loop over the first twelve tokens, for three targets."""
  starts = np.diff(XLNET.word_ids, prepend=0) > 0
  shares = reference.shares([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
  taken: set[int] = set()
  cursor = 0
  while cursor < 12 and len(taken) < 3:
    n = min(1 + int(draw.choice(5, p=shares)), 3 - len(taken))
    left = int(draw.integers(2 * n))  # a context of two tokens for each
    begin = cursor + left
    while begin < 12 and not (starts[begin] and XLNET.eligible[begin]):
      begin += 1
    if begin + n >= 12:
      break
    taken |= {place for place in range(begin, begin + n) if XLNET.eligible[place]}
    cursor = begin + n + 2 * n - left
  free = [place for place in range(12) if XLNET.eligible[place] and place not in taken]
  taken |= {free[number] for number in draw.choice(len(free), 3 - len(taken), replace=False)}
  return [int(place in taken) for place in range(12)]


def choose_targets(key: jax.Array) -> jax.Array:
  row = row_of(XLNET)
  return permutation.choose_targets(key, row, boundary=12, one_in=4, window=2)[:12].astype(jnp.int32)


def parts(draw: Any) -> list[int]:
  """Write part A, then the blanks of TEXT in random order."""
  found = {k: [int(TEXT.ids[place]) for place in places] for k, places in reference.spans_of(SPANS.tolist()).items()}
  rows = [[token, place, 0, 0] for place, token in enumerate(rewritten(lambda k, ids: [MASK])) if token != PAD]
  at = dict(zip(found, [place for token, place, *_ in rows if token == MASK], strict=True))
  for number in draw.permutation(3):
    ids = found[number + 1]
    for inside, (token, target) in enumerate(zip([START, *ids], [*ids, END], strict=True), start=1):
      rows.append([token, at[number + 1], inside, target])
  rows += [[PAD, 0, 0, 0]] * (14 - len(rows))
  return np.transpose(rows).ravel().tolist()


def arrange(key: jax.Array) -> jax.Array:
  found = blanks.arrange(
    key, row_of(TEXT), Spans(jnp.asarray(SPANS), jnp.zeros(8, jnp.int32)),
    slots=3, mask_id=MASK, start_id=START, end_id=END, pad_id=PAD, block_id=1,
  )  # fmt: skip
  return jnp.concatenate([found.tokens, found.positions, found.block_positions, found.targets])


def segment(first: int, length: int) -> pair.Segment:
  return pair.Segment(first + jnp.arange(6), jnp.int32(length))


def joined(made: pair.Pair) -> jax.Array:
  return jnp.stack([made.label, made.first.ids[0], made.second.ids[0], made.first.length, made.second.length])


def truncated(draw: Any) -> list[int]:
  """Truncate the longer segment token by token, at either end."""
  kept = [list(range(6)), list(range(4))]
  while len(kept[0]) + len(kept[1]) > 5:
    longer = kept[0] if len(kept[0]) > len(kept[1]) else kept[1]
    del longer[0 if draw.random() < 0.5 else -1]
  return [kept[0][0], len(kept[0]), kept[1][0], len(kept[1])]


def truncate(key: jax.Array) -> jax.Array:
  first, second = pair.truncate(key, segment(0, 6), segment(0, 4), room=5)
  return jnp.stack([first.ids[0], first.length, second.ids[0], second.length])


SHARES = np.array([0.5, 0.1, 0.25, 0.15])


def sampled(key: jax.Array) -> jax.Array:
  logits = jnp.log(jnp.asarray(SHARES**0.5))  # at temperature 1/2 the shares themselves
  return rtd.sample(jnp.broadcast_to(logits, (1, 2, 4)), jax.random.key_data(key)[None], temperature=0.5)[0]


REARRANGE = {
  'permute_sentences': Law(
    lambda key: rearrange.permute_sentences(key, row_of(TEXT)), lambda draw: permuted(draw, 1.0)
  ),
  'permute_sentences half': Law(
    lambda key: rearrange.permute_sentences(key, row_of(TEXT), ratio=0.5), lambda draw: permuted(draw, 0.5)
  ),
  'deshuffle': Law(lambda key: rearrange.deshuffle(key, row_of(ROW)), shuffled),
  'rotate': Law(lambda key: rearrange.rotate(key, row_of(ROW), rate=0.7), rotated),
}
OTHERS = {
  'draw_ranks': Law(draw_ranks, ranks),
  'choose_targets': Law(choose_targets, targets),
  'arrange': Law(arrange, parts),
  'next_or_other': Law(
    lambda key: joined(pair.next_or_other(key, segment(100, 5), segment(200, 4), segment(300, 6))),
    lambda draw: [1, 100, 300, 5, 6] if draw.random() < 0.5 else [0, 100, 200, 5, 4],
  ),
  'in_order_or_swapped': Law(
    lambda key: joined(pair.in_order_or_swapped(key, segment(100, 5), segment(200, 4), segment(300, 6))),
    lambda draw: [1, 200, 100, 4, 5] if draw.random() < 0.5 else [0, 100, 200, 5, 4],
  ),
  'truncate': Law(truncate, truncated),
  'samples of a generator': Law(sampled, lambda draw: [draw.choice(4, p=SHARES) for _ in range(2)]),
}
LAWS = WHERE | EDIT | REARRANGE | OTHERS


def outcomes(rows: np.ndarray) -> dict[tuple[int, ...], int]:
  return dict(collections.Counter(map(tuple, rows.tolist())))


def check(found: dict[tuple[int, ...], int], expected: dict[tuple[int, ...], float]) -> None:
  """Test outcomes against a law, with rare ones (below 8 rows) joined."""
  assert sum(expected.values()) == pytest.approx(1, abs=1e-4)
  assert not set(found) - set(expected), sorted(set(found) - set(expected))[:5]
  rows = sum(found.values())
  table = np.array([[found.get(outcome, 0), share * rows] for outcome, share in expected.items()])
  rare = table[:, 1] < 8
  table = np.vstack([table[~rare], table[rare].sum(axis=0)])
  table = table[table[:, 1] > 1e-6 * rows]
  if len(table) > 1:
    assert stats.chisquare(table[:, 0], table[:, 1] * rows / table[:, 1].sum()).pvalue > SURE, table


@functools.cache
def law_of(name: str) -> dict[tuple[int, ...], float]:
  plain = LAWS[name].plain
  return exact.distribution(lambda draw: tuple(int(token) for token in plain(draw)), longest=LAWS[name].longest)


@functools.cache
def draw_rows(name: str, rows: int, seed: int) -> np.ndarray:
  return np.asarray(jax.jit(jax.vmap(LAWS[name].ours))(jax.random.split(jax.random.key(seed), rows)))


def public(module: Any) -> set[str]:
  return {name for name, item in vars(module).items() if inspect.isfunction(item) and item.__module__ == module.__name__
          and not name.startswith('_')}  # fmt: skip


def test_every_function_has_a_law():
  named = {name.split(' per ')[0].split(' half')[0] for name in LAWS}
  assert {
    function.__name__ for function in (*where_tokens.CAPACITY, *where_words.CAPACITY, *where_spans.CAPACITY)
  } <= named
  assert public(edit) | public(rearrange) <= named
  assert {name for name in public(blanks) if name.endswith('blanks')} | {'arrange'} <= named
  assert {'draw_ranks', 'choose_targets'} <= named
  assert public(pair) - {'join'} <= named


def test_known_laws():
  """Check the probabilities that have closed forms."""
  taken = collections.Counter[int]()
  for outcome, share in law_of('iid').items():
    taken[max(outcome)] += share  # type: ignore[assignment]
  assert [taken[k] for k in range(8)] == pytest.approx(stats.binom.pmf(range(8), 7, 0.4), abs=1e-6)
  assert sorted(law_of('fixed_count').values()) == pytest.approx([1 / math.comb(7, 4)] * math.comb(7, 4))
  assert sorted(law_of('deshuffle').values()) == pytest.approx([1 / 144] * 144)
  # three draws without replacement, p ∝ count ** -.7
  weights = COUNTS[ROW.ids] ** -0.7 * ROW.eligible
  for outcome, share in law_of('frequency').items():
    places = [place for place in range(9) if outcome[place]]
    ways = (
      weights[a] / weights.sum() * weights[b] / (weights.sum() - weights[a]) * weights[c]
      / (weights.sum() - weights[a] - weights[b])
      for a, b, c in itertools.permutations(places)
    )  # fmt: skip
    assert share == pytest.approx(sum(ways))
  assert law_of('permute_sentences')[tuple(range(8))] == pytest.approx(1 / 24)
  assert sorted(law_of('exact_spans').values()) == pytest.approx([1 / 9] * 9)


STORED = {*reference.CASES, 'sentence_blanks', 'document_blanks', 'choose_targets'}


@pytest.mark.parametrize('name', [name for name in LAWS if name not in STORED])
def test_2_000_rows(name):
  """Compare 2,000 rows with the exact law; others have stored histograms."""
  check(outcomes(draw_rows(name, 2000, seed=1)), law_of(name))


@pytest.mark.slow
@pytest.mark.parametrize('name', LAWS)
def test_20_000_rows(name):
  check(outcomes(draw_rows(name, 20_000, seed=2)), law_of(name))


@pytest.mark.slow
@pytest.mark.parametrize('name', LAWS)
def test_20_000_rows_of_the_plain_version(name):
  draw = np.random.default_rng(3)
  check(outcomes(np.array([LAWS[name].plain(draw) for _ in range(20_000)])), law_of(name))


def test_another_law_is_told_apart():
  for name, other in (('fixed_count', 'iid'), ('bert_80_10_10', 'bert_80_10_10 per span'), ('deshuffle', 'rotate')):
    with pytest.raises(AssertionError):
      check(outcomes(draw_rows(name, 2000, seed=1)), law_of(other))
