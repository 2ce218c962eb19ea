"""Matthews correlation coefficient of classes, reported by GLUE for CoLA (Matthews 1975; Warstadt et al. 2018)."""

from collections.abc import Sequence

from plm_jax.scores import Row

METRICS = ('matthews',)
READS = ('label',)
RECORDS = ('label',)
NEEDS = ('scikit-learn',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute the coefficient, -1 to 1; 0 if either has one class."""
  from sklearn.metrics import matthews_corrcoef

  gold, predicted = [record['label'] for record in records], [int(row['label']) for row in predictions]
  return {'matthews': float(matthews_corrcoef(gold, predicted)) if len({*gold, *predicted}) > 1 else 0.0}
