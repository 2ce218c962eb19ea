"""Every `where` and `edit` in plain numpy, one token at a time, written from the published rules; and their statistics.

Nothing here shares code or random numbers with the package. Choices that a rule leaves to chance come in as iterators
or callables, so that a test can hand over the package's own draws and ask for the same result, or numpy's and ask for
the same distribution.
"""

import functools
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

HISTOGRAMS = pathlib.Path(__file__).parent / 'histograms'


class PlainRow(NamedTuple):
  ids: np.ndarray
  eligible: np.ndarray
  segment_ids: np.ndarray
  word_ids: np.ndarray

  @property
  def real(self) -> int:
    return int((self.segment_ids > 0).sum())

  @property
  def ordinary(self) -> list[int]:
    return [int(place) for place in np.flatnonzero(self.eligible)]

  def boundary(self, place: int) -> bool:
    """Check for a boundary between the position before and this one."""
    if place == 0 or place == len(self.ids):
      return True
    both = self.eligible[place] and self.eligible[place - 1]
    return not both or self.segment_ids[place] != self.segment_ids[place - 1]

  def words(self) -> list[list[int]]:
    """List the positions of each word that may be chosen."""
    words: list[list[int]] = []
    for place in self.ordinary:
      if self.boundary(place) or self.word_ids[place] != self.word_ids[place - 1]:
        words.append([])
      words[-1].append(place)
    return words

  def runs(self) -> list[list[list[int]]]:
    """Group words between two boundaries."""
    runs: list[list[list[int]]] = []
    for word in self.words():
      if self.boundary(word[0]):
        runs.append([])
      runs[-1].append(word)
    return runs


def bert_count(row: PlainRow, *, rate: float, max_count: int | None) -> int:
  if not row.real or not rate:
    return 0
  return min(math.inf if max_count is None else max_count, max(1, round(rate * row.real)))  # type: ignore[return-value]


def roberta_count(row: PlainRow, *, rate: float, uniform: float, max_count: int | None) -> int:
  count = math.floor(rate * row.real + uniform)
  return count if max_count is None else min(count, max_count)


def number(length: int, spans: list[list[int]]) -> list[int]:
  """Span numbers from the positions of each span."""
  out = [0] * length
  for k, span in enumerate(sorted(span for span in spans if span), start=1):
    for place in span:
      assert out[place] == 0, 'two spans share a position'
      out[place] = k
  return out


def merged(row: PlainRow, chosen: set[int]) -> list[list[int]]:
  spans: list[list[int]] = []
  for place in sorted(chosen):
    if place - 1 in chosen and not row.boundary(place):
      spans[-1].append(place)
    else:
      spans.append([place])
  return spans


# Where ----------------------------------------------------------------------------------------------------------------


def take_singles(row: PlainRow, places: Iterator[int], *, budget: int, candidates: str = 'ordinary') -> list[int]:
  """Take the first `budget` distinct candidates of an order."""
  allowed = set(row.ordinary) if candidates == 'ordinary' else set(range(row.real))
  taken = list(itertools.islice((place for place in places if place in allowed), budget))
  return number(len(row.ids), [[place] for place in taken])


def take_words(row: PlainRow, starts: Iterator[int], *, budget: int) -> list[int]:
  words = {word[0]: word for word in row.words()}
  taken: list[list[int]] = []
  for start in starts:
    if start in words and sum(map(len, taken)) + len(words[start]) <= budget:
      taken.append(words[start])
  return number(len(row.ids), taken)


def take_ngrams(row: PlainRow, starts: Iterator[int], sizes: Callable[[int], int], *, budget: int) -> list[int]:
  follow = {run[i][0]: run[i:] for run in row.runs() for i in range(len(run))}
  taken: list[list[int]] = []
  covered: set[int] = set()
  for start in starts:
    if len(covered) >= budget:
      break
    if start not in follow:
      continue
    grams = [list(itertools.chain(*follow[start][:n])) for n in range(sizes(start), 0, -1)]
    gram = next((gram for gram in grams if len(covered) + len(gram) <= budget), None)
    if gram is None or covered & set(gram):
      continue
    taken.append(gram)
    covered |= set(gram)
  return number(len(row.ids), taken)


def take_geometric(row: PlainRow, anchors: Iterator[int], sizes: Callable[[int], int], *, rate: float) -> list[int]:
  budget = math.ceil(rate * len(row.ordinary))
  place_of = {place: (run, i) for run in row.runs() for i, word in enumerate(run) for place in word}
  chosen: set[int] = set()
  while len(chosen) < budget:
    anchor = next(anchors)
    if anchor in chosen or anchor not in place_of:
      continue
    run, first = place_of[anchor]
    for word in run[first : first + sizes(anchor)]:
      for place in word:
        if len(chosen) < budget:
          chosen.add(place)
  return number(len(row.ids), merged(row, chosen))


def take_windows(
  row: PlainRow, sizes: Iterator[int], place: Callable[[int], int], *, rate: float, budget: int
) -> list[int]:
  """Choose an n-gram per window by `place`; the next window follows it."""
  words, width, offset = row.words(), int(1 / rate), 0
  spans: list[list[list[int]]] = []
  while offset < len(words):
    size = next(sizes)
    context = min(width * size, len(words) - offset)
    first = offset + place(context)
    gram: list[list[int]] = []
    for word in words[first : first + size]:
      if gram and row.boundary(word[0]):
        break
      gram.append(word)
    spans.append(gram)
    offset = max(offset + context, first + size)
  left, kept = budget, []
  for gram in spans:
    kept.append([])
    for word in gram:
      left -= len(word)
      kept[-1] += word if left >= 0 else []
  return number(len(row.ids), kept)


def shares(weights: list[float]) -> np.ndarray:
  return np.asarray(weights) / sum(weights)


HARMONIC = shares([1, 1 / 2, 1 / 3])
GEOMETRIC = shares([0.2 * 0.8**i for i in range(10)])


def fixed_count(
  draw: np.random.Generator, row: PlainRow, *, rate=0.15, max_count=None, count='bert', candidates='ordinary'
) -> list[int]:
  if count == 'bert':
    budget = bert_count(row, rate=rate, max_count=max_count)
  else:
    budget = roberta_count(row, rate=rate, uniform=draw.random(), max_count=max_count)
  return take_singles(row, iter(draw.permutation(len(row.ids)).tolist()), budget=budget, candidates=candidates)


def iid(draw, row, *, rate=0.15) -> list[int]:
  return number(len(row.ids), [[place] for place in row.ordinary if draw.random() < rate])


def with_replacement(draw, row, *, rate=0.15, max_count=None) -> list[int]:
  budget = bert_count(row, rate=rate, max_count=max_count) if row.ordinary else 0
  places = {int(draw.choice(row.ordinary)) for _ in range(budget)}
  return number(len(row.ids), [[place] for place in places])


def frequency(draw, row, *, counts, rate=0.15, smoothing=0.7, max_count=None) -> list[int]:
  """Sample one after the other, without replacement."""
  budget = math.ceil(rate * row.real)
  left, taken = row.ordinary, []
  for _ in range(min(budget, len(left), len(left) if max_count is None else max_count)):
    weights = shares([max(counts[row.ids[place]], 1) ** -smoothing for place in left])
    taken.append(left.pop(int(draw.choice(len(left), p=weights))))
  return number(len(row.ids), [[place] for place in taken])


def whole_word(draw, row, *, rate=0.15, max_count=None, count='bert') -> list[int]:
  if count == 'bert':
    budget = bert_count(row, rate=rate, max_count=max_count)
  else:
    budget = roberta_count(row, rate=rate, uniform=draw.random(), max_count=max_count)
  return take_words(row, iter(draw.permutation(len(row.ids)).tolist()), budget=budget)


def ngram(draw, row, *, rate=0.15, max_count=None) -> list[int]:
  starts = iter(draw.permutation(len(row.ids)).tolist())
  sizes = lambda start: int(draw.choice([1, 2, 3], p=HARMONIC))  # noqa: E731
  return take_ngrams(row, starts, sizes, budget=bert_count(row, rate=rate, max_count=max_count))


def geometric_spans(draw, row, *, rate=0.15) -> list[int]:
  anchors = (int(draw.integers(len(row.ids))) for _ in itertools.count())  # rejected until one is free
  return take_geometric(row, anchors, lambda anchor: int(draw.choice(10, p=GEOMETRIC)) + 1, rate=rate)


def ngram_windows(draw, row, *, rate=0.15, max_count=None) -> list[int]:
  sizes = (int(draw.choice([1, 2, 3], p=HARMONIC)) for _ in itertools.count())
  budget = bert_count(row, rate=rate, max_count=max_count)
  return take_windows(row, sizes, lambda context: int(draw.integers(context)), rate=rate, budget=budget)


# Edit -----------------------------------------------------------------------------------------------------------------
# (row, number, insert) -> the ids of the new row; random ids come from `random_id()`.


def spans_of(numbers: list[int]) -> dict[int, list[int]]:
  found: dict[int, list[int]] = {}
  for place, k in enumerate(numbers):
    if k:
      found.setdefault(k, []).append(place)
  return found


def rewrite(
  ids, numbers, insert, *, span: Callable[[int, list[int]], list[int]], extra: Callable[[], int]
) -> list[int]:
  """Replace each span by `span(number, ids)`, and insert `extra`."""
  spans, out = spans_of(numbers), []
  for place, token in enumerate(ids):
    out += [extra() for _ in range(insert[place])]
    k = numbers[place]
    if k == 0:
      out.append(int(token))
    elif place == spans[k][0]:
      out += span(k, [int(ids[p]) for p in spans[k]])
  return out


def kinds(draw: np.random.Generator, numbers, *, mask=0.8, random=0.1, per='token') -> list[str]:
  """Classify chosen positions as 'mask', 'random' or 'keep', others as ''."""
  pick = lambda: str(draw.choice(['mask', 'random', 'keep'], p=[mask, random, 1 - mask - random]))  # noqa: E731
  of_span = {k: pick() for k in spans_of(numbers)}
  return ['' if k == 0 else of_span[k] if per == 'span' else pick() for k in numbers]


# Statistics -----------------------------------------------------------------------------------------------------------


def counts_of(ids: int) -> np.ndarray:
  """Token counts of a training text as skewed as Zipf's."""
  return (1e5 / np.arange(1, ids + 1)).astype(np.int64)


LENGTH, VOCAB = 64, 97


def standard_row() -> PlainRow:
  """Build a row of two documents with special tokens, long words, padding."""
  draw = np.random.default_rng(8)
  segments = np.repeat([1, 2, 0], [36, 22, 6])
  special = np.isin(np.arange(LENGTH), [0, 17, 35, 36, 57]) | (segments == 0)
  words = (draw.random(LENGTH) < 0.65).cumsum()
  return PlainRow(np.where(special, 2, draw.integers(7, VOCAB, LENGTH)), ~special, segments, words)


def summarise(numbers: np.ndarray) -> dict[str, Any]:
  """Summarise independent rows of span numbers, int[rows, l].

  Returns:
    'chosen' and 'spans': rows by how many tokens and spans they have. 'positions': rows that chose each position.
    'lengths': spans of each length from 1 in a row, summed and squared and summed.
  """
  rows, length = numbers.shape
  sizes = np.zeros((rows, length + 1), np.int64)  # of span k + 1
  np.add.at(sizes, (np.repeat(np.arange(rows), length), numbers.reshape(-1)), 1)
  sizes = sizes[:, 1:]
  lengths = np.stack([(sizes == size).sum(axis=1) for size in range(1, length + 1)], axis=1)
  last = int(np.flatnonzero(lengths.any(axis=0)).max(initial=-1)) + 1
  return {
    'rows': rows,
    'chosen': np.bincount((numbers > 0).sum(axis=1)).tolist(),
    'spans': np.bincount((sizes > 0).sum(axis=1)).tolist(),
    'positions': (numbers > 0).sum(axis=0).tolist(),
    'lengths': [lengths[:, :last].sum(axis=0).tolist(), (lengths[:, :last] ** 2).sum(axis=0).tolist()],
  }


CASES: dict[str, tuple[Callable[..., list[int]], dict[str, Any]]] = {
  'fixed_count': (fixed_count, {}),
  'fixed_count_roberta': (fixed_count, {'count': 'roberta', 'candidates': 'all'}),
  'iid': (iid, {}),
  'with_replacement': (with_replacement, {}),
  'frequency': (frequency, {'counts': counts_of(VOCAB)}),
  'whole_word': (whole_word, {}),
  'whole_word_roberta': (whole_word, {'count': 'roberta'}),
  'ngram': (ngram, {'rate': 0.3}),
  'geometric_spans': (geometric_spans, {'rate': 0.3}),
  'ngram_windows': (ngram_windows, {}),
}


@functools.cache
def stored(case: str) -> dict[str, Any]:
  return json.loads((HISTOGRAMS / f'{case}.json').read_text())


def write(rows: int = 40_000) -> None:
  """Write the histograms of all references: python -m tests.noise.reference."""
  HISTOGRAMS.mkdir(exist_ok=True)
  row = standard_row()
  for case, (function, settings) in CASES.items():
    draw = np.random.default_rng(list(case.encode()))
    numbers = np.array([function(draw, row, **settings) for _ in range(rows)])
    (HISTOGRAMS / f'{case}.json').write_text(json.dumps(summarise(numbers)) + '\n')


if __name__ == '__main__':
  write()
