"""Loss in nats per scored token, for files of predictions; evaluations of language models compute it batch by batch."""

from collections.abc import Sequence

import numpy as np

from plm_jax.scores import Row

METRICS = ('loss',)
READS = ('nats', 'weights')
RECORDS = ()


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute the mean of weighted nats over all tokens."""
  nats, tokens = (sum(np.sum(row[key]) for row in predictions) for key in READS)
  return {'loss': float(nats / tokens)}
