"""ROUGE of texts, 0 to 100: F1 of words, of pairs of words and of longest common subsequences (Lin 2004).

The numbers are those of the package rouge-score with its stemmer, averaged over rows; of several references the best
one counts for each of the four. rougeLsum compares sentences, which are separated by newlines, or else end with a mark
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
  """Compute the four means."""
  from rouge_score.rouge_scorer import RougeScorer

  scorer = RougeScorer(METRICS, use_stemmer=True)
  totals = dict.fromkeys(METRICS, 0.0)
  for row, record in zip(predictions, records, strict=True):
    measured = scorer.score_multi([in_lines(text) for text in record['references']], in_lines(row['text']))
    for name in METRICS:
      totals[name] += measured[name].fmeasure
  return {name: 100 * total / len(predictions) for name, total in totals.items()}


def in_lines(text: str) -> str:
  """Put each sentence of a text on a separate line."""
  return text if '\n' in text.strip() else re.sub(r'(?<=[.?!])\s+', '\n', text)
