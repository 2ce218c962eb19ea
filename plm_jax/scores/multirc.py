"""MultiRC, in per cent: F1 over all answers, and questions with every answer judged correctly (SuperGLUE, §3).

A row is one answer to a question about a paragraph, and its label says if it is right; a question may have several
right ones. `idx` of a row, with 'paragraph' and 'question', groups the rows (Khashabi et al. 2018). A prediction of -1,
a text that is none of the labels, counts as the wrong one, as in T5's scores.
"""

import collections
from collections.abc import Iterable, Sequence

from plm_jax.scores import Row
from plm_jax.scores.f1 import judged
from plm_jax.scores.squad import mean

METRICS = ('f1a', 'exact_match')
READS = ('label',)
RECORDS = ('row', 'label')
BY_ROW = ('exact_match',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute F1 of all answers, and the share of completely right questions."""
  check(records)
  every = judged(predictions, records)
  questions: dict[tuple[int, int], list[tuple[int, int]]] = collections.defaultdict(list)
  for pair, record in zip(every, records, strict=True):
    idx = record['row']['idx']
    questions[idx['paragraph'], idx['question']].append(pair)
  exact = [float(all(predicted == gold for predicted, gold in pairs)) for pairs in questions.values()]
  return {'f1a': 100 * f1(every), 'exact_match': 100 * mean(exact)}


def check(records: Iterable[Row]) -> None:
  """Raise ValueError for a row without the index of its question."""
  for record in records:
    idx = record['row'].get('idx')
    if not isinstance(idx, dict) or not {'paragraph', 'question'} <= idx.keys():
      raise ValueError(f"score 'multirc' needs rows with an 'idx' of 'paragraph' and 'question', got {idx!r}")


def f1(pairs: Sequence[tuple[int, int]]) -> float:
  """Compute label 1's F1 from (predicted, right) pairs; 0 without it."""
  both = sum(predicted and gold for predicted, gold in pairs)
  either = sum(predicted + gold for predicted, gold in pairs)
  return 2 * both / either if either else 0.0
