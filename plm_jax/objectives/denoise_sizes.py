"""Sizes of the inputs and targets that a denoiser makes of a row: slots for any row of a given length."""

import functools
from typing import Any

import numpy as np

from plm_jax.noise import edit as edits
from plm_jax.noise.where import counts
from plm_jax.noise.where import spans as where_spans
from plm_jax.objectives import corrupt
from plm_jax.objectives.denoising import Denoiser, VocabTables


def sizes(
  denoiser: Denoiser, length: int, *, tables: VocabTables, documents: int | None = None, margin: bool = True
) -> tuple[int, int]:
  """Count the slots of inputs and targets, at least one each.

  Exact if the number of chosen tokens is fixed. Otherwise the inputs are as long as the row, or also hold the
  insertions of `poisson_spans`, and the targets have room for as many tokens as `corrupt.capacity` says.

  Args:
    length: tokens of the row.
    documents: the most documents of a row. Each has at most one special token at either end. None is a row of one
      document without special tokens.
    margin: leave room for six standard deviations above the expected number of insertions.
  """
  func, settings = denoiser.choose.func, denoiser.choose.keywords
  if func not in where_spans.COUNTS or where_spans.COUNTS[func](length, **settings) is None:
    inputs, targets = _bounded_sizes(denoiser, length, tables=tables, documents=documents or 1, margin=margin)
  elif (documents or 1) == 1:
    inputs, targets = _exact_sizes(denoiser, length, tables=tables, frame=0 if documents is None else 2)
  else:
    size_of = functools.partial(_exact_sizes, denoiser, tables=tables, frame=2)
    needs = np.array([(0, 0), *map(size_of, range(1, length + 1))])
    inputs, targets = (int(most_together(needs[:, side], documents or 1)) for side in (0, 1))
  return max(1, inputs), max(1, targets)


def _bounded_sizes(
  denoiser: Denoiser, length: int, *, tables: VocabTables, documents: int, margin: bool
) -> tuple[int, int]:
  """Bound inputs and targets for a random number of chosen tokens."""
  func, settings = denoiser.choose.func, denoiser.choose.keywords
  tokens = spans = corrupt.capacity(denoiser.choose, length)
  if tables.sentinels is not None:
    spans = min(spans, documents * tables.sentinels.number)
  inserted = 0
  if func is where_spans.random_gaps:
    inserted = counts.round_up(settings.get('rate', 0.15), length) + documents - 1
  elif func is where_spans.poisson_spans and denoiser.write.func in (edits.collapse_to_mask, edits.insert):
    # collapsed spans never grow more than whole ones, and the estimates are bounds: take the smaller
    options = (False, True) if denoiser.write.func is edits.collapse_to_mask else (False,)
    inserted = min(most_growth(length, documents, margin=margin, collapsed=option, **settings) for option in options)
  closing = documents * (func is not where_spans.exact_spans)  # a row of exact spans ends in one
  written = {'text': length, 'masked': length, 'chosen': tokens, 'sentinels': tokens + spans + closing}
  ends = documents * len(tables.end)
  return length + inserted + ends + documents * len(denoiser.mode), written[denoiser.target] + ends


def _exact_sizes(denoiser: Denoiser, length: int, *, tables: VocabTables, frame: int) -> tuple[int, int]:
  """Count inputs and targets for a fixed number of chosen tokens.

  The result is the maximum over the 0 to `frame` special tokens that the document may have at its ends.
  """
  func, settings = denoiser.choose.func, denoiser.choose.keywords
  ends, closing = len(tables.end), func is not where_spans.exact_spans  # a row of exact spans ends in one
  sizes_by_text = []
  for text in range(length, max(length - frame, 0) - 1, -1):
    counted = where_spans.COUNTS[func](text, **settings)
    assert counted is not None  # as above
    tokens, spans = counted
    least = most = tokens  # that are hidden
    if tables.sentinels is not None and spans > tables.sentinels.number:
      # the spans that stay, and those that are hidden, may all have one token
      least, most = tables.sentinels.number, tokens - (spans - tables.sentinels.number)
      spans = tables.sentinels.number
    dropped = {edits.drop: least, edits.to_sentinels: least - spans, edits.collapse_to_mask: least - spans}
    written = {'text': length, 'masked': length, 'chosen': most, 'sentinels': most + spans + closing}
    inputs = length - dropped.get(denoiser.write.func, 0) + ends + len(denoiser.mode)
    sizes_by_text.append((inputs, written[denoiser.target] + ends))
  return max(inputs for inputs, _ in sizes_by_text), max(targets for _, targets in sizes_by_text)


@functools.cache
def most_growth(length: int, documents: int, *, margin: bool, **settings: Any) -> int:
  """Bound the growth of a row over cuts into at most `documents`.

  `margin` adds six standard deviations. `settings` are those of `where.spans.growth`.
  """
  mean, variance = where_spans.growth(length, **settings)
  longer = np.arange(length + 1) + mean
  most = most_together(longer, documents)
  if margin:
    # 6 sd is the least 3 (k var + 1 / k) over k, which adds up over documents
    factors = np.geomspace(0.01, 100, 10)
    most = min(most_together(longer + 3 * k * variance, documents) + 3 / k for k in factors)
  return max(0, min(int(most) - length, length + documents))  # insertions precede different tokens


def most_together(needs: np.ndarray, documents: int) -> float:
  """Compute the most slots that documents of l tokens together need.

  `needs` are int or float[l + 1], of a document of 0 to l tokens.

  # needs 0 2 3 4 of 0 to 3 tokens, 2 documents   2 + 3 for documents of one and two tokens
  """
  if documents == 1:
    return needs[-1].item()

  def best_split(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.array([(first[: size + 1] + second[size::-1]).max() for size in range(len(first))])

  total, doubled = np.zeros_like(needs), needs
  while documents:  # by the binary digits of their number
    if documents % 2:
      total = best_split(total, doubled)
    documents //= 2
    doubled = best_split(doubled, doubled) if documents else doubled
  return total[-1].item()
