"""Shares of rows whose text is a right answer: character by character, and after SQuAD's normalisation.

A text for a task with labels is wrong if it is none of the labels' words (Raffel et al. 2020, §2.4); 'unmatched' is the
share of such rows.
"""

from collections.abc import Sequence

from plm_jax.scores import Row
from plm_jax.scores.squad import normal

METRICS = ('exact_match', 'normalised_match', 'unmatched')
READS = ('text',)
RECORDS = ('references',)
BY_ROW = ('exact_match', 'normalised_match', 'unmatched')


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute the three shares; 'unmatched' is 0 if rows have no options."""
  exact = same = unmatched = 0
  for row, record in zip(predictions, records, strict=True):
    text, right = row['text'].strip(), [target.strip() for target in record['references']]
    exact += text in right
    same += normal(text) in map(normal, right)
    options = [option.strip() for option in record.get('options', ())]
    unmatched += bool(options) and text not in options
  return dict(zip(METRICS, (count / len(predictions) for count in (exact, same, unmatched)), strict=True))
