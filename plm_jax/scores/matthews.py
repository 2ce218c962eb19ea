"""Matthews correlation coefficient of classes, what GLUE reports for CoLA (Matthews 1975; Warstadt et al. 2018)."""

from collections.abc import Sequence

from plm_jax.scores import Row

METRICS = ('matthews',)
READS = ('label',)
RECORDS = ('label',)
NEEDS = ('scikit-learn',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """The coefficient, -1 to 1; 0 where all rows are predicted alike or all labels are one."""
  from sklearn.metrics import matthews_corrcoef

  gold, found = [record['label'] for record in records], [int(row['label']) for row in predictions]
  return {'matthews': float(matthews_corrcoef(gold, found)) if len({*gold, *found}) > 1 else 0.0}
