"""Share of words with the right label. `adapters/tag` counts it batch by batch; files of predictions need it here.

Words that were cut off a row are not counted, as in a batch; `seqeval` counts them as O.
"""

from collections.abc import Sequence

from plm_jax.scores import Row
from plm_jax.scores.seqeval import judged

METRICS = ('accuracy',)
READS = ('labels',)
RECORDS = ('labels', 'places', 'names')


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute the share of all words, 0 to 1; 0 without labels."""
  right = [
    predicted == gold
    for row, record in zip(predictions, records, strict=True)
    for predicted, gold in zip(*judged(row, record), strict=True)
  ]
  return {'accuracy': sum(right) / max(len(right), 1)}
