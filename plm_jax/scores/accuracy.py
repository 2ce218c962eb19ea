"""Share of rows whose class is right. Adapters count it batch by batch; for files of predictions it is needed here."""

from collections.abc import Sequence

from plm_jax.scores import Row

METRICS = ('accuracy',)
READS = ('label',)
RECORDS = ('label',)
BY_ROW = ('accuracy',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """The share, 0 to 1."""
  right = [int(row['label']) == record['label'] for row, record in zip(predictions, records, strict=True)]
  return {'accuracy': sum(right) / len(right)}
