"""Rows to corrupt, and slow corruptions of a row in plain Python with numpy's generator: the laws of the fast ones.

A row is a list of runs; a run is a list of units, each a list of positions.
"""

import math

import jax.numpy as jnp
import numpy as np

from plm_jax.noise.row import Row
from plm_jax.noise.where import spans


def make_row(length: int, *, real=None, eligible=None, words=None, segments=None, sentences=None) -> Row:
  """Build a row; by default every token is an eligible word."""
  real = length if real is None else real
  segments = (np.arange(length) < real).astype(np.int32) if segments is None else np.asarray(segments, np.int32)
  eligible = segments > 0 if eligible is None else np.asarray(eligible, bool)
  words = np.arange(length) if words is None else np.asarray(words)
  sentences = np.zeros(length, np.int32) if sentences is None else np.asarray(sentences)
  return Row(*(jnp.asarray(x) for x in (np.full(length, 9), eligible, segments, words, sentences)))


def random_rows(count: int, length: int, seed: int = 0) -> Row:
  """Build rows with documents, long words, sentences, special tokens, padding."""
  draw = np.random.default_rng(seed)
  real = draw.integers(0, length + 1, count)
  index = np.arange(length)
  segments = np.where(index < real[:, None], 1 + (draw.random((count, length)) < 0.1).cumsum(axis=1), 0)
  eligible = (segments > 0) & (draw.random((count, length)) > 0.15)
  words, sentences = ((draw.random((count, length)) < share).cumsum(axis=1) for share in (0.6, 0.3))
  ids = np.full((count, length), 9)
  return Row(*(jnp.asarray(x) for x in (ids, eligible, segments.astype(np.int32), words, sentences)))


HARD_ROWS = {
  'one token': make_row(1),
  'one token and padding': make_row(8, real=1),
  'all padding': make_row(8, real=0),
  'all special': make_row(8, eligible=np.zeros(8, bool)),
  'padding on the left': make_row(8, segments=[0, 0, 0, 1, 1, 1, 2, 2]),
  'one long word': make_row(8, words=np.zeros(8)),
  'a document for each token': make_row(8, segments=np.arange(1, 9)),
  'shorter than a span': make_row(8, real=2),
}


def runs(eligible, segments) -> list[list[int]]:
  """List the positions of each run of eligible tokens."""
  runs: list[list[int]] = []
  for place, (may, segment) in enumerate(zip(eligible, segments, strict=True)):
    if not may:
      continue
    if runs and runs[-1][-1] == place - 1 and segments[place - 1] == segment:
      runs[-1].append(place)
    else:
      runs.append([place])
  return runs


def words(run, word_ids) -> list[list[int]]:
  """List the words of a run."""
  found: list[list[int]] = []
  for place in run:
    if found and word_ids[found[-1][-1]] == word_ids[place]:
      found[-1].append(place)
    else:
      found.append([place])
  return found


def composition(draw: np.random.Generator, total: int, parts: int) -> list[int]:
  """Split `total` into `parts` positive numbers, uniformly."""
  cuts = sorted(draw.choice(total - 1, parts - 1, replace=False) + 1)
  return np.diff([0, *cuts, total]).tolist()


def exact_spans(draw, eligible, segments, *, rate, mean) -> list[int]:
  """Span number of each position."""
  number, count = [0] * len(eligible), 0
  for run in runs(eligible, segments):
    if len(run) < 2 or rate == 0:
      continue
    hidden = min(max(round(rate * len(run)), 1), len(run) - 1)
    spans = min(max(round(hidden / mean), 1), len(run) - hidden)
    places = iter(run)
    for clean, noise in zip(composition(draw, len(run) - hidden, spans), composition(draw, hidden, spans), strict=True):
      count += 1
      for _ in range(clean):
        next(places)
      for _ in range(noise):
        number[next(places)] = count
  return number


def infill(draw, units: list[list[int]], *, rate, mean) -> tuple[list[list[int]], int]:
  """Choose spans of a run, from left to right, and insertions."""
  budget = math.ceil(round(rate * len(units), 9))
  lengths: list[int] = []
  while sum(lengths) < budget:
    lengths.append(int(draw.poisson(mean)))
  if lengths:
    lengths[-1] -= sum(lengths) - budget
  insertions = lengths.count(0)
  lengths = [length for length in lengths if length > 0]
  begin = draw.choice(len(units), len(lengths), replace=False)
  covered, starts = set(), set()
  for first, length in zip(begin, lengths, strict=True):
    starts.add(int(first))
    covered |= set(range(first + 1, min(first + length, len(units))))
  spans: list[list[int]] = []
  for unit, places in enumerate(units):
    if unit in starts and unit not in covered:
      spans.append(list(places))
    elif unit in covered:
      spans[-1] += places
  return spans, insertions


def permute(draw, sentences: list[list[int]], *, ratio) -> list[int]:
  """Permute ceil(ratio * sentences) sentences of a run."""
  count = math.ceil(round(ratio * len(sentences), 9))
  moved = np.sort(draw.choice(len(sentences), count, replace=False))
  order = np.arange(len(sentences))
  order[moved] = moved[draw.permutation(count)]
  return [place for number in order for place in sentences[number]]


def raw_length(inputs_length: int, *, rate: float, mean: float) -> tuple[int, int]:
  """Compute the row length whose corrupted inputs have `inputs_length` tokens.

  As T5's released code. Inputs and targets each hold one sentinel per span and one end token. At rate 1/2 targets may
  not be longer than inputs. (512, .15, 3) gives rows of 568 and targets of 114.

  Returns:
    (tokens of a row, length of its targets).

  Raises:
    ValueError: `inputs_length` has no room for a token and the end token, or rows of any length fit.
  """
  if rate == 1:
    raise ValueError('rate=1.0 hides all tokens except one, so rows of any length fit: choose a rate below 1')

  # (inputs, targets) of a raw row
  def lengths(raw: int) -> tuple[int, int]:
    tokens, count = spans.exact_counts(raw, rate=rate, mean=mean)
    return raw - tokens + count + 1, tokens + count + 1

  if lengths(1)[0] > inputs_length:
    raise ValueError(f'inputs of length {inputs_length} have no room for a token and the end token: use at least 2')
  # the largest raw row whose inputs fit
  raw = 1
  while lengths(raw + 1)[0] <= inputs_length:
    raw += 1
  targets = lengths(raw)[1]
  if rate == 0.5 and targets > inputs_length:
    raw, targets = raw - 1, targets - 1
  return raw, targets
