"""ROUGE of texts, 0 to 100: F1 of words, of pairs of words and of longest common subsequences (Lin 2004).

The numbers are those of the package rouge-score with its stemmer, means over rows; of several references the best
counts in each of the four. rougeLsum compares sentences, which stand on lines of their own, or else end with a mark
such as '.'.
"""

import re
from collections.abc import Sequence

from plm_jax.scores import Row

METRICS = ('rouge1', 'rouge2', 'rougeL', 'rougeLsum')
READS = ('text',)
RECORDS = ('references',)
NEEDS = ('rouge-score',)
BY_ROW = ('rouge1', 'rouge2', 'rougeL', 'rougeLsum')


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """The four means."""
  from rouge_score.rouge_scorer import RougeScorer

  scorer = RougeScorer(METRICS, use_stemmer=True)
  totals = dict.fromkeys(METRICS, 0.0)
  for row, record in zip(predictions, records, strict=True):
    found = scorer.score_multi([in_lines(text) for text in record['references']], in_lines(row['text']))
    for name in METRICS:
      totals[name] += found[name].fmeasure
  return {name: 100 * total / len(predictions) for name, total in totals.items()}


def in_lines(text: str) -> str:
  """A text with each sentence on a line of its own."""
  return text if '\n' in text.strip() else re.sub(r'(?<=[.?!])\s+', '\n', text)
