"""Share of rows with the right class. Adapters count it batch by batch; files of predictions need it here."""

from collections.abc import Sequence

from plm_jax.scores import Row

METRICS = ('accuracy',)
READS = ('label',)
RECORDS = ('label',)
BY_ROW = ('accuracy',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute the share, 0 to 1."""
  right = [int(row['label']) == record['label'] for row, record in zip(predictions, records, strict=True)]
  return {'accuracy': sum(right) / len(right)}
