"""Shares of rows whose text is a right answer: character by character, and after SQuAD's normalisation.

A text for a task with labels is wrong if it is none of the labels' words (Raffel et al. 2020, §2.4); 'unmatched' is the
share of such rows.
"""

import re
import string
from collections.abc import Sequence

from plm_jax.scores import Row

METRICS = ('exact_match', 'normalised_match', 'unmatched')
READS = ('text',)
RECORDS = ('references',)
BY_ROW = ('exact_match', 'normalised_match', 'unmatched')


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute the three shares; 'unmatched' is 0 if rows have no options."""
  exact = normal = unmatched = 0
  for row, record in zip(predictions, records, strict=True):
    text, right = row['text'].strip(), [target.strip() for target in record['references']]
    exact += text in right
    normal += normalised(text) in map(normalised, right)
    options = [option.strip() for option in record.get('options', ())]
    unmatched += bool(options) and text not in options
  return dict(zip(METRICS, (count / len(predictions) for count in (exact, normal, unmatched)), strict=True))


def normalised(text: str) -> str:
  """Normalise a text as SQuAD (Rajpurkar et al. 2016, §6.1).

  Lower case, without ASCII punctuation, English articles and repeated spaces.
  """
  text = ''.join(letter for letter in text.lower() if letter not in string.punctuation)
  return ' '.join(re.sub(r'\b(a|an|the)\b', ' ', text).split())
