"""The form in which GLUE takes predictions of a test set: a table of index and prediction (gluebenchmark.com).

Classes are numbers, but words where they are kinds of entailment (MNLI, QNLI, RTE, AX; WNLI, the one set that names
not_entailment first, takes numbers). Values (STS-B) are cut to 0 to 5.
"""

from collections.abc import Sequence

import numpy as np

from plm_jax.scores import Row

READS = ('label', 'value')  # one of them
ENTAILMENT = {'entailment', 'neutral', 'contradiction', 'not_entailment'}


def submission(predictions: Sequence[Row], records: Sequence[Row]) -> str:
  """The table, tabs between columns, rows in their order."""
  lines = ['index\tprediction']
  for number, (row, record) in enumerate(zip(predictions, records, strict=True)):
    lines.append(f'{index(record, number)}\t{_prediction(row, tuple(record.get("names", ())))}')
  return '\n'.join([*lines, ''])


def index(record: Row, number: int) -> int:
  """The number of a row in its benchmark: 'idx' of the data, or its place."""
  given = record.get('row', {}).get('idx')
  return given if isinstance(given, int) else number


def _prediction(row: Row, names: tuple[str, ...]) -> str:
  if 'value' in row:
    return f'{np.clip(float(row["value"]), 0.0, 5.0):.3f}'
  label = int(row['label'])
  in_words = set(names) <= ENTAILMENT and names and names[0] != 'not_entailment'
  return names[label] if in_words else str(label)
